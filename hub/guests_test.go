package hub

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// say makes a message of a sender in a protocol.
func say(from, key string, content []byte, refused *parley.Error) Submission {
	return Submission{Scope: "wire echo", Key: journal.Key{ID: key, Sender: from, Until: time.Now().Add(time.Hour)},
		Refused: refused,
		Message: &parley.Message{Kind: parley.Notice, From: from,
			To: "echo", Parts: []parley.Part{{MediaType: "text/plain", Data: content}},
			Origin: parley.Origin{Protocol: "wire", Peer: from, Raw: bytes.Clone(content),
				Verdict: parley.Verdict{Assurance: parley.Signed}}}}
}

// recordOf finds the record of a key.
func recordOf(t *testing.T, h *Hub, key string) *journal.Record {
	t.Helper()
	prior, ok := h.c.Journal.Seen("wire echo", key)
	if !ok {
		t.Fatalf("nothing is recorded under %q", key)
	}
	r, err := h.c.Journal.Read(t.Context(), prior.Position)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The record of a refused guest's message identifies it and holds no content;
// that of an enrolled sender's message does.
func TestRefusedGuestLeavesNoContent(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	h.agent(t, "enrolled", parley.Identity{Protocol: "wire", ID: "enrolled"})
	if _, err := h.Directory().Put(t.Context(), parley.Agent{Name: "guest/wire/registered"},
		directory.FromGuest); err != nil {
		t.Fatal(err)
	}
	content := []byte(strings.Repeat("content ", 1000))
	refusal := parley.Refuse(parley.InvalidContent, "it does not fit")
	for from, guest := range map[string]bool{"enrolled": false, "guest/wire/registered": true,
		"guest/wire/unknown": true} {
		if _, err := h.Accept(t.Context(), say(from, from, content,
			refusal)); parley.CodeOf(err) != parley.InvalidContent {
			t.Fatalf("%s: %v", from, err)
		}
		r := recordOf(t, h, from)
		m := r.Message
		if kept := len(m.Parts) > 0 || len(m.Origin.Raw) > 0; kept == guest {
			t.Errorf("%s: content is recorded: %v", from, kept)
		}
		if guest && !strings.Contains(string(m.Extensions["parley"]), `"size":8000`) {
			t.Errorf("%s: %s", from, m.Extensions["parley"])
		}
		if m.From != from || r.Refused == nil || r.Refused.Code != parley.InvalidContent {
			t.Errorf("%s: recorded as %q, %v", from, m.From, r.Refused)
		}
		// A repetition gets the same refusal.
		var prior *Prior
		_, err := h.Accept(t.Context(), say(from, from, content, refusal))
		if !errors.As(err, &prior) || prior.Refused == nil || prior.Refused.Code != parley.InvalidContent ||
			prior.Refused.Text != refusal.Text {
			t.Errorf("%s, again: %v", from, err)
		}
	}
}

// When the guests' budget is used up, guests get the error to try later, and none of
// their messages is recorded; enrolled senders and handlers notice nothing.
func TestGuestsShareTheDisk(t *testing.T) {
	h := start(t, func(c *Config) { c.Guests = policy.NewGuests(policy.GuestConfig{Disk: 120 << 14}) })
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	h.agent(t, "enrolled", parley.Identity{Protocol: "wire", ID: "enrolled"})
	content := make([]byte, 1<<10)
	var err error
	taken := 0
	for ; err == nil; taken++ {
		_, err = h.Accept(t.Context(), say("guest/wire/one", "one "+string(rune('a'+taken)), content, nil))
	}
	e := parley.AsError(err)
	if e.Code != parley.RateLimited || !e.Retryable || e.After <= 0 || taken < 2 || taken > 8 {
		t.Fatalf("after %d messages: %v", taken, err)
	}
	open := journal.Filter{States: []parley.DeliveryState{parley.Waiting, parley.Delivering}}
	for len(h.c.Journal.Deliveries(open)) > 0 { // accepted messages make records of their own
		wait(t, h)
	}
	before := h.c.Journal.Stats().Partitions[0].Records
	for _, refused := range []*parley.Error{nil, parley.Refuse(parley.InvalidContent, "it does not fit")} {
		if _, err := h.Accept(t.Context(), say("guest/wire/two", "two", content, refused)); err == nil {
			t.Error("a guest was taken over the budget")
		} else if refused != nil && parley.CodeOf(err) != refused.Code {
			t.Errorf("the refusal became %v", err)
		}
	}
	if n := h.c.Journal.Stats().Partitions[0].Records; n != before {
		t.Errorf("%d records were made for guests over the budget", n-before)
	}
	if _, err := h.Accept(t.Context(), say("enrolled", "enrolled", content, nil)); err != nil {
		t.Errorf("an enrolled sender: %v", err)
	}
	vouched := say("guest/wire/three", "three", content, nil)
	vouched.Vouched = true
	if _, err := h.Accept(t.Context(), vouched); err != nil {
		t.Errorf("a sender whose connection the operator configured: %v", err)
	}
	if _, err := h.Ask(t.Context(), ask("echo", "", "hello")); err != nil {
		t.Errorf("the operator: %v", err)
	}
}

// What a guest adds to its request is charged to the guests' budget.
func TestInputsOfGuestsAreCharged(t *testing.T) {
	w := &wire{name: "wire", deliver: func(context.Context, Outbound) Outcome { return Outcome{} }}
	h := start(t, func(c *Config) { c.Guests = policy.NewGuests(policy.GuestConfig{Disk: 120 << 14}) }, w)
	h.agent(t, "far", parley.Identity{Protocol: "wire", ID: "far"})
	first := say("guest/wire/one", "request", make([]byte, 1), nil)
	first.Message.Kind, first.Message.To = parley.Request, "far"
	request, err := h.Accept(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for ; err == nil && taken < 20; taken++ {
		more := say("guest/wire/one", "more "+string(rune('a'+taken)), make([]byte, 1<<10), nil)
		more.Message.Kind, more.Message.To, more.Message.InReplyTo = parley.Input, "far", request.ID
		_, err = h.Accept(t.Context(), more)
	}
	if e := parley.AsError(err); err == nil || e.Code != parley.RateLimited || !e.Retryable {
		t.Errorf("after %d inputs: %v", taken, err)
	}
}

// A message of an enrolled sender vouches for its connection.
func TestMessagesVouch(t *testing.T) {
	h := start(t, nil)
	if err := h.Handle(echo("echo")); err != nil {
		t.Fatal(err)
	}
	h.agent(t, "enrolled", parley.Identity{Protocol: "wire", ID: "enrolled"})
	for from, want := range map[string]bool{"enrolled": true, "guest/wire/one": false} {
		c := policy.NewCaller("192.0.2.1", nil)
		if _, err := h.Accept(policy.WithCaller(t.Context(), c), say(from, from, []byte("hello"), nil)); err != nil {
			t.Fatal(err)
		}
		if c.Vouched() != want {
			t.Errorf("%s: vouched for: %v", from, c.Vouched())
		}
	}
}
