package asp

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"
)

// prepared is a signed message as bytes, without the parsed tree.
type prepared struct {
	session, agent string
	raw            []byte
}

// benchMessages prepares messages of one long session, by two senders in turn.
func benchMessages(b *testing.B, n int) (*world, []prepared) {
	w := newWorld(b, func(s *Server) { s.Store = NewMemoryStore(MemoryLimits{Bytes: 8 << 30, Proofs: 1 << 26}, nil) })
	id := w.conversing()
	l, err := w.Session(b.Context(), id, "")
	if err != nil {
		b.Fatal(err)
	}
	clients := []*Client{w.alice, w.bob}
	hash, next := l.Head.Hash, map[*Client]int64{w.alice: l.participant(aliceID).Next, w.bob: l.participant(bobID).Next}
	out := make([]prepared, 0, n)
	text := strings.Repeat("offer ", 60)
	for i := range n {
		c := clients[i%2]
		e := w.sign(c, Draft{SessionID: id, SequenceNumber: next[c], PreviousHash: hash, Time: w.clock.now(),
			Performative: Inform,
			Body:         Information{InformType: "result", Topic: "price", Data: map[string]any{"n": i, "text": text}}})
		next[c]++
		hash = e.Integrity.Hash
		out = append(out, prepared{id, c.Identity.ID(), e.raw})
	}
	return w, out
}

// BenchmarkIngest measures all steps for a live message, with an append in memory.
func BenchmarkIngest(b *testing.B) {
	w, messages := benchMessages(b, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for _, e := range messages {
		if _, err := w.Ingest(b.Context(), e.raw, Transport{Agent: e.agent}, e.session); err != nil {
			b.Fatal(err)
		}
	}
}

// floor is the least work for a message: one Ed25519 and one P-256 verification and the
// SHA-256 of the same bytes.
func floor(b *testing.B, w *world, m prepared) func() {
	e, err := Decode(m.raw)
	if err != nil {
		b.Fatal(err)
	}
	input := e.SigningInput()
	sig, err := hex.DecodeString(e.Integrity.Signature[len("ed25519:"):])
	if err != nil {
		b.Fatal(err)
	}
	at := strings.LastIndexByte(e.Sender.DPoPProof, '.')
	proofSig, _ := decode64(e.Sender.DPoPProof[at+1:])
	digest := sha256.Sum256([]byte(e.Sender.DPoPProof[:at]))
	key := w.alice.Identity
	return func() {
		sha256.Sum256(e.raw)
		if !ed25519.Verify(key.public, input, sig) ||
			!ecdsa.Verify(key.proof.public, digest[:], new(big.Int).SetBytes(proofSig[:32]),
				new(big.Int).SetBytes(proofSig[32:])) {
			b.Fatal("does not verify")
		}
	}
}

func BenchmarkFloor(b *testing.B) {
	w, messages := benchMessages(b, 1)
	f := floor(b, w, messages[0])
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
}

// BenchmarkRatio alternates floor and ingest, so that both run under the same load:
// floor/ingest is the share of cryptography.
func BenchmarkRatio(b *testing.B) {
	w, messages := benchMessages(b, b.N)
	f := floor(b, w, messages[0])
	var ingest, least time.Duration
	b.ResetTimer()
	for _, m := range messages {
		start := time.Now()
		if _, err := w.Ingest(b.Context(), m.raw, Transport{Agent: m.agent}, m.session); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		f()
		ingest += middle.Sub(start)
		least += time.Since(middle)
	}
	b.ReportMetric(float64(least)/float64(ingest), "floor/ingest")
}

func BenchmarkDecode(b *testing.B) {
	_, messages := benchMessages(b, 1)
	b.SetBytes(int64(len(messages[0].raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(messages[0].raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	id := testIdentity(b, aliceID, "org_acme")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (Draft{SessionID: "019cc8aa-0001-7def-8a12-000000000001", Performative: Inform, Body: inform("x"),
			Time: time.Unix(1772893800, 0)}).Sign(id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkItems measures a QUERY added to a ledger with the most items allowed.
func BenchmarkItems(b *testing.B) {
	ids := make([]string, 4*maxItems)
	for i := range ids {
		ids[i] = fmt.Sprintf("019cc8aa-0001-7def-8a12-%012d", i)
	}
	l, e := &Ledger{}, &Envelope{MessageID: ids[0]}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		next := l.copy()
		if err := next.addItem(e, Item{ID: ids[i%len(ids)], Kind: "query"}, "queryId"); err != nil {
			b.Fatal(err)
		}
		l = next
	}
}

// BenchmarkForms measures the grammar checks for the members of one message.
func BenchmarkForms(b *testing.B) {
	signature := "ed25519:" + strings.Repeat("0123456789abcdef", 8)
	at := time.Unix(1772893800, 123e6)
	b.ReportAllocs()
	for b.Loop() {
		s := Timestamp(at)
		if _, ok := ParseTimestamp(s); !ok || !ValidUUID("019cc8aa-0001-7def-8a12-000000000001") ||
			!validHash(ZeroHash) || !validSignature(signature) {
			b.Fatal(s)
		}
	}
}
