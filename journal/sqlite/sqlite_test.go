package sqlite

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
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

// fresh makes a store with two partitions.
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

// TestCloseLeavesOneFile: after Close the directory has only the journal's file.
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

// TestOpenRefuses: a file that is not a journal of this release is refused and left unchanged.
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
			t.Error("Open made a file beside the older journal")
		}
	})
}

// TestOpenAfterCreateFailed: after a crash during the file's creation, the next Open
// succeeds.
func TestOpenAfterCreateFailed(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "journal.db.new"), []byte("half"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "journal.db.new-journal"), []byte("half"), 0o600))
	fresh(t, dir)
	if files, err := filepath.Glob(filepath.Join(dir, "*.new*")); err != nil || len(files) > 0 {
		t.Errorf("%q is left (%v)", files, err)
	}
}

// hold blocks the writer until the returned function is called.
func hold(s *Store) (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	go func() {
		_ = s.submit(context.Background(),
			&request{betweenGroups: func(*writer) error { close(held); <-free; return nil }})
	}()
	<-held
	return func() { close(free) }
}

// waiting returns the number of queued requests.
func waiting(s *Store) int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.queue)
}

// TestGroup: refused requests of a group do not affect the others.
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
		runtime.Gosched()
	}
	release()
	wg.Wait()
	for i, err := range errs {
		want := []error{nil, store.ErrConflict, store.ErrConflict, nil}[i%4]
		if i%4 == 3 { // before or after the append
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%d: %v", i, err)
			}
		} else if !errors.Is(err, want) {
			t.Errorf("%d: error %v, want %v", i, err, want)
		}
	}
	if last(t, s, 0) != 2 {
		t.Error("the append of the group was not recorded")
	}
}

// TestCopyOfFilesOpens: a copy of the files at any moment has every change acknowledged
// before.
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
			runtime.Gosched()
		}
		other := t.TempDir()
		mu.Lock()
		want, rev := acked, revision
		mu.Unlock()
		// No checkpoint may run between the two reads: a crash has both files of one
		// moment.
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

// TestWALBounded: the size of the WAL is bounded.
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

// TestReplaceBesideReader: a concurrent reader keeps old content in the WAL. Replace
// then returns ErrBusy in time, and succeeds after the reader has ended.
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
	if data := allFiles(t, dir); bytes.Contains(data, []byte("secret")) {
		t.Error("the files contain the replaced content")
	}
}

// TestRemoveGivesSpaceBack: removed records free their space in the file.
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
