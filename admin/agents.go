package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// This file lists agents: by name, or those in trouble first.

// inTrouble is the filter State and the Order of agents that are not ready.
const inTrouble = "trouble"

// Agents lists agents of the directory.
func (a *Admin) Agents(_ context.Context, by Actor, f AgentFilter) (AgentPage, error) {
	if err := cmp.Or(by.may(Observe), f.check()); err != nil {
		return AgentPage{}, err
	}
	limit := min(f.Limit, index.MaxLimit)
	if limit <= 0 {
		limit = 100
	}
	page := AgentPage{Agents: []Agent{}, HeardSince: a.begun}
	var entries []*directory.Entry
	if f.Order == inTrouble {
		entries, page.More = a.troubledPage(&f, limit)
		page.Counts = a.countAgents()
	} else {
		entries, page.More = a.c.Hub.Directory().Page(f.Cursor, limit, a.chooser(&f))
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name
	}
	backlogs := a.c.Hub.Journal().Backlogs(names)
	for _, e := range entries {
		v := a.view(by, e)
		v.Waiting = viewBacklog(backlogs[e.Name])
		page.Agents = append(page.Agents, v)
	}
	if page.More > 0 {
		last := entries[len(entries)-1]
		page.Next = last.Name
		if f.Order == inTrouble {
			page.Next = troublePlaceOf(last, a.c.Hub.Worst(last)).cursor()
		}
	}
	return page, nil
}

// AgentNames gives the first names of the directory, without anything else of the agents: suggestions where one is
// written.
func (a *Admin) AgentNames(by Actor, most int) (names []string, err error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	page, _ := a.c.Hub.Directory().Page("", most, func(*directory.Entry) bool { return true })
	for _, e := range page {
		names = append(names, e.Name)
	}
	return names, nil
}

func viewBacklog(b journal.Backlog) *Waiting {
	return &Waiting{Open: b.Open, Dead: b.Dead, Oldest: b.Oldest, Expires: b.Expires}
}

// check refuses what no page has.
func (f *AgentFilter) check() error {
	states := []string{inTrouble, string(hub.Ready), string(hub.Paused), string(hub.Unreachable), string(hub.Failing),
		string(hub.Postponed), string(hub.NotConnected), string(hub.NoReader)}
	switch {
	case f.State != "" && !slices.Contains(states, f.State):
		return parley.Refuse(parley.Malformed, "state=%.40q: want one of %s", f.State, strings.Join(states, ", "))
	case f.Order != "" && f.Order != "name" && f.Order != inTrouble:
		return parley.Refuse(parley.Malformed, "order=%.40q: want name or trouble", f.Order)
	case f.Cursor == "":
		return nil
	}
	err := parley.CheckName(f.Cursor)
	if f.Order == inTrouble {
		_, err = readPlace(f.Cursor)
	}
	if err != nil {
		return parley.Refuse(parley.Malformed, "%.40q is not a cursor that this hub gave", f.Cursor)
	}
	return nil
}

// chooser makes the test of a filter.
func (a *Admin) chooser(f *AgentFilter) func(*directory.Entry) bool {
	named, asked, callable := directory.Matcher(f.Filter), a.asked(f.Q), a.callableBy(f.CallableBy)
	return func(e *directory.Entry) bool {
		switch {
		case f.Guest && e.Source != directory.FromGuest, f.StandIn && !a.hasStandIn(e),
			f.Protocol != "" && !slices.Contains(e.Native(), f.Protocol):
			return false
		case !named(e) || !asked(e) || !callable(e):
			return false
		case f.State == "":
			return true
		}
		state := a.c.Hub.Worst(e)
		return f.State == string(state) || f.State == inTrouble && state != hub.Ready
	}
}

