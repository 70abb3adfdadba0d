package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// mcpSDK is the programs of one version of an SDK of MCP. Client and server are commands with their script.
type mcpSDK struct {
	name           string
	client, server []string
	modern         bool // it speaks 2026-07-28
}

// mcpFolder gives the folder with the SDKs of MCP.
func mcpFolder(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PARLEY_MCP_SDKS")
	if dir == "" {
		t.Skip("PARLEY_MCP_SDKS names no folder with the MCP SDKs; internal/interop/setup.sh makes one")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// mcpSDKs gives the official SDKs of MCP for other languages.
func mcpSDKs(t *testing.T) []mcpSDK {
	t.Helper()
	dir := mcpFolder(t)
	var out []mcpSDK
	for _, version := range []string{"1.30.0", "2.3.0"} {
		python := filepath.Join(dir, "python-"+version, "bin", "python")
		if _, err := os.Stat(python); errors.Is(err, fs.ErrNotExist) {
			t.Logf("without mcp %s for Python: %v", version, err)
			continue
		}
		b, err := exec.Command(python, "-c",
			"from importlib.metadata import version; print(version('mcp'))").CombinedOutput()
		if got := strings.TrimSpace(string(b)); err != nil || got != version {
			t.Fatalf("PARLEY_MCP_SDKS=%s has no mcp %s for Python: %v %s", dir, version, err, got)
		}
		script := func(name string) []string { return []string{python, filepath.Join("python", name)} }
		out = append(out, mcpSDK{name: "python " + version, client: script("mcp_client.py"),
			server: script("mcp_server.py"), modern: version[0] == '2'})
	}
	if node := mcpNode(t, dir); node != nil {
		scripts := nodeScripts(t, filepath.Join(dir, "node", "node_modules"))
		for _, p := range []struct{ name, version, number string }{{"sdk", "1.32.2", "1"}, {"client", "2.4.0", "2"}} {
			node.version(t, "@modelcontextprotocol/"+p.name, p.version)
			script := func(name string) []string { return []string{node.program, filepath.Join(scripts, name), p.number} }
			out = append(out, mcpSDK{name: "typescript " + p.version, client: script("mcp_client.mjs"),
				server: script("mcp_server.mjs"), modern: p.number == "2"})
		}
	}
	if len(out) == 0 {
		t.Skipf("PARLEY_MCP_SDKS=%s has none of the MCP SDKs; setup.sh has said why", dir)
	}
	return out
}

// nodeScripts gives a folder with the scripts for Node, from which they find the packages.
func nodeScripts(t *testing.T, modules string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("typescript")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nodePackages is a folder with packages for Node, of which one is Node.
type nodePackages struct{ modules, program string }

// mcpNode gives the packages of MCP for Node; nil: they could not be had.
func mcpNode(t *testing.T, dir string) *nodePackages {
	t.Helper()
	modules := filepath.Join(dir, "node", "node_modules")
	p := &nodePackages{modules: modules, program: filepath.Join(modules, ".bin", "node")}
	if _, err := os.Stat(modules); errors.Is(err, fs.ErrNotExist) {
		t.Logf("without the MCP packages for Node: %v", err)
		return nil
	}
	if _, err := os.Stat(p.program); err != nil {
		t.Fatal(err)
	}
	return p
}

// version fails the test unless the package has the version that the tests are written for.
func (p *nodePackages) version(t *testing.T, name, want string) {
	t.Helper()
	var is struct{ Version string }
	raw, err := os.ReadFile(filepath.Join(p.modules, name, "package.json"))
	if err == nil {
		err = json.Unmarshal(raw, &is)
	}
	if err != nil || is.Version != want {
		t.Fatalf("%s has version %q of %s, want %s: %v", p.modules, is.Version, name, want, err)
	}
}

// mcpSaw is a line of a client; see python/mcp_client.py.
type mcpSaw struct {
	Connected   string
	ToolsChange bool `json:"tools_change"`
	Watching    bool

	Progress *float64
	Message  string
	Asked    string
	Schema   json.RawMessage

	Done              string
	Tools             []mcpTool
	Content, Contents []map[string]any
	Structured        json.RawMessage
	Error, Cancelled  bool
	Meta              map[string]json.RawMessage
	Failed            *struct {
		Code    any // a number; or a string of the SDK's
		Message string
	}
}

type mcpTool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage
}

// text is what the items of content say.
func (s *mcpSaw) text() string {
	var out []string
	for _, c := range s.Content {
		if text, ok := c["text"].(string); ok {
			out = append(out, text)
		}
	}
	return strings.Join(out, "\n")
}

// mcpClient is a running client.
type mcpClient struct {
	in    *json.Encoder
	out   *bufio.Scanner
	first mcpSaw // of the connection
}

// mcpConnect has a client connect until the test ends. To is a URL and a token, or "--" and a command.
func mcpConnect(t *testing.T, sdk mcpSDK, to ...string) *mcpClient {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	p := exec.CommandContext(ctx, sdk.client[0], append(slices.Clone(sdk.client[1:]), to...)...)
	p.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var errs bytes.Buffer
	p.Stderr = &errs
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = p.Wait() // it may have failed with what the test says
		stop()
		if t.Failed() {
			t.Logf("%s: %s", sdk.name, &errs)
		}
	})
	c := &mcpClient{in: json.NewEncoder(in), out: bufio.NewScanner(out)}
	c.out.Buffer(nil, 16<<20)
	c.first = c.line(t)
	return c
}

