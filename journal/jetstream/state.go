package jetstream

import (
	"context"
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

// Times that the servers keep an expired value, and the mark of a removal: longer
// than clocks differ and followers lag.
const (
	ttlMargin    = time.Minute
	removalsKept = time.Hour
)

// A revision is twice the message's sequence, and one more for a removal: no caller
// can expect a removal as the revision of a value.
func valueRevision(seq uint64) uint64   { return 2 * seq }
func removalRevision(seq uint64) uint64 { return 2*seq + 1 }

func (s *Store) keySubject(bucket, key string) string {
	return s.stateSubject() + store.KeyTokens(bucket, key)
}

// filter is the narrowest subject that covers all keys with a prefix.
func (s *Store) filter(bucket, prefix string) string {
	i := strings.LastIndexByte(prefix, '/')
	if i < 0 {
		return s.stateSubject() + store.Token(bucket) + ".>"
	}
	return s.keySubject(bucket, prefix[:i]) + ".>"
}

// value decodes a message of the state; ok is false if it is none.
func (s *Store) value(m *stored) (bucket string, v store.Value, ok bool) {
	name, ok := strings.CutPrefix(m.Subject, s.stateSubject())
	bucket, key, valid := store.ParseKeyTokens(name)
	v = store.Value{Key: key, Data: m.Data, Revision: valueRevision(m.Seq), Until: m.until(), Deleted: m.removal()}
	if v.Deleted {
		v.Revision = removalRevision(m.Seq)
	}
	return bucket, v, ok && valid
}

// values calls fn with the values of a filter.
func (s *Store) values(ctx context.Context, filter string, fn func(bucket string, v store.Value) bool) error {
	if err := s.waitFresh(ctx, s.stateStream()); err != nil {
		return err
	}
	for m, err := range s.messages(ctx, s.stateStream(), filter, 1, endless) {
		if err != nil {
			return err
		}
		if bucket, v, ok := s.value(m); ok && !v.Deleted && !fn(bucket, v) {
			break
		}
	}
	return nil
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, bucket, key string) (store.Value, error) {
	m, err := s.readFromLeader(ctx, s.stateStream(), get{Last: s.keySubject(bucket, key)})
	if err != nil {
		return store.Value{}, err
	}
	if m.Seq == 0 || m.removal() {
		return store.Value{}, fmt.Errorf("%w: key %q in %q", store.ErrNotFound, key, bucket)
	}
	_, v, _ := s.value(m) // the subject is the key's
	return v, nil
}

// Put implements [store.Store].
func (s *Store) Put(ctx context.Context, bucket string, v store.Value, expect *uint64) (uint64, error) {
	if err := s.checkSize(v.Data); err != nil {
		return 0, err
	}
	h := nats.Header{}
	if !v.Until.IsZero() {
		h.Set(headerUntil, strconv.FormatInt(v.Until.UnixNano(), 10))
		h.Set(jetstream.MsgTTLHeader, seconds(max(0, v.Until.Sub(s.cfg.Now()))+ttlMargin))
	}
	seq, err := s.change(ctx, bucket, v.Key, h, v.Data, expect)
	return valueRevision(seq), err
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second)+1, 10) }

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, bucket, key string, expect *uint64) (uint64, error) {
	h := nats.Header{headerOperation: {"DEL"}, jetstream.MsgTTLHeader: {seconds(removalsKept)}}
	seq, err := s.change(ctx, bucket, key, h, nil, expect)
	return removalRevision(seq), err
}

func (s *Store) change(
	ctx context.Context, bucket, key string, h nats.Header, data []byte, expect *uint64,
) (seq uint64, err error) {
	if expect != nil {
		if *expect%2 == 1 {
			return 0, fmt.Errorf("%w: revision %d of key %q in %q was a removal", store.ErrConflict, *expect, key,
				bucket)
		}
		at := *expect / 2
		expect = &at
	}
	seq, _, err = s.put(ctx, s.stateStream(), s.keySubject(bucket, key), h, data, expect)
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("key %q in %q has another revision: %w", key, bucket, err)
	}
	return seq, err
}

// Range implements [store.Store].
func (s *Store) Range(ctx context.Context, bucket, prefix string, fn func(store.Value) bool) error {
	return s.values(ctx, s.filter(bucket, prefix), func(_ string, v store.Value) bool {
		return !strings.HasPrefix(v.Key, prefix) || fn(v)
	})
}

// Buckets implements [store.Store].
func (s *Store) Buckets(ctx context.Context) (out []string, err error) {
	err = s.values(ctx, s.stateSubject()+">", func(bucket string, _ store.Value) bool {
		if !slices.Contains(out, bucket) {
			out = append(out, bucket)
		}
		return true
	})
	slices.Sort(out)
	return out, err
}

// Scrub implements [store.Store] as far as the servers allow: it erases expired
// values. See the package's documentation.
func (s *Store) Scrub(ctx context.Context, now time.Time) error {
	var ended []uint64
	err := s.values(ctx, s.stateSubject()+">", func(_ string, v store.Value) bool {
		if !v.Until.IsZero() && !v.Until.After(now) {
			ended = append(ended, v.Revision/2)
		}
		return true
	})
	for _, seq := range ended {
		err = errors.Join(err, s.erase(ctx, s.stateStream(), seq))
	}
	return err
}
