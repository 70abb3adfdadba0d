package journal

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// State is one bucket of the key-value state: as durable as the log, and shared by
// all hubs. Keys are non-empty texts of at most 512 bytes, values have at most
// [Config.MaxPayload] bytes. A value is absent for every call once its until has
// passed; zero keeps it for ever. A prefix that ends in "/" is found without
// reading the rest of the bucket.
type State interface {
	// Get gives the value of key, or ErrNotFound.
	Get(ctx context.Context, key string) (Value, error)
	// Put sets the value unconditionally, and returns its revision.
	Put(ctx context.Context, key string, data []byte, until time.Time) (revision uint64, err error)
	// Create sets the value if there is none, else ErrExists.
	Create(ctx context.Context, key string, data []byte, until time.Time) (revision uint64, err error)
	// Update sets the value if its revision is still the given one, else
	// ErrConflict.
	Update(ctx context.Context, key string, data []byte, until time.Time, revision uint64) (uint64, error)
	// Delete removes the value if its revision is the given one or that is 0, else
	// ErrConflict. Deleting an absent key is no error.
	Delete(ctx context.Context, key string, revision uint64) error
	// Range returns all values whose key begins with prefix, in the order of their
	// last change. A value that changes meanwhile may come again.
	Range(ctx context.Context, prefix string) iter.Seq2[Value, error]
	// Watch calls fn for every present value, returns, and calls fn for every later
	// change: one call at a time, and in order for each key. A slow fn gets only the
	// last change of a key. Expiry is not reported: compare Until. ctx is for the
	// first values only.
	Watch(ctx context.Context, prefix string, fn func(Value)) (stop func(), err error)
}

// A Value is one value of the state. Data must not be changed.
type Value struct {
	Key      string
	Data     []byte
	Revision uint64 // grows with every change of the bucket
	Until    time.Time
	Deleted  bool // only from Watch
}

func (v *Value) ended(now time.Time) bool {
	return v.Deleted || !v.Until.IsZero() && !v.Until.After(now)
}

const maxKey = 512

// State is the named bucket of the key-value state. A bucket need not be made
// first.
func (j *Journal) State(bucket string) State { return j.bucket(bucket) }

func (j *Journal) bucket(name string) *stateBucket { return &stateBucket{j, name} }

type stateBucket struct {
	j    *Journal
	name string
}

// stateFeed passes changes of the state, made by any hub, to watchers.
type stateFeed struct {
	j *Journal

	mu       sync.Mutex
	seq      uint64
	advanced chan struct{} // closed when seq has grown
	watchers map[*stateWatcher]bool
}

func newStateFeed(j *Journal) *stateFeed {
	return &stateFeed{j: j, advanced: make(chan struct{}), watchers: make(map[*stateWatcher]bool)}
}

