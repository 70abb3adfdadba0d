package uagents_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

func TestAsync(t *testing.T) {
	w := newWorld(t, node.Config{})
	echo := w.address("crew/echo")
	alice := w.newPeer(nil)
	t.Run("the answer is an envelope in the same session", func(t *testing.T) {
		e := w.envelope(alice.Identity, echo, "", echoModel().Message(EchoRequest{"hi"}))
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
		r := alice.next(t)
		if r.Session != e.Session || r.Sender != echo || string(r.Content.Payload) != `{"text": "hi"}` ||
			r.Header.Get("Parley-Provenance") == "" {
			t.Fatalf("%s %s", r.Raw(), r.Header)
		}
	})
	t.Run("UAG-065 a chat is acknowledged, answered and ended", func(t *testing.T) {
		m := uagents.NewChat(time.Now(), uagents.Text("good morning"))
		e := w.envelope(alice.Identity, echo, "", m.Message())
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
		ack := alice.next(t)
		a, err := uagents.DecodeChatAcknowledgement(ack.Content.Payload)
		if err != nil || a.AcknowledgedMsgID != m.MsgID || ack.Session != e.Session {
			t.Fatalf("%s, %v", ack.Raw(), err)
		}
		r := alice.next(t)
		if c := chatText(t, r); c.Text() != "good morning" || !c.Ends() || r.Session != e.Session {
			t.Fatalf("%s", r.Raw())
		}
		// The hub accepts alice's acknowledgement, and does not answer it.
		c := chatText(t, r)
		if status, body, _ := w.post(w.envelope(alice.Identity, echo, e.Session, c.Acknowledge(time.Now()).Message()),
			false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
	})
	t.Run("a synchronous chat has its acknowledgement in the response", func(t *testing.T) {
		m := uagents.NewChat(time.Now(), uagents.Text("and evening"))
		r, err := w.client(alice.Identity).Ask(t.Context(), echo, m.Message())
		if err != nil || r.Schema != uagents.ChatAcknowledgementDigest {
			t.Fatalf("%+v, %v", r, err)
		}
		if c := chatText(t, alice.next(t)); c.Text() != "and evening" {
			t.Fatal(c)
		}
	})
	t.Run("or the answer, when the sender cannot be reached in another way", func(t *testing.T) {
		r, err := w.client(identity(t)).Ask(t.Context(), echo,
			uagents.NewChat(time.Now(), uagents.Text("stranger")).Message())
		if err != nil || r.Schema != uagents.ChatMessageDigest || !strings.Contains(string(r.Payload), "stranger") {
			t.Fatalf("%+v, %v", r, err)
		}
	})
	t.Run("UAG-067 an ErrorMessage is not answered", func(t *testing.T) {
		e := w.envelope(alice.Identity, echo, "", uagents.NewErrorMessage("oops"))
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
		// The next envelope is the answer to the next message.
		w.post(w.envelope(alice.Identity, echo, "", echoModel().Message(EchoRequest{"next"})), false)
		if r := alice.next(t); string(r.Content.Payload) != `{"text": "next"}` {
			t.Fatalf("%s", r.Raw())
		}
	})
}

func TestExposure(t *testing.T) {
	w := newWorld(t, node.Config{})
	e, ok := w.Hub().Directory().Agent("hidden")
	if !ok || w.UAgents().Address(e) != "" {
		t.Error("an agent that is not exposed has an address")
	}
}

func TestUnsigned(t *testing.T) {
	user, err := uagents.NewUser()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("UAG-056 refused by default", func(t *testing.T) {
		w := newWorld(t, node.Config{})
		c := &uagents.Client{User: user, HTTP: w.http, Resolver: uagents.Almanac(w.base)}
		_, err := c.Ask(t.Context(), w.address("crew/echo"), echoModel().Message(EchoRequest{"x"}))
		if uagents.AsError(err).Text != uagents.ErrVerifiedOnly.Text {
			t.Error(err)
		}
	})
	t.Run("marked where the operator lets them in", func(t *testing.T) {
		w := newWorld(t, node.Config{Policy: node.Policy{Assurance: "unsigned"}})
		c := &uagents.Client{User: user, HTTP: w.http, Resolver: uagents.Almanac(w.base)}
		r, err := c.Ask(t.Context(), w.address("crew/echo"), echoModel().Message(EchoRequest{"x"}))
		if err != nil || string(r.Payload) != `{"text": "x"}` {
			t.Fatal(err)
		}
	})
}

// TestParallel: five calls of one sender at once each get their own answer,
// and a forged answer changes nothing. UAG-054, UAG-055.
func TestParallel(t *testing.T) {
	w := newWorld(t, node.Config{})
	slow := w.address("slow")
	alice := identity(t)
	forged := w.envelope(alice, slow, "", echoModel().Message(EchoRequest{"forged"}))
	other := identity(t)
	sig, err := other.SignDigest([32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	forged.Signature = &sig
	if status, body, _ := w.post(forged, true); status != 400 ||
		!strings.Contains(body, "Signature verification failed") {
		t.Fatal(status, body)
	}
	session := uagents.NewSession()
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			text := fmt.Sprintf("call %d", i)
			r, err := w.client(alice).AskIn(t.Context(), session, slow, echoModel().Message(EchoRequest{text}))
			if err != nil || !strings.Contains(string(r.Payload), text) {
				t.Errorf("%s: %+v, %v", text, r, err)
			}
		})
	}
	waitFor(t, func() bool { return w.Hub().Stats().Waiting == 5 })
	close(w.gate)
	wg.Wait()
}

