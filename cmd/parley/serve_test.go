package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/node"
)

// A hub tells how many agents it has, and does not list them.
func TestServeCountsItsAgents(t *testing.T) {
	c := node.Config{Durability: "memory", Agents: map[string]node.Agent{}}
	for _, name := range []string{"anna", "bert", "carl"} {
		c.Agents[name] = node.Agent{SAMVAD: &node.SAMVADAgent{URL: "https://" + name + ".example"},
			Expose: []string{"all"}}
	}
	c.Listen.HTTP = "127.0.0.1:0"
	n, err := node.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		if err := (&app{out: &out, json: asJSON}).ready(n, c); err != nil {
			t.Fatal(err)
		}
		want := "agents     4: `parley agents list` shows them" // with the hub's own
		if asJSON {
			want = `"agentCount":4`
		}
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "bert") {
			t.Errorf("%s", &out)
		}
	}
}

// A short start shows nothing; a longer one shows each piece of work, and leaves no line behind.
func TestProgressIsShownAfterASecond(t *testing.T) {
	var w bytes.Buffer
	now := time.Unix(1, 0)
	show := progressOn(&w, func() time.Time { return now })
	show("stand-ins in uagents", 1, 10_000)
	now = now.Add(patience - 1)
	show("stand-ins in uagents", 9_000, 10_000)
	show("stand-ins in uagents", 10_000, 10_000)
	if w.Len() > 0 {
		t.Fatalf("shown within a second: %q", &w)
	}
	now = now.Add(1)
	show("stand-ins in asp", 7, 30)
	if out := w.String(); !strings.Contains(out, "stand-ins in asp") || !strings.Contains(out, "7/30") {
		t.Fatalf("after a second: %q", out)
	}
	show("stand-ins in agh", 8, 31)
	if out := w.String(); !strings.Contains(out, "stand-ins in agh") || !strings.Contains(out, "8/31") {
		t.Fatalf("the next piece of work: %q", out)
	}
	show("stand-ins in agh", 31, 31)
	rest := w.String()
	if last := rest[strings.LastIndexAny(strings.TrimRight(rest, "\r"), "\r")+1:]; strings.TrimSpace(last) != "" {
		t.Errorf("a line is left on the terminal: %q", rest)
	}
}
