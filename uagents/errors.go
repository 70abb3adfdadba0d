package uagents

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/parley-hub/parley/internal/bech32"
)

// An Error is a refusal. Text may be sent to strangers; what Unwrap gives is
// for the log only.
type Error struct {
	Code      string        // class of the refusal; errors.Is compares it
	Text      string        // sent to the peer, in the reference's words where it has any
	Step      string        // the check that refused, e.g. "signature"
	Retryable bool          // whether the same envelope may be taken later
	After     time.Duration // when Retryable: not sooner than this; 0: no advice
	status    int
	cause     error
}

// Error gives code, text and private cause: for logs.
func (e *Error) Error() string {
	s := "uagents: " + e.Code + ": " + e.Text
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Is compares codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Status is the HTTP status that goes with the error.
func (e *Error) Status() int { return e.status }

// Because gives a copy with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Saying gives a copy with another public text.
func (e *Error) Saying(text string) *Error {
	c := *e
	c.Text = text
	return &c
}

// The refusals. The texts of the first group are the reference's own
// (asgi.py, identity.py).
var (
	ErrNotFound      = &Error{Code: "not_found", Text: "not found", Step: "path", status: http.StatusNotFound}
	ErrNoContentType = &Error{Code: "no_content_type", Text: "missing header: content-type", Step: "content-type", status: http.StatusBadRequest}
	ErrContentType   = &Error{Code: "content_type", Text: "invalid content-type", Step: "content-type", status: http.StatusBadRequest}
	ErrMalformed     = &Error{Code: "malformed", Text: "empty or invalid payload", Step: "json", status: http.StatusBadRequest}
	ErrShape         = &Error{Code: "shape", Text: "contents do not match envelope schema", Step: "envelope", status: http.StatusBadRequest}
	ErrUnsigned      = &Error{Code: "unsigned", Text: "Envelope signature is missing", Step: "signature", status: http.StatusBadRequest}
	ErrSignature     = &Error{Code: "signature", Text: "Signature verification failed", Step: "signature", status: http.StatusBadRequest}
	ErrText          = &Error{Code: "bech32", Text: "Unable to decode value", Step: "bech32", status: http.StatusBadRequest}
	ErrPadding       = &Error{Code: "bech32_padding", Text: "Unable to convert value", Step: "bech32", status: http.StatusBadRequest}
	ErrAddress       = &Error{Code: "address", Text: "Unable to decode agent address", Step: "sender", status: http.StatusBadRequest}
	ErrSignatureText = &Error{Code: "signature_text", Text: "Unable to decode signature", Step: "signature", status: http.StatusBadRequest}
	ErrUnknownAgent  = &Error{Code: "unknown_agent", Text: "unable to route envelope", Step: "target", status: http.StatusBadRequest}
	ErrVerifiedOnly  = &Error{Code: "verified_only", Text: "Message must be sent from verified agent address", Step: "assurance", status: http.StatusBadRequest}
	ErrTimeout       = &Error{Code: "timeout", Text: "Query envelope expired", Step: "answer", Retryable: true, status: http.StatusGatewayTimeout}
	ErrForbidden     = &Error{Code: "forbidden", Text: "forbidden", Step: "local", status: http.StatusForbidden}

	ErrTooLarge     = &Error{Code: "too_large", Text: "request is too large", Step: "size", status: http.StatusRequestEntityTooLarge}
	ErrAnswerSize   = &Error{Code: "answer_size", Text: "The answer is too large", Step: "answer", status: http.StatusBadGateway}
	ErrMediaType    = &Error{Code: "media_type", Text: "Content-Type must be application/json", Step: "content-type", status: http.StatusUnsupportedMediaType}
	ErrMethod       = &Error{Code: "method", Text: "method not allowed", Step: "method", status: http.StatusMethodNotAllowed}
	ErrRange        = &Error{Code: "range", Text: "expires and nonce must be from 0 to 18446744073709551615", Step: "digest", status: http.StatusBadRequest}
	ErrUserAddress  = &Error{Code: "user_address", Text: "Unable to decode user address", Step: "sender", status: http.StatusBadRequest}
	ErrStale        = &Error{Code: "stale", Text: "Envelope has expired", Step: "expires", status: http.StatusBadRequest}
	ErrHorizon      = &Error{Code: "horizon", Text: "Envelope expires too far ahead", Step: "expires", status: http.StatusBadRequest}
	ErrAmbiguous    = &Error{Code: "ambiguous", Text: "Envelope is ambiguous", Step: "ambiguity", status: http.StatusBadRequest}
	ErrSchemaDigest = &Error{Code: "schema_digest", Text: "Invalid schema digest", Step: "schema_digest", status: http.StatusBadRequest}
	ErrPayload      = &Error{Code: "payload", Text: "Unable to decode payload", Step: "payload", status: http.StatusBadRequest}
	ErrContent      = &Error{Code: "content", Text: "Message does not conform to expected schema", Step: "content", status: http.StatusBadRequest}
	ErrReplay       = &Error{Code: "replay", Text: "Envelope has already been processed", Step: "replay", status: http.StatusOK}
	ErrUnknownModel = &Error{Code: "unknown_model", Text: "No handler for this message", Step: "model", status: http.StatusBadRequest}
	ErrBusy         = &Error{Code: "busy", Text: "temporarily unavailable", Step: "capacity", Retryable: true, status: http.StatusServiceUnavailable}
	ErrRate         = &Error{Code: "rate", Text: "too many unsigned messages", Step: "rate", Retryable: true, After: time.Second, status: http.StatusTooManyRequests}
	ErrHandler      = &Error{Code: "handler", Text: "Message could not be processed", Step: "handler", status: http.StatusInternalServerError}

	ErrUnauthorized   = &Error{Code: "unauthorized", Text: "Not authenticated", Step: "token", status: http.StatusUnauthorized}
	ErrToken          = &Error{Code: "token", Text: "Invalid attestation token", Step: "token", status: http.StatusUnauthorized}
	ErrTokenExpired   = &Error{Code: "token_expired", Text: "Attestation token is not valid now", Step: "token", status: http.StatusUnauthorized}
	ErrOtherAgent     = &Error{Code: "other_agent", Text: "Not permitted for this agent", Step: "token", status: http.StatusForbidden}
	ErrAttestation    = &Error{Code: "attestation", Text: "Invalid attestation", Step: "attestation", status: http.StatusUnprocessableEntity}
	ErrOldAttestation = &Error{Code: "old_attestation", Text: "Attestation timestamp is not fresh", Step: "timestamp", status: http.StatusBadRequest}
	ErrManifest       = &Error{Code: "manifest", Text: "Invalid protocol manifest", Step: "manifest", status: http.StatusUnprocessableEntity}
	ErrChallenge      = &Error{Code: "challenge", Text: "Challenge is unknown or was not proved", Step: "challenge", status: http.StatusUnauthorized}
	ErrProfile        = &Error{Code: "profile", Text: "Invalid registration", Step: "profile", status: http.StatusUnprocessableEntity}
	ErrHandle         = &Error{Code: "handle", Text: "The handle belongs to another agent", Step: "handle", status: http.StatusConflict}
	ErrFull           = &Error{Code: "full", Text: "storage limit reached", Step: "capacity", Retryable: true, status: http.StatusInsufficientStorage}

	ErrSchema      = &Error{Code: "schema", Text: "Invalid model schema", Step: "schema", status: http.StatusUnprocessableEntity}
	ErrUnresolved  = &Error{Code: "unresolved", Text: "Failed to resolve destination address", Step: "resolve", Retryable: true, status: http.StatusBadGateway}
	ErrUndelivered = &Error{Code: "undelivered", Text: "Message delivery failed", Step: "deliver", Retryable: true, status: http.StatusBadGateway}
	ErrResponse    = &Error{Code: "response", Text: "Invalid sync response", Step: "response", status: http.StatusBadGateway}
	ErrPeer        = &Error{Code: "peer", Text: "The agent answered with an error", Step: "answer", status: http.StatusBadGateway}
	ErrNoIdentity  = &Error{Code: "no_identity", Text: "No identity to sign with", Step: "sign", status: http.StatusInternalServerError}
	ErrSeedIndex   = &Error{Code: "seed_index", Text: "Seed index must be from 0 to 255", Step: "seed", status: http.StatusBadRequest}
	ErrKey         = &Error{Code: "key", Text: "Not a secp256k1 private key", Step: "key", status: http.StatusBadRequest}
	errInternal    = &Error{Code: "internal", Text: "internal error", Step: "internal", Retryable: true, status: http.StatusInternalServerError}
)

// ErrOutcomeUnknown: an envelope was sent and no whole answer came. The agent
// may have it all the same; to send it again could have it served twice.
var ErrOutcomeUnknown = errors.New("uagents: the agent may have the envelope")

// AsError gives the first *Error in err's chain; any other error becomes a
// generic internal error (or ErrTimeout, for a context that ended) with err
// as its private cause. nil stays nil.
func AsError(err error) *Error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return ErrTimeout.Because(err)
	}
	return errInternal.Because(err)
}

// WriteError answers with the error's status and the JSON object
// {"error": text} of the reference. Errors that are not *Error become a
// generic 500.
func WriteError(w http.ResponseWriter, err error) {
	e := AsError(err)
	if e == nil {
		e = errInternal
	}
	retryAfter(w, e)
	writeJSON(w, e.status, object("error", e.Text))
}

func retryAfter(w http.ResponseWriter, e *Error) {
	if e.After > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((e.After+time.Second-1)/time.Second)))
	}
}

// An ErrorAnswer is a refusal that [Server.Record] gives: a sender that waits
// reads it in an ErrorMessage. For others it is Err.
type ErrorAnswer struct{ Err *Error }

func (a ErrorAnswer) Error() string { return a.Err.Error() }

// Unwrap gives Err.
func (a ErrorAnswer) Unwrap() error { return a.Err }

// bechError puts the reference's words on an error of the decoder.
func bechError(err error) *Error {
	if errors.Is(err, bech32.ErrPadding) || errors.Is(err, bech32.ErrEmpty) {
		return ErrPadding.Because(err)
	}
	return ErrText.Because(err)
}
