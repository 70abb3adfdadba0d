package admin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// This file retries and drops many dead letters: by a filter, counted before, and a retry as slowly as
// the operator says.

// Bulk retries or drops dead letters by a filter, the oldest first.
type Bulk struct {
	Filter DeadFilter `json:"filter"`
	All    bool       `json:"all,omitzero"`    // needed with an empty filter
	DryRun bool       `json:"dryRun,omitzero"` // only count
	Reason string     `json:"reason,omitzero"` // for the audit trail

	// Expect is the number that a dry run counted. If it differs now, nothing is done. 0: any number.
	Expect int `json:"expect,omitzero"`
	// Unknown consents to a retry of messages that their recipient may have had: outcome_unknown.
	Unknown bool `json:"unknown,omitzero"`
	// Rate is how many are retried a second, at most; 0: all at once. With a rate the answer does not wait for
	// the end: its job does.
	Rate float64 `json:"rate,omitzero"`
}

// BulkResult counts the dead letters and the changes.
type BulkResult struct {
	Matched int      `json:"matched"`
	Done    int      `json:"done"`
	Failed  []string `json:"failed,omitzero"` // at most 20, one sentence each
	DryRun  bool     `json:"dryRun"`

	Expired int       `json:"expired,omitzero"` // past their deadline or expiry: a retry only says so
	Unknown int       `json:"unknown,omitzero"` // their recipient may have had them
	Oldest  time.Time `json:"oldest,omitzero"`  // given up
	Newest  time.Time `json:"newest,omitzero"`
	Text    string    `json:"text,omitzero"` // of a dry run: what would happen, in a few sentences for the operator
	Job     *Job      `json:"job,omitzero"`  // with a rate: what goes on
}

const (
	minRate   = 0.01
	maxRate   = 1000
	maxFailed = 20 // sentences
)

// RetryAll revives the dead letters that a filter chooses.
func (a *Admin) RetryAll(ctx context.Context, by Actor, b Bulk) (BulkResult, error) {
	return a.bulk(ctx, by, "dead.retry", b, a.c.Hub.Retry)
}

// DropAll gives the dead letters up that a filter chooses.
func (a *Admin) DropAll(ctx context.Context, by Actor, b Bulk) (BulkResult, error) {
	if b.Rate != 0 {
		return BulkResult{}, parley.Refuse(parley.Malformed, "a rate is for retries: dropping costs the recipient nothing")
	}
	return a.bulk(ctx, by, "dead.drop", b, a.c.Hub.Drop)
}

// check refuses what no filter makes right.
func (b *Bulk) check() error {
	switch {
	case b.Filter.empty() && !b.All:
		return parley.Refuse(parley.Malformed, "an empty filter means every dead letter: say all if that is meant")
	case b.Rate != 0 && (b.Rate < minRate || b.Rate > maxRate):
		return parley.Refuse(parley.Malformed, "a rate of %g: want %g to %d messages a second", b.Rate, minRate, maxRate)
	case b.Expect < 0:
		return parley.Refuse(parley.Malformed, "%d dead letters cannot be expected", b.Expect)
	}
	return checkReason(b.Reason)
}

// consent refuses effects that the operator did not see, or did not confirm.
func (b *Bulk) consent(r *BulkResult, retry bool) error {
	switch {
	case b.Expect > 0 && b.Expect != r.Matched:
		return parley.Refuse(parley.Conflict, "%s now, not %d: nothing was done; count again with a dry run",
			number(r.Matched)+numbered(r.Matched, " dead letter matches", " dead letters match"), b.Expect)
	case retry && r.Unknown > 0 && !b.Unknown:
		return parley.Refuse(parley.Conflict, "%s %s outcome_unknown: the recipient may have had %s; nothing was done; say "+
			"that they are meant too (unknown), or choose others by their code", number(r.Unknown),
			numbered(r.Unknown, "has", "have"), numbered(r.Unknown, "it", "them"))
	}
	return nil
}

