package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// lockedAt is the byte that is locked. Windows keeps other processes from reading a
// locked byte, so it lies far beyond the content of the file.
const lockedAt = 1 << 62

func openDir(path string) (*os.File, error) { return openFile(filepath.Join(path, "lock")) }

func lock(f *os.File, wait bool) error {
	how := uint32(windows.LOCKFILE_EXCLUSIVE_LOCK)
	if !wait {
		how |= windows.LOCKFILE_FAIL_IMMEDIATELY
	}
	at := &windows.Overlapped{OffsetHigh: lockedAt >> 32}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrLocked
	}
	return err
}

// Space returns how many bytes of the file system that holds dir are free for
// this user, and how many it has.
func Space(dir string) (free, total uint64, err error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err == nil {
		err = windows.GetDiskFreeSpaceEx(p, &free, &total, nil)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return free, total, nil
}

// SyncDir does nothing: a directory cannot be synced on Windows, and NTFS keeps a
// log of its own.
func SyncDir(string) error { return nil }

// IsFull reports whether a write failed because the disk, or this user's share of
// it, is full.
func IsFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

// OthersMay is always false: a mode says nothing on Windows, where the access
// list has to be looked at by other means.
func OthersMay(fs.FileInfo) bool { return false }

// MaxFiles is how many files this process may have open. Windows sets no limit,
// and counts as one with a million.
func MaxFiles() int { return maxFiles }
