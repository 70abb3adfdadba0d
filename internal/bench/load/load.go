// Package load measures exchanges in closed loops, and has a cheap HTTP/1.1 client
// for them.
//
// It runs in the process of the server that it measures, on the same cores, so the
// server lacks the time that the generator spends: requests are rendered before the
// clock starts, and each caller keeps a connection. The same loops measure Parley and
// the floors of package floor, which makes the two comparable.
//
// In a closed loop each caller has one exchange at a time and begins the next after the
// answer.
package load

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrEnd is returned by an exchange to end the loop of its worker; it does not count.
var ErrEnd = errors.New("load: nothing is left to exchange")

// Result is the result of a measurement. Latencies are of exchanges that succeeded.
type Result struct {
	Requests   int // that succeeded
	Failed     int
	FirstError error // of those that failed
	Elapsed    time.Duration
	Throughput float64 // Requests a second

	P50, P99 time.Duration

	// CPU is the time of the whole process, user and system: the server and the
	// generator. 0 where the system does not report it.
	CPU           time.Duration
	CPUPerRequest time.Duration
}

// worker holds the counts of one caller.
type worker struct {
	latencies  []time.Duration
	failed     int
	firstError error
}

// Do is [Loop] after a warm-up that is not counted. Each exchange gets its own number.
func Do(ctx context.Context, workers int, warmup, duration time.Duration,
	exchange func(ctx context.Context, worker, i int) error) Result {
	var next atomic.Int64
	numbered := func(ctx context.Context, w int) error { return exchange(ctx, w, int(next.Add(1)-1)) }
	Loop(ctx, workers, warmup, numbered)
	return Loop(ctx, workers, duration, numbered)
}

// Loop runs exchanges of any protocol in a closed loop for a duration: each of several
// workers calls exchange again and again, at least once. An exchange that is running at
// the end of the duration is finished; exchange itself must obey the end of ctx.
func Loop(ctx context.Context, workers int, duration time.Duration,
	exchange func(ctx context.Context, worker int) error) Result {
	all := make([]worker, workers)
	cpu, began := CPU(), time.Now()
	end := began.Add(duration)
	var wg sync.WaitGroup
	for n := range all {
		w := &all[n]
		wg.Go(func() {
			for start := time.Now(); ctx.Err() == nil && (w.none() || start.Before(end)); start = time.Now() {
				err := exchange(ctx, n)
				switch {
				case err == nil:
					w.latencies = append(w.latencies, time.Since(start))
				case errors.Is(err, ErrEnd):
					return
				default:
					if w.failed++; w.firstError == nil {
						w.firstError = err
					}
				}
			}
		})
	}
	wg.Wait()
	return summary(all, time.Since(began), CPU()-cpu)
}

func (w *worker) none() bool { return w.failed+len(w.latencies) == 0 }

func summary(workers []worker, elapsed, cpu time.Duration) Result {
	r := Result{Elapsed: elapsed, CPU: cpu}
	var all []time.Duration
	for _, w := range workers {
		all = append(all, w.latencies...)
		r.Failed += w.failed
		if r.FirstError == nil {
			r.FirstError = w.firstError
		}
	}
	r.Requests = len(all)
	if r.Requests == 0 {
		return r
	}
	slices.Sort(all)
	r.Throughput = float64(r.Requests) / elapsed.Seconds()
	r.P50, r.P99 = Quantile(all, 0.5), Quantile(all, 0.99)
	r.CPUPerRequest = cpu / time.Duration(r.Requests)
	return r
}

// Quantile is the smallest value that a share q of all does not exceed.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(i, 1), len(sorted))-1]
}
