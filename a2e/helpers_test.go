package a2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// frame is a received frame, decoded for comparisons.
type frame map[string]any

func (f frame) str(name string) string { s, _ := f[name].(string); return s }

func parseFrame(t testing.TB, line []byte) frame {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(line)))
	d.UseNumber()
	var f frame
	if err := d.Decode(&f); err != nil {
		t.Fatalf("frame %q: %v", line, err)
	}
	return f
}

// conn is the agent's end of a connection to a host under test.
type conn struct {
	t      testing.TB
	c      net.Conn
	frames chan []byte // closed at the end of the stream
	served chan error
	cancel context.CancelFunc
}

// connect opens an in-memory connection to h.
func connect(t testing.TB, h *Host) *conn {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ours, theirs := net.Pipe()
	c := &conn{t: t, c: ours, frames: make(chan []byte, 4096), served: make(chan error, 1), cancel: cancel}
	go func() { c.served <- h.ServeConn(ctx, theirs) }()
	go func() {
		defer close(c.frames)
		r := bufio.NewReaderSize(ours, 64<<10)
		for {
			line, err := r.ReadBytes('\n')
			if len(line) > 0 {
				c.frames <- line
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(c.close)
	return c
}

func (c *conn) close() {
	c.cancel()
	_ = c.c.Close()
}

func (c *conn) write(b string) {
	c.t.Helper()
	if _, err := c.c.Write([]byte(b)); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

func (c *conn) send(line string) { c.t.Helper(); c.write(line + "\n") }

// next gives the next frame; nil at the end of the stream.
func (c *conn) next() frame {
	c.t.Helper()
	line := c.line()
	if line == nil {
		return nil
	}
	checkOutput(c.t, line)
	return parseFrame(c.t, line)
}

// line gives the next line; nil at the end of the stream. A silent host fails the test
// instead of blocking it.
func (c *conn) line() []byte {
	c.t.Helper()
	select {
	case line := <-c.frames:
		return line
	case <-time.After(time.Hour):
		c.t.Fatal("no frame")
		return nil
	}
}

// quiet fails if a frame arrives before all goroutines are idle.
func (c *conn) quiet() {
	c.t.Helper()
	synctest.Wait()
	select {
	case line, ok := <-c.frames:
		if ok {
			c.t.Errorf("unexpected frame %s", line)
		}
	default:
	}
}

func (c *conn) handshake(token string) frame {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"type":"handshake/req","id":"hs","agent_caps":["tools","memory","skill","chains","multi_agent"],"auth_token":%q}`, token))
	f := c.next()
	if f.str("type") != "handshake/resp" || f["ok"] != true {
		c.t.Fatalf("handshake: %v", f)
	}
	return f
}

// checkOutput checks the form of every emitted line (A2E-014, A2E-016, A2E-020).
func checkOutput(t testing.TB, line []byte) {
	t.Helper()
	body, ok := strings.CutSuffix(string(line), "\n")
	if !ok {
		t.Errorf("no line end: %q", line)
	}
	inside := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c >= 0x80 || c < 0x20:
			t.Errorf("byte %#x in %q", c, line)
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case !inside && c == ' ':
			t.Errorf("white space outside strings in %q", line)
		}
	}
	m, err := Decode([]byte(body))
	if err != nil {
		t.Errorf("own output %q: %v", line, err)
		return
	}
	if err := m.Check(); err != nil {
		t.Errorf("own output %q: %v", line, err) // A2E-126
	}
	f := parseFrame(t, line)
	ts, _ := f["ts"].(json.Number)
	if f["a2e"] != "1.0" || f["version"] != "1.0" || f.str("type") == "" || !isHex32(f.str("id")) || ts == "" ||
		strings.ContainsAny(ts.String(), "eE") {
		t.Errorf("base members of %s", line)
	}
}

func isHex32(s string) bool {
	return len(s) == 32 && strings.Trim(s, lowerHex) == ""
}

// testTools are the tools of the vectors.
type testTools struct {
	Toolbox
	count atomic.Int64
}

func sleep(ctx context.Context, seconds float64) error {
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newTestTools() *testTools {
	tt := &testTools{}
	add := func(name string, f ToolFunc) { tt.Add(ToolDefinition{Name: name, Description: name}, f) }
	add("echo", func(_ context.Context, c *ToolCall) (any, error) {
		var a struct {
			Text jsonx.Value `json:"text"`
		}
		if err := jsonx.Decode(c.Arguments, &a); err != nil {
			return nil, err
		}
		return map[string]any{"echo": a.Text}, nil
	})
	secs := func(c *ToolCall) float64 {
		var a struct {
			Secs float64 `json:"secs"`
		}
		_ = jsonx.Decode(c.Arguments, &a)
		return a.Secs
	}
	add("slow", func(ctx context.Context, c *ToolCall) (any, error) {
		return map[string]any{"slept": true}, sleep(ctx, secs(c))
	})
	add("stream", func(ctx context.Context, c *ToolCall) (any, error) {
		_ = c.Progress(ctx, 10, "a")
		_ = c.Event(ctx, KindLog, map[string]any{"level": "info", "message": "b"})
		_ = c.Artifact(ctx, "x", "text/plain", []byte("hi"), true)
		_ = c.Status(ctx, "c")
		return map[string]any{"done": true}, nil
	})
	add("counter", func(context.Context, *ToolCall) (any, error) {
		return map[string]any{"count": tt.count.Add(1)}, nil
	})
	add("slow_counter", func(ctx context.Context, c *ToolCall) (any, error) {
		n := tt.count.Add(1)
		return map[string]any{"count": n}, sleep(ctx, secs(c))
	})
	add("panic", func(context.Context, *ToolCall) (any, error) { panic("boom") })
	add("raw", func(context.Context, *ToolCall) (any, error) { return "just a string", nil })
	add("exit", func(context.Context, *ToolCall) (any, error) {
		return json.RawMessage(`{"exit_code":3,"stdout":""}`), nil
	})
	add("softfail", func(context.Context, *ToolCall) (any, error) {
		return ToolResult{Error: "nope", ErrorCode: "tool_execution_error"}, nil
	})
	add("uni", func(context.Context, *ToolCall) (any, error) {
		return map[string]any{"t": "é\u2028\u0085😀\x00"}, nil
	})
	add("denied", func(context.Context, *ToolCall) (any, error) { return nil, ErrToolDenied })
	add("fails", func(context.Context, *ToolCall) (any, error) { return nil, fmt.Errorf("secret /etc/passwd") })
	return tt
}

// testHost has every capability that this package can serve.
func testHost() *Host {
	tools := newTestTools()
	return &Host{
		Auth: StaticTokens{"agent-a": "test-token-a", "agent-b": "test-token-b"},
		Capabilities: map[string]Provider{
			"tools":       ServeTools(tools),
			"memory":      ServeMemories(&MemoryStore{}),
			"chains":      &Chains{Tools: tools},
			"skill":       ServeSkills(testSkills{}),
			"multi_agent": ServeMultiAgent(&testAgents{}),
		},
	}
}

type testSkills struct{}

func (testSkills) Discover(context.Context, *Request) ([]SkillDefinition, error) {
	category := "data"
	return []SkillDefinition{
		{Name: "sum", Version: "1", Description: "adds", Tags: []string{"math"}, Category: &category},
		{Name: "say", Version: "1", Description: "says"},
	}, nil
}

func (testSkills) Call(ctx context.Context, c *SkillCall) (SkillResult, error) {
	switch c.Name {
	case "sum":
		_ = c.Progress(ctx, 50, "half")
		return SkillResult{Success: true, Data: c.Arguments}, nil
	case "fails":
		return SkillResult{}, fmt.Errorf("private")
	}
	return SkillResult{}, ErrUnknownSkill
}

// testAgents completes each delegation at once.
type testAgents struct {
	mu   sync.Mutex
	done map[string]Outcome
}

func (a *testAgents) Spawn(_ context.Context, r *Request, s Spawn) (string, string, error) {
	return r.Identity.Name + "/" + s.Name, StatusReady, nil
}

func (a *testAgents) Delegate(_ context.Context, _ *Request, d Delegation) (bool, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = map[string]Outcome{}
	}
	result, _ := jsonx.Encode(map[string]string{"did": d.Instruction})
	a.done[d.SubagentID] = Outcome{Status: StatusCompleted, Result: result}
	return true, StatusRunning, nil
}

func (a *testAgents) Await(_ context.Context, _ *Request, id string) (Outcome, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o, ok := a.done[id]; ok {
		return o, nil
	}
	return Outcome{Status: StatusRunning}, nil
}

func (a *testAgents) List(context.Context, *Request) ([]json.RawMessage, error) {
	return []json.RawMessage{json.RawMessage(`{"name":"x"}`)}, nil
}

func (a *testAgents) Terminate(context.Context, *Request, string) (bool, error) { return true, nil }
