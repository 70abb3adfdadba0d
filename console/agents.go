package console

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// This file makes the list of the screen Agents: those in trouble first. Beside it stands the chosen agent.

// Agents is the content of the screen.
type Agents struct {
	Filters  Filters
	Heading  string
	Rows     []AgentRow
	Shown    int
	More     int    // agents behind this page
	Older    string // address of the next page; ""
	Newest   string // address of the first page; ""
	Empty    *Empty
	Since    Moment // from which agents are heard of
	Detail   *AgentDetail
	ListLink string // of the list without filters
}

// AgentRow is one agent of the list.
type AgentRow struct {
	ID, Name, Link string
	Title          string // and, of an agent that was not added, its origin
	State          Sign   // its worst way
	Note           string // reason, and how long already
	Itself         string // protocols that it speaks
	StandIns       string // protocols in which the hub stands in for it
	Heard          Moment
	Proof          Proof // "": it was there, and sent nothing
	Open, Dead     int
	Count          string // class of the numbers
	Oldest         Moment
	Bad, Selected  bool
	Start          Moment // from which agents are heard of
}

// agentParameters are those of the screen. ask, changed and the fields of [agentChanges] belong to its dialogs.
var agentParameters = []string{"q", "state", "protocol", "standin", "guest"}

// agentFilter reads the filter of the list.
func agentFilter(u url.Values) (f admin.AgentFilter, q url.Values, err error) {
	if q, err = known(u, append([]string{"before", "m"}, agentParameters...)...); err != nil {
		return f, q, err
	}
	return admin.AgentFilter{Q: q.Get("q"), State: q.Get("state"), Protocol: q.Get("protocol"),
		StandIn: q.Get("standin") != "", Guest: q.Get("guest") != "", Order: "trouble", Cursor: q.Get("before"),
		Limit: pageRows}, q, nil
}

// agents is the screen Agents.
func (c *Console) agents(q *request) (any, error) {
	f, query, err := agentFilter(q.r.URL.Query())
	if err != nil {
		return nil, err
	}
	page, err := c.admin.Agents(q.r.Context(), q.by, f)
	if err != nil {
		return nil, err
	}
	out := &Agents{Shown: len(page.Agents), More: page.More, Since: Moment{page.HeardSince, q.now},
		ListLink: Base + "agents"}
	chosen := cmp.Or(query.Get("m"), q.r.PathValue("name"))
	if chosen == "" && len(page.Agents) > 0 {
		chosen = page.Agents[0].Name
	}
	if chosen != "" {
		if out.Detail, err = c.agentDetail(q, chosen, query); err != nil {
			return nil, err
		}
		chosen = out.Detail.Name
	}
	for i := range page.Agents {
		out.Rows = append(out.Rows, agentRow(&page.Agents[i], q.now, chosen, query))
		out.Rows[i].Start = Moment{page.HeardSince, q.now}
	}
	out.Filters, out.Heading = agentFilters(query, page.Counts), agentHeading(page.Counts)
	if page.Next != "" {
		out.Older = agentsWith(query, "before", page.Next)
	}
	if f.Cursor != "" {
		out.Newest = agentsWith(query)
	}
	if len(out.Rows) == 0 && f.Cursor == "" {
		out.Empty, err = c.noAgents(q, query, page.Counts)
	}
	query.Set("m", chosen)
	q.live("agents", query)
	q.stream.Set("have", digest(out.liveRows()))
	return out, err
}

// agentsWith is the address of the list with another filter: it chooses no agent.
func agentsWith(q url.Values, pairs ...string) string {
	return strings.TrimSuffix(Base+"agents"+with(q, pairs...), "?")
}

// agentPath is the address of an agent. Names that begin as those of other pages are a parameter.
func agentPath(name string) string {
	if name == "connect" || strings.HasPrefix(name, "connect/") {
		return Base + "agents?m=" + url.QueryEscape(name)
	}
	return (&url.URL{Path: Base + "agents/" + name}).String()
}

