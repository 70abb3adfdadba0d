package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/attack"
	"github.com/parley-hub/parley/internal/bench"
)

func TestGuestsTable(t *testing.T) {
	r := &bench.GuestsReport{
		Attacks: []bench.GuestAttack{
			{Name: "registrations", Result: attack.Result{Sent: 12, Taken: 3, Refused: 4, Later: 5, Bytes: 2 << 20}},
			{Name: "pages", Result: attack.Result{Err: errors.New("no route")}, Error: "no route"},
		},
		Memory: bench.Span{Before: 50 << 20, Peak: 70 << 20, After: 60 << 20},
		Disk:   bench.Span{Before: 1 << 20, After: 4 << 20}, Own: 2 << 20,
		Quiet: bench.Talk{Asked: 10, P50: time.Millisecond, P99: 5 * time.Millisecond},
		Under: bench.Talk{Asked: 9, Failed: 1, Errors: map[string]int{"samvad to agh: gone\x1b[31m": 1}},
		Bounds: []bench.Bound{
			{What: "failed", Was: "1", Want: "0"}, {What: "restart", Was: "1s", Want: "below 2s", Holds: true},
		},
	}
	var b strings.Builder
	if err := guestsTable(&b, r); err != nil {
		t.Fatal(err)
	}
	lines := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"registrations 12 3 4 5 0 0 2.0", "pages: no route",
		"memory 50.0 MiB 70.0 MiB 60.0 MiB", "4.0 MiB, of which 2.0 MiB are the agents'",
		"without an attack 10 0 1.00ms 5.00ms", "under attack 9 1", "1 times samvad to agh: gone",
		"failed 1 0 DOES NOT HOLD", "restart 1s below 2s holds",
	} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("an error steers the terminal")
	}
}
