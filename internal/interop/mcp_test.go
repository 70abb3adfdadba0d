package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/node"
)

// workshop is an agent in the hub's process. Its skills are tools of python/mcp_server.py.
type workshop struct{ cancelled atomic.Int64 }

// skill makes a skill that takes a JSON object.
func skill[In any](id string, f func(ctx context.Context, in In, r parley.Replier) error) parley.SkillSpec {
	typed := parley.Skill(id, func(context.Context, *parley.Message, In) (any, error) { return nil, nil })
	return parley.RawSkill(id, func(ctx context.Context, m *parley.Message, r parley.Replier) error {
		var in In
		if err := m.Bind(&in); err != nil {
			return err
		}
		return f(ctx, in, r)
	}, func(s *parley.SkillSpec) { s.Input = typed.Input })
}

type (
	sumOf struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	said struct {
		Text string `json:"text"`
	}
	stepsOf struct {
		Steps int `json:"steps"`
	}
	asked struct {
		Question string `json:"question"`
	}
	sizeOf struct {
		Size int `json:"size"`
	}
	sum struct {
		Sum int `json:"sum"`
	}
)

func (w *workshop) agent() parley.Agent {
	return parley.Agent{Name: "workshop", Description: "Tools that test what lies between.", Exposed: parley.Everywhere,
		Skills: []parley.SkillSpec{
			parley.Skill("add", func(_ context.Context, _ *parley.Message, in sumOf) (sum, error) {
				return sum{in.A + in.B}, nil
			}),
			skill("echo", func(_ context.Context, in said, r parley.Replier) error {
				return r.Reply(parley.Text(in.Text))
			}),
			skill("slow", func(ctx context.Context, in stepsOf, r parley.Replier) error {
				for i := range in.Steps {
					if err := r.Progress(fmt.Sprintf("step %d of %d", i+1, in.Steps)); err != nil {
						return err
					}
					pause(ctx)
				}
				return r.Reply(parley.Text(fmt.Sprintf("took %d steps", in.Steps)))
			}),
			skill("hold", func(ctx context.Context, _ struct{}, r parley.Replier) error {
				if err := r.Progress("holding"); err != nil {
					return err
				}
				<-ctx.Done()
				w.cancelled.Add(1)
				return context.Cause(ctx)
			}),
			skill("fail", func(_ context.Context, in said, _ parley.Replier) error {
				return parley.Fail(parley.HandlerFailed, nil, "%s", in.Text)
			}),
			skill("ask", func(_ context.Context, in asked, r parley.Replier) error {
				answer, err := r.(parley.Prompter).NeedInput(parley.Text(in.Question))
				if err != nil {
					return err
				}
				return r.Reply(parley.Text("got " + answer.Text()))
			}),
			skill("big", func(_ context.Context, in sizeOf, r parley.Replier) error {
				return r.Reply(parley.Text(strings.Repeat("x", in.Size)))
			}),
		}}
}

// pause lets the time pass within which the hub sends a client one message of progress.
func pause(ctx context.Context) {
	select {
	case <-time.After(150 * time.Millisecond):
	case <-ctx.Done():
	}
}

// mcpCaller enrols an agent that calls the hub, and gives its token.
func mcpCaller(t *testing.T, n *node.Node, name string) string {
	t.Helper()
	put(t, n, parley.Agent{Name: name, Exposed: parley.Everywhere,
		Identities: []parley.Identity{mcp.IdentityOfCaller(name)}})
	return tokenOf(t, n, name)
}

// mcpPartner gives a client with which another one exchanges messages. It is there before the other one lists tools.
func mcpPartner(t *testing.T, n *node.Node, of string) *mcpClient {
	t.Helper()
	return mcpGoConnect(t, "2025-11-25", n.Addresses().Local+mcp.Base, mcpCaller(t, n, "partner-of-"+of))
}

