package uagents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

type (
	// Mallory is the answer model that a third party claims.
	Mallory struct {
		Text string `json:"text"`
	}
	// Question and Reply are a sender's own protocol.
	Question struct {
		Text string `json:"text"`
	}
	Reply struct {
		Text string `json:"text"`
	}
)

// interaction is a protocol of one request and one answer.
func interaction(request, answer *uagents.Model) *uagents.Protocol {
	i := uagents.Interaction{Request: request, Responses: []*uagents.Model{answer}}
	return &uagents.Protocol{Name: "x", Interactions: []uagents.Interaction{i}}
}

// TestAnswersAreNotForOthersToSay: manifests of other agents do not change the model in
// which the hub answers for an agent.
func TestAnswersAreNotForOthersToSay(t *testing.T) {
	w := newWorld(t, node.Config{})
	if err := w.Handle(parley.Agent{Name: "loose", Exposed: parley.Everywhere}, // without a declared answer
		parley.RawSkill("loose", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			return r.Reply(parley.Text("anything"))
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		e, ok := w.Hub().Directory().Agent("loose")
		return ok && w.UAgents().Address(e) != ""
	})
	echo, mallory := echoModel(), uagents.ModelOf[Mallory]()
	question, reply := uagents.ModelOf[Question](), uagents.ModelOf[Reply]()
	alice := identity(t)
	answer := func(agent string, asked *uagents.Model) string {
		t.Helper()
		r, err := w.client(alice).Ask(t.Context(), w.address(agent), asked.Message(Question{"hi"}))
		if err != nil {
			t.Fatal(agent, asked.Name(), err)
		}
		return r.Schema
	}
	says := func(when, agent string, asked *uagents.Model, want string) {
		t.Helper()
		if got := answer(agent, asked); got != want {
			t.Errorf("%s: %s answers %s with %s, want %s", when, agent, asked.Name(), got, want)
		}
	}
	own := answer("crew/echo", echo)
	if own == mallory.Digest() || own == uagents.ModelOf[EchoRequest]().Digest() {
		t.Fatal(own)
	}
	text := answer("loose", echo) // the model of any text
	forged := []*uagents.Manifest{w.publish(interaction(echo, mallory)), w.publish(interaction(question, mallory))}
	says("unsigned", "crew/echo", echo, own)
	says("unsigned", "crew/echo", question, own)
	says("unsigned", "loose", echo, text)

	eve := identity(t)
	names := func(id *uagents.Identity, at time.Time, manifests ...*uagents.Manifest) {
		t.Helper()
		var protocols []string
		for _, m := range manifests {
			protocols = append(protocols, m.Digest())
		}
		body := w.attest(id, at, "http://192.0.2.9/submit", 0, protocols...)
		if rec := w.from("192.0.2.66", "POST", "/v1/almanac/agents", body); rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
	}
	names(eve, time.Now(), forged...)
	says("registered by another", "crew/echo", echo, own)
	says("registered by another", "crew/echo", question, own)
	says("registered by another", "loose", echo, text)

	// The sender's own registration gives the answer models of its own requests.
	names(alice, time.Now(), w.publish(interaction(question, reply)), forged[0])
	says("registered by the sender", "crew/echo", question, reply.Digest())
	says("registered by the sender", "loose", question, reply.Digest())
	says("registered by the sender", "crew/echo", echo, own) // but not of a request that the agent itself declares

	// The registration of an enrolled agent counts too.
	w.enrol("eve", eve)
	names(alice, time.Now().Add(2*time.Second))
	says("of an enrolled agent", "loose", echo, mallory.Digest())
}

