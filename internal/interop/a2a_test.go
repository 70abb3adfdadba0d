package interop

import (
	"bufio"
	"bytes"
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
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/node"
)

// a2aSDK is the programs of one SDK. Program and server are commands with their script.
type a2aSDK struct {
	name           string
	client, server []string
	bindings       []string // that the client speaks, as its last argument; none: it has no such argument
}

// a2aSDKs gives the official SDKs of A2A for other languages.
func a2aSDKs(t *testing.T) []a2aSDK {
	t.Helper()
	dir := os.Getenv("PARLEY_A2A_SDKS")
	if dir == "" {
		t.Skip("PARLEY_A2A_SDKS names no folder with the A2A SDKs; internal/interop/setup.sh makes one")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []a2aSDK
	for _, p := range []struct{ version, prefix string }{{"1.3.0", "a2a"}, {"0.3.26", "a2a03"}} {
		python := filepath.Join(dir, "python-"+p.version, "bin", "python")
		script := func(name string) []string { return []string{python, filepath.Join("python", p.prefix+name)} }
		b, err := exec.Command(python, "-c",
			"from importlib.metadata import version; print(version('a2a-sdk'))").CombinedOutput()
		if got := strings.TrimSpace(string(b)); err != nil || got != p.version {
			t.Fatalf("PARLEY_A2A_SDKS=%s has no a2a-sdk %s for Python: %v %s", dir, p.version, err, got)
		}
		sdk := a2aSDK{name: "python " + p.version, client: script("_client.py"), server: script("_server.py")}
		if p.version[0] == '1' {
			sdk.bindings = []string{"JSONRPC", "HTTP+JSON"}
		}
		out = append(out, sdk)
	}
	if scripts := a2aScripts(t, filepath.Join(dir, "node", "node_modules")); scripts != "" {
		script := func(name string) []string { return []string{"node", filepath.Join(scripts, name)} }
		out = append(out, a2aSDK{name: "javascript 1.3.0", client: script("a2a_client.mjs"),
			server: script("a2a_server.mjs"), bindings: []string{"JSONRPC", "HTTP+JSON"}})
	}
	return out
}

// a2aScripts gives a folder with the scripts for Node, from which they find the SDK; "" without
// Node.
func a2aScripts(t *testing.T, modules string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(modules, "@a2a-js/sdk/package.json"))
	if errors.Is(err, os.ErrNotExist) {
		t.Logf("without @a2a-js/sdk: %v", err)
		return ""
	}
	var sdk struct{ Version string }
	if err == nil {
		err = json.Unmarshal(raw, &sdk)
	}
	if err != nil || sdk.Version != "1.3.0" {
		t.Fatalf("%s has version %q of @a2a-js/sdk, want 1.3.0: %v", modules, sdk.Version, err)
	}
	return nodeScripts(t, modules)
}

// a2aHub starts a hub with the agents, and the agent "teller" in its own process, which does
// what python/a2a_server.py does.
func a2aHub(t *testing.T, c node.Config) *node.Node {
	t.Helper()
	c.A2A.PlainPush = true
	return hubWith(t, c, parley.Agent{Name: "teller", Title: "Teller", Description: "Does what it is told.",
		Exposed: parley.Everywhere, Skills: []parley.SkillSpec{parley.RawSkill("tell", tell)}})
}

