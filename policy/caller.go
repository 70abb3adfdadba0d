package policy

import (
	"context"
	"sync/atomic"
)

// A Caller is the other end of a connection. It is a guest until a binding
// vouches for it: an enrolled agent proved itself there.
type Caller struct {
	Source  string // of [Source]
	vouched atomic.Bool
	vouch   func() // called once; may be nil
}

// NewCaller makes a caller; vouch is called when it is no guest any more.
func NewCaller(source string, vouch func()) *Caller { return &Caller{Source: source, vouch: vouch} }

// Vouched reports whether the caller is no guest.
func (c *Caller) Vouched() bool { return c.vouched.Load() }

type callerKey struct{}

// WithCaller puts the caller into the context of its requests.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Vouch notes that the caller whose request ctx belongs to proved to be an
// enrolled agent. Contexts without a caller are left alone.
func Vouch(ctx context.Context) {
	c, ok := ctx.Value(callerKey{}).(*Caller)
	if ok && c.vouched.CompareAndSwap(false, true) && c.vouch != nil {
		c.vouch()
	}
}

// SourceOf is the source of the caller whose request ctx belongs to; "" where
// there is none.
func SourceOf(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c.Source
	}
	return ""
}
