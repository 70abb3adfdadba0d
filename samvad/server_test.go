package samvad

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley/internal/memhttp"
	"github.com/parley-hub/parley/internal/netguard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one agent with a sender that it knows, on a clock of its own.
type world struct {
	t     testing.TB
	clk   *clock
	me    *Identity // the sender
	agent *Agent
	srv   *Server
	n     int
}

const worldID = "agent://self.test"

var epoch = time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC)

func identity(t testing.TB, id, kid string, seed byte) *Identity {
	t.Helper()
	i, err := IdentityFromSeed(id, kid, bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func newWorld(t testing.TB, change ...func(*world)) *world {
	t.Helper()
	w := &world{t: t, clk: newClock(epoch), me: identity(t, "agent://peer.test", "peer-key", 1)}
	self := identity(t, worldID, "self-key", 2)
	all := []Mode{ModeSync, ModeAsync, ModeStream}
	skill := func(id string, trust Trust, schema string, modes ...Mode) Skill {
		return Skill{ID: id, Name: id, Description: id, Trust: trust, InputSchema: json.RawMessage(schema),
			Modes: modes}
	}
	const text = `{"type":"object","properties":{"text":{"type":"string","maxLength":50},"n":{"type":"integer"}},"required":["text"],"additionalProperties":false}`
	card := &Card{
		ID: worldID, Name: "Self", Description: "d", URL: "https://self.test",
		RateLimit:  &RateLimit{RequestsPerMinute: 1000, RequestsPerSender: 1000},
		PublicKeys: []CardKey{CardKeyOf(self, true)},
		Skills: []Skill{
			skill("echo", TrustPublic, text, all...), skill("secure", TrustAuthenticated, `{}`, ModeSync),
			skill("peers", TrustPeers, `{}`, ModeSync),
			skill("fail", TrustPublic, `{}`, all...),
		},
	}
	card.Skills[2].AllowedPeers = []string{"agent://friend.test"}
	w.agent = &Agent{Card: card, Identity: self, Handler: func(_ context.Context, r *Request) (Response, error) {
		if r.Skill.ID == "fail" {
			return Response{}, errors.New("secret internals")
		}
		return Response{Result: json.RawMessage(`{"got":` + string(r.Payload) + `}`)}, nil
	}}
	w.srv = &Server{Agent: w.agent, Verifier: &Verifier{Keys: StaticKeys{w.me.ID(): {w.me.Key()}}, Now: w.clk.now}}
	for _, c := range change {
		c(w)
	}
	t.Cleanup(func() { _ = w.srv.Close(context.Background()) })
	return w
}

// envelope gives a fresh envelope with changes; a nil value takes a member out.
func (w *world) envelope(change map[string]any) []byte {
	w.t.Helper()
	w.n++
	m := map[string]any{
		"from": w.me.ID(), "to": worldID, "skill": "echo", "mode": "sync", "nonce": fmt.Sprintf("nonce-%08d", w.n),
		"timestamp": formatTimestamp(w.clk.now()), "traceId": "trace-1", "spanId": "span-1",
		"payload": map[string]any{"text": "hi"},
	}
	for k, v := range change {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) serve(r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	w.srv.ServeHTTP(rec, r)
	return rec
}

// post signs a body as the sender and posts it.
func (w *world) post(target string, body []byte) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.serve(signedRequest(w.t, w.me, target, body, w.clk.now()))
}

func (w *world) get(target string) *httptest.ResponseRecorder {
	return w.serve(httptest.NewRequest(http.MethodGet, target, nil))
}

func (w *world) want(rec *httptest.ResponseRecorder, status int, code Code) {
	w.t.Helper()
	var body struct {
		TraceID string
		Error   *struct{ Code Code }
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
		w.t.Fatalf("answer is no JSON: %q", rec.Body)
	}
	var got Code
	if body.Error != nil {
		got = body.Error.Code
		if err := ResponseDocument.Validate(rec.Body.Bytes()); err != nil {
			w.t.Errorf("SAM-112: %v", err)
		}
	}
	if rec.Code != status || got != code {
		w.t.Errorf("got %d %s, want %d %s: %s", rec.Code, got, status, code, rec.Body)
	}
}

func TestEndpoints(t *testing.T) {
	w := newWorld(t)
	t.Run("SAM-001 all seven endpoints", func(t *testing.T) {
		task := w.post("/agent/task", w.envelope(map[string]any{"mode": "async"}))
		var accepted struct{ TaskID, Status string }
		into(t, task.Body.Bytes(), &accepted)
		if task.Code != 202 || accepted.Status != "accepted" || len(accepted.TaskID) != 36 {
			t.Errorf("task: %d %s", task.Code, task.Body)
		}
		for _, c := range []struct {
			name, media string
			status      int
			rec         *httptest.ResponseRecorder
		}{
			{"card", "application/json", 200, w.get("/.well-known/agent.json")},
			{"intro", "text/markdown", 200, w.get("/agent/intro")},
			{"health", "application/json", 200, w.get("/agent/health")},
			{"message", "application/json", 200, w.post("/agent/message", w.envelope(nil))},
			{"stream", "text/event-stream", 200, w.post("/agent/stream", w.envelope(nil))},
			{"task status", "application/json", 200, w.get("/agent/task/" + accepted.TaskID)},
		} {
			if c.rec.Code != c.status || !strings.HasPrefix(c.rec.Header().Get("Content-Type"), c.media) {
				t.Errorf("%s: %d %s", c.name, c.rec.Code, c.rec.Header().Get("Content-Type"))
			}
		}
	})
	t.Run("SAM-002 SAM-003 card", func(t *testing.T) {
		rec := w.get("/.well-known/agent.json")
		if err := CardDocument.Validate(rec.Body.Bytes()); err != nil {
			t.Error(err)
		}
		var m map[string]any
		into(t, rec.Body.Bytes(), &m)
		for _, name := range []string{"specializations", "models", "auth", "rateLimit", "cardTTL", "endpoints"} {
			if m[name] == nil {
				t.Errorf("member %s is missing", name)
			}
		}
		if n := len(m["endpoints"].(map[string]any)); n != 6 {
			t.Errorf("%d endpoints", n)
		}
		if got := rec.Header().Get("Cache-Control"); got != "public, max-age=300" {
			t.Errorf("Cache-Control %q", got)
		}
		ttl := 42
		other := newWorld(t, func(w *world) { w.agent.Card.CardTTL = &ttl })
		if got := other.get("/x/.well-known/agent.json").Header().Get("Cache-Control"); got != "public, max-age=42" {
			t.Errorf("Cache-Control %q", got)
		}
	})
	t.Run("SAM-006 health", func(t *testing.T) {
		w.clk.move(1500 * time.Millisecond)
		var m map[string]any
		into(t, w.get("/agent/health").Body.Bytes(), &m)
		if up, ok := m["uptime"].(float64); m["status"] != "ok" || m["protocolVersion"] != "1.2" ||
			m["agentVersion"] != "1.0.0" || !ok || up < 1.5 {
			t.Errorf("health %v", m)
		}
	})
	t.Run("SAM-007 intro", func(t *testing.T) {
		rec := w.get("/agent/intro")
		if ct := rec.Header().Get("Content-Type"); ct != "text/markdown; charset=utf-8" ||
			!strings.Contains(rec.Body.String(), "# Self") {
			t.Errorf("%s: %s", ct, rec.Body)
		}
	})
	t.Run("unknown route and method: JSON envelopes", func(t *testing.T) {
		w.want(w.get("/agent/nope"), 404, CodeSchemaInvalid)
		w.want(w.get("/agent/message"), 405, CodeSchemaInvalid)
		w.want(w.serve(httptest.NewRequest(http.MethodDelete, "/agent/task/x", nil)), 405, CodeSchemaInvalid)
		w.want(w.serve(httptest.NewRequest(http.MethodPost, "/agent/health", nil)), 405, CodeSchemaInvalid)
	})
}

func TestCardRules(t *testing.T) {
	key := CardKeyOf(identity(t, worldID, "k", 1), true)
	card := func(change func(*Card)) *Card {
		c := &Card{ID: worldID, Name: "n", URL: "https://self.test", PublicKeys: []CardKey{key},
			Skills: []Skill{{ID: "a", Name: "a", Modes: []Mode{ModeSync}, Trust: TrustPublic}}}
		change(c)
		return c
	}
	for name, change := range map[string]func(*Card){ // SAM-004
		"skill twice":     func(c *Card) { c.Skills = append(c.Skills, c.Skills[0]) },
		"kid twice":       func(c *Card) { c.PublicKeys = append(c.PublicKeys, key) },
		"no active key":   func(c *Card) { c.PublicKeys = []CardKey{{KID: "k", Key: key.Key}} },
		"small-order key": func(c *Card) { c.PublicKeys[0].Key = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" },
		"no skill":        func(c *Card) { c.Skills = nil },
		"identity":        func(c *Card) { c.ID = "agent://self.test/x" },
		"mode":            func(c *Card) { c.Skills[0].Modes = []Mode{"batch"} },
	} {
		if _, err := card(change).Encode(); !errors.Is(err, ErrCard) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// SAM-005
	for trust, want := range map[Trust]string{TrustPublic: `{"schemes":["none"]}`,
		TrustAuthenticated: `{"schemes":["bearer","none"]}`} {
		b, err := card(func(c *Card) { c.Skills[0].Trust = trust }).Encode()
		if err != nil || !strings.Contains(string(b), `"auth":`+want) {
			t.Errorf("%s: %s, %v", trust, b, err)
		}
	}
}

func TestPaths(t *testing.T) {
	w := newWorld(t)
	t.Run("SAM-021 the query is not signed", func(t *testing.T) {
		w.want(w.post("/agent/message?x=1", w.envelope(nil)), 200, "")
	})
	t.Run("SAM-022 prefix: full path and suffix verify", func(t *testing.T) {
		w.want(w.post("/a/bob/agent/message", w.envelope(nil)), 200, "")
		r := signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now())
		r2 := httptest.NewRequest(http.MethodPost, "/a/bob/agent/message", r.Body)
		r2.Header = r.Header
		w.want(w.serve(r2), 200, "")
		// Another prefix's path does not.
		r = signedRequest(t, w.me, "/a/eve/agent/message", w.envelope(nil), w.clk.now())
		r2 = httptest.NewRequest(http.MethodPost, "/a/bob/agent/message", r.Body)
		r2.Header = r.Header
		w.want(w.serve(r2), 401, CodeAuthFailed)
	})
	t.Run("SAM-022 prefix removed by a proxy", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.srv.Verifier.Prefix = "/hub/" })
		r := signedRequest(t, w.me, "/hub/agent/message", w.envelope(nil), w.clk.now())
		r2 := httptest.NewRequest(http.MethodPost, "/agent/message", r.Body)
		r2.Header = r.Header
		w.want(w.serve(r2), 200, "")
	})
	t.Run("SAM-023 no redirect", func(t *testing.T) {
		srv := httptest.NewServer(w.srv)
		defer srv.Close()
		body := w.envelope(nil)
		sig, err := Sign(w.me, http.MethodPost, "//agent/message", body, w.clk.now())
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequest(http.MethodPost, srv.URL+"//agent/message", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		sig.Set(r.Header)
		c := srv.Client()
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
			t.Errorf("%d %s", resp.StatusCode, b)
		}
	})
	t.Run("many agents by prefix and host", func(t *testing.T) {
		var seen []string
		w := newWorld(t)
		w.srv.Resolve = func(r *http.Request, prefix string) *Agent {
			seen = append(seen, r.Host+" "+prefix)
			if prefix == "/a/self" || r.Host == "self.test" {
				return w.agent
			}
			return nil
		}
		w.want(w.post("/a/self/agent/message", w.envelope(nil)), 200, "")
		w.want(w.post("/a/other/agent/message", w.envelope(nil)), 404, CodeSchemaInvalid)
		r := signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now())
		r.Host = "self.test"
		w.want(w.serve(r), 200, "")
		if got := strings.Join(seen, ","); got != "example.com /a/self,example.com /a/other,self.test " {
			t.Errorf("asked for %q", got)
		}
	})
}

