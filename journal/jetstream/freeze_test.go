//go:build unix

package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal/store"
)

// leads returns the index of the server that leads a stream.
func leads(t *testing.T, s *Store, stream string) int {
	t.Helper()
	for {
		x, err := s.js.Stream(t.Context(), stream)
		if err != nil {
			t.Log(err)
		} else if i, err := strconv.Atoi(strings.TrimPrefix(x.CachedInfo().Cluster.Leader, "n")); err == nil {
			return i
		}
		if sleep.For(t.Context(), maxPause) != nil {
			t.Fatal("the stream has no leader")
		}
	}
}

// journal appends to a store, counts, and reads the end of the log after a conflict, as
// a caller does.
type journal struct {
	*Store
	partition    int
	acknowledged []string
	last         uint64
}

func (j *journal) append(t *testing.T, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var records []store.Record
	for _, text := range texts {
		records = append(records, store.Record{Data: []byte(text)})
	}
	for ctx.Err() == nil {
		err := j.Append(ctx, j.partition, j.last, records)
		if err == nil {
			j.acknowledged = append(j.acknowledged, texts...)
			j.last += uint64(len(texts))
			return
		}
		t.Log(err)
		if !errors.Is(err, store.ErrConflict) {
			continue
		}
		err = j.Read(ctx, j.partition, j.last+1, endless, func(r store.Record) bool {
			j.last = r.Sequence
			j.acknowledged = append(j.acknowledged, string(r.Data))
			return true
		})
		if err == nil && slices.Contains(j.acknowledged, texts[0]) {
			return
		}
	}
	t.Errorf("%q was not appended", texts)
}

// check compares the store's records with the acknowledged ones.
func (j *journal) check(t *testing.T) {
	t.Helper()
	var got []string
	if err := j.Read(t.Context(), j.partition, 1, endless, func(r store.Record) bool {
		got = append(got, string(r.Data))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, j.acknowledged) {
		t.Errorf("the store holds\n%q, acknowledged:\n%q", got, j.acknowledged)
	}
}

func (j *journal) put(t *testing.T, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		_, err := j.Put(ctx, "s", store.Value{Key: key, Data: []byte(key)}, nil)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func wait(t *testing.T, what string, got <-chan string, want string) {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case g := <-got:
			if g == want {
				return
			}
		case <-timer.C:
			t.Fatalf("%s: %q was not reported", what, want)
		}
	}
}

// TestFrozenServer: the store leaves a frozen server, although it is connected to it and
// the server leads all streams. Nothing is lost or stored twice. A server that resumes
// is a member of the cluster again.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped with -short: needs a cluster of three servers")
	}
	c := testcluster.StartProcesses(t, 3)
	log := &lines{Handler: slog.DiscardHandler}
	open := func(urls ...string) *Store {
		s, err := Open(t.Context(), Config{
			URL: strings.Join(urls, ","), Log: slog.New(log), Options: []nats.Option{nats.DontRandomize()},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	first := open(c.URLs...)
	if err := first.Init(t.Context(), store.Meta{Format: 2, Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	frozen := leads(t, first, first.logStream(0))
	others := slices.Concat(c.URLs[frozen:], c.URLs[:frozen])
	j := &journal{Store: open(others...)} // connected to the server that will freeze
	if got := j.nc.ConnectedUrl(); got != c.URLs[frozen] {
		t.Fatalf("connected to %s", got)
	}

	// Meanwhile a hub that is connected to another server appends groups.
	groups, end := &journal{Store: open(others[1:]...), partition: 1}, make(chan struct{})
	var appending sync.WaitGroup
	appending.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			default:
				groups.append(t, fmt.Sprint(i, " one"), fmt.Sprint(i, " two"), fmt.Sprint(i, " three"))
			}
		}
	})
	stop := sync.OnceFunc(func() { close(end); appending.Wait() })
	defer stop()

	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	told, changed, ready := make(chan string, 10000), make(chan string, 10000), make(chan struct{})
	var toldAll []string
	following.Go(func() {
		err := j.Follow(ctx, 0, 0, func(r store.Record) {
			toldAll = append(toldAll, string(r.Data))
			told <- string(r.Data)
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	following.Go(func() {
		err := j.FollowState(ctx, 0, func() { close(ready) }, func(_ string, v store.Value) { changed <- v.Key })
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	<-ready
	for i := range 20 {
		j.append(t, fmt.Sprint("before ", i))
	}
	j.put(t, "before")
	wait(t, "log", told, "before 19")
	wait(t, "state", changed, "before")

	begun := time.Now()
	say := func(what string) { t.Logf("%s after %.1f s", what, time.Since(begun).Seconds()) }
	if err := c.Freeze(frozen); err != nil {
		t.Fatal(err)
	}
	j.append(t, "frozen")
	say("append")
	j.put(t, "frozen")
	say("put")
	wait(t, "log", told, "frozen")
	say("follow")
	wait(t, "state", changed, "frozen")
	say("follow state")
	if got := j.nc.ConnectedUrl(); got == c.URLs[frozen] {
		t.Error("still connected to the frozen server")
	}
	for i := range 20 {
		j.append(t, fmt.Sprint("without ", i))
	}
	if err := c.Thaw(frozen); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		j.append(t, fmt.Sprint("after ", i))
	}
	j.put(t, "after")
	wait(t, "log", told, "after 19")
	wait(t, "state", changed, "after")

	// The server is a member again: with the present leader frozen, the other two are a
	// majority.
	frozen = leads(t, first, first.logStream(0))
	if err := c.Freeze(frozen); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	j.append(t, "another is frozen")
	say("append")
	wait(t, "log", told, "another is frozen")
	if err := c.Thaw(frozen); err != nil {
		t.Fatal(err)
	}
	stop()
	groups.check(t)
	j.check(t)
	cancel()
	following.Wait()
	if !slices.Equal(j.acknowledged, toldAll) {
		t.Errorf("acknowledged:\n%q, reported to the follower:\n%q", j.acknowledged, toldAll)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if len(log.text) > 20 {
		t.Errorf("%d lines in the log: %q", len(log.text), log.text)
	}
	t.Logf("%q", log.text)
}
