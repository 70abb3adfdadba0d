package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parley-hub/parley/samvad"
)

// program runs parley as users do: with processes, signals and files.
type program struct {
	t    *testing.T
	ctx  context.Context
	dir  string
	path string
	env  []string // of its commands, beside that of the test
}

func newProgram(t *testing.T) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	p := &program{t: t, ctx: ctx, dir: t.TempDir()}
	p.path = filepath.Join(p.dir, "parley")
	if err := os.Symlink(self, p.path); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *program) command(args ...string) *exec.Cmd {
	c := exec.CommandContext(p.ctx, p.path, args...)
	c.Dir, c.Env = p.dir, append([]string{"HOME=" + p.dir, "PATH=" + os.Getenv("PATH")}, p.env...)
	return c
}

// run gives the output of a command and its exit code.
func (p *program) run(args ...string) (string, int) {
	p.t.Helper()
	out, err := p.command(args...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return string(out), 0
}

// until repeats a command until its output fits.
func (p *program) until(fits func(string) bool, args ...string) {
	p.t.Helper()
	for {
		out, _ := p.run(args...)
		if fits(out) {
			return
		}
		if p.ctx.Err() != nil {
			p.t.Fatalf("parley %v still prints\n%s", args, out)
		}
	}
}

func (p *program) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// serve starts a hub and gives its addresses.
func (p *program) serve(args ...string) (c *exec.Cmd, protocols, admin string, log func() string) {
	p.t.Helper()
	c = p.command(append([]string{"serve"}, args...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	var mu sync.Mutex
	var errs bytes.Buffer
	c.Stderr = writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return errs.Write(b)
	})
	log = func() string {
		mu.Lock()
		defer mu.Unlock()
		return errs.String()
	}
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	in := bufio.NewScanner(out)
	for in.Scan() {
		if m := regexp.MustCompile(`^  (protocols|admin) +(http\S+)`).FindStringSubmatch(in.Text()); m != nil {
			if m[1] == "protocols" {
				protocols = m[2]
			} else {
				admin = m[2]
			}
		}
		if strings.HasPrefix(in.Text(), "  data ") {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return c, protocols, admin, log
		}
	}
	p.t.Fatalf("the hub did not start:\n%s", log())
	return nil, "", "", nil
}

// slowAgent is a SAMVAD agent. Its skill "wait" signals begun, and ends when it receives
// from goOn, once for each call.
func slowAgent(t *testing.T, hubID, hubKey string, begun chan<- string, goOn <-chan struct{}) *httptest.Server {
	t.Helper()
	key, err := samvad.ParseKey(hubKey)
	if err != nil {
		t.Fatal(err)
	}
	me, err := samvad.IdentityFromSeed("agent://slow.test", "key-current", make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(nil)
	card := &samvad.Card{ID: me.ID(), Name: "Slow", Version: "1.0.0", Description: "Takes its time.", URL: "http://" +
		s.Listener.Addr().String(),
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(me, true)},
		Skills: []samvad.Skill{{ID: "wait", Name: "Wait", Description: "Waits.",
			InputSchema:  []byte(`{"type":"object"}`),
			OutputSchema: []byte(`{"type":"object"}`), Modes: []samvad.Mode{samvad.ModeSync, samvad.ModeStream},
			Trust: samvad.TrustPublic}}}
	s.Config.Handler = &samvad.Server{
		Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{hubID: {key}}},
		Agent: &samvad.Agent{Card: card.Complete(), Identity: me,
			Handler: func(ctx context.Context, r *samvad.Request) (samvad.Response, error) {
				if r.Mode == samvad.ModeStream {
					if err := r.Chunk([]byte(`"begun"`)); err != nil {
						return samvad.Response{}, err
					}
				}
				begun <- string(r.Payload)
				select {
				case <-goOn:
				case <-ctx.Done():
					return samvad.Response{}, ctx.Err()
				}
				return samvad.Response{Result: []byte(`{"ended":true}`)}, nil
			}},
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// TestOperating operates a running hub by commands and signals alone: a reload during a
// request and a stream, a wrong file, pause and resume, and drain.
func TestOperating(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	base := "log = \"info\"\n[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n" +
		"[network]\nallow = [\"loopback\"]\n"
	p.write("hub.toml", base)
	hub, protocols, admin, log := p.serve("--config", "hub.toml")
	defer hub.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- hub.Wait() }()

	if out, code := p.run("keys", "new", "--id", "agent://me.test", "--out", "me.json"); code != 0 {
		t.Fatal(out)
	}
	public, _ := p.run("keys", "export-public", "--file", "me.json")
	if out, code := p.run("agents", "add", "me", "--id", "agent://me.test", "--key",
		strings.TrimSpace(public)); code != 0 {
		t.Fatal(out)
	}
	var own struct {
		ID   string `json:"id"`
		Keys []struct {
			Key string `json:"key"`
		} `json:"publicKeys"`
	}
	resp, err := http.Get(protocols + "/.well-known/agent.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&own); err != nil || len(own.Keys) == 0 {
		t.Fatal(err, own)
	}
	begun, goOn := make(chan string, 16), make(chan struct{})
	slow := slowAgent(t, own.ID, own.Keys[0].Key, begun, goOn)
	if out, code := p.run("agents", "add", "slow", "--samvad", slow.URL); code != 0 {
		t.Fatal(out)
	}

	// A request and a stream are in flight.
	type answer struct {
		out  string
		code int
	}
	ask := func(args ...string) <-chan answer {
		done := make(chan answer, 1)
		go func() {
			out, err := p.command(append([]string{"send"}, args...)...).CombinedOutput()
			code := 0
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				code = -1
			}
			done <- answer{string(out), code}
		}()
		return done
	}
	request := ask("--to", "slow", "--skill", "wait", "--wait", "2m", `{"n":1}`)
	<-begun
	stream := ask("--protocol", "samvad", "--url", protocols+
		"/agents/slow", "--key", "me.json", "--as", "agent://me.test", "--skill", "wait", "--stream", "--wait", "2m",
		`{"n":2}`)
	select {
	case <-begun:
	case a := <-stream:
		t.Fatalf("the stream ended with %d: %s", a.code, a.out)
	}

	// A reload by signal, and one by command.
	p.write("hub.toml", base+"[agents.extra]\nsamvad = { url = \"https://extra.test\" }\n")
	if err := hub.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.until(func(out string) bool { return strings.Contains(out, "extra") }, "agents")
	p.write("hub.toml", strings.Replace(base, `"info"`, `"debug"`, 1)+
		"[limits]\nrefusals = 9\n[agents.more]\nsamvad = { url = \"https://more.test\" }\n")
	if out, code := p.run("config", "reload"); code != 0 || !strings.Contains(out, "in force       agents.more") ||
		!strings.Contains(out, "needs restart  limits.refusals") {
		t.Errorf("%d: %s", code, out)
	}

	// A wrong file changes nothing, and the error names the line; by command and by
	// signal.
	p.write("hub.toml", base+"[netwrok]\nallow = []\n")
	out, code := p.run("config", "reload")
	if code != 4 || !strings.Contains(out, "line 7") || !strings.Contains(out, "network") {
		t.Errorf("%d: %s", code, out)
	}
	if out, code := p.run("config", "check", "hub.toml"); code != 2 || !strings.Contains(out, "line 7") {
		t.Errorf("%d: %s", code, out)
	}
	before := strings.Count(log(), "the old one is in force")
	if err := hub.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.until(func(string) bool { return strings.Count(log(), "the old one is in force") > before }, "agents")
	if out, _ := p.run("agents"); !strings.Contains(out, "more") || strings.Contains(out, "extra") {
		t.Errorf("the old configuration is not in force:\n%s", out)
	}

	// The request and the stream end well.
	for range 2 {
		goOn <- struct{}{}
	}
	for name, done := range map[string]<-chan answer{"request": request, "stream": stream} {
		if a := <-done; a.code != 0 || !strings.Contains(a.out, `"ended":true`) {
			t.Errorf("%s: %d: %s", name, a.code, a.out)
		} else if name == "stream" && !strings.Contains(a.out, "begun") {
			t.Errorf("the stream lost its chunk: %s", a.out)
		}
	}

	// A message to a paused agent waits until it is resumed.
	if out, code := p.run("agents", "pause", "slow"); code != 0 {
		t.Fatal(out)
	}
	if out, code := p.run("send", "--to", "slow", "--skill", "wait", "--no-wait", `{"n":3}`); code != 0 {
		t.Fatal(out)
	}
	if out, code := p.run("agents", "show", "slow"); code != 0 || !strings.Contains(out, "paused") {
		t.Errorf("%d: %s", code, out)
	}
	if len(begun) != 0 {
		t.Errorf("the paused agent was called with %s", <-begun)
	}
	if out, code := p.run("agents", "resume", "slow"); code != 0 {
		t.Fatal(out)
	}
	if got := <-begun; !strings.Contains(got, "3") {
		t.Errorf("called with %s", got)
	}
	goOn <- struct{}{}

	// Drain: the hub is no longer ready, requests in flight are answered, and the exit
	// code is 0.
	last := ask("--to", "slow", "--skill", "wait", "--wait", "2m", `{"n":4}`)
	<-begun
	if err := hub.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for {
		r, err := http.Get(admin + "/ready")
		if err != nil {
			break // the listener is closed: not ready either
		}
		r.Body.Close()
		if r.StatusCode == http.StatusServiceUnavailable {
			break
		}
		if p.ctx.Err() != nil {
			t.Fatal("the hub is still ready")
		}
	}
	goOn <- struct{}{}
	if a := <-last; a.code != 0 || !strings.Contains(a.out, `"ended":true`) {
		t.Errorf("%d: %s", a.code, a.out)
	}
	if err := <-ended; err != nil {
		t.Errorf("the hub ended with %v\n%s", err, log())
	}
	if !strings.Contains(log(), "stopping: new messages are refused") {
		t.Error(fmt.Sprint("the log does not say that it stops:\n", log()))
	}
}
