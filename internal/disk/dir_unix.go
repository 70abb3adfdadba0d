//go:build unix

package disk

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

func openDir(path string) (*os.File, error) { return os.Open(path) }

// SyncDir makes the entries of a directory durable: a file that was made, renamed or
// removed there stays so after a power cut. On Windows it does nothing: a directory
// cannot be synced there, and NTFS keeps a log of its own.
func SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// IsFull reports whether a write failed because the disk, or this user's share of
// it, is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// OthersMay reports whether users other than the owner of a file, or of a
// directory, may read or change it. A mode says nothing on Windows: there it is
// always false, and the access list has to be looked at by other means.
func OthersMay(i fs.FileInfo) bool { return i.Mode().Perm()&0o077 != 0 }

// MaxFiles is how many files this process may have open: its limit of file
// descriptors, at most a million. Windows sets no such limit, and counts as one
// with a million.
func MaxFiles() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return maxFiles
	}
	return int(min(uint64(l.Cur), maxFiles))
}