// secretFile gives a file with a secret.
func secretFile(t *testing.T, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestMCPClients has clients of the official SDKs, unmodified, call agents of the hub (MCP-111).
func TestMCPClients(t *testing.T) {
	sdks := mcpSDKs(t)
	w := &workshop{}
	n := hubWith(t, node.Config{MCP: node.MCP{Tools: 200}}, w.agent())
	url := n.Addresses().Local + mcp.Base
	for i, sdk := range sdks {
		t.Run(sdk.name, func(t *testing.T) {
			me := fmt.Sprintf("visitor%d", i)
			partner := mcpPartner(t, n, me)
			c := mcpConnect(t, sdk, url, mcpCaller(t, n, me))
			if got := c.first.Connected; (got == "2026-07-28") != sdk.modern {
				t.Errorf("it speaks %s", got)
			}
			callHub(t, n, w, c, partner, me)
		})
	}
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		t.Run("go "+version, func(t *testing.T) {
			me := "go" + version[:4]
			partner := mcpPartner(t, n, me)
			c := mcpGoConnect(t, version, url, mcpCaller(t, n, me))
			if c.first.Connected != version {
				t.Errorf("it speaks %s", c.first.Connected)
			}
			callHub(t, n, w, c, partner, me)
		})
	}
	program := parleyProgram(t)
	for _, sdk := range sdks {
		if (sdk.name[0] == 'p') != sdk.modern { // one of each language, and of each era
			continue
		}
		t.Run(sdk.name+" stdio", func(t *testing.T) {
			me := "local" + sdk.name[:1]
			partner := mcpPartner(t, n, me)
			c := mcpConnect(t, sdk, "--", program, "mcp", "stdio", "--url", n.Addresses().Local, "--token-file",
				secretFile(t, mcpCaller(t, n, me)))
			callHub(t, n, w, c, partner, me)
		})
	}
}

// callHub has a client use what the hub has for the agent me.
func callHub(t *testing.T, n *node.Node, w *workshop, c, partner *mcpClient, me string) {
	listed, _ := c.do(t, map[string]any{"do": "list"})
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
	}
	for _, want := range []string{"workshop__add", "workshop__echo", "parley_result", "parley_send", "parley_inbox",
		"parley_reply"} {
		if !slices.Contains(names, want) {
			t.Errorf("tools %q, without %s", names, want)
		}
	}
	if s, _ := c.call(t, "workshop__add", map[string]any{"a": 2, "b": 3}, nil); !sameJSON(s.Structured, `{"sum":5}`) ||
		!sameJSON([]byte(s.text()), `{"sum":5}`) || s.Error {
		t.Errorf("add: %+v", s)
	}
	if s, _ := c.call(t, "workshop__echo", map[string]any{"text": "Grüezi"}, nil); s.text() != "Grüezi" ||
		s.Meta["hub.parley/provenance"] == nil || s.Error {
		t.Errorf("echo: %+v", s)
	}
	s, before := c.call(t, "workshop__slow", map[string]any{"steps": 3}, map[string]any{"progress": true})
	var steps []string
	last := 0.0
	for _, p := range before {
		if steps = append(steps, p.Message); p.Progress == nil || *p.Progress <= last {
			t.Errorf("progress %+v after %v", p, last)
		} else {
			last = *p.Progress
		}
	}
	// One within a tenth of a second reaches the client; on a busy machine, some may come together.
	if s.text() != "took 3 steps" || len(steps) == 0 || !slices.IsSorted(steps) ||
		!strings.HasPrefix(steps[0], "step ") {
		t.Errorf("slow: %q, %+v", steps, s)
	}
	if s, _ = c.call(t, "workshop__fail", map[string]any{"text": "because"}, nil); !s.Error ||
		!strings.Contains(s.text(), "because") ||
		!strings.Contains(string(s.Meta["hub.parley/error"]), string(parley.HandlerFailed)) {
		t.Errorf("fail: %+v", s)
	}
	answer := map[string]any{"answer": map[string]any{"action": "accept", "content": map[string]any{"answer": "Bern"}}}
	if s, before = c.call(t, "workshop__ask", map[string]any{"question": "where to?"}, answer); len(before) != 1 ||
		before[0].Asked != `Agent "workshop" asks: where to?` || s.text() != "got Bern" {
		t.Errorf("ask: %+v, %+v", before, s)
	}
	if s, _ = c.call(t, "workshop__big", map[string]any{"size": 1 << 19}, nil); len(s.text()) != 1<<19 {
		t.Errorf("big: %d characters, %v", len(s.text()), s.Failed)
	}
	cancelled := w.cancelled.Load()
	if s, _ = c.call(t, "workshop__hold", map[string]any{}, map[string]any{"cancel": true}); !s.Cancelled {
		t.Errorf("hold: %+v", s)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	eventually(ctx, t, "the agent gets the cancel", func() bool { return w.cancelled.Load() == cancelled+1 })
	s, _ = c.do(t, map[string]any{"do": "read", "uri": "parley://agents/workshop"})
	var card struct{ Skills []any }
	if len(s.Contents) != 1 {
		t.Fatalf("read: %+v", s)
	} else if text, ok := s.Contents[0]["text"].(string); !ok || json.Unmarshal([]byte(text), &card) != nil ||
		len(card.Skills) != 7 {
		t.Errorf("read: %+v", s)
	}
	talk(t, c, partner, me)

	c.begin(t, map[string]any{"do": "watch"})
	if s := c.line(t); !s.Watching {
		t.Fatalf("watch: %+v", s)
	}
	put(t, n, parley.Agent{Name: "new-for-" + me, Exposed: parley.Everywhere,
		Identities: []parley.Identity{mcp.IdentityOfTunnel("new-for-" + me)}})
	if s, _ := c.finish(t); s.Failed != nil {
		t.Errorf("watch: %+v", s)
	}
	listed, _ = c.do(t, map[string]any{"do": "list"})
	if !slices.ContainsFunc(listed.Tools, func(tool mcpTool) bool { return tool.Name == "new-for-"+me+"__talk" }) {
		t.Errorf("the list lacks the new agent: %+v", listed.Tools)
	}
}

