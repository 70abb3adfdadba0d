package journal

import (
	"testing"
	"unique"

	"github.com/parley-hub/parley"
)

// BenchmarkWalk looks at a million open deliveries, a hundredth of them dead letters.
func BenchmarkWalk(b *testing.B) {
	j := open(b, setup{Memory: true})
	p := j.parts[0]
	p.mu.Lock()
	none := unique.Make("")
	for n := range 1_000_000 {
		d := &delivery{state: parley.Waiting, from: none, node: none}
		if n%100 == 0 {
			d.state = parley.Dead
		}
		id := parley.ID{byte(n >> 16), byte(n >> 8), byte(n), 6: 0x70, 8: 0x80}
		p.open[target{id, unique.Make("bob")}] = d
	}
	p.mu.Unlock()
	for name, state := range map[string]parley.DeliveryState{"dead": parley.Dead, "waiting": parley.Waiting} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				j.Walk(Filter{States: []parley.DeliveryState{state}}, func(*Delivery) bool { n++; return true })
			}
		})
	}
	p.mu.Lock()
	clear(p.open)
	p.mu.Unlock()
}
