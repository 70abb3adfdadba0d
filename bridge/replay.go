package bridge

import "time"

// ClockMargin is how long the hub remembers a replay key after its message has become
// stale: hubs that share a journal have different clocks, and a clock may be set back.
const ClockMargin = 5 * time.Second

// KeyEnd is when the hub may forget the replay key of a message that becomes stale at
// the given time.
func KeyEnd(stale time.Time) time.Time { return stale.Add(ClockMargin) }
