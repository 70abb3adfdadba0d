package journal

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"iter"
	"strings"
	"sync"
	"time"
)

// State is one bucket of the key-value state: as durable as the log, shared by
// all nodes. Keys are any non-empty text of at most 512 bytes, values at most
// [Config.MaxPayload]. A zero until keeps a value for ever; after it the value
// is gone for every call. A prefix that ends in "/" is found without looking
// at the rest of the bucket.
type State interface {
	// Get gives the value of key, or ErrNotFound.
	Get(ctx context.Context, key string) (Value, error)
	// Put sets it whatever was there, and gives the new revision.
	Put(ctx context.Context, key string, data []byte, until time.Time) (revision uint64, err error)
	// Create sets it where there is none, else ErrExists.
	Create(ctx context.Context, key string, data []byte, until time.Time) (revision uint64, err error)
	// Update sets it if its revision is still the one given, else ErrConflict.
	Update(ctx context.Context, key string, data []byte, until time.Time, revision uint64) (uint64, error)
	// Delete removes it, if its revision is the one given or that is 0, else
	// ErrConflict; a key that is not there is no error.
	Delete(ctx context.Context, key string, revision uint64) error
	// Range gives all values whose key begins with prefix, those changed last
	// at the end. One that changes meanwhile may come again.
	Range(ctx context.Context, prefix string) iter.Seq2[Value, error]
	// Watch calls fn for every value there is, returns, and calls fn for every
	// change from then on, one call at a time and in order for each key; of
	// changes that fn is too slow for, only the last of each key remains.
	// Expiry is not reported: compare Until. ctx is for the first values only.
	Watch(ctx context.Context, prefix string, fn func(Value)) (stop func(), err error)
}

// A Value is a key's value. Data is not to be changed.
type Value struct {
	Key      string
	Data     []byte
	Revision uint64 // grows with every change of the bucket
	Until    time.Time
	Deleted  bool // only from Watch
}

func (v *Value) gone(now time.Time) bool {
	return v.Deleted || !v.Until.IsZero() && !v.Until.After(now)
}

const (
	maxKey = 512

	// How long the engine keeps a value after its end, and a removal after it
	// was made: longer than clocks differ and watchers lag.
	ttlMargin    = time.Minute
	removalsKept = time.Hour
)

// State is the named bucket of the key-value state; it need not be made first.
func (j *Journal) State(bucket string) State { return &stateBucket{j: j, name: bucket} }

type stateBucket struct {
	j    *Journal
	name string
}

// change is one append to the state.
type change struct {
	bucket string
	value  Value
}

// stateMachine feeds watchers with what is stored.
type stateMachine struct {
	j      *Journal
	writer *writer

	mu       sync.Mutex
	seq      uint64
	moved    chan struct{}
	watchers map[*stateWatcher]bool
}

func newStateMachine(j *Journal) *stateMachine {
	m := &stateMachine{j: j, watchers: make(map[*stateWatcher]bool)}
	m.writer = newWriter(j, m, j.stateStream(), true)
	return m
}

func (m *stateMachine) admit(o *op, g *group) verdict { return publish }

func (m *stateMachine) fed(o *op) {
	o.kv.value.Revision = o.seq
	m.feed(o.seq, o.kv)
}

func (m *stateMachine) feed(seq uint64, c *change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seq <= m.seq {
		return
	}
	m.seq = seq
	if m.moved != nil {
		close(m.moved)
		m.moved = nil
	}
	if c == nil {
		return
	}
	for w := range m.watchers {
		if w.bucket == c.bucket && strings.HasPrefix(c.value.Key, w.prefix) {
			w.push(c.value)
		}
	}
}

func (m *stateMachine) replay(s *stored) (opID, error) {
	c, id, err := m.j.readState(s)
	if err != nil {
		return id, err
	}
	m.feed(s.seq, c)
	return id, nil
}

func (m *stateMachine) moveTo(seq uint64) { m.feed(seq, nil) }

func (m *stateMachine) position() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seq
}

func (m *stateMachine) beyond(seq uint64) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seq > seq {
		return nil
	}
	if m.moved == nil {
		m.moved = make(chan struct{})
	}
	return m.moved
}

func (m *stateMachine) refused(ctx context.Context, l *link, o *op) error {
	return fail(ErrConflict, "key %q has another revision", o.kv.value.Key)
}

// The form of a value: version, flags, which append made it, its end, the data.
const (
	stateVersion = 1
	stateRemoved = 1
)

func encodeState(v *Value, id opID) []byte {
	b := make([]byte, 0, len(v.Data)+32)
	flags := byte(0)
	if v.Deleted {
		flags = stateRemoved
	}
	b = append(b, stateVersion, flags)
	b = binary.LittleEndian.AppendUint64(b, id.run)
	b = binary.AppendUvarint(b, id.number)
	b = binary.AppendVarint(b, nanos(v.Until))
	return append(b, v.Data...)
}

