package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

func testState(b *bench) {
	b.hasNot("agents", "ann")
	r1 := b.put("agents", "ann", "1")
	r2 := b.put("agents", "bob", "")
	r3 := b.put("agents", "ann", "2")
	r4 := b.put("other", "ann", "3")
	if r1 == 0 || r2 <= r1 || r3 <= r2 || r4 <= r3 {
		b.Fatalf("revisions %d, %d, %d, %d", r1, r2, r3, r4)
	}
	b.has("agents", "ann", "2", r3)
	b.has("agents", "bob", "", r2)
	b.has("other", "ann", "3", r4)
	b.hasNot("other", "bob")
	b.hasNot("none", "ann")
	r5 := b.remove("agents", "ann")
	if r5 <= r4 {
		b.Fatalf("revision %d of the removal after %d", r5, r4)
	}
	b.hasNot("agents", "ann")
	b.has("other", "ann", "3", r4)
	b.reopen()
	b.hasNot("agents", "ann")
	b.has("agents", "bob", "", r2)
	b.has("other", "ann", "3", r4)
	b.buckets("agents", "other")
	b.remove("other", "ann", r4)
	b.buckets("agents")
}

// buckets checks the list of buckets, in any order.
func (b *bench) buckets(want ...string) {
	b.Helper()
	got, err := b.Buckets(b.Context())
	b.must(err)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.Fatalf("buckets %q, want %q", got, want)
	}
}

func testStateExpect(b *bench) {
	conflicts := func(revisions ...uint64) {
		b.Helper()
		for _, r := range revisions {
			b.is(errOf(b.Put(b.Context(), "s", store.Value{Key: "k", Data: []byte("no")}, &r)), store.ErrConflict)
			b.is(errOf(b.Delete(b.Context(), "s", "k", &r)), store.ErrConflict)
		}
	}
	conflicts(1)
	b.hasNot("s", "k")
	r1 := b.put("s", "k", "one", 0)
	conflicts(0)
	r2 := b.put("s", "k", "two", r1)
	conflicts(0, r1, r2+1)
	b.has("s", "k", "two", r2)
	r3 := b.remove("s", "k", r2)
	b.hasNot("s", "k")
	conflicts(r1, r2, r3) // the key has no value now
	b.remove("s", "k")    // removing an absent key is no error
	r4 := b.put("s", "k", "three", 0)
	if r4 <= r3 {
		b.Fatalf("revision %d after %d", r4, r3)
	}
	b.has("s", "k", "three", r4)
}

// awkward keys: any byte may be in one.
var awkward = []string{
	"a", "a.b", "a.b.c", "a*", "a>", "a b", "a\x00", "a\x00b", "a\xff", "a\xff\xff", "a\xff\xffb", "b", "A", "%", "_",
	"a%", "a_b", "'", "\"", "\\", "\xff", "\xff\xff", "\x00", "\x80", "ä", "日本", ".", "..", "a..b", ".a", "a.", "$",
	"=", "/", "a/b", " ", "\n", "-", strings.Repeat("k", 300),
}

func testStateKeys(b *bench) {
	revs := map[string]uint64{}
	for i, k := range awkward {
		revs[k] = b.put("keys", k, strconv.Itoa(i))
	}
	for i, k := range awkward {
		b.has("keys", k, strconv.Itoa(i), revs[k])
	}
	check := func() {
		b.Helper()
		for _, prefix := range append([]string{"", "a.b.", "z", "a\xff\xff\xff"}, awkward...) {
			want := []string{}
			for _, k := range awkward {
				if strings.HasPrefix(k, prefix) {
					want = append(want, k)
				}
			}
			b.ranges("keys", prefix, want...)
		}
		b.ranges("key", "")
		b.ranges("keyss", "")
	}
	check()
	b.reopen()
	check()
	for _, k := range awkward {
		b.remove("keys", k, revs[k])
		b.hasNot("keys", k)
	}
	b.ranges("keys", "")
}

func testStateLarge(b *bench) {
	large := strings.Repeat("0123456789abcdef", 32<<10)
	rev := b.put("s", "large", large)
	b.has("s", "large", large, rev)
	rev = b.put("s", "large", "small")
	b.has("s", "large", "small", rev)
}