// agentLink is the address of an agent beside the same list. pairs are further parameters.
func agentLink(name string, q url.Values, pairs ...string) string {
	pairs = append(pairs, "before", q.Get("before"))
	path, _, ok := strings.Cut(agentPath(name), "?m=")
	if ok {
		pairs = append(pairs, "m", name)
	}
	return strings.TrimSuffix(path+with(q, pairs...), "?")
}

// agentSigns are the signs of agents' states.
var agentSigns = map[hub.AgentState]Sign{
	hub.Ready:        {"quiet", "check", "ready"},
	hub.Paused:       {"waiting", "pause", "paused"},
	hub.Unreachable:  {"bad", "x", "not reached"},
	hub.Failing:      {"bad", "x", "fails"},
	hub.Postponed:    {"waiting", "clock", "asked to wait"},
	hub.NotConnected: {"waiting", "clock", "not connected"},
	hub.NoReader:     {"waiting", "clock", "nobody reads"},
}

// worstOf is the worst state of an agent: its own or, if that is ready, that of one of its ways. text are a few words
// about the way that a ready agent has.
func worstOf(v *admin.Agent) (s *admin.AgentState, text string) {
	if v.State != hub.Ready {
		return &v.AgentState, ""
	}
	for i := range v.Bindings {
		if b := &v.Bindings[i]; !b.StandIn && b.State != hub.Ready {
			return &b.AgentState, protocolName(b.Protocol)
		}
	}
	for i := range v.Bindings {
		if b := &v.Bindings[i]; !b.StandIn {
			return &b.AgentState, b.Text
		}
	}
	return &v.AgentState, ""
}

// reasonOf is the reason of a state in one line.
func reasonOf(s *admin.AgentState) string {
	switch p := s.Reason; {
	case s.State == hub.Paused:
		words := ""
		if s.PausedBy != "" {
			words = "by " + s.PausedBy
		}
		if s.PausedWhy != "" {
			words = strings.TrimPrefix(words+", “"+cut(s.PausedWhy, 512)+"”", ", ")
		}
		return words
	case p != nil:
		return cmp.Or(p.Detail, p.Text, strings.ReplaceAll(string(cmp.Or(string(p.Reason), string(p.Code))), "_", " "))
	}
	return ""
}

// sinceWords writes for how long a state has lasted.
func sinceWords(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return ago(now.Sub(since))
}

// joined joins the texts that are not empty.
func joined(sep string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), sep)
}

// titleBeside is the title of an agent, unless its name says the same.
func titleBeside(v *admin.Agent) string {
	if strings.EqualFold(v.Title, v.Name) {
		return ""
	}
	return v.Title
}

func agentRow(v *admin.Agent, now time.Time, chosen string, query url.Values) AgentRow {
	s, text := worstOf(v)
	r := AgentRow{ID: "a-" + v.Name, Name: v.Name, Link: agentLink(v.Name, query), Title: first(titleBeside(v), sayRunes),
		State: agentSigns[s.State], Selected: v.Name == chosen, Count: "dim"}
	r.Note = joined(", ", first(text, sayRunes), first(reasonOf(s), sayRunes), sinceWords(s.Since, now))
	r.Bad = r.State.Class == "bad"
	switch v.Source {
	case directory.FromGuest:
		r.Title = joined(" · ", r.Title, "registered itself")
	case directory.FromCode:
		r.Title = joined(" · ", r.Title, "in a hub’s process")
	}
	var itself, standIns []string
	for _, b := range v.Bindings {
		if name := protocolName(b.Protocol); b.StandIn {
			standIns = append(standIns, name)
		} else {
			itself = append(itself, name)
		}
		if b.Heard.After(r.Heard.At) {
			r.Heard = Moment{b.Heard, now}
		}
	}
	r.Itself, r.StandIns = strings.Join(slices.Compact(itself), ", "), strings.Join(slices.Compact(standIns), ", ")
	if v.Seen != nil && !v.Seen.Time.Before(r.Heard.At) {
		r.Heard, r.Proof = Moment{v.Seen.Time, now}, proofOf(v.Seen.Assurance)
	}
	if w := v.Waiting; w != nil {
		r.Open, r.Dead, r.Oldest = w.Open, w.Dead, Moment{w.Oldest, now}
	}
	switch {
	case r.Dead > 0:
		r.Count = "bad"
	case r.Open > 0 && s.State != hub.Ready && s.State != hub.Paused:
		r.Count = "waiting"
	case r.Open > 0:
		r.Count = ""
	}
	return r
}

