package console

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/readable"
)

// This file is the form that connects an agent: the protocol first, then the fields that it needs. The page
// shows the agent's own description before the hub adds anything.

// inbox stands in the form for the protocol of an agent that reads an inbox at the hub.
const inbox = "inbox"

// A ConnectForm is the form as a page shows it.
type ConnectForm struct {
	Protocol, Way       string
	Protocols, Ways     []ConnectChoice
	Name, Title, Expose string
	Fields              []FieldView
	Shown               []FieldView // what the hub may show to the agent: asked once its card was read
	Token, TokenID      string      // a new token of the agent
	Read                *ConnectReading
	Command             string

	join   *admin.Join
	way    *admin.JoinWay // nil: of an agent with an inbox alone
	values admin.JoinValues
}

// A ConnectChoice is a protocol, or a way of one.
type ConnectChoice struct {
	Name, Link, Text string
	Chosen           bool
}

// A FieldView is a field with its value.
type FieldView struct {
	Flag, Label, Text, Example, Type string
	Must                             bool
	Value                            string
}

func newFieldView(f admin.JoinField, value string) FieldView {
	return FieldView{f.Flag, f.Label, f.Text, f.Example, f.Type, f.Must, value}
}

// A ConnectReading is the agent's own description.
type ConnectReading struct {
	admin.AgentReading
	Seen string // digest of what is shown
}

// newConnectForm makes the form from the parameters of a page, or from the submitted fields.
func (c *Console) newConnectForm(v url.Values) *ConnectForm {
	field := func(name string) string { return strings.TrimSpace(v.Get(name)) }
	f := &ConnectForm{Protocol: field("protocol"), Way: field("way"), Name: field("name"), Title: field("title"),
		Expose: field("expose"), TokenID: field("token-id"), values: admin.JoinValues{"token-id": field("token-id")}}
	joins := c.admin.Joins()
	if f.Protocol != inbox && !slices.ContainsFunc(joins, func(j admin.Join) bool { return j.Protocol == f.Protocol }) {
		f.Protocol, f.Way = inbox, ""
		if len(joins) > 0 {
			f.Protocol = joins[0].Protocol
		}
	}
	link := func(protocol, way string) string {
		q := url.Values{"protocol": {protocol}}
		if way != "" {
			q.Set("way", way)
		}
		return Base + "agents/connect?" + q.Encode()
	}
	for i := range joins {
		j := &joins[i]
		f.Protocols = append(f.Protocols, ConnectChoice{j.Protocol, link(j.Protocol, ""), protocolName(j.Protocol),
			j.Protocol == f.Protocol})
		if j.Protocol != f.Protocol {
			continue
		}
		if f.join, f.way = j, j.Way(f.Way); f.way == nil {
			f.Way, f.way = "", j.Way("")
		}
		for _, w := range j.Ways {
			f.Ways = append(f.Ways, ConnectChoice{w.Name, link(j.Protocol, w.Name), w.Title, w.Name == f.Way})
		}
	}
	f.Protocols = append(f.Protocols, ConnectChoice{inbox, link(inbox, ""), "Inbox", f.Protocol == inbox})
	if f.way != nil {
		for _, x := range f.way.Fields {
			f.values[x.Flag] = field(x.Flag)
			f.Fields = append(f.Fields, newFieldView(x, f.values[x.Flag]))
		}
	}
	f.Command = f.command()
	return f
}

// CanRead reports whether the hub can read the agent's own description.
func (f *ConnectForm) CanRead() bool { return f.way != nil && f.way.Reads }

// command is the command with the effect of the form.
func (f *ConnectForm) command() string {
	name, flags := f.Name, "--inbox"
	if name == "" {
		name = "NAME"
	}
	if f.way != nil {
		shown := admin.JoinValues{}
		for _, x := range f.way.Fields {
			if shown[x.Flag] = f.values[x.Flag]; shown[x.Flag] == "" && x.Must {
				shown[x.Flag] = strings.ToUpper(x.Flag)
			}
		}
		flags = f.way.Command(shown)
	}
	out := readable.ShellWords("parley", "agents", "add", name) + " " + flags
	if f.Expose != "" {
		out += " " + readable.ShellWords("--expose", strings.Join(f.exposed(), ","))
	}
	return out + " --wait 2m"
}

func (f *ConnectForm) exposed() []string {
	return strings.FieldsFunc(f.Expose, func(r rune) bool { return r == ',' || r == ' ' })
}

// agent is the agent that the form describes.
func (f *ConnectForm) agent() (admin.NewAgent, error) {
	n := admin.NewAgent{Name: f.Name, Title: f.Title, Expose: f.exposed(), Inbox: f.way == nil}
	if f.way == nil {
		return n, nil
	}
	for _, x := range f.way.Fields {
		if x.Must && f.values[x.Flag] == "" {
			return n, parley.Refuse(parley.Malformed, "%s is missing: %s", x.Label, x.Text)
		}
	}
	id, err := f.way.Identity(f.Name, f.values)
	n.Identities = []admin.NewIdentity{id}
	return n, err
}

// read shows the agent's own description, and fills empty fields from it.
func (f *ConnectForm) read(r *admin.AgentReading) {
	f.Read = &ConnectReading{AgentReading: *r, Seen: readingSeen(r)}
	if f.Title == "" {
		f.Title = r.Agent.Title
	}
	id := r.Agent.Identities[0]
	for i := range f.Fields {
		x := &f.Fields[i]
		switch {
		case x.Value != "":
		case x.Flag == "key":
			x.Value = id.PublicKey
		case x.Flag == "id":
			x.Value = id.ID
		}
	}
	if f.way.Shows {
		for _, x := range f.join.Shown {
			f.Shown = append(f.Shown, newFieldView(x, ""))
		}
	}
}

// readingSeen is a digest of an agent's own description: an operator confirms only the description on the page.
func readingSeen(r *admin.AgentReading) string {
	b, err := json.Marshal([]any{r.Agent.Identities, r.Agent.Skills, r.Agent.Description})
	if err != nil {
		return "" // nothing confirms this
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// connectAgent adds the agent of the form. If the operator has not seen the agent's own
// description, or it has changed since, the page first shows it.
func (c *Console) connectAgent(q *request) error {
	f := c.newConnectForm(q.r.PostForm)
	n, err := f.agent()
	if err != nil {
		return err
	}
	r, err := c.admin.PreviewAgent(q.r.Context(), q.by, n)
	if err != nil {
		return err
	}
	if f.way != nil && f.way.Reads && q.r.PostFormValue("seen") != readingSeen(&r) {
		f.read(&r)
		c.render(q.w, q.r, q, "connect", "Connect an agent", &Connect{Ways: connectWays, Form: f}, http.StatusOK)
		return nil
	}
	n = r.Agent
	if f.way != nil && f.way.Shows {
		v := admin.JoinValues{}
		for _, x := range f.join.Shown {
			v[x.Flag] = strings.TrimSpace(q.r.PostFormValue(x.Flag))
		}
		if n.Identities[0].Credentials, err = f.join.Secrets(v); err != nil {
			return err
		}
	}
	l, err := c.admin.Connect(q.r.Context(), q.by, n)
	if err != nil {
		return err
	}
	q.see(connectPath(l.Agent))
	return nil
}
