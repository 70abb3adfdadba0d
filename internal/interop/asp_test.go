package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// TestASP: a second implementation, in Python, signs a session with an agent of the hub
// (ASP-001, ASP-011, ASP-012), and verifies the hub's export of it (ASP-077); it
// refuses a changed export (ASP-016).
func TestASP(t *testing.T) {
	p := os.Getenv("PARLEY_PYTHON")
	if p == "" {
		t.Skip("PARLEY_PYTHON names no Python interpreter with the package cryptography; internal/interop/setup.sh makes one")
	}
	if out, err := exec.Command(p, "-c", "import cryptography").CombinedOutput(); err != nil {
		t.Fatalf("%s has no cryptography: %v\n%s", p, err, out)
	}
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"),
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	type text struct {
		Text string `json:"text"`
	}
	if err := n.Handle(parley.Agent{Name: "crew/echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, _ *parley.Message, q text) (text, error) {
			return q,
				nil
		})); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	const agent, org = "agent://python.example/test/peer", "org_python"
	keys := filepath.Join(t.TempDir(), "keys.json")
	if _, err := n.ASP().Enroll(t.Context(), bytes.TrimSpace(run(t, p, "asp_peer.py", "card", keys, agent,
		org))); err != nil {
		t.Fatal(err)
	}
	echo := n.AgentAddresses("crew/echo")["asp"]
	session, err := asp.NewSessionID()
	if err != nil {
		t.Fatal(err)
	}
	server := n.ASP().Server()
	sequence, head := 0, asp.ZeroHash
	say := func(performative, body string, args ...string) {
		t.Helper()
		m := run(t, p, "asp_peer.py", append([]string{"sign", keys, agent, org, session, strconv.Itoa(sequence), head,
			performative, body}, args...)...)
		if _, err := server.Ingest(t.Context(), bytes.TrimSpace(m), asp.Transport{Agent: agent}, session); err != nil {
			t.Fatalf("%s: %v\n%s", performative, err, m)
		}
		sequence++
	}
	// The messages of the hub's side are pushed.
	recorded := make(chan struct{}, 1)
	stop := n.Hub().Journal().Watch(func(*journal.Record) {
		select {
		case recorded <- struct{}{}:
		default:
		}
	})
	defer stop()
	until := func(ok func(*asp.Ledger) bool) {
		t.Helper()
		for {
			l, err := server.Session(t.Context(), session, "")
			if err != nil {
				t.Fatal(err)
			}
			if ok(l) {
				head = l.Head.Hash
				return
			}
			select {
			case <-recorded:
			case <-time.After(time.Minute):
				t.Fatal("the hub does not answer")
			}
		}
	}
	says := func(n int64) func(*asp.Ledger) bool {
		return func(l *asp.Ledger) bool { return l.Participants[1].Next >= n }
	}
	say("PROPOSE",
		`{"proposalId":"p-1","type":"session-invitation","subject":"Grüße","terms":{"budget":12.50,"big":1e21,"small":1e-7}}`, echo, "org_parley")
	until(says(1)) // ACCEPT
	say("QUERY", `{"queryId":"q-1","queryType":"echo","parameters":{"text":"Zoe\u0308 \ud83d\ude00 <&>"}}`)
	until(says(2))
	say("CLOSE", `{"reason":"done"}`)

	var export bytes.Buffer
	if err := server.WriteTranscript(t.Context(), session, &export); err != nil {
		t.Fatal(err)
	}
	check := func(b []byte) (r struct {
		OK       bool     `json:"ok"`
		Messages int      `json:"messages"`
		Faults   []string `json:"faults"`
	}) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "session.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(run(t, p, "asp_peer.py", "verify", path), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := check(export.Bytes()); !r.OK || r.Messages != 5 {
		t.Errorf("%+v", r)
	}
	// An operator's export of the conversation is the same.
	by := admin.Actor{Name: "test", Role: admin.Read}
	page, err := n.Admin().Conversations(t.Context(), by, index.ConversationFilter{})
	if err != nil || len(page.Conversations) != 1 {
		t.Fatal(page, err)
	}
	var conversation bytes.Buffer
	if err := n.Admin().Transcript(t.Context(), by, page.Conversations[0].ID.String(),
		"asp", &conversation); err != nil {
		t.Fatal(err)
	}
	if r := check(conversation.Bytes()); !r.OK || r.Messages != 5 {
		t.Errorf("the export of the conversation: %+v", r)
	}
	// The example in examples/asp agrees.
	example := func(b []byte) (code int, out string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "session.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(p, filepath.Join("..", "..", "examples", "asp", "check.py"), path)
		text, err := c.Output()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return c.ProcessState.ExitCode(), string(text)
	}
	if code, out := example(export.Bytes()); code != 0 || !strings.Contains(out, `"messages": 5`) {
		t.Errorf("the example: exit %d, %s", code, out)
	}
	changed := strings.Replace(export.String(), `"done"`, `"dona"`, 1)
	if code, out := example([]byte(changed)); code != 1 || !strings.Contains(out,
		"message at position 4: hash_mismatch") {
		t.Errorf("the example, of a changed export: exit %d, %s", code, out)
	}
	lines := strings.SplitAfter(export.String(), "\n")
	if code, out := example([]byte(strings.Join(slices.Delete(lines, len(lines)-4, len(lines)-3), ""))); code != 1 {
		t.Errorf("the example, of a cut export: exit %d, %s", code, out)
	}
	if r := check([]byte(changed)); r.OK || !strings.Contains(strings.Join(r.Faults, " "), "position 4") {
		t.Errorf("a changed export: %+v", r)
	}
	if e, ok := n.Hub().Directory().Lookup("asp", agent); !ok || e.Source != directory.FromAgent {
		t.Error("the peer is not in the directory")
	}
}

