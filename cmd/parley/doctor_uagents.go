package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// uagentsWay is the way to an agent with a table of uAgents.
func uagentsWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.UAgents == nil:
		return nil
	case a.UAgents.Endpoint == "":
		return &hub.Way{ID: a.UAgents.Address, How: "it registers itself with the hub, or has a mailbox there"}
	}
	return &hub.Way{ID: a.UAgents.Address, How: "the hub calls its endpoint", Addresses: []string{a.UAgents.Endpoint}}
}

// uagentsSkew: the token with which an agent reads its mailbox is the strictest about clocks.
func uagentsSkew(*node.Config) time.Duration { return uagents.DefaultSkew }

// uagentsAddress checks an endpoint: its server must serve the agent. HEAD asks it without sending a message.
func (d *doctor) uagentsAddress(ctx context.Context, at wayPoint) {
	setting := at.setting + ", or the endpoint with which the agent registers"
	u := d.reach(ctx, setting, at.address, d.guard)
	if u == nil {
		return
	}
	const check = "endpoint"
	sent := d.now()
	resp, err := d.get(ctx, http.MethodHead, u.String(), http.Header{"X-Uagents-Address": {at.id}})
	if err != nil {
		d.failed(check, setting, err)
		return
	}
	defer resp.Body.Close()
	d.dateSkew("uagents", uagentsSkew(&d.c), resp, sent)
	switch status := resp.Header.Get("X-Uagents-Status"); {
	case status == "ready":
		d.ok(check, "it serves the agent, which is ready")
	case status == "not-ready":
		d.failed(check, setting, fmt.Errorf("its server does not serve %s, or is stopping", at.id))
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode >= 500:
		d.failed(check, setting+" (its path is mostly /submit)", errors.New("HEAD answered "+resp.Status))
	default:
		d.skip(check, "its server does not say whether it serves the agent (%s)", resp.Status)
	}
}
