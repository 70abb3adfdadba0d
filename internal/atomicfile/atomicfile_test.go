package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secret")
	// An old file with a wide mode, and the rest of a crash.
	for _, name := range []string{path, path + ".new"} {
		if err := os.WriteFile(name, []byte("before"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"now", ""} {
		if err := Replace(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		i, err := os.Stat(path)
		if err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", i, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%q %v, want %q", b, err, want)
		}
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
	if err := Replace(filepath.Join(dir, "nowhere", "secret"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	// A failed replacement leaves nothing behind.
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "taken"), []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.new")); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}
