package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

const uagentsWait = 60 * time.Second

// uagentsHub is a node that can be opened again at the same address.
type uagentsHub struct {
	*node.Node
	t      *testing.T
	config node.Config
}

type uagentsText struct {
	Text string `json:"text"`
}

func (h *uagentsHub) open() {
	h.t.Helper()
	n, err := node.Open(context.Background(), h.config)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Node = n
	err = n.Handle(parley.Agent{Name: "echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, _ *parley.Message, q uagentsText) (uagentsText, error) {
			return q,
				nil
		}))
	if err == nil {
		err = n.Start(context.Background())
	}
	if err != nil {
		h.t.Fatal(err)
	}
	local, err := url.Parse(n.Addresses().Local)
	if err != nil {
		h.t.Fatal(err)
	}
	h.config.Listen.HTTP = local.Host
}

func (h *uagentsHub) close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := h.Close(ctx); err != nil {
		h.t.Error(err)
	}
}

func (h *uagentsHub) echo() string {
	e, ok := h.Hub().Directory().Agent("echo")
	if !ok {
		h.t.Fatal("no echo")
	}
	return h.UAgents().Address(e)
}

func (h *uagentsHub) ask(to, skill string, p parley.Part) (*parley.Message, error) {
	return h.Hub().Ask(context.Background(), hub.Submission{Scope: "go echo",
		Message: &parley.Message{Kind: parley.Request, From: "echo", To: to, Skill: skill, Parts: []parley.Part{p},
			Origin: parley.Origin{Protocol: "go", Peer: "echo", Verdict: parley.Verdict{Assurance: parley.Session}}}})
}

// pyAgent is an unmodified agent of the uagents library in a process of its
// own.
type pyAgent struct {
	t       *testing.T
	Address string
	cmd     *exec.Cmd
	in      io.WriteCloser

	mu     sync.Mutex
	events []map[string]any
	more   chan struct{}

	reading sync.WaitGroup
}

func (h *uagentsHub) agent(python, seed string, flags ...string) *pyAgent {
	h.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	script, err := filepath.Abs("python/uagents_peer.py")
	if err != nil {
		h.t.Fatal(err)
	}
	a := &pyAgent{t: h.t, more: make(chan struct{}, 1)}
	a.cmd = exec.Command(python, append([]string{script, "--hub", h.Addresses().Local, "--port", strconv.Itoa(port),
		"--seed", seed}, flags...)...)
	a.cmd.Dir = h.t.TempDir()
	a.cmd.Stderr = h.t.Output()
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(a.kill)
	a.reading.Go(func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			var e map[string]any
			if json.Unmarshal(s.Bytes(), &e) != nil {
				fmt.Fprintf(h.t.Output(), "%s: %s\n", seed, s.Text())
				continue
			}
			a.mu.Lock()
			a.events = append(a.events, e)
			a.mu.Unlock()
			select {
			case a.more <- struct{}{}:
			default:
			}
		}
	})
	a.Address = a.wait("ready")["address"].(string)
	// It registers in the background.
	ctx, stop := context.WithTimeout(context.Background(), uagentsWait)
	defer stop()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if _, ok := h.Hub().Directory().Lookup("uagents", a.Address); ok {
			tick.Stop()
			return a
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			h.t.Fatal("the agent did not register")
		}
	}
}

// kill ends the process at once; messages that it fetched and did not delete come
// again.
func (a *pyAgent) kill() {
	a.in.Close()
	_ = a.cmd.Process.Kill() // it may have ended
	a.reading.Wait()
	_ = a.cmd.Wait()
}

