package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

func TestBulkIsCountedBefore(t *testing.T) {
	b, ctx := open(t, nil), t.Context()
	for _, deadline := range []time.Duration{time.Hour, -time.Hour, -time.Minute} {
		b.bury(parley.Message{Kind: parley.Request, From: "bob", To: "far", Deadline: time.Now().Add(deadline)},
			diesOfRefusal)
	}
	first, err := b.client.Dead(ctx, DeadFilter{Limit: 1})
	if err != nil || len(first) != 1 {
		t.Fatal(first, err)
	}
	b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"}, diesOfUnknown)
	last := b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "near"}, diesOfUnknown)

	const kept = " Each keeps its id, is signed anew, and is tried once, the oldest first."
	far, unknown := DeadFilter{To: "far"}, DeadFilter{Reason: parley.HubStops}
	for name, c := range map[string]struct {
		f       DeadFilter
		counts  string
		text    string
		dropped string
	}{
		"all of one": {far, "4 2 1", "4 match, 2 have passed their deadline and would only be told so." + kept +
			" far may have had one of them already.", "4 match. They will not be tried again. Their content stays in the " +
			"record. This cannot be undone."},
		"of two agents": {unknown, "2 0 2", "2 match." + kept + " A recipient may have had 2 of them already.", ""},
		"one": {DeadFilter{To: "near"}, "1 0 1", "1 matches. It keeps its id, is signed anew, and is tried once. near may " +
			"have had it already.", "1 matches. It will not be tried again. Its content stays in the record. This cannot be " +
			"undone."},
		"the oldest": {DeadFilter{To: "far", Limit: 1}, "1 0 0", "1 matches. It keeps its id, is signed anew, and is tried " +
			"once.", ""},
		"none": {DeadFilter{To: "nobody"}, "0 0 0", "No dead letter matches.", "No dead letter matches."},
	} {
		r, err := b.client.RetryAll(ctx, Bulk{Filter: c.f, DryRun: true})
		if got := fmt.Sprint(r.Matched, r.Expired, r.Unknown); err != nil || got != c.counts || r.Text != c.text {
			t.Errorf("%s: %s, %q, %v", name, got, r.Text, err)
		}
		r, err = b.client.DropAll(ctx, Bulk{Filter: c.f, DryRun: true})
		if err != nil || c.dropped != "" && r.Text != c.dropped {
			t.Errorf("%s, dropped: %q, %v", name, r.Text, err)
		}
	}
	r, err := b.client.RetryAll(ctx, Bulk{All: true, DryRun: true})
	list, _ := b.client.Dead(ctx, DeadFilter{})
	if err != nil || !r.Oldest.Equal(first[0].Changed) || !r.Newest.Equal(list[len(list)-1].Changed) {
		t.Errorf("%+v, %v", r, err)
	}

	refused := func(f func(context.Context, Bulk) (BulkResult, error), bulk Bulk, want parley.Code, text string) {
		t.Helper()
		_, err := f(ctx, bulk)
		code(t, err, want)
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%v", err)
		}
	}
	retry, drop := b.client.RetryAll, b.client.DropAll
	refused(retry, Bulk{Filter: far, Expect: 3, Unknown: true}, parley.Conflict, "4 dead letters match now, not 3")
	refused(drop, Bulk{Filter: far, Expect: 5}, parley.Conflict, "4 dead letters match now, not 5")
	refused(retry, Bulk{Filter: unknown}, parley.Conflict, "2 have outcome_unknown")
	refused(retry, Bulk{Filter: far, Rate: 1001}, parley.Malformed, "a rate of 1001")
	refused(drop, Bulk{Filter: far, Rate: 1}, parley.Malformed, "a rate is for retries")
	refused(drop, Bulk{Filter: far, Reason: strings.Repeat("x", maxReason+1)}, parley.TooLarge, "512")
	if list, _ := b.client.Dead(ctx, DeadFilter{}); len(list) != 5 {
		t.Fatalf("%d dead letters after what was refused", len(list))
	}
	if r, err := retry(ctx, Bulk{Filter: DeadFilter{To: "near"}, Expect: 1, Unknown: true}); err != nil || r.Done != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := <-b.settled; got != last { // the journal's watcher also reported what bury did
		for got != last {
			got = <-b.settled
		}
	}
	if r, err := drop(ctx, Bulk{Filter: far, Expect: 4, Reason: "of no use"}); err != nil || r.Done != 4 {
		t.Errorf("%+v, %v", r, err)
	}
	audit, err := b.client.Audit(ctx, AuditFilter{Action: "dead.drop"})
	if err != nil || len(audit) != 1 || !strings.HasSuffix(audit[0].Detail, "; of no use") ||
		audit[0].Target != "4 dead letters" {
		t.Errorf("%+v, %v", audit, err)
	}
}

// inBubble calls f with a hub in a synctest bubble, and dead letters in it.
func inBubble(t *testing.T, letters int, f func(t *testing.T, b *bench, by Actor)) {
	synctest.Test(t, func(t *testing.T) {
		b := openInside(t, nil)
		defer b.admin.EndStreams()
		go func() {
			for range b.settled { // nobody else reads it
			}
		}()
		t.Cleanup(func() { close(b.settled) })
		for range letters {
			b.bury(parley.Message{Kind: parley.Notice, From: "bob", To: "far"}, diesOfRefusal)
		}
		by, err := b.admin.c.Tokens.find(operatorToken)
		if err != nil {
			t.Fatal(err)
		}
		f(t, b, by)
	})
}

