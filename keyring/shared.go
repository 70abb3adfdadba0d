package keyring

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A Store is a key-value state that several hubs share.
type Store interface {
	// Get returns the value of key, without Data if there is none.
	Get(ctx context.Context, key string) (Value, error)
	// Set writes data if the value's revision is still the given one, or if there
	// is no value and 0 is given; else ErrConflict. It returns the new revision.
	Set(ctx context.Context, key string, data []byte, revision uint64) (uint64, error)
	// Remove removes a value if its revision is still the given one or 0 is given;
	// else ErrConflict.
	Remove(ctx context.Context, key string, revision uint64) error
	// Watch calls fn for every present value, returns, and calls fn for every later
	// change; a removed value has no Data.
	Watch(ctx context.Context, fn func(Value)) (stop func(), err error)
}

// A Value of a [Store].
type Value struct {
	Key      string
	Data     []byte
	Revision uint64 // grows with every change
}

// ErrConflict: another hub changed the value of a [Store] first.
var ErrConflict = errors.New("keyring: changed meanwhile")

const (
	headKey     = "ring"   // a file with the identity that opens the other values
	previousKey = "former" // a secret in that file: the previous identity
	sharedName  = "the keyring in the shared state"
	sharedWait  = 30 * time.Second // for one read or write of a store
	writers     = 32               // values written at a time
)

// shared is a ring in a store: a value for each owner and purpose, and one for each
// secret, encrypted as a file is. Values are replaced one by one.
type shared struct {
	store      Store
	workFactor int
	log        *slog.Logger
	unwatch    func()

	// Under Ring.mu.
	sealer    *sealer
	parts     map[string]*contents // by key of the store
	revisions map[string]uint64
	stale     map[string]bool // sealed to sealer.previous
	damaged   map[string]error

	mu      sync.Mutex
	changes map[string]Value // from the store, not applied yet
	wake    chan struct{}
	end     chan struct{}
	once    sync.Once
	work    sync.WaitGroup
}

// openShared opens the ring of a store, or makes an empty one.
func openShared(o Options) (*shared, error) {
	s := &shared{
		store: o.Store, workFactor: o.WorkFactor, log: o.Log,
		parts: map[string]*contents{}, revisions: map[string]uint64{}, stale: map[string]bool{},
		damaged: map[string]error{}, changes: map[string]Value{},
		wake: make(chan struct{}, 1), end: make(chan struct{}),
	}
	p := Protection{o.Passphrase, o.IdentityFile}
	for s.sealer == nil {
		f, err := headOf(o.Store)
		if err != nil {
			return nil, err
		}
		if f != nil {
			if s.sealer, err = sharedSealer(p, f); err != nil {
				return nil, err
			}
			break
		}
		fresh, err := newSharedSealer(p, o.WorkFactor)
		if err != nil {
			return nil, err
		}
		b, err := fresh.seal(&contents{})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), sharedWait)
		_, err = o.Store.Set(ctx, headKey, b, 0)
		cancel()
		if err != nil && !errors.Is(err, ErrConflict) {
			return nil, fmt.Errorf("keyring: make %s: %w", sharedName, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), sharedWait)
	defer cancel()
	stop, err := o.Store.Watch(ctx, s.onChange)
	if err != nil {
		return nil, fmt.Errorf("keyring: read %s: %w", sharedName, err)
	}
	s.unwatch = stop
	return s, nil
}

func newSharedSealer(p Protection, workFactor int) (*sealer, error) {
	s, err := newSealer(p, workFactor)
	if err == nil && s.protection == byNothing {
		return nil, fmt.Errorf("%w: a ring in a shared state needs a passphrase or an identity file", ErrInvalid)
	}
	return s, err
}

// sharedSealer opens the head of a store's ring.
func sharedSealer(p Protection, head *file) (*sealer, error) {
	s, err := sealerFor(p, head, sharedName)
	if err != nil {
		return nil, err
	}
	c, err := s.open(head, sharedName)
	if err != nil {
		return nil, err
	}
	if text := c.Secrets[previousKey]; text != nil {
		s.previous = &sealer{protection: s.protection}
		if err := s.previous.use(text); err != nil {
			return nil, fmt.Errorf("%w: %s: its former identity: %w", ErrCorrupt, sharedName, err)
		}
	}
	return s, nil
}

