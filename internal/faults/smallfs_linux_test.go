package faults

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallFS gives an empty directory on a file system of some 64 MiB for this test alone:
// one that it mounts, or the one that PARLEY_SMALLFS names.
func smallFS(t *testing.T) string {
	t.Helper()
	if at := os.Getenv("PARLEY_SMALLFS"); at != "" {
		dir, err := os.MkdirTemp(at, "parley-")
		if err != nil {
			t.Fatalf("PARLEY_SMALLFS: %v", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	at := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m"); err != nil {
		lacking(t, "the test cannot mount a small file system (%v); name one of some 64 MiB with PARLEY_SMALLFS", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}
