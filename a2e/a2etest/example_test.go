package a2etest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/a2e/a2etest"
)

// In a program, t is that of the test.
var t *testing.T

// TestExamples runs the examples, which need a test.
func TestExamples(real *testing.T) {
	t = real
	ExampleConnect()
	ExampleForgeries()
	ExampleHost()
}

// host is the code under test.
func host() *a2e.Host {
	tools := &a2e.Toolbox{}
	tools.Add(a2e.ToolDefinition{Name: "forecast"}, func(context.Context, *a2e.ToolCall) (any, error) {
		return map[string]int{"celsius": 21}, nil
	})
	return &a2e.Host{Auth: a2e.StaticTokens{"scout": "a long secret"},
		Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(tools)}}
}

// Call the tools of your host without a socket.
func ExampleConnect() {
	agent := a2etest.Connect(t, host(), "a long secret")
	result, err := agent.CallTool(t.Context(), "forecast", map[string]string{"city": "Bern"}, nil)
	if err != nil || fmt.Sprintf("%s", result.Data) != `{"celsius":21}` {
		t.Errorf("%+v, %v", result, err)
	}
}

// Your host serves the genuine agent and refuses the others.
func ExampleForgeries() {
	for _, f := range a2etest.Forgeries("a long secret") {
		if _, err := a2etest.Exchange(t.Context(), host(), f.Lines...); !errors.Is(err, f.Err) {
			t.Errorf("lines %s: %v", f.Name, err)
		}
	}
}

// Test a program that is an agent: the host is in memory.
func ExampleHost() {
	h := a2etest.NewHost(t)
	h.Tool("forecast", func(context.Context, *a2e.ToolCall) (any, error) { return 21, nil })
	agent := &a2e.Client{URL: "http://host.test", Token: a2etest.Token, HTTP: h.HTTP()} // your program's client
	_, err := agent.CallTool(t.Context(), "forecast", map[string]string{"city": "Bern"}, nil)
	if got := h.Calls(); err != nil || len(got) != 1 || string(got[0].Arguments) != `{"city":"Bern"}` {
		t.Errorf("the host received %v: %v", got, err)
	}
	t.Cleanup(func() { _ = agent.Close() })
}

// Check an own store of memories. Here it is the one of package a2e.
func ExampleTestMemories() {
	err := a2etest.TestMemories(func() a2e.Memories { return &a2e.MemoryStore{} })
	fmt.Println(err)
	// Output: <nil>
}