func (a *Admin) bulk(ctx context.Context, by Actor, action string, b Bulk,
	f func(context.Context, parley.ID, string) error) (BulkResult, error) {
	if err := cmp.Or(by.may(Operate), b.check(), a.resolveNames(&b.Filter.To, &b.Filter.From)); err != nil {
		return BulkResult{}, err
	}
	list, err := a.dead(b.Filter)
	if err != nil {
		return BulkResult{}, err
	}
	retry := action == "dead.retry"
	r := countDead(list, a.c.Now())
	if r.DryRun = b.DryRun; b.DryRun {
		r.Text = r.foretell(list, retry)
		return r, nil
	}
	if err := b.consent(&r, retry); err != nil || len(list) == 0 {
		return r, err
	}
	w := &work{list: list, change: f, rate: b.Rate}
	act := func(ctx context.Context) error {
		defer a.open.forget()
		return a.act(ctx, by, Operate, action, number(len(list))+" dead letters", b.detail(), w.run)
	}
	if b.Rate > 0 {
		job, err := a.jobs.start(a, by, &b, w, act)
		r.Job = job
		return r, err
	}
	err = act(ctx)
	_, r.Done, r.Failed = w.progress()
	return r, err
}

// detail is the operation in the audit trail.
func (b *Bulk) detail() string {
	when := func(t time.Time) string {
		if t.IsZero() {
			return "ever"
		}
		return t.UTC().Format(time.RFC3339)
	}
	s := fmt.Sprintf("to %q, from %q, code %q, since %s, before %s", b.Filter.To, b.Filter.From, b.Filter.Code,
		when(b.Filter.Since), when(b.Filter.Before))
	if b.Filter.Reason != "" {
		s += fmt.Sprintf(", reason %q", b.Filter.Reason)
	}
	if b.Filter.Limit > 0 {
		s += fmt.Sprintf(", the oldest %d", b.Filter.Limit)
	}
	if b.Rate > 0 {
		s += fmt.Sprintf(", %g a second", b.Rate)
	}
	return s + "; " + b.Reason
}

// countDead looks at dead letters, the oldest first.
func countDead(list []journal.Delivery, now time.Time) (r BulkResult) {
	r.Matched = len(list)
	for i := range list {
		d := &list[i]
		if overdue(d, now) {
			r.Expired++
		}
		if d.Error != nil && d.Error.Code == parley.OutcomeUnknown {
			r.Unknown++
		}
	}
	if len(list) > 0 {
		r.Oldest, r.Newest = list[0].Changed, list[len(list)-1].Changed
	}
	return r
}

// foretell describes the effects of the action.
func (r *BulkResult) foretell(list []journal.Delivery, retry bool) string {
	n := r.Matched
	if n == 0 {
		return "No dead letter matches."
	}
	s := number(n) + numbered(n, " matches", " match")
	if !retry {
		return s + numbered(n, ". It will not be tried again. Its content stays in the record.",
			". They will not be tried again. Their content stays in the record.") + " This cannot be undone."
	}
	if e := r.Expired; e > 0 {
		s += ", " + number(e) + numbered(e, " has passed its deadline", " have passed their deadline") +
			" and would only be told so"
	}
	s += numbered(n, ". It keeps its id, is signed anew, and is tried once.",
		". Each keeps its id, is signed anew, and is tried once, the oldest first.")
	if u := r.Unknown; u > 0 {
		to := list[0].To
		for i := range list {
			if list[i].To != to {
				to = "A recipient"
				break
			}
		}
		s += " " + to + " may have had " + numbered(u, "one", number(u)) + " of them already."
		if n == 1 {
			s = strings.TrimSuffix(s, "one of them already.") + "it already."
		}
	}
	return s
}

// numbered chooses a word by a number.
func numbered(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// number writes 10000 as 10,000.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
