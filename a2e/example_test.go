package a2e_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/parley-hub/parley/a2e"
)

// A host with one tool, and an agent that calls it over HTTP + SSE.
func Example() {
	tools := &a2e.Toolbox{}
	tools.Add(a2e.ToolDefinition{Name: "forecast", Description: "weather of a city"},
		func(ctx context.Context, c *a2e.ToolCall) (any, error) {
			if err := c.Progress(ctx, 50, "asking the station"); err != nil {
				return nil, err
			}
			return map[string]any{"celsius": 21}, nil
		})
	host := &a2e.Host{
		Auth:         a2e.StaticTokens{"scout": "a long secret"},
		Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(tools)},
	}
	server := httptest.NewServer(host)
	defer server.Close()

	agent := &a2e.Client{URL: server.URL, HTTP: server.Client(), Token: "a long secret"}
	defer func() { _ = agent.Close() }()
	result, err := agent.CallTool(context.Background(), "forecast", map[string]string{"city": "Bern"},
		func(e a2e.Event) {
			fmt.Printf("%s %s\n", e.Kind, e.Data)
		})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v %s\n", result.Success, result.Data)
	// Output:
	// progress {"message":"asking the station","pct":50}
	// true {"celsius":21}
}

// Messages one by one, from any stream of lines.
func ExampleDecode() {
	m, err := a2e.Decode([]byte(`{"type":"tool/call/req","id":"7","tool_name":"pay","arguments":{"amount":1.50}}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Type, m.ID, m.Class, m.Str("tool_name"), m.Int("timeout"), m.Check())
	fmt.Println(string(m.Get("arguments")))

	m, _ = a2e.Decode([]byte(`{"type":"tool/call/req","id":"8"}`))
	fmt.Println(m.Check())
	// Output:
	// tool/call/req 7 request pay 30 <nil>
	// {"amount":1.50}
	// a2e: schema_violation: fails the type's schema
}

// A plugin's own types.
func ExampleRegistry_Define() {
	types := a2e.NewRegistry()
	if err := types.Define("weather/get/req", "weather", `city: string!; days: integer = 3`); err != nil {
		log.Fatal(err)
	}
	host := &a2e.Host{
		Registry: types,
		Auth:     a2e.Anonymous("developer"),
		Capabilities: map[string]a2e.Provider{"weather": a2e.Handler(func(_ context.Context,
			r *a2e.Request) (a2e.Response, error) {
			return a2e.Response{Body: map[string]any{"text": fmt.Sprintf("%s, %d days", r.Str("city"), r.Int("days"))}},
				nil
		})},
	}
	var out strings.Builder
	in := strings.NewReader(`{"type":"handshake/req","id":"1"}` + "\n" +
		`{"type":"weather/get/req","id":"2","city":"Bern"}` + "\n")
	if err := host.ServeStdio(context.Background(), in, &out); err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		m, err := types.Decode([]byte(strings.TrimSpace(line)))
		if err != nil {
			log.Fatal(err)
		}
		if m.Class == a2e.ClassResponse && m.Known() && m.Capability() == "" {
			fmt.Println(m.Type, m.Bool("ok"))
			continue
		}
		fmt.Println(m.Type, m.ReqID, m.Str("text"))
	}
	// Output:
	// handshake/resp true
	// weather/get/resp 2 Bern, 3 days
}