func TestEnvelopeRules(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"from", "to", "skill", "mode", "nonce", "timestamp", "traceId", "spanId"} {
		t.Run("SAM-030 missing "+name, func(t *testing.T) {
			w.want(w.post("/agent/message", w.envelope(map[string]any{name: nil})), 400, CodeSchemaInvalid)
		})
	}
	raw := func(b []byte) *httptest.ResponseRecorder { return w.post("/agent/message", b) }
	for _, c := range []struct {
		name   string
		body   []byte
		status int
		code   Code
	}{
		{"SAM-031 extra member", w.envelope(map[string]any{"extension": 1}), 200, ""},
		{"SAM-032 case variant", w.envelope(map[string]any{"From": "agent://bob.test", "SKILL": "fail"}), 200, ""},
		{"SAM-032 duplicate", bytes.Replace(w.envelope(nil), []byte(`"skill"`), []byte(`"skill":"fail","skill"`), 1),
			400, CodeSchemaInvalid},
		{"SAM-033 array", []byte(`[]`), 400, CodeSchemaInvalid},
		{"SAM-033 null", []byte(`null`), 400, CodeSchemaInvalid},
		{"SAM-033 malformed", []byte(`{oops`), 400, CodeSchemaInvalid},
		{"SAM-033 empty", nil, 400, CodeSchemaInvalid},
		{"SAM-033 BOM", append([]byte("\xef\xbb\xbf"), w.envelope(nil)...), 400, CodeSchemaInvalid},
		{"SAM-033 invalid UTF-8", bytes.Replace(w.envelope(nil), []byte("hi"), []byte("\xff"), 1), 400,
			CodeSchemaInvalid},
		{"SAM-034 nonce of 7", w.envelope(map[string]any{"nonce": "1234567"}), 400, CodeSchemaInvalid},
		{"SAM-034 nonce of 8 code points", w.envelope(map[string]any{"nonce": "नमस्ते🙏!"}), 200, ""},
		{"SAM-034 nonce of 64 code points", w.envelope(map[string]any{"nonce": strings.Repeat("é", 64)}), 200, ""},
		{"SAM-034 nonce of 65", w.envelope(map[string]any{"nonce": strings.Repeat("x", 65)}), 400, CodeSchemaInvalid},
		{"SAM-035 to another agent", w.envelope(map[string]any{"to": "agent://other.test"}), 400, CodeSchemaInvalid},
		{"SAM-036 from with a path", w.envelope(map[string]any{"from": "agent://peer.test/x"}), 400, CodeSchemaInvalid},
		{"SAM-036 from with user info", w.envelope(map[string]any{"from": "agent://good.com@evil.com"}), 400,
			CodeSchemaInvalid},
		{"SAM-037 nulls", bytes.Replace(w.envelope(nil), []byte(`{"from"`),
			[]byte(`{"parentSpanId":null,"delegationToken":null,"auth":null,"callbackUrl":null,"from"`), 1), 200, ""},
		{"SAM-041 nesting of 999", bytes.Replace(w.envelope(nil), []byte(`"hi"`),
			[]byte(`"hi","zzz":`+strings.Repeat("[", 998)+strings.Repeat("]", 998)), 1), 200, ""},
		{"SAM-041 nesting of 1001", bytes.Replace(w.envelope(nil), []byte(`"hi"`),
			[]byte(`"hi","zzz":`+strings.Repeat("[", 999)+strings.Repeat("]", 999)), 1), 400, CodeSchemaInvalid},
	} {
		t.Run(c.name, func(t *testing.T) { w.t = t; w.want(raw(c.body), c.status, c.code) })
	}
	t.Run("SAM-038 a payload that is null or absent is {}", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.agent.Card.Skills[0].InputSchema = json.RawMessage(`{"type":"object"}`) })
		for _, body := range [][]byte{bytes.Replace(w.envelope(nil), []byte(`{"text":"hi"}`), []byte(`null`), 1),
			w.envelope(map[string]any{"payload": nil})} {
			rec := w.post("/agent/message", body)
			if w.want(rec, 200, ""); !strings.Contains(rec.Body.String(), `"result":{"got":{}}`) {
				t.Errorf("%s: %s", body, rec.Body)
			}
		}
	})
	t.Run("SAM-039 media type", func(t *testing.T) {
		w.t = t
		for ct, status := range map[string]int{"application/json; charset=utf-8": 200, "Application/JSON": 200,
			"text/plain": 415, "": 415, "application/x-www-form-urlencoded": 415} {
			r := signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now())
			r.Header.Set("Content-Type", ct)
			code := CodeSchemaInvalid
			if status == 200 {
				code = ""
			}
			w.want(w.serve(r), status, code)
		}
	})
	t.Run("SAM-040 size", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.srv.Verifier.Limits.MaxBody = 400 })
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
		w.want(w.post("/agent/message", w.envelope(map[string]any{"x": strings.Repeat("x", 400)})), 413,
			CodeSchemaInvalid)
		// Without an announced length as well.
		r := signedRequest(t, w.me, "/agent/message", w.envelope(map[string]any{"x": strings.Repeat("x", 400)}),
			w.clk.now())
		r.ContentLength = -1
		w.want(w.serve(r), 413, CodeSchemaInvalid)
	})
	t.Run("the body is as long as announced", func(t *testing.T) {
		r := signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now())
		r.Body = io.NopCloser(io.MultiReader(r.Body, errReader{}))
		w.t = t
		w.want(w.serve(r), 400, CodeSchemaInvalid)
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// SAM-031, SAM-152: an encoded envelope has no null, no unknown member, and always a
// payload.
func TestEncode(t *testing.T) {
	e := &Envelope{From: "agent://a.test", To: "agent://b.test", Skill: "s", Mode: ModeSync,
		Nonce: "12345678", Timestamp: epoch, TraceID: "t", SpanID: "s"}
	b, err := e.Encode()
	if want := `{"from":"agent://a.test","to":"agent://b.test","skill":"s","mode":"sync","nonce":"12345678","timestamp":"2026-04-11T10:00:00.000Z","traceId":"t","spanId":"s","payload":{}}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	e.ParentSpanID, e.DelegationToken, e.CallbackURL, e.Auth, e.Payload = "p", "d", "https://c.test/",
		&Auth{"bearer", "tok"}, json.RawMessage(`{"n":1.50}`)
	if b, err = e.Encode(); err != nil {
		t.Fatal(err)
	}
	if err := RequestDocument.Validate(b); err != nil {
		t.Error(err)
	}
	d, err := Decode(b)
	if err != nil || d.ParentSpanID != "p" || d.DelegationToken != "d" || d.CallbackURL != "https://c.test/" ||
		d.Auth.Token != "tok" || string(d.Payload) != `{"n":1.50}` {
		t.Errorf("%+v, %v", d, err)
	}
	if &d.Raw()[0] != &b[0] {
		t.Error("Raw is a copy")
	}
	if i := bytes.Index(b, d.Payload); &b[i] != &d.Payload[0] {
		t.Error("Payload is a copy")
	}
	e.Nonce = "short"
	if _, err := e.Encode(); !errors.Is(err, ErrMalformed) {
		t.Errorf("unsendable envelope: %v", err)
	}
}

func TestFreshness(t *testing.T) {
	for _, c := range []struct {
		name   string
		offset time.Duration
		status int
	}{
		{"SAM-050 300.000 s old", -300 * time.Second, 200}, {"SAM-050 300.001 s old",
			-300*time.Second - time.Millisecond, 401},
		{"SAM-051 60.000 s ahead", 60 * time.Second, 200}, {"SAM-051 60.001 s ahead", 60*time.Second + time.Millisecond,
			401},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			code := Code("")
			if c.status != 200 {
				code = CodeAuthFailed
			}
			w.want(w.post("/agent/message",
				w.envelope(map[string]any{"timestamp": formatTimestamp(epoch.Add(c.offset))})), c.status, code)
		})
	}
}

func TestReplay(t *testing.T) {
	t.Run("SAM-052 across endpoints, re-signed", func(t *testing.T) {
		w := newWorld(t)
		body := w.envelope(nil)
		w.want(w.post("/agent/message", body), 200, "")
		for _, p := range []string{"/agent/message", "/agent/task", "/agent/stream"} {
			w.clk.move(time.Second) // it is in the signature
			w.want(w.post(p, body), 401, CodeReplayDetected)
		}
	})
	t.Run("SAM-053 future-dated, after 330 s", func(t *testing.T) {
		w := newWorld(t)
		body := w.envelope(map[string]any{"timestamp": formatTimestamp(epoch.Add(time.Minute))})
		w.want(w.post("/agent/message", body), 200, "")
		for _, s := range []int{301, 330, 360} {
			w.clk.set(epoch.Add(time.Duration(s) * time.Second))
			w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
			w.want(w.post("/agent/message", body), 401, CodeReplayDetected)
		}
		w.clk.set(epoch.Add(361 * time.Second))
		w.want(w.post("/agent/message", body), 401, CodeAuthFailed)
	})
	t.Run("SAM-054 same nonce of two senders", func(t *testing.T) {
		w := newWorld(t)
		other := identity(t, "agent://other.test", "k", 7)
		w.srv.Verifier.Keys.(StaticKeys)[other.ID()] = []Key{other.Key()}
		w.want(w.post("/agent/message", w.envelope(map[string]any{"nonce": "same-nonce"})), 200, "")
		body := w.envelope(map[string]any{"nonce": "same-nonce", "from": other.ID()})
		w.want(w.serve(signedRequest(t, other, "/agent/message", body, w.clk.now())), 200, "")
	})
	t.Run("SAM-055 not consumed by bad signature, expiry or 429", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.agent.Card.RateLimit.RequestsPerSender = 1 })
		body := w.envelope(nil)
		forger := identity(t, w.me.ID(), "peer-key", 9)
		w.want(w.serve(signedRequest(t, forger, "/agent/message", body, w.clk.now())), 401,
			CodeAuthFailed)
		w.clk.set(epoch.Add(-2 * time.Minute))
		w.want(w.post("/agent/message", body), 401, CodeAuthFailed) // not yet valid
		w.clk.set(epoch)
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
		w.want(w.post("/agent/message", body), 429, CodeRateLimited)
		w.clk.set(epoch.Add(time.Minute))
		w.want(w.post("/agent/message", body), 200, "")
	})
	t.Run("an authenticated but refused message consumes its nonce", func(t *testing.T) {
		w := newWorld(t)
		body := w.envelope(map[string]any{"skill": "peers"})
		w.want(w.post("/agent/message", body), 401, CodeAuthFailed)
		w.want(w.post("/agent/message", body), 401, CodeReplayDetected)
	})
	t.Run("SAM-056 concurrent", func(t *testing.T) {
		w := newWorld(t)
		body := w.envelope(nil)
		var ok, replay atomic.Int32
		var wg sync.WaitGroup
		for range 32 {
			r := signedRequest(t, w.me, "/agent/message", body, w.clk.now())
			wg.Go(func() {
				switch rec := w.serve(r); rec.Code {
				case 200:
					ok.Add(1)
				case 401:
					replay.Add(1)
				}
			})
		}
		wg.Wait()
		if ok.Load() != 1 || replay.Load() != 31 {
			t.Errorf("%d accepted, %d replays", ok.Load(), replay.Load())
		}
	})
	t.Run("SAM-057 restart", func(t *testing.T) {
		w := newWorld(t)
		old := w.envelope(nil)
		w.want(w.post("/agent/message", old), 200, "")
		w.clk.set(epoch.Add(10 * time.Second))
		again := newWorld(t, func(n *world) { // nothing remembered
			n.clk = w.clk
			n.srv.Verifier.Now, n.srv.Verifier.NotBefore, n.n = w.clk.now, w.clk.now(), 100
		})
		again.want(again.post("/agent/message", old), 401, CodeAuthFailed)
		again.want(again.post("/agent/message", again.envelope(nil)), 200, "")
		// Or with a memory that lasts.
		mem := NewMemory(0, w.clk.now)
		first := newWorld(t, func(w *world) { w.srv.Verifier.Memory = mem })
		first.want(first.post("/agent/message", old), 200, "")
		second := newWorld(t, func(w *world) { w.srv.Verifier.Memory = mem })
		second.want(second.post("/agent/message", old), 401, CodeReplayDetected)
	})
	t.Run("a full memory refuses", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.srv.Verifier.Memory = NewMemory(2, w.clk.now) })
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
		w.want(w.post("/agent/message", w.envelope(nil)), 500, CodeAgentUnavailable)
		w.clk.set(epoch.Add(302 * time.Second))
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
	})
}

func TestMemoryForgets(t *testing.T) {
	clk := newClock(epoch)
	m := NewMemory(1000, clk.now)
	for i := range 5000 {
		clk.move(time.Second)
		fresh, err := m.Seen(t.Context(), fmt.Sprint(i), clk.now().Add(300*time.Second))
		if err != nil || !fresh {
			t.Fatal(i, fresh, err)
		}
	}
	for i, want := range map[int]bool{4999: true, 4700: true, 4600: false} {
		if known, err := m.Known(t.Context(), fmt.Sprint(i)); known != want || err != nil {
			t.Error(i, known, err)
		}
	}
}

func TestLimits(t *testing.T) {
	mallory := identity(t, "agent://peer.test", "peer-key", 66)
	t.Run("SAM-060 bad signatures cost the claimed sender nothing", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.agent.Card.RateLimit.RequestsPerSender = 1 })
		for range 5 {
			r := signedRequest(t, mallory, "/agent/message", w.envelope(nil), w.clk.now())
			w.want(w.serve(r), 401, CodeAuthFailed)
		}
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
	})
	t.Run("SAM-062 replay beats the limit", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.agent.Card.RateLimit.RequestsPerSender = 1 })
		body := w.envelope(nil)
		w.want(w.post("/agent/message", body), 200, "")
		w.want(w.post("/agent/message", body), 401, CodeReplayDetected)
	})
	t.Run("SAM-061 SAM-063 Retry-After", func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.agent.Card.RateLimit = &RateLimit{RequestsPerMinute: 10, RequestsPerSender: 2, TokensPerSenderPerDay: 100}
			h := w.agent.Handler
			w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
				resp, err := h(ctx, r)
				resp.Tokens = 50
				return resp, err
			}
		})
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
		w.clk.set(epoch.Add(20 * time.Second))
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
		rec := w.post("/agent/message", w.envelope(nil))
		w.want(rec, 429, CodeTokenBudgetExceeded)
		left := time.Date(2026, 4, 12, 0, 0, 0, 0, time.UTC).Sub(w.clk.now())
		if got := rec.Header().Get("Retry-After"); got != strconv.Itoa(int(left.Seconds())) {
			t.Errorf("Retry-After %s, want %v", got, left)
		}
		w.agent.limit.TokensPerSenderPerDay = 0
		rec = w.post("/agent/message", w.envelope(nil))
		w.want(rec, 429, CodeRateLimited)
		if got := rec.Header().Get("Retry-After"); got != "40" {
			t.Errorf("Retry-After %s", got)
		}
	})
	t.Run("SAM-064 memory is bounded", func(t *testing.T) {
		w := newWorld(t)
		for i := range 200 { // unauthenticated: nothing is kept
			from := fmt.Sprintf("agent://s%d.test", i)
			w.want(w.serve(signedRequest(t, mallory, "/agent/message", w.envelope(map[string]any{"from": from}),
				w.clk.now())), 401, CodeAuthFailed)
		}
		if n := len(w.srv.limiter.windows); n != 0 {
			t.Errorf("%d windows", n)
		}
		if n := w.srv.Verifier.memory.(*memory).keys.Len(); n != 0 {
			t.Errorf("%d nonces", n)
		}
		l := &Limiter{MaxSenders: 50}
		for i := range 500 {
			if err := l.Allow("a", fmt.Sprint(i), RateLimit{RequestsPerMinute: 1000, RequestsPerSender: 1},
				epoch.Add(time.Duration(i))); err != nil {
				t.Fatal(err)
			}
		}
		if len(l.windows) > 50 || len(l.windows[limitKey{"a", ""}].at) != 500 {
			t.Errorf("%d windows", len(l.windows))
		}
	})
}

// Used tokens can be kept, and counted again, on their own day only.
func TestLimiterRemembers(t *testing.T) {
	type use struct {
		agent, sender string
		tokens        int
	}
	limit := RateLimit{TokensPerSenderPerDay: 10}
	var kept []use
	l := &Limiter{Spent: func(agent, sender string, tokens int,
		_ time.Time) {
		kept = append(kept, use{agent, sender, tokens})
	}}
	l.Record("a", "x", 6, epoch)
	l.Record("a", "x", 0, epoch)
	l.Record("a", "y", 3, epoch)
	if want := []use{{"a", "x", 6}, {"a", "y", 3}}; !slices.Equal(kept, want) {
		t.Fatalf("%v, want %v", kept, want)
	}
	again := &Limiter{}
	for _, u := range append(kept, use{"a", "x", 4}) {
		again.Count(u.agent, u.sender, u.tokens, epoch)
	}
	if err := again.Allow("a", "x", limit, epoch); !errors.Is(err, ErrTokenBudget) {
		t.Errorf("%v", err)
	}
	for _, sender := range []string{"y", "z"} {
		if err := again.Allow("a", sender, limit, epoch); err != nil {
			t.Errorf("%s: %v", sender, err)
		}
	}
	if err := again.Allow("a", "x", limit, epoch.AddDate(0, 0, 1)); err != nil {
		t.Errorf("the next day: %v", err)
	}
}

func TestTiers(t *testing.T) {
	w := newWorld(t)
	friend := identity(t, "agent://friend.test", "f", 5)
	w.srv.Verifier.Keys.(StaticKeys)[friend.ID()] = []Key{friend.Key()}
	auth := func(scheme, token string) map[string]any {
		return map[string]any{"skill": "secure", "auth": map[string]any{"scheme": scheme, "token": token}}
	}
	for _, c := range []struct {
		name   string
		change map[string]any
		who    *Identity
		status int
		code   Code
	}{
		{"SAM-080 public", nil, w.me, 200, ""},
		{"SAM-080 authenticated, no token", map[string]any{"skill": "secure"}, w.me, 401, CodeAuthFailed},
		{"SAM-080 authenticated", auth("bearer", "t"), w.me, 200, ""},
		{"SAM-081 scheme none", auth("none", "t"), w.me, 401, CodeAuthFailed},
		{"SAM-081 empty token", auth("bearer", ""), w.me, 401, CodeAuthFailed},
		{"SAM-080 trusted peer", map[string]any{"skill": "peers", "from": friend.ID()}, friend, 200, ""},
		{"SAM-080 not a trusted peer", map[string]any{"skill": "peers"}, w.me, 401, CodeAuthFailed},
		{"SAM-082 unknown skill", map[string]any{"skill": "nope"}, w.me, 404, CodeSkillNotFound},
		{"SAM-083 injection before the tier", map[string]any{"skill": "peers",
			"payload": map[string]any{"x": "jailbreak"}}, w.me, 400, CodeInjectionDetected},
		{"SAM-083 injection not told to strangers", map[string]any{"payload": map[string]any{"x": "jailbreak"}},
			identity(t, w.me.ID(), "peer-key", 66), 401, CodeAuthFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			r := signedRequest(t, c.who, "/agent/message", w.envelope(c.change), w.clk.now())
			w.want(w.serve(r), c.status, c.code)
		})
	}
	t.Run("SAM-082 mode not declared", func(t *testing.T) {
		w.t = t
		w.want(w.post("/agent/stream", w.envelope(auth("bearer", "t"))), 400, CodeSchemaInvalid)
	})
	t.Run("the agent's own token check", func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.agent.Token = func(_ context.Context, r *Request) error {
				if r.Auth.Token != "good" {
					return errors.New("bad token")
				}
				return nil
			}
		})
		w.want(w.post("/agent/message", w.envelope(auth("bearer", "bad"))), 401, CodeAuthFailed)
		w.want(w.post("/agent/message", w.envelope(auth("bearer", "good"))), 200, "")
	})
	t.Run("the scan can be switched off for a skill", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.agent.Skills = map[string]SkillOptions{"echo": {NoScan: true}} })
		w.want(w.post("/agent/message", w.envelope(map[string]any{"payload": map[string]any{"text": "jailbreak"}})),
			200, "")
	})
}

func TestLightweight(t *testing.T) {
	light := func(w *world) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/agent/message",
			strings.NewReader(`{"skill":"echo","payload":{"text":"hi"}}`))
		r.Header.Set("Content-Type", "application/json")
		return w.serve(r)
	}
	t.Run("SAM-078 off by default", func(t *testing.T) {
		w := newWorld(t)
		w.want(light(w), 400, CodeSchemaInvalid)
	})
	on := func(w *world) {
		w.agent.Skills = map[string]SkillOptions{"echo": {Lightweight: true}, "secure": {Lightweight: true}}
		w.agent.Card.RateLimit.RequestsPerSender = 2
	}
	t.Run("SAM-078 on for one public skill", func(t *testing.T) {
		var got *Request
		w := newWorld(t, on, func(w *world) {
			h := w.agent.Handler
			w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) { got = r; return h(ctx, r) }
		})
		w.want(light(w), 200, "")
		if got.From != Anonymous || got.Verdict.Assurance != Unsigned {
			t.Errorf("from %q, %s", got.From, got.Verdict.Assurance)
		}
		w.want(light(w), 200, "")
		w.want(light(w), 429, CodeRateLimited) // by address
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
	})
	t.Run("SAM-078 no downgrade", func(t *testing.T) {
		w := newWorld(t, on)
		for _, drop := range []string{"from", "nonce", "timestamp"} {
			w.want(w.post("/agent/message", w.envelope(map[string]any{drop: nil})), 400, CodeSchemaInvalid)
			r := httptest.NewRequest(http.MethodPost, "/agent/message",
				bytes.NewReader(w.envelope(map[string]any{drop: nil})))
			r.Header.Set("Content-Type", "application/json")
			w.want(w.serve(r), 400, CodeSchemaInvalid)
		}
		r := httptest.NewRequest(http.MethodPost, "/agent/message",
			strings.NewReader(`{"skill":"secure","payload":{}}`))
		r.Header.Set("Content-Type", "application/json")
		w.want(w.serve(r), 400, CodeSchemaInvalid)
	})
}

func TestSync(t *testing.T) {
	t.Run("SAM-110 answer", func(t *testing.T) {
		w := newWorld(t)
		var got struct {
			TraceID, SpanID, Status string
			Result                  json.RawMessage
		}
		rec := w.post("/agent/message",
			w.envelope(map[string]any{"payload": map[string]any{"text": "x", "n": json.Number("3.0")}}))
		into(t, rec.Body.Bytes(), &got)
		if got.TraceID != "trace-1" || got.SpanID == "span-1" || len(got.SpanID) != 36 || got.Status != "ok" ||
			string(got.Result) != `{"got":{"n":3.0,"text":"x"}}` {
			t.Errorf("%s", rec.Body)
		}
		if err := ResponseDocument.Validate(rec.Body.Bytes()); err != nil {
			t.Error(err)
		}
	})
	t.Run("SAM-111 failure is generic", func(t *testing.T) {
		w := newWorld(t)
		rec := w.post("/agent/message", w.envelope(map[string]any{"skill": "fail"}))
		w.want(rec, 500, CodeAgentUnavailable)
		if strings.Contains(rec.Body.String(), "secret") || !strings.Contains(rec.Body.String(),
			`"traceId":"trace-1"`) {
			t.Error(rec.Body)
		}
	})
	t.Run("SAM-111 panic, wrong result, own error", func(t *testing.T) {
		for name, h := range map[string]Handler{
			"panic": func(context.Context, *Request) (Response, error) { panic("x") },
			"array": func(context.Context, *Request) (Response, error) {
				return Response{Result: json.RawMessage(`[]`)},
					nil
			},
			"broken": func(context.Context, *Request) (Response, error) {
				return Response{Result: json.RawMessage(`{"a"`)}, nil
			},
			"nil": nil,
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, func(w *world) { w.agent.Handler = h })
				w.want(w.post("/agent/message", w.envelope(nil)), 500, CodeAgentUnavailable)
			})
		}
		w := newWorld(t, func(w *world) {
			w.agent.Handler = func(context.Context, *Request) (Response, error) {
				return Response{}, &Error{Code: CodeSchemaInvalid, Text: "no such city"}
			}
		})
		rec := w.post("/agent/message", w.envelope(nil))
		w.want(rec, 400, CodeSchemaInvalid)
		if !strings.Contains(rec.Body.String(), "no such city") {
			t.Error(rec.Body)
		}
	})
	t.Run("SAM-154 in time, whatever the skill does", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			w := newWorld(t, func(w *world) {
				w.agent.Handler = func(context.Context, *Request) (Response, error) {
					<-release
					return Response{},
						nil
				}
			})
			start := time.Now()
			w.want(w.post("/agent/message", w.envelope(nil)), 500, CodeAgentUnavailable)
			if d := time.Since(start); d >= 30*time.Second {
				t.Errorf("answered after %v", d)
			}
			close(release)
			synctest.Wait()
			if n := w.srv.running.Load(); n != 0 {
				t.Errorf("%d handlers still counted", n)
			}
		})
	})
	t.Run("too many at once", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.srv.MaxRunning = 1 })
		h := w.agent.Handler
		w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
			w.want(w.post("/agent/message", w.envelope(nil)), 500, CodeAgentUnavailable)
			w.want(w.post("/agent/task", w.envelope(nil)), 500, CodeAgentUnavailable)
			w.want(w.post("/agent/stream", w.envelope(nil)), 500, CodeAgentUnavailable)
			return h(ctx, r)
		}
		w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
	})
}

func TestPayload(t *testing.T) {
	w := newWorld(t)
	bad := map[string]any{"payload": map[string]any{"text": 7}}
	t.Run("SAM-090 sync", func(t *testing.T) {
		w.t = t
		w.want(w.post("/agent/message", w.envelope(bad)), 400, CodeSchemaInvalid)
		rec := w.post("/agent/message", w.envelope(map[string]any{"payload": map[string]any{"text": "x", "zzz": 1}}))
		if w.want(rec, 200, ""); !strings.Contains(rec.Body.String(), `{"got":{"text":"x"}}`) {
			t.Error(rec.Body)
		}
	})
	t.Run("SAM-090 async", func(t *testing.T) {
		w.t = t
		id := taskID(t, w.post("/agent/task", w.envelope(bad)))
		_ = w.srv.Close(t.Context())
		var task struct {
			Status string
			Error  struct{ Code Code }
		}
		into(t, w.get("/agent/task/"+id).Body.Bytes(), &task)
		if task.Status != "failed" || task.Error.Code != CodeSchemaInvalid {
			t.Errorf("%+v", task)
		}
	})
	t.Run("SAM-090 stream", func(t *testing.T) {
		w.t = t
		if o := outcomeOf(t, "", w.post("/agent/stream", w.envelope(bad))); o.HTTP != 200 ||
			o.Code != string(CodeSchemaInvalid) {
			t.Errorf("%+v", o)
		}
	})
	t.Run("SAM-091 3.0 is an integer", func(t *testing.T) {
		w.t = t
		w.want(w.post("/agent/message",
			w.envelope(map[string]any{"payload": map[string]any{"text": "x", "n": json.Number("3.0")}})), 200, "")
		w.want(w.post("/agent/message", w.envelope(map[string]any{"payload": map[string]any{"text": "x", "n": 3.5}})),
			400, CodeSchemaInvalid)
	})
	t.Run("SAM-092 remote and broken schemas", func(t *testing.T) {
		for _, s := range []string{`{"$ref":"http://127.0.0.1:1/x"}`, `{"$ref":"file:///etc/passwd"}`,
			`{"$schema":"http://evil.test/"}`,
			`{"type":"nonsense"}`, `{"pattern":"(?=x)"}`, `{"$ref":"#/nowhere"}`, `[]`, `{"type":"object"`,
			`{"minimum":1e999999999}`, `7`} {
			if _, err := CompileInput(json.RawMessage(s)); err == nil {
				t.Errorf("%s compiled", s)
			}
		}
		w := newWorld(t, func(w *world) {
			w.agent.Card.Skills[0].InputSchema = json.RawMessage(`{"$ref":"http://127.0.0.1:1/x"}`)
		})
		if err := w.agent.Check(); err == nil {
			t.Error("Check is content")
		}
		w.want(w.post("/agent/message", w.envelope(nil)), 500, CodeAgentUnavailable)
	})
	t.Run("numbers that would hurt the validator", func(t *testing.T) {
		s, err := CompileInput(json.RawMessage(`{"type":"object","properties":{"n":{"type":"number","minimum":0}}}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{"1e999999999", "1e-999999999", strings.Repeat("9", 1000), "1E+401"} {
			if _, err := s.Apply(json.RawMessage(`{"n":` + n + `}`)); !errors.Is(err, ErrPayload) {
				t.Errorf("%.20s: %v", n, err)
			}
		}
		if p, err := s.Apply(json.RawMessage(`{ "n":1e400 }`)); err != nil || string(p) != `{ "n":1e400 }` {
			t.Errorf("%s, %v", p, err)
		}
	})
	t.Run("nested, references, defaults", func(t *testing.T) {
		s, err := CompileInput(json.RawMessage(`{"type":"object","properties":{
		 "a":{"$ref":"#/$defs/a"},"l":{"type":"array","items":{"$ref":"#/$defs/a"}},"u":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]},
		 "v":{"anyOf":[{"type":"object","properties":{"q":{"type":"integer"}},"additionalProperties":false},{"type":"null"}]},
		 "m":{"type":"object","additionalProperties":{"$ref":"#/$defs/a"}}},
		 "additionalProperties":false,
		 "$defs":{"a":{"type":"object","properties":{"x":{"type":"number"},"d":{"type":"string","default":"é"}},"additionalProperties":false}}}`))
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Apply(json.RawMessage(`{"a":{"x":1.10,"y":2},"l":[{"z":1},{"x":1e2,"d":"k"}],"v":{"q":1,"r":2},"m":{"k":{"w":1}},"extra":{}}`))
		if want := `{"a":{"d":"é","x":1.10},"l":[{"d":"é"},{"d":"k","x":1e2}],"m":{"k":{"d":"é"}},"v":{"q":1}}`; err != nil || string(got) != want {
			t.Errorf("%s, %v", got, err)
		}
	})
}

func taskID(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	var a struct{ TaskID, Status string }
	into(t, rec.Body.Bytes(), &a)
	if rec.Code != 202 || a.Status != "accepted" || a.TaskID == "" {
		t.Fatalf("not accepted: %d %s", rec.Code, rec.Body)
	}
	return a.TaskID
}

func TestAsync(t *testing.T) {
	t.Run("SAM-120 SAM-121 states", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			step := make(chan float64)
			w := newWorld(t, func(w *world) {
				w.agent.Handler = func(_ context.Context, r *Request) (Response, error) {
					for p := range step {
						if err := r.Progress(p); err != nil {
							t.Error(err)
						}
					}
					return Response{Result: json.RawMessage(`{"x":1}`)}, nil
				}
			})
			id := taskID(t, w.post("/agent/task", w.envelope(nil))) // the handler has not ended
			other := taskID(t, w.post("/agent/task", w.envelope(nil)))
			if id == other {
				t.Error("task ids repeat")
			}
			state := func(id string) string {
				synctest.Wait()
				rec := w.get("/agent/task/" + id)
				if err := TaskDocument.Validate(rec.Body.Bytes()); err != nil {
					t.Error(err)
				}
				return rec.Body.String()
			}
			if got, want := state(id), `{"taskId":"`+id+`","status":"running","progress":0}`; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			step <- 0.25
			step <- 0.25 // one for each task, in any order
			close(step)
			if got, want := state(id), `{"taskId":"`+id+
				`","status":"done","progress":1,"result":{"x":1}}`; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	})
	t.Run("SAM-121 failed", func(t *testing.T) {
		w := newWorld(t)
		id := taskID(t, w.post("/agent/task", w.envelope(map[string]any{"skill": "fail"})))
		if err := w.srv.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		rec := w.get("/agent/task/" + id)
		if err := TaskDocument.Validate(rec.Body.Bytes()); err != nil ||
			!strings.Contains(rec.Body.String(), `"status":"failed"`) || strings.Contains(rec.Body.String(), "secret") {
			t.Errorf("%s, %v", rec.Body, err)
		}
		w.want(w.post("/agent/task", w.envelope(nil)), 500, CodeAgentUnavailable) // closed
	})
	t.Run("SAM-122 retention", func(t *testing.T) {
		clk := newClock(epoch)
		m := &MemoryTasks{Now: clk.now, Max: 2}
		put := func(id string, s TaskStatus) error {
			return m.Put(t.Context(), Task{ID: id, Agent: "a", Status: s, Result: json.RawMessage(`{}`)})
		}
		for _, id := range []string{"1", "2"} {
			if err := put(id, TaskDone); err != nil {
				t.Fatal(err)
			}
		}
		clk.set(epoch.Add(time.Hour - time.Millisecond))
		if err := put("3", TaskPending); !errors.Is(err, ErrBusy) {
			t.Errorf("a task is given up before its hour: %v", err)
		}
		if _, err := m.Get(t.Context(), "a", "1"); err != nil {
			t.Error(err)
		}
		if _, err := m.Get(t.Context(), "b", "1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("another agent reads it: %v", err)
		}
		clk.set(epoch.Add(time.Hour))
		if err := put("3", TaskPending); err != nil {
			t.Error(err)
		}
		if _, err := m.Get(t.Context(), "a", "1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("kept for ever: %v", err)
		}
		if m.bytes != 2 {
			t.Errorf("%d bytes counted", m.bytes)
		}
	})
	t.Run("SAM-123 unknown task", func(t *testing.T) {
		w := newWorld(t)
		w.want(w.get("/agent/task/undefined"), 404, CodeSchemaInvalid)
	})
	t.Run("a store that fails", func(t *testing.T) {
		broken := newWorld(t, func(w *world) { w.srv.Tasks = brokenTasks{} })
		broken.want(broken.post("/agent/task", broken.envelope(nil)), 500, CodeAgentUnavailable)
		broken.want(broken.get("/agent/task/x"), 500, CodeAgentUnavailable)
	})
	t.Run("Handle takes over", func(t *testing.T) {
		w := newWorld(t)
		w.srv.Handle = func(_ context.Context, r *Request, _ *Error) (Response, error) {
			if r.Envelope.Skill == "fail" {
				return Response{}, ErrBusy
			}
			r.Accept("my-task")
			return Response{}, nil
		}
		if id := taskID(t, w.post("/agent/task", w.envelope(nil))); id != "my-task" {
			t.Error(id)
		}
		w.want(w.post("/agent/task", w.envelope(map[string]any{"skill": "fail"})), 500, CodeAgentUnavailable)
	})
	t.Run("Close cancels what does not end", func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.agent.Handler = func(ctx context.Context, _ *Request) (Response, error) {
				<-ctx.Done()
				return Response{},
					ctx.Err()
			}
		})
		id := taskID(t, w.post("/agent/task", w.envelope(nil)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.srv.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if rec := w.get("/agent/task/" + id); !strings.Contains(rec.Body.String(), `"failed"`) {
			t.Error(rec.Body)
		}
	})
}

