package hub

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// uncertainAppends are messages whose first attempt was not made, because the journal
// could not say whether it recorded them: the sender got the error that the outcome
// is unknown. Such a record may appear after all, much later in a cluster that elects
// a leader. Then its attempt is withdrawn, and the message is delivered like any
// other that waits.
type uncertainAppends struct {
	count atomic.Int64 // of byID: records cost nothing while it is 0
	mu    sync.Mutex
	byID  map[parley.ID]uncertainAppend
}

type uncertainAppend struct {
	to    []string
	waits bool // its sender waited on a connection, and has gone
}

// maxUncertain bounds byID. Any entry beyond is forgotten: its sender got an error, and
// the message is found among the open deliveries.
const maxUncertain = 1 << 14

func (h *Hub) noteUncertain(id parley.ID, waits bool, claims []*delivery.Claim) {
	u := uncertainAppend{waits: waits}
	for _, c := range claims {
		u.to = append(u.to, c.To())
	}
	h.uncertain.mu.Lock()
	if h.uncertain.byID == nil {
		h.uncertain.byID = map[parley.ID]uncertainAppend{}
	}
	for other := range h.uncertain.byID {
		if len(h.uncertain.byID) < maxUncertain {
			break
		}
		delete(h.uncertain.byID, other)
	}
	h.uncertain.byID[id] = u
	h.uncertain.count.Store(int64(len(h.uncertain.byID)))
	h.uncertain.mu.Unlock()
	if _, here := h.c.Journal.Delivery(id, u.to[0]); here { // the record arrived meanwhile
		h.resolveUncertain(id)
	}
}

// resolveUncertain gets every recorded message.
func (h *Hub) resolveUncertain(id parley.ID) {
	if h.uncertain.count.Load() == 0 {
		return
	}
	h.uncertain.mu.Lock()
	u, ok := h.uncertain.byID[id]
	delete(h.uncertain.byID, id)
	h.uncertain.count.Store(int64(len(h.uncertain.byID)))
	h.uncertain.mu.Unlock()
	if ok {
		go h.withdrawAttempts(id, u) // the journal must not be called from here
	}
}

// withdrawAttempts records that first attempts were not made. The owner of the
// partition then delivers the message; a request whose caller has gone is given up.
func (h *Hub) withdrawAttempts(id parley.ID, u uncertainAppend) {
	step := journal.Step{Message: id, State: parley.Waiting, Attempt: 1, Postponed: true, Error: parley.Refuse(
		parley.Unavailable, "the first attempt was not made: the journal could not say in time that it was recorded")}
	if u.waits {
		step.State, step.Error = parley.Abandoned, parley.Refuse(parley.Cancelled,
			"the caller was told that the outcome is unknown before the message was recorded")
	}
	for _, to := range u.to {
		step.To = to
		for {
			ctx, cancel := context.WithTimeout(h.life, time.Minute)
			_, err := h.c.Journal.Append(ctx, journal.Entry{Steps: []journal.Step{step}})
			cancel()
			if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrClosed) {
				break // settled, or another attempt was recorded
			}
			h.c.Logger.Warn("cannot withdraw an attempt that was not made; trying again", "message", id, "to", to,
				"error", err)
			if sleep.For(h.life, time.Second) != nil {
				return
			}
		}
	}
}
