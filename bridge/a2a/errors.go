package a2a

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/errordetails"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-hub/parley"
)

// A cause is one row of the table of errors (A2A 1.0, sections 5.4, 9.5 and 11.6).
type cause struct {
	is     error // a sentinel of the SDK, or a parley.Error with its code
	rpc    int   // JSON-RPC code; 0: JSON-RPC answers with the HTTP status too
	http   int
	grpc   codes.Code
	reason string      // of ErrorInfo
	code   parley.Code // of the refusal, for operators
	text   string      // where the error has no text that may be sent
}

func coded(c parley.Code) error { return &parley.Error{Code: c} }

// causes is the one table from errors to the wires. The first row that fits counts.
var causes = []cause{
	{protocol.ErrParseError, -32700, 400, codes.InvalidArgument, "PARSE_ERROR", parley.Malformed, "not strict JSON"},
	{protocol.ErrInvalidRequest, -32600, 400, codes.InvalidArgument, "INVALID_REQUEST", parley.Malformed,
		"not a request of the protocol"},
	{protocol.ErrMethodNotFound, -32601, 404, codes.Unimplemented, "METHOD_NOT_FOUND", parley.Unsupported,
		"this version of the protocol has no such method"},
	{protocol.ErrTaskNotFound, -32001, 404, codes.NotFound, "TASK_NOT_FOUND", parley.Conflict, "no such task"},
	{protocol.ErrTaskNotCancelable, -32002, 400, codes.FailedPrecondition, "TASK_NOT_CANCELABLE", parley.Conflict,
		"the task has ended"},
	{protocol.ErrPushNotificationNotSupported, -32003, 400, codes.FailedPrecondition,
		"PUSH_NOTIFICATION_NOT_SUPPORTED", parley.Unsupported, "the agent sends no push notifications"},
	{protocol.ErrUnsupportedOperation, -32004, 400, codes.FailedPrecondition, "UNSUPPORTED_OPERATION",
		parley.Unsupported, "the agent or the task does not allow this"},
	{errMediaType, -32005, 415, codes.InvalidArgument, "CONTENT_TYPE_NOT_SUPPORTED", parley.Unsupported,
		"the content type of a request is application/json or application/a2a+json"},
	{protocol.ErrUnsupportedContentType, -32005, 400, codes.InvalidArgument, "CONTENT_TYPE_NOT_SUPPORTED",
		parley.InvalidContent, "the agent does not take or give this media type"},
	{protocol.ErrInvalidAgentResponse, -32006, 500, codes.Internal, "INVALID_AGENT_RESPONSE", parley.HandlerFailed,
		"the answer of the agent is not valid"},
	{protocol.ErrExtendedCardNotConfigured, -32007, 400, codes.FailedPrecondition,
		"EXTENDED_AGENT_CARD_NOT_CONFIGURED", parley.Unsupported, "the agent has no extended card"},
	{protocol.ErrExtensionSupportRequired, -32008, 400, codes.FailedPrecondition, "EXTENSION_SUPPORT_REQUIRED",
		parley.Unsupported, "the agent requires an extension that the request does not name"},
	// The specification says FAILED_PRECONDITION; its test suite and the SDKs want this one.
	{protocol.ErrVersionNotSupported, -32009, 400, codes.Unimplemented, "VERSION_NOT_SUPPORTED", parley.Unsupported,
		"this version of the protocol is not supported"},
	{protocol.ErrInvalidParams, -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", parley.Malformed,
		"a parameter is not valid"},
	{protocol.ErrUnauthenticated, 0, 401, codes.Unauthenticated, "UNAUTHENTICATED", parley.Unauthenticated,
		"credentials are required"},
	{protocol.ErrUnauthorized, 0, 403, codes.PermissionDenied, "UNAUTHORIZED", parley.Forbidden, "not permitted"},
	{protocol.ErrServerError, -32603, 500, codes.Internal, "INTERNAL_ERROR", parley.Internal, "internal error"},
	{errMethod, 0, 405, codes.Unimplemented, "METHOD_NOT_ALLOWED", parley.Unsupported,
		"the HTTP method is not allowed here"},
	{errNoEndpoint, 0, 404, codes.NotFound, "NOT_FOUND", parley.UnknownAgent, "no such agent or endpoint"},

	{coded(parley.Malformed), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.InvalidContent), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.UnknownSkill), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.Stale), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.Replayed), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.Loop), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.Conflict), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.Rejected), -32602, 400, codes.InvalidArgument, "INVALID_PARAMS", "", ""},
	{coded(parley.Unsupported), -32004, 400, codes.FailedPrecondition, "UNSUPPORTED_OPERATION", "", ""},
	{coded(parley.UnknownAgent), 0, 404, codes.NotFound, "NOT_FOUND", "", ""},
	{coded(parley.Unauthenticated), 0, 401, codes.Unauthenticated, "UNAUTHENTICATED", "", ""},
	{coded(parley.Forbidden), 0, 403, codes.PermissionDenied, "UNAUTHORIZED", "", ""},
	{coded(parley.TooLarge), 0, 413, codes.ResourceExhausted, "TOO_LARGE", "", ""},
	{coded(parley.RateLimited), 0, 429, codes.ResourceExhausted, "RATE_LIMITED", "", ""},
	{coded(parley.Unavailable), 0, 503, codes.Unavailable, "UNAVAILABLE", "", ""},
	{coded(parley.NoSpace), 0, 503, codes.Unavailable, "UNAVAILABLE", "", ""},
	{coded(parley.Cancelled), 0, 503, codes.Canceled, "CANCELLED", "", ""},
	{coded(parley.TimedOut), 0, 504, codes.DeadlineExceeded, "DEADLINE_EXCEEDED", "", ""},
}

