package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/uagents"
)

// meetUAgent makes the identity of a uAgent: its address is its key.
func meetUAgent(s adding) (admin.NewIdentity, error) {
	id := admin.NewIdentity{Protocol: "uagents", ID: uagents.ParseIdentifier(s.uagents).Address, URL: s.endpoint}
	if _, err := uagents.ParseAddress(id.ID); err != nil {
		return id, usage("--uagents %q: want agent1q…, 65 characters", s.uagents)
	}
	if u, err := url.Parse(s.endpoint); s.endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return id, usage("--endpoint %q: want http(s)://HOST[:PORT]/submit", s.endpoint)
	}
	return id, nil
}

// pasteUAgent are the lines that make an agent of the Python library use the
// hub in place of Agentverse.
func pasteUAgent(hub string) []paste {
	hub = strings.TrimRight(hub, "/")
	return []paste{
		{"so that it registers with the hub and finds agents there", "Python", fmt.Sprintf("agent = Agent(…, endpoint=\"http://HOST:PORT/submit\", agentverse=%q)", hub)},
		{"or, when it cannot listen, so that its messages wait at the hub", "Python", fmt.Sprintf("agent = Agent(…, mailbox=True, agentverse=%q)", hub)},
	}
}
