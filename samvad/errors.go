package samvad

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Code is a wire error code (SAMVAD 1.2, response schema).
type Code string

// The nine codes of the response schema.
const (
	CodeAuthFailed          Code = "AUTH_FAILED"
	CodeReplayDetected      Code = "REPLAY_DETECTED"
	CodeSkillNotFound       Code = "SKILL_NOT_FOUND"
	CodeSchemaInvalid       Code = "SCHEMA_INVALID"
	CodeInjectionDetected   Code = "INJECTION_DETECTED"
	CodeDelegationExceeded  Code = "DELEGATION_EXCEEDED"
	CodeRateLimited         Code = "RATE_LIMITED"
	CodeTokenBudgetExceeded Code = "TOKEN_BUDGET_EXCEEDED"
	CodeAgentUnavailable    Code = "AGENT_UNAVAILABLE"
)

// Codes that deployed agents use outside the schema: understood, never sent.
const (
	CodeTimestampExpired Code = "TIMESTAMP_EXPIRED"
	CodeNotFound         Code = "NOT_FOUND"
)

// Step names the check that decided.
type Step string

// The steps in the order in which a server takes them.
const (
	StepTransport  Step = "transport"  // method, media type, size
	StepEnvelope   Step = "envelope"   // JSON and the shape of the envelope
	StepRecipient  Step = "recipient"  // to is the addressed agent
	StepFreshness  Step = "freshness"  // the timestamp window
	StepReplay     Step = "replay"     // the nonce
	StepHeaders    Step = "headers"    // the three signature headers and their profile
	StepDigest     Step = "digest"     // Content-Digest
	StepKey        Step = "key"        // a usable key of the sender
	StepSignature  Step = "signature"  // the signature itself
	StepLimits     Step = "limits"     // rates and token budget
	StepDelegation Step = "delegation" // the delegation token
	StepInjection  Step = "injection"  // the injection scan
	StepSkill      Step = "skill"      // the skill exists and offers the mode
	StepTrust      Step = "trust"      // the trust tier of the skill
	StepCallback   Step = "callback"   // the callback URL
	StepPayload    Step = "payload"    // the payload against the input schema
	StepRecord     Step = "record"     // the message is recorded, its nonce reserved
	StepHandler    Step = "handler"    // the skill itself
	StepClient     Step = "client"     // calling an agent
)

// One sentinel per cause. Errors of this package wrap exactly one of them, and
// some [ErrOutcomeUnknown] besides.
var (
	ErrMalformed   = errors.New("samvad: malformed envelope")
	ErrMediaType   = errors.New("samvad: media type is not application/json")
	ErrTooLarge    = errors.New("samvad: message too large")
	ErrRecipient   = errors.New("samvad: addressed to another agent")
	ErrStale       = errors.New("samvad: outside the time window")
	ErrReplay      = errors.New("samvad: message was seen before")
	ErrUnsigned    = errors.New("samvad: signature headers missing")
	ErrHeaders     = errors.New("samvad: signature headers not usable")
	ErrDigest      = errors.New("samvad: content digest does not match")
	ErrUnknownKey  = errors.New("samvad: no key known for the sender")
	ErrInactiveKey = errors.New("samvad: key is revoked")
	ErrBadKey      = errors.New("samvad: not an acceptable Ed25519 key")
	ErrSignature   = errors.New("samvad: signature does not verify")
	ErrDowngrade   = errors.New("samvad: protocol 1.1 from a sender that speaks 1.2")

	ErrRateLimited        = errors.New("samvad: rate limit reached")
	ErrTokenBudget        = errors.New("samvad: daily token budget used up")
	ErrDelegation         = errors.New("samvad: delegation token not valid")
	ErrDelegationExceeded = errors.New("samvad: delegation does not reach this far")
	ErrInjection          = errors.New("samvad: injection pattern in the payload")
	ErrSkillNotFound      = errors.New("samvad: no such skill")
	ErrMode               = errors.New("samvad: skill does not offer this mode")
	ErrTrust              = errors.New("samvad: sender not allowed for this skill")
	ErrCallback           = errors.New("samvad: callback URL refused")
	ErrPayload            = errors.New("samvad: payload does not fit the input schema")
	ErrTimeout            = errors.New("samvad: no answer in time")
	ErrUnavailable        = errors.New("samvad: agent unavailable")
	ErrBusy               = errors.New("samvad: too much work at once")
	ErrNotFound           = errors.New("samvad: no such resource")
	ErrMethod             = errors.New("samvad: method not allowed")

	ErrCard     = errors.New("samvad: agent card not usable")
	ErrIdentity = errors.New("samvad: not an agent:// identity of host and optional port")
	ErrResponse = errors.New("samvad: answer not understood")

	// ErrOutcomeUnknown: the request was sent and no whole answer came. The
	// agent may have served it, so that only its sender can decide to repeat it.
	ErrOutcomeUnknown = errors.New("samvad: the agent may have served the request")
)

