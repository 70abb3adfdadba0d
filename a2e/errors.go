package a2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Code is an error code on the wire (A2E §11). A peer may send any other text,
// which is kept.
type Code string

const (
	ParseError      Code = "parse_error"      // the line is not one JSON object in UTF-8
	InvalidMessage  Code = "invalid_message"  // unknown type, not allowed now, frame too large
	SchemaViolation Code = "schema_violation" // a member is missing or of a wrong type
	VersionMismatch Code = "version_mismatch" // not version 1.x, or two versions at once
	Unauthorized    Code = "unauthorized"     // no handshake yet, or not permitted
	RuntimeError    Code = "runtime_error"    // anything else that failed
	Timeout         Code = "timeout"          // the deadline passed
	OutOfMemory     Code = "out_of_memory"    // a limit of memory
	SandboxCrash    Code = "sandbox_crash"    // never sent by this package

	ToolError   Code = "tool_error"   // a tool failed
	UnknownTool Code = "unknown_tool" // no tool of that name
	ToolDenied  Code = "tool_denied"  // the tool may not be used by this agent

	SkillError   Code = "skill_error"   // a skill failed
	UnknownSkill Code = "unknown_skill" // no skill of that name

	MemoryFull     Code = "memory_full"      // no room in the memory
	MemoryNotFound Code = "memory_not_found" // no memory of that memory_id for this agent

	CapabilityMissing Code = "capability_missing" // not negotiated, where negotiation is enforced

	MCPSamplingRefused   Code = "mcp_sampling_refused"   // an agent samples for no host
	MCPCapabilityMissing Code = "mcp_capability_missing" // an agent has no roots to list
)

// Error is a failure in the protocol's terms: the content of an error frame, sent or
// received (A2E §11). Code, Text and Detail may be sent to guests; the cause, which
// Unwrap gives, is for logs only.
type Error struct {
	Code Code
	Text string // the member "message": at most 200 characters when sent
	// where the error was found: "frame", "decode", "handshake", "policy", "schema",
	// "dispatch", "handler", "transport"
	Step       string
	Retryable  bool            // whether a retry may succeed
	Capability string          // the member "capability_name"
	ReqID      string          // the id of the message that failed; empty if unknown
	Reason     string          // detail.reason, a stable word for programs
	Detail     json.RawMessage // the member "detail": a JSON object, or nil for {}
	cause      error
}

// Error gives code, text and cause: for logs.
func (e *Error) Error() string {
	s := "a2e: " + string(e.Code)
	if e.Reason != "" {
		s += " (" + e.Reason + ")"
	}
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

// Because gives a copy of e with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Is matches errors of the same code and, where the target has one, reason:
// errors.Is(err, ErrUnknownType).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Reason == "" || t.Reason == e.Reason)
}

// Errors of this package match these with [errors.Is].
var (
	ErrParse        = &Error{Code: ParseError, Text: "not one JSON object in UTF-8", Step: "decode"}
	ErrInvalid      = &Error{Code: InvalidMessage, Text: "not acceptable", Step: "decode"}
	ErrTooLarge     = &Error{Code: InvalidMessage, Reason: "frame_too_large", Text: "frame too large", Step: "frame"}
	ErrUnknownType  = &Error{Code: InvalidMessage, Reason: "unknown_type", Text: "unknown type", Step: "dispatch"}
	ErrShuttingDown = &Error{Code: InvalidMessage, Reason: "shutting_down", Text: "the session is shutting down",
		Step: "dispatch", Retryable: true}
	ErrSchema       = &Error{Code: SchemaViolation, Text: "fails the type's schema", Step: "schema"}
	ErrVersion      = &Error{Code: VersionMismatch, Text: "version not supported", Step: "decode"}
	ErrUnauthorized = &Error{Code: Unauthorized, Text: "not permitted", Step: "policy"}
	ErrNoHandshake  = &Error{Code: Unauthorized, Reason: "no_handshake", Text: "handshake first", Step: "handshake"}
	ErrUnknownKey   = &Error{Code: Unauthorized, Reason: "auth_failed", Text: "authentication failed",
		Step: "handshake"}
	// the request was sent
	ErrTimeout = &Error{Code: Timeout, Text: "no answer in time", Step: "handler", Retryable: true}
	ErrBusy    = &Error{Code: RuntimeError, Reason: "too_many_requests", Text: "too many requests at once",
		Step: "dispatch", Retryable: true}
	ErrFull = &Error{Code: OutOfMemory, Reason: "queue_full", Text: "the peer does not read",
		Step: "transport", Retryable: true}
	ErrNotLoaded = &Error{Code: RuntimeError, Reason: "session_unavailable",
		Text: "the session cannot be looked up just now", Step: "transport", Retryable: true}
	ErrReplay = &Error{Code: InvalidMessage, Reason: "duplicate_id",
		Text: "this id was served, and its answer is not kept any more; send the request with a new id",
		Step: "dispatch"}
	ErrClosed      = &Error{Code: RuntimeError, Reason: "closed", Text: "closed", Step: "transport"}
	ErrUnreachable = &Error{Code: RuntimeError, Reason: "unreachable", Text: "the host cannot be reached",
		Step: "transport", Retryable: true}
	ErrStatus = &Error{Code: RuntimeError, Reason: "http_status", Text: "the host answered with another status",
		Step: "transport"}
	ErrAnswerTooLarge = &Error{Code: OutOfMemory, Reason: "frame_too_large", Text: "the answer is too large",
		Step: "handler"}
	ErrOutcomeUnknown = &Error{Code: RuntimeError, Reason: "outcome_unknown",
		Text: "the connection broke; the request may or may not have been served", Step: "transport"}
	ErrUnknownTool    = &Error{Code: UnknownTool, Text: "unknown tool", Step: "handler", Capability: "tools"}
	ErrToolDenied     = &Error{Code: ToolDenied, Text: "tool denied", Step: "handler", Capability: "tools"}
	ErrUnknownSkill   = &Error{Code: UnknownSkill, Text: "unknown skill", Step: "handler", Capability: "skill"}
	ErrMemoryNotFound = &Error{Code: MemoryNotFound, Text: "unknown memory_id", Step: "handler", Capability: "memory"}
	ErrMemoryFull     = &Error{Code: MemoryFull, Text: "memory full", Step: "handler", Capability: "memory"}
)

