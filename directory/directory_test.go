package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// shared gives a state that several directories can share, in a journal in memory.
func shared(t *testing.T) journal.State {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j.State("agents")
}

func opened(t *testing.T, o Options) *Directory {
	t.Helper()
	d, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func agent(name string, ids ...string) parley.Agent {
	a := parley.Agent{Name: name}
	for _, id := range ids {
		a.Identities = append(a.Identities, parley.Identity{Protocol: "samvad", ID: id})
	}
	return a
}

// The source of an agent decides whether an operator may change it and whether it is stored. Names and identities are
// unique, and the number of agents is bounded.
func TestSources(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	d := opened(t, Options{State: state, Agents: 3})
	put := func(a parley.Agent, s Source) error { _, err := d.Put(ctx, a, s); return err }
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"config", put(agent("a", "agent://a"), FromConfig), nil},
		{"operator", put(agent("b", "agent://b"), FromOperator), nil},
		{"name taken", put(agent("a"), FromOperator), ErrTaken},
		{"identity of another", put(agent("c", "agent://a"), FromOperator), ErrIdentity},
		{"second identity", put(agent("b", "agent://b", "agent://b2"), FromOperator), nil},
		{"code", put(agent("c"), FromCode), nil},
		{"full", put(agent("d"), FromCode), ErrFull},
		{"remove config", d.Remove(ctx, "a"), ErrReadOnly},
		{"remove unknown", d.Remove(ctx, "x"), ErrUnknown},
		{"expose config", d.Expose(ctx, "a", parley.Everywhere), ErrReadOnly},
		{"expose", d.Expose(ctx, "b", parley.Everywhere), nil},
		{"pause", d.Pause(ctx, "b", true), nil},
		{"retries of config", d.SetRetries(ctx, "a", parley.Retries{Tries: 2}), ErrReadOnly},
		{"retries of code", d.SetRetries(ctx, "c", parley.Retries{Tries: 2}), ErrReadOnly},
		{"retries", d.SetRetries(ctx, "b", parley.Retries{Tries: 2, Unordered: true}), nil},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}
	if err := put(agent("Upper"), FromCode); parley.CodeOf(err) != parley.Malformed {
		t.Errorf("bad name: %v", err)
	}
	// After a restart, the directory has only the stored entries.
	d = opened(t, Options{State: state})
	if n := d.Len(); n != 1 {
		t.Fatalf("%d agents after a restart, want 1", n)
	}
	b, ok := d.Lookup("samvad", "agent://b2")
	if !ok || b.Name != "b" || !b.Paused || !b.ExposedIn("agh") {
		t.Fatalf("after a restart: %+v, %v", b, ok)
	}
	if b.Retries != (parley.Retries{Tries: 2, Unordered: true}) {
		t.Errorf("retries after a restart: %+v", b.Retries)
	}
	if err := d.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	for v, err := range state.Range(ctx, "") {
		t.Errorf("%q is still stored after its removal, %v", v.Key, err)
	}
	if _, ok := d.Lookup("samvad", "agent://b2"); ok {
		t.Error("a removed agent is found by its identity")
	}
}

// Link replaces a stand-in by the agent's own identity. The address of the stand-in still resolves to the agent.
func TestLinkRetiresTheStandIn(t *testing.T) {
	ctx := t.Context()
	d, _ := Open(ctx, Options{})
	if _, err := d.Put(ctx, agent("planner", "agent://planner"), FromOperator); err != nil {
		t.Fatal(err)
	}
	standIn := parley.Identity{Protocol: "uagents", ID: "agent1stand"}
	native := parley.Identity{Protocol: "uagents", ID: "agent1native"}
	if err := d.StandIn(ctx, "planner", standIn); err != nil {
		t.Fatal(err)
	}
	e, _ := d.Agent("planner")
	if id, ok := e.Identity("uagents"); !ok || !id.StandIn {
		t.Fatalf("stand-in: %+v", id)
	}
	if err := d.Link(ctx, "planner", native); err != nil {
		t.Fatal(err)
	}
	e, _ = d.Agent("planner")
	if id, _ := e.Identity("uagents"); id.ID != native.ID || id.StandIn {
		t.Errorf("identity after Link: %+v, want %+v", id, native)
	}
	if e, ok := d.Lookup("uagents", standIn.ID); !ok || e.Name != "planner" {
		t.Error("the address of the stand-in does not resolve to the agent")
	}
	if d.Claimants("uagents", standIn.ID) != nil || len(d.Claimants("uagents", native.ID)) != 1 {
		t.Error("Claimants gives an agent for the stand-in's address, or none for the agent's own")
	}
	if got := e.Native(); len(got) != 2 {
		t.Errorf("native protocols: %v, want 2", got)
	}
}

