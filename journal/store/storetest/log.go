package storetest

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/parley-hub/parley/journal/store"
)

func testMeta(b *bench) {
	b.is(errOf(b.Meta(b.Context())), store.ErrNotFound)
	b.must(b.Init(b.Context(), meta))
	b.hasMeta(meta)
	other := meta
	other.Prefix = "OTHER"
	b.is(b.Init(b.Context(), other), store.ErrExists)
	b.hasMeta(meta)
	b.reopen()
	b.hasMeta(meta)
	b.is(b.Init(b.Context(), meta), store.ErrExists)
}

func (b *bench) hasMeta(want store.Meta) {
	b.Helper()
	got, err := b.Meta(b.Context())
	b.must(err)
	if !got.Created.Equal(want.Created) {
		b.Fatalf("created %v", got.Created)
	}
	got.Created = want.Created
	if got != want {
		b.Fatalf("meta %+v, want %+v", got, want)
	}
}

func testRestoring(b *bench) {
	restoring := meta
	restoring.Restoring = true
	b.must(b.Init(b.Context(), restoring))
	b.must(b.append(0, 0, "one"))
	if !b.Forgets {
		b.reopen()
	}
	b.hasMeta(restoring)
	b.must(b.append(0, 1, "two"))
	b.must(b.Init(b.Context(), meta))
	b.hasMeta(meta)
	b.holds(0, "1:one", "2:two")
	b.is(b.Init(b.Context(), meta), store.ErrExists)
}

func testProperties(b *bench) {
	if b.Exclusive() == b.Shared {
		b.Errorf("exclusive %v, shared %v", b.Exclusive(), b.Shared)
	}
	if b.MaxRecord() < 64<<10 {
		b.Errorf("largest record: %d bytes", b.MaxRecord())
	}
	if p := b.Promise(); !strings.HasSuffix(p, ".") || strings.Contains(p, "\n") {
		b.Errorf("promise %q is not a sentence", p)
	}
	b.must(b.Healthy())
	free, total, err := b.Space()
	b.must(err)
	if free > total {
		b.Errorf("%d of %d bytes are free", free, total)
	}
}

func testAppend(b *bench) {
	b.must(b.append(0, 0, "one", "two"))
	b.must(b.append(0, 2, "three", ""))
	b.holds(0, "1:one", "2:two", "3:three", "4:")
	b.span(0, 1, 4, 4)
	b.reopen()
	b.holds(0, "1:one", "2:two", "3:three", "4:")
	b.must(b.append(0, 4, "five"))
	b.span(0, 1, 5, 5)
}

func testAppendConflict(b *bench) {
	b.is(b.append(0, 1, "none"), store.ErrConflict)
	b.span(0, 1, 0, 0)
	b.must(b.append(0, 0, "one", "two"))
	b.is(b.append(0, 0, "again"), store.ErrConflict)
	b.is(b.append(0, 1, "again", "and again"), store.ErrConflict)
	b.is(b.append(0, 3, "ahead"), store.ErrConflict)
	b.holds(0, "1:one", "2:two")
	b.must(b.append(0, 2, "three"))
	b.is(b.append(0, 2, "three"), store.ErrConflict)
	b.holds(0, "1:one", "2:two", "3:three")
}

func testAppendGap(b *bench) {
	rs := records("five", "six", "nine", "ten")
	rs[0].Sequence, rs[2].Sequence, rs[3].Sequence = 5, 9, 2 // the last one is not larger than what follows
	b.must(b.Append(b.Context(), 0, 0, rs))
	b.holds(0, "5:five", "6:six", "9:nine", "10:ten")
	b.span(0, 5, 10, 4)
	b.is(b.append(0, 4, "no"), store.ErrConflict)
	b.must(b.append(0, 10, "eleven"))
	if got := b.read(0, 7, 9); len(got) != 1 || got[0] != "9:nine" {
		b.Fatalf("read 7 to 9: %q", got)
	}
	b.reopen()
	b.span(0, 5, 11, 5)
	rs = records("twenty")
	rs[0].Sequence = 20
	b.must(b.Append(b.Context(), 0, 11, rs))
	b.span(0, 5, 20, 6)
}

