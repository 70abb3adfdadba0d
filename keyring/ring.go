package keyring

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

// Match these with errors.Is. An error of this package wraps one of them, or an
// error of the operating system.
var (
	ErrNotFound     = errors.New("keyring: no such key")
	ErrExists       = errors.New("keyring: there is one already")
	ErrRevoked      = errors.New("keyring: key is revoked")
	ErrInvalid      = errors.New("keyring: invalid")
	ErrFull         = errors.New("keyring: full")
	ErrPermissions  = errors.New("keyring: others could read it")
	ErrCorrupt      = errors.New("keyring: file is damaged")
	ErrEncrypted    = errors.New("keyring: it is encrypted")
	ErrNotEncrypted = errors.New("keyring: it is not encrypted")
	ErrWrongKey     = errors.New("keyring: wrong passphrase or identity")
	ErrMissing      = errors.New("keyring: file is missing")
)

// Hub is the owner of the hub's own keys.
const Hub = "hub"

const (
	maxName        = 256     // bytes of a name or note
	defaultMaxKeys = 100_000 // private keys, and as many enrolled ones
)

// State is the place of a key in its life.
type State string

const (
	Next     State = "next"     // published; signs from Key.Turn on
	Active   State = "active"   // signs
	Retiring State = "retiring" // replaced; valid until Key.Until
	Revoked  State = "revoked"
)

// Key describes a private key. It holds nothing secret.
type Key struct {
	ID        string    `json:"id"` // made of owner, purpose, algorithm and public key
	Owner     string    `json:"owner"`
	Purpose   string    `json:"purpose"`
	Algorithm Algorithm `json:"algorithm"`
	Public    []byte    `json:"public"`
	State     State     `json:"state"`
	Created   time.Time `json:"created"`
	Turn      time.Time `json:"turn,omitzero"`  // in a rollover: the next key begins to sign
	Until     time.Time `json:"until,omitzero"` // end of validity; zero: none is set
	Used      time.Time `json:"used,omitzero"`  // last signature; kept on disk from the next change or Close
	By        string    `json:"by,omitempty"`   // operator or program that made, imported or rotated to the key
	Note      string    `json:"note,omitempty"`
}

// Live reports whether the key is valid at t.
func (k Key) Live(t time.Time) bool {
	return k.State == Active || k.State == Next || k.State == Retiring && t.Before(k.Until)
}

// at returns the key as it is at t. In a [Ring.Rollover] time alone changes keys: the
// ring has Turn, and the states from Turn on.
func (k Key) at(t time.Time) Key {
	switch turned := !t.Before(k.Turn); {
	case k.Turn.IsZero():
	case turned && k.State == Next:
		k.State, k.Turn = Active, time.Time{}
	case turned:
		k.Turn = time.Time{}
	case k.State == Retiring:
		k.State = Active
	}
	return k
}

// Signer signs with one private key. It is safe for concurrent use.
type Signer interface {
	ID() string
	Public() []byte
	Algorithm() Algorithm
	// Sign signs msg with Ed25519, or the digest msg of 32 bytes with another
	// algorithm. It fails with ErrRevoked once the key is revoked.
	Sign(msg []byte) ([]byte, error)
	// Seed returns the 32 secret bytes, for protocol identities that hold their
	// key themselves; nil once the key is revoked.
	Seed() []byte
}

// New describes a key to be made.
type New struct {
	Owner     string
	Purpose   string
	Algorithm Algorithm
	Seed      Secret // the 32 secret bytes of an existing key; nil draws them
	By        string
	Note      string
}

// Ring is an open keyring, safe for concurrent use. Reads take no lock.
type Ring struct {
	now     func() time.Time
	rand    io.Reader
	maxKeys int
	place   place

	mu      sync.Mutex // held by changes, also while they write
	current atomic.Pointer[snapshot]
	changed []string // agents with changed enrolled keys that watchers do not know yet; under mu

	watchers []func(agent string) // under mu
	watchMu  sync.Mutex           // held while they are called
}

