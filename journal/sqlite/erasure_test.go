package sqlite

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// allFiles returns the content of all files of a directory.
func allFiles(t testing.TB, dir string) (all []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(t, err)
		all = append(append(all, data...), '\n')
	}
	return all
}

// TestErasure: after random changes the files contain no erased content, and current
// content is unchanged. With plain updates and deletes of a table, about one in a
// thousand values would stay in the file. PARLEY_ERASURE_STEPS sets a longer run.
func TestErasure(t *testing.T) {
	seeds, steps := 4, 80
	if testing.Short() {
		seeds = 1
	}
	if text := os.Getenv("PARLEY_ERASURE_STEPS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		seeds, steps = 12, n
	}
	for seed := range uint64(seeds) {
		t.Run(strconv.Itoa(int(seed)), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 16))
			e := &erasure{
				T: t, dir: t.TempDir(), random: random, largest: []int{100, 1500, 6000}[random.IntN(3)],
				gone: map[string]bool{}, goneState: map[string]bool{}, values: map[string]string{},
				first: [2]uint64{1, 1},
			}
			e.s = fresh(t, e.dir)
			for range steps {
				e.step()
			}
			e.check(true)
			must(t, e.s.Close())
			e.s = open(t, e.dir)
			e.check(true)
		})
	}
}

// erasure is a store that is changed at random, and its expected content.
type erasure struct {
	*testing.T
	s               *Store
	dir             string
	random          *rand.Rand
	largest         int
	n               int
	gone, goneState map[string]bool // marks of erased records and values
	values          map[string]string
	first           [2]uint64
	logs            [2][]erasable
}

type erasable struct{ data, message string }

func (e *erasure) mark() string {
	e.n++
	return fmt.Sprintf("mark%08d;", e.n)
}

// data repeats a mark, so that every fragment of the data can be found.
func (e *erasure) data() string {
	return strings.Repeat(e.mark(), 1+e.random.IntN(e.largest/13))
}

func erased(gone map[string]bool, data string) {
	if data != "" {
		gone[data[:13]] = true
	}
}

func (e *erasure) step() {
	t, s, random := e.T, e.s, e.random
	switch p := random.IntN(2); random.IntN(16) {
	case 0, 1, 2:
		var records []store.Record
		for range 1 + random.IntN(60) {
			x := erasable{e.data(), e.mark()}
			r := store.Record{Data: []byte(x.data)}
			r.About = store.About{Time: time.Unix(1e9, 0), Kind: "request", Message: x.message, From: "ann", To: "bob"}
			if random.IntN(5) == 0 {
				r.Tag = "tag" + strconv.Itoa(random.IntN(10))
			}
			records = append(records, r)
			e.logs[p] = append(e.logs[p], x)
		}
		must(t, s.Append(t.Context(), p, last(t, s, p), records))
	case 3, 4:
		if len(e.logs[p]) == 0 {
			return
		}
		var records []store.Record
		at := random.IntN(len(e.logs[p]))
		for i := at; i < len(e.logs[p]) && i < at+20; i += 1 + random.IntN(4) {
			erased(e.gone, e.logs[p][i].data)
			erased(e.gone, e.logs[p][i].message)
			x := erasable{data: e.data()}
			if random.IntN(2) == 0 {
				x.data = x.data[:13]
			}
			e.logs[p][i] = x
			records = append(records, store.Record{Sequence: e.first[p] + uint64(i), Data: []byte(x.data)})
		}
		must(t, s.Replace(t.Context(), p, records))
		e.check(false)
	case 5:
		k := random.IntN(len(e.logs[p])/3 + 1)
		for _, x := range e.logs[p][:k] {
			erased(e.gone, x.data)
			erased(e.gone, x.message)
		}
		e.logs[p] = e.logs[p][k:]
		e.first[p] += uint64(k)
		must(t, s.Remove(t.Context(), p, e.first[p]))
		e.check(false)
	case 6:
		must(t, s.submit(t.Context(), &request{betweenGroups: func(w *writer) error { return w.tidy(time.Time{}) }}))
	case 7:
		e.check(true)
	default:
		e.change()
	}
}

// change puts and removes values, some of them while a Scrub runs.
func (e *erasure) change() {
	t, s := e.T, e.s
	var wg sync.WaitGroup
	if e.random.IntN(4) == 0 {
		wg.Go(func() {
			if err := s.Scrub(t.Context(), time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, k := range e.random.Perm(300)[:60] {
		key := strconv.Itoa(k)
		erased(e.goneState, e.values[key])
		delete(e.values, key)
		v := store.Value{Key: key}
		if v.Deleted = e.random.IntN(3) == 0; !v.Deleted {
			e.values[key] = e.data()
			v.Data = []byte(e.values[key])
		}
		wg.Go(func() {
			var err error
			if v.Deleted {
				_, err = s.Delete(t.Context(), "s", v.Key, nil)
			} else {
				_, err = s.Put(t.Context(), "s", v, nil)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// check compares the store with the expected content, and searches the files for erased
// marks: for those of values only after a Scrub.
func (e *erasure) check(state bool) {
	t, s := e.T, e.s
	t.Helper()
	if state {
		must(t, s.Scrub(t.Context(), time.Now()))
	}
	left := 0
	for data := allFiles(t, e.dir); ; data = data[4:] {
		at := bytes.Index(data, []byte("mark"))
		if at < 0 || len(data) < at+13 {
			break
		}
		data = data[at:]
		if e.gone[string(data[:13])] || state && e.goneState[string(data[:13])] {
			left++
		}
	}
	if left > 0 {
		t.Errorf("the files contain erased content in %d places", left)
	}
	for p := range e.logs {
		i := 0
		must(t, s.Read(t.Context(), p, 0, 1<<40, func(r store.Record) bool {
			if r.Sequence != e.first[p]+uint64(i) || string(r.Data) != e.logs[p][i].data {
				t.Fatalf("partition %d: record %d has changed", p, r.Sequence)
			}
			i++
			return true
		}))
		if i != len(e.logs[p]) {
			t.Errorf("partition %d: %d records, want %d", p, i, len(e.logs[p]))
		}
	}
	i := 0
	must(t, s.Range(t.Context(), "s", "", func(v store.Value) bool {
		if e.values[v.Key] != string(v.Data) {
			t.Fatalf("value %q has changed", v.Key)
		}
		i++
		return true
	}))
	if i != len(e.values) {
		t.Errorf("%d values, want %d", i, len(e.values))
	}
	bad := ""
	must(t, s.reading(t.Context(), func(c *conn) error {
		return c.query("PRAGMA integrity_check", func(st *sqlite.Stmt) error { bad += st.ColumnText(0); return nil })
	}))
	if bad != "ok" {
		t.Error(bad)
	}
}

// TestReplaceMany: Replace empties the WAL even if it was copied into the file just
// before.
func TestReplaceMany(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	var records []store.Record
	for range walBytes / pageSize {
		records = append(records, store.Record{Data: []byte("secret")})
	}
	must(t, s.Append(t.Context(), 0, 0, records))
	for i := range records {
		records[i] = store.Record{Sequence: uint64(i + 1), Data: []byte("public")}
	}
	must(t, s.Replace(t.Context(), 0, records))
	if n := strings.Count(string(allFiles(t, dir)), "secret"); n > 0 {
		t.Errorf("the files contain the replaced content %d times", n)
	}
}
