package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// specimen is a closed journal and its expected content.
type specimen struct {
	file    []byte
	records [2]map[uint64]string
	values  map[string]string
	roots   []int64 // page numbers
}

// sealed returns a text with a checksum, as in the journal's records.
func sealed(text string) []byte {
	return append([]byte(fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text)))), text...)
}

var errChecksum = errors.New("its checksum is wrong")

func verify(_ int, r store.Record) error {
	if len(r.Data) < 8 || !bytes.Equal(sealed(string(r.Data[8:])), r.Data) {
		return errChecksum
	}
	return nil
}

func makeSpecimen(t *testing.T) *specimen {
	t.Helper()
	dir := t.TempDir()
	s := fresh(t, dir)
	sp := &specimen{values: map[string]string{}}
	random := rand.New(rand.NewPCG(1, 2))
	for p := range sp.records {
		sp.records[p] = map[uint64]string{}
		var records []store.Record
		for n := range uint64(1500) {
			text := fmt.Sprintf("record %d/%d ", p, n+1) + strings.Repeat("x", 1100)
			if n%100 == 7 {
				text += strings.Repeat("long", 5000)
			}
			r := store.Record{Data: sealed(text), About: store.About{Message: "m" + strconv.Itoa(int(n))}}
			if n%10 == 0 {
				r.Tag = "tag" + strconv.Itoa(int(n%70))
			}
			records = append(records, r)
			sp.records[p][n+1] = string(r.Data)
		}
		must(t, s.Append(t.Context(), p, 0, records))
		var other []store.Record
		for range 20 {
			seq := 200 + random.Uint64N(1000)
			data := sealed(strings.Repeat("replaced", 10+random.IntN(400)))
			other = append(other, store.Record{Sequence: seq, Data: data})
			sp.records[p][seq] = string(data)
		}
		must(t, s.Replace(t.Context(), p, other))
	}
	for i := range 500 {
		key := strconv.Itoa(i)
		sp.values[key] = "value " + key + strings.Repeat("v", random.IntN(300))
		_, err := s.Put(t.Context(), "s", store.Value{Key: key, Data: []byte(sp.values[key])}, nil)
		must(t, err)
	}
	must(t, s.Remove(t.Context(), 1, 101))
	for n := range uint64(100) {
		delete(sp.records[1], n+1)
	}
	must(t, s.reading(t.Context(), func(c *conn) error {
		return c.query("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0", func(st *sqlite.Stmt) error {
			sp.roots = append(sp.roots, st.ColumnInt64(0))
			return nil
		})
	}))
	must(t, s.Close())
	var err error
	sp.file, err = os.ReadFile(filepath.Join(dir, FileName))
	must(t, err)
	return sp
}

// flips returns the bits to flip: random ones, and some in each root page and in the
// first page.
func (sp *specimen) flips() (bits []int64) {
	random := rand.New(rand.NewPCG(20, 16))
	size := int64(len(sp.file)) * 8
	for range 20 {
		bits = append(bits, random.Int64N(size))
	}
	for _, page := range append([]int64{1}, sp.roots...) {
		at := (page - 1) * pageSize
		if page == 1 {
			at += 100 // after the file's header
		}
		bits = append(bits, at*8, (at+3)*8+2, (at+9)*8+4, (at+random.Int64N(3900))*8)
	}
	for i := range int64(4) {
		bits = append(bits, random.Int64N(100)*8+i) // the file's header
	}
	return bits
}

// TestOneBit: after one flipped bit the store opens, or its error names the repair
// command. Check finds the damage if it is in a record. Salvage loses at most the rows
// of one page, and reports each.
func TestOneBit(t *testing.T) {
	sp := makeSpecimen(t)
	for _, bit := range sp.flips() {
		t.Run(strconv.FormatInt(bit, 10), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			data := bytes.Clone(sp.file)
			data[bit/8] ^= 1 << (bit % 8)
			file := filepath.Join(dir, FileName)
			must(t, os.WriteFile(file, data, 0o600))
			sp.salvage(t, file, bit)
			if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, data) {
				t.Errorf("Salvage changed the file (%v)", err)
			}
			sp.open(t, dir)
		})
	}
}

