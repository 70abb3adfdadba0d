package agh

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// A greeting costs the same whether 100 peers are present or 10,000 in 1,000
// channels, and each further peer takes as much memory as the one before.
func TestGreetCostsTheSameForAnyNumber(t *testing.T) {
	now := time.Unix(1776366000, 0)
	greeting := func(i, k int) []byte {
		card, err := NewCard(fmt.Sprint("p", i), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		e := &Envelope{ID: fmt.Sprintf("m%d-%d", i, k), WorkspaceID: "ws", Channel: fmt.Sprint("c", i%1000),
			From: card.PeerID, TS: now.Unix()}
		if err := e.SetContent(&Greet{Card: card}); err != nil {
			t.Fatal(err)
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	r := &Router{Relay: true, Verifier: Verifier{Now: func() time.Time { return now }}, Presence: &Presence{},
		Admit: func(context.Context, *Admission) (Decision, error) { return Pass, nil }}
	greet := func(b []byte) {
		if res := r.Receive(t.Context(), Inbound{Raw: b}); res.Outcome != Accepted {
			t.Fatal(res.Err)
		}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const rounds = 100
	cost := func(from, to int) (allocations, memory float64) {
		t.Helper()
		before := heap()
		for i := from; i < to; i++ {
			greet(greeting(i, 0))
		}
		memory = float64(heap()-before) / float64(to-from)
		again := make([][]byte, rounds+1) // AllocsPerRun runs once more to warm up
		for k := range again {
			again[k] = greeting(from+k%(to-from), k+1)
		}
		k := 0
		return testing.AllocsPerRun(rounds, func() { greet(again[k]); k++ }), memory
	}
	half := 5_000
	if testing.Short() {
		half = 1_000
	}
	few, _ := cost(0, 100)
	_, early := cost(100, half)
	many, late := cost(half, 2*half)
	if r.Presence.Len() != 2*half {
		t.Fatalf("%d peers are present", r.Presence.Len())
	}
	if many > 1.5*few { // pools drop objects at random
		t.Errorf("%v allocations for a greeting among %d, %v among 100", many, 2*half, few)
	}
	if late > 2*early+256 {
		t.Errorf("the second %d peers take %.0f bytes each, the first %.0f", half, late, early)
	}
}
