//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package keyring

import (
	"errors"
	"os"
	"syscall"
)

// lockDir waits until no other process holds dir, and holds it until unlock.
func lockDir(dir string) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			return f.Close, nil // closing releases the lock
		}
		if !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
	}
}