func (sp *specimen) salvage(t *testing.T, file string, bit int64) {
	t.Helper()
	var got [2]map[uint64]string
	values, lost := map[string]string{}, map[string]bool{}
	var before uint64
	var named []Damage
	page := int(bit/8/pageSize) + 1
	wrong, wrongValues := 0, 0
	meta := 0
	err := Salvage(t.Context(), file, t.TempDir(), Rescue{
		Meta:  func(store.Meta) error { meta++; return nil },
		Value: func(_ string, v store.Value) error { values[v.Key] = string(v.Data); return nil },
		Record: func(p int, r store.Record) error {
			if p > 1 {
				t.Fatalf("partition %d", p)
			}
			if got[p] == nil {
				got[p], before = map[uint64]string{}, 0
			}
			if r.Sequence <= before {
				t.Errorf("record %d after %d", r.Sequence, before)
			}
			before = r.Sequence
			got[p][r.Sequence] = string(r.Data)
			return nil
		},
		Lost: func(d Damage) error {
			named = append(named, d)
			lost[fmt.Sprint(d.Partition, "/", d.Sequence)] = true
			return nil
		},
	})
	must(t, err)
	if meta == 0 {
		t.Error("no meta") // the file has two copies
	}
	missing := 0
	for p := range sp.records {
		for seq, want := range sp.records[p] {
			have, ok := got[p][seq]
			switch {
			case ok && have != want:
				if wrong++; verify(p, store.Record{Data: []byte(have)}) == nil {
					t.Errorf("record %d/%d differs, and its checksum is right", p, seq)
				}
			case !ok:
				if missing++; !lost[fmt.Sprint(p, "/", seq)] && !lost[fmt.Sprint(p, "/0")] {
					t.Errorf("record %d/%d is lost and not reported", p, seq)
				}
			}
		}
	}
	missingValues := 0
	for key, want := range sp.values {
		if have, ok := values[key]; !ok {
			missingValues++
		} else if have != want {
			wrongValues++
		}
	}
	if missingValues > 0 && !lost["-1/0"] {
		t.Errorf("%d values are lost and not reported", missingValues)
	}
	// Here a page has at most 3 records of the log, or 60 values of the state.
	if missing > 3 || wrong > 1 || missingValues > 60 || wrongValues > 1 {
		t.Errorf("page %d: %d records and %d values lost, %d and %d wrong; reported: %v",
			page, missing, missingValues, wrong, wrongValues, first(named, 5))
	}
	if n := missing + missingValues; len(named) > 2*n+8 {
		t.Errorf("page %d: %d losses reported for %d lost: %v", page, len(named), n, first(named, 20))
	}
	t.Logf("page %d: %d records and %d values lost, %d and %d wrong, %d reported", page, missing, missingValues, wrong,
		wrongValues, len(named))
}

func first(d []Damage, n int) []Damage { return d[:min(n, len(d))] }

// open opens a damaged journal. If Check finds no damage, every record must be readable.
func (sp *specimen) open(t *testing.T, dir string) {
	t.Helper()
	refused := func(err error) bool {
		if err == nil {
			return false
		}
		text := err.Error()
		named := errors.Is(err, store.ErrCorrupt) && strings.Contains(text, "parley journal")
		if !named && !errors.Is(err, store.ErrFormat) {
			t.Errorf("error %v", err)
		}
		return true
	}
	s, err := Open(t.Context(), Config{Dir: dir})
	if refused(err) {
		return
	}
	defer s.Close()
	if _, err := s.Meta(t.Context()); err != nil {
		if !errors.Is(err, store.ErrNotFound) {
			refused(err)
		}
		return
	}
	var steps, total uint64
	found, err := s.Check(t.Context(), func(d, of uint64) {
		if d < steps || d > of {
			t.Errorf("progress %d of %d after %d", d, of, steps)
		}
		steps, total = d, of
	}, verify)
	must(t, err)
	if steps != total {
		t.Errorf("progress ends at %d of %d", steps, total)
	}
	if len(found) > 0 {
		return
	}
	for p := range sp.records { // no damage was found: every record is readable
		n := 0
		err := s.Read(t.Context(), p, 0, 1<<40, func(r store.Record) bool {
			if sp.records[p][r.Sequence] == string(r.Data) {
				n++
			}
			return true
		})
		if err != nil || n != len(sp.records[p]) {
			t.Errorf("Check found no damage, but partition %d has %d records of %d (%v)", p, n, len(sp.records[p]), err)
		}
	}
}

