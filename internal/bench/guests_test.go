package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/attack"
)

// TestBounds: a report fails on the broken bound alone.
func TestBounds(t *testing.T) {
	good := func() *GuestsReport {
		return &GuestsReport{
			Attacks: []GuestAttack{{Name: "one", Result: attack.Result{Sent: 5, Refused: 5}}},
			Memory:  Span{Before: 50 << 20, Peak: 50<<20 + maxGuestMemory - 1, After: 60 << 20},
			Disk:    Span{Before: 1 << 20, After: 21<<20 - 1}, Own: 4 << 20,
			Quiet: Talk{Asked: 10, P99: 10 * time.Millisecond}, Under: Talk{Asked: 10, P99: 29 * time.Millisecond},
			Restart: time.Second,
		}
	}
	r := good()
	if r.judge(); !r.Holds() {
		t.Errorf("%+v", r.Bounds)
	}
	for what, spoil := range map[string]func(*GuestsReport){
		"memory":   func(r *GuestsReport) { r.Memory.Peak++ },
		"disk":     func(r *GuestsReport) { r.Own-- },
		"failed":   func(r *GuestsReport) { r.Under.Failed = 1 },
		"p99":      func(r *GuestsReport) { r.Under.P99 = 30 * time.Millisecond },
		"restart":  func(r *GuestsReport) { r.Restart = maxRestart },
		"changed":  func(r *GuestsReport) { r.Attacks[0].Changed = 1 },
		" p99":     func(r *GuestsReport) { r.Quiet, r.Under.P99 = Talk{}, time.Second },
		"messages": func(r *GuestsReport) { r.Under.Asked = 0 },
	} {
		r := good()
		spoil(r)
		r.judge()
		for _, b := range r.Bounds {
			if is := strings.Contains(b.What, strings.TrimSpace(what)); b.Holds == is {
				t.Errorf("%s: %+v", what, b)
			}
		}
	}
}

func TestQuiet(t *testing.T) {
	for attack, want := range map[time.Duration]time.Duration{
		time.Minute: 15 * time.Second, 10 * time.Second: 5 * time.Second, 2 * time.Second: 2 * time.Second,
	} {
		if got := quiet(attack); got != want {
			t.Errorf("%s: %s, want %s", attack, got, want)
		}
	}
}

func TestBytesIn(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"a": 10, "below/b": 200} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := bytesIn(dir); n != 210 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
