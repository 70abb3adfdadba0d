package journal

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/journal/store"
)

// setup is the configuration of a test's journal and of its store.
type setup struct {
	Dir    string
	Memory bool

	Partitions           int
	Key                  []byte
	Window               time.Duration
	MaxKeys, MaxLongKeys int
	MaxOpen              int
	MaxPayload           int
	MinFree              uint64
	FreeSpace            func() (uint64, error)
	maxQueued            int
	Node                 string
	Timeout              time.Duration
	Now                  func() time.Time
	Log                  *slog.Logger
	checkpointEvery      int
	Progress             func(done, total uint64)
	URL, Prefix          string
	OwnerTTL             time.Duration
	wrap                 func(store.Store) store.Store
}

func (s setup) store(ctx context.Context) (store.Store, error) {
	if s.URL != "" {
		return jetstream.Open(ctx, jetstream.Config{URL: s.URL, Prefix: s.Prefix, Timeout: s.Timeout, Now: s.Now,
			Log: s.Log})
	}
	x, err := sqlite.Open(ctx, sqlite.Config{Dir: s.Dir, Memory: s.Memory, Now: s.Now, Log: s.Log})
	if err != nil {
		return nil, err
	}
	if s.wrap != nil {
		return s.wrap(x), nil
	}
	return x, nil
}

func tryOpen(ctx context.Context, s setup) (*Journal, error) {
	x, err := s.store(ctx)
	if err != nil {
		return nil, err
	}
	return Open(ctx, Config{
		Store: x, Partitions: s.Partitions, Key: s.Key, Window: s.Window, MaxKeys: s.MaxKeys,
		MaxLongKeys: s.MaxLongKeys,
		MaxOpen:     s.MaxOpen, MaxPayload: s.MaxPayload, MinFree: cmp.Or(s.MinFree, 1), FreeSpace: s.FreeSpace,
		maxQueued: s.maxQueued,
		Node:      s.Node, Timeout: s.Timeout, Now: s.Now, Log: s.Log, Progress: s.Progress, OwnerTTL: s.OwnerTTL,
		checkpointEvery: s.checkpointEvery,
	})
}

func open(t testing.TB, s setup) *Journal {
	t.Helper()
	j, err := tryOpen(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// restoring is the destination of a restore in a test.
type restoring struct {
	Dir         string
	URL, Prefix string

	Key  []byte
	File func(BackupFile) error
	Now  func() time.Time
}

func tryRestore(ctx context.Context, r io.Reader, c restoring) (*BackupSummary, error) {
	x, err := setup{Dir: c.Dir, URL: c.URL, Prefix: c.Prefix}.store(ctx)
	if err != nil {
		return nil, err
	}
	return Restore(ctx, r, RestoreConfig{Store: x, Key: c.Key, File: c.File, Now: c.Now})
}
