// Package testjournal opens the stores of journals for tests. The journal closes
// its store.
package testjournal

import (
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
