package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"
)

// A rebuild makes the segments of the full text index itself and stores them as
// they lie in FTS5's tables: to hand SQLite one text after the other costs several
// times as much as everything else that is done with it. What SQLite itself writes
// of the same texts is the same to the last position, which the tests compare.
//
// The form of the tables is that of FTS5's version 4, described at the head of
// fts5_index.c: a segment is leaf pages of terms in order, each with the rows that
// have it and the places in them; an entry of texts_idx for each leaf that begins a
// term; an index of the pages of each long list of rows; and its place in the
// record of the structure. texts_docsize says of a row how many words it has and
// which segments have it.
const (
	ftsVersion = 4
	leafSize   = 4050 // unless texts_config says otherwise
	leafHead   = 4
	termPrefix = '0' // of the terms themselves; others are of indexes of prefixes
	maxTerm    = 32768
	minPages   = 4 // that a list of rows must go on over, for an index of them
	maxSegment = 2000

	averagesRow  = 1
	structureRow = 10

	// bulkLevel is where the segments of a rebuild stand. Where it were lower, what
	// is written next would be merged with all of them at once.
	bulkLevel = 2
	// mergeAt is how many stand there before they are merged into one: as many as
	// SQLite waits for before it merges at once.
	mergeAt = 16
)

// wordList gathers the words of texts, for one segment.
type wordList struct {
	numbers map[string]uint32 // of terms
	terms   []string
	counts  []uint32 // how often each is there
	words   []uint32 // by their numbers, one text behind the other
	docs    []doc
	bytes   int // of all that, about
	fold    []byte
}

type doc struct {
	n          int64
	start, end int // in words
}

func newWordList() *wordList { return &wordList{numbers: map[string]uint32{}} }

func (l *wordList) clear() {
	clear(l.numbers)
	clear(l.terms)
	l.terms, l.counts, l.words, l.docs, l.bytes = l.terms[:0], l.counts[:0], l.words[:0], l.docs[:0], 0
}

// asciiFold is what a character is in a term; 0 is between words.
var asciiFold = func() (t [128]byte) {
	for c := range t {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z':
			t[c] = byte(c)
		case c >= 'A' && c <= 'Z':
			t[c] = byte(c) + 'a' - 'A'
		}
	}
	return t
}()

// add takes a text's words. What is not all ASCII is left to SQLite's tokenizer.
func (l *wordList) add(n int64, text string, k *tokenizer) error {
	start := len(l.words)
	ascii := true
	for i := 0; i < len(text) && ascii; i++ {
		ascii = text[i] < 0x80
	}
	var err error
	if ascii {
		b := l.fold[:0]
		for i := range len(text) {
			if c := asciiFold[text[i]&0x7f]; c != 0 {
				b = append(b, c)
			} else if len(b) > 0 {
				l.word(b)
				b = b[:0]
			}
		}
		if len(b) > 0 {
			l.word(b)
		}
		l.fold = b
	} else {
		err = k.each(text, l.word)
	}
	l.docs = append(l.docs, doc{n, start, len(l.words)})
	l.bytes += 32
	return err
}

func (l *wordList) word(b []byte) {
	b = b[:min(len(b), maxTerm)]
	number, ok := l.numbers[string(b)]
	if !ok {
		number = uint32(len(l.terms))
		term := string(b)
		l.numbers[term] = number
		l.terms, l.counts = append(l.terms, term), append(l.counts, 0)
		l.bytes += 64 + len(b)
	}
	l.counts[number]++
	l.words = append(l.words, number)
	l.bytes += 12 // with its place, see write
}

// place is where a word stands: the number of its document, and which word of it.
type place struct{ doc, at uint32 }