type brokenTasks struct{}

func (brokenTasks) Put(context.Context, Task) error { return errors.New("disk") }
func (brokenTasks) Get(context.Context, string, string) (Task, error) {
	return Task{}, errors.New("disk")
}
func TestWebhook(t *testing.T) {
	t.Run("SAM-130 after authentication", func(t *testing.T) {
		w := newWorld(t)
		bad := map[string]any{"callbackUrl": "https://127.0.0.1/x"}
		w.want(w.post("/agent/task", w.envelope(bad)), 400, CodeSchemaInvalid)
		r := httptest.NewRequest(http.MethodPost, "/agent/task", bytes.NewReader(w.envelope(bad)))
		r.Header.Set("Content-Type", "application/json")
		w.want(w.serve(r), 401, CodeAuthFailed)
		w.want(w.post("/agent/task", w.envelope(map[string]any{"callbackUrl": ""})), 400, CodeSchemaInvalid)
	})
	t.Run("SAM-131 signed, on both outcomes, repeated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var bodies []string
			fails := 2
			hook := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if fails > 0 {
					fails--
					rw.WriteHeader(503)
					return
				}
				b, _ := io.ReadAll(r.Body)
				self := identity(t, worldID, "self-key", 2)
				_, err := VerifySignature(&Incoming{Method: "POST", Paths: []string{"/hook"}, Header: r.Header,
					Body: b}, time.Now(), self.Key())
				if err != nil {
					t.Errorf("webhook signature: %v", err)
				}
				bodies = append(bodies, string(b))
			})
			w := newWorld(t, func(w *world) {
				w.srv.Webhook = &Webhook{HTTP: &http.Client{Transport: memhttp.Hosts{"cb.example": hook}}}
			})
			for _, skill := range []string{"echo", "fail"} {
				taskID(t, w.post("/agent/task",
					w.envelope(map[string]any{"skill": skill, "callbackUrl": "https://cb.example/hook?x=1"})))
			}
			if err := w.srv.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			all := strings.Join(bodies, "\n")
			if len(bodies) != 2 || !strings.Contains(all, `"status":"ok"`) ||
				!strings.Contains(all, `"AGENT_UNAVAILABLE"`) || !strings.Contains(all, `"traceId":"trace-1"`) {
				t.Errorf("webhooks: %s", all)
			}
		})
	})
	t.Run("SAM-131 refusals, redirects, addresses inside", func(t *testing.T) {
		calls := 0
		status := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			calls++
			rw.Header().Set("Location", "https://cb.example/other")
			code, _ := strconv.Atoi(r.URL.Path[1:])
			rw.WriteHeader(code)
		})
		h := &Webhook{HTTP: &http.Client{Transport: memhttp.Hosts{"cb.example": status}}, Backoff: time.Nanosecond,
			Attempts: 3}
		for code, want := range map[int]int{302: 1, 307: 1, 404: 1, 500: 3, 429: 3, 204: 1} {
			calls = 0
			err := h.Send(t.Context(), nil, "https://cb.example/"+strconv.Itoa(code), &Reply{})
			if calls != want || (err == nil) != (code == 204) {
				t.Errorf("%d: %d calls, %v", code, calls, err)
			}
		}
		if err := h.Send(t.Context(), nil, "https://[::1]/", &Reply{}); !errors.Is(err, ErrCallback) {
			t.Error(err)
		}
		// A name that resolves to an internal address is refused when it is dialled.
		var blocked *netguard.BlockedError
		if err := (&Webhook{Attempts: 1}).Send(t.Context(), nil, "https://localhost/x", &Reply{}); !errors.As(err,
			&blocked) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		slow := &Webhook{HTTP: &http.Client{Transport: refuseAll{}}, Backoff: time.Hour}
		if err := slow.Send(ctx, nil, "https://cb.example/x", &Reply{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestStream(t *testing.T) {
	t.Run("SAM-140 framing", func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.agent.Handler = func(_ context.Context, r *Request) (Response, error) {
				for _, c := range []string{`"a\n"`, "{ \"k\":\r\n[1.0] }", "null"} {
					if err := r.Chunk(json.RawMessage(c)); err != nil {
						t.Error(err)
					}
				}
				return Response{Result: json.RawMessage(`{"x":1}`), SpanID: "my-span"}, nil
			}
		})
		rec := w.post("/agent/stream", w.envelope(nil))
		want := `data: {"chunk":"a\n","done":false}` + "\n\n" + `data: {"chunk":{"k":[1.0]},"done":false}` + "\n\n" +
			`data: {"chunk":null,"done":false}` + "\n\n" +
			`data: {"done":true,"result":{"x":1},"traceId":"trace-1","spanId":"my-span"}` + "\n\n"
		if rec.Body.String() != want {
			t.Errorf("got\n%s\nwant\n%s", rec.Body, want)
		}
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache",
			"Connection": "keep-alive", "X-Accel-Buffering": "no"} {
			if got := rec.Header().Get(name); got != want {
				t.Errorf("%s: %q", name, got)
			}
		}
	})
	t.Run("SAM-140 error", func(t *testing.T) {
		w := newWorld(t)
		rec := w.post("/agent/stream", w.envelope(map[string]any{"skill": "fail"}))
		if !strings.HasPrefix(rec.Body.String(), `data: {"done":true,"error":{"code":"AGENT_UNAVAILABLE"`) ||
			strings.Contains(rec.Body.String(), "secret") {
			t.Error(rec.Body)
		}
	})
	t.Run("SAM-141 a chunk before the last event", func(t *testing.T) {
		w := newWorld(t)
		rec := w.post("/agent/stream", w.envelope(nil))
		if !strings.HasPrefix(rec.Body.String(), `data: {"chunk":{"got":{"text":"hi"}},"done":false}`+"\n\n") {
			t.Error(rec.Body)
		}
	})
	t.Run("SAM-142 keep-alive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(w *world) {
				w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
					for _, d := range []time.Duration{16 * time.Second, 14 * time.Second, 31 * time.Second} {
						select {
						case <-time.After(d):
						case <-ctx.Done():
						}
						_ = r.Chunk(json.RawMessage(`1`))
					}
					return Response{}, nil
				}
			})
			rec := w.post("/agent/stream", w.envelope(nil))
			const chunk, alive = "data: {\"chunk\":1,\"done\":false}\n\n", ": keep-alive\n\n"
			if want := alive + chunk + chunk + alive + alive + chunk; !strings.HasPrefix(rec.Body.String(), want) {
				t.Errorf("%s", rec.Body)
			}
		})
	})
	t.Run("SAM-143 disconnect cancels", func(t *testing.T) {
		cancelled := make(chan error, 1)
		w := newWorld(t, func(w *world) {
			w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
				_ = r.Chunk(json.RawMessage(`1`))
				<-ctx.Done()
				cancelled <- ctx.Err()
				return Response{}, ctx.Err()
			}
		})
		srv := httptest.NewServer(w.srv)
		defer srv.Close()
		ctx, cancel := context.WithCancel(t.Context())
		r := signedRequest(t, w.me, "/agent/stream", w.envelope(nil), w.clk.now())
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/agent/stream", r.Body)
		req.Header = r.Header
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = resp.Body.Close()
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("SAM-143 a failed write cancels", func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
				if err := r.Chunk(json.RawMessage(`1`)); err == nil {
					t.Error("no error")
				}
				<-ctx.Done()
				return Response{}, ctx.Err()
			}
		})
		r := signedRequest(t, w.me, "/agent/stream", w.envelope(nil), w.clk.now())
		w.srv.ServeHTTP(goneWriter{http.Header{}}, r)
	})
	t.Run("SAM-144 errors before the stream", func(t *testing.T) {
		w := newWorld(t)
		for _, c := range []struct {
			change map[string]any
			status int
			code   Code
		}{
			{map[string]any{"skill": "nope"}, 404, CodeSkillNotFound},
			{map[string]any{"nonce": "x"}, 400, CodeSchemaInvalid},
			{map[string]any{"payload": map[string]any{"text": "jailbreak"}}, 400, CodeInjectionDetected},
		} {
			w.want(w.post("/agent/stream", w.envelope(c.change)), c.status, c.code)
		}
	})
	t.Run("no chunk after the end", func(t *testing.T) {
		var kept *Request
		w := newWorld(t, func(w *world) {
			w.agent.Handler = func(_ context.Context, r *Request) (Response, error) { kept = r; return Response{}, nil }
		})
		w.post("/agent/stream", w.envelope(nil))
		if kept.Chunk(json.RawMessage(`1`)) == nil {
			t.Error("a chunk after the last event")
		}
		w.post("/agent/message", w.envelope(nil))
		if kept.Chunk(json.RawMessage(`1`)) != nil || kept.Progress(0.5) != nil {
			t.Error("chunk and progress have an effect in sync mode")
		}
	})
}

