package samvad_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// A request with half a surrogate pair is accepted. An agent of the same protocol
// gets it as it was written; others get U+FFFD, and the delivery has the loss.
func TestHalfSurrogatePairs(t *testing.T) {
	w := newWorld(t, node.Config{})
	var there, here string
	w.agentElsewhereNamed("elsewhere", func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
		there = string(r.Raw())
		return samvad.Response{Result: []byte(`{"text":"a reply"}`)}, nil
	})
	if err := w.Handle(parley.Agent{Name: "here", Exposed: parley.Everywhere},
		parley.RawSkill("ask", func(_ context.Context, m *parley.Message, _ parley.Replier) error {
			here = string(m.Parts[0].Data)
			return nil
		})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"elsewhere", "here"} {
		call := samvad.Call{URL: w.base + "/agents/" + name, Skill: "ask", Payload: []byte(`{"text":"cut \ud83d"}`),
			Auth: &samvad.Auth{Scheme: "bearer", Token: "secret-token"}}
		if _, err := w.client.Ask(t.Context(), call); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if !strings.Contains(there, `"payload":{"text":"cut \ud83d"}`) || here != `{"text":"cut \ufffd"}` {
		t.Errorf("there %s, here %s", there, here)
	}
	for _, m := range w.requests() {
		if raw := string(m.Origin.Raw); !strings.Contains(raw, `"cut \ud83d"`) ||
			strings.Contains(raw, "secret-token") {
			t.Errorf("recorded: %s", raw)
		}
		for _, way := range bridge.Ways {
			losses := bridge.Losses(way.Way, m, m.To)
			if slices.Contains(losses, bridge.SurrogatesReplaced) != (way.Way != bridge.SAMVAD) {
				t.Errorf("to %s on the way %s: %v", m.To, way.Way, losses)
			}
		}
	}
}

// In an answer it is replaced, and the delivery of the request has the loss.
func TestHalfSurrogatePairInAnAnswer(t *testing.T) {
	w := newWorld(t, node.Config{})
	identity := agentElsewhere(t, w, nil, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"traceId":"t","spanId":"s","status":"ok","result":{"text":"cut \ud83d"}}`)
		})
	})
	a := parley.Agent{Name: "elsewhere", Identities: []parley.Identity{identity},
		Skills: []parley.SkillSpec{{ID: "ask"}}}
	if _, err := w.Hub().Directory().Put(t.Context(), a, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	r, err := w.client.Ask(t.Context(), samvad.Call{URL: w.base + "/agents/elsewhere", Skill: "ask"})
	if err != nil || string(r.Result) != "{\"text\":\"cut \ufffd\"}" {
		t.Fatalf("%+v, %v", r, err)
	}
	want := parley.Loss{Field: "Reply.Parts", Reason: bridge.SurrogatesReplaced.Reason}
	told := false
	for p := range w.Hub().Journal().Partitions() {
		for r, err := range w.Hub().Journal().Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range r.Steps {
				told = told || s.To == "elsewhere" && slices.Contains(s.Losses, want)
			}
		}
	}
	if !told {
		t.Error("the delivery of the request does not say what its answer lost")
	}
}