// start follows the state, and returns when every later change will be passed on.
func (m *stateFeed) start(ctx context.Context) error {
	ready := make(chan struct{})
	begun := sync.OnceFunc(func() { close(ready) })
	m.j.background.Go(func() {
		m.j.retry("the state of the journal", func(ctx context.Context) error {
			m.mu.Lock()
			after := m.seq
			m.mu.Unlock()
			select {
			case <-ready:
				// No revision is known before the first change. Following from the
				// beginning misses nothing; watchers skip values they have read.
				after = max(after, 1)
			default:
			}
			return m.j.store.FollowState(ctx, after, begun, m.feed)
		})
	})
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *stateFeed) feed(bucket string, x store.Value) {
	v, err := m.j.openValue(bucket, x)
	if err != nil {
		m.j.cfg.Log.Error("a change of the state cannot be read", "bucket", bucket, "key", x.Key, "err", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.Revision <= m.seq {
		return
	}
	m.seq = v.Revision
	close(m.advanced)
	m.advanced = make(chan struct{})
	for w := range m.watchers {
		if w.match(bucket, v.Key) {
			w.push(bucket, v)
		}
	}
}

// waitFor waits until the feed has passed on a change of this hub, so that the
// change's caller can read it back.
func (m *stateFeed) waitFor(ctx context.Context, seq uint64) {
	within, cancel := context.WithTimeout(ctx, m.j.cfg.Timeout) // the change is recorded in any case
	defer cancel()
	for {
		m.mu.Lock()
		told, moved := m.seq >= seq, m.advanced
		m.mu.Unlock()
		if told {
			return
		}
		select {
		case <-moved:
		case <-within.Done():
			if ctx.Err() == nil {
				m.j.cfg.Log.Warn("a change of the state is recorded, and cannot be read back yet", "revision", seq)
			}
			return
		case <-m.j.ctx.Done():
			return
		}
	}
}

// openValue decrypts a value.
func (j *Journal) openValue(bucket string, x store.Value) (Value, error) {
	v := Value{Key: x.Key, Revision: x.Revision, Until: x.Until, Deleted: x.Deleted}
	if x.Deleted {
		return v, nil
	}
	var err error
	if v.Data, err = j.sealer.open(valueAAD(bucket, x.Key), x.Data); err != nil {
		return v, damaged(err, "the value of %q in %q", x.Key, bucket)
	}
	return v, nil
}

func (s *stateBucket) check(key string, data []byte) error {
	switch {
	case key == "" || len(key) > maxKey:
		return fail(ErrInvalid, "a key has 1 to %d bytes, not %d", maxKey, len(key))
	case len(data) > s.j.cfg.MaxPayload-1024:
		return fail(ErrTooLarge, "the value has %d bytes, the limit is %d", len(data), s.j.cfg.MaxPayload-1024)
	}
	return nil
}

// read reads a key, also past its until; revision 0: there is no value.
func (s *stateBucket) read(ctx context.Context, key string) (Value, error) {
	if s.j.closing.Load() {
		return Value{}, fail(ErrClosed, "")
	}
	x, err := s.j.store.Get(ctx, s.name, key)
	if errors.Is(err, store.ErrNotFound) {
		return Value{}, nil
	}
	if err != nil {
		return Value{}, storeError(ctx, err)
	}
	return s.j.openValue(s.name, x)
}

func (s *stateBucket) Get(ctx context.Context, key string) (Value, error) {
	if err := s.check(key, nil); err != nil {
		return Value{}, err
	}
	v, err := s.read(ctx, key)
	if err == nil && (v.Revision == 0 || v.ended(s.j.cfg.Now())) {
		err = fail(ErrNotFound, "key %q in %q", key, s.name)
	}
	if err != nil {
		return Value{}, err
	}
	return v, nil
}

// write sets or removes a value; expect nil: unconditionally.
func (s *stateBucket) write(ctx context.Context, v Value, expect *uint64) (rev uint64, err error) {
	j := s.j
	if j.closing.Load() {
		return 0, fail(ErrClosed, "")
	}
	if _, refusal := j.space(); refusal != nil && !v.Deleted {
		return 0, refusal
	}
	j.gate.RLock()
	defer j.gate.RUnlock()
	if v.Deleted {
		rev, err = j.store.Delete(ctx, s.name, v.Key, expect)
	} else {
		// Clipped: the trailer must not overwrite the bytes behind the caller's data.
		data := j.sealer.seal(valueAAD(s.name, v.Key), compress(slices.Clip(v.Data)))
		rev, err = j.store.Put(ctx, s.name, store.Value{Key: v.Key, Data: data, Until: v.Until.Round(0).UTC()}, expect)
	}
	switch {
	case errors.Is(err, store.ErrConflict):
		return 0, failBy(ErrConflict, err, "key %q in %q has another revision", v.Key, s.name)
	case err != nil:
		return 0, storeError(ctx, err)
	}
	j.state.waitFor(ctx, rev)
	return rev, nil
}

// change sets or removes a value if check accepts the present one. If another change
// comes first, it checks again.
func (s *stateBucket) change(ctx context.Context, v Value, check func(old Value, present bool) error) (uint64, error) {
	if err := s.check(v.Key, v.Data); err != nil {
		return 0, err
	}
	for {
		old, err := s.read(ctx, v.Key)
		if err == nil {
			err = check(old, old.Revision != 0 && !old.ended(s.j.cfg.Now()))
		}
		if err != nil {
			return 0, err
		}
		rev, err := s.write(ctx, v, &old.Revision)
		if !errors.Is(err, ErrConflict) {
			return rev, err
		}
	}
}

func (s *stateBucket) Put(ctx context.Context, key string, data []byte, until time.Time) (uint64, error) {
	if err := s.check(key, data); err != nil {
		return 0, err
	}
	return s.write(ctx, Value{Key: key, Data: data, Until: until}, nil)
}

func (s *stateBucket) Create(ctx context.Context, key string, data []byte, until time.Time) (uint64, error) {
	return s.change(ctx, Value{Key: key, Data: data, Until: until}, func(_ Value, present bool) error {
		if present {
			return fail(ErrExists, "key %q in %q", key, s.name)
		}
		return nil
	})
}

func (s *stateBucket) Update(
	ctx context.Context, key string, data []byte, until time.Time, revision uint64,
) (uint64, error) {
	return s.change(ctx, Value{Key: key, Data: data, Until: until}, func(old Value, present bool) error {
		if !present || old.Revision != revision {
			return fail(ErrConflict, "key %q in %q has revision %d, not %d", key, s.name, old.Revision, revision)
		}
		return nil
	})
}

func (s *stateBucket) Delete(ctx context.Context, key string, revision uint64) error {
	gone := false
	_, err := s.change(ctx, Value{Key: key, Deleted: true}, func(old Value, present bool) error {
		if gone = !present; gone || revision != 0 && old.Revision != revision {
			return fail(ErrConflict, "key %q in %q has revision %d, not %d", key, s.name, old.Revision, revision)
		}
		return nil
	})
	if gone {
		return nil
	}
	return err
}

func (s *stateBucket) Range(ctx context.Context, prefix string) iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		if s.j.closing.Load() {
			yield(Value{}, fail(ErrClosed, ""))
			return
		}
		more := true
		var bad error
		err := s.j.store.Range(ctx, s.name, prefix, func(x store.Value) bool {
			x.Data = bytes.Clone(x.Data)
			var v Value
			if v, bad = s.j.openValue(s.name, x); bad == nil && !v.ended(s.j.cfg.Now()) {
				more = yield(v, nil)
			}
			return more && bad == nil
		})
		if err := errors.Join(bad, storeError(ctx, err)); err != nil && more {
			yield(Value{}, err)
		}
	}
}

