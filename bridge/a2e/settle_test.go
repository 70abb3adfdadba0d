package a2e

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// TestCallEndsAfterRecords: a call that ends waits for the messages that a delivery is recording for it, and no other
// delivery reserves it. So the next call knows these messages before it offers its room.
func TestCallEndsAfterRecords(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(x *inboxes, a *openCall, cancel func()){
		"recorded": func(x *inboxes, a *openCall, _ func()) { x.noteRecorded(a) },
		"too late": func(_ *inboxes, _ *openCall, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				x := &inboxes{b: &Binding{c: Config{Now: time.Now}}, run: "run", room: 100, calls: map[string][]*openCall{},
					byID: map[string]*openCall{}, next: map[string]chan struct{}{}}
				a := x.begin("bob", nil)
				a.left = 10
				for range 2 {
					if got, _ := x.reserve("bob", 1); got != a {
						t.Fatal("the open call is not reserved")
					}
				}
				x.noteRecorded(a)
				settled := make(chan struct{})
				go func() {
					defer close(settled)
					x.settle(ctx, a)
				}()
				synctest.Wait()
				select {
				case <-settled:
					t.Error("the call does not wait for the second message")
				default:
				}
				if got, next := x.reserve("bob", 1); got != nil || next == nil {
					t.Error("a call that ends is reserved")
				}
				give(x, a, cancel)
				<-settled
			})
		})
	}
}

// TestFreedWhileListed: a call takes a message that an ended call freed after the list of messages was read, as it is
// recorded now. It does not take one that was removed.
func TestFreedWhileListed(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, x := t.Context(), newInboxes(&Binding{c: Config{Journal: j, Now: time.Now}})
	put := func(row journal.Row[inboxMessage]) journal.Row[inboxMessage] {
		t.Helper()
		row, err := x.messages.Replace(ctx, row)
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	r := &reader{agent: "bob", prefix: inboxPrefix("bob")}
	w := &batch{x: x, r: r, limit: 10}
	kept := func(key string) journal.Row[inboxMessage] {
		return put(journal.Row[inboxMessage]{Key: r.prefix + key,
			Value: inboxMessage{Hub: x.node, Call: x.run + "ended", Arrival: []byte(`{}`)}})
	}
	listed := kept("1")
	freed := put(journal.Row[inboxMessage]{Key: listed.Key, Revision: listed.Revision,
		Value: inboxMessage{Arrival: []byte(`{}`)}})
	m := inboxRow{Row: listed}
	if !w.take(ctx, &m, true) || m.Revision != freed.Revision || m.Value.Hub != "" || m.again || !x.has(r, m.Key) {
		t.Errorf("a freed message: %+v", m)
	}
	listed = kept("2")
	if err := x.messages.Delete(ctx, listed.Key, listed.Revision); err != nil {
		t.Fatal(err)
	}
	m = inboxRow{Row: listed}
	if w.take(ctx, &m, true) || x.has(r, m.Key) {
		t.Errorf("a message that was returned: %+v", m)
	}
}
