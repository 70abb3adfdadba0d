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
	Loop            Code = "loop"            // passed this hub before, or too many hubs and handlers
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

	// For operators: they are recorded with the error, and no agent is told.
	Source Source // who refused or failed
	Reason Reason // why, where Code does not say it; "": not stated
	Detail string // one sentence with addresses and names: "connection refused by 192.0.2.7:8000"

	cause error
}

// A Source is the party that refused a message or failed at it.
type Source uint8

const (
	NotStated Source = iota
	ByPolicy         // the hub, by a rule: a proof, a permission, a schema
	ByLimit          // the hub, by one of its limits
	ByHub            // the hub: it failed, or is not ready
	ByPeer           // the other agent
	ByNetwork        // nobody: the other agent cannot be reached
)

var sourceNames = [...]string{NotStated: "", ByPolicy: "policy", ByLimit: "limit", ByHub: "hub", ByPeer: "peer",
	ByNetwork: "network"}

func (s Source) String() string {
	if s == NotStated {
		return ""
	}
	return name(sourceNames[:], int(s))
}

func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Source) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*s = NotStated
		return nil
	}
	return parse(sourceNames[:], "source", b, s)
}

// A Reason is finer than a Code: it chooses the advice to an operator. The set is
// closed.
type Reason string

const (
	// ByNetwork.
	HostUnknown        Reason = "host_unknown"        // its name has no address
	AddressGuard       Reason = "address_guard"       // network.allow does not have its address
	ConnectionRefused  Reason = "connection_refused"  // nothing listens there
	ConnectionLost     Reason = "connection_lost"     // it ended before the answer
	NoRoute            Reason = "no_route"            // the network does not lead there
	NoAnswer           Reason = "no_answer"           // nothing came in time
	CertificateUnknown Reason = "certificate_unknown" // its authority is not trusted
	CertificateName    Reason = "certificate_name"    // it is for another host
	CertificateExpired Reason = "certificate_expired"
	CertificateBad     Reason = "certificate_bad" // otherwise not valid
	NotConnected       Reason = "not_connected"   // the agent connects to the hub, and is not connected now
	NoAddress          Reason = "no_address"      // none is known in a protocol that is switched on

	// ByPeer.
	KeyUnknown      Reason = "key_unknown"       // it does not know the hub's key, or the stand-in's
	WrongToken      Reason = "wrong_token"       // it refused the hub's token
	PeerForbids     Reason = "peer_forbids"      // it knows the caller, and does not permit the call
	PeerRole        Reason = "peer_role"         // the caller's role there is too weak
	PeerRate        Reason = "peer_rate"         // its rate limit
	PeerBusy        Reason = "peer_busy"         // full, starting, or stopping
	PeerClock       Reason = "peer_clock"        // it found the message too old or too new
	PeerAnswer      Reason = "peer_answer"       // its answer is not the protocol's
	PeerAnswerLarge Reason = "peer_answer_large" // its answer is over the hub's limit
	PeerGone        Reason = "peer_gone"         // it says that no such agent, session or task is there
	PeerRefused     Reason = "peer_refused"      // for a reason that its text has
	PeerFailed      Reason = "peer_failed"       // it failed while working
)

// With gives a copy of e for operators: who refused, why, and a sentence with the
// details, which no agent is told.
func (e *Error) With(s Source, r Reason, detail string) *Error {
	c := *e
	c.Source, c.Reason, c.Detail = s, r, detail
	return &c
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
