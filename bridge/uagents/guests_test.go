package uagents_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/policy"
	"github.com/parley-hub/parley/uagents"
)

// from serves a request of another machine.
func (w *world) from(host, method, path string, body []byte, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(string(body)))
	r.RemoteAddr = host + ":4711"
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.UAgents().ServeHTTP(rec, r)
	return rec
}

// list asks for the mailbox of an agent.
func (w *world) list(host string, id *uagents.Identity) *httptest.ResponseRecorder {
	w.t.Helper()
	token, err := id.NewToken(time.Now(), uagents.TokenLifetime)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.from(host, "GET", "/v2/agents/"+id.Address()+"/mailbox", nil, "Authorization", "Agent "+token)
}

// attest is the body of a registration.
func (w *world) attest(id *uagents.Identity, at time.Time, endpoint string, metadata int, protocols ...string) []byte {
	w.t.Helper()
	if protocols == nil {
		protocols = []string{uagents.ChatProtocolDigest}
	}
	a := uagents.NewRegistration(id, false, []uagents.Endpoint{{URL: endpoint, Weight: 1}}, protocols)
	err := a.SetMetadata([]byte(`{"m":"` + strings.Repeat("m", metadata) + `"}`))
	if err == nil {
		err = a.Sign(id, at)
	}
	b, encodeErr := a.Encode()
	if err != nil || encodeErr != nil {
		w.t.Fatal(err, encodeErr)
	}
	return b
}

