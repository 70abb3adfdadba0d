package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/admin"
)

// site is a server of a program, in which a hub without listeners is mounted.
type site struct {
	*Node
	base  string // of the hub
	ops   string // of its admin API
	token string
	mux   *http.ServeMux
}

// mountedAt runs a hub in a server of the test's own, at a base path.
func mountedAt(t *testing.T, path string, strip bool, c Config) *site {
	t.Helper()
	s := &site{mux: http.NewServeMux()}
	srv := httptest.NewUnstartedServer(s.mux)
	s.base, s.ops = "http://"+srv.Listener.Addr().String()+path, "http://"+srv.Listener.Addr().String()+"/ops"
	c.PublicURL, c.AdminAPI, c.Network.Allow = s.base, true, []string{"loopback"}
	c.FirstToken = func(secret string) { s.token = secret }
	srv.Start()
	t.Cleanup(srv.Close)
	s.Node = running(t, c)
	h := s.Handler()
	if strip {
		h = http.StripPrefix(path, h)
	}
	s.mux.Handle(path+"/", h)
	s.mux.Handle("/ops/", http.StripPrefix("/ops", s.AdminHandler()))
	return s
}

// TestMounted: agents of all protocols over HTTP reach a hub below a base path of another server, and get addresses
// there.
func TestMounted(t *testing.T) {
	for _, c := range []struct {
		name, path string
		strip      bool
	}{
		{"a mux", "/parley", false},
		{"http.StripPrefix", "/parley", true},
		{"the root", "", false},
		{"two segments", "/apps/hub", true},
		{"escapes in the base", "/a%20b", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := mountedAt(t, c.path, c.strip, Config{Policy: Policy{Assurance: "session"}, ASP: ASP{Registration: "open"}})
			f := fiveAt(t, s.Node, s.base, &a2e.Client{URL: s.base + "/a2e", Token: fiveToken, HTTP: http.DefaultClient})
			for _, protocol := range []string{"samvad", "uagents", "a2e", "asp"} {
				if got, err := f.callBy(t.Context(), protocol); got != "ok" || err != nil {
					t.Errorf("%s: %s, %v", protocol, got, err)
				}
			}
			a := s.Addresses()
			if at := a.Agents["echo"]["samvad"]; a.HTTP != s.base || a.Local != "" || at != s.base+"/agents/echo" {
				t.Errorf("addresses %+v", a)
			}
			status, card := get(t, s.base+"/agents/echo/.well-known/agent.json")
			if status != http.StatusOK || !strings.Contains(card, `"`+s.base+`/agents/echo"`) {
				t.Errorf("the card: %d %s", status, card)
			}
		})
	}
}

