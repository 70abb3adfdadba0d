package node_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

// why is what a failure must say to operators.
type why struct {
	source parley.Source
	reason parley.Reason
	detail string // a part of it
	advice string // a part of the advice that an operator gets
}

// TestEveryFailureHasItsCause asks agents elsewhere, over the protocols in which the hub
// dials, that fail in every way, and reads the cause from the answer and from the API.
func TestEveryFailureHasItsCause(t *testing.T) {
	t.Parallel()
	closed := fixedport.Address(t)
	says := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	every := func(w why) map[string]why { return map[string]why{"samvad": w, "uagents": w, "a2e": w} }
	for _, fault := range []struct {
		name    string
		handler http.Handler // nil: nothing listens
		tls     bool
		guarded bool // the hub may not call the address
		want    map[string]why
	}{
		{"closed port", nil, false, false, every(why{parley.ByNetwork, parley.ConnectionRefused,
			"connection refused by " + closed, "`parley doctor NAME` checks the way"})},
		{"certificate unknown", says(200, "{}"), true, false, every(why{parley.ByNetwork, parley.CertificateUnknown,
			"certificate unknown", "tls.ca"})},
		{"address guard", says(200, "{}"), false, true, every(why{parley.ByNetwork, parley.AddressGuard,
			`address guard: address 127.0.0.1 is in the loopback range 127.0.0.0/8; to allow it add to parley.toml: ` +
				`[network] allow = ["127.0.0.1/32"]`, "network.allow"})},
		{"hangs up", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), false,
			false, every(why{parley.ByNetwork, parley.ConnectionLost, "connection lost", "log of NAME"})},
		{"401", says(401, `{"status":"error","error":{"code":"AUTH_FAILED","message":"no"}}`), false, false,
			map[string]why{
				"samvad": {parley.ByPeer, parley.KeyUnknown, "wrong credentials: it answered AUTH_FAILED: no",
					"`parley keys export-public hub --protocol samvad`"},
				"uagents": {parley.ByPeer, parley.PeerForbids, "it answered 401", "permit the call"},
				"a2e":     {parley.ByPeer, parley.WrongToken, "wrong credentials: it answered auth_failed", "a2e.token_file"},
			}},
		{"403", says(403, `{}`), false, false, map[string]why{
			"samvad":  {parley.ByPeer, parley.PeerRole, "it answered 403: AUTH_FAILED", "trust tier of the hub is too weak"},
			"uagents": {parley.ByPeer, parley.PeerForbids, "it answered 403", "permit the call"},
			"a2e":     {parley.ByPeer, parley.WrongToken, "wrong credentials", "a2e.token_file"},
		}},
		{"its rate limit", says(429, `{}`), false, false,
			every(why{parley.ByPeer, parley.PeerRate, "it answered", "NAME's own rate limit"})},
		{"its answer is too large", says(200, strings.Repeat(" ", 10<<20)), false, false, map[string]why{
			"samvad":  {parley.ByLimit, parley.PeerAnswerLarge, "larger than 8388608 bytes", "answer with less"},
			"uagents": {parley.ByLimit, parley.PeerAnswerLarge, "larger than limits.body allows", "limits.body"},
		}},
		{"its answer is another protocol's", says(200, `["hello"]`), false, false, map[string]why{
			"samvad":  {parley.ByPeer, parley.PeerAnswer, "its answer is not understood", "`parley doctor NAME`"},
			"uagents": {parley.ByPeer, parley.PeerAnswer, "its answer is not understood", "`parley doctor NAME`"},
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			at := "http://" + closed
			var asked atomic.Int64
			if fault.handler != nil {
				s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/agent/message" || r.URL.Path == "/submit" { // A2E asks for tools besides
						asked.Add(1)
					}
					fault.handler.ServeHTTP(w, r)
				}))
				s.Config.ErrorLog = log.New(io.Discard, "", 0)
				if fault.tls {
					s.StartTLS()
				} else {
					s.Start()
				}
				t.Cleanup(s.Close)
				at = s.URL
			}
			n := faultyWorld(t, at, fault.guarded)
			for protocol, want := range fault.want {
				asked.Store(0)
				checkCause(t, n, protocol, want)
				if got := asked.Load(); fault.name == "its answer is too large" && got != 1 {
					t.Errorf("%s: the agent was asked %d times", protocol, got)
				}
			}
		})
	}
}

