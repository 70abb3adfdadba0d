// Package testjournal opens the stores of journals for tests. The journal closes
// its store.
package testjournal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/journal/store"
)

// Memory is a store without files.
func Memory(t testing.TB) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Config{Memory: true})
	return opened(t, s, err)
}

// Disk is the store in a directory.
func Disk(t testing.TB, dir string) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Config{Dir: dir})
	return opened(t, s, err)
}

// Copy copies the directory of a store, as a kill of its process would leave it. Only its
// owner may read the copy.
func Copy(t testing.TB, from, to string) {
	t.Helper()
	err := os.CopyFS(to, os.DirFS(from))
	if err == nil {
		err = filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				return os.Chmod(path, 0o700)
			}
			return os.Chmod(path, 0o600)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Cluster is the store in a NATS cluster.
func Cluster(t testing.TB, c jetstream.Config) store.Store {
	t.Helper()
	s, err := jetstream.Open(t.Context(), c)
	return opened(t, s, err)
}

func opened(t testing.TB, s store.Store, err error) store.Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
