package samvad_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// requests gives the recorded requests of SAMVAD senders, the oldest first.
func (w *world) requests() (out []*parley.Message) {
	w.t.Helper()
	for p := range w.Hub().Journal().Partitions() {
		for r, err := range w.Hub().Journal().Records(w.t.Context(), p, journal.From{}) {
			if err != nil {
				w.t.Fatal(err)
			}
			if m := r.Message; m != nil && m.Kind == parley.Request && m.Origin.Protocol == "samvad" {
				out = append(out, m)
			}
		}
	}
	return out
}

// recordedToken gives the digest in place of the token in a recorded envelope.
func recordedToken(t *testing.T, raw []byte) string {
	t.Helper()
	var e struct{ Auth struct{ Token string } }
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	return e.Auth.Token
}

// TestTokenDigests: a digest stands for the token in the record, one for each token
// and hub. All other bytes are those of the sender, also where the payload has the
// token.
func TestTokenDigests(t *testing.T) {
	var digests []string
	for range 2 { // hubs
		w := newWorld(t, node.Config{})
		var sent [][]byte
		for _, token := range []string{"aeiou-0123456789", "aeiou-0123456789", "uoiea-0123456789"} {
			call := w.echo("echo")
			call.Auth = &samvad.Auth{Scheme: "bearer", Token: token}
			call.Payload = []byte(`{"text":"` + token + `", "auth":{"token":"` + token + `"}}`)
			h, body := w.signed(w.alice, call, samvad.ModeSync)
			if status, code, _ := w.post(message, h, body); status != http.StatusOK {
				t.Fatal(status, code)
			}
			sent = append(sent, body)
		}
		for i, m := range w.requests() {
			digest := recordedToken(t, m.Origin.Raw)
			if !strings.HasPrefix(digest, "hmac-sha256:") || len(digest) != len("hmac-sha256:")+43 {
				t.Errorf("the token was recorded as %q", digest)
			}
			before := bytes.Replace(m.Origin.Raw, []byte(digest), []byte(recordedToken(t, sent[i])), 1)
			if !bytes.Equal(before, sent[i]) {
				t.Errorf("more than the token was changed:\n%s\n%s", sent[i], m.Origin.Raw)
			}
			if s := string(m.Parts[0].Data); !strings.Contains(string(sent[i]), s) {
				t.Errorf("the content is %s", s)
			}
			if s := string(m.Extensions["samvad"]); s != `{"auth":{"token":"replaced"}}` {
				t.Errorf("the extension is %s", s)
			}
			if w.SAMVAD().Masked(m) != m {
				t.Error("a message without a token was changed")
			}
			digests = append(digests, digest)
		}
	}
	if d := digests; len(d) != 6 || d[0] != d[1] || d[0] == d[2] || d[0] == d[3] || d[3] != d[4] || d[3] == d[5] {
		t.Errorf("the digests are %q", digests)
	}
}

// TestTokenOfAnUnsignedRequest: the token of an unsigned request is replaced too.
func TestTokenOfAnUnsignedRequest(t *testing.T) {
	w := newWorld(t, node.Config{SAMVAD: node.SAMVAD{Lightweight: []string{"crew/echo.echo"}},
		Policy: node.Policy{Assurance: "unsigned"}})
	body := []byte(`{"skill":"echo","auth":{"token":"aeiou-0123456789"},"payload":{"text":"hi"}}`)
	status, code, _ := w.post(message, http.Header{"Content-Type": {"application/json"}}, body)
	if status != http.StatusOK {
		t.Fatal(status, code)
	}
	all := w.requests()
	if len(all) != 1 {
		t.Fatalf("%d requests are recorded", len(all))
	}
	m := all[0]
	if !strings.HasPrefix(recordedToken(t, m.Origin.Raw), "hmac-sha256:") ||
		string(m.Parts[0].Data) != `{"text":"hi"}` {
		t.Errorf("%s with %s", m.Origin.Raw, m.Parts[0].Data)
	}
}

