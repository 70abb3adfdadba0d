package a2a

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// A2A-071: credentials go to the enrolled origin alone, for the card and for calls.
func TestCredentialsStayAtTheirOrigin(t *testing.T) {
	other := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	var cards atomic.Value
	home := http.NewServeMux()
	s := httptest.NewServer(home)
	t.Cleanup(s.Close)
	home.HandleFunc(CardPath, func(w http.ResponseWriter, r *http.Request) {
		cards.Store(r.Header.Get("Authorization") + " " + r.Header.Get("X-Key"))
		fmt.Fprintf(w, card1, iface(other.URL+"/rpc", "JSONRPC", "1.0"))
	})
	own := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("away", s.URL)
	c.add("own", own.URL)
	secret := AgentSettings{Credentials: peerauth.Credentials{Token: "secret", APIKey: "key", Header: "X-Key"}}
	c.SetAgent("away", secret)
	c.SetAgent("own", secret)
	for _, agent := range []string{"away", "own"} {
		if m := c.ask(agent, parley.Text("hi")); m.Kind != parley.Response {
			t.Error(agent, said([]*parley.Message{m}))
		}
	}
	p, err := c.peerOf("away", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.fetchCard(t.Context(), p, c.connectionOf(p), nil); err != nil || cards.Load() != "Bearer secret key" {
		t.Errorf("for the card: %q, %v", cards.Load(), err)
	}
	if got := append(other.seen("Authorization"), other.seen("X-Key")...); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("at another origin: %q", got)
	}
	if got := append(own.seen("Authorization"), own.seen("X-Key")...); !slices.Equal(got,
		[]string{"Bearer secret", "key"}) {
		t.Errorf("at its own origin: %q", got)
	}
}

// OAuth client credentials: the hub asks for another token when the agent does not take the one in use. A refusal
// by the agent and one by the token endpoint are different failures.
func TestOAuth(t *testing.T) {
	var asked atomic.Int64
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if id, _, _ := r.BasicAuth(); id != "id" {
			respond(401, "application/json", `{"error":"invalid_client"}`)(w, r)
			return
		}
		respond(200, "application/json", fmt.Sprintf(`{"access_token":"t%d","token_type":"bearer"}`, n))(w, r)
	}))
	t.Cleanup(tokens.Close)
	var valid atomic.Value
	valid.Store("Bearer t1")
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != valid.Load() {
					respond(401, "text/plain", "")(w, r)
					return
				}
				h.ServeHTTP(w, r)
			})
		}
	})
	c := newCaller(t, callerConfig{})
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{TokenURL: tokens.URL, ClientID: "id"}})
	c.add("elsewhere", a.URL)
	for _, token := range []string{"Bearer t1", "Bearer t1", "Bearer t2"} {
		valid.Store(token)
		if m := c.ask("elsewhere", parley.Text("hi")); m.Kind != parley.Response {
			t.Fatal(token, said([]*parley.Message{m}))
		}
	}
	valid.Store("Bearer none")
	if m := c.ask("elsewhere", parley.Text("hi")); m.Error == nil || m.Error.Code != parley.Unauthenticated ||
		asked.Load() != 3 {
		t.Errorf("%s, %d tokens", said([]*parley.Message{m}), asked.Load())
	}
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{TokenURL: tokens.URL, ClientID: "wrong"}})
	n := a.count()
	if m := c.ask("elsewhere", parley.Text("hi")); m.Error == nil || m.Error.Reason != parley.WrongToken ||
		a.count() != n {
		t.Errorf("%+v", m.Error)
	}
}