// A place keeps a ring: a file, a store or memory. Its methods are called under
// Ring.mu, except stop and String.
type place interface {
	// update reads the newest contents, calls change with a copy and writes the copy.
	// With used it also writes when keys were last used, even if nothing else changes.
	update(r *Ring, change func(*contents) error, used bool) error
	protect(r *Ring, current, next Protection) (backup string, err error)
	stop()
	String() string // for errors
}

// nowhere keeps a ring in memory alone.
type nowhere struct{}

func (nowhere) String() string { return "memory" }

func (nowhere) stop() {}

func (nowhere) update(r *Ring, change func(*contents) error, _ bool) error {
	c := r.copyContents()
	if err := change(c); err != nil {
		return err
	}
	return r.publish(c)
}

func (nowhere) protect(*Ring, Protection, Protection) (string, error) {
	return "", fmt.Errorf("%w: a ring in memory needs no protection", ErrInvalid)
}

// snapshot is the ring at one moment. It never changes.
type snapshot struct {
	contents  *contents
	active    map[ownerPurpose]*signer   // newest
	next      map[ownerPurpose]ringKey   // of rollovers
	byPurpose map[ownerPurpose][]ringKey // all, in order of age
	byID      map[string]ringKey
	enrolled  map[ownerPurpose][]Enrolled
}

type ringKey struct {
	record *record
	signer *signer
}

type ownerPurpose struct{ owner, purpose string }

// contents are the keys and secrets of a ring.
type contents struct {
	Keys     []record          `json:"keys"`
	Enrolled []Enrolled        `json:"enrolled"`
	Secrets  map[string][]byte `json:"secrets"`
}

type record struct {
	Key
	Seed []byte `json:"seed,omitempty"`
}

func (c *contents) clone() *contents {
	n := &contents{Keys: slices.Clone(c.Keys), Enrolled: slices.Clone(c.Enrolled), Secrets: map[string][]byte{}}
	maps.Copy(n.Secrets, c.Secrets)
	return n
}

// Options describe the place of a ring and its protection.
type Options struct {
	// Dir holds the ring's file; it is made if missing. Empty: the ring is in
	// memory.
	Dir string

	// Store is a state in which hubs share a ring. With Shared the ring is there,
	// not in Dir. A ring found in the other place is imported once; then its file
	// is renamed, or its values are removed. A key that would replace another is
	// not imported, and Log says so.
	Store  Store
	Shared bool
	Log    *slog.Logger // nil discards

	// Passphrase or IdentityFile, a file made by age-keygen, protects the ring. At
	// most one may be given: the one of the ring's last protection. An empty
	// passphrase that is not nil is an error.
	Passphrase   Secret
	IdentityFile string

	// WorkFactor is log₂ of N in scrypt, for a new passphrase. 0 means 18, about a
	// second. A smaller one is for tests. An existing ring is opened with its own.
	WorkFactor int

	Rand io.Reader        // nil means crypto/rand
	Now  func() time.Time // nil means time.Now

	maxKeys int                     // 0 means defaultMaxKeys
	fault   func(step string) error // makes a step of writing fail
}

// Open opens the ring of o.Dir or o.Store, or makes an empty one.
func Open(o Options) (*Ring, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	r := &Ring{now: o.Now, rand: cmp.Or[io.Reader](o.Rand, rand.Reader), maxKeys: cmp.Or(o.maxKeys, defaultMaxKeys),
		place: nowhere{}}
	r.current.Store(&snapshot{contents: &contents{}})
	former, err := openOldRing(o)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Shared:
		s, serr := openShared(o)
		if serr != nil {
			return nil, serr
		}
		r.place = s
		err = r.update(unchanged) // finishes a change of the passphrase
		s.follow(r)
	case o.Dir != "":
		absent := (*ringFile).begin
		if former != nil {
			absent = (*ringFile).create
		}
		d, c, derr := openDisk(o, absent)
		if derr != nil {
			return nil, derr
		}
		r.place = d
		err = r.load(c)
	}
	if err == nil && former != nil {
		err = r.migrate(former, o.Log)
	}
	if err != nil {
		r.place.stop()
		return nil, err
	}
	return r, nil
}

