package a2a

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
)

// TestErrors: section 4 of the specification's errors, and the codes of the hub, on JSON-RPC
// in both versions and on REST (rules A2A-013 and A2A-015).
func TestErrors(t *testing.T) {
	t.Parallel()
	w := newServing(t)
	retry := parley.Fail(parley.RateLimited, errors.New("secret"), "too fast")
	retry.After = 1500 * time.Millisecond
	recorded := parley.Refuse(parley.Loop, "it passed here")
	recorded.Ref = "known-ref"
	for _, c := range []struct {
		err       error
		rpc, http int // rpc 0: JSON-RPC answers with the HTTP status
		reason    string
	}{
		{protocol.ErrTaskNotFound, -32001, 404, "TASK_NOT_FOUND"},
		{protocol.ErrTaskNotCancelable, -32002, 400, "TASK_NOT_CANCELABLE"},
		{protocol.ErrPushNotificationNotSupported, -32003, 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"},
		{protocol.ErrUnsupportedOperation, -32004, 400, "UNSUPPORTED_OPERATION"},
		{protocol.ErrUnsupportedContentType, -32005, 400, "CONTENT_TYPE_NOT_SUPPORTED"},
		{protocol.ErrInvalidAgentResponse, -32006, 500, "INVALID_AGENT_RESPONSE"},
		{protocol.ErrExtendedCardNotConfigured, -32007, 400, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"},
		{protocol.ErrExtensionSupportRequired, -32008, 400, "EXTENSION_SUPPORT_REQUIRED"},
		{protocol.ErrVersionNotSupported, -32009, 400, "VERSION_NOT_SUPPORTED"},
		{protocol.ErrInvalidParams, -32602, 400, "INVALID_PARAMS"},
		{protocol.ErrInternalError, -32603, 500, "INTERNAL_ERROR"},
		{protocol.ErrServerError, -32603, 500, "INTERNAL_ERROR"},
		{protocol.ErrUnauthenticated, 0, 401, "UNAUTHENTICATED"},
		{protocol.ErrUnauthorized, 0, 403, "UNAUTHORIZED"},
		{fmt.Errorf("secret: %w", protocol.ErrTaskNotFound), -32001, 404, "TASK_NOT_FOUND"},
		{protocol.NewError(protocol.ErrUnsupportedOperation, "the task has ended"), -32004, 400, "UNSUPPORTED_OPERATION"},
		{errors.New("secret"), -32603, 500, "INTERNAL_ERROR"},
		{parley.Refuse(parley.Internal, "x").Because(errors.New("secret")), -32603, 500, "INTERNAL_ERROR"},
		{parley.Refuse(parley.Malformed, "x"), -32602, 400, "INVALID_PARAMS"},
		{parley.Refuse(parley.InvalidContent, "x"), -32602, 400, "INVALID_PARAMS"},
		{parley.Refuse(parley.UnknownSkill, "x"), -32602, 400, "INVALID_PARAMS"},
		{parley.Refuse(parley.Replayed, "x"), -32602, 400, "INVALID_PARAMS"},
		{recorded, -32602, 400, "INVALID_PARAMS"},
		{parley.Refuse(parley.Unsupported, "x"), -32004, 400, "UNSUPPORTED_OPERATION"},
		{parley.Refuse(parley.UnknownAgent, "x"), 0, 404, "NOT_FOUND"},
		{parley.Refuse(parley.Unauthenticated, "x"), 0, 401, "UNAUTHENTICATED"},
		{parley.Refuse(parley.Forbidden, "x"), 0, 403, "UNAUTHORIZED"},
		{parley.Refuse(parley.TooLarge, "x"), 0, 413, "TOO_LARGE"},
		{retry, 0, 429, "RATE_LIMITED"},
		{parley.Fail(parley.Unavailable, nil, "x"), 0, 503, "UNAVAILABLE"},
		{parley.Fail(parley.NoSpace, nil, "x"), 0, 503, "UNAVAILABLE"},
		{context.DeadlineExceeded, 0, 504, "DEADLINE_EXCEEDED"},
	} {
		w.fake.err = c.err
		for _, by := range []string{V1, V03, "REST"} {
			status := 200
			if c.rpc == 0 || by == "REST" {
				status = c.http
			}
			body := `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"T"}}`
			rec := w.ask("GET", "/a2a/alice/tasks/T", "", protocol.SvcParamVersion, V1)
			if by == V03 {
				rec = w.rpc(by, strings.Replace(body, "GetTask", "tasks/get", 1))
			} else if by == V1 {
				rec = w.rpc(by, body)
			}
			a := parseAnswer(t, rec)
			reason, m := a.info(t)
			if rec.Code != status || reason != c.reason {
				t.Errorf("%v, %s: %d %s, want %d %s", c.err, by, rec.Code, rec.Body, status, c.reason)
				continue
			}
			if want := c.rpc; status == 200 && a.Error.Code != want {
				t.Errorf("%v, %s: code %d, want %d", c.err, by, a.Error.Code, want)
			}
			if status != 200 && (a.Error.Code != status || a.Error.Status == "") {
				t.Errorf("%v, %s: %s", c.err, by, rec.Body)
			}
			if strings.Contains(rec.Body.String(), "secret") || a.Error.Message == "" {
				t.Errorf("%v, %s: text %q", c.err, by, a.Error.Message)
			}
			ref, _ := m["ref"].(string)
			if c.err == recorded {
				if ref != recorded.Ref {
					t.Errorf("reference %q", ref)
				}
			} else if r, ok := w.hub.Explain(ref); !ok || r.Protocol != Protocol || r.To != "alice" || r.Code == "" {
				t.Errorf("%v, %s: refusal %+v, %t", c.err, by, r, ok)
			}
			if got := rec.Header().Get("Retry-After"); (got == "2") != (c.err == retry) {
				t.Errorf("%v, %s: Retry-After %q", c.err, by, got)
			}
		}
	}
}

// TestEveryCauseHasItsRow: each code of the hub that no row has is internal, on purpose.
func TestEveryCauseHasItsRow(t *testing.T) {
	t.Parallel()
	internals := map[parley.Code]bool{parley.Internal: true, parley.HandlerFailed: true, parley.OutcomeUnknown: true}
	for _, code := range []parley.Code{parley.Malformed, parley.TooLarge, parley.Unauthenticated, parley.Stale,
		parley.Replayed, parley.Forbidden, parley.UnknownAgent, parley.UnknownSkill, parley.InvalidContent,
		parley.Unsupported, parley.RateLimited, parley.Loop, parley.Conflict, parley.Unavailable, parley.NoSpace,
		parley.TimedOut, parley.Cancelled, parley.Rejected, parley.HandlerFailed, parley.OutcomeUnknown,
		parley.Internal} {
		if f := toError(parley.Refuse(code, "x")); (f.cause == &internalCause) != internals[code] {
			t.Errorf("%s: %+v", code, f.cause)
		}
	}
}
