package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// textFile is a file in memory that has a full text index with pages of a size.
func textFile(t *testing.T, size int) *file {
	t.Helper()
	f, err := openFile(fmt.Sprintf("file:/parley-index-%d?vfs=memdb", memories.Add(1)), textSchema, version, "journal", 1, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.c.close(); err != nil {
			t.Error(err)
		}
	})
	run(t, f, fmt.Sprintf("INSERT INTO texts (texts, rank) VALUES ('pgsz', %d)", size))
	return f
}

func run(t *testing.T, f *file, sql string) {
	t.Helper()
	if err := f.c.exec(sql); err != nil {
		t.Fatal(err)
	}
}

// dump gives the rows of a query with three columns.
func dump(t *testing.T, f *file, sql string) (out []string) {
	t.Helper()
	q, err := f.c.prepare(sql)
	if err != nil {
		t.Fatal(err)
	}
	for {
		more, err := q.row()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		out = append(out, fmt.Sprintf("%x %x %x", q.colBytes(0), q.colBytes(1), q.colBytes(2)))
	}
	if err := f.c.finalize(q); err != nil {
		t.Fatal(err)
	}
	return out
}

// same compares what a query gives of two files.
func same(t *testing.T, ours, theirs *file, sql string) {
	t.Helper()
	a, b := dump(t, ours, sql), dump(t, theirs, sql)
	if slices.Equal(a, b) {
		return
	}
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Fatalf("%s: %d rows and %d; row %d is\n%.300s, and\n%.300s", sql, len(a), len(b), i, append(a, "none")[min(i, len(a))], append(b, "none")[min(i, len(b))])
		}
	}
}

// randomText is of words of which few are frequent, in several scripts.
func randomText(rnd *rand.Rand, i int) string {
	letters := []rune("abcXYZ019äÖß\u0301\u0345éñžЖдщαΩ東京語𝔸𐐀ǅ\u200d٣²Ⅷ\ufffd\ue000-_.,; \x00\t\"'ſKÅ")
	var b strings.Builder
	for range rnd.IntN(12) {
		switch k := rnd.IntN(10); {
		case k < 4:
			fmt.Fprintf(&b, "word%d ", min(rnd.IntN(40), rnd.IntN(40), rnd.IntN(40)))
		case k < 5:
			fmt.Fprintf(&b, "Number-%d, ", i)
		case k < 7:
			b.WriteString("THE the ")
		case k == 7 && rnd.IntN(8) == 0:
			b.WriteString(strings.Repeat("long", rnd.IntN(80)) + "\n")
		case k == 8 && rnd.IntN(40) == 0:
			b.WriteString(strings.Repeat("again and ", rnd.IntN(200)))
		default:
			for range rnd.IntN(8) {
				b.WriteRune(letters[rnd.IntN(len(letters))])
			}
		}
	}
	return b.String()
}