// Format describes the ring without its keys.
func (r *Ring) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "keyring{%s, %d keys}", r.place, len(r.current.Load().contents.Keys))
}

// Close records when keys were last used, and stops following other hubs. The ring
// can still be used.
func (r *Ring) Close() error {
	defer r.place.stop()
	for _, h := range r.current.Load().byID {
		if h.signer.lastUsed(h.record.Used).Equal(h.record.Used) {
			continue
		}
		if err := r.apply(unchanged, true); !errors.Is(err, ErrWrongKey) {
			return err
		}
		break // the passphrase was changed by another process, which also recorded the use of keys
	}
	return nil
}

// Protect changes the ring's protection, for example its passphrase: current opens
// the ring now, next will. All keys are encrypted to a new identity, which the old
// protection does not open. The change is one write: after a crash the ring opens
// with current or with next.
//
// A ring in a file may also become encrypted, or plain. The file is copied first,
// and the copy's path returned. The copy opens with current, or without a
// passphrase if the ring was plain: delete it when the new protection works.
//
// Other processes that have the ring open go on with their keys. They can change no
// key, and learn of no changes, until they open the ring again.
func (r *Ring) Protect(current, next Protection) (backup string, err error) {
	defer r.tell()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.place.protect(r, current, next)
}

// Watch calls f with each agent whose enrolled keys have changed, at any hub: one
// call at a time. f must not change the ring.
func (r *Ring) Watch(f func(agent string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, f)
}

// tell calls the watchers, without the lock of the ring.
func (r *Ring) tell() {
	r.watchMu.Lock()
	defer r.watchMu.Unlock()
	r.mu.Lock()
	changed, watchers := r.changed, r.watchers
	r.changed = nil
	r.mu.Unlock()
	for _, agent := range changed {
		for _, f := range watchers {
			f(agent)
		}
	}
}

// unchanged changes nothing: it only writes overdue changes.
func unchanged(*contents) error { return nil }

// errUnchanged ends an update that has nothing to write.
var errUnchanged = errors.New("unchanged")

// update calls change with a copy of the newest contents, writes the copy and makes
// it the ring's state.
func (r *Ring) update(change func(*contents) error) error {
	err := r.apply(change, false)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// updated is [Ring.update] for a change that has a result.
func updated[T any](r *Ring, change func(*contents) (T, error)) (out T, err error) {
	err = r.update(func(c *contents) (err error) {
		out, err = change(c)
		return err
	})
	if err != nil {
		return *new(T), err
	}
	return out, nil
}

func (r *Ring) apply(change func(*contents) error, used bool) error {
	defer r.tell()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.place.update(r, change, used)
}

// copyContents copies the contents for a change, and updates when keys were used.
func (r *Ring) copyContents() *contents {
	s := r.current.Load()
	c := s.contents.clone()
	for i := range c.Keys {
		k := &c.Keys[i]
		k.Used = s.byID[k.ID].signer.lastUsed(k.Used)
		if now := r.now(); !k.Turn.IsZero() && !now.Before(k.Turn) {
			k.Key = k.at(now)
		}
	}
	return c
}

// load validates the parts of read contents that [Ring.publish] does not check, and
// publishes the contents.
func (r *Ring) load(c *contents) error {
	for i := range c.Enrolled {
		e := &c.Enrolled[i]
		pub, err := normalPublic(e.Algorithm, e.Public)
		if err != nil || !bytes.Equal(pub, e.Public) {
			return fmt.Errorf("%w: %s: the enrolled key %q of %q cannot be used", ErrCorrupt, r.place, e.KeyID,
				e.Agent)
		}
	}
	if err := r.publish(c); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, r.place, err)
	}
	return nil
}

