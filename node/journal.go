package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/journal/store"
)

// open opens the journal's store: a file in dir, memory if dir is empty, or the
// cluster that e names.
func (e *Engine) open(ctx context.Context, dir, name string, now func() time.Time, log *slog.Logger) (store.Store,
	error) {
	if e.URL == "" {
		return sqlite.Open(ctx, sqlite.Config{Dir: dir, Memory: dir == "", Now: now, Log: log})
	}
	c := jetstream.Config{URL: e.URL, Prefix: e.Prefix, Replicas: e.Replicas, SyncReplicated: e.SyncAlways, Name: name,
		Now: now, Log: log}
	if e.Credentials != "" {
		c.Options = append(c.Options, nats.UserCredentials(e.Credentials))
	}
	return jetstream.Open(ctx, c)
}

func (n *Node) openJournal(ctx context.Context) error {
	e := n.c.Engine
	jc := journal.Config{Partitions: e.Partitions, MinFree: n.k.minFree, Node: n.c.Name, Now: n.c.Now, Log: n.log,
		Progress: progressOf(n.c.Progress, "reading the journal")}
	var err error
	if jc.Key, err = optionalKey(e.KeyFile); err != nil {
		return fmt.Errorf("engine.key_file: %w", err)
	}
	dir := ""
	if e.URL == "" && n.k.durability != journal.Memory {
		if err := ours(n.c.Data); err != nil {
			return err
		}
		if err := os.MkdirAll(n.c.Data, 0o700); err != nil {
			return fmt.Errorf("make the data directory: %w", err)
		}
		dir = filepath.Join(n.c.Data, "journal")
		if err := lost(n.c.Data, dir); err != nil {
			return err
		}
	}
	if n.c.FreeSpace != nil {
		jc.FreeSpace = func() (uint64, error) { return n.c.FreeSpace(dir) }
	}
	if jc.Store, err = e.open(ctx, dir, n.c.Name, n.c.Now, n.log); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	if n.journal, err = journal.Open(ctx, jc); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	return nil
}

// progressOf gives the function that reports the progress of one piece of work; nil
// without tell.
func progressOf(tell func(what string, done, total uint64), what string) func(done, total uint64) {
	if tell == nil {
		return nil
	}
	return func(done, total uint64) { tell(what, done, total) }
}

// lost refuses to make a new journal if an index shows that there was one.
func lost(data, dir string) error {
	missing := func(path string) bool {
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	}
	file := filepath.Join(dir, sqlite.FileName)
	entries, err := os.ReadDir(dir)
	empty := err == nil && len(entries) == 0 || errors.Is(err, os.ErrNotExist) // other files: the store refuses them
	if index := filepath.Join(data, "index.db"); missing(file) && !missing(index) && empty &&
		missing(filepath.Join(dir, "journal.json")) {
		return fmt.Errorf("open the journal: %w: %s is missing; restore a backup, or remove %s, too, to begin anew",
			journal.ErrCorrupt, file, index)
	}
	return nil
}

// ours refuses a directory with foreign files, before the hub changes it.
func ours(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	for _, e := range entries {
		if slices.Contains([]string{"journal", "keys", AddressFile, admin.TokenFile, "parley.toml"}, e.Name()) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s holds %s and nothing of Parley's; choose an empty directory with --data",
		journal.ErrForeign, dir, entries[0].Name())
}

// optionalKey reads the key of a journal; nil without a path.
func optionalKey(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return secretFile(path)
}

// secretFile reads a file that only its owner may read.
func secretFile(path string) ([]byte, error) {
	i, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if disk.OthersMay(i) {
		return nil, fmt.Errorf("%s is readable by others: run chmod 600 %s", path, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return []byte(strings.TrimSpace(string(b))), nil
}
