package parleytest

import (
	"sync/atomic"
	"time"
)

// A Clock goes on like that of the system, and can be put forward. Its zero value has the
// system's time. It is safe for concurrent use.
type Clock struct{ ahead atomic.Int64 }

// Now is the clock's time, for every field Now of this module.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Advance puts the clock forward.
func (c *Clock) Advance(d time.Duration) { c.ahead.Add(int64(d)) }
