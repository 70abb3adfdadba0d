package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// TestReferencesInAGH: testdata/script/refs.txt for AGH, whose peers need a hub with NATS: the error of work that an
// agent refused has a reference that the hub explains.
func TestReferencesInAGH(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	data := t.TempDir()
	c := node.Config{Data: data, Listen: node.Listen{Admin: "127.0.0.1:0"}, Policy: node.Policy{Assurance: "session"}}
	aghProtocol.demoConfig(&c)
	n, err := node.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(ctx) })
	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(context.Context, *parley.Message, weatherQuery) (weatherAnswer, error) {
			return weatherAnswer{}, parley.Refuse(parley.Rejected, "no such city")
		}))
	if err == nil {
		err = n.Start(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("demo-mason"), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs, out bytes.Buffer
	if code := run([]string{"send", "--protocol", "agh", "--url", n.Addresses().AGH, "--as", "demo/square/mason", "--key",
		token, "--to", "weather", `{"city":"Atlantis"}`}, strings.NewReader(""), io.Discard, &errs); code != exitRefused {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	text, ref, ok := strings.Cut(strings.TrimSpace(errs.String()), "at that hub: parley explain ")
	if !ok || !strings.Contains(text, "no such city") || strings.ContainsAny(text, "{&") {
		t.Fatalf("%s", &errs)
	}
	if code := run([]string{"explain", ref, "--data", data}, strings.NewReader(""), &out, &errs); code != exitOK ||
		!strings.Contains(out.String(), "no such city") {
		t.Errorf("exit code %d: %s%s", code, &out, &errs)
	}
}
