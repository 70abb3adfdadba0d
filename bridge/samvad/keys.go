package samvad

import (
	"cmp"
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
	dir  *directory.Directory

	mu     sync.RWMutex
	byName map[string][]string // agent → wire identities under which it is indexed
	byID   map[string][]protocol.Key
}

func newKeyIndex(r *keyring.Ring, d *directory.Directory) *keyIndex {
	x := &keyIndex{ring: r, dir: d, byName: map[string][]string{}, byID: map[string][]protocol.Key{}}
	r.Watch(x.refresh)
	return x
}

// Keys implements samvad.Keys.
func (x *keyIndex) Keys(_ context.Context, id string) ([]protocol.Key, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	keys := x.byID[id]
	if len(keys) == 0 {
		return nil, protocol.ErrUnknownKey
	}
	return keys, nil
}

// update follows a change of the directory.
func (x *keyIndex) update(c directory.Change) {
	x.set(cmp.Or(c.New, c.Old).Name, c.New)
}

// refresh follows a change of an agent's keys.
func (x *keyIndex) refresh(agent string) {
	e, _ := x.dir.Agent(agent) // nil where there is none
	x.set(agent, e)
}

// set indexes an agent anew: each of its keys proves each of its identities. e is
// nil where the directory has no such agent. It does not change slices that Keys
// gave.
func (x *keyIndex) set(agent string, e *directory.Entry) {
	enrolled := x.ring.Enrolled(agent, Protocol)
	var ids []string
	if e != nil && len(enrolled) > 0 {
		for _, i := range e.Identities {
			if i.Protocol == Protocol && !i.StandIn && !slices.Contains(ids, i.ID) {
				ids = append(ids, i.ID)
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, old := range x.byName[agent] {
		var rest []protocol.Key
		for _, k := range x.byID[old] {
			if k.Source != enrolledSource+agent {
				rest = append(rest, k)
			}
		}
		x.byID[old] = rest
		if len(rest) == 0 {
			delete(x.byID, old)
		}
	}
	delete(x.byName, agent)
	for _, id := range ids {
		keys := slices.Clone(x.byID[id])
		for _, k := range enrolled {
			kid := k.KeyID
			if kid == keyring.Fingerprint(keyring.Ed25519, k.Public) {
				kid = "" // it has no name of its own: any matches
			}
			keys = append(keys, protocol.Key{KID: kid, Public: ed25519.PublicKey(k.Public),
				Source: enrolledSource + agent})
		}
		x.byID[id] = keys
	}
	if len(ids) > 0 {
		x.byName[agent] = ids
	}
}
