package uagents

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/parley-hub/parley/internal/bech32"
)

// An Error is a refusal. Text may be sent to any caller; the cause that Unwrap
// gives is for the log only.
type Error struct {
	Code      string        // class of the refusal; errors.Is compares it
	Text      string        // sent to the peer, in the reference's words where there are any
	Step      string        // the check that refused, e.g. "signature"
	Retryable bool          // the same envelope may succeed later
	After     time.Duration // when Retryable: not sooner than this; 0: no advice
	Ref       string        // of an answer: by which the agent's operator finds it ([RefHeader])
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

// newError makes the sentinel of a refusal at a step, with a text for the peer.
func newError(step, code string, status int, text string) *Error {
	return &Error{Code: code, Text: text, Step: step, status: status}
}

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
	ErrNotFound      = newError("path", "not_found", http.StatusNotFound, "not found")
	ErrNoContentType = newError("content-type", "no_content_type", http.StatusBadRequest,
		"missing header: content-type")
	ErrContentType   = newError("content-type", "content_type", http.StatusBadRequest, "invalid content-type")
	ErrMalformed     = newError("json", "malformed", http.StatusBadRequest, "empty or invalid payload")
	ErrShape         = newError("envelope", "shape", http.StatusBadRequest, "contents do not match envelope schema")
	ErrUnsigned      = newError("signature", "unsigned", http.StatusBadRequest, "Envelope signature is missing")
	ErrSignature     = newError("signature", "signature", http.StatusBadRequest, "Signature verification failed")
	ErrText          = newError("bech32", "bech32", http.StatusBadRequest, "Unable to decode value")
	ErrPadding       = newError("bech32", "bech32_padding", http.StatusBadRequest, "Unable to convert value")
	ErrAddress       = newError("sender", "address", http.StatusBadRequest, "Unable to decode agent address")
	ErrSignatureText = newError("signature", "signature_text", http.StatusBadRequest, "Unable to decode signature")
	ErrUnknownAgent  = newError("target", "unknown_agent", http.StatusBadRequest, "unable to route envelope")
	ErrVerifiedOnly  = newError("assurance", "verified_only", http.StatusBadRequest,
		"Message must be sent from verified agent address")
	ErrTimeout = &Error{Code: "timeout", Text: "Query envelope expired",
		Step: "answer", Retryable: true, status: http.StatusGatewayTimeout}
	ErrForbidden = newError("local", "forbidden", http.StatusForbidden, "forbidden")

	ErrTooLarge   = newError("size", "too_large", http.StatusRequestEntityTooLarge, "request is too large")
	ErrAnswerSize = newError("answer", "answer_size", http.StatusBadGateway, "The answer is too large")
	ErrMediaType  = newError("content-type", "media_type", http.StatusUnsupportedMediaType,
		"Content-Type must be application/json")
	ErrMethod = newError("method", "method", http.StatusMethodNotAllowed, "method not allowed")
	ErrRange  = newError("digest", "range", http.StatusBadRequest,
		"expires and nonce must be from 0 to 18446744073709551615")
	ErrUserAddress  = newError("sender", "user_address", http.StatusBadRequest, "Unable to decode user address")
	ErrStale        = newError("expires", "stale", http.StatusBadRequest, "Envelope has expired")
	ErrHorizon      = newError("expires", "horizon", http.StatusBadRequest, "Envelope expires too far ahead")
	ErrAmbiguous    = newError("ambiguity", "ambiguous", http.StatusBadRequest, "Envelope is ambiguous")
	ErrSchemaDigest = newError("schema_digest", "schema_digest", http.StatusBadRequest, "Invalid schema digest")
	ErrPayload      = newError("payload", "payload", http.StatusBadRequest, "Unable to decode payload")
	ErrContent      = newError("content", "content", http.StatusBadRequest,
		"Message does not conform to expected schema")
	ErrReplay       = newError("replay", "replay", http.StatusOK, "Envelope has already been processed")
	ErrUnknownModel = newError("model", "unknown_model", http.StatusBadRequest, "No handler for this message")
	ErrBusy         = &Error{Code: "busy", Text: "temporarily unavailable",
		Step: "capacity", Retryable: true, status: http.StatusServiceUnavailable}
	ErrRate = &Error{Code: "rate", Text: "too many unsigned messages",
		Step: "rate", Retryable: true, After: time.Second, status: http.StatusTooManyRequests}
	ErrHandler = newError("handler", "handler", http.StatusInternalServerError, "Message could not be processed")

	ErrUnauthorized = newError("token", "unauthorized", http.StatusUnauthorized, "Not authenticated")
	ErrToken        = newError("token", "token", http.StatusUnauthorized, "Invalid attestation token")
	ErrTokenExpired = newError("token", "token_expired", http.StatusUnauthorized,
		"Attestation token is not valid now")
	ErrOtherAgent     = newError("token", "other_agent", http.StatusForbidden, "Not permitted for this agent")
	ErrAttestation    = newError("attestation", "attestation", http.StatusUnprocessableEntity, "Invalid attestation")
	ErrOldAttestation = newError("timestamp", "old_attestation", http.StatusBadRequest,
		"Attestation timestamp is not fresh")
	ErrManifest  = newError("manifest", "manifest", http.StatusUnprocessableEntity, "Invalid protocol manifest")
	ErrChallenge = newError("challenge", "challenge", http.StatusUnauthorized,
		"Challenge is unknown or was not proved")
	ErrProfile = newError("profile", "profile", http.StatusUnprocessableEntity, "Invalid registration")
	ErrHandle  = newError("handle", "handle", http.StatusConflict, "The handle belongs to another agent")
	ErrFull    = &Error{Code: "full", Text: "storage limit reached",
		Step: "capacity", Retryable: true, status: http.StatusInsufficientStorage}

	ErrSchema     = newError("schema", "schema", http.StatusUnprocessableEntity, "Invalid model schema")
	ErrUnresolved = &Error{Code: "unresolved", Text: "Failed to resolve destination address",
		Step: "resolve", Retryable: true, status: http.StatusBadGateway}
	ErrUndelivered = &Error{Code: "undelivered", Text: "Message delivery failed",
		Step: "deliver", Retryable: true, status: http.StatusBadGateway}
	ErrResponse   = newError("response", "response", http.StatusBadGateway, "Invalid sync response")
	ErrPeer       = newError("answer", "peer", http.StatusBadGateway, "The agent answered with an error")
	ErrNoIdentity = newError("sign", "no_identity", http.StatusInternalServerError, "No identity to sign with")
	ErrSeedIndex  = newError("seed", "seed_index", http.StatusBadRequest, "Seed index must be from 0 to 255")
	ErrKey        = newError("key", "key", http.StatusBadRequest, "Not a secp256k1 private key")
	errInternal   = &Error{Code: "internal", Text: "internal error",
		Step: "internal", Retryable: true, status: http.StatusInternalServerError}
)

// ErrOutcomeUnknown means that an envelope was sent and no whole answer came. The agent
// may have the envelope; sent again, it could be handled twice.
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

// An ErrorAnswer is a refusal by [Server.Accept]. A waiting sender gets it as an
// ErrorMessage, other senders get Err.
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
