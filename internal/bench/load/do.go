package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Do runs exchanges of any protocol in a closed loop for a duration: each of
// several workers calls exchange again and again, with a number of its own
// each time. Those during the warm-up count nowhere.
func Do(ctx context.Context, workers int, warmup, duration time.Duration,
	exchange func(ctx context.Context, worker, i int) error) Result {
	var next atomic.Int64
	all := make([]*worker, workers)
	phase := func(d time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		var wg sync.WaitGroup
		for w := range all {
			all[w] = &worker{}
			wg.Go(func() {
				for ctx.Err() == nil {
					start := time.Now()
					// A running exchange is finished at the end.
					err := exchange(context.WithoutCancel(ctx), w, int(next.Add(1)))
					if err != nil {
						if all[w].failed++; all[w].firstError == nil {
							all[w].firstError = err
						}
						continue
					}
					all[w].latencies = append(all[w].latencies, time.Since(start))
				}
			})
		}
		wg.Wait()
	}
	phase(warmup)
	cpu, start := cpuTime(), time.Now()
	phase(duration)
	return summary(all, time.Since(start), cpuTime()-cpu)
}
