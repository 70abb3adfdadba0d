package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
)

// A directory is read page by page: in order, without gaps, with a count of what follows.
func TestPagesOfAgents(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	for i := range 250 {
		if _, err := b.client.AddAgent(ctx, NewAgent{Name: fmt.Sprintf("desk-%03d", i), Inbox: true}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := b.client.Agents(ctx, AgentFilter{Filter: "desk"})
	if err != nil || len(page.Agents) != 100 || page.More != 150 || page.Next == "" {
		t.Fatalf("without a limit: %d agents, %d more, %q, %v", len(page.Agents), page.More, page.Next, err)
	}
	var names []string
	for v, err := range b.client.AllAgents(ctx, AgentFilter{Filter: "desk-*", Limit: 7}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, v.Name)
	}
	if len(names) != 250 || !slices.IsSorted(names) || len(slices.Compact(names)) != 250 {
		t.Errorf("%d names, %v", len(names), names)
	}
	for v, err := range b.client.AllAgents(ctx, AgentFilter{Limit: 3}) {
		if err != nil || v.Name == "" {
			t.Errorf("%+v, %v", v, err)
		}
		break // must end the iteration
	}
	stop, cancel := context.WithCancel(ctx)
	cancel()
	failed := 0
	for _, err := range b.client.AllAgents(stop, AgentFilter{}) {
		if failed++; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	if failed != 1 {
		t.Errorf("an error was told %d times", failed)
	}
	_, err = b.client.Agents(ctx, AgentFilter{Cursor: "Not a name"})
	code(t, err, parley.Malformed)
}

// The keys of one agent are read without those of all others.
func TestKeysOfOneAgent(t *testing.T) {
	b, ctx := open(t, nil), context.Background()
	for i := range 3 {
		name := fmt.Sprint("agent-", i)
		if _, err := b.client.AddAgent(ctx, NewAgent{Name: name, Identities: []NewIdentity{{Protocol: "samvad",
			ID: "agent://" + name, PublicKey: base64.StdEncoding.EncodeToString(ed25519Key(byte(i + 1)))}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.NewKey(ctx, NewKey{Owner: name, Purpose: "test", Algorithm: "ed25519"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range []string{"agent-1", "agent://agent-1"} {
		k, err := b.client.AgentKeys(ctx, ref)
		if err != nil || len(k.Own) != 1 || k.Own[0].Owner != "agent-1" || len(k.Enrolled) != 1 ||
			k.Enrolled[0].Agent != "agent-1" {
			t.Errorf("%s: %+v, %v", ref, k, err)
		}
	}
	if k, err := b.client.AgentKeys(ctx, "nobody"); err != nil || len(k.Own)+len(k.Enrolled) > 0 {
		t.Errorf("an agent without keys: %+v, %v", k, err)
	}
	if k, err := b.client.Keys(ctx); err != nil || len(k.Enrolled) != 3 {
		t.Errorf("all keys: %+v, %v", k, err)
	}
}
