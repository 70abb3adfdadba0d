package jetstream

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/journal/store/storetest"
)

// places gives each test a prefix of its own on servers that all share.
func places(urls []string) func(*testing.T) storetest.Place {
	var number atomic.Uint64
	return func(t *testing.T) storetest.Place {
		cfg := Config{URL: strings.Join(urls, ","), Prefix: fmt.Sprintf("T%d", number.Add(1)), Name: t.Name()}
		return storetest.Place{Shared: true, Open: func() (store.Store, error) { return Open(t.Context(), cfg) }}
	}
}

func TestStoreOnOneServer(t *testing.T) {
	storetest.Run(t, places(testcluster.Start(t, 1).URLs))
}

func TestStoreOnCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("the cluster is left out with -short")
	}
	storetest.Run(t, places(testcluster.Start(t, 3).URLs))
}
