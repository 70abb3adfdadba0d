package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// a2eWay is the way to an agent with a table of A2E.
func a2eWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.A2E == nil:
		return nil
	case a.A2E.URL == "":
		return &hub.Way{How: "it connects to the hub with the token in " + a.A2E.TokenFile}
	}
	return &hub.Way{ID: a.A2E.URL, How: "the hub connects to its host", Addresses: []string{a.A2E.URL}}
}

// a2eAddress checks the address of a host. While the hub runs, it has pinged the host; else the doctor does.
func (d *doctor) a2eAddress(ctx context.Context, at exam.WayPoint) {
	setting := at.Setting + ", or remove the agent and add it again with --a2e URL"
	if u := d.Reach(ctx, setting, at.Address, d.Guard); u == nil || d.hub != nil || d.NoSend {
		return
	}
	c := &a2e.Client{URL: at.Address, AgentID: "parley-doctor", FailFast: true, TLS: &tls.Config{RootCAs: d.Roots},
		HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: d.Roots}}}}
	defer c.Close()
	if a := d.c.Agents[at.Name].A2E; a.TokenFile != "" {
		var err error
		if c.Token, err = secretIn(a.TokenFile); err != nil {
			d.Failed("token", "agents."+at.Name+".a2e.token_file", err)
			return
		}
	}
	took, err := c.Ping(ctx)
	switch {
	case errors.Is(err, a2e.ErrUnknownKey), errors.Is(err, a2e.ErrUnauthorized):
		d.Failed("ping", "agents."+at.Name+".a2e.token_file: the token that the host accepts", err)
	case err != nil && !a2e.NotSupported(err):
		d.Failed("ping", setting, err)
	default:
		d.OK("ping", "the host accepts the token, and answered in %s", took.Round(10*time.Microsecond))
	}
}
