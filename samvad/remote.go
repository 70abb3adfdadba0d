package samvad

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Answers of agents, in the dialects of the SDKs and of the deployed agents
// (digest §12).

// ErrRemote is wrapped by errors that the agent reported itself.
var ErrRemote = errors.New("samvad: the agent answered with an error")

// remoteReply is the answer of an agent, in any dialect.
type remoteReply struct {
	TraceID json.RawMessage `json:"traceId"`
	SpanID  json.RawMessage `json:"spanId"`
	TaskID  json.RawMessage `json:"taskId"`
	Status  json.RawMessage `json:"status"`
	Code    json.RawMessage `json:"code"`
	Message json.RawMessage `json:"message"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`

	Progress json.RawMessage `json:"progress"`
	Chunk    json.RawMessage `json:"chunk"`
	Done     json.RawMessage `json:"done"`

	replaced bool // U+FFFD stands for halves of surrogate pairs
}

// text gives a string member, "" for anything else.
func text(v json.RawMessage) string {
	var s string
	if kindOf(v) != '"' || jsonx.Decode(v, &s) != nil {
		return ""
	}
	return s
}

// readRemote reads the answer of an agent.
func readRemote(b []byte) (*remoteReply, error) {
	var r remoteReply
	whole, replaced, err := jsonx.Whole(b)
	if err == nil {
		b, r.replaced = whole, replaced
	}
	return &r, jsonx.Decode(b, &r)
}

// remoteError gives the error that an answer reports, nil if it reports none.
// It understands envelopes, task states, errors that are a mere string, and
// the bodies of web frameworks.
func (r *remoteReply) remoteError(status int, h http.Header) *Error {
	code, message := Code(text(r.Code)), text(r.Message)
	switch kindOf(r.Error) {
	case '{':
		var w struct {
			Code    json.RawMessage `json:"code"`
			Message json.RawMessage `json:"message"`
		}
		_ = jsonx.Decode(r.Error, &w) // an object that was read with the answer
		code, message = Code(text(w.Code)), text(w.Message)
	case '"':
		message = cmp.Or(message, text(r.Error))
	default:
		if text(r.Status) != "error" && status/100 == 2 {
			return nil
		}
	}
	e := remoteErr(code, message, status, h)
	e.TraceID = text(r.TraceID)
	return e
}

// remoteCauses are the causes of the codes that agents report.
var remoteCauses = map[Code]error{
	CodeAuthFailed:    ErrRemote,
	CodeSchemaInvalid: ErrRemote,
	// The Python SDK reports stale messages as replays: either way a new nonce
	// and timestamp help.
	CodeTimestampExpired:    errors.Join(ErrRemote, ErrReplay, ErrStale),
	CodeReplayDetected:      errors.Join(ErrRemote, ErrReplay, ErrStale),
	CodeNotFound:            errors.Join(ErrRemote, ErrNotFound),
	CodeSkillNotFound:       errors.Join(ErrRemote, ErrSkillNotFound),
	CodeInjectionDetected:   errors.Join(ErrRemote, ErrInjection),
	CodeDelegationExceeded:  errors.Join(ErrRemote, ErrDelegationExceeded),
	CodeRateLimited:         errors.Join(ErrRemote, ErrRateLimited),
	CodeTokenBudgetExceeded: errors.Join(ErrRemote, ErrTokenBudget),
	CodeAgentUnavailable:    errors.Join(ErrRemote, ErrUnavailable),
}

// remoteErr classifies an error of an agent by its code, else by the status.
func remoteErr(code Code, message string, status int, h http.Header) *Error {
	is, known := remoteCauses[code]
	if !known {
		switch {
		case status == http.StatusUnauthorized || status == http.StatusForbidden:
			code = CodeAuthFailed
		case status == http.StatusNotFound || status == http.StatusGone:
			code = CodeNotFound
		case status == http.StatusTooManyRequests:
			code = CodeRateLimited
		case status/100 == 4:
			code = CodeSchemaInvalid
		default:
			code = CodeAgentUnavailable
		}
		is = remoteCauses[code]
		switch status {
		case http.StatusRequestEntityTooLarge:
			is = errors.Join(ErrRemote, ErrTooLarge)
		case http.StatusUnsupportedMediaType:
			is = errors.Join(ErrRemote, ErrMediaType)
		}
	}
	e := &Error{Code: code, Text: clipText(message), Step: StepClient, Status: status, cause: is}
	if status/100 == 2 {
		e.Status = 0
	}
	switch code {
	case CodeReplayDetected, CodeTimestampExpired, CodeRateLimited, CodeTokenBudgetExceeded, CodeAgentUnavailable:
		e.Retryable = true
	}
	e.RetryAfter, e.Ref = retryAfter(h), clipText(h.Get(refHeader))
	return e
}

