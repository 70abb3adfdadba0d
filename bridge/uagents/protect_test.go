package uagents_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// TestPoisonIsNotForwarded: the hub refuses a message that would stop the message loop of
// a reference agent, from any sender: a payload that does not fit a model of the registry,
// a missing payload, and a chat message with unknown keys. UAG-066, hole 1.
func TestPoisonIsNotForwarded(t *testing.T) {
	w := newWorld(t, node.Config{Policy: node.Policy{Assurance: "unsigned"}})
	bob, alice := w.newPeer(nil), identity(t)
	p := &uagents.Protocol{Name: "echo", Version: "1.0.0",
		Interactions: []uagents.Interaction{{Request: uagents.ModelOf[Known]()}}}
	m, err := p.Manifest("")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if status, body := w.postRaw("POST", "/v1/almanac/manifests", "application/json", string(manifest)); status != 200 {
		t.Fatal(status, body)
	}
	user, err := uagents.NewUser()
	if err != nil {
		t.Fatal(err)
	}
	known, chat := uagents.ModelOf[Known]().Digest(), uagents.ChatMessageDigest
	for name, x := range map[string]struct{ schema, payload string }{
		"not of the model":     {known, `{"count":"many"}`},
		"a field is missing":   {known, `{}`},
		"no object":            {known, `[]`},
		"no JSON":              {known, `{`},
		"empty, of a model":    {known, ``},
		"empty, of an unknown": {"model:" + strings.Repeat("0", 64), ``},
		"chat, an unknown key": {chat,
			`{"timestamp":"2026-01-02T03:04:05+00:00","msg_id":"0f8fad5b-d9cb-469f-a165-70867728950e","content":[],"more":1}`},
		"item, an unknown key": {chat,
			`{"timestamp":"2026-01-02T03:04:05+00:00","msg_id":"0f8fad5b-d9cb-469f-a165-70867728950e","content":[{"type":"text","text":"x","more":1}]}`},
		"chat, an unknown type": {chat,
			`{"timestamp":"2026-01-02T03:04:05+00:00","msg_id":"0f8fad5b-d9cb-469f-a165-70867728950e","content":[{"type":"poem"}]}`},
		"error, of no text": {uagents.ErrorMessageDigest, `{"error":{}}`},
	} {
		for _, signed := range []bool{true, false} {
			for _, null := range []bool{false, true} {
				e := w.envelope(alice, bob.Address(), "", uagents.Message{Schema: x.schema, Payload: []byte(x.payload)})
				if null {
					e.Payload = nil
				}
				if e.Sender = user; signed {
					e.Sender = alice.Address()
					err = e.Sign(alice)
				} else {
					e.Signature = nil
				}
				if err != nil {
					t.Fatal(err)
				}
				if status, body, _ := w.post(e, false); status != 400 {
					t.Errorf("%s, signed: %v, null: %v: HTTP %d %s", name, signed, null, status, body)
				}
			}
		}
	}
	// The first message that reaches bob is the first that fits.
	if status, body, _ := w.post(w.envelope(alice, bob.Address(), "", uagents.ModelOf[Known]().Message(Known{7})),
		false); status != 200 {
		t.Fatal(status, body)
	}
	if r := bob.next(t); string(r.Content.Payload) != `{"count": 7}` {
		t.Errorf("%s reached the agent", r.Raw())
	}
}

// Known is a model of a manifest in the registry.
type Known struct {
	Count int `json:"count"`
}

// TestFailuresAreErrorMessages: the sender of an async request gets a failure as an
// ErrorMessage in its session, signed by the stand-in, without private details; and an
// ErrorMessage gets no answer.
func TestFailuresAreErrorMessages(t *testing.T) {
	w := newWorld(t, node.Config{})
	if err := w.Handle(parley.Agent{Name: "broken", Exposed: parley.Everywhere},
		parley.RawSkill("break", func(context.Context, *parley.Message,
			parley.Replier) error {
			return errors.New("secret: /etc/passwd")
		}, parley.AsDefault())); err != nil {
		t.Fatal(err)
	}
	alice := w.newPeer(nil)
	waitFor(t, func() bool {
		e, ok := w.Hub().Directory().Agent("broken")
		return ok && w.UAgents().Address(e) != ""
	})
	e := w.envelope(alice.Identity, w.address("broken"), "", echoModel().Message(EchoRequest{"go on"}))
	if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
		t.Fatal(status, body)
	}
	r := alice.next(t)
	text, bad := r.Content.IsError()
	if !bad || text == "" || strings.Contains(text, "passwd") || r.Session != e.Session ||
		r.Sender != w.address("broken") || r.Verdict.Assurance != uagents.Signed {
		t.Errorf("%q, %s", text, r.Raw())
	}
}