// maxText is the longest text of an error frame (A2E-076).
const maxText = 200

func clip(s string, n int) string {
	i := 0
	for j := range s {
		if i == n {
			return s[:j]
		}
		i++
	}
	return s
}

// unknownType refuses a request of a type without a provider (A2E §9).
func unknownType(m *Envelope) *Error {
	e := ErrUnknownType.about(m.ID)
	e.Capability = m.Capability()
	e.Detail = append(appendString([]byte(`{"type":`), clip(m.Type, maxType)), '}')
	return e
}

// about gives a copy of e for one request.
func (e *Error) about(reqID string) *Error {
	c := *e
	c.ReqID = reqID
	return &c
}

// asError turns an error of a handler into one that may be sent. Errors of other
// packages become runtime_error without their text, which may hold secrets.
func asError(err error, capability string) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		c := *e
		c.Capability = cmp.Or(c.Capability, capability)
		return &c
	}
	return &Error{Code: RuntimeError, Text: "the request failed", Step: "handler", Capability: capability, cause: err}
}

// peerError reads an error frame. It drops malformed members alone, so that a failure
// never becomes a time-out (A2E §5.3, §11).
func peerError(m *Envelope) *Error {
	e := &Error{
		Code: cmp.Or(Code(m.Str("code")), RuntimeError), Text: m.Str("message"), Step: "peer", Retryable: m.Bool("retryable"),
		Capability: m.Str("capability_name"), ReqID: m.ReqID, Detail: m.Get("detail"),
	}
	if jsonx.Kind(e.Detail) != '{' {
		e.Detail = json.RawMessage("{}")
	}
	var d struct {
		Reason string `json:"reason"`
	}
	if jsonx.Decode(e.Detail, &d) == nil {
		e.Reason = d.Reason
	}
	// Three generations of hosts have three forms (A2E §9).
	if e.Code == "unknown_type" || e.Code == ParseError && strings.HasPrefix(e.Text, "Unknown type ") {
		e.Reason = ErrUnknownType.Reason
	}
	return e
}

// NotSupported reports whether a peer's error means that the peer does not know the
// type of the request, in any of the forms that hosts use (A2E §9).
func NotSupported(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == ErrUnknownType.Reason
}

// statusOf maps errors to HTTP status codes (A2E §7.1).
func statusOf(e *Error) int {
	switch {
	case errors.Is(e, ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(e, ErrBusy):
		return http.StatusTooManyRequests
	case errors.Is(e, ErrFull), errors.Is(e, ErrShuttingDown), errors.Is(e, ErrNotLoaded):
		return http.StatusServiceUnavailable
	case errors.Is(e, ErrClosed):
		return http.StatusNotFound
	case e.Code == Unauthorized:
		return http.StatusUnauthorized
	case e.Code == RuntimeError:
		return http.StatusInternalServerError
	default:
		return http.StatusBadRequest
	}
}

// WriteError answers an HTTP request with err: a status and {"detail": text},
// the form of the reference host.
func WriteError(w http.ResponseWriter, err error) {
	e := asError(err, "")
	if e.Retryable {
		w.Header().Set("Retry-After", "1")
	}
	writeDetail(w, statusOf(e), clip(e.Text, maxText))
}

func writeDetail(w http.ResponseWriter, status int, text string) {
	body, _ := jsonx.Encode(map[string]string{"detail": text})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
