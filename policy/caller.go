package policy

import (
	"context"
	"sync/atomic"
)

// A Caller is the peer of a connection. It is a guest until a binding vouches for
// it, because an enrolled agent proved itself there. It travels in the context of
// its requests, because net/http is between the listener that makes it and the
// binding that vouches.
type Caller struct {
	Source  string // of [Source]
	vouched atomic.Bool
	vouch   func() // called once; may be nil
}

// NewCaller makes a caller; vouch is called when it is a guest no longer.
func NewCaller(source string, vouch func()) *Caller { return &Caller{Source: source, vouch: vouch} }

// Vouched reports whether the caller is no guest.
func (c *Caller) Vouched() bool { return c.vouched.Load() }

// A caller belongs to its connection, and net/http hands only a context from the
// connection to the request's handler: so it is a context value.
type callerKey struct{}

// WithCaller puts the caller into the context of its requests.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Vouch notes that the caller of the request that ctx belongs to proved to be an
// enrolled agent. It ignores contexts without a caller.
func Vouch(ctx context.Context) {
	c, ok := ctx.Value(callerKey{}).(*Caller)
	if ok && c.vouched.CompareAndSwap(false, true) && c.vouch != nil {
		c.vouch()
	}
}

// SourceOf is the source of the caller of the request that ctx belongs to; "" where
// there is none.
func SourceOf(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c.Source
	}
	return ""
}