func (a *pyAgent) do(command map[string]any) {
	a.t.Helper()
	b, err := json.Marshal(command)
	if err == nil {
		_, err = a.in.Write(append(b, '\n'))
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// wait takes the first event of a kind.
func (a *pyAgent) wait(kind string) map[string]any {
	a.t.Helper()
	deadline := time.After(uagentsWait)
	for {
		a.mu.Lock()
		for i, e := range a.events {
			if e["event"] == kind {
				a.events = append(a.events[:i:i], a.events[i+1:]...)
				a.mu.Unlock()
				return e
			}
		}
		seen := fmt.Sprint(a.events)
		a.mu.Unlock()
		select {
		case <-a.more:
		case <-deadline:
			a.t.Fatalf("no %q; seen: %.2000s", kind, seen)
		}
	}
}

// uagentsPython is the interpreter that has uagents; without it the tests are skipped.
func uagentsPython(t *testing.T) (string, bool) {
	python := os.Getenv("PARLEY_PYTHON")
	if python == "" {
		t.Skip("PARLEY_PYTHON names no interpreter; internal/interop/setup.sh makes one")
		return "", false
	}
	out, err := exec.Command(python, "-c",
		"from importlib.metadata import version; print(version('uagents'))").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "0.26.1" {
		t.Fatalf("%s has no uagents 0.26.1: %v\n%s", python, err, out)
	}
	return python, true
}

func newUAgentsHub(t *testing.T, change func(*node.Config)) *uagentsHub {
	h := &uagentsHub{t: t, config: node.Config{Data: t.TempDir(),
		Durability: "disk", Listen: node.Listen{HTTP: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}}}}
	if change != nil {
		change(&h.config)
	}
	h.open()
	t.Cleanup(func() { h.close() })
	return h
}

// said gives the recorded message from one agent to another, once it is there.
func (h *uagentsHub) said(from, to *pyAgent, text string) *parley.Message {
	h.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), uagentsWait)
	defer stop()
	d := h.Hub().Directory()
	sender, _ := d.Lookup("uagents", from.Address)
	recipient, _ := d.Lookup("uagents", to.Address)
	for r, err := range h.Hub().Journal().Records(ctx, 0, journal.From{Follow: true}) {
		if err != nil {
			h.t.Fatalf("%s to %s: %q is not recorded: %v", sender.Name, recipient.Name, text, err)
		}
		if m := r.Message; m != nil && m.From == sender.Name && m.To == recipient.Name && m.Text() == text {
			return m
		}
	}
	h.t.Fatal("the journal ended")
	return nil
}

// explained waits until the hub reports a message, as in `parley explain`: signed by
// its sender, and delivered.
func (h *uagentsHub) explained(m *parley.Message) {
	h.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), uagentsWait)
	defer stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := h.Admin().Message(ctx, admin.Actor{Name: "test", Role: admin.Observe}, m.ID.String(), false)
		if err == nil && r.Assurance == parley.Signed && len(r.Deliveries) == 1 &&
			r.Deliveries[0].State == parley.Delivered {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			h.t.Fatalf("explain says %+v, %v", r, err)
		}
	}
}

// TestUAgents lets unmodified agents talk through a hub, synchronously too and
// in chats. UAG-011, UAG-027, UAG-051, UAG-064, UAG-077, UAG-078.
func TestUAgents(t *testing.T) {
	python, ok := uagentsPython(t)
	if !ok {
		return
	}
	h := newUAgentsHub(t, func(c *node.Config) { c.Policy.Assurance, c.Listen.Admin = "unsigned", "127.0.0.1:0" })
	alice, bob := h.agent(python, "alice"), h.agent(python, "bob")

	t.Run("two agents find each other through the registry and talk", func(t *testing.T) {
		alice.do(map[string]any{"do": "send", "to": bob.Address, "text": "hello"})
		if e := bob.wait("request"); e["text"] != "hello0" || e["sender"] != alice.Address {
			t.Fatal(e)
		}
		if e := alice.wait("response"); e["text"] != "hello0" || e["sender"] != bob.Address {
			t.Fatal(e)
		}
		h.explained(h.said(alice, bob, "hello0"))
		h.said(bob, alice, "hello0")
	})
	t.Run("and so they do where the answer comes with the HTTP response", func(t *testing.T) {
		alice.do(map[string]any{"do": "sync", "to": bob.Address, "text": "right now"})
		bob.wait("request")
		if e := alice.wait("answer"); e["text"] != "right now" {
			t.Fatal(e)
		}
		h.said(alice, bob, "right now")
		h.said(bob, alice, "right now")
	})
	t.Run("to a Go handler and back, asynchronous", func(t *testing.T) {
		alice.do(map[string]any{"do": "send", "to": h.echo(), "text": "async"})
		if e := alice.wait("response"); e["text"] != "async0" || e["sender"] != h.echo() {
			t.Fatal(e)
		}
		alice.do(map[string]any{"do": "ask", "to": h.echo(), "text": "asked"})
		if e := alice.wait("answer"); e["text"] != "asked" {
			t.Fatal(e)
		}
	})
	for _, as := range []string{"agent", "user"} {
		t.Run("to a Go handler and back, synchronous, as "+as, func(t *testing.T) {
			alice.do(map[string]any{"do": "sync", "to": h.echo(), "text": "sync", "as": as})
			if e := alice.wait("answer"); e["text"] != "sync" {
				t.Fatal(e)
			}
		})
	}
	t.Run("from Go to an agent, by a model of its manifest", func(t *testing.T) {
		e, ok := h.Hub().Directory().Lookup("uagents", bob.Address)
		if !ok {
			t.Fatal("bob is not in the directory")
		}
		r, err := h.ask(e.Name, "EchoRequest", parley.Part{MediaType: "application/json",
			Data: []byte(`{"text":"from Go"}`)})
		if err != nil || r.Kind != parley.Response || r.Text() != "from Go" {
			t.Fatalf("%+v, %v", r, err)
		}
		bob.wait("request")
	})
	t.Run("UAG-065 a chat, with acknowledgements and the end of the session", func(t *testing.T) {
		alice.do(map[string]any{"do": "chat", "to": h.echo(), "text": "good morning"})
		ack, answer := alice.wait("ack"), alice.wait("chat")
		if answer["text"] != "good morning" || answer["ended"] != true || answer["session"] != ack["session"] {
			t.Fatal(ack, answer)
		}
		e, _ := h.Hub().Directory().Lookup("uagents", bob.Address)
		r, err := h.ask(e.Name, "", parley.Text("hi bob"))
		if err != nil || r.Kind != parley.Response || r.Text() != "you said hi bob" {
			t.Fatalf("%+v, %v", r, err)
		}
		bob.wait("ack") // of bob's message
	})
	t.Run("an answer that is an interactive card", func(t *testing.T) {
		r, err := h.ask(bob.Address, "", parley.Text("show me the form"))
		if err != nil || r.Kind != parley.Response || len(r.Parts) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		var card map[string]string
		err = r.Bind(&card)
		if err != nil || card["card_kind"] != "form" || !strings.Contains(card["card_payload"], `"city"`) {
			t.Errorf("%s, %v", r.Parts[0].Data, err)
		}
	})
	t.Run("a burst of 1,000 messages", func(t *testing.T) {
		alice.do(map[string]any{"do": "send", "to": h.echo(), "text": "burst ", "count": 1000})
		got := map[any]int{}
		for range 1000 {
			got[alice.wait("response")["text"]]++
		}
		for i := range 1000 {
			if n := got[fmt.Sprintf("burst %d", i)]; n != 1 {
				t.Errorf("message %d: %d answers", i, n)
			}
		}
	})
}

