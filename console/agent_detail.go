package console

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/keyring"
)

// This file makes the detail of an agent.

// AgentDetail is the chosen agent.
type AgentDetail struct {
	admin.Agent
	Paused   bool
	Trouble  *AgentTrouble
	Bindings []BindingRow
	Keys     []KeyRow
	Skills   []admin.Skill // at most shownSkills
	More     int           // further skills
	Places   []Pair        // where callers reach it, by protocol
	Rules    []RuleRow
	Least    []LeastRow
	Added    Moment
	Oldest   Moment // of the waiting messages
	Said     string // address of all its messages
	Lock     string // why its settings are not changed here; "": they are
	LockWhat string // what helps then
	File     bool   // it is configured in the file: even expose is set there

	Connecting       string // address of its checklist; ""
	AskPath, AskName string // where the dialogs' forms get their facts
	AskRemove        string
	Protocols        []ExposeChoice
	Linkable         []Pair         // protocols of further identities
	Provable         []Pair         // protocols that it speaks
	Replaceable      []Pair         // protocols in which the hub has a key for it
	Ask              *AgentQuestion // the dialog that needs facts of the hub
}

// AgentTrouble says why messages do not get to an agent.
type AgentTrouble struct {
	Sign   Sign
	Way    string // the protocol, if messages get to the agent by another one
	Since  Moment
	Reason string
	Next   Moment
	Failed int
	Open   int
	First  Moment // when the first waiting message expires
}

// BindingRow is one identity with its state.
type BindingRow struct {
	admin.AgentBinding
	Sign   Sign
	Note   string
	Losses string
}

// KeyRow is a key that proves the agent, or one of the hub's for it.
type KeyRow struct {
	Protocol    string
	Own         bool // the hub's
	ID          string
	Fingerprint string
	State       string // of the hub's
	By          string
	Age, Used   Moment
	Until       Moment
}

// RuleRow is a rule that lets agents call.
type RuleRow struct {
	From   string
	Number int
	Place  string
}

// LeastRow is the least proof that a protocol needs.
type LeastRow struct {
	Protocol string
	Proof    Proof
	Place    string
}

const (
	shownSkills = 50
	shownRules  = 20
)

// agentDetail reads an agent and its keys.
func (c *Console) agentDetail(q *request, name string, query url.Values) (*AgentDetail, error) {
	v, err := c.admin.Agent(q.r.Context(), q.by, name, 0)
	if err != nil {
		return nil, err
	}
	keys, err := c.admin.Keys(q.r.Context(), q.by, v.Name)
	if err != nil {
		return nil, err
	}
	v.Title = titleBeside(&v)
	d := &AgentDetail{Agent: v, Paused: v.State == hub.Paused,
		Added: Moment{cmp.Or(v.Origin.At, v.Added), q.now}}
	if v.Waiting != nil {
		d.Oldest = Moment{v.Waiting.Oldest, q.now}
	}
	d.Said = Base + with(nil, "agent", v.Name)
	if _, err := c.admin.Checklist(q.by, v.Name); err == nil {
		d.Connecting = connectPath(v.Name)
	}
	d.trouble(q)
	for i := range v.Bindings {
		d.Bindings = append(d.Bindings, bindingRow(q, &v.Bindings[i]))
	}
	d.Keys = keyRows(q, &keys)
	d.Skills = v.Skills[:min(len(v.Skills), shownSkills)]
	d.More = len(v.Skills) - len(d.Skills)
	for _, p := range slices.Sorted(maps.Keys(v.Addresses)) {
		d.Places = append(d.Places, Pair{p, v.Addresses[p]})
	}
	d.callers()
	d.locked()
	d.Protocols = exposeChoices(&v, v.Exposed)
	d.keyChoices()
	path, _, special := strings.Cut(agentPath(v.Name), "?m=")
	if d.AskPath = path; special {
		d.AskName = v.Name
	}
	d.AskRemove = agentLink(v.Name, query, "ask", "remove") + "#ask"
	return d, c.ask(q, d, query)
}

// Messages is the address of the messages to the agent with a further filter.
func (d *AgentDetail) Messages(filter, value string) string {
	return Base + with(nil, "to", d.Name, filter, value)
}

func (d *AgentDetail) trouble(q *request) {
	s, way := worstOf(&d.Agent)
	if s.State == hub.Ready {
		return
	}
	d.Trouble = &AgentTrouble{Sign: agentSigns[s.State], Way: way, Since: Moment{s.Since, q.now},
		Reason: strings.TrimSuffix(cut(reasonOf(s), 1024), "."), Next: Moment{s.Next, q.now}, Failed: s.Failures}
	if w := d.Waiting; w != nil {
		d.Trouble.Open, d.Trouble.First = w.Open, Moment{w.Expires, q.now}
	}
}

func bindingRow(q *request, b *admin.AgentBinding) BindingRow {
	r := BindingRow{AgentBinding: *b, Sign: agentSigns[b.State], Losses: cut(strings.Join(b.Losses, ", "), 600)}
	r.Note = joined(", ", cut(b.Text, 200), cut(reasonOf(&b.AgentState), 300), sinceWords(b.Since, q.now))
	return r
}

func keyRows(q *request, k *admin.Keys) (out []KeyRow) {
	for _, e := range k.Enrolled {
		out = append(out, KeyRow{Protocol: e.Purpose, ID: e.KeyID, Fingerprint: keyring.Fingerprint(e.Algorithm, e.Public),
			By: e.By, Age: Moment{e.Created, q.now}, Used: Moment{e.Used, q.now}})
	}
	for _, o := range k.Own {
		out = append(out, KeyRow{Protocol: o.Purpose, Own: true, ID: o.ID, By: o.By, State: string(o.State),
			Fingerprint: keyring.Fingerprint(o.Algorithm, o.Public), Age: Moment{o.Created, q.now},
			Used: Moment{o.Used, q.now}, Until: Moment{o.Until, q.now}})
	}
	return out
}

func (d *AgentDetail) callers() {
	if d.Callers == nil {
		return
	}
	for _, r := range d.Callers.Rules[:min(len(d.Callers.Rules), shownRules)] {
		d.Rules = append(d.Rules, RuleRow{r.From, r.Number, r.Place.String()})
	}
	for _, l := range d.Callers.Least {
		d.Least = append(d.Least, LeastRow{protocolName(l.Protocol), proofOf(l.Assurance), l.Place.String()})
	}
}

// locked says what is not changed here.
func (d *AgentDetail) locked() {
	switch d.Source {
	case directory.FromConfig:
		d.File, d.Lock, d.LockWhat = true, d.Origin.Text, "edit the file, then `parley config reload`"
	case directory.FromCode:
		d.Lock, d.LockWhat = "The program adds it", "change the program to remove it"
	}
}

// ExposeChoice is a protocol in which the hub may stand in for an agent.
type ExposeChoice struct {
	Name, Label string
	On          bool
}

// exposeChoices are the protocols that an agent does not speak itself.
func exposeChoices(v *admin.Agent, exposed []string) (out []ExposeChoice) {
	out = append(out, ExposeChoice{"all", "all protocols", slices.Contains(exposed, "all")})
	for _, p := range connectWays {
		if !slices.Contains(v.Native, p.Protocol) {
			out = append(out, ExposeChoice{p.Protocol, protocolName(p.Protocol), slices.Contains(exposed, p.Protocol)})
		}
	}
	return out
}
