package admin

import (
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/keyring"
)

// This file counts the messages that each enrolled key proved since the hub started.

// proofs are those of one agent.
type proofs map[proofKey]proof

type proofKey struct{ protocol, keyID string }

type proof struct {
	last  time.Time
	count uint64
}

// maxProofKeys bounds the keys of one agent that are counted: agents whose cards are read anew have many in turn.
const maxProofKeys = 32

// noteProof counts a message of an agent of the directory; a.mu is held.
func (a *Admin) noteProof(m *parley.Message, at time.Time) {
	v := m.Origin.Verdict
	if v.Assurance != parley.Signed {
		return
	}
	k := proofKey{m.Origin.Protocol, v.KeyID}
	of := a.proofs[m.From]
	if _, known := of[k]; !known && len(of) >= maxProofKeys {
		return
	}
	if of == nil {
		of = proofs{}
		a.proofs[m.From] = of
	}
	of[k] = proof{at, of[k].count + 1}
}

// addProofs adds the uses of a key to what the index knows.
func (a *Admin) addProofs(k *keyring.Enrolled) {
	only := len(a.c.Keys.Enrolled(k.Agent, k.Purpose)) == 1 // then senders may call it otherwise
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, p := range a.proofs[k.Agent] {
		if id.protocol != k.Purpose || id.keyID != k.KeyID && !only || p.last.Before(k.Created) {
			continue
		}
		k.Proved += p.count
		if p.last.After(k.Used) {
			k.Used = p.last
		}
	}
}