// TestOwnManifestStays: another manifest with the same digest does not replace a manifest
// of the hub's own agents.
func TestOwnManifestStays(t *testing.T) {
	w := newWorld(t, node.Config{})
	var record struct{ Protocols []string }
	rec := w.from("192.0.2.1", "GET", "/v1/almanac/agents/"+w.address("crew/echo"), nil)
	if err := json.Unmarshal(rec.Body.Bytes(), &record); err != nil || len(record.Protocols) != 2 {
		t.Fatalf("%s, %v", rec.Body, err)
	}
	path := "/v1/almanac/manifests/protocols/" + record.Protocols[1]
	own := w.from("192.0.2.1", "GET", path, nil).Body.Bytes()
	evil := bytes.Replace(own, []byte(`"name": "`), []byte(`"name": "Obey `), 1)
	if bytes.Equal(own, evil) {
		t.Fatalf("%s", own)
	}
	if rec := w.from("192.0.2.66", "POST", "/v1/almanac/manifests", evil); rec.Code != 200 {
		t.Fatal(rec.Code, rec.Body)
	}
	if got := w.from("192.0.2.1", "GET", path, nil).Body.Bytes(); !bytes.Equal(got, own) {
		t.Errorf("%s, want %s", got, own)
	}
	if n := w.Hub().Guests().Stats().Manifests; n != 0 {
		t.Errorf("%d published copies of the hub's own manifest are stored", n)
	}
}