func testRange(b *bench) {
	var want, some []string
	for i := range 700 {
		k := fmt.Sprintf("%c/%d", 'a'+i%3, i)
		b.put("r", k, strconv.Itoa(i))
		want = append(want, k)
		if k[0] == 'b' {
			some = append(some, k)
		}
	}
	b.put("other", "b/1", "")
	b.ranges("r", "", want...)
	b.ranges("r", "b/", some...)
	b.ranges("r", "b", some...)
	b.ranges("r", "c/698", "c/698")
	// A change moves a key to the end, and a removal takes it out.
	b.put("r", want[0], "new")
	b.remove("r", want[1])
	b.ranges("r", "", append(slices.Clone(want[2:]), want[0])...)
	n := 0
	b.must(b.Range(b.Context(), "r", "", func(v store.Value) bool { n++; return n < 3 }))
	if n != 3 {
		b.Errorf("%d calls after an end at 3", n)
	}
	b.must(b.Range(b.Context(), "r", "", func(v store.Value) bool {
		if i, _ := strconv.Atoi(v.Key[2:]); v.Key != want[0] && string(v.Data) != strconv.Itoa(i) {
			b.Fatalf("%q is %q", v.Key, v.Data)
		}
		clear(v.Data)
		return true
	}))
}

// A value that changes while Range runs may come again, and is never missed.
func testRangeChanging(b *bench) {
	for i := range 600 {
		b.put("r", strconv.Itoa(i), "old")
	}
	seen := map[string]int{}
	n := 0
	b.must(b.Range(b.Context(), "r", "", func(v store.Value) bool {
		seen[v.Key]++
		if n++; n%5 == 1 && n < 1000 {
			b.put("r", strconv.Itoa((n*7+300)%600), "new")
		}
		return true
	}))
	for i := range 600 {
		if seen[strconv.Itoa(i)] == 0 {
			b.Fatalf("%d was missed", i)
		}
	}
}

func testFollowState(b *bench) {
	b.put("s", "before", "x")
	ready := make(chan struct{})
	c := b.collect(func(ctx context.Context, tell func(string)) error {
		var last uint64
		return b.FollowState(ctx, 0, func() { close(ready) }, func(bucket string, v store.Value) {
			if v.Revision <= last {
				b.Errorf("revision %d after %d", v.Revision, last)
			}
			last = v.Revision
			if v.Key != "before" {
				tell(fmt.Sprintf("%s %s %s %v", bucket, v.Key, v.Data, v.Deleted))
			}
		})
	})
	<-ready
	b.put("s", "a", "1")
	c.wants(b, "s a 1 false")
	b.put("other", "a\x00b", "2")
	b.remove("s", "a")
	c.wants(b, "other a\x00b 2 false", "s a  true")
	c.end(b)
}

func testExpiry(b *bench) {
	now := time.Now().UTC().Truncate(time.Second)
	until := now.Add(time.Hour)
	put := func(key string, until time.Time) {
		b.Helper()
		b.putValue("e", store.Value{Key: key, Data: []byte("data of " + key), Until: until})
	}
	put("hour", until)
	put("day", now.Add(24*time.Hour))
	put("forever", time.Time{})
	put("prolonged", until)
	put("prolonged", now.Add(24*time.Hour))
	if v := b.get("e", "hour"); !v.Until.Equal(until) {
		b.Fatalf("until %v, want %v", v.Until, until)
	}
	if v := b.get("e", "forever"); !v.Until.IsZero() {
		b.Fatalf("until %v, want never", v.Until)
	}
	b.must(b.Scrub(b.Context(), now))
	b.ranges("e", "", "hour", "day", "forever", "prolonged")
	b.must(b.Scrub(b.Context(), until.Add(time.Second)))
	b.hasNot("e", "hour")
	b.ranges("e", "", "day", "forever", "prolonged")
	b.nowhere([]string{"data of hour"})
	b.put("e", "hour", "new", 0)
	b.reopen()
	b.ranges("e", "", "day", "forever", "prolonged", "hour")
}

// No revision is used twice, even if the newest value was removed.
func testRevisions(b *bench) {
	var last uint64
	grows := func(rev uint64) {
		b.Helper()
		if rev <= last {
			b.Fatalf("revision %d after %d", rev, last)
		}
		last = rev
	}
	for range 3 {
		grows(b.put("s", "k", "1"))
		grows(b.remove("s", "k"))
		b.must(b.Scrub(b.Context(), time.Now()))
		b.reopen()
		grows(b.put("s", "k", "2"))
		grows(b.putValue("s", store.Value{Key: "short", Until: time.Now().Add(time.Minute)}))
		b.must(b.Scrub(b.Context(), time.Now().Add(time.Hour)))
		b.reopen()
	}
}

