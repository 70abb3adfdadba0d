//go:build linux

package index

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// BenchmarkFilters reads a page of 100 rows, and counts, in a journal of 1,000,000 messages (100,000
// with -short), by filters that choose many, few and none.
func BenchmarkFilters(b *testing.B) {
	j := diskJournal(b, 1)
	rare(b, j)
	fill(b, j, exchanges())
	x, err := Open(b.Context(), Config{Journal: j, Path: filepath.Join(b.TempDir(), "index.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	if err := x.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		f    Filter
	}{
		{"all", Filter{}}, {"signed", Filter{Proof: ProvedSigned}}, {"unsigned", Filter{Proof: ProvedNothing}},
		{"session=few", Filter{Proof: ProvedSession}},
		{"refused", Filter{Refused: true}}, {"failed", Filter{Failed: true}}, {"waiting", Filter{Waiting: true}},
		{"slow", Filter{Slow: 2 * time.Second}}, {"slow=1h", Filter{Slow: time.Hour}},
		{"slow=1ms", Filter{Slow: time.Millisecond}},
		{"via=few", Filter{Via: "mcp"}}, {"via=none", Filter{Via: "asp"}}, {"protocol=none", Filter{Protocol: "agh"}},
		{"kind=none", Filter{Kind: parley.Cancel}}, {"kind", Filter{Kind: parley.Request}},
		{"agent", Filter{Agent: "client-7"}}, {"agent=busy", Filter{Agent: "worker-3"}},
		{"agent=rare", Filter{Agent: "rare"}}, {"agent+protocol", Filter{Agent: "client-7", Protocol: "samvad"}},
		{"agent+unsigned", Filter{Agent: "client-7", Proof: ProvedNothing}},
		{"kind+signed", Filter{Kind: parley.Response, Proof: ProvedSigned}},
		{"text=many", Filter{Text: "weather"}}, {"text=few", Filter{Text: "seldom"}}, {"text=none", Filter{Text: "never"}},
		{"text=id", Filter{Text: testID(77, 1).String()}}, {"text=name", Filter{Text: "worker-3"}},
		{"since", Filter{Since: time.Now().Add(-time.Second)}},
	} {
		b.Run(c.name+"/page", func(b *testing.B) {
			for b.Loop() {
				if _, err := x.Messages(b.Context(), c.f); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/count", func(b *testing.B) {
			for b.Loop() {
				if _, _, err := x.Count(b.Context(), c.f, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for name, f := range map[string]ConversationFilter{"all": {}, "failed": {Failed: true}, "open": {Open: true},
		"agent": {Agent: "worker-3"}} {
		b.Run("conversations="+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := x.Conversations(b.Context(), f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// rare appends a few messages that are unlike those of [fill], and older.
func rare(b *testing.B, j *journal.Journal) {
	k := &talk{t: b, j: j}
	k.n = 1 << 30
	for range 20 {
		origin := parley.Origin{Protocol: "a2e", Verdict: parley.Verdict{Assurance: parley.Session}}
		id := k.add(parley.Message{Kind: parley.Request, From: "rare", To: "bob", Origin: origin,
			Conversation: testID(1<<30, 2), Parts: []parley.Part{parley.Text("seldom")}}, true)
		if _, err := j.Append(b.Context(), journal.Entry{Steps: []journal.Step{{Message: id, To: "bob",
			State: parley.Dead, Error: parley.Refuse(parley.TimedOut, "late"),
			Exchange: &parley.Exchange{Protocol: "mcp"}}}}); err != nil {
			b.Fatal(err)
		}
	}
}
