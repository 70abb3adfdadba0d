package hub

import (
	"context"
	"errors"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// delivery finds an open one. The caller may know of it from another hub on the
// same journal, whose record is not read here yet: so everything recorded by now
// is read before the answer is that there is none.
func (h *Hub) delivery(ctx context.Context, message parley.ID, to string) (v journal.Delivery, ok bool, err error) {
	j := h.c.Journal
	if v, ok = j.Delivery(message, to); ok {
		return v, ok, nil
	}
	if err = j.CatchUp(ctx); err == nil {
		v, ok = j.Delivery(message, to)
	}
	return v, ok, err
}

// attemptedSince reports whether a reply was refused only because a further
// attempt to bring its request was begun meanwhile, and makes it the answer to
// that: whichever attempt the agent answered, it has answered.
func (h *Hub) attemptedSince(e *journal.Entry, refused error) bool {
	if len(e.Steps) == 0 || !errors.Is(refused, journal.ErrConflict) {
		return false
	}
	s := &e.Steps[0]
	v, open := h.c.Journal.Delivery(s.Message, s.To)
	if !open || v.Attempt <= s.Attempt {
		return false
	}
	s.Attempt = v.Attempt
	for i := range e.Open {
		e.Open[i].Attempt = 0
	}
	return true
}
