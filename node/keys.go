package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// openKeys opens the keyring: in the data directory, for a cluster in the shared state,
// for a hub in memory in memory.
func (n *Node) openKeys() (err error) {
	o := keyring.Options{Passphrase: n.c.Passphrase, WorkFactor: n.c.PassphraseWork, Now: n.c.Now, Log: n.log}
	if o.Shared = n.c.Engine.URL != ""; o.Shared && len(o.Passphrase) == 0 {
		return errors.New("the hubs of a cluster keep their keys in its shared state, encrypted: " +
			"set PARLEY_PASSPHRASE or PARLEY_PASSPHRASE_FILE, the same for all hubs")
	}
	if o.Shared || n.k.durability != journal.Memory {
		o.Dir, o.Store = filepath.Join(n.c.Data, "keys"), keyStore{n.journal.State("keys")}
	}
	n.keys, err = keyring.Open(o)
	return err
}

// keyStore adapts the journal's state to the keyring.
type keyStore struct{ s journal.State }

func (k keyStore) Get(ctx context.Context, key string) (keyring.Value, error) {
	v, err := k.s.Get(ctx, key)
	if errors.Is(err, journal.ErrNotFound) {
		return keyring.Value{Key: key}, nil
	}
	return keyring.Value{Key: key, Data: v.Data, Revision: v.Revision}, err
}

func (k keyStore) Set(ctx context.Context, key string, data []byte, revision uint64) (uint64, error) {
	var err error
	if revision == 0 {
		revision, err = k.s.Create(ctx, key, data, time.Time{})
	} else {
		revision, err = k.s.Update(ctx, key, data, time.Time{}, revision)
	}
	return revision, first(err)
}

func (k keyStore) Remove(ctx context.Context, key string, revision uint64) error {
	return first(k.s.Delete(ctx, key, revision))
}

// first maps the state's errors to the keyring's: another hub was first.
func first(err error) error {
	if errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrExists) {
		return fmt.Errorf("%w: %w", keyring.ErrConflict, err)
	}
	return err
}

func (k keyStore) Watch(ctx context.Context, fn func(keyring.Value)) (stop func(), err error) {
	return k.s.Watch(ctx, "", func(v journal.Value) {
		if v.Deleted {
			v.Data = nil
		}
		fn(keyring.Value{Key: v.Key, Data: v.Data, Revision: v.Revision})
	})
}
