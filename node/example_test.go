package node_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// Run a hub in a program, with an agent, and ask the agent.
func Example() {
	ctx := context.Background()
	data, err := os.MkdirTemp("", "parley")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(data)
	n, err := node.Open(ctx, node.Config{Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0"}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type query struct {
		City string `json:"city"`
	}
	type answer struct {
		Celsius float64 `json:"celsius"`
	}
	forecast := func(context.Context, *parley.Message, query) (answer, error) { return answer{21}, nil }
	if err := n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere},
		parley.Skill("forecast", forecast)); err != nil {
		log.Fatal(err)
	}
	city, err := parley.JSON(query{"Bern"})
	if err != nil {
		log.Fatal(err)
	}
	m, err := n.Hub().Ask(ctx, hub.Submission{Scope: "go ann", Message: &parley.Message{
		Kind: parley.Request, From: "ann", To: "weather", Skill: "forecast", Parts: []parley.Part{city},
		Origin: parley.Origin{Protocol: "go"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Kind, string(m.Parts[0].Data))
	// Output: response {"celsius":21}
}

// A handler asks another agent, and the program asks the first one.
func ExampleNode_As() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Durability: "memory", Agents: map[string]node.Agent{"ann": {}}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close(ctx)

	type query struct {
		City string `json:"city"`
	}
	type answer struct {
		Celsius float64 `json:"celsius"`
	}
	forecast := func(_ context.Context, m *parley.Message, q query) (answer, error) {
		fmt.Println(m.From, "asks for", q.City)
		return answer{21}, nil
	}
	plan := func(ctx context.Context, m *parley.Message, city string) (string, error) {
		a, err := parley.Ask[answer](ctx, "weather", "forecast", query{city})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s at %g degrees: go", city, a.Celsius), nil
	}
	for name, skill := range map[string]parley.SkillSpec{"weather": parley.Skill("forecast", forecast),
		"planner": parley.Skill("plan", plan)} {
		if err := n.Handle(parley.Agent{Name: name}, skill); err != nil {
			log.Fatal(err)
		}
	}
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(parley.Ask[string](n.As(ctx, "ann"), "planner", "plan", "Bern"))
	// Output:
	// planner asks for Bern
	// Bern at 21 degrees: go <nil>
}

// Mount a hub below /parley/ of a server that the program has already.
func ExampleNode_Handler() {
	ctx := context.Background()
	mux := http.NewServeMux()
	server := httptest.NewUnstartedServer(mux) // in place of a http.Server of the program
	server.Config.ReadHeaderTimeout, server.Config.IdleTimeout = 10*time.Second, 2*time.Minute
	server.Config.MaxHeaderBytes = 32 << 10
	server.Start()
	defer server.Close()

	n, err := node.Open(ctx, node.Config{Durability: "memory", PublicURL: server.URL + "/parley", AdminAPI: true})
	if err != nil {
		log.Fatal(err)
	}
	mux.Handle("/parley/", n.Handler())
	mux.Handle("/ops/", http.StripPrefix("/ops", n.AdminHandler()))
	if err := n.Start(ctx); err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{"/parley/.well-known/agent.json", "/ops/health", "/ops/v1/info"} {
		r, err := http.Get(server.URL + path)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			log.Fatal(err)
		}
		r.Body.Close()
		fmt.Println(path, r.StatusCode)
	}
	if err := n.Close(ctx); err != nil { // before the server's Shutdown
		log.Fatal(err)
	}
	// Output:
	// /parley/.well-known/agent.json 200
	// /ops/health 200
	// /ops/v1/info 401
}
