package samvad

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/jsonx"
)

// vectorDir is the folder of the SAMVAD vectors: PARLEY_VECTORS/samvad, or
// those of the repository.
func vectorDir() string {
	if d := os.Getenv("PARLEY_VECTORS"); d != "" {
		return filepath.Join(d, "samvad")
	}
	return filepath.Join("..", "testdata", "vectors", "samvad")
}

type vector struct {
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`
	Expect json.RawMessage `json:"expect"`
}

// strictInto reads a case's input and fails on members the test does not know.
func strictInto(t *testing.T, b []byte, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("input of unknown shape: %v", err)
	}
}

func into(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func readVectors(t *testing.T, name string) []vector {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectorDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Description string   `json:"description"`
		Source      string   `json:"source"`
		Cases       []vector `json:"cases"`
	}
	strictInto(t, b, &f)
	if len(f.Cases) == 0 {
		t.Fatalf("%s has no cases", name)
	}
	return f.Cases
}

func TestVectors(t *testing.T) {
	run := map[string]func(*testing.T, vector){
		"sign.json":            vectorSign,           // SAM-010
		"verify.json":          vectorVerify,         // SAM-012
		"nonce_window.json":    vectorNonceWindow,    // SAM-050
		"rate_limit.json":      vectorRateLimit,      // SAM-061
		"delegation.json":      vectorDelegation,     // SAM-100
		"injection.json":       vectorInjection,      // SAM-084
		"agent_uri.json":       vectorAgentURI,       // SAM-036
		"callback_url.json":    vectorCallback,       // SAM-130
		"sse_client.json":      vectorSSE,            // SAM-150
		"envelope_schema.json": vectorEnvelopeSchema, // SAM-030
		"response_schema.json": vectorResponseSchema, // SAM-112
		"task_schema.json":     vectorTaskSchema,     // SAM-121
		"card_schema.json":     vectorCardSchema,     // SAM-002
		"skill_payload.json":   vectorSkillPayload,   // SAM-090
		"canonical_v11.json":   vectorCanonical,      // SAM-170
		"wire_exchanges.json":  vectorWire,           // SAM-161
		"fixture.json":         nil,
		"requests.json":        nil,
		"card_keys.json":       nil,
	}
	files, err := filepath.Glob(filepath.Join(vectorDir(), "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s: %v", vectorDir(), err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		t.Run(name, func(t *testing.T) {
			fn, ok := run[name]
			if !ok {
				t.Fatalf("unknown vector file %s", name)
			}
			switch name {
			case "fixture.json":
				checkFixture(t)
				return
			case "requests.json": // the pipeline: SAM-021, SAM-060, SAM-083 and others
				fx := loadFixture(t)
				fn = func(t *testing.T, c vector) { vectorRequests(t, fx, c) }
			case "card_keys.json": // SAM-072 to SAM-075
				fx := loadFixture(t)
				fn = func(t *testing.T, c vector) { vectorCardKeys(t, fx, c) }
			}
			for _, c := range readVectors(t, name) {
				t.Run(c.Name, func(t *testing.T) { fn(t, c) })
			}
		})
	}
}

// fixture.json

type fixtureKey struct {
	KID    string `json:"kid"`
	Seed   string `json:"seed_hex"`
	Public string `json:"public_key_base64"`
}

type fixture struct {
	keys     map[string]fixtureKey
	AgentID  string            `json:"agent_id"`
	Peers    map[string]string `json:"enrolled_peers"`
	Limit    RateLimit         `json:"rate_limit_default"`
	Skills   []fixtureSkill    `json:"skills"`
	identity map[string]*Identity
}

type fixtureSkill struct {
	ID           string          `json:"id"`
	Modes        []Mode          `json:"modes"`
	Trust        Trust           `json:"trust"`
	AllowedPeers []string        `json:"allowedPeers"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	Handler      string          `json:"handler"`
}

func loadFixture(t *testing.T) *fixture {
	t.Helper()
	fx := &fixture{identity: map[string]*Identity{}}
	for _, c := range readVectors(t, "fixture.json") {
		switch c.Name {
		case "keys":
			into(t, c.Expect, &fx.keys)
		case "receiver":
			strictInto(t, c.Input, fx)
		default:
			t.Fatalf("unknown fixture %q", c.Name)
		}
	}
	for name, k := range fx.keys {
		seed, err := hex.DecodeString(k.Seed)
		if err != nil {
			t.Fatal(err)
		}
		id, err := IdentityFromSeed("agent://"+name+".test", k.KID, seed)
		if err != nil {
			t.Fatal(err)
		}
		fx.identity[name] = id
	}
	return fx
}

func checkFixture(t *testing.T) {
	fx := loadFixture(t)
	for name, k := range fx.keys {
		if got := base64.StdEncoding.EncodeToString(fx.identity[name].Public()); got != k.Public {
			t.Errorf("%s: public key %s, want %s", name, got, k.Public)
		}
	}
	if err := fx.agent(t, nil).Check(); err != nil {
		t.Error(err)
	}
}

