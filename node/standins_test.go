package node

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	aghbridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

// elsewhere is a SAMVAD agent on a socket of its own, which trusts the hub.
func (f *five) elsewhere(name string, exposed []string) (header func() http.Header) {
	f.t.Helper()
	id, err := samvad.NewIdentity("agent://"+name+".test", "key-current")
	if err != nil {
		f.t.Fatal(err)
	}
	hub := f.SAMVAD().Hosting()
	key, err := samvad.ParseKey(hub.Key)
	if err != nil {
		f.t.Fatal(err)
	}
	seen := make(chan http.Header, 64)
	card := &samvad.Card{ID: id.ID(), Name: name, Version: "1", Description: "x", URL: "http://" + name +
		".test", PublicKeys: []samvad.CardKey{samvad.CardKeyOf(id, true)},
		Skills: []samvad.Skill{{ID: "ask", Name: "Ask", Description: "x", InputSchema: []byte(`{"type":"object"}`),
			OutputSchema: []byte(`{"type":"object"}`),
			Modes:        []samvad.Mode{samvad.ModeSync}, Trust: samvad.TrustPublic}}}
	s := httptest.NewServer(&samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{hub.Identity: {key}}},
		Agent: &samvad.Agent{Card: card.Complete(), Limit: &samvad.RateLimit{},
			Handler: func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
				seen <- r.Header
				return samvad.Response{Result: []byte(`{"by":"` + name + ` itself"}`)}, nil
			}}})
	f.t.Cleanup(s.Close)
	f.put(name, parley.Identity{Protocol: "samvad", ID: id.ID(), URL: s.URL}, func(a *parley.Agent) {
		a.Exposed, a.Skills = exposed, []parley.SkillSpec{{ID: "ask", Default: true}}
	})
	return func() http.Header {
		select {
		case h := <-seen:
			return h
		case <-f.t.Context().Done():
			return nil
		}
	}
}

// addresses gives the addresses of an agent by the admin API, once it has one in each of the
// five protocols with stand-ins, and in A2A and MCP, where each agent has its URL.
func (f *five) addresses(name string) map[string]string {
	f.t.Helper()
	var v admin.Agent
	f.until(name+" has an address in every protocol", func() bool {
		var err error
		if v, err = f.Admin().Agent(f.t.Context(), everything, name, 0); err != nil {
			f.t.Fatal(err)
		}
		return len(v.Addresses) == len(fiveProtocols)+2
	})
	return v.Addresses
}