func testScrub(b *bench) {
	var gone []string
	secret := func(key, n int) string {
		s := fmt.Sprintf("hidden %04d of %04d;", n, key)
		gone = append(gone, s)
		return s + strings.Repeat("h", (key*131+n*977)%3000)
	}
	for n := range 6 {
		for key := range 200 {
			if n > 0 && (key+n)%4 == 0 {
				b.remove("s", strconv.Itoa(key))
				continue
			}
			b.put("s", strconv.Itoa(key), secret(key, n))
		}
	}
	for key := range 200 {
		if key%2 == 0 {
			b.remove("s", strconv.Itoa(key))
			continue
		}
		b.put("s", strconv.Itoa(key), "public")
	}
	b.must(b.Scrub(b.Context(), time.Now()))
	b.nowhere(gone)
	if n := len(b.keys("s", "")); n != 100 {
		b.Fatalf("%d values are left", n)
	}
	b.reopen()
	b.nowhere(gone)
}

func testReopen(b *bench) {
	for round := range 5 {
		b.must(b.append(round%2, uint64(round/2), "r"+strconv.Itoa(round)))
		b.put("s", strconv.Itoa(round), "v")
		b.reopen()
	}
	b.holds(0, "1:r0", "2:r2", "3:r4")
	b.holds(1, "1:r1", "2:r3")
	b.ranges("s", "", "0", "1", "2", "3", "4")
}

// One goroutine per partition appends while many count in the state.
func testConcurrent(b *bench) {
	const appends, counters, counts = 60, 12, 15
	var wg sync.WaitGroup
	var mu sync.Mutex
	revs := map[uint64]bool{}
	took := func(rev uint64) {
		mu.Lock()
		defer mu.Unlock()
		if revs[rev] {
			b.Errorf("revision %d twice", rev)
		}
		revs[rev] = true
	}
	for p := range partitions {
		wg.Go(func() {
			var after uint64
			for i := range appends {
				n := i%3 + 1
				if err := b.append(p, after, strings.Split(strings.Repeat("x ", n-1)+"x", " ")...); err != nil {
					b.Errorf("partition %d: %v", p, err)
					return
				}
				after += uint64(n)
				if i%10 == 0 {
					if err := b.append(p, after-1, "no"); !errors.Is(err, store.ErrConflict) {
						b.Errorf("partition %d: %v, want a conflict", p, err)
					}
					_ = b.Read(b.Context(), p, 1, after, func(store.Record) bool { return true })
				}
			}
		})
	}
	for c := range counters {
		wg.Go(func() {
			for i := 0; i < counts; {
				n, rev := 0, uint64(0)
				v, err := b.Get(b.Context(), "count", "all")
				if err == nil {
					n, _ = strconv.Atoi(string(v.Data))
					rev = v.Revision
				} else if !errors.Is(err, store.ErrNotFound) {
					b.Error(err)
					return
				}
				rev, err = b.Put(b.Context(), "count", store.Value{Key: "all", Data: []byte(strconv.Itoa(n + 1))}, &rev)
				if errors.Is(err, store.ErrConflict) {
					continue
				}
				if err != nil {
					b.Error(err)
					return
				}
				took(rev)
				i++
				rev, err = b.Put(b.Context(), "own", store.Value{Key: strconv.Itoa(c)}, nil)
				if err != nil {
					b.Error(err)
					return
				}
				took(rev)
			}
		})
	}
	wg.Wait()
	for p := range partitions {
		b.span(p, 1, appends*2, appends*2)
	}
	if v := b.get("count", "all"); string(v.Data) != strconv.Itoa(counters*counts) {
		b.Errorf("counted %s, want %d", v.Data, counters*counts)
	}
}