// TestTokenIsPassedOn: an agent elsewhere gets the token from a record of this
// version or of an earlier one. It never gets a digest for a token.
func TestTokenIsPassedOn(t *testing.T) {
	const token = "aeiou-0123456789"
	w := newWorld(t, node.Config{})
	var auth []*samvad.Auth
	w.agentElsewhereNamed("elsewhere", func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
		auth = append(auth, r.Auth)
		return samvad.Response{}, nil
	})
	call := samvad.Call{URL: w.base + "/agents/elsewhere", Skill: "ask", Nonce: "nonce-01",
		Auth: &samvad.Auth{Scheme: "bearer", Token: token}}
	if _, err := w.client.Ask(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	all := w.requests()
	if len(all) != 1 {
		t.Fatalf("%d requests are recorded", len(all))
	}
	recorded := all[0]
	const masked = `{"auth":{"token":"replaced"}}`
	shown := w.SAMVAD().Masked(recorded)
	if string(shown.Extensions["samvad"]) != masked || !bytes.Equal(shown.Origin.Raw, recorded.Origin.Raw) {
		t.Errorf("it is shown as %s with %s", shown.Origin.Raw, shown.Extensions["samvad"])
	}
	if s := string(recorded.Extensions["samvad"]); !strings.Contains(s, `"sealed":`) || strings.Contains(s, token) {
		t.Errorf("the record keeps the token as %s", s)
	}
	entry, _ := w.Hub().Directory().Agent("elsewhere")
	identity, _ := entry.Identity("samvad")
	digest := recordedToken(t, recorded.Origin.Raw)
	for name, c := range map[string]struct {
		change func(m *parley.Message)
		token  string // "": none is sent
		code   parley.Code
	}{
		"as it was recorded": {func(*parley.Message) {}, token, ""},
		"recorded by an earlier version": {func(m *parley.Message) {
			m.Origin.Raw = bytes.Replace(m.Origin.Raw, []byte(digest), []byte(token), 1)
			m.Extensions = map[string]json.RawMessage{"samvad": json.RawMessage(`{"auth":true}`)}
			shown := w.SAMVAD().Masked(m)
			if recordedToken(t, shown.Origin.Raw) != digest || string(shown.Extensions["samvad"]) != masked {
				t.Errorf("it is shown as %s with %s", shown.Origin.Raw, shown.Extensions["samvad"])
			}
		}, token, ""},
		"recorded for an agent of the hub": {func(m *parley.Message) {
			m.Extensions = map[string]json.RawMessage{"samvad": json.RawMessage(masked)}
		}, "", ""},
		"sealed for another message": {func(m *parley.Message) {
			m.Origin.Raw = bytes.Replace(m.Origin.Raw, []byte("nonce-01"), []byte("nonce-02"), 1)
		}, "", parley.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			auth = nil
			m := *recorded
			c.change(&m)
			o := w.SAMVAD().Deliver(t.Context(),
				hub.Outbound{Message: &m, Recipient: entry, Identity: identity, Attempt: 1, Waits: true})
			if c.code != "" {
				if o.Failure == nil || o.Failure.Code != c.code || len(auth) != 0 {
					t.Errorf("%+v", o)
				}
				return
			}
			if o.Err != nil || o.Failure != nil || len(auth) != 1 {
				t.Fatalf("%+v", o)
			}
			if c.token == "" {
				if auth[0] != nil {
					t.Errorf("the agent elsewhere had %+v", auth[0])
				}
			} else if got := auth[0]; got == nil || *got != (samvad.Auth{Scheme: "bearer", Token: c.token}) {
				t.Errorf("the agent elsewhere had %+v", got)
			}
		})
	}
}

// Callers without a token reach an authenticated skill elsewhere by the token that
// the operator configured, and by a delegation of the hub's own: narrow, short, and
// in no record. A sender's own token takes precedence.
func TestConfiguredCredentials(t *testing.T) {
	c := newClock()
	w := newWorld(t, node.Config{Now: c.now})
	w.client.Now = c.now
	var seen *samvad.Request
	w.agentElsewhereNamed("elsewhere", func(_ context.Context, r *samvad.Request) (samvad.Response, error) {
		seen = r
		return samvad.Response{}, nil
	})
	const secret = "the-operators-token"
	w.SAMVAD().SetCredentials("elsewhere", samvadbridge.Credentials{Token: secret, Delegate: true})
	if m, err := w.Hub().Ask(t.Context(), submission("elsewhere")); err != nil || m.Kind != parley.Response {
		t.Fatalf("%+v, %v", m, err)
	}
	if seen.Auth == nil || *seen.Auth != (samvad.Auth{Scheme: "bearer", Token: secret}) {
		t.Errorf("auth: %+v", seen.Auth)
	}
	hub := w.SAMVAD().Hosting()
	key, err := samvad.ParseKey(hub.Key)
	if err != nil {
		t.Fatal(err)
	}
	d, err := samvad.VerifyDelegation(t.Context(), seen.DelegationToken, samvad.StaticKeys{hub.Identity: {key}},
		c.now())
	if err != nil || d.Issuer != hub.Identity || d.Subject != hub.Identity || d.MaxDepth != 1 || len(d.Scope) != 1 ||
		d.Scope[0] != "ask" ||
		d.Expires.After(c.now().Add(15*time.Minute)) {
		t.Errorf("%+v, %v", d, err)
	}
	own := samvad.Call{URL: w.base + "/agents/elsewhere", Skill: "ask",
		Auth: &samvad.Auth{Scheme: "bearer", Token: "the-senders-token"}}
	if _, err := w.client.Ask(t.Context(), own); err != nil || seen.Auth.Token != "the-senders-token" {
		t.Errorf("%+v, %v", seen.Auth, err)
	}
	for p := range w.Hub().Journal().Partitions() {
		for r, err := range w.Hub().Journal().Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if m := r.Message; m != nil {
				text := fmt.Sprintf("%s %s %v %s", m.Origin.Raw, m.Extensions, m.Origin.Header, m.Parts)
				if strings.Contains(text, secret) || strings.Contains(text, seen.DelegationToken) {
					t.Errorf("a record holds it: %s", text)
				}
			}
		}
	}
	w.SAMVAD().SetCredentials("elsewhere", samvadbridge.Credentials{})
	if _, err := w.Hub().Ask(t.Context(), submission("elsewhere")); err != nil || seen.Auth != nil ||
		seen.DelegationToken != "" {
		t.Errorf("%+v, %v", seen.Envelope, err)
	}
}
