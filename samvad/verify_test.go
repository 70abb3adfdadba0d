package samvad

import (
	"bytes"
	"context"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/internal/netguard"
)

// signOver makes headers over any base: params is what follows the label,
// lines the covered components.
func signOver(t *testing.T, id *Identity, lines, params, label, end string) (input, sig string) {
	t.Helper()
	b, err := id.Sign([]byte(lines + `"@signature-params": ` + params + end))
	if err != nil {
		t.Fatal(err)
	}
	return label + "=" + params, label + "=:" + base64.StdEncoding.EncodeToString(b) + ":"
}

func TestSignatures(t *testing.T) {
	id := identity(t, "agent://peer.test", "k", 1)
	body := []byte(`{"a":1}`)
	digest := httpsig.Digest(body)
	const list = `("@method" "@path" "content-digest")`
	lines := "\"@method\": POST\n\"@path\": /agent/message\n\"content-digest\": " + digest + "\n"
	full := list + `;keyid="k";alg="ed25519";created=1775901600`
	now := time.Unix(1775901600, 0)

	check := func(h http.Header, path string, keys ...Key) (*Verdict, error) {
		return VerifySignature(&Incoming{Method: "POST", Paths: []string{path}, Header: h, Body: body}, now, keys...)
	}
	headers := func(digest, input, sig string) http.Header {
		h := http.Header{}
		h.Set("Content-Digest", digest)
		h.Set("Signature-Input", input)
		h.Set("Signature", sig)
		return h
	}
	t.Run("SAM-011 emitted form", func(t *testing.T) {
		s, err := Sign(id, "POST", "/agent/message", body, now)
		if err != nil {
			t.Fatal(err)
		}
		if s.Base != lines+`"@signature-params": `+full+"\n" || s.SignatureInput != "sig1="+full ||
			s.ContentDigest != digest {
			t.Errorf("%+v", s)
		}
		h := http.Header{}
		s.Set(h)
		v, err := check(h, "/agent/message", id.Key())
		if err != nil || v.StrictBase || v.KeyID != "k" || v.Label != "sig1" || v.SignedPath != "/agent/message" {
			t.Errorf("%+v, %v", v, err)
		}
	})
	input, sig := signOver(t, id, lines, full, "sig1", "\n")
	t.Run("SAM-013 strict base", func(t *testing.T) {
		in, s := signOver(t, id, lines, full, "sig1", "")
		v, err := check(headers(digest, in, s), "/agent/message", id.Key())
		if err != nil || !v.StrictBase {
			t.Errorf("%+v, %v", v, err)
		}
	})
	t.Run("SAM-014 tampering", func(t *testing.T) {
		good := headers(digest, input, sig)
		for name, in := range map[string]*Incoming{
			"path":   {Method: "POST", Paths: []string{"/agent/task"}, Header: good, Body: body},
			"method": {Method: "PUT", Paths: []string{"/agent/message"}, Header: good, Body: body},
			"body":   {Method: "POST", Paths: []string{"/agent/message"}, Header: good, Body: []byte(`{"a":2}`)},
			"body and digest": {Method: "POST", Paths: []string{"/agent/message"}, Body: []byte(`{"a":2}`),
				Header: headers(httpsig.Digest([]byte(`{"a":2}`)), input, sig)},
			"created": {Method: "POST", Paths: []string{"/agent/message"}, Body: body,
				Header: headers(digest, strings.Replace(input, "600", "601", 1), sig)},
			"keyid": {Method: "POST", Paths: []string{"/agent/message"}, Body: body,
				Header: headers(digest, strings.Replace(input, `"k"`, `"l"`, 1), sig)},
		} {
			if _, err := VerifySignature(in, now, Key{Public: id.Public()}); err == nil {
				t.Errorf("%s: verifies", name)
			}
		}
	})
	two := func(second string) string { return digest + ", sha-512=:" + second + ":" }
	signed := func(digest string) http.Header {
		l := "\"@method\": POST\n\"@path\": /agent/message\n\"content-digest\": " + digest + "\n"
		in, s := signOver(t, id, l, full, "sig1", "\n")
		return headers(digest, in, s)
	}
	t.Run("SAM-015 second digest", func(t *testing.T) {
		right := two("oK3Wlvb3l5yYBmbXdCJHWUlEnRIIQ7CvuVAyQvwbqVwU0nlkNVlMGSZ8kPVX0vaPYlvN3PQN2GzxuRApZZlFXg==")
		if _, err := check(signed(right), "/agent/message", id.Key()); err == nil {
			t.Error("a wrong second digest verifies")
		}
		sum := sha512sum(body)
		if _, err := check(signed(two(base64.StdEncoding.EncodeToString(sum))),
			"/agent/message", id.Key()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name, lines, params string
		is                  error
	}{
		{"SAM-016 alg", lines, list + `;keyid="k";alg="hmac-sha256";created=1775901600`, ErrHeaders},
		{"SAM-017 no keyid", lines, list + `;alg="ed25519";created=1775901600`, ErrHeaders},
		{"SAM-017 no created", lines, list + `;keyid="k";alg="ed25519"`, ErrHeaders},
		{"SAM-018 no @path", "\"@method\": POST\n\"content-digest\": " + digest +
			"\n", `("@method" "content-digest");keyid="k";created=1`, ErrHeaders},
		{"SAM-018 no content-digest", "\"@method\": POST\n\"@path\": /agent/message\n",
			`("@method" "@path");keyid="k";created=1`, ErrHeaders},
		{"SAM-018 nothing", "", `();keyid="k";created=1`, ErrHeaders},
		{"expired", lines, full + ";expires=1775901600", ErrHeaders},
		{"unknown component", lines + "\"@status\": 200\n",
			`("@method" "@path" "content-digest" "@status");keyid="k";created=1`, ErrHeaders},
		{"no alg", lines, list + `;keyid="k";created=1775901600`, nil},
		{"further components", lines + "\"content-type\": application/json\n",
			`("@method" "@path" "content-digest" "content-type");keyid="k";created=1`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, s := signOver(t, id, c.lines, c.params, "sig1", "\n")
			h := headers(digest, in, s)
			h.Set("Content-Type", "application/json")
			if _, err := check(h, "/agent/message", id.Key()); !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
		})
	}
	t.Run("SAM-019 unusable keys", func(t *testing.T) {
		identityPoint := append([]byte{1}, make([]byte, 31)...)
		forged := base64.StdEncoding.EncodeToString(append(append([]byte{1}, make([]byte, 31)...), make([]byte, 32)...))
		for _, pub := range [][]byte{identityPoint, make([]byte, 32), id.Public()[:31],
			append(bytes.Clone(id.Public()), 0), nil} {
			if _, err := ParseKey(base64.StdEncoding.EncodeToString(pub)); !errors.Is(err, ErrBadKey) {
				t.Errorf("%x loads: %v", pub, err)
			}
			if _, err := check(headers(digest, input, "sig1=:"+forged+":"),
				"/agent/message", Key{Public: pub}); err == nil {
				t.Errorf("%x verifies", pub)
			}
		}
		if _, err := ParseKey("not base64"); !errors.Is(err, ErrBadKey) {
			t.Error(err)
		}
	})
	t.Run("SAM-020 malleable and short signatures", func(t *testing.T) {
		raw, _ := base64.StdEncoding.DecodeString(strings.Trim(strings.TrimPrefix(sig, "sig1="), ":"))
		L, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989",
			10)
		le := func(b []byte) []byte {
			r := make([]byte, len(b))
			for i := range b {
				r[len(b)-1-i] = b[i]
			}
			return r
		}
		s := new(big.Int).Add(new(big.Int).SetBytes(le(raw[32:])), L)
		plusL := append(bytes.Clone(raw[:32]), le(s.FillBytes(make([]byte, 32)))...)
		for _, bad := range [][]byte{plusL, raw[:63], append(bytes.Clone(raw), 0), nil} {
			if _, err := check(headers(digest, input, "sig1=:"+base64.StdEncoding.EncodeToString(bad)+":"),
				"/agent/message", id.Key()); err == nil {
				t.Errorf("%d bytes verify", len(bad))
			}
		}
	})
	t.Run("headers must be there once", func(t *testing.T) {
		for _, name := range []string{"Content-Digest", "Signature-Input", "Signature"} {
			h := headers(digest, input, sig)
			h.Del(name)
			if _, err := check(h, "/agent/message", id.Key()); !errors.Is(err, ErrUnsigned) {
				t.Errorf("without %s: %v", name, err)
			}
			h = headers(digest, input, sig)
			h.Add(name, h.Get(name))
			if _, err := check(h, "/agent/message", id.Key()); !errors.Is(err, ErrHeaders) {
				t.Errorf("%s twice: %v", name, err)
			}
		}
	})
	t.Run("several signatures", func(t *testing.T) {
		proxy := identity(t, "agent://proxy.test", "p", 2)
		in2, s2 := signOver(t, proxy, lines, list+`;keyid="p";created=5`, "sig0", "\n")
		h := headers(digest, in2+", "+input, s2+", "+sig)
		if v, err := check(h, "/agent/message", id.Key()); err != nil || v.Label != "sig1" {
			t.Errorf("%+v, %v", v, err)
		}
		if v, err := check(h, "/agent/message", Key{Public: id.Public()}); err != nil || v.KeyID != "k" {
			t.Errorf("raw key: %+v, %v", v, err)
		}
		in3, s3 := signOver(t, id, lines, full, "again", "\n")
		if _, err := check(headers(digest, input+", "+in3, sig+", "+s3), "/agent/message", id.Key()); !errors.Is(err,
			ErrHeaders) {
			t.Errorf("two of the same sender: %v", err)
		}
	})
}

