package peerauth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley/bridge/bridgetest"
	"github.com/parley-hub/parley/internal/netguard"
)

// newClient makes a client whose enrolled origin is that of a URL, and which may call this machine.
func newClient(t *testing.T, at string, c Credentials, config Config) *Client {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	config.Allow = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	client := NewClient(u, c, config)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// send makes an exchange with a body, and gives the status and body of the answer.
func send(t *testing.T, c *Client, at, body string) (status int, answer string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(r)
	if r.Header.Get("Authorization") != "" {
		t.Error("the caller's request was changed")
	}
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// echo answers with the credentials and the body of a request.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s|%s|%s|%v", r.Header.Get("Authorization"), r.Header.Get("X-API-Key"), b, err)
}

func TestOneOriginAlone(t *testing.T) {
	t.Parallel()
	home, other := serve(t, echo), serve(t, echo)
	exchanges := 0
	c := newClient(t, home+"/agent", Credentials{Token: "t", APIKey: "k"}, Config{
		Exchange: func(r *http.Request, do func(*http.Request) (*http.Response, error)) (*http.Response, error) {
			exchanges++
			return do(r)
		}})
	for at, want := range map[string]string{home: "Bearer t|k|hi|<nil>", home + "/x": "Bearer t|k|hi|<nil>",
		other: "||hi|<nil>"} {
		if _, got, err := send(t, c, at, "hi"); got != want {
			t.Errorf("%s: %s, %v", at, got, err)
		}
		r := httptest.NewRequest(http.MethodGet, at, nil)
		if err := c.Authorize(r); err != nil || (r.Header.Get("Authorization") != "") != strings.HasPrefix(want, "Bearer") {
			t.Errorf("%s: %v, %v", at, r.Header, err)
		}
	}
	if exchanges != 3 {
		t.Errorf("%d exchanges", exchanges)
	}
	if _, _, err := send(t, NewClient(must(url.Parse(home)), Credentials{}, Config{}), home, ""); !errors.Is(err,
		netguard.ErrBlocked) {
		t.Errorf("an address that is not allowed: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The certificate is for the enrolled origin, as the headers are.
func TestCertificateForOneOrigin(t *testing.T) {
	t.Parallel()
	cert, pool := bridgetest.Certificate(t, "hub")
	roots := x509.NewCertPool()
	start := func() string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, len(r.TLS.PeerCertificates))
		}))
		s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
		s.StartTLS()
		t.Cleanup(s.Close)
		roots.AddCert(s.Certificate())
		return s.URL
	}
	home, other := start(), start()
	c := newClient(t, home, Credentials{Certificate: cert}, Config{RootCAs: roots})
	for at, want := range map[string]string{home: "1", other: "0"} {
		if _, got, err := send(t, c, at, ""); got != want {
			t.Errorf("%s certificates, want %s, %v", got, want, err)
		}
	}
}

// issuer is a token endpoint that issues t1, t2 and so on.
type issuer struct {
	url     string
	seconds int
	asked   atomic.Int64
}

func newIssuer(t *testing.T, seconds int) *issuer {
	i := &issuer{seconds: seconds}
	i.url = serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := i.asked.Add(1)
		id, secret, _ := r.BasicAuth()
		if id != "id%3A1" || secret != "s%26" || r.FormValue("grant_type") != "client_credentials" ||
			r.FormValue("scope") != "a b" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token":"t%d","token_type":"bearer","expires_in":%d}`, n, i.seconds)
	})
	return i
}

func (i *issuer) credentials() Credentials {
	return Credentials{TokenURL: i.url, ClientID: "id:1", ClientSecret: "s&", Scopes: []string{"a", "b"}}
}

// OAuth client credentials: a token is got once, before it expires, and once more when the agent does not take it.
func TestOAuth(t *testing.T) {
	t.Parallel()
	tokens := newIssuer(t, 3600)
	var mu sync.Mutex
	var seen []string
	valid := "Bearer t1"
	agent := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get("Authorization")+" "+string(b))
		if r.Header.Get("Authorization") != valid {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	now := time.Now()
	c := newClient(t, agent, tokens.credentials(), Config{Now: func() time.Time { return now }})
	for _, step := range []struct {
		valid  string
		later  time.Duration
		status int
		seen   []string
	}{
		{"Bearer t1", 0, 200, []string{"Bearer t1 hi"}},
		{"Bearer t1", 3589 * time.Second, 200, []string{"Bearer t1 hi"}},
		{"Bearer t2", time.Second, 200, []string{"Bearer t2 hi"}},
		{"Bearer t3", 0, 200, []string{"Bearer t2 hi", "Bearer t3 hi"}},
		{"Bearer none", 0, 401, []string{"Bearer t3 hi", "Bearer t4 hi"}},
	} {
		mu.Lock()
		seen, valid = nil, step.valid
		mu.Unlock()
		now = now.Add(step.later)
		status, _, err := send(t, c, agent, "hi")
		mu.Lock()
		if err != nil || status != step.status || !slices.Equal(seen, step.seen) {
			t.Errorf("%+v: %d, %q, %v", step, status, seen, err)
		}
		mu.Unlock()
	}

	bad := tokens.credentials()
	bad.ClientID = "wrong"
	seen = nil
	_, _, err := send(t, newClient(t, agent, bad, Config{}), agent, "hi")
	if e, ok := errors.AsType[*TokenError](err); !ok || e.Status != 401 ||
		!strings.Contains(e.Error(), "invalid_client") || len(seen) > 0 {
		t.Errorf("%v, %q", err, seen)
	}
}

// A request whose body cannot be given again is not repeated.
func TestBodyIsReadOnce(t *testing.T) {
	t.Parallel()
	tokens := newIssuer(t, 0)
	agent := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	c := newClient(t, agent, tokens.credentials(), Config{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, agent, io.NopCloser(strings.NewReader("hi")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || tokens.asked.Load() != 1 {
		t.Errorf("%s, %d tokens", resp.Status, tokens.asked.Load())
	}
}

func TestTokenEndpointErrors(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`200 {"access_token":"t","token_type":"mac"}`:      "gave no bearer token",
		`200 {"token_type":"bearer"}`:                      "gave no bearer token",
		`200 {"access_token":"a b","token_type":"bearer"}`: "gave no bearer token",
		`200 <html>`:                        "the token endpoint's answer",
		`400 {"error":"invalid_scope"}`:     "status 400 invalid_scope",
		`500 {"error":"a\nb"}`:              "status 500 ",
		`302 `:                              "status 302 ",
		`200 ` + strings.Repeat(" ", 1<<17): "too large",
	} {
		tokens := serve(t, func(w http.ResponseWriter, r *http.Request) {
			var status int
			if _, err := fmt.Sscan(answer[:3], &status); err != nil {
				t.Error(err)
			}
			w.Header().Set("Location", "/again")
			w.WriteHeader(status)
			fmt.Fprint(w, answer[4:])
		})
		c := newClient(t, "http://127.0.0.1:1", Credentials{TokenURL: tokens, ClientID: "i"}, Config{})
		_, _, err := send(t, c, "http://127.0.0.1:1", "")
		if e, ok := errors.AsType[*TokenError](err); !ok || !strings.Contains(e.Error(), want) ||
			strings.Contains(e.Error(), "\n") {
			t.Errorf("%.60s: %v", answer, err)
		}
	}
}