func testAppendMany(b *bench) {
	var all []store.Record
	for i := range 700 {
		all = append(all, store.Record{Data: bytes.Repeat([]byte{byte(i)}, 1200)})
	}
	b.must(b.Append(b.Context(), 1, 0, all))
	b.span(1, 1, 700, 700)
	var n uint64
	b.must(b.Read(b.Context(), 1, 1, 700, func(r store.Record) bool {
		n++
		if r.Sequence != n || !bytes.Equal(r.Data, all[n-1].Data) {
			b.Fatalf("record %d after %d", r.Sequence, n-1)
		}
		return true
	}))
	if n != 700 {
		b.Fatalf("%d records", n)
	}
}

func testAppendLarge(b *bench) {
	largest := min(b.MaxRecord(), 24<<20)
	data := make([]byte, largest)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data) // never fails
	b.must(b.Append(b.Context(), 0, 0, []store.Record{{Data: data}, {Data: []byte("small")}}))
	var got [][]byte
	b.must(b.Read(b.Context(), 0, 1, 2, func(r store.Record) bool {
		got = append(got, bytes.Clone(r.Data))
		return true
	}))
	if len(got) != 2 || !bytes.Equal(got[0], data) || string(got[1]) != "small" {
		b.Fatalf("%d records, or other data", len(got))
	}
	if largest < b.MaxRecord() {
		return
	}
	b.is(b.Append(b.Context(), 0, 2, []store.Record{{Data: []byte("before")}, {Data: append(data, 0)}}),
		store.ErrTooLarge)
	b.span(0, 1, 2, 2)
	b.must(b.append(0, 2, "after"))
}

func testPartitions(b *bench) {
	for p := range partitions {
		b.must(b.append(p, 0, "tag=of "+strconv.Itoa(p)))
	}
	b.must(b.append(2, 1, "more"))
	for p := range partitions {
		want := []string{fmt.Sprintf("1:tag=of %d", p)}
		if p == 2 {
			want = append(want, "2:more")
		}
		b.holds(p, want...)
		b.tagged(p, "tag", want[0])
	}
	b.must(b.Remove(b.Context(), 1, 2))
	b.holds(1)
	b.holds(0, "1:tag=of 0")
}

func testSkip(b *bench) {
	b.must(b.Store.Skip(b.Context(), 0, 100))
	at := func() uint64 {
		b.Helper()
		s := b.spanOf(0)
		if s.Last < 100 || s.First != s.Last+1 || s.Records != 0 {
			b.Fatalf("span %+v after a skip of 100", s)
		}
		return s.Last
	}
	at()
	if !b.Forgets {
		b.reopen()
	}
	last := at()
	b.is(b.append(0, 0, "no"), store.ErrConflict)
	b.must(b.append(0, last, "next"))
	b.holds(0, fmt.Sprintf("%d:next", last+1))
	b.must(b.Store.Skip(b.Context(), 0, 50)) // the partition ends beyond 50 already
	b.must(b.append(0, last+1, "another"))
	b.span(0, last+1, last+2, 2)
}

