package uagents_test

import (
	"testing"

	bridge "github.com/parley-hub/parley/bridge/uagents"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/parleytest"
	"github.com/parley-hub/parley/uagents"
	"github.com/parley-hub/parley/uagents/uagentstest"
)

// TestStores: the hub's registry, mailboxes and profiles keep the contracts of package
// uagents.
func TestStores(t *testing.T) {
	open := func() *bridge.Binding {
		return parleytest.NewHub(t, func(c *node.Config) { c.UAgents.Direct = true }).UAgents()
	}
	if err := uagentstest.TestAlmanacStore(func() uagents.AlmanacStore {
		almanac, _, _ := open().Stores()
		return almanac
	}); err != nil {
		t.Error("almanac:", err)
	}
	if err := uagentstest.TestMailboxStore(func() uagents.MailboxStore {
		_, mailbox, _ := open().Stores()
		return mailbox
	}); err != nil {
		t.Error("mailbox:", err)
	}
	if err := uagentstest.TestProfileStore(func() uagents.ProfileStore {
		_, _, profiles := open().Stores()
		return profiles
	}); err != nil {
		t.Error("profiles:", err)
	}
}