// agent makes the fixture agent. Its handlers are those that the fixture describes in
// prose.
func (fx *fixture) agent(t *testing.T, limit *RateLimit) *Agent {
	t.Helper()
	if limit == nil {
		limit = &fx.Limit
	}
	card := &Card{
		ID: fx.AgentID, Name: "Receiver", Description: "fixture", URL: "https://receiver.test", RateLimit: limit,
		PublicKeys: []CardKey{CardKeyOf(fx.identity["server"], true)},
	}
	handlers := map[string]Handler{}
	for _, s := range fx.Skills {
		card.Skills = append(card.Skills, Skill{
			ID: s.ID, Name: s.ID, InputSchema: json.RawMessage(s.InputSchema), Modes: s.Modes, Trust: s.Trust,
			AllowedPeers: s.AllowedPeers,
		})
		switch s.Handler {
		case `returns {"echo": input}`:
			handlers[s.ID] = func(_ context.Context, r *Request) (Response, error) {
				return Response{Result: json.RawMessage(`{"echo":` + string(r.Payload) + `}`)}, nil
			}
		case `returns {"ok": true}`, "":
			handlers[s.ID] = func(context.Context, *Request) (Response, error) {
				return Response{Result: json.RawMessage(`{"ok":true}`)}, nil
			}
		case "always throws an error with message kaput":
			handlers[s.ID] = func(context.Context, *Request) (Response, error) {
				return Response{},
					errors.New("kaput")
			}
		default:
			t.Fatalf("unknown fixture handler %q", s.Handler)
		}
	}
	return &Agent{Card: card, Identity: fx.identity["server"],
		Handler: func(ctx context.Context, r *Request) (Response, error) {
			return handlers[r.Skill.ID](ctx, r)
		}}
}

func (fx *fixture) enrolled() StaticKeys {
	keys := StaticKeys{}
	for id, name := range fx.Peers {
		// Enrolled as the SDKs do: a raw key without a kid.
		keys[id] = []Key{{Public: fx.identity[name].Public(), Source: "enrolled"}}
	}
	return keys
}

// clock is a settable time, for any number of goroutines.
type clock struct{ t atomic.Pointer[time.Time] }

func newClock(t time.Time) *clock {
	c := &clock{}
	c.set(t)
	return c
}

func (c *clock) now() time.Time       { return *c.t.Load() }
func (c *clock) set(t time.Time)      { c.t.Store(&t) }
func (c *clock) move(d time.Duration) { c.set(c.now().Add(d)) }

func (fx *fixture) server(t *testing.T, a *Agent, keys Keys, now func() time.Time) *Server {
	t.Helper()
	s := &Server{Agent: a, Verifier: &Verifier{Keys: keys, Now: now},
		Webhook: &Webhook{HTTP: &http.Client{Transport: refuseAll{}}, Attempts: 1}}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

type refuseAll struct{}

func (refuseAll) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no network in tests")
}

// sign.json

type bodyInput struct {
	Body       *string `json:"body"`
	BodyBase64 *string `json:"body_base64"`
}

func (b bodyInput) bytes(t *testing.T) []byte {
	t.Helper()
	if b.BodyBase64 != nil {
		raw, err := base64.StdEncoding.DecodeString(*b.BodyBase64)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if b.Body == nil {
		return nil
	}
	return []byte(*b.Body)
}

func vectorSign(t *testing.T, c vector) {
	var in struct {
		bodyInput
		Seed    string  `json:"seed_hex"`
		KeyID   string  `json:"keyid"`
		Created float64 `json:"created"`
		NowMS   *int64  `json:"now_ms"`
		Method  string  `json:"method"`
		Path    string  `json:"path"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Digest string `json:"content_digest"`
		Base   string `json:"signature_base"`
		Input  string `json:"signature_input"`
		Sig    string `json:"signature"`
	}
	into(t, c.Expect, &want)
	seed, err := hex.DecodeString(in.Seed)
	if err != nil {
		t.Fatal(err)
	}
	id, err := IdentityFromSeed("agent://signer.test", in.KeyID, seed)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(int64(in.Created), 999e6)
	if in.NowMS != nil {
		now = time.UnixMilli(*in.NowMS)
	}
	got, err := Sign(id, in.Method, in.Path, in.bytes(t), now)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range [][3]string{
		{"content_digest", got.ContentDigest, want.Digest}, {"signature_base", got.Base, want.Base},
		{"signature_input", got.SignatureInput, want.Input}, {"signature", got.Signature, want.Sig},
	} {
		if x[1] != x[2] {
			t.Errorf("%s\n got %q\nwant %q", x[0], x[1], x[2])
		}
	}
}

// verify.json

var createdIn = regexp.MustCompile(`created=(\d+)`)

func vectorVerify(t *testing.T, c vector) {
	var in struct {
		bodyInput
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
		Public  string            `json:"public_key_base64"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Valid *bool `json:"valid"`
	}
	into(t, c.Expect, &want)
	if want.Valid == nil {
		t.Fatal("expect without valid")
	}
	h := http.Header{}
	for k, v := range in.Headers {
		h.Set(k, v)
	}
	now := time.Unix(0, 0)
	if m := createdIn.FindStringSubmatch(h.Get("Signature-Input")); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		now = time.Unix(n, 0)
	}
	key, err := ParseKey(in.Public)
	if err == nil {
		var verdict *Verdict
		verdict, err = VerifySignature(&Incoming{Method: in.Method, Paths: []string{in.Path}, Header: h,
			Body: in.bytes(t)}, now, key)
		if (err == nil) != (verdict.Assurance == Signed) {
			t.Errorf("verdict %v with error %v", verdict.Assurance, err)
		}
	} else if pub, derr := base64.StdEncoding.DecodeString(in.Public); derr == nil {
		// SAM-019: a key that loading refuses never verifies either.
		if _, verr := VerifySignature(&Incoming{Method: in.Method, Paths: []string{in.Path}, Header: h,
			Body: in.bytes(t)}, now, Key{Public: pub}); verr == nil {
			t.Error("verifies under a key that loading refuses")
		}
	}
	if (err == nil) != *want.Valid {
		t.Errorf("valid = %v (%v), want %v", err == nil, err, *want.Valid)
	}
}

