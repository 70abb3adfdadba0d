//go:build unix

package load

import (
	"syscall"
	"time"
)

// CPU is the time on processors that this process has spent so far, user and
// system; 0 where the system does not tell.
func CPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
