package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

// One request is one trace over all hops, with the protocols' own ids as attributes: the
// request of a caller to an agent of another protocol, its record, its delivery attempt,
// and the record of the answer.

// trace waits until the request to an agent and its answer have spans, and gives the
// spans of their trace.
func (f *five) trace(spans *tracetest.SpanRecorder, to string) []sdk.ReadOnlySpan {
	f.t.Helper()
	find := func(name, kind string) sdk.ReadOnlySpan {
		for _, s := range spans.Ended() {
			at := "parley.to"
			if kind != "request" {
				at = "parley.from"
			}
			if s.Name() == name && attributeOf(s, "parley.kind") == kind && attributeOf(s, at) == to {
				return s
			}
		}
		return nil
	}
	f.until("the answer of "+to+" is in a span", func() bool { return find("record", "request") != nil })
	id := find("record", "request").SpanContext().TraceID()
	var out []sdk.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.SpanContext().TraceID() == id {
			out = append(out, s)
		}
		// Every span about the request is in its trace; notices of the same conversation
		// belong to no request.
		if c := attributeOf(s, "messaging.message.conversation_id"); c != "" &&
			c == attributeOf(find("record", "request"), "messaging.message.conversation_id") &&
			s.SpanContext().TraceID() != id && attributeOf(s, "parley.kind") != "notice" {
			f.t.Errorf("span %s %s of %s is in another trace", s.Name(), attributeOf(s, "parley.kind"),
				attributeOf(s, "parley.from"))
		}
	}
	return out
}

func names(list []sdk.ReadOnlySpan) []string {
	var out []string
	for _, s := range list {
		out = append(out, s.Name())
	}
	slices.Sort(out)
	return out
}

// wholeTrace waits until the spans of the request to an agent have ended, some of them after
// the answer, and gives the whole trace.
func (f *five) wholeTrace(spans *tracetest.SpanRecorder, to string, want ...string) []sdk.ReadOnlySpan {
	f.t.Helper()
	var list []sdk.ReadOnlySpan
	f.until("all spans have ended", func() bool {
		list = f.trace(spans, to)
		return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(names(list), w) })
	})
	return list
}

func fiveTraced(t *testing.T) (*five, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	c := fiveConfig()
	c.spans = spans
	return newFive(t, c), spans
}

func skills(ids ...string) func(*parley.Agent) {
	return func(a *parley.Agent) {
		a.Exposed = parley.Everywhere
		for _, id := range ids {
			a.Skills = append(a.Skills, parley.SkillSpec{ID: id, Default: true})
		}
	}
}

func TestTraceFromSAMVADToUAgents(t *testing.T) {
	f, spans := fiveTraced(t)
	id, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	var sent http.Header
	s := &uagents.Server{Resolve: uagents.Serve(&uagents.Agent{Address: id.Address(), Identity: id,
		Handler: func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
			sent = r.Header
			return uagents.Answer(uagents.ModelOf[question]().Message(question{"well"})), nil
		}})}
	h := httptest.NewServer(s)
	defer h.Close()
	f.put("bob", parley.Identity{Protocol: "uagents", ID: id.Address(), URL: h.URL + "/submit"}, skills("chat"))
	const trace = "0af7651916cd43dd8448eb211c80319c"
	// A client with tracing has a trace header too; without one, the span of the HTTP
	// request is linked.
	_, err = f.samvad.Ask(t.Context(), samvad.Call{URL: f.at("bob", "samvad"),
		Skill: "chat", Payload: []byte(`{"text":"how are you?"}`),
		TraceID: trace, SpanID: "b7ad6b7169203331", Header: http.Header{"Traceparent": {foreign}}})
	if err != nil {
		t.Fatal(err)
	}
	list := f.wholeTrace(spans, "bob", "receive POST", "record", "deliver uagents")
	for _, s := range list {
		if s.SpanContext().TraceID().String() != trace {
			t.Errorf("%s is in %s", s.Name(), s.SpanContext().TraceID())
		}
		if s.Name() != "receive POST" && attributeOf(s, "samvad.traceId") != trace {
			t.Errorf("%s does not bear the protocol's own id: %v", s.Name(), s.Attributes())
		}
	}
	if p := sent.Get("Parley-Provenance"); p == "" {
		t.Errorf("%v", sent)
	}
}

func TestTraceFromUAgentsToA2E(t *testing.T) {
	f, spans := fiveTraced(t)
	const token = "token-of-bob-0123456789abcdef"
	f.put("bob", parley.Identity{Protocol: "a2e", ID: a2ebridge.TokenID(token)}, skills("talk"))
	bob := &a2e.Client{URL: f.Addresses().A2E, Token: token}
	defer bob.Close()
	done := make(chan error, 1)
	go func() {
		var seen struct{ ID string }
		_, err := bob.CallTool(t.Context(), "parley_inbox", map[string]any{"max": 1}, func(e a2e.Event) {
			if err := json.Unmarshal(e.Data, &seen); err != nil {
				t.Error(err)
			}
		})
		if err == nil {
			_, err = bob.CallTool(t.Context(), "parley_reply", map[string]any{"id": seen.ID, "content": "well"}, nil)
		}
		done <- err
	}()
	if _, err := f.uagents.Ask(t.Context(), f.at("bob", "uagents"),
		uagents.ModelOf[question]().Message(question{"how are you?"})); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	list := f.wholeTrace(spans, "bob", "record", "deliver a2e")
	session := ""
	for _, s := range list {
		if s.Name() == "record" && attributeOf(s, "parley.kind") == "request" {
			session = attributeOf(s, "uagents.session")
		}
	}
	if session == "" {
		t.Error("the session of the envelope is in no span")
	}
}

func TestTraceFromASPToAGH(t *testing.T) {
	f, spans := fiveTraced(t)
	f.peer("bob", func(ctx context.Context, r *agh.Request) {
		if r.Envelope.WorkID == "" {
			return
		}
		if err := r.Trace(ctx, &agh.Trace{State: agh.StateCompleted, Result: json.RawMessage(`{"n":1}`)}); err != nil {
			t.Error(err)
		}
	})
	e, ok := f.Hub().Directory().Lookup("agh", "acme/bob")
	if !ok {
		t.Fatal("bob is not in the directory")
	}
	if err := f.Hub().Directory().Expose(t.Context(), e.Name, parley.Everywhere); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var s *asp.Session
	for look := time.NewTicker(10 * time.Millisecond); s == nil; <-look.C { // the hub makes the stand-in in the background
		var err error
		s, err = f.asp.Open(ctx, asp.Invitation{To: []string{f.at(e.Name, "asp")}, Purpose: "to test"})
		if err != nil && !errors.Is(err, &asp.Error{Code: "agent_not_found"}) {
			t.Fatal(err)
		}
	}
	introduced(ctx, t, s)
	m, err := s.Ask(ctx, asp.Question{QueryType: "say", Parameters: map[string]any{"text": "how are you?"}})
	if err != nil || m.Performative != asp.Inform {
		t.Fatalf("%+v, %v", m, err)
	}
	list := f.wholeTrace(spans, e.Name, "record", "deliver agh", "deliver asp")
	found := false
	for _, s := range list {
		found = found || attributeOf(s, "asp.session") != "" || attributeOf(s, "asp.sessionId") != ""
	}
	if !found {
		t.Error("the session is in no span")
	}
}