// Two agents may have one ID with different keys. Lookup then gives neither, and Claimants gives both.
func TestOneIDTwoKeys(t *testing.T) {
	d, _ := Open(t.Context(), Options{})
	for _, name := range []string{"a", "b"} {
		a := agent(name, "agent://client.local")
		a.Identities[0].Key = "key of " + name
		if _, err := d.Put(t.Context(), a, FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	if e, ok := d.Lookup("samvad", "agent://client.local"); ok {
		t.Errorf("Lookup of an ID of two agents gives only %q", e.Name)
	}
	claimants := func(protocol string) (names []string) {
		for _, e := range d.Claimants(protocol, "agent://client.local") {
			names = append(names, e.Name)
		}
		return names
	}
	if names := claimants("samvad"); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("claimants of the ID: %v, want a and b", names)
	}
	if names := claimants("asp"); names != nil {
		t.Errorf("claimants of the ID in another protocol: %v", names)
	}
	if err := d.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if names := claimants("samvad"); !slices.Equal(names, []string{"b"}) {
		t.Errorf("claimants of the ID after a was removed: %v, want b", names)
	}
}

// Open refuses a state with a damaged entry.
func TestDamagedEntry(t *testing.T) {
	state := shared(t)
	if _, err := state.Put(t.Context(), "a", []byte("{"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{State: state}); err == nil {
		t.Error("Open accepted a damaged entry")
	}
}

// GuestName gives a valid name that is always the same for one ID and key, and different for others.
func TestStrangerNames(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"agent://client.local", "agent://client.local:8080", "agent1qxyz", "",
		"agent://ÜBER..x", "___", "A--b"} {
		for _, key := range []string{"k1", "k2"} {
			n := GuestName("samvad", id, key)
			if err := parley.CheckName(n); err != nil || seen[n] {
				t.Errorf("GuestName(%q, %q) = %q, %v, seen %v", id, key, n, err, seen[n])
			}
			seen[n] = true
			if n != GuestName("samvad", id, key) {
				t.Errorf("GuestName(%q, %q) gives another name when called again", id, key)
			}
		}
	}
}

// Withdraw removes an agent only for the source that added it.
func TestWithdraw(t *testing.T) {
	ctx := context.Background()
	d, err := Open(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Put(ctx, parley.Agent{Name: "file"}, FromConfig); err != nil {
		t.Fatal(err)
	}
	if err := d.Withdraw(ctx, "file", FromOperator); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Withdraw by another source: %v, want ErrReadOnly", err)
	}
	if err := d.Withdraw(ctx, "none", FromConfig); !errors.Is(err, ErrUnknown) {
		t.Errorf("Withdraw of an unknown agent: %v, want ErrUnknown", err)
	}
	if err := d.Withdraw(ctx, "file", FromConfig); err != nil {
		t.Errorf("Withdraw: %v", err)
	}
	if _, ok := d.Agent("file"); ok {
		t.Error("the agent is still found after Withdraw")
	}
}

// A skill without schemas still has none after a restart, also if an earlier version stored them as null.
func TestSkillsWithoutSchemasStayWithout(t *testing.T) {
	s := shared(t)
	before := `{"Name":"old","Skills":[{"ID":"ask","Input":null,"Output":null}],"Source":"operator"}`
	if _, err := s.Put(t.Context(), "old", []byte(before), time.Time{}); err != nil {
		t.Fatal(err)
	}
	d := opened(t, Options{State: s})
	if _, err := d.Put(t.Context(), parley.Agent{Name: "new", Skills: []parley.SkillSpec{{ID: "ask"}}},
		FromOperator); err != nil {
		t.Fatal(err)
	}
	d = opened(t, Options{State: s})
	for _, name := range []string{"old", "new"} {
		e, ok := d.Agent(name)
		if !ok || len(e.Skills) != 1 || e.Skills[0].Input != nil || e.Skills[0].Output != nil {
			t.Errorf("%s: %+v, want one skill without schemas", name, e)
		}
	}
}

// Guests and other agents have separate limits.
func TestGuestsHavePlacesOfTheirOwn(t *testing.T) {
	ctx := t.Context()
	d, err := Open(ctx, Options{Agents: 2, Guests: 2})
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, s Source) error {
		_, err := d.Put(ctx, parley.Agent{Name: name}, s)
		return err
	}
	for _, name := range []string{"guest/uagents/a", "guest/uagents/b"} {
		if err := put(name, FromGuest); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("guest/uagents/c", FromGuest); !errors.Is(err, ErrFull) {
		t.Errorf("a third guest: %v, want ErrFull", err)
	}
	for name, s := range map[string]Source{"one": FromOperator, "two": FromAgent} {
		if err := put(name, s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := put("three", FromConfig); !errors.Is(err, ErrFull) {
		t.Errorf("a third agent: %v, want ErrFull", err)
	}
	if err := d.Remove(ctx, "guest/uagents/a"); err != nil {
		t.Fatal(err)
	}
	if err := put("guest/uagents/c", FromGuest); err != nil {
		t.Errorf("a guest after another was removed: %v", err)
	}
}

// TestLearn: the skills that an agent declares itself follow its identity to another name. Skills declared by its
// source replace them. They apply only while the agent has one protocol.
func TestLearn(t *testing.T) {
	d, err := Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	told := func(ids ...string) (out []parley.SkillSpec) {
		for _, id := range ids {
			out = append(out, parley.SkillSpec{ID: id})
		}
		return out
	}
	id := func(protocol, id string) parley.Identity { return parley.Identity{Protocol: protocol, ID: id} }
	register := func(skills ...string) {
		t.Helper()
		a := parley.Agent{Name: "guest/p/x", Skills: told(skills...), Identities: []parley.Identity{id("p", "x")}}
		if _, err := d.Register(t.Context(), a, FromGuest, "p"); err != nil {
			t.Fatal(err)
		}
	}
	learn := func(name string, skills ...string) {
		t.Helper()
		if err := d.Learn(t.Context(), name, "p", told(skills...)); err != nil {
			t.Fatal(err)
		}
	}
	put := func(a parley.Agent) {
		t.Helper()
		if _, err := d.Put(t.Context(), a, FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	has := func(name, want string) {
		t.Helper()
		e, ok := d.Agent(name)
		if !ok {
			t.Fatalf("agent %q is not found", name)
		}
		got := ""
		for _, s := range e.Skills {
			got += s.ID
		}
		if got != want {
			t.Errorf("%q has skills %q, want %q", name, got, want)
		}
	}
	register("a", "b")
	register() // the agent registers again without skills
	has("guest/p/x", "")
	register("a", "b")
	put(parley.Agent{Name: "x", Identities: []parley.Identity{id("p", "x")}})
	has("x", "ab")
	learn("x", "c")
	has("x", "c")
	put(parley.Agent{Name: "x", Title: "X", Identities: []parley.Identity{{Protocol: "p", ID: "x", URL: "http://x"}}})
	has("x", "c")
	put(parley.Agent{Name: "x", Skills: told("d"), Identities: []parley.Identity{id("p", "x")}})
	learn("x", "e")
	has("x", "d")
	put(parley.Agent{Name: "x", Identities: []parley.Identity{id("p", "x")}})
	has("x", "")
	learn("x", "f")
	put(parley.Agent{Name: "x", Identities: []parley.Identity{id("p", "y")}})
	has("x", "") // the skills belong to the previous identity
	learn("x", "g")
	if err := d.Link(t.Context(), "x", id("q", "x")); err != nil {
		t.Fatal(err)
	}
	has("x", "")
	learn("x", "h")
	has("x", "")
}

// TestResolve: Resolve finds an agent by its name, and by its ID in any protocol. An ID of two agents is ambiguous.
func TestResolve(t *testing.T) {
	d, err := Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, ids ...parley.Identity) {
		t.Helper()
		if _, err := d.Put(t.Context(), parley.Agent{Name: name, Identities: ids}, FromOperator); err != nil {
			t.Fatal(err)
		}
	}
	resolves := func(ref, want string, wantErr error) {
		t.Helper()
		e, err := d.Resolve(ref)
		got := ""
		if err == nil {
			got = e.Name
		}
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("Resolve(%q) = %q, %v; want %q, %v", ref, got, err, want, wantErr)
		}
	}
	put("bob", parley.Identity{Protocol: "uagents", ID: "agent1qb"},
		parley.Identity{Protocol: "samvad", ID: "agent://b.example"},
		parley.Identity{Protocol: "asp", ID: "agent://b.example"})
	put("agent1qc", parley.Identity{Protocol: "agh", ID: "acme/c"})
	put("eve", parley.Identity{Protocol: "uagents", ID: "agent1qc"},
		parley.Identity{Protocol: "samvad", ID: "agent://b.example", Key: "k"})
	resolves("bob", "bob", nil)
	for _, ref := range []string{"agent1qb", "agent://agent1qb", "test-agent://agent1qb"} {
		resolves(ref, "bob", nil)
	}
	resolves("acme/c", "agent1qc", nil)
	resolves("agent1qc", "agent1qc", nil) // a name precedes an ID of another agent
	resolves("agent://b.example", "", ErrAmbiguous)
	for _, ref := range []string{"", "nobody", "agent://", "agent1qx"} {
		resolves(ref, "", ErrUnknown)
	}
	if err := d.Remove(t.Context(), "eve"); err != nil {
		t.Fatal(err)
	}
	resolves("agent://b.example", "bob", nil)
	put("bob")
	resolves("agent://b.example", "", ErrUnknown)
}

// follower records the changes that a watcher of a directory gets.
type follower struct {
	mu   sync.Mutex
	told []Change
	news chan struct{}
}

func follow(t *testing.T, d *Directory) *follower {
	t.Helper()
	f := &follower{news: make(chan struct{}, 1)}
	t.Cleanup(d.Watch(func(c Change) {
		f.mu.Lock()
		f.told = append(f.told, c)
		f.mu.Unlock()
		select {
		case f.news <- struct{}{}:
		default:
		}
	}))
	return f
}

// until waits for the first change for which so reports true, returns it, and drops the changes before it.
func (f *follower) until(t *testing.T, what string, so func(Change) bool) Change {
	t.Helper()
	for {
		f.mu.Lock()
		i := slices.IndexFunc(f.told, so)
		if i >= 0 {
			c := f.told[i]
			f.told = f.told[i+1:]
			f.mu.Unlock()
			return c
		}
		f.mu.Unlock()
		select {
		case <-f.news:
		case <-t.Context().Done():
			t.Fatalf("no change arrived: %s", what)
		}
	}
}

// TestTwoHubs: the watchers of one hub get each addition, change and removal of an agent at the other hub once.
func TestTwoHubs(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	one, two := opened(t, Options{State: state}), opened(t, Options{State: state})
	at := follow(t, two)
	own := follow(t, one)
	if _, err := one.Put(ctx, agent("a", "agent://a"), FromOperator); err != nil {
		t.Fatal(err)
	}
	at.until(t, "added", func(c Change) bool { return c.Old == nil && c.New.Name == "a" })
	if e, ok := two.Lookup("samvad", "agent://a"); !ok || e.Name != "a" || e.Source != FromOperator {
		t.Fatalf("agent at the other hub: %+v, want a of the operator", e)
	}
	if err := two.Expose(ctx, "a", parley.Everywhere); err != nil {
		t.Fatal(err)
	}
	own.until(t, "changed", func(c Change) bool { return c.New != nil && c.New.ExposedIn("asp") })
	if err := one.Link(ctx, "a", parley.Identity{Protocol: "asp", ID: "agent://a/x"}); err != nil {
		t.Fatal(err)
	}
	c := at.until(t, "linked", func(c Change) bool { return c.New != nil && len(c.New.Identities) == 2 })
	if !c.New.ExposedIn("agh") {
		t.Error("Link lost the exposure that the other hub had set")
	}
	if err := two.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	own.until(t, "removed", func(c Change) bool { return c.Old != nil && c.New == nil })
	if _, ok := one.Lookup("samvad", "agent://a"); ok || one.Len() != 0 {
		t.Error("the agent is still found after its removal at the other hub")
	}
	// A new agent under a removed agent's name arrives as an addition.
	if _, err := two.Put(ctx, agent("a", "agent://other"), FromOperator); err != nil {
		t.Fatal(err)
	}
	own.until(t, "added again", func(c Change) bool { return c.Old == nil })
	own.mu.Lock()
	defer own.mu.Unlock()
	if len(own.told) != 0 {
		t.Errorf("%d changes more than expected", len(own.told))
	}
}

// TestFind: Find gives an agent that another hub has just added, even before the change has arrived at this hub.
func TestFind(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	one, two := opened(t, Options{State: state}), opened(t, Options{State: state})
	two.Close() // it gets no more changes
	if _, err := two.Find(ctx, "a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Find before the agent was added: %v, want ErrUnknown", err)
	}
	if _, err := one.Put(ctx, agent("a", "agent://a"), FromOperator); err != nil {
		t.Fatal(err)
	}
	if _, ok := two.Agent("a"); ok {
		t.Fatal("the change has already arrived at the second hub: the test proves nothing")
	}
	told := follow(t, two)
	if e, err := two.Find(ctx, "a"); err != nil || e.Identities[0].ID != "agent://a" {
		t.Errorf("Find = %+v, %v; want a", e, err)
	}
	told.until(t, "added", func(c Change) bool { return c.Old == nil && c.New.Name == "a" })
	gone, stop := context.WithCancel(ctx)
	stop()
	if _, err := two.Find(gone, "b"); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("Find if the journal cannot be read: %v, want another error than ErrUnknown", err)
	}
}

// TestTwoHubsAtOnce: hubs that change one agent at the same time keep each other's changes, and end with the same
// entry.
func TestTwoHubsAtOnce(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	hubs := []*Directory{opened(t, Options{State: state}), opened(t, Options{State: state}),
		opened(t, Options{State: state})}
	const each = 20
	all := func(f func(n, i int, d *Directory) error) {
		var work sync.WaitGroup
		for n, d := range hubs {
			work.Go(func() {
				for i := range each {
					if err := f(n, i, d); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
	}
	all(func(_, i int, d *Directory) error {
		_, err := d.Put(ctx, parley.Agent{Name: fmt.Sprintf("agent-%d", i)}, FromOperator)
		return err
	})
	all(func(n, i int, d *Directory) error {
		return d.Link(ctx, "agent-0", parley.Identity{Protocol: "samvad", ID: fmt.Sprintf("agent://%d.%d", n, i)})
	})
	last := follow(t, hubs[1])
	if err := hubs[0].Pause(ctx, "agent-0", true); err != nil {
		t.Fatal(err)
	}
	c := last.until(t, "paused", func(c Change) bool { return c.New != nil && c.New.Name == "agent-0" && c.New.Paused })
	if want := each * len(hubs); len(c.New.Identities) != want || hubs[1].Len() != each {
		t.Errorf("%d identities, want %d; %d agents, want %d", len(c.New.Identities), want, hubs[1].Len(), each)
	}
}

// TestOneIdentityAddedTwice: if two hubs give one identity to two agents at the same time, all hubs resolve it to the
// agent added first. When that agent is removed, the identity belongs to the other one.
func TestOneIdentityAddedTwice(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	late := time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC)
	put := func(name string, at time.Time) {
		t.Helper()
		// Write as a third hub that has not received the other hubs' changes yet.
		b := fmt.Sprintf(`{"Name":%q,"Identities":[{"Protocol":"samvad","ID":"agent://x"}],"Source":"operator","Added":%q}`,
			name, at.Format(time.RFC3339))
		if _, err := state.Put(ctx, name, []byte(b), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	one := opened(t, Options{State: state})
	told := follow(t, one)
	put("late", late)
	put("early", late.Add(-time.Second))
	told.until(t, "both", func(c Change) bool { return c.New.Name == "early" })
	for i, d := range []*Directory{one, opened(t, Options{State: state})} {
		if e, ok := d.Lookup("samvad", "agent://x"); !ok || e.Name != "early" {
			t.Errorf("hub %d: Lookup gives %+v, want early", i, e)
		}
	}
	if err := one.Remove(ctx, "early"); err != nil {
		t.Fatal(err)
	}
	if e, ok := one.Lookup("samvad", "agent://x"); !ok || e.Name != "late" {
		t.Errorf("after early was removed: Lookup gives %+v, want late", e)
	}
}

// TestPauseOfAConfiguredAgent: a pause of a configured agent applies at all hubs, and after a restart. Nothing else
// of the agent is stored. If another hub stores an agent under the same name, this hub uses the stored agent only
// after the name has left its configuration.
func TestPauseOfAConfiguredAgent(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	start := func() *Directory {
		d := opened(t, Options{State: state})
		if _, err := d.Put(ctx, agent("file", "agent://file"), FromConfig); err != nil {
			t.Fatal(err)
		}
		return d
	}
	one, two := start(), start()
	told := follow(t, two)
	if err := one.Pause(ctx, "file", true); err != nil {
		t.Fatal(err)
	}
	told.until(t, "paused", func(c Change) bool { return c.New.Paused && len(c.New.Identities) == 1 })
	if e, _ := start().Agent("file"); !e.Paused {
		t.Error("the agent is not paused after a restart")
	}
	if d := opened(t, Options{State: state}); d.Len() != 0 {
		t.Error("a hub without the configuration has the agent")
	}
	if err := two.Pause(ctx, "file", false); err != nil {
		t.Fatal(err)
	}
	if e, _ := start().Agent("file"); e.Paused {
		t.Error("the agent is still paused after a restart")
	}
	// One hub removes the agent from its configuration, and an operator adds an agent under the same name there.
	if err := two.Withdraw(ctx, "file", FromConfig); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Put(ctx, agent("file", "agent://other"), FromOperator); err != nil {
		t.Fatal(err)
	}
	marker := follow(t, one)
	if _, err := two.Put(ctx, agent("after"), FromOperator); err != nil {
		t.Fatal(err)
	}
	marker.until(t, "agent added afterwards", func(c Change) bool { return c.New.Name == "after" })
	if e, _ := one.Agent("file"); e.Source != FromConfig {
		t.Errorf("agent at the hub with the configuration: %+v, want the configured one", e)
	}
	if err := one.Withdraw(ctx, "file", FromConfig); err != nil {
		t.Fatal(err)
	}
	if e, ok := one.Lookup("samvad", "agent://other"); !ok || e.Source != FromOperator {
		t.Errorf("agent after Withdraw: %+v, want the operator's", e)
	}
}

// Retries that an operator sets for an agent outlive its next registration. Entries without them are stored as before.
func TestRetriesOfARegisteredAgent(t *testing.T) {
	ctx, state := t.Context(), shared(t)
	d := opened(t, Options{State: state})
	register := func() {
		t.Helper()
		if _, err := d.Register(ctx, agent("a", "agent://a"), FromAgent, "samvad"); err != nil {
			t.Fatal(err)
		}
	}
	register()
	if v, err := state.Get(ctx, "a"); err != nil || strings.Contains(string(v.Data), "Retries") {
		t.Errorf("stored: %s, %v", v.Data, err)
	}
	want := parley.Retries{Patience: time.Hour}
	if err := d.SetRetries(ctx, "a", want); err != nil {
		t.Fatal(err)
	}
	register()
	if e, _ := d.Agent("a"); e.Retries != want {
		t.Errorf("after the next registration: %+v, want %+v", e.Retries, want)
	}
}

// A card's texts fill what the source left open, change with the card, and leave what the
// source wrote.
func TestLearnCard(t *testing.T) {
	d := opened(t, Options{State: shared(t)})
	ctx := t.Context()
	a := agent("far", "agent://far.test")
	a.Description = "mine"
	if _, err := d.Put(ctx, a, FromOperator); err != nil {
		t.Fatal(err)
	}
	for _, title := range []string{"One", "Two"} {
		if err := d.LearnCard(ctx, "far", "samvad", Card{Title: title, Description: "theirs", Version: "1"},
			[]parley.SkillSpec{{ID: title}}); err != nil {
			t.Fatal(err)
		}
		e, _ := d.Agent("far")
		if e.Title != title || e.Description != "mine" || e.Version != "1" || e.Skills[0].ID != title {
			t.Errorf("%+v", e)
		}
	}
	a.Skills = []parley.SkillSpec{{ID: "own"}}
	if _, err := d.Put(ctx, a, FromOperator); err != nil {
		t.Fatal(err)
	}
	if err := d.LearnCard(ctx, "far", "samvad", Card{Title: "Three"}, nil); err != nil {
		t.Fatal(err)
	}
	if e, _ := d.Agent("far"); e.Title != "" || len(e.Skills) != 1 {
		t.Errorf("%+v", e)
	}
}
