//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// TestFewDescriptors opens twice as many idle connections as a hub has descriptors, and
// closes them again. The hub then accepts requests as before, by itself, and still has
// every task that it accepted, also after a restart.
func TestFewDescriptors(t *testing.T) {
	const descriptors, connections = 300, 600
	dir := t.TempDir()
	sender := newIdentity(t, "agent://sender.test")
	config := writeConfig(t, dir, node.Config{
		Data: filepath.Join(dir, "data"), Listen: node.Listen{HTTP: fmt.Sprintf("127.0.0.1:%d", fixedPort(t))},
		Limits: node.Limits{SenderRate: -1}, Agents: enrolled(sender),
	})
	hub := program(t, "internal/testhub")
	p := launch(t, "sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors), hub, "-config", config)
	client := newClient(t)
	base := p.at.HTTP + "/agents/worker"
	to := cardID(t, client, base)

	var tasks []string
	send := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		call := samvad.Call{To: to, Skill: "echo", Payload: []byte(`{"n":1}`)}
		s, err := sign(sender, base, samvad.ModeAsync, call)
		if err != nil {
			return err
		}
		a, err := s.post(ctx, client)
		if err == nil && a.status != http.StatusAccepted {
			err = errors.New(a.String())
		}
		if err == nil {
			tasks = append(tasks, a.task())
		}
		return err
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}

	at, err := url.Parse(p.at.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	var idle []net.Conn
	for range connections {
		c, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	err = eventually(t.Context(), readyWithin, func() (bool, error) {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
		return len(list) == descriptors || refused(idle), err
	})
	if err != nil {
		t.Fatalf("the hub neither uses its descriptors up nor closes connections: %v", err)
	}
	failed := 0
	for range 10 {
		if send() != nil {
			failed++
		}
	}
	for _, c := range idle {
		c.Close()
	}
	ask := func() (bool, error) { err := send(); return err == nil, err }
	if err := eventually(t.Context(), readyWithin, ask); err != nil {
		t.Fatalf("after the connections were closed: %v\n%s", err, p.errs)
	}
	t.Logf("%d of 10 requests failed meanwhile; %d tasks", failed, len(tasks))
	check := func() {
		t.Helper()
		for _, id := range tasks {
			if _, _, err := taskState(t.Context(), client, base, id); err != nil {
				t.Error(err)
			}
		}
	}
	check()
	p.stop(t)
	base = launch(t, hub, "-config", config).at.HTTP + "/agents/worker"
	check()
}

// refused reports whether the hub has closed one of the connections.
func refused(conns []net.Conn) bool {
	for _, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(time.Microsecond)); err != nil {
			return true
		}
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			return true
		}
	}
	return false
}
