package load

import (
	"syscall"
	"time"
)

// CPU is the processor time that this process has spent so far, user and system; 0
// where the system does not report it.
func CPU() time.Duration {
	p, err := syscall.GetCurrentProcess()
	if err != nil {
		return 0
	}
	var made, ended, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(p, &made, &ended, &kernel, &user); err != nil {
		return 0
	}
	return duration(kernel) + duration(user)
}

// duration reads a Filetime as a number of 100 ns, not as a date.
func duration(t syscall.Filetime) time.Duration {
	return time.Duration(uint64(t.HighDateTime)<<32|uint64(t.LowDateTime)) * 100
}
