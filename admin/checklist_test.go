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
