package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/journal/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Place {
		dir := t.TempDir()
		return storetest.Place{Dir: dir, Open: func() (store.Store, error) {
			return Open(t.Context(), Config{Dir: dir})
		}}
	})
}

func TestContractMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Place {
		return storetest.Place{Forgets: true, Open: func() (store.Store, error) {
			return Open(t.Context(), Config{Memory: true})
		}}
	})
}

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(context.Background(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, store.ErrClosed) && s.broken() == nil {
			t.Error(err)
		}
	})
	return s
}

// fresh gives a store with two partitions.
func fresh(t testing.TB, dir string) *Store {
	t.Helper()
	s := open(t, dir)
	must(t, s.Init(t.Context(), store.Meta{Format: 1, Prefix: "PARLEY", Partitions: 2, Created: time.Unix(1, 0)}))
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func last(t testing.TB, s *Store, partition int) uint64 {
	t.Helper()
	span, err := s.Span(t.Context(), partition)
	must(t, err)
	return span.Last
}

// After Close the file is all there is.
func TestCloseLeavesOneFile(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("x")}}))
	must(t, s.Close())
	var names []string
	files, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range files {
		names = append(names, f.Name())
	}
	if want := []string{"journal.db", "lock"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// What is not a journal of this release is refused, and stays as it is.
func TestOpenRefuses(t *testing.T) {
	journal := func(t *testing.T, dir string) []byte {
		must(t, fresh(t, dir).Close())
		data, err := os.ReadFile(filepath.Join(dir, FileName))
		must(t, err)
		return data
	}
	for _, test := range []struct {
		name string
		make func(t *testing.T, dir string) []byte
		want error
		text string
	}{
		{"text", func(*testing.T, string) []byte { return bytes.Repeat([]byte("text"), 2000) }, store.ErrForeign, ""},
		{"short", func(*testing.T, string) []byte { return []byte("SQLite format 3\x00") }, store.ErrForeign, ""},
		{"empty", func(*testing.T, string) []byte { return nil }, store.ErrForeign, ""},
		{"other application", func(t *testing.T, dir string) []byte {
			data := journal(t, dir)
			copy(data[68:], "\x0f\x05\x51\x12")
			return data
		}, store.ErrForeign, ""},
		{"newer", func(t *testing.T, dir string) []byte {
			data := journal(t, dir)
			data[63] = formatVersion + 1
			return data
		}, store.ErrFormat, "2"},
		{"one bit", func(t *testing.T, dir string) []byte {
			data := journal(t, dir)
			data[3] ^= 4
			return data
		}, store.ErrCorrupt, "parley journal salvage"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, FileName)
			data := test.make(t, dir)
			must(t, os.WriteFile(path, data, 0o600))
			_, err := Open(t.Context(), Config{Dir: dir})
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want %v with %q", err, test.want, test.text)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
	t.Run("older release", func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "journal.json"), []byte("{}"), 0o600))
		must(t, os.Mkdir(filepath.Join(dir, "engine"), 0o700))
		_, err := Open(t.Context(), Config{Dir: dir})
		if !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "parley restore") {
			t.Errorf("error %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, FileName)); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a file was made beside it")
		}
	})
}

// A crash while the file was being made leaves nothing that is in the way.
func TestOpenAfterCreateFailed(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "journal.db.new"), []byte("half"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "journal.db.new-journal"), []byte("half"), 0o600))
	fresh(t, dir)
	if files, err := filepath.Glob(filepath.Join(dir, "*.new*")); err != nil || len(files) > 0 {
		t.Errorf("%q is left (%v)", files, err)
	}
}

// hold stops the writer until the returned function is called.
func hold(s *Store) (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	go func() {
		_ = s.submit(context.Background(), &request{alone: func(*writer) error { close(held); <-free; return nil }})
	}()
	<-held
	return func() { close(free) }
}

// waiting gives how many requests the writer has not taken.
func waiting(s *Store) int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.queue)
}

// Requests of one group that are refused do not harm the others.
func TestGroup(t *testing.T) {
	s := fresh(t, t.TempDir())
	release := hold(s)
	var wg sync.WaitGroup
	errs := make([]error, 40)
	for i := range errs {
		wg.Go(func() {
			zero, one := uint64(0), uint64(99)
			switch i % 4 {
			case 0:
				_, errs[i] = s.Put(t.Context(), "s", store.Value{Key: strconv.Itoa(i), Data: []byte("x")}, &zero)
			case 1:
				_, errs[i] = s.Put(t.Context(), "s", store.Value{Key: strconv.Itoa(i)}, &one)
			case 2:
				errs[i] = s.Append(t.Context(), 1, 7, []store.Record{{Data: []byte("no")}})
			case 3:
				errs[i] = s.Replace(t.Context(), 0, []store.Record{{Sequence: 1}})
			}
		})
	}
	wg.Go(func() {
		if err := s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("x")}, {Data: []byte("y")}}); err != nil {
			t.Error(err)
		}
	})
	for waiting(s) < len(errs)+1 {
		time.Sleep(0)
	}
	release()
	wg.Wait()
	for i, err := range errs {
		want := []error{nil, store.ErrConflict, store.ErrConflict, nil}[i%4]
		if i%4 == 3 { // before or behind the append
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%d: %v", i, err)
			}
		} else if !errors.Is(err, want) {
			t.Errorf("%d: error %v, want %v", i, err, want)
		}
	}
	if last(t, s, 0) != 2 {
		t.Error("the append is not there")
	}
}