// hubWith starts a hub that takes tokens for a proof, with agents in its own process.
func hubWith(t *testing.T, c node.Config, agents ...parley.Agent) *node.Node {
	t.Helper()
	c.Data, c.Durability = filepath.Join(t.TempDir(), "data"), "disk"
	c.Listen = node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	c.Policy.Assurance = "session"
	c.Network.Allow = []string{"loopback"}
	n, err := node.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	for _, a := range agents {
		if err := n.Handle(a); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// tell does what the text of a message says.
func tell(ctx context.Context, m *parley.Message, r parley.Replier) error {
	verb, rest, _ := strings.Cut(m.Text(), " ")
	switch verb {
	case "say":
		return r.Reply(parley.Text(rest))
	case "count":
		var n int
		if _, err := fmt.Sscan(rest, &n); err != nil || n > 100 {
			return parley.Refuse(parley.InvalidContent, "count how far?")
		}
		for i := range n {
			if err := r.Chunk(parley.Text(fmt.Sprintf("piece %d", i+1))); err != nil {
				return err
			}
		}
		return r.Reply(parley.Text("counted " + rest))
	case "fail":
		return parley.Fail(parley.HandlerFailed, nil, "%s", rest)
	case "reject":
		return parley.Refuse(parley.Rejected, "%s", rest)
	case "ask":
		answer, err := r.(parley.Prompter).NeedInput(parley.Text(rest))
		if err != nil {
			return err
		}
		return r.Reply(parley.Text("got " + answer.Text()))
	case "hold":
		<-ctx.Done()
		return context.Cause(ctx)
	case "parts":
		return r.Reply(m.Parts...)
	}
	return parley.Refuse(parley.Rejected, "it knows say, count, fail, reject, ask, hold, parts")
}

// a2aCaller enrols an agent that calls the hub, and gives its token.
func a2aCaller(t *testing.T, n *node.Node, name string) string {
	t.Helper()
	put(t, n, parley.Agent{Name: name, Identities: []parley.Identity{a2a.IdentityOfCaller(name)}})
	return tokenOf(t, n, name)
}

// put adds an agent to the directory.
func put(t *testing.T, n *node.Node, a parley.Agent) {
	t.Helper()
	if _, err := n.Hub().Directory().Put(t.Context(), a, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
}

// tokenOf gives a new token of an agent.
func tokenOf(t *testing.T, n *node.Node, name string) string {
	t.Helper()
	token, err := n.Admin().IssueToken(t.Context(), admin.Actor{Name: "test", Role: admin.Administer},
		admin.NewToken{Name: name, Agent: name})
	if err != nil {
		t.Fatal(err)
	}
	return token.Secret
}

// seenByClients is what a client of version 1 sees of the teller, besides the stream. The
// first element of "cancel" is the task as CancelTask gave it: success is not promised.
const seenByClients = `{
	"send": ["completed", "Grüezi"], "get": ["completed", "counted 3"], "history": [0, 1], "list": [[true], 1, ""],
	"input": ["input-required", "where to?", "completed", "got Bern", true],
	"subscribe": "task", "subscribed": "canceled", "cancel": ["", "canceled"],
	"parts": [{"text": "parts"}, {"data": {"n": 1.5, "list": ["é"]}},
		{"raw": "iVBORw==", "filename": "a.png", "mediaType": "image/png"},
		{"url": "https://example.com/b.pdf", "filename": "b.pdf", "mediaType": "application/pdf"}],
	"fail": ["failed", "because"], "reject": ["rejected", "because"],
	"errors": {"get": "TaskNotFoundError", "cancel": "TaskNotCancelableError", "send": "TaskNotFoundError",
		"over": "UnsupportedOperationError"},
	"push": true, "tokens": ["tok"], "configs": ["two", true, 1, 0]
}`

// seenBy03 replaces what a client of version 0.3 sees in another form, or not (null).
const seenBy03 = `{
	"list": null,
	"parts": [{"kind": "text", "text": "parts"}, {"kind": "data", "data": {"n": 1.5, "list": ["é"]}},
		{"kind": "file", "file": {"bytes": "iVBORw==", "mimeType": "image/png", "name": "a.png"}},
		{"kind": "file", "file": {"uri": "https://example.com/b.pdf", "mimeType": "application/pdf", "name": "b.pdf"}}],
	"errors": {"get": -32001, "cancel": -32002, "send": -32001},
	"configs": ["two", true]
}`

// checkSeen compares what a client saw.
func checkSeen(t *testing.T, line []byte, old bool) {
	t.Helper()
	var want, other, got map[string]any
	if err := errors.Join(json.Unmarshal([]byte(seenByClients), &want), json.Unmarshal([]byte(seenBy03), &other),
		json.Unmarshal(line, &got)); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if old {
		for k, v := range other {
			if want[k] = v; v == nil {
				delete(want, k)
			}
		}
	}
	if c, ok := got["cancel"].([]any); ok && len(c) == 2 {
		c[0] = ""
	}
	stream, _ := got["stream"].([]any)
	delete(got, "stream")
	for k, v := range want {
		if !reflect.DeepEqual(got[k], v) {
			t.Errorf("%s: %v, want %v", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("it saw %d things, want %d: %s", len(got), len(want), line)
	}
	// The first event is the task, the last one is final (A2A-030, A2A-033).
	var pieces []string
	for _, e := range stream {
		if e, ok := e.([]any); ok && len(e) == 3 && e[0] == "artifact_update" {
			pieces = append(pieces, fmt.Sprintf("%v %v", e[1], e[2]))
		}
	}
	if want := []string{"piece 1 false", "piece 2 true", "piece 3 true", "counted 3 false"}; !slices.Equal(pieces, want) {
		t.Errorf("the stream has the pieces %q, want %q: %v", pieces, want, stream)
	}
	if len(stream) > 0 {
		first, last, end := fmt.Sprint(stream[0]), fmt.Sprint(stream[len(stream)-1]), "[status_update completed]"
		if old {
			end = "[status_update completed true]"
		}
		if !strings.HasPrefix(first, "[task ") || last != end {
			t.Errorf("the stream begins with %s and ends with %s", first, last)
		}
	}
}

// TestA2AClients has the unmodified clients of the official SDKs call an agent of the hub
// (A2A-110).
func TestA2AClients(t *testing.T) {
	sdks := a2aSDKs(t)
	n := a2aHub(t, node.Config{})
	token, url := a2aCaller(t, n, "visitor"), n.A2A().AgentURL("teller")
	for _, sdk := range sdks {
		for _, binding := range append(sdk.bindings, "")[:max(1, len(sdk.bindings))] {
			t.Run(strings.TrimSpace(sdk.name+" "+binding), func(t *testing.T) {
				args := append(slices.Clone(sdk.client[1:]), url, token)
				if binding != "" {
					args = append(args, binding)
				}
				checkSeen(t, output(t, sdk.client[0], args...), sdk.bindings == nil)
			})
		}
	}
}

// a2aServer starts an agent until the test ends, and gives its URL.
func a2aServer(t *testing.T, command ...string) string {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var errs bytes.Buffer
	c.Stderr = &errs
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = c.Process.Kill() // the SDK for Python has no other end
		_ = c.Wait()         // it was killed
		if t.Failed() {
			t.Logf("%s: %s", command[len(command)-1], &errs)
		}
	})
	late := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
	defer late.Stop()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var at struct{ URL string }
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		t.Fatalf("%v did not start: %v\n%s", command, err, &errs)
	}
	return at.URL
}

// TestA2AServers has the hub call agents of the official SDKs, unmodified (A2A-110).
func TestA2AServers(t *testing.T) {
	for _, sdk := range a2aSDKs(t) {
		t.Run(sdk.name, func(t *testing.T) { callTeller(t, a2aServer(t, sdk.server...)) })
	}
}

// callTeller has an agent of a hub call an agent that does what python/a2a_server.py does.
func callTeller(t *testing.T, url string) {
	n := a2aHub(t, node.Config{Agents: map[string]node.Agent{"remote": {A2A: &node.A2AAgent{URL: url},
		Expose: parley.Everywhere}}})
	ctx, stop := context.WithTimeout(n.As(t.Context(), "teller"), time.Minute)
	defer stop()
	eventually(ctx, t, "the hub reads the card", func() bool {
		e, ok := n.Hub().Directory().Agent("remote")
		return ok && len(e.Skills) == 1 && e.Skills[0].ID == "tell"
	})
	t.Run("answer", func(t *testing.T) {
		if a, err := parley.Ask[string](ctx, "remote", "", "say Grüezi"); err != nil || a != "Grüezi" {
			t.Errorf("%q, %v", a, err)
		}
	})
	t.Run("pieces", func(t *testing.T) {
		var pieces []string
		for u, err := range parley.Stream[string](ctx, "remote", "tell", "count 3") {
			switch {
			case err != nil:
				t.Fatal(err)
			case u.Event == nil && u.Result != "counted 3":
				t.Errorf("the result is %q", u.Result)
			case u.Event != nil && u.Event.State == parley.NoState:
				pieces = append(pieces, u.Event.Text())
			}
		}
		if !slices.Equal(pieces[:min(3, len(pieces))], []string{"piece 1", "piece 2", "piece 3"}) {
			t.Errorf("pieces %q", pieces)
		}
	})
	for verb, code := range map[string]parley.Code{"fail": parley.HandlerFailed, "reject": parley.Rejected} {
		t.Run(verb, func(t *testing.T) {
			_, err := parley.Ask[string](ctx, "remote", "tell", verb+" because")
			var e *parley.Error
			if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Text, "because") {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("input", func(t *testing.T) {
		asked := false
		for u, err := range parley.Stream[string](ctx, "remote", "tell", "ask where to?") {
			switch {
			case err != nil:
				t.Fatal(err)
			case u.Event == nil && (!asked || u.Result != "got Bern"):
				t.Errorf("asked back: %t, the result is %q", asked, u.Result)
			case u.Event != nil && u.Event.State == parley.NeedsInput:
				asked = true
				if got := u.Event.Text(); got != "where to?" {
					t.Errorf("it asks %q", got)
				}
				if err := parley.Answer(ctx, u.Event, "Bern"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	t.Run("cancel", func(t *testing.T) {
		for u, err := range parley.Stream[string](ctx, "remote", "tell", "hold") {
			if err != nil || u.Event == nil {
				t.Fatalf("%+v, %v", u, err)
			}
			break // the agent works on it
		}
		eventually(ctx, t, "the agent gets the cancel", func() bool {
			stopped, err := parley.Ask[string](ctx, "remote", "tell", "stopped")
			return err == nil && stopped == "1"
		})
	})
	t.Run("parts", func(t *testing.T) {
		sent := []parley.Part{parley.Text("parts"), {MediaType: "application/json", Data: []byte(`{"list":["é"],"n":1.5}`)},
			{MediaType: "image/png", Name: "a.png", Data: []byte("\x89PNG")},
			{MediaType: "application/pdf", Name: "b.pdf", URI: "https://example.com/b.pdf"}}
		got, err := parley.Ask[[]parley.Part](ctx, "remote", "tell", sent)
		if err != nil || len(got) != len(sent) {
			t.Fatalf("%+v, %v", got, err)
		}
		for i, p := range got {
			if p.IsJSON() { // the SDK for Python keeps objects in a map, which has no order
				if p.Data, err = jsonx.Canonicalize(p.Data); err != nil {
					t.Fatal(err)
				}
			}
			if !reflect.DeepEqual(p, sent[i]) {
				t.Errorf("%+v came back as %+v", sent[i], p)
			}
		}
	})
}
