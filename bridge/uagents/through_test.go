package uagents_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// foundAt gives the endpoints of an agent that other agents read from the registry.
func (w *world) foundAt(address string) []string {
	w.t.Helper()
	_, list, err := uagents.Almanac(w.base).Resolve(w.t.Context(), address)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.URL)
	}
	return out
}

// recorded waits for the record of a message from one agent to another.
func (w *world) recorded(from, to string) (found *journal.Record) {
	w.t.Helper()
	ctx, stop := context.WithTimeout(w.t.Context(), wait)
	defer stop()
	for r, err := range w.Hub().Journal().Records(ctx, 0, journal.From{Follow: true}) {
		if err != nil {
			w.t.Fatalf("nothing from %s to %s is recorded: %v", from, to, err)
		}
		if m := r.Message; m != nil && m.From == from && m.To == to {
			return r
		}
	}
	w.t.Fatalf("nothing from %s to %s is recorded", from, to)
	return nil
}

func only(list []string, want string) bool { return len(list) == 1 && list[0] == want }

// TestThroughTheHub: two agents with endpoints find each other through the registry and
// talk through the hub, which records their messages and does not show their own
// endpoints. UAG-078.
func TestThroughTheHub(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice := w.newPeer(nil)
	bob := w.newPeer(func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
		return uagents.Answer(echoModel().Message(EchoRequest{"heard"})), nil
	})
	names := [2]string{w.nameOf(alice.Identity), w.nameOf(bob.Identity)}
	if got := w.foundAt(bob.Address()); !only(got, w.base+"/submit") {
		t.Errorf("bob is found at %q, want the hub's /submit", got)
	}
	t.Run("in a search too", func(t *testing.T) {
		body, err := json.Marshal(map[string]string{"text": uagents.ChatProtocolDigest})
		if err != nil {
			t.Fatal(err)
		}
		rec := w.from("192.0.2.1", "POST", "/v1/almanac/search", body)
		got := rec.Body.String()
		if rec.Code != 200 || strings.Contains(got, bob.url) || !strings.Contains(got, bob.Address()) {
			t.Errorf("%d %s", rec.Code, got)
		}
	})
	t.Run("one way", func(t *testing.T) {
		e := w.envelope(alice.Identity, bob.Address(), "", uagents.NewChat(time.Now(),
			uagents.Text("hello bob")).Message())
		want, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		_, endpoints, err := uagents.Almanac(w.base).Resolve(t.Context(), bob.Address())
		if err == nil {
			_, err = w.client(alice.Identity).Forward(t.Context(), endpoints, e)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r := bob.next(t); string(r.Raw()) != string(want) {
			t.Errorf("%s, want the envelope as it was signed: %s", r.Raw(), want)
		}
		r := w.recorded(names[0], names[1])
		if r.Message.Text() != "hello bob" || r.Message.Origin.Verdict.Assurance != parley.Signed {
			t.Errorf("recorded: %+v", r.Message)
		}
	})
	t.Run("synchronous", func(t *testing.T) {
		r, err := w.client(alice.Identity).Ask(t.Context(), bob.Address(),
			echoModel().Message(EchoRequest{"are you there?"}))
		if err != nil || string(r.Payload) != `{"text": "heard"}` || r.Assurance != uagents.Signed ||
			r.Envelope.Sender != bob.Address() {
			t.Fatalf("%+v, %v", r, err)
		}
		bob.next(t)
		w.recorded(names[1], names[0])
	})
	t.Run("the same registration again changes nothing", func(t *testing.T) {
		w.register(bob.Identity, bob.url)
		if got := w.foundAt(bob.Address()); !only(got, w.base+"/submit") {
			t.Errorf("bob is found at %q", got)
		}
	})
	t.Run("a mailbox here is found where it is", func(t *testing.T) {
		carol := identity(t)
		w.register(carol, w.base+"/v2/agents/mailbox/submit")
		if got := w.foundAt(carol.Address()); !only(got, w.base+"/v2/agents/mailbox/submit") {
			t.Errorf("carol is found at %q", got)
		}
	})
	t.Run("an agent without an endpoint is found nowhere", func(t *testing.T) {
		dave := identity(t)
		w.register(dave)
		if _, list, err := uagents.Almanac(w.base).Resolve(t.Context(), dave.Address()); err == nil {
			t.Errorf("dave is found at %v", list)
		}
	})
}

// TestGovernedBetweenUAgents: the rules of the operator hold between two agents
// of the library.
func TestGovernedBetweenUAgents(t *testing.T) {
	w := newWorld(t, node.Config{Allow: []node.Allow{{From: "boss", To: []string{"**"}}}})
	alice, boss, bob := identity(t), identity(t), w.newPeer(nil)
	w.enrol("boss", boss)
	hi := func() uagents.Message { return uagents.NewChat(time.Now(), uagents.Text("hi")).Message() }
	if _, err := w.client(alice).Send(t.Context(), bob.Address(), hi()); err == nil {
		t.Error("an envelope passed that no rule allows")
	}
	if _, err := w.client(boss).Send(t.Context(), bob.Address(), hi()); err != nil {
		t.Fatal(err)
	}
	if r := bob.next(t); r.Sender != boss.Address() {
		t.Errorf("%s", r.Raw())
	}
}

// TestDirect: with a setting the registry shows agents' own endpoints, of all agents or
// of one.
func TestDirect(t *testing.T) {
	yes, no := true, false
	alice, bob := identity(t), identity(t)
	agents := map[string]node.Agent{"alice": {UAgents: &node.UAgent{Address: alice.Address(), Direct: &yes}}}
	others := map[string]node.Agent{"bob": {UAgents: &node.UAgent{Address: bob.Address(), Direct: &no}}}
	for name, c := range map[string]struct {
		config     node.Config
		alice, bob bool
	}{
		"one agent":     {node.Config{Agents: agents}, true, false},
		"all agents":    {node.Config{UAgents: node.UAgents{Direct: true}}, true, true},
		"all but one":   {node.Config{UAgents: node.UAgents{Direct: true}, Agents: others}, true, false},
		"none, default": {node.Config{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.config)
			for id, direct := range map[*uagents.Identity]bool{alice: c.alice, bob: c.bob} {
				own := "http://192.0.2.7/submit"
				w.register(id, own)
				want := w.base + "/submit"
				if direct {
					want = own
				}
				if got := w.foundAt(id.Address()); !only(got, want) {
					t.Errorf("found at %q, want %q", got, want)
				}
			}
		})
	}
}

// TestSubmitAsReached: the registry gives the hub's public URL, or, if none is configured,
// the host that the caller used.
func TestSubmitAsReached(t *testing.T) {
	for _, c := range []struct{ public, want string }{
		{"", "http://hub.corp:8080/submit"},
		{"https://hub.example/agents", "https://hub.example/agents/submit"},
	} {
		w := newWorld(t, node.Config{PublicURL: c.public})
		bob := identity(t)
		w.from("192.0.2.7", "POST", "/v1/almanac/agents", w.attest(bob, time.Now(), "http://192.0.2.7/submit", 0))
		for _, address := range []string{bob.Address(), w.address("crew/echo")} {
			r := httptest.NewRequest("GET", "http://hub.corp:8080/v1/almanac/agents/"+address, nil)
			rec := httptest.NewRecorder()
			w.UAgents().ServeHTTP(rec, r)
			if !strings.Contains(rec.Body.String(), `"`+c.want+`"`) {
				t.Errorf("public_url %q: %s, want %s", c.public, rec.Body, c.want)
			}
		}
	}
}
