// Package disk has the file system functions that the standard library lacks on some
// systems: a lock on a directory, the free space, a synced directory, and the reason
// why a file could not be written.
//
// Two hubs must not open one journal. Each locks a file in its directory, and the
// second gets an error:
//
//	lock, err := disk.Lock(filepath.Join(dir, "lock"))
//	if errors.Is(err, disk.ErrLocked) {
//		// another process has the journal open
//	}
//	defer lock.Close()
//
// Linux, macOS, Windows and FreeBSD have all of it. On another Unix a function
// that the system lacks gives an error that wraps [errors.ErrUnsupported]; it
// never does nothing instead. The one exception is [SyncDir] on Windows, where
// there is nothing to do.
package disk

import (
	"errors"
	"fmt"
	"os"
)

// ErrLocked means that another process holds the lock, or this one by another call.
var ErrLocked = errors.New("locked by another process")

// Lock locks the file at path, which it makes with mode 0600 if there is none,
// and returns it open for reading and writing. It does not wait: a lock that is
// held gives [ErrLocked]. The lock ends when the file is closed or the process
// ends, however it ends; the file stays.
//
// Where path is a directory, the directory itself is locked, which needs no write
// permission there; on Windows a file "lock" in it.
//
// The lock is advisory: it holds off only calls of Lock and [Wait]. The file can be
// read and written meanwhile, so that the holder can leave its process number in it.
func Lock(path string) (*os.File, error) { return open(path, false) }

// Wait is [Lock], but where the lock is held it waits until it is free.
func Wait(path string) (*os.File, error) { return open(path, true) }

func open(path string, wait bool) (*os.File, error) {
	var f *os.File
	i, err := os.Stat(path)
	if err == nil && i.IsDir() {
		f, err = openDir(path)
	} else {
		f, err = openFile(path)
	}
	if err != nil {
		return nil, err
	}
	if err := lock(f, wait); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

func openFile(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) }

const maxFiles = 1 << 20
