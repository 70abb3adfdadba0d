package hub

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Retry revives a dead letter: same message, same ID.
func (h *Hub) Retry(ctx context.Context, id parley.ID, to string) error {
	return h.settleDead(ctx, id, to, parley.Waiting)
}

// Drop gives up a dead letter for good.
func (h *Hub) Drop(ctx context.Context, id parley.ID, to string) error {
	return h.settleDead(ctx, id, to, parley.Dropped)
}

func (h *Hub) settleDead(ctx context.Context, id parley.ID, to string, s parley.DeliveryState) error {
	v, ok := h.c.Journal.Delivery(id, to)
	if !ok || v.State != parley.Dead {
		return parley.Refuse(parley.Conflict, "message %s is no dead letter to %q", id, to)
	}
	if _, err := h.c.Journal.Append(ctx,
		journal.Entry{Steps: []journal.Step{{Message: id, To: to, State: s, Attempt: v.Attempt}}}); err != nil {
		return recordError(err)
	}
	return nil
}

// Dead lists the dead letters.
func (h *Hub) Dead() []journal.Delivery {
	return h.c.Journal.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Dead}})
}
