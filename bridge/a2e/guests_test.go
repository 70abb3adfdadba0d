package a2e_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/policy"
)

// A connection is a guest's until an agent proved its token on it: a request of
// its session, its stream, and a connection that was upgraded.
func TestConnectionsOfAgents(t *testing.T) {
	w := newWorld(t, node.Config{})
	callers := map[string]*policy.Caller{}
	for _, name := range []string{"session", "stream", "wrong", "ping", "right", "later", "upgraded"} {
		callers[name] = policy.NewCaller(name, nil)
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.A2E().ServeHTTP(rw, r.WithContext(policy.WithCaller(r.Context(), callers[r.Header.Get("X-Caller")])))
	}))
	defer server.Close()
	vouched := func(want ...string) {
		t.Helper()
		for name, c := range callers {
			if got := c.Vouched(); got != strings.Contains(strings.Join(want, " "), name) {
				t.Errorf("%s: vouched for %t", name, got)
			}
		}
	}
	session := ""
	do := func(caller, method, path, body string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/a2e"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Caller", caller)
		r.Header.Set("X-Session-Id", session)
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	b, err := io.ReadAll(do("session", "POST", "/session", "").Body)
	if err != nil {
		t.Fatal(err)
	}
	session = strings.Split(string(b), `"`)[3]
	stream := do("stream", "GET", "/stream", "").Body
	say := func(caller, line string) {
		t.Helper()
		if resp := do(caller, "POST", "/send", line); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	say("wrong", `{"type":"handshake/req","id":"1","agent_caps":[],"auth_token":"wrong"}`)
	say("ping", `{"type":"ping","id":"2"}`)
	until(t, stream, `"pong"`)
	vouched()
	say("right", `{"type":"handshake/req","id":"3","agent_caps":[],"auth_token":"`+tokenAlice+`"}`)
	until(t, stream, `"ok":true`)
	vouched("stream", "right")
	say("later", `{"type":"ping","id":"4"}`)
	vouched("stream", "right", "later")

	conn := dialWire(t, server.Listener.Addr().String())
	conn.write(t, "GET /a2e/connect HTTP/1.1\r\nHost: hub\r\nX-Caller: upgraded\r\n"+
		"Connection: Upgrade\r\nUpgrade: a2e-ndjson\r\n\r")
	conn.until(t, "\r\n\r\n")
	vouched("stream", "right", "later")
	conn.write(t, `{"type":"handshake/req","id":"5","agent_caps":[],"auth_token":"`+tokenBob+`"}`)
	conn.until(t, `"ok":true`)
	vouched("stream", "right", "later", "upgraded")
	_ = conn.Close()
	w.A2E().Stop(t.Context())
}
