// Package storetest checks that a store keeps the contract of package store. A
// store's own tests call [Run]; each subtest gets a place of its own:
//
//	storetest.Run(t, func(t *testing.T) storetest.Place {
//		dir := t.TempDir()
//		return storetest.Place{Dir: dir, Open: func() (store.Store, error) { return sqlite.Open(…) }}
//	})
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// A Place holds the store of one test.
type Place struct {
	// Open opens the store, which is empty the first time and keeps its content
	// after Close. A shared store may be open several times.
	Open   func() (store.Store, error)
	Shared bool

	Forgets bool   // the store loses its content at Close
	Dir     string // of all files of the store, searched for erased data; empty: not searched
}

// partitions is the number of partitions of each store.
const partitions = 4

// Run checks the stores at new places.
func Run(t *testing.T, place func(t *testing.T) Place) {
	for _, test := range []struct {
		name string
		run  func(b *bench)
	}{
		{"Meta", testMeta},
		{"Restoring", testRestoring},
		{"Properties", testProperties},
		{"Append", testAppend},
		{"AppendConflict", testAppendConflict},
		{"AppendGap", testAppendGap},
		{"AppendMany", testAppendMany},
		{"AppendLarge", testAppendLarge},
		{"Partitions", testPartitions},
		{"Skip", testSkip},
		{"Read", testRead},
		{"ReadNested", testReadNested},
		{"Tagged", testTagged},
		{"Span", testSpan},
		{"Follow", testFollow},
		{"Replace", testReplace},
		{"Remove", testRemove},
		{"RemoveAll", testRemoveAll},
		{"State", testState},
		{"StateExpect", testStateExpect},
		{"StateKeys", testStateKeys},
		{"StateLarge", testStateLarge},
		{"Range", testRange},
		{"RangeChanging", testRangeChanging},
		{"FollowState", testFollowState},
		{"Expiry", testExpiry},
		{"Revisions", testRevisions},
		{"Scrub", testScrub},
		{"Reopen", testReopen},
		{"Concurrent", testConcurrent},
		{"ContextEnds", testContextEnds},
		{"Closed", testClosed},
		{"Locked", testLocked},
		{"Two", testTwo},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := &bench{T: t, Place: place(t)}
			b.open()
			t.Cleanup(func() {
				if b.Store != nil {
					b.close()
				}
			})
			if test.name != "Meta" && test.name != "Restoring" {
				b.must(b.Init(b.Context(), meta))
			}
			test.run(b)
		})
	}
}

var meta = store.Meta{
	Format: 2, Created: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Prefix: "PARLEY", Partitions: partitions,
	Salt: "00ff", Check: "abcd",
}

// bench is an open store and its helpers.
type bench struct {
	*testing.T
	Place
	store.Store
}

func (b *bench) open() {
	b.Helper()
	var err error
	b.Store, err = b.Place.Open()
	b.must(err)
}

func (b *bench) close() {
	b.Helper()
	s := b.Store
	b.Store = nil
	b.must(s.Close())
}

func (b *bench) reopen() {
	b.Helper()
	if b.Forgets {
		b.Skip("nothing is left after Close")
	}
	b.close()
	b.open()
}

// Skip skips the test; the store's method is called as b.Store.Skip.
func (b *bench) Skip(args ...any) { b.Helper(); b.T.Skip(args...) }

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// is checks an error.
func (b *bench) is(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("error %v, want %v", err, want)
	}
}

// errOf drops a result, for [bench.is].
func errOf[T any](_ T, err error) error { return err }

// append appends data; "tag=data" has a tag.
func (b *bench) append(partition int, after uint64, data ...string) error {
	return b.Append(b.Context(), partition, after, records(data...))
}

func records(data ...string) (out []store.Record) {
	for _, d := range data {
		tag, rest, ok := strings.Cut(d, "=")
		if !ok {
			tag, rest = "", d
		}
		out = append(out, store.Record{Tag: tag, Data: []byte(rest), About: store.About{
			Time: meta.Created, Kind: "request", Message: "m-" + rest, From: "ann", To: "bob",
		}})
	}
	return out
}

// read gives "sequence:data" or "sequence:tag=data" of each record.
func (b *bench) read(partition int, first, last uint64) []string {
	b.Helper()
	out := []string{}
	b.must(b.Read(b.Context(), partition, first, last, func(r store.Record) bool {
		out = append(out, text(r))
		clear(r.Data) // fn may change it
		return true
	}))
	return out
}

func text(r store.Record) string {
	if r.Tag != "" {
		return fmt.Sprintf("%d:%s=%s", r.Sequence, r.Tag, r.Data)
	}
	return fmt.Sprintf("%d:%s", r.Sequence, r.Data)
}

