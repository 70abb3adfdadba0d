package uagents_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// The ways to agents by their registration: with endpoints, stopped, with a mailbox here and elsewhere, and only at
// another registry, which may not answer.
func TestWay(t *testing.T) {
	registry := httptest.NewServer(http.NotFoundHandler())
	defer registry.Close()
	nobody := identity(t)
	w := newWorld(t, node.Config{UAgents: node.UAgents{Registry: registry.URL},
		Agents: map[string]node.Agent{"nobody": {UAgents: &node.UAgent{Address: nobody.Address()}}}})
	want := func(name, check string, state hub.FindingState, texts ...string) hub.Way {
		t.Helper()
		return bridgetest.WantFinding(t, w.Hub(), name, check, state, texts...)
	}
	want("nobody", "registration", hub.FindingFailed, "neither in this hub's registry nor at "+registry.URL,
		"agents.nobody.uagents.endpoint")

	at := func(endpoint string) (*uagents.Identity, string) {
		id := identity(t)
		w.register(id, endpoint)
		return id, w.nameOf(id)
	}
	id, name := at("http://127.0.0.1:1/submit")
	way := want(name, "registration", hub.FindingOK, "in this hub's registry until ")
	if !slices.Equal(way.Addresses, []string{"http://127.0.0.1:1/submit"}) || way.How != "the hub calls its endpoint" {
		t.Errorf("%+v", way)
	}
	r := &uagents.Registrar{Identity: id, URL: w.base, HTTP: w.http}
	if err := r.SetActive(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	want(name, "registration", hub.FindingWarning, "that it stopped", "start the agent with agentverse=")

	const elsewhere = "https://agentverse.test/v2/agents/mailbox/submit"
	_, name = at(elsewhere)
	way = want(name, "registration", hub.FindingOK, "")
	if !slices.Equal(way.Addresses, []string{elsewhere}) ||
		way.How != "it fetches its messages from a mailbox at agentverse.test, which the hub calls" {
		t.Errorf("%+v", way)
	}

	_, name = at(w.base + "/v2/agents/mailbox/submit")
	way = want(name, "mailbox", hub.FindingWarning, "it has not asked for its messages since the hub started")
	if len(way.Addresses) > 0 {
		t.Errorf("%+v", way)
	}
}
