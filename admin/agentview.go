package admin

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/policy"
)

// This file has the types by which the API shows an agent: the state of each of its identities, where it came from, and
// who may call it.

// AgentBinding is one identity of an agent with its state. Each identity of the agent's own is another way to it, and
// has a state of its own. A stand-in answers as long as the hub does.
type AgentBinding struct {
	Protocol string `json:"protocol"` // "api" for an inbox, "go" for handlers in a hub's process
	ID       string `json:"id"`
	URL      string `json:"url,omitzero"`
	StandIn  bool   `json:"standIn,omitzero"`
	AgentState
	Text string `json:"text,omitzero"` // a few words: "connected", "mailbox", "answers for it"
	// Heard is the last sign of life on the way: the agent called, fetched its messages, or greeted.
	Heard  time.Time `json:"heard,omitzero"`
	Losses []string  `json:"losses,omitzero"` // of a stand-in: what its callers say, or would be told, and is lost
}

// Place is a place in the configuration file.
type Place struct {
	File string `json:"file,omitzero"`
	Line int    `json:"line,omitzero"`
}

// AgentOrigin says where an agent came from. Agents of the configuration file have a place.
type AgentOrigin struct {
	Place
	By   string    `json:"by,omitzero"` // the operator's token; missing: not known any more
	At   time.Time `json:"at,omitzero"`
	Text string    `json:"text"` // for people: "parley.toml, line 88"
}

// Rule lets From call To. Both are patterns over directory names.
type Rule struct {
	Number int      `json:"number"` // in the order of the file, from 1
	From   string   `json:"from"`
	To     []string `json:"to"`
	Place
}

// Callers says who may call an agent.
type Callers struct {
	Open  bool    `json:"open,omitzero"` // the hub has no rules: every agent that finds this one may call it
	Rules []Rule  `json:"rules,omitzero"`
	Least []Least `json:"least,omitzero"` // by protocol in which it is reached
}

// Least is the least assurance of messages by one protocol.
type Least struct {
	Protocol  string           `json:"protocol"`
	Assurance parley.Assurance `json:"assurance"`
	Place                      // of the rule that says so; missing: a default
}

// Admission names the rule that lets a message pass, by the rules in force now. They may have changed since.
type Admission struct {
	To   string `json:"to"`
	Rule *Rule  `json:"rule,omitzero"`
	Text string `json:"text"` // "would be admitted by rule 4, parley.toml, line 41"
}

// AgentCounts counts the agents that each filter alone chooses, up to [CountLimit].
type AgentCounts struct {
	All      int `json:"all"`
	Trouble  int `json:"trouble"`
	StandIns int `json:"standIns"`
	Guests   int `json:"guests"`
}

// CountLimit is the largest count of a list: it means so many or more.
const CountLimit = 10_000