// TestOutOfGo: an agent of this process asks a uAgent, through its stand-in.
func TestOutOfGo(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.newPeer(uagents.ChatHandler(nil, func(_ context.Context, _ *uagents.Request,
		m *uagents.ChatMessage) (*uagents.ChatMessage, error) {
		switch m.Text() {
		case "silence":
			return nil, nil
		case "fail":
			return nil, uagents.ErrHandler.Saying("no such thing")
		}
		out := uagents.NewChat(time.Now(), uagents.Text("you said "+m.Text()))
		return &out, nil
	}))
	name := w.nameOf(bob.Identity)
	t.Run("chat", func(t *testing.T) {
		r, err := w.ask("crew/echo", name, "", parley.Text("hello"))
		if err != nil || r.Kind != parley.Response || r.Text() != "you said hello" ||
			r.Origin.Verdict.Assurance != parley.Signed {
			t.Fatalf("%+v, %v", r, err)
		}
		q := bob.next(t)
		if q.Sender != w.address("crew/echo") || q.Verdict.Assurance != uagents.Signed {
			t.Errorf("%s", q.Raw())
		}
		if a := bob.next(t); a.SchemaDigest != uagents.ChatAcknowledgementDigest { // UAG-065
			t.Errorf("%s", a.Raw())
		}
	})
	t.Run("a failure", func(t *testing.T) {
		r, err := w.ask("crew/echo", name, "", parley.Text("fail"))
		if err != nil || r.Kind != parley.Failure || !strings.Contains(r.Error.Text, "no such thing") {
			t.Fatalf("%+v, %v", r, err)
		}
	})
	t.Run("many at once, each in its own session", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				text := fmt.Sprint("number ", i)
				r, err := w.ask("crew/echo", name, "", parley.Text(text))
				if err != nil || r.Text() != "you said "+text {
					t.Errorf("%s: %+v, %v", text, r, err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("a forged answer changes nothing", func(t *testing.T) {
		done := make(chan string, 1)
		go func() {
			r, err := w.ask("crew/echo", name, "", parley.Text("silence"))
			if err != nil {
				done <- err.Error()
				return
			}
			done <- r.Text()
		}()
		q := bob.next(t)
		for q.SchemaDigest != uagents.ChatMessageDigest || chatText(t, q).Text() != "silence" {
			q = bob.next(t)
		}
		mallory := identity(t)
		if status, _, _ := w.post(w.envelope(mallory, q.Sender, q.Session,
			uagents.NewChat(time.Now(), uagents.Text("mine")).Message()), false); status != 200 {
			t.Fatal(status)
		}
		out := uagents.NewChat(time.Now(), uagents.Text("bob's own"))
		if status, body, _ := w.post(w.envelope(bob.Identity, q.Sender, q.Session, out.Message()),
			false); status != 200 {
			t.Fatal(status, body)
		}
		if got := <-done; got != "bob's own" {
			t.Error(got)
		}
	})
}

// TestHeadOfLine: an agent that takes connections and never answers does not delay
// messages to other agents.
func TestHeadOfLine(t *testing.T) {
	w := newWorld(t, node.Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan net.Conn, 64)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held <- c
		}
	})
	dead := identity(t)
	w.register(dead, "http://"+l.Addr().String()+"/submit")
	alive := w.newPeer(nil)
	for range 50 {
		w.post(w.envelope(dead, w.address("crew/echo"), "", echoModel().Message(EchoRequest{"to the dead"})), false)
	}
	for i := range 50 {
		text := fmt.Sprint("to the living ", i)
		w.post(w.envelope(alive.Identity, w.address("crew/echo"), "", echoModel().Message(EchoRequest{text})), false)
		if r := alive.next(t); !strings.Contains(string(r.Content.Payload), text) {
			t.Fatalf("%s", r.Raw())
		}
	}
	select {
	case c := <-held:
		c.Close()
	case <-time.After(wait):
		t.Error("the dead agent was never tried")
	}
	l.Close()
	accepting.Wait()
	for len(held) > 0 {
		(<-held).Close()
	}
}