// retryAfter reads the seconds of a Retry-After header, up to a week.
func retryAfter(h http.Header) time.Duration {
	if n, err := strconv.Atoi(h.Get("Retry-After")); err == nil && n >= 0 && n <= 7*86400 {
		return time.Duration(n) * time.Second
	}
	return 0
}

// clipText bounds the text of a remote error.
func clipText(s string) string {
	if len(s) > 2000 {
		return strings.ToValidUTF8(s[:2000], "") + "…"
	}
	return s
}

// decodeRemote reads the JSON of an answer. An answer that is no JSON object becomes
// an error by the status alone.
func decodeRemote(status int, h http.Header, b []byte) (*remoteReply, error) {
	r, err := readRemote(b)
	if err != nil {
		if status/100 != 2 {
			return nil, remoteErr("", http.StatusText(status), status, h)
		}
		return nil, notUnderstood(err)
	}
	return r, nil
}

func notUnderstood(err error) *Error {
	return clientError("The agent's answer is not understood.", because(ErrResponse, err))
}

// decodeAnswer reads an answer. If the answer reports an error, that is the error.
func decodeAnswer(status int, h http.Header, b []byte) (*remoteReply, error) {
	r, err := decodeRemote(status, h, b)
	if err != nil {
		return nil, err
	}
	if e := r.remoteError(status, h); e != nil {
		return nil, e
	}
	return r, nil
}

func decodeReply(status int, h http.Header, b []byte) (*Reply, error) {
	r, err := decodeAnswer(status, h, b)
	if err != nil {
		return nil, err
	}
	if kindOf(r.Result) != '{' {
		return nil, notUnderstood(errors.New("no result object"))
	}
	return &Reply{TraceID: text(r.TraceID), SpanID: text(r.SpanID), Result: r.Result, Replaced: r.replaced}, nil
}

func decodeAccepted(status int, h http.Header, b []byte) (string, error) {
	r, err := decodeAnswer(status, h, b)
	if err != nil {
		return "", err
	}
	id := text(r.TaskID)
	if id == "" || len(id) > 512 {
		return "", notUnderstood(errors.New("no taskId"))
	}
	return id, nil
}

// DecodeReply reads a response envelope that arrives by itself: the body of a
// webhook. An error that it reports is in Reply.Err. Its members are parts of b.
func DecodeReply(b []byte) (*Reply, error) {
	r, err := decodeRemote(http.StatusOK, nil, b)
	if err != nil {
		return nil, err
	}
	if e := r.remoteError(http.StatusOK, nil); e != nil {
		return &Reply{TraceID: text(r.TraceID), SpanID: text(r.SpanID), Err: e}, nil
	}
	return decodeReply(http.StatusOK, nil, b)
}

// decodeTask reads a task state: the schema's, the SDKs' with times, and the
// deployed agents' with "completed" and an error string (SAM-151).
func decodeTask(status int, h http.Header, b []byte) (*Task, error) {
	r, err := decodeRemote(status, h, b)
	if err != nil {
		return nil, err
	}
	if status/100 != 2 {
		if status == http.StatusNotFound {
			return nil, remoteErr(CodeNotFound, "Task not found.", status, h)
		}
		return nil, r.remoteError(status, h)
	}
	t := &Task{ID: text(r.TaskID), TraceID: text(r.TraceID), Replaced: r.replaced}
	switch s := text(r.Status); s {
	case "pending", "accepted", "queued":
		t.Status = TaskPending
	case "running", "processing", "working":
		t.Status = TaskRunning
	case "done", "completed":
		t.Status = TaskDone
		t.Result = r.Result
		if kindOf(r.Result) != '{' {
			return nil, notUnderstood(errors.New("task done without a result object"))
		}
	case "failed", "error":
		t.Status = TaskFailed
		t.Err = cmp.Or(r.remoteError(status, h), remoteErr(CodeAgentUnavailable, "The task failed.", status, h))
	default:
		return nil, notUnderstood(fmt.Errorf("task status %q", clip(s)))
	}
	if kindOf(r.Progress) == '0' {
		if p, err := strconv.ParseFloat(string(r.Progress), 64); err == nil && p >= 0 && p <= 1 {
			t.Progress = &p
		}
	}
	return t, nil
}
