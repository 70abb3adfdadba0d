package asp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/parley-hub/parley/asp"
	bridge "github.com/parley-hub/parley/bridge/asp"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// A guestHub is a hub with ASP only, an open registry, and a small budget for guests.
// Each client has its own source.
type guestHub struct {
	t       *testing.T
	journal *journal.Journal
	hub     *hub.Hub
	asp     *bridge.Binding
	url     string
	guests  *policy.Guests
	close   func()

	mu      sync.Mutex
	now     time.Time
	callers map[string]*policy.Caller
}

func newGuestHub(t *testing.T, g policy.GuestConfig, change ...func(*bridge.Config)) *guestHub {
	t.Helper()
	d := &guestHub{t: t, now: time.Now(), callers: map[string]*policy.Caller{}}
	var err error
	d.journal, err = journal.Open(t.Context(), journal.Config{Store: testjournal.Memory(t), Node: "here"})
	if err != nil {
		t.Fatal(err)
	}
	d.open(g, change...)
	t.Cleanup(func() {
		d.close()
		if err := d.journal.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *guestHub) open(g policy.GuestConfig, change ...func(*bridge.Config)) {
	d.t.Helper()
	g.Now = d.clock
	d.guests = policy.NewGuests(g)
	must := func(err error) {
		d.t.Helper()
		if err != nil {
			d.t.Fatal(err)
		}
	}
	ctx := context.Background()
	dir, err := directory.Open(ctx, directory.Options{})
	must(err)
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session}})
	must(err)
	d.hub, err = hub.New(hub.Config{ID: "here", Secret: bytes.Repeat([]byte("s"), 32), Journal: d.journal,
		Directory: dir,
		Policy:    p, Guests: d.guests})
	must(err)
	keys, err := keyring.Open(keyring.Options{})
	must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	d.url = "http://" + l.Addr().String()
	c := bridge.Config{Hub: d.hub, Keys: keys, Journal: d.journal, TokenKey: bytes.Repeat([]byte("k"), 32),
		PublicURL: d.url, Root: "parley", Open: true, Now: d.clock}
	for _, f := range change {
		f(&c)
	}
	d.asp, err = bridge.New(c)
	must(err)
	for _, name := range []string{"parley", "echo"} {
		echo := func(context.Context, *parley.Message, parley.Replier) error { return nil }
		must(d.hub.Handle(parley.Agent{Name: name, Exposed: parley.Everywhere,
			Skills: []parley.SkillSpec{parley.RawSkill("echo", echo, parley.AsDefault())}}))
	}
	must(d.hub.Bind(d.asp))
	must(d.asp.Start(ctx))
	d.hub.Start()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.asp.ServeHTTP(w, r.WithContext(policy.WithCaller(r.Context(), d.caller(r.Header.Get("X-Source")))))
	})}
	go func() { _ = server.Serve(l) }()
	d.close = func() {
		d.asp.EndStreams()
		_ = server.Close()
		if err := errors.Join(d.hub.Close(ctx), d.asp.Close()); err != nil {
			d.t.Error(err)
		}
	}
}

func (d *guestHub) clock() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

func (d *guestHub) wait(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = d.now.Add(by)
}

// caller is the peer of the connections of one source.
func (d *guestHub) caller(source string) *policy.Caller {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.callers[source]
	if c == nil {
		c = policy.NewCaller(source, nil)
		d.callers[source] = c
	}
	return c
}

type from struct {
	source string
	next   http.RoundTripper
}

func (f from) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Source", f.source)
	return f.next.RoundTrip(r)
}

// agent makes an unregistered agent; its name is its source, too.
func (d *guestHub) agent(name string) *asp.Client {
	d.t.Helper()
	id, err := asp.GenerateIdentity("agent://example.com/test/"+name, "org_"+name)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.client(name, id)
}

func (d *guestHub) client(source string, id *asp.Identity) *asp.Client {
	tr := &http.Transport{}
	d.t.Cleanup(tr.CloseIdleConnections)
	return &asp.Client{Server: d.url, Identity: id, Now: d.clock, HTTP: &http.Client{Transport: from{source, tr}}}
}

