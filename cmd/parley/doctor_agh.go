package main

import (
	"context"
	"errors"
	"time"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh/aghnats"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// aghWay is the way to an agent with a table of AGH.
func aghWay(c *node.Config, a *node.Agent) *hub.Way {
	if a.AGH == nil {
		return nil
	}
	w := &hub.Way{ID: bridge.Identity(a.AGH.Workspace, a.AGH.Peer).ID, How: "it connects to the hub's NATS"}
	if c.AGH.URL != "" {
		w.How = "it is a peer at the NATS of agh.url"
		for _, s := range aghnats.Servers(c.AGH.URL) {
			w.Addresses = append(w.Addresses, s.Shown)
		}
	}
	return w
}

// aghHub checks the servers of agh.url.
func (d *doctor) aghHub(ctx context.Context) {
	for _, s := range aghnats.Servers(d.c.AGH.URL) {
		ctx, cancel := context.WithTimeout(ctx, exam.Wait)
		d.aghAddress(ctx, exam.WayPoint{Address: s.Shown})
		cancel()
	}
}

// aghAddress checks a server of agh.url: the network to it, and that it takes the credentials. The hub asks no address
// guard about it: the operator named it.
func (d *doctor) aghAddress(ctx context.Context, at exam.WayPoint) {
	server := at.Address
	for _, s := range aghnats.Servers(d.c.AGH.URL) {
		if s.Shown == at.Address {
			server = s.URL // with the user and the password
		}
	}
	if d.Reach(ctx, "agh.url", at.Address, nil) == nil {
		return
	}
	options := []nats.Option{nats.Name("parley doctor"), nats.Timeout(exam.Wait), nats.IgnoreDiscoveredServers()}
	if d.c.AGH.Credentials != "" {
		options = append(options, nats.UserCredentials(d.c.AGH.Credentials))
	}
	nc, err := nats.Connect(server, options...)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		d.Failed("credentials", "agh.credentials, or the user in agh.url", err)
		return
	case err != nil:
		d.Failed("credentials", "agh.url and agh.credentials", err)
		return
	}
	defer nc.Close()
	took, err := nc.RTT()
	if err != nil {
		d.Failed("ping", "see the log of the NATS server", err)
		return
	}
	d.OK("credentials", "%s accepts them, and answered a ping in %s", at.Address, took.Round(10*time.Microsecond))
}