// internalCause is the cause of all other errors.
var internalCause = cause{nil, -32603, 500, codes.Internal, "INTERNAL_ERROR", parley.Internal, "internal error"}

// Causes that the SDK has no sentinel for.
var (
	errMediaType  = errors.New("content type of the request")
	errMethod     = errors.New("HTTP method")
	errNoEndpoint = errors.New("no such agent or endpoint")
)

// A failure is an error as callers are told. Its texts are safe to send.
type failure struct {
	*cause
	text    string
	ref     string
	after   time.Duration
	meta    map[string]string     // more of ErrorInfo
	details []*errordetails.Typed // besides ErrorInfo
	err     error                 // for operators
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }

// toError makes the wire's form of an error of [service]: an a2a.Error with a sentinel of
// the SDK, or a parley.Error. Any other error is an internal one, whose text stays here.
func toError(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{cause: &internalCause, err: err}
	said, isProtocol := errors.AsType[*protocol.Error](err)
	hubs := parley.AsError(err) // internal, where there is none
	for i := range causes {
		if c := &causes[i]; errors.Is(err, c.is) || errors.Is(hubs, c.is) {
			f.cause = c
			break
		}
	}
	f.text = f.cause.text
	switch {
	case f.cause == &internalCause:
	case isProtocol:
		f.text = said.Error()
		f.take(said)
	case f.cause.code == "":
		f.text = hubs.Text
	}
	f.ref = hubs.Ref
	if hubs.Retryable {
		f.after = hubs.After
	}
	return f
}

// take takes the details that the error of the SDK carries.
func (f *failure) take(e *protocol.Error) {
	for _, d := range e.TypedDetails {
		switch m, ok := d.Value["metadata"].(map[string]string); {
		case d.TypeURL != errordetails.ErrorInfoType:
			f.details = append(f.details, d)
		case ok:
			f.meta = m
		}
	}
	if len(e.Details) > 0 {
		f.details = append(f.details, errordetails.NewFromStruct(e.Details))
	}
}

// parleyCode is the code of the refusal for operators.
func (f *failure) parleyCode() parley.Code {
	if f.code != "" {
		return f.code
	}
	return parley.CodeOf(f.err)
}

// Type URLs of error details.
const (
	badRequestType = "type.googleapis.com/google.rpc.BadRequest"
	retryInfoType  = "type.googleapis.com/google.rpc.RetryInfo"
)

