package agh_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/parley-hub/parley/agh"
)

// held waits until so much is held at a hub.
func (w *world) held(messages, questions int) {
	w.t.Helper()
	w.until("it is held", func() bool {
		m, q := w.AGH().Pending()
		return m == messages && q == questions
	})
}

// question publishes a whois with a reply subject, and gives what is answered
// there or on the peer's own subject.
func (w *world) question(p *peer, to, query string) (answers <-chan *agh.Envelope) {
	w.t.Helper()
	out := make(chan *agh.Envelope, 1)
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	done := make(chan struct{})
	w.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for v, err := range p.Whois(ctx, to, query, false) {
			if err != nil {
				w.t.Error(err)
				return
			}
			out <- v.Envelope
			return
		}
	}()
	return out
}

func (w *world) answered(by string, answers <-chan *agh.Envelope) {
	w.t.Helper()
	select {
	case e := <-answers:
		if e.From != by {
			w.t.Errorf("%s", e.Raw())
		}
	case <-time.After(time.Minute):
		w.t.Fatalf("%s did not answer", by)
	}
}

// What is said to, or asked about, a peer of which a hub hears from another one
// a moment later gets there, and so does what that answers.
func TestSaidBeforeItIsKnown(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	alice := one.join("ta", "acme", "alice")
	hears := alice.listen(t, "alice")
	directed := one.question(alice, "bob", "")
	one.held(1, 0)
	all := one.question(alice, "", "bob")
	one.held(1, 1)
	room, err := agh.DirectID("acme", "builders", "alice", "bob")
	if err != nil {
		t.Fatal(err)
	}
	work := &agh.Envelope{ID: agh.NewID(), WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceDirect,
		DirectID: room,
		From:     "alice", To: "bob", WorkID: agh.NewWorkID(), TS: time.Now().Unix()}
	if err := work.SetContent(&agh.Say{Text: "build it"}); err != nil {
		t.Fatal(err)
	}
	b, err := work.Encode()
	if err != nil {
		t.Fatal(err)
	}
	subject, err := work.Subject()
	if err == nil {
		err = errors.Join(alice.nc.Publish(subject, b), alice.nc.Flush())
	}
	if err != nil {
		t.Fatal(err)
	}
	one.held(2, 1)

	bob := two.join("tb", "acme", "bob")
	one.answered("bob", directed)
	one.answered("bob", all)
	var r *agh.Request
	select {
	case r = <-bob.got:
	case <-time.After(time.Minute):
		t.Fatal("bob heard nothing")
	}
	if e := r.Envelope; e.ID != work.ID || text(t, e) != "build it" {
		t.Errorf("%s", e.Raw())
	}
	if err := r.Trace(t.Context(), &agh.Trace{State: agh.StateCompleted,
		Result: json.RawMessage(`{"done":true}`)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		e, err := hears(ctx)
		if err != nil {
			t.Fatal("alice does not hear that it is done: ", err)
		}
		if e.Kind == agh.KindTrace && e.WorkID == work.WorkID {
			break
		}
	}
	one.until("nothing is held", func() bool { m, _ := one.AGH().Pending(); return m == 0 })
}