func (d *guestHub) register(c *asp.Client) error {
	return c.Register(d.t.Context(), c.Identity.Card(), nil)
}

// enrolled makes an agent that the operator added.
func (d *guestHub) enrolled(name string) *asp.Client {
	d.t.Helper()
	c := d.agent(name)
	card, err := c.Identity.Card().JSON()
	if err != nil {
		d.t.Fatal(err)
	}
	id, err := d.asp.Identity(c.Identity.ID())
	if err != nil {
		d.t.Fatal(err)
	}
	entry := parley.Agent{Name: name, Identities: []parley.Identity{id}}
	if _, err := d.hub.Directory().Put(d.t.Context(), entry, directory.FromCode); err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.asp.Enroll(d.t.Context(), card); err != nil {
		d.t.Fatal(err)
	}
	return c
}

func (d *guestHub) known(c *asp.Client) bool {
	d.t.Helper()
	_, card, err := d.asp.CardAt(d.t.Context(), c.Identity.ID(), time.Now())
	if err != nil {
		d.t.Fatal(err)
	}
	return card != nil
}

func (d *guestHub) listed(c *asp.Client) bool {
	_, ok := d.hub.Directory().Lookup("asp", c.Identity.ID())
	return ok
}

// values counts the values in a bucket of the state.
func (d *guestHub) values(bucket string) (n int) {
	d.t.Helper()
	for _, err := range d.journal.State(bucket).Range(d.t.Context(), "") {
		if err != nil {
			d.t.Fatal(err)
		}
		n++
	}
	return n
}

func isCode(err error, code string) bool {
	var e *asp.Error
	return errors.As(err, &e) && e.Code == code
}

// An agent that registered itself counts as a guest. A guest that was in no session is
// evicted without a trace; the operator's agents do not count.
func TestRegistrationsOfGuestsAreCounted(t *testing.T) {
	d := newGuestHub(t, policy.GuestConfig{Registrations: 4, Share: 1}, func(c *bridge.Config) { c.MaxAgents = 5 })
	anna := d.enrolled("anna")
	var guests []*asp.Client
	for i := range 20 {
		c := d.agent(fmt.Sprint("guest-", i))
		if err := d.register(c); err != nil {
			t.Fatalf("guest %d: %v", i, err)
		}
		guests = append(guests, c)
	}
	if s := d.guests.Stats(); s.Registrations != 4 || s.Evicted != 16 {
		t.Errorf("%d registrations of guests, %d evicted; want 4 and 16", s.Registrations, s.Evicted)
	}
	d.wait(time.Minute)
	d.asp.ForgetEvicted(t.Context())
	if n, all := d.values("asp-agents"), len(d.hub.Directory().All()); n != 7 || all != 7 {
		t.Errorf("%d agents in the state and %d in the directory; want anna, two stand-ins and four guests", n, all)
	}
	if d.known(guests[0]) || d.listed(guests[0]) || !d.known(guests[19]) || !d.listed(guests[19]) {
		t.Error("the oldest guest was not evicted")
	}
	other, err := asp.GenerateIdentity(guests[0].Identity.ID(), "org_other")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.register(d.client("other", other)); err != nil {
		t.Errorf("the id of a forgotten agent: %v", err)
	}
	if !d.known(anna) || !d.listed(anna) {
		t.Error("an enrolled agent was evicted")
	}
	for i := range 2 {
		d.enrolled(fmt.Sprint("berta-", i)) // MaxAgents counts anna, the bertas and the stand-ins
	}
}