// TestFailover: one working endpoint of several is enough.
func TestFailover(t *testing.T) {
	w := newWorld(t, node.Config{})
	other := w.newPeer(nil)
	id := other.Identity
	newer := uagents.NewRegistration(id, false, []uagents.Endpoint{{URL: "http://" + fixedport.Address(t) +
		"/submit", Weight: 1000}, {URL: other.url, Weight: 1}}, []string{uagents.ChatProtocolDigest})
	if err := newer.Sign(id, time.Now().Add(2*time.Second)); err != nil { // newer than the first registration
		t.Fatal(err)
	}
	w.submitRegistration(newer, 200)
	w.post(w.envelope(id, w.address("crew/echo"), "", echoModel().Message(EchoRequest{"find me"})), false)
	if r := other.next(t); !strings.Contains(string(r.Content.Payload), "find me") {
		t.Errorf("%s", r.Raw())
	}
}

// The outcome of a request is unknown only if the request may have been sent.
func TestAnAgentThatIsNotThere(t *testing.T) {
	w := newWorld(t, node.Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			leave() // while the TLS handshake waits for this side
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	cut := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if c, _, err := http.NewResponseController(rw).Hijack(); err == nil {
			c.Close()
		}
	}))
	defer cut.Close()
	half := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(rw, "{}")
	}))
	defer half.Close()
	for _, c := range []struct {
		name, url string
		unknown   bool
	}{
		{"the caller leaves before there is a connection", "https://" + l.Addr().String(), false},
		{"the caller left before", cut.URL, false},
		{"private address", "http://10.1.2.3/submit", false},
		{"cut off", cut.URL, true},
		{"its answer is cut", half.URL, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := ctx
			if c.unknown {
				ctx = t.Context()
			}
			o := w.UAgents().Deliver(ctx, hub.Outbound{Message: &parley.Message{Kind: parley.Notice,
				From: "crew/echo", Parts: []parley.Part{parley.Text("hello")},
				Origin: parley.Origin{Received: time.Now()}},
				Recipient: &directory.Entry{}, Identity: parley.Identity{Protocol: "uagents", ID: identity(t).Address(),
					URL: c.url}})
			if o.Err == nil || o.Unknown != c.unknown {
				t.Errorf("%+v", o)
			}
		})
	}
}

func (w *world) submitRegistration(a *uagents.Attestation, want int) {
	w.t.Helper()
	b, err := a.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.http.Post(w.base+"/v1/almanac/agents", "application/json", bytes.NewReader(b))
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		w.t.Errorf("HTTP %d %s, %v; want %d", resp.StatusCode, body, err, want)
	}
}

// TestRegistry: no other client can take an address over. UAG-069, UAG-070.
func TestRegistry(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice, mallory := identity(t), identity(t)
	w.register(alice, "http://127.0.0.1:1/submit")
	t.Run("an older registration", func(t *testing.T) {
		a := uagents.NewRegistration(alice, false, []uagents.Endpoint{{URL: "http://127.0.0.1:2/submit", Weight: 1}},
			[]string{})
		if err := a.Sign(alice, time.Now().Add(-time.Minute)); err != nil {
			t.Fatal(err)
		}
		w.submitRegistration(a, 400)
	})
	t.Run("with another's key", func(t *testing.T) {
		a := uagents.NewRegistration(mallory, false, []uagents.Endpoint{{URL: "http://127.0.0.1:2/submit", Weight: 1}},
			[]string{})
		if err := a.Sign(mallory, time.Now()); err != nil {
			t.Fatal(err)
		}
		a.Identifier = alice.Identifier(false)
		w.submitRegistration(a, 400)
	})
	t.Run("a stand-in's address", func(t *testing.T) {
		address, endpoints, err := uagents.Almanac(w.base).Resolve(t.Context(), w.address("crew/echo"))
		if err != nil || address != w.address("crew/echo") || len(endpoints) != 1 || endpoints[0].URL != w.base+
			"/submit" {
			t.Errorf("%s %v %v", address, endpoints, err)
		}
	})
	t.Run("a name of the directory", func(t *testing.T) {
		address, _, err := uagents.Almanac(w.base).Resolve(t.Context(), "slow")
		if err != nil || address != w.address("slow") {
			t.Errorf("%s %v", address, err)
		}
	})
	t.Run("a name given by the operator replaces the guest", func(t *testing.T) {
		i, err := w.UAgents().Identity(alice.Address(), "")
		if err != nil {
			t.Fatal(err)
		}
		guest := w.nameOf(alice)
		if _, err := w.Hub().Directory().Put(t.Context(), parley.Agent{Name: "alice", Identities: []parley.Identity{i}},
			directory.FromOperator); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.Hub().Directory().Agent(guest); ok || w.nameOf(alice) != "alice" {
			t.Error("the guest is still there")
		}
	})
	t.Run("closed", func(t *testing.T) {
		w := newWorld(t, node.Config{UAgents: node.UAgents{Closed: true}})
		a := uagents.NewRegistration(mallory, false, []uagents.Endpoint{{URL: "http://127.0.0.1:2/submit", Weight: 1}},
			[]string{})
		if err := a.Sign(mallory, time.Now()); err != nil {
			t.Fatal(err)
		}
		w.submitRegistration(a, http.StatusForbidden)
	})
}

