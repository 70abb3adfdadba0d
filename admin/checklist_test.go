package admin

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// step gives a step of a checklist.
func (v *Checklist) step(name ConnectStepName) ConnectStep {
	return v.Steps[slices.IndexFunc(v.Steps, func(s ConnectStep) bool { return s.Step == name })]
}

// until waits for a checklist that fits.
func (b *bench) until(name string, fits func(*Checklist) bool) Checklist {
	b.t.Helper()
	for {
		changed := b.admin.ChecklistsChanged()
		v, err := b.as(observerToken).Checklist(b.t.Context(), name)
		if err != nil {
			b.t.Fatal(err)
		}
		if fits(&v) {
			return v
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			b.t.Fatalf("%+v", v)
		}
	}
}

// TestChecklist: the steps turn while the hub looks again, a refused message is the reason of the sixth, and an answer
// ends the list.
func TestChecklist(t *testing.T) {
	found := make(chan []DoctorStep, 1)
	now := time.Unix(1_800_000_000, 0)
	b := open(t, func(c *Config) {
		c.Workbench.Doctor = func(ctx context.Context, _ Actor, _ string) []DoctorStep {
			select {
			case s := <-found:
				return s
			case <-ctx.Done():
				return nil
			}
		}
	})
	b.admin.checks.every = time.Microsecond
	finding := func(check string, state hub.FindingState, fix string) DoctorStep {
		return DoctorStep{Finding: hub.Finding{Check: check, State: state, Fix: fix, Detail: "x"}, Micros: 7}
	}
	v, err := b.client.Connect(t.Context(), NewAgent{Name: "box", Inbox: true,
		Identities: []NewIdentity{{Protocol: "samvad", ID: "agent://box.test", URL: "http://box.test"}}})
	if err != nil || len(v.Steps) != 7 || v.State != StepWaiting || v.step(StepProtocol).State != StepDone ||
		v.step(StepReached).State != StepWaiting {
		t.Fatalf("%+v, %v", v, err)
	}
	reached := finding("TCP", hub.FindingOK, "")
	found <- []DoctorStep{reached, finding("card", hub.FindingOK, ""), finding("signed round trip", hub.FindingFailed,
		"trust the hub")}
	v = b.until("box", func(v *Checklist) bool { return v.step(StepHubKey).State == StepFailed })
	if v.step(StepHubKey).Fix != "trust the hub" || v.step(StepReached).State != StepDone ||
		v.step(StepReached).Micros != 7 || v.State != StepFailed || v.step(StepFirstMessage).State != StepWaiting {
		t.Errorf("%+v", v)
	}
	found <- []DoctorStep{reached, finding("signed round trip", hub.FindingOK, "")}
	v = b.until("box", func(v *Checklist) bool { return v.step(StepHubKey).State == StepDone })
	if v.step(StepCard).State != StepNotNeeded || v.State != StepWaiting {
		t.Errorf("%+v", v)
	}

	ref := b.hub.Refuse(hub.Refusal{Protocol: "samvad", Claim: "agent://box.test", Step: "signature",
		Code: parley.Unauthenticated, Text: marker})
	v = b.until("box", func(v *Checklist) bool { return v.step(StepFirstMessage).State == StepFailed })
	if s := v.step(StepFirstMessage); s.Ref != ref || v.State != StepFailed {
		t.Errorf("%+v", s)
	}

	r, err := b.client.Send(t.Context(), Send{To: "box", Text: text("hello")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Send(t.Context(), Send{From: "box", InReplyTo: r.ID.String(), Text: text("hi")}); err != nil {
		t.Fatal(err)
	}
	v = b.until("box", func(v *Checklist) bool { return v.step(StepAnswered).State == StepDone })
	if v.State != StepDone || v.step(StepFirstMessage).State != StepDone {
		t.Errorf("%+v", v)
	}

	late := Checklist{Ends: now, Steps: []ConnectStep{{State: StepDone}, {State: StepWaiting}}}
	if late.conclude(now); late.State != StepGaveUp || late.Steps[1].State != StepGaveUp {
		t.Errorf("an hour later: %+v", late)
	}
	if err := b.client.RemoveAgent(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	_, err = b.client.Checklist(t.Context(), "box")
	code(t, err, notFound)
}

// TestChecklistsAreBounded: the hub refuses a further one before it adds the agent.
func TestChecklistsAreBounded(t *testing.T) {
	b := open(t, nil)
	for i := range maxChecklists {
		if _, err := b.client.Connect(t.Context(), NewAgent{Name: fmt.Sprintf("box-%d", i), Inbox: true}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.client.Connect(t.Context(), NewAgent{Name: "more", Inbox: true})
	code(t, err, parley.Unavailable)
	if _, err := b.client.Agent(t.Context(), "more", 0); parley.CodeOf(err) != parley.UnknownAgent {
		t.Errorf("it was added: %v", err)
	}
	list, err := b.as(observerToken).Checklists(t.Context())
	if err != nil || len(list) != maxChecklists {
		t.Errorf("%d, %v", len(list), err)
	}
	_, err = b.as(operatorToken).Connect(t.Context(), NewAgent{Name: "box-1", Inbox: true})
	code(t, err, parley.Forbidden)
}

// TestChecklistIsResumed: after a restart the lists of the last hour go on, with what the agents said before. Those of
// agents that are gone, and of agents that were only added, do not.
func TestChecklistIsResumed(t *testing.T) {
	b := open(t, nil)
	now := time.Now() // the journal has no other clock
	b.admin.c.Now = func() time.Time { return now }
	old := now
	now = now.Add(-checklistHours)
	for _, name := range []string{"early", "box", "gone"} {
		if _, err := b.client.Connect(t.Context(), NewAgent{Name: name, Inbox: true}); err != nil {
			t.Fatal(err)
		}
		now = old
	}
	if _, err := b.client.AddAgent(t.Context(), NewAgent{Name: "added", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.client.RemoveAgent(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	r, err := b.client.Send(t.Context(), Send{To: "box", Text: text("hello")})
	if err == nil {
		_, err = b.client.Send(t.Context(), Send{From: "box", InReplyTo: r.ID.String(), Text: text("hi")})
	}
	if err != nil {
		t.Fatal(err)
	}
	before := b.until("box", func(v *Checklist) bool { return v.step(StepAnswered).State == StepDone })

	now = now.Add(time.Minute)
	again, err := New(b.admin.c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.EndStreams)
	again.ResumeChecklists()
	by := Actor{Name: "test", Role: Observe}
	list, err := again.Checklists(by)
	if err != nil || len(list) != 1 || list[0].Agent != "box" || !list[0].Begun.Equal(before.Begun) {
		t.Fatalf("%+v, %v", list, err)
	}
	v := list[0]
	for v.step(StepAnswered).State != StepDone {
		was := v.Version
		if v, err = again.NextChecklist(t.Context(), by, "box", was, 20*time.Second); err != nil || v.Version == was {
			t.Fatalf("nothing turns: %+v, %v", v, err)
		}
	}
	if s, was := v.step(StepFirstMessage), before.step(StepFirstMessage); s.State != StepDone || !s.Time.Equal(was.Time) {
		t.Errorf("%+v, before %+v", s, was)
	}
	if s, was := v.step(StepAnswered), before.step(StepAnswered); !s.Time.Equal(was.Time) {
		t.Errorf("%+v, before %+v", s, was)
	}
}

// TestNextChecklist: whoever waits for a list is told when a step turns, and of a refused message too.
func TestNextChecklist(t *testing.T) {
	b := open(t, nil)
	v, err := b.client.Connect(t.Context(), NewAgent{Name: "box", Identities: []NewIdentity{{Protocol: "samvad",
		ID: "agent://box.test"}}})
	if err != nil {
		t.Fatal(err)
	}
	same, err := b.client.NextChecklist(t.Context(), "box", v.Version, time.Millisecond)
	if err != nil || same.Version != v.Version {
		t.Errorf("%+v, %v", same, err)
	}
	b.hub.Refuse(hub.Refusal{Protocol: "samvad", Claim: "agent://box.test", Step: "signature",
		Code: parley.Unauthenticated})
	next, err := b.client.NextChecklist(t.Context(), "box", v.Version, time.Minute)
	if err != nil || next.Version == v.Version || next.step(StepFirstMessage).State != StepFailed {
		t.Errorf("%+v, %v", next, err)
	}
}

// TestPreviewAgent: the reading is refused where the agent would be; the lines to paste are those of the list.
func TestPreviewAgent(t *testing.T) {
	lines := []Paste{{Why: "so that it trusts the hub", SDK: "Go", Line: "trust()"}}
	b := open(t, func(c *Config) {
		c.Workbench.Read = func(_ context.Context, n NewAgent) (AgentReading, error) {
			if n.Identities[0].ID = "agent://box.test"; n.Name == "twisted" {
				n.Skills = []Skill{{}}
			}
			n.Title = "Box"
			return AgentReading{Agent: n, Notes: []string{"its card was read"}}, nil
		}
		c.Workbench.Paste = func(string, []Identity) []Paste { return lines }
	})
	n := NewAgent{Name: "box", Identities: []NewIdentity{{Protocol: "samvad", URL: "http://box.test"}}}
	r, err := b.client.PreviewAgent(t.Context(), n)
	if err != nil || r.Agent.Title != "Box" || r.Agent.Identities[0].ID != "agent://box.test" || len(r.Notes) != 1 ||
		!slices.Equal(r.Paste, lines) {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := b.client.Agent(t.Context(), "box", 0); parley.CodeOf(err) != parley.UnknownAgent {
		t.Errorf("it was added: %v", err)
	}
	if v, err := b.client.Connect(t.Context(), r.Agent); err != nil || !slices.Equal(v.Paste, lines) {
		t.Errorf("%+v, %v", v, err)
	}
	n.Name = "twisted"
	_, err = b.client.PreviewAgent(t.Context(), n)
	code(t, err, parley.Malformed)
	n.Name = "Bad Name"
	_, err = b.client.PreviewAgent(t.Context(), n)
	code(t, err, parley.Malformed)
	_, err = b.as(operatorToken).PreviewAgent(t.Context(), n)
	code(t, err, parley.Forbidden)
}