// line gives the next line of the client.
func (c *mcpClient) line(t *testing.T) mcpSaw {
	t.Helper()
	if !c.out.Scan() {
		t.Fatalf("the client has ended: %v", c.out.Err())
	}
	var s mcpSaw
	if err := json.Unmarshal(c.out.Bytes(), &s); err != nil {
		t.Fatalf("%v: %s", err, c.out.Bytes())
	}
	return s
}

// do gives what the client saw of a step: the last line, and those before it.
func (c *mcpClient) do(t *testing.T, step map[string]any) (last mcpSaw, before []mcpSaw) {
	t.Helper()
	c.begin(t, step)
	return c.finish(t)
}

// begin begins a step; finish gives what do gives.
func (c *mcpClient) begin(t *testing.T, step map[string]any) {
	t.Helper()
	if err := c.in.Encode(step); err != nil {
		t.Fatal(err)
	}
}

func (c *mcpClient) finish(t *testing.T) (last mcpSaw, before []mcpSaw) {
	t.Helper()
	for {
		s := c.line(t)
		if s.Done != "" {
			return s, before
		}
		before = append(before, s)
	}
}

// call does a step "call" with members besides name and arguments.
func (c *mcpClient) call(t *testing.T, name string, arguments, members map[string]any) (mcpSaw, []mcpSaw) {
	t.Helper()
	step := map[string]any{"do": "call", "name": name, "arguments": arguments}
	for k, v := range members {
		step[k] = v
	}
	return c.do(t, step)
}

// TestMCPScripts has each SDK call its own server, without a hub: what fails here is no fault of the hub.
func TestMCPScripts(t *testing.T) {
	for _, sdk := range mcpSDKs(t) {
		t.Run(sdk.name+" stdio", func(t *testing.T) {
			callWorkshop(t, sdk, mcpConnect(t, sdk, slices.Concat([]string{"--"}, sdk.server, []string{"stdio"})...))
		})
		t.Run(sdk.name+" http", func(t *testing.T) {
			url := a2aServer(t, append(slices.Clone(sdk.server), "http", "secret")...)
			callWorkshop(t, sdk, mcpConnect(t, sdk, url, "secret"))
		})
	}
}

// callWorkshop calls the tools of python/mcp_server.py.
func callWorkshop(t *testing.T, sdk mcpSDK, c *mcpClient) {
	if got := c.first.Connected; got != "" && (got == "2026-07-28") != sdk.modern {
		t.Errorf("it speaks %s", got)
	}
	listed, _ := c.do(t, map[string]any{"do": "list"})
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	if want := []string{"add", "ask", "big", "change", "echo", "fail", "hold", "log", "slow"}; !slices.Equal(names, want) {
		t.Errorf("tools %q", names)
	}
	if s, _ := c.call(t, "add", map[string]any{"a": 2, "b": 3}, nil); string(s.Structured) != `{"sum": 5}` &&
		string(s.Structured) != `{"sum":5}` {
		t.Errorf("add: %+v", s)
	}
	if s, _ := c.call(t, "echo", map[string]any{"text": "Grüezi"}, nil); s.text() != "Grüezi" {
		t.Errorf("echo: %+v", s)
	}
	s, before := c.call(t, "slow", map[string]any{"steps": 3}, map[string]any{"progress": true})
	var messages []string
	for _, p := range before {
		messages = append(messages, p.Message)
	}
	if want := []string{"step 1 of 3", "step 2 of 3", "step 3 of 3"}; s.text() != "took 3 steps" ||
		!slices.Equal(messages, want) {
		t.Errorf("slow: %q, %+v", messages, s)
	}
	s, _ = c.call(t, "fail", map[string]any{"text": "because"}, nil)
	if !s.Error || !strings.Contains(s.text(), "because") {
		t.Errorf("fail: %+v", s)
	}
	answer := map[string]any{"answer": map[string]any{"action": "accept", "content": map[string]any{"answer": "Bern"}}}
	s, before = c.call(t, "ask", map[string]any{"question": "where to?"}, answer)
	if len(before) != 1 || before[0].Asked != "where to?" || s.text() != "got Bern" {
		t.Errorf("ask: %+v, %+v", before, s)
	}
	if s, _ := c.call(t, "big", map[string]any{"size": 1 << 20}, nil); len(s.text()) != 1<<20 {
		t.Errorf("big: %d characters", len(s.text()))
	}
	if s, _ := c.call(t, "hold", map[string]any{}, map[string]any{"cancel": true}); !s.Cancelled {
		t.Errorf("hold: %+v", s)
	}
	eventually(t.Context(), t, "the server gets the cancel", func() bool {
		var log map[string]any
		s, _ := c.call(t, "log", map[string]any{}, nil)
		return json.Unmarshal(s.Structured, &log) == nil &&
			reflect.DeepEqual(log, map[string]any{"cancelled": 1.0, "calls": 7.0})
	})
}
