package agh_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/agh"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// request sends a request from the agent listener to bob. It gives the request and
// the envelope that bob receives.
func (w *world) request(bob *peer, content string) (*parley.Message, *agh.Envelope) {
	w.t.Helper()
	m, err := w.Hub().Accept(w.t.Context(), hub.Submission{Scope: "go test",
		Message: &parley.Message{Kind: parley.Request, From: "listener", To: "guest/agh/acme/bob",
			Parts: []parley.Part{parley.Text(content)}, Origin: parley.Origin{Protocol: "go", Peer: "listener"}}})
	if err != nil {
		w.t.Fatal(err)
	}
	e := bob.next(w.t)
	w.until("the request is delivered", func() bool {
		d, ok := w.Hub().Journal().Delivery(m.ID, m.To)
		return ok && d.State == parley.Delivered
	})
	return m, e
}

// about publishes a message about the work of e without the checks of a client, which
// has forgotten the work.
func (p *peer) about(t *testing.T, e *agh.Envelope, from, to string, content any) *agh.Envelope {
	t.Helper()
	out := &agh.Envelope{ID: agh.NewID(), WorkspaceID: e.WorkspaceID, Channel: e.Channel, Surface: e.Surface,
		ThreadID: e.ThreadID, DirectID: e.DirectID,
		From: from, To: to, WorkID: e.WorkID, ReplyTo: e.ID, TS: time.Now().Unix()}
	if err := p.nc.Publish(written(t, out, content)); err != nil {
		t.Fatal(err)
	}
	return out
}

// replyTo waits for the terminal reply to a request.
func (w *world) replyTo(id parley.ID) (reply *parley.Message) {
	w.t.Helper()
	w.until("there is a reply", func() bool {
		for _, k := range []parley.Kind{parley.Response, parley.Failure} {
			for _, m := range w.messages(k) {
				if m.InReplyTo == id {
					reply = m
				}
			}
		}
		return reply != nil
	})
	return reply
}

// first reads messages from heard and gives the first that meant accepts.
func first(t *testing.T, heard func(context.Context) (*agh.Envelope, error),
	meant func(*agh.Envelope) bool) *agh.Envelope {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if e, err := heard(ctx); err != nil {
			t.Fatal(err)
		} else if meant(e) {
			return e
		}
	}
}

// receipt gives the first receipt for a message.
func receipt(t *testing.T, heard func(context.Context) (*agh.Envelope, error), about string) (r *agh.Receipt) {
	t.Helper()
	first(t, heard, func(e *agh.Envelope) (ok bool) {
		r, ok = e.Content().(*agh.Receipt)
		return ok && r.ForID == about
	})
	return r
}

