package hub

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// TestCallerLeavesWhileRecorded: a caller that leaves while its message is being
// recorded gets the error that the outcome is unknown. The message was recorded with
// a first attempt that was not made: now the attempt is made, or the message is given
// up if its caller waited for the answer.
func TestCallerLeavesWhileRecorded(t *testing.T) {
	for _, waits := range []bool{false, true} {
		var attempts atomic.Int64 // to bob; the same wire delivers the answer to alice
		w := &wire{name: "wire", deliver: func(_ context.Context, o Outbound) Outcome {
			if o.Recipient.Name == "bob" {
				attempts.Add(1)
			}
			return Outcome{Answered: true}
		}}
		h := start(t, nil, w)
		h.agent(t, "alice", parley.Identity{Protocol: "wire", ID: "alice"})
		h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		ended := make(chan journal.Step, 16)
		var first parley.ID
		stop := h.Journal().Watch(func(r *journal.Record) {
			if m := r.Message; m != nil && m.Kind == parley.Request && first.IsZero() {
				first = m.ID
				leave()
				<-left // the journal answers no append before
			}
			for _, s := range r.Steps {
				if s.Message == first && s.State.Settled(parley.Request) {
					ended <- s
				}
			}
		})
		defer stop()
		s := ask("bob", "", "hello")
		var err error
		if waits {
			_, err = h.Ask(ctx, s)
		} else {
			_, err = h.Accept(ctx, s)
		}
		close(left)
		if !errors.Is(err, journal.ErrUnknown) {
			t.Fatalf("waits %v: %v", waits, err)
		}
		end := <-ended
		switch {
		case waits && (end.State != parley.Abandoned || attempts.Load() != 0):
			t.Errorf("a request whose caller had gone: %+v, %d attempts", end, attempts.Load())
		case !waits && (end.State != parley.Answered || end.Attempt != 1 || attempts.Load() != 1):
			t.Errorf("a message that was recorded: %+v, %d attempts", end, attempts.Load())
		}
	}
}
