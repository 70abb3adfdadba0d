package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

const aghWait = 30 * time.Second

// aghEvent is a line of a Python peer.
type aghEvent struct {
	Event    string
	Do       string
	Subject  string
	Error    string
	Answers  bool
	Envelope struct {
		ID       string `json:"id"`
		Kind     string `json:"kind"`
		From     string `json:"from"`
		To       string `json:"to"`
		Surface  string `json:"surface"`
		ThreadID string `json:"thread_id"`
		WorkID   string `json:"work_id"`
		ReplyTo  string `json:"reply_to"`
		Body     struct {
			Text   string          `json:"text"`
			Status string          `json:"status"`
			State  string          `json:"state"`
			Result json.RawMessage `json:"result"`
			Card   struct {
				PeerID       string   `json:"peer_id"`
				DisplayName  string   `json:"display_name"`
				Capabilities []string `json:"capabilities"`
			} `json:"peer_card"`
		} `json:"body"`
		Ext map[string]json.RawMessage `json:"ext"`
	}
}

// aghPeer is a Python peer in a process of its own.
type aghPeer struct {
	t      *testing.T
	name   string
	in     io.WriteCloser
	events chan aghEvent
}

func startAGH(t *testing.T, python string, n *node.Node, flags ...string) *aghPeer {
	t.Helper()
	script, err := filepath.Abs("python/agh_peer.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, append([]string{script, "--url", n.Addresses().AGH, "--channel", "builders"},
		flags...)...)
	cmd.Stderr = os.Stderr
	p := &aghPeer{t: t, name: strings.Join(flags, " "), events: make(chan aghEvent, 256)}
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(p.events)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e aghEvent
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Errorf("%s said %s: %v", p.name, lines.Bytes(), err)
				return
			}
			p.events <- e
		}
	}()
	t.Cleanup(func() {
		p.in.Close()
		<-done
		_ = cmd.Wait() // a peer that was refused ends with 3
	})
	return p
}