type goneWriter struct{ h http.Header }

func (g goneWriter) Header() http.Header     { return g.h }
func (goneWriter) Write([]byte) (int, error) { return 0, errors.New("gone") }
func (goneWriter) WriteHeader(int)           {}
func (goneWriter) Flush()                    {}

func TestDelegatedRequests(t *testing.T) {
	issuer, nobody := identity(t, "agent://issuer.test", "i", 3), identity(t, "agent://nobody.test", "n", 4)
	w := newWorld(t)
	w.srv.Verifier.Keys.(StaticKeys)[issuer.ID()] = []Key{issuer.Key()}
	d := Delegation{Subject: w.me.ID(), Scope: []string{"echo"}, MaxDepth: 1}
	token := func(s Signer, change func(*Delegation)) string {
		d := d
		if change != nil {
			change(&d)
		}
		tok, err := d.Issue(s, w.clk.now())
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	for _, c := range []struct {
		name, token string
		status      int
		code        Code
	}{
		{"good", token(issuer, nil), 200, ""},
		{"SAM-104 sub is another", token(issuer, func(d *Delegation) { d.Subject = "agent://x.test" }), 401,
			CodeAuthFailed},
		{"SAM-104 unknown issuer", token(nobody, nil), 401, CodeAuthFailed},
		{"SAM-104 forged issuer", token(identity(t, issuer.ID(), "i", 9), nil), 401, CodeAuthFailed},
		{"SAM-104 skill not in the scope", token(issuer, func(d *Delegation) { d.Scope = []string{"other"} }), 400,
			CodeDelegationExceeded},
		{"empty is not absent", "", 401, CodeAuthFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			w.want(w.post("/agent/message", w.envelope(map[string]any{"delegationToken": c.token})), c.status, c.code)
		})
	}
}

