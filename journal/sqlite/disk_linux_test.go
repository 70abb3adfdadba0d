package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/parley-hub/parley/journal/store"
)

// become replaces the store's open descriptors of a file by another file's; undo
// restores them.
func become(t *testing.T, s *Store, name, other string) (undo func()) {
	t.Helper()
	f, err := os.OpenFile(other, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var open []int // collected first: a duplicate may get a number that is later in the list
	for _, e := range entries {
		link, _ := os.Readlink(filepath.Join("/proc/self/fd", e.Name())) // some are closed meanwhile
		if link == filepath.Join(s.cfg.Dir, name) {
			fd, err := strconv.Atoi(e.Name())
			must(t, err)
			open = append(open, fd)
		}
	}
	was := map[int]int{}
	for _, fd := range open {
		saved, err := syscall.Dup(fd)
		must(t, err)
		must(t, syscall.Dup3(int(f.Fd()), fd, syscall.O_CLOEXEC))
		was[fd] = saved
	}
	if len(was) == 0 {
		t.Fatalf("%s is not open", name)
	}
	return func() {
		for fd, saved := range was {
			must(t, syscall.Dup3(saved, fd, syscall.O_CLOEXEC))
			must(t, syscall.Close(saved))
		}
	}
}

// TestDiskFull: on a full disk nothing is recorded, and appends work again when there is
// space.
func TestDiskFull(t *testing.T) {
	s := fresh(t, t.TempDir())
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("one")}}))
	must(t, s.truncate(t.Context())) // an empty WAL needs no reads
	undo := become(t, s, FileName+"-wal", "/dev/full")
	for range 3 {
		err := s.Append(t.Context(), 0, 1, []store.Record{{Data: []byte("two")}})
		if !errors.Is(err, store.ErrNoSpace) {
			t.Fatalf("error %v, want %v", err, store.ErrNoSpace)
		}
	}
	if _, err := s.Put(t.Context(), "s", store.Value{Key: "k"}, nil); !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("error %v, want %v", err, store.ErrNoSpace)
	}
	undo()
	must(t, s.Healthy())
	if n := last(t, s, 0); n != 1 {
		t.Fatalf("last sequence %d", n)
	}
	must(t, s.Append(t.Context(), 0, 1, []store.Record{{Data: []byte("two")}}))
	must(t, s.Close())
	s = open(t, s.cfg.Dir)
	if n := last(t, s, 0); n != 2 {
		t.Fatalf("last sequence %d", n)
	}
}

// TestSystemErrors: an error of the operating system that has no SQLite code is not
// reported as damage.
func TestSystemErrors(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, FileName+".new"), 0o700))
	_, err := Open(t.Context(), Config{Dir: dir})
	if !errors.Is(err, syscall.EISDIR) || errors.Is(err, store.ErrCorrupt) {
		t.Errorf("error %v, want %v alone", err, syscall.EISDIR)
	}
	s := &Store{path: "journal.db"}
	if err := s.explain(os.NewSyscallError("write", syscall.ENOSPC)); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("error %v, want %v", err, store.ErrNoSpace)
	}
}

// TestSyncFails: after a failed fsync the outcome is unknown, and the store accepts no
// change until it is opened again. /dev/null accepts writes, and cannot be synced.
func TestSyncFails(t *testing.T) {
	s := fresh(t, t.TempDir())
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("one")}}))
	undo := become(t, s, FileName+"-wal", "/dev/null")
	err := s.Append(t.Context(), 0, 1, []store.Record{{Data: []byte("two")}})
	if !errors.Is(err, store.ErrUnknown) {
		t.Errorf("error %v, want %v", err, store.ErrUnknown)
	}
	undo()
	if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), "start again") {
		t.Errorf("healthy: %v", err)
	}
	if err := s.Append(t.Context(), 0, 1, []store.Record{{}}); !errors.Is(err, store.ErrBusy) {
		t.Errorf("error %v, want %v", err, store.ErrBusy)
	}
	if err := s.Close(); err == nil {
		t.Error("Close does not report the failed fsync")
	}
	s = open(t, s.cfg.Dir)
	if n := last(t, s, 0); n != 1 && n != 2 {
		t.Errorf("last sequence %d", n)
	}
	must(t, s.Append(t.Context(), 0, last(t, s, 0), []store.Record{{Data: []byte("goes on")}}))
}

// TestSyncFailsBehindRefusal: after a refused request of a group, the outcome of a later
// request of the group is unknown as well if the fsync fails.
func TestSyncFailsBehindRefusal(t *testing.T) {
	s := fresh(t, t.TempDir())
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("one")}}))
	undo := become(t, s, FileName+"-wal", "/dev/null")
	release := hold(s)
	var requests sync.WaitGroup
	queue := func(after uint64, want error) {
		before := waiting(s)
		requests.Go(func() {
			err := s.Append(t.Context(), 0, after, []store.Record{{Data: []byte("two")}})
			if !errors.Is(err, want) {
				t.Errorf("append after record %d: error %v, want %v", after, err, want)
			}
		})
		for waiting(s) == before {
			runtime.Gosched()
		}
	}
	queue(7, store.ErrConflict)
	queue(1, store.ErrUnknown)
	release()
	requests.Wait()
	undo()
	if s.Close() == nil {
		t.Error("Close does not report the failed fsync")
	}
}

// TestCheckpointSyncFails: a checkpoint reports that the journal's file cannot be
// synced.
func TestCheckpointSyncFails(t *testing.T) {
	s := fresh(t, t.TempDir())
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: []byte("one")}}))
	defer become(t, s, FileName, "/dev/null")()
	err := s.truncate(t.Context())
	if err == nil || s.Healthy() == nil {
		t.Errorf("error %v, healthy %v", err, s.Healthy())
	}
}

// TestNoDescriptorsLeft: after Open the store works without further file descriptors.
func TestNoDescriptorsLeft(t *testing.T) {
	s := fresh(t, t.TempDir())
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	big := make([]byte, 10<<10)
	for n := range uint64(2000) {
		must(t, s.Append(t.Context(), 0, n, []store.Record{{Data: big, Tag: "t"}}))
	}
	for i := range 50 {
		_, err := s.Put(t.Context(), "s", store.Value{Key: strconv.Itoa(i), Data: big}, nil)
		must(t, err)
	}
	n := 0
	must(t, s.Range(t.Context(), "s", "", func(store.Value) bool { n++; return true }))
	must(t, s.Read(t.Context(), 0, 1, 2000, func(store.Record) bool { n++; return true }))
	if n != 2050 {
		t.Errorf("%d read", n)
	}
	must(t, s.Replace(t.Context(), 0, []store.Record{{Sequence: 5, Data: []byte("x")}}))
	must(t, s.Remove(t.Context(), 0, 1500))
	must(t, s.Healthy())
}