func testRead(b *bench) {
	var all []string
	for i := range 1000 {
		all = append(all, "r"+strconv.Itoa(i+1))
	}
	b.must(b.append(0, 0, all[:600]...))
	b.must(b.append(0, 600, all[600:]...))
	for _, x := range []struct{ first, last, from, n uint64 }{
		{1, 1000, 1, 1000}, {0, 1 << 63, 1, 1000}, {1, 1, 1, 1}, {1000, 1000, 1000, 1}, {255, 258, 255, 4},
		{1000, 2000, 1000, 1}, {1001, 2000, 0, 0}, {5, 4, 0, 0}, {0, 0, 0, 0},
	} {
		got := b.read(0, x.first, x.last)
		if len(got) != int(x.n) {
			b.Errorf("read %d to %d: %d records, want %d", x.first, x.last, len(got), x.n)
			continue
		}
		for i, g := range got {
			if seq := x.from + uint64(i); g != fmt.Sprintf("%d:r%d", seq, seq) {
				b.Fatalf("read %d to %d: %q at %d", x.first, x.last, g, i)
			}
		}
	}
	for _, stop := range []int{1, 2, 256, 257, 999} {
		n := 0
		b.must(b.Read(b.Context(), 0, 1, 1000, func(store.Record) bool { n++; return n < stop }))
		if n != stop {
			b.Errorf("%d calls after the end at %d", n, stop)
		}
	}
	b.holds(3)
}

// The function that Read calls may use the store.
func testReadNested(b *bench) {
	b.must(b.append(0, 0, "a", "b", "c"))
	b.must(b.Read(b.Context(), 0, 1, 3, func(r store.Record) bool {
		b.must(b.append(1, r.Sequence-1, "copy of "+string(r.Data)))
		rev := b.put("copies", string(r.Data), "x")
		b.has("copies", string(r.Data), "x", rev)
		return true
	}))
	b.holds(1, "1:copy of a", "2:copy of b", "3:copy of c")
	b.must(b.Range(b.Context(), "copies", "", func(v store.Value) bool {
		b.put("again", v.Key, "y")
		return true
	}))
	b.ranges("again", "", "a", "b", "c")
}

func testTagged(b *bench) {
	b.is(errOf(b.Tagged(b.Context(), 0, "x")), store.ErrNotFound)
	b.must(b.append(0, 0, "x=1", "y.z-1_A=2", "x=3", "plain", "xx=5"))
	b.tagged(0, "x", "3:x=3")
	b.tagged(0, "y.z-1_A", "2:y.z-1_A=2")
	b.tagged(0, "xx", "5:xx=5")
	b.is(errOf(b.Tagged(b.Context(), 0, "xxx")), store.ErrNotFound)
	b.must(b.append(0, 5, "x=6"))
	b.tagged(0, "x", "6:x=6")
	b.must(b.Remove(b.Context(), 0, 3))
	b.tagged(0, "x", "6:x=6")
	b.is(errOf(b.Tagged(b.Context(), 0, "y.z-1_A")), store.ErrNotFound)
	b.must(b.Replace(b.Context(), 0, []store.Record{{Sequence: 6, Tag: "x", Data: []byte("other")}}))
	b.tagged(0, "x", "6:x=other")
	b.reopen()
	b.tagged(0, "x", "6:x=other")
}

func testSpan(b *bench) {
	b.span(0, 1, 0, 0)
	b.must(b.append(0, 0, "a", "b", "c"))
	b.span(0, 1, 3, 3)
	before := b.spanOf(0)
	b.must(b.append(0, 3, strings.Repeat("long", 10000)))
	after := b.spanOf(0)
	if after.Bytes < before.Bytes+30000 {
		b.Errorf("%d bytes, then %d with 40,000 more", before.Bytes, after.Bytes)
	}
	b.must(b.Remove(b.Context(), 0, 2))
	b.span(0, 2, 4, 3)
}

func testFollow(b *bench) {
	b.must(b.append(0, 0, "one", "two"))
	if b.Exclusive() {
		b.must(b.Follow(b.Context(), 0, 0, func(store.Record) { b.Error("told a record") }))
		return
	}
	all, some := b.follow(0), b.follow(1)
	all.wants(b, "1:one", "2:two")
	some.wants(b, "2:two")
	b.must(b.append(0, 2, "three", "x=four"))
	all.wants(b, "3:three", "4:x=four")
	some.wants(b, "3:three", "4:x=four")
	b.span(0, 1, 4, 4)
	all.end(b)
	some.end(b)
}