// The promises to a program that records requests itself.
func TestRecord(t *testing.T) {
	type rec struct {
		skill   string
		refusal Code
		checks  int
	}
	var got []rec
	var answer error
	w := newWorld(t, func(w *world) { w.agent.Card.RateLimit.RequestsPerSender = 6 })
	ran := false
	w.srv.Handle = func(ctx context.Context, r *Request, refusal *Error) (Response, error) {
		e := rec{skill: r.Envelope.Skill, checks: len(r.Verdict.Checks)}
		if refusal != nil {
			e.refusal = refusal.Code
		}
		if r.Verdict.Assurance != Signed || len(r.Raw()) == 0 {
			t.Errorf("record of %+v", r.Verdict)
		}
		got = append(got, e)
		if answer != nil || refusal != nil {
			return Response{}, answer
		}
		r.Accept("")
		ran = true
		return w.agent.Handler(ctx, r)
	}

	w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
	w.want(w.post("/agent/message", w.envelope(map[string]any{"skill": "peers"})), 401, CodeAuthFailed)
	w.want(w.post("/agent/message", w.envelope(map[string]any{"skill": "nope"})), 404, CodeSkillNotFound)
	// A replay wins over every refusal, and nothing runs.
	answer, ran = ErrReplay, false
	w.want(w.post("/agent/message", w.envelope(map[string]any{"skill": "nope"})), 401, CodeReplayDetected)
	w.want(w.post("/agent/task", w.envelope(nil)), 401, CodeReplayDetected)
	// A request that cannot be recorded is not run.
	answer = errors.New("disk full")
	w.want(w.post("/agent/stream", w.envelope(nil)), 500, CodeAgentUnavailable)
	if ran {
		t.Error("the skill ran")
	}
	n := len(got)
	w.want(w.post("/agent/message", w.envelope(nil)), 429, CodeRateLimited)
	forger := identity(t, w.me.ID(), "peer-key", 9)
	w.want(w.serve(signedRequest(t, forger, "/agent/message", w.envelope(nil), w.clk.now())), 401, CodeAuthFailed)
	if len(got) != n || n != 6 {
		t.Errorf("recorded %+v", got)
	}
	if got[0].refusal != "" || got[1].refusal != CodeAuthFailed || got[2].refusal != CodeSkillNotFound {
		t.Errorf("recorded %+v", got)
	}
}

