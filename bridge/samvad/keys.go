package samvad

import (
	"context"
	"crypto/ed25519"

	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
	protocol "github.com/parley-hub/parley/samvad"
)

// enrolledSource begins the source of enrolled keys; the agent's directory
// name follows.
const enrolledSource = "enrolled as "

// enrolledKeys finds enrolled keys by wire identity. Several agents may claim one
// identity with different keys.
type enrolledKeys struct {
	directory *directory.Directory
	ring      *keyring.Ring
}

// Keys implements samvad.Keys: each key of an agent proves each of its identities.
func (x enrolledKeys) Keys(_ context.Context, id string) (keys []protocol.Key, err error) {
	for _, e := range x.directory.Claimants(Protocol, id) {
		for _, k := range x.ring.Enrolled(e.Name, Protocol) {
			kid := k.KeyID
			if kid == keyring.Fingerprint(keyring.Ed25519, k.Public) {
				kid = "" // it has no name of its own: any matches
			}
			keys = append(keys, protocol.Key{KID: kid, Public: ed25519.PublicKey(k.Public),
				Source: enrolledSource + e.Name})
		}
	}
	if len(keys) == 0 {
		return nil, protocol.ErrUnknownKey
	}
	return keys, nil
}
