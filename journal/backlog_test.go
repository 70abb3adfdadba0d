package journal

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

func TestBacklogs(t *testing.T) {
	c := newClock()
	j := open(t, setup{Memory: true, Node: "n1", Partitions: 4, Now: c.now})
	begun := c.now()
	var sent []*parley.Message
	for i := range 8 {
		m := request(t, "alice", "bob")
		m.ID, m.Conversation = newID(t, begun.Add(time.Duration(i)*time.Minute)), sampleID(byte(i))
		if i == 2 || i == 3 {
			m.Expires = begun.Add(time.Hour * time.Duration(i))
		}
		e := Entry{Scope: fmt.Sprint(i), Message: m, Open: []Opening{{To: "bob"}}}
		if i%2 == 0 {
			e.Open = append(e.Open, Opening{To: "carol"})
		}
		if _, err := j.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, m)
	}
	step := func(i int, to string, s parley.DeliveryState) {
		t.Helper()
		if _, err := j.Append(t.Context(), Entry{Scope: fmt.Sprint(i), Steps: []Step{{Message: sent[i].ID, To: to,
			State: s}}}); err != nil {
			t.Fatal(err)
		}
	}
	step(0, "bob", parley.Dead)
	step(1, "bob", parley.Dead)
	step(2, "carol", parley.Expired)
	got := j.Backlogs([]string{"bob", "carol", "dave"})
	want := map[string]Backlog{
		"bob":   {Open: 6, Dead: 2, Oldest: begun.Add(2 * time.Minute), Expires: begun.Add(2 * time.Hour)},
		"carol": {Open: 3, Oldest: begun},
	}
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for name, w := range want {
		if g := got[name]; g.Open != w.Open || g.Dead != w.Dead || !g.Oldest.Equal(w.Oldest) || !g.Expires.Equal(w.Expires) {
			t.Errorf("%s: %+v, want %+v", name, g, w)
		}
	}
	if got := j.Backlogs([]string{"carol"}); len(got) != 1 || got["carol"].Open != 3 {
		t.Errorf("one recipient: %+v", got)
	}
}

// A page of 100 recipients, with 100,000 open deliveries to 1,000.
func BenchmarkBacklogs(b *testing.B) {
	j := open(b, memory(b))
	p := j.parts[0]
	for range 100_000 {
		m := request(b, "alice", fmt.Sprint("agent-", rand.IntN(1000)))
		d := opened(&Record{Message: m}, &Opening{To: m.To})
		p.open[targetOf(&Step{Message: m.ID, To: m.To})] = d
	}
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("agent-", i))
	}
	for b.Loop() {
		if len(j.Backlogs(names)) != 100 {
			b.Fatal("a recipient is missing")
		}
	}
}