// write writes the words as a segment's pages. Documents are put in the order of
// their keys.
func (l *wordList) write(w *segmentWriter) error {
	byKey := func(a, b doc) int { return cmp.Compare(a.n, b.n) }
	if !slices.IsSortedFunc(l.docs, byKey) {
		slices.SortFunc(l.docs, byKey)
	}
	next, sum := make([]uint32, len(l.terms)), uint32(0)
	for i, n := range l.counts {
		next[i] = sum
		sum += n
	}
	places := make([]place, len(l.words))
	for d, x := range l.docs {
		for at, number := range l.words[x.start:x.end] {
			places[next[number]] = place{uint32(d), uint32(at)}
			next[number]++
		}
	}
	order := make([]uint32, len(l.terms))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return strings.Compare(l.terms[a], l.terms[b]) })
	for _, number := range order {
		w.term(l.terms[number])
		// next is behind the last place of the term by now.
		list := places[next[number]-l.counts[number] : next[number]]
		for len(list) > 0 {
			k := 1
			for k < len(list) && list[k].doc == list[0].doc {
				k++
			}
			w.row(l.docs[list[0].doc].n, list[:k])
			list = list[k:]
		}
	}
	return w.finish()
}

// appendVarint appends a number as SQLite writes it: seven bits a byte, the high
// ones first, and eight in a ninth byte.
func appendVarint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	var x [9]byte
	i := 8
	if v>>56 != 0 {
		x[8] = byte(v)
		v >>= 8
		for i = 7; i >= 0; i-- {
			x[i] = byte(v) | 0x80
			v >>= 7
		}
		return append(b, x[:]...)
	}
	x[8] = byte(v & 0x7f)
	for v >>= 7; v != 0; v >>= 7 {
		i--
		x[i] = byte(v) | 0x80
	}
	return append(b, x[i:]...)
}

// varint reads what appendVarint appended, and tells its length; 0 where there is
// none.
func varint(b []byte) (v uint64, n int) {
	for n < len(b) && n < 8 {
		c := b[n]
		v = v<<7 | uint64(c&0x7f)
		if n++; c < 0x80 {
			return v, n
		}
	}
	if n < len(b) {
		return v<<8 | uint64(b[n]), n + 1
	}
	return 0, 0
}

// segmentWriter lays terms and rows out on pages, as fts5FlushOneHash does.
type segmentWriter struct {
	id    int64
	size  int                                 // of a page, about
	block func(id int64, b []byte) error      // stores a page
	begin func(term []byte, page int64) error // stores an entry of texts_idx

	page          int64 // the leaf that is being filled, from 1
	buf, footer   []byte
	last          string // the term before
	lastAt        int    // where it begins in buf
	noTerm, noRow bool   // the leaf has none so far
	split         []byte // the first leaf that begins a term since the last entry: a prefix of that
	splitPage     int64  // and its number; 0: none
	empty         int    // leaves without a term behind it
	lists         []listIndex
	before        int64 // the row before in the term's list
	poslist, ends []byte
	err           error
}

// listIndex is a level of the index of the pages of one term's rows.
type listIndex struct {
	page int64
	last int64
	has  bool
	buf  []byte
}

func newSegmentWriter(id int64, size int, block func(int64, []byte) error, begin func([]byte, int64) error) *segmentWriter {
	return &segmentWriter{id: id, size: size, block: block, begin: begin, page: 1, buf: make([]byte, leafHead, 2*size), noTerm: true, noRow: true, splitPage: 1, lists: make([]listIndex, 1)}
}

func (w *segmentWriter) put(height, page int64, list bool, b []byte) {
	id := w.id<<37 | height<<31 | page
	if list {
		id |= 1 << 36
	}
	if w.err == nil {
		w.err = w.block(id, b)
	}
}

func (w *segmentWriter) full(more int) bool { return len(w.buf)+len(w.footer)+more >= w.size }

// term begins a term.
func (w *segmentWriter) term(t string) {
	if w.full(len(t)+1+2) && len(w.buf) > leafHead {
		w.leaf()
	}
	w.footer = appendVarint(w.footer, uint64(len(w.buf)-w.lastAt))
	w.lastAt = len(w.buf)
	common := 0
	if w.last != "" || !w.first() {
		common = 1 // the prefix, which every term has
		for i := 0; i < min(len(t), len(w.last)) && t[i] == w.last[i]; i++ {
			common++
		}
	}
	skip := 0
	switch {
	case !w.noTerm:
		skip = common
		w.buf = appendVarint(w.buf, uint64(skip))
	case w.page != 1:
		w.entry()
		w.split = append(append(w.split[:0], termPrefix), t[:common]...)
		w.splitPage = w.page
	}
	w.buf = appendVarint(w.buf, uint64(len(t)+1-skip))
	if skip == 0 {
		w.buf = append(w.buf, termPrefix)
		skip = 1
	}
	w.buf = append(w.buf, t[skip-1:]...)
	w.last, w.noTerm, w.noRow, w.before = t, false, false, 0
	w.lists[0].page = w.page
}

