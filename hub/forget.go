package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A Forgetter is a Binding that keeps content beside the journal, in the
// journal's state or in memory. [Capabilities.Erasing] and
// [Capabilities.ForgetRecent] complete it where a protocol needs them.
type Forgetter interface {
	Binding
	// Forget drops the content of an agent, of a conversation or of messages, and
	// returns the number of values that it changed. It may keep messages that are
	// not delivered yet and work that has not ended; it drops everything else.
	// Repeating it is harmless.
	Forget(ctx context.Context, f Forgetting) (int, error)
}

// Forgetting says what is to be forgotten.
type Forgetting struct {
	Agent        string            // directory name; "": it is about a conversation
	Identities   []parley.Identity // of Agent in all protocols, as far as known
	Conversation parley.ID

	// Message tells of a message whether its content was erased.
	Message func(parley.ID) bool
}

// Is reports whether an identity of a protocol is the agent's that is to be
// forgotten.
func (f *Forgetting) Is(protocol, id string) bool {
	return id != "" && slices.ContainsFunc(f.Identities, func(i parley.Identity) bool { return i.Protocol == protocol && i.ID == id })
}

// Forget has all bindings drop what they keep; the number is of values.
func (h *Hub) Forget(ctx context.Context, f Forgetting) (n int, err error) {
	h.ForgetRecent()
	h.refusals.forget(&f)
	for _, b := range h.Bindings() {
		if b, ok := b.(Forgetter); ok {
			k, ferr := b.Forget(ctx, f)
			if n += k; ferr != nil {
				err = errors.Join(err, fmt.Errorf("what is kept for %s: %w", b.Protocol(), ferr))
			}
		}
	}
	return n, err
}

// Erasing tells all bindings of records that are about to lose their content.
func (h *Hub) Erasing(ctx context.Context, records []*journal.Record) error {
	for _, b := range h.Bindings() {
		protocol := b.Protocol()
		erasing := h.bindings[protocol].can.Erasing
		if erasing == nil {
			continue
		}
		if err := erasing(ctx, records); err != nil {
			return fmt.Errorf("what %s needs of erased messages: %w", protocol, err)
		}
	}
	return nil
}

// ForgetRecent drops from memory what is remembered of messages, after some were
// erased from the journal.
func (h *Hub) ForgetRecent() {
	h.recent.mu.Lock()
	h.recent.known, h.recent.ring, h.recent.next = nil, nil, 0
	h.recent.mu.Unlock()
	for _, b := range h.bindings {
		if b.can.ForgetRecent != nil {
			b.can.ForgetRecent()
		}
	}
}

// forget takes the words out of refusals of an agent; that there was one stays.
func (q *refusals) forget(f *Forgetting) {
	if f.Agent == "" {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.ring {
		if r := &q.ring[i]; r.To == f.Agent || r.Claim == f.Agent || f.Is(r.Protocol, r.Claim) || f.Is(r.Protocol, r.To) {
			r.Text, r.Cause = "", ""
		}
	}
}
