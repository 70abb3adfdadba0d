package admin

import (
	"cmp"
	"context"
	"slices"

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

func (a *Admin) dead(f DeadFilter) []journal.Delivery {
	if f.Limit <= 0 || f.Limit > maxBulk {
		f.Limit = maxBulk
	}
	out := slices.DeleteFunc(a.c.Hub.Dead(), func(d journal.Delivery) bool { return !f.match(&d) })
	slices.SortStableFunc(out, func(x, y journal.Delivery) int {
		return cmp.Or(x.Changed.Compare(y.Changed), cmp.Compare(x.Position.Sequence, y.Position.Sequence))
	})
	return out[:min(len(out), f.Limit)]
}

// Dead lists dead letters, the oldest first.
func (a *Admin) Dead(by Actor, f DeadFilter) ([]DeadLetter, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&f.To, &f.From)); err != nil {
		return nil, err
	}
	return viewAll(by, a.dead(f), a.viewDead), nil
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
