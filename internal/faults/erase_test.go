//go:build linux

package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// operator gives a client of a hub's admin API.
func operator(t *testing.T, p *process, data string) *admin.Client {
	t.Helper()
	at, err := node.ReadAnnouncement(data)
	if err != nil {
		t.Fatal(err)
	}
	return &admin.Client{Base: p.at.Admin, Token: at.Token, HTTP: newClient(t)}
}

// say sends notices with a word in them, quincunx, to an inbox.
func say(t *testing.T, c *admin.Client, from, n, size int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		text := fmt.Sprintf("quincunx %d %s", i, strings.Repeat("y", size))
		if _, err := c.Send(t.Context(), admin.Send{To: "worker", Skill: "echo", Kind: parley.Notice, Text: &text,
			IdempotencyKey: fmt.Sprint("key ", i)}); err != nil {
			t.Fatal(err)
		}
	}
}

// delivered waits until no delivery is open.
func delivered(t *testing.T, c *admin.Client) {
	t.Helper()
	err := eventually(t.Context(), time.Minute, func() (bool, error) {
		s, err := c.Stats(t.Context())
		return s.Open == 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestErasedAfterPowerLoss watches the system calls of an erasure: once the erasure is
// acknowledged, a loss of power brings nothing back.
func TestErasedAfterPowerLoss(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	p, out := launchTraced(t, dir, node.Config{
		Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Policy: node.Policy{Assurance: "session"},
	})
	c := operator(t, p, data)
	say(t, c, 0, 8, 700<<10) // enough that the WAL is copied into the file
	delivered(t, c)
	before, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Forget(t.Context(), admin.Forget{Agent: "worker"})
	if err != nil || r.Erased < 8 || r.Kept() != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	stopTraced(t, p)
	calls := readTrace(t, out)
	answer := answerWith(calls, `\"erasure\":1,`)
	if answer == nil {
		t.Fatal("the trace has no answer to the erasure")
	}
	journalDir := filepath.Join(data, "journal")
	lost := newPowerLoss(calls)
	lost.until(answer.start)
	left := lost.files(t, journalDir, nil)
	for _, text := range []string{"quincunx", "yyyyyyyy"} {
		for _, name := range holding(t, left, text) {
			t.Errorf("after a loss of power %s holds erased content: %q", filepath.Base(name), text)
		}
	}
	if missing := missingAfter(t, left, nil); missing != nil {
		t.Error(missing)
	}
	// Without the syncs the content comes back, so the test can see it.
	lost = newPowerLoss(calls)
	lost.leftOut = func(c *call) bool { return c.start >= bytes.Count(before, []byte("\n")) }
	lost.until(answer.start)
	if names := holding(t, lost.files(t, journalDir, nil), "quincunx"); len(names) == 0 {
		t.Error("nothing is left where nothing is synced")
	}
}

// TestKilledWhileForgetting kills a hub in the middle of an erasure: the next
// start finishes it, and nothing else is lost.
func TestKilledWhileForgetting(t *testing.T) {
	rounds, messages := much(t, 2, 4, 4), much(t, 120, 400, 400)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	config := writeConfig(t, dir, node.Config{Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0",
		Admin: "127.0.0.1:0"}, Policy: node.Policy{Assurance: "session"}, Limits: node.Limits{SenderRate: -1}})
	hub := program(t, "internal/testhub")
	for round := range rounds {
		p := launch(t, hub, "-config", config)
		c := operator(t, p, data)
		say(t, c, round*messages, messages, 300)
		delivered(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Forget(ctx, admin.Forget{Agent: "worker"})
			done <- err
		}()
		// The beginning is recorded; the progress at the kill is random.
		err := eventually(t.Context(), time.Minute, func() (bool, error) {
			list, err := c.Erasures(t.Context())
			return len(list) > round, err
		})
		if err != nil {
			t.Fatal(err)
		}
		p.kill()
		<-done
		cancel()
		p = launch(t, hub, "-config", config)
		c = operator(t, p, data)
		err = eventually(t.Context(), time.Minute, func() (bool, error) {
			list, err := c.Erasures(t.Context())
			return len(list) == round+1 && !list[round].Ended.IsZero(), err
		})
		if err != nil {
			t.Fatalf("round %d: %v; the hub said:\n%s", round, err, p.errs)
		}
		page, err := c.Messages(t.Context(), index.Filter{Text: "quincunx"})
		if err != nil || len(page.Messages) > 0 {
			t.Errorf("round %d: %d messages are found still: %v", round, len(page.Messages), err)
		}
		// The hub still knows the erased messages, and takes none twice.
		text := fmt.Sprintf("quincunx %d %s", round*messages, strings.Repeat("y", 300))
		again, err := c.Send(t.Context(), admin.Send{To: "worker", Skill: "echo", Kind: parley.Notice, Text: &text,
			IdempotencyKey: fmt.Sprint("key ", round*messages)})
		if err != nil {
			t.Errorf("round %d: %v", round, err)
		} else if m, err := c.Message(t.Context(), again.ID.String(), true); err != nil || m.Erased == nil {
			t.Errorf("round %d: it was taken twice: %+v %v", round, m, err)
		}
		p.stop(t)
	}
	for _, name := range holding(t, data, "quincunx") {
		t.Errorf("%s holds erased content", name)
	}
}