// faultyWorld is a hub with an agent of each protocol at one address.
func faultyWorld(t *testing.T, at string, guarded bool) *node.Node {
	t.Helper()
	id, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	c := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "memory",
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Agents: map[string]node.Agent{
			"samvad":  {SAMVAD: &node.SAMVADAgent{URL: at, ID: "agent://faulty.test"}},
			"uagents": {UAgents: &node.UAgent{Address: id.Address(), Endpoint: at + "/submit"}},
			"a2e":     {A2E: &node.A2EAgent{URL: at}},
		}}
	if !guarded {
		c.Network.Allow = []string{"loopback"}
	}
	n, err := node.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.Handle(parley.Agent{Name: "scout"}, parley.RawSkill("x",
		func(context.Context, *parley.Message, parley.Replier) error { return nil })); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// checkCause asks an agent and looks at the cause in the answer, and in the API.
func checkCause(t *testing.T, n *node.Node, agent string, want why) {
	t.Helper()
	m := &parley.Message{Kind: parley.Request, From: "scout", To: agent, Skill: "chat",
		Parts:  []parley.Part{{MediaType: "application/json", Data: []byte(`{"text":"hello"}`)}},
		Origin: parley.Origin{Protocol: "go", Peer: "scout", Verdict: parley.Verdict{Assurance: parley.Session}}}
	reply, err := n.Hub().Ask(t.Context(), hub.Submission{Scope: "go test", Message: m})
	if err != nil || reply.Kind != parley.Failure {
		t.Errorf("%s: %+v, %v", agent, reply, err)
		return
	}
	e := reply.Error
	if e.Source != want.source || e.Reason != want.reason || !strings.Contains(e.Detail, want.detail) {
		t.Errorf("%s: %v: %s %s %q\nwant %s %s %q", agent, e, e.Source, e.Reason, e.Detail, want.source, want.reason,
			want.detail)
	}
	by := admin.Actor{Name: "test", Role: admin.Administer}
	r, err := n.Admin().Message(t.Context(), by, m.ID.String(), false)
	if err != nil || len(r.Deliveries) != 1 {
		t.Errorf("%s: %+v, %v", agent, r.Deliveries, err)
		return
	}
	d := r.Deliveries[0]
	if d.State != parley.Answered || d.Attempts != 1 || d.Error == nil || d.Error.Source != want.source ||
		d.Error.Reason != want.reason || !strings.Contains(d.Error.Detail, want.detail) {
		t.Errorf("%s: the API has %s after %d attempts: %+v", agent, d.State, d.Attempts, d.Error)
	}
	if advice := strings.ReplaceAll(want.advice, "NAME", agent); !strings.Contains(r.Advice[agent], advice) {
		t.Errorf("%s: advice %q, want %q in it", agent, r.Advice[agent], advice)
	}
	by.Role = admin.Observe
	if r, err = n.Admin().Message(t.Context(), by, m.ID.String(), false); err != nil {
		t.Error(err)
	} else if e := r.Deliveries[0].Error; e.Text != "" || e.Detail != "" || e.Reason != want.reason {
		t.Errorf("%s: an observer sees %+v", agent, e)
	}
}

// TestSAMVADCodesHaveReasons asks a SAMVAD agent that answers with each code.
func TestSAMVADCodesHaveReasons(t *testing.T) {
	t.Parallel()
	var code atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"status":"error","error":{"code":%q,"message":"not so"}}`, code.Load())
	}))
	t.Cleanup(s.Close)
	n := faultyWorld(t, s.URL, false)
	for _, c := range []samvad.Code{samvad.CodeAuthFailed, samvad.CodeReplayDetected, samvad.CodeSkillNotFound,
		samvad.CodeSchemaInvalid, samvad.CodeInjectionDetected, samvad.CodeDelegationExceeded,
		samvad.CodeAgentUnavailable, samvad.CodeTimestampExpired, samvad.CodeNotFound} {
		want := bridge.PeerReasons["samvad"][string(c)]
		if want == "" {
			t.Errorf("%s: no reason", c)
		}
		code.Store(string(c))
		checkCause(t, n, "samvad", why{parley.ByPeer, want, "it answered " + string(c) + ": not so", "samvad"})
	}
}
