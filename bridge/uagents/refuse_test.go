package uagents_test

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// postRaw sends a body unchanged.
func (w *world) postRaw(method, path, contentType, body string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequest(method, w.base+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b := new(strings.Builder)
	if _, err := io.Copy(b, resp.Body); err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}

// TestRefusals: malformed and refused requests are answered in the reference's words, and
// the hub goes on serving.
func TestRefusals(t *testing.T) {
	w := newWorld(t, node.Config{})
	echo, alice := w.address("crew/echo"), identity(t)
	good := func() *uagents.Envelope {
		return w.envelope(alice, echo, "", echoModel().Message(EchoRequest{"x"}))
	}
	sign := func(e *uagents.Envelope) *uagents.Envelope {
		t.Helper()
		if err := e.Sign(alice); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, c := range []struct {
		name   string
		e      func() *uagents.Envelope
		status int
		text   string
	}{
		{"UAG-043 unsigned", func() *uagents.Envelope { e := good(); e.Signature = nil; return e }, 400,
			"Envelope signature is missing"},
		{"UAG-044 wrong key", func() *uagents.Envelope { e := good(); e.Sender = identity(t).Address(); return e }, 400,
			"Signature verification failed"},
		{"UAG-035 expired", func() *uagents.Envelope {
			e := good()
			e.Expires = uagents.Uint(uint64(time.Now().Add(-time.Minute).Unix()))
			return sign(e)
		}, 400, "Envelope has expired"},
		{"UAG-034 horizon", func() *uagents.Envelope {
			e := good()
			e.Expires = uagents.Uint(uint64(time.Now().Add(48 * time.Hour).Unix()))
			return sign(e)
		}, 400, "too far ahead"},
		{"lone nonce", func() *uagents.Envelope {
			e := good()
			e.Expires, e.Nonce = "", "7"
			return sign(e)
		}, 400, "ambiguous"},
		{"UAG-033 schema digest grammar", func() *uagents.Envelope {
			e := good()
			e.SchemaDigest += "00"
			return sign(e)
		}, 400, "Invalid schema digest"},
		{"UAG-066 null payload", func() *uagents.Envelope {
			e := good()
			e.Payload = nil
			return sign(e)
		}, 400, "does not conform"},
		{"UAG-064 chat with unknown keys", func() *uagents.Envelope {
			e := good()
			e.SchemaDigest = uagents.ChatMessageDigest
			p := base64.StdEncoding.EncodeToString([]byte(`{"timestamp":"2026-01-02T03:04:05+00:00","msg_id":"0f8fad5b-d9cb-469f-a165-70867728950e","content":[],"more":1}`))
			e.Payload = &p
			return sign(e)
		}, 400, "does not conform"},
		{"UAG-045 unknown target",
			func() *uagents.Envelope { e := good(); e.Target = identity(t).Address(); return sign(e) }, 400,
			"unable to route envelope"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, h := w.post(c.e(), false)
			if status != c.status || !strings.Contains(body, c.text) || h.Get(uagents.RefHeader) == "" {
				t.Errorf("HTTP %d %s %s", status, body, h)
			}
		})
	}
	for _, c := range []struct {
		name, method, path, contentType, body string
		status                                int
		text                                  string
	}{
		{"UAG-039", "POST", "/submit", "text/plain", "{}", 400, "invalid content-type"},
		{"UAG-040", "POST", "/submit", "", "{}", 400, "missing header: content-type"},
		{"UAG-041", "POST", "/submit", "application/json", "", 400, "empty or invalid payload"},
		{"UAG-042", "POST", "/submit", "application/json", "[]", 400, "contents do not match envelope schema"},
		{"UAG-046", "POST", "/submit/", "application/json", "{}", 404, "not found"},
		{"UAG-048", "OPTIONS", "/submit", "", "", 204, ""},
		{"UAG-049", "POST", "/submit", "application/json", strings.Repeat("[", 100_000), 400, ""},
		{"UAG-070 an unknown agent", "GET", "/v1/almanac/agents/" + alice.Address(), "", "", 404, ""},
		{"UAG-073 a mailbox without a token", "GET", "/v2/agents/" + alice.Address() + "/mailbox", "", "", 401, ""},
		{"UAG-080 a challenge for nobody", "GET", "/v2/identity/" + alice.Address() + "/challenge", "", "", 401, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, body := w.postRaw(c.method, c.path, c.contentType, c.body); status != c.status ||
				!strings.Contains(body, c.text) {
				t.Errorf("HTTP %d %s", status, body)
			}
		})
	}
	if r, err := w.client(alice).Ask(t.Context(), echo, echoModel().Message(EchoRequest{"still here"})); err != nil ||
		!strings.Contains(string(r.Payload), "still here") {
		t.Error(err)
	}
}

