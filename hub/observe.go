package hub

import (
	"context"
	"maps"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/internal/recorder"
)

// An Observer follows what a hub does, for metrics and traces. A method is called at
// the beginning of a step; it returns the context of the step and a function to call
// at its end, or nil. Methods are called from many goroutines and must not block.
type Observer interface {
	// Record: m is about to be recorded, admitted or refused. The observer may set
	// m.Trace.
	Record(ctx context.Context, m *parley.Message) (context.Context, func(error))
	// Attempt: an attempt begins, in the recipient's protocol: "go" for a
	// handler of this process, "api" for an inbox. The observer may put
	// another Message in a; the recorded one must stay as it is.
	Attempt(ctx context.Context, a *delivery.Attempt, protocol string) (context.Context, func(delivery.Result))
}

// observed makes an attempt between the observer's begin and end.
func (h *Hub) observed(ctx context.Context, a delivery.Attempt, protocol string,
	f func(context.Context, delivery.Attempt) delivery.Result) delivery.Result {
	recorder.From(ctx).Routed(protocol, h.kept(a))
	if h.c.Observer == nil {
		return f(ctx, a)
	}
	ctx, end := h.c.Observer.Attempt(ctx, &a, protocol)
	r := f(ctx, a)
	if end != nil {
		end(r)
	}
	return r
}

// A RefusalKind is a class of refusals that are counted together.
type RefusalKind struct {
	Protocol string
	Step     string
	Code     parley.Code
}

// maxRefusalKinds bounds the counters of refusals; further kinds count as the zero one.
// Bindings use a fixed vocabulary, so the bound is never reached.
const maxRefusalKinds = 512

// RefusalCounts counts the refusals of each kind since the start.
func (h *Hub) RefusalCounts() map[RefusalKind]uint64 {
	q := h.refusals
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.kinds)
}

// note counts the kind of a refusal; q.mu is held.
func (q *refusals) note(r Refusal) {
	k := RefusalKind{r.Protocol, r.Step, r.Code}
	if _, ok := q.kinds[k]; !ok && len(q.kinds) >= maxRefusalKinds {
		k = RefusalKind{}
	}
	q.kinds[k]++
}
