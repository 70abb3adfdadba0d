package node

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/keyring"
)

// TestClusterIsOneHub: an operator's change at one hub of a cluster applies at the other,
// without a restart and without a common directory.
func TestClusterIsOneHub(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	engine := Engine{URL: testcluster.Start(t, 1).URLs[0], Replicas: 1, Partitions: 2}
	root := t.TempDir()
	var first []string
	config := func(name string) Config {
		return Config{Name: name, Data: filepath.Join(root, name), Durability: "replicated", Engine: engine,
			PublicURL:  "https://parley.test",
			Passphrase: []byte("of both"), PassphraseWork: 4,
			FirstToken: func(secret string) { first = append(first, secret) }}
	}
	without := config("one")
	without.Passphrase = nil
	if n, err := Open(ctx, without); err == nil || !strings.Contains(err.Error(), "PARLEY_PASSPHRASE") {
		t.Errorf("without a passphrase: %v, %v", n, err)
	}
	one, two := running(t, config("one")), running(t, config("two"))
	if len(first) != 1 {
		t.Fatalf("%d first tokens", len(first))
	}
	changes := make(chan directory.Change, 1000)
	defer two.directory.Watch(func(c directory.Change) { changes <- c })()
	until := func(what string, so func(directory.Change) bool) {
		t.Helper()
		for {
			select {
			case c := <-changes:
				if so(c) {
					return
				}
			case <-ctx.Done():
				t.Fatal(what)
			}
		}
	}
	enrolled := make(chan string, 100)
	two.keys.Watch(func(agent string) { enrolled <- agent })
	at := func(n *Node, token string) *admin.Client {
		return &admin.Client{Base: n.Addresses().Admin, Token: token}
	}

	// Agents, and their keys.
	key := "0EqyMnQrtKs6E2i9RhXk5tAiSrcaAWuvhSCjMsl3hzc="
	_, err := at(one, first[0]).AddAgent(ctx, admin.NewAgent{Name: "weather",
		Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://weather.test", URL: "https://weather.test",
			PublicKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	until("added", func(c directory.Change) bool { return c.New != nil && c.New.Name == "weather" })
	if agent := <-enrolled; agent != "weather" || len(two.keys.Enrolled("weather", "samvad")) != 1 {
		t.Errorf("the key of %q is known", agent)
	}
	if _, err := at(two, first[0]).Pause(ctx, "weather", true); err != nil {
		t.Fatal(err)
	}
	if _, err := at(two, first[0]).Expose(ctx, "weather", []string{"all"}); err != nil {
		t.Fatal(err)
	}
	if _, err := at(one, first[0]).AddAgent(ctx, admin.NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	until("added", func(c directory.Change) bool { return c.New != nil && c.New.Name == "box" })
	if _, err := two.hub.Read(ctx, "box"); err != nil {
		t.Errorf("the inbox cannot be read at the other hub: %v", err)
	}
	if err := at(one, first[0]).RemoveAgent(ctx, "weather"); err != nil {
		t.Fatal(err)
	}
	until("removed", func(c directory.Change) bool { return c.New == nil && c.Old.Name == "weather" })
	if agent := <-enrolled; agent != "weather" || len(two.keys.Enrolled("weather", "samvad")) != 0 {
		t.Errorf("the key of %q is known", agent)
	}

	// The hub's own keys.
	for _, n := range []*Node{one, two} {
		if s, err := n.keys.Signer(keyring.Hub, "samvad"); err != nil {
			t.Error(err)
		} else if other, err := one.keys.Signer(keyring.Hub, "samvad"); err != nil || s.ID() != other.ID() {
			t.Errorf("%v, %v", other, err)
		}
	}

	// Tokens.
	issued, err := admin.IssueToken(one.c.Data, admin.NewToken{Name: "ann", Role: admin.Observe}, time.Now(),
		rand.Reader)
	secret := issued.Secret
	if err != nil {
		t.Fatal(err)
	}
	if err := one.tokens.Reread(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() bool { _, err := at(two, secret).Info(ctx); return err == nil })
	if err := admin.RevokeToken(two.c.Data, "ann", false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := two.tokens.Reread(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, func() bool { _, err := at(one, secret).Info(ctx); return errors.Is(err, admin.ErrToken) })

	// The audit list of both, in order of time.
	want := []string{"one agent.remove", "one agent.add", "two agent.expose", "two agent.pause", "one agent.add"}
	for _, n := range []*Node{one, two} {
		eventually(ctx, t, func() bool {
			list, err := at(n, first[0]).Audit(ctx, admin.AuditFilter{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range list {
				got = append(got, e.Hub+" "+e.Action)
			}
			return slices.Equal(got, want)
		})
	}
}

// eventually waits until so gives true.
func eventually(ctx context.Context, t *testing.T, so func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it never came")
		}
	}
}
