package agh_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/parley-hub/parley/agh"
)

// untilPending waits until a hub holds so many messages and whois messages.
func (w *world) untilPending(messages, whois int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d messages and %d whois are pending", messages, whois), func() bool {
		m, q := w.AGH().Pending()
		return m == messages && q == whois
	})
}

// askWhois publishes a whois with a reply subject, and gives the first answer there
// or on the peer's own subject.
func (w *world) askWhois(p *peer, to, query string) (answers <-chan *agh.Envelope) {
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

func (w *world) expectAnswer(by string, answers <-chan *agh.Envelope) {
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

// Messages to a peer, and whois requests for it, reach the peer if the hub learns of
// it from another hub a moment later. The peer's answers come back.
func TestSaidBeforeItIsKnown(t *testing.T) {
	t.Parallel()
	one, two := twoHubs(t)
	alice := one.join("ta", "acme", "alice")
	hears := alice.listen(t, "alice")
	directed := one.askWhois(alice, "bob", "")
	one.untilPending(1, 0)
	all := one.askWhois(alice, "", "bob")
	one.untilPending(1, 1)
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
	one.untilPending(2, 1)

	bob := two.join("tb", "acme", "bob")
	one.expectAnswer("bob", directed)
	one.expectAnswer("bob", all)
	var r *agh.Request
	select {
	case r = <-bob.got:
	case <-time.After(time.Minute):
		t.Fatal("bob received nothing")
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
			t.Fatal("alice gets no trace of the completed work: ", err)
		}
		if e.Kind == agh.KindTrace && e.WorkID == work.WorkID {
			break
		}
	}
	one.until("no message is pending", func() bool { m, _ := one.AGH().Pending(); return m == 0 })
}
