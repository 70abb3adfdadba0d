package console

import (
	"cmp"
	"slices"
	"strings"
)

// This file gives the agents of a history their lanes.

// laneOf is the lane of an agent; -1 for none.
func (b *builder) laneOf(name string) int {
	if i, ok := b.lane[name]; ok {
		return i
	}
	return -1
}

// lanes chooses the lanes: the initiator is left, and the busiest agents are next to the hub. An agent that exchanges
// messages with one side gets a lane on the other.
func (b *builder) lanes() {
	g := b.traffic()
	b.agents = len(g.names)
	if b.agents == 0 {
		return
	}
	order := slices.Clone(g.names)
	initiator := order[0]
	slices.SortStableFunc(order[1:], func(x, y string) int { return cmp.Compare(g.count[y], g.count[x]) })
	var others []string
	if len(order) > maxLanes {
		others, order = order[maxLanes-1:], order[:maxLanes-1]
	}
	n := len(order) + min(len(others), 1)
	var left, right []string
	left = append(left, initiator)
	maxRight, maxLeft := n-max(1, n*2/5), (n+1)/2
	for _, name := range order[1:] {
		l, r := 0, 0
		for _, x := range left {
			l += g.pairs[[2]string{name, x}]
		}
		for _, x := range right {
			r += g.pairs[[2]string{name, x}]
		}
		if (l >= r && len(right) < maxRight) || len(left) >= maxLeft {
			right = append(right, name)
		} else {
			left = append(left, name)
		}
	}
	busier := func(x, y string) int { return cmp.Compare(g.count[y], g.count[x]) }
	slices.SortStableFunc(left, busier)
	slices.SortStableFunc(right, busier)
	slices.Reverse(left)
	b.s.Left = len(left)
	for _, name := range append(left, right...) {
		b.lane[name] = len(b.s.Lanes)
		b.s.Lanes = append(b.s.Lanes, laneFor(name, g.protocol[name], g.proof[name]))
	}
	if len(others) > 0 {
		for _, name := range others {
			b.lane[name] = len(b.s.Lanes)
		}
		slices.Sort(others)
		b.s.Lanes = append(b.s.Lanes, Lane{Name: "others", Protocol: plural(len(others), "agent", "agents"),
			Agents: others,
			Title:  strings.Join(others, ", ")})
	}
}

// laneFor makes the lane of one agent.
func laneFor(name, protocol string, proof Proof) Lane {
	l := Lane{Name: name, Protocol: protocolName(protocol), Agents: []string{name}, Title: name}
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		l.Group, l.Name = name[:i+1], name[i+1:]
		if j := strings.IndexByte(l.Group, '/'); j < len(l.Group)-1 {
			l.Group = l.Group[:j+1]
		}
	}
	for _, s := range []string{l.Protocol, string(proof)} {
		if s != "" {
			l.Title += ", " + s
		}
	}
	return l
}

// traffic counts the messages between each two agents.
type traffic struct {
	names    []string // in the order of their first message
	count    map[string]int
	pairs    map[[2]string]int
	protocol map[string]string
	proof    map[string]Proof
}

func (b *builder) traffic() *traffic {
	g := &traffic{count: map[string]int{}, pairs: map[[2]string]int{}, protocol: map[string]string{},
		proof: map[string]Proof{}}
	add := func(name string) {
		if name == "" {
			return
		}
		if g.count[name]++; g.count[name] == 1 {
			g.names = append(g.names, name)
		}
	}
	for i := range b.h.said {
		x := &b.h.said[i]
		if x.refusal != nil {
			continue
		}
		m := x.Summary
		add(m.From)
		g.protocol[m.From], g.proof[m.From] = cmp.Or(m.Protocol, g.protocol[m.From]), proofOf(m.Assurance)
		to := []string{m.To}
		for j := range m.Deliveries {
			d := &m.Deliveries[j]
			if d.To != m.To {
				to = append(to, d.To)
			}
			g.protocol[d.To] = cmp.Or(g.protocol[d.To], d.Protocol)
		}
		for _, name := range to {
			add(name)
			g.pairs[[2]string{m.From, name}]++
			g.pairs[[2]string{name, m.From}]++
		}
	}
	return g
}
