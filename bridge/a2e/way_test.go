package a2e_test

import (
	"testing"

	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// The way to an agent that connects: not yet, connected, and cut off, when its session waits for it.
func TestWay(t *testing.T) {
	w := newWorld(t, node.Config{})
	connection := func(state hub.FindingState, text string) {
		t.Helper()
		bridgetest.WantFinding(t, w.Hub(), "alice", "connection", state, text)
	}
	connection(hub.FindingFailed, "it has no session")
	line := w.dialTCP(t)
	line.write(t, `{"type":"handshake/req","id":"1","auth_token":"`+tokenAlice+`"}`)
	line.until(t, "handshake/res")
	connection(hub.FindingOK, "connected here, with a session since ")
	if err := line.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		e, _ := w.Hub().Directory().Agent("alice")
		return w.Hub().Ways(t.Context(), e)[0].Findings[0].State != hub.FindingOK
	})
	connection(hub.FindingWarning, "it is not connected; its session of ")
}
