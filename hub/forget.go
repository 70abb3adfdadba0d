package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// A Forgetter is a Binding that stores content in the journal's state or in memory,
// beside the log. [Capabilities.Erasing] and
// [Capabilities.ForgetRecent] complete it where a protocol needs them.
type Forgetter interface {
	Binding
	// Forget drops the content of an agent, of a conversation or of messages, and
	// returns the number of values that it changed. It may keep messages that are
	// not delivered yet and work that has not ended; it drops everything else.
	// Repeating it is harmless.
	Forget(ctx context.Context, f Forgetting) (int, error)
}

// Forgetting selects the content to forget.
type Forgetting struct {
	Agent        string            // directory name; "": a conversation is forgotten
	Identities   []parley.Identity // of Agent in all protocols, as far as known
	Conversation parley.ID

	// Message reports whether the content of a message was erased.
	Message func(parley.ID) bool
}

// Is reports whether an identity belongs to the agent to forget.
func (f *Forgetting) Is(protocol, id string) bool {
	is := func(i parley.Identity) bool { return i.Protocol == protocol && i.ID == id }
	return id != "" && slices.ContainsFunc(f.Identities, is)
}

// Forget makes all bindings forget, and counts the values that they changed.
func (h *Hub) Forget(ctx context.Context, f Forgetting) (n int, err error) {
	h.ForgetRecent()
	h.refusals.forget(&f)
	h.deliver.ForgetTexts()
	for _, b := range h.Bindings() {
		if b, ok := b.(Forgetter); ok {
			k, ferr := b.Forget(ctx, f)
			n += k
			if ferr != nil {
				err = errors.Join(err, fmt.Errorf("what %s stores: %w", b.Protocol(), ferr))
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

// ForgetRecent drops cached messages, after some were erased from the journal.
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

// forget removes the texts from an agent's refusals, and keeps the refusals.
func (q *refusals) forget(f *Forgetting) {
	if f.Agent == "" {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.ring {
		if r := &q.ring[i]; r.To == f.Agent || r.Claim == f.Agent || f.Is(r.Protocol, r.Claim) ||
			f.Is(r.Protocol, r.To) {
			r.Text, r.Cause = "", ""
		}
	}
}