// outcomes are those of the audit trail, the newest first.
func (b *bench) outcomes(action string) (out []string) {
	for _, e := range b.admin.audit.list(AuditFilter{Action: action}) {
		out = append(out, e.Outcome)
	}
	return out
}

func TestPacedRetry(t *testing.T) {
	inBubble(t, 5, func(t *testing.T, b *bench, by Actor) {
		begun := time.Now()
		r, err := b.admin.RetryAll(t.Context(), by, Bulk{All: true, Rate: 2, Reason: "mended"})
		if err != nil || r.Job == nil || r.Matched != 5 || r.Job.Outcome != "running" || r.Job.By != "op" {
			t.Fatalf("%+v, %v", r, err)
		}
		progress := func() string {
			synctest.Wait()
			j, err := b.admin.Job(by, r.Job.ID)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%s %d/%d %d", j.Outcome, j.Tried, j.Matched, j.Done)
		}
		var got []string
		for range 4 {
			got = append(got, progress())
			time.Sleep(750 * time.Millisecond)
		}
		if want := []string{"running 1/5 1", "running 2/5 2", "running 4/5 4", "done 5/5 5"}; !slices.Equal(got, want) {
			t.Errorf("progress %q, want %q", got, want)
		}
		if j, err := b.admin.Job(by, r.Job.ID); err != nil || j.Ended.Sub(begun) != 2*time.Second {
			t.Errorf("ended %v, %v", j.Ended.Sub(begun), err)
		}
		list := b.admin.audit.list(AuditFilter{Action: "dead.retry"})
		if len(list) != 1 || list[0].Outcome != "done" || !strings.HasSuffix(list[0].Detail, ", 2 a second; mended") {
			t.Errorf("%+v", list)
		}
		_, err = b.admin.Job(by, "7")
		code(t, err, notFound)
	})
}

// A paced retry ends when an operator stops it, with its token, and with the hub. The audit trail says so.
func TestPacedRetryEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(t *testing.T, b *bench, id string)
		want string
	}{
		"stopped": {func(t *testing.T, b *bench, id string) {
			root, _ := b.admin.c.Tokens.find(rootToken)
			if j, err := b.admin.StopJob(t.Context(), root, id); err != nil {
				t.Error(j, err)
			}
		}, "stopped by root"},
		"token": {func(t *testing.T, b *bench, _ string) {
			b.admin.c.Tokens.mu.Lock()
			defer b.admin.c.Tokens.mu.Unlock()
			b.admin.c.Tokens.replace("op")
		}, `token "op" was revoked`},
		"hub": {func(t *testing.T, b *bench, _ string) { b.admin.EndStreams() }, "the hub stops"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, func(t *testing.T, b *bench, by Actor) {
				r, err := b.admin.RetryAll(t.Context(), by, Bulk{All: true, Rate: 1})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(1500 * time.Millisecond)
				c.end(t, b, r.Job.ID)
				synctest.Wait()
				want := []string{"ended after 2 of 5: " + c.want}
				if got := b.outcomes("dead.retry"); !slices.Equal(got, want) {
					t.Errorf("audit: %q, want %q", got, want)
				}
				time.Sleep(time.Minute)
				if j, err := b.admin.Job(by, r.Job.ID); err != nil || j.Outcome != want[0] || j.Tried != 2 || j.Ended.IsZero() {
					t.Errorf("%+v, %v", j, err)
				}
			})
		})
	}
}

// A few paced retries run at once; the hub keeps the last that ended.
func TestPacedRetriesAreBounded(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, b *bench, by Actor) {
		start := func() error {
			synctest.Wait() // what an earlier one retried is dead again
			_, err := b.admin.RetryAll(t.Context(), by, Bulk{All: true, Rate: 0.5})
			return err
		}
		for range 2 * keepJobs {
			for range maxJobs {
				if err := start(); err != nil {
					t.Fatal(err)
				}
			}
			code(t, start(), parley.Unavailable)
			time.Sleep(time.Minute)
		}
		list, err := b.admin.Jobs(by)
		if err != nil || len(list) != keepJobs || list[0].ID != fmt.Sprint(2*keepJobs*maxJobs) {
			t.Errorf("%d jobs, %v", len(list), err)
		}
		viewer := Actor{Name: "viewer", Role: Read}
		_, err = b.admin.RetryAll(t.Context(), viewer, Bulk{All: true, Rate: 1})
		code(t, err, parley.Forbidden)
		_, err = b.admin.StopJob(t.Context(), viewer, "160")
		code(t, err, parley.Forbidden)
		b.admin.EndStreams()
		code(t, start(), parley.Unavailable)
	})
}

// Where the audit trail cannot be written nothing is retried, and the caller is told.
func TestPacedRetryNeedsTheAuditTrail(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, b *bench, by Actor) {
		b.admin.audit.state = failingState{b.admin.audit.state}
		_, err := b.admin.RetryAll(t.Context(), by, Bulk{All: true, Rate: 1})
		code(t, err, parley.Unavailable)
		if n := len(b.hub.Dead()); n != 2 {
			t.Errorf("%d dead letters are left", n)
		}
	})
}

// failingState takes no values.
type failingState struct{ journal.State }

func (failingState) Put(context.Context, string, []byte, time.Time) (uint64, error) {
	return 0, errors.New("no state")
}
