package admin

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

const maxBulk = 10_000

func (f DeadFilter) match(d *journal.Delivery) bool {
	return (f.To == "" || f.To == d.To) && (f.From == "" || f.From == d.From) &&
		(f.Code == "" || d.Error != nil && f.Code == parley.CodeOf(d.Error)) &&
		reasonMatches(f.Reason, d.Error) &&
		(f.Since.IsZero() || !d.Changed.Before(f.Since)) && (f.Before.IsZero() || d.Changed.Before(f.Before))
}

// reasonMatches reports whether a filter by reason chooses an error.
func reasonMatches(want parley.Reason, e *parley.Error) bool {
	switch {
	case want == "":
		return true
	case e == nil:
		return want == NoReason
	case want == NoReason:
		return e.Reason == ""
	}
	return e.Reason == want
}

// deadPlace is the place of a dead letter in lists, which are ordered by the time at which it was given up.
type deadPlace struct {
	changed  int64 // in nanoseconds
	position journal.Position
	to       string
}

func placeOfDead(d *journal.Delivery) deadPlace {
	return deadPlace{d.Changed.UnixNano(), d.Position, d.To}
}

func (p deadPlace) compare(q deadPlace) int {
	return cmp.Or(cmp.Compare(p.changed, q.changed), cmp.Compare(p.position.Sequence, q.position.Sequence),
		cmp.Compare(p.position.Partition, q.position.Partition), cmp.Compare(p.to, q.to))
}

func (p deadPlace) String() string {
	return strconv.FormatInt(p.changed, 36) + "." + p.position.String() + "." + p.to
}

// parseDeadPlace reads what String writes.
func parseDeadPlace(s string) (p deadPlace, err error) {
	changed, rest, _ := strings.Cut(s, ".")
	position, to, _ := strings.Cut(rest, ".")
	p.to = to
	p.changed, err = strconv.ParseInt(changed, 36, 64)
	if err == nil {
		p.position, err = journal.ParsePosition(position)
	}
	if err != nil || p.String() != s {
		return p, parley.Refuse(parley.Malformed, "%.100q is not the cursor of a dead letter", s)
	}
	return p, nil
}

// dead gives the dead letters that a filter chooses, the oldest first. Errors: Malformed, for the cursor.
func (a *Admin) dead(f DeadFilter) ([]journal.Delivery, error) {
	if f.Limit <= 0 || f.Limit > maxBulk {
		f.Limit = maxBulk
	}
	after := deadPlace{changed: math.MinInt64}
	if f.Cursor != "" {
		var err error
		if after, err = parseDeadPlace(f.Cursor); err != nil {
			return nil, err
		}
	}
	out := slices.DeleteFunc(a.c.Hub.Dead(), func(d journal.Delivery) bool {
		return !f.match(&d) || placeOfDead(&d).compare(after) <= 0
	})
	slices.SortFunc(out, func(x, y journal.Delivery) int { return placeOfDead(&x).compare(placeOfDead(&y)) })
	return out[:min(len(out), f.Limit)], nil
}

// Dead lists dead letters, the oldest first.
func (a *Admin) Dead(by Actor, f DeadFilter) ([]DeadLetter, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&f.To, &f.From)); err != nil {
		return nil, err
	}
	list, err := a.dead(f)
	return viewAll(by, list, func(by Actor, d journal.Delivery) DeadLetter {
		v := a.viewDead(by, d)
		v.Cursor = placeOfDead(&d).String()
		return v
	}), err
}

// DeadLetter gives a dead letter with its message. The id may be the beginning of one. To may be
// empty if the message is a dead letter to one recipient only.
func (a *Admin) DeadLetter(ctx context.Context, by Actor, id, to string) (DeadLetter, error) {
	if err := by.may(Observe); err != nil {
		return DeadLetter{}, err
	}
	d, err := a.findDead(id, to)
	if err != nil {
		return DeadLetter{}, err
	}
	v := a.viewDead(by, d)
	r, err := a.c.Hub.Journal().Read(ctx, d.Position)
	if err != nil {
		return DeadLetter{}, err
	}
	if r.Message != nil {
		v.Content = a.show(by, r.Message)
	}
	v.History, v.Omitted, err = a.attemptsOf(ctx, by, d.Message, d.To)
	return v, err
}

// Retry revives a dead letter: same message, same ID.
func (a *Admin) Retry(ctx context.Context, by Actor, id, to string) (DeadLetter, error) {
	return a.settle(ctx, by, "dead.retry", id, to, "", a.c.Hub.Retry)
}

// Drop gives a dead letter up for good; the reason goes to the audit trail.
func (a *Admin) Drop(ctx context.Context, by Actor, id, to, reason string) (DeadLetter, error) {
	return a.settle(ctx, by, "dead.drop", id, to, reason, a.c.Hub.Drop)
}

func (a *Admin) settle(ctx context.Context, by Actor, action, id, to, reason string,
	f func(context.Context, parley.ID, string) error) (DeadLetter, error) {
	if err := by.may(Operate); err != nil {
		return DeadLetter{}, err
	}
	d, err := a.findDead(id, to)
	if err != nil {
		return DeadLetter{}, err
	}
	err = a.act(ctx, by, Operate, action, d.Message.String()+" to "+d.To, reason,
		func(ctx context.Context) error { return f(ctx, d.Message, d.To) })
	a.open.forget()
	return a.viewDead(by, d), err
}
