//go:build unix

package index

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// leaveFiles takes all file descriptors of the process but n.
func leaveFiles(t *testing.T, n int) (giveBack func()) {
	t.Helper()
	var taken []*os.File
	give := func(n int) {
		for range min(n, len(taken)) {
			taken[len(taken)-1].Close()
			taken = taken[:len(taken)-1]
		}
	}
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, f)
	}
	give(n)
	return func() { give(len(taken)) }
}

// TestOutOfFiles: opening an index with too few free descriptors fails without losing
// the index. The index is unfinished by another process, so Open checks more.
func TestOutOfFiles(t *testing.T) {
	// The limit holds for a whole process, so the test runs in one of its own.
	const child = "PARLEY_INDEX_LIMITED"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOutOfFiles$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	j, _ := filled(t, 40)
	path := filepath.Join(t.TempDir(), "index.db")
	c := Config{Journal: j, Path: path}
	x, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.Wait(t.Context()), x.Close()); err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 100, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := range 16 {
		giveBack := leaveFiles(t, n)
		x, err := Open(t.Context(), c)
		if err == nil {
			err = x.Close()
		} else {
			failed++
		}
		giveBack()
		x, again := Open(t.Context(), c)
		if again != nil {
			t.Fatal(again)
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := x.Stats(); s.Indexed > 0 || s.Rebuilds > 0 {
			t.Errorf("with %d descriptors (%v): %d records were indexed again", n, err, s.Indexed)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if failed < 4 {
		t.Errorf("opened %d times with too few descriptors", 16-failed)
	}
}

// TestReadOnlyFile: if SQLite gets a descriptor only at its second attempt, the file is
// open read-only. The index is opened again, and not rebuilt.
func TestReadOnlyFile(t *testing.T) {
	j, a := filled(t, 5)
	x := openIndex(t, Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"), retry: time.Millisecond})
	if err := x.do(t.Context(), func(s *store) error { return execute(s.c, "PRAGMA query_only=1", nil) }); err != nil {
		t.Fatal(err)
	}
	a.append(t)
	compare(t, x, j)
	if s := x.Stats(); s.Rebuilds != 0 {
		t.Errorf("the index was rebuilt %d times", s.Rebuilds)
	}
}