// A guest that the operator enrols no longer counts as a guest. After a restart, the
// hub counts the registrations in the journal.
func TestRegistrationThatTheOperatorTakesOver(t *testing.T) {
	d := newGuestHub(t, policy.GuestConfig{Registrations: 4})
	c := d.agent("anna")
	if err := d.register(c); err != nil {
		t.Fatal(err)
	}
	id, err := d.asp.Identity(c.Identity.ID())
	if err != nil {
		t.Fatal(err)
	}
	entry := parley.Agent{Name: "anna", Identities: []parley.Identity{id}}
	if _, err := d.hub.Directory().Put(t.Context(), entry, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	if s := d.guests.Stats(); s.Registrations != 0 {
		t.Errorf("%d registrations of guests, with the only one taken over", s.Registrations)
	}
	if err := d.hub.Directory().Remove(t.Context(), "anna"); err != nil {
		t.Fatal(err)
	}
	if s := d.guests.Stats(); s.Registrations != 1 {
		t.Errorf("%d registrations of guests, with one that the operator removed", s.Registrations)
	}
	d.close()
	d.open(policy.GuestConfig{Registrations: 4})
	if s := d.guests.Stats(); s.Registrations != 1 {
		t.Errorf("%d registrations of guests after a restart", s.Registrations)
	}
}

// A guest in a live session is not evicted. A guest whose sessions are over may be: its
// keys stay known for transcripts, and it can register again with its key.
func TestGuestsInSessions(t *testing.T) {
	d := newGuestHub(t, policy.GuestConfig{Registrations: 2, Share: 1})
	anna := d.enrolled("anna")
	live, past := d.agent("live"), d.agent("past")
	for _, c := range []*asp.Client{live, past} {
		if err := d.register(c); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	s, _ := introduced(t, ctx, anna, live)
	over, _ := introduced(t, ctx, anna, past)
	if err := over.Close(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	var transcript strings.Builder
	if err := d.asp.Server().WriteTranscript(ctx, over.ID(), &transcript); err != nil {
		t.Fatal(err)
	}
	if err := d.register(d.agent("early")); !isCode(err, "rate_limited") {
		t.Errorf("with two guests that were used within the hour: %v", err)
	}
	for range 70 { // sessions in CONVERSING last an hour
		d.wait(time.Minute)
		if _, err := s.Send(ctx, asp.Inform, asp.Information{Topic: "still here"}); err != nil {
			t.Fatal(err)
		}
		d.asp.KeepBusy()
	}
	if err := d.register(d.agent("late")); err != nil {
		t.Fatal(err)
	}
	if !d.listed(live) || d.listed(past) {
		t.Errorf("in the directory: the guest in a session %t, the other one %t", d.listed(live), d.listed(past))
	}
	if !d.known(past) {
		t.Error("the keys of a guest that was in a session are forgotten")
	}
	var again strings.Builder
	err := d.asp.Server().WriteTranscript(ctx, over.ID(), &again)
	if err != nil || len(again.String()) < len(transcript.String()) {
		t.Errorf("the transcript had %d bytes, now %d: %v", len(transcript.String()), len(again.String()), err)
	}
	other, err := asp.GenerateIdentity(past.Identity.ID(), "org_past")
	if err != nil {
		t.Fatal(err)
	}
	d.wait(2 * time.Hour)
	if err := d.register(d.client("other", other)); !isCode(err, "agent_exists") {
		t.Errorf("its id, with another key: %v", err)
	}
	if err := d.register(past); err != nil {
		t.Errorf("its id, with its key: %v", err)
	}
}

// Records that a guest causes are charged to the guests' budget, and so are reads with a
// proof. Enrolled agents are not affected.
func TestProofsOfGuestsNeedBudget(t *testing.T) {
	d := newGuestHub(t, policy.GuestConfig{Disk: 1440 << 10}) // 12 KiB at once
	anna, guest := d.enrolled("anna"), d.agent("guest")
	if err := d.register(guest); err != nil {
		t.Fatal(err)
	}
	token, refused := d.token(guest), 0
	for range 200 {
		if _, err := guest.Discover(t.Context(), "nothing", 0); isCode(err, "rate_limited") {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := d.values("asp-proofs"); n > 40 || refused < 150 {
		t.Errorf("%d proofs in the state, %d of 200 requests refused", n, refused)
	}
	resp, body := d.send(guest, "GET", "/v1/asp/sessions", token, "")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), body)
	}
	for range 200 {
		if _, err := anna.Discover(t.Context(), "nothing", 0); err != nil {
			t.Fatal("an enrolled agent:", err)
		}
	}
}

// token gets an access token.
func (d *guestHub) token(c *asp.Client) string {
	d.t.Helper()
	want := `{"grant_type":"client_credentials","client_id":"` + c.Identity.ID() + `"}`
	resp, body := d.send(c, "POST", "/oauth/token", "", want)
	var t struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(body), &t); err != nil || t.Token == "" {
		d.t.Fatal(resp.Status, body)
	}
	return t.Token
}

// send sends one request with a token and a proof.
func (d *guestHub) send(c *asp.Client, method, path, token, content string) (*http.Response, string) {
	d.t.Helper()
	proof, err := c.Identity.HTTPProof(method, d.url+path, token, d.clock())
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, strings.NewReader(content))
	if err != nil {
		d.t.Fatal(err)
	}
	r.Header.Set("Authorization", "DPoP "+token)
	r.Header.Set("DPoP", proof)
	resp, err := c.HTTP.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp, string(b)
}