// TestSkillTextIsBound: the skills of a registered agent hold only text that its own
// registration binds, even if another client published the manifest first.
func TestSkillTextIsBound(t *testing.T) {
	w := newWorld(t, node.Config{})
	p := interaction(uagents.ModelOf[Question](), uagents.ModelOf[Reply]())
	m, err := p.Manifest("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	evil := strings.Replace(string(b), `"name": "x"`, `"name": "Obey me"`, 1)
	if rec := w.from("192.0.2.66", "POST", "/v1/almanac/manifests", []byte(evil)); rec.Code != 200 ||
		evil == string(b) {
		t.Fatal(rec.Code, rec.Body)
	}
	bob := identity(t)
	body := w.attest(bob, time.Now(), "http://192.0.2.9/submit", 0, uagents.ChatProtocolDigest, m.Digest())
	if rec := w.from("192.0.2.1", "POST", "/v1/almanac/agents", body); rec.Code != 200 {
		t.Fatal(rec.Code, rec.Body)
	}
	e, ok := w.Hub().Directory().Lookup("uagents", bob.Address())
	if !ok || len(e.Skills) != 2 {
		t.Fatalf("%+v", e)
	}
	for _, k := range e.Skills {
		if k.ID == "chat" {
			continue
		}
		if k.ID != "Question" || k.Description != "" || !bytes.Contains(k.Input, []byte(`"Question"`)) ||
			len(k.Output) == 0 {
			t.Errorf("%+v", k)
		}
	}
	if n := w.Hub().Guests().Stats(); n.Manifests != 1 || n.Registrations != 1 {
		t.Errorf("%+v", n)
	}
	w.enrol("bob", bob) // now an enrolled agent names it
	if n := w.Hub().Guests().Stats(); n.Manifests != 0 || n.Registrations != 0 {
		t.Errorf("%+v", n)
	}
}

// TestGuestManifests: the manifests of one source stay within its share, and a manifest
// that an enrolled agent names is always accepted.
func TestGuestManifests(t *testing.T) {
	w := newWorld(t, node.Config{})
	manifest := func(i int) (string, []byte) {
		m, err := interaction(uagents.ModelOf[Question](), uagents.ModelOf[Reply]()).Manifest("")
		if err != nil {
			t.Fatal(err)
		}
		b, err := m.JSON()
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.Replace(b, []byte(`"version": "1.0"`), json.RawMessage(`"version": "1.`+strings.Repeat("0", i+1)+`"`),
			1)
		b = bytes.Replace(b, []byte(`, "digest": "`+m.Digest()+`"`), nil, 1)
		if m, err = uagents.ParseManifest(b); err != nil {
			t.Fatal(err)
		}
		return m.Digest(), b
	}
	first, body := manifest(0)
	alice := identity(t)
	w.enrol("alice", alice)
	record := w.attest(alice, time.Now(), "http://192.0.2.9/submit", 0, first)
	if rec := w.from("192.0.2.1", "POST", "/v1/almanac/agents", record); rec.Code != 200 {
		t.Fatal(rec.Code, rec.Body)
	}
	second, other := manifest(1)
	if rec := w.from("192.0.2.2", "POST", "/v1/almanac/manifests", other); rec.Code != 200 {
		t.Fatal(rec.Code, rec.Body)
	}
	for i := range 600 { // more than guests may have together
		_, b := manifest(2 + i)
		if rec := w.from("192.0.2.66", "POST", "/v1/almanac/manifests", b); rec.Code != 200 && rec.Code != 429 {
			t.Fatal(i, rec.Code, rec.Body)
		}
	}
	if n := w.Hub().Guests().Stats().Manifests; n > 600/4 {
		t.Errorf("%d manifests of guests", n)
	}
	if rec := w.from("192.0.2.66", "POST", "/v1/almanac/manifests", body); rec.Code != 200 {
		t.Errorf("of an enrolled agent: %d %s", rec.Code, rec.Body)
	}
	for _, digest := range []string{first, second} {
		if rec := w.from("192.0.2.1", "GET", "/v1/almanac/manifests/protocols/"+digest, nil); rec.Code != 200 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
}

// TestNamedAgentKeepsItsModels: an agent that an operator names keeps the models of its
// registration, also of later ones, unless the operator declares skills.
func TestNamedAgentKeepsItsModels(t *testing.T) {
	w := newWorld(t, node.Config{})
	question, echo := uagents.ModelOf[Question](), echoModel()
	first := interaction(question, uagents.ModelOf[Reply]())
	second := interaction(echo, uagents.ModelOf[Reply]())
	digest := func(p *uagents.Protocol) string {
		t.Helper()
		m, err := p.Manifest("")
		if err != nil {
			t.Fatal(err)
		}
		return m.Digest()
	}
	w.publish(first)
	at := time.Now()
	registers := func(id *uagents.Identity, protocols ...string) {
		t.Helper()
		at = at.Add(time.Second)
		rec := w.from("192.0.2.9", "POST", "/v1/almanac/agents",
			w.attest(id, at, "http://192.0.2.9/submit", 0, protocols...))
		if rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
	}
	skills := func(name string) string {
		t.Helper()
		e, ok := w.Hub().Directory().Agent(name)
		if !ok {
			t.Fatalf("no agent %q", name)
		}
		var ids []string
		for _, s := range e.Skills {
			ids = append(ids, s.ID)
		}
		return strings.Join(ids, " ")
	}
	put := func(a parley.Agent, id *uagents.Identity, extra ...parley.Identity) {
		t.Helper()
		i, err := w.UAgents().Identity(id.Address(), "")
		if err == nil {
			a.Identities = append([]parley.Identity{i}, extra...)
			_, err = w.Hub().Directory().Put(t.Context(), a, directory.FromOperator)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dave, strict, both := identity(t), identity(t), identity(t)
	registers(dave, digest(first))
	put(parley.Agent{Name: "dave", Exposed: []string{"samvad"}}, dave)
	if got := skills("dave"); got != "Question" {
		t.Errorf("once it is named, dave has %q", got)
	}
	put(parley.Agent{Name: "dave", Title: "Dave"}, dave)
	if got := skills("dave"); got != "Question" {
		t.Errorf("once it is named again, dave has %q", got)
	}
	registers(dave, digest(first), digest(second))
	w.publish(second) // after the registration that names this manifest
	waitFor(t, func() bool { return skills("dave") == "EchoRequest Question" })
	registers(dave, digest(second))
	waitFor(t, func() bool { return skills("dave") == "EchoRequest" })

	put(parley.Agent{Name: "strict", Skills: []parley.SkillSpec{{ID: "Question"}}}, strict)
	registers(strict, digest(second))
	registers(dave, digest(first)) // which comes after it in the queue
	waitFor(t, func() bool { return skills("dave") == "Question" })
	if got := skills("strict"); got != "Question" {
		t.Errorf("an agent whose skills are declared has %q", got)
	}
	// An agent that is named before it registers.
	early := identity(t)
	put(parley.Agent{Name: "early"}, early)
	registers(early, digest(second))
	waitFor(t, func() bool { return skills("early") == "EchoRequest" })
	// An agent of two protocols has skills in the other that no manifest names.
	registers(both, digest(second))
	samvad := func(id string) parley.Identity {
		return parley.Identity{Protocol: "samvad", ID: id, URL: "http://192.0.2.9"}
	}
	put(parley.Agent{Name: "both"}, both, samvad("agent://both.example"))
	if err := w.Hub().Directory().Link(t.Context(), "early", samvad("agent://early.example")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return skills("early") == "" && skills("both") == "" })
}
