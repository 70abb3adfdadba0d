package samvad

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Reply is a response envelope (SAMVAD 1.2 §4, response-envelope schema). It
// is not signed.
type Reply struct {
	TraceID string          // of the request; "" if it could not be read
	SpanID  string          // fresh, of the responder
	Result  json.RawMessage // a JSON object; nil on failure
	Err     *Error          // why it failed; nil on success

	Replaced bool // in Result, as decoded, U+FFFD stands for halves of surrogate pairs
}

type wireError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

func (e *Error) wire() *wireError {
	code := e.Code
	switch {
	case code == CodeTimestampExpired:
		code = CodeAuthFailed
	case code == CodeNotFound:
		code = CodeSchemaInvalid
	case remoteCauses[code] == nil:
		code = CodeAgentUnavailable
	}
	return &wireError{code, e.Text}
}

type wireReply struct {
	TraceID string          `json:"traceId"`
	SpanID  string          `json:"spanId"`
	Status  string          `json:"status"`
	Result  json.RawMessage `json:"result,omitzero"`
	Error   *wireError      `json:"error,omitzero"`
}

// Encode writes the reply as JSON that fits the response schema.
func (r *Reply) Encode() ([]byte, error) {
	w := wireReply{TraceID: r.TraceID, SpanID: r.SpanID, Status: "ok", Result: r.Result}
	switch {
	case r.Err != nil:
		w.Status, w.Result, w.Error = "error", nil, r.Err.wire()
	case isNull(r.Result):
		w.Result = json.RawMessage("{}")
	case kindOf(r.Result) != '{':
		return nil, errors.New("samvad: result is not a JSON object")
	}
	return jsonx.Encode(&w)
}

// newID gives a UUID v4: 122 random bits (SAM-120).
func newID() string { return uuid.NewString() }

// WriteResult answers a verified request. The result is encoded as JSON and
// must give an object; nil gives {}.
func WriteResult(w http.ResponseWriter, req *Verified, result any) {
	b, err := jsonx.Encode(result)
	if err != nil {
		e := refuse(ErrUnavailable, "", err)
		e.TraceID = req.TraceID
		WriteError(w, e)
		return
	}
	writeReply(w, http.StatusOK, &Reply{TraceID: req.TraceID, SpanID: newID(), Result: b})
}

func writeReply(w http.ResponseWriter, status int, r *Reply) {
	b, err := r.Encode()
	if err != nil {
		status = http.StatusInternalServerError
		b, _ = (&Reply{TraceID: r.TraceID, SpanID: r.SpanID, Err: refuse(ErrUnavailable, "", err)}).Encode()
	}
	writeJSON(w, status, b)
}

func writeAccepted(w http.ResponseWriter, taskID string) {
	writeValue(w, http.StatusAccepted, struct {
		TaskID string `json:"taskId"`
		Status string `json:"status"`
	}{taskID, "accepted"})
}

func writeValue(w http.ResponseWriter, status int, v any) {
	b, err := jsonx.Encode(v)
	if err != nil {
		WriteError(w, err)
		return
	}
	writeJSON(w, status, b)
}

func writeJSON(w http.ResponseWriter, status int, b []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json; charset=utf-8"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	w.WriteHeader(status)
	// A failed write means that the client is gone.
	_, _ = w.Write(b)
}