// protect is [Ring.Protect] for a shared ring. The head is replaced first. It then
// has the previous identity, encrypted to the new one. So values that are still
// encrypted to the previous identity stay readable: if this hub crashes before all
// are encrypted anew, or if another hub writes a key before it learns of the
// change. The next hub that opens the ring encrypts the rest anew.
func (s *shared) protect(r *Ring, current, p Protection) (backup string, err error) {
	if err := s.update(r, unchanged, false); err != nil { // finishes an earlier change
		return "", err
	}
	if err := s.sealer.isOpenedBy(current, sharedName); err != nil {
		return "", err
	}
	next, err := newSharedSealer(p, s.workFactor)
	if err != nil {
		return "", err
	}
	next.changed, next.previous = r.timestamp(), &sealer{protection: s.sealer.protection}
	if err := next.previous.use(s.sealer.identity); err != nil {
		return "", err
	}
	head, err := next.seal(&contents{Secrets: map[string][]byte{previousKey: s.sealer.identity}})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sharedWait)
	defer cancel()
	revision, err := s.store.Set(ctx, headKey, head, s.revisions[headKey])
	if err != nil {
		return "", fmt.Errorf("keyring: the passphrase of %s was not changed: %w", sharedName, err)
	}
	s.sealer, s.revisions[headKey] = next, revision
	for key := range s.parts {
		s.stale[key] = true
	}
	if err := s.update(r, unchanged, false); err != nil {
		return "", fmt.Errorf("the passphrase was changed, but some keys are still sealed as before; "+
			"the next hub that starts goes on: %w", err)
	}
	return "", nil
}

// headOf reads the head of a store's ring; nil: there is no ring.
func headOf(store Store) (*file, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sharedWait)
	defer cancel()
	v, err := store.Get(ctx, headKey)
	if err != nil {
		return nil, fmt.Errorf("keyring: read %s: %w", sharedName, err)
	}
	if v.Data == nil {
		return nil, nil
	}
	return parseFile(v.Data, sharedName)
}

func (s *shared) String() string { return sharedName }

// stop ends follow.
func (s *shared) stop() {
	s.once.Do(func() {
		s.unwatch()
		close(s.end)
		s.work.Wait()
	})
}

func (s *shared) onChange(v Value) {
	s.mu.Lock()
	if v.Revision > s.changes[v.Key].Revision {
		s.changes[v.Key] = v
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// follow applies the changes of other hubs, until stop.
func (s *shared) follow(r *Ring) {
	s.work.Go(func() {
		said := ""
		for {
			select {
			case <-s.wake:
				r.mu.Lock()
				err := s.applyChanges(r)
				r.mu.Unlock()
				r.tell()
				if text := fmt.Sprint(err); err != nil && text != said { // once for many keys
					s.log.Error("a change of the keys by another hub cannot be applied", "error", err)
					said = text
				}
			case <-s.end:
				return
			}
		}
	})
}

// applyChanges publishes the changes that the store has reported. After an error the
// ring stays as it is, and cannot be changed until the store has readable values
// again.
func (s *shared) applyChanges(r *Ring) error {
	s.mu.Lock()
	news := s.changes
	s.changes = map[string]Value{}
	s.mu.Unlock()
	changed := false
	for key, v := range news {
		if v.Revision <= s.revisions[key] {
			continue // this hub's own change, or an older one
		}
		s.revisions[key] = v.Revision
		part, stale, err := s.open(v)
		if err != nil {
			s.damaged[key] = err
			continue
		}
		delete(s.damaged, key)
		delete(s.stale, key)
		if stale {
			s.stale[key] = true
		}
		changed = true
		if part == nil {
			delete(s.parts, key)
		} else {
			s.parts[key] = part
		}
	}
	if changed {
		delete(s.damaged, "")
		if err := r.load(joinParts(s.parts)); err != nil {
			s.damaged[""] = err
		}
	}
	if err := s.damaged[headKey]; err != nil {
		return err // it caused the others
	}
	for _, err := range s.damaged {
		return err
	}
	return nil
}

// open decrypts a value. The contents are nil for a removed value and for the head.
// stale: it is encrypted to the previous identity.
func (s *shared) open(v Value) (c *contents, stale bool, err error) {
	where := sharedName + ", value " + v.Key
	if v.Key == headKey {
		if v.Data == nil {
			return nil, false, fmt.Errorf("%w: %s was removed", ErrMissing, sharedName)
		}
		f, err := parseFile(v.Data, sharedName)
		if err == nil {
			_, err = s.sealer.open(f, sharedName)
		}
		return nil, false, err
	}
	if v.Data == nil {
		return nil, false, nil
	}
	c, err = s.sealer.decode(v.Data, where)
	if stale = errors.Is(err, ErrWrongKey) && s.sealer.previous != nil; stale {
		c, err = s.sealer.previous.decode(v.Data, where)
	}
	if err != nil {
		return nil, false, err
	}
	parts := splitParts(c)
	if len(parts) != 1 || parts[v.Key] == nil {
		return nil, false, fmt.Errorf("%w: %s: it belongs elsewhere", ErrCorrupt, where)
	}
	return c, stale, nil
}

// update is [Ring.update] for a shared ring. If another hub changed the ring first,
// change is called again with the new contents. used: write when keys were last
// used.
func (s *shared) update(r *Ring, change func(*contents) error, used bool) error {
	for {
		if err := s.applyChanges(r); err != nil {
			return err
		}
		c := r.copyContents()
		if err := change(c); err != nil {
			return err
		}
		if err := s.write(r, c, used); !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// write stores the parts of c that differ, and publishes each part that was stored.
func (s *shared) write(r *Ring, c *contents, used bool) error {
	next := splitParts(c)
	changed := map[string]uint64{} // the revisions that are replaced; 0: none
	for key, part := range next {
		if old := s.parts[key]; old == nil {
			changed[key] = 0
		} else if s.stale[key] || !old.equal(part, used) {
			changed[key] = s.revisions[key]
		}
	}
	for key := range s.parts {
		if next[key] == nil {
			changed[key] = s.revisions[key]
		}
	}
	if len(changed) == 0 {
		return nil
	}
	var mu sync.Mutex // guards s
	var errs []error
	var work errgroup.Group
	work.SetLimit(writers)
	for key, revision := range changed {
		work.Go(func() error {
			revision, err := s.put(key, next[key], revision)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, err)
			case next[key] == nil:
				delete(s.parts, key)
				delete(s.stale, key)
			default:
				s.parts[key], s.revisions[key] = next[key], revision
				delete(s.stale, key)
			}
			return nil
		})
	}
	_ = work.Wait() // errs has the errors
	if len(errs) < len(changed) {
		errs = append(errs, r.publish(joinParts(s.parts)))
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrConflict) {
			return fmt.Errorf("keyring: the change of %s failed: %w", sharedName, err)
		}
	}
	return errors.Join(errs...)
}

// put stores one value; nil removes it. If another hub has changed the value, that
// change will be applied.
func (s *shared) put(key string, part *contents, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sharedWait)
	defer cancel()
	var err error
	if part == nil {
		err = s.store.Remove(ctx, key, revision)
	} else {
		var b []byte
		if b, err = s.sealer.encode(part); err != nil {
			return 0, err
		}
		revision, err = s.store.Set(ctx, key, b, revision)
	}
	if !errors.Is(err, ErrConflict) {
		return revision, err
	}
	v, gerr := s.store.Get(ctx, key)
	if gerr != nil {
		return 0, gerr
	}
	if v.Data == nil {
		v.Revision = max(v.Revision, revision+1) // the removal came after that
	}
	s.onChange(v)
	return 0, err
}