// publish makes c the state that readers see. It fails, and changes nothing, only
// if c was not made by this package.
func (r *Ring) publish(c *contents) error {
	before := r.current.Load()
	s := &snapshot{
		contents:  c,
		active:    make(map[ownerPurpose]*signer),
		next:      make(map[ownerPurpose]ringKey),
		byPurpose: make(map[ownerPurpose][]ringKey),
		byID:      make(map[string]ringKey, len(c.Keys)),
		enrolled:  make(map[ownerPurpose][]Enrolled),
	}
	for i := range c.Keys {
		k := &c.Keys[i]
		if _, twice := s.byID[k.ID]; twice {
			return fmt.Errorf("key %q is there twice", k.ID)
		}
		sg := before.byID[k.ID].signer
		if !sg.fits(k) {
			var err error
			if sg, err = newSigner(k, r.now); err != nil {
				return fmt.Errorf("key %q: %w", k.ID, err)
			}
		}
		p := ownerPurpose{k.Owner, k.Purpose}
		s.byID[k.ID] = ringKey{k, sg}
		s.byPurpose[p] = append(s.byPurpose[p], ringKey{k, sg})
		switch { // records are in order of age
		case k.State == Next:
			s.next[p] = ringKey{k, sg}
		case k.State == Active, k.State == Retiring && !k.Turn.IsZero():
			s.active[p] = sg
		}
	}
	for _, e := range c.Enrolled {
		p := ownerPurpose{e.Agent, e.Purpose}
		s.enrolled[p] = append(s.enrolled[p], e)
	}
	// Nothing fails from here on.
	for _, h := range s.byID {
		h.signer.setEnd(h.record)
	}
	for id, h := range before.byID {
		if s.byID[id].signer != h.signer {
			h.signer.ends.Store(0) // the key was forgotten, or is not in the file any more
		}
	}
	r.current.Store(s)
	if len(r.watchers) > 0 {
		r.changed = slices.AppendSeq(r.changed, maps.Keys(changedAgents(before.enrolled, s.enrolled)))
	}
	return nil
}

// changedAgents returns the agents whose enrolled keys differ.
func changedAgents(before, now map[ownerPurpose][]Enrolled) map[string]bool {
	out := map[string]bool{}
	for _, both := range [][2]map[ownerPurpose][]Enrolled{{before, now}, {now, before}} {
		for p, list := range both[0] {
			if !(&contents{Enrolled: list}).equal(&contents{Enrolled: both[1][p]}, false) {
				out[p.owner] = true
			}
		}
	}
	return out
}

// signer implements Signer.
type signer struct {
	id, owner, purpose string
	algorithm          Algorithm
	key                private
	seed               []byte // nil: the key was revoked when the ring was read
	now                func() time.Time
	used               atomic.Int64 // Unix nanoseconds, 0 for never
	ends               atomic.Int64 // Unix nanoseconds
}

func newSigner(k *record, now func() time.Time) (*signer, error) {
	if k.ID != keyID(k.Owner, k.Purpose, k.Algorithm, k.Public) {
		return nil, errors.New("its name does not fit")
	}
	s := &signer{id: k.ID, owner: k.Owner, purpose: k.Purpose, algorithm: k.Algorithm, now: now}
	switch k.State {
	case Revoked:
		s.key.public = k.Public
	case Next, Active, Retiring:
		key, err := parsePrivate(k.Algorithm, k.Seed)
		if err != nil {
			return nil, errors.New("its private half cannot be used")
		}
		if !bytes.Equal(key.public, k.Public) {
			return nil, errors.New("its halves do not belong together")
		}
		s.key, s.seed = key, k.Seed
	default:
		return nil, fmt.Errorf("its state is %q", k.State)
	}
	return s, nil
}