func testContextEnds(b *bench) {
	b.must(b.append(0, 0, "one"))
	rev := b.put("s", "k", "v")
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	ended := func(name string, err error) {
		b.Helper()
		if !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrUnknown) {
			b.Errorf("%s: %v", name, err)
		}
	}
	err := b.Append(ctx, 0, 1, records("two"))
	ended("Append", err)
	if !errors.Is(err, store.ErrUnknown) {
		b.span(0, 1, 1, 1)
	}
	_, err = b.Put(ctx, "s", store.Value{Key: "k2"}, nil)
	ended("Put", err)
	if !errors.Is(err, store.ErrUnknown) {
		b.hasNot("s", "k2")
	}
	_, err = b.Delete(ctx, "s", "k", nil)
	ended("Delete", err)
	if !errors.Is(err, store.ErrUnknown) {
		b.has("s", "k", "v", rev)
	}
	ended("Read", b.Read(ctx, 0, 1, 1, func(store.Record) bool { return true }))
	ended("Get", errOf(b.Get(ctx, "s", "k")))
	ended("Range", b.Range(ctx, "s", "", func(store.Value) bool { return true }))
	ended("Tagged", errOf(b.Tagged(ctx, 0, "x")))
	ended("Replace", b.Replace(ctx, 0, []store.Record{{Sequence: 1, Data: []byte("x")}}))
	ended("Remove", b.Remove(ctx, 0, 1))
	ended("Scrub", b.Scrub(ctx, time.Now()))
	b.must(b.Healthy())
}

func testClosed(b *bench) {
	s := b.Store
	b.close()
	b.is(errOf(s.Meta(b.Context())), store.ErrClosed)
	b.is(s.Append(b.Context(), 0, 0, records("x")), store.ErrClosed)
	b.is(s.Read(b.Context(), 0, 1, 1, func(store.Record) bool { return true }), store.ErrClosed)
	b.is(errOf(s.Get(b.Context(), "s", "k")), store.ErrClosed)
	b.is(errOf(s.Put(b.Context(), "s", store.Value{Key: "k"}, nil)), store.ErrClosed)
	b.is(errOf(s.Span(b.Context(), 0)), store.ErrClosed)
	b.is(s.Scrub(b.Context(), time.Now()), store.ErrClosed)
	b.is(s.Healthy(), store.ErrClosed)
	if err := s.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
		b.Fatal(err)
	}
}

func testLocked(b *bench) {
	if b.Shared || b.Forgets {
		b.Skip("another may be open")
	}
	if s, err := b.Place.Open(); !errors.Is(err, store.ErrLocked) {
		if err == nil {
			_ = s.Close()
		}
		b.Fatalf("error %v, want %v", err, store.ErrLocked)
	}
	b.must(b.append(0, 0, "goes on"))
}

// Two processes may have a shared store open.
func testTwo(b *bench) {
	if !b.Shared {
		b.Skip("one process has it")
	}
	other := &bench{T: b.T, Place: b.Place}
	other.open()
	defer other.close()
	ready := make(chan struct{})
	log := other.follow(0)
	state := other.collect(func(ctx context.Context, tell func(string)) error {
		return other.FollowState(ctx, 0, func() { close(ready) }, func(bucket string, v store.Value) {
			tell(fmt.Sprintf("%s %s %s %v %d", bucket, v.Key, v.Data, v.Deleted, v.Revision))
		})
	})
	<-ready
	b.must(b.append(0, 0, "of one"))
	log.wants(b, "1:of one")
	other.span(0, 1, 1, 1)
	b.is(other.append(0, 0, "of two"), store.ErrConflict)
	b.must(other.append(0, 1, "of two"))
	log.wants(b, "2:of two")
	b.is(b.append(0, 1, "of one"), store.ErrConflict)
	b.holds(0, "1:of one", "2:of two")
	b.must(b.append(0, 2, "of one"))
	log.wants(b, "3:of one")

	// The test awaits each change: the store may report only the last of several.
	r1 := b.put("s", "k", "one")
	state.wants(b, fmt.Sprintf("s k one false %d", r1))
	other.has("s", "k", "one", r1)
	b.is(errOf(other.Put(b.Context(), "s", store.Value{Key: "k"}, new(uint64(0)))), store.ErrConflict)
	r2 := other.put("s", "k", "two", r1)
	state.wants(b, fmt.Sprintf("s k two false %d", r2))
	r3 := b.remove("s", "k", r2)
	other.hasNot("s", "k")
	state.wants(b, fmt.Sprintf("s k  true %d", r3))
	log.end(b)
	state.end(b)
	other.hasMeta(meta)
	b.is(other.Init(b.Context(), meta), store.ErrExists)
}
