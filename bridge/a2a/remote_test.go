package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
)

const card1 = `{"name":"A","description":"d","version":"1","capabilities":{},"defaultInputModes":["text/plain"],
"defaultOutputModes":["text/plain"],"skills":[{"id":"s","name":"S","description":"d","tags":["t"],"examples":["e"]}],
"supportedInterfaces":[%s]}`

const card03 = `{"name":"A","description":"d","version":"1","capabilities":{},"defaultInputModes":["text/plain"],
"defaultOutputModes":["text/plain"],"skills":[],"protocolVersion":"0.3.0","url":"http://a.test/rpc"}`

func iface(url, binding, version string) string {
	return fmt.Sprintf(`{"url":%q,"protocolBinding":%q,"protocolVersion":%q,"tenant":"acme"}`, url, binding, version)
}

// serveAt serves a document at some paths.
func serveAt(t *testing.T, body string, paths ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	for _, p := range paths {
		mux.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != p {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, body)
		})
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// A2A-003: the URL may be the card, the agent's base, or anything at its origin.
func TestCardIsFound(t *testing.T) {
	c := newCaller(t, callerConfig{})
	card := fmt.Sprintf(card1, iface("http://a.test/rpc", "JSONRPC", "1.0"))
	for _, x := range []struct{ at, given string }{
		{"/my/card.json", "/my/card.json"},
		{"/a2a/alice" + CardPath, "/a2a/alice"},
		{"/a2a/alice" + CardPath, "/a2a/alice/"},
		{CardPath, "/a2a/alice"},
		{CardPath, ""},
	} {
		base := serveAt(t, card, x.at)
		got, err := c.ReadCard(t.Context(), base+x.given, peerauth.Credentials{})
		if err != nil || got.URL != base+x.at || got.Version != V1 || got.Interface.Tenant != "acme" {
			t.Errorf("%s by %q: %+v, %v", x.at, x.given, got, err)
			continue
		}
		if s := got.Skills; len(s) != 1 || s[0].ID != "s" || s[0].Name != "S" ||
			s[0].Description != "d\nTags: t\nExample: e" || s[0].Input != nil {
			t.Errorf("%+v", s)
		}
	}
	if _, err := c.ReadCard(t.Context(), serveAt(t, card, "/elsewhere"), peerauth.Credentials{}); err == nil {
		t.Error("found a card that is not there")
	}
}

// A2A-070: the newest version first, then the card's order; 0.3 with its default.
func TestInterfaceIsChosen(t *testing.T) {
	for list, want := range map[string]string{
		iface("http://a.test/3", "JSONRPC", "0.3.0") + "," + iface("http://a.test/1", "HTTP+JSON", "1.0"): "http://a.test/1",
		iface("http://a.test/g", "GRPC", "1.0") + "," + iface("http://a.test/3", "JSONRPC", "0.3"):        "http://a.test/3",
		iface("http://a.test/1", "JSONRPC", "1.0.1") + "," + iface("http://a.test/2", "HTTP+JSON", "1.0"): "http://a.test/1",
		iface("ftp://a.test/1", "JSONRPC", "1.0") + "," + iface("http://u:p@a.test/2", "JSONRPC", "1.0") + "," +
			iface("http://a.test/3", "JSONRPC", "1.0"): "http://a.test/3",
		iface("http://a.test/g", "GRPC", "1.0"):      "",
		iface("http://a.test/9", "JSONRPC", "9.0"):   "",
		iface("http://a.test/10", "JSONRPC", "1.01"): "",
	} {
		card, err := parseCard(fmt.Appendf(nil, card1, list))
		if (err == nil) != (want != "") || err == nil && card.Interface.URL != want {
			t.Errorf("%s: %+v, %v", list, card, err)
		}
	}
	card, err := parseCard([]byte(card03))
	if err != nil || card.Interface.URL != "http://a.test/rpc" || card.Version != V03 ||
		card.Interface.ProtocolBinding != protocol.TransportProtocolJSONRPC {
		t.Errorf("%+v, %v", card, err)
	}
}

