package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/keyring"
)

// This file changes an agent's addresses, identities and keys. The first form has the values; the second shows the
// effects, and asks for confirmation.

// agentChange is one kind of change.
type agentChange struct {
	title   func(agent string) string
	button  string
	fields  []string // of its form, none of which is a filter of the list
	preview func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) (admin.Preview, error)
	apply   func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) error
}

// agentChanges are the changes by the name of their dialog and the last word of their address.
var agentChanges = map[string]agentChange{
	"expose": {
		func(agent string) string { return "Change where " + agent + " is reachable?" }, "Expose", []string{"p"},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) (admin.Preview, error) {
			return c.admin.PreviewExpose(ctx, by, agent, v["p"])
		},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) error {
			_, err := c.admin.Expose(ctx, by, agent, append([]string{}, v["p"]...))
			return err
		},
	},
	"link": {
		func(agent string) string { return "Link a further identity to " + agent + "?" }, "Link",
		[]string{"in", "id", "url", "key", "keyid"},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) (admin.Preview, error) {
			return c.admin.PreviewLink(ctx, by, agent, identityOf(v))
		},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) error {
			_, err := c.admin.Link(ctx, by, agent, identityOf(v))
			return err
		},
	},
	"enroll": {
		func(agent string) string { return "Enrol a key of " + agent + "?" }, "Enrol", []string{"in", "key", "keyid"},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) (admin.Preview, error) {
			return c.admin.PreviewEnroll(ctx, by, admin.Enrolment{Agent: agent, NewIdentity: identityOf(v)})
		},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) error {
			return c.admin.Enroll(ctx, by, admin.Enrolment{Agent: agent, NewIdentity: identityOf(v)})
		},
	},
	"rotate": {
		func(agent string) string { return "Replace the hub’s key for " + agent + "?" }, "Rotate",
		[]string{"in", "overlap"},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) (admin.Preview, error) {
			return c.admin.PreviewRotate(ctx, by, rotationOf(agent, v))
		},
		func(c *Console, ctx context.Context, by admin.Actor, agent string, v url.Values) error {
			_, err := c.admin.Rotate(ctx, by, rotationOf(agent, v))
			return err
		},
	},
}

func identityOf(v url.Values) admin.NewIdentity {
	return admin.NewIdentity{Protocol: v.Get("in"), ID: v.Get("id"), URL: v.Get("url"), PublicKey: v.Get("key"),
		KeyID: v.Get("keyid")}
}

func rotationOf(agent string, v url.Values) admin.Rotation {
	return admin.Rotation{Owner: agent, Purpose: v.Get("in"), Overlap: v.Get("overlap")}
}

// read takes the fields of a form, or of the address that has them.
func (a *agentChange) read(u url.Values) (url.Values, error) {
	out := url.Values{}
	for _, name := range a.fields {
		if len(u[name]) > 16 {
			return nil, parley.Refuse(parley.TooLarge, "the form names more than 16 values of %s", name)
		}
		for _, s := range u[name] {
			if s = strings.TrimSpace(s); len(s) > maxParameter {
				return nil, parley.Refuse(parley.TooLarge, "%s has more than %d bytes", name, maxParameter)
			}
			if s != "" {
				out.Add(name, s)
			}
		}
	}
	return out, nil
}

// seenOf is a digest of the effects that the operator confirms. The end of a rotation moves with the clock.
func seenOf(p *admin.Preview) string {
	text := p.Text
	if p.Old != "" {
		text = append([]string{p.Old, grouped(int64(p.More))}, p.Agents...)
	}
	sum := sha256.Sum256([]byte(strings.Join(text, "\n")))
	return hex.EncodeToString(sum[:16])
}

// AgentQuestion is a dialog about a change, with the effects of the change.
type AgentQuestion struct {
	Name, Title, Button string
	Text                []string
	Command             string
	Fields              []Pair // of the order
	Seen                string // the effects that the operator read, or their digest
	Changed             bool   // the effects differ from those that the operator read
	Refused             string // why the hub would refuse it

	typed url.Values
}

// ask adds the dialog that the address names.
func (c *Console) ask(q *request, d *AgentDetail, query url.Values) error {
	u := q.r.URL.Query()
	a := &AgentQuestion{Name: u.Get("ask"), Changed: u.Get("changed") != ""}
	if a.Name == "remove" {
		r, err := c.admin.RemovalPreview(q.by, d.Name)
		if err != nil {
			a.Refused = parley.AsError(err).Text
		}
		a.Title, a.Command = "Remove "+d.Name+"?", "parley agents remove "+d.Name
		a.Text, a.Seen, d.Ask = []string{r.Text}, r.Text, a
		return nil
	}
	change, ok := agentChanges[a.Name]
	if !ok {
		return nil
	}
	v, err := change.read(u)
	if err != nil {
		return err
	}
	p, err := change.preview(c, q.r.Context(), q.by, d.Name, v)
	if err != nil {
		a.Refused = parley.AsError(err).Text
	}
	a.Title, a.Button, a.Text, a.Command, a.Seen = change.title(d.Name), change.button, p.Text, p.Command, seenOf(&p)
	for _, name := range change.fields {
		for _, s := range v[name] {
			a.Fields = append(a.Fields, Pair{name, s})
		}
	}
	if a.typed, d.Ask = v, a; a.Name == "expose" {
		d.Protocols = exposeChoices(&d.Agent, v["p"])
	}
	return nil
}

// Typed is the value of a dialog's field in the form that was sent.
func (d *AgentDetail) Typed(dialog, field string) string {
	if d.Ask == nil || d.Ask.Name != dialog {
		return ""
	}
	return d.Ask.typed.Get(field)
}

// changeAgent makes a change. If the effects differ from those that the operator read, it asks again.
func (c *Console) changeAgent(q *request, name string, change *agentChange) error {
	agent, err := formAgent(q)
	if err != nil {
		return err
	}
	v, err := change.read(q.r.PostForm)
	if err != nil {
		return err
	}
	p, err := change.preview(c, q.r.Context(), q.by, agent, v)
	if err != nil {
		return err
	}
	if q.r.PostFormValue("seen") != seenOf(&p) {
		v.Set("ask", name)
		v.Set("changed", "1")
		path, _, special := strings.Cut(agentPath(p.Target), "?m=")
		if special {
			v.Set("m", p.Target)
		}
		q.see(path + "?" + v.Encode() + "#ask")
		return nil
	}
	if err := change.apply(c, q.r.Context(), q.by, p.Target, v); err != nil {
		return err
	}
	q.see(agentPath(p.Target))
	return nil
}

// keyChoices are the protocols that the dialogs about identities and keys offer.
func (d *AgentDetail) keyChoices() {
	add := func(list *[]Pair, protocol string) {
		p := Pair{protocol, protocolName(protocol)}
		if !slices.Contains(*list, p) {
			*list = append(*list, p)
		}
	}
	for _, w := range connectWays {
		add(&d.Linkable, w.Protocol)
	}
	for _, i := range d.Identities {
		if !i.StandIn {
			add(&d.Provable, i.Protocol)
		}
	}
	for _, k := range d.Keys {
		if k.Own && k.State == string(keyring.Active) {
			add(&d.Replaceable, k.Protocol)
		}
	}
}
