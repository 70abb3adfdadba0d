// Package examples runs the programs below this directory, as their readers would.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/asp/asptest"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/samvad/samvadtest"
	"github.com/parley-hub/parley/uagents"
	"github.com/parley-hub/parley/uagents/uagentstest"
)

// built is the directory of the programs.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		panic(err)
	}
	built = dir
	programs, err := filepath.Glob("*/main.go")
	if err != nil {
		panic(err)
	}
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for _, p := range programs {
		if name := filepath.Dir(p); name != "first" { // listens at fixed ports; the README's test compares it
			args = append(args, "./"+name)
		}
	}
	build := exec.Command("go", args...)
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// limit bounds every run, on a busy machine.
const limit = time.Minute

func program(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), limit)
	t.Cleanup(stop)
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	c := exec.CommandContext(ctx, filepath.Join(built, name), args...)
	c.Dir = dir
	return c
}

// run runs a program to its end, and gives its output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := program(t, dir, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// fails runs a program that must fail, and gives its output.
func fails(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := program(t, dir, name, args...).CombinedOutput()
	if err == nil {
		t.Fatalf("%s %q succeeds: %s", name, args, out)
	}
	return string(out)
}

// serve starts a program, and gives its next lines of output. It ends with the test.
func serve(t *testing.T, env []string, name string, args ...string) (line func() string) {
	t.Helper()
	c := program(t, t.TempDir(), name, args...)
	c.Env = append(os.Environ(), env...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if runtime.GOOS == "windows" || c.Process.Signal(os.Interrupt) != nil {
			_ = c.Process.Kill()
		}
		_, _ = io.Copy(io.Discard, out)
		_ = c.Wait() // programs without work to finish end by the signal
		if t.Failed() {
			t.Logf("%s said: %s", name, &errs)
		}
	})
	lines := bufio.NewScanner(out)
	return func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("%s said no more: %s", name, &errs)
		}
		return lines.Text()
	}
}