// fits reports whether s can still sign for k.
func (s *signer) fits(k *record) bool {
	return s != nil && s.owner == k.Owner && s.purpose == k.Purpose && s.algorithm == k.Algorithm &&
		bytes.Equal(s.key.public, k.Public) && (k.State == Revoked || s.seed != nil && bytes.Equal(s.seed, k.Seed))
}

func (s *signer) setEnd(k *record) {
	switch k.State {
	case Active, Next:
		s.ends.Store(math.MaxInt64)
	case Retiring:
		s.ends.Store(k.Until.UnixNano())
	default:
		s.ends.Store(0)
	}
}

func (s *signer) ID() string           { return s.id }
func (s *signer) Public() []byte       { return bytes.Clone(s.key.public) }
func (s *signer) Algorithm() Algorithm { return s.algorithm }

func (s *signer) Sign(msg []byte) ([]byte, error) {
	now := s.now().UnixNano()
	if now >= s.ends.Load() {
		return nil, fmt.Errorf("%w: %s of %q for %q", ErrRevoked, s.id, s.owner, s.purpose)
	}
	if s.algorithm != Ed25519 && len(msg) != 32 {
		return nil, fmt.Errorf("%w: this key signs a digest of 32 bytes, not %d bytes", ErrInvalid, len(msg))
	}
	sig, err := s.key.sign(msg)
	if err == nil {
		s.used.Store(now)
	}
	return sig, err
}

func (s *signer) Seed() []byte {
	if s.now().UnixNano() >= s.ends.Load() {
		return nil
	}
	return bytes.Clone(s.seed)
}

// lastUsed is the later of before and the last signature by s.
func (s *signer) lastUsed(before time.Time) time.Time {
	if n := s.used.Load(); n != 0 && (before.IsZero() || n > before.UnixNano()) {
		return time.Unix(0, n).UTC()
	}
	return before
}

// Format writes the key's name, not the key.
func (s *signer) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "signer{%s %s %q %q}", s.id, s.algorithm, s.owner, s.purpose)
}

// MarshalText returns the key's name.
func (s *signer) MarshalText() ([]byte, error) { return []byte(s.id), nil }

// keyID names a key. The same private key imported for two purposes is two keys.
func keyID(owner, purpose string, a Algorithm, pub []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "parley key\n%q\n%q\n%s\n%x", owner, purpose, a, pub)
	return hex.EncodeToString(h.Sum(nil)[:10])
}

// Signer returns the newest active key of owner for purpose, or [ErrNotFound]. Call
// it for each signature, because keys are replaced.
func (r *Ring) Signer(owner, purpose string) (Signer, error) {
	s, p := r.current.Load(), ownerPurpose{owner, purpose}
	if n, ok := s.next[p]; ok && !r.now().Before(n.record.Turn) {
		return n.signer, nil
	}
	if s := s.active[p]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: %q has no active key for %q", ErrNotFound, owner, purpose)
}

// SignerByID returns an active or retiring key. [ErrRevoked]: it is revoked, or its
// overlap is over.
func (r *Ring) SignerByID(id string) (Signer, error) {
	h, ok := r.current.Load().byID[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	if !h.record.Live(r.now()) {
		return nil, fmt.Errorf("%w: %s", ErrRevoked, id)
	}
	return h.signer, nil
}

func indexByID(c *contents, id string) int {
	return slices.IndexFunc(c.Keys, func(k record) bool { return k.ID == id })
}

// List returns all keys, by owner, purpose and age.
func (r *Ring) List() []Key {
	s, now := r.current.Load(), r.now()
	var out []Key
	for i := range s.contents.Keys {
		out = append(out, s.byID[s.contents.Keys[i].ID].key(now))
	}
	slices.SortStableFunc(out, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Purpose, b.Purpose))
	})
	return out
}

