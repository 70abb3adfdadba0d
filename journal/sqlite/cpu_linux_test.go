package sqlite

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// BenchmarkAppendCPU reports the processor time of an append of 1.2 KB, checkpoints
// included. Unlike wall time it hardly changes on a loaded machine.
//
//	go test -run '^$' -bench AppendCPU -benchtime 100000x ./journal/sqlite
func BenchmarkAppendCPU(b *testing.B) {
	used := func() time.Duration {
		var u syscall.Rusage
		must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, group := range []int{64, 256} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			s := fresh(b, b.TempDir())
			var records []store.Record
			for i := range group {
				r := store.Record{Data: make([]byte, 1200), About: store.About{
					Time: time.Unix(1e9, 0), Kind: "request", Message: "01890a5d-ac96-774b-bcce-b302099a8057",
					From: "ann", To: "bob",
				}}
				for n := range r.Data {
					r.Data[n] = byte(i*n + n>>3)
				}
				records = append(records, r)
			}
			start := used()
			n := uint64(0)
			for n < uint64(b.N) {
				must(b, s.Append(b.Context(), 0, n, records))
				n += uint64(group)
			}
			b.ReportMetric(float64((used()-start).Nanoseconds())/1000/float64(n), "cpu-µs/append")
		})
	}
}
