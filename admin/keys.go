package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// Keys are the hub's own keys and the enrolled public keys of agents.
type Keys struct {
	Own      []keyring.Key      `json:"own"`
	Enrolled []keyring.Enrolled `json:"enrolled"`
}

// Keys lists the keys of an agent, or all keys for "", without secrets. The last use of
// an enrolled key is that of the newest message in the journal that it proved.
func (a *Admin) Keys(ctx context.Context, by Actor, agent string) (Keys, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&agent)); err != nil {
		return Keys{}, err
	}
	out := Keys{Own: append([]keyring.Key{}, a.c.Keys.List()...),
		Enrolled: append([]keyring.Enrolled{}, a.c.Keys.AllEnrolled()...)}
	if agent != "" {
		out.Own = slices.DeleteFunc(out.Own, func(k keyring.Key) bool { return k.Owner != agent })
		out.Enrolled = slices.DeleteFunc(out.Enrolled, func(e keyring.Enrolled) bool { return e.Agent != agent })
	}
	for i := range out.Enrolled {
		var err error
		if out.Enrolled[i].Used, err = a.lastProof(ctx, &out.Enrolled[i]); err != nil {
			return Keys{}, err
		}
		a.addProofs(&out.Enrolled[i])
	}
	return out, nil
}

// proofsLooked is how many messages of an agent [Admin.lastProof] looks at.
const proofsLooked = 20

// lastProof gives the time of the newest message that an enrolled key proved; zero: not
// known.
func (a *Admin) lastProof(ctx context.Context, k *keyring.Enrolled) (t time.Time, err error) {
	page, err := a.c.Index.Messages(ctx, index.Filter{From: k.Agent, Protocol: k.Purpose, Limit: proofsLooked})
	if err != nil {
		return t, err
	}
	one := len(a.c.Keys.Enrolled(k.Agent, k.Purpose)) == 1
	for _, m := range page.Messages {
		if m.Assurance != parley.Signed || m.Time.Before(k.Created) {
			continue
		}
		if one {
			return m.Time, nil
		}
		r, err := a.c.Hub.Journal().Read(ctx, m.Position)
		if errors.Is(err, journal.ErrNotFound) {
			continue
		}
		if err != nil {
			return t, err
		}
		if r.Message != nil && r.Message.Origin.Verdict.KeyID == k.KeyID {
			return m.Time, nil
		}
	}
	return t, nil
}

// Enrolment vouches for the public key of an agent.
type Enrolment struct {
	Agent string `json:"agent"` // name in the directory
	NewIdentity
}

// Enroll records the public key of one of an agent's identities: messages that
// it signs are the agent's from now on.
func (a *Admin) Enroll(ctx context.Context, by Actor, e Enrolment) error {
	key, err := decodeKey(e.PublicKey)
	if err == nil {
		err = a.resolveNames(&e.Agent)
	}
	if err != nil {
		return err
	}
	return a.act(ctx, by, Administer, "key.enroll", e.Agent,
		e.Protocol+" "+e.ID+" "+keyring.Fingerprint(keyring.Ed25519, key), func(context.Context) error {
			i, err := a.native(by, e.Agent, e.Protocol, e.ID)
			if err != nil {
				return err
			}
			e.ID = i.ID
			_, err = a.enroll(e.Agent, e.NewIdentity, key, by.Name)
			return err
		})
}

// native finds an identity of an agent that is no stand-in.
func (a *Admin) native(by Actor, agent, protocol, id string) (parley.Identity, error) {
	e, err := a.entry(by, agent)
	if err != nil {
		return parley.Identity{}, err
	}
	for _, i := range e.Identities {
		if i.Protocol == protocol && !i.StandIn && (id == "" || id == i.ID) {
			return i, nil
		}
	}
	return parley.Identity{}, parley.Refuse(parley.Conflict, "agent %q has no such identity in %.20q: link it first",
		agent, protocol)
}