// Keys returns the keys of owner for purpose that are valid now, newest first: the
// keys that a card should show.
func (r *Ring) Keys(owner, purpose string) []Key {
	now := r.now()
	var out []Key
	for _, h := range slices.Backward(r.current.Load().byPurpose[ownerPurpose{owner, purpose}]) {
		if h.record.Live(now) {
			out = append(out, h.key(now))
		}
	}
	return out
}

// Valid is a string that changes whenever [Ring.Keys] returns other keys or states.
// Caches of documents made from keys compare it.
func (r *Ring) Valid(owner, purpose string) (ids string) {
	now := r.now()
	for _, h := range r.current.Load().byPurpose[ownerPurpose{owner, purpose}] {
		if !h.record.Live(now) {
			continue
		}
		id := h.record.ID
		if state := h.record.at(now).State; state != Active {
			id += " " + string(state)
		}
		ids += id + " "
	}
	return ids
}

// key returns a copy of the key as it is now.
func (h ringKey) key(now time.Time) Key {
	k := h.record.at(now)
	k.Public = bytes.Clone(k.Public)
	k.Used = h.signer.lastUsed(k.Used)
	return k
}

// Create makes keys, all or none, in one write (in a shared ring one write each).
// An owner with an active key for the purpose gets [ErrExists]: use [Ring.Rotate].
func (r *Ring) Create(keys ...New) ([]Key, error) { return r.create(keys, false) }

// create makes keys. If there is an active key already, it is skipped with missing;
// without missing that is an error.
func (r *Ring) create(keys []New, missing bool) ([]Key, error) {
	return updated(r, func(c *contents) (out []Key, err error) {
		active := make(map[ownerPurpose]bool, len(c.Keys))
		for i := range c.Keys {
			if k := &c.Keys[i]; k.State == Active || k.State == Next {
				active[ownerPurpose{k.Owner, k.Purpose}] = true
			}
		}
		for _, n := range keys {
			p := ownerPurpose{n.Owner, n.Purpose}
			if active[p] && missing {
				continue
			}
			if active[p] {
				return nil, fmt.Errorf("%w: an active key of %q for %q", ErrExists, n.Owner, n.Purpose)
			}
			k, err := r.add(c, n)
			if err != nil {
				return nil, err
			}
			active[p] = true
			out = append(out, k)
		}
		if len(out) == 0 {
			return nil, errUnchanged
		}
		return out, nil
	})
}

// Ensure returns the active key for n.Owner and n.Purpose, and makes it if there is
// none.
func (r *Ring) Ensure(n New) (Signer, error) {
	if s, err := r.Signer(n.Owner, n.Purpose); err == nil {
		return s, nil
	}
	if _, err := r.Create(n); err != nil && !errors.Is(err, ErrExists) {
		return nil, err
	}
	return r.Signer(n.Owner, n.Purpose)
}

// EnsureAll makes the missing keys in one write. A file is written whole each time,
// so many keys should be made this way.
func (r *Ring) EnsureAll(keys ...New) error {
	_, err := r.create(keys, true)
	return err
}

// add appends the key n to c.
func (r *Ring) add(c *contents, n New) (Key, error) {
	if err := cmp.Or(checkNames(n.Owner, n.Purpose), checkTexts(n.By, n.Note)); err != nil {
		return Key{}, err
	}
	if len(c.Keys) >= r.maxKeys {
		return Key{}, fmt.Errorf("%w: %d keys", ErrFull, len(c.Keys))
	}
	seed := bytes.Clone(n.Seed)
	if n.Seed == nil {
		var err error
		if seed, err = newSeed(n.Algorithm, r.rand); err != nil {
			return Key{}, err
		}
	}
	p, err := parsePrivate(n.Algorithm, seed)
	if err != nil {
		return Key{}, err
	}
	k := Key{
		ID: keyID(n.Owner, n.Purpose, n.Algorithm, p.public), Owner: n.Owner, Purpose: n.Purpose,
		Algorithm: n.Algorithm, Public: p.public, State: Active, Created: r.timestamp(), By: n.By, Note: n.Note,
	}
	if n.Seed != nil && indexByID(c, k.ID) >= 0 { // a drawn key is new
		return Key{}, fmt.Errorf("%w: key %s of %q for %q", ErrExists, k.ID, n.Owner, n.Purpose)
	}
	c.Keys = append(c.Keys, record{k, seed})
	k.Public = bytes.Clone(k.Public)
	return k, nil
}

