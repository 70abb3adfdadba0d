package a2e_test

import (
	"context"
	"testing"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"

	protocol "github.com/parley-hub/parley/a2e"
)

// An agent is connected while it calls parley_inbox, and since its last call away.
func TestConnection(t *testing.T) {
	w := newWorld(t, node.Config{})
	condition := func() hub.IdentityCondition {
		e, ok := w.Hub().Directory().Agent("bob")
		if !ok {
			t.Fatal("no agent bob")
		}
		return w.Hub().Conditions(e)[0]
	}
	never := condition()
	if never.State != hub.NotConnected || never.Since.IsZero() || !never.Heard.IsZero() {
		t.Errorf("before its first call: %+v", never)
	}
	bob := w.tcp(tokenBob)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 1, "wait": 60}, func(protocol.Event) {})
	}()
	eventually(t, func() bool { return condition().State == hub.Ready })
	if c := condition(); c.Text != "connected" || c.Since.IsZero() || c.Heard.Before(c.Since) {
		t.Errorf("during a call: %+v", c)
	}
	end()
	<-ended
	if err := bob.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return condition().State == hub.NotConnected })
	if c := condition(); !c.Since.After(never.Since) || !c.Heard.Equal(c.Since) {
		t.Errorf("after its calls: %+v", c)
	}
}
