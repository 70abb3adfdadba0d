package samvad

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// oneKiB is a message of 1 KiB.
func oneKiB(tb testing.TB, w *world) []byte {
	tb.Helper()
	body := w.envelope(map[string]any{"payload": map[string]any{"text": "hi", "n": 7,
		"more": []any{"x", 1.5, nil, true}}})
	pad := 1024 - len(body) - len(`,"pad":""`)
	return []byte(strings.Replace(string(body), `"text":"hi"`, `"text":"hi","pad":"`+strings.Repeat("x", pad)+`"`, 1))
}

// BenchmarkFloor is the least that a verification takes: one SHA-256, one
// Ed25519 verification, one JSON decode.
func BenchmarkFloor(b *testing.B) {
	w := newWorld(b)
	body := oneKiB(b, w)
	sig, err := Sign(w.me, "POST", "/agent/message", body, w.clk.now())
	if err != nil {
		b.Fatal(err)
	}
	base, pub := []byte(sig.Base), w.me.Public()
	raw := ed25519.Sign(w.me.key, base)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		sum := sha256.Sum256(body)
		var m struct {
			From, To, Skill, Mode, Nonce, Timestamp, TraceID, SpanID string
			Payload                                                  json.RawMessage
		}
		if err := jsonx.Decode(body, &m); err != nil || sum[0] == 0 && sum[1] == 0 || !ed25519.Verify(pub, base, raw) {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	w := newWorld(b)
	body := oneKiB(b, w)
	r := signedRequest(b, w.me, "/agent/message", body, w.clk.now())
	in := &Incoming{Self: worldID, Method: "POST", Paths: []string{"/agent/message"}, Header: r.Header, Body: body}
	v := w.srv.Verifier
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.CheckMessage(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	w := newWorld(b)
	body := oneKiB(b, w)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkServer is a whole sync request without HTTP parsing.
func BenchmarkServer(b *testing.B) {
	w := newWorld(b, func(w *world) {
		w.agent.Card.RateLimit = &RateLimit{RequestsPerMinute: 1 << 30, RequestsPerSender: 1 << 30}
	})
	base := string(oneKiB(b, w))
	old := fmt.Sprintf("nonce-%08d", w.n)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		if n%50000 == 0 {
			w.clk.move(10 * time.Minute)
			now := w.clk.now()
			base = strings.Replace(base, formatTimestamp(now.Add(-10*time.Minute)), formatTimestamp(now), 1)
		}
		r := signedRequest(b, w.me, "/agent/message", []byte(strings.Replace(base, old,
			fmt.Sprintf("nonce-%08d", 1000+n), 1)), w.clk.now())
		rec := httptest.NewRecorder()
		b.StartTimer()
		w.srv.ServeHTTP(rec, r)
		if rec.Code != 200 {
			b.Fatal(rec.Body)
		}
	}
}

// Ten thousand agents cost a card and little else.
func BenchmarkAgents(b *testing.B) {
	w := newWorld(b)
	schema := json.RawMessage(w.agent.Card.Skills[0].InputSchema)
	b.ReportAllocs()
	for b.Loop() {
		card := *w.agent.Card
		card.Skills = append([]Skill{}, card.Skills...)
		card.Skills[0].InputSchema = json.RawMessage(schema)
		a := &Agent{Card: &card, Handler: w.agent.Handler}
		if err := a.prepare(); err != nil {
			b.Fatal(err)
		}
	}
}
