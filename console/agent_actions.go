package console

import (
	"net/http"
	"strings"

	"github.com/parley-hub/parley"
)

// This file serves the forms of the screen Agents, except those of agent_changes.go. Package admin checks the role.

// agentRoutes are the forms.
func (c *Console) agentRoutes() {
	for path, do := range map[string]func(*request) error{"pause": c.pauseAgent, "resume": c.resumeAgent,
		"remove": c.removeAgent, "connect": c.connectAgent} {
		c.post(Base+"agents/"+path, do)
	}
	for name, change := range agentChanges {
		c.post(Base+"agents/"+name, func(q *request) error { return c.changeAgent(q, name, &change) })
	}
}

// see leads to the page of an agent.
func (q *request) see(path string) { http.Redirect(q.w, q.r, path, http.StatusSeeOther) }

// formAgent is the agent that a form names.
func formAgent(q *request) (string, error) {
	name := q.r.PostFormValue("name")
	if name == "" {
		return "", noAgent()
	}
	return name, nil
}

func (c *Console) pauseAgent(q *request) error {
	name, err := formAgent(q)
	if err != nil {
		return err
	}
	v, err := c.admin.PauseFor(q.r.Context(), q.by, name, strings.TrimSpace(q.r.PostFormValue("reason")))
	if err == nil {
		q.see(agentPath(v.Name))
	}
	return err
}

func (c *Console) resumeAgent(q *request) error {
	name, err := formAgent(q)
	if err != nil {
		return err
	}
	v, err := c.admin.Pause(q.r.Context(), q.by, name, false)
	if err == nil {
		q.see(agentPath(v.Name))
	}
	return err
}

// removeAgent removes an agent whose name was typed. If the effect is not the one that the operator read, it asks
// again.
func (c *Console) removeAgent(q *request) error {
	name, err := formAgent(q)
	if err != nil {
		return err
	}
	r, err := c.admin.RemovalPreview(q.by, name)
	if err != nil {
		return err
	}
	if typed := strings.TrimSpace(q.r.PostFormValue("typed")); typed != r.Agent {
		return parley.Refuse(parley.Malformed, "%.140q is not the name of the agent, %s: nothing was removed; go back and "+
			"type the name", typed, r.Agent)
	}
	if q.r.PostFormValue("seen") != r.Text {
		q.see(agentLink(r.Agent, nil, "ask", "remove", "changed", "1") + "#ask")
		return nil
	}
	if err := c.admin.RemoveAgent(q.r.Context(), q.by, r.Agent); err != nil {
		return err
	}
	q.see(Base + "agents")
	return nil
}