// TestCheckAndSalvageWhole: in an undamaged journal Check finds nothing, and Salvage
// returns all rows, those in the WAL too.
func TestCheckAndSalvageWhole(t *testing.T) {
	sp := makeSpecimen(t)
	dir := t.TempDir()
	file := filepath.Join(dir, FileName)
	must(t, os.WriteFile(file, sp.file, 0o600))
	s := open(t, dir)
	found, err := s.Check(t.Context(), nil, verify)
	must(t, err)
	if len(found) > 0 {
		t.Errorf("found %v", found)
	}
	text := string(sealed("in the WAL"))
	must(t, s.Append(t.Context(), 0, 1500, []store.Record{{Data: []byte(text)}}))
	sp.records[0][1501] = text
	n := 0
	must(t, Salvage(t.Context(), file, t.TempDir(), Rescue{
		Meta:  func(store.Meta) error { return nil },
		Value: func(string, store.Value) error { n++; return nil },
		Record: func(p int, r store.Record) error {
			if sp.records[p][r.Sequence] != string(r.Data) {
				t.Errorf("record %d/%d differs", p, r.Sequence)
			}
			n++
			return nil
		},
		Lost: func(d Damage) error { t.Errorf("lost %v", d); return nil },
	}))
	if want := len(sp.records[0]) + len(sp.records[1]) + len(sp.values); n != want {
		t.Errorf("%d rows, want %d", n, want)
	}
}

// TestOneBitOfTheSchema: after one flipped bit in SQLite's schema table the error names
// the repair command, because the store's own statements are right.
func TestOneBitOfTheSchema(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("x"), Tag: "t"}}))
	_, err := s.Put(t.Context(), "s", store.Value{Key: "k"}, nil)
	must(t, err)
	must(t, s.Close())
	file, err := os.ReadFile(filepath.Join(dir, FileName))
	must(t, err)
	random := rand.New(rand.NewPCG(16, 20))
	stride := 16
	if testing.Short() {
		stride = 300
	}
	for at := 100 + random.IntN(8); at < pageSize; at += 1 + random.IntN(stride) {
		bit := random.IntN(8)
		t.Run(fmt.Sprint(at, ".", bit), func(t *testing.T) {
			dir := t.TempDir()
			data := bytes.Clone(file)
			data[at] ^= 1 << bit
			must(t, os.WriteFile(filepath.Join(dir, FileName), data, 0o600))
			s, err := Open(t.Context(), Config{Dir: dir})
			if err == nil {
				_, err = s.Meta(t.Context())
				if err == nil {
					err = s.Append(t.Context(), 0, last(t, s, 0), []store.Record{{Data: []byte("y"), Tag: "t"}})
				}
				if err == nil {
					_, err = s.Tagged(t.Context(), 0, "t")
				}
				if err == nil {
					err = s.Read(t.Context(), 0, 1, 2, func(store.Record) bool { return true })
				}
				if err == nil {
					_, err = s.Put(t.Context(), "s", store.Value{Key: "k"}, nil)
				}
				if err == nil {
					err = s.Range(t.Context(), "s", "", func(store.Value) bool { return true })
				}
				if err == nil {
					err = s.Remove(t.Context(), 0, 2)
				}
				if err == nil {
					err = s.Scrub(t.Context(), time.Now())
				}
				if end := s.Close(); err == nil {
					err = end
				}
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) &&
				(!errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "parley journal salvage")) {
				t.Error(err)
			}
		})
	}
}
