package console

import (
	"net/url"
	"slices"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/readable"
)

// This file shows the checklists of agents that are being connected. The hub does the steps; the page shows them.

// connectWays are the commands that add an agent, by protocol.
var connectWays = []ConnectWay{
	{"samvad", []string{"--samvad https://agent.example", "--id agent://caller.example --key BASE64"},
		"by its address; or by its identity and key, if it only calls"},
	{"uagents", []string{"--uagents agent1q…"}, "by its address"},
	{"a2e", []string{"--a2e new", "--a2e https://host.example/a2e"},
		"one that connects to the hub; or a host whose tools are its skills"},
	{"agh", []string{"--agh WORKSPACE/PEER"}, "a peer of a workspace"},
	{"asp", []string{"--asp card.json"}, "by its card"},
	{"a2a", []string{"--a2a https://agent.example", "--a2a new"}, "by its URL; or one that only calls"},
	{"mcp", []string{"--mcp https://server.example/mcp", "--mcp-attached", "--mcp-calls"},
		"a server by its URL; one that parley mcp attach joins; or a client"},
}

// A ConnectWay says how an agent of a protocol is added.
type ConnectWay struct {
	Protocol string
	Flags    []string
	How      string
}

// commands are those that add an agent.
func (w *ConnectWay) commands(name string) (out []string) {
	for _, f := range w.Flags {
		out = append(out, "parley agents add "+name+" "+f+" --wait 2m")
	}
	return out
}

// Commands are those for an agent that has no name yet.
func (w ConnectWay) Commands() []string { return w.commands("NAME") }

// Connect is the content of the pages: the checklists, or one.
type Connect struct {
	Lists []ChecklistView
	One   *ChecklistView
	Ways  []ConnectWay
	Form  *ConnectForm
}

// ChecklistView is a checklist as a page shows it.
type ChecklistView struct {
	admin.Checklist
	Link     string // of its page
	Path     string // of the agent
	Remove   string // of the dialog that removes it
	Sign     Sign
	Since    Moment
	Steps    []StepView
	Polls    bool     // the page looks again
	Commands []string // with the effect of the form
}

// A PasteGroup are the lines for one purpose.
type PasteGroup struct {
	Why   string
	Lines []admin.Paste
}

// Pasted are the lines to enter at the agent's side, by purpose.
func (v *ChecklistView) Pasted() []PasteGroup { return pasteGroups(v.Paste) }

func pasteGroups(lines []admin.Paste) (out []PasteGroup) {
	for _, p := range lines {
		if n := len(out); n == 0 || out[n-1].Why != p.Why {
			out = append(out, PasteGroup{Why: p.Why})
		}
		g := &out[len(out)-1]
		g.Lines = append(g.Lines, p)
	}
	return out
}

// StepView is one of the seven steps.
type StepView struct {
	admin.ConnectStep
	Number      int
	Class, Icon string
	Title       string
	At          Moment
	Word        string // beside the title
}

// stepTitles name the steps for people.
var stepTitles = map[admin.ConnectStepName]string{
	admin.StepProtocol:     "What it speaks",
	admin.StepAddress:      "Where it is, and its name here",
	admin.StepReached:      "Reached",
	admin.StepCard:         "Card read, key enrolled",
	admin.StepHubKey:       "It has the hub’s key",
	admin.StepFirstMessage: "First proved message from it",
	admin.StepAnswered:     "First message to it, answered",
}

// listSigns are the signs of a checklist.
var listSigns = map[admin.StepState]Sign{
	admin.StepDone:    {"quiet", "check", "connected"},
	admin.StepWaiting: {"waiting", "clock", "waiting"},
	admin.StepFailed:  {"bad", "x", "failed"},
	admin.StepGaveUp:  {"waiting", "clock", "the hub waits no longer"},
}

func connectPath(name string) string {
	return (&url.URL{Path: Base + "agents/connect/" + name}).String()
}

// connect lists the checklists, and says how an agent is added.
func (c *Console) connect(q *request) (any, error) {
	list, err := c.admin.Checklists(q.by)
	if err != nil {
		return nil, err
	}
	out := &Connect{Ways: connectWays, Form: c.newConnectForm(q.r.URL.Query())}
	if f := out.Form; f.way != nil && f.way.Token {
		if f.Token, f.TokenID, err = f.join.NewToken(); err != nil {
			return nil, err
		}
	}
	for i := range list {
		out.Lists = append(out.Lists, checklistView(&list[i], q.now))
	}
	return out, nil
}

// checklist is the page of one checklist.
func (c *Console) checklist(q *request) (any, error) {
	l, err := c.admin.Checklist(q.by, q.r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	v := checklistView(&l, q.now)
	v.Commands, err = c.addedBy(q, &l)
	return &Connect{One: &v}, err
}

// addedBy are the commands with the effect of the form.
func (c *Console) addedBy(q *request, l *admin.Checklist) ([]string, error) {
	i := slices.IndexFunc(connectWays, func(w ConnectWay) bool { return w.Protocol == l.Protocol })
	if i < 0 {
		return nil, nil
	}
	w := connectWays[i]
	a, err := c.admin.Agent(q.r.Context(), q.by, l.Agent, 0)
	if err != nil {
		return nil, err
	}
	for _, id := range a.Identities {
		if id.Protocol == "samvad" && l.Protocol == "samvad" && !id.StandIn && id.URL != "" {
			w.Flags = []string{readable.ShellWords("--samvad", id.URL)}
		}
	}
	return w.commands(l.Agent), nil
}

func checklistView(l *admin.Checklist, now time.Time) ChecklistView {
	v := ChecklistView{Checklist: *l, Link: connectPath(l.Agent), Path: agentPath(l.Agent),
		Remove: agentLink(l.Agent, nil, "ask", "remove") + "#ask", Sign: listSigns[l.State], Since: Moment{l.Begun, now}}
	open := l.State == admin.StepWaiting || l.State == admin.StepFailed
	v.Polls = open && now.Before(l.Ends)
	next, failed := true, false // the first waiting step is the one at hand
	for i, s := range l.Steps {
		x := StepView{ConnectStep: s, Number: i + 1, Title: stepTitles[s.Step], At: Moment{s.Time, now}, Class: "later"}
		if s.Step == admin.StepProtocol {
			if x.Detail = protocolName(s.Detail); s.Detail == inbox {
				x.Detail = "it reads an inbox at the hub"
			}
		}
		at := ""
		if !s.Time.IsZero() {
			at = x.At.Seconds()
		}
		switch s.State {
		case admin.StepDone:
			x.Class, x.Icon, x.Word = "done", "check", joined(" · ", at, took(time.Duration(s.Micros)*time.Microsecond))
		case admin.StepFailed:
			failed = true
			x.Class, x.Icon, x.Word = "failed", "x", joined(" · ", "failed", at)
			v.Sign.Word = "failed at step " + grouped(int64(i+1))
		case admin.StepNotNeeded:
			x.Icon, x.Word = "dot", "not needed"
		case admin.StepGaveUp:
			x.Icon, x.Word = "clock", "gave up"
		case admin.StepWaiting:
			stuck := failed && (s.Step == admin.StepCard || s.Step == admin.StepHubKey) // it needs the step that failed
			if x.Word = "later"; next && !stuck {
				x.Class, x.Word, next = "now", "waiting, "+v.Since.Ago(), false
			}
		}
		v.Steps = append(v.Steps, x)
	}
	return v
}
