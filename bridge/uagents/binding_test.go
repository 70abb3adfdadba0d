package uagents_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/bech32"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait bounds a wait; no test asserts how long something takes.
const wait = time.Minute

type text struct {
	Text string `json:"text"`
}

// EchoRequest is the class that a Python agent would declare for the skill
// "echo" of crew/echo.
type EchoRequest struct {
	Text string `json:"text"`
}

type world struct {
	*node.Node
	t     *testing.T
	base  string
	calls atomic.Int64
	gate  chan struct{} // closed to end the calls of the skill "slow"
	http  *http.Client
}

func newWorld(t *testing.T, c node.Config) *world {
	t.Helper()
	w := &world{t: t, gate: make(chan struct{}),
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	w.open(c)
	t.Cleanup(w.close)
	return w
}

func (w *world) open(c node.Config) {
	w.t.Helper()
	if c.Durability == "" {
		c.Durability = "memory"
	}
	if c.Listen.HTTP == "" {
		c.Listen = node.Listen{HTTP: "127.0.0.1:0"}
	}
	if c.Network.Allow == nil {
		c.Network.Allow = []string{"loopback"}
	}
	n, err := node.Open(context.Background(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Node = n
	err = n.Handle(parley.Agent{Name: "crew/echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, m *parley.Message, q text) (text,
			error) {
			w.calls.Add(1)
			return q, nil
		}, parley.AsDefault()),
		parley.RawSkill("fail", func(context.Context, *parley.Message,
			parley.Replier) error {
			return fmt.Errorf("secret: /etc/passwd")
		}),
	)
	if err == nil {
		err = n.Handle(parley.Agent{Name: "slow", Exposed: parley.Everywhere},
			parley.Skill("slow", func(ctx context.Context, _ *parley.Message, q text) (text, error) {
				select {
				case <-w.gate:
					return q, nil
				case <-ctx.Done():
					return q, ctx.Err()
				}
			}))
	}
	if err == nil {
		err = n.Handle(parley.Agent{Name: "hidden"}, parley.RawSkill("x",
			func(context.Context, *parley.Message, parley.Replier) error { return nil }))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.base = n.Addresses().Local
}

func (w *world) close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := w.Close(ctx); err != nil {
		w.t.Error(err)
	}
}

func (w *world) address(name string) string {
	w.t.Helper()
	e, ok := w.Hub().Directory().Agent(name)
	if !ok {
		w.t.Fatalf("no agent %q", name)
	}
	a := w.UAgents().Address(e)
	if a == "" {
		w.t.Fatalf("agent %q has no address", name)
	}
	return a
}

func identity(t *testing.T) *uagents.Identity {
	t.Helper()
	id, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// client sends as id to agents in the hub's registry.
func (w *world) client(id *uagents.Identity) *uagents.Client {
	return &uagents.Client{Identity: id, HTTP: w.http, Resolver: uagents.Almanac(w.base)}
}

func (w *world) envelope(id *uagents.Identity, target, session string, m uagents.Message) *uagents.Envelope {
	w.t.Helper()
	e, err := uagents.NewEnvelope(id.Address(), target, session, m, time.Now().Add(time.Minute))
	if err == nil {
		err = e.Sign(id)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) post(e *uagents.Envelope, sync bool) (int, string, http.Header) {
	w.t.Helper()
	b, err := e.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := http.NewRequest(http.MethodPost, w.base+"/submit", bytes.NewReader(b))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if sync {
		r.Header.Set("X-Uagents-Connection", "sync")
	}
	resp, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

// peer is a uAgent on its own socket.
type peer struct {
	*uagents.Identity
	got chan *uagents.Request
	url string
}

// newPeer serves an agent; handle may be nil.
func (w *world) newPeer(handle uagents.Handler) *peer {
	w.t.Helper()
	p := &peer{Identity: identity(w.t), got: make(chan *uagents.Request, 2048)}
	s := &uagents.Server{MaxQueued: 4096, Resolve: uagents.Serve(&uagents.Agent{Address: p.Address(),
		Identity: p.Identity, Unsigned: func(string) bool { return true },
		Handler: func(ctx context.Context, r *uagents.Request) (uagents.Response, error) {
			p.got <- r
			if handle == nil {
				return uagents.Response{}, nil
			}
			return handle(ctx, r)
		}}), Client: w.client(p.Identity)}
	h := httptest.NewServer(s)
	w.t.Cleanup(func() {
		h.Close()
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := s.Shutdown(ctx); err != nil {
			w.t.Error(err)
		}
	})
	p.url = h.URL + "/submit"
	w.register(p.Identity, p.url)
	return p
}

func (w *world) register(id *uagents.Identity, endpoints ...string) {
	w.t.Helper()
	var list []uagents.Endpoint
	for _, e := range endpoints {
		list = append(list, uagents.Endpoint{URL: e, Weight: 1})
	}
	a := uagents.NewRegistration(id, false, list, []string{uagents.ChatProtocolDigest})
	if err := a.Sign(id, time.Now()); err != nil {
		w.t.Fatal(err)
	}
	b, err := a.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.http.Post(w.base+"/v1/almanac/agents", "application/json", bytes.NewReader(b))
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		w.t.Fatalf("registration: HTTP %d", resp.StatusCode)
	}
}

func (p *peer) next(t *testing.T) *uagents.Request {
	t.Helper()
	select {
	case r := <-p.got:
		return r
	case <-time.After(wait):
		t.Fatal("nothing arrived")
		return nil
	}
}

// ask sends a request from the Go API through the hub.
func (w *world) ask(from, to, skill string, parts ...parley.Part) (*parley.Message, error) {
	return w.Hub().Ask(w.t.Context(), hub.Submission{Scope: "go " + from,
		Message: &parley.Message{Kind: parley.Request, From: from, To: to, Skill: skill, Parts: parts,
			Origin: parley.Origin{Protocol: "go", Peer: from, Verdict: parley.Verdict{Assurance: parley.Session}}}})
}

func (w *world) nameOf(id *uagents.Identity) string {
	w.t.Helper()
	e, ok := w.Hub().Directory().Lookup("uagents", id.Address())
	if !ok {
		w.t.Fatal("not in the directory")
	}
	return e.Name
}

func echoModel() *uagents.Model { return uagents.ModelOf[EchoRequest]() }

func chatText(t *testing.T, r *uagents.Request) *uagents.ChatMessage {
	t.Helper()
	m, err := uagents.DecodeChatMessage(r.Content.Payload)
	if err != nil {
		t.Fatalf("%s: %v", r.Content.Payload, err)
	}
	return m
}

func TestIntoGo(t *testing.T) {
	w := newWorld(t, node.Config{})
	echo := w.address("crew/echo")
	alice := identity(t)
	t.Run("sync", func(t *testing.T) {
		r, err := w.client(alice).Ask(t.Context(), echo, echoModel().Message(EchoRequest{"hello"}))
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Payload) != `{"text": "hello"}` || r.Assurance != uagents.Signed {
			t.Errorf("%s, %s", r.Payload, r.Assurance)
		}
	})
	t.Run("UAG-036 a repeated envelope has one effect and is answered 200", func(t *testing.T) {
		before := w.calls.Load()
		e := w.envelope(alice, echo, "", echoModel().Message(EchoRequest{"once"}))
		for range 3 {
			if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
				t.Fatal(status, body)
			}
		}
		if r, err := w.client(alice).Ask(t.Context(), echo, echoModel().Message(EchoRequest{"after"})); err != nil ||
			r == nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return w.calls.Load() >= before+2 })
		if got := w.calls.Load() - before; got != 2 {
			t.Errorf("%d calls", got)
		}
	})
	t.Run("UAG-032 a negated signature or another version makes no new envelope", func(t *testing.T) {
		e := w.envelope(alice, echo, "", echoModel().Message(EchoRequest{"twice"}))
		before := w.calls.Load()
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
		negated, newer := *e, *e
		sig := negate(t, *e.Signature)
		negated.Signature, newer.Version = &sig, "2" // other texts, the same digest
		if err := negated.VerifySignature(); err != nil {
			t.Fatal(err)
		}
		for _, v := range []*uagents.Envelope{&negated, &newer} {
			if status, body, _ := w.post(v, false); status != 200 || body != "{}" {
				t.Fatal(status, body)
			}
			if status, body, _ := w.post(v, true); status != 200 ||
				!strings.Contains(body, uagents.ErrorMessageDigest) {
				t.Fatal(status, body)
			}
		}
		if _, err := w.client(alice).Ask(t.Context(), echo, echoModel().Message(EchoRequest{"after"})); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return w.calls.Load() >= before+2 })
		if n := w.calls.Load() - before; n != 2 {
			t.Errorf("%d calls, want one for the envelope and one for the next", n)
		}
	})
	t.Run("UAG-066 a message that does not fit is refused", func(t *testing.T) {
		_, err := w.client(alice).Ask(t.Context(), echo, uagents.Message{Schema: echoModel().Digest(),
			Payload: []byte(`{"text":1}`)})
		if e := uagents.AsError(err); e.Code != "peer" || !strings.Contains(e.Text, "echo") {
			t.Error(err)
		}
		e := w.envelope(alice, echo, "", uagents.Message{Schema: echoModel().Digest(), Payload: []byte(``)})
		if status, body, h := w.post(e, false); status != 400 || h.Get(uagents.RefHeader) == "" {
			t.Error(status, body)
		}
	})
	t.Run("an unknown agent", func(t *testing.T) {
		e := w.envelope(alice, identity(t).Address(), "", echoModel().Message(EchoRequest{"x"}))
		if status, body, _ := w.post(e, false); status != 400 || !strings.Contains(body, "unable to route envelope") {
			t.Error(status, body)
		}
	})
}

// negate gives the other valid signature of the same digest: r and n-s.
func negate(t *testing.T, sig string) string {
	t.Helper()
	hrp, b, err := bech32.DecodeNoLimit(sig)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)
	n.Sub(n, new(big.Int).SetBytes(b[32:])).FillBytes(b[32:])
	out, err := bech32.Encode(hrp, b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), wait)
	defer stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not so after %s", wait)
		}
	}
}
