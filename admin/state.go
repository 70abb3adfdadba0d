package admin

import (
	"context"
	"strconv"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// This file shows whether messages reach an agent, and how they are retried.

// AgentState says whether messages reach an agent. They are accepted in every state.
type AgentState struct {
	State     hub.AgentState `json:"state"`
	Reason    *Problem       `json:"reason,omitzero"`    // unreachable, failing, waiting: of the last attempt
	Since     time.Time      `json:"since,omitzero"`     // it is so since then
	PausedBy  string         `json:"pausedBy,omitzero"`  // name of the token
	PausedWhy string         `json:"pausedWhy,omitzero"` // in the operator's words
	Failures  int            `json:"failures,omitzero"`  // failed attempts since then, at least
	Next      time.Time      `json:"next,omitzero"`      // the next attempt, if one is planned
}

// A Recipient is a recipient of a message to which messages do not get just now.
type Recipient struct {
	Name string `json:"name"`
	AgentState
}

func (s *AgentState) withoutContent() {
	if s != nil {
		s.PausedWhy = "" // words about messages
		s.Reason.withoutContent()
	}
}

func (a *Admin) state(by Actor, e *directory.Entry) AgentState {
	v := viewCondition(a.c.Hub.Condition(e))
	if v.State == hub.Paused {
		v.Since, v.PausedBy, v.PausedWhy = e.Pause.Since, e.Pause.By, e.Pause.Reason
	}
	return *forActor(by, v)
}

// notReady gives the state of an agent, nil if it is ready or not in the directory.
func (a *Admin) notReady(by Actor, name string) *AgentState {
	if e, ok := a.c.Hub.Directory().Agent(name); ok {
		if s := a.state(by, e); s.State != hub.Ready {
			return &s
		}
	}
	return nil
}

// AgentState gives the state of an agent.
func (a *Admin) AgentState(by Actor, name string) (AgentState, error) {
	if err := by.may(Observe); err != nil {
		return AgentState{}, err
	}
	if err := a.resolveNames(&name); err != nil {
		return AgentState{}, err
	}
	e, err := a.entry(by, name)
	if err != nil {
		return AgentState{}, err
	}
	return a.state(by, e), nil
}

// AgentDelivery says how messages to an agent are retried. Durations are written "24h".
type AgentDelivery struct {
	Tries    int    `json:"tries"`    // attempts before a message becomes a dead letter
	Patience string `json:"patience"` // how long a message is tried, at most
	Ordered  bool   `json:"ordered"`  // a message that fails holds up the later ones of its conversation
	First    string `json:"first"`    // pause after the first failed attempt; each further pause is twice as long
	Longest  string `json:"longest"`  // pause at most

	Own DeliveryChange `json:"own,omitzero"` // what is set for this agent; all else is the hub's
}

func viewDelivery(r delivery.Retry, own parley.Retries) *AgentDelivery {
	v := &AgentDelivery{Tries: r.Tries, Patience: r.For.String(), Ordered: !own.Unordered, First: r.First.String(),
		Longest: r.Longest.String()}
	if own.Tries > 0 {
		v.Own.Tries = &own.Tries
	}
	if own.Patience > 0 {
		v.Own.Patience = &v.Patience
	}
	if own.Unordered {
		v.Own.Ordered = &v.Ordered
	}
	return v
}

// DeliveryChange sets how messages to an agent are retried. A member that is missing
// stays as it is; tries 0 and patience "0s" mean what the hub does for all agents.
type DeliveryChange struct {
	Tries    *int    `json:"tries,omitzero"`
	Patience *string `json:"patience,omitzero"`
	Ordered  *bool   `json:"ordered,omitzero"`
}

// change gives the next retries of an agent.
func (c *DeliveryChange) change(r parley.Retries) (parley.Retries, error) {
	if c == nil {
		return r, nil
	}
	if c.Tries != nil {
		r.Tries = *c.Tries
	}
	if c.Patience != nil {
		d, err := time.ParseDuration(*c.Patience)
		if err != nil {
			return r, parley.Refuse(parley.Malformed, "patience %.40q: want a duration such as 24h", *c.Patience)
		}
		r.Patience = d
	}
	if c.Ordered != nil {
		r.Unordered = !*c.Ordered
	}
	return r, r.Check()
}

// SetDelivery sets how messages to an agent are retried. It applies to messages that
// wait already, too.
func (a *Admin) SetDelivery(ctx context.Context, by Actor, name string, c DeliveryChange) (Agent, error) {
	if err := by.may(Administer); err != nil {
		return Agent{}, err
	}
	if err := a.resolveNames(&name); err != nil {
		return Agent{}, err
	}
	e, err := a.entry(by, name)
	if err != nil {
		return Agent{}, err
	}
	r, err := c.change(e.Retries)
	if err != nil {
		return Agent{}, err
	}
	d := viewDelivery(a.c.Hub.Schedule(r), r)
	detail := "tries " + strconv.Itoa(d.Tries) + ", patience " + d.Patience + ", ordered " + strconv.FormatBool(d.Ordered)
	return a.edit(ctx, by, Administer, "agent.delivery", name, detail, func(ctx context.Context, name string) error {
		return a.c.Hub.Directory().SetRetries(ctx, name, r)
	})
}
