package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// python gives the interpreter that has the SDK.
func python(t *testing.T) string {
	t.Helper()
	p := os.Getenv("PARLEY_PYTHON")
	if p == "" {
		t.Skip("PARLEY_PYTHON names no Python interpreter with the SAMVAD SDK; internal/interop/setup.sh makes one")
	}
	out, err := exec.Command(p, "-c", "import samvad; print(samvad.__version__)").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "0.2.0" {
		t.Fatalf("%s has no samvad 0.2.0: %v\n%s", p, err, out)
	}
	return p
}

// run runs a script and gives its line of JSON.
func run(t *testing.T, p, script string, args ...string) json.RawMessage {
	t.Helper()
	return output(t, p, append([]string{filepath.Join("python", script)}, args...)...)
}

// output gives the line of JSON that a program writes.
func output(t *testing.T, program string, args ...string) json.RawMessage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, &errs)
	}
	return out
}

func start(t *testing.T) *node.Node {
	t.Helper()
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"),
		Listen: node.Listen{HTTP: "127.0.0.1:0"}, Network: node.Network{Allow: []string{"loopback"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// enrol adds a SAMVAD agent to the directory.
func enrol(t *testing.T, n *node.Node, name, id, url, key string) {
	t.Helper()
	identity, err := n.SAMVAD().Identity(id, url)
	if err != nil {
		t.Fatal(err)
	}
	a := parley.Agent{Name: name, Identities: []parley.Identity{identity}, Exposed: parley.Everywhere}
	if _, err := n.Hub().Directory().Put(t.Context(), a, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	public, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.SAMVAD().Enroll(name, id, "", public, "test"); err != nil {
		t.Fatal(err)
	}
}

type city struct {
	City string `json:"city"`
}

type weather struct {
	City    string  `json:"city"`
	Celsius float64 `json:"celsius"`
}

// TestPythonClient calls an agent of the hub with the unmodified Python SDK (SAM-161),
// in all modes (SAM-110, SAM-120, SAM-140). The SDK signs the endpoint's path without
// the agent's prefix at the hub (SAM-022). An unknown sender (SAM-070), content that
// does not fit (SAM-090) and a failure (SAM-111) reach it as errors of the protocol.
func TestPythonClient(t *testing.T) {
	p := python(t)
	n := start(t)
	err := n.Handle(parley.Agent{Name: "crew/weather", Title: "Weather", Exposed: parley.Everywhere},
		parley.Skill("forecast", func(ctx context.Context, m *parley.Message, q city) (weather, error) {
			if m.From != "traveller" || m.Origin.Verdict.Assurance != parley.Signed {
				return weather{}, parley.Refuse(parley.Forbidden, "who are you?")
			}
			if err := parley.Chunk(ctx, parley.Text("looking")); err != nil {
				return weather{}, err
			}
			return weather{q.City, 21}, nil
		}),
		parley.RawSkill("fail", func(context.Context, *parley.Message,
			parley.Replier) error {
			return errors.New("a secret")
		}))
	if err != nil {
		t.Fatal(err)
	}
	keys := t.TempDir()
	var k struct{ Key string }
	if err := json.Unmarshal(run(t, p, "samvad_client.py", "key", keys, "traveller"), &k); err != nil {
		t.Fatal(err)
	}
	enrol(t, n, "traveller", "agent://client-traveller", "", k.Key)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	url := n.Addresses().HTTP + "/agents/crew/weather"
	call := func(t *testing.T, kid, what, skill, payload string, v any) {
		t.Helper()
		out := run(t, p, "samvad_client.py", what, keys, kid, url, skill, payload)
		t.Logf("%s", bytes.TrimSpace(out))
		if err := json.Unmarshal(out, v); err != nil {
			t.Fatal(err)
		}
	}
	type failure struct {
		HTTP int
		Body struct {
			Status string
			Error  struct{ Code, Message string }
		}
	}
	t.Run("sync", func(t *testing.T) {
		var r struct {
			TraceID, SpanID, Status string
			Result                  weather
		}
		call(t, "traveller", "call", "forecast", `{"city":"Zürich"}`, &r)
		if r.Status != "ok" || r.Result != (weather{"Zürich", 21}) || r.TraceID == "" || r.SpanID == "" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("async", func(t *testing.T) {
		var r struct {
			TaskID, Status string
			Result         weather
		}
		call(t, "traveller", "task", "forecast", `{"city":"Bern"}`, &r)
		if r.Status != "done" || r.Result != (weather{"Bern", 21}) || r.TaskID == "" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("stream", func(t *testing.T) {
		var events []struct {
			Chunk  json.RawMessage
			Done   bool
			Result weather
		}
		call(t, "traveller", "stream", "forecast", `{"city":"Genf"}`, &events)
		if len(events) != 2 || events[0].Done || !bytes.Contains(events[0].Chunk, []byte("looking")) ||
			!events[1].Done || events[1].Result != (weather{"Genf", 21}) {
			t.Errorf("%+v", events)
		}
	})
	t.Run("content that does not fit", func(t *testing.T) {
		var r failure
		call(t, "traveller", "call", "forecast", `{"town":"Bern"}`, &r)
		if r.HTTP != http.StatusBadRequest || r.Body.Error.Code != "SCHEMA_INVALID" {
			t.Errorf("%+v", r)
		}
		var task struct {
			Status string
			Error  struct{ Code string }
		}
		call(t, "traveller", "task", "forecast", `{"town":"Bern"}`, &task)
		if task.Status != "failed" || task.Error.Code != "SCHEMA_INVALID" {
			t.Errorf("%+v", task)
		}
	})
	t.Run("a handler that fails", func(t *testing.T) {
		var r failure
		call(t, "traveller", "call", "fail", `{}`, &r)
		if r.HTTP != http.StatusInternalServerError || r.Body.Error.Code != "AGENT_UNAVAILABLE" ||
			strings.Contains(r.Body.Error.Message, "secret") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a client that nobody enrolled", func(t *testing.T) {
		var r failure
		call(t, "stranger", "call", "forecast", `{"city":"Bern"}`, &r)
		if r.HTTP != http.StatusUnauthorized || r.Body.Error.Code != "AUTH_FAILED" {
			t.Errorf("%+v", r)
		}
	})
}

// TestPythonServer calls an agent of the unmodified Python SDK through the
// hub, whose key that agent trusts (SAM-161).
func TestPythonServer(t *testing.T) {
	p := python(t)
	n := start(t)
	hosting := n.SAMVAD().Hosting()
	at := serve(t, p, hosting.Identity, hosting.Key)
	// The SDK makes its identity from the host alone, without the port.
	if at.ID != "agent://127.0.0.1" {
		t.Fatalf("%+v", at)
	}
	enrol(t, n, "pythonist", at.ID, at.URL, at.Key)
	caller, err := samvad.NewIdentity("agent://caller.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	enrol(t, n, "caller", caller.ID(), "", base64.StdEncoding.EncodeToString(caller.Public()))
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := &samvad.Client{Identity: caller, HTTP: &http.Client{Timeout: 30 * time.Second},
		PollEvery: 20 * time.Millisecond}
	t.Cleanup(client.HTTP.CloseIdleConnections)
	call := samvad.Call{URL: n.Addresses().HTTP + "/agents/pythonist", Skill: "repeat",
		Payload: []byte(`{"text":"ha","times":3}`)}
	right := func(t *testing.T, result []byte) {
		t.Helper()
		var a struct{ Text, Sender string }
		if err := json.Unmarshal(result, &a); err != nil {
			t.Fatal(err)
		}
		if a.Text != "hahaha" || a.Sender != hosting.Identity {
			t.Errorf("%+v", a)
		}
	}
	t.Run("sync", func(t *testing.T) {
		r, err := client.Ask(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		right(t, r.Result)
	})
	t.Run("async", func(t *testing.T) {
		id, err := client.Send(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		task, err := client.Wait(t.Context(), call.URL, id)
		if err != nil {
			t.Fatal(err)
		}
		right(t, task.Result)
	})
	t.Run("stream", func(t *testing.T) {
		done := false
		for e, err := range client.Stream(t.Context(), call) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Done {
				done = true
				right(t, e.Result)
			}
		}
		if !done {
			t.Error("the stream did not end")
		}
	})
	t.Run("a handler that fails", func(t *testing.T) {
		call := call
		call.Skill = "fail"
		_, err := client.Ask(t.Context(), call)
		var e *samvad.Error
		if !errors.As(err, &e) || e.Code != samvad.CodeAgentUnavailable || strings.Contains(e.Text, "secret") {
			t.Errorf("%v", err)
		}
	})
	t.Run("content that does not fit", func(t *testing.T) {
		call := call
		call.Payload = []byte(`{"text":7}`)
		_, err := client.Ask(t.Context(), call)
		var e *samvad.Error
		if !errors.As(err, &e) || e.Code != samvad.CodeSchemaInvalid {
			t.Errorf("%v", err)
		}
	})
}

// TestPythonServerDirectly calls the SDK's server with the library's client,
// without a hub, in all three modes.
func TestPythonServerDirectly(t *testing.T) {
	p := python(t)
	me, err := samvad.NewIdentity("agent://library.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	at := serve(t, p, me.ID(), base64.StdEncoding.EncodeToString(me.Public()))
	client := &samvad.Client{Identity: me, HTTP: &http.Client{Timeout: 30 * time.Second},
		PollEvery: 20 * time.Millisecond}
	t.Cleanup(client.HTTP.CloseIdleConnections)
	call := samvad.Call{URL: at.URL, Skill: "repeat", Payload: []byte(`{"text":"ha"}`)}
	const want = `{"text":"ha","sender":"agent://library.test"}`
	r, err := client.Ask(t.Context(), call)
	if err != nil || string(r.Result) != want {
		t.Errorf("sync: %v %v", r, err)
	}
	id, err := client.Send(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	task, err := client.Wait(t.Context(), at.URL, id)
	if err != nil || string(task.Result) != want {
		t.Errorf("async: %v %v", task, err)
	}
	done := false
	for e, err := range client.Stream(t.Context(), call) {
		if err != nil {
			t.Fatal(err)
		}
		done = e.Done && jsonEqual(e.Result, want)
	}
	if !done {
		t.Error("stream: no result")
	}
}

func jsonEqual(a []byte, b string) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, []byte(b)) == nil && x.String() == y.String()
}

// served is the address of the SDK's agent.
type served struct{ URL, ID, Key string }

// serve runs the agent until the test ends.
func serve(t *testing.T, p, peer, key string) served {
	t.Helper()
	return serveScript(t, p, filepath.Join("python", "samvad_server.py"), peer, key)
}

// serveScript runs a script that is an agent until the test ends.
func serveScript(t *testing.T, program, script, peer, key string) served {
	t.Helper()
	c := exec.Command(program, script, t.TempDir(), peer, key)
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
	kill := time.AfterFunc(10*time.Minute, func() { _ = c.Process.Kill() }) // if it hangs
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Errorf("the agent ended with %v\n%s", err, &errs)
		}
		kill.Stop()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the agent did not start: %v\n%s", err, &errs)
	}
	var at served
	if err := json.Unmarshal(line, &at); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestPythonServerWhileTheKeyIsReplaced: the SDK knows one raw key of the hub. The hub
// reaches the agent with the old key and the new one as long as both are published. A
// request for a skill that it lacks shows which key it knows.
func TestPythonServerWhileTheKeyIsReplaced(t *testing.T) {
	p := python(t)
	n := start(t)
	old := n.SAMVAD().Hosting()
	if _, err := admin.ReplaceKey(n.Keys(), keyring.Hub, "samvad", "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	hosting := n.SAMVAD().Hosting()
	if hosting.Key != old.Key || hosting.Next == "" {
		t.Fatalf("%+v", hosting)
	}
	caller, err := samvad.NewIdentity("agent://caller.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	enrol(t, n, "caller", caller.ID(), "", base64.StdEncoding.EncodeToString(caller.Public()))
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := bridge.NextOf(n.Keys(), hosting.Identity)
	client := &samvad.Client{Identity: caller, HTTP: &http.Client{Timeout: 30 * time.Second}}
	probe := &samvad.Client{Identity: next, HTTP: client.HTTP}
	t.Cleanup(client.HTTP.CloseIdleConnections)
	for _, c := range []struct {
		name, key string
		code      samvad.Code
	}{{"old", hosting.Key, samvad.CodeAuthFailed}, {"new", hosting.Next, samvad.CodeSkillNotFound}} {
		at := serve(t, p, hosting.Identity, c.key)
		enrol(t, n, "pythonist", at.ID, at.URL, at.Key)
		call := samvad.Call{URL: n.Addresses().HTTP + "/agents/pythonist", Skill: "repeat",
			Payload: []byte(`{"text":"ha","times":2}`)}
		r, err := client.Ask(t.Context(), call)
		if err != nil || !strings.Contains(string(r.Result), `"haha"`) {
			t.Errorf("the agent knows the %s key: %+v, %v", c.name, r, err)
		}
		_, err = probe.Ask(t.Context(), samvad.Call{URL: at.URL, Skill: "parley.doctor"})
		if e := samvad.AsError(err); e == nil || e.Code != c.code {
			t.Errorf("the agent knows the %s key, and answers the new one with %v", c.name, err)
		}
	}
}