// A copy of the files, taken at any moment, has what was acknowledged before.
func TestCopyOfFilesOpens(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked, revision := [2]uint64{}, uint64(0)
	for p := range acked {
		wg.Go(func() {
			for n := uint64(0); ctx.Err() == nil; n++ {
				record := store.Record{Data: bytes.Repeat([]byte{byte(n)}, 1200)}
				if err := s.Append(t.Context(), p, n, []store.Record{record}); err != nil {
					t.Error(err)
					return
				}
				v := store.Value{Key: strconv.Itoa(p), Data: []byte(strconv.FormatUint(n, 10))}
				rev, err := s.Put(t.Context(), "s", v, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acked[p], revision = n+1, max(revision, rev)
				mu.Unlock()
			}
		})
	}
	for range 8 {
		for {
			mu.Lock()
			n := acked[0]
			mu.Unlock()
			if n%100 > 50 {
				break
			}
			time.Sleep(0)
		}
		other := t.TempDir()
		mu.Lock()
		want, rev := acked, revision
		mu.Unlock()
		// No checkpoint between the two reads, as a crash has none.
		release := hold(s)
		for _, name := range []string{FileName, FileName + "-wal"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(other, name), data, 0o600))
		}
		release()
		copied := open(t, other)
		for p := range want {
			if got := last(t, copied, p); got < want[p] {
				t.Errorf("partition %d: %d records of %d", p, got, want[p])
			}
		}
		next, err := copied.Put(t.Context(), "s", store.Value{Key: "x"}, nil)
		must(t, err)
		if next <= rev {
			t.Errorf("revision %d after %d", next, rev)
		}
		must(t, copied.Close())
	}
	cancel()
	wg.Wait()
}

// The WAL is bounded, and so is what a reader holds of it.
func TestWALBounded(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	var records []store.Record
	for range 200 {
		records = append(records, store.Record{Data: make([]byte, 1200)})
	}
	for n := range 300 { // 72 MB
		must(t, s.Append(t.Context(), 0, uint64(n*200), records))
	}
	info, err := os.Stat(filepath.Join(dir, FileName+"-wal"))
	must(t, err)
	if info.Size() > 4*walBytes {
		t.Errorf("the WAL has %d bytes", info.Size())
	}
}

// A program that reads keeps old content in the WAL. Replace says so, in time,
// and works when it has gone.
func TestReplaceBesideReader(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("secret")}}))
	c, err := openConn(filepath.Join(dir, FileName), sqlite.OpenReadOnly, 100)
	must(t, err)
	defer c.Close()
	must(t, c.exec("BEGIN"))
	_, err = c.int("SELECT count(*) FROM log")
	must(t, err)
	err = s.Replace(t.Context(), 0, []store.Record{{Sequence: 1, Data: []byte("x")}})
	if !errors.Is(err, store.ErrBusy) {
		t.Fatalf("error %v, want %v", err, store.ErrBusy)
	}
	must(t, s.Append(t.Context(), 0, 1, []store.Record{{Data: []byte("goes on")}}))
	must(t, c.exec("COMMIT"))
	must(t, s.Replace(t.Context(), 0, []store.Record{{Sequence: 1, Data: []byte("x")}}))
	if n := find(t, dir, []string{"secret"}); n > 0 {
		t.Error("the secret is still there")
	}
}

// find gives how many of some texts are in the files of a directory.
func find(t testing.TB, dir string, texts []string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	var all [][]byte
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(t, err)
		all = append(all, data)
	}
	for _, text := range texts {
		if slices.ContainsFunc(all, func(data []byte) bool { return bytes.Contains(data, []byte(text)) }) {
			n++
		}
	}
	return n
}

// Random changes leave no old content, and keep what is valid. With plain
// updates and deletes about one in a thousand values stays in the file.
func TestErasure(t *testing.T) {
	seeds := 4
	if testing.Short() {
		seeds = 1
	}
	for seed := range uint64(seeds) {
		t.Run(strconv.Itoa(int(seed)), func(t *testing.T) {
			t.Parallel()
			eraseAtRandom(t, rand.New(rand.NewPCG(seed, 16)))
		})
	}
}

