package node

import (
	"context"
	"slices"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// planning starts a hub whose agent "planner" asks "weather", which calls "planner" back.
func planning(t *testing.T, c Config) *Node {
	t.Helper()
	n, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	plan := func(ctx context.Context, m *parley.Message, city string) (string, error) {
		return parley.Ask[string](ctx, "weather", "forecast", city)
	}
	home := func(context.Context, *parley.Message, string) (string, error) { return "Bern", nil }
	forecast := func(ctx context.Context, m *parley.Message, city string) (string, error) {
		from, err := parley.Ask[string](ctx, m.From, "home", "where are you?")
		return "fine from " + from + " to " + city, err
	}
	if err := n.Handle(parley.Agent{Name: "planner"}, parley.Skill("plan", plan), parley.Skill("home", home)); err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "weather"}, parley.Skill("forecast", forecast)); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCallsAreRecorded: what handlers ask each other is in the journal, with the conversation, trace and hops of
// the request that they work on.
func TestCallsAreRecorded(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	c := Config{Data: t.TempDir(), Agents: map[string]Agent{"ann": {}}, spans: spans}
	n := planning(t, c)
	text, err := parley.Ask[string](n.As(t.Context(), "ann"), "planner", "plan", "Basel")
	if err != nil || text != "fine from Bern to Basel" {
		t.Fatalf("%q, %v", text, err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	c.spans = nil
	if n, err = Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	defer n.Close(t.Context())
	var requests, replies []*parley.Message
	for r, err := range n.Hub().Journal().Records(t.Context(), 0, journal.From{}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case r.Message == nil:
		case r.Message.Kind == parley.Request:
			requests = append(requests, r.Message)
		case r.Message.Kind == parley.Response:
			replies = append(replies, r.Message)
		}
	}
	if len(requests) != 3 || len(replies) != 3 {
		t.Fatalf("%d requests, %d replies", len(requests), len(replies))
	}
	first := requests[0]
	for i, want := range []struct{ from, to, skill string }{{"ann", "planner", "plan"},
		{"planner", "weather", "forecast"}, {"weather", "planner", "home"}} {
		m := requests[i]
		if m.From != want.from || m.To != want.to || m.Skill != want.skill || m.Conversation != first.Conversation ||
			!slices.Equal(m.Hops, slices.Repeat([]string{n.Hub().ID()}, i+1)) || m.Origin.Protocol != "go" ||
			m.Origin.Verdict.Assurance != parley.Session || m.Trace.Parent[:35] != first.Trace.Parent[:35] ||
			!m.Deadline.Equal(first.Deadline) {
			t.Errorf("request %d: %+v", i, m)
		}
	}
	// The spans form one tree: record, handle, record, handle, …
	at := map[string]sdk.ReadOnlySpan{}
	for _, s := range spans.Ended() {
		at[s.Name()+" "+attributeOf(s, "parley.kind")+" "+attributeOf(s, "parley.skill")] = s
	}
	for _, pair := range [][2]string{{"record request plan", "handle request plan"},
		{"handle request plan", "record request forecast"}, {"record request forecast", "handle request forecast"},
		{"handle request forecast", "record request home"}} {
		above, below := at[pair[0]], at[pair[1]]
		if above == nil || below == nil || below.Parent().SpanID() != above.SpanContext().SpanID() {
			t.Errorf("%q is not below %q", pair[1], pair[0])
		}
	}
}
