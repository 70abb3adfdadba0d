package main

import (
	"os"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

// TestServeNetworkAllow: the hub calls an agent at a private address only with the flag,
// which adds to the file's network.allow and outlives a reload. A wrong value is refused.
func TestServeNetworkAllow(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	p.write("parley.toml", "[network]\nallow = [\"10.0.0.0/8\"]\n[delivery]\ntries = 1\n")
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{nil, "address guard: "},
		{[]string{"--network-allow", "192.168.0.0/16,loopback"}, `"show":"angels"`},
	} {
		hub, _, at, log := p.serve(append([]string{"--data", "data", "--listen", "127.0.0.1:0", "--admin-listen",
			"127.0.0.1:0"}, c.flags...)...)
		a, err := node.ReadAnnouncement(p.dir + "/data")
		if err != nil {
			t.Fatal(err)
		}
		info, err := (&admin.Client{Base: at, Token: a.Token}).Info(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		museum, err := startAgent(info.SAMVAD.Identity, info.SAMVAD.Key)
		if err != nil {
			t.Fatal(err)
		}
		defer museum.Close()
		for _, args := range [][]string{{"agents", "add", "museum", "--samvad", museum.URL}, {"config", "reload"}} {
			if out, code := p.run(append(args, "--data", "data")...); code != 0 {
				t.Fatalf("%v: %s", args, out)
			}
		}
		if out, _ := p.run("send", "--to", "museum", "{}", "--data", "data"); !strings.Contains(out, c.want) {
			t.Errorf("%v: no %s in %s", c.flags, c.want, out)
		}
		if err := hub.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := hub.Wait(); err != nil {
			t.Error(err, log())
		}
	}
	if out, code := p.run("serve", "--data", "data", "--network-allow", "everything"); code != exitUsage ||
		!strings.Contains(out, "--network-allow") {
		t.Errorf("%d %s", code, out)
	}
}
