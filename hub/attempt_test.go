package hub

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley"
)

// A recipient that sent an event has the request, whatever its binding says of the attempt: without deduplication
// the request is not sent again, even if the hub stopped and could not record the event.
func TestEventProvesReceipt(t *testing.T) {
	for name, c := range map[string]struct {
		deduplicates, stops bool
		attempts            int64
		failure             parley.Code // recorded; "": none, the request waits
	}{
		"fails":                       {attempts: 1, failure: parley.OutcomeUnknown},
		"fails, deduplicates":         {deduplicates: true, attempts: 3, failure: parley.Unavailable},
		"the hub stops":               {stops: true, attempts: 1, failure: parley.OutcomeUnknown},
		"the hub stops, deduplicates": {stops: true, deduplicates: true, attempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{name: "wire", can: Capabilities{Deduplicates: c.deduplicates},
					deliver: func(ctx context.Context, o Outbound) Outcome {
						if c.stops {
							<-ctx.Done()
						}
						if err := o.Event(parley.Working); (err != nil) != c.stops {
							t.Errorf("event: %v", err)
						}
						return Outcome{Err: parley.Fail(parley.Unavailable, nil, "connection lost")}
					}}
				h := start(t, nil, w)
				h.agent(t, "bob", parley.Identity{Protocol: "wire", ID: "bob"})
				if _, err := h.Accept(t.Context(), ask("bob", "", "?")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if c.stops {
					h.Close(t.Context())
				} else {
					time.Sleep(time.Second) // of the bubble: past the retries
				}
				if n := w.calls.Load(); n != c.attempts {
					t.Errorf("%d attempts, want %d", n, c.attempts)
				}
				var failure parley.Code
				for _, m := range h.recorded(t, parley.Failure) {
					failure = m.Error.Code
				}
				if failure != c.failure {
					t.Errorf("failure %q, want %q", failure, c.failure)
				}
			})
		})
	}
}