// requests.json

type requestInput struct {
	bodyInput
	AtMS    int64             `json:"at_ms"`
	Method  string            `json:"method"`
	Target  string            `json:"target"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
}

func (in requestInput) request(t *testing.T) *http.Request {
	t.Helper()
	target := in.Target
	if target == "" {
		target = in.Path
	}
	r := httptest.NewRequest(in.Method, target, bytes.NewReader(in.bytes(t)))
	for k, v := range in.Headers {
		r.Header.Set(k, v)
	}
	return r
}

// outcome has the values that the request vectors compare.
type outcome struct {
	HTTP   int
	Code   string
	Status string
}

// outcomeOf reads an answer, and checks on the way that errors under /agent/
// are valid response envelopes (SAM-112).
func outcomeOf(t *testing.T, path string, w *httptest.ResponseRecorder) outcome {
	t.Helper()
	o := outcome{HTTP: w.Code}
	if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		p := &sseParser{limit: 1 << 20}
		for _, err := range p.feed(w.Body.Bytes()) {
			var e *Error
			if errors.As(err, &e) {
				o.Code = string(e.Code)
			}
		}
		return o
	}
	var body struct {
		Status string `json:"status"`
		Error  *struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	into(t, w.Body.Bytes(), &body)
	o.Status = body.Status
	if body.Error != nil {
		o.Code = body.Error.Code
		if err := ResponseDocument.Validate(w.Body.Bytes()); err != nil {
			t.Errorf("error envelope of %s: %v", path, err)
		}
	}
	return o
}

func vectorRequests(t *testing.T, fx *fixture, c vector) {
	var in struct {
		Now      time.Time      `json:"now"`
		Fixture  string         `json:"fixture"`
		Limit    *RateLimit     `json:"rate_limit"`
		Requests []requestInput `json:"requests"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Responses []struct {
			HTTP   int    `json:"http"`
			Code   string `json:"code"`
			Status string `json:"status"`
		} `json:"responses"`
	}
	into(t, c.Expect, &want)
	if in.Fixture != "receiver" || len(want.Responses) != len(in.Requests) {
		t.Fatalf("unknown fixture %q or wrong number of responses", in.Fixture)
	}
	clk := newClock(in.Now)
	s := fx.server(t, fx.agent(t, in.Limit), fx.enrolled(), clk.now)
	for i, r := range in.Requests {
		clk.set(in.Now.Add(time.Duration(r.AtMS) * time.Millisecond))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r.request(t))
		got, exp := outcomeOf(t, r.Target, w), want.Responses[i]
		if got.HTTP != exp.HTTP || exp.Code != "" && got.Code != exp.Code ||
			exp.Status != "" && got.Status != exp.Status {
			t.Errorf("request %d: got %+v, want %+v; body %s", i, got, exp, w.Body)
		}
	}
}

// card_keys.json

type cardVersion struct {
	FromMS int64           `json:"from_ms"`
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
	Error  bool            `json:"error"`
}

// cardWeb is a web of cards that change with time.
type cardWeb struct {
	cards   map[string][]cardVersion
	since   func() time.Duration
	fetches []string
}