// upTo writes a count that ends at a bound.
func upTo(n int) string { return countWords(admin.Count{Number: n, More: n >= admin.CountLimit}) }

func agentHeading(n *admin.AgentCounts) string {
	if n == nil || n.Trouble == 0 {
		return ""
	}
	return upTo(n.Trouble) + " of " + upTo(n.All) + " in trouble"
}

// agentFilterWords describes a filter of the list.
func agentFilterWords(name, value string) string {
	switch name {
	case "q":
		return cut(value, 40)
	case "standin":
		return "with stand-ins"
	case "guest":
		return "guests"
	case "state":
		if value == "trouble" {
			return "in trouble"
		}
		return cmp.Or(agentSigns[hub.AgentState(value)].Word, cut(value, 40))
	case "protocol":
		return "speaks " + protocolName(value)
	}
	return filterWords(name, value)
}

func agentFilters(query url.Values, n *admin.AgentCounts) Filters {
	f := Filters{Search: &Search{"q", "Search agents", "Name, address, key, skill", Base + "agents"}, Text: query.Get("q"),
		Q: query}
	if n == nil {
		n = &admin.AgentCounts{}
	}
	none := []string{"state", "", "standin", "", "guest", ""}
	on := query.Get("state") + query.Get("standin") + query.Get("guest")
	for _, s := range []struct {
		name, label, key, value string
		count                   int
	}{{"", "All", "", "", n.All}, {"trouble", "In trouble", "state", "trouble", n.Trouble},
		{"standin", "With stand-ins", "standin", "1", n.StandIns}, {"guest", "Guests", "guest", "1", n.Guests}} {
		v := Choice{Label: s.label, Name: s.name, Count: upTo(s.count), On: on == "", Link: agentsWith(query, none...)}
		if s.key != "" {
			v.On, v.Link = query.Get(s.key) == s.value, agentsWith(query, append(slices.Clone(none), s.key, s.value)...)
		}
		v.Key = keyTo(s.name == "trouble", s.name == "", query.Get("state") == "trouble")
		f.Show = append(f.Show, v)
	}
	names := []string{"protocol"}
	if s := query.Get("state"); s != "trouble" {
		names = append(names, "state")
	}
	for _, name := range names {
		if v := query.Get(name); v != "" {
			f.Chips = append(f.Chips, Chip{agentFilterWords(name, v), agentsWith(query, name, "")})
		}
	}
	spoken := slices.DeleteFunc(protocolChoices(), func(p [2]string) bool { return p[0] == "go" }) // it is no identity
	m := menu(query, "protocol", "Speaks", spoken...)
	for i := range m.Choices {
		m.Choices[i].Link = agentsWith(query, "protocol", m.Choices[i].Name)
	}
	f.Menus = []Menu{m}
	return f
}

// noAgents says which filters hide the agents.
func (c *Console) noAgents(q *request, query url.Values, n *admin.AgentCounts) (*Empty, error) {
	e := &Empty{New: n == nil || n.All == 0, All: agentsWith(nil)}
	if e.New {
		return e, nil
	}
	e.Total = upTo(n.All)
	var err error
	e.Hiding, err = hiding(query, agentParameters, agentFilterWords, func(without url.Values) (string, error) {
		f, _, err := agentFilter(without)
		if err != nil {
			return "", err
		}
		f.Limit = 1
		page, err := c.admin.Agents(q.r.Context(), q.by, f)
		return grouped(int64(len(page.Agents) + page.More)), err
	})
	for i := range e.Hiding {
		e.Hiding[i].Link = agentsWith(query, e.Hiding[i].Name, "")
	}
	return e, err
}

// noAgent refuses a form without the name of an agent.
func noAgent() error {
	return parley.Refuse(parley.Malformed, "the form names no agent; reload its page")
}
