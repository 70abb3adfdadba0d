package uagents

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// testSessions are the sessions of a hub, and a table in which another hub writes.
func testSessions(t *testing.T, now func() time.Time) (*sessions, *journal.Table[exchange], *journal.Journal) {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil && !errors.Is(err, journal.ErrClosed) {
			t.Error(err)
		}
	})
	s := newSessions(j)
	stop, err := s.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return s, journal.NewTable[exchange](j, bucketSessions, 0), j
}

// TestSessionOfAnotherHub: an answer finds the request of another hub even before this
// hub's index has the request, also in a session that was used before.
func TestSessionOfAnotherHub(t *testing.T) {
	now := time.Date(2027, 3, 4, 12, 0, 0, 0, time.UTC)
	s, other, j := testSessions(t, func() time.Time { return now })
	asks := func(request byte) {
		t.Helper()
		x := exchange{Self: "asker", Peer: "bob", Session: "s", Request: parley.ID{request}, Until: now.Add(time.Hour)}
		if _, err := other.Put(t.Context(), x.key(), x, x.Until); err != nil {
			t.Fatal(err)
		}
	}
	find := func(request byte, answered bool) {
		t.Helper()
		x, done, err := s.find(t.Context(), "asker", "bob", "s")
		switch {
		case err != nil || (x != nil) != (request != 0):
			t.Fatalf("%+v, %v", x, err)
		case x != nil && x.Request != parley.ID{request}, done != answered:
			t.Errorf("it is about %v, answered %v; want %d, %v", x.Request, done, request, answered)
		}
	}
	find(0, false)
	asks(1)
	find(1, false)
	find(1, false)
	s.answered(parley.ID{1})
	find(1, true)
	asks(2)
	find(2, false)
	s.answered(parley.ID{1}) // late
	find(2, false)
	s.answered(parley.ID{2})
	find(2, true)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.find(t.Context(), "asker", "bob", "s"); err == nil {
		t.Error("a closed journal gives no error")
	}
}

// TestSessionTaken: only one of two hubs reuses the session of a conversation.
func TestSessionTaken(t *testing.T) {
	now := time.Date(2027, 3, 4, 12, 0, 0, 0, time.UTC)
	s, _, j := testSessions(t, func() time.Time { return now })
	two := newSessions(j)
	stop, err := two.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	open := func(s *sessions, request byte) string {
		x, err := s.open(t.Context(), exchange{Self: "asker", Peer: "bob", Request: parley.ID{request},
			Until: now.Add(time.Hour)})
		if err != nil {
			t.Error(err)
			return ""
		}
		return x.Session
	}
	first := open(s, 1)
	if x, _, err := two.find(t.Context(), "asker", "bob", first); err != nil || x == nil {
		t.Fatalf("%v, %v", x, err)
	}
	s.answered(parley.ID{1})
	two.answered(parley.ID{1})
	var again atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		if open(two, 2) == first {
			again.Add(1)
		}
	}()
	if open(s, 3) == first {
		again.Add(1)
	}
	<-done
	if again.Load() != 1 {
		t.Errorf("%d requests use the session", again.Load())
	}
}