// asked makes the test for [AgentFilter.Q].
func (a *Admin) asked(q string) func(*directory.Entry) bool {
	if q == "" {
		return func(*directory.Entry) bool { return true }
	}
	q = strings.ToLower(q)
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(strings.ToLower(s), q) })
	}
	keyed := map[string]bool{} // agents with such a key
	for _, k := range a.c.Keys.List() {
		keyed[k.Owner] = keyed[k.Owner] || has(k.ID, keyring.Fingerprint(k.Algorithm, k.Public))
	}
	for _, k := range a.c.Keys.AllEnrolled() {
		keyed[k.Agent] = keyed[k.Agent] || has(k.KeyID, keyring.Fingerprint(k.Algorithm, k.Public))
	}
	return func(e *directory.Entry) bool {
		return keyed[e.Name] || has(e.Name, e.Title) ||
			slices.ContainsFunc(e.Identities, func(i parley.Identity) bool { return has(i.ID, i.URL, i.Key) }) ||
			slices.ContainsFunc(e.Skills, func(s parley.SkillSpec) bool { return has(s.ID, s.Name) })
	}
}

// hasStandIn reports whether the hub stands in for an agent in some protocol.
func (a *Admin) hasStandIn(e *directory.Entry) bool {
	if len(e.Exposed) == 0 {
		return false
	}
	native := e.Native()
	return slices.ContainsFunc(a.c.Protocols, func(p Protocol) bool {
		return e.ExposedIn(p.Name) && !slices.Contains(native, p.Name)
	})
}

// severity orders states, the worst first.
var severity = []hub.AgentState{hub.Unreachable, hub.Failing, hub.Postponed, hub.NotConnected, hub.NoReader, hub.Paused,
	hub.Ready}

// A troublePlace is the place of an agent in the order "trouble". Agents whose state stays are on one page each, also
// while others change theirs.
type troublePlace struct {
	severity int
	name     string
}

func troublePlaceOf(e *directory.Entry, s hub.AgentState) troublePlace {
	return troublePlace{slices.Index(severity, s), e.Name}
}

func (p troublePlace) compare(o troublePlace) int {
	return cmp.Or(cmp.Compare(p.severity, o.severity), cmp.Compare(p.name, o.name))
}

func (p troublePlace) cursor() string { return fmt.Sprintf("%d:%s", p.severity, p.name) }

func readPlace(cursor string) (p troublePlace, err error) {
	n, name, _ := strings.Cut(cursor, ":")
	if p.severity, err = strconv.Atoi(n); err != nil || p.severity < 0 || p.severity >= len(severity) {
		return p, strconv.ErrRange
	}
	p.name = name
	return p, parley.CheckName(name)
}

// troubledPage is a page in the order "trouble".
func (a *Admin) troubledPage(f *AgentFilter, limit int) (page []*directory.Entry, more int) {
	after, _ := readPlace(f.Cursor) // it was checked
	chosen := a.chooser(f)
	type placed struct {
		troublePlace
		e *directory.Entry
	}
	var list []placed
	for _, e := range a.c.Hub.Directory().All() {
		if !chosen(e) {
			continue
		}
		p := troublePlaceOf(e, a.c.Hub.Worst(e))
		if f.Cursor == "" || p.compare(after) > 0 {
			list = append(list, placed{p, e})
		}
	}
	slices.SortFunc(list, func(x, y placed) int { return x.compare(y.troublePlace) })
	for _, p := range list[:min(limit, len(list))] {
		page = append(page, p.e)
	}
	return page, len(list) - len(page)
}

// countAgents counts the agents of each filter.
func (a *Admin) countAgents() *AgentCounts {
	var c AgentCounts
	for _, e := range a.c.Hub.Directory().All() {
		c.All++
		c.StandIns += count(a.hasStandIn(e))
		c.Guests += count(e.Source == directory.FromGuest)
		if c.Trouble < CountLimit {
			c.Trouble += count(a.c.Hub.Worst(e) != hub.Ready)
		}
	}
	c.All, c.StandIns, c.Guests = min(c.All, CountLimit), min(c.StandIns, CountLimit), min(c.Guests, CountLimit)
	return &c
}
