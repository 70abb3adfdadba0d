package asp

import (
	"context"
	"errors"
	"slices"
)

// The registry of agents: enrolment, change of cards, removal, trust.

func (s *Server) agent(ctx context.Context, id string) (*Agent, error) {
	a, err := s.store.Agent(ctx, id)
	if err == nil && a.Removed {
		return nil, ErrNotFound
	}
	return a, err
}

// Register enrols an agent or replaces its card, on the operator's word. Keys
// cannot change while the agent is in a live session.
func (s *Server) Register(ctx context.Context, card []byte) (*Agent, error) {
	s.init()
	for tries := 1; ; tries++ {
		a, err := s.register(ctx, card, true, func(*Card, *Agent) error { return nil })
		// Another server on the same store was sooner, perhaps with this card.
		if !errors.Is(err, ErrAgentExists) || tries == 8 || ctx.Err() != nil {
			return a, err
		}
	}
}

func (s *Server) register(ctx context.Context, b []byte, enrolled bool,
	allow func(*Card, *Agent) error) (*Agent, error) {
	card, err := ParseCard(slices.Clone(b))
	if err != nil {
		return nil, err
	}
	old, err := s.store.Agent(ctx, card.AgentID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if err := allow(card, old); err != nil {
		return nil, err
	}
	now := s.now()
	next := &Agent{ID: card.AgentID, Revision: 1, Enrolled: enrolled}
	if old == nil {
		next.Cards = []CardVersion{{Card: card.raw}}
	} else {
		current, err := old.Card()
		if err != nil {
			return nil, err
		}
		next.Revision, next.Components, next.Enrolled = old.Revision+1, old.Components, enrolled || old.Enrolled
		next.Cards = slices.Clone(old.Cards)
		last := &next.Cards[len(next.Cards)-1]
		switch {
		case current.SigningKey.Equal(card.SigningKey) && current.ProofKey.Equal(card.ProofKey) && current.OrgID == card.OrgID:
			last.Card = card.raw // the same keys: their span goes on
		case len(next.Cards) >= maxCardVersions:
			return nil, refuse("capacity_unavailable", "")
		default:
			if busy, err := s.store.Ledgers(ctx, LedgerQuery{Participant: card.AgentID, Live: true}, "", 1); err != nil {
				return nil, err
			} else if len(busy) > 0 {
				return nil, refuse("agent_in_session", "")
			}
			last.NotAfter = now
			next.Cards = append(next.Cards, CardVersion{Card: card.raw, NotBefore: now})
		}
	}
	if err := s.store.PutAgent(ctx, next); err != nil {
		if errors.Is(err, ErrConflict) {
			return nil, refuse("agent_exists", "")
		}
		return nil, err
	}
	return next, nil
}

// maxCardVersions bounds the rotations of one agent (project).
const maxCardVersions = 256

// Unregister removes an agent: it can neither speak nor be invited. Its id
// stays taken, and its keys stay known for old transcripts.
func (s *Server) Unregister(ctx context.Context, id string) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Removed, a.Evicted = true, false })
}

// Evict is Unregister for an agent that registered itself and gives its place
// to another: it may register again by proof of its present key.
func (s *Server) Evict(ctx context.Context, id string) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Removed, a.Evicted = true, true })
}

// SetTrust replaces the components of an agent's score and tells the sessions
// that it is in.
func (s *Server) SetTrust(ctx context.Context, id string, c TrustComponents) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Components = c })
}

func (s *Server) editAgent(ctx context.Context, id string, edit func(*Agent)) error {
	s.init()
	old, err := s.store.Agent(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return refuse("agent_not_found", "")
	}
	if err != nil {
		return err
	}
	next := &Agent{ID: id, Revision: old.Revision + 1, Cards: old.Cards, Components: old.Components,
		Enrolled: old.Enrolled, Removed: old.Removed, Evicted: old.Evicted}
	edit(next)
	if err := s.store.PutAgent(ctx, next); err != nil {
		return err
	}
	s.scores.Add(1) // streams look at their participants when they wake
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.live {
		for _, w := range l.watchers {
			w.now()
		}
	}
	return nil
}

// Keys makes the registry a source of keys: also those retired.
func (s *Server) Keys(ctx context.Context, agentID string) ([]Key, error) {
	s.init()
	a, err := s.store.Agent(ctx, agentID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a.Keys(ctx, agentID)
}
