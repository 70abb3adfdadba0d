package uagents

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// sharedState is a bucket to which other hubs write.
type sharedState struct {
	journal.State
	values map[string]journal.Value
	reads  int
	err    error
}

func (s *sharedState) Get(_ context.Context, key string) (journal.Value, error) {
	s.reads++
	v, ok := s.values[key]
	if s.err == nil && !ok {
		return v, journal.ErrNotFound
	}
	return v, s.err
}

// TestSessionOfAnotherHub: what another hub has asked is known when the answer is
// here, before this hub was told of it, also in a session that was used before.
func TestSessionOfAnotherHub(t *testing.T) {
	now := time.Date(2027, 3, 4, 12, 0, 0, 0, time.UTC)
	state := &sharedState{values: map[string]journal.Value{}}
	s := newSessions(state, func() time.Time { return now })
	key := sessionKey("asker", "bob", "s")
	asks := func(request byte, revision uint64) journal.Value {
		t.Helper()
		b, err := jsonx.Encode(exchange{Self: "asker", Peer: "bob", Session: "s", Request: parley.ID{request}, Until: now.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		state.values[key] = journal.Value{Key: key, Data: b, Revision: revision}
		return state.values[key]
	}
	find := func(request byte, answered bool, reads int) {
		t.Helper()
		state.reads = 0
		x, done, err := s.find(t.Context(), "asker", "bob", "s")
		switch {
		case err != nil || (x != nil) != (request != 0):
			t.Fatalf("%+v, %v", x, err)
		case x != nil && x.Request != parley.ID{request}, done != answered:
			t.Errorf("it is about %v, answered %v; want %d, %v", x.Request, done, request, answered)
		case state.reads != reads:
			t.Errorf("%d reads, want %d", state.reads, reads)
		}
	}
	find(0, false, 1)
	first := asks(1, 7)
	find(1, false, 1)
	find(1, false, 0) // it is known now
	s.answered(parley.ID{1})
	find(1, true, 1)
	second := asks(2, 9)
	find(2, false, 1)
	s.changed(first) // the watcher, which lags behind
	s.changed(second)
	find(2, false, 0)
	s.answered(parley.ID{2})
	state.err = errors.New("no leader")
	if _, _, err := s.find(t.Context(), "asker", "bob", "s"); !errors.Is(err, state.err) {
		t.Errorf("%v, want %v", err, state.err)
	}
}
