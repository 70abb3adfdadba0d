package jetstream

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/journal/store/storetest"
)

// places gives each test its own prefix on shared servers.
func places(urls []string) func(*testing.T) storetest.Place {
	var number atomic.Uint64
	return func(t *testing.T) storetest.Place {
		cfg := Config{URL: strings.Join(urls, ","), Prefix: fmt.Sprintf("T%d", number.Add(1)), Name: t.Name()}
		return storetest.Place{Shared: true, Open: func() (store.Store, error) { return Open(t.Context(), cfg) }}
	}
}

func TestStoreOnOneServer(t *testing.T) {
	t.Parallel()
	storetest.Run(t, places(testcluster.Start(t, 1).URLs))
}

func TestStoreOnCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped with -short: needs a cluster of three servers")
	}
	storetest.Run(t, places(testcluster.Start(t, 3).URLs))
}

// TestHubsBeginAtOnce: of several hubs that create the journal concurrently, with
// different settings, one succeeds, and the others use its journal.
func TestHubsBeginAtOnce(t *testing.T) {
	urls := strings.Join(testcluster.Start(t, 1).URLs, ",")
	for round := range 10 {
		const hubs = 4
		var wg sync.WaitGroup
		var made atomic.Int32
		for hub := range hubs {
			s, err := Open(t.Context(), Config{URL: urls, Prefix: fmt.Sprintf("R%d", round), Name: fmt.Sprint(hub)})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer s.Close()
				switch err := s.Init(t.Context(), store.Meta{Format: 2, Partitions: 2, Prefix: "P",
					Salt: fmt.Sprint(hub), Check: "c"}); {
				case err == nil:
					made.Add(1)
					if err := s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("x")}}); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, store.ErrExists):
					t.Error(err)
				}
				if _, err := s.Meta(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := made.Load(); n != 1 {
			t.Errorf("%d hubs made the journal", n)
		}
	}
}