func TestVerifier(t *testing.T) {
	w := newWorld(t)
	v := &Verifier{Self: worldID, Keys: StaticKeys{w.me.ID(): {w.me.Key()}}, Now: w.clk.now}
	body := w.envelope(nil)
	r := signedRequest(t, w.me, "/agent/message", body, w.clk.now())
	in, err := v.read(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.CheckMessage(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	// CheckMessage reserves nothing, and leaves the body to be read again.
	m, err := v.Verify(r)
	if err != nil || m.From != w.me.ID() || m.Verdict.KeyID != "peer-key" || m.Verdict.Assurance != Signed {
		t.Fatal(m, err)
	}
	if b, _ := io.ReadAll(r.Body); !bytes.Equal(b, body) {
		t.Error("the body is not readable any more")
	}
	var steps []string
	for _, c := range m.Verdict.Checks {
		if !c.OK {
			t.Errorf("%+v", c)
		}
		steps = append(steps, string(c.Name))
	}
	if got := strings.Join(steps, " "); got != "envelope recipient freshness replay headers digest key signature" {
		t.Errorf("checks: %s", got)
	}
	if err := v.Reserve(t.Context(), m); !errors.Is(err, ErrReplay) {
		t.Errorf("reserved twice: %v", err)
	}
	_, err = v.Verify(signedRequest(t, identity(t, w.me.ID(), "peer-key", 8), "/agent/message", w.envelope(nil),
		w.clk.now()))
	var e *Error
	if verdict := VerdictOf(err); !errors.As(err, &e) || e.TraceID != "trace-1" || verdict == nil ||
		len(verdict.Checks) != 8 ||
		verdict.Checks[7].OK || verdict.Checks[7].Name != StepSignature || verdict.Assurance != Unsigned ||
		verdict.KeyID != "peer-key" {
		t.Errorf("%+v", verdict)
	}
	if VerdictOf(errors.New("x")) != nil {
		t.Error("a verdict from nowhere")
	}
	// The zero value refuses every sender.
	if _, err := (&Verifier{}).Verify(signedRequest(t, w.me,
		"/agent/message", w.envelope(map[string]any{"timestamp": formatTimestamp(time.Now())}),
		time.Now())); err == nil {
		t.Error("the zero Verifier accepts")
	}
	if _, err := v.Verify(httptest.NewRequest(http.MethodGet, "/agent/message", nil)); !errors.Is(err, ErrMethod) {
		t.Error(err)
	}
	t.Run("in a handler", func(t *testing.T) {
		h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			m, err := v.Verify(r)
			if err != nil {
				WriteError(rw, err)
				return
			}
			WriteResult(rw, m, map[string]any{"celsius": 21})
		})
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now()))
		if w.want(rec, 200, ""); !strings.Contains(rec.Body.String(), `"result":{"celsius":21}`) {
			t.Error(rec.Body)
		}
		rec = httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/", nil))
		w.want(rec, 415, CodeSchemaInvalid)
		rec = httptest.NewRecorder()
		WriteResult(rec, m, make(chan int))
		w.want(rec, 500, CodeAgentUnavailable)
	})
	t.Run("a memory that fails refuses", func(t *testing.T) {
		v := &Verifier{Self: worldID, Keys: v.Keys, Now: w.clk.now, Memory: brokenMemory{}}
		if _, err := v.Verify(signedRequest(t, w.me, "/agent/message", w.envelope(nil),
			w.clk.now())); AsError(err).Code != CodeAgentUnavailable {
			t.Error(err)
		}
		if err := v.Reserve(t.Context(), m); AsError(err).Code != CodeAgentUnavailable {
			t.Error(err)
		}
	})
}