// listen gives a function that reads the next message to a peer.
func (p *peer) listen(t *testing.T, id string) func(context.Context) (*agh.Envelope, error) {
	t.Helper()
	subject, err := agh.PeerSubject("acme", "builders", id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.nc.SubscribeSync(subject)
	if err == nil {
		err = p.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) (*agh.Envelope, error) {
		m, err := s.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		return agh.Decode(m.Data)
	}
}

// After a restart of the hub a peer can answer its open work, with or without an
// earlier message about it, and the requester can cancel. Ended work stays ended
// (digest §12 (14)).
func TestGivenWorkOverRestart(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Durability, c.Data = "disk", t.TempDir() })
	bob := w.join("tb", "acme", "bob")
	silent, quiet := w.request(bob, "one")
	begun, work := w.request(bob, "two")
	bob.about(t, work, "bob", "listener", &agh.Trace{State: agh.StateWorking, Message: "at it"})
	ended, done := w.request(bob, "three")
	bob.about(t, done, "bob", "listener", &agh.Trace{State: agh.StateCompleted, Message: "built"})
	unwanted, given := w.request(bob, "four")
	if m := w.replyTo(ended.ID); m.Text() != "built" {
		t.Errorf("%+v", m)
	}
	w.until("bob's trace is recorded", func() bool { return len(w.messages(parley.Event)) == 1 })
	bob.stop()
	bob.nc.Close()

	w.stop()
	w.open()
	back := w.join("tb", "acme", "bob")
	heard := back.listen(t, "bob")
	// A message from a non-participant, or in another container, changes nothing.
	carol := w.join("tc", "acme", "carol")
	carol.about(t, work, "carol", "listener", &agh.Trace{State: agh.StateCompleted, Message: "mine"})
	elsewhere := *work
	elsewhere.Surface, elsewhere.DirectID, elsewhere.ThreadID = agh.SurfaceThread, "", "thread_elsewhere"
	back.about(t, &elsewhere, "bob", "listener", &agh.Trace{State: agh.StateCompleted, Message: "elsewhere"})

	back.about(t, quiet, "bob", "listener", &agh.Trace{State: agh.StateCompleted, Message: "late"})
	back.about(t, work, "bob", "listener", &agh.Trace{State: agh.StateFailed, Message: "no bricks"})
	if m := w.replyTo(silent.ID); m.Kind != parley.Response || m.Text() != "late" {
		t.Errorf("%+v", m)
	}
	if m := w.replyTo(begun.ID); m.Kind != parley.Failure || m.From != "guest/agh/acme/bob" ||
		m.Error.Code != parley.HandlerFailed {
		t.Errorf("%+v", m)
	}
	// Neither work can be resumed.
	for _, e := range []*agh.Envelope{done, work} {
		again := back.about(t, e, "bob", "listener", &agh.Say{Text: "and another thing"})
		if r := receipt(t, heard, again.ID); r.Status != agh.StatusRejected || r.Reason != agh.ReasonWorkClosed {
			t.Errorf("%+v", r)
		}
	}
	// The requester cancels the work that bob has not answered.
	if _, err := w.Hub().Accept(t.Context(), hub.Submission{Scope: "go test",
		Message: &parley.Message{Kind: parley.Cancel, From: "listener", To: unwanted.To, InReplyTo: unwanted.ID,
			Origin: parley.Origin{Protocol: "go", Peer: "listener"}}}); err != nil {
		t.Fatal(err)
	}
	if r := receipt(t, heard, given.ID); r.Status != agh.StatusCanceled {
		t.Errorf("%+v", r)
	}
}

// After a restart the open work of peers can be ended, and ended work stays ended,
// also over a second restart.
func TestWorkBetweenPeersOverRestart(t *testing.T) {
	w := newWorld(t, func(c *node.Config) { c.Durability, c.Data = "disk", t.TempDir() })
	alice, bob := w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
	heard := bob.listen(t, "bob")
	said := func(p *peer, from, to, work string) *agh.Envelope {
		e := &agh.Envelope{WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread,
			ThreadID: "thread_work", WorkID: work}
		return p.about(t, e, from, to, &agh.Say{Text: work})
	}
	for _, work := range []string{"work_open", "work_ended"} {
		said(alice, "alice", "bob", work)
		if e := first(t, heard, func(e *agh.Envelope) bool { return e.From == "alice" }); e.WorkID != work {
			t.Fatalf("%s", e.Raw())
		}
	}
	ended := &agh.Envelope{WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread,
		ThreadID: "thread_work", WorkID: "work_ended"}
	bob.about(t, ended, "bob", "alice", &agh.Trace{State: agh.StateCompleted, Result: json.RawMessage(`{}`)})
	w.until("all is recorded", func() bool { return len(w.messages(parley.Notice)) == 3 })
	for again := range 2 {
		alice.stop()
		alice.nc.Close()
		bob.stop()
		bob.nc.Close()
		w.stop()
		w.open()
		alice, bob = w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
		hears := alice.listen(t, "alice")
		closed := []string{"work_ended"}
		if again == 0 {
			open := *ended
			open.WorkID = "work_open"
			trace := bob.about(t, &open, "bob", "alice", &agh.Trace{State: agh.StateFailed, Message: "no bricks"})
			first(t, hears, func(e *agh.Envelope) bool { return e.ID == trace.ID })
			// The trace is recorded and delivered before the state of the work is written.
			w.until("the state says that the work has ended", func() bool {
				n := 0
				for v, err := range w.Hub().Journal().State("agh.works").Range(t.Context(), "") {
					if err != nil {
						t.Fatal(err)
					}
					if bytes.Contains(v.Data, []byte(`"State":"failed"`)) {
						n++
					}
				}
				return n == 1
			})
		}
		closed = append(closed, "work_open")
		for _, work := range closed {
			say := said(alice, "alice", "bob", work)
			w.until("the say is recorded as refused", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return slices.ContainsFunc(w.records, func(r *journal.Record) bool {
					return r.Refused != nil && r.Refused.Code == parley.Conflict &&
						r.Message.Trace.Foreign["agh.id"] == say.ID
				})
			})
		}
	}
}

