package samvad

import (
	"context"
	"crypto/ed25519"
	"slices"
	"sync"

	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
	protocol "github.com/parley-hub/parley/samvad"
)

// enrolledSource begins the source of enrolled keys; the agent's directory
// name follows.
const enrolledSource = "enrolled as "

// keyIndex finds enrolled keys by wire identity. Several agents may claim one
// identity with different keys.
type keyIndex struct {
	ring *keyring.Ring

	mu    sync.RWMutex
	names map[string][]string // of the agents with a wire identity
}

// Keys implements samvad.Keys: each key of an agent proves each of its identities.
func (x *keyIndex) Keys(_ context.Context, id string) (keys []protocol.Key, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, agent := range x.names[id] {
		for _, k := range x.ring.Enrolled(agent, Protocol) {
			kid := k.KeyID
			if kid == keyring.Fingerprint(keyring.Ed25519, k.Public) {
				kid = "" // it has no name of its own: any matches
			}
			keys = append(keys, protocol.Key{KID: kid, Public: ed25519.PublicKey(k.Public),
				Source: enrolledSource + agent})
		}
	}
	if len(keys) == 0 {
		return nil, protocol.ErrUnknownKey
	}
	return keys, nil
}

// update follows a change of the directory.
func (x *keyIndex) update(c directory.Change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	each := func(e *directory.Entry, change func(names []string) []string) {
		if e == nil {
			return
		}
		for _, i := range e.Identities {
			if i.Protocol != Protocol || i.StandIn {
				continue
			}
			if names := change(x.names[i.ID]); len(names) > 0 {
				x.names[i.ID] = names
			} else {
				delete(x.names, i.ID)
			}
		}
	}
	each(c.Old, func(names []string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return n == c.Old.Name })
	})
	each(c.New, func(names []string) []string {
		if slices.Contains(names, c.New.Name) {
			return names
		}
		return append(names, c.New.Name)
	})
}