// Mutual TLS, for the card and for calls, with stored credentials: they are known at the next
// start. The configuration wins.
func TestStoredCredentials(t *testing.T) {
	cert, pool := bridgetest.Certificate(t, "hub")
	var url string
	var shown atomic.Value
	shown.Store("")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown.Store(r.TLS.PeerCertificates[0].Subject.CommonName + " " + r.Header.Get("Authorization"))
		if r.URL.Path == CardPath {
			fmt.Fprintf(w, card1, iface(url+"/rpc", "HTTP+JSON", "1.0"))
			return
		}
		respond(200, "application/json", `{"message":{"messageId":"1","role":"ROLE_AGENT","parts":[{"text":"ok"}]}}`)(w, r)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	s.StartTLS()
	t.Cleanup(s.Close)
	url = s.URL
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	ring, err := keyring.Open(keyring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cc := callerConfig{disk: t.TempDir(), ring: ring, edit: func(b *Binding) { b.c.RootCAs = roots }}
	c := newCaller(t, cc)
	stored := peerauth.Credentials{Token: "s3cr3t-token", Certificate: cert}
	if err := c.StoreCredentials(t.Context(), "elsewhere", stored); err != nil {
		t.Fatal(err)
	}
	c.add("elsewhere", url)
	if m := c.ask("elsewhere", parley.Text("hi")); m.Text() != "ok" || shown.Load() != "hub Bearer s3cr3t-token" {
		t.Errorf("%s, %q", said([]*parley.Message{m}), shown.Load())
	}
	if _, err := c.j.State("a2a-credentials").Get(t.Context(), "elsewhere"); err != nil {
		t.Error(err)
	}
	c.close()

	c = newCaller(t, cc)
	if got := c.credentialsOf("elsewhere"); got.Token != "s3cr3t-token" || got.Certificate == nil {
		t.Errorf("after a restart: %+v", got.Kinds())
	}
	c.add("elsewhere", url)
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{Token: "configured", Certificate: cert}})
	if m := c.ask("elsewhere", parley.Text("hi")); m.Text() != "ok" || shown.Load() != "hub Bearer configured" {
		t.Errorf("%s, %q", said([]*parley.Message{m}), shown.Load())
	}
	c.SetAgent("elsewhere", AgentSettings{})
	if err := c.ForgetCredentials(t.Context(), "elsewhere"); err != nil {
		t.Fatal(err)
	}
	if got := c.credentialsOf("elsewhere"); !got.Empty() {
		t.Errorf("forgotten credentials: %s", got.Kinds())
	}
}

// The stored credentials of an agent go with it.
func TestCredentialsOfARemovedAgent(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	if err := c.StoreCredentials(t.Context(), "elsewhere", peerauth.Credentials{Token: "x"}); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{}, 16)
	stop, err := c.j.State("a2a-credentials").Watch(t.Context(), "elsewhere", func(v journal.Value) {
		if v.Deleted {
			gone <- struct{}{}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := c.dir.Remove(t.Context(), "elsewhere"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("they stay")
	}
}

func TestCredentialsAreChecked(t *testing.T) {
	c := newCaller(t, callerConfig{})
	bad := peerauth.Credentials{Token: "two words"}
	if err := c.StoreCredentials(t.Context(), "a", bad); err == nil {
		t.Error("they are stored")
	}
	_, err := c.ReadCard(t.Context(), "http://127.0.0.1:1", bad)
	if err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("a card is asked for: %v", err)
	}
}

// A2A-071: the operator gave an agent another URL while it worked on a request. The hub
// tells the former address that the task is not needed, without the agent's credentials.
func TestCredentialsStayAwayFromAFormerAddress(t *testing.T) {
	told := make(chan struct{})
	former := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(told)
				h.ServeHTTP(w, r)
			})
		}
	})
	present := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", present.URL)
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{Token: "secret"}})
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour)
	if _, err := c.sent.Put(t.Context(), id.String(), sentRequest{To: "elsewhere", URL: former.URL, Task: "T",
		Until: until}, until); err != nil {
		t.Fatal(err)
	}
	c.giveUp(id)
	<-told
	if got := former.seen("Authorization"); !slices.Equal(got, []string{""}) {
		t.Errorf("the former address got %q", got)
	}
	c.ask("elsewhere", parley.Text("hi"))
	if got := present.seen("Authorization"); !slices.Equal(got, []string{"Bearer secret"}) {
		t.Errorf("the present address got %q", got)
	}
}

// New credentials take effect for calls at the present address, even after a task was looked up at
// a former one.
func TestCredentialsChangeAtEachAddress(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{Token: "first"}})
	p, err := c.peerOf("elsewhere", a.URL)
	if err != nil {
		t.Fatal(err)
	}
	shown := func() string {
		r := httptest.NewRequest(http.MethodGet, a.URL, nil)
		if err := c.connectionOf(p).Authorize(r); err != nil {
			t.Fatal(err)
		}
		return r.Header.Get("Authorization")
	}
	if got := shown(); got != "Bearer first" { // a task is followed with it
		t.Fatal(got)
	}
	if _, err := c.peerOf("elsewhere", "http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	c.SetAgent("elsewhere", AgentSettings{Credentials: peerauth.Credentials{Token: "second"}})
	if got := shown(); got != "Bearer second" {
		t.Errorf("the follower of the task shows %q", got)
	}
}