// TestASPAgentInPython: the agent of examples/asp, which uses none of Parley's code, is
// asked by an agent that is exposed nowhere, and answers.
func TestASPAgentInPython(t *testing.T) {
	p := os.Getenv("PARLEY_PYTHON")
	if p == "" {
		t.Skip("PARLEY_PYTHON names no Python interpreter with the package cryptography; internal/interop/setup.sh makes one")
	}
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"),
		Listen: node.Listen{HTTP: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.Handle(parley.Agent{Name: "planner"}, parley.RawSkill("plan",
		func(context.Context, *parley.Message, parley.Replier) error { return nil })); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	const agent, org = "agent://python.example/test/echo", "org_python"
	script, keys := filepath.Join("..", "..", "examples", "asp", "agent.py"), filepath.Join(t.TempDir(), "keys.json")
	made := exec.Command(p, script, "card", keys, agent, org)
	made.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	card, err := made.Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.ASP().Enroll(t.Context(), bytes.TrimSpace(card)); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	served := exec.Command(p, script, "serve", n.Addresses().Local, keys, agent, org)
	served.Env, served.Stderr = made.Env, &said
	if err := served.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = served.Process.Kill()
		_ = served.Wait()
		if t.Failed() {
			t.Logf("the agent said: %s", said.String())
		}
	})
	e, ok := n.Hub().Directory().Lookup("asp", agent)
	if !ok {
		t.Fatal("the agent is not in the directory")
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for _, text := range []string{"Grüße", "once more"} {
		part, err := parley.JSON(map[string]string{"text": text})
		if err != nil {
			t.Fatal(err)
		}
		m, err := n.Hub().Ask(ctx, hub.Submission{Scope: "go",
			Message: &parley.Message{Kind: parley.Request, From: "planner", To: e.Name, Skill: "echo",
				Parts: []parley.Part{part}, Deadline: time.Now().Add(time.Minute), Origin: parley.Origin{Protocol: "go"}}})
		if err != nil || m.Kind != parley.Response || string(m.Parts[0].Data) != `{"echo":{"text":"`+text+
			`"}}` && string(m.Parts[0].Data) != `{"echo": {"text": "`+text+`"}}` {
			t.Fatalf("%+v, %v", m, err)
		}
	}
}
