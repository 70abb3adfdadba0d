package interop

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

// a2aPage gives the programs of docs/a2a.md, by the name in their first line.
func a2aPage(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/a2a.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	block := regexp.MustCompile("(?s)```(?:python|js)\n((?:#|//) ([a-z_0-9]+\\.(?:py|mjs)).*?)```")
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		out[m[2]] = m[1]
	}
	if len(out) < 9 {
		t.Fatalf("docs/a2a.md has %d programs", len(out))
	}
	// That with LangGraph is the class of the server before it.
	server := out["server_1_0.py"]
	from, to := strings.Index(server, "class Museum"), strings.Index(server, "url = ")
	if from < 0 || to < from {
		t.Fatal("docs/a2a.md: the server for 1.0 has another form")
	}
	out["langgraph_agent.py"] = server[:from] + out["langgraph_agent.py"] + "\n\n" + server[to:]
	return out
}

// pagePrograms are the programs of the page and what runs them: an environment of Python, or
// Node.
var pagePrograms = []struct{ client, server, runs string }{
	{"client_1_0.py", "server_1_0.py", "python-1.3.0/bin/python"},
	{"client_0_3.py", "server_0_3.py", "python-0.3.26/bin/python"},
	{"client.mjs", "server.mjs", "node"},
	{"client_1_0.py", "langgraph_agent.py", "langgraph/bin/python"},
	{"client_adk.py", "server_adk.py", "adk/bin/python"},
}

// pageProgram writes a program of the page to a file, changed for this machine.
func pageProgram(t *testing.T, runs, name, text string) *exec.Cmd {
	t.Helper()
	sdks := os.Getenv("PARLEY_A2A_SDKS")
	if sdks == "" {
		t.Skip("PARLEY_A2A_SDKS names no folder with the A2A SDKs; internal/interop/setup.sh makes one")
	}
	sdks, err := filepath.Abs(sdks)
	if err != nil {
		t.Fatal(err)
	}
	dir, program := t.TempDir(), runs
	if runs == "node" {
		modules := filepath.Join(sdks, "node", "node_modules")
		if _, err := os.Stat(modules); err != nil {
			t.Skipf("without @a2a-js/sdk: %v", err)
		}
		if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
			t.Fatal(err)
		}
	} else {
		program = filepath.Join(sdks, runs)
		if _, err := os.Stat(program); err != nil {
			t.Skipf("not installed: %v", err)
		}
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), program, path)
}

// pageServer starts a server of the page at a free port, and gives its URL.
func pageServer(t *testing.T, runs, name, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`\b93\d\d\b`).ReplaceAllString(text, port)
	c := pageProgram(t, runs, name, text)
	var log bytes.Buffer
	c.Stdout, c.Stderr = &log, &log
	if err := l.Close(); err != nil { // the server takes the port
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait() // it was killed
	})
	at := "http://127.0.0.1:" + port
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	limit := time.After(time.Minute)
	for {
		resp, err := http.Get(at + "/.well-known/agent-card.json")
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return at
			}
		}
		select {
		case <-every.C:
		case <-limit:
			t.Fatalf("%s does not answer: %v\n%s", name, err, &log)
		}
	}
}

// pageClient runs a client of the page against an agent, and gives what it prints.
func pageClient(t *testing.T, runs, name, text, agent, token string) string {
	t.Helper()
	text = strings.NewReplacer("http://hub.corp:8080/a2a/weather", agent, "TOKEN", token).Replace(text)
	out, err := pageProgram(t, runs, name, text).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// TestA2APagePrograms: the clients of docs/a2a.md talk to its servers, without a hub.
func TestA2APagePrograms(t *testing.T) {
	page := a2aPage(t)
	for _, p := range pagePrograms {
		t.Run(p.server, func(t *testing.T) {
			at := pageServer(t, p.runs, p.server, page[p.server])
			if out := pageClient(t, p.runs, p.client, page[p.client], at, "none"); !strings.Contains(out,
				"On show in Bern: Paul Klee, angels") {
				t.Error(out)
			}
		})
	}
}

// TestA2APageAtAHub: the clients of docs/a2a.md call an agent of the hub with a token of the
// hub, and the hub calls its servers.
func TestA2APageAtAHub(t *testing.T) {
	page := a2aPage(t)
	for _, p := range pagePrograms {
		t.Run(p.server, func(t *testing.T) {
			at := pageServer(t, p.runs, p.server, page[p.server])
			n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk",
				Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
				Network: node.Network{Allow: []string{"loopback"}},
				Agents:  map[string]node.Agent{"museum": {A2A: &node.A2AAgent{URL: at}}}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := n.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			asked := make(chan string, 1)
			if err := n.Handle(parley.Agent{Name: "weather", Title: "Weather", Description: "Tells the weather.",
				Exposed: parley.Everywhere}, parley.RawSkill("forecast",
				func(ctx context.Context, m *parley.Message, r parley.Replier) error {
					asked <- m.From
					return r.Reply(parley.Text("21 degrees in " + m.Text()))
				})); err != nil {
				t.Fatal(err)
			}
			if err := n.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			token, err := n.Admin().IssueToken(t.Context(), admin.Actor{Name: "test", Role: admin.Administer},
				admin.NewToken{Name: "traveller", Agent: "traveller"})
			if err != nil {
				t.Fatal(err)
			}
			out := pageClient(t, p.runs, p.client, page[p.client], n.Addresses().HTTP+"/a2a/weather", token.Secret)
			if !strings.Contains(out, "21 degrees in Bern") {
				t.Error(out)
			}
			if who := <-asked; who != "traveller" {
				t.Errorf("%s asked", who)
			}
			reply, err := n.Hub().Ask(t.Context(), hub.Submission{Scope: "go test", Message: &parley.Message{
				Kind: parley.Request, From: "weather", To: "museum", Parts: []parley.Part{parley.Text("Bern")},
				Origin: parley.Origin{Protocol: "go", Peer: "weather", Verdict: parley.Verdict{Assurance: parley.Session}}}})
			if err != nil {
				t.Fatal(err)
			}
			if reply.Text() != "On show in Bern: Paul Klee, angels" {
				t.Errorf("%s: %q %v", reply.Kind, reply.Text(), reply.Error)
			}
		})
	}
}
