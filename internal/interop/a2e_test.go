package interop

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// a2eInterpreter gives an interpreter that has the A2E SDK, which is in no registry; ""
// where there is none. PARLEY_A2E_PYTHON names one, else PARLEY_PYTHON may have it;
// A2E_SDK is the folder of its source where it is not installed.
func a2eInterpreter(t *testing.T) string {
	t.Helper()
	p := cmp.Or(os.Getenv("PARLEY_A2E_PYTHON"), os.Getenv("PARLEY_PYTHON"))
	if p == "" {
		return ""
	}
	out, err := exec.Command(p, "-c",
		"import os, sys; sys.path.insert(0, os.environ.get('A2E_SDK') or '.'); import a2e.core.client.client").CombinedOutput()
	if err != nil {
		if os.Getenv("PARLEY_A2E_PYTHON") != "" || os.Getenv("A2E_SDK") != "" {
			t.Fatalf("%s has no A2E SDK: %v\n%s", p, err, out)
		}
		return ""
	}
	return p
}

func a2ePython(t *testing.T) string {
	t.Helper()
	p := a2eInterpreter(t)
	if p == "" {
		t.Skip("neither PARLEY_A2E_PYTHON nor PARLEY_PYTHON names a Python interpreter that has the A2E SDK; see internal/interop/doc.go")
	}
	return p
}

func a2eHub(t *testing.T) (*node.Node, string) {
	t.Helper()
	n, err := node.Open(t.Context(), node.Config{Durability: "disk", Data: filepath.Join(t.TempDir(), "data"),
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	type text struct {
		Text string `json:"text"`
	}
	err = n.Handle(parley.Agent{Name: "crew/echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, _ *parley.Message, q text) (text, error) { return q, nil },
			parley.AsDefault()),
		parley.RawSkill("pieces", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 3 {
				if err := r.Chunk(parley.Part{MediaType: "application/json",
					Data: fmt.Appendf(nil, `{"piece":%d}`, i)}); err != nil {
					return err
				}
			}
			return r.Reply(parley.Text("done"))
		}))
	if err != nil {
		t.Fatal(err)
	}
	token, err := bridge.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hub().Directory().Put(t.Context(), parley.Agent{Name: "robot",
		Identities: []parley.Identity{{Protocol: "a2e", ID: bridge.TokenID(token)}}},
		directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n, token
}

// parleyProgram builds the program parley.
func parleyProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "parley")
	if out, err := exec.Command("go", "build", "-o", program,
		"github.com/parley-hub/parley/cmd/parley").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestA2EAgent lets an agent of the SDK, unmodified, use the hub as its
// environment (A2E-049): capabilities (A2E-042), events in order (A2E-052), an
// unknown tool (A2E-073), delegation (A2E-124).
func TestA2EAgent(t *testing.T) {
	python := a2ePython(t)
	parleyBinary := parleyProgram(t)
	for _, how := range []string{"http", "stdio"} {
		t.Run(how, func(t *testing.T) {
			n, token := a2eHub(t)
			where := n.Addresses().Local + "/a2e"
			if how == "stdio" {
				where = parleyBinary + " a2e stdio --url " + n.Addresses().Local
			}
			c := exec.Command(python, "python/a2e_agent.py", how, where, token)
			c.Stderr = os.Stderr
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			next := func() string {
				if !lines.Scan() {
					t.Fatalf("the agent ended: %v", c.Wait())
				}
				return lines.Text()
			}
			if got := next(); !strings.Contains(got, "ready") {
				t.Fatal(got)
			}
			reply, err := n.Hub().Ask(t.Context(), hub.Submission{Scope: "go",
				Message: &parley.Message{Kind: parley.Request, From: "crew/echo", To: "robot",
					Parts:  []parley.Part{parley.Text("the question")},
					Origin: parley.Origin{Protocol: "go", Verdict: parley.Verdict{Assurance: parley.Session}}}})
			if err != nil || reply.Kind != parley.Response ||
				string(reply.Parts[0].Data) != `{"answer":42}` && string(reply.Parts[0].Data) != `{"answer": 42}` {
				t.Errorf("%+v, %v", reply, err)
			}
			var seen map[string]any
			last := next()
			if err := json.Unmarshal([]byte(last), &seen); err != nil {
				t.Fatal(err, last)
			}
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
			for name, want := range map[string]string{
				"session": `32`, "caps": `["tools","memory","multi_agent"]`, "echo": `{"text":"Grüezi"}`,
				"unknown": `"unknown_tool"`,
				"pieces":  `[true,{"text":"done"},[[0,{"piece":0}],[1,{"piece":1}],[2,{"piece":2}]]]`,
				"memory":  `[1,[],[{"v":2}]]`, "forgotten": `0`, "await": `["COMPLETED",{"text":"hello"}]`, "list": `1`,
				"terminate": `true`,
				"skill":     `{"text":"skill"}`, "inbox": `["crew/echo","the question","session"]`, "reply": `true`,
				"disconnected": `true`,
			} {
				got, err := json.Marshal(seen[name])
				if err != nil || string(got) != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
			if list, _ := seen["tools"].([]any); !slices.Contains(list, any("crew-echo__pieces")) ||
				!slices.Contains(list, any("parley_inbox")) {
				t.Errorf("tools: %v", list)
			}
		})
	}
}

// freePort finds a port for a server that cannot report its own.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// referenceHost starts a host of the SDK, unmodified, over HTTP and gives its
// URL.
func referenceHost(t *testing.T) string {
	t.Helper()
	python, port := a2ePython(t), freePort(t)
	c := exec.Command(python, "python/a2e_host.py", "http", port)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // it has no other way to end
		_ = c.Wait()
	})
	url := "http://127.0.0.1:" + port
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if resp, err := http.Get(url + "/health"); err == nil {
			_ = resp.Body.Close()
			return url
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the host did not start")
		}
	}
}