func (j *Journal) readState(s *stored) (*change, opID, error) {
	bucket, key, ok := j.stateKey(s.subject)
	if !ok {
		return nil, opID{}, nil
	}
	bad := func() (*change, opID, error) {
		return nil, opID{}, fail(ErrCorrupt, "the state's value of %q in %q cannot be read", key, bucket)
	}
	b := s.data
	if len(b) < 10 {
		return bad()
	}
	if b[0] != stateVersion {
		return nil, opID{}, fail(ErrFormat, "the state's value of %q in %q has version %d; use the release that wrote it, or a later one", key, bucket, b[0])
	}
	id := opID{run: binary.LittleEndian.Uint64(b[2:])}
	removed := b[1]&stateRemoved != 0
	b = b[10:]
	var n int
	if id.number, n = binary.Uvarint(b); n <= 0 {
		return bad()
	}
	b = b[n:]
	until, n := binary.Varint(b)
	if n <= 0 {
		return bad()
	}
	return &change{bucket, Value{Key: key, Data: b[n:], Revision: s.seq, Until: fromNanos(until), Deleted: removed}}, id, nil
}

// token writes a name as one token of a subject: letters, digits and - as they
// are, other bytes as _ and two hexadecimal digits; "_" alone for nothing.
func token(b *strings.Builder, s string) {
	if s == "" {
		b.WriteByte('_')
		return
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('_')
		b.WriteString(hex.EncodeToString([]byte{c}))
	}
}

func untoken(s string) (string, bool) {
	if s == "_" {
		return "", true
	}
	if !strings.Contains(s, "_") {
		return s, true
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '_' {
			out = append(out, s[i])
			continue
		}
		if len(s)-i < 3 {
			return "", false
		}
		c, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", false
		}
		out = append(out, c[0])
		i += 2
	}
	return string(out), true
}

// keySubject is a key as a subject: what stands between slashes is a token, so
// that what begins with "a/b/" can be asked for.
func (j *Journal) keySubject(bucket, key string) string {
	var b strings.Builder
	b.WriteString(j.stateSubject())
	token(&b, bucket)
	for part := range strings.SplitSeq(key, "/") {
		b.WriteByte('.')
		token(&b, part)
	}
	return b.String()
}

func (j *Journal) stateKey(subject string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(subject, j.stateSubject())
	if !ok {
		return "", "", false
	}
	for i, t := range strings.Split(rest, ".") {
		s, ok := untoken(t)
		switch {
		case !ok:
			return "", "", false
		case i == 0:
			bucket = s
		case i == 1:
			key = s
		default:
			key += "/" + s
		}
	}
	return bucket, key, true
}

