//go:build linux

package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
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

// say sends notices with a word in them to an inbox, and gives the word.
func say(t *testing.T, c *admin.Client, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		text := fmt.Sprintf("quincunx %d %s", i, strings.Repeat("y", 300))
		if _, err := c.Send(t.Context(), admin.Send{To: "worker", Skill: "echo", Kind: parley.Notice, Text: &text, IdempotencyKey: fmt.Sprint("key ", i)}); err != nil {
			t.Fatal(err)
		}
	}
}

// delivered waits until nothing is open any more.
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

// TestErasedIsSynced watches the system calls of an erasure: what will be
// written over records is noted and synced before the first of them is touched,
// and the records' file is synced before the answer says that it is done.
func TestErasedIsSynced(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		lacking(t, "strace is needed to see when a hub syncs its files, and is not installed")
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	config := writeConfig(t, dir, node.Config{Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, Policy: node.Policy{Assurance: "session"}})
	out := filepath.Join(dir, "calls")
	p := launch(t, strace, "-f", "-yy", "-s", "65536", "-o", out,
		"-e", "trace=openat,write,pwrite64,writev,sendto,sendmsg,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat",
		program(t, "internal/testhub"), "-config", config)
	c := operator(t, p, data)
	say(t, c, 0, 8)
	delivered(t, c)
	r, err := c.Forget(t.Context(), admin.Forget{Agent: "worker"})
	if err != nil || r.Erased < 8 || r.Kept() != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	stopTraced(t, p)
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	calls, err := parseTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	over, err := checkErasure(calls)
	if err != nil {
		t.Error(err)
	}
	if over < 8 {
		t.Errorf("%d records were written over", over)
	}
	t.Logf("%d records written over, %d system calls", over, len(calls))
}

// checkErasure looks at every overwriting of a record. It gives how many there
// were.
func checkErasure(calls []*call) (over int, err error) {
	var ack, noted, renamed *call
	for _, c := range calls {
		if c.writes() && c.socket() && strings.Contains(c.args, `\"erasure\":1,`) {
			ack = c
			break
		}
	}
	if ack == nil {
		return 0, fmt.Errorf("the trace has no answer to the erasure")
	}
	for _, c := range calls {
		switch {
		case c.failed:
		case (c.name == "fsync" || c.name == "fdatasync") && strings.HasSuffix(c.path, "/erasing.new"):
			noted = c
		case strings.HasPrefix(c.name, "rename") && strings.Contains(c.args, "/erasing.new\""):
			if noted == nil || noted.end > c.start {
				return over, fmt.Errorf("line %d: the note is renamed before it is synced", c.start+1)
			}
			renamed = c
		case c.name == "pwrite64" && strings.HasSuffix(c.path, ".blk") && strings.Contains(c.args, `, "Pj\1`):
			over++
			if renamed == nil || renamed.end > c.start {
				return over, fmt.Errorf("line %d writes over a record that no note tells of", c.start+1)
			}
			if !c.durable(calls, ack) {
				return over, fmt.Errorf("line %d writes over a record; the answer on line %d is not preceded by a sync of it", c.start+1, ack.start+1)
			}
		}
	}
	return over, nil
}

// TestErasureReader proves that the test above would see what is missing.
func TestErasureReader(t *testing.T) {
	const (
		note   = `10 fsync(7</d/journal/erasing.new>) = 0`
		rename = `10 renameat(AT_FDCWD</>, "/d/journal/erasing.new", AT_FDCWD</>, "/d/journal/erasing") = 0`
		write  = `10 pwrite64(8</d/journal/1.blk>, "Pj\1abc", 6, 100) = 6`
		sync   = `10 fsync(8</d/journal/1.blk>) = 0`
		ack    = `11 write(9<TCP:[127.0.0.1:1->127.0.0.1:2]>, "HTTP/1.1 200 OK\r\n\r\n{\"erasure\":1,", 30) = 30`
	)
	for _, c := range []struct {
		name  string
		lines []string
		ok    bool
	}{
		{"in order", []string{note, rename, write, sync, ack}, true},
		{"no note", []string{write, sync, ack}, false},
		{"note not synced", []string{rename, write, sync, ack}, false},
		{"note too late", []string{write, note, rename, sync, ack}, false},
		{"record not synced", []string{note, rename, write, ack}, false},
		{"record synced too late", []string{note, rename, write, ack, sync}, false},
	} {
		calls, err := parseTrace(strings.NewReader(strings.Join(c.lines, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		if over, err := checkErasure(calls); (err == nil) != c.ok || c.ok && over != 1 {
			t.Errorf("%s: %d, %v", c.name, over, err)
		}
	}
}

// TestKilledWhileForgetting kills a hub in the middle of an erasure: the next
// start finishes it, and nothing else is lost.
func TestKilledWhileForgetting(t *testing.T) {
	rounds, messages := 4, 400
	if testing.Short() {
		rounds, messages = 2, 120
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	config := writeConfig(t, dir, node.Config{Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, Policy: node.Policy{Assurance: "session"}, Limits: node.Limits{SenderRate: -1}})
	hub := program(t, "internal/testhub")
	for round := range rounds {
		p := launch(t, hub, "-config", config)
		c := operator(t, p, data)
		say(t, c, round*messages, messages)
		delivered(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Forget(ctx, admin.Forget{Agent: "worker"})
			done <- err
		}()
		// It is recorded that it was begun; how far it has come is left to
		// chance.
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
			t.Fatal(err)
		}
		page, err := c.Messages(t.Context(), admin.MessageFilter{Text: "quincunx"})
		if err != nil || len(page.Messages) > 0 {
			t.Errorf("round %d: %d messages are found still: %v", round, len(page.Messages), err)
		}
		// What was sent is known still, so that it is not taken twice.
		text := fmt.Sprintf("quincunx %d %s", round*messages, strings.Repeat("y", 300))
		again, err := c.Send(t.Context(), admin.Send{To: "worker", Skill: "echo", Kind: parley.Notice, Text: &text, IdempotencyKey: fmt.Sprint("key ", round*messages)})
		if err != nil {
			t.Errorf("round %d: %v", round, err)
		} else if m, err := c.Message(t.Context(), again.ID.String(), true); err != nil || m.Erased == nil {
			t.Errorf("round %d: it was taken twice: %+v %v", round, m, err)
		}
		p.stop(t)
	}
	err := filepath.WalkDir(data, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), "quincunx") {
			t.Errorf("%s holds what was erased", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