// TestA2EClient lets the Go client use a host of the SDK, unmodified, as its
// environment: events (A2E-059), numbers of any length (A2E-121).
func TestA2EClient(t *testing.T) {
	for _, how := range []string{"http", "stdio"} {
		t.Run(how, func(t *testing.T) {
			c := &a2e.Client{AgentID: "parley", Token: "any"}
			if how == "http" {
				c.URL, c.HTTP = referenceHost(t), &http.Client{}
			} else {
				python := a2ePython(t)
				c.Command = func() *exec.Cmd { return exec.Command(python, "python/a2e_host.py", "stdio") }
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.Connect(ctx); err != nil {
				t.Fatal(err)
			}
			if got := c.Accepted(); !slices.Equal(got, []string{"tools", "memory"}) || len(c.SessionID()) != 32 ||
				c.Remembers() {
				t.Errorf("accepted %v, session %q, remembers %v", got, c.SessionID(), c.Remembers())
			}
			if _, err := c.Ping(ctx); err != nil {
				t.Error(err)
			}
			tools, err := c.Tools(ctx, a2e.ToolQuery{})
			if err != nil || len(tools) != 2 || tools[0].Name != "add" || len(tools[0].InputParameters) != 2 {
				t.Errorf("%+v, %v", tools, err)
			}
			r, err := c.CallTool(ctx, "add", json.RawMessage(`{"a":123456789012345678901234567890,"b":1}`), nil)
			if data, _ := r.Data.(json.RawMessage); err != nil || !r.Success ||
				string(data) != `{"sum": 123456789012345678901234567891}` &&
					string(data) != `{"sum":123456789012345678901234567891}` {
				t.Errorf("%s, %v", data, err)
			}
			var steps []string
			r, err = c.CallTool(ctx, "steps", nil, func(e a2e.Event) {
				steps = append(steps, string(e.Kind)+" "+strings.ReplaceAll(string(e.Data), " ", ""))
			})
			if err != nil || !r.Success || !slices.Equal(steps,
				[]string{`status {"step":0}`, `status {"step":1}`, `status {"step":2}`}) {
				t.Errorf("%v, %+v, %v", steps, r, err)
			}
			var failure *a2e.Error
			if _, err = c.CallTool(ctx, "nothing", nil, nil); !errors.As(err, &failure) ||
				failure.Code != a2e.ToolError {
				t.Errorf("an unknown tool: %v", err)
			}
			if _, err = c.Ask(ctx, a2e.Message{Type: "multi_agent/spawn",
				Body: map[string]any{"name": "x"}}); !a2e.NotSupported(err) {
				t.Errorf("multi_agent, which this host does not serve: %v", err)
			}
			m, err := c.Ask(ctx, a2e.Message{Type: "memory/init/req", Body: map[string]any{"namespace": "interop"}})
			if err != nil {
				t.Fatal(err)
			}
			id := m.Str("memory_id")
			entry := map[string]any{"key": map[string]any{"k": 1}, "content": map[string]any{"v": 2},
				"tier": "working", "tags": []string{"t"}}
			if m, err = c.Ask(ctx, a2e.Message{Type: "memory/store/req",
				Body: map[string]any{"memory_id": id, "entries": []any{entry}}}); err != nil ||
				len(m.Values("stored")) != 1 {
				t.Errorf("%v, %v", m, err)
			}
			if m, err = c.Ask(ctx, a2e.Message{Type: "memory/retrieve/req",
				Body: map[string]any{"memory_id": id, "tags": []string{"t"}}}); err != nil ||
				len(m.Values("entries")) != 1 {
				t.Errorf("%v, %v", m, err)
			}
			if m, err = c.Ask(ctx, a2e.Message{Type: "memory/forget/req",
				Body: map[string]any{"memory_id": id, "tags": []string{"t"}}}); err != nil || m.Int("deleted") != 1 {
				t.Errorf("%v, %v", m, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestA2EHost attaches the hub to a host of the SDK, unmodified: its tools are
// skills of an agent.
func TestA2EHost(t *testing.T) {
	url := referenceHost(t)
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"),
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}},
		Agents:  map[string]node.Agent{"lab": {A2E: &node.A2EAgent{URL: url}, Expose: parley.Everywhere}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	idle := parley.RawSkill("idle", func(_ context.Context, _ *parley.Message,
		r parley.Replier) error {
		return r.Reply()
	})
	if err := n.Handle(parley.Agent{Name: "asker"}, idle); err != nil {
		t.Fatal(err)
	}
	learnt := make(chan struct{})
	var once sync.Once
	look := func() {
		if e, ok := n.Hub().Directory().Agent("lab"); ok && len(e.Skills) == 2 {
			once.Do(func() { close(learnt) })
		}
	}
	defer n.Hub().Directory().Watch(func(directory.Change) { look() })()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	look()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-learnt:
	case <-ctx.Done():
		t.Fatal("the host's tools were not learnt")
	}
	reply, err := n.Hub().Ask(ctx, hub.Submission{Scope: "go",
		Message: &parley.Message{Kind: parley.Request, From: "asker", To: "lab", Skill: "add",
			Parts:  []parley.Part{{MediaType: "application/json", Data: []byte(`{"a":2,"b":3}`)}},
			Origin: parley.Origin{Protocol: "go", Verdict: parley.Verdict{Assurance: parley.Session}}}})
	if err != nil || reply.Kind != parley.Response || strings.ReplaceAll(string(reply.Parts[0].Data),
		" ", "") != `{"sum":5}` {
		t.Errorf("%+v, %v", reply, err)
	}
}
