package hub

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// TestTakenUpWhenTheJournalCan: a hub resumes its open deliveries later if the
// journal cannot record when it starts or takes a partition over.
func TestTakenUpWhenTheJournalCan(t *testing.T) {
	j, free := filling(t)
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), journal.Entry{Scope: "test", Open: []journal.Opening{{To: "bob", Attempt: 1}},
		Message: &parley.Message{ID: id, Kind: parley.Notice,
			From: "alice", To: "bob", Parts: []parley.Part{parley.Text("hello")}}}); err != nil {
		t.Fatal(err)
	}
	failed := make(chan struct{}, 64)
	log := slog.New(slog.NewTextHandler(writer(func(b []byte) {
		if strings.Contains(string(b), "cannot resume") {
			failed <- struct{}{}
		}
	}), nil))
	free.Store(0)
	start(t, func(c *Config) { c.Journal, c.Logger = j, log })
	select {
	case <-failed:
	case <-time.After(time.Minute):
		t.Fatal("the delivery was resumed while nothing could be recorded")
	}
	free.Store(plenty)
	until(t, func() bool {
		v, ok := j.Delivery(id, "bob")
		return ok && v.State == parley.Dead // an attempt of unknown outcome, which is not repeated
	})
}

type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

const plenty = 1 << 40

// filling is a journal whose disk has as much free space as free says.
func filling(t *testing.T) (*journal.Journal, *atomic.Uint64) {
	t.Helper()
	free := new(atomic.Uint64)
	free.Store(plenty)
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), MinFree: 1 << 20,
		FreeSpace: func() (uint64, error) { return free.Load(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the hub is closed
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j, free
}

// until waits until so reports true.
func until(t *testing.T, so func() bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !so() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal("the condition did not come true")
		}
	}
}

// TestOverdueWhileTheJournalCannot: a request whose deadline passes while the journal
// cannot record is ended when the journal can.
func TestOverdueWhileTheJournalCannot(t *testing.T) {
	j, free := filling(t)
	silent := &wire{name: "wire", can: Capabilities{Deduplicates: true},
		deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
	h := start(t, func(c *Config) { c.Journal = j }, silent)
	h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
	s := ask("bob", "", "are you there?")
	s.Message.Deadline = time.Now().Add(time.Hour)
	m, err := h.Accept(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	var v journal.Delivery
	delivered := func() bool {
		var ok bool
		v, ok = j.Delivery(m.ID, "bob")
		return ok && v.State == parley.Delivered
	}
	until(t, delivered)
	free.Store(0)
	h.endOverdue(m.ID, "bob", v.Position)
	if !delivered() {
		t.Fatalf("it is %s, which could not be recorded", v.State)
	}
	free.Store(plenty)
	until(t, func() bool { _, open := j.Delivery(m.ID, "bob"); return !open })
}

// TestWhyThereIsNoAnswer: the failure of a request whose deadline passed says whether the
// recipient is silent, could not be reached, or waits.
func TestWhyThereIsNoAnswer(t *testing.T) {
	refused := parley.Fail(parley.Unavailable, nil, "it cannot be reached").
		With(parley.ByNetwork, parley.ConnectionRefused, "connection refused by 192.0.2.7:80")
	for _, c := range []struct {
		name   string
		out    Outcome
		paused bool
		state  parley.DeliveryState // at the deadline
		source parley.Source
		reason parley.Reason
		detail string
	}{
		{"silent", Outcome{}, false, parley.Delivered, parley.ByPeer, parley.PeerSilent, "it took the message at "},
		{"unreachable", Outcome{Err: refused, Wait: time.Hour}, false, parley.Waiting, parley.ByNetwork,
			parley.ConnectionRefused, "connection refused by 192.0.2.7:80"},
		{"paused", Outcome{}, true, parley.Waiting, parley.ByNetwork, parley.NotConnected, "paused or not connected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bob := &wire{name: "wire", can: Capabilities{Deduplicates: true},
				deliver: func(context.Context, Outbound) Outcome { return c.out }}
			h := start(t, nil, bob)
			h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
			if c.paused {
				if err := h.Pause(t.Context(), "bob", true); err != nil {
					t.Fatal(err)
				}
			}
			s := ask("bob", "", "are you there?")
			s.Message.Deadline = time.Now().Add(time.Hour)
			m, err := h.Accept(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			var v journal.Delivery
			until(t, func() bool {
				v, _ = h.Journal().Delivery(m.ID, "bob")
				return v.State == c.state && (c.out.Err == nil || v.Error != nil)
			})
			replies := make(chan *parley.Message, 1)
			defer h.Journal().Watch(func(r *journal.Record) {
				if r.Message != nil && r.Message.Kind == parley.Failure {
					replies <- r.Message
				}
			})()
			h.endOverdue(m.ID, "bob", v.Position)
			if e := (<-replies).Error; e.Code != parley.TimedOut || e.Source != c.source || e.Reason != c.reason ||
				!strings.Contains(e.Detail, c.detail) {
				t.Errorf("%v: %s %s %q", e, e.Source, e.Reason, e.Detail)
			}
		})
	}
}
