// Package atomicfile replaces small files that only their owner may read: a crash
// leaves the old content or the new one, and no other user can open the new one at
// any moment.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parley-hub/parley/internal/disk"
)

// Replace makes b the content of the file at path, with mode 0600 whatever mode
// the file had before. It returns when file and directory are synced. Two
// callers must not replace the same file at the same time.
func Replace(path string, b []byte) error {
	next := path + ".new"
	// A file that a crash left may have another mode, or belong to another user.
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return disk.SyncDir(filepath.Dir(path))
}
