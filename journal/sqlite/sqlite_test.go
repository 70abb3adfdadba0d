package sqlite

import (
	"testing"

	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/journal/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Place {
		dir := t.TempDir()
		return storetest.Place{Dir: dir, Open: func() (store.Store, error) {
			return Open(t.Context(), Config{Dir: dir})
		}}
	})
}

func TestContractMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Place {
		return storetest.Place{Forgets: true, Open: func() (store.Store, error) {
			return Open(t.Context(), Config{Memory: true})
		}}
	})
}