// timestamp is now, as the file keeps times.
func (r *Ring) timestamp() time.Time { return r.now().UTC().Truncate(time.Millisecond) }

// Rotate makes a new active key of the same algorithm and returns it. The old key
// retires: it stays valid for overlap, or ends now if overlap is not positive.
// During a [Ring.Rollover] there is a new key already: without overlap that key
// becomes active, with overlap the error is [ErrExists].
func (r *Ring) Rotate(owner, purpose, by string, overlap time.Duration) (Key, error) {
	return r.rotate(owner, purpose, by, func(now time.Time, old *record) {
		if old.Turn = (time.Time{}); overlap > 0 {
			old.State, old.Until = Retiring, now.Add(overlap)
		} else {
			revoke(old, now)
		}
	}, overlap <= 0)
}

// Rollover replaces a key in phases, for owners that can publish several, and
// returns the new one. The new key is valid at once. The old key signs until overlap
// has passed, stays valid for grace after that, and ends. The phases depend on time
// alone, so a restart changes nothing. A second rollover at the same time gets
// [ErrExists].
func (r *Ring) Rollover(owner, purpose, by string, overlap, grace time.Duration) (Key, error) {
	return r.rotate(owner, purpose, by, func(now time.Time, old *record) {
		old.State, old.Turn = Retiring, now.Add(overlap)
		old.Until = old.Turn.Add(grace)
	}, false)
}

// rotate changes the active key with replace, and adds a key: in state Next if the old
// key then has a Turn. With finish, the next key of a rollover is used instead of a
// new one.
func (r *Ring) rotate(owner, purpose, by string, replace func(now time.Time, old *record), finish bool) (Key, error) {
	return updated(r, func(c *contents) (Key, error) {
		now := r.timestamp()
		var old, next *record
		for i := range c.Keys {
			switch k := &c.Keys[i]; {
			case k.Owner != owner || k.Purpose != purpose:
			case k.State == Next && !finish:
				return Key{}, fmt.Errorf("%w: %s of %q for %q follows at %s", ErrExists, k.ID, owner, purpose,
					k.Turn.Format(time.RFC3339))
			case k.State == Next:
				next = k
			case k.at(now).State == Active:
				replace(now, k)
				old = k
			}
		}
		switch {
		case next != nil:
			next.State, next.Turn = Active, time.Time{}
			out := next.Key
			out.Public = bytes.Clone(next.Public)
			return out, nil
		case old == nil:
			return Key{}, fmt.Errorf("%w: %q has no active key for %q", ErrNotFound, owner, purpose)
		}
		turn := old.Turn
		out, err := r.add(c, New{Owner: owner, Purpose: purpose, Algorithm: old.Algorithm, By: by, Note: old.Note})
		if err == nil && !turn.IsZero() {
			out.State, out.Turn = Next, turn
			added := &c.Keys[len(c.Keys)-1]
			added.State, added.Turn = Next, turn
		}
		return out, err
	})
}