// wire maps each cause to its form on the wire. Texts are fixed: they carry nothing
// of the cause.
var wire = []struct {
	is     error
	code   Code
	status int
	retry  bool
	step   Step
	text   string
}{
	{ErrMalformed, CodeSchemaInvalid, 400, false, StepEnvelope, "The request body is not a valid SAMVAD envelope."},
	{ErrMediaType, CodeSchemaInvalid, 415, false, StepTransport, "The media type must be application/json."},
	{ErrTooLarge, CodeSchemaInvalid, 413, false, StepTransport, "The message is too large."},
	{ErrRecipient, CodeSchemaInvalid, 400, false, StepRecipient, "The message is not addressed to this agent."},
	{ErrStale, CodeAuthFailed, 401, false, StepFreshness, "The timestamp is outside the accepted window."},
	{ErrReplay, CodeReplayDetected, 401, true, StepReplay, "The nonce was used before."},
	{ErrUnsigned, CodeAuthFailed, 401, false, StepHeaders, "Authentication failed."},
	{ErrHeaders, CodeAuthFailed, 401, false, StepHeaders, "Authentication failed."},
	{ErrDigest, CodeAuthFailed, 401, false, StepDigest, "Authentication failed."},
	{ErrUnknownKey, CodeAuthFailed, 401, false, StepKey, "Authentication failed."},
	{ErrInactiveKey, CodeAuthFailed, 401, false, StepKey, "Authentication failed."},
	{ErrBadKey, CodeAuthFailed, 401, false, StepKey, "Authentication failed."},
	{ErrDowngrade, CodeAuthFailed, 401, false, StepKey, "Authentication failed."},
	{ErrSignature, CodeAuthFailed, 401, false, StepSignature, "Authentication failed."},
	{ErrRateLimited, CodeRateLimited, 429, true, StepLimits, "Too many requests."},
	{ErrTokenBudget, CodeTokenBudgetExceeded, 429, true, StepLimits, "The daily token budget is used up."},
	{ErrDelegation, CodeAuthFailed, 401, false, StepDelegation, "The delegation token is not valid."},
	{ErrDelegationExceeded, CodeDelegationExceeded, 400, false, StepDelegation,
		"The delegation does not cover this request."},
	{ErrInjection, CodeInjectionDetected, 400, false, StepInjection, "The payload was refused."},
	{ErrSkillNotFound, CodeSkillNotFound, 404, false, StepSkill, "The agent has no such skill."},
	{ErrMode, CodeSchemaInvalid, 400, false, StepSkill, "The skill does not offer this delivery mode."},
	{ErrTrust, CodeAuthFailed, 401, false, StepTrust, "The sender is not allowed to use this skill."},
	{ErrCallback, CodeSchemaInvalid, 400, false, StepCallback, "The callback URL is not acceptable."},
	{ErrPayload, CodeSchemaInvalid, 400, false, StepPayload, "The payload does not fit the skill's input schema."},
	{ErrTimeout, CodeAgentUnavailable, 500, true, StepHandler, "The agent did not answer in time."},
	{ErrBusy, CodeAgentUnavailable, 500, true, StepHandler, "The agent is busy."},
	{ErrNotFound, CodeSchemaInvalid, 404, false, StepTransport, "Not found."},
	{ErrMethod, CodeSchemaInvalid, 405, false, StepTransport, "Method not allowed."},
	{ErrUnavailable, CodeAgentUnavailable, 500, true, StepHandler, "The agent is unavailable."},
}

// An Error is a refusal or failure as the protocol knows it.
type Error struct {
	Code       Code
	Text       string        // may be sent to guests
	Step       Step          // the check that decided
	Status     int           // HTTP status; 0 = the usual one of Code
	Retryable  bool          // the same request may succeed later (with a new nonce)
	RetryAfter time.Duration // how long to wait, if known
	TraceID    string        // of the message that it answers, if that could be read
	Ref        string        // by which the agent's operator finds it: the header Parley-Ref, where there is one
	Verdict    *Verdict      // of a message that failed verification; never sent

	envelope *Envelope // of the message, if it could be read
	cause    error
}

// Error gives everything, for logs. It must not be sent; Text may be.
func (e *Error) Error() string {
	s := "samvad: " + string(e.Code)
	if e.Step != "" {
		s += " (" + string(e.Step) + ")"
	}
	if e.cause != nil {
		return s + ": " + e.cause.Error()
	}
	return s + ": " + e.Text
}

// Unwrap gives the private cause, which wraps one of the sentinels.
func (e *Error) Unwrap() error { return e.cause }

// Because gives a copy with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// HTTPStatus is the status that goes with the error.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	for _, w := range wire { // the first row of a code has its usual status
		if w.code == e.Code {
			return w.status
		}
	}
	return http.StatusInternalServerError
}

// AsError gives the protocol's view of any error: an [*Error] in its chain as
// it is, a sentinel of this package with its code and fixed text, anything
// else as AGENT_UNAVAILABLE with a generic text (SAM-111). Nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = &caused{ErrTimeout, err}
	}
	for _, w := range wire {
		if errors.Is(err, w.is) {
			return &Error{Code: w.code, Text: w.text, Step: w.step, Status: w.status, Retryable: w.retry, cause: err}
		}
	}
	return AsError(&caused{ErrUnavailable, err})
}

// VerdictOf gives the checks that led to err, nil if it bears none.
func VerdictOf(err error) *Verdict {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Verdict
	}
	return nil
}

// caused ties a private cause to the sentinel that classifies it.
type caused struct{ is, by error }

func (c *caused) Error() string   { return c.is.Error() + ": " + c.by.Error() }
func (c *caused) Unwrap() []error { return []error{c.is, c.by} }

// because classifies cause as sentinel.
func because(sentinel, cause error) error {
	if cause == nil {
		return sentinel
	}
	return &caused{sentinel, cause}
}

// refuse makes the error for a sentinel. An empty text means the fixed one.
func refuse(sentinel error, text string, cause error) *Error {
	e := *AsError(because(sentinel, cause))
	e.Text = cmp.Or(text, e.Text)
	return &e
}

// WriteError answers a refused or failed request with an error envelope, its
// status and, where it applies, Retry-After. Any error will do; see [AsError].
func WriteError(w http.ResponseWriter, err error) {
	e := AsError(err)
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
	}
	if e.Ref != "" {
		w.Header().Set(refHeader, e.Ref)
	}
	writeReply(w, e.HTTPStatus(), &Reply{TraceID: e.TraceID, SpanID: newID(), Err: e})
}
