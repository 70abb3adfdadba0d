package admin

import (
	"context"
	"slices"
	"time"

	"github.com/parley-hub/parley"
)

// A Paste is a text to enter at an agent's side, or beside it. It holds no secret.
type Paste struct {
	Why  string `json:"why"`
	SDK  string `json:"sdk"`
	Line string `json:"line"`
}

// An AgentReading is an agent's own description, before it is added. Nothing has been changed.
type AgentReading struct {
	Agent NewAgent `json:"agent"` // for [Admin.AddAgent], without the credentials
	Notes []string `json:"notes"` // sentences for the operator, who compares keys, for example
	Paste []Paste  `json:"paste,omitzero"`
}

// maxReading bounds how long the hub reads what agents say of themselves.
const maxReading = 30 * time.Second

// PreviewAgent reads what an agent says of itself at the addresses of its identities: a card with its name, its skills
// and its key, for example. The hub calls only what its guard allows, and shows no credentials. Members that are set
// stay as they are.
func (a *Admin) PreviewAgent(ctx context.Context, by Actor, n NewAgent) (AgentReading, error) {
	err := by.may(Administer)
	if err == nil {
		err = parley.CheckName(n.Name)
	}
	if err == nil && len(n.Identities) > 32 {
		err = parley.Refuse(parley.TooLarge, "an agent has at most 32 identities")
	}
	if err != nil {
		return AgentReading{}, err
	}
	r, err := a.read(ctx, n)
	if err != nil {
		return AgentReading{}, err
	}
	if _, _, err := a.newAgent(r.Agent); err != nil {
		return AgentReading{}, err
	}
	var ids []Identity
	for _, i := range r.Agent.Identities {
		ids = append(ids, Identity{Protocol: i.Protocol, ID: i.ID, URL: i.URL})
	}
	r.Paste = a.paste(n.Name, ids)
	return r, nil
}

// read reads an agent. A hub without protocols reads nothing.
func (a *Admin) read(ctx context.Context, n NewAgent) (AgentReading, error) {
	if a.c.Workbench.Read == nil {
		n.Identities = slices.Clone(n.Identities)
		for i := range n.Identities {
			n.Identities[i].Credentials = nil
		}
		return AgentReading{Agent: n, Notes: []string{}}, nil
	}
	leave, err := a.enter()
	if err != nil {
		return AgentReading{}, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, maxReading)
	defer cancel()
	return a.c.Workbench.Read(ctx, n)
}

// paste gives the lines for an agent.
func (a *Admin) paste(name string, ids []Identity) []Paste {
	if a.c.Workbench.Paste == nil {
		return nil
	}
	return a.c.Workbench.Paste(name, ids)
}