// fingerprintIfShared gives the fingerprint that tells an identity from that of another agent
// with the same id; "" if no other agent claims it.
func (a *Admin) fingerprintIfShared(agent string, id NewIdentity, key []byte) string {
	if e, ok := a.c.Hub.Directory().Lookup(id.Protocol, id.ID); ok && e.Name != agent {
		return keyring.Fingerprint(keyring.Ed25519, key)
	}
	return ""
}

// enroll records a key. undo is for [Admin.unenrollAll] if a later step fails; it is
// empty if the key was enrolled before.
func (a *Admin) enroll(agent string, id NewIdentity, key []byte, by string) (undo []NewIdentity, err error) {
	for _, k := range a.c.Keys.Enrolled(agent, id.Protocol) {
		if bytes.Equal(k.Public, key) && (id.KeyID == "" || id.KeyID == k.KeyID) {
			return nil, nil
		}
	}
	k, err := a.c.Keys.Enroll(keyring.Enrolled{Agent: agent, Purpose: id.Protocol, KeyID: id.KeyID,
		Algorithm: keyring.Ed25519, Public: key, By: by, Note: id.ID})
	if err != nil {
		return nil, fromKeyring(err)
	}
	return []NewIdentity{{Protocol: id.Protocol, KeyID: k.KeyID}}, nil
}

func (a *Admin) unenrollAll(agent string, list []NewIdentity) error {
	var errs []error
	for _, i := range list {
		errs = append(errs, a.c.Keys.Unenroll(agent, i.Protocol, i.KeyID))
	}
	return errors.Join(errs...)
}

// Unenroll forgets a public key of an agent.
func (a *Admin) Unenroll(ctx context.Context, by Actor, agent, protocol, keyID string) error {
	if err := a.resolveNames(&agent); err != nil {
		return err
	}
	return a.act(ctx, by, Administer, "key.unenroll", agent, protocol+" "+keyID, func(context.Context) error {
		return fromKeyring(a.c.Keys.Unenroll(agent, protocol, keyID))
	})
}

// NewKey describes a private key that the hub makes or takes in.
type NewKey struct {
	Owner     string            `json:"owner"`   // agent, or "hub"
	Purpose   string            `json:"purpose"` // protocol
	Algorithm keyring.Algorithm `json:"algorithm"`
	Seed      []byte            `json:"seed,omitempty"` // its 32 secret bytes; without them the hub makes it
	Note      string            `json:"note,omitzero"`
}

// MakeKey makes a private key in a keyring, or takes one in.
func MakeKey(r *keyring.Ring, n NewKey, by string) (keyring.Key, error) {
	keys, err := r.Create(keyring.New{Owner: n.Owner, Purpose: n.Purpose, Algorithm: n.Algorithm, Seed: n.Seed, By: by,
		Note: n.Note})
	if errors.Is(err, keyring.ErrExists) {
		return keyring.Key{}, parley.Refuse(parley.Conflict,
			"keyring: %q has a key for %q already; `parley keys rotate` replaces it",
			n.Owner, n.Purpose).Because(err)
	}
	if err != nil {
		return keyring.Key{}, fromKeyring(err)
	}
	return keys[0], nil
}

// NewKey makes a private key in the hub's keyring, or takes one in.
func (a *Admin) NewKey(ctx context.Context, by Actor, n NewKey) (keyring.Key, error) {
	if err := a.resolveNames(&n.Owner); err != nil {
		return keyring.Key{}, err
	}
	return actFor(a, ctx, by, Administer, "key.new", n.Owner, n.Purpose, func(context.Context) (keyring.Key, error) {
		return MakeKey(a.c.Keys, n, by.Name)
	})
}

// Passphrase is a change of the keyring's passphrase.
type Passphrase struct {
	Current string `json:"current,omitzero"` // "": the keyring is not encrypted
	New     string `json:"new"`
}

// Protected says that the passphrase of the keyring was changed.
type Protected struct {
	Backup string `json:"backup,omitzero"` // file that still opens with the old passphrase; "" in a cluster
}