// openingSay gives a say of alice that opens work, with its subject and bytes.
func openingSay(t *testing.T, to, work, content string) (e *agh.Envelope, subject string, data []byte) {
	t.Helper()
	e = &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread,
		ThreadID: "thread_work",
		From:     "alice", To: to, WorkID: work, TS: time.Now().Unix()}
	subject, data = written(t, e, &agh.Say{Text: content})
	return e, subject, data
}

// recordOpen records the work of e as open.
func (w *world) recordOpen(e *agh.Envelope, link map[string]any) {
	w.t.Helper()
	b, err := json.Marshal(map[string]any{"Link": link, "Work": agh.Work{WorkspaceID: e.WorkspaceID, WorkID: e.WorkID,
		Container: e.Container(),
		Initiator: e.From, Target: e.To, State: agh.StateSubmitted}})
	if err == nil {
		_, err = w.Hub().Journal().State("agh.works").Put(w.t.Context(), bridge.WorkKey(e.WorkspaceID, e.WorkID), b,
			time.Time{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// A hub that stops after it opened work for an agent, and before it recorded the
// request, accepts the request when the peer sends it again.
func TestRequestSaidAgain(t *testing.T) {
	w := newWorld(t, nil)
	alice := w.join("ta", "acme", "alice")
	hears := alice.listen(t, "alice")
	e, subject, data := openingSay(t, "crew__weather", "work_again", `{"city":"Bern"}`)
	request := parley.HashID([]byte("request"))
	w.recordOpen(e, map[string]any{"Request": request, "Scope": "agh acme", "Target": "crew/weather",
		"Opened": "alice\x00" + e.ID})
	if err := alice.nc.Publish(subject, data); err != nil {
		t.Fatal(err)
	}
	first(t, hears, func(e *agh.Envelope) bool {
		c, ok := e.Content().(*agh.Trace)
		return ok && e.WorkID == "work_again" && c.State == agh.StateCompleted
	})
	if m := w.messages(parley.Request); len(m) != 1 || m[0].ID != request {
		t.Errorf("%+v", m)
	}
}

// A hub that stops after it recorded the message that ends work, and before it
// updated the state of the work, updates the state at the next attempt.
func TestEndIsNotedAgain(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join("ta", "acme", "alice"), w.join("tb", "acme", "bob")
	hears := alice.listen(t, "alice")
	e, subject, data := openingSay(t, "bob", "work_ends", "build it")
	if err := alice.nc.Publish(subject, data); err != nil {
		t.Fatal(err)
	}
	bob.next(t)
	trace := bob.about(t, e, "bob", "alice", &agh.Trace{State: agh.StateCompleted, Message: "built"})
	first(t, hears, func(e *agh.Envelope) bool { return e.ID == trace.ID })
	ended := func() bool {
		v, err := w.Hub().Journal().State("agh.works").Get(t.Context(), bridge.WorkKey("acme", "work_ends"))
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Work agh.Work }
		if err := json.Unmarshal(v.Data, &r); err != nil {
			t.Fatal(err)
		}
		return r.Work.State == agh.StateCompleted
	}
	w.until("the end is noted", ended)
	w.recordOpen(e, nil)
	w.AGH().ForgetRecent()
	m := w.messages(parley.Notice)[1]
	to, ok := w.Hub().Directory().Agent(m.To)
	if !ok {
		t.Fatal(m.To)
	}
	id, _ := to.Identity("agh")
	if out := w.AGH().Deliver(t.Context(), hub.Outbound{Message: m, Recipient: to, Identity: id,
		Attempt: 2}); out.Err != nil {
		t.Fatal(out.Err)
	}
	if !ended() {
		t.Error("the work is open still")
	}
}
