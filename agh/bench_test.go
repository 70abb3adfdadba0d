package agh

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

func say1K() []byte {
	b := `{"protocol":"agh-network/v0","id":"msg_01jz8f6m6x4f4s8e9b2c3d4e5f","workspace_id":"ws_alpha","kind":"say","channel":"builders","surface":"thread","thread_id":"thread_migration_check_20260416","from":"ops-coordinator.session-42","to":"patch-worker.session-19","work_id":"work_migration_check_20260416","trace_id":"trace_release_20260416","causation_id":"msg_01jz8f5p4q0n3a2b1c9d8e7f6a","ts":1776366000,"expires_at":1776366300,"body":{"text":"~","intent":"request","artifacts":[{"type":"git-ref","repo":"github.com/acme/app","ref":"refs/heads/staging"}]},"proof":null,"ext":{"acme.priority":"high"}}`
	return []byte(strings.Replace(b, "~", strings.Repeat("Run the test. ", (1024-len(b))/14), 1))
}

func BenchmarkDecodeSay1K(b *testing.B) {
	raw := say1K()
	var l Limits
	now := time.Unix(1776366000, 0)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		e, err := Decode(raw)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Fresh(e, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRouterSay1K(b *testing.B) {
	r := &Router{Relay: true, Verifier: Verifier{Now: atClock},
		Admit: func(context.Context, *Admission) (Decision, error) { return Pass, nil }}
	raw := []byte(strings.ReplaceAll(strings.Replace(string(say1K()),
		`"work_id":"work_migration_check_20260416",`, "", 1), `"to":"patch-worker.session-19"`, `"to":null`))
	b.ReportAllocs()
	for b.Loop() {
		if res := r.Receive(context.Background(), Inbound{Raw: raw}); !res.Relay {
			b.Fatal(res.Err)
		}
	}
}

func BenchmarkVerifySigned(b *testing.B) {
	v := &Verifier{Trust: true, Now: atClock}
	raw := []byte(signedSay(b, testIdentity(b, 1)))
	for b.Loop() {
		if _, err := v.Verify(context.Background(), raw); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPresence refreshes one of 10,000 peers in 1,000 channels.
func BenchmarkPresence(b *testing.B) {
	p := &Presence{}
	cards := make([]*Card, 10000)
	for i := range cards {
		cards[i] = &Card{PeerID: fmt.Sprint("p", i)}
	}
	for i := 0; b.Loop(); i++ {
		n := i % len(cards)
		if _, err := p.Refresh(cards[n].PeerID, "ws", cards[n%1000].PeerID, cards[n], false, atClock()); err != nil {
			b.Fatal(err)
		}
	}
}
