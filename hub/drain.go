package hub

import (
	"context"
	"slices"

	"github.com/parley-hub/parley"
)

// Drain refuses further requests whose callers wait, and returns when no caller
// waits any more, or when ctx ends: callers that still wait then get an error.
// Meanwhile agents may answer, and an agent that works for a waiting caller may ask
// others. Messages whose senders do not wait are recorded as always. Close follows.
func (h *Hub) Drain(ctx context.Context) {
	h.mu.Lock()
	if h.drained == nil {
		h.drained = make(chan struct{})
	}
	h.checkDrainedLocked()
	quiet := h.drained
	h.mu.Unlock()
	select {
	case <-quiet:
		return
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiters {
		w.end(errStopping())
	}
}

// checkDrainedLocked ends Drain once no caller waits.
func (h *Hub) checkDrainedLocked() {
	select {
	case <-h.drained:
	default:
		if len(h.waiters) == 0 {
			close(h.drained)
		}
	}
}

// awaitedLocked reports whether a caller waits for an answer of the agent.
func (h *Hub) awaitedLocked(agent string) bool {
	for _, w := range h.waiters {
		if slices.Contains(w.to, agent) {
			return true
		}
	}
	return false
}

func errStopping() *parley.Error {
	return parley.Fail(parley.Unavailable, nil, "the hub is stopping; send the request again in a moment").
		With(parley.ByHub, parley.HubStops, "")
}