// me makes the key of examples/call in a new directory, and gives it as other programs
// are told it.
func me(t *testing.T) (dir, known string) {
	t.Helper()
	dir = t.TempDir()
	if out := fails(t, dir, "call"); !strings.Contains(out, "usage: call") {
		t.Fatalf("call says %s", out)
	}
	pub, err := os.ReadFile(filepath.Join(dir, "me", "key-current.pub"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, "agent://me.example=" + string(pub)
}

const bern = `{"city":"Bern"}`

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestVerify(t *testing.T) {
	dir, known := me(t)
	line := serve(t, nil, "verify", "-listen", "127.0.0.1:0", known)
	base := line()
	want(t, "call", run(t, dir, "call", "-to", "agent://weather.example", base, "forecast", bern), "{\"celsius\":21}\n")
	want(t, "verify", line(), "agent://me.example asks forecast "+bern)
	other, _ := me(t)
	if out := fails(t, other, "call", "-to", "agent://weather.example", base, "forecast", bern); !strings.Contains(out,
		"AUTH_FAILED") {
		t.Errorf("a call with another key: %s", out)
	}
}

func TestServeCallAndStream(t *testing.T) {
	dir, known := me(t)
	base := serve(t, nil, "serve", "-listen", "127.0.0.1:0", known)()
	want(t, "call", run(t, dir, "call", base, "forecast", bern), "{\"celsius\":21,\"city\":\"Bern\"}\n")
	want(t, "stream", run(t, dir, "stream", base, "forecast", bern),
		"chunk \"asking the station\"\nresult {\"celsius\":21,\"city\":\"Bern\"}\n")
	if out := fails(t, dir, "call", base, "forecast", "{}"); !strings.Contains(out, "SCHEMA_INVALID") {
		t.Errorf("a call without a city: %s", out)
	}
}

func TestTranscript(t *testing.T) {
	hub := asptest.NewServer(t)
	bob := hub.Peer("agent://test.example/bob")
	bob.Handle(func(context.Context, *asp.Session, *asp.Message) error { return nil })
	session := hub.Peer("agent://test.example/alice").Meet(t.Context(), bob.ID())
	if err := session.Close(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := session.Export(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "session.json")
	write := func(b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file.Bytes())
	want(t, "transcript", run(t, "", "transcript", path), "session "+session.ID()+
		" is CLOSED: 3 messages verify, signed by agent://hub.test/ops/hub\n")
	write(bytes.Replace(file.Bytes(), []byte("a test"), []byte("a fake"), 1))
	if out := fails(t, "", "transcript", path); !strings.Contains(out, "does not verify") {
		t.Errorf("a forged transcript: %s", out)
	}
}

func TestEnvelope(t *testing.T) {
	type message struct {
		Message string `json:"message"`
	}
	alice, bob := uagentstest.NewPeer(t, "alice"), uagentstest.NewPeer(t, "bob")
	check := func(envelope []byte) (string, error) {
		c := program(t, "", "envelope", bob.Address())
		c.Stdin = bytes.NewReader(envelope)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	for _, f := range alice.Forgeries(bob.Address(), uagents.ModelOf[message]().Message(message{"hello"})) {
		if f.Name == "repeated" { // a new process does not know that
			continue
		}
		out, err := check(f.Envelope)
		if (err == nil) != (f.Err == nil) {
			t.Errorf("an envelope %s: %v, %s", f.Name, err, out)
		}
		if f.Err == nil {
			want(t, "envelope", out, alice.Address()+" says, signed: {\"message\": \"hello\"}\n")
		}
	}
}

func TestHost(t *testing.T) {
	base := serve(t, []string{"HOST_TOKEN=a secret"}, "host", "-listen", "127.0.0.1:0")()
	agent := &a2e.Client{URL: base, Token: "a secret", HTTP: &http.Client{}}
	defer agent.Close()
	events := 0
	result, err := agent.CallTool(t.Context(), "forecast", map[string]string{"city": "Bern"}, func(a2e.Event) { events++ })
	if err != nil || !result.Success || events != 1 {
		t.Errorf("%+v, %v with %d events", result, err, events)
	}
	wrong := &a2e.Client{URL: base, Token: "", HTTP: &http.Client{}}
	defer wrong.Close()
	if err := wrong.Connect(t.Context()); err == nil {
		t.Error("an agent without a token is let in")
	}
}

// keysOf finds the hub's key once the hub is there.
type keysOf struct{ hub atomic.Pointer[string] }

func (k *keysOf) Keys(ctx context.Context, id string) ([]samvad.Key, error) {
	card, err := (&samvad.Client{HTTP: http.DefaultClient}).Card(ctx, *k.hub.Load())
	if err != nil || card.ID != id {
		return nil, err
	}
	var keys []samvad.Key
	for _, c := range card.PublicKeys {
		key, err := samvad.ParseKey(c.Key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// TestBridge: the guide, a uAgent, asks the museum, a SAMVAD agent, and the other way.
func TestBridge(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	museum, guide := samvadtest.NewPeer(t, "agent://museum.example"), uagentstest.NewPeer(t, "guide")
	say := func(context.Context, *samvad.Request) (samvad.Response, error) {
		return samvad.Response{Result: []byte(`{"message":"open until 6"}`)}, nil
	}
	museum.Skill("ask", say)
	keys := &keysOf{}
	inMemory := museum.HTTP(keys).Transport
	m := httptest.NewServer(proxy{inMemory})
	t.Cleanup(m.Close)
	type message struct {
		Message string `json:"message"`
	}
	model := uagents.ModelOf[message]()
	guide.Handle(func(context.Context, *uagents.Request) (uagents.Response, error) {
		return uagents.Answer(model.Message(message{"at noon"})), nil
	})
	g := httptest.NewServer(proxy{guide.HTTP().Transport})
	t.Cleanup(g.Close)

	line := serve(t, nil, "bridge", "-listen", "127.0.0.1:0", "-museum", m.URL, "-guide", guide.Address(), "-endpoint",
		g.URL+"/submit", "-key", base64.StdEncoding.EncodeToString(museum.Public()))
	hub := line()
	keys.hub.Store(&hub)
	address, _ := strings.CutPrefix(line(), "museum ")
	at, _ := strings.CutPrefix(line(), "guide ")

	asker := &uagents.Client{Identity: guide.Identity, Resolver: uagents.Almanac(hub), HTTP: http.DefaultClient}
	answer, err := asker.Ask(t.Context(), address, model.Message(message{"When are you open?"}))
	if err != nil || !strings.Contains(string(answer.Payload), "open until 6") {
		t.Errorf("the guide hears %s, %v", answer.Payload, err)
	}
	caller := &samvad.Client{Identity: museum, HTTP: http.DefaultClient}
	card, err := caller.Card(t.Context(), at)
	if err != nil || len(card.Skills) == 0 {
		t.Fatalf("the guide's card: %+v, %v", card, err)
	}
	reply, err := caller.Ask(t.Context(), samvad.Call{URL: at, Skill: card.Skills[0].ID,
		Payload: []byte(`{"message":"When do you come?"}`)})
	if err != nil || !strings.Contains(string(reply.Result), "at noon") {
		t.Errorf("the museum hears %+v, %v", reply, err)
	}
}

// proxy serves a peer in memory on a socket, for the hub's process.
type proxy struct{ to http.RoundTripper }

func (p proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", r.Host
	resp, err := p.to.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the hub sees what is missing
}

// TestList: the README names each program, and only programs that exist.
func TestList(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e.Name())
			if !bytes.Contains(text, []byte("]("+e.Name()+"/")) {
				t.Errorf("README.md does not name %s", e.Name())
			}
		}
	}
	for _, part := range strings.Split(string(text), "](")[1:] {
		link, _, _ := strings.Cut(part, ")")
		dir, _, _ := strings.Cut(link, "/")
		if !strings.HasPrefix(link, "../") && !strings.HasPrefix(link, "http") && !slices.Contains(dirs, dir) {
			t.Errorf("README.md names %s, which does not exist", link)
		}
	}
}