// first reports whether no term was written yet.
func (w *segmentWriter) first() bool { return w.page == 1 && w.noTerm }

// row writes that a row has the term, and where.
func (w *segmentWriter) row(n int64, places []place) {
	if w.noRow {
		binary.BigEndian.PutUint16(w.buf, uint16(len(w.buf)))
		w.buf = appendVarint(w.buf, uint64(n))
		w.noRow = false
		w.listed(n)
	} else {
		w.buf = appendVarint(w.buf, uint64(n-w.before))
	}
	w.before = n
	w.ends = w.ends[:0]
	last := uint32(0)
	for _, p := range places {
		w.ends = appendVarint(w.ends, uint64(p.at-last)+2)
		last = p.at
	}
	list := append(appendVarint(w.poslist[:0], uint64(len(w.ends))*2), w.ends...)
	w.poslist = list
	if len(w.buf)+len(w.footer)+len(list) <= w.size {
		w.buf = append(w.buf, list...)
		return
	}
	// What does not fit goes on on the next leaf; a number is never cut.
	for len(list) > 0 {
		room, k := w.size-len(w.buf)-len(w.footer), len(list)
		if k > room {
			for _, k = varint(list); ; {
				_, more := varint(list[k:])
				if more == 0 || k+more > room {
					break
				}
				k += more
			}
		}
		w.buf = append(w.buf, list[:k]...)
		list = list[k:]
		if w.full(0) {
			w.leaf()
		}
	}
}

// leaf ends a leaf.
func (w *segmentWriter) leaf() {
	binary.BigEndian.PutUint16(w.buf[2:], uint16(len(w.buf)))
	if w.noTerm {
		if l := &w.lists[0]; w.noRow && len(l.buf) > 0 {
			l.buf = append(l.buf, 0)
		}
		w.empty++
	} else {
		w.buf = append(w.buf, w.footer...)
	}
	w.put(0, w.page, false, w.buf)
	w.buf = append(w.buf[:0], 0, 0, 0, 0)
	w.footer, w.lastAt, w.noTerm, w.noRow = w.footer[:0], 0, true, true
	w.page++
}

// listed adds a row to the index of the pages of the term's rows: it is the first
// of its page.
func (w *segmentWriter) listed(n int64) {
	for i := 0; ; i++ {
		done := len(w.lists[i].buf) < w.size
		if !done {
			// The page of the index is full; its successor has a row one level up.
			w.lists[i].buf[0] = 1
			w.put(int64(i), w.lists[i].page, true, w.lists[i].buf)
			if i+1 == len(w.lists) {
				w.lists = append(w.lists, listIndex{})
			}
			l, up := &w.lists[i], &w.lists[i+1]
			if len(up.buf) == 0 {
				_, k := varint(l.buf[1:])
				first, _ := varint(l.buf[1+k:])
				up.page, up.last, up.has = l.page, int64(first), true
				up.buf = appendVarint(appendVarint(append(up.buf, 0), uint64(up.page)), first)
			}
			l.buf, l.has = l.buf[:0], false
			l.page++
		}
		l := &w.lists[i]
		v := uint64(n)
		switch {
		case l.has:
			v -= uint64(l.last)
		case i == 0:
			l.begin(done, w.page)
		default:
			l.begin(done, w.lists[i-1].page)
		}
		l.buf = appendVarint(l.buf, v)
		l.has, l.last = true, n
		if done {
			return
		}
	}
}

func (l *listIndex) begin(root bool, page int64) {
	flag := byte(1)
	if root {
		flag = 0
	}
	l.buf = appendVarint(append(l.buf, flag), uint64(page))
}

