package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// BenchmarkAppend compares appends of 1.2 KB with a bare file that is written
// and synced once a group. Both group in the same way: all waiting appends.
//
//	go test -run '^$' -bench Append ./journal/sqlite
func BenchmarkAppend(b *testing.B) {
	record := store.Record{Data: make([]byte, 1200), About: store.About{
		Time: time.Unix(1e9, 0), Kind: "request", Message: "01890a5d-ac96-774b-bcce-b302099a8057", From: "ann",
		To: "bob",
	}}
	for _, callers := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d/bare", callers), func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "bare"))
			must(b, err)
			defer f.Close()
			var buf []byte
			grouped(b, callers, func(n int) error {
				buf = buf[:0]
				for range n {
					buf = append(buf, record.Data...)
				}
				if _, err := f.Write(buf); err != nil {
					return err
				}
				return f.Sync()
			})
		})
		b.Run(fmt.Sprintf("callers=%d/store", callers), func(b *testing.B) {
			s := fresh(b, b.TempDir())
			after := uint64(0)
			var group []store.Record
			grouped(b, callers, func(n int) error {
				group = group[:0]
				for range n {
					group = append(group, record)
				}
				err := s.Append(b.Context(), 0, after, group)
				after += uint64(n)
				return err
			})
		})
	}
}

// grouped calls append b.N times from several callers; commit gets the number of waiting
// appends.
func grouped(b *testing.B, callers int, commit func(n int) error) {
	var mu sync.Mutex
	var queue []chan error
	var took []time.Duration
	wake := make(chan struct{}, 1)
	left := b.N
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			done := make(chan error)
			for {
				mu.Lock()
				if left == 0 {
					mu.Unlock()
					return
				}
				left--
				queue = append(queue, done)
				mu.Unlock()
				start := time.Now()
				select {
				case wake <- struct{}{}:
				default:
				}
				if err := <-done; err != nil {
					b.Error(err)
				}
				d := time.Since(start)
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	go func() {
		for range wake {
			for before := -1; ; {
				mu.Lock()
				n := len(queue)
				mu.Unlock()
				if n == before {
					break
				}
				before = n
				runtime.Gosched()
			}
			mu.Lock()
			group := queue
			queue = nil
			mu.Unlock()
			if len(group) == 0 {
				continue
			}
			err := commit(len(group))
			for _, done := range group {
				done <- err
			}
		}
	}()
	wg.Wait()
	b.StopTimer()
	close(wake)
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