// TestMailbox: an envelope waits unchanged, also over a restart. UAG-021, UAG-074,
// UAG-075, UAG-076.
func TestMailbox(t *testing.T) {
	c := node.Config{Data: t.TempDir(), Durability: "disk"}
	w := newWorld(t, c)
	alice, bob := w.newPeer(nil), identity(t)
	w.register(bob, w.base+"/v2/agents/mailbox/submit")
	c.Listen.HTTP = strings.TrimPrefix(w.base, "http://")
	e := w.envelope(alice.Identity, bob.Address(), "", echoModel().Message(EchoRequest{"for bob"}))
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is a repeat
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
	}
	if status, body, _ := w.post(w.envelope(alice.Identity, bob.Address(),
		"", echoModel().Message(EchoRequest{"sync"})), true); status != 200 ||
		!strings.Contains(body, uagents.ErrorMessageDigest) {
		t.Error(status, body)
	}
	name := w.nameOf(bob)
	waitFor(t, func() bool { _, open := w.deliveries(name); return open == 0 })
	w.close()
	w.open(c)
	box := &uagents.MailboxClient{Identity: bob, URL: w.base, HTTP: w.http}
	items, err := box.List(t.Context())
	if err != nil || len(items) != 1 {
		t.Fatalf("%v, %v", items, err)
	}
	if got, err := items[0].Envelope.Encode(); err != nil || string(got) != string(raw) {
		t.Errorf("%s is not %s, %v", got, raw, err)
	}
	if err := items[0].Envelope.VerifySignature(); err != nil {
		t.Error(err)
	}
	if err := box.Delete(t.Context(), items[0].UUID); err != nil {
		t.Fatal(err)
	}
	if items, err := box.List(t.Context()); err != nil || len(items) != 0 {
		t.Errorf("%v, %v", items, err)
	}
	mallory := &uagents.MailboxClient{Identity: identity(t), URL: w.base, HTTP: w.http}
	if items, err := mallory.List(t.Context()); err != nil || len(items) != 0 {
		t.Errorf("%v, %v", items, err)
	}
}

// deliveries counts dead letters and open deliveries to an agent.
func (w *world) deliveries(name string) (dead, open int) {
	for _, d := range w.Hub().Journal().Deliveries(journalFilter(name)) {
		if d.State == parley.Dead {
			dead++
		} else {
			open++
		}
	}
	return dead, open
}

// TestRestart: an answer after a restart finds its request, and a second answer does
// not count.
func TestRestart(t *testing.T) {
	c := node.Config{Data: t.TempDir(), Durability: "disk"}
	w := newWorld(t, c)
	bob := w.newPeer(nil)
	c.Listen.HTTP = strings.TrimPrefix(w.base, "http://")
	name := w.nameOf(bob.Identity)
	id := w.send("crew/echo", name, parley.Text("are you there?"))
	q := bob.next(t)
	waitFor(t, func() bool {
		d, ok := w.Hub().Journal().Delivery(id, name)
		return ok && d.State == parley.Delivered
	})
	address := w.address("crew/echo")
	w.close()
	w.open(c)
	if w.address("crew/echo") != address {
		t.Fatal("the stand-in has another address now")
	}
	answer := w.envelope(bob.Identity, q.Sender, q.Session, uagents.NewChat(time.Now(), uagents.Text("yes")).Message())
	for range 2 {
		if status, body, _ := w.post(answer, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
	}
	if _, ok := w.Hub().Journal().Delivery(id, name); ok {
		t.Error("the request is not settled")
	}
}

func journalFilter(name string) journal.Filter { return journal.Filter{To: name} }

// send sends a request from the Go API and does not wait for the answer.
func (w *world) send(from, to string, parts ...parley.Part) parley.ID {
	w.t.Helper()
	m, err := w.Hub().Accept(w.t.Context(), hub.Submission{Scope: "go " + from,
		Message: &parley.Message{Kind: parley.Request, From: from, To: to, Parts: parts,
			Origin: parley.Origin{Protocol: "go", Peer: from, Verdict: parley.Verdict{Assurance: parley.Session}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return m.ID
}
