package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// Removal is what goes with an agent that is removed.
type Removal struct {
	Agent      string     `json:"agent"`
	Identities []Identity `json:"identities"` // the hub withdraws the cards, registrations and presence of its stand-ins
	Keys       int        `json:"keys"`       // of the hub for it
	Enrolled   int        `json:"enrolled"`   // public keys
	Tokens     []string   `json:"tokens"`     // names of tokens with which it calls the hub; they are revoked
	Waiting    int        `json:"waiting"`    // messages that become dead letters
	Dead       int        `json:"dead"`       // dead letters, which stay
	DryRun     bool       `json:"dryRun"`
	Text       string     `json:"text"` // in a few sentences, for the operator
}

// RemovalPreview says what [Admin.RemoveAgent] would remove. It fails as that would.
func (a *Admin) RemovalPreview(by Actor, name string) (Removal, error) {
	if err := cmp.Or(by.may(Administer), a.resolveNames(&name)); err != nil {
		return Removal{}, err
	}
	e, err := a.entry(by, name)
	if err != nil {
		return Removal{}, err
	}
	if e.Source == directory.FromConfig || e.Source == directory.FromCode {
		return Removal{}, fromDirectory(fmt.Errorf("%w: %q comes from %s; take it out there", directory.ErrReadOnly, name,
			e.Source))
	}
	r := Removal{Agent: name, Identities: viewAgent(e).Identities, Tokens: a.tokensOf(name), DryRun: true}
	for _, k := range a.c.Keys.List() {
		if k.Owner == name {
			r.Keys++
		}
	}
	for _, k := range a.c.Keys.AllEnrolled() {
		if k.Agent == name {
			r.Enrolled++
		}
	}
	a.c.Hub.Journal().Walk(journal.Filter{To: name}, func(d *journal.Delivery) bool {
		switch d.State {
		case parley.Dead:
			r.Dead++
		case parley.Waiting, parley.Delivering:
			r.Waiting++
		}
		return true
	})
	r.Text = r.sentences()
	return r, nil
}

// tokensOf names the tokens of an agent.
func (a *Admin) tokensOf(agent string) []string {
	out := []string{}
	for _, t := range a.c.Tokens.All() {
		if t.Agent == agent {
			out = append(out, t.Name)
		}
	}
	return out
}

// revokeTokens revokes the tokens of an agent that is removed.
func (a *Admin) revokeTokens(ctx context.Context, agent string) error {
	if a.c.Tokens.state == nil {
		return nil // the tokens are a list in a file, which its owner changes
	}
	var errs []error
	for _, name := range a.tokensOf(agent) {
		if err := a.c.Tokens.revoke(ctx, name, false); err != nil {
			errs = append(errs, fmt.Errorf("agent %q is gone, but its token %q could not be revoked: %w", agent, name, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Removal) sentences() string {
	var standIns, gone []string
	for _, i := range r.Identities {
		if i.StandIn {
			standIns = append(standIns, i.Protocol)
		}
	}
	s := r.Agent + " is no longer known here."
	if len(standIns) > 0 {
		slices.Sort(standIns)
		s += " The hub withdraws its card, registration and presence in " + strings.Join(standIns, ", ") + "."
	}
	add := func(n int, one, many string) {
		if n > 0 {
			gone = append(gone, number(n)+" "+numbered(n, one, many))
		}
	}
	add(r.Keys+r.Enrolled, "key", "keys")
	add(len(r.Tokens), "token", "tokens")
	if len(gone) > 0 {
		s += " " + strings.Join(gone, " and ") + numbered(r.Keys+r.Enrolled+len(r.Tokens), " goes.", " go.")
	}
	if r.Waiting > 0 {
		s += " " + number(r.Waiting) +
			numbered(r.Waiting, " message becomes a dead letter.", " messages become dead letters.")
	}
	return s
}

// RemovalPreview says what [Client.RemoveAgent] would remove.
func (c *Client) RemovalPreview(ctx context.Context, name string) (Removal, error) {
	return fetch[Removal](c, ctx, "GET", agentPath(name, "/removal"), nil, nil)
}

func getRemoval(a *Admin, c *call) (any, error) {
	if err := c.params(); err != nil {
		return nil, err
	}
	return a.RemovalPreview(c.by, c.r.PathValue("name"))
}
