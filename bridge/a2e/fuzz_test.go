package a2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley/node"
)

// sink takes a stream until it holds a text.
type sink struct {
	header http.Header
	code   int
	body   bytes.Buffer
	until  string
	enough context.CancelFunc
}

func (s *sink) Header() http.Header  { return s.header }
func (s *sink) WriteHeader(code int) { s.code = code }
func (s *sink) Flush()               {}
func (s *sink) Write(b []byte) (int, error) {
	s.body.Write(b)
	if strings.Contains(s.body.String(), s.until) {
		s.enough()
	}
	return len(b), nil
}

// FuzzHTTP sends arbitrary bytes, by any method and path, to the hub's A2E endpoints,
// in each state of a session: none, before the handshake, after it, and while it shuts
// down. No answer is a server error, all frames are proper, and known agents are served
// afterwards as before.
func FuzzHTTP(f *testing.F) {
	w := newWorld(f, node.Config{A2E: node.A2E{Sessions: 100_000}})
	for i, body := range []string{
		`{"type":"tool/call/req","id":"1","tool_name":"crew-echo__echo","arguments":{"text":"x"}}`,
		`{"type":"tool/list/req","id":"1"}` + "\n" + `{"type":"ping","id":"1"}`, `{"type":"shutdown","timeout":-1}`,
		`{"type":"memory/init/req","id":"1","scope":{}}`, `{"type":"multi_agent/spawn","id":"1","name":"bob"}`,
		`{"type":"skill/discover/req","id":5}`,
		`{"type":"handshake/req","id":"1","auth_token":"` + tokenBob +
			`","session_id":"x"}`, "\xff", "[]\n\n{", `{"type":"env/reset/req","id":"1","env_name":"x"}`,
	} {
		f.Add(uint8(i), "POST", "/send", []byte(body))
		f.Add(uint8(i+1), "GET", []string{"/stream", "/health", "/session", "/connect", "/send/..", ""}[i%6],
			[]byte(body))
	}
	serve := func(ctx context.Context, out http.ResponseWriter, method, path, session string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)).WithContext(ctx)
		r.Method, r.URL.Path = method, "/a2e"+path
		if session != "" {
			r.Header.Set("X-Session-Id", session)
		}
		w.A2E().ServeHTTP(out, r)
	}
	f.Fuzz(func(t *testing.T, state uint8, method, path string, body []byte) {
		call := func(method, path, session, body string) (int, string) {
			// A stream that opens here ends at once.
			ctx, cancel := context.WithCancel(t.Context())
			if path == "/stream" {
				cancel()
			}
			defer cancel()
			out := httptest.NewRecorder()
			serve(ctx, out, method, path, session, []byte(body))
			return out.Code, out.Body.String()
		}
		session := ""
		if state%4 > 0 {
			code, text := call("POST", "/session", "", "")
			if code != http.StatusOK {
				t.Fatalf("no session: %d %s", code, text)
			}
			session = strings.Split(text, `"`)[3]
		}
		send := func(line string) int {
			code, _ := call("POST", "/send", session, line)
			return code
		}
		if state%4 > 1 {
			send(`{"type":"handshake/req","id":"hs","agent_caps":["tools"],"auth_token":"` + tokenAlice + `"}`)
		}
		if state%4 > 2 {
			send(`{"type":"tool/call/req","id":"slow","tool_name":"crew-echo__slow","arguments":{},"timeout":1}` +
				"\n" + `{"type":"shutdown","timeout":1}`)
		}
		code, text := call(method, path, session, string(body))
		if !slices.Contains([]int{200, 400, 404, 405, 413, 426, 429, 501, 503}, code) ||
			code == 501 && path != "/connect" {
			t.Fatalf("%s %q: %d %s", method, path, code, text)
		}
		if session == "" {
			return
		}
		call("POST", "/send", session, string(body))
		sent := send(`{"type":"ping","id":"the-end"}`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out := &sink{header: http.Header{}, until: `"req_id":"the-end"`, enough: cancel}
		serve(ctx, out, http.MethodGet, "/stream", session, nil)
		if sent == http.StatusOK && context.Cause(ctx) == context.DeadlineExceeded {
			t.Fatalf("no pong: %s", out.body.String())
		}
		for line := range strings.Lines(out.body.String()) {
			frame, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
			if !ok {
				continue
			}
			m, err := protocol.Decode([]byte(frame))
			if err == nil {
				err = m.Check()
			}
			if err != nil {
				t.Fatalf("%s: %v", frame, err)
			}
		}
		send(`{"type":"shutdown","timeout":0}`)
		// Another session is served as before.
		c := &protocol.Client{URL: w.Addresses().A2E, Token: tokenBob}
		defer func() { _ = c.Close() }()
		text = fmt.Sprint(state)
		r, err := c.CallTool(t.Context(), "crew-echo__echo", map[string]string{"text": text}, nil)
		if err != nil || data(t, r) != `{"text":"`+text+`"}` {
			t.Fatalf("%v, %v", r, err)
		}
	})
}