func eraseAtRandom(t *testing.T, random *rand.Rand) {
	dir := t.TempDir()
	s := fresh(t, dir)
	n := 0
	var gone []string
	largest := []int{100, 1500, 6000}[random.IntN(3)]
	mark := func() string { n++; return fmt.Sprintf("mark%08d;", n) }
	data := func() []byte { return []byte(mark() + strings.Repeat("x", random.IntN(largest))) }
	values := map[string]string{}
	first, logs := [2]uint64{1, 1}, [2][]string{}
	for range 250 {
		switch p := random.IntN(2); random.IntN(12) {
		case 0, 1, 2:
			var records []store.Record
			for range 1 + random.IntN(60) {
				r := store.Record{Data: data()}
				r.About = store.About{Kind: "request", Message: mark(), From: "ann", To: "bob"}
				if random.IntN(5) == 0 {
					r.Tag = "tag" + strconv.Itoa(random.IntN(10))
				}
				records = append(records, r)
				logs[p] = append(logs[p], string(r.Data))
			}
			must(t, s.Append(t.Context(), p, last(t, s, p), records))
		case 3, 4:
			if len(logs[p]) == 0 {
				continue
			}
			var records []store.Record
			at := random.IntN(len(logs[p]))
			for i := at; i < len(logs[p]) && i < at+20; i += 1 + random.IntN(4) {
				gone = append(gone, logs[p][i][:13])
				d := data()
				if random.IntN(2) == 0 {
					d = d[:13]
				}
				logs[p][i] = string(d)
				records = append(records, store.Record{Sequence: first[p] + uint64(i), Data: d})
			}
			must(t, s.Replace(t.Context(), p, records))
		case 5:
			k := random.IntN(len(logs[p])/3 + 1)
			for _, d := range logs[p][:k] {
				gone = append(gone, d[:13])
			}
			logs[p] = logs[p][k:]
			first[p] += uint64(k)
			must(t, s.Remove(t.Context(), p, first[p]))
		default:
			var wg sync.WaitGroup
			for _, k := range random.Perm(300)[:60] {
				key := strconv.Itoa(k)
				if old, ok := values[key]; ok {
					gone = append(gone, old[:13])
				}
				if random.IntN(3) == 0 {
					delete(values, key)
					wg.Go(func() {
						if _, err := s.Delete(t.Context(), "s", key, nil); err != nil {
							t.Error(err)
						}
					})
					continue
				}
				v := data()
				values[key] = string(v)
				wg.Go(func() {
					if _, err := s.Put(t.Context(), "s", store.Value{Key: key, Data: v}, nil); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	}
	must(t, s.Scrub(t.Context(), time.Now()))
	check := func() {
		t.Helper()
		if n := find(t, dir, gone); n > 0 {
			t.Errorf("%d of %d erased texts are still there", n, len(gone))
		}
		for p := range logs {
			i := 0
			must(t, s.Read(t.Context(), p, 0, 1<<40, func(r store.Record) bool {
				if r.Sequence != first[p]+uint64(i) || string(r.Data) != logs[p][i] {
					t.Fatalf("partition %d: record %d is not what it was", p, r.Sequence)
				}
				i++
				return true
			}))
			if i != len(logs[p]) {
				t.Errorf("partition %d: %d records, want %d", p, i, len(logs[p]))
			}
		}
		i := 0
		must(t, s.Range(t.Context(), "s", "", func(v store.Value) bool {
			if values[v.Key] != string(v.Data) {
				t.Fatalf("value %q is not what it was", v.Key)
			}
			i++
			return true
		}))
		if i != len(values) {
			t.Errorf("%d values, want %d", i, len(values))
		}
		bad := ""
		must(t, s.reading(t.Context(), func(c *conn) error {
			return c.query("PRAGMA integrity_check", func(st *sqlite.Stmt) bool { bad += st.ColumnText(0); return true })
		}))
		if bad != "ok" {
			t.Error(bad)
		}
	}
	check()
	must(t, s.Close())
	s = open(t, dir)
	check()
}

// The state's table does not grow without end where few values change often.
func TestStateIsCleaned(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	_, err := s.Put(t.Context(), "s", store.Value{Key: "stays", Data: []byte("here")}, nil)
	must(t, err)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := range 400 {
				key := fmt.Sprintf("%d/%d", g, i)
				if _, err := s.Put(t.Context(), "s", store.Value{Key: key, Data: make([]byte, 500)}, nil); err != nil {
					t.Error(err)
				}
				if _, err := s.Delete(t.Context(), "s", key, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	rows := int64(0)
	must(t, s.reading(t.Context(), func(c *conn) (err error) {
		rows, err = c.int("SELECT count(*) FROM state")
		return err
	}))
	if rows > 6000 {
		t.Errorf("%d rows for one value", rows)
	}
	v, err := s.Get(t.Context(), "s", "stays")
	must(t, err)
	if string(v.Data) != "here" || v.Revision != 1 {
		t.Errorf("the value that stays is %+v", v)
	}
}

// What is removed gives its space back.
func TestRemoveGivesSpaceBack(t *testing.T) {
	dir := t.TempDir()
	s := fresh(t, dir)
	for n := range 20 {
		var records []store.Record
		for range 500 {
			records = append(records, store.Record{Data: make([]byte, 2000)})
		}
		must(t, s.Append(t.Context(), n%2, last(t, s, n%2), records))
	}
	must(t, s.Remove(t.Context(), 0, 4900))
	info, err := os.Stat(filepath.Join(dir, FileName))
	must(t, err)
	if want := int64(5100*2000) * 8 / 5; info.Size() > want {
		t.Errorf("%d bytes for 5,100 records of 2,000", info.Size())
	}
}
