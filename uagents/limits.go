package uagents

import (
	"cmp"
	"time"
)

// Limits bounds the envelopes that a [Verifier] takes. Zero fields mean the defaults.
type Limits struct {
	Body     int           // bytes of an envelope's text, also of answers; default EnvelopeSize(1 MiB)
	Name     int           // bytes of sender and target; default 256
	Skew     time.Duration // clock difference forgiven; default 5 s, negative for none
	Horizon  time.Duration // how far ahead expires may lie; default 24 h
	Unsigned time.Duration // how long an unsigned envelope is remembered; default 5 min
}

// DefaultSkew is the difference of clocks that is forgiven, of envelopes and of the tokens by which agents read their
// mailboxes.
const DefaultSkew = 5 * time.Second

func (l Limits) body() int { return cmp.Or(l.Body, EnvelopeSize(1<<20)) }

func (l Limits) name() int               { return cmp.Or(l.Name, 256) }
func (l Limits) horizon() time.Duration  { return cmp.Or(l.Horizon, 24*time.Hour) }
func (l Limits) unsigned() time.Duration { return cmp.Or(l.Unsigned, 5*time.Minute) }
func (l Limits) skew() time.Duration     { return max(0, cmp.Or(l.Skew, DefaultSkew)) }
