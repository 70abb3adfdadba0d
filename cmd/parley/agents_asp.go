package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
)

// maxCardFile bounds what is read as a card.
const maxCardFile = 1 << 20

// meetASP reads the card of an ASP agent: it holds the identity and both keys.
func meetASP(path string, n *admin.NewAgent) (admin.NewIdentity, error) {
	id := admin.NewIdentity{Protocol: "asp"}
	info, err := os.Stat(path)
	if err != nil {
		return id, &exitError{exitUsage, fmt.Errorf("--asp: %w", err)}
	}
	if !info.Mode().IsRegular() || info.Size() > maxCardFile {
		return id, usage("--asp %q: want the file of a card", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return id, &exitError{exitUsage, fmt.Errorf("--asp: %w", err)}
	}
	card, err := asp.ParseCard(bytes.TrimSpace(b))
	if err != nil {
		text := ""
		if _, keys := asp.LoadIdentity(path); keys == nil {
			text = fmt.Sprintf("\n        these are the agent's private keys, which the hub must never see: its card is what `parley keys asp --key %s` prints", path)
		}
		return id, usage("--asp %q is no card: %w%s", path, err, text)
	}
	if n.Title == "" && card.Name != card.AgentID {
		n.Title = card.Name
	}
	n.Description = card.Description
	id.ID, id.Card = card.AgentID, bytes.TrimSpace(b)
	return id, nil
}

// pasteASP are the lines by which an agent holds its sessions at the hub.
func pasteASP(hub, id string) []paste {
	hub = strings.TrimRight(hub, "/")
	why := "so that it holds its sessions at the hub; KEY is the file with its private keys"
	return []paste{
		{why, "Go", fmt.Sprintf("client := &asp.Client{Server: %q, Identity: me, Store: asp.Dir(\"state\")}", hub)},
		{why, "shell", fmt.Sprintf("parley send --protocol asp --url %s --key KEY --to agent://… 'hello'   # as %s", hub, id)},
		{"or, for a client of your own, where it gets tokens and opens sessions", "HTTP", fmt.Sprintf("POST %s/oauth/token, then POST %[1]s/v1/asp/sessions", hub)},
	}
}
