package samvadtest_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/samvad/samvadtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestForgeries: the verifier gives exactly the error that each forgery states.
func TestForgeries(t *testing.T) {
	clock := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	alice := samvadtest.NewPeer(t, "agent://alice.test")
	alice.Now = func() time.Time { return clock }
	v := &samvad.Verifier{Self: "agent://weather.test", Keys: alice.Keys(), Now: alice.Now}
	seen := map[string]bool{}
	for _, f := range alice.Forgeries(v.Self, "forecast", "{}") {
		if _, err := v.Verify(f.Request); !errors.Is(err, f.Err) {
			t.Errorf("a request %s: %v, want %v", f.Name, err, f.Err)
		}
		if seen[f.Name] {
			t.Errorf("two forgeries are called %q", f.Name)
		}
		seen[f.Name] = true
	}
	if _, err := v.Verify(alice.Request(v.Self, "forecast", "{}")); err != nil {
		t.Error(err)
	}
}

// TestPeer: a peer streams in a bubble, and leaves no goroutine behind.
func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, weather := samvadtest.NewPeer(t, "agent://me.test"), samvadtest.NewPeer(t, "agent://weather.test")
		weather.Skill("forecast", func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
			err := r.Chunk([]byte(`"asking"`))
			time.Sleep(10 * time.Second)
			return samvad.Response{Result: r.Payload}, err
		})
		client := &samvad.Client{Identity: me, HTTP: weather.HTTP(me.Keys())}
		begun, got := time.Now(), ""
		for e, err := range client.Stream(t.Context(), samvad.Call{URL: "https://weather.test", Skill: "forecast",
			Payload: []byte(`{"a":1}`)}) {
			if err != nil {
				t.Fatal(err)
			}
			got += fmt.Sprintf("%s%s after %v; ", e.Chunk, e.Result, time.Since(begun))
		}
		if want := `"asking" after 0s; {"a":1} after 10s; `; got != want {
			t.Errorf("%s", got)
		}
		mallory := samvadtest.NewPeer(t, me.ID())
		client = &samvad.Client{Identity: mallory, HTTP: client.HTTP}
		_, err := client.Ask(t.Context(), samvad.Call{URL: "https://weather.test", Skill: "forecast"})
		if len(weather.Received()) != 1 || err == nil {
			t.Errorf("a forged call: %v", err)
		}
	})
}

// broken is an implementation of everything, with a fault each.
type broken struct {
	*samvad.Identity
	samvad.Memory
	samvad.Tasks
	samvad.StaticKeys
	fault string
}

func (b *broken) Seen(ctx context.Context, key string, until time.Time) (bool, error) {
	switch b.fault {
	case "forgets":
		return true, nil
	case "one key for all":
		key = ""
	case "shortens":
		if !until.After(time.Now()) {
			b.Memory = samvad.NewMemory(0, nil)
			return false, nil
		}
	case "loses its word":
		if ctx.Err() != nil {
			return true, nil
		}
	}
	return b.Memory.Seen(ctx, key, until)
}

func (b *broken) Known(ctx context.Context, key string) (bool, error) {
	if b.fault == "a look-up remembers" {
		_, err := b.Memory.Seen(ctx, key, time.Now().Add(time.Hour))
		return err == nil, err
	}
	return b.Memory.Known(ctx, key)
}

func (b *broken) Keys(ctx context.Context, id string) ([]samvad.Key, error) {
	switch b.fault {
	case "vouches for all":
		id = "agent://alice.test"
	case "weak key":
		return []samvad.Key{{Public: make(ed25519.PublicKey, 32)}}, nil
	}
	return b.StaticKeys.Keys(ctx, id)
}

func (b *broken) Get(ctx context.Context, agent, id string) (samvad.Task, error) {
	t, err := b.Tasks.Get(ctx, agent, id)
	switch {
	case b.fault == "no sentinel" && err != nil:
		return t, errors.New("no row")
	case b.fault == "loses the trace":
		t.TraceID = ""
	case b.fault == "any agent's" && err != nil:
		return b.Tasks.Get(ctx, "agent://weather.test", id)
	}
	return t, err
}

func (b *broken) Sign(message []byte) ([]byte, error) {
	if b.fault == "signs a part" {
		message = message[:min(len(message), 100)]
	}
	return b.Identity.Sign(message)
}

// TestChecks: own implementations pass, and each fault is found.
func TestChecks(t *testing.T) {
	alice := samvadtest.NewPeer(t, "agent://alice.test")
	open := func(fault string) *broken {
		return &broken{Identity: alice.Identity, Memory: samvad.NewMemory(0, nil), Tasks: &samvad.MemoryTasks{},
			StaticKeys: alice.Keys(), fault: fault}
	}
	for name, c := range map[string]struct {
		check  func(fault string) error
		faults map[string]string // and the rule that finds it
	}{
		"Memory": {func(f string) error {
			return samvadtest.TestMemory(func() samvad.Memory { return open(f) })
		}, map[string]string{"forgets": "a key is fresh once", "one key for all": "kept apart",
			"shortens": "does not shorten", "loses its word": "not fresh twice", "a look-up remembers": "a look-up changes"}},
		"Keys": {func(f string) error { return samvadtest.TestKeys(open(f), "agent://alice.test") },
			map[string]string{"vouches for all": "an unknown agent", "weak key": "acceptable keys"}},
		"Tasks": {func(f string) error { return samvadtest.TestTasks(func() samvad.Tasks { return open(f) }) },
			map[string]string{"no sentinel": "an unknown task", "loses the trace": "as it was put last",
				"any agent's": "of another agent"}},
		"Signer": {func(f string) error { return samvadtest.TestSigner(open(f)) },
			map[string]string{"signs a part": "signatures verify"}},
	} {
		if err := c.check(""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for fault, rule := range c.faults {
			if err := c.check(fault); err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("%s that %s: %v, want the rule %q", name, fault, err, rule)
			}
		}
	}
}
