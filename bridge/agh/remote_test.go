package agh_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/directory"
)

// A peer at one hub gets the greeting of an agent that only another hub on the
// journal hosts, finds the agent by a whois, and gives it work. The other hub records
// the work once, with the peer as requester, and refuses unsuitable requests.
func TestAgentsOfOtherHubs(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	alice := one.bare("ta", "alice")
	two.here("acme", "alice")
	if err := two.Handle(parley.Agent{Name: "far", Title: "Far", Exposed: []string{"agh"}},
		parley.Skill("locate", func(_ context.Context, m *parley.Message, q query) (string, error) {
			if m.From != "guest/agh/acme/alice" || m.Origin.Verdict.KeyID != "nats user alice" {
				t.Errorf("asked by %s, %+v", m.From, m.Origin.Verdict)
			}
			return q.City + " is far", nil
		})); err != nil {
		t.Fatal(err)
	}
	if _, ok := one.Hub().Directory().Agent("far"); ok {
		t.Fatal("the first hub knows the agent: the test says nothing")
	}
	hear := func(what string, meant func(*agh.Envelope) bool) *agh.Envelope {
		t.Helper()
		for {
			select {
			case m := <-alice.got:
				if e, err := agh.Decode(m.Data); err == nil && meant(e) {
					return e
				}
			case <-ctx.Done():
				t.Fatalf("alice received no %s", what)
			}
		}
	}
	two.until("the second hub dispatches", func() bool {
		j := two.Hub().Journal()
		return j.Owned(0) || j.Owned(1)
	})
	greet := hear("greeting", func(e *agh.Envelope) bool { return e.Kind == agh.KindGreet && e.From == "far" })
	if c := greet.Content().(*agh.Greet).Card; c.DisplayName != "Far" {
		t.Errorf("%s", greet.Raw())
	}

	for _, q := range []struct{ to, query string }{{"", "far"}, {"far", ""}, {"", "crew__weather"}} {
		e := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", From: "alice", To: q.to,
			TS: time.Now().Unix()}
		subject, raw := written(t, e, &agh.Whois{Type: agh.WhoisRequest, Query: q.query})
		m, err := alice.nc.RequestWithContext(ctx, subject, raw)
		if err != nil {
			t.Fatalf("whois %+v: %v", q, err)
		}
		if a, err := agh.Decode(m.Data); err != nil || a.From != q.to+q.query || a.ReplyTo != e.ID {
			t.Errorf("whois %+v: %s, %v", q, m.Data, err)
		}
	}

	work := &agh.Envelope{Surface: agh.SurfaceThread, ThreadID: "thread_far", From: "alice", To: "far",
		WorkID: agh.NewWorkID()}
	alice.publish(t, work, &agh.Say{Text: "Bern"})
	subject, again := written(t, work, &agh.Say{Text: "Bern"})
	ofWork := func(e *agh.Envelope) bool { return e.WorkID == work.WorkID }
	for _, want := range []string{"receipt accepted", "say Bern is far", "trace completed"} {
		e := hear(want, ofWork)
		if got := summary(e); got != want || e.From != "far" {
			t.Errorf("received %s of %s, want %s", got, e.From, want)
		}
	}
	// The same message again is a duplicate, and the work is closed for a new message.
	if err := alice.nc.Publish(subject, again); err != nil {
		t.Fatal(err)
	}
	if got := summary(hear("receipt", ofWork)); got != "receipt duplicate" {
		t.Errorf("again: %s", got)
	}
	alice.publish(t, work, &agh.Say{Text: "Basel"})
	if got := summary(hear("receipt", ofWork)); got != "receipt rejected" {
		t.Errorf("more for closed work: %s", got)
	}
	// The hub that hosts the agent refuses unsuitable content.
	work.WorkID = agh.NewWorkID()
	alice.publish(t, work, &agh.Say{Text: `{"town":"Bern"}`})
	e := hear("refusal", ofWork)
	if reason, detail, code := rejected(t, e, work); reason != agh.ReasonMalformed ||
		code != string(parley.InvalidContent) || !strings.Contains(detail, "expected {") {
		t.Errorf("%s, %s, %s", reason, detail, code)
	}
	if n, m := len(two.messages(parley.Request)), len(one.messages(parley.Response)); n != 1 || m > 1 {
		t.Errorf("%d requests and %d responses are recorded", n, m)
	}
	if e, ok := two.Hub().Directory().Lookup("agh", "acme/alice"); !ok || e.Source != directory.FromAgent {
		t.Errorf("the requester is %+v at the other hub", e)
	}
}

// summary gives a short text for a message of a conversation.
func summary(e *agh.Envelope) string {
	switch c := e.Content().(type) {
	case *agh.Say:
		return "say " + c.Text
	case *agh.Trace:
		return "trace " + string(c.State)
	case *agh.Receipt:
		return "receipt " + string(c.Status)
	}
	return string(e.Kind)
}