// TestMountedAdmin: the admin API of another server wants a token, and knows what the hub does.
func TestMountedAdmin(t *testing.T) {
	s := mountedAt(t, "/parley", false, Config{})
	if status, _ := get(t, s.ops+"/v1/info"); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, _ := get(t, s.ops+"/health"); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
	client := &admin.Client{Base: s.ops, Token: s.token}
	info, err := client.Info(t.Context())
	if err != nil || info.PublicURL != s.base || info.Hub != s.Hub().ID() {
		t.Errorf("%+v, %v", info, err)
	}
	r, err := client.Ask(t.Context(), admin.Send{To: "echo", JSON: []byte(`{"a":1}`)})
	if err != nil || r.Reply == nil || r.Reply.Kind != parley.Response {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestMountedTime: outside its life the handler answers 503; Close waits for the requests in it.
func TestMountedTime(t *testing.T) {
	n, err := Open(t.Context(), Config{Durability: "memory", PublicURL: "http://hub.test"})
	if err != nil {
		t.Fatal(err)
	}
	h := n.Handler()
	serve := func(h http.Handler, path string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", "http://hub.test"+path, nil))
		return rec
	}
	if rec := serve(h, "/.well-known/agent.json"); rec.Code != 503 || !strings.Contains(rec.Body.String(), "starting") {
		t.Errorf("before the start: %d %s", rec.Code, rec.Body)
	}
	if rec := serve(n.AdminHandler(), "/health"); rec.Code != 503 || !strings.Contains(rec.Body.String(), "AdminAPI") {
		t.Errorf("without the admin API: %d %s", rec.Code, rec.Body)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	slow := n.mounted(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(begun); <-goOn }), "")
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { ran <- n.Wait(ctx) }()
	if rec := serve(h, "/.well-known/agent.json"); rec.Code != http.StatusOK {
		t.Errorf("while it runs: %d %s", rec.Code, rec.Body)
	}
	go serve(slow, "/")
	<-begun
	stop()
	for serve(h, "/.well-known/agent.json").Code != 503 {
	}
	select {
	case err := <-ran:
		t.Fatalf("Close did not wait for a request: %v", err)
	default:
	}
	close(goOn)
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if rec := serve(h, "/"); !strings.Contains(rec.Body.String(), "stopped") {
		t.Errorf("after the end: %s", rec.Body)
	}
	n, err = Open(t.Context(), Config{Durability: "memory"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(t.Context())
	if rec := serve(n.Handler(), "/"); rec.Code != 503 || !strings.Contains(rec.Body.String(), "PublicURL") {
		t.Errorf("without a public URL: %d %s", rec.Code, rec.Body)
	}
	stopped, end := context.WithCancel(t.Context())
	end()
	m := &mounts{}
	m.enter()
	if err := m.wait(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait without end: %v", err)
	}
	m.leave()
	if err := m.wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMountedLimits: what the hub's own listener refuses, the handler refuses too.
func TestMountedLimits(t *testing.T) {
	s := mountedAt(t, "/parley", true, Config{Limits: Limits{Body: "4KiB"}})
	post := func(path, origin string, size int) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.base+path, bytes.NewReader(make([]byte, size)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	for _, c := range []struct {
		path, origin string
		size, want   int
	}{
		{"/agents/echo/agent/message", "", 1 << 20, http.StatusRequestEntityTooLarge},
		{"/agents/echo/agent/message", "https://evil.example", 10, http.StatusForbidden},
		{"/agents/echo/agent/message", "", 10, http.StatusBadRequest},
		{"/nothing", "", 10, http.StatusNotFound},
	} {
		if got := post(c.path, c.origin, c.size); got != c.want {
			t.Errorf("%s from %q with %d bytes: HTTP %d, want %d", c.path, c.origin, c.size, got, c.want)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	eventually(ctx, t, func() bool { // a body may be released after its answer
		n := int64(0)
		for _, b := range s.bodies {
			b.mu.Lock()
			n += int64(b.held)
			b.mu.Unlock()
		}
		return n == 0
	})
}

// TestBelowBase: the bindings see the same path however much of the base was removed before.
func TestBelowBase(t *testing.T) {
	base := &url.URL{Scheme: "https", Host: "hub.test", Path: "/apps/hub"}
	for _, c := range []struct{ line, path string }{
		{"/apps/hub/agents/x%2Fy?q=1", "/apps/hub/agents/x%2Fy"}, // nothing was removed
		{"/apps/hub/agents/x%2Fy?q=1", "/agents/x%2Fy"},          // http.StripPrefix
		{"/inner/agents/x%2Fy?q=1", "/agents/x%2Fy"},             // a proxy has another base inside
		{"/agents/x%2Fy?q=1", "/agents/x%2Fy"},                   // a proxy removed it
	} {
		r := httptest.NewRequest("GET", "https://hub.test"+c.path+"?q=1", nil)
		r.RequestURI = c.line
		got := belowBase(base, r)
		if got.URL.Path != "/agents/x/y" || got.URL.EscapedPath() != "/agents/x%2Fy" ||
			got.RequestURI != "/agents/x%2Fy?q=1" || got.URL.RawQuery != "q=1" {
			t.Errorf("%+v: %s, %s", c, got.URL, got.RequestURI)
		}
	}
	r := httptest.NewRequest("GET", "https://hub.test/apps/hubs/x", nil)
	if got := belowBase(base, r); got.URL.Path != r.URL.Path {
		t.Errorf("another path was cut: %s", got.URL)
	}
}
