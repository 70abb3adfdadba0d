package admin

import (
	"bytes"
	"context"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// This file says what would become of a message that is not sent.

// Foreseen says what would become of a message if it were sent now. Nothing was recorded or sent.
type Foreseen struct {
	From  string      `json:"from"`
	To    string      `json:"to"` // name of the agent, if there is one
	Kind  parley.Kind `json:"kind"`
	Skill string      `json:"skill,omitzero"` // that would take it; missing: the agent declares none

	Accepted  bool        `json:"accepted"`           // the hub would record it
	Refusal   *Problem    `json:"refusal,omitzero"`   // why not
	Misfits   []Misfit    `json:"misfits"`            // where the content does not fit the skill's schema
	Fitted    []Part      `json:"fitted,omitzero"`    // the content as the skill takes it; missing: as it is
	Text      string      `json:"text,omitzero"`      // which rule lets it pass, for people
	By        string      `json:"by,omitzero"`        // protocol of the delivery; "api": an inbox, "go": the hub's process
	Recipient *AgentState `json:"recipient,omitzero"` // now; missing: there is no such agent

	There []ForeseenLoss `json:"there"` // what is lost or refused on the way to the recipient
	Back  []ForeseenLoss `json:"back"`  // what its answers cannot say, or lose on the way to the sender
}

// A Misfit is one place of a content that does not fit the schema of a skill.
type Misfit struct {
	At  string `json:"at"` // JSON Pointer; "": the whole content
	Why string `json:"why"`
}

// A ForeseenLoss is something that a message or its answer would lose.
type ForeseenLoss struct {
	What string `json:"what"` // field of the message, or what an answer would say: "Parts.Name", "Event: working"
	Fate string `json:"fate"` // "lost"; "refused": the recipient's protocol does not take it; "absent": does not say it
	Why  string `json:"why"`
}

// A Passage is what a message passes through, for [Workbench.Losses].
type Passage struct {
	Message *parley.Message
	To      *directory.Entry
	By      string // protocol by which the hub sends it; "api" and "go": the agent is here
	Address parley.Identity

	// The way of the answers to the sender: "" if it waits for them at the API, or has none.
	Back        string
	BackAddress parley.Identity
}

// Foresee says what would become of a request or a notice to one recipient if it were sent now: whether the hub would
// take it, whether its content fits, what is lost on the way, and what the answers to it cannot say. A message with a
// timeout is one whose sender waits for the answer. Nothing is recorded or sent, and no rate is used up.
func (a *Admin) Foresee(ctx context.Context, by Actor, s Send) (Foreseen, error) {
	sub, err := a.submission(ctx, by, s)
	if err != nil {
		return Foreseen{}, err
	}
	m := sub.Message
	if m.Kind != parley.Request && m.Kind != parley.Notice || m.To == "" || len(m.Audience) > 0 {
		return Foreseen{}, parley.Refuse(parley.Unsupported, "only a request or a notice to one recipient can be foreseen")
	}
	f := a.c.Hub.Foresee(m)
	v := Foreseen{From: m.From, To: f.Message.To, Kind: m.Kind, Skill: m.Skill, Misfits: []Misfit{},
		There: []ForeseenLoss{}, Back: []ForeseenLoss{}}
	refused := f.Refused
	if err := a.Ready(); err != nil && refused == nil {
		refused = parley.Fail(parley.Unavailable, err, "the hub takes no messages now: %s", err).
			With(parley.ByHub, parley.HubStorage, "")
	}
	if refused != nil && f.Recipient == nil && refused.Code == parley.UnknownAgent {
		refused = a.unknownAgent(by, m.To)
	}
	if v.Accepted = refused == nil; !v.Accepted {
		p := ProblemOf(refused)
		v.Refusal = &p
	}
	for _, p := range f.Misfits {
		v.Misfits = append(v.Misfits, Misfit(p))
	}
	if f.Recipient != nil {
		a.foreseeWay(by, &v, m, &f, s.Timeout != "")
	}
	return v, nil
}

// foreseeWay adds what the way to a recipient means for a message.
func (a *Admin) foreseeWay(by Actor, v *Foreseen, m *parley.Message, f *hub.Foresight, waits bool) {
	e := f.Recipient
	state := a.state(by, e)
	v.Recipient = &state
	if k, ok := e.SkillNamed(m.Skill); ok {
		v.Skill = k.ID
	}
	for _, rule := range a.admissions(f.Message) {
		v.Text = rule.Text
	}
	if !slices.EqualFunc(m.Parts, f.Message.Parts, func(p, q parley.Part) bool {
		return p.MediaType == q.MediaType && bytes.Equal(p.Data, q.Data)
	}) {
		for _, p := range f.Message.Parts {
			v.Fitted = append(v.Fitted, viewPart(p))
		}
	}
	for _, l := range f.Losses {
		v.There = append(v.There, ForeseenLoss{l.Field, "lost", l.Reason})
	}
	p := Passage{Message: f.Message, To: e}
	p.By, p.Address = a.c.Hub.Native(e)
	v.By = p.By
	if p.By == "" {
		v.There = append(v.There, ForeseenLoss{"To", "refused",
			"the agent has no address in a protocol that is switched on; the message would wait"})
		return
	}
	if from, ok := a.c.Hub.Directory().Agent(m.From); ok && !waits {
		p.Back, p.BackAddress = a.c.Hub.Native(from)
	}
	if a.c.Workbench.Losses != nil {
		there, back := a.c.Workbench.Losses(p)
		v.There = append(v.There, there...)
		if m.Kind == parley.Request {
			v.Back = append(v.Back, back...)
		}
	}
}

// Foresee says what would become of a message if it were sent now.
func (c *Client) Foresee(ctx context.Context, s Send) (Foreseen, error) {
	return fetch[Foreseen](c, ctx, "POST", "/foresee", nil, s)
}