// entry stores the entry of the leaf that began a term last, and the index of the
// pages behind it where they are many.
func (w *segmentWriter) entry() {
	if w.splitPage == 0 {
		return
	}
	many := len(w.lists[0].buf) > 0 && w.empty >= minPages
	for i := range w.lists {
		l := &w.lists[i]
		if len(l.buf) == 0 {
			break
		}
		if many {
			w.put(int64(i), l.page, true, l.buf)
		}
		l.buf, l.has = l.buf[:0], false
	}
	at := w.splitPage << 1
	if many {
		at |= 1
	}
	if w.err == nil {
		w.err = w.begin(w.split, at)
	}
	w.empty, w.splitPage = 0, 0
}

func (w *segmentWriter) finish() error {
	if len(w.buf) > leafHead {
		w.leaf()
	}
	if w.page > 1 {
		w.entry()
	}
	return w.err
}

// leaves is how many were written.
func (w *segmentWriter) leaves() int64 { return w.page - 1 }

// structure is FTS5's record of the segments that there are.
type structure struct {
	cookie []byte
	writes uint64
	levels []level
}

type level struct {
	merging  uint64
	segments []segment
}

// segment is what the structure says of one.
type segment [8]uint64

const (
	segmentID = iota
	segmentFirst
	segmentLast
	segmentOrigin1
	segmentOrigin2
	segmentTombstonePages
	segmentTombstones
	segmentEntries
)

// structure2 begins the record where rows can be deleted without their texts.
var structure2 = []byte{0xff, 0, 0, 1}

var errStructure = &sqliteError{sqlite3.SQLITE_CORRUPT, "the structure of the full text index cannot be read"}

func readStructure(b []byte) (s structure, err error) {
	if len(b) < 8 || !bytes.Equal(b[4:8], structure2) {
		return s, errStructure
	}
	s.cookie, b = bytes.Clone(b[:4]), b[8:]
	next := func() uint64 {
		v, n := varint(b)
		if n == 0 || v > 1<<62 {
			err = errStructure
		}
		b = b[n:]
		return v
	}
	levels, total := next(), next()
	s.writes = next()
	for range min(levels, maxSegment) {
		l := level{merging: next()}
		for range min(next(), maxSegment) {
			var g segment
			for i := range g {
				g[i] = next()
			}
			l.segments = append(l.segments, g)
			total--
		}
		s.levels = append(s.levels, l)
	}
	if total != 0 || len(b) != 0 {
		err = errStructure
	}
	return s, err
}

func (s *structure) append(b []byte) []byte {
	b = append(append(b, s.cookie...), structure2...)
	total := 0
	for _, l := range s.levels {
		total += len(l.segments)
	}
	b = appendVarint(appendVarint(appendVarint(b, uint64(len(s.levels))), uint64(total)), s.writes)
	for _, l := range s.levels {
		b = appendVarint(appendVarint(b, l.merging), uint64(len(l.segments)))
		for _, g := range l.segments {
			for _, v := range g {
				b = appendVarint(b, v)
			}
		}
	}
	return b
}

// free gives a segment's id that is not in use, and the number that the rows of the
// next segment bear.
func (s *structure) free() (id, origin uint64) {
	var used [maxSegment + 2]bool
	for _, l := range s.levels {
		for _, g := range l.segments {
			used[min(g[segmentID], maxSegment+1)] = true
			origin = max(origin, g[segmentOrigin2])
		}
	}
	for id = 1; id <= maxSegment && used[id]; {
		id++
	}
	return id, origin + 1
}

// add puts a segment on bulkLevel, and tells how many stand there.
func (s *structure) add(g segment) int {
	for len(s.levels) <= bulkLevel {
		s.levels = append(s.levels, level{})
	}
	l := &s.levels[bulkLevel]
	l.segments = append(l.segments, g)
	s.writes += g[segmentLast]
	return len(l.segments)
}

