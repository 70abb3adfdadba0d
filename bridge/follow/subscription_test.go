package follow

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

func (w *world) taken(s *Subscription) (out []string) {
	w.t.Helper()
	list, err := s.Take(w.t.Context())
	w.must(err)
	for _, r := range list {
		out = append(out, textOf(r))
	}
	return out
}

// A subscription from before the request gives it and all that is recorded about it, nothing else.
func TestSubscription(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := request()
	m.ID = w.newID()
	s := w.Subscribe(m.ID, false)
	w.record(m, "go")
	other, _ := w.record(request(), "other")
	w.record(from(parley.Event, "bob", other), "of the other")
	late := from(parley.Input, "eve", m.ID)
	w.entry(journal.Entry{Message: &late, Refused: parley.Refuse(parley.Forbidden, "no")}, "refused")
	w.record(from(parley.Event, "bob", m.ID), "half")
	if got := w.taken(s); !slices.Equal(got, []string{"go", "half"}) {
		t.Errorf("first %q", got)
	}
	w.record(from(parley.Cancel, "alice", m.ID), "stop")
	w.record(from(parley.Failure, "bob", m.ID), "stopped")
	if got := w.taken(s); !slices.Equal(got, []string{"stop", "stopped"}) {
		t.Errorf("then %q", got)
	}
	s.End()
	w.record(from(parley.Event, "bob", m.ID), "late")
	w.Close()
	if len(s.queue) > 0 || len(w.of) > 0 {
		t.Errorf("after the end: %d records, %d subscriptions", len(s.queue), len(w.of))
	}
}

// Streaming is of the request alone, while a subscription that streams is there.
func TestStreaming(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.newID(), w.newID()
	waits, first, second := w.Subscribe(one, false), w.Subscribe(one, true), w.Subscribe(one, true)
	for i, c := range []struct {
		end  *Subscription
		want bool
	}{{nil, true}, {first, true}, {first, true}, {second, false}, {waits, false}} {
		if c.end != nil {
			c.end.End()
		}
		if w.Streaming(one) != c.want || w.Streaming(two) {
			t.Errorf("step %d: %v, and another %v", i, w.Streaming(one), w.Streaming(two))
		}
	}
	if len(w.of) > 0 {
		t.Error("a subscription is left")
	}
}

// A reader that takes nothing is cut off, and delays no other.
func TestSlowReaderIsCutOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		queue int
		text  string
		fits  int
	}{
		{"by the number of records", 0, "x", maxQueued},
		{"by their size", 0, strings.Repeat("x", 1<<20), maxQueuedBytes >> 20},
		{"one of any size fits", 0, strings.Repeat("x", maxQueuedBytes+1), 1},
		{"without a queue", -1, "x", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := New(Config{Queue: c.queue})
			defer l.Close()
			id := parley.HashID([]byte("0123456789abcdef"))
			slow, quick := l.Subscribe(id, true), l.Subscribe(id, true)
			for i := range c.fits + 1 {
				if slow.lost {
					t.Fatalf("cut off after %d records", i)
				}
				l.recorded(&journal.Record{Position: journal.Position{Sequence: uint64(i + 1)},
					Message: &parley.Message{Kind: parley.Event, InReplyTo: id, Parts: []parley.Part{parley.Text(c.text)}}})
				if c.fits == 0 {
					continue
				}
				if list, err := quick.Take(t.Context()); err != nil || len(list) != 1 {
					t.Fatal(len(list), err)
				}
			}
			for range 2 {
				if _, err := slow.Take(t.Context()); !errors.Is(err, ErrSlow) {
					t.Errorf("the slow reader gets %v", err)
				}
			}
			slow.End()
			quick.End()
			if len(l.of) > 0 {
				t.Error("a subscription is left")
			}
		})
	}
}
