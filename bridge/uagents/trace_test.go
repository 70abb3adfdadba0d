package uagents

import (
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

// An agent's own requests in the session of a request belong to the trace of that
// request, as long as the session is remembered.
func TestSessionKeepsTrace(t *testing.T) {
	start := time.Date(2027, 3, 4, 12, 0, 0, 0, time.UTC)
	now := start
	var clock sync.Mutex
	s, _, _ := testSessions(t, func() time.Time {
		clock.Lock()
		defer clock.Unlock()
		return now
	})
	open := func(request byte, trace string) string {
		t.Helper()
		x, err := s.open(t.Context(), exchange{Self: "asker", Peer: "bob", Request: parley.ID{request},
			Conversation: parley.ID{7}, Until: start.Add(time.Hour), Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		return x.Session
	}
	first := open(1, "one")
	if got := s.trace("bob", first); got != "one" {
		t.Errorf("trace %q", got)
	}
	for _, x := range [][2]string{{"mallory", first}, {"bob", "another"}, {"asker", first}} {
		if got := s.trace(x[0], x[1]); got != "" {
			t.Errorf("%v: trace %q", x, got)
		}
	}
	s.answered(parley.ID{1})
	if again := open(2, "two"); again != first || s.trace("bob", first) != "two" {
		t.Errorf("session %s, trace %q", again, s.trace("bob", again))
	}
	clock.Lock()
	now = now.Add(time.Hour)
	clock.Unlock()
	if got := s.trace("bob", first); got != "" {
		t.Errorf("after its end: trace %q", got)
	}
	s.sweep()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byPeer) != 0 || len(s.answers) != 0 || len(s.byRequest) != 0 || len(s.last) != 0 {
		t.Errorf("ended sessions are still indexed: %v", s)
	}
}