// TestUAgentsMailbox has messages wait for an absent agent, over a restart of the hub.
// UAG-076, UAG-077.
func TestUAgentsMailbox(t *testing.T) {
	python, ok := uagentsPython(t)
	if !ok {
		return
	}
	h := newUAgentsHub(t, nil)
	bob := h.agent(python, "mailbox-bob", "--mailbox")
	alice := h.agent(python, "alice")
	alice.do(map[string]any{"do": "send", "to": bob.Address, "text": "early", "timeout": 600})
	alice.wait("sent")
	if e := bob.wait("request"); e["text"] != "early0" {
		t.Fatal(e)
	}
	if e := alice.wait("response"); e["text"] != "early0" {
		t.Fatal(e)
	}
	bob.kill()
	alice.do(map[string]any{"do": "send", "to": bob.Address, "text": "late", "count": 20, "timeout": 600})
	alice.wait("sent")
	h.close()
	h.open()
	bob = h.agent(python, "mailbox-bob", "--mailbox")
	for i := range 20 {
		if e := bob.wait("request"); e["text"] != fmt.Sprintf("late%d", i) {
			t.Fatalf("message %d: %v", i, e)
		}
	}
	e, _ := h.Hub().Directory().Lookup("uagents", bob.Address)
	r, err := h.ask(e.Name, "", parley.Text("from Go"))
	if err != nil || r.Kind != parley.Response || r.Text() != "you said from Go" {
		t.Fatalf("%+v, %v", r, err)
	}
}

// TestUAgentsRestart restarts the hub amid a stream of messages: each that it
// acknowledged is answered.
func TestUAgentsRestart(t *testing.T) {
	python, ok := uagentsPython(t)
	if !ok {
		return
	}
	h := newUAgentsHub(t, nil)
	alice := h.agent(python, "alice")
	echo := h.echo()
	alice.do(map[string]any{"do": "send", "to": echo, "text": "before ", "count": 300})
	for range 50 {
		alice.wait("response")
	}
	h.close()
	h.open()
	if h.echo() != echo {
		t.Fatal("the stand-in has another address now")
	}
	alice.wait("sent")
	alice.mu.Lock()
	lost := 0
	for _, e := range alice.events {
		if e["event"] == "undelivered" {
			lost++
		}
	}
	alice.mu.Unlock()
	for range 300 - 50 - lost {
		alice.wait("response")
	}
	t.Logf("%d of 300 were not acknowledged", lost)
}