func (w *cardWeb) RoundTrip(r *http.Request) (*http.Response, error) {
	u := r.URL.String()
	w.fetches = append(w.fetches, u)
	var cur *cardVersion
	for i, v := range w.cards[u] {
		if w.since() >= time.Duration(v.FromMS)*time.Millisecond {
			cur = &w.cards[u][i]
		}
	}
	if cur == nil || cur.Error {
		return nil, errors.New("unreachable")
	}
	body := []byte(cur.Body)
	var text string
	if json.Unmarshal(body, &text) == nil {
		body = []byte(text)
	}
	status := cur.Status
	if status == 0 {
		status = http.StatusOK
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)),
		Request: r}, nil
}

func vectorCardKeys(t *testing.T, fx *fixture, c vector) {
	var in struct {
		Now      time.Time                `json:"now"`
		Fixture  string                   `json:"fixture"`
		Cards    map[string][]cardVersion `json:"cards"`
		Requests []requestInput           `json:"requests"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Results []struct {
			OK      bool     `json:"ok"`
			From    string   `json:"from"`
			HTTP    int      `json:"http"`
			Code    string   `json:"code"`
			Fetches []string `json:"card_fetches"`
		} `json:"results"`
	}
	into(t, c.Expect, &want)
	if in.Fixture != "receiver-with-card-fetching" || len(want.Results) != len(in.Requests) {
		t.Fatalf("unknown fixture %q or wrong number of results", in.Fixture)
	}
	clk := newClock(in.Now)
	web := &cardWeb{cards: in.Cards, since: func() time.Duration { return clk.now().Sub(in.Now) }}
	cards := &CardStore{HTTP: &http.Client{Transport: web}, Now: clk.now}
	a := fx.agent(t, nil)
	for i := range a.Card.Skills {
		a.Card.Skills[i].InputSchema = json.RawMessage(`{"type":"object"}`)
	}
	var from string
	handler := a.Handler
	a.Handler = func(ctx context.Context, r *Request) (Response, error) { from = r.From; return handler(ctx, r) }
	s := fx.server(t, a, cards, clk.now)
	for i, r := range in.Requests {
		clk.set(in.Now.Add(time.Duration(r.AtMS) * time.Millisecond))
		web.fetches, from = nil, ""
		req := r.request(t)
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, req)
		got, exp := outcomeOf(t, r.Path, w), want.Results[i]
		if exp.OK {
			if got.HTTP != 200 || exp.From != "" && from != exp.From {
				t.Errorf("request %d: got %+v from %q, want ok from %q; body %s", i, got, from, exp.From, w.Body)
			}
		} else if got.HTTP != exp.HTTP || got.Code != exp.Code {
			t.Errorf("request %d: got %+v, want %+v; body %s", i, got, exp, w.Body)
		}
		if !slices.Equal(web.fetches, exp.Fetches) && !(len(web.fetches) == 0 && len(exp.Fetches) == 0) {
			t.Logf("request %d: fetched %v, vector has %v", i, web.fetches, exp.Fetches)
		}
	}
}

// nonce_window.json

func vectorNonceWindow(t *testing.T, c vector) {
	var in struct {
		Start  time.Time `json:"start"`
		Window int       `json:"window_seconds"`
		Skew   int       `json:"future_skew_seconds"`
		Steps  []struct {
			AtMS      int64  `json:"at_ms"`
			Sender    string `json:"sender"`
			Nonce     string `json:"nonce"`
			Timestamp string `json:"timestamp"`
		} `json:"steps"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Results []string `json:"results"`
	}
	into(t, c.Expect, &want)
	clk := newClock(time.Time{})
	keys := StaticKeys{}
	v := &Verifier{
		Self: "agent://self.test", Keys: keys, Now: clk.now,
		Limits: Limits{Window: time.Duration(in.Window) * time.Second, Skew: time.Duration(in.Skew) * time.Second},
	}
	for i, st := range in.Steps {
		clk.set(in.Start.Add(time.Duration(st.AtMS) * time.Millisecond))
		id, err := IdentityFromSeed(st.Sender, "k", bytes.Repeat([]byte{1}, 32))
		if err != nil {
			t.Fatal(err)
		}
		keys[st.Sender] = []Key{id.Key()}
		body, err := json.Marshal(map[string]any{
			"from": st.Sender, "to": v.Self, "skill": "s", "mode": "sync", "nonce": st.Nonce,
			"timestamp": st.Timestamp, "traceId": "t", "spanId": "s", "payload": map[string]any{},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := "ok"
		switch _, err := v.Verify(signedRequest(t, id, "/agent/message", body, clk.now())); {
		case err == nil:
		case errors.Is(err, ErrReplay):
			got = "replay"
		case errors.Is(err, ErrStale), errors.Is(err, ErrMalformed):
			got = "expired"
		default:
			t.Fatal(err)
		}
		if got != want.Results[i] {
			t.Errorf("step %d: %s, want %s", i, got, want.Results[i])
		}
	}
}

func signedRequest(t testing.TB, s Signer, target string, body []byte, now time.Time) *http.Request {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, target, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	path, _, _ := strings.Cut(target, "?")
	sig, err := Sign(s, http.MethodPost, path, body, now)
	if err != nil {
		t.Fatal(err)
	}
	sig.Set(r.Header)
	return r
}

// rate_limit.json

func vectorRateLimit(t *testing.T, c vector) {
	var in struct {
		Start  time.Time `json:"start"`
		Config RateLimit `json:"config"`
		Steps  []struct {
			AtMS   int64  `json:"at_ms"`
			Sender string `json:"sender"`
			Tokens *int   `json:"record_tokens"`
		} `json:"steps"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Results []string `json:"results"`
	}
	into(t, c.Expect, &want)
	l := &Limiter{}
	for i, st := range in.Steps {
		now := in.Start.Add(time.Duration(st.AtMS) * time.Millisecond)
		got := "recorded"
		if st.Tokens != nil {
			l.Record("agent://self.test", st.Sender, *st.Tokens, now)
		} else if err := l.Allow("agent://self.test", st.Sender, in.Config, now); err != nil {
			got = string(AsError(err).Code)
		} else {
			got = "ok"
		}
		if got != want.Results[i] {
			t.Errorf("step %d: %s, want %s", i, got, want.Results[i])
		}
	}
}

// delegation.json

// anyone knows one key for every agent.
type anyone []Key

func (a anyone) Keys(context.Context, string) ([]Key, error) { return a, nil }

func vectorDelegation(t *testing.T, c vector) {
	var in struct {
		Now    time.Time `json:"now"`
		Token  string    `json:"token"`
		Public string    `json:"issuer_public_key_base64"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		OK     bool   `json:"ok"`
		Code   string `json:"code"`
		Claims struct {
			Iss, Sub string
			Scope    []string
			MaxDepth int
			Act      struct{ Sub string }
		}
	}
	into(t, c.Expect, &want)
	key, err := ParseKey(in.Public)
	if err != nil {
		t.Fatal(err)
	}
	d, err := VerifyDelegation(t.Context(), in.Token, anyone{key}, in.Now)
	if !want.OK {
		if got := AsError(err); got == nil || string(got.Code) != want.Code {
			t.Errorf("got %v, want %s", err, want.Code)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w := want.Claims
	if d.Issuer != w.Iss || d.Subject != w.Sub || d.MaxDepth != w.MaxDepth || d.Actor != w.Act.Sub ||
		!slices.Equal(d.Scope, w.Scope) {
		t.Errorf("claims %+v, want %+v", d, w)
	}
}

// injection.json

func vectorInjection(t *testing.T, c vector) {
	var in struct {
		Payload json.RawMessage `json:"payload"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Flagged *bool `json:"flagged"`
	}
	into(t, c.Expect, &want)
	if got := scanPayload(json.RawMessage(in.Payload)); want.Flagged == nil || got != *want.Flagged {
		t.Errorf("flagged = %v for %s", got, in.Payload)
	}
}

// agent_uri.json

func vectorAgentURI(t *testing.T, c vector) {
	var in struct {
		ID string `json:"agent_id"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		URL string `json:"card_url"`
	}
	into(t, c.Expect, &want)
	origin, err := AgentOrigin(in.ID)
	got := origin + cardPath
	if want.URL == "reject" {
		if !errors.Is(err, ErrIdentity) {
			t.Errorf("got %q, %v; want a refusal", got, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	// The store asks the guard before it asks the network.
	web := &cardWeb{since: func() time.Duration { return 0 }}
	_, err = (&CardStore{HTTP: &http.Client{Transport: web}}).Keys(t.Context(), in.ID)
	if err == nil {
		t.Fatal("a card without content gave keys")
	}
	switch want.URL {
	case "blocked":
		if len(web.fetches) > 0 {
			t.Errorf("fetched %v", web.fetches)
		}
	case "unresolvable": // no certain verdict: the fetch fails, or the guard refuses
	default:
		if got != want.URL || !slices.Equal(web.fetches, []string{want.URL}) {
			t.Errorf("card URL %q, fetched %v, want %q", got, web.fetches, want.URL)
		}
	}
}

// callback_url.json

func vectorCallback(t *testing.T, c vector) {
	var in struct {
		URL string `json:"callbackUrl"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Accepted bool   `json:"accepted"`
		HTTP     int    `json:"http"`
		Code     string `json:"code"`
	}
	into(t, c.Expect, &want)
	err := CheckCallback(in.URL, nil)
	if (err == nil) != want.Accepted {
		t.Errorf("CheckCallback(%q) = %v", in.URL, err)
	}
	if e := AsError(err); !want.Accepted && (e.HTTPStatus() != want.HTTP || string(e.Code) != want.Code) {
		t.Errorf("answered with %d %s, want %d %s", e.HTTPStatus(), e.Code, want.HTTP, want.Code)
	}
}

// sse_client.json

func vectorSSE(t *testing.T, c vector) {
	var in struct {
		Chunks [][]byte `json:"byte_chunks_base64"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Chunks []any `json:"chunks"`
		Result any   `json:"result"`
		Error  *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	into(t, c.Expect, &want)
	// As it arrived, in one piece, and byte by byte.
	all := bytes.Join(in.Chunks, nil)
	var single [][]byte
	for i := range all {
		single = append(single, all[i:i+1])
	}
	for name, pieces := range map[string][][]byte{"arrival": in.Chunks, "whole": {all}, "bytes": single} {
		chunks, result, err := []any{}, any(nil), error(nil)
		body := make([]io.Reader, len(pieces))
		for i, b := range pieces {
			body[i] = bytes.NewReader(b)
		}
		client := &Client{Identity: identity(t, "agent://peer.test", "k", 1),
			HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
					Body: io.NopCloser(io.MultiReader(body...)), Request: r}, nil
			})}}
		for ev, e := range client.Stream(t.Context(), Call{URL: "https://self.test", To: worldID, Skill: "s"}) {
			switch {
			case e != nil:
				err = e
			case ev.Done:
				into(t, ev.Result, &result)
			case ev.Chunk != nil:
				var v any
				into(t, ev.Chunk, &v)
				chunks = append(chunks, v)
			}
		}
		if !reflect.DeepEqual(chunks, append([]any{}, want.Chunks...)) {
			t.Errorf("%s: chunks %v, want %v", name, chunks, want.Chunks)
		}
		if want.Error == nil {
			if err != nil || !reflect.DeepEqual(result, want.Result) {
				t.Errorf("%s: result %v, %v, want %v", name, result, err, want.Result)
			}
			continue
		}
		e := AsError(err)
		if e == nil || string(e.Code) != want.Error.Code || want.Error.Message != "" && e.Text != want.Error.Message {
			t.Errorf("%s: error %v, want %+v", name, err, want.Error)
		}
	}
}

// The schemas.

type schemaExpect struct {
	Valid   *bool    `json:"schema_valid"`
	Failing []string `json:"failing"`
}

func checkSchema(t *testing.T, d Document, doc, expect []byte) schemaExpect {
	t.Helper()
	var want schemaExpect
	into(t, expect, &want)
	err := d.Validate(doc)
	if want.Valid == nil || (err == nil) != *want.Valid {
		t.Fatalf("schema: %v, want valid = %v", err, want.Valid)
	}
	if len(want.Failing) == 0 {
		return want
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		t.Fatalf("no validation error: %v", err)
	}
	var got []string
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if kw := e.ErrorKind.KeywordPath(); len(e.Causes) == 0 && len(kw) > 0 {
			got = append(got, "/"+strings.Join(e.InstanceLocation, "/")+" "+kw[0])
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	walk(ve)
	for _, f := range want.Failing {
		if !slices.Contains(got, f) {
			t.Errorf("failing %q, want %q", got, f)
		}
	}
	return want
}

func vectorEnvelopeSchema(t *testing.T, c vector) {
	var in struct {
		Doc json.RawMessage `json:"envelope"`
	}
	strictInto(t, c.Input, &in)
	want := checkSchema(t, RequestDocument, in.Doc, c.Expect)
	// Reading takes members that it does not know (SAM-031), and has its own rule
	// for callbacks (SAM-130). It refuses identities that are not of host and port
	// (SAM-036), and times that no clock shows.
	reads := *want.Valid
	if !reads {
		reads = !slices.ContainsFunc(want.Failing, func(f string) bool {
			return f != "/ additionalProperties" &&
				f != "/callbackUrl format"
		})
	}
	e, err := Decode(in.Doc)
	switch {
	case err == nil && !reads:
		t.Errorf("read as %+v", e)
	case err != nil && reads && !strings.Contains(err.Error(), "host[:port]") &&
		!strings.Contains(err.Error(), "timestamp"):
		t.Errorf("not read: %v", err)
	}
}

func vectorResponseSchema(t *testing.T, c vector) {
	var in struct {
		Doc json.RawMessage `json:"response"`
	}
	strictInto(t, c.Input, &in)
	checkSchema(t, ResponseDocument, in.Doc, c.Expect)
}

func vectorTaskSchema(t *testing.T, c vector) {
	var in struct {
		Doc json.RawMessage `json:"task"`
	}
	strictInto(t, c.Input, &in)
	checkSchema(t, TaskDocument, in.Doc, c.Expect)
}

func vectorCardSchema(t *testing.T, c vector) {
	var in struct {
		Doc json.RawMessage `json:"card"`
	}
	strictInto(t, c.Input, &in)
	want := checkSchema(t, CardDocument, in.Doc, c.Expect)
	if !*want.Valid {
		return
	}
	card, err := DecodeCard(in.Doc)
	if err != nil {
		t.Fatal(err)
	}
	// The card that we emit for it has every member (SAM-002), unless it breaks the
	// rules that the schema lacks (SAM-004).
	b, err := card.Encode()
	if err != nil {
		if card.check() == nil {
			t.Error(err)
		}
		return
	}
	if err := CardDocument.Validate(b); err != nil {
		t.Error(err)
	}
}

// skill_payload.json

func vectorSkillPayload(t *testing.T, c vector) {
	var in struct {
		Schema  json.RawMessage `json:"input_schema"`
		Payload json.RawMessage `json:"payload"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		OK      bool `json:"ok"`
		Payload any  `json:"payload_given_to_handler"`
		HTTP    int  `json:"http"`
		Code    string
	}
	into(t, c.Expect, &want)
	s, err := CompileInput(json.RawMessage(in.Schema))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Apply(json.RawMessage(in.Payload))
	if !want.OK {
		if e := AsError(err); e == nil || string(e.Code) != want.Code || want.HTTP != 0 && e.HTTPStatus() != want.HTTP {
			t.Errorf("got %s, %v, want %d %s", got, err, want.HTTP, want.Code)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var v any
	into(t, got, &v)
	if want.Payload != nil && !reflect.DeepEqual(v, want.Payload) {
		t.Errorf("payload %s, want %v", got, want.Payload)
	}
}

// canonical_v11.json

func vectorCanonical(t *testing.T, c vector) {
	var in struct {
		JSON     *string         `json:"json"`
		Seed     string          `json:"seed_hex"`
		Envelope json.RawMessage `json:"envelope_without_signature"`
	}
	strictInto(t, c.Input, &in)
	var want struct {
		Canonical string `json:"canonical"`
		Signature string `json:"signature"`
	}
	into(t, c.Expect, &want)
	if in.JSON != nil {
		got, err := jsonx.Canonicalize([]byte(*in.JSON))
		if err != nil || string(got) != want.Canonical {
			t.Errorf("got %s, %v\nwant %s", got, err, want.Canonical)
		}
		return
	}
	if got, err := LegacyBase(in.Envelope); err != nil || string(got) != want.Canonical {
		t.Errorf("got %s, %v\nwant %s", got, err, want.Canonical)
	}
	seed, err := hex.DecodeString(in.Seed)
	if err != nil {
		t.Fatal(err)
	}
	id, err := IdentityFromSeed("agent://alice.test", "alice-key-1", seed)
	if err != nil {
		t.Fatal(err)
	}
	got, err := signLegacy(id, in.Envelope)
	if err != nil || got != want.Signature {
		t.Errorf("signature %s, %v, want %s", got, err, want.Signature)
	}
	sig, _ := base64.StdEncoding.DecodeString(got)
	if !ed25519.Verify(id.Public(), []byte(want.Canonical), sig) {
		t.Error("signature does not verify")
	}
}

// wire_exchanges.json

type wireMessage struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	URL     string      `json:"url"`
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
	Body    string      `json:"body"`
}

func (m wireMessage) header() http.Header {
	h := http.Header{}
	for _, f := range m.Headers {
		h.Add(f[0], f[1])
	}
	return h
}

func vectorWire(t *testing.T, c vector) {
	var in struct {
		Request *wireMessage `json:"request"`
		Webhook *struct {
			URL      string            `json:"url"`
			Method   string            `json:"method"`
			Headers  map[string]string `json:"headers"`
			Body     string            `json:"body"`
			Redirect string            `json:"redirect"`
		} `json:"webhook"`
	}
	strictInto(t, c.Input, &in)
	if in.Webhook != nil {
		r, err := DecodeReply([]byte(in.Webhook.Body))
		if err != nil || r.Err == nil && r.Result == nil {
			t.Errorf("webhook: %+v, %v", r, err)
		}
		return
	}
	var want struct {
		Response wireMessage `json:"response"`
	}
	into(t, c.Expect, &want)
	if in.Request == nil || want.Response.Status == 0 {
		t.Fatal("neither exchange nor webhook")
	}
	decodeRecorded(t, in.Request, &want.Response)
	if in.Request.Method == http.MethodPost {
		replayRecorded(t, in.Request, &want.Response)
	}
}

// decodeRecorded decodes a real server's recorded answer with our client.
func decodeRecorded(t *testing.T, req, resp *wireMessage) {
	t.Helper()
	h, body := resp.header(), []byte(resp.Body)
	path, _, _ := strings.Cut(req.Target, "?")
	reported := func(err error) {
		var e *Error
		if (err != nil) != (resp.Status/100 != 2 || strings.Contains(resp.Body, `"error"`)) {
			t.Errorf("status %d read as %v", resp.Status, err)
		}
		if err != nil && (!errors.As(err, &e) || !errors.Is(err, ErrRemote) || e.Code == "" || e.Text == "") {
			t.Errorf("error not understood: %v", err)
		}
	}
	switch {
	case strings.HasSuffix(path, cardPath) && resp.Status == 200:
		card, err := DecodeCard(body)
		if err != nil || len(cardKeys(card.PublicKeys, card.ProtocolVersion)) == 0 {
			t.Errorf("card: %v", err)
		}
		if err := CardDocument.Validate(body); err != nil {
			t.Error(err)
		}
	case strings.HasSuffix(path, pathStream) && strings.HasPrefix(h.Get("Content-Type"), "text/event-stream"):
		p := &sseParser{limit: 1 << 20}
		var err error
		done := false
		for ev, e := range p.feed(body) {
			err, done = e, ev.Done
		}
		if err == nil && !done {
			t.Error("no last event")
		}
		reported(err)
	case strings.HasSuffix(path, pathMessage), strings.HasSuffix(path, pathStream):
		_, err := decodeReply(resp.Status, h, body)
		reported(err)
	case strings.HasSuffix(path, pathTask):
		_, err := decodeAccepted(resp.Status, h, body)
		reported(err)
	case strings.Contains(path, pathTask+"/"):
		task, err := decodeTask(resp.Status, h, body)
		if resp.Status == 404 {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("missing task read as %v", err)
			}
		} else if err != nil || task.ID == "" || task.Status == TaskDone && task.Result == nil ||
			task.Status == TaskFailed && task.Err == nil {
			t.Errorf("task: %+v, %v", task, err)
		}
	case strings.HasSuffix(path, pathHealth), strings.HasSuffix(path, pathIntro):
	default:
		if _, err := decodeReply(resp.Status, h, body); resp.Status/100 != 2 && err == nil {
			t.Errorf("status %d read as success", resp.Status)
		}
	}
}

// replayRecorded sends a real client's recorded request to our server. The clients'
// private keys are not recorded: the digest and the form of the headers are checked
// as they are, then the same body is signed anew.
func replayRecorded(t *testing.T, req, resp *wireMessage) {
	t.Helper()
	h, body := req.header(), []byte(req.Body)
	signed := h.Get("Signature-Input") != ""
	if signed {
		if err := httpsig.CheckDigest(h.Get("Content-Digest"), body); err != nil {
			t.Errorf("digest: %v", err)
		}
		sigs, err := candidates(h, time.Now())
		if err != nil || len(sigs) != 1 || sigs[0].Label != "sig1" || len(sigs[0].Bytes) != ed25519.SignatureSize {
			t.Errorf("signature headers: %v", err)
		}
	}
	e, err := Decode(body)
	if err != nil {
		if resp.Status/100 == 2 {
			t.Errorf("a server accepted what we refuse: %v", err)
		}
		return
	}
	id, err := IdentityFromSeed(e.From, "k", bytes.Repeat([]byte{9}, 32))
	if err != nil {
		t.Fatal(err)
	}
	all := []Mode{ModeSync, ModeAsync, ModeStream}
	skill := func(id, schema string) Skill {
		return Skill{ID: id, Name: id, Modes: all, Trust: TrustPublic, InputSchema: json.RawMessage(schema)}
	}
	const none = `{"type":"object","properties":{},"additionalProperties":false}`
	a := &Agent{
		Card: &Card{
			ID: e.To, Name: "Wire", URL: "http://127.0.0.1:4110", PublicKeys: []CardKey{CardKeyOf(id, true)},
			Skills: []Skill{
				skill("greet",
					`{"type":"object","properties":{"name":{"type":"string","maxLength":20}},"required":["name"],"additionalProperties":false}`),
				skill("boom", none), skill("slow", none),
			},
		},
		Handler: func(_ context.Context, r *Request) (Response, error) {
			if r.Skill.ID == "boom" {
				return Response{}, errors.New("kaput")
			}
			var in struct{ Name string }
			if err := jsonx.Decode(r.Payload, &in); err != nil {
				return Response{}, err
			}
			b, err := jsonx.Encode(map[string]string{"greeting": "Hello " + in.Name})
			return Response{Result: b}, err
		},
	}
	clk := newClock(e.Timestamp)
	s := &Server{Agent: a, Verifier: &Verifier{Keys: StaticKeys{e.From: {id.Key()}}, Now: clk.now},
		Webhook: &Webhook{HTTP: &http.Client{Transport: refuseAll{}}, Attempts: 1}}
	defer func() { _ = s.Close(context.Background()) }()
	r := signedRequest(t, id, req.Target, body, clk.now())
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	got := outcomeOf(t, req.Target, w)
	wantStatus := resp.Status
	if wantStatus == http.StatusServiceUnavailable {
		wantStatus = http.StatusInternalServerError // the Python SDK's choice for AGENT_UNAVAILABLE
	}
	if signed && got.HTTP != wantStatus {
		t.Errorf("we answer %d %s, the recorded server %d: %s", got.HTTP, got.Code, resp.Status, w.Body)
	}
}
