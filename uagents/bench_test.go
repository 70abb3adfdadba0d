package uagents

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func BenchmarkDecode(b *testing.B) {
	me := seeded(b, "me")
	text := encoded(b, signed(b, me, me.Address(), hello()))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	me := seeded(b, "me")
	e := signed(b, me, me.Address(), hello())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Digest(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	me := seeded(b, "me")
	e := signed(b, me, me.Address(), hello())
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Sign(me); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerifyCurve is the part of BenchmarkVerify that the curve takes.
func BenchmarkVerifyCurve(b *testing.B) {
	me := seeded(b, "me")
	var digest [32]byte
	sig, err := pureGo{}.Sign(&me.key, &digest)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if !(pureGo{}).Verify(&me.public, &digest, &sig) {
			b.Fatal("no")
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	me := seeded(b, "me")
	text := encoded(b, signed(b, me, me.Address(), hello()))
	v := &Verifier{}
	b.ReportAllocs()
	for b.Loop() {
		e, err := Decode(text)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := v.Check(e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkServer is one async envelope from HTTP request to 200 {}.
func BenchmarkServer(b *testing.B) {
	me, you := seeded(b, "me"), seeded(b, "you")
	s := &Server{
		Accept: accepting(&Agent{Address: you.Address()}, func(*Request) (bool, error) { return false, nil }),
	}
	text := string(encoded(b, signedAt(b, me, you.Address(), "", hello(), time.Now().Add(time.Hour))))
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/submit", strings.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, r)
		if rec.Code != 200 {
			b.Fatal(rec.Body)
		}
	}
}

func BenchmarkModelOf(b *testing.B) {
	for b.Loop() {
		if ModelOf[ChatMessage]().Err() != nil {
			b.Fatal("no")
		}
	}
}

func BenchmarkMemory(b *testing.B) {
	m := NewMemory(0, nil)
	until := time.Now().Add(time.Second)
	key := []byte("sender 00000000")
	n := 0
	for b.Loop() {
		n++
		for i, x := len(key)-1, n; x > 0; i, x = i-1, x/10 {
			key[i] = byte('0' + x%10)
		}
		_, _ = m.Seen(b.Context(), string(key), until)
	}
}

func BenchmarkParse(b *testing.B) {
	text := []byte(`{"timestamp":"2026-04-16T19:00:00.123456Z","msg_id":"019cc8aa-0001-7def-8a12-000000000001","content":[{"type":"text","text":"` + strings.Repeat("Run the test. ", 40) +
		`"},{"type":"metadata","metadata":{"n":"12","escaped":"a \"word\" \u00e9"}},{"type":"start-session"}],"n":[1,-2.5e3,true,null]}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