// Revoke ends a key at once, also for signers in use, and erases its private half.
// The public half stays listed. Revoking twice is no error. During a [Ring.Rollover]
// the other key becomes active.
func (r *Ring) Revoke(id string) error {
	return r.update(func(c *contents) error {
		i := indexByID(c, id)
		switch {
		case i < 0:
			return fmt.Errorf("%w: %q", ErrNotFound, id)
		case c.Keys[i].State == Revoked:
			return errUnchanged
		}
		// The other key of a rollover becomes active.
		for j := range c.Keys {
			k, one := &c.Keys[j], &c.Keys[i]
			if j != i && !k.Turn.IsZero() && k.Owner == one.Owner && k.Purpose == one.Purpose {
				k.State, k.Turn, k.Until = Active, time.Time{}, time.Time{}
			}
		}
		revoke(&c.Keys[i], r.timestamp())
		return nil
	})
}

func revoke(k *record, now time.Time) {
	k.State, k.Turn, k.Until, k.Seed = Revoked, time.Time{}, now, nil
}

// Export returns the 32 secret bytes of a key, for use outside the ring.
func (r *Ring) Export(id string) (Secret, error) {
	h, ok := r.current.Load().byID[id]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	case h.record.State == Revoked:
		return nil, fmt.Errorf("%w: %s", ErrRevoked, id)
	}
	return bytes.Clone(h.record.Seed), nil
}

// Forget erases private keys, their history and enrolled keys of owner, and returns
// how many there were.
func (r *Ring) Forget(owner string) (int, error) {
	return updated(r, func(c *contents) (int, error) {
		before := len(c.Keys) + len(c.Enrolled)
		c.Keys = slices.DeleteFunc(c.Keys, func(k record) bool { return k.Owner == owner })
		c.Enrolled = slices.DeleteFunc(c.Enrolled, func(e Enrolled) bool { return e.Agent == owner })
		n := before - len(c.Keys) - len(c.Enrolled)
		if n == 0 {
			return 0, errUnchanged
		}
		return n, nil
	})
}

// Secret returns the n random bytes kept under name. The first call draws and
// stores them; later calls must give the same n.
func (r *Ring) Secret(name string, n int) ([]byte, error) {
	if n < 16 || n > 4096 {
		return nil, fmt.Errorf("%w: a secret has 16 to 4096 bytes, not %d", ErrInvalid, n)
	}
	if err := checkNames(name, name); err != nil {
		return nil, err
	}
	get := func(c *contents) ([]byte, error) {
		b, ok := c.Secrets[name]
		if ok && len(b) != n {
			return nil, fmt.Errorf("%w: secret %q has %d bytes, not %d", ErrInvalid, name, len(b), n)
		}
		return bytes.Clone(b), nil
	}
	if out, err := get(r.current.Load().contents); err != nil || out != nil {
		return out, err
	}
	return updated(r, func(c *contents) ([]byte, error) {
		out, err := get(c)
		if err != nil || out != nil {
			return out, cmp.Or(err, errUnchanged)
		}
		if len(c.Secrets) >= r.maxKeys {
			return nil, fmt.Errorf("%w: %d secrets", ErrFull, len(c.Secrets))
		}
		out = make([]byte, n)
		if _, err := io.ReadFull(r.rand, out); err != nil {
			return nil, fmt.Errorf("keyring: random source: %w", err)
		}
		c.Secrets[name] = bytes.Clone(out)
		return out, nil
	})
}

// checkNames refuses names that are empty, too long, or not plain text.
func checkNames(names ...string) error {
	for _, s := range names {
		if s == "" {
			return fmt.Errorf("%w: a name is empty", ErrInvalid)
		}
	}
	return checkTexts(names...)
}

func checkTexts(texts ...string) error {
	for _, s := range texts {
		if len(s) > maxName || !utf8.ValidString(s) {
			return fmt.Errorf("%w: a name or note is longer than %d bytes or not UTF-8", ErrInvalid, maxName)
		}
		for _, c := range s {
			if unicode.IsControl(c) {
				return fmt.Errorf("%w: %q has control characters", ErrInvalid, s)
			}
		}
	}
	return nil
}
