package keyring

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// Enrolled is a public key of an agent: messages signed with it are from Agent. By
// vouches for it.
type Enrolled struct {
	Agent     string    `json:"agent"`
	Purpose   string    `json:"purpose"`
	KeyID     string    `json:"keyId"` // the protocol's name of the key; Enroll replaces "" by the fingerprint
	Algorithm Algorithm `json:"algorithm"`
	Public    []byte    `json:"public"` // in the form that the Algorithm documents
	By        string    `json:"by,omitempty"`
	Note      string    `json:"note,omitempty"`
	Created   time.Time `json:"created"` // set by Enroll

	Used time.Time `json:"used,omitzero"` // last message that it proved; the ring does not know it

	Proved uint64 `json:"proved,omitzero"` // messages that it proved since the hub started; the ring does not know it
}

// Enroll records a public key and returns it as recorded. Keys that may have more
// than one owner (Ed25519 of small order, or not canonical) are refused with
// [ErrInvalid]. The same key again changes nothing; another key with the same KeyID
// is [ErrExists].
func (r *Ring) Enroll(e Enrolled) (Enrolled, error) {
	out, err := r.enroll([]Enrolled{e})
	if err != nil {
		return Enrolled{}, err
	}
	e = out[0]
	e.Public = bytes.Clone(e.Public)
	return e, nil
}

// EnrollAll is [Ring.Enroll] for many keys, all or none, in one write (in a shared ring one write for each agent).
func (r *Ring) EnrollAll(keys ...Enrolled) error {
	_, err := r.enroll(keys)
	return err
}

func (r *Ring) enroll(keys []Enrolled) ([]Enrolled, error) {
	out := slices.Clone(keys)
	for i := range out {
		e := &out[i]
		if err := cmp.Or(checkNames(e.Agent, e.Purpose), checkTexts(e.KeyID, e.By, e.Note)); err != nil {
			return nil, err
		}
		pub, err := normalPublic(e.Algorithm, e.Public)
		if err != nil {
			return nil, err
		}
		e.Public, e.Created = pub, r.timestamp()
		if e.KeyID == "" {
			e.KeyID = Fingerprint(e.Algorithm, pub)
		}
	}
	err := r.update(func(c *contents) error {
		known := make(map[enrolledID]int, len(c.Enrolled)+len(out))
		for i, e := range c.Enrolled {
			known[e.id()] = i
		}
		before := len(c.Enrolled)
		for i, e := range out {
			if at, ok := known[e.id()]; ok {
				old := c.Enrolled[at]
				if old.Algorithm != e.Algorithm || !bytes.Equal(old.Public, e.Public) {
					return fmt.Errorf("%w: another key of %q for %q is enrolled as %q", ErrExists, e.Agent, e.Purpose,
						e.KeyID)
				}
				out[i] = old
				continue
			}
			if len(c.Enrolled) >= r.maxKeys {
				return fmt.Errorf("%w: %d enrolled keys", ErrFull, len(c.Enrolled))
			}
			known[e.id()] = len(c.Enrolled)
			c.Enrolled = append(c.Enrolled, e)
		}
		if len(c.Enrolled) == before {
			return errUnchanged
		}
		return nil
	})
	return out, err
}

// enrolledID is what tells two enrolled keys apart.
type enrolledID struct{ agent, purpose, keyID string }

func (e Enrolled) id() enrolledID { return enrolledID{e.Agent, e.Purpose, e.KeyID} }

func (e Enrolled) sameKeyID(o Enrolled) bool { return e.id() == o.id() }

// Enrolled returns the keys enrolled for agent and purpose, oldest first. The
// result is shared: do not change it.
func (r *Ring) Enrolled(agent, purpose string) []Enrolled {
	return r.current.Load().enrolled[ownerPurpose{agent, purpose}]
}

// AllEnrolled returns all enrolled keys, by agent, purpose and age.
func (r *Ring) AllEnrolled() []Enrolled {
	out := slices.Clone(r.current.Load().contents.Enrolled)
	for i := range out {
		out[i].Public = bytes.Clone(out[i].Public)
	}
	slices.SortStableFunc(out, func(a, b Enrolled) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Purpose, b.Purpose))
	})
	return out
}

// Unenroll removes an enrolled key. Errors: [ErrNotFound].
func (r *Ring) Unenroll(agent, purpose, keyID string) error {
	return r.update(func(c *contents) error {
		n := len(c.Enrolled)
		c.Enrolled = slices.DeleteFunc(c.Enrolled, Enrolled{Agent: agent, Purpose: purpose, KeyID: keyID}.sameKeyID)
		if len(c.Enrolled) == n {
			return fmt.Errorf("%w: %q of %q for %q is not enrolled", ErrNotFound, keyID, agent, purpose)
		}
		return nil
	})
}

// Fingerprint is a short name of a public key, for people to compare: 20
// hexadecimal digits of SHA-256.
func Fingerprint(a Algorithm, public []byte) string {
	b := append(append(make([]byte, 0, 128), a...), '\n')
	sum := sha256.Sum256(hex.AppendEncode(b, public))
	return hex.EncodeToString(sum[:10])
}