// erase removes the ring from the store.
func (s *shared) erase() error {
	ctx, cancel := context.WithTimeout(context.Background(), sharedWait)
	defer cancel()
	var errs []error
	for key := range s.parts {
		errs = append(errs, s.store.Remove(ctx, key, 0))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.store.Remove(ctx, headKey, 0)
}

// splitParts splits contents into the values of a store.
func splitParts(c *contents) map[string]*contents {
	places := map[ownerPurpose]*contents{}
	at := func(owner, purpose string) *contents {
		p := ownerPurpose{owner, purpose}
		if places[p] == nil {
			places[p] = &contents{}
		}
		return places[p]
	}
	for _, k := range c.Keys {
		part := at(k.Owner, k.Purpose)
		part.Keys = append(part.Keys, k)
	}
	for _, e := range c.Enrolled {
		part := at(e.Agent, e.Purpose)
		part.Enrolled = append(part.Enrolled, e)
	}
	out := make(map[string]*contents, len(places)+len(c.Secrets))
	for p, part := range places {
		out[storeKey("keys", p.owner, p.purpose)] = part
	}
	for name, b := range c.Secrets {
		out[storeKey("secrets", name)] = &contents{Secrets: map[string][]byte{name: b}}
	}
	return out
}

// storeKey hashes names, so that a store's keys do not show the owners.
func storeKey(kind string, names ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "parley %s\n%q", kind, names))
	return kind + "/" + hex.EncodeToString(sum[:16])
}

func joinParts(parts map[string]*contents) *contents {
	out := &contents{Secrets: map[string][]byte{}}
	for _, part := range parts {
		out.Keys = append(out.Keys, part.Keys...)
		out.Enrolled = append(out.Enrolled, part.Enrolled...)
		maps.Copy(out.Secrets, part.Secrets)
	}
	return out
}

// usedPrecision is the precision of the last use of a key in a store.
const usedPrecision = time.Hour

// equal compares parts. Fields that it ignores never change under an ID.
func (c *contents) equal(o *contents, used bool) bool {
	if len(c.Keys) != len(o.Keys) || len(c.Enrolled) != len(o.Enrolled) || len(c.Secrets) != len(o.Secrets) {
		return false
	}
	for i := range c.Keys {
		a, b := &c.Keys[i], &o.Keys[i]
		if a.ID != b.ID || a.State != b.State || !a.Turn.Equal(b.Turn) || !a.Until.Equal(b.Until) ||
			!bytes.Equal(a.Seed, b.Seed) || used && b.Used.Sub(a.Used) >= usedPrecision {
			return false
		}
	}
	for i := range c.Enrolled {
		a, b := &c.Enrolled[i], &o.Enrolled[i]
		if !a.sameKeyID(*b) || !bytes.Equal(a.Public, b.Public) || a.Algorithm != b.Algorithm {
			return false
		}
	}
	for name, b := range c.Secrets {
		if !bytes.Equal(b, o.Secrets[name]) {
			return false
		}
	}
	return true
}