// TestUnsignedIsMarked: a message of an unsigned sender is recorded as unsigned, under a
// name that no agent has (hole 4).
func TestUnsignedIsMarked(t *testing.T) {
	w := newWorld(t, node.Config{Policy: node.Policy{Assurance: "unsigned"}})
	user, err := uagents.NewUser()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan *parley.Message, 64)
	defer w.Hub().Journal().Watch(func(r *journal.Record) {
		if m := r.Message; m != nil && m.Origin.Peer == user {
			seen <- m
		}
	})()
	c := &uagents.Client{User: user, HTTP: w.http, Resolver: uagents.Almanac(w.base)}
	if _, err := c.Ask(t.Context(), w.address("crew/echo"), echoModel().Message(EchoRequest{"x"})); err != nil {
		t.Fatal(err)
	}
	m := <-seen
	if _, known := w.Hub().Directory().Agent(m.From); known || m.Origin.Verdict.Assurance != parley.Unsigned ||
		!strings.HasPrefix(m.From, "guest/uagents/user1") {
		t.Errorf("%+v", m)
	}
}

// testClock is a clock that only the test moves.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (h *testClock) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *testClock) move(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// TestMailboxItems: the hub's own mailbox keeps the order, gives the times of arrival and
// expiry, gives and deletes single items, refuses forged envelopes, and drops expired
// items. UAG-074, UAG-075.
func TestMailboxItems(t *testing.T) {
	h := &testClock{now: time.Now().UTC().Truncate(time.Millisecond)}
	w := newWorld(t, node.Config{Now: h.Now})
	alice, bob := identity(t), identity(t)
	w.register(bob, w.base+"/v2/agents/mailbox/submit")
	token, err := bob.NewToken(h.Now(), uagents.TokenLifetime)
	if err != nil {
		t.Fatal(err)
	}
	call := func(method, path, authorization string) (int, []byte) {
		t.Helper()
		r, err := http.NewRequest(method, w.base+"/v2/agents/"+bob.Address()+"/mailbox"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", authorization)
		resp, err := w.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, b
	}
	type item struct {
		UUID     string          `json:"uuid"`
		Envelope json.RawMessage `json:"envelope"`
		Received time.Time       `json:"received_at"`
		Expires  time.Time       `json:"expires_at"`
	}
	list := func(query string) (out []item) {
		t.Helper()
		status, b := call("GET", query, "Agent "+token)
		if err := json.Unmarshal(b, &out); err != nil || status != 200 {
			t.Fatal(status, string(b), err)
		}
		return out
	}
	box := "/v2/agents/mailbox/submit"
	submit := func(e *uagents.Envelope) int {
		t.Helper()
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		status, _ := w.postRaw("POST", box, "application/json", string(b))
		return status
	}
	var sent []*uagents.Envelope
	for i := range 3 {
		e := w.envelope(alice, bob.Address(), "", echoModel().Message(EchoRequest{fmt.Sprint(i)}))
		if submit(e) != 200 {
			t.Fatal("not taken")
		}
		sent = append(sent, e)
		waitFor(t, func() bool { return len(list("")) == i+1 })
	}
	forged := w.envelope(alice, bob.Address(), "", echoModel().Message(EchoRequest{"forged"}))
	forged.Session = uagents.NewSession()
	if submit(forged) != 400 {
		t.Error("a forged envelope was accepted")
	}
	items := list("?limit=100&offset=0")
	if len(items) != 3 {
		t.Fatalf("%d items", len(items))
	}
	for i, x := range items {
		e, err := uagents.Decode(x.Envelope)
		if err != nil || e.Session != sent[i].Session || e.VerifySignature() != nil {
			t.Errorf("item %d is not the envelope as it was sent: %v", i, err)
		}
		until, _ := sent[i].ExpiresAt()
		if x.UUID == "" || x.Received.IsZero() || !x.Expires.Equal(until) {
			t.Errorf("%+v, expires %v", x, until)
		}
	}
	if one := list("?limit=1&offset=1"); len(one) != 1 || one[0].UUID != items[1].UUID {
		t.Errorf("%+v", one)
	}
	other, err := alice.NewToken(h.Now(), uagents.TokenLifetime)
	if err != nil {
		t.Fatal(err)
	}
	first := "/" + items[0].UUID
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", first, token, 200}, {"DELETE", first, other, 403}, {"DELETE", first, token, 200},
		{"DELETE", first, token, 404}, {"GET", first, token, 404},
		{"DELETE", "/" + uagents.NewSession(), token, 404},
	} {
		if status, b := call(c.method, c.path, "Agent "+c.token); status != c.want {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, status, b, c.want)
		}
	}
	if left := list(""); len(left) != 2 || left[0].UUID != items[1].UUID {
		t.Errorf("%+v", left)
	}
	h.move(61 * time.Second) // past the expiry of the envelopes
	if left := list(""); len(left) != 0 {
		t.Errorf("%d expired items are listed", len(left))
	}
	if status, _ := call("GET", "/"+items[1].UUID, "Agent "+token); status != 404 {
		t.Errorf("an expired item: %d", status)
	}
}

