package asp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A world is a server with a clock that only tests move, and agents.
type world struct {
	*Server
	t     testing.TB
	http  *httptest.Server
	clock *fakeClock
	alice *Client
	bob   *Client
	carol *Client
}

type fakeClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

const (
	aliceID = "agent://acme.example/services/procurement"
	bobID   = "agent://widgets.example/services/sales"
	carolID = "agent://verify.example/compliance/auditor"
	eveID   = "agent://evil.example/ops/mallory"
)

// testIdentity makes an identity that is the same in each run.
func testIdentity(t testing.TB, agent, org string) *Identity {
	t.Helper()
	seed, scalar := sha256.Sum256([]byte("seed "+agent+org)), sha256.Sum256([]byte("scalar "+agent+org))
	id, err := IdentityFromSeed(agent, org, seed[:], scalar[:])
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newWorld(t testing.TB, change ...func(*Server)) *world {
	t.Helper()
	w := &world{t: t, clock: &fakeClock{t: time.Date(2026, 3, 7, 14, 30, 0, 0, time.UTC)}}
	w.Server = &Server{Registration: RegistrationOpen, Identity: testIdentity(t,
		"agent://hub.example/ops/hub", "org_hub")}
	for _, f := range change {
		f(w.Server)
	}
	w.Server.Now = w.clock.now
	w.Server.AuthWait = cmp.Or(w.Server.AuthWait, time.Hour) // longer than a slow machine needs
	w.http = httptest.NewServer(w.Server)
	t.Cleanup(w.http.Close)
	w.alice = w.agent(aliceID, "org_acme")
	w.bob = w.agent(bobID, "org_widgets")
	w.carol = w.agent(carolID, "org_verify")
	return w
}

func (w *world) client(id *Identity) *Client {
	return &Client{Server: w.http.URL, Identity: id, Now: w.clock.now, HTTP: w.http.Client()}
}

func (w *world) agent(id, org string) *Client {
	w.t.Helper()
	c := w.client(testIdentity(w.t, id, org))
	card := c.Identity.Card()
	card.Capabilities = []string{"negotiate.compute"}
	if err := c.Register(context.Background(), card, nil); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// draft makes a message that would be accepted next.
func (w *world) draft(session string, c *Client, p Performative, body any) Draft {
	w.t.Helper()
	d := Draft{SessionID: session, Performative: p, Body: body, Time: w.clock.now()}
	if l, err := w.Session(context.Background(), session, ""); err == nil {
		d.PreviousHash, d.Format = l.Head.Hash, l.Format
		if m := l.participant(c.Identity.ID()); m != nil {
			d.SequenceNumber = m.Next
		}
	}
	return d
}

func (w *world) sign(c *Client, d Draft) *Envelope {
	w.t.Helper()
	e, err := d.Sign(c.Identity)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) ingest(e *Envelope) (*Receipt, error) {
	return w.Ingest(context.Background(), e.Raw(), Transport{Format: e.Format(), Agent: e.Sender.AgentID}, e.SessionID)
}

// say ingests the next message and fails on a refusal.
func (w *world) say(session string, c *Client, p Performative, body any) *Envelope {
	w.t.Helper()
	e := w.sign(c, w.draft(session, c, p, body))
	if _, err := w.ingest(e); err != nil {
		w.t.Fatalf("%s by %s: %v", p, c.Identity.ID(), err)
	}
	return e
}

// refuse ingests the next message and expects the refusal code.
func (w *world) refuse(code, session string, c *Client, p Performative, body any) {
	w.t.Helper()
	before := w.head(session)
	_, err := w.ingest(w.sign(c, w.draft(session, c, p, body)))
	if got := codeOf(err); got != code {
		w.t.Errorf("%s by %s: got %v, want %s", p, c.Identity.ID(), err, code)
	}
	if after := w.head(session); after != before {
		w.t.Errorf("a refused %s moved the head", p)
	}
}

func (w *world) head(session string) Head {
	l, err := w.Session(context.Background(), session, "")
	if err != nil {
		return Head{}
	}
	return l.Head
}

func (w *world) state(session string) State {
	w.t.Helper()
	l, err := w.Session(context.Background(), session, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return l.State
}

func invitation(id string) Proposal {
	return Proposal{ProposalID: id, Type: "session-invitation", Subject: "widgets", Terms: map[string]any{}}
}

// invite opens a session of alice with bob.
func (w *world) invite() string {
	w.t.Helper()
	id, err := NewSessionID()
	if err != nil {
		w.t.Fatal(err)
	}
	d := w.draft(id, w.alice, Propose, invitation("inv"))
	d.Recipient = &Party{bobID, "org_widgets"}
	if _, err := w.ingest(w.sign(w.alice, d)); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// conversing opens a session and brings it to CONVERSING.
func (w *world) conversing() string {
	w.t.Helper()
	id := w.invite()
	w.say(id, w.bob, Accept, Answer{ReferenceID: "inv"})
	w.say(id, w.alice, Observe, struct{}{})
	return id
}

// executing brings a session to EXECUTING with commitment "c1" of bob.
func (w *world) executing() string {
	w.t.Helper()
	id := w.conversing()
	w.say(id, w.bob, Commit, Promise{CommitmentID: "c1", Terms: Terms{Obligations: []Obligation{}},
		Deadline: "2026-03-08T00:00:00.000Z"})
	w.say(id, w.alice, Accept, Answer{ReferenceID: "c1"})
	return id
}

// request sends one HTTP request as c, with proofs.
func (w *world) request(c *Client, method, path, contentType string, body []byte,
	change ...func(*http.Request)) (*http.Response, []byte) {
	w.t.Helper()
	token, err := c.access(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequest(method, w.http.URL+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	htu, _, _ := strings.Cut(w.http.URL+path, "?")
	proof, err := c.Identity.HTTPProof(method, htu, token, w.clock.now())
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "DPoP "+token)
	req.Header.Set("DPoP", proof)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for _, f := range change {
		f(req)
	}
	return w.do(req)
}

func (w *world) do(req *http.Request) (*http.Response, []byte) {
	w.t.Helper()
	resp, err := w.http.Client().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, b
}

// reason is details.reason of an error answer.
func reason(t testing.TB, b []byte) string {
	t.Helper()
	var v struct {
		Error struct {
			Code    string         `json:"code"`
			Message string         `json:"message"`
			Details map[string]any `json:"details"`
		} `json:"error"`
	}
	if err := jsonx.Decode(b, &v); err != nil {
		t.Fatalf("not an error object: %s", b)
	}
	if v.Error.Code == "" || v.Error.Message == "" {
		t.Errorf("error object lacks members: %s", b)
	}
	r, _ := v.Error.Details["reason"].(string)
	return r
}

func isCode(err error, code string) bool { return errors.Is(err, &Error{Code: code}) }