// talk has a client and a partner exchange messages by the tools for agents.
func talk(t *testing.T, c, partner *mcpClient, me string) {
	inbox := func(c *mcpClient, after string) (id, message string) {
		t.Helper()
		arguments := map[string]any{}
		if after != "" {
			arguments["after"] = after
		}
		s, _ := c.call(t, "parley_inbox", arguments, nil)
		var b struct {
			Messages []json.RawMessage
			Cursor   string
		}
		if err := json.Unmarshal(s.Structured, &b); err != nil || len(b.Messages) != 1 {
			t.Fatalf("parley_inbox: %v, %+v", err, s)
		}
		return b.Cursor, string(b.Messages[0])
	}
	sent, _ := c.call(t, "parley_send", map[string]any{"agent": "partner-of-" + me, "content": "Grüezi"}, nil)
	var recorded struct{ ID string }
	if err := json.Unmarshal(sent.Structured, &recorded); err != nil || recorded.ID == "" {
		t.Fatalf("parley_send: %+v", sent)
	}
	if id, m := inbox(partner, ""); id != recorded.ID || !strings.Contains(m, "Grüezi") {
		t.Errorf("the partner gets %s: %s", id, m)
	}
	partner.begin(t, map[string]any{"do": "call", "name": me + "__talk", "arguments": map[string]any{"text": "where to?"}})
	id, m := inbox(c, "")
	if !strings.Contains(m, "where to?") {
		t.Errorf("it gets %s", m)
	}
	if s, _ := c.call(t, "parley_reply", map[string]any{"id": id, "content": "Bern"}, nil); s.Error || s.Failed != nil {
		t.Errorf("parley_reply: %+v", s)
	}
	if s, _ := partner.finish(t); s.text() != "Bern" {
		t.Errorf("the answer is %+v", s)
	}
}

