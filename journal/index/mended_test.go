package index

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// clock is the time of a journal in a test, which its goroutines read while the test moves it.
type clock struct{ nanos atomic.Int64 }

func clockAt(t time.Time) *clock {
	c := &clock{}
	c.set(t)
	return c
}

func (c *clock) Now() time.Time       { return time.Unix(0, c.nanos.Load()).UTC() }
func (c *clock) set(t time.Time)      { c.nanos.Store(t.UnixNano()) }
func (c *clock) move(d time.Duration) { c.nanos.Add(int64(d)) }

// post appends a notice from alice, and returns a function that appends steps of its delivery.
func post(t *testing.T, j *journal.Journal, n uint64, to string) (parley.ID, func(...journal.Step)) {
	t.Helper()
	id := testID(n, 1)
	if _, err := j.Append(t.Context(), journal.Entry{Scope: to, Open: []journal.Opening{{To: to, Attempt: 1}},
		Message: &parley.Message{ID: id, Kind: parley.Notice, From: "alice", To: to}}); err != nil {
		t.Fatal(err)
	}
	return id, func(steps ...journal.Step) {
		t.Helper()
		for _, s := range steps {
			s.Message, s.To = id, to
			if _, err := j.Append(t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestMended(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	now := clockAt(begin)
	j := openJournal(t, journal.Config{Store: testjournal.Memory(t), Node: "n1", Partitions: 2, Now: now.Now})
	path := filepath.Join(t.TempDir(), "index")
	open := func() *Index {
		x, err := Open(t.Context(), Config{Journal: j, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := open()
	failed := journal.Step{State: parley.Waiting, Error: parley.Fail(parley.Unavailable, nil, "away").
		With(parley.ByNetwork, parley.ConnectionRefused, "")}
	busy := failed
	busy.Postponed = true
	again, reached := journal.Step{State: parley.Delivering, Attempt: 2}, journal.Step{State: parley.Delivered}
	dead := journal.Step{State: parley.Dead, Error: failed.Error}

	_, steps := post(t, j, 1, "bob") // at once
	steps(reached)
	_, steps = post(t, j, 2, "bob") // bob asked to come back: that is no failure
	steps(busy, again, reached)
	second, steps := post(t, j, 3, "bob")
	steps(failed)
	now.set(begin.Add(time.Minute))
	steps(again, reached)
	retried, steps := post(t, j, 4, "carol")
	steps(dead)
	now.set(begin.Add(time.Hour))
	steps(journal.Step{State: parley.Waiting}, again, reached)
	gone, steps := post(t, j, 5, "carol")
	steps(dead, journal.Step{State: parley.Dropped})
	_, steps = post(t, j, 6, "carol") // still dead
	steps(dead)

	const refused = parley.ConnectionRefused
	want := []Mended{
		{retried, "alice", "carol", begin.Add(time.Hour), begin.Add(time.Minute), 2, parley.Unavailable, refused, ""},
		{second, "alice", "bob", begin.Add(time.Minute), begin, 2, parley.Unavailable, refused, ""},
	}
	list := func(dropped bool, since time.Time) (out []Mended) {
		t.Helper()
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		more, err := x.Mended(t.Context(), dropped, since, func(m *Mended) { out = append(out, *m) })
		if err != nil || more {
			t.Errorf("more %v, error %v", more, err)
		}
		return out
	}
	if got := list(false, begin); !slices.Equal(got, want) {
		t.Errorf("reached again: %v, want %v", got, want)
	}
	if got := list(true, begin); len(got) != 1 || got[0].Message != gone || got[0].Attempts != 1 {
		t.Errorf("dropped: %v", got)
	}
	if got := list(false, begin.Add(2*time.Minute)); !slices.Equal(got, want[:1]) {
		t.Errorf("reached since: %v", got)
	}

	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x = open()
	defer func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := list(false, begin); !slices.Equal(got, want) {
		t.Errorf("after a restart: %v", got)
	}
	names, err := x.Named(t.Context(), []parley.ID{gone, second, testID(99, 1)})
	if err != nil || len(names) != 2 || cmp.Or(names[gone].To, "?") != "carol" || names[second].To != "bob" {
		t.Errorf("named: %v, %v", names, err)
	}

	now.set(begin.Add(keepMended + 2*time.Minute)) // rows are removed when others come
	_, steps = post(t, j, 7, "bob")
	steps(failed, again, reached)
	if got := list(false, time.Time{}.Add(1)); len(got) != 2 || got[1].Message != retried {
		t.Errorf("later: %v", got)
	}
}

// A timeout that the hub itself answers says nothing of the recipient.
func TestMendedNotByTheHub(t *testing.T) {
	t.Parallel()
	j := memoryJournal(t, 1)
	x, err := Open(t.Context(), Config{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	away := parley.Fail(parley.Unavailable, nil, "away").With(parley.ByNetwork, parley.ConnectionRefused, "")
	for n, answer := range []*parley.Error{nil, parley.Refuse(parley.Rejected, "no").With(parley.ByPeer, "", ""),
		parley.Refuse(parley.TimedOut, "no answer before the deadline").With(parley.ByHub, "", "")} {
		_, steps := post(t, j, uint64(n+1), "bob")
		steps(journal.Step{State: parley.Waiting, Error: away}, journal.Step{State: parley.Delivering, Attempt: 2},
			journal.Step{State: parley.Answered, Error: answer, Reply: testID(uint64(n+10), 1)})
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []parley.ID
	var failed []parley.Code
	if _, err := x.Mended(t.Context(), false, time.Now().Add(-time.Hour), func(m *Mended) {
		got = append(got, m.Message)
		failed = append(failed, m.Failure)
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(failed)
	if want := []parley.Code{"", parley.Rejected}; !slices.Equal(failed, want) {
		t.Errorf("failures that answered: %q, want %q", failed, want)
	}
	slices.SortFunc(got, func(a, b parley.ID) int { return slices.Compare(a[:], b[:]) })
	if want := []parley.ID{testID(1, 1), testID(2, 1)}; !slices.Equal(got, want) {
		t.Errorf("reached: %v, want %v", got, want)
	}
}
