package jetstream

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/journal/store"
)

const (
	// How long the servers keep a value after its end, and a removal after it
	// was made: longer than clocks differ and followers lag.
	ttlMargin    = time.Minute
	removalsKept = time.Hour
)

// A revision is twice the sequence of the message, and one more for a removal: no
// value is expected to have that.
func valueRevision(seq uint64) uint64   { return 2 * seq }
func removalRevision(seq uint64) uint64 { return 2*seq + 1 }

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
func (s *Store) keySubject(bucket, key string) string {
	var b strings.Builder
	b.WriteString(s.stateSubject())
	token(&b, bucket)
	for part := range strings.SplitSeq(key, "/") {
		b.WriteByte('.')
		token(&b, part)
	}
	return b.String()
}

func (s *Store) stateKey(subject string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(subject, s.stateSubject())
	if !ok {
		return "", "", false
	}
	for i, t := range strings.Split(rest, ".") {
		name, ok := untoken(t)
		switch {
		case !ok:
			return "", "", false
		case i == 0:
			bucket = name
		case i == 1:
			key = name
		default:
			key += "/" + name
		}
	}
	return bucket, key, true
}

// filter is the narrowest subject that holds all keys with a prefix.
func (s *Store) filter(bucket, prefix string) string {
	i := strings.LastIndexByte(prefix, '/')
	if i < 0 {
		var b strings.Builder
		b.WriteString(s.stateSubject())
		token(&b, bucket)
		return b.String() + ".>"
	}
	return s.keySubject(bucket, prefix[:i]) + ".>"
}

// value is what a message of the state says; ok is false for one that is none.
func (s *Store) value(m *stored) (bucket string, v store.Value, ok bool) {
	bucket, key, ok := s.stateKey(m.subject)
	v = store.Value{Key: key, Data: m.data, Revision: valueRevision(m.seq), Until: m.until(), Deleted: m.removal()}
	if v.Deleted {
		v.Revision = removalRevision(m.seq)
	}
	return bucket, v, ok
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, bucket, key string) (store.Value, error) {
	if err := s.enter(ctx); err != nil {
		return store.Value{}, err
	}
	defer s.leave()
	m, err := s.leader(ctx, s.stateStream(), 0, s.keySubject(bucket, key))
	if errors.Is(err, errNoMessage) || err == nil && m.removal() {
		return store.Value{}, fmt.Errorf("%w: key %q in %q", store.ErrNotFound, key, bucket)
	}
	if err != nil {
		return store.Value{}, err
	}
	s.tell(s.stateStream(), m.seq)
	_, v, _ := s.value(m) // the subject is the key's
	return v, nil
}

// Put implements [store.Store].
func (s *Store) Put(ctx context.Context, bucket string, v store.Value, expect *uint64) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	if len(v.Data) > s.cfg.MaxPayload {
		return 0, fmt.Errorf("%w: the value has %d bytes, the limit is %d", store.ErrTooLarge, len(v.Data), s.cfg.MaxPayload)
	}
	h := nats.Header{}
	if !v.Until.IsZero() {
		h.Set(headerUntil, strconv.FormatInt(v.Until.UnixNano(), 10))
		h.Set(headerTTL, seconds(max(0, v.Until.Sub(s.cfg.Now()))+ttlMargin))
	}
	seq, err := s.change(ctx, bucket, v.Key, h, v.Data, expect)
	return valueRevision(seq), err
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second)+1, 10) }

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, bucket, key string, expect *uint64) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	seq, err := s.change(ctx, bucket, key, removal(), nil, expect)
	return removalRevision(seq), err
}

func removal() nats.Header {
	return nats.Header{headerOperation: {"DEL"}, headerTTL: {seconds(removalsKept)}}
}

func (s *Store) change(
	ctx context.Context, bucket, key string, h nats.Header, data []byte, expect *uint64,
) (uint64, error) {
	var seq *uint64
	if expect != nil {
		if *expect != valueRevision(*expect/2) {
			return 0, fmt.Errorf("%w: revision %d of key %q in %q was a removal", store.ErrConflict, *expect, key, bucket)
		}
		at := *expect / 2
		seq = &at
	}
	at, _, err := s.put(ctx, s.stateStream(), s.keySubject(bucket, key), h, data, seq)
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("key %q in %q has another revision: %w", key, bucket, err)
	}
	return at, err
}

// Range implements [store.Store].
func (s *Store) Range(ctx context.Context, bucket, prefix string, fn func(store.Value) bool) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := s.fresh(ctx, s.stateStream()); err != nil {
		return err
	}
	return s.pages(ctx, s.stateStream(), s.filter(bucket, prefix), 1, endless, func(m *stored) bool {
		_, v, ok := s.value(m)
		s.tell(s.stateStream(), m.seq)
		return !ok || v.Deleted || !strings.HasPrefix(v.Key, prefix) || fn(v)
	})
}

// Buckets implements [store.Store].
func (s *Store) Buckets(ctx context.Context) ([]string, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	var info *jetstream.StreamInfo
	err := s.patiently(ctx, "stream "+s.stateStream(), func(ctx context.Context) error {
		x, err := s.js.Stream(ctx, s.stateStream())
		if err == nil {
			info, err = x.Info(ctx, jetstream.WithSubjectFilter(s.stateSubject()+">"))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []string
	for subject := range info.State.Subjects {
		if bucket, _, ok := s.stateKey(subject); ok {
			out = append(out, bucket)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
