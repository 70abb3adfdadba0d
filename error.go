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
	Source Source // who refused or failed; [Error.Stated] fills it in
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
// closed; [Reasons] lists it.
type Reason string

const (
	// ByPolicy.
	NoSuchAgent  Reason = "no_such_agent" // none of that name or id is in the directory
	NotExposed   Reason = "not_exposed"   // the recipient is not exposed in the sender's protocol
	AssuranceLow Reason = "assurance_low" // the recipient wants more proof than the message has
	NotAllowed   Reason = "not_allowed"   // no rule lets the sender call the recipient
	RoleLow      Reason = "role_low"      // the role of an API token is too low

	// ByLimit.
	BodySize     Reason = "body_size"     // limits.body
	PartsNumber  Reason = "parts_number"  // too many parts
	SenderRate   Reason = "sender_rate"   // limits.sender_rate
	UnknownRate  Reason = "unknown_rate"  // limits.unknown_rate
	PairRate     Reason = "pair_rate"     // a [[limit]] for the two agents
	GuestBudget  Reason = "guest_budget"  // [guests]
	MailboxFull  Reason = "mailbox_full"  // the recipient does not fetch its messages
	OpenRequests Reason = "open_requests" // too many requests wait for answers

	PeerAnswerLarge Reason = "peer_answer_large" // the other agent's answer is larger than the hub takes

	// ByHub.
	HubStops   Reason = "hub_stops"   // it is stopping, or was stopped
	HubStorage Reason = "hub_storage" // it cannot read or write its own state
	HubKey     Reason = "hub_key"     // it has no key with which to speak

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
	KeyUnknown      Reason = "key_unknown"      // it does not know the hub's key, or the stand-in's
	WrongToken      Reason = "wrong_token"      // it refused the hub's token
	PeerForbids     Reason = "peer_forbids"     // it knows the caller, and does not permit the call
	PeerRole        Reason = "peer_role"        // the caller's role or trust there is too low
	PeerRate        Reason = "peer_rate"        // its rate limit or budget
	PeerBusy        Reason = "peer_busy"        // full, starting, or stopping
	PeerSilent      Reason = "peer_silent"      // it took the message, and did not answer in time
	PeerClock       Reason = "peer_clock"       // it found the message too old, too new, or seen before
	PeerContent     Reason = "peer_content"     // it found the content wrong
	PeerUnsupported Reason = "peer_unsupported" // it does not know such messages
	PeerAnswer      Reason = "peer_answer"      // its answer is not the protocol's
	PeerGone        Reason = "peer_gone"        // it says that no such agent, skill, session or task is there
	PeerRefused     Reason = "peer_refused"     // for a reason that its text has
	PeerCancelled   Reason = "peer_cancelled"   // it gave up the work
	PeerFailed      Reason = "peer_failed"      // it failed while working
)

// Reasons lists every Reason.
func Reasons() []Reason {
	return []Reason{NoSuchAgent, NotExposed, AssuranceLow, NotAllowed, RoleLow,
		BodySize, PartsNumber, SenderRate, UnknownRate, PairRate, GuestBudget, MailboxFull, OpenRequests, PeerAnswerLarge,
		HubStops, HubStorage, HubKey,
		HostUnknown, AddressGuard, ConnectionRefused, ConnectionLost, NoRoute, NoAnswer, CertificateUnknown,
		CertificateName, CertificateExpired, CertificateBad, NotConnected, NoAddress,
		KeyUnknown, WrongToken, PeerForbids, PeerRole, PeerRate, PeerBusy, PeerSilent, PeerClock, PeerContent,
		PeerUnsupported, PeerAnswer, PeerGone, PeerRefused, PeerCancelled, PeerFailed}
}

// With gives a copy of e for operators: who refused, why, and a sentence with the
// details, which no agent is told.
func (e *Error) With(s Source, r Reason, detail string) *Error {
	c := *e
	c.Source, c.Reason, c.Detail = s, r, detail
	return &c
}

// Stated gives e with a Source: its own, else that of the *Error that caused it, else
// the usual one of its code where the hub itself made the error. Nil stays nil.
func (e *Error) Stated() *Error {
	if e == nil || e.Source != NotStated {
		return e
	}
	for cause := e.cause; cause != nil; {
		var of *Error
		if !errors.As(cause, &of) {
			break
		}
		if of.Source != NotStated {
			return e.With(of.Source, of.Reason, of.Detail)
		}
		cause = of.cause
	}
	return e.With(usualSource(e.Code), e.Reason, e.Detail)
}

func usualSource(c Code) Source {
	switch c {
	case Rejected, HandlerFailed:
		return ByPeer
	case TooLarge, RateLimited:
		return ByLimit
	case Unavailable, NoSpace, TimedOut, OutcomeUnknown, Internal:
		return ByHub
	case Cancelled:
		return NotStated // its sender
	}
	return ByPolicy
}

// FromPeer gives e as an answer of the other agent: ByPeer, with the usual reason of
// its code. It leaves an error with a Source as it is, and nil too.
func (e *Error) FromPeer() *Error {
	if e == nil || e.Source != NotStated {
		return e
	}
	reason := PeerRefused
	switch e.Code {
	case Unauthenticated, Forbidden:
		reason = PeerForbids
	case RateLimited:
		reason = PeerRate
	case Unavailable, NoSpace:
		reason = PeerBusy
	case Stale, Replayed:
		reason = PeerClock
	case Malformed, InvalidContent, TooLarge:
		reason = PeerContent
	case Unsupported:
		reason = PeerUnsupported
	case UnknownAgent, UnknownSkill:
		reason = PeerGone
	case TimedOut:
		reason = PeerSilent
	case Cancelled:
		reason = PeerCancelled
	case HandlerFailed, Internal:
		reason = PeerFailed
	}
	return e.With(ByPeer, reason, e.Detail)
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
