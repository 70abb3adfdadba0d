package agh_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// rejected gives the reason, the detail and the hub's own code from a receipt that
// refuses work.
func rejected(t *testing.T, e *agh.Envelope, work *agh.Envelope) (reason agh.Reason, detail, code string) {
	t.Helper()
	c, ok := e.Content().(*agh.Receipt)
	if !ok || c.Status != agh.StatusRejected || c.ForID != work.ID || e.From != work.To || e.To != work.From ||
		e.WorkID != work.WorkID {
		t.Fatalf("no refusal of %s: %s", work.ID, e.Raw())
	}
	var own struct{ Code string }
	if err := json.Unmarshal(e.ExtValue(bridge.ExtParley), &own); err != nil {
		t.Fatalf("%v in %s", err, e.Raw())
	}
	return c.Reason, c.Detail, own.Code
}

// Work for an unknown peer is refused with a receipt if the peer does not greet in
// time, even if the sender never greeted. Messages without work get no receipt.
func TestWorkForNobody(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.AGH.Interval.Duration = time.Second })
	p := &bare{nc: w.connect("tb"), got: make(chan *nats.Msg, 16)}
	if _, err := p.nc.ChanSubscribe(own(t, "bob.7"), p.got); err != nil {
		t.Fatal(err)
	}
	work := &agh.Envelope{Surface: agh.SurfaceThread, ThreadID: "thread_one", From: "bob.7", To: "nobody"}
	p.publish(t, work, &agh.Say{Text: "are you there?"})
	work.WorkID = agh.NewWorkID()
	p.publish(t, work, &agh.Trace{State: agh.StateWorking})
	p.publish(t, work, &agh.Say{Text: "do this"})
	e, _ := p.next(t)
	reason, detail, code := rejected(t, e, work)
	if reason != agh.ReasonNotFound || code != string(parley.UnknownAgent) ||
		!strings.Contains(detail, `no peer "nobody"`) {
		t.Errorf("%s, %s, %s", reason, detail, code)
	}
	_, ref, _ := strings.Cut(strings.TrimSuffix(detail, ")"), "(reference ")
	if f, ok := w.Hub().Explain(ref); !ok || f.Code != parley.UnknownAgent {
		t.Errorf("%q explains %+v", ref, f)
	}
}

// An agent's refusal does not have the reason "busy".
func TestRefusalOfAnAgent(t *testing.T) {
	w := newWorld(t, nil)
	if err := w.Handle(parley.Agent{Name: "picky", Exposed: []string{"agh"}},
		parley.RawSkill("pick", func(context.Context, *parley.Message, parley.Replier) error {
			return parley.Refuse(parley.Rejected, "not this one")
		})); err != nil {
		t.Fatal(err)
	}
	w.until("the agent is a peer", func() bool {
		e, ok := w.Hub().Directory().Agent("picky")
		return ok && w.AGH().Address(e) != ""
	})
	alice := w.bare("ta", "alice")
	work := &agh.Envelope{Surface: agh.SurfaceThread, ThreadID: "thread_one", From: "alice", To: "picky",
		WorkID: agh.NewWorkID()}
	alice.publish(t, work, &agh.Say{Text: "this one"})
	if e, said := alice.next(t); said != "receipt accepted" {
		t.Fatalf("%s", e.Raw())
	}
	e, _ := alice.next(t)
	if reason, detail, code := rejected(t, e, work); reason != agh.ReasonInternal || code != string(parley.Rejected) ||
		detail != "not this one" {
		t.Errorf("%s, %s, %s", reason, detail, code)
	}
}

// What is too long for AGH is refused with what it is and the bound, in both directions.
func TestTooLongIsSaid(t *testing.T) {
	w := newWorld(t, nil)
	w.join("tb", "acme", "bob")
	long := strings.Repeat("n", 1<<20)
	c, err := w.Hub().Begin(t.Context(), hub.Submission{Scope: "go test", Message: &parley.Message{Kind: parley.Request,
		From: "listener", To: "guest/agh/acme/bob", Parts: []parley.Part{parley.Text(long)},
		Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Reply(t.Context())
	if err != nil || m.Kind != parley.Failure || !strings.Contains(m.Error.Text, "the envelope has 10") ||
		!strings.Contains(m.Error.Text, "at most 1048576") {
		t.Errorf("to the peer: %.500v, %v", m, err)
	}
	nc := w.connect("ta")
	raw := strings.Replace(`{"protocol":"agh-network/v0","id":"m1","workspace_id":"acme","kind":"say",`+
		`"channel":"builders","surface":"thread","thread_id":"thread_abc","from":"alice","to":"TO",`+
		`"ts":1776366000,"body":{"text":"hello"},`+
		`"proof":null}`, "TO", long[:5000], 1)
	if err := nc.Publish(own(t, "crew__weather"), []byte(raw)); err != nil {
		t.Fatal(err)
	}
	w.until("the refusal is noted", func() bool { return len(w.Hub().Refused(1)) == 1 })
	if f := w.Hub().Refused(1)[0]; f.Text != "to has 5000 bytes; at most 128 are allowed" {
		t.Errorf("from the peer: %+v", f)
	}
}