// sameJSON reports whether two texts of JSON have the same value.
func sameJSON(got []byte, want string) bool {
	var a, b any
	return json.Unmarshal(got, &a) == nil && json.Unmarshal([]byte(want), &b) == nil && reflect.DeepEqual(a, b)
}

// TestMCPInspector has the inspector list and call tools of the hub (MCP-111).
func TestMCPInspector(t *testing.T) {
	p := mcpNode(t, mcpFolder(t))
	if p == nil {
		t.Skip("PARLEY_MCP_SDKS has no inspector; setup.sh has said why")
	}
	p.version(t, "@modelcontextprotocol/inspector", "2.12.0")
	n := hubWith(t, node.Config{}, (&workshop{}).agent())
	token := mcpCaller(t, n, "visitor")
	inspect := func(args ...string) []byte {
		t.Helper()
		return output(t, p.program, append([]string{filepath.Join(p.modules, ".bin", "mcp-inspector"), "--cli",
			n.Addresses().Local + mcp.Base, "--transport", "http", "--header", "Authorization: Bearer " + token}, args...)...)
	}
	if out := inspect("--method", "tools/list"); !strings.Contains(string(out), `"workshop__add"`) {
		t.Errorf("tools/list: %s", out)
	}
	var r struct {
		StructuredContent json.RawMessage `json:"structuredContent"`
	}
	out := inspect("--method", "tools/call", "--tool-name", "workshop__add", "--tool-arg", "a=2", "--tool-arg", "b=3")
	if err := json.Unmarshal(out, &r); err != nil || !sameJSON(r.StructuredContent, `{"sum":5}`) {
		t.Errorf("tools/call: %v, %s", err, out)
	}
}

// TestMCPServers has an agent of the hub call servers of the official SDKs, unmodified (MCP-111).
func TestMCPServers(t *testing.T) {
	for _, sdk := range mcpSDKs(t) {
		t.Run(sdk.name+" http", func(t *testing.T) {
			t.Parallel() // the hub reads changed tools again after seconds
			url := a2aServer(t, append(slices.Clone(sdk.server), "http", "secret")...)
			callAttached(t, serversHub(t, node.MCPAgent{URL: url,
				PeerCredentials: node.PeerCredentials{TokenFile: secretFile(t, "secret")}}))
		})
	}
	program := parleyProgram(t)
	for _, sdk := range mcpSDKs(t) {
		t.Run(sdk.name+" attach", func(t *testing.T) {
			t.Parallel()
			n := serversHub(t, node.MCPAgent{Attached: true})
			attach(t, program, append([]string{"mcp", "attach", "remote", "--url", n.Addresses().Local, "--token-file",
				secretFile(t, tokenOf(t, n, "remote")), "--env", "PATH", "--env", "PYTHONDONTWRITEBYTECODE=1", "--"},
				append(slices.Clone(sdk.server), "stdio")...)...)
			callAttached(t, n)
		})
	}
}