// TestSegment: what a rebuild stores of texts is, byte by byte, what SQLite stores
// of them; and SQLite goes on with it.
func TestSegment(t *testing.T) {
	rounds, most := 14, 1000
	if testing.Short() {
		rounds, most = 3, 60
	}
	for seed := range rounds {
		rnd := rand.New(rand.NewPCG(uint64(seed), 5))
		size := []int{32, 333, leafSize, 40, 64, 100, 1000}[seed%7]
		ours, theirs := textFile(t, size), textFile(t, size)
		bulk, err := openBulk(ours)
		if err != nil || bulk == nil || bulk.size != size {
			t.Fatal(bulk, err)
		}
		insert, err := theirs.c.prepareBulk("INSERT INTO texts (rowid, body)", 2, 1)
		if err != nil {
			t.Fatal(err)
		}
		n := rnd.Int64N(1 << 60)
		var keys []int64
		fill := func(shuffle bool) {
			t.Helper()
			var docs []text
			for range 1 + rnd.IntN(most) {
				n += 1 + rnd.Int64N(1<<rnd.IntN(30))
				docs = append(docs, text{n, randomText(rnd, len(keys))})
				keys = append(keys, n)
			}
			run(t, theirs, "BEGIN IMMEDIATE")
			if err := insert.insert(len(docs), func(q *stmt, i int) { q.int(docs[i].n).text(docs[i].body) }); err != nil {
				t.Fatal(err)
			}
			run(t, theirs, "COMMIT")

			if shuffle {
				rnd.Shuffle(len(docs), func(i, k int) { docs[i], docs[k] = docs[k], docs[i] })
			}
			run(t, ours, "BEGIN IMMEDIATE")
			for _, d := range docs {
				if err := bulk.list.add(d.n, d.body, bulk.tokenizer); err != nil {
					t.Fatal(err)
				}
			}
			if merge, err := bulk.write(); merge || err != nil {
				t.Fatal(merge, err)
			}
			run(t, ours, "COMMIT")
			bulk.list.clear()
			if err := bulk.refresh(); err != nil {
				t.Fatal(err)
			}
		}
		fill(false)
		fill(true)
		same(t, ours, theirs, fmt.Sprintf("SELECT id, block, 0 FROM texts_data WHERE id<>%d ORDER BY id", structureRow))
		same(t, ours, theirs, "SELECT segid, term, pgno FROM texts_idx ORDER BY segid, term")
		same(t, ours, theirs, "SELECT id, sz, origin FROM texts_docsize ORDER BY id")
		if t.Failed() {
			t.Fatalf("seed %d, pages of %d", seed, size)
		}

		// Both take more, delete and merge.
		for _, f := range []*file{ours, theirs} {
			run(t, f, "CREATE VIRTUAL TABLE terms USING fts5vocab('texts', 'instance')")
			run(t, f, "INSERT INTO texts (texts) VALUES ('integrity-check')")
			for i := range 5 {
				run(t, f, fmt.Sprintf("INSERT INTO texts (rowid, body) VALUES (%d, 'the last word%d')", n+int64(i+1), i))
			}
			for i := 0; i < len(keys); i += 1 + len(keys)/40 {
				run(t, f, fmt.Sprintf("DELETE FROM texts WHERE rowid=%d", keys[i]))
			}
		}
		n += 5
		for _, then := range []string{"", "INSERT INTO texts (texts, rank) VALUES ('merge', 10)", "INSERT INTO texts (texts) VALUES ('optimize')"} {
			fill(false)
			for _, f := range []*file{ours, theirs} {
				run(t, f, then)
				run(t, f, "INSERT INTO texts (texts) VALUES ('integrity-check')")
			}
			same(t, ours, theirs, "SELECT term, doc, offset FROM terms ORDER BY term, doc, offset")
			for _, q := range []string{"the", "word3", "wor*", `"the last"`, "again"} {
				same(t, ours, theirs, fmt.Sprintf("SELECT rowid, 0, 0 FROM texts WHERE texts MATCH '%s' AND rowid>%d ORDER BY rowid DESC", q, keys[len(keys)/2]))
			}
		}
	}
}

// TestSegmentsMerged: many segments are merged into one.
func TestSegmentsMerged(t *testing.T) {
	f := textFile(t, 64)
	bulk, err := openBulk(f)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(40) {
		run(t, f, "BEGIN IMMEDIATE")
		for k := range int64(20) {
			if err := bulk.list.add(i*20+k+1, fmt.Sprintf("all of %d in %d", k, i), bulk.tokenizer); err != nil {
				t.Fatal(err)
			}
		}
		merge, err := bulk.write()
		if err != nil {
			t.Fatal(err)
		}
		bulk.list.clear()
		run(t, f, "COMMIT")
		if want := i == 15 || i == 31; merge != want {
			t.Errorf("segment %d: merge is %v", i, merge)
		}
		if merge {
			err = bulk.merge()
		} else {
			err = bulk.refresh()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := bulk.read(structureRow)
	if err != nil {
		t.Fatal(err)
	}
	s, err := readStructure(b)
	if err != nil {
		t.Fatal(err)
	}
	if have := len(s.levels[bulkLevel].segments); have != 8 || len(s.levels[bulkLevel+1].segments) != 2 {
		t.Errorf("the levels are %v", s.levels)
	}
	run(t, f, "INSERT INTO texts (texts) VALUES ('integrity-check')")
	if n, err := f.number("SELECT count(*) FROM texts WHERE texts MATCH 'all AND 7'"); n != 59 || err != nil {
		t.Errorf("found %d: %v", n, err)
	}
}

// TestStructure: a record that is not one is refused, whatever it is.
func TestStructure(t *testing.T) {
	s := structure{cookie: make([]byte, 4), levels: []level{{}, {merging: 1, segments: []segment{{3, 1, 9, 1, 2, 0, 0, 1 << 40}, {7, 1, 2, 3, 3}}}}}
	b := s.append(nil)
	again, err := readStructure(b)
	if err != nil || len(again.levels) != 2 || again.levels[1].segments[1] != s.levels[1].segments[1] {
		t.Errorf("it is read as %+v: %v", again, err)
	}
	if id, origin := again.free(); id != 1 || origin != 4 {
		t.Errorf("the next segment is %d, %d", id, origin)
	}
	for i := range b {
		if _, err := readStructure(b[:i]); err == nil {
			t.Errorf("%d bytes of it are taken for whole", i)
		}
	}
	if _, err := readStructure(append(b, 0)); err == nil {
		t.Error("more than the record is taken")
	}
	for _, v := range []uint64{0, 1, 127, 128, 1 << 14, 1<<14 - 1, 1<<56 - 1, 1 << 56, 1<<63 + 5, 1<<64 - 1} {
		if got, n := varint(appendVarint(nil, v)); got != v || n != len(appendVarint(nil, v)) {
			t.Errorf("%d is read as %d", v, got)
		}
	}
}
