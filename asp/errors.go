package asp

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"strconv"

	"github.com/parley-hub/parley/internal/jsonx"
)

// An Error is a refusal. Code and Text may be sent to any peer; the cause that
// Unwrap gives may not.
type Error struct {
	Code      string         // verification code, e.g. "hash_mismatch"
	Text      string         // one sentence for the sender
	Path      string         // the member at fault, e.g. "sender.orgId"; may be empty
	Step      int            // number of the check that failed (see [Verifier]); 0 if none
	Retryable bool           // the same intent may succeed later or after re-signing
	Details   map[string]any // for the authenticated sender, e.g. the current head
	Reference string         // set by the server's Refused hook
	cause     error
}

func (e *Error) Error() string {
	s := "asp: " + e.Code
	if e.Path != "" {
		s += " at " + e.Path
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.cause != nil {
		s += " (" + e.cause.Error() + ")"
	}
	return s
}

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is compare codes, so that the sentinels below match.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Because gives a copy with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Status is the HTTP status of the refusal.
func (e *Error) Status() int { return cmp.Or(codes[e.Code].status, http.StatusInternalServerError) }

// Sentinels, to be used with errors.Is. Each stands for one code.
var (
	ErrTooLarge         = &Error{Code: "message_too_large"}
	ErrBodyTooLarge     = &Error{Code: "body_too_large"}
	ErrMalformed        = &Error{Code: "malformed_json"}
	ErrDuplicateKey     = &Error{Code: "duplicate_key"}
	ErrMissingField     = &Error{Code: "missing_field"}
	ErrInvalidField     = &Error{Code: "invalid_field"}
	ErrVersion          = &Error{Code: "unsupported_version"}
	ErrHash             = &Error{Code: "hash_mismatch"}
	ErrSignature        = &Error{Code: "bad_signature"}
	ErrUnknownKey       = &Error{Code: "key_unknown"}
	ErrWeakKey          = &Error{Code: "weak_or_invalid_key"}
	ErrReplay           = &Error{Code: "dpop_jti_replayed"}
	ErrStale            = &Error{Code: "timestamp_out_of_window"}
	ErrChain            = &Error{Code: "chain_mismatch"}
	ErrEquivocation     = &Error{Code: "equivocation"}
	ErrSequenceGap      = &Error{Code: "sequence_gap"}
	ErrTransition       = &Error{Code: "invalid_transition"}
	ErrSessionClosed    = &Error{Code: "session_closed"}
	ErrSessionNotFound  = &Error{Code: "session_not_found"}
	ErrNotParticipant   = &Error{Code: "not_participant"}
	ErrInvalidBody      = &Error{Code: "invalid_body"}
	ErrTimeout          = &Error{Code: "timeout"}
	ErrRateLimited      = &Error{Code: "rate_limited"}
	ErrFull             = &Error{Code: "capacity_unavailable"}
	ErrUnauthorized     = &Error{Code: "auth_required"}
	ErrAgentExists      = &Error{Code: "agent_exists"}
	ErrRegistrationShut = &Error{Code: "registration_closed"}
)

// Errors of a [Store] and of [ClientStore]; never sent.
var (
	ErrConflict = errors.New("asp: the head moved")
	ErrNotFound = errors.New("asp: not found")
)

// codeInfo is the wire form of a code: HTTP status, the vendor's name for its class
// (resources/error-codes), whether a retry can help, and the sentence for the
// sender.
type codeInfo struct {
	status int
	vendor string
	retry  bool
	text   string
}

const (
	vValidation = "VALIDATION_ERROR"
	vAuth       = "AUTH_INVALID"
	vDPoP       = "DPOP_INVALID"
	vState      = "STATE_CONFLICT"
)

var codes = map[string]codeInfo{
	"message_too_large": {413, "PAYLOAD_TOO_LARGE", false, "the message exceeds 1 MiB"},
	"body_too_large":    {413, "PAYLOAD_TOO_LARGE", false, "content.body exceeds 512 KiB"},

	"malformed_json":    {400, vValidation, false, "not one strict JSON value"},
	"malformed_msgpack": {400, vValidation, false, "not one strict MessagePack value"},
	"invalid_utf8":      {400, vValidation, false, "a string is not valid UTF-8"},
	"duplicate_key":     {400, vValidation, false, "a member name occurs twice"},
	"lone_surrogate":    {400, vValidation, false, "a string holds half a surrogate pair"},
	"number_range":      {400, vValidation, false, "a number does not fit a double"},
	"number_precision":  {400, vValidation, false, "an integer is not exact as a double"},
	"too_deep":          {400, vValidation, false, "nested too deep"},
	"unsupported_ext":   {400, vValidation, false, "MessagePack extension types are not used"},
	"non_string_key":    {400, vValidation, false, "a map key is not a string"},

	"missing_field":       {422, vValidation, false, "a required member is missing"},
	"invalid_field":       {422, vValidation, false, "a member has the wrong form"},
	"unsupported_version": {422, vValidation, false, "this version is not supported"},
	"invalid_body":        {422, vValidation, false, "the body does not fit the performative"},
	"format_mismatch":     {415, vValidation, false, "the session's serialization is fixed"},

	"hash_mismatch":           {422, vValidation, false, "the content does not have this hash"},
	"bad_signature":           {401, vAuth, false, "the signature does not verify"},
	"key_unknown":             {401, vAuth, false, "no key is registered for the sender; register its card first"},
	"weak_or_invalid_key":     {422, vValidation, false, "the key is not safe to use"},
	"sender_mismatch":         {403, vAuth, false, "the sender is not the authenticated agent"},
	"card_mismatch":           {403, vAuth, false, "the card's keys are not the registered ones"},
	"timestamp_out_of_window": {422, vValidation, true, "the timestamp is too far from the server's time"},

	"dpop_malformed":         {401, vDPoP, false, "the proof is not a compact JWS"},
	"dpop_bad_header":        {401, vDPoP, false, "the proof's header is not acceptable"},
	"dpop_bad_signature":     {401, vDPoP, false, "the proof's signature does not verify"},
	"dpop_key_mismatch":      {401, vDPoP, false, "the proof's key is not the registered one"},
	"dpop_htm_mismatch":      {401, vDPoP, false, "the proof is for another method"},
	"dpop_htu_mismatch":      {401, vDPoP, false, "the proof is for another address"},
	"dpop_iat_out_of_window": {401, vDPoP, true, "the proof's time is too far from the server's time"},
	"dpop_ath_mismatch":      {401, vDPoP, true, "the proof is not for this access token"},
	"dpop_jti_replayed":      {401, vDPoP, true, "the proof was used before"},

	"auth_required": {401, "AUTH_REQUIRED", false, "an access token and a DPoP proof are required"},
	"token_invalid": {401, "TOKEN_INVALID", true, "the access token is not valid"},
	"token_expired": {401, "TOKEN_EXPIRED", true, "the access token has expired"},

	"session_not_found": {404, "CHANNEL_NOT_FOUND", false, "no such session"},
	"message_not_found": {404, "MESSAGE_NOT_FOUND", false, "no such message"},
	"agent_not_found":   {404, "CHANNEL_NOT_FOUND", false, "no such agent"},
	"not_found":         {404, "CHANNEL_NOT_FOUND", false, "no such resource"},
	"bad_method":        {405, vValidation, false, "the resource does not take this method"},
	"not_participant":   {403, "SCOPE_INSUFFICIENT", false, "not a participant of this session"},

	"equivocation":         {409, "IDEMPOTENCY_CONFLICT", false, "this sequence number was used for another message"},
	"sequence_replay":      {409, "IDEMPOTENCY_CONFLICT", false, "this sequence number was used before"},
	"sequence_gap":         {409, vState, true, "a sequence number before this one is missing"},
	"duplicate_message_id": {409, "IDEMPOTENCY_CONFLICT", false, "this messageId was used for another message"},
	"duplicate_session":    {409, "CHANNEL_ALREADY_EXISTS", false, "this session exists"},
	"chain_mismatch":       {409, vState, true, "previousHash is not the head of the session"},
	"session_closed":       {409, "CHANNEL_ARCHIVED", false, "the session is over"},
	"session_mismatch":     {422, vValidation, false, "the message belongs to another session"},
	"invalid_transition":   {409, vState, false, "not allowed in this state of the session"},
	"timeout":              {409, vState, false, "the proposal has expired"},

	"schema_unsupported":       {422, vValidation, false, "the content does not fit the skill"},
	"insufficient_trust_score": {403, "SCOPE_INSUFFICIENT", false, "the trust score is too low"},
	"policy_violation":         {403, "SCOPE_INSUFFICIENT", false, "refused by policy"},
	"rate_limited":             {429, "RATE_LIMITED", true, "too many requests"},
	"capacity_unavailable":     {503, "CAPACITY_UNAVAILABLE", true, "the server is full; send it again later"},
	"agent_exists": {409, "CHANNEL_ALREADY_EXISTS", false,
		"the agent is registered; prove possession of its present key"},
	"agent_in_session":    {409, vState, true, "keys cannot change while the agent is in a live session"},
	"registration_closed": {403, "SCOPE_INSUFFICIENT", false, "agents are enrolled by the operator"},
	"internal":            {500, "INTERNAL_ERROR", true, "the server could not do this"},
}

// refuse makes an Error with the sentence of the code.
func refuse(code, path string) *Error {
	c := codes[code]
	return &Error{Code: code, Text: c.text, Path: path, Retryable: c.retry}
}

func refuseCause(code, path string, cause error) *Error {
	e := refuse(code, path)
	e.cause = cause
	return e
}

func (e *Error) at(step int) *Error { e.Step = step; return e }

// atStep sets the step of err if it is an *Error without one.
func atStep(err error, step int) error {
	var e *Error
	if errors.As(err, &e) && e.Step == 0 {
		e.Step = step
	}
	return err
}

// Refuse makes an error for a hook of [Server] to return: code is one of the
// rejection codes of the protocol (policy_violation, rate_limited,
// insufficient_trust_score, capacity_unavailable …); text goes to the sender.
func Refuse(code, text string) error {
	e := refuse(code, "")
	if text != "" {
		e.Text = text
	}
	return e
}

// asError gives err as an *Error. Any other error becomes the cause of an
// "internal" *Error, which is not sent.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return refuseCause("internal", "", err)
}

// WriteError answers with err as the vendor's error object,
// {"error":{"code","message","details"}} (resources/error-codes). The
// verification code is in details.reason.
func WriteError(w http.ResponseWriter, err error) {
	e := asError(err)
	obj := wireError(e)
	if e.Reference != "" {
		w.Header().Set("Parley-Ref", e.Reference)
	}
	if after, ok := e.Details["retryAfter"].(int64); ok {
		w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
		obj["retryAfter"] = after
	}
	b, err := jsonx.Encode(map[string]any{"error": obj})
	if err != nil {
		b = []byte(`{"error":{"code":"INTERNAL_ERROR","message":"","details":{}}}`)
	}
	answerHeader(w, "application/json")
	w.WriteHeader(e.Status())
	_, _ = w.Write(b)
}

func wireError(e *Error) map[string]any {
	details := map[string]any{"reason": e.Code}
	maps.Copy(details, e.Details)
	if e.Path != "" {
		details["path"] = e.Path
	}
	if e.Reference != "" {
		details["reference"] = e.Reference
	}
	return map[string]any{"code": cmp.Or(codes[e.Code].vendor, "INTERNAL_ERROR"), "message": e.Text, "details": details}
}