// TestLegacy: the switches let envelopes of agents with broken clocks pass.
func TestLegacy(t *testing.T) {
	w := newWorld(t, node.Config{UAgents: node.UAgents{Legacy: true, Nonce: true}})
	alice := identity(t)
	for _, change := range []func(*uagents.Envelope){
		func(e *uagents.Envelope) { e.Expires = uagents.Uint(uint64(time.Now().Add(-time.Hour).Unix())) },
		func(e *uagents.Envelope) { e.Expires, e.Nonce = "", "7" },
	} {
		e := w.envelope(alice, w.address("crew/echo"), "", echoModel().Message(EchoRequest{"late"}))
		change(e)
		if err := e.Sign(alice); err != nil {
			t.Fatal(err)
		}
		before := w.calls.Load()
		if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
			t.Fatal(status, body)
		}
		waitFor(t, func() bool { return w.calls.Load() > before })
	}
}

// TestNative: between two uAgents the hub forwards the envelope unchanged, and so the
// answer to a waiting sender.
func TestNative(t *testing.T) {
	w := newWorld(t, node.Config{})
	bob := w.newPeer(func(_ context.Context, r *uagents.Request) (uagents.Response, error) {
		return uagents.Answer(uagents.Message{Schema: r.SchemaDigest, Payload: r.Content.Payload}), nil
	})
	alice := w.newPeer(nil)
	e := w.envelope(alice.Identity, bob.Address(), "", echoModel().Message(EchoRequest{"as it is"}))
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if status, body, _ := w.post(e, false); status != 200 || body != "{}" {
		t.Fatal(status, body)
	}
	if r := bob.next(t); string(r.Raw()) != string(raw) {
		t.Errorf("%s is not %s", r.Raw(), raw)
	}
	alice.next(t) // bob's answer, past the hub
	e = w.envelope(alice.Identity, bob.Address(), "", echoModel().Message(EchoRequest{"sync"}))
	status, body, _ := w.post(e, true)
	answer, err := uagents.Decode([]byte(body))
	if err != nil || status != 200 || answer.Sender != bob.Address() || answer.VerifySignature() != nil {
		t.Fatalf("HTTP %d %s, %v", status, body, err)
	}
}

// TestKeyEnd: a digest is remembered as long as its envelope may be accepted, to the last
// moment, also at the horizon (UAG-034, UAG-035). The refusal of the expired envelope is
// recorded once, also for later duplicates.
func TestKeyEnd(t *testing.T) {
	const skew = 5 * time.Second
	for _, life := range []time.Duration{20 * time.Minute, 24 * time.Hour} {
		h := &testClock{now: time.Now().Truncate(time.Second)}
		w := newWorld(t, node.Config{Now: h.Now})
		alice := identity(t)
		e := w.envelope(alice, w.address("crew/echo"), "", echoModel().Message(EchoRequest{"once"}))
		e.Expires = uagents.Uint(uint64(h.Now().Add(life).Unix()))
		if err := e.Sign(alice); err != nil {
			t.Fatal(err)
		}
		post := func(when string, sync bool, want int) {
			t.Helper()
			if status, body, _ := w.post(e, sync); status != want {
				t.Errorf("lives %s, %s: HTTP %d %s, want %d", life, when, status, body, want)
			}
			if n := w.calls.Load(); n != 1 {
				t.Fatalf("lives %s, %s: the handler was called %d times", life, when, n)
			}
		}
		post("new", true, 200)
		post("again", true, 200)
		h.move(life + skew)
		post("at the last moment", true, 200)
		h.move(bridge.ClockMargin + time.Second)
		post("after the key ended", false, 400)
		var refused atomic.Int64
		stop := w.Hub().Journal().Watch(func(r *journal.Record) {
			if r.Refused != nil {
				refused.Add(1)
			}
		})
		for range 3 {
			h.move(time.Second)
			post("again", false, 400)
		}
		stop()
		if n := refused.Load(); n != 0 {
			t.Errorf("lives %s: %d more records of the expired envelope", life, n)
		}
	}
}
