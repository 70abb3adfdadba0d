package bridge

import "time"

// ClockMargin is how much longer a replay key is remembered than its message is
// fresh. Hubs that share a journal each judge freshness by a clock of their own,
// and a clock may be set back.
const ClockMargin = 5 * time.Second

// KeyEnd is when the replay key of a message may be forgotten that is stale from
// the given moment on.
func KeyEnd(stale time.Time) time.Time { return stale.Add(ClockMargin) }
