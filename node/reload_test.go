package node

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
)

// fromFile runs a hub in memory whose configuration is a file.
func fromFile(t *testing.T, text string) (n *Node, write func(text string), level *slog.LevelVar) {
	t.Helper()
	path := file(t, text)
	level = new(slog.LevelVar)
	read := func() (Config, error) {
		c, err := Load(path)
		c.Durability, c.Listen = "memory", Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}
		return c, err
	}
	c, err := read()
	if err != nil {
		t.Fatal(err)
	}
	c.Read, c.Level = read, level
	write = func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return running(t, c), write, level
}

func TestReload(t *testing.T) {
	ctx := context.Background()
	n, write, level := fromFile(t, `
[network]
allow = ["10.0.0.0/8"]
[agents.old]
samvad = { url = "https://old.example" }
[agents.kept]
title = "Kept"
samvad = { url = "https://kept.example" }
delivery = { tries = 10, patience = "1h" }
`)
	conn, err := net.Dial("tcp", n.adminListen.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	request := func() {
		t.Helper()
		fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v", resp, err)
		}
		resp.Body.Close()
		if resp.ContentLength > 0 {
			if _, err := in.Discard(in.Buffered()); err != nil {
				t.Fatal(err)
			}
		}
	}
	request()
	if _, err := ask(t, n, `{"a":1}`); err != nil {
		t.Fatal(err)
	}
	if e, _ := n.directory.Agent("kept"); e.Retries != (parley.Retries{Tries: 10, Patience: time.Hour}) {
		t.Errorf("retries of an agent: %+v", e.Retries)
	}

	write(`
log = "debug"
[network]
allow = ["192.168.1.0/24"]
[limits]
refusals = 7
[[allow]]
from = "nobody"
to = ["echo"]
[agents.kept]
title = "Kept still"
samvad = { url = "https://kept.example" }
delivery = { patience = "2h", ordered = false }
[agents.new]
samvad = { url = "https://new.example", key = "0EqyMnQrtKs6E2i9RhXk5tAiSrcaAWuvhSCjMsl3hzc=" }
`)
	out, err := n.Admin().Reload(ctx, everything)
	if err != nil {
		t.Fatal(err)
	}
	want := admin.Reloaded{Changed: []string{"agents.kept", "agents.new", "agents.old", "allow", "log",
		"network.allow"}, Restart: []string{"limits.refusals"}}
	if !reflect.DeepEqual(out, want) {
		t.Errorf("%+v, want %+v", out, want)
	}
	if e, _ := n.directory.Agent("kept"); e.Retries != (parley.Retries{Patience: 2 * time.Hour, Unordered: true}) {
		t.Errorf("retries of an agent after the reload: %+v", e.Retries)
	}
	request() // the same connection
	if _, err := ask(t, n, `{"a":1}`); parley.CodeOf(err) != parley.Forbidden {
		t.Errorf("the new rules are not in force: %v", err)
	}
	if level.Level() != slog.LevelDebug {
		t.Errorf("level %s", level.Level())
	}
	for a, allowed := range map[string]bool{"10.1.2.3": false, "192.168.1.7": true} {
		if got := n.guard.CheckAddr(netip.MustParseAddr(a)) == nil; got != allowed {
			t.Errorf("%s: allowed = %v", a, got)
		}
	}
	if _, ok := n.directory.Agent("old"); ok {
		t.Error("the agent that was taken out is still there")
	}
	if e, ok := n.directory.Agent("kept"); !ok || e.Title != "Kept still" {
		t.Errorf("%+v", e)
	}
	if e, ok := n.directory.Agent("new"); !ok || e.Source != directory.FromConfig ||
		len(n.keys.Enrolled("new", "samvad")) != 1 {
		t.Errorf("%+v", e)
	}

	// No further key has changed, but the key that needs a restart is still named.
	if out, err := n.Reload(ctx); err != nil || len(out.Changed) != 0 ||
		!slices.Equal(out.Restart, []string{"limits.refusals"}) {
		t.Errorf("%+v, %v", out, err)
	}
	list, err := n.Admin().Audit(everything, admin.AuditFilter{})
	if err != nil || !slices.ContainsFunc(list, func(e admin.AuditEntry) bool { return e.Action == "config.reload" }) {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestReloadOfAWrongFile: a wrong file changes nothing.
func TestReloadOfAWrongFile(t *testing.T) {
	ctx := context.Background()
	n, write, _ := fromFile(t, "[agents.kept]\nsamvad = { url = \"https://kept.example\" }\n")
	if _, err := n.directory.Put(ctx, parley.Agent{Name: "taken"}, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"[netwrok]\nallow = []\n",
		"[[allow]]\nfrom = \"[\"\nto = [\"x\"]\n",
		"[agents.bad]\nsamvad = { url = \"ftp://x\" }\n",
		"[agents.taken]\ntitle = \"x\"\n",
		"[alerts]\ndisk = 7.0\n",
	} {
		write("[network]\nallow = [\"loopback\"]\n" + strings.TrimPrefix(text, "[network]\n"))
		if text[1] == 'n' {
			write(text)
		}
		if _, err := n.Reload(ctx); parley.CodeOf(err) != parley.InvalidContent {
			t.Errorf("%q: %v", text, err)
		}
		if n.guard.CheckAddr(netip.MustParseAddr("127.0.0.1")) == nil {
			t.Errorf("%q: half of it is in force", text)
		}
		if _, ok := n.directory.Agent("kept"); !ok {
			t.Errorf("%q: the agent is gone", text)
		}
		if _, failed := n.lastReload(); !failed || value(t, n, "parley_config_reload_failed") != 1 {
			t.Errorf("%q: no metric says so", text)
		}
	}
	reader := admin.Actor{Name: "r", Role: admin.Operate}
	if _, err := n.Admin().Reload(ctx, reader); parley.CodeOf(err) != parley.Forbidden {
		t.Error(err)
	}
	if _, err := running(t, Config{}).Reload(ctx); parley.CodeOf(err) != parley.Unsupported {
		t.Error(err)
	}
}

// TestEveryReloadableKeyIsKnown: every key marked as reloadable is one that a reload
// compares.
func TestEveryReloadableKeyIsKnown(t *testing.T) {
	c := Config{Agents: map[string]Agent{"a": {}}, Allow: []Allow{{From: "x"}},
		Network: Network{Allow: []string{"loopback"}}, TLS: TLS{Proxy: []string{"::1"}}}
	all := flat(&c)
	for _, k := range Keys() {
		name := k.Name
		if strings.Contains(name, "<name>") || strings.Contains(name, "[]") || strings.HasPrefix(k.Type, "list") {
			continue
		}
		if _, ok := all[name]; !ok {
			t.Errorf("%s is not compared", name)
		}
	}
}

func TestInitialisedDirectoryIsFitToRun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "parley.toml")
	if err := os.WriteFile(path,
		[]byte(Template(map[string]string{"data": "data", "listen.http": "127.0.0.1:0",
			"listen.admin": "127.0.0.1:0"})), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.MakeTokenFile(c.Data, time.Time{}, rand.Reader); err != nil {
		t.Fatal(err)
	}
	n := running(t, c)
	if err := n.Ready(); err != nil || n.c.Delivery.For.Duration != time.Duration(0) {
		t.Error(err)
	}
}
