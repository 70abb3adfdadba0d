//go:build !windows

package disk

import (
	"errors"
	"os"
	"syscall"
)

// SyncDir makes durable which files a directory has: after it a file that was
// made, renamed or removed there is so after a power cut, too. On Windows it does
// nothing: a directory cannot be synced there, and NTFS keeps a log of its own.
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

// NoMoreFiles reports whether a file could not be opened because this process, or
// the machine, has too many open.
func NoMoreFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
