package load

import "time"

// CPU is the time on processors that this process has spent so far, user and
// system; 0 where the system does not tell.
func CPU() time.Duration { return cpuTime() }
