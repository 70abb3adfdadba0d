package a2e_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/node"
)

// The hub is the environment of an A2E agent: a Go function is a tool there.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "a2e")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	token := filepath.Join(dir, "scout.token")
	if err := os.WriteFile(token, []byte("a secret of 16 bytes or more"), 0o600); err != nil {
		log.Fatal(err)
	}
	n, err := node.Open(ctx, node.Config{Durability: "memory", Listen: node.Listen{HTTP: "127.0.0.1:0"},
		Agents: map[string]node.Agent{"scout": {A2E: &node.A2EAgent{TokenFile: token}}}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type query struct {
		City string `json:"city"`
	}
	err = n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere}, parley.Skill("forecast",
		func(_ context.Context, m *parley.Message, q query) (string, error) {
			return fmt.Sprintf("%s asks about %s", m.From, q.City), nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}

	agent := &a2e.Client{URL: n.A2E().Base(), Token: "a secret of 16 bytes or more",
		HTTP: http.DefaultClient} // the default refuses loopback
	defer func() { _ = agent.Close() }()
	r, err := agent.CallTool(ctx, "weather.forecast", map[string]string{"city": "Bern"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%t %s\n", r.Success, r.Data)
	// Output: true {"text":"scout asks about Bern"}
}
