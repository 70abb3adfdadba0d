package agh

import (
	"cmp"
	"time"
)

// Limits bounds accepted messages. Zero fields mean the defaults named.
type Limits struct {
	Envelope     int   // bytes of one envelope; 1,048,576
	Depth        int   // JSON nesting of the whole envelope; 1000
	MaxReplayAge int64 // seconds a message without expires_at is fresh, and the clock skew allowed; 300
	MaxTTL       int64 // seconds that expires_at may lie ahead; 2,592,000 (30 days)
}

// DefaultReplayAge is how long a message without expires_at is fresh, and the clock skew allowed.
const DefaultReplayAge = 300 * time.Second

// Bounds of identifiers whose grammar sets none, in bytes. Ids of messages and of
// traces have no bound but that of the envelope: stores keep their hashes.
const (
	maxWorkspace = 1024
	maxThread    = 128
	maxWork      = 128
	maxPeer      = 128 // also of a handle
	maxChannel   = 64
)

func (l Limits) envelope() int { return cmp.Or(l.Envelope, 1<<20) }
func (l Limits) maxReplayAge() int64 {
	return cmp.Or(l.MaxReplayAge, int64(DefaultReplayAge/time.Second))
}
func (l Limits) maxTTL() int64 { return cmp.Or(l.MaxTTL, 30*24*3600) }

// Fresh checks the time of e at now (envelope page, "Freshness rules"): a
// message with expires_at is fresh before that second, a message without it for
// MaxReplayAge seconds (inclusive). A ts further ahead than MaxReplayAge is
// refused because no clock is that wrong, an expires_at further ahead than MaxTTL
// because the id must be remembered until then. The error is [ErrStale].
func (l Limits) Fresh(e *Envelope, now time.Time) error {
	t, age := now.Unix(), l.maxReplayAge()
	switch {
	case e.TS > t && e.TS-t > age:
		return refuse(ErrStale, StepFreshness, "ts", "lies in the future")
	case e.expired || e.ExpiresAt != 0 && e.ExpiresAt <= t:
		return refuse(ErrStale, StepFreshness, "expires_at", "has passed")
	case e.ExpiresAt != 0 && e.ExpiresAt-t > l.maxTTL():
		return refuse(ErrStale, StepFreshness, "expires_at", "lies too far ahead")
	case e.ExpiresAt == 0 && t-e.TS > age:
		return refuse(ErrStale, StepFreshness, "ts", "is too old")
	}
	return nil
}

// Until gives the first second at which e is certainly no longer accepted. Its
// id must be remembered until then.
func (l Limits) Until(e *Envelope) time.Time {
	if e.ExpiresAt != 0 {
		return time.Unix(e.ExpiresAt, 0)
	}
	return time.Unix(e.TS+l.maxReplayAge()+1, 0)
}
