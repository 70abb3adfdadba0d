package hub

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// uncertainAppends are messages of which the journal could not say whether they are
// recorded, with a first attempt that nobody made: the sender was told that the
// outcome is unknown. Should such a record turn up after all, which a cluster
// that elects a leader may let happen much later, its attempt is taken back, so
// that the message is delivered like any other that waits.
type uncertainAppends struct {
	count atomic.Int64 // of byID, so that who has none pays nothing
	mu    sync.Mutex
	byID  map[parley.ID]uncertainAppend
}

type uncertainAppend struct {
	to    []string
	waits bool // its sender waited on a connection, and is gone
}

// maxUncertain bounds how many are remembered. Beyond, any goes: it was refused to
// its sender, and is found among the open deliveries.
const maxUncertain = 1 << 14

func (h *Hub) noteUncertain(id parley.ID, waits bool, claims []claim) {
	u := uncertainAppend{waits: waits}
	for _, c := range claims {
		u.to = append(u.to, c.to)
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
	if _, here := h.c.Journal.Delivery(id, u.to[0]); here { // it came meanwhile
		h.resolveUncertain(id)
	}
}

// resolveUncertain is told of every message that is recorded.
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
		go h.withdrawAttempts(id, u) // the journal forbids to append from here
	}
}

// withdrawAttempts records that a first attempt was not made. Who owns the partition
// sees the message wait, and delivers it; a request whose caller is gone is
// given up.
func (h *Hub) withdrawAttempts(id parley.ID, u uncertainAppend) {
	state, why := parley.Waiting, parley.Refuse(parley.Unavailable, "the first attempt was not made: the journal could not say in time that it was recorded")
	if u.waits {
		state, why = parley.Abandoned, parley.Refuse(parley.Cancelled, "the caller was told that the outcome is unknown before the message was recorded")
	}
	for _, to := range u.to {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			_, err := h.c.Journal.Append(ctx, journal.Entry{Steps: []journal.Step{{Message: id, To: to, State: state, Attempt: 1, Postponed: true, Error: why}}})
			cancel()
			if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrClosed) {
				break // it was another's turn since
			}
			h.c.Logger.Warn("cannot take back an attempt that was not made; trying again", "message", id, "to", to, "error", err)
			pause := time.NewTimer(time.Second)
			<-pause.C
		}
	}
}