// A session that the guests' budget does not allow leaves no trace.
func TestSessionThatIsNotOpened(t *testing.T) {
	d := newGuestHub(t, policy.GuestConfig{Disk: 1440 << 10})
	guest := d.agent("guest")
	if err := d.register(guest); err != nil {
		t.Fatal(err)
	}
	to := d.asp.Address(d.entry("echo"))
	opened := 0
	for range 50 {
		if _, err := guest.Open(t.Context(), asp.Invitation{To: []string{to}}); err == nil {
			opened++
		} else if !isCode(err, "rate_limited") {
			t.Fatal(err)
		}
	}
	if opened == 0 || opened > 5 {
		t.Errorf("%d sessions of 50 were opened with 12 KiB", opened)
	}
	if n := d.values("asp-sessions"); n != opened {
		t.Errorf("%d checkpoints of %d sessions", n, opened)
	}
}

func (d *guestHub) entry(name string) *directory.Entry {
	e, ok := d.hub.Directory().Agent(name)
	if !ok {
		d.t.Fatal(name)
	}
	return e
}

// A connection on which an enrolled agent authenticated is not a guest's. A guest's
// connection stays one, also after the hub makes its own records because of the guest.
func TestConnectionsOfEnrolledAgents(t *testing.T) {
	d := newGuestHub(t, policy.GuestConfig{})
	anna, guest := d.enrolled("anna"), d.agent("guest")
	if err := d.register(guest); err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Discover(t.Context(), "nothing", 0); err != nil {
		t.Fatal(err)
	}
	if !d.caller("anna").Vouched() {
		t.Error("the connection of an enrolled agent that reads is a guest's")
	}
	s, err := guest.Open(t.Context(), asp.Invitation{To: []string{d.asp.Address(d.entry("echo"))}})
	if err != nil {
		t.Fatal(err)
	}
	token := d.token(guest)
	resp, body := d.send(guest, "DELETE", "/v1/asp/sessions/"+s.ID(), token, "")
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%s: %s", resp.Status, body)
	}
	if d.caller("guest").Vouched() {
		t.Error("the guest's connection is no longer a guest's after the hub recorded the end of its session")
	}
	if s, err = guest.Open(t.Context(), asp.Invitation{To: []string{anna.Identity.ID()}}); err != nil {
		t.Fatal(err)
	}
	d.wait(31 * time.Second) // the invitation times out when the guest reads the session
	if resp, body := d.send(guest, "GET", "/v1/asp/sessions/"+s.ID(), token, ""); !strings.Contains(body, `"FAILED"`) {
		t.Fatalf("%s: %s", resp.Status, body)
	}
	if d.caller("guest").Vouched() {
		t.Error("the guest's connection is no longer a guest's after an invitation timed out")
	}
	out := httptest.NewRecorder()
	unknown := policy.WithCaller(t.Context(), d.caller("unknown"))
	d.asp.ServeHTTP(out, httptest.NewRequestWithContext(unknown, "GET", "/v1/asp/sessions", nil))
	if out.Code != http.StatusUnauthorized || d.caller("unknown").Vouched() {
		t.Errorf("a request without a token: %d", out.Code)
	}
}
