package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
)

// A hoarder takes every descriptor of the process, and each that becomes free,
// as a listener with many waiting connections does.
type hoarder struct {
	mu    sync.Mutex
	files []*os.File
	stop  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

func hoard(t testing.TB) *hoarder {
	t.Helper()
	h := &hoarder{stop: make(chan struct{})}
	t.Cleanup(h.end)
	h.take()
	h.wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				h.take()
			case <-h.stop:
				return
			}
		}
	})
	return h
}

func (h *hoarder) take() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		h.files = append(h.files, f)
	}
}

// give frees some, which are taken again within a millisecond.
func (h *hoarder) give(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range min(n, len(h.files)) {
		h.files[len(h.files)-1].Close()
		h.files = h.files[:len(h.files)-1]
	}
}

func (h *hoarder) end() {
	h.once.Do(func() { close(h.stop) })
	h.wg.Wait()
	h.give(len(h.files))
}

// fewFiles leaves the process n descriptors more than it has open.
func fewFiles(t testing.TB, n int) {
	t.Helper()
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := syscall.Rlimit{Cur: uint64(len(list) + n), Max: was.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}

// attempts counts what the journal logs of starts of its engine that failed.
type attempts struct {
	slog.Handler
	n atomic.Int64
}

func (a *attempts) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "cannot be reopened yet") {
		a.n.Add(1)
	}
	return a.Handler.Handle(ctx, r)
}

// TestOutOfFiles takes all descriptors while appends go on, more than one block
// holds, so that the engine has files to open, too. It frees some now and then:
// then the engine is started, and runs out of them halfway.
func TestOutOfFiles(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	for _, key := range []string{"", "a key of sufficient length"} {
		t.Run(fmt.Sprint("encrypted ", key != ""), func(t *testing.T) {
			fewFiles(t, 80)
			log := &attempts{Handler: slog.NewTextHandler(t.Output(), nil)}
			cfg := Config{
				Dir: t.TempDir(), Key: []byte(key), Log: slog.New(log),
				reopenEvery: 10 * time.Millisecond, Timeout: 5 * time.Second,
			}
			j, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			l := startLoadOf(t, j, 8, 256<<10)
			var values sync.WaitGroup
			var put atomic.Int64
			values.Go(func() {
				b := j.State("b")
				for !l.stop.Load() {
					key := fmt.Sprint(put.Load() + 1)
					if _, err := b.Put(context.Background(), key, nil, time.Time{}); err == nil {
						put.Add(1)
					}
				}
			})
			eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > 20 })

			h := hoard(t)
			eventually(t, "the journal says why it fails", func() bool {
				err := j.Healthy()
				return err != nil && errors.Is(err, ErrBusy) && strings.Contains(err.Error(), "file descriptors")
			})
			eventually(t, "the engine is started in vain", func() bool { h.give(30); return log.n.Load() > 10 })
			h.end()

			eventually(t, "the journal recovers", func() bool { return j.Healthy() == nil })
			acked, _ := l.count()
			eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > acked+20 })
			had := put.Load()
			eventually(t, "changes of the state go on", func() bool { return put.Load() > had })
			l.check(t)
			values.Wait()
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			j = open(t, cfg)
			l.compare(t, j)
			for n := range put.Load() {
				if _, err := j.State("b").Get(t.Context(), fmt.Sprint(n+1)); err != nil {
					t.Errorf("value %d of %d: %v", n+1, put.Load(), err)
				}
			}
		})
	}
}

// TestNoFileIsNoAnswer reads when the engine can open nothing: what it cannot
// read it calls not found.
func TestNoFileIsNoAnswer(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	cfg := Config{Dir: t.TempDir()}
	filled(t, cfg)
	j := open(t, cfg)
	runtime.GC() // what the engine has read it holds by weak pointers
	fewFiles(t, 10)
	h := hoard(t)
	_, ofState := j.State("b").Get(t.Context(), "1")
	_, ofLog := j.Read(t.Context(), Position{Sequence: 1})
	h.end()
	for _, err := range []error{ofState, ofLog} {
		if err != nil && (errors.Is(err, ErrNotFound) || !parley.AsError(err).Retryable) {
			t.Errorf("%v", err)
		}
	}
	if ofState == nil && ofLog == nil {
		t.Error("the engine needed no file")
	}
}

// TestFewFilesAreNoDamage opens a journal with fewer descriptors than it needs.
func TestFewFilesAreNoDamage(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	cfg := Config{Dir: t.TempDir(), Key: []byte("a key of sufficient length")}
	filled(t, cfg)
	fewFiles(t, 60)
	for n := range 40 {
		h := &hoarder{}
		h.take()
		h.give(n)
		j, err := Open(t.Context(), cfg)
		if err == nil {
			err = j.Close()
		}
		h.give(len(h.files))
		if err != nil && (!outOfFiles(err) || errors.Is(err, ErrCorrupt)) {
			t.Errorf("with %d descriptors: %v", n, err)
		}
	}
	if n := open(t, cfg).Stats().Partitions[0].Records; n != 40 {
		t.Errorf("%d records of 40", n)
	}
}

// TestFailedStartKeepsAll has a stream that the engine cannot open, which it
// removes then.
func TestFailedStartKeepsAll(t *testing.T) {
	for _, after := range []string{"a crash", "an orderly end"} {
		t.Run(after, func(t *testing.T) {
			dir := filled(t, Config{Dir: t.TempDir()})
			if after == "a crash" {
				remove(t, filepath.Join(dir, inventoryName))
			}
			d := directory{path: dir}
			consumers := filepath.Join(d.stream(partLog+"/PARLEY_LOG_0"), "obs")
			remove(t, consumers)
			if err := os.WriteFile(consumers, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			before := digest(t, dir)
			delete(before, filepath.Join(dir, inventoryName))
			if j, err := Open(t.Context(), Config{Dir: dir}); err == nil {
				j.Close()
				t.Fatal("it was opened")
			}
			for path := range digest(t, dir) {
				delete(before, path)
			}
			if len(before) > 0 {
				t.Fatalf("gone: %v", slices.Sorted(maps.Keys(before)))
			}
			remove(t, consumers)
			j := open(t, Config{Dir: dir})
			if n := j.Stats().Partitions[0].Records; n != 40 {
				t.Errorf("%d records of 40", n)
			}
		})
	}
}

// TestStartIsCutOff has a process end while its engine is started, which has
// removed a stream by then.
func TestStartIsCutOff(t *testing.T) {
	for _, key := range []string{"", "a key of sufficient length"} {
		t.Run(fmt.Sprint("encrypted ", key != ""), func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), Key: []byte(key)}
			d := directory{path: filled(t, cfg)}
			names := slices.Sorted(maps.Keys(digest(t, d.path)))
			if err := d.keep(); err != nil {
				t.Fatal(err)
			}
			remove(t, d.stream(partLog+"/PARLEY_LOG_0"))
			j, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if n := j.Stats().Partitions[0].Records; n != 40 {
				t.Errorf("%d records of 40", n)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(names, slices.Sorted(maps.Keys(digest(t, d.path)))); diff != "" {
				t.Errorf("the start leaves files behind:\n%s", diff)
			}
			dirs, err := filepath.Glob(d.stream("*/*") + "/msgs/*")
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range dirs {
				if info, err := os.Lstat(path); err != nil || info.IsDir() {
					t.Errorf("the start leaves %s behind (%v)", path, err)
				}
			}
		})
	}
}