// ChangePassphrase changes the passphrase of a keyring.
func ChangePassphrase(r *keyring.Ring, p Passphrase) (out Protected, err error) {
	var current keyring.Protection
	if p.Current != "" {
		current.Passphrase = keyring.Secret(p.Current)
	}
	out.Backup, err = r.Protect(current, keyring.Protection{Passphrase: keyring.Secret(p.New)})
	return out, fromKeyring(err)
}

// Passphrase changes the passphrase of the hub's keyring; in a cluster, of all
// hubs.
func (a *Admin) Passphrase(ctx context.Context, by Actor, p Passphrase) (Protected, error) {
	return actFor(a, ctx, by, Administer, "key.passphrase", "keyring", "", func(context.Context) (Protected, error) {
		return ChangePassphrase(a.c.Keys, p)
	})
}

// Rotation replaces a key of the hub's own.
type Rotation struct {
	Owner   string `json:"owner"`            // agent, or "hub"
	Purpose string `json:"purpose"`          // protocol
	Overlap string `json:"overlap,omitzero"` // how long both are valid before the new one signs alone; default "168h"
}

func (r *Rotation) overlap() (time.Duration, error) {
	if r.Overlap == "" {
		return 7 * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(r.Overlap)
	if err != nil || d < 0 {
		return 0, parley.Refuse(parley.Malformed, "overlap %.40q is not a duration such as 168h", r.Overlap)
	}
	return d, nil
}

func beingReplaced(r Rotation) *parley.Error {
	return parley.Refuse(parley.Conflict, "a key of %q for %q is being replaced already; overlap \"0s\" ends that now, "+
		"with the new key", r.Owner, r.Purpose)
}

// OldKeyPublished is how long the old key stays published after the new key has
// begun to sign: messages signed by it are still on their way, and cards are cached.
const OldKeyPublished = time.Hour

// ReplaceKey replaces a key of a keyring. Agents of SAMVAD list several keys on their
// cards, so their keys change in phases: both keys are published, and the old key signs
// until overlap has passed; then the new key signs, and the old key is withdrawn after
// [OldKeyPublished]. In other protocols the new key signs at once, and signatures of the
// old key stay valid until overlap has passed. Without overlap the old key ends at once,
// for good.
func ReplaceKey(r *keyring.Ring, owner, purpose, by string, overlap time.Duration) (keyring.Key, error) {
	if purpose == "samvad" && overlap > 0 {
		return r.Rollover(owner, purpose, by, overlap, OldKeyPublished)
	}
	return r.Rotate(owner, purpose, by, overlap)
}

// Rotate replaces a key; see [ReplaceKey].
func (a *Admin) Rotate(ctx context.Context, by Actor, r Rotation) (keyring.Key, error) {
	overlap, err := r.overlap()
	if err != nil {
		return keyring.Key{}, err
	}
	if err := a.resolveNames(&r.Owner); err != nil {
		return keyring.Key{}, err
	}
	detail := r.Purpose + " overlap " + overlap.String()
	return actFor(a, ctx, by, Administer, "key.rotate", r.Owner, detail, func(context.Context) (keyring.Key, error) {
		k, err := ReplaceKey(a.c.Keys, r.Owner, r.Purpose, by.Name, overlap)
		if errors.Is(err, keyring.ErrExists) {
			return k, beingReplaced(r).Because(err)
		}
		return k, fromKeyring(err)
	})
}

// fromKeyring turns an error of the keyring into one of the API.
func fromKeyring(err error) error {
	var code parley.Code
	switch {
	case err == nil:
		return nil
	case errors.Is(err, keyring.ErrNotFound):
		return parley.Refuse(notFound, "no such key").Because(err)
	case errors.Is(err, keyring.ErrExists):
		return parley.Refuse(parley.Conflict, "another key is recorded under that id; remove it first").Because(err)
	case errors.Is(err, keyring.ErrInvalid):
		code = parley.Malformed
	case errors.Is(err, keyring.ErrWrongKey), errors.Is(err, keyring.ErrEncrypted),
		errors.Is(err, keyring.ErrNotEncrypted):
		code = parley.Conflict
	case errors.Is(err, keyring.ErrFull):
		code = parley.Unavailable
	default:
		return err
	}
	return parley.Refuse(code, "%s", err)
}