// view shows an agent as lists and answers to changes do.
func (a *Admin) view(by Actor, e *directory.Entry) Agent {
	v := viewAgent(e)
	v.AgentState, v.Delivery = a.state(by, e), viewDelivery(a.c.Hub.Schedule(e.Retries), e.Retries)
	v.Bindings, v.Origin = a.bindings(by, e), a.origin(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := a.seen[e.Name]; ok {
		v.Seen = &s
	}
	return v
}

// bindings shows the state of each identity.
func (a *Admin) bindings(by Actor, e *directory.Entry) []AgentBinding {
	out := []AgentBinding{}
	native, id := a.c.Hub.Native(e)
	for _, c := range a.c.Hub.Conditions(e) {
		b := AgentBinding{Protocol: c.Protocol, ID: c.ID, URL: c.URL, StandIn: c.StandIn, Text: c.Text, Heard: c.Heard,
			AgentState: *forActor(by, viewCondition(c.Condition))}
		if c.StandIn && a.c.Losses != nil {
			b.Losses = a.c.Losses(c.Protocol, native, id)
		}
		out = append(out, b)
	}
	return out
}

func viewCondition(c hub.Condition) *AgentState {
	return &AgentState{State: c.State, Reason: problem(c.Err), Since: c.Since, Failures: c.Failures, Next: c.Next}
}

// place gives the place of a key in the configuration file.
func (a *Admin) place(key string) Place {
	file, line := a.c.Line(key)
	return Place{file, line}
}

// String gives the place for people: "parley.toml, line 41"; "" if there is none.
func (p Place) String() string {
	if p.Line == 0 {
		return ""
	}
	return fmt.Sprintf("%s, line %d", filepath.Base(p.File), p.Line)
}

// origin says where an agent came from, as far as the directory knows.
func (a *Admin) origin(e *directory.Entry) AgentOrigin {
	o := AgentOrigin{At: e.Added}
	switch e.Source {
	case directory.FromConfig:
		o.Place = a.place("agents." + e.Name)
		o.Text = cmp.Or(o.Place.String(), "the configuration")
	case directory.FromCode:
		o.Text = "the program"
	case directory.FromOperator:
		o.Text = "an operator"
	case directory.FromAgent:
		o.Text = "registered itself, over a connection that the operator configured"
	case directory.FromGuest:
		o.Text = "registered itself"
	default:
		o.Text = string(e.Source)
	}
	return o
}

// notChanged is [fromDirectory] for a change of an agent. If it is configured in a file, the error names the line.
func (a *Admin) notChanged(name string, err error) error {
	code := parley.Forbidden
	switch {
	case errors.Is(err, directory.ErrTaken):
		code = parley.Conflict
	case !errors.Is(err, directory.ErrReadOnly):
		return fromDirectory(err)
	}
	if at := a.place("agents." + name).String(); at != "" {
		return parley.Refuse(code, "agent %s is configured in %s: edit the file, then parley config reload", name, at)
	}
	return fromDirectory(err)
}

// detail adds what only the answer for one agent has.
func (a *Admin) detail(v *Agent, e *directory.Entry) {
	v.Callers = a.callers(e)
	if e.Source != directory.FromOperator {
		return
	}
	for _, entry := range a.audit.list(AuditFilter{Action: "agent.add", Target: e.Name}) { // the newest first
		if entry.Outcome == "done" {
			v.Origin.By, v.Origin.At = entry.Actor, entry.Time
			v.Origin.Text = "operator " + entry.Actor
			return
		}
	}
}

func viewRule(i int, r policy.Rule) Rule {
	return Rule{Number: i + 1, From: r.From, To: r.To, Place: Place(r.Place)}
}

// String names a rule for people: "rule 4, parley.toml, line 41".
func (r *Rule) String() string {
	text := fmt.Sprintf("rule %d", r.Number)
	if at := r.Place.String(); at != "" {
		text += ", " + at
	}
	return text
}

// callers says who may call an agent, by the rules in force.
func (a *Admin) callers(e *directory.Entry) *Callers {
	p := a.c.Hub.Policy()
	c := &Callers{Open: len(p.Rules()) == 0}
	for _, i := range p.Callers(&e.Agent) {
		c.Rules = append(c.Rules, viewRule(i, p.Rules()[i]))
	}
	native := e.Native()
	for _, b := range a.c.Hub.Bindings() {
		if protocol := b.Protocol(); slices.Contains(native, protocol) || e.ExposedIn(protocol) {
			least, place := p.LeastOf(e.Name, protocol)
			c.Least = append(c.Least, Least{protocol, least, Place(place)})
		}
	}
	return c
}

// admissions names the rules that let a message pass now, for each recipient that needs one.
func (a *Admin) admissions(m *parley.Message) (out []Admission) {
	p := a.c.Hub.Policy()
	for _, to := range m.Recipients() {
		e, ok := a.c.Hub.Directory().Agent(to)
		if !ok {
			continue
		}
		i, needed := p.RuleOf(m, &e.Agent)
		switch {
		case !needed:
		case i < 0:
			out = append(out, Admission{To: to, Text: "no rule would admit it now"})
		default:
			r := viewRule(i, p.Rules()[i])
			out = append(out, Admission{To: to, Rule: &r, Text: "would be admitted by " + r.String()})
		}
	}
	return out
}