func testReplace(b *bench) {
	secret := func(i int) string { return fmt.Sprintf("secret %04d ", i) + strings.Repeat("s", i*37%6000) }
	var all []string
	for i := range 300 {
		all = append(all, secret(i+1))
	}
	b.must(b.append(0, 0, all...))
	var out []store.Record
	want := []string{}
	for i := range all {
		seq, data := i+1, all[i]
		if i%3 != 0 {
			data = strings.Repeat("short", i%7)
			if i%5 == 0 {
				data = strings.Repeat("longer", 2000)
			}
			out = append(out, store.Record{Sequence: uint64(seq), Data: []byte(data)})
		}
		want = append(want, fmt.Sprintf("%d:%s", seq, data))
	}
	for len(out) > 0 {
		n := min(len(out), 40)
		b.must(b.Replace(b.Context(), 0, out[:n]))
		out = out[n:]
	}
	b.holds(0, want...)
	var gone []string
	for i := range all {
		if i%3 != 0 {
			gone = append(gone, fmt.Sprintf("secret %04d ", i+1))
		}
	}
	b.nowhere(gone)
	b.span(0, 1, 300, 300)
	b.must(b.append(0, 300, "goes on"))
	b.reopen()
	b.holds(0, append(want, "301:goes on")...)
	b.nowhere(gone)
}

// nowhere checks that no file of the store has one of the texts.
func (b *bench) nowhere(texts []string) {
	b.Helper()
	if b.Dir == "" {
		return
	}
	b.must(filepath.WalkDir(b.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := 0
		for _, text := range texts {
			if at := bytes.Index(data, []byte(text)); at >= 0 {
				if n++; n <= 3 {
					b.Errorf("%s holds %q at %d", filepath.Base(path), text, at)
				}
			}
		}
		if n > 3 {
			b.Errorf("and %d more of %d", n-3, len(texts))
		}
		return nil
	}))
}

func testRemove(b *bench) {
	var all, gone []string
	for i := range 500 {
		all = append(all, fmt.Sprintf("removed %04d ", i+1)+strings.Repeat("r", i*41%5000))
		if i < 399 {
			gone = append(gone, fmt.Sprintf("removed %04d ", i+1))
		}
	}
	b.must(b.append(0, 0, all...))
	b.must(b.append(1, 0, "stays"))
	b.must(b.Remove(b.Context(), 0, 200))
	b.span(0, 200, 500, 301)
	b.must(b.Remove(b.Context(), 0, 100)) // removed already
	b.span(0, 200, 500, 301)
	b.must(b.Remove(b.Context(), 0, 400))
	b.span(0, 400, 500, 101)
	if got := b.read(0, 1, 1000); len(got) != 101 || got[0] != "400:"+all[399] {
		b.Fatalf("%d records", len(got))
	}
	b.nowhere(gone)
	b.holds(1, "1:stays")
	b.must(b.append(0, 500, "next"))
	b.reopen()
	b.span(0, 400, 501, 102)
	b.nowhere(gone)
}

func testRemoveAll(b *bench) {
	b.must(b.append(0, 0, "a", "b", "x=c"))
	b.must(b.Remove(b.Context(), 0, 4))
	check := func() {
		b.Helper()
		b.span(0, 4, 3, 0)
		b.holds(0)
		b.is(errOf(b.Tagged(b.Context(), 0, "x")), store.ErrNotFound)
		b.is(b.append(0, 0, "no"), store.ErrConflict)
	}
	check()
	if !b.Forgets {
		b.reopen()
		check()
	}
	b.must(b.append(0, 3, "d"))
	b.span(0, 4, 4, 1)
	b.must(b.Remove(b.Context(), 0, 1000)) // beyond the last record
	b.span(0, 5, 4, 0)
	b.must(b.append(0, 4, "e"))
	b.holds(0, "5:e")
}
