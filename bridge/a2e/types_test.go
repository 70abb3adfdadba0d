package a2e_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley/node"
)

// TestTypesTable: docs/a2e.md states how a hub treats each message type, without
// providers and with one for each capability.
func TestTypesTable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reg := protocol.NewRegistry()
	host := &protocol.Host{Auth: protocol.Anonymous("hub"), Handler: func(context.Context,
		*protocol.Request) (protocol.Response, error) {
		return protocol.Response{}, &protocol.Error{Code: protocol.RuntimeError, Text: "reached"}
	}}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = host.Serve(ctx, l) })
	t.Cleanup(func() { stop(); serving.Wait() })

	alone := newWorld(t, node.Config{}).tcp(tokenAlice)
	served := func(c *protocol.Client, name string) bool {
		_, err := c.Ask(t.Context(), protocol.Message{Type: name, Body: map[string]any{}})
		return !protocol.NotSupported(err)
	}
	by := map[string]string{} // type → its server
	var providers []string
	for _, name := range reg.Names() {
		typ, _ := reg.Lookup(name)
		provider := typ.Capability + "=lab"
		switch {
		case typ.Capability == "":
			by[name] = "hub"
		case typ.Bare:
			by[name] = "library alone"
		case typ.Class != protocol.ClassRequest:
		case served(alone, name):
			by[name] = "hub"
		case !slices.Contains(providers, provider):
			providers = append(providers, provider)
		}
	}
	behind := newWorld(t, node.Config{A2E: node.A2E{Providers: providers}, Agents: map[string]node.Agent{
		"lab": {A2E: &node.A2EAgent{URL: "tcp://" + l.Addr().String()}},
	}}).tcp(tokenAlice)
	for _, name := range reg.Names() {
		if typ, _ := reg.Lookup(name); typ.Class == protocol.ClassRequest && by[name] == "" {
			by[name] = "refused"
			if served(behind, name) {
				by[name] = "provider host"
			}
		}
	}
	var want strings.Builder
	for _, name := range reg.Names() {
		typ, _ := reg.Lookup(name)
		for _, other := range reg.Names() {
			request, _ := reg.Lookup(other)
			if by[name] == "" && (request.Answer == name || typ.Class == protocol.ClassEvent &&
				request.Capability == typ.Capability) {
				by[name] = by[other] // an answer is served as its request, an event as its capability
			}
		}
		if typ.Class == protocol.ClassPush {
			by[name] = "dropped"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", name, typ.Class, by[name])
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "a2e.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| Type | Part | Served by |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if table+"\n" != want.String() {
		t.Errorf("the table of types in docs/a2e.md must be\n%s", &want)
	}
}
