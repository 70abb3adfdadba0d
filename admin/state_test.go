package admin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// TestStateOfAgents: an agent that cannot be reached is shown as such wherever it is named, with the reason, since when
// and how often. An observer sees the reason's code only.
func TestStateOfAgents(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	begun := time.Now()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "telex",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	text := "hello"
	say := Send{To: "far", Kind: parley.Notice, Text: &text}
	r, err := b.client.Send(ctx, say)
	if err != nil || r.Recipient != nil {
		t.Fatalf("the first message: %+v, %v", r, err)
	}
	for id := range b.settled {
		if id == r.ID {
			break
		}
	}
	check := func(what string, s *AgentState, err error) {
		t.Helper()
		if err != nil || s == nil || s.State != hub.Unreachable || s.Failures != 3 || s.Since.Before(begun) ||
			s.Reason == nil || s.Reason.Code != parley.Unavailable || s.Reason.Text == "" {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
	}
	one, err := b.client.Agent(ctx, "far", 0)
	check("agent", &one.AgentState, err)
	list, err := b.client.Agents(ctx, AgentFilter{})
	for _, v := range list.Agents {
		switch v.Name {
		case "far":
			check("list of agents", &v.AgentState, err)
		case "weather":
			if v.State != hub.Ready || v.Reason != nil || v.Failures != 0 {
				t.Errorf("an agent that nobody tried: %+v", v.AgentState)
			}
		}
	}
	s, err := b.client.AgentState(ctx, "far")
	check("state", &s, err)
	dead, err := b.client.Dead(ctx, DeadFilter{})
	if len(dead) != 1 {
		t.Fatalf("dead letters: %+v, %v", dead, err)
	}
	check("list of dead letters", dead[0].Recipient, err)
	letter, err := b.client.DeadLetter(ctx, r.ID.String(), "")
	check("dead letter", letter.Recipient, err)
	m, err := b.client.Message(ctx, r.ID.String(), false)
	if len(m.Recipients) != 1 || m.Recipients[0].Name != "far" {
		t.Fatalf("message: %+v, %v", m, err)
	}
	check("message", &m.Recipients[0].AgentState, err)
	again, err := b.client.Send(ctx, say)
	check("receipt", again.Recipient, err)
	if s, err = b.as(observerToken).AgentState(ctx, "far"); err != nil || s.State != hub.Unreachable ||
		s.Reason.Code != parley.Unavailable || s.Reason.Text != "" {
		t.Errorf("an observer sees %+v %+v, %v", s, s.Reason, err)
	}
	if _, err = b.client.Pause(ctx, "weather", true); err != nil {
		t.Fatal(err)
	}
	if r, err = b.client.Send(ctx, Send{To: "weather", Text: &text}); err != nil || r.Recipient == nil ||
		r.Recipient.State != hub.Paused {
		t.Errorf("receipt for a paused agent: %+v, %v", r, err)
	}
	_, err = b.client.AgentState(ctx, "nobody")
	code(t, err, parley.UnknownAgent)
}

// TestDeliveryOfAnAgent: the numbers of an agent replace the hub's, one by one, and outlive a change of the agent.
func TestDeliveryOfAnAgent(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	tries, patience, none := 7, "36h", 0
	yes, no, nothing := true, false, "0s"
	n := NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "telex", ID: "far"}},
		Delivery: &DeliveryChange{Tries: &tries}}
	wants := func(what string, v Agent, err error, want AgentDelivery) {
		t.Helper()
		want.First, want.Longest = "1ms", "1ms"
		if d := cmp.Diff(v.Delivery, &want); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", what, err, d)
		}
	}
	set := AgentDelivery{Tries: 7, Patience: "36h0m0s",
		Own: DeliveryChange{Tries: new(7), Patience: new("36h0m0s"), Ordered: new(false)}}
	v, err := b.client.AddAgent(ctx, n)
	wants("added", v, err, AgentDelivery{Tries: 7, Patience: "24h0m0s", Ordered: true,
		Own: DeliveryChange{Tries: new(7)}})
	v, err = b.client.SetDelivery(ctx, "far", DeliveryChange{Patience: &patience, Ordered: &no})
	wants("set", v, err, set)
	n.Delivery = nil
	v, err = b.client.AddAgent(ctx, n)
	wants("added again", v, err, set)
	v, err = b.client.SetDelivery(ctx, "far", DeliveryChange{Tries: &none, Patience: &nothing, Ordered: &yes})
	wants("set back", v, err, AgentDelivery{Tries: 3, Patience: "24h0m0s", Ordered: true})
	v, err = b.client.Agent(ctx, "weather", 0)
	wants("an agent without numbers", v, err, AgentDelivery{Tries: 3, Patience: "24h0m0s", Ordered: true})

	many, odd, negative := parley.MaxTries+1, "soon", "-1s"
	for _, c := range []DeliveryChange{{Tries: &many}, {Patience: &odd}, {Patience: &negative}} {
		_, err = b.client.SetDelivery(ctx, "far", c)
		code(t, err, parley.Malformed)
		n.Delivery = &c
		_, err = b.client.AddAgent(ctx, n)
		code(t, err, parley.Malformed)
	}
	_, err = b.client.SetDelivery(ctx, "weather", DeliveryChange{Tries: &tries})
	code(t, err, parley.Forbidden) // it comes from the program
	_, err = b.as(operatorToken).SetDelivery(ctx, "far", DeliveryChange{Tries: &tries})
	code(t, err, parley.Forbidden)
	_, err = b.client.SetDelivery(ctx, "nobody", DeliveryChange{Tries: &tries})
	code(t, err, parley.UnknownAgent)
	list, err := b.client.Audit(ctx, AuditFilter{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range list {
		found = found || e.Action == "agent.delivery" && e.Target == "far" &&
			e.Detail == "tries 7, patience 36h0m0s, ordered false"
	}
	if !found {
		t.Errorf("the audit trail has no change of the delivery: %+v", list)
	}
}