func (p *aghPeer) do(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// wait gives the next event that satisfies wanted.
func (p *aghPeer) wait(what string, wanted func(aghEvent) bool) aghEvent {
	p.t.Helper()
	limit := time.After(aghWait)
	for {
		select {
		case e, ok := <-p.events:
			if !ok {
				p.t.Fatalf("%s ended before: %s", p.name, what)
			}
			if wanted(e) {
				return e
			}
		case <-limit:
			p.t.Fatalf("%s waited in vain for: %s", p.name, what)
		}
	}
}

func (p *aghPeer) heard(kind, from string) aghEvent {
	p.t.Helper()
	return p.wait(kind+" of "+from, func(e aghEvent) bool {
		return e.Event == "heard" && e.Envelope.Kind == kind && e.Envelope.From == from
	})
}

func (p *aghPeer) done(what string) {
	p.t.Helper()
	p.wait("done "+what, func(e aghEvent) bool { return e.Event == "done" && e.Do == what })
}

// Two independent peers that were written from the protocol's public pages, with
// nats-py: greet, whois, thread talk (AGH-053), direct room (AGH-055), and work from
// submitted to completed (AGH-070, AGH-071) with a Go handler and with each other. A
// third in another workspace hears nothing, and the server refuses it when it tries;
// one without permission is not let in.
func TestAGHPeers(t *testing.T) {
	python := os.Getenv("PARLEY_PYTHON")
	if python == "" {
		t.Skip("PARLEY_PYTHON names no Python interpreter; see setup.sh")
	}
	n, err := node.Open(t.Context(), node.Config{Durability: "memory", Listen: node.Listen{AGH: "127.0.0.1:0"},
		Policy: node.Policy{Assurance: "session"},
		AGH: node.AGH{
			Users: map[string]node.AGHUser{
				"ana":      {Token: "secret-a", Peers: []string{"ana"}, Workspaces: []string{"acme"}},
				"ben":      {Password: "secret-b", Peers: []string{"ben"}, Workspaces: []string{"acme"}},
				"outsider": {Token: "secret-o", Peers: []string{"*"}, Workspaces: []string{"other"}},
			},
			Workspaces: map[string]node.AGHWorkspace{"acme": {Channels: []string{"builders"}}},
		}})
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
	type query struct {
		City string `json:"city"`
	}
	if err := n.Handle(parley.Agent{Name: "weather", Title: "Weather", Exposed: []string{"agh"}},
		parley.Skill("forecast", func(_ context.Context, _ *parley.Message, q query) (map[string]any, error) {
			return map[string]any{"city": q.City, "celsius": 21}, nil
		})); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}

	stranger := startAGH(t, python, n, "--workspace", "acme", "--peer", "mallory", "--token", "guessed")
	stranger.wait("refusal", func(e aghEvent) bool {
		return e.Event == "refused" &&
			strings.Contains(e.Error, "Authorization")
	})

	ana := startAGH(t, python, n, "--workspace", "acme", "--peer", "ana", "--token", "secret-a")
	ben := startAGH(t, python, n, "--workspace", "acme", "--peer", "ben", "--user", "ben", "--password", "secret-b")
	outsider := startAGH(t, python, n, "--workspace", "other", "--peer", "zoe", "--token", "secret-o", "--everything")
	for _, p := range []*aghPeer{ana, ben, outsider} {
		p.wait("ready", func(e aghEvent) bool { return e.Event == "ready" })
	}
	ready := func(e aghEvent) bool { return e.Event == "whois" }

	ana.do(`{"do":"greet"}`)
	ben.heard("greet", "ana")
	ben.do(`{"do":"greet"}`)
	ana.heard("greet", "ben")

	ana.do(`{"do":"whois","to":null,"query":"mending"}`)
	if a := ana.wait("whois", ready); !a.Answers || a.Envelope.Body.Card.PeerID != "ben" {
		t.Errorf("AGH-063 whois by request: %+v", a)
	}
	ana.do(`{"do":"whois","to":"weather","query":""}`)
	if a := ana.wait("whois", ready); !a.Answers || a.Envelope.Body.Card.DisplayName != "Weather" ||
		len(a.Envelope.Body.Card.Capabilities) != 1 {
		t.Errorf("AGH-063 whois of a Go agent: %+v", a)
	}

	ana.do(`{"do":"say","text":"hello all","to":null,"thread":"thread_morning"}`)
	if e := ben.heard("say", "ana"); e.Envelope.Body.Text != "hello all" || e.Envelope.ThreadID != "thread_morning" {
		t.Errorf("%+v", e)
	}
	ben.do(`{"do":"direct","text":"only you","to":"ana","work":null}`)
	if e := ana.heard("say", "ben"); e.Envelope.Body.Text != "only you" || e.Envelope.Surface != "direct" {
		t.Errorf("%+v", e)
	}

	// Work with a Go handler, in a thread and in a room.
	for _, command := range []string{
		`{"do":"say","text":"{\"city\":\"Bern\"}","to":"weather","thread":"thread_morning","work":"work_1"}`,
		`{"do":"direct","text":"{\"city\":\"Bern\"}","to":"weather","work":"work_2"}`,
	} {
		ana.do(command)
		if e := ana.heard("receipt", "weather"); e.Envelope.Body.Status != "accepted" {
			t.Errorf("%+v", e)
		}
		if e := ana.heard("say", "weather"); !strings.Contains(e.Envelope.Body.Text, "21") ||
			e.Envelope.Ext["parley"] == nil {
			t.Errorf("%+v", e)
		}
		if e := ana.heard("trace", "weather"); e.Envelope.Body.State != "completed" ||
			!strings.Contains(string(e.Envelope.Body.Result), "21") {
			t.Errorf("%+v", e)
		}
	}
	// Work with each other.
	ana.do(`{"do":"direct","text":"mend it","to":"ben","work":"work_3"}`)
	for _, state := range []string{"working", "completed"} {
		if e := ana.heard("trace", "ben"); e.Envelope.Body.State != state || e.Envelope.WorkID != "work_3" {
			t.Errorf("%+v, want %s", e, state)
		}
	}
	// A Go agent gives a Python peer work.
	ctx, stop := context.WithTimeout(t.Context(), aghWait)
	defer stop()
	reply, err := n.Hub().Ask(ctx, hub.Submission{Scope: "go weather",
		Message: &parley.Message{Kind: parley.Request, From: "weather", To: "guest/agh/acme/ben",
			Parts: []parley.Part{parley.Text("mend the roof")}, Origin: parley.Origin{Protocol: "go", Peer: "weather"}}})
	if err != nil || reply.Kind != parley.Response || !strings.Contains(string(reply.Parts[0].Data), "mend the roof") {
		t.Errorf("%+v, %v", reply, err)
	}

	// Spoofed greetings, and answers without a question, reach no peer.
	ben.do(`{"do":"spoof","from":"ana","kind":"greet","to":null}`)
	ben.do(`{"do":"spoof","from":"ben","kind":"answer","to":"ana"}`)
	outsider.do(`{"do":"spoof","from":"ana","kind":"greet","to":null}`)
	outsider.done("spoof")
	// The server itself refuses a peer that listens or speaks in another workspace.
	outsider.do(`{"do":"intrude","workspace":"acme"}`)
	for _, what := range []string{"subscription to", "publish to"} {
		outsider.wait("violation: "+what, func(e aghEvent) bool {
			return e.Event == "failed" && strings.Contains(strings.ToLower(e.Error), "permissions violation for "+what+
				` "agh.network.v0.acme.builders.broadcast"`)
		})
	}
	ben.do(`{"do":"say","text":"last","to":null,"thread":"thread_morning","work":null}`)
	ana.wait("the last word", func(e aghEvent) bool {
		if e.Event == "heard" && (e.Envelope.Body.Card.DisplayName == "EVIL" || e.Envelope.Kind == "greet" &&
			e.Envelope.From == "ana") {
			t.Errorf("reached a peer: %+v", e)
		}
		return e.Event == "heard" && e.Envelope.Body.Text == "last"
	})
	if e, ok := n.Hub().Directory().Agent("guest/agh/acme/ana"); !ok || e.Title != "Ana" {
		t.Errorf("%+v", e)
	}
	outsider.do(`{"do":"greet"}`) // its own messages come after all that it must not hear
	outsider.wait("its own greeting", func(e aghEvent) bool {
		if e.Event == "heard" && !strings.HasPrefix(e.Subject, "agh.network.v0.other.") {
			t.Errorf("AGH-056 another workspace was heard: %+v", e)
		}
		return e.Event == "heard" && e.Envelope.Kind == "greet"
	})
	for _, p := range []*aghPeer{ana, ben, outsider} {
		p.do(`{"do":"stop"}`)
	}
}
