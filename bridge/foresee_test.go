package bridge_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/bridgetest"
)

// TestForeseeIsTheTable: of a message that every binding takes nothing is refused, and what it is told to lose is what
// the delivery will report.
func TestForeseeIsTheTable(t *testing.T) {
	for _, w := range bridge.Ways {
		for seed := range 100 {
			m := bridgetest.Message(rand.New(rand.NewPCG(uint64(seed), 1)), "api", w.Way, parley.Request).Message
			var told []parley.Loss
			for _, p := range bridge.Foresee(w.Way, m, bridgetest.Recipient) {
				if p.Fate != bridge.Lost {
					t.Errorf("%s refuses %s of a message that it takes: %s", w.Way, p.Title, p.Why)
				}
				told = append(told, parley.Loss{Field: p.Field, Reason: p.Why})
			}
			if want := bridge.Losses(w.Way, m, bridgetest.Recipient); !slices.Equal(told, want) {
				t.Fatalf("%s, seed %d: foretold %v, lost %v", w.Way, seed, told, want)
			}
		}
	}
}

// TestForeseeRefusals: content that a way does not take is named, with the reason of the table.
func TestForeseeRefusals(t *testing.T) {
	js := func(s string) parley.Part { return parley.Part{MediaType: "application/json", Data: []byte(s)} }
	image := parley.Part{MediaType: "image/png", Data: []byte{1}}
	link := parley.Part{URI: "https://a.example/x", Digest: "x"}
	for _, c := range []struct {
		way   bridge.Way
		parts []parley.Part
		want  string // titles
	}{
		{bridge.Model, []parley.Part{js(`[1]`)}, "[JSON that is no object]"},
		{bridge.MCPServer, []parley.Part{image}, "[Bytes: files, images]"},
		{bridge.MCPServer, []parley.Part{link, link}, "[A URI with the digest of its target More than one part]"},
		{bridge.ASP, []parley.Part{js(`{"n":12345678901234567890}`)}, "[Numbers beyond a 64-bit float]"},
		{bridge.ASP, []parley.Part{js(`{"n":9007199254740992,"s":"12345678901234567890","d":0.1000000000000000055}`)}, "[]"},
		{bridge.SAMVAD, []parley.Part{js(`[1]`)}, "[]"},
	} {
		titles := []string{}
		m := &parley.Message{Kind: parley.Request, From: "a", To: "b", Parts: c.parts}
		for _, p := range bridge.Foresee(c.way, m, "b") {
			if p.Fate == bridge.Refused {
				titles = append(titles, p.Title)
			}
		}
		if got := fmt.Sprint(titles); got != c.want {
			t.Errorf("%s: %s, want %s", c.way, got, c.want)
		}
	}
}

// TestForeseeAnswers: what a protocol has no word for is absent; what the sender's protocol does not carry is lost.
func TestForeseeAnswers(t *testing.T) {
	fates := func(protocol string, back ...bridge.Way) map[string]bridge.Fate {
		out := map[string]bridge.Fate{}
		for _, p := range bridge.ForeseeAnswers(protocol, back...) {
			if p.Why == "" {
				t.Errorf("%s: no reason for %s", protocol, p.Title)
			}
			out[p.Title] = p.Fate
		}
		return out
	}
	if got := fates(""); len(got) > 0 {
		t.Errorf("an agent that is here, to a sender that reads at the hub: %v", got)
	}
	if got := fates("samvad"); got["Event: working"] != bridge.Absent || got["Event: a piece of the result"] != 0 {
		t.Errorf("SAMVAD says pieces, and no states: %v", got)
	}
	if got := fates("asp", bridge.SAMVAD); got["Event: working"] != bridge.Lost ||
		got["Retry, and its delay"] != bridge.Absent {
		t.Errorf("ASP to SAMVAD: %v", got)
	}
	if got := fates("", bridge.Chat); got["The code of a failure"] != bridge.Lost {
		t.Errorf("to a chat: %v", got)
	}
}