func (b *bench) holds(partition int, want ...string) {
	b.Helper()
	if got := b.read(partition, 0, 1<<40); !slices.Equal(got, want) {
		b.Fatalf("partition %d holds %q, want %q", partition, got, want)
	}
}

func (b *bench) spanOf(partition int) store.Span {
	b.Helper()
	s, err := b.Span(b.Context(), partition)
	b.must(err)
	return s
}

func (b *bench) span(partition int, first, last, records uint64) {
	b.Helper()
	s := b.spanOf(partition)
	if s.First != first || s.Last != last || s.Records != records || (s.Bytes == 0) != (records == 0) {
		b.Fatalf("span %+v, want %d to %d with %d records", s, first, last, records)
	}
}

// tagged checks the newest record with a tag; want has the form of [bench.read].
func (b *bench) tagged(partition int, tag, want string) {
	b.Helper()
	r, err := b.Tagged(b.Context(), partition, tag)
	b.must(err)
	if text(r) != want {
		b.Fatalf("partition %d: tagged %s: %q, want %q", partition, tag, text(r), want)
	}
}

// put sets a value. expect, if given, is the required present revision.
func (b *bench) put(bucket, key, data string, expect ...uint64) (revision uint64) {
	b.Helper()
	return b.putValue(bucket, store.Value{Key: key, Data: []byte(data)}, expect...)
}

func (b *bench) putValue(bucket string, v store.Value, expect ...uint64) (revision uint64) {
	b.Helper()
	revision, err := b.Put(b.Context(), bucket, v, expected(expect))
	b.must(err)
	return revision
}

// remove removes a value. expect, if given, is the required present revision.
func (b *bench) remove(bucket, key string, expect ...uint64) (revision uint64) {
	b.Helper()
	revision, err := b.Delete(b.Context(), bucket, key, expected(expect))
	b.must(err)
	return revision
}

func expected(expect []uint64) *uint64 {
	if len(expect) == 0 {
		return nil
	}
	return &expect[0]
}

func (b *bench) get(bucket, key string) store.Value {
	b.Helper()
	v, err := b.Get(b.Context(), bucket, key)
	b.must(err)
	return v
}

func (b *bench) has(bucket, key, data string, revision uint64) {
	b.Helper()
	v := b.get(bucket, key)
	if v.Key != key || string(v.Data) != data || v.Revision != revision || v.Deleted {
		b.Fatalf("%s %q is %+v, want %q of revision %d", bucket, key, v, data, revision)
	}
}

func (b *bench) hasNot(bucket, key string) {
	b.Helper()
	b.is(errOf(b.Get(b.Context(), bucket, key)), store.ErrNotFound)
}

// keys gives the keys of a range, in its order.
func (b *bench) keys(bucket, prefix string) []string {
	b.Helper()
	out := []string{}
	var before uint64
	b.must(b.Range(b.Context(), bucket, prefix, func(v store.Value) bool {
		if v.Revision <= before {
			b.Errorf("revision %d of %q after %d", v.Revision, v.Key, before)
		}
		before = v.Revision
		out = append(out, v.Key)
		return true
	}))
	return out
}

func (b *bench) ranges(bucket, prefix string, want ...string) {
	b.Helper()
	if got := b.keys(bucket, prefix); !slices.Equal(got, want) {
		b.Fatalf("range %s %q: %q, want %q", bucket, prefix, got, want)
	}
}

// collector collects the records or changes that a Follow reports.
type collector struct {
	got  chan string
	done chan error
	stop context.CancelFunc
}

func (b *bench) collect(run func(ctx context.Context, tell func(string)) error) *collector {
	ctx, stop := context.WithCancel(b.Context())
	c := &collector{got: make(chan string, 1000), done: make(chan error, 1), stop: stop}
	go func() { c.done <- run(ctx, func(s string) { c.got <- s }) }()
	return c
}

// follow collects the records of partition 0.
func (b *bench) follow(after uint64) *collector {
	return b.collect(func(ctx context.Context, tell func(string)) error {
		return b.Follow(ctx, 0, after, func(r store.Record) { tell(text(r)) })
	})
}

func (c *collector) wants(b *bench, want ...string) {
	b.Helper()
	for _, w := range want {
		select {
		case got := <-c.got:
			if got != w {
				b.Fatalf("told %q, want %q", got, w)
			}
		case err := <-c.done:
			b.Fatalf("it ended before %q: %v", w, err)
		}
	}
}

// end stops the Follow; it must not have reported anything else.
func (c *collector) end(b *bench) {
	b.Helper()
	c.stop()
	if err := <-c.done; err != nil && !errors.Is(err, context.Canceled) {
		b.Fatal(err)
	}
	select {
	case got := <-c.got:
		b.Fatalf("told %q besides", got)
	default:
	}
}