// attach runs a command until the test ends.
func attach(t *testing.T, program string, args ...string) {
	t.Helper()
	c := exec.Command(program, args...)
	var log strings.Builder
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGINT)
		if err := c.Wait(); err != nil {
			t.Errorf("parley mcp attach: %v", err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
}

// serversHub starts a hub with the attached server "remote", and the agent "caller" in its own process.
func serversHub(t *testing.T, a node.MCPAgent) *node.Node {
	t.Helper()
	a.Elicitation = true
	return hubWith(t, node.Config{Agents: map[string]node.Agent{"remote": {MCP: &a, Expose: parley.Everywhere}}},
		parley.Agent{Name: "caller", Skills: []parley.SkillSpec{parley.RawSkill("none",
			func(context.Context, *parley.Message, parley.Replier) error { return nil })}})
}

// callAttached has an agent of a hub call the tools of python/mcp_server.py, as the agent "remote".
func callAttached(t *testing.T, n *node.Node) {
	ctx, stop := context.WithTimeout(n.As(t.Context(), "caller"), 2*time.Minute)
	defer stop()
	description := func(skill string) string {
		e, _ := n.Hub().Directory().Agent("remote")
		for _, s := range e.Skills {
			if s.ID == skill {
				return s.Description
			}
		}
		return ""
	}
	eventually(ctx, t, "the hub lists the tools", func() bool { return description("echo") == "Gives the text back." })
	t.Run("add", func(t *testing.T) {
		if got, err := parley.Ask[sum](ctx, "remote", "add", map[string]int{"a": 2, "b": 3}); err != nil || got.Sum != 5 {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("echo", func(t *testing.T) {
		got, err := parley.Ask[string](ctx, "remote", "echo", map[string]string{"text": "Grüezi"})
		if err != nil || got != "Grüezi" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("slow", func(t *testing.T) {
		var steps []string
		for u, err := range parley.Stream[string](ctx, "remote", "slow", map[string]int{"steps": 3}) {
			switch {
			case err != nil:
				t.Fatal(err)
			case u.Event == nil && u.Result != "took 3 steps":
				t.Errorf("the result is %q", u.Result)
			case u.Event != nil && u.Event.State == parley.Working && strings.HasPrefix(u.Event.Text(), "step "):
				steps = append(steps, u.Event.Text())
			}
		}
		if len(steps) == 0 || !slices.IsSorted(steps) {
			t.Errorf("steps %q", steps)
		}
	})
	t.Run("fail", func(t *testing.T) {
		_, err := parley.Ask[string](ctx, "remote", "fail", map[string]string{"text": "because"})
		var e *parley.Error
		if !errors.As(err, &e) || e.Code != parley.HandlerFailed || !strings.Contains(e.Text, "because") {
			t.Errorf("%v", err)
		}
	})
	t.Run("ask", func(t *testing.T) {
		asked := false
		for u, err := range parley.Stream[string](ctx, "remote", "ask", map[string]string{"question": "where to?"}) {
			switch {
			case err != nil:
				t.Fatal(err)
			case u.Event == nil && (!asked || u.Result != "got Bern"):
				t.Errorf("asked back: %t, the result is %q", asked, u.Result)
			case u.Event != nil && u.Event.State == parley.NeedsInput:
				if asked = true; !strings.Contains(u.Event.Text(), "where to?") {
					t.Errorf("it asks %q", u.Event.Text())
				}
				if err := parley.Answer(ctx, u.Event, "Bern"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	t.Run("big", func(t *testing.T) {
		got, err := parley.Ask[string](ctx, "remote", "big", map[string]int{"size": 1 << 20})
		if err != nil || len(got) != 1<<20 {
			t.Errorf("%d characters, %v", len(got), err)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		for u, err := range parley.Stream[string](ctx, "remote", "hold", map[string]any{}) {
			if err != nil || u.Event == nil {
				t.Fatalf("%+v, %v", u, err)
			}
			if u.Event.Text() == "holding" {
				break // the server works on it
			}
		}
		eventually(ctx, t, "the server gets the cancel", func() bool {
			log, err := parley.Ask[struct{ Cancelled int }](ctx, "remote", "log", map[string]any{})
			return err == nil && log.Cancelled == 1
		})
	})
	t.Run("MCP-074 change", func(t *testing.T) {
		if _, err := parley.Ask[string](ctx, "remote", "change", map[string]string{"text": "Says it again."}); err != nil {
			t.Fatal(err)
		}
		actor := admin.Actor{Name: "test", Role: admin.Administer}
		var tools admin.AgentTools
		eventually(ctx, t, "the hub holds the change", func() bool {
			var err error
			tools, err = n.Admin().AgentTools(ctx, actor, "remote")
			return err == nil && len(tools.Offered) > 0
		})
		if got := description("echo"); got != "Gives the text back." {
			t.Errorf("before it is approved: %q", got)
		}
		if _, err := n.Admin().ApproveTools(ctx, actor, "remote", tools.Digest); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the change is there", func() bool { return description("echo") == "Says it again." })
	})
}