// Handle decides about repeats; limits can be the program's. An error after Accept is
// the skill's, and no refusal.
func TestEmbedding(t *testing.T) {
	var failure error
	w := newWorld(t, func(w *world) {
		w.agent.Card.RateLimit = &RateLimit{RequestsPerMinute: 1, RequestsPerSender: 1}
		w.agent.Limit = &RateLimit{}
		w.srv.Handle = func(_ context.Context, r *Request, _ *Error) (Response, error) {
			if failure != nil {
				r.Accept("")
			}
			return Response{}, failure
		}
		w.srv.Refused = func(_ *http.Request, _ Claim, e *Error) string { t.Errorf("refused: %v", e); return "" }
	})
	for range 5 {
		w.want(w.post("/agent/message", w.envelope(map[string]any{"nonce": "same-nonce"})), 200, "")
	}
	if o := outcomeOf(t, "", w.post("/agent/stream", w.envelope(nil))); o.HTTP != 200 || o.Code != "" {
		t.Errorf("a stream without Accept: %+v", o)
	}
	failure = ErrBusy
	w.want(w.post("/agent/message", w.envelope(nil)), 500, CodeAgentUnavailable)
	if o := outcomeOf(t, "", w.post("/agent/stream", w.envelope(nil))); o.HTTP != 200 ||
		o.Code != string(CodeAgentUnavailable) {
		t.Errorf("a stream that fails: %+v", o)
	}
	if !strings.Contains(w.get("/.well-known/agent.json").Body.String(), `"requestsPerMinute":1`) {
		t.Error("the card says another limit")
	}
}

