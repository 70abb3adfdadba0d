package parley

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Code classes failures. The table of every protocol maps each to its own
// words; the set is closed.
type Code string

const (
	Malformed       Code = "malformed"       // not an envelope of the protocol, or ambiguous
	TooLarge        Code = "too_large"       // over a limit of size or depth
	Unauthenticated Code = "unauthenticated" // signature, key or identity not proved
	Stale           Code = "stale"           // too old, too far ahead, or expired
	Replayed        Code = "replayed"        // seen before
	Forbidden       Code = "forbidden"       // proved, but not permitted
	UnknownAgent    Code = "unknown_agent"   // no such recipient here
	UnknownSkill    Code = "unknown_skill"   // the recipient has no such skill
	InvalidContent  Code = "invalid_content" // content does not fit the skill's schema
	Unsupported     Code = "unsupported"     // the recipient's protocol cannot do this
	RateLimited     Code = "rate_limited"    // over a limit of rate or budget; Error.After says when to return
	Loop            Code = "loop"            // passed this hub before, or too many hubs
	Conflict        Code = "conflict"        // against the recorded state, e.g. a chain that has moved on
	Unavailable     Code = "unavailable"     // the recipient or the hub is not available now
	NoSpace         Code = "no_space"        // the hub's disk is full; nothing was recorded
	TimedOut        Code = "timed_out"       // no answer before the deadline
	Cancelled       Code = "cancelled"       // the sender gave it up
	Rejected        Code = "rejected"        // the recipient refused it
	HandlerFailed   Code = "handler_failed"  // the recipient failed while working on it
	OutcomeUnknown  Code = "outcome_unknown" // it may or may not have been delivered, and must not be repeated
	Internal        Code = "internal"        // a fault of the hub
)

// An Error is a failure that may reach an agent: Code and Text are safe to send to
// guests, the cause is only for the log and the operator.
type Error struct {
	Code      Code
	Text      string        // one safe sentence; never holds secrets, paths or other agents' data
	Retryable bool          // whether a retry may succeed
	After     time.Duration // when Retryable: not sooner than this; 0: no advice
	Ref       string        // reference for `parley explain`, once it has one
	cause     error
}

// Refuse makes an error that a retry does not mend.
func Refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Fail makes an error that a retry may mend, with its private cause, which may be nil.
func Fail(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...), Retryable: true, cause: cause}
}

// Because gives a copy of e with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Error gives code, text and cause: for logs, never for senders.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, &Error{Code: c}) compare the code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Text == "" || t.Text == e.Text)
}

// CodeOf is the code of the first *Error in err's chain, or Internal; "" for
// nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}

// AsError gives the first *Error in err's chain. Other errors become one: a
// passed deadline TimedOut, a cancelled context Cancelled, anything else Internal, with
// a generic text and err as the cause.
func AsError(err error) *Error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return Fail(TimedOut, err, "no answer before the deadline")
	case errors.Is(err, context.Canceled):
		return Refuse(Cancelled, "cancelled").Because(err)
	}
	return Refuse(Internal, "internal error").Because(err)
}