// TestProbes: a reference agent probes an endpoint before it sends, and reads the agent's
// info. UAG-047, UAG-058.
func TestProbes(t *testing.T) {
	w := newWorld(t, node.Config{})
	ask := func(method, path, address string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(method, w.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", "127.0.0.1")
		if address != "" {
			r.Header.Set("X-Uagents-Address", address)
		}
		resp, err := w.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(b)
	}
	echo := w.address("crew/echo")
	for address, want := range map[string][2]string{"": {"indeterminate", ""}, echo: {"ready", "5"},
		identity(t).Address(): {"not-ready", ""}} {
		if resp, _ := ask("HEAD", "/submit", address); resp.StatusCode != 200 ||
			resp.Header.Get("X-Uagents-Status") != want[0] ||
			resp.Header.Get("X-Uagents-Response-Time-Hint") != want[1] {
			t.Errorf("%q: %d %v, want %v", address, resp.StatusCode, resp.Header, want)
		}
	}
	resp, body := ask("GET", "/agent_info", echo)
	if resp.StatusCode != 200 || !strings.Contains(body, `"address": "`+echo+`"`) ||
		!strings.Contains(body, w.base+"/submit") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, body := ask("GET", "/agent_info", identity(t).Address()); resp.StatusCode != 404 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	for _, path := range []string{"/messages", "/connect", "/disconnect"} { // of the local inspector, which a hub does not have
		if resp, body := ask("GET", path, echo); resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

// TestPrivateEndpoints: an agent's own registration does not make the hub call private
// addresses (hole 12).
func TestPrivateEndpoints(t *testing.T) {
	var hits atomic.Int64
	trap := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer trap.Close()
	w := newWorld(t, node.Config{Network: node.Network{Allow: []string{}}})
	alice := identity(t)
	w.register(alice, trap.URL+"/submit", "http://169.254.169.254/submit")
	if status, body, _ := w.post(w.envelope(alice, w.address("crew/echo"),
		"", echoModel().Message(EchoRequest{"answer me"})), false); status != 200 {
		t.Fatal(status, body)
	}
	name := w.nameOf(alice)
	waitFor(t, func() bool {
		dead, open := w.deliveries(name)
		if open == 0 {
			return dead > 0
		}
		for _, d := range w.Hub().Journal().Deliveries(journalFilter(name)) {
			if d.Attempt > 0 && d.State != parley.Delivering {
				return true
			}
		}
		return false
	})
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests to a private address", n)
	}
}