// An agent of one protocol has a stand-in in each of the others: made without the
// operator, the same after a restart, gone when the agent is removed, and a new one for
// another agent that gets its name.
func TestStandInsLiveAndDieWithTheirAgent(t *testing.T) {
	c := fiveConfig()
	c.Data, c.Durability, c.PublicURL = filepath.Join(t.TempDir(), "data"), "disk", "http://hub.test"
	first, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := &five{Node: first, t: t}
	f.elsewhere("museum", parley.Everywhere)
	before := f.addresses("museum")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = &five{Node: running(t, c), t: t}
	after := f.addresses("museum")
	if !maps.Equal(before, after) {
		t.Errorf("other stand-ins after a restart:\n%v\n%v", before, after)
	}
	for p, part := range map[string]string{"samvad": "/agents/museum", "uagents": "agent1q", "a2e": "/a2e",
		"agh": "acme/builders/museum", "asp": "agent://hub.test/agents/museum"} {
		if !strings.Contains(after[p], part) {
			t.Errorf("%s: %q has no %q", p, after[p], part)
		}
	}
	status := func(path string) int {
		resp, err := http.Get(f.Addresses().Local + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	defer http.DefaultClient.CloseIdleConnections()
	paths := []string{"/agents/museum/.well-known/agent.json", "/v1/almanac/agents/" + after["uagents"]}
	for _, p := range paths {
		if s := status(p); s != http.StatusOK {
			t.Errorf("%s: HTTP %d", p, s)
		}
	}
	if err := f.Admin().RemoveAgent(t.Context(), everything, "museum"); err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if s := status(p); s != http.StatusNotFound {
			t.Errorf("removed, and still there: %s: HTTP %d", p, s)
		}
	}
	f.until("the peer has left AGH and the agent the ASP registry", func() bool {
		a, err := f.ASP().Server().Store.Agent(t.Context(), after["asp"])
		return err == nil && a.Removed && f.AGH().Address(&directory.Entry{Agent: parley.Agent{Name: "museum"}}) == ""
	})
	for _, k := range f.Keys().List() {
		if k.Owner == "museum" {
			t.Errorf("a key of the removed agent is kept: %+v", k)
		}
	}
	audit, err := f.Admin().Audit(everything, admin.AuditFilter{})
	if err != nil || !slices.ContainsFunc(audit, func(e admin.AuditEntry) bool {
		return e.Action == "agent.remove" &&
			e.Target == "museum"
	}) {
		t.Errorf("%+v, %v", audit, err)
	}
	f.elsewhere("museum", parley.Everywhere)
	if again := f.addresses("museum"); again["uagents"] == after["uagents"] || again["asp"] != after["asp"] {
		t.Errorf("the next museum: %v, after %v", again, after)
	}
}

// A native identity retires the stand-in: the agent gets its messages at the native
// identity, also those sent to the stand-in's address.
func TestLinkRetiresAStandIn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	t.Run("uagents", func(t *testing.T) {
		f := newFive(t, fiveConfig())
		f.elsewhere("museum", parley.Everywhere)
		old := f.addresses("museum")["uagents"]
		id, err := uagents.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		h := httptest.NewServer(&uagents.Server{Resolve: uagents.Serve(&uagents.Agent{Address: id.Address(),
			Identity: id,
			Handler: func(context.Context, *uagents.Request) (uagents.Response, error) {
				return uagents.Answer(uagents.ModelOf[question]().Message(question{"natively"})), nil
			}})})
		defer h.Close()
		v, err := f.Admin().Link(ctx, everything, "museum", admin.NewIdentity{Protocol: "uagents", ID: id.Address(),
			URL: h.URL + "/submit"})
		if err != nil || !slices.Contains(v.Native, "uagents") {
			t.Fatalf("%+v, %v", v, err)
		}
		if at := f.addresses("museum")["uagents"]; at != id.Address() {
			t.Errorf("it is reached as %s", at)
		}
		if r, err := f.uagents.Ask(ctx, old, uagents.ModelOf[question]().Message(question{"hello"})); err != nil ||
			!strings.Contains(string(r.Payload), `"by"`) && !strings.Contains(string(r.Payload), "natively") {
			t.Errorf("to the retired stand-in: %v", err)
		}
	})
	t.Run("agh", func(t *testing.T) {
		f := newFive(t, fiveConfig())
		f.elsewhere("museum", parley.Everywhere)
		f.addresses("museum")
		if _, err := f.Hub().Directory().Put(ctx, parley.Agent{Name: "gallery", Exposed: parley.Everywhere,
			Skills:     []parley.SkillSpec{{ID: "say", Default: true}},
			Identities: []parley.Identity{{Protocol: "other", ID: "gallery"}}}, directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		f.addresses("gallery")
		f.peer("bob", func(ctx context.Context, r *agh.Request) {
			if r.Envelope.WorkID != "" {
				if err := r.Trace(ctx, &agh.Trace{State: agh.StateCompleted,
					Result: json.RawMessage(`{"by":"bob"}`)}); err != nil {
					t.Error(err)
				}
			}
		})
		// A peer that has greeted is a separate agent until it is linked.
		guest, ok := f.Hub().Directory().Lookup("agh", "acme/bob")
		if !ok {
			t.Fatal("bob is not there")
		}
		if err := f.Hub().Directory().Remove(ctx, guest.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Admin().Link(ctx, everything, "gallery",
			admin.NewIdentity{Protocol: "agh", ID: "acme/bob"}); err != nil {
			t.Fatal(err)
		}
		for _, err := range f.agh.Whois(ctx, "gallery", "", false) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		end, err := f.agh.Ask(ctx, "gallery", &agh.Say{Text: "hello"})
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := end.Envelope.Content().(*agh.Trace); !ok || !strings.Contains(string(c.Result), "bob") {
			t.Errorf("%s", end.Envelope.Raw())
		}
	})
}

// The hub's own signature proves nothing about the sender: if the sender did not sign,
// recipients of every protocol learn that the message is unsigned, or from a session.
func TestProvenanceNeverOverstates(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := newFive(t, fiveConfig())
	header := f.elsewhere("museum", parley.Everywhere)
	f.addresses("museum")
	overstates := func(to, stated, protocol string) {
		t.Helper()
		if !strings.Contains(stated, protocol) || !strings.Contains(stated, "session") ||
			strings.Contains(stated, "signed") {
			t.Errorf("to %s: %s", to, stated)
		}
	}
	// A caller of AGH asks the SAMVAD agent, which gets the provenance in a header.
	for _, err := range f.agh.Whois(ctx, "museum", "", false) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	end, err := f.agh.Ask(ctx, "museum", &agh.Say{Text: `{"a":1}`})
	if err != nil {
		t.Fatal(err)
	}
	overstates("SAMVAD", header().Get(bridge.ProvenanceHeader), "protocol=agh")
	// The answers of SAMVAD agents are not signed, and the hub does not say that they
	// are.
	overstates("AGH", string(end.Envelope.ExtValue(aghbridge.ExtParley)), `"protocol":"samvad"`)
	r, err := f.a2e.Ask(ctx, a2e.Message{Type: "tool/call/req",
		Body: map[string]any{"tool_name": "museum__ask", "arguments": map[string]any{"a": 1}, "streaming": false}})
	if err != nil {
		t.Fatal(err)
	}
	overstates("A2E", string(r.Raw()), `"protocol":"samvad"`)
	// A uAgent gets the provenance in a header, because the hub signs the envelope
	// itself.
	id, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	var sent http.Header
	h := httptest.NewServer(&uagents.Server{Resolve: uagents.Serve(&uagents.Agent{Address: id.Address(), Identity: id,
		Handler: func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
			sent = r.Header
			return uagents.Answer(uagents.ModelOf[question]().Message(question{"well"})), nil
		}})})
	defer h.Close()
	f.put("bob", parley.Identity{Protocol: "uagents", ID: id.Address(), URL: h.URL + "/submit"}, skills("chat"))
	if _, err := f.a2e.CallTool(ctx, "bob__chat", map[string]any{"text": "hello"}, nil); err != nil {
		t.Fatal(err)
	}
	overstates("uAgents", sent.Get(bridge.ProvenanceHeader), "protocol=a2e")
	s, err := f.asp.Open(ctx, asp.Invitation{To: []string{f.at("museum", "asp")}, Purpose: "to test"})
	if err != nil {
		t.Fatal(err)
	}
	introduced(ctx, t, s)
	m, err := s.Ask(ctx, asp.Question{QueryType: "ask", Parameters: map[string]any{"a": 1}})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Content.Context) != 1 {
		t.Fatalf("%+v", m.Content.Context)
	}
	overstates("ASP", string(m.Content.Context[0].Data), `"protocol":"samvad"`)
}
