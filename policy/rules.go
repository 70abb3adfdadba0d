package policy

import (
	"slices"

	"github.com/parley-hub/parley"
)

// This file tells operators what the rules say about an agent.

// Rules are those by which agents may call others; none: all may call all. The result is shared: do not change it.
func (p *Policy) Rules() []Rule { return p.c.Allow }

// ruleFor finds the first rule by which an agent may call another one, or its skill; -1: none.
func (p *Policy) ruleFor(from, to, skill string) int {
	return slices.IndexFunc(p.c.Allow, func(r Rule) bool { return Match(r.From, from) && matchAny(r.To, to, skill) })
}

// RuleOf gives the index in [Policy.Rules] of the rule that permits a message to an agent; -1: none does. A message
// needs one if it is a request, a notice, an input or a cancel, and there are rules: needed reports that.
func (p *Policy) RuleOf(m *parley.Message, a *parley.Agent) (rule int, needed bool) {
	if len(p.c.Allow) == 0 || isReply(m) {
		return -1, false
	}
	return p.ruleFor(m.From, a.Name, skillOf(m, a)), true
}

// Callers gives the indexes in [Policy.Rules] of the rules by which others may call an agent, or one of its skills.
func (p *Policy) Callers(a *parley.Agent) (rules []int) {
	for i, r := range p.c.Allow {
		if matchAny(r.To, a.Name, "") ||
			slices.ContainsFunc(a.Skills, func(s parley.SkillSpec) bool { return matchAny(r.To, a.Name, s.ID) }) {
			rules = append(rules, i)
		}
	}
	return rules
}

// LeastOf gives the least assurance of messages of a protocol to an agent, and where a rule of its own says so.
func (p *Policy) LeastOf(agent, protocol string) (parley.Assurance, Place) {
	_, own := p.c.Assurance[agent]
	if !own && protocol != "go" {
		for _, l := range p.c.Least {
			if l.names(agent, protocol) {
				return l.Assurance, l.Place
			}
		}
	}
	return p.least(agent, protocol), Place{}
}

// names reports whether the least assurance is for messages of a protocol to an agent.
func (l *Least) names(agent, protocol string) bool {
	return (l.Protocol == "" || l.Protocol == protocol) && matchAny(l.To, agent, "")
}