// filter is the narrowest subject that holds all keys with a prefix.
func (j *Journal) filter(bucket, prefix string) string {
	i := strings.LastIndexByte(prefix, '/')
	if i < 0 {
		var b strings.Builder
		b.WriteString(j.stateSubject())
		token(&b, bucket)
		return b.String() + ".>"
	}
	return j.keySubject(bucket, prefix[:i]) + ".>"
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

// last reads what the engine has for a key, gone or not; revision 0: nothing.
func (s *stateBucket) last(ctx context.Context, key string) (Value, error) {
	l, err := s.j.live()
	if err != nil {
		return Value{}, err
	}
	m, err := l.side.get(ctx, s.j.stateStream(), 0, s.j.keySubject(s.name, key))
	if errors.Is(err, errNoMessage) {
		return Value{}, nil
	}
	if err != nil {
		return Value{}, s.j.readError(ctx, err)
	}
	c, _, err := s.j.readState(m)
	if err != nil {
		return Value{}, err
	}
	return c.value, nil
}

func (s *stateBucket) Get(ctx context.Context, key string) (Value, error) {
	if err := s.check(key, nil); err != nil {
		return Value{}, err
	}
	v, err := s.last(ctx, key)
	if err == nil && (v.Revision == 0 || v.gone(s.j.cfg.Now())) {
		err = fail(ErrNotFound, "key %q in %q", key, s.name)
	}
	if err != nil {
		return Value{}, err
	}
	return v, nil
}

// write appends a value; expect nil: whatever was there.
func (s *stateBucket) write(ctx context.Context, v Value, expect *uint64) (uint64, error) {
	j := s.j
	id := opID{j.run, j.number.Add(1)}
	m := &outgoing{subject: j.keySubject(s.name, v.Key), data: encodeState(&v, id)}
	switch {
	case v.Deleted:
		m.ttl = int64(removalsKept / time.Second)
	case !v.Until.IsZero():
		m.ttl = int64((max(0, v.Until.Sub(j.cfg.Now())) + ttlMargin) / time.Second)
	}
	if expect != nil {
		m.expect = &expectation{ofState, m.subject, *expect}
	}
	o := &op{id: id, kv: &change{s.name, v}, msgs: []*outgoing{m}, size: len(m.data) + len(m.subject) + 100, reserve: true}
	// After an error the writer may have the op still.
	if err := j.state.writer.submit(ctx, o); err != nil {
		return 0, err
	}
	return o.seq, nil
}

func (s *stateBucket) Put(ctx context.Context, key string, data []byte, until time.Time) (uint64, error) {
	if err := s.check(key, data); err != nil {
		return 0, err
	}
	return s.write(ctx, Value{Key: key, Data: data, Until: until}, nil)
}

func (s *stateBucket) Create(ctx context.Context, key string, data []byte, until time.Time) (uint64, error) {
	if err := s.check(key, data); err != nil {
		return 0, err
	}
	for {
		old, err := s.last(ctx, key)
		if err != nil {
			return 0, err
		}
		if old.Revision != 0 && !old.gone(s.j.cfg.Now()) {
			return 0, fail(ErrExists, "key %q in %q", key, s.name)
		}
		rev, err := s.write(ctx, Value{Key: key, Data: data, Until: until}, &old.Revision)
		if !errors.Is(err, ErrConflict) {
			return rev, err
		}
	}
}

func (s *stateBucket) Update(ctx context.Context, key string, data []byte, until time.Time, revision uint64) (uint64, error) {
	if err := s.check(key, data); err != nil {
		return 0, err
	}
	if revision == 0 {
		return 0, fail(ErrConflict, "revision 0 is none; use Create")
	}
	old, err := s.last(ctx, key)
	if err != nil {
		return 0, err
	}
	if old.Revision != revision || old.gone(s.j.cfg.Now()) {
		return 0, fail(ErrConflict, "key %q in %q has revision %d, not %d", key, s.name, old.Revision, revision)
	}
	return s.write(ctx, Value{Key: key, Data: data, Until: until}, &revision)
}

func (s *stateBucket) Delete(ctx context.Context, key string, revision uint64) error {
	if err := s.check(key, nil); err != nil {
		return err
	}
	for {
		old, err := s.last(ctx, key)
		switch {
		case err != nil:
			return err
		case old.Revision == 0 || old.gone(s.j.cfg.Now()):
			return nil
		case revision != 0 && old.Revision != revision:
			return fail(ErrConflict, "key %q in %q has revision %d, not %d", key, s.name, old.Revision, revision)
		}
		_, err = s.write(ctx, Value{Key: key, Deleted: true}, &old.Revision)
		if !errors.Is(err, ErrConflict) || revision != 0 {
			return err
		}
	}
}

// scan reads all values of a prefix, and tells the revision up to which it
// has seen everything. It goes on until it finds the end, so that a key that
// is changed meanwhile is met again there and never missed.
func (s *stateBucket) scan(ctx context.Context, prefix string, fn func(Value) bool) (seen uint64, err error) {
	l, err := s.j.live()
	if err != nil {
		return 0, err
	}
	var bad error
	err = l.side.matching(ctx, s.j.stateStream(), s.j.filter(s.name, prefix), func(m *stored) bool {
		seen = m.seq
		c, _, err := s.j.readState(m)
		if err != nil {
			bad = err
			return false
		}
		if c == nil || !strings.HasPrefix(c.value.Key, prefix) {
			return true
		}
		return fn(c.value)
	})
	if bad != nil {
		return seen, bad
	}
	if err != nil {
		err = s.j.readError(ctx, err)
	}
	return seen, err
}

func (s *stateBucket) Range(ctx context.Context, prefix string) iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		more := true
		_, err := s.scan(ctx, prefix, func(v Value) bool {
			if !v.gone(s.j.cfg.Now()) {
				more = yield(v, nil)
			}
			return more
		})
		if err != nil && more {
			yield(Value{}, err)
		}
	}
}

// stateWatcher holds what one Watch has not been told: the last change of each
// key.
type stateWatcher struct {
	bucket, prefix string

	mu      sync.Mutex
	pending map[string]Value
	order   []string
	wake    chan struct{}
}

func (w *stateWatcher) push(v Value) {
	w.mu.Lock()
	if _, ok := w.pending[v.Key]; !ok {
		w.order = append(w.order, v.Key)
	}
	w.pending[v.Key] = v
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *stateWatcher) take() (out []Value) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.order {
		out = append(out, w.pending[k])
	}
	clear(w.pending)
	w.order = nil
	return out
}

func (s *stateBucket) Watch(ctx context.Context, prefix string, fn func(Value)) (stop func(), err error) {
	m := s.j.state
	w := &stateWatcher{bucket: s.name, prefix: prefix, pending: make(map[string]Value), wake: make(chan struct{}, 1)}
	m.mu.Lock()
	m.watchers[w] = true
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		delete(m.watchers, w)
		m.mu.Unlock()
	}
	seen, err := s.scan(ctx, prefix, func(v Value) bool {
		if !v.gone(s.j.cfg.Now()) {
			fn(v)
		}
		return true
	})
	if err != nil {
		leave()
		return nil, err
	}
	end, ended := make(chan struct{}), make(chan struct{})
	s.j.background.Go(func() {
		defer close(ended)
		for {
			for _, v := range w.take() {
				select {
				case <-end:
					return
				default:
				}
				if v.Revision > seen {
					fn(v)
				}
			}
			select {
			case <-w.wake:
			case <-end:
				return
			case <-s.j.ctx.Done():
				return
			}
		}
	})
	var once sync.Once
	return func() {
		once.Do(func() {
			leave()
			close(end)
			select {
			case <-ended:
			case <-s.j.ctx.Done():
			}
		})
	}, nil
}
