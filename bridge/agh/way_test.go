package agh_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// The pins of a verified handle: required and missing, and there.
func TestWayOfAHandle(t *testing.T) {
	id, err := agh.IdentityFromSeed("dora", []byte(strings.Repeat("d", 32)))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *node.Config) {
		c.AGH.Trust, c.AGH.RequirePins = true, true
		c.Agents = map[string]node.Agent{
			"dora":  {AGH: &node.AGHAgent{Workspace: "acme", Peer: id.ID()}},
			"other": {AGH: &node.AGHAgent{Workspace: "acme", Peer: "other@0123456789abcdef0123456789abcdef"}}}
		c.AGH.Pins = map[string]node.AGHPin{"dora": {Keys: []string{base64.RawURLEncoding.EncodeToString(id.Public())}}}
	})
	bridgetest.WantFinding(t, w.Hub(), "dora", "trust", hub.FindingOK, "agh.pins.dora pins its key")
	bridgetest.WantFinding(t, w.Hub(), "other", "trust", hub.FindingFailed, "no pin names other@", `[agh.pins."other"]`)
}

// The way over an operator's NATS: the addresses are without the password, and the connection may break.
func TestWayOverAnotherNATS(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, Username: "hub",
		Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	at := s.Addr().String()
	w := newWorld(t, func(c *node.Config) {
		c.Listen.AGH, c.AGH.Users = "", nil
		c.AGH.URL = "nats://hub:secret@" + at
		c.Agents = map[string]node.Agent{"bob": {AGH: &node.AGHAgent{Workspace: "acme", Peer: "bob"}}}
	})
	way := bridgetest.WantFinding(t, w.Hub(), "bob", "NATS", hub.FindingOK, "the hub is connected")
	if !slices.Equal(way.Addresses, []string{"nats://" + at}) {
		t.Errorf("%+v", way)
	}
	bridgetest.WantFinding(t, w.Hub(), "bob", "presence", hub.FindingFailed, "no peer bob spoke or greeted")
	s.Shutdown()
	w.until("the connection is gone", func() bool {
		e, _ := w.Hub().Directory().Agent("bob")
		return w.Hub().Ways(t.Context(), e)[0].Findings[0].State == hub.FindingFailed
	})
	bridgetest.WantFinding(t, w.Hub(), "bob", "NATS", hub.FindingFailed, "the hub is not connected", "agh.credentials")
}