// invalidParams is the error for a parameter, with its path in the request, such as
// "message.parts[0].raw".
func invalidParams(field, format string, args ...any) error {
	return faulty(protocol.ErrInvalidParams, field, format, args...)
}

func faulty(is error, field, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	e := protocol.NewError(is, text)
	if field != "" {
		e.Message = field + ": " + text
		e.TypedDetails = []*errordetails.Typed{errordetails.NewTyped(badRequestType, map[string]any{
			"fieldViolations": []map[string]string{{"field": field, "description": text}}})}
	}
	return e
}

// A detail is an element of error.data and error.details.
type detail struct {
	Type     string            `json:"@type"`
	Reason   string            `json:"reason,omitempty"`
	Domain   string            `json:"domain,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Retry    string            `json:"retryDelay,omitempty"`
}

// info is the ErrorInfo of the failure.
func (f *failure) info() detail {
	d := detail{Type: errordetails.ErrorInfoType, Reason: f.reason, Domain: protocol.ProtocolDomain,
		Metadata: map[string]string{}}
	for k, v := range f.meta {
		d.Metadata[k] = v
	}
	if f.ref != "" {
		d.Metadata["ref"] = f.ref
	}
	if f.rpc == 0 {
		d.Metadata["code"] = string(f.parleyCode())
	}
	return d
}

// data is the array of details for JSON.
func (f *failure) data() []any {
	out := []any{f.info()}
	if s := f.seconds(); s > 0 {
		out = append(out, detail{Type: retryInfoType, Retry: fmt.Sprintf("%ds", s)})
	}
	for _, d := range f.details {
		if d.Value != nil { // the SDK cannot encode it otherwise
			out = append(out, d)
		}
	}
	return out
}

// seconds is the advice when to return, rounded up; 0: none.
func (f *failure) seconds() int64 { return int64((f.after + time.Second - 1) / time.Second) }

// rpcError is the error object of JSON-RPC.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    []any  `json:"data"`
}

func (f *failure) rpcBody() *rpcError { return &rpcError{Code: f.rpc, Message: f.text, Data: f.data()} }

// restError is the body of an HTTP error (A2A 1.0, section 11.6): google.rpc.Status.
type restError struct {
	Error restStatus `json:"error"`
}

type restStatus struct {
	Code    int    `json:"code"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Details []any  `json:"details"`
}

func (f *failure) restBody() *restError {
	return &restError{restStatus{Code: f.http, Status: grpcName(f.grpc), Message: f.text, Details: f.data()}}
}

// grpcName is the name of a code in JSON: FAILED_PRECONDITION.
func grpcName(c codes.Code) string {
	if c == codes.Canceled {
		return "CANCELLED"
	}
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// grpcError is the failure for gRPC.
func (f *failure) grpcError() error {
	s := status.New(f.grpc, f.text)
	i := f.info()
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: i.Reason, Domain: i.Domain, Metadata: i.Metadata}}
	if s := f.seconds(); s > 0 {
		details = append(details, &errdetails.RetryInfo{
			RetryDelay: durationpb.New(time.Duration(s) * time.Second)})
	}
	for _, d := range f.details {
		if d.TypeURL != badRequestType {
			continue
		}
		violations, _ := d.Value["fieldViolations"].([]map[string]string)
		bad := &errdetails.BadRequest{}
		for _, v := range violations {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: v["field"], Description: v["description"]})
		}
		details = append(details, bad)
	}
	if with, err := s.WithDetails(details...); err == nil {
		s = with
	}
	return s.Err()
}

// refHeader has the reference of a refusal.
const refHeader = "Parley-Ref"

// headers sets those that belong to the failure.
func (f *failure) headers(h http.Header) {
	if f.ref != "" {
		h.Set(refHeader, f.ref)
	}
	if s := f.seconds(); s > 0 && (f.http == http.StatusTooManyRequests || f.http == http.StatusServiceUnavailable) {
		h.Set("Retry-After", fmt.Sprint(s))
	}
}

// nullID is an id that cannot be read.
var nullID = json.RawMessage("null")
