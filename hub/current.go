package hub

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// delivery finds one that is open. Who speaks of it may have heard of it from
// another hub on the same journal, whose record is not read here yet: before
// there is none, everything is read that was recorded by now.
func (h *Hub) delivery(ctx context.Context, message parley.ID, to string) (v journal.Delivery, ok bool, err error) {
	j := h.c.Journal
	if v, ok = j.Delivery(message, to); ok || !j.Shared() {
		return v, ok, nil
	}
	if err = j.CatchUp(ctx); err == nil {
		v, ok = j.Delivery(message, to)
	}
	return v, ok, err
}