type brokenMemory struct{}

func (brokenMemory) Known(context.Context, string) (bool, error) { return false, errors.New("disk") }
func (brokenMemory) Seen(context.Context, string, time.Time) (bool, error) {
	return false, errors.New("disk")
}

// cardsOf serves cards that a test can change, and counts.
type cardsOf struct {
	mu      sync.Mutex
	body    map[string]string
	fetched int
}

func (c *cardsOf) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetched++
	b, ok := c.body[r.URL.Host]
	if !ok {
		return nil, errors.New("unreachable")
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(b)), Request: r},
		nil
}

func cardText(id string, ttl int, keys ...CardKey) string {
	b, _ := json.Marshal(map[string]any{"id": id, "publicKeys": keys, "cardTTL": ttl, "protocolVersion": "1.2"})
	return string(b)
}

func TestKeys(t *testing.T) {
	alice := identity(t, "agent://alice.test", "a1", 1)
	alice2 := identity(t, "agent://alice.test", "a2", 2)
	setup := func(text string) (*world, *cardsOf, *CardStore) {
		web := &cardsOf{body: map[string]string{"alice.test": text}}
		var store *CardStore
		w := newWorld(t, func(w *world) {
			w.me = alice
			store = &CardStore{HTTP: &http.Client{Transport: web}, Now: w.clk.now}
			w.srv.Verifier.Keys = store
		})
		return w, web, store
	}
	send := func(w *world, id *Identity) *httptest.ResponseRecorder {
		return w.serve(signedRequest(t, id, "/agent/message", w.envelope(nil), w.clk.now()))
	}
	t.Run("SAM-070 unknown sender, SAM-071 another's key", func(t *testing.T) {
		w := newWorld(t)
		w.want(w.post("/agent/message", w.envelope(map[string]any{"from": "agent://stranger.test"})), 401,
			CodeAuthFailed)
		bob := identity(t, "agent://bob.test", "b", 4)
		w.srv.Verifier.Keys.(StaticKeys)[bob.ID()] = []Key{bob.Key()}
		w.want(w.post("/agent/message", w.envelope(map[string]any{"from": bob.ID()})), 401, CodeAuthFailed)
	})
	t.Run("SAM-072 inactive key, second active key", func(t *testing.T) {
		w, _, _ := setup(cardText(alice.ID(), 300, CardKeyOf(alice, false), CardKeyOf(alice2, true)))
		w.want(send(w, alice), 401, CodeAuthFailed)
		w.want(send(w, alice2), 200, "")
		// Of two active keys the one that is named counts, no other.
		w, _, _ = setup(cardText(alice.ID(), 300, CardKeyOf(alice, true), CardKeyOf(alice2, true)))
		w.want(send(w, identity(t, alice.ID(), "a2", 1)), 401, CodeAuthFailed)
		w.want(send(w, alice), 200, "")
		w.want(send(w, alice2), 200, "")
	})
	t.Run("SAM-073 one refresh for an unknown kid", func(t *testing.T) {
		w, web, _ := setup(cardText(alice.ID(), 300, CardKeyOf(alice, true)))
		w.want(send(w, alice), 200, "")
		web.body["alice.test"] = cardText(alice.ID(), 300, CardKeyOf(alice, false), CardKeyOf(alice2, true))
		w.clk.move(5 * time.Second)
		w.want(send(w, alice2), 200, "")
		if web.fetched != 2 {
			t.Errorf("%d fetches", web.fetched)
		}
		w.want(send(w, alice), 401, CodeAuthFailed)
		for range 10 {
			w.clk.move(100 * time.Millisecond)
			w.want(send(w, identity(t, alice.ID(), "a3", 3)), 401, CodeAuthFailed)
		}
		if web.fetched != 2 {
			t.Errorf("%d fetches: the refresh is not rate limited", web.fetched)
		}
		w.clk.move(10 * time.Second)
		w.want(send(w, identity(t, alice.ID(), "a3", 3)), 401, CodeAuthFailed)
		if web.fetched != 3 {
			t.Errorf("%d fetches", web.fetched)
		}
	})
	t.Run("SAM-074 cardTTL, capped", func(t *testing.T) {
		for _, c := range []struct{ ttl, kept int }{{30, 30}, {300, 300}, {86400, 300}, {0, 0}} {
			w, web, _ := setup(cardText(alice.ID(), c.ttl, CardKeyOf(alice, true)))
			w.want(send(w, alice), 200, "")
			web.body["alice.test"] = cardText(alice.ID(), c.ttl, CardKeyOf(alice, false), CardKeyOf(alice2, true))
			if c.kept > 0 {
				w.clk.set(epoch.Add(time.Duration(c.kept)*time.Second - time.Millisecond))
				w.want(send(w, alice), 200, "")
			}
			w.clk.set(epoch.Add(time.Duration(c.kept) * time.Second))
			w.want(send(w, alice), 401, CodeAuthFailed)
		}
	})
	t.Run("SAM-075 card of another", func(t *testing.T) {
		w, _, _ := setup(cardText("agent://evil.test", 300, CardKeyOf(alice, true)))
		w.want(send(w, alice), 401, CodeAuthFailed)
	})
	t.Run("SAM-076 fetching is guarded", func(t *testing.T) {
		web := &cardsOf{}
		store := &CardStore{HTTP: &http.Client{Transport: web}}
		for _, id := range []string{"agent://127.0.0.1", "agent://[::1]", "agent://10.0.0.1:8443", "agent://localhost",
			"agent://x.internal", "agent://169.254.169.254", "agent://2130706433", "agent://0x7f.1"} {
			if _, err := store.Keys(t.Context(), id); !errors.Is(err, ErrUnknownKey) {
				t.Errorf("%s: %v", id, err)
			}
		}
		if web.fetched != 0 {
			t.Errorf("%d fetches", web.fetched)
		}
		// The resolved address is checked, the answer is capped, and a
		// redirect to another origin is not followed.
		elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			t.Error("followed to another origin")
			rw.WriteHeader(200)
		}))
		defer elsewhere.Close()
		srv := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("Accept") {
			case "application/json":
				http.Redirect(rw, r, elsewhere.URL, http.StatusFound)
			default:
				t.Error("no Accept")
			}
		}))
		defer srv.Close()
		id := "agent://" + srv.Listener.Addr().String()
		if _, err := (&CardStore{}).Keys(t.Context(), id); err == nil {
			t.Error("fetched from loopback")
		}
		guard := AllowPrefixes(netip.MustParsePrefix("127.0.0.0/8"))
		roots := x509.NewCertPool()
		roots.AddCert(srv.Certificate())
		open := &CardStore{Guard: guard, HTTP: netguardOf(guard, "").Client(netguard.Options{RootCAs: roots})}
		if _, err := open.Keys(t.Context(), id); !errors.Is(err, netguard.ErrRedirect) {
			t.Errorf("redirect to another origin: %v", err)
		}
		open.HTTP.CloseIdleConnections()
		big := &CardStore{HTTP: &http.Client{Transport: &cardsOf{body: map[string]string{"alice.test": `{"x":"` +
			strings.Repeat("x", maxCardBody) + `"}`}}}}
		if _, err := big.Keys(t.Context(), alice.ID()); !errors.Is(err, ErrTooLarge) {
			t.Errorf("huge card: %v", err)
		}
		// A host that does not answer is given up after 8 seconds.
		synctest.Test(t, func(t *testing.T) {
			silent := roundTrip(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil,
					r.Context().Err()
			})
			start := time.Now()
			if _, err := (&CardStore{HTTP: &http.Client{Transport: silent}}).Keys(t.Context(),
				alice.ID()); err == nil || time.Since(start) != 8*time.Second {
				t.Errorf("%v after %s", err, time.Since(start))
			}
		})
	})
	t.Run("SAM-077 enrolled before fetched", func(t *testing.T) {
		w, web, store := setup(cardText(alice.ID(), 300, CardKeyOf(alice2, true)))
		w.srv.Verifier.Keys = FirstOf(StaticKeys{alice.ID(): {{Public: alice.Public()}}}, store)
		w.want(send(w, alice), 200, "")
		w.want(send(w, alice2), 401, CodeAuthFailed)
		if web.fetched != 0 {
			t.Errorf("%d fetches", web.fetched)
		}
		// An agent that is not enrolled is looked up, and refreshed through the
		// source that knows it.
		w.srv.Verifier.Keys = FirstOf(StaticKeys{}, store)
		w.want(send(w, alice2), 200, "")
		w.clk.move(time.Minute)
		web.body["alice.test"] = cardText(alice.ID(), 300, CardKeyOf(alice, true))
		w.want(send(w, alice), 200, "")
		if _, err := FirstOf().(Refresher).Refresh(t.Context(), "x"); !errors.Is(err, ErrUnknownKey) {
			t.Error(err)
		}
		if k, err := FirstOf(StaticKeys{"x": {alice.Key()}}).(Refresher).Refresh(t.Context(), "x"); err != nil ||
			len(k) != 1 {
			t.Error(k, err)
		}
		if _, err := FirstOf(failingKeys{}, StaticKeys{"x": {alice.Key()}}).Keys(t.Context(), "x"); err == nil ||
			errors.Is(err, ErrUnknownKey) {
			t.Errorf("a failing source is passed over: %v", err)
		}
	})
	t.Run("card store: shared fetch, bounded, odd cards", func(t *testing.T) {
		gate, started := make(chan struct{}), make(chan struct{}, 100)
		web := &cardsOf{body: map[string]string{}}
		slow := roundTrip(func(r *http.Request) (*http.Response,
			error) {
			started <- struct{}{}
			<-gate
			return web.RoundTrip(r)
		})
		for i := range 30 {
			web.body[fmt.Sprintf("s%d.test", i)] = cardText(fmt.Sprintf("agent://s%d.test", i), 300,
				CardKeyOf(alice, true))
		}
		store := &CardStore{HTTP: &http.Client{Transport: slow}, MaxCards: 10, MaxFetches: 1, Now: newClock(epoch).now}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := store.Keys(context.Background(), "agent://s0.test"); err != nil {
					t.Error(err)
				}
			})
		}
		<-started
		if _, err := store.Keys(t.Context(), "agent://s1.test"); !errors.Is(err, ErrBusy) {
			t.Errorf("a second fetch at once: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := store.Keys(ctx, "agent://s0.test"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(gate)
		wg.Wait()
		if web.fetched != 1 {
			t.Errorf("%d fetches for one card", web.fetched)
		}
		for i := range 30 {
			if _, err := store.Keys(t.Context(), fmt.Sprintf("agent://s%d.test", i)); err != nil {
				t.Fatal(err)
			}
		}
		if len(store.cards) > 10 {
			t.Errorf("%d cards kept", len(store.cards))
		}
		for name, text := range map[string]string{
			"no JSON": "<html>", "duplicate": `{"id":"agent://alice.test","id":"agent://alice.test"}`,
			"negative ttl": cardText(alice.ID(), -1, CardKeyOf(alice, true)),
			"many keys":    cardText(alice.ID(), 1, make([]CardKey, 65)...),
		} {
			store := &CardStore{HTTP: &http.Client{Transport: &cardsOf{body: map[string]string{"alice.test": text}}}}
			if _, err := store.Keys(t.Context(), alice.ID()); !errors.Is(err, ErrUnknownKey) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := store.Keys(t.Context(), "agent://x/y"); !errors.Is(err, ErrIdentity) {
			t.Error(err)
		}
		if (&CardStore{}).client() == nil {
			t.Error("no client")
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type failingKeys struct{}

func (failingKeys) Keys(context.Context, string) ([]Key, error) { return nil, errors.New("database") }

func TestDelegation(t *testing.T) {
	issuer := identity(t, "agent://issuer.test", "i1", 3)
	keys := StaticKeys{issuer.ID(): {issuer.Key()}}
	now := epoch.Add(123 * time.Millisecond)
	d := &Delegation{Subject: "agent://alice.test", Scope: []string{"echo", "sum"}, MaxDepth: 2,
		Actor: "agent://root.test"}
	token, err := d.Issue(issuer, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("SAM-100 round trip", func(t *testing.T) {
		got, err := VerifyDelegation(t.Context(), token, keys, now)
		if err != nil || got.Issuer != issuer.ID() || got.Subject != d.Subject || !got.Covers("sum") ||
			got.MaxDepth != 2 || got.Actor != d.Actor ||
			got.Expires.Unix() != now.Add(15*time.Minute).Unix() || got.Issued.Unix() != now.Unix() {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := VerifyDelegation(t.Context(), token, keys, now.Add(15*time.Minute)); !errors.Is(err,
			ErrDelegation) {
			t.Error(err)
		}
		revoked := issuer.Key()
		revoked.Revoked = true
		for name, k := range map[string]Keys{"revoked": StaticKeys{issuer.ID(): {revoked}},
			"other kid": StaticKeys{issuer.ID(): {{KID: "i2", Public: issuer.Public()}}}, "none": nil} {
			if _, err := VerifyDelegation(t.Context(), token, k, now); !errors.Is(err, ErrDelegation) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("SAM-103 scope emitted as an array", func(t *testing.T) {
		payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
		if !strings.Contains(string(payload), `"scope":["echo","sum"]`) ||
			!strings.Contains(string(payload), `"maxDepth":2`) ||
			!strings.Contains(string(payload), `"iat":1775901600`) {
			t.Errorf("%s", payload)
		}
		header, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
		if string(header) != `{"alg":"EdDSA","kid":"i1","typ":"JWT"}` {
			t.Errorf("%s", header)
		}
	})
	forge := func(header, payload string) string {
		enc := base64.RawURLEncoding.EncodeToString
		in := enc([]byte(header)) + "." + enc([]byte(payload))
		sig, _ := issuer.Sign([]byte(in))
		return in + "." + enc(sig)
	}
	const eddsa = `{"alg":"EdDSA"}`
	claims := func(more string) string {
		return `{"iss":"agent://issuer.test","sub":"agent://alice.test"` + more + `}`
	}
	exp := fmt.Sprintf(`,"exp":%d`, now.Add(time.Minute).Unix())
	for _, c := range []struct {
		name, token string
		is          error
	}{
		{"SAM-101 none", strings.TrimRight(forge(`{"alg":"none"}`, claims(`,"scope":[],"maxDepth":1`+exp)), "."),
			ErrDelegation},
		{"SAM-101 HS256", forge(`{"alg":"HS256"}`, claims(`,"scope":[],"maxDepth":1`+exp)), ErrDelegation},
		{"SAM-102 no exp", forge(eddsa, claims(`,"scope":[],"maxDepth":1`)), ErrDelegation},
		{"SAM-103 scope as string", forge(eddsa, claims(`,"scope":"echo  sum","maxDepth":1`+exp)), nil},
		{"scope of numbers", forge(eddsa, claims(`,"scope":[1],"maxDepth":1`+exp)), ErrDelegation},
		{"SAM-104 depth 0", forge(eddsa, claims(`,"scope":[],"maxDepth":0`+exp)), ErrDelegationExceeded},
		{"depth true", forge(eddsa, claims(`,"scope":[],"maxDepth":true`+exp)), ErrDelegation},
		{"depth 0.5", forge(eddsa, claims(`,"scope":[],"maxDepth":0.5`+exp)), ErrDelegation},
		{"depth 2.0", forge(eddsa, claims(`,"scope":[],"maxDepth":2.0`+exp)), nil},
		{"depth 1e99", forge(eddsa, claims(`,"scope":[],"maxDepth":1e99`+exp)), ErrDelegation},
		{"duplicate claim", forge(eddsa, claims(`,"scope":[],"maxDepth":1,"maxDepth":9`+exp)), ErrDelegation},
		{"iat 61 s ahead", forge(eddsa,
			claims(fmt.Sprintf(`,"scope":[],"maxDepth":1,"iat":%d`, now.Add(62*time.Second).Unix())+exp)),
			ErrDelegation},
		{"nbf ahead", forge(eddsa,
			claims(fmt.Sprintf(`,"scope":[],"maxDepth":1,"nbf":%d`, now.Add(2*time.Second).Unix())+exp)),
			ErrDelegation},
		{"exp is a string", forge(eddsa, claims(`,"scope":[],"maxDepth":1,"exp":"9999999999"`)), ErrDelegation},
		{"iss is no identity", forge(eddsa, `{"iss":"issuer","sub":"agent://alice.test","scope":[],"maxDepth":1`+exp+
			`}`), ErrDelegation},
		{"no sub", forge(eddsa, `{"iss":"agent://issuer.test","scope":[],"maxDepth":1`+exp+`}`), ErrDelegation},
		{"payload is an array", forge(eddsa, `[]`), ErrDelegation},
		{"critical header", forge(`{"alg":"EdDSA","crit":["x"],"x":1}`, claims(`,"scope":[],"maxDepth":1`+exp)),
			ErrDelegation},
		{"too long", strings.Repeat("x", maxToken+1), ErrDelegation},
		{"JSON serialisation", `{"payload":"","signatures":[]}`, ErrDelegation},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := VerifyDelegation(t.Context(), c.token, keys, now); !errors.Is(err, c.is) ||
				(err == nil) != (c.is == nil) {
				t.Errorf("got %+v, %v, want %v", got, err, c.is)
			}
		})
	}
	t.Run("SAM-105 narrowing", func(t *testing.T) {
		got, err := VerifyDelegation(t.Context(), token, keys, now)
		if err != nil {
			t.Fatal(err)
		}
		n, err := got.Narrow("agent://bob.test", []string{"sum"})
		if err != nil || n.MaxDepth != 1 || len(n.Scope) != 1 || n.Expires != got.Expires || n.Issuer != got.Subject ||
			n.Actor != got.Issuer {
			t.Errorf("%+v, %v", n, err)
		}
		alice := identity(t, "agent://alice.test", "a", 1)
		later := now.Add(14 * time.Minute)
		tok, err := n.Issue(alice, later)
		if err != nil {
			t.Fatal(err)
		}
		again, err := VerifyDelegation(t.Context(), tok, StaticKeys{alice.ID(): {alice.Key()}}, later)
		if err != nil || again.Expires.After(got.Expires) || again.MaxDepth != 1 {
			t.Errorf("%+v, %v", again, err)
		}
		if _, err := again.Narrow("agent://c.test", nil); !errors.Is(err, ErrDelegationExceeded) {
			t.Errorf("delegated beyond its depth: %v", err)
		}
		if _, err := got.Narrow("agent://bob.test", []string{"admin"}); !errors.Is(err, ErrDelegationExceeded) {
			t.Errorf("scope widened: %v", err)
		}
		if _, err := (&Delegation{Subject: "agent://x.test"}).Issue(alice, now); !errors.Is(err,
			ErrDelegationExceeded) {
			t.Errorf("depth 0 issued: %v", err)
		}
		if _, err := (&Delegation{Subject: "agent://x.test", MaxDepth: 1, Expires: now}).Issue(alice,
			now); !errors.Is(err, ErrDelegation) {
			t.Errorf("expired issued: %v", err)
		}
		if _, err := (&Delegation{Subject: "x", MaxDepth: 1}).Issue(alice, now); !errors.Is(err, ErrIdentity) {
			t.Error(err)
		}
	})
}

// SAM-170
func TestLegacy(t *testing.T) {
	w := newWorld(t, func(w *world) { w.srv.Verifier.Legacy = true })
	key := w.me.Key()
	legacy := func(change func(map[string]any)) *httptest.ResponseRecorder {
		var m map[string]any
		into(t, w.envelope(nil), &m)
		m["kid"] = "peer-key"
		b, _ := json.Marshal(m)
		sig, err := signLegacy(w.me, b)
		if err != nil {
			t.Fatal(err)
		}
		m["signature"] = sig
		change(m)
		b, _ = json.Marshal(m)
		r := httptest.NewRequest(http.MethodPost, "/agent/message", bytes.NewReader(b))
		r.Header.Set("Content-Type", "application/json")
		return w.serve(r)
	}
	same := func(map[string]any) {}
	w.want(legacy(same), 200, "")
	key.Version = "1.1"
	w.srv.Verifier.Keys = StaticKeys{w.me.ID(): {key}}
	w.want(legacy(same), 200, "")
	w.want(legacy(func(m map[string]any) { m["skill"] = "fail" }), 401, CodeAuthFailed)
	w.want(legacy(func(m map[string]any) { delete(m, "kid") }), 401, CodeAuthFailed)
	w.want(legacy(func(m map[string]any) { m["kid"] = "other" }), 401, CodeAuthFailed)
	w.want(legacy(func(m map[string]any) { m["signature"] = "?" }), 401, CodeAuthFailed)
	w.want(legacy(func(m map[string]any) { m["from"] = "agent://stranger.test" }), 401, CodeAuthFailed)
	// Signature headers still count when they are there.
	w.want(w.post("/agent/message", w.envelope(nil)), 200, "")
	key.Version = "1.2"
	w.srv.Verifier.Keys = StaticKeys{w.me.ID(): {key}}
	w.want(legacy(same), 401, CodeAuthFailed)
	w.srv.Verifier.Keys, w.srv.Verifier.Legacy = StaticKeys{w.me.ID(): {w.me.Key()}}, false
	w.want(legacy(same), 401, CodeAuthFailed)
	if _, err := LegacyBase([]byte(`[]`)); err == nil {
		t.Error("an array has a base")
	}
}

func TestKeyFiles(t *testing.T) {
	id := identity(t, "agent://peer.test", "key-current", 1)
	dir := t.TempDir()
	if err := id.SaveTS(dir); err != nil {
		t.Fatal(err)
	}
	if err := id.SavePython(dir); err != nil {
		t.Fatal(err)
	}
	if err := id.SaveTS(dir); err == nil {
		t.Error("a key file was overwritten")
	}
	for file, mode := range map[string]os.FileMode{"key-current.json": 0o600, "key-current.key": 0o600,
		"key-current.pub": 0o644} {
		st, err := os.Stat(filepath.Join(dir, file))
		if err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", file, st.Mode(), err)
		}
	}
	b, _ := os.ReadFile(filepath.Join(dir, "key-current.json"))
	if want := `{"kid":"key-current","privateKey":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","publicKey":"` +
		base64.StdEncoding.EncodeToString(id.Public()) + `"}`; strings.TrimSpace(string(b)) != want {
		t.Errorf("%s", b)
	}
	for _, f := range []string{"key-current.json", "key-current.key"} {
		got, err := LoadIdentity(filepath.Join(dir, f), "agent://peer.test")
		if err != nil || got.KID() != "key-current" || !bytes.Equal(got.Seed(), id.Seed()) ||
			got.String() != "agent://peer.test#key-current" {
			t.Errorf("%s: %v, %v", f, got, err)
		}
	}
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, p := range map[string]string{
		"not there": filepath.Join(dir, "x.json"),
		"no JSON":   write("a.json", "{"),
		"no seed":   write("b.json", `{"kid":"k","privateKey":"AAAA","publicKey":""}`),
		"no base64": write("c.key", "???"),
		"mismatch": write("d.json",
			`{"kid":"k","privateKey":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","publicKey":"AAAA"}`),
		"without kid":  write("e.json", `{"privateKey":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}`),
		"unknown form": write("f.pem", "x"),
	} {
		if _, err := LoadIdentity(p, "agent://peer.test"); err == nil {
			t.Errorf("%s loads", name)
		}
	}
	if _, err := NewIdentity("agent://peer.test", "k"); err != nil {
		t.Error(err)
	}
	if _, err := NewIdentity("peer.test", "k"); !errors.Is(err, ErrIdentity) {
		t.Error(err)
	}
	evil := identity(t, "agent://peer.test", "../evil", 1)
	if evil.SaveTS(dir) == nil || evil.SavePython(dir) == nil {
		t.Error("a kid led out of the folder")
	}
}

func TestAgentIdentities(t *testing.T) {
	for in, want := range map[string]string{ // SAM-036
		"agent://a.test": "https://a.test", "agent://A.test:443": "https://a.test",
		"agent://a.test:80":          "https://a.test:80",
		"agent://[2001:DB8::1]:8443": "https://[2001:db8::1]:8443", "agent://[2001:db8::1]": "https://[2001:db8::1]",
		"agent://bücher.example": "https://xn--bcher-kva.example", "agent://client_1": "https://client_1",
		"agent://a.test.": "https://a.test.",
	} {
		if got, err := AgentOrigin(in); err != nil || got != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "agent:", "agent://", "Agent://a.test", "agent:///", "agent://a.test/",
		"agent://a.test?x", "agent://a.test#x", "agent://u@a.test",
		"agent://a.test:", "agent://a.test:0", "agent://a.test:65536", "agent://a.test:+80", "agent://a.test:080",
		"agent://a.test:8 0", "agent://a..test", "agent://.a",
		"agent://a b", "agent://a\ntest", "agent://a%2e", "agent://a\\b", "agent://[::1", "agent://[::1]x",
		"agent://[1.2.3.4]", "agent://[fe80::1%25eth0]", "agent://[::1]:",
		"agent://a:b:c", "agent://" + strings.Repeat("a", 64) + ".test", "agent://" + strings.Repeat("a.", 200),
		"agent://a／b.test", "agent://\xff.test"} {
		if got, err := AgentOrigin(in); !errors.Is(err, ErrIdentity) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, w := range wire {
		e := AsError(w.is)
		if e.Code != w.code || e.HTTPStatus() != w.status || e.Text == "" || !errors.Is(e, w.is) {
			t.Errorf("%v: %+v", w.is, e)
		}
		if body, err := (&Reply{Err: e}).Encode(); err != nil || ResponseDocument.Validate(body) != nil {
			t.Errorf("%v: %s", w.is, body)
		}
	}
	// SAM-112: codes outside the schema are never sent.
	for _, code := range []Code{CodeTimestampExpired, CodeNotFound, "OWN", ""} {
		b, err := (&Reply{Err: &Error{Code: code, Text: "x"}}).Encode()
		if err != nil || ResponseDocument.Validate(b) != nil {
			t.Errorf("%q: %s, %v", code, b, err)
		}
	}
	if AsError(nil) != nil || AsError(context.DeadlineExceeded).Code != CodeAgentUnavailable ||
		!errors.Is(AsError(context.DeadlineExceeded), ErrTimeout) {
		t.Error("AsError")
	}
	e := AsError(errors.New("password is hunter2"))
	if strings.Contains(e.Text, "hunter2") || !strings.Contains(e.Error(), "hunter2") {
		t.Errorf("%q, %q", e.Text, e.Error())
	}
	for code, want := range map[Code]int{CodeAuthFailed: 401, CodeReplayDetected: 401, CodeSkillNotFound: 404,
		CodeSchemaInvalid: 400, CodeInjectionDetected: 400,
		CodeDelegationExceeded: 400, CodeRateLimited: 429, CodeTokenBudgetExceeded: 429, CodeAgentUnavailable: 500} {
		if got := (&Error{Code: code}).HTTPStatus(); got != want {
			t.Errorf("%s: %d", code, got)
		}
	}
}

func TestTimestamps(t *testing.T) {
	for in, want := range map[string]string{
		"2026-04-11T10:00:00Z": "2026-04-11T10:00:00.000Z", "2026-04-11t10:00:00z": "2026-04-11T10:00:00.000Z",
		"2026-04-11T10:00:00.5+00:00":               "2026-04-11T10:00:00.500Z",
		"2026-04-11T15:30:00+05:30":                 "2026-04-11T10:00:00.000Z",
		"2026-04-11T10:00:00.12345678901234567890Z": "2026-04-11T10:00:00.123Z",
		"0001-01-01T00:00:00-00:00":                 "0001-01-01T00:00:00.000Z",
	} {
		got, ok := parseTimestamp(in)
		if !ok || formatTimestamp(got) != want {
			t.Errorf("%s: %v, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "2026-04-11", "2026-04-11T10:00:00", "2026-04-11 10:00:00Z",
		"2026-04-11T10:00:00,5Z", "2026-04-11T10:00:60Z", "2026-13-11T10:00:00Z",
		"2026-02-30T10:00:00Z", "2026-04-11T24:00:00Z", "2026-04-11T10:00:00.Z", "2026-04-11T10:00:00+0530",
		"2026-04-11T10:00:00+24:00", "2026-04-11T10:00:00+05:60", "2026-04-11T10:00Z",
		"2026-04-11T1:00:00Z ", "+026-04-11T10:00:00Z", "2026-04-11T10:00:00ZZ", "2026-04-11T10:00:00." +
			strings.Repeat("0", 99) + "Z"} {
		if got, ok := parseTimestamp(in); ok {
			t.Errorf("%q read as %v", in, got)
		}
	}
}

func sha512sum(b []byte) []byte {
	sum := sha512.Sum512(b)
	return sum[:]
}

// signLegacy gives the value of the member signature for a body of protocol 1.1.
func signLegacy(s Signer, body []byte) (string, error) {
	base, err := LegacyBase(body)
	if err != nil {
		return "", err
	}
	sig, err := s.Sign(base)
	return base64.StdEncoding.EncodeToString(sig), err
}

func TestUntrusted(t *testing.T) {
	for text, want := range map[string]bool{ // SAM-084
		"you are now  processing": true, "you are now processing": false,
		"you are now processing, you are now a pirate": true,
		"you are now analyzing":                        false, "you are now\u00a0reviewing": false, "You Are Now ": true,
		"\u017fystem [\u017fystem]": false, "jailbrea\u212a": false, "JAILBREAK": true,
	} {
		if got := Suspicious(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if !scanPayload(json.RawMessage(`{"a":["\u006aailbreak"]}`)) ||
		scanPayload(json.RawMessage(`{"jail\u0062reak":1}`)) {
		t.Error("escapes")
	}
}

// Half a surrogate pair, which JavaScript emits for a text that was cut inside a
// character, is accepted in content, and only there.
func TestHalfSurrogatePairs(t *testing.T) {
	const head = `{"from":"agent://a.test","to":"agent://b.test","skill":"s","mode":"sync","nonce":"12345678","timestamp":"2026-04-11T10:00:00Z","traceId":"t","spanId":"p"`
	for _, c := range []struct{ name, body, payload string }{
		{"text", head + `,"payload":{"text":"cut \ud83d"}}`, `{"text":"cut \ufffd"}`},
		{"member name", head + `,"payload":{"\ud83d":1}}`, `{"\ufffd":1}`},
		{"whole pair", head + `,"payload":{"text":"\ud83d\ude00"}}`, `{"text":"\ud83d\ude00"}`},
		{"two names that become one", head + `,"payload":{"\ud83d":1,"\ud83e":2}}`, ""},
		{"envelope member", strings.Replace(head, `"t"`, `"\ud83d"`, 1) + `,"payload":{}}`, ""},
		{"unknown member", head + `,"more":"\ud83d","payload":{}}`, ""},
		{"wrong besides", head + `,"payload":{"text":"\ud83d",}}`, ""},
	} {
		e, err := Decode([]byte(c.body))
		if c.payload == "" {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %+v, %v", c.name, e, err)
			}
			continue
		}
		if err != nil || string(e.Payload) != c.payload || string(e.Raw()) != c.body ||
			e.Replaced != (string(e.RawPayload()) != c.payload) {
			t.Errorf("%s: %+v, %v", c.name, e, err)
			continue
		}
		if !e.Replaced {
			continue
		}
		e.Payload = e.RawPayload() // which is passed on as it was
		b, err := e.Encode()
		if again, derr := Decode(b); err != nil || derr != nil || string(again.RawPayload()) != string(e.Payload) {
			t.Errorf("%s: %s, %v, %v", c.name, b, err, derr)
		}
	}
	r, err := decodeReply(200, nil, []byte(`{"traceId":"t","spanId":"s","status":"ok","result":{"text":"\ude00"}}`))
	if err != nil || !r.Replaced || string(r.Result) != `{"text":"\ufffd"}` {
		t.Errorf("%+v, %v", r, err)
	}
}