// bulkTexts stores segments in the tables of the full text index.
type bulkTexts struct {
	c    *conn
	size int // of a page
	list *wordList
	*tokenizer

	get, put, block, begin *stmt
	sizes                  bulk

	// stale: SQLite may remember a structure of before.
	stale bool
}

// openBulk gives nil where the tables are of a form that is not known here.
func openBulk(f *file) (t *bulkTexts, err error) {
	if v, err := f.number("SELECT v FROM texts_config WHERE k='version'"); err != nil || v != ftsVersion {
		return nil, err
	}
	size, err := f.number("SELECT v FROM texts_config WHERE k='pgsz'")
	if err != nil {
		return nil, err
	}
	t = &bulkTexts{c: f.c, size: cmp.Or(int(size), leafSize), list: newWordList()}
	for _, p := range []struct {
		to  **stmt
		sql string
	}{
		{&t.get, "SELECT block FROM texts_data WHERE id=?"},
		{&t.put, "UPDATE texts_data SET block=? WHERE id=?"},
		{&t.block, "INSERT INTO texts_data VALUES (?,?)"},
		{&t.begin, "INSERT INTO texts_idx VALUES (?,ifnull(?,x''),?)"},
	} {
		if *p.to, err = f.c.prepare(p.sql); err != nil {
			return nil, err
		}
	}
	if t.sizes, err = f.c.prepareBulk("INSERT OR FAIL INTO texts_docsize", 3, bulkRows); err != nil {
		return nil, err
	}
	t.tokenizer, err = openTokenizer(f.c)
	return t, err
}

func (t *bulkTexts) read(id int64) ([]byte, error) {
	found, err := t.get.int(id).row()
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errStructure
	}
	b := bytes.Clone(t.get.colBytes(0))
	return b, t.get.done()
}

// write stores what was gathered as one segment, and tells whether there are so many
// that they should be merged.
func (t *bulkTexts) write() (merge bool, err error) {
	l := t.list
	if len(l.docs) == 0 {
		return false, nil
	}
	t.stale = true
	b, err := t.read(structureRow)
	if err != nil {
		return false, err
	}
	s, err := readStructure(b)
	if err != nil {
		return false, err
	}
	id, origin := s.free()
	if id > maxSegment {
		return false, errStructure
	}
	w := newSegmentWriter(int64(id), t.size, func(id int64, b []byte) error { return t.block.int(id).blob(b).run() },
		func(term []byte, page int64) error { return t.begin.int(int64(id)).blob(term).int(page).run() })
	if err := l.write(w); err != nil {
		return false, err
	}
	if w.leaves() > 0 {
		merge = s.add(segment{segmentID: id, segmentFirst: 1, segmentLast: uint64(w.leaves()), segmentOrigin1: origin, segmentOrigin2: origin, segmentEntries: uint64(len(l.docs))}) >= mergeAt
	}
	var size [9]byte
	if err := t.sizes.insert(len(l.docs), func(q *stmt, i int) {
		q.int(l.docs[i].n).blob(appendVarint(size[:0], uint64(l.docs[i].end-l.docs[i].start))).int(int64(origin))
	}); err != nil {
		return false, err
	}
	if b, err = t.read(averagesRow); err != nil {
		return false, err
	}
	rows, n := varint(b)
	words, _ := varint(b[n:])
	b = appendVarint(appendVarint(b[:0], rows+uint64(len(l.docs))), words+uint64(len(l.words)))
	return merge, errors.Join(t.put.blob(b).int(averagesRow).run(), t.put.blob(s.append(nil)).int(structureRow).run())
}

// refresh makes SQLite read the structure anew: a connection notices what others
// write, but not what it writes itself. No transaction is open.
func (t *bulkTexts) refresh() error {
	if !t.stale {
		return nil
	}
	if err := t.c.exec("BEGIN IMMEDIATE; INSERT INTO texts (texts) VALUES ('flush'); ROLLBACK"); err != nil {
		return err
	}
	t.stale = false
	return nil
}

// merge makes one segment of those of a level that has many.
func (t *bulkTexts) merge() error {
	return errors.Join(t.refresh(), t.c.exec("INSERT INTO texts (texts, rank) VALUES ('merge', 1000000000)"))
}
