package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// a2ePython gives an interpreter that has the A2E SDK, which no registry has:
// PARLEY_A2E_PYTHON names one with what the SDK needs, A2E_SDK the folder of
// its source where it is not installed.
func a2ePython(t *testing.T) string {
	t.Helper()
	p := os.Getenv("PARLEY_A2E_PYTHON")
	if p == "" {
		t.Skip("PARLEY_A2E_PYTHON names no Python interpreter for the A2E SDK; see interop/doc.go")
	}
	return p
}

func a2eHub(t *testing.T) (*node.Node, string) {
	t.Helper()
	n, err := node.Open(t.Context(), node.Config{Durability: "disk", Data: filepath.Join(t.TempDir(), "data"), Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	type text struct {
		Text string `json:"text"`
	}
	err = n.Handle(parley.Agent{Name: "crew/echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, _ *parley.Message, q text) (text, error) { return q, nil }, parley.AsDefault()),
		parley.RawSkill("pieces", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 3 {
				if err := r.Chunk(parley.Part{MediaType: "application/json", Data: fmt.Appendf(nil, `{"piece":%d}`, i)}); err != nil {
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
	if _, err := n.Hub().Directory().Put(t.Context(), parley.Agent{Name: "robot", Identities: []parley.Identity{{Protocol: "a2e", ID: bridge.TokenID(token)}}}, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n, token
}

// TestA2EAgent lets an agent of the SDK, unmodified, use the hub as its
// environment (A2E-049).
func TestA2EAgent(t *testing.T) {
	python := a2ePython(t)
	parleyBinary := filepath.Join(t.TempDir(), "parley")
	if out, err := exec.Command("go", "build", "-o", parleyBinary, "github.com/parley-hub/parley/cmd/parley").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
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
			reply, err := n.Hub().Ask(t.Context(), hub.Submission{Scope: "go", Message: &parley.Message{Kind: parley.Request, From: "crew/echo", To: "robot",
				Parts: []parley.Part{parley.Text("the question")}, Origin: parley.Origin{Protocol: "go", Verdict: parley.Verdict{Assurance: parley.Session}}}})
			if err != nil || reply.Kind != parley.Response || string(reply.Parts[0].Data) != `{"answer":42}` && string(reply.Parts[0].Data) != `{"answer": 42}` {
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
				"session": `32`, "caps": `["tools","memory","multi_agent"]`, "echo": `{"text":"Grüezi"}`, "unknown": `"unknown_tool"`,
				"pieces": `[true,{"text":"done"},[[0,{"piece":0}],[1,{"piece":1}],[2,{"piece":2}]]]`,
				"memory": `[1,[],[{"v":2}]]`, "forgotten": `0`, "await": `["COMPLETED",{"text":"hello"}]`, "list": `1`, "terminate": `true`,
				"skill": `{"text":"skill"}`, "inbox": `["crew/echo","the question","session"]`, "reply": `true`, "disconnected": `true`,
			} {
				got, err := json.Marshal(seen[name])
				if err != nil || string(got) != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
			if list, _ := seen["tools"].([]any); !slices.Contains(list, any("crew-echo__pieces")) || !slices.Contains(list, any("parley_inbox")) {
				t.Errorf("tools: %v", list)
			}
		})
	}
}