// stateWatcher holds the changes that one Watch has not passed on: the last change
// of each key, in the order of the first.
type stateWatcher struct {
	match func(bucket, key string) bool

	mu      sync.Mutex
	changes []stateChange
	indexOf map[stateKey]int // among changes
	wake    chan struct{}
}

type stateKey struct{ bucket, key string }

type stateChange struct {
	bucket string
	Value
}

func (m *stateFeed) watch(w *stateWatcher) (leave func()) {
	w.indexOf, w.wake = map[stateKey]int{}, make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers[w] = true
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		delete(m.watchers, w)
		m.mu.Unlock()
	}
}

func (w *stateWatcher) push(bucket string, v Value) {
	k := stateKey{bucket, v.Key}
	w.mu.Lock()
	if i, ok := w.indexOf[k]; ok {
		w.changes[i].Value = v
	} else {
		w.indexOf[k] = len(w.changes)
		w.changes = append(w.changes, stateChange{bucket, v})
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns and removes the changes.
func (w *stateWatcher) take() (changes []stateChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes, w.changes = w.changes, nil
	clear(w.indexOf)
	return changes
}

func (s *stateBucket) Watch(ctx context.Context, prefix string, fn func(Value)) (stop func(), err error) {
	w := &stateWatcher{match: func(bucket, key string) bool {
		return bucket == s.name && strings.HasPrefix(key, prefix)
	}}
	leave := s.j.state.watch(w)
	seen := uint64(0)
	for v, err := range s.Range(ctx, prefix) {
		if err != nil {
			leave()
			return nil, err
		}
		fn(v)
		seen = v.Revision
	}
	ctx, cancel := context.WithCancel(s.j.ctx)
	ended := make(chan struct{})
	s.j.background.Go(func() {
		defer close(ended)
		for ctx.Err() == nil {
			for _, c := range w.take() {
				if ctx.Err() == nil && c.Revision > seen {
					fn(c.Value)
				}
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		leave()
		cancel()
		select {
		case <-ended:
		case <-s.j.ctx.Done():
		}
	}, nil
}
