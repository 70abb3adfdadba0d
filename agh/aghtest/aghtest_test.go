package aghtest_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestForgeries: the verifier gives exactly the error that each forgery states.
func TestForgeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alice := aghtest.NewVerifiedPeer(t, &aghtest.Bus{}, "alice")
		v, seen := alice.Verifier(), map[string]bool{}
		for _, f := range alice.Forgeries("hello") {
			if _, err := v.Verify(t.Context(), f.Envelope); !errors.Is(err, f.Err) {
				t.Errorf("an envelope %s: %v, want %v", f.Name, err, f.Err)
			}
			if seen[f.Name] {
				t.Errorf("two forgeries are called %q", f.Name)
			}
			seen[f.Name] = true
		}
	})
}

// TestPeers: verified peers talk, and leave no goroutine behind.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &aghtest.Bus{}
		alice, bob := aghtest.NewVerifiedPeer(t, bus, "alice"), aghtest.NewVerifiedPeer(t, bus, "bob")
		synctest.Wait()
		if _, err := alice.Direct(t.Context(), bob.ID(), &agh.Say{Text: "hello"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := bob.Received(); len(got) != 1 || !got[0].Verdict.Verified {
			t.Errorf("bob received %v", got)
		}
		bus.Cut()
		if _, err := alice.Say(t.Context(), "", &agh.Say{Text: "x"}); !errors.Is(err, aghtest.ErrCut) {
			t.Errorf("on a cut bus: %v", err)
		}
		bus.Reconnect()
		if _, err := alice.Say(t.Context(), "", &agh.Say{Text: "x"}); err != nil {
			t.Error(err)
		}
	})
}

// The following types are implementations with one fault each.
type (
	memory struct{ agh.ReplayMemory }
	keys   struct{ fault string }
	works  struct {
		agh.WorkTable
		fault string
	}
	transport struct {
		*aghtest.Bus
		fault string
		mu    sync.Mutex
		held  *agh.Message
	}
)

func (*memory) Seen(context.Context, string, time.Time) (bool, error) { return true, nil }

func (k keys) Keys(_ context.Context, id string) ([]ed25519.PublicKey, error) {
	switch {
	case k.fault == "weak key":
		return []ed25519.PublicKey{make(ed25519.PublicKey, 32)}, nil
	case id == "alice":
		return []ed25519.PublicKey{ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)}, nil
	case k.fault == "unknown is an error":
		return nil, errors.New("no row")
	}
	return nil, nil
}

func (w *works) Update(ctx context.Context, e *agh.Envelope, step func(agh.Work, bool) (agh.Work, error)) (agh.Work,
	error) {
	switch w.fault {
	case "one workspace":
		e = new(*e)
		e.WorkspaceID = aghtest.Workspace
	case "stores failures":
		return w.WorkTable.Update(ctx, e, func(old agh.Work, ok bool) (agh.Work, error) {
			next, _ := step(old, ok)
			return next, nil
		})
	case "no transaction":
		old, ok, _ := w.WorkTable.Work(ctx, e.WorkspaceID, e.WorkID)
		time.Sleep(time.Millisecond)
		next, err := step(old, ok)
		if err != nil {
			return next, err
		}
		return w.WorkTable.Update(ctx, e, func(agh.Work, bool) (agh.Work, error) { return next, nil })
	}
	return w.WorkTable.Update(ctx, e, step)
}

func (w *works) Work(ctx context.Context, workspace, id string) (agh.Work, bool, error) {
	if w.fault == "one workspace" {
		workspace = aghtest.Workspace
	}
	return w.WorkTable.Work(ctx, workspace, id)
}

func (x *transport) Publish(ctx context.Context, subject, reply string, data []byte) error {
	switch x.fault {
	case "text only":
		data = []byte(strings.ToValidUTF8(string(data), "?"))
	case "no reply":
		reply = ""
	case "out of order":
		x.mu.Lock()
		defer x.mu.Unlock()
		m := agh.Message{Subject: subject, Reply: reply, Data: data}
		if x.held == nil {
			x.held = &m
			return nil
		}
		first := *x.held
		x.held = nil
		return errors.Join(x.Bus.Publish(ctx, subject, reply, data), x.Bus.Publish(ctx, subject, first.Reply, first.Data))
	}
	return x.Bus.Publish(ctx, subject, reply, data)
}

func (x *transport) Subscribe(ctx context.Context, subject string, handle func(agh.Message)) (func() error, error) {
	stop, err := x.Bus.Subscribe(ctx, subject, handle)
	if x.fault == "does not stop" {
		return func() error { return nil }, err
	}
	return stop, err
}

// TestChecks: the types of package agh pass, and each fault is found.
func TestChecks(t *testing.T) { synctest.Test(t, testChecks) } // for the order of concurrent calls

func testChecks(t *testing.T) {
	for name, c := range map[string]struct {
		check  func(fault string) error
		faults map[string]string // and the rule that finds it
	}{
		"Memory": {func(f string) error {
			return aghtest.TestMemory(func() agh.Memory {
				if f != "" {
					return &memory{}
				}
				return &agh.ReplayMemory{}
			})
		}, map[string]string{"forgets": "a key is fresh once"}},
		"Keys": {func(f string) error { return aghtest.TestKeys(keys{f}, "alice") },
			map[string]string{"weak key": "acceptable keys", "unknown is an error": "not pinned"}},
		"Works": {func(f string) error { return aghtest.TestWorks(func() agh.Works { return &works{fault: f} }) },
			map[string]string{"one workspace": "kept apart", "stores failures": "a step that fails",
				"no transaction": "exactly one opens"}},
		"Transport": {func(f string) error {
			x := &transport{Bus: &aghtest.Bus{}, fault: f}
			return aghtest.TestTransport(x, x, "agh.test")
		}, map[string]string{"text only": "whole and in order", "no reply": "whole and in order",
			"out of order": "whole and in order", "does not stop": "until it is stopped"}},
	} {
		if err := c.check(""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for fault, rule := range c.faults {
			if err := c.check(fault); err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("%s, %s: %v, want the rule %q", name, fault, err, rule)
			}
		}
	}
}
