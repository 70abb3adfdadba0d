package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// together is a state whose updates wait until several are under way at once.
type together struct {
	journal.State
	want int

	mu      sync.Mutex
	waiting int
	all     chan struct{}
}

func (s *together) Update(ctx context.Context, key string, data []byte, until time.Time, revision uint64) (uint64,
	error) {
	s.mu.Lock()
	if s.waiting++; s.waiting == s.want {
		close(s.all)
	}
	s.mu.Unlock()
	select {
	case <-s.all:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return s.State.Update(ctx, key, data, until, revision)
}

// The stand-ins of many agents are stored at once, so that a store can write them together. An agent that is gone, and
// one that another hub changes meanwhile, are no exception for the others.
func TestStandInsOfManyAgents(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	d := opened(t, Options{State: state})
	ids := map[string]parley.Identity{"gone": {Protocol: "asp", ID: "gone"}}
	for i := range 100 {
		name := fmt.Sprint("agent-", i)
		source := FromOperator
		if i == 0 {
			source = FromConfig
		}
		if _, err := d.Put(ctx, agent(name, "agent://"+name), source); err != nil {
			t.Fatal(err)
		}
		ids[name] = parley.Identity{Protocol: "asp", ID: "stand-in of " + name}
	}
	d.state = &together{State: state, want: 99, all: make(chan struct{})}
	var seen []string
	defer d.Watch(func(c Change) { seen = append(seen, c.New.Name) })()
	if err := d.StandIns(ctx, ids); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 100 {
		t.Errorf("watchers learnt of %d agents", len(seen))
	}
	other := opened(t, Options{State: state})
	for name, id := range ids {
		if name == "gone" {
			continue
		}
		e, ok := d.Lookup("asp", id.ID)
		if !ok || e.Name != name || !slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
			return i.StandIn && i.ID == id.ID
		}) {
			t.Errorf("%s: %+v, %v", name, e, ok)
		}
		if _, ok := other.Lookup("asp", id.ID); ok == (name == "agent-0") {
			t.Errorf("%s: stored: %v", name, ok)
		}
	}
	// Another hub changes one agent, which this one has not learnt yet.
	d.state = &behind{State: state, change: func() error { return other.Pause(ctx, "agent-7", true) }}
	if err := d.StandIns(ctx, map[string]parley.Identity{"agent-7": {Protocol: "agh", ID: "seven"},
		"agent-8": {Protocol: "agh", ID: "eight"}}); err != nil {
		t.Fatal(err)
	}
	e, ok := d.Lookup("agh", "seven")
	if !ok || !e.Paused {
		t.Errorf("one of two changes is lost: %+v", e)
	}
	// An identity of another agent is refused, and named.
	err := d.StandIns(ctx, map[string]parley.Identity{"agent-1": {Protocol: "agh", ID: "eight"},
		"agent-2": {Protocol: "agh", ID: "two"}})
	if _, ok := d.Lookup("agh", "two"); !errors.Is(err, ErrIdentity) || !ok {
		t.Errorf("%v, %v", err, ok)
	}
}

// behind is a state in which another hub changes something before the first update.
type behind struct {
	journal.State
	once   sync.Once
	change func() error
}

func (s *behind) Update(ctx context.Context, key string, data []byte, until time.Time, revision uint64) (uint64,
	error) {
	var err error
	s.once.Do(func() { err = s.change() })
	if err != nil {
		return 0, err
	}
	return s.State.Update(ctx, key, data, until, revision)
}

// Pages follow each other without gaps, also when the agent at their border goes.
func TestPages(t *testing.T) {
	ctx := t.Context()
	d := opened(t, Options{})
	for _, name := range []string{"e", "a", "c", "b", "d"} {
		if _, err := d.Put(ctx, agent(name), FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	names := func(after string, limit int, filter string) (out []string, more int) {
		page, more := d.Page(after, limit, Matcher(filter))
		for _, e := range page {
			out = append(out, e.Name)
		}
		return out, more
	}
	if got, more := names("", 2, ""); !slices.Equal(got, []string{"a", "b"}) || more != 3 {
		t.Errorf("first: %v, %d", got, more)
	}
	if err := d.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if got, more := names("b", 2, ""); !slices.Equal(got, []string{"c", "d"}) || more != 1 {
		t.Errorf("second: %v, %d", got, more)
	}
	if got, more := names("d", 2, ""); !slices.Equal(got, []string{"e"}) || more != 0 {
		t.Errorf("last: %v, %d", got, more)
	}
	if got, more := names("", 2, "zz"); len(got) != 0 || more != 0 {
		t.Errorf("none: %v, %d", got, more)
	}
}

func TestMatcher(t *testing.T) {
	e := &Entry{Agent: agent("team-1/anna", "agent://anna.example")}
	e.Title = "Sales Desk"
	for filter, want := range map[string]bool{
		"": true, "anna": true, "TEAM-1": true, "desk": true, "sales desk": true, "anna.example": true, "bert": false,
		"team-1/*": true, "*anna": true, "team-*/a*": true, "eam-1/*": false, "anna*": false, "*": true, "agent://*": true,
		"*sales*": true, "team-1/anna*anna": false, "t*a*a": true, "s*k": true, "s*d": false, "**": true,
	} {
		if got := Matcher(filter)(e); got != want {
			t.Errorf("%q: %v, want %v", filter, got, want)
		}
	}
}
