//go:build linux

package index

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// diskJournal is a journal on disk, as in a hub.
func diskJournal(b testing.TB, partitions int) *journal.Journal {
	b.Helper()
	return openJournal(b, journal.Config{Store: testjournal.Disk(b, b.TempDir()), Node: "n1", Partitions: partitions})
}

// cpu is the processor time of the process. Unlike wall time it hardly changes on a
// loaded machine.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resetPeak and peak measure the largest memory of the process between the two calls,
// in bytes.
func resetPeak(b *testing.B) {
	runtime.GC()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
}

func peak(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kb float64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		b.Fatal(err)
	}
	return kb * 1024
}

// exchanges is the number of exchanges in the journals of these benchmarks, two records
// each.
func exchanges() int {
	if testing.Short() {
		return 50_000
	}
	return 500_000
}

// BenchmarkRebuild makes the index of a journal on disk of 1,000,000 records, 100,000
// with -short. It reports the peak memory of the process, including the engine's, and
// its processor time relative to a plain reading of the same journal.
func BenchmarkRebuild(b *testing.B) {
	for _, noText := range []bool{false, true} {
		b.Run(fmt.Sprintf("text=%v", !noText), func(b *testing.B) {
			j := diskJournal(b, 1)
			exchanges := exchanges()
			fill(b, j, exchanges)
			before := cpu(b)
			readAll(b, j)
			floor := cpu(b) - before
			resetPeak(b)
			before = cpu(b)
			for b.Loop() {
				x, err := Open(b.Context(), Config{Journal: j, Path: filepath.Join(b.TempDir(), "index.db"),
					NoText: noText})
				if err != nil {
					b.Fatal(err)
				}
				if err := x.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := x.Close(); err != nil {
					b.Fatal(err)
				}
			}
			used := cpu(b) - before
			b.ReportMetric(peak(b)/(1<<20), "MiB-peak")
			b.ReportMetric(float64(used)/float64(b.N)/float64(floor), "x-reading")
			b.ReportMetric(2*float64(exchanges)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(used.Microseconds())/(2*float64(exchanges)*float64(b.N)), "cpu-µs/record")
		})
	}
}

func readAll(b *testing.B, j *journal.Journal) {
	for _, err := range j.Records(b.Context(), 0, journal.From{}) {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScan reads the journal without indexing it: the lower bound of a rebuild. In
// memory the journal has 100,000 records.
func BenchmarkScan(b *testing.B) {
	for name, c := range map[string]struct {
		make      func(testing.TB, int) *journal.Journal
		exchanges int
	}{"disk": {diskJournal, exchanges()}, "memory": {memoryJournal, 50_000}} {
		b.Run(name, func(b *testing.B) {
			j := c.make(b, 1)
			fill(b, j, c.exchanges)
			before := cpu(b)
			for b.Loop() {
				readAll(b, j)
			}
			b.ReportMetric(2*float64(c.exchanges)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/(2*float64(c.exchanges)*float64(b.N)),
				"cpu-µs/record")
		})
	}
}

// BenchmarkAppend is the load of BenchmarkFollow without an index.
func BenchmarkAppend(b *testing.B) {
	j := memoryJournal(b, 1)
	const exchanges = 50_000
	before := cpu(b)
	for b.Loop() {
		fill(b, j, exchanges)
	}
	b.ReportMetric(2*exchanges*float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/(2*exchanges*float64(b.N)), "cpu-µs/record")
}

// BenchmarkFollow appends exchanges at a fixed rate, or as fast as a journal in memory
// accepts them. It reports the largest lag of the index, and the time until it has
// caught up.
func BenchmarkFollow(b *testing.B) {
	for _, rate := range []int{5_000, 10_000, 0} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) {
			j := memoryJournal(b, 1)
			x, err := Open(b.Context(), Config{Journal: j, Path: filepath.Join(b.TempDir(), "index.db")})
			if err != nil {
				b.Fatal(err)
			}
			defer x.Close()
			base := 1
			for b.Loop() {
				const exchanges = 50_000
				var lags []time.Duration
				stop := make(chan struct{})
				var probe sync.WaitGroup
				probe.Go(func() {
					t := time.NewTicker(20 * time.Millisecond)
					defer t.Stop()
					for {
						select {
						case <-stop:
							return
						case <-t.C:
							switch s := x.Stats(); {
							case s.Lag == 0:
								lags = append(lags, 0)
							case !s.Last.IsZero():
								lags = append(lags, time.Since(s.Last))
							}
						}
					}
				})
				before := cpu(b)
				start := time.Now()
				var next atomic.Int64
				var wg sync.WaitGroup
				for range 64 {
					wg.Go(func() {
						for i := int(next.Add(1)); i <= exchanges; i = int(next.Add(1)) {
							if rate > 0 {
								// Two records each.
								due := time.Duration(i) * 2 * time.Second / time.Duration(rate)
								if early := due - time.Since(start); early > 0 {
									<-time.After(early)
								}
							}
							exchange(b, j, base+i)
						}
					})
				}
				wg.Wait()
				base += exchanges
				load := time.Since(start)
				b.ReportMetric(float64((cpu(b)-before).Microseconds())/(2*exchanges), "cpu-µs/record")
				end := time.Now()
				if err := x.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				close(stop)
				probe.Wait()
				slices.Sort(lags)
				b.ReportMetric(2*exchanges/load.Seconds(), "records/s")
				b.ReportMetric(float64(lags[len(lags)/2].Milliseconds()), "ms-median-lag")
				b.ReportMetric(float64(lags[len(lags)*99/100].Milliseconds()), "ms-p99-lag")
				b.ReportMetric(time.Since(end).Seconds(), "s-after-load")
			}
		})
	}
}