func TestRefused(t *testing.T) {
	var claims []Claim
	var steps []Step
	w := newWorld(t)
	w.srv.Refused = func(_ *http.Request, c Claim, e *Error) string {
		claims, steps = append(claims, c), append(steps, e.Step)
		return "REF-" + strconv.Itoa(len(claims))
	}
	forger := identity(t, w.me.ID(), "peer-key", 9)
	rec := w.serve(signedRequest(t, forger, "/agent/message", w.envelope(nil), w.clk.now()))
	if rec.Header().Get("Parley-Ref") != "REF-1" {
		t.Errorf("headers %v", rec.Header())
	}
	if c := claims[0]; c.Agent != worldID || c.From != w.me.ID() || c.Skill != "echo" ||
		c.Endpoint != "/agent/message" || c.Size == 0 {
		t.Errorf("%+v", c)
	}
	w.post("/agent/message", []byte(`x`))
	w.post("/agent/message", w.envelope(map[string]any{"skill": "peers"}))
	w.get("/nowhere")
	w.post("/agent/message", w.envelope(map[string]any{"skill": "fail"})) // ran: not a refusal
	if fmt.Sprint(steps) != "[signature envelope trust transport]" {
		t.Errorf("steps %v", steps)
	}
}

// SAM-160
func TestCORS(t *testing.T) {
	w := newWorld(t, func(w *world) { w.srv.CORS = []string{"https://app.test"} })
	pre := func(origin string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodOptions, "/agent/message", nil)
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", "POST")
		return w.serve(r)
	}
	rec := pre("https://app.test")
	if rec.Code != 204 || rec.Header().Get("Access-Control-Allow-Origin") != "https://app.test" ||
		rec.Header().Get("Access-Control-Allow-Headers") != "Content-Type, Content-Digest, Signature-Input, Signature" ||
		!strings.Contains(rec.Header().Get("Access-Control-Allow-Methods"), "POST, OPTIONS") {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	if rec := pre("https://evil.test"); rec.Code == 204 || rec.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	r := signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now())
	r.Header.Set("Origin", "https://app.test")
	if rec := w.serve(r); rec.Code != 200 || rec.Header().Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	off := newWorld(t)
	r = httptest.NewRequest(http.MethodOptions, "/agent/message", nil)
	r.Header.Set("Origin", "https://app.test")
	if rec := off.serve(r); rec.Code != 405 || rec.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
}