func (w *world) enrol(name string, id *uagents.Identity) {
	w.t.Helper()
	i, err := w.UAgents().Identity(id.Address(), "")
	if err == nil {
		a := parley.Agent{Name: name, Identities: []parley.Identity{i}}
		_, err = w.Hub().Directory().Put(w.t.Context(), a, directory.FromOperator)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(p *uagents.Protocol) *uagents.Manifest {
	w.t.Helper()
	m, err := p.Manifest("")
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := m.JSON()
	if err != nil {
		w.t.Fatal(err)
	}
	if rec := w.from("192.0.2.66", "POST", "/v1/almanac/manifests", b); rec.Code != 200 {
		w.t.Fatal(rec.Code, rec.Body)
	}
	return m
}

// TestGuestMailboxes: mailboxes that one source makes for its own keys take no room of
// other agents.
func TestGuestMailboxes(t *testing.T) {
	w := newWorld(t, node.Config{})
	refused := 0
	for range 4100 {
		switch rec := w.list("192.0.2.1", identity(t)); rec.Code {
		case 200:
		case http.StatusTooManyRequests:
			refused++
			if rec.Header().Get("Retry-After") == "" {
				t.Fatalf("%s", rec.Body)
			}
		default:
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
	}
	stats := w.Hub().Guests().Stats()
	if most := stats.Limits.Mailboxes / 4; stats.Mailboxes > most || stats.Evicted == 0 && refused == 0 {
		t.Errorf("%d mailboxes of one source, at most %d; %d were evicted, %d refused",
			stats.Mailboxes, most, stats.Evicted, refused)
	}
	if rec := w.list("192.0.2.2", identity(t)); rec.Code != 200 {
		t.Errorf("a guest of another source: %d %s", rec.Code, rec.Body)
	}
	alice := identity(t)
	w.enrol("alice", alice)
	before := w.Hub().Guests().Stats().Mailboxes
	if rec := w.list("192.0.2.1", alice); rec.Code != 200 {
		t.Errorf("an enrolled agent: %d %s", rec.Code, rec.Body)
	}
	if n := w.Hub().Guests().Stats().Mailboxes; n != before {
		t.Errorf("an enrolled agent's mailbox counts among those of guests: %d, want %d", n, before)
	}
}

// manyProtocols gives as many protocols as a registration may name. They take much memory.
func manyProtocols(i int) (out []string) {
	for j := range 200 {
		out = append(out, fmt.Sprintf("proto:%064x", i*200+j))
	}
	return out
}

// TestGuestRegistrations: the registrations of one source stay within its share, also
// after a restart, and take no room of other agents.
func TestGuestRegistrations(t *testing.T) {
	c := node.Config{Data: t.TempDir(), Durability: "disk"}
	w := newWorld(t, c)
	register := func(host string, id *uagents.Identity, at time.Time) *httptest.ResponseRecorder {
		body := w.attest(id, at, "http://192.0.2.9/submit", 1000, manyProtocols(0)...)
		return w.from(host, "POST", "/v1/almanac/agents", body)
	}
	now := time.Now()
	alice := identity(t)
	w.enrol("alice", alice)
	if rec := register("192.0.2.1", alice, now); rec.Code != 200 {
		t.Fatal(rec.Code, rec.Body)
	}
	for i := 0; ; i++ { // each is looked up, so that none is evicted
		id := identity(t)
		rec := register("192.0.2.1", id, now)
		if rec.Code == http.StatusTooManyRequests {
			break
		}
		if rec.Code != 200 || i == 200 {
			t.Fatal(i, rec.Code, rec.Body)
		}
		if w.from("192.0.2.1", "GET", "/v1/almanac/agents/"+id.Address(), nil).Code != 200 {
			t.Fatal("not registered")
		}
	}
	within := func() policy.GuestStats {
		t.Helper()
		s := w.Hub().Guests().Stats()
		if most := s.Limits.Memory / 4; s.Memory > most || s.Memory < most/2 {
			t.Errorf("guests hold %d bytes, their source's share is %d", s.Memory, most)
		}
		return s
	}
	s := within()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.open(c)
	if again := within(); again.Registrations != s.Registrations {
		t.Errorf("%d registrations, there were %d", again.Registrations, s.Registrations)
	}
	rec := register("192.0.2.1", identity(t), now)
	var v struct{ Detail string }
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil || v.Detail == "" ||
		rec.Code != http.StatusTooManyRequests || rec.Header().Get("Retry-After") == "" {
		t.Errorf("beyond the share: %d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	if rec := register("192.0.2.2", identity(t), now); rec.Code != 200 {
		t.Errorf("a guest of another source: %d %s", rec.Code, rec.Body)
	}
	if rec := w.from("192.0.2.3", "GET", "/v1/almanac/agents/"+alice.Address(), nil); rec.Code != 200 {
		t.Errorf("the enrolled agent is not registered: %d", rec.Code)
	}
	w.enrol("alice", alice) // as the operator's configuration does
	if rec := register("192.0.2.1", alice, now.Add(time.Second)); rec.Code != 200 {
		t.Errorf("an enrolled agent: %d %s", rec.Code, rec.Body)
	}
}

// TestGuestGivesWay: an evicted guest loses its registration, entry and mailbox; an agent
// that was enrolled meanwhile loses nothing.
func TestGuestGivesWay(t *testing.T) {
	w := newWorld(t, node.Config{Guests: node.Guests{Disk: "100GiB"}})
	now := time.Now()
	first, second := identity(t), identity(t)
	for _, id := range []*uagents.Identity{first, second} {
		body := w.attest(id, now, w.base+"/v2/agents/mailbox/submit", 10)
		if rec := w.from("192.0.2.1", "POST", "/v1/almanac/agents", body); rec.Code != 200 {
			t.Fatal(rec.Code, rec.Body)
		}
	}
	if s := w.Hub().Guests().Stats(); s.Registrations != 2 || s.Mailboxes != 2 {
		t.Errorf("%+v", s)
	}
	w.enrol("second", second)
	if s := w.Hub().Guests().Stats(); s.Registrations != 1 || s.Mailboxes != 1 {
		t.Errorf("an enrolled agent is counted: %+v", s)
	}
	if e, ok := w.Hub().Directory().Lookup("uagents", first.Address()); !ok || e.Source != directory.FromGuest {
		t.Fatal("the guest is not in the directory")
	}
	for i := range 250 { // each takes much memory, so that the first is evicted
		body := w.attest(identity(t), now, "http://192.0.2.9/submit", 0, manyProtocols(i)...)
		if rec := w.from(fmt.Sprintf("192.0.2.%d", 10+i/40), "POST", "/v1/almanac/agents", body); rec.Code != 200 {
			t.Fatal(i, rec.Code, rec.Body)
		}
	}
	if rec := w.from("192.0.2.3", "GET", "/v1/almanac/agents/"+first.Address(), nil); rec.Code != 404 {
		t.Errorf("the first guest was not evicted: %d, %+v", rec.Code, w.Hub().Guests().Stats())
	}
	if _, ok := w.Hub().Directory().Lookup("uagents", first.Address()); ok {
		t.Error("the guest is still in the directory")
	}
	e := w.envelope(second, first.Address(), "", echoModel().Message(EchoRequest{"x"}))
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if rec := w.from("192.0.2.3", "POST", "/v2/agents/mailbox/submit", b); rec.Code != 400 {
		t.Errorf("the guest's mailbox: %d %s", rec.Code, rec.Body)
	}
	if rec := w.from("192.0.2.3", "GET", "/v1/almanac/agents/"+second.Address(), nil); rec.Code != 200 {
		t.Errorf("the enrolled agent was evicted: %d", rec.Code)
	}
}

// TestVouched: the connection of an enrolled agent that proved its key is no guest's.
func TestVouched(t *testing.T) {
	w := newWorld(t, node.Config{})
	alice, mallory := identity(t), identity(t)
	w.enrol("alice", alice)
	for _, id := range []*uagents.Identity{mallory, alice} {
		token, err := id.NewToken(time.Now(), uagents.TokenLifetime)
		if err != nil {
			t.Fatal(err)
		}
		chat := uagents.NewChat(time.Now())
		e, err := w.envelope(id, w.address("crew/echo"), "", chat.Acknowledge(time.Now()).Message()).Encode()
		if err != nil {
			t.Fatal(err)
		}
		box := "/v2/agents/" + id.Address() + "/mailbox"
		for _, x := range []struct {
			method, path string
			body         []byte
			want         int
		}{
			{"POST", "/v1/almanac/agents", w.attest(id, time.Now(), "http://192.0.2.9/submit", 0), 200},
			{"GET", box, nil, 200},
			{"GET", box + "/" + uagents.NewSession(), nil, 404},
			{"DELETE", box + "/" + uagents.NewSession(), nil, 404},
			{"POST", "/submit", e, 200},
		} {
			caller := policy.NewCaller("192.0.2.1", nil)
			r := httptest.NewRequest(x.method, x.path, strings.NewReader(string(x.body)))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Agent "+token)
			rec := httptest.NewRecorder()
			w.UAgents().ServeHTTP(rec, r.WithContext(policy.WithCaller(r.Context(), caller)))
			if rec.Code != x.want || caller.Vouched() != (id == alice) {
				t.Errorf("%s %s, enrolled: %v: %d %s, vouched: %v",
					x.method, x.path, id == alice, rec.Code, rec.Body, caller.Vouched())
			}
		}
	}
}

// diskUse is the size of all files of a directory.
func diskUse(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRefusedGuestsLeaveLittle: the content of a guest's refused envelope is not
// recorded, whether the hub or the protocol refused it.
func TestRefusedGuestsLeaveLittle(t *testing.T) {
	c := node.Config{Data: t.TempDir(), Durability: "disk"}
	w := newWorld(t, c)
	mallory, echo := identity(t), w.address("crew/echo")
	user, err := uagents.NewUser()
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 500<<10)
	before := diskUse(t, c.Data)
	for i := range 9 {
		text := `{"text":1,"more":"` + long + `"}` // fits no skill: the hub refuses
		if i%3 == 1 {
			text = `{` + long // no JSON
		}
		e := w.envelope(mallory, echo, "", uagents.Message{Schema: echoModel().Digest(), Payload: []byte(text)})
		if i%3 == 2 {
			e.Sender, e.Signature = user, nil
		}
		if status, body, _ := w.post(e, false); status != 400 && status != http.StatusTooManyRequests {
			t.Fatal(i, status, body)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if grown := diskUse(t, c.Data) - before; grown > 600<<10 {
		t.Errorf("9 refused envelopes of 0.7 MB left %d KiB", grown>>10)
	}
	w.open(c)
}

// TestRefusedAgain: a refused envelope gets the same refusal again, also after a restart
// of the hub.
func TestRefusedAgain(t *testing.T) {
	h := &testClock{now: time.Now().UTC().Truncate(time.Second)}
	c := node.Config{Data: t.TempDir(), Durability: "disk", Now: h.Now}
	w := newWorld(t, c)
	c.Listen.HTTP = strings.TrimPrefix(w.base, "http://")
	alice, echo := identity(t), w.address("crew/echo")
	signed := func(payload string, change func(*uagents.Envelope)) *uagents.Envelope {
		m := uagents.Message{Schema: echoModel().Digest(), Payload: []byte(payload)}
		e, err := uagents.NewEnvelope(alice.Address(), echo, "", m, h.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(e)
		}
		if err := e.Sign(alice); err != nil {
			t.Fatal(err)
		}
		return e
	}
	type answer struct {
		status int
		body   string
	}
	cases := map[string]struct {
		e    *uagents.Envelope
		text string
	}{
		"by the hub": {signed(`{"text":1}`, nil), "text"},
		"empty":      {signed(``, nil), "does not conform"},
		"no schema digest": {signed(`{"text":"x"}`, func(e *uagents.Envelope) {
			e.SchemaDigest += "00"
		}), "Invalid schema digest"},
		"beyond the horizon": {signed(`{"text":"x"}`, func(e *uagents.Envelope) {
			e.Expires = uagents.Uint(uint64(h.Now().Add(24*time.Hour + 9*time.Second).Unix()))
		}), "too far ahead"},
		"an error, of nothing": {signed(`{"error":"x"}`, func(e *uagents.Envelope) {
			e.SchemaDigest = uagents.ErrorMessageDigest
		}), ""},
	}
	first := map[string]answer{}
	for _, when := range []string{"first", "again", "after a while", "after a restart"} {
		switch when {
		case "after a while":
			h.move(20 * time.Second) // the expiry is no longer beyond the horizon
		case "after a restart":
			if err := w.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			w.open(c)
		}
		for name, x := range cases {
			for _, sync := range []bool{false, true} {
				e := x.e
				if sync { // another envelope: each envelope is answered in one way only
					other := *x.e
					other.Session = sessionOf(name)
					if err := other.Sign(alice); err != nil {
						t.Fatal(err)
					}
					e = &other
				}
				status, body, header := w.post(e, sync)
				key := fmt.Sprint(name, sync)
				if when == "first" {
					first[key] = answer{status, body}
					if x.text != "" && (!strings.Contains(refusalText(t, body), x.text) || status == 200 && !sync) {
						t.Errorf("%s, sync %v: %d %s", name, sync, status, body)
					}
				} else if want := first[key]; status != want.status || refusalText(t, body) != refusalText(t, want.body) {
					t.Errorf("%s, sync %v, %s: %d %s, want %d %s", name, sync, when, status, body, want.status,
						want.body)
				}
				if x.text != "" && header.Get(uagents.RefHeader) == "" {
					t.Errorf("%s, sync %v, %s: no reference", name, sync, when)
				}
			}
		}
	}
	if n := w.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// sessionOf is a session for a name.
func sessionOf(name string) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%012x", len(name))
}

// refusalText is the text of a refusal: of the JSON error, or of the ErrorMessage.
func refusalText(t *testing.T, body string) string {
	t.Helper()
	if e, err := uagents.Decode([]byte(body)); err == nil {
		m, err := e.Message()
		if err != nil {
			t.Fatal(err)
		}
		text, _ := m.IsError()
		return "said: " + text
	}
	return body
}
