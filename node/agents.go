package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
)

// putAgents puts the agents of the configuration into the directory.
func (n *Node) putAgents(ctx context.Context) error {
	agents, err := n.readAgents(&n.c)
	if err != nil {
		return err
	}
	n.enrollKeys(agents)
	for i, a := range agents {
		n.hub.Progress("agents of the configuration", i, len(agents))
		if err := n.putAgent(ctx, a); err != nil {
			return err
		}
	}
	n.hub.Progress("agents of the configuration", len(agents), len(agents))
	return nil
}

// enrollKeys vouches for the public keys of agents, with one write. If it fails, putAgent tries each key again, and its
// error names the agent.
func (n *Node) enrollKeys(agents []configuredAgent) {
	var keys []keyring.Enrolled
	for _, a := range agents {
		for _, e := range a.enrolments {
			keys = append(keys, e.Keys...)
		}
	}
	if err := n.keys.EnrollAll(keys...); err != nil {
		n.log.Debug("the keys of the configuration are enrolled one by one", "error", err)
	}
}

// A configuredAgent is an agent of the configuration, checked.
type configuredAgent struct {
	agent      parley.Agent
	enrolments []Enrolment
}

// readAgents checks the agents of a configuration. The directory stays as it is.
func (n *Node) readAgents(c *Config) ([]configuredAgent, error) {
	var out []configuredAgent
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		a := c.Agents[name]
		v := configuredAgent{agent: parley.Agent{Name: name, Title: a.Title, Description: a.Description,
			Exposed: c.exposed(a.Expose), Retries: a.Delivery.retries(), Record: parley.Recording(a.Record)}}
		for i := range a.Skills {
			skill, err := a.Skills[i].spec()
			if err != nil {
				return nil, fmt.Errorf("agents.%s.skills %d: %w", name, i+1, err)
			}
			v.agent.Skills = append(v.agent.Skills, skill)
		}
		if a.Inbox {
			v.agent.Identities = append(v.agent.Identities, admin.Inbox(name))
		}
		for _, b := range n.bindings {
			if b.Agent == nil {
				continue
			}
			e, err := b.Agent(name, &a)
			if err != nil {
				return nil, err
			}
			if e.Identity.Protocol != "" {
				v.agent.Identities = append(v.agent.Identities, e.Identity)
			}
			v.enrolments = append(v.enrolments, e)
		}
		out = append(out, v)
	}
	return out, nil
}

func (n *Node) putAgent(ctx context.Context, a configuredAgent) error {
	for _, e := range a.enrolments {
		if e.Before != nil {
			if err := e.Before(&a.agent); err != nil {
				return err
			}
		}
	}
	if _, err := n.directory.Put(ctx, a.agent, directory.FromConfig); err != nil {
		return fmt.Errorf("agents.%s: %w", a.agent.Name, err)
	}
	for _, e := range a.enrolments {
		if e.After != nil {
			if err := e.After(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// exposed gives the protocols in which an agent appears, by its own list and policy.expose.
func (c *Config) exposed(own []string) []string {
	if len(own) == 0 && c.Policy.Expose == "all" {
		return parley.Everywhere
	}
	return own
}

// Handle registers an agent of this process with its skills.
func (n *Node) Handle(a parley.Agent, skills ...parley.SkillSpec) error {
	a.Skills = append(slices.Clone(a.Skills), skills...)
	a.Exposed = n.live.Load().exposed(a.Exposed)
	return n.hub.Handle(a)
}

// As gives a context in which [parley.Ask], [parley.Tell] and [parley.Stream] speak for an
// agent of this program: one that Handle registered, or one of [Config.Agents] without an
// identity in a protocol. A handler needs no As: its own context speaks for its agent.
//
//	a, err := parley.Ask[Answer](n.As(ctx, "planner"), "weather", "forecast", Query{City: "Bern"})
//
// An agent elsewhere signs for itself, so no program can speak for it: the call's error
// says so. Each call begins a conversation of its own, except in a handler's context,
// where it belongs to the message that the handler works on.
func (n *Node) As(ctx context.Context, agent string) context.Context { return n.hub.As(ctx, agent) }

// hubAgents bounds the agents in one answer of the hub's skill.
const hubAgents = 1000

// registerHubAgent makes the hub an agent, too. Its skill lists the agents that
// the hub hosts, and its card at the root tells peers the key with which it signs.
func (n *Node) registerHubAgent(context.Context) error {
	type query struct {
		Filter string `json:"filter,omitempty" doc:"text in the name, title or id; with *, a pattern for one of them"`
		After  string `json:"after,omitempty" doc:"the last name of the page before"`
	}
	type agent struct {
		Name        string            `json:"name"`
		Description string            `json:"description,omitempty"`
		Addresses   map[string]string `json:"addresses" doc:"by protocol"`
	}
	type page struct {
		Agents []agent `json:"agents"`
		After  string  `json:"after,omitempty" doc:"set if more follow: ask again with it"`
	}
	list := func(_ context.Context, m *parley.Message, q query) (page, error) {
		p := m.Origin.Protocol
		matches := directory.Matcher(q.Filter)
		entries, more := n.directory.Page(q.After, hubAgents, func(e *directory.Entry) bool {
			return matches(e) && n.hub.Addresses(e)[p] != "" // else it is not exposed in the requester's protocol
		})
		out := page{Agents: []agent{}}
		for _, e := range entries {
			out.Agents = append(out.Agents, agent{e.Name, e.Description, map[string]string{p: n.hub.Addresses(e)[p]}})
		}
		if more > 0 {
			out.After = entries[len(entries)-1].Name
		}
		return out, nil
	}
	var exposed []string
	for _, p := range Protocols {
		if p.HubAgent {
			exposed = append(exposed, p.Name)
		}
	}
	return n.hub.Handle(parley.Agent{Name: samvadbridge.Root, Title: "Parley", Description: "The hub itself.",
		Exposed: exposed, Skills: []parley.SkillSpec{parley.Skill("agents", list,
			parley.Describe("Agents", "Lists the agents that this hub hosts, a thousand at a time."))}})
}
