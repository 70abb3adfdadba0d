package samvad

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley/keyring"
	protocol "github.com/parley-hub/parley/samvad"
)

// identity is the hub's own identity in SAMVAD, with the present keys of its keyring:
// one, or two while `parley keys rotate` replaces it. It implements
// protocol.RollingSigner.
type identity struct {
	keys *keyring.Ring
	id   string
}

// newIdentity makes the identity, and its key if the keyring has none.
func newIdentity(keys *keyring.Ring, id string) (identity, error) {
	_, err := keys.Ensure(keyring.New{Owner: keyring.Hub, Purpose: Protocol, Algorithm: keyring.Ed25519, By: "parley"})
	if err != nil {
		return identity{}, fmt.Errorf("the hub's SAMVAD key: %w", err)
	}
	return identity{keys, id}, nil
}

// SignerOf gives the key with which a hub signs in SAMVAD, from its keyring, under an
// identity. The error says why the keyring has none.
func SignerOf(r *keyring.Ring, id string) (protocol.Signer, error) {
	s, err := r.Signer(keyring.Hub, Protocol)
	if err != nil {
		return nil, fmt.Errorf("the hub's SAMVAD key: %w", err)
	}
	return ringSigner{s, id}, nil
}

// NextOf gives the key that a rotation in progress will make the hub's signing key;
// nil if there is no rotation.
func NextOf(r *keyring.Ring, id string) protocol.Signer {
	for _, k := range r.Keys(keyring.Hub, Protocol) {
		if s, err := r.SignerByID(k.ID); err == nil && k.State == keyring.Next {
			return ringSigner{s, id}
		}
	}
	return nil
}

// ringSigner is a key of the keyring as a protocol.Signer.
type ringSigner struct {
	keyring.Signer
	id string
}

func (s ringSigner) ID() string { return s.id }

func (s ringSigner) KID() string { return kid(s.Signer.Public()) }

func (s ringSigner) Public() ed25519.PublicKey { return s.Signer.Public() }

func kid(public []byte) string { return "parley-" + keyring.Fingerprint(keyring.Ed25519, public)[:8] }

func (i identity) ID() string                          { return i.id }
func (i identity) KID() string                         { return i.Current().KID() }
func (i identity) Public() ed25519.PublicKey           { return i.Current().Public() }
func (i identity) Sign(message []byte) ([]byte, error) { return i.Current().Sign(message) }

// Current implements protocol.RollingSigner.
func (i identity) Current() protocol.Signer {
	s, err := SignerOf(i.keys, i.id)
	if err != nil {
		return keyless{i.id, err}
	}
	return s
}

// keyless is the signer where the keyring has no key: Sign fails with the reason.
type keyless struct {
	id  string
	err error
}

func (s keyless) ID() string                  { return s.id }
func (s keyless) KID() string                 { return "none" }
func (s keyless) Public() ed25519.PublicKey   { return nil }
func (s keyless) Sign([]byte) ([]byte, error) { return nil, s.err }

// cardKeys are the keys on a card, the signing key first.
func (i identity) cardKeys() []protocol.CardKey {
	var out []protocol.CardKey
	for _, k := range i.keys.Keys(keyring.Hub, Protocol) {
		c := protocol.CardKey{KID: kid(k.Public), Key: base64.StdEncoding.EncodeToString(k.Public), Active: true}
		if k.State == keyring.Active {
			out = slices.Insert(out, 0, c)
		} else {
			out = append(out, c)
		}
	}
	return out
}

// withAnyKey makes a call, and repeats it with the hub's other key if the agent
// rejects the first. During a rotation, an agent that has one raw key may have either.
// It checks the key before it runs the skill, so the call runs once.
func (i identity) withAnyKey(call *protocol.Call, do func() error) error {
	err := do()
	if !rejectsKey(err) {
		return err
	}
	now := i.Current().KID()
	for _, k := range i.keys.Keys(keyring.Hub, Protocol) {
		s, kerr := i.keys.SignerByID(k.ID)
		if kerr != nil || kid(k.Public) == now {
			continue
		}
		call.As = ringSigner{s, i.id}
		if again := do(); !rejectsKey(again) {
			return again
		}
	}
	return err
}

// rejectsKey reports whether the agent did not accept the signature, or the caller.
func rejectsKey(err error) bool {
	return errors.Is(err, protocol.ErrRemote) && protocol.AsError(err).Code == protocol.CodeAuthFailed
}

// Hosting describes this hub to the operators of agents elsewhere.
type Hosting struct {
	Identity string `json:"identity"`  // of the hub, as a caller
	KeyID    string `json:"keyId"`     // of the signing key
	Key      string `json:"publicKey"` // base64, to be enrolled at agents that trust keys
	Base     string `json:"base"`      // base URL; agents are at Base/agents/NAME

	Next string `json:"nextPublicKey,omitempty"` // base64, of the next key; only during a rotation
}

// Hosting gives the hub's identity, keys and URL in SAMVAD.
func (b *Binding) Hosting() Hosting {
	s := b.identity.Current()
	h := Hosting{Identity: s.ID(), KeyID: s.KID(), Key: base64.StdEncoding.EncodeToString(s.Public()),
		Base: b.public.String()}
	if next := NextOf(b.c.Keys, s.ID()); next != nil {
		h.Next = base64.StdEncoding.EncodeToString(next.Public())
	}
	return h
}
