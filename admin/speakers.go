package admin

import (
	"context"
	"slices"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// This file lists the agents in whose name a token may send, and the recipients that they may send to.

// maxSpeakers bounds [Speakers.Agents].
const maxSpeakers = 200

// Speakers are the agents as which a token may speak.
type Speakers struct {
	Default  string   `json:"default,omitzero"` // the sender if it names none; missing: it must name one
	Patterns []string `json:"patterns"`         // of names; "*" stands for any text within a segment, "**" for the rest
	// Those that are known: the default, the names among the patterns, and agents of the directory, at most 200.
	Agents []string `json:"agents"`
	More   int      `json:"more,omitzero"` // agents of the directory that are not listed
}

// Speakers says as which agents the actor's token may speak.
func (a *Admin) Speakers(by Actor) (Speakers, error) {
	if err := by.may(Observe); err != nil {
		return Speakers{}, err
	}
	v := Speakers{Patterns: by.speaks(), Agents: []string{}}
	v.Default, _ = by.speaker("")
	add := func(name string) {
		if name != "" && len(v.Agents) < maxSpeakers && !slices.Contains(v.Agents, name) {
			v.Agents = append(v.Agents, name)
		}
	}
	add(v.Default)
	for _, p := range v.Patterns {
		if parley.CheckName(p) == nil {
			add(p)
		}
	}
	known := len(v.Agents)
	list, more := a.c.Hub.Directory().Page("", maxSpeakers, func(e *directory.Entry) bool {
		return by.speaksAs(e.Name) && !slices.Contains(v.Agents[:known], e.Name)
	})
	v.More = more
	for i, e := range list {
		if len(v.Agents) == maxSpeakers {
			v.More += len(list) - i
			break
		}
		add(e.Name)
	}
	return v, nil
}

// speaks gives the patterns of the agents as which the actor may speak.
func (a Actor) speaks() []string {
	if len(a.Speak) == 0 {
		return []string{operatorAgent}
	}
	return a.Speak
}

func (a Actor) speaksAs(name string) bool {
	return slices.ContainsFunc(a.speaks(), func(p string) bool { return policy.Match(p, name) })
}

// callableBy makes the test of agents that an agent may send to by the API, in some skill at least.
func (a *Admin) callableBy(from string) func(*directory.Entry) bool {
	if from == "" {
		return func(*directory.Entry) bool { return true }
	}
	return func(e *directory.Entry) bool {
		return a.c.Hub.Visible(apiProtocol, from, e, "") || slices.ContainsFunc(e.Skills, func(k parley.SkillSpec) bool {
			return a.c.Hub.Visible(apiProtocol, from, e, k.ID)
		})
	}
}

// Speakers says as which agents the token may speak.
func (c *Client) Speakers(ctx context.Context) (Speakers, error) {
	return fetch[Speakers](c, ctx, "GET", "/speakers", nil, nil)
}
