package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/parley-hub/parley/internal/testcluster"
)

// A command sends secrets only to this machine, or over TLS.
func TestKeepsSecret(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]bool{
		"http://127.0.0.1:9090": true, "http://[::1]:9090": true, "http://localhost:9090": true,
		"https://hub.test":     true,
		"http://hub.test:9090": false, "http://192.0.2.1": false, "http://localhost.hub.test": false,
		"https://%": false,
	} {
		if err := keepsSecret(base); (err == nil) != want {
			t.Errorf("%s: %v", base, err)
		}
	}
}

// TestKeysOfACluster: keys and the passphrase of a cluster are changed at one of
// its hubs, for all of them.
func TestKeysOfACluster(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	url := testcluster.Start(t, 1).URLs[0]
	for _, name := range []string{"one", "two"} {
		p.write(name+".toml", fmt.Sprintf("name = %q\ndata = %[1]q\npublic_url = \"https://hub.test\"\n[listen]\n"+
			"http = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[engine]\nurl = %q\nreplicas = 1\npartitions = 2\n", name,
			url))
	}
	p.write("old.txt", "old\n")
	p.write("new.txt", "new\n")
	start := func(name, passphrase string) *exec.Cmd {
		t.Helper()
		p.env = []string{"PARLEY_PASSPHRASE_FILE=" + passphrase}
		c, _, _, _ := p.serve("--config", name+".toml")
		return c
	}
	stop := func(c *exec.Cmd) {
		t.Helper()
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	wants := func(hub, passphrase string, code int, text string, args ...string) string {
		t.Helper()
		c := p.command(append(args, "--config", hub+".toml")...)
		c.Env = append(c.Env, "PARLEY_PASSPHRASE_FILE="+passphrase)
		out, err := c.CombinedOutput()
		got := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			got = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != code || !strings.Contains(string(out), text) {
			t.Errorf("%s %v: exit %d, want %d and %q:\n%s", hub, args, got, code, text, out)
		}
		return string(out)
	}
	one, two := start("one", "old.txt"), start("two", "old.txt")
	has := func(owner string) func(string) bool {
		return func(out string) bool { return strings.Contains(out, `"owner":"`+owner+`"`) }
	}
	wants("one", "", 0, "is made", "keys", "new", "--owner", "made")
	p.until(has("made"), "keys", "--json", "--config", "two.toml")
	wants("two", "", 0, "agent://me.test", "keys", "new", "--id", "agent://me.test", "--out", "me.json")
	wants("two", "", 0, "is imported", "keys", "import", "me.json", "--owner", "brought", "--id", "agent://me.test")
	p.until(has("brought"), "keys", "--json", "--config", "one.toml")
	wants("two", "", 4, "already", "keys", "import", "me.json", "--owner", "made", "--id", "agent://me.test")

	change := []string{"keys", "passphrase", "--new-file", "new.txt"}
	wants("one", "new.txt", 4, "does not open", change...)
	wants("one", "old.txt", 0, "is changed", change...)
	wants("one", "", 0, "is made", "keys", "new", "--owner", "later")
	wants("two", "", 0, "made", "keys", "show", "made")
	wants("two", "", 4, "start it again, with the new passphrase", "keys", "new", "--owner", "other")
	stop(two)
	wants("two", "old.txt", 1, "was changed on", "serve")
	two = start("two", "new.txt")
	wants("two", "", 0, "is made", "keys", "new", "--owner", "other")
	p.until(has("other"), "keys", "--json", "--config", "one.toml")
	wants("two", "", 0, "later", "keys", "show", "later")
	stop(one)
	stop(two)
	wants("one", "new.txt", 1, "start one of its hubs", "keys", "new", "--owner", "more")
}
