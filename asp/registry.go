package asp

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"
)

// The registry of agents: enrolment, change of cards, removal, trust.

func (s *Server) agent(ctx context.Context, id string) (*Agent, error) {
	a, err := s.store.Agent(ctx, id)
	if err == nil && a.Removed {
		return nil, ErrNotFound
	}
	return a, err
}

// Register enrols an agent or replaces its card, for the operator. Keys cannot
// change while the agent is in a live session.
func (s *Server) Register(ctx context.Context, card []byte) (*Agent, error) {
	s.init()
	for tries := 1; ; tries++ {
		a, err := s.register(ctx, card, true, func(*Card, *Agent) error { return nil })
		// Another server on the same Store registered the agent first, perhaps with this card.
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
		case current.SigningKey.Equal(card.SigningKey) && current.ProofKey.Equal(card.ProofKey) &&
			current.OrgID == card.OrgID:
			last.Card = card.raw // same keys, same span
		case len(next.Cards) >= maxCardVersions:
			return nil, refuse("capacity_unavailable", "")
		default:
			if busy, err := s.store.Ledgers(ctx, LedgerQuery{Participant: card.AgentID, Live: true},
				"", 1); err != nil {
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

// Unregister removes an agent: it can neither send nor be invited. Its id stays
// reserved, and its keys stay known for old transcripts.
func (s *Server) Unregister(ctx context.Context, id string) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Removed, a.Evicted = true, false })
}

// Evict is Unregister for an agent that registered itself, to make room for
// another. The agent may register again by proof of its current key.
func (s *Server) Evict(ctx context.Context, id string) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Removed, a.Evicted = true, true })
}

// SetTrust replaces the components of an agent's score and notifies the streams of
// its sessions.
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
	s.scores.Add(1) // streams compare the scores of participants when they wake
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.live {
		for _, w := range l.watchers {
			w.now()
		}
	}
	return nil
}

// Headers of a registration (project): signatures of the card by its own key, and
// by the registered key.
const (
	headerCardSignature     = "Asp-Card-Signature"
	headerPreviousSignature = "Asp-Previous-Signature"
)

// serveRegister takes a card with proof of both its keys. For a registered agent
// it also needs proof of the current key, so that no other agent can take the id.
func (s *Server) serveRegister(w http.ResponseWriter, r *http.Request, _ *caller, _ []string) error {
	b, err := readBody(r, maxCard)
	if err != nil {
		return err
	}
	n, err := parseJSON(b)
	if err != nil {
		return err
	}
	created := false
	agent, err := s.register(r.Context(), b, false, func(card *Card, old *Agent) error {
		if !signatureHolds(card.SigningKey, cardInput(n), r.Header.Get(headerCardSignature)) {
			return refuse("bad_signature", headerCardSignature)
		}
		created = old == nil
		if created && s.Registration != RegistrationOpen {
			return refuse("registration_closed", "")
		}
		if old != nil {
			current, err := old.Card()
			if err != nil {
				return err
			}
			signature := cmp.Or(r.Header.Get(headerPreviousSignature), r.Header.Get(headerCardSignature))
			if old.Removed && !old.Evicted || !signatureHolds(current.SigningKey, cardInput(n), signature) {
				return refuse("agent_exists", "")
			}
		}
		return s.proveRequest(r, card.AgentID, card.ProofKey, s.now())
	})
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return writeJSON(w, code, struct {
		AgentID  string `json:"agentId"`
		Revision int64  `json:"revision"`
	}{agent.ID, agent.Revision})
}

// serveToken issues an access token to a registered agent. The DPoP proof
// authenticates the agent; a client_secret is ignored.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request, _ *caller, _ []string) error {
	b, err := readBody(r, 16<<10)
	if err != nil {
		return err
	}
	n, err := parseJSON(b)
	if err != nil {
		return err
	}
	if n.kind != '{' || n.text("grant_type") != "client_credentials" {
		return refuse("invalid_field", "grant_type")
	}
	agent, err := s.agent(r.Context(), n.text("client_id"))
	if errors.Is(err, ErrNotFound) {
		return refuse("key_unknown", "client_id")
	}
	if err != nil {
		return err
	}
	card, err := agent.Card()
	if err != nil {
		return err
	}
	now := s.now()
	if err := s.proveRequest(r, agent.ID, card.ProofKey, now); err != nil {
		return err
	}
	token, life, err := s.issueToken(agent.ID, card.ProofKey.Thumbprint(), now)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Token   string `json:"access_token"`
		Type    string `json:"token_type"`
		Expires int64  `json:"expires_in"`
	}{token, "DPoP", int64(life / time.Second)})
}
