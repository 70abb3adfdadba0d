package agh

import "errors"

// Reason is a reason code of the registry (RFC 003 §9), the only ones that a
// receipt may carry.
type Reason string

// The registry. A receipt with another code is malformed; private codes belong in
// ext.
const (
	ReasonMalformed          Reason = "malformed"
	ReasonExpired            Reason = "expired"
	ReasonDuplicate          Reason = "duplicate"
	ReasonUnsupportedKind    Reason = "unsupported_kind"
	ReasonUnsupportedProfile Reason = "unsupported_profile"
	ReasonVerificationFailed Reason = "verification_failed"
	ReasonNotTarget          Reason = "not_target"
	ReasonNotFound           Reason = "not_found"
	ReasonBusy               Reason = "busy"
	ReasonInternal           Reason = "internal"
	ReasonInvalidSurface     Reason = "invalid_surface"
	ReasonNoConversation     Reason = "conversation_not_found"
	ReasonWorkClosed         Reason = "work_closed"
	ReasonContainerMismatch  Reason = "work_container_mismatch"
	ReasonLegacyField        Reason = "legacy_field_rejected"
)

func (r Reason) known() bool {
	switch r {
	case ReasonMalformed, ReasonExpired, ReasonDuplicate, ReasonUnsupportedKind, ReasonUnsupportedProfile,
		ReasonVerificationFailed, ReasonNotTarget, ReasonNotFound, ReasonBusy, ReasonInternal, ReasonInvalidSurface,
		ReasonNoConversation, ReasonWorkClosed, ReasonContainerMismatch, ReasonLegacyField:
		return true
	}
	return false
}

// Every error of this package that concerns a message is an [*Error] that wraps
// one of these sentinels.
var (
	ErrMalformed       = errors.New("agh: malformed envelope")
	ErrTooLarge        = errors.New("agh: envelope too large")
	ErrUnsupportedKind = errors.New("agh: unsupported kind")
	ErrStale           = errors.New("agh: message is expired, too old or from the future")
	ErrReplay          = errors.New("agh: duplicate message")
	ErrSignature       = errors.New("agh: verification failed")
	ErrUnknownKey      = errors.New("agh: key is not among the pinned ones")
	ErrPrivileged      = errors.New("agh: privileged capability without a verified proof")
	ErrDigest          = errors.New("agh: capability digest does not match")
	ErrSubject         = errors.New("agh: subject and envelope disagree")
	ErrForbidden       = errors.New("agh: sender is not who it claims to be")
	ErrNotTarget       = errors.New("agh: no such peer here")
	ErrUnsolicited     = errors.New("agh: whois answer to no question")
	ErrWorkClosed      = errors.New("agh: work is closed")
	ErrWorkUnknown     = errors.New("agh: no such work")
	ErrWorkTarget      = errors.New("agh: work needs another peer as its target")
	ErrWorkActor       = errors.New("agh: sender or target has no part in this work")
	ErrContainer       = errors.New("agh: work belongs to another conversation")
	ErrTransition      = errors.New("agh: no such step in the work lifecycle")
	ErrBusy            = errors.New("agh: too much to remember")
	ErrRate            = errors.New("agh: too many broadcasts of one peer")
	ErrScreened        = errors.New("agh: message looks as if it held a secret")
	ErrClosed          = errors.New("agh: closed")
)

// Step names the check that failed, in the order of the envelope page
// ("Validation order") with trust between body and routing (RFC 004).
type Step string

// The steps.
const (
	StepParse     Step = "parse"     // 1: one JSON object, known members
	StepFields    Step = "fields"    // 2: required fields, grammar
	StepFreshness Step = "freshness" // 3: expires_at, age
	StepSurface   Step = "surface"   // 4: surface, container, work_id by kind
	StepBody      Step = "body"      // 5: body by kind
	StepTrust     Step = "trust"     // RFC 004 §6
	StepRouting   Step = "routing"   // 6: to, workspace, channel, subject, replay
	StepLifecycle Step = "lifecycle" // 7: work
)

// Error is a refusal. Text may be sent to guests; the private cause that Unwrap
// returns beside the sentinel may not.
type Error struct {
	Code      Reason // for a receipt
	Text      string // for people; no secrets, no content of the message
	Step      Step
	Field     string // the envelope member concerned, if any
	Retryable bool   // the same message may be accepted later

	is    error
	cause error
}

func (e *Error) Error() string {
	s := e.is.Error()
	if e.Field != "" {
		s += ": " + e.Field
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// Unwrap gives the sentinel and, if there is one, the private cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.is}
	}
	return []error{e.is, e.cause}
}

// codes maps each sentinel to its code on the wire. The registry has finer codes
// that no implementation sends (invalid_surface, legacy_field_rejected): here, as
// in the reference, the coarse code stands for them.
var codes = map[error]Reason{
	ErrMalformed:       ReasonMalformed,
	ErrTooLarge:        ReasonMalformed,
	ErrUnsupportedKind: ReasonUnsupportedKind,
	ErrStale:           ReasonExpired,
	ErrReplay:          ReasonDuplicate,
	ErrSignature:       ReasonVerificationFailed,
	ErrUnknownKey:      ReasonVerificationFailed,
	ErrPrivileged:      ReasonVerificationFailed,
	ErrDigest:          ReasonVerificationFailed,
	ErrSubject:         ReasonMalformed,
	ErrForbidden:       ReasonVerificationFailed,
	ErrNotTarget:       ReasonNotTarget,
	ErrRate:            ReasonBusy,
	ErrUnsolicited:     ReasonNotFound,
	ErrWorkClosed:      ReasonWorkClosed,
	ErrWorkUnknown:     ReasonNotFound,
	ErrWorkTarget:      ReasonMalformed,
	ErrWorkActor:       ReasonNotFound,
	ErrContainer:       ReasonContainerMismatch,
	ErrTransition:      ReasonInternal,
	ErrBusy:            ReasonBusy,
	ErrScreened:        ReasonMalformed,
	ErrClosed:          ReasonInternal,
}

func refuse(is error, step Step, field, text string) *Error {
	retryable := is == ErrBusy || is == ErrRate
	return &Error{Code: codes[is], Text: text, Step: step, Field: field, Retryable: retryable, is: is}
}

func malformed(step Step, field, text string) *Error { return refuse(ErrMalformed, step, field, text) }

func (e *Error) because(cause error) *Error {
	e.cause = cause
	return e
}

// ReasonOf gives the registry code for err: that of an [*Error], otherwise
// internal.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	for is, code := range codes {
		if errors.Is(err, is) {
			return code
		}
	}
	return ReasonInternal
}

// Refuse makes the [*Error] for one of this package's sentinels, for hooks
// that want to refuse a message with a proper code. Text may be sent to
// guests; cause stays private.
func Refuse(sentinel error, text string, cause error) *Error {
	if _, ok := codes[sentinel]; !ok {
		return (&Error{Code: ReasonInternal, Step: StepRouting, is: sentinel, Text: text}).because(cause)
	}
	return refuse(sentinel, StepRouting, "", text).because(cause)
}