// Cards are input of strangers: big, deep, ambiguous and empty ones are refused, and texts
// are bounded.
func TestCardIsBounded(t *testing.T) {
	good := fmt.Sprintf(card1, iface("http://a.test/rpc", "JSONRPC", "1.0"))
	with := func(member string) string { return strings.Replace(good, `"name":"A"`, `"name":"A",`+member, 1) }
	for name, bad := range map[string]string{
		"deep":      with(`"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40)),
		"duplicate": with(`"name":"B"`),
		"trailing":  good + "x",
		"no name":   strings.Replace(good, `"name":"A"`, `"name":""`, 1),
		"not JSON":  "<html>",
		"array":     "[]",
		"UTF-8":     with("\"x\":\"\xff\""),
	} {
		if _, err := parseCard([]byte(bad)); !errors.Is(err, errNoCard) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := newCaller(t, callerConfig{})
	big := serveAt(t, with(`"x":"`+strings.Repeat("x", maxRemoteCard)+`"`), CardPath)
	if _, err := c.ReadCard(t.Context(), big, peerauth.Credentials{}); !errors.Is(err, netguard.ErrTooLarge) {
		t.Errorf("a big card: %v", err)
	}
	var skills []string
	for i := range maxSkills + 10 {
		skills = append(skills, fmt.Sprintf(`{"id":"s%d","name":"%s","description":"%s","tags":["t"]}`, i,
			strings.Repeat("n", 300), strings.Repeat("d", 1000)))
	}
	card, err := parseCard([]byte(strings.Replace(strings.Replace(good, `"skills":[`, `"skills":[`+
		strings.Join(skills, ",")+`,`, 1), `"description":"d"`, `"description":"`+strings.Repeat("\\u0007é", 5000)+`"`, 1)))
	if err != nil || len(card.Skills) != maxSkills || len(card.Skills[0].Name) != maxName ||
		len(card.Card.Description) > maxText || strings.Contains(card.Card.Description, "\a") {
		t.Errorf("%d skills, %v", len(card.Skills), err)
	}
}

// Cards, interfaces and token endpoints at private addresses are not reached.
func TestPrivateAddressesAreRefused(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{allow: []netip.Prefix{}})
	if _, err := c.ReadCard(t.Context(), a.URL, peerauth.Credentials{}); !errors.Is(err, netguard.ErrBlocked) {
		t.Errorf("a card: %v", err)
	}
	c.add("elsewhere", a.URL)
	if m := c.ask("elsewhere", parley.Text("hi")); m.Error == nil || m.Error.Reason != parley.AddressGuard {
		t.Errorf("%+v", m.Error)
	}
	// The card may be read, and leads to an address that may not.
	card := serveAt(t, fmt.Sprintf(card1, iface("http://127.0.0.9:1/rpc", "JSONRPC", "1.0")), CardPath)
	c = newCaller(t, callerConfig{allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	c.add("inner", card)
	if m := c.ask("inner", parley.Text("hi")); m.Error == nil || m.Error.Reason != parley.AddressGuard {
		t.Errorf("%+v", m.Error)
	}
	c.add("tokens", a.URL)
	c.SetAgent("tokens", AgentSettings{Credentials: peerauth.Credentials{TokenURL: "http://127.0.0.9:1/t", ClientID: "x"}})
	if m := c.ask("tokens", parley.Text("hi")); m.Error == nil || m.Error.Reason != parley.AddressGuard {
		t.Errorf("%+v", m.Error)
	}
	if a.count() != 0 {
		t.Error("the agent was called")
	}
}

// Redirects of a card end: in a circle, and at another origin.
func TestCardRedirects(t *testing.T) {
	good := serveAt(t, fmt.Sprintf(card1, iface("http://a.test/rpc", "JSONRPC", "1.0")), CardPath)
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	mux.HandleFunc("/circle/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/circle/", http.StatusFound)
	})
	mux.HandleFunc("/away/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, good+CardPath, http.StatusFound)
	})
	c := newCaller(t, callerConfig{})
	for _, p := range []string{"/circle/", "/away/"} {
		if _, err := c.ReadCard(t.Context(), s.URL+p, peerauth.Credentials{}); !errors.Is(err, netguard.ErrRedirect) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// A2A-074: a card that is stale is asked for with its ETag; a changed one changes the
// directory entry, unless the operator wrote the skills.
func TestCardsAreFollowed(t *testing.T) {
	var mu sync.Mutex
	version, matched, sent := 1, 0, 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != CardPath {
			http.NotFound(w, r)
			return
		}
		tag := fmt.Sprintf(`"v%d"`, version)
		w.Header().Set("ETag", tag)
		w.Header().Set("Cache-Control", "max-age=120")
		if r.Header.Get("If-None-Match") == tag {
			matched++
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent++
		card := fmt.Sprintf(card1, iface("http://a.test/rpc", "JSONRPC", "1.0"))
		fmt.Fprint(w, strings.ReplaceAll(card, `"s"`, fmt.Sprintf(`"s%d"`, version)))
	}))
	t.Cleanup(s.Close)
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	c := newCaller(t, callerConfig{edit: func(b *Binding) {
		b.c.Now = func() time.Time { return time.Unix(0, now.Load()) }
	}})
	changes := make(chan *directory.Entry, 16)
	stop := c.dir.Watch(func(ch directory.Change) { changes <- ch.New })
	defer stop()
	learned := func(skill string) *directory.Entry {
		t.Helper()
		for late := time.After(time.Minute); ; {
			select {
			case e := <-changes:
				if e != nil && e.Name == "elsewhere" && len(e.Skills) == 1 && e.Skills[0].ID == skill {
					return e
				}
			case <-late:
				t.Fatalf("skill %s is not learned", skill)
			}
		}
	}
	c.add("elsewhere", s.URL)
	if e := learned("s1"); e.Title != "A" || e.Description != "d" || e.Version != "1" {
		t.Errorf("%+v", e)
	}
	id, _ := IdentityAt(s.URL)
	id.ID += "#written"
	if _, err := c.dir.Put(t.Context(), parley.Agent{Name: "written", Title: "Mine",
		Skills: []parley.SkillSpec{{ID: "own"}}, Identities: []parley.Identity{id}}, directory.FromOperator); err != nil {
		t.Fatal(err)
	}
	p, err := c.peerOf("elsewhere", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	written, err := c.peerOf("written", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	read := func(p *peer) *RemoteCard {
		t.Helper()
		card, err := c.peerCard(t.Context(), p, true)
		if err != nil {
			t.Fatal(err)
		}
		return card
	}
	later := func(d time.Duration) { now.Add(int64(d)) }
	read(written)
	later(time.Minute)
	if read(p); matched != 1 {
		t.Errorf("%d conditional requests", matched)
	}
	mu.Lock()
	version = 2
	mu.Unlock()
	if card := read(p); card.Skills[0].ID != "s1" {
		t.Error("the card was read again at once")
	}
	later(3 * time.Minute) // stale: the old one is given, the new one is read meanwhile
	if _, err := c.peerCard(t.Context(), p, false); err != nil {
		t.Fatal(err)
	}
	learned("s2")
	later(time.Minute)
	read(written)
	if e, _ := c.dir.Agent("written"); len(e.Skills) != 1 || e.Skills[0].ID != "own" || e.Title != "Mine" {
		t.Errorf("the operator's entry changed: %+v", e)
	}
}

// A card whose signature does not hold is not used.
func TestCardIsChecked(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{edit: func(b *Binding) {
		b.checkCard = func(_ context.Context, _, at string, card []byte) ([]byte, error) {
			if at == a.URL+CardPath && !json.Valid(card) {
				t.Errorf("%s", card)
			}
			return nil, errors.New("forged")
		}
	}})
	card, err := c.ReadCard(t.Context(), a.URL, peerauth.Credentials{})
	if err != nil || card.Unproved == nil {
		t.Errorf("%+v, %v", card, err)
	}
	c.add("elsewhere", a.URL)
	if m := c.ask("elsewhere", parley.Text("hi")); m.Error == nil || a.count() != 0 {
		t.Errorf("%s, %d calls", said([]*parley.Message{m}), a.count())
	}
}

// An agent that has moved is found by its new card, and gets the message once.
func TestAgentMoves(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	c := newCaller(t, callerConfig{edit: func(b *Binding) {
		b.c.Now = func() time.Time { return time.Unix(0, now.Load()) }
	}})
	c.add("elsewhere", a.URL)
	right := a.card.SupportedInterfaces
	a.mu.Lock()
	a.card.SupportedInterfaces = []*protocol.AgentInterface{{URL: a.URL + "/gone",
		ProtocolBinding: protocol.TransportProtocolJSONRPC, ProtocolVersion: "1.0"}}
	a.mu.Unlock()
	p, err := c.peerOf("elsewhere", a.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.disconnect("elsewhere")
	if _, err := c.peerCard(t.Context(), p, false); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(cardAgain))
	if _, err := c.peerCard(t.Context(), p, true); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.card.SupportedInterfaces = right
	a.mu.Unlock()
	now.Add(int64(cardAgain))
	if m := c.ask("elsewhere", parley.Text("hi")); m.Kind != parley.Response || a.count() != 1 {
		t.Errorf("%s, %d calls", said([]*parley.Message{m}), a.count())
	}
}

// What `parley doctor` shows.
func TestWayElsewhere(t *testing.T) {
	a := serveAgent(t, V03, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.card.SecurityRequirements = protocol.SecurityRequirementsOptions{{"bearer": nil}}
	})
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	want := func(check string, state hub.FindingState, texts ...string) {
		t.Helper()
		bridgetest.WantFinding(t, c.hub, "elsewhere", check, state, texts...)
	}
	want("card", hub.FindingOK, CardPath, "not signed")
	want("interface", hub.FindingOK, "JSONRPC in version 0.3, with streams")
	want("credentials", hub.FindingWarning, "its card asks for some")
	want("calls", hub.FindingSkipped)
	want("tasks", hub.FindingOK, "0 requests")
	c.ask("elsewhere", parley.Text("hi"))
	want("calls", hub.FindingOK, "it answered")
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{Token: "secret"}})
	want("credentials", hub.FindingOK, "bearer token")
	c.add("nowhere", "http://127.0.0.1:1")
	bridgetest.WantFinding(t, c.hub, "nowhere", "card", hub.FindingFailed, "refused")
}

// An agent whose card could not be read, because it was away, is called as soon as it is
// there.
func TestAgentComesBack(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	var there atomic.Bool
	c := newCaller(t, callerConfig{edit: func(b *Binding) {
		b.c.Transport = func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if !there.Load() {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
				}
				return next.RoundTrip(r)
			})
		}
	}})
	c.add("elsewhere", a.URL)
	if o := c.deliver("elsewhere", request(), nil); o.Err == nil || o.Err.Reason != parley.ConnectionRefused {
		t.Errorf("%+v", o)
	}
	there.Store(true)
	if m := c.ask("elsewhere", parley.Text("hi")); m.Kind != parley.Response {
		t.Error(said([]*parley.Message{m}))
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
