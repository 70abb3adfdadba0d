package a2e_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// The event of a question names the request, and parley_send adds to it: by that name, or
// by the id of the agent's call. Other agents and ended calls are refused.
func TestInputToACall(t *testing.T) {
	w := newWorld(t, node.Config{})
	if err := w.Handle(parley.Agent{Name: "booker", Exposed: parley.Everywhere},
		parley.Skill("book", func(ctx context.Context, _ *parley.Message, q struct {
			Text string `json:"text"`
		}) (string, error) {
			for _, ask := range []string{"where to?", "when?"} {
				m, err := parley.NeedInput(ctx, ask)
				if err != nil {
					return "", err
				}
				q.Text += " " + m.Text()
			}
			return q.Text, nil
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	alice, mallory := w.http(tokenAlice), w.http(tokenBob)
	type event struct {
		Message, State string
		About          string `json:"in_reply_to"`
		call           string
	}
	events := make(chan event)
	var result protocol.ToolResult
	var failed error
	go func() {
		defer close(events)
		result, failed = alice.CallTool(t.Context(), "booker__book", map[string]string{"text": "a trip"},
			func(e protocol.Event) {
				var x event
				if err := json.Unmarshal(e.Data, &x); err != nil {
					t.Error(err)
				}
				x.call = e.Str("req_id")
				events <- x
			})
	}()
	add := func(c *protocol.Client, about, content string) error {
		_, err := c.CallTool(t.Context(), "parley_send",
			map[string]any{"agent": "booker", "in_reply_to": about, "content": content}, nil)
		return err
	}
	var last event
	for e := range events {
		if e.State != "needs-input" || e.About == "" {
			t.Fatalf("%+v", e)
		}
		last = e
		if err := add(mallory, e.About, "Rome"); err == nil {
			t.Error("another agent added to the call")
		}
		about, content := e.About, "to Bern"
		if e.Message == "when?" {
			about, content = e.call, "on Monday"
		}
		if err := add(alice, about, content); err != nil {
			t.Fatal(err)
		}
	}
	if failed != nil || data(t, result) != `{"text":"a trip to Bern on Monday"}` {
		t.Fatalf("%s, %v", data(t, result), failed)
	}
	for _, about := range []string{last.About, last.call, "none"} {
		code, ref := codeOf(add(alice, about, "too late"))
		if code != protocol.ToolError || ref == "" {
			t.Errorf("after the answer: %s %q", code, ref)
		}
	}
}

// An input needs no skill: it is for the skill that the open call named, also where the agent
// has no default one. The id of that call may look like one of the hub's.
func TestInputNamesTheCallOnly(t *testing.T) {
	w := newWorld(t, node.Config{})
	ask := func(ctx context.Context, _ *parley.Message, _ struct{}) (string, error) {
		m, err := parley.NeedInput(ctx, "where to?")
		if err != nil {
			return "", err
		}
		return m.Text(), nil
	}
	if err := w.Handle(parley.Agent{Name: "booker", Exposed: parley.Everywhere}, parley.Skill("book", ask),
		parley.Skill("cancel", ask)); err != nil {
		t.Fatal(err)
	}
	alice := w.http(tokenAlice)
	const id = "0b6e3a52-7d1c-4f7e-9a54-2f1f0f6c8d11"
	for e, err := range alice.Stream(t.Context(), protocol.Message{ID: id, Type: "tool/call/req", Body: map[string]any{
		"session_id": alice.SessionID(), "tool_name": "booker__cancel", "arguments": map[string]any{},
		"streaming": true}}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Final {
			if !strings.Contains(string(e.Data), `"data":{"text":"Bern"}`) {
				t.Errorf("%s", e.Data)
			}
			continue
		}
		if _, err := alice.CallTool(t.Context(), "parley_send",
			map[string]any{"agent": "booker", "in_reply_to": id, "content": "Bern"}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// Another session of the agent may add to the call by an id of its own that the call has too:
// ids count within a session.
func TestInputFromAnotherSession(t *testing.T) {
	w := newWorld(t, node.Config{})
	if err := w.Handle(parley.Agent{Name: "booker", Exposed: parley.Everywhere},
		parley.Skill("book", func(ctx context.Context, _ *parley.Message, _ struct{}) (string, error) {
			m, err := parley.NeedInput(ctx, "where to?")
			if err != nil {
				return "", err
			}
			return m.Text(), nil
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	one, two := w.http(tokenAlice), w.http(tokenAlice)
	call := func(c *protocol.Client, tool string, arguments any, streaming bool) protocol.Message {
		if err := c.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		return protocol.Message{ID: "1", Type: "tool/call/req", Body: map[string]any{"session_id": c.SessionID(),
			"tool_name": tool, "arguments": arguments, "streaming": streaming}}
	}
	for e, err := range one.Stream(t.Context(), call(one, "booker", struct{}{}, true)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Final {
			return
		}
		var q struct {
			About parley.ID `json:"in_reply_to"`
		}
		if err := json.Unmarshal(e.Data, &q); err != nil {
			t.Fatal(err)
		}
		sent, err := two.Ask(t.Context(), call(two, "parley_send",
			map[string]any{"agent": "booker", "in_reply_to": q.About, "content": "Bern"}, false))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(sent.Get("data")), q.About.String()) {
			t.Fatalf("taken for the call itself: %s", sent.Get("data"))
		}
	}
}

// An input is an event of parley_inbox that names its request.
func TestInputInTheInbox(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.http(tokenBob)
	m := &parley.Message{Kind: parley.Request, From: "crew/echo", To: "bob", Parts: []parley.Part{parley.Text("a trip")},
		Origin: parley.Origin{Protocol: "go", Peer: "crew/echo"}}
	request, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go test", Message: m})
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		ID, Kind, Content string
		About             string `json:"in_reply_to"`
		Number            int
	}
	next := func() message {
		t.Helper()
		r, err := bob.CallTool(t.Context(), "parley_inbox", map[string]any{"max": 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var d struct{ Messages []message }
		if err := json.Unmarshal([]byte(data(t, r)), &d); err != nil || len(d.Messages) != 1 {
			t.Fatalf("%s, %v", data(t, r), err)
		}
		return d.Messages[0]
	}
	if got := next(); got.ID != request.ID.String() || got.Kind != "request" {
		t.Fatalf("%+v", got)
	}
	if _, err := bob.CallTool(t.Context(), "parley_reply",
		map[string]any{"id": request.ID, "state": "needs-input", "content": "where to?"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Hub().Accept(t.Context(), hub.Submission{Message: &parley.Message{Kind: parley.Input,
		From: "crew/echo", To: "bob", InReplyTo: request.ID, Parts: []parley.Part{parley.Text("Bern")},
		Origin: parley.Origin{Protocol: "go", Peer: "crew/echo"}}}); err != nil {
		t.Fatal(err)
	}
	if got := next(); got.Kind != "input" || got.About != request.ID.String() || got.Content != "Bern" || got.Number != 1 {
		t.Fatalf("%+v", got)
	}
	if _, err := bob.CallTool(t.Context(), "parley_reply",
		map[string]any{"id": request.ID, "content": "booked"}, nil); err != nil {
		t.Fatal(err)
	}
}
