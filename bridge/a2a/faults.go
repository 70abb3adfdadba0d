package a2a

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/hub"
)

// errorCodes are the hub's codes for the protocol's errors, in the order in which they are
// looked for; other errors are handler_failed.
var errorCodes = []struct {
	is     error
	number string // JSON-RPC code
	code   parley.Code
}{
	{protocol.ErrTaskNotFound, "-32001", parley.Conflict},
	{protocol.ErrTaskNotCancelable, "-32002", parley.Conflict},
	{protocol.ErrPushNotificationNotSupported, "-32003", parley.Unsupported},
	{protocol.ErrUnsupportedOperation, "-32004", parley.Unsupported},
	{protocol.ErrUnsupportedContentType, "-32005", parley.InvalidContent},
	{protocol.ErrInvalidAgentResponse, "-32006", parley.HandlerFailed},
	{protocol.ErrExtendedCardNotConfigured, "-32007", parley.Unsupported},
	{protocol.ErrExtensionSupportRequired, "-32008", parley.Unsupported},
	{protocol.ErrVersionNotSupported, "-32009", parley.Unsupported},
	{protocol.ErrParseError, "-32700", parley.InvalidContent},
	{protocol.ErrInvalidRequest, "-32600", parley.InvalidContent},
	{protocol.ErrMethodNotFound, "-32601", parley.Unsupported},
	{protocol.ErrInvalidParams, "-32602", parley.InvalidContent},
	{protocol.ErrUnauthenticated, "-31401", parley.Unauthenticated},
	{protocol.ErrUnauthorized, "-31403", parley.Forbidden},
	{protocol.ErrInternalError, "-32603", parley.HandlerFailed},
	{protocol.ErrServerError, "-32000", parley.HandlerFailed},
}

// failedCall is the outcome of a call that failed.
func failedCall(agent string, err error) hub.Outcome {
	lost, isLost := errors.AsType[*lostError](err)
	status, hasStatus := errors.AsType[*statusError](err)
	token, isToken := errors.AsType[*peerauth.TokenError](err)
	refused, isRefused := errors.AsType[*protocol.Error](err)
	content, isContent := errors.AsType[*contentError](err)
	switch {
	case isContent:
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "A2A cannot carry the content: %v", content.error)}
	case isToken:
		return hub.Outcome{Err: bridge.NoToken(agent, token.Status, token)}
	case errors.Is(err, errLarge):
		return hub.Outcome{Answered: true, Failure: bridge.AnswerTooLarge(parley.Refuse(parley.HandlerFailed,
			"the agent's answer is too large").Because(err), "the hub takes")}
	case hasStatus:
		return failedStatus(agent, status)
	case isRefused:
		return hub.Outcome{Answered: true, Failure: refusedBy(err, clipped(refused.Message, maxErrorText))}
	case errors.Is(err, errAnswer):
	case isLost:
		e := parley.Fail(parley.Unavailable, err, "%q did not answer", agent)
		if !lost.sent {
			e.Text = fmt.Sprintf("%q cannot be reached", agent)
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			e.Code = parley.TimedOut
		case errors.Is(err, context.Canceled):
			e.Code = parley.Cancelled
		}
		e = bridge.Unreachable(e, lost.err)
		if e.Source == parley.NotStated && errors.Is(err, context.Canceled) {
			e = e.With(parley.ByNetwork, parley.ConnectionLost, "the attempt was ended before its answer")
		}
		return hub.Outcome{Err: e, Unknown: lost.sent}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return hub.Outcome{Err: parley.AsError(err)}
	}
	return hub.Outcome{Answered: true, Failure: notUnderstood(agent, err)}
}

// notUnderstood is the failure for an answer that is not the protocol's: the agent may
// have done the work.
func notUnderstood(agent string, err error) *parley.Error {
	return bridge.NotUnderstood(parley.Refuse(parley.HandlerFailed, "the answer of %q is not understood", agent).
		Because(err), err)
}

// refusedBy is the failure for one of the protocol's errors.
func refusedBy(err error, said string) *parley.Error {
	for _, row := range errorCodes {
		if errors.Is(err, row.is) {
			return bridge.Answered(parley.Refuse(row.code, "%s", cmp.Or(said, row.is.Error())).Because(err), Protocol,
				said, row.number)
		}
	}
	return bridge.Answered(parley.Refuse(parley.HandlerFailed, "%s", cmp.Or(said, "the agent failed")).Because(err),
		Protocol, said)
}

// failedStatus is the outcome of a call that was answered with an HTTP status.
func failedStatus(agent string, s *statusError) hub.Outcome {
	number := strconv.Itoa(s.status)
	said := func(e *parley.Error) *parley.Error {
		return bridge.Answered(e.Because(s), Protocol, s.text, number)
	}
	fail := func(code parley.Code) hub.Outcome {
		return hub.Outcome{Answered: true, Failure: said(parley.Refuse(code, "the agent answered with HTTP status %s",
			number))}
	}
	switch {
	case s.status == http.StatusTooManyRequests, s.status == http.StatusServiceUnavailable:
		out := bridge.TryLater(agent, s.status, s.after)
		out.Err = said(out.Err)
		return out
	case s.status == http.StatusBadGateway, s.status == http.StatusGatewayTimeout:
		return hub.Outcome{Err: said(parley.Fail(parley.Unavailable, s, "%q did not answer", agent)), Unknown: true}
	case s.moved():
		return hub.Outcome{Err: said(parley.Fail(parley.Unavailable, s, "%q is not where its card says", agent))}
	case s.status == http.StatusUnauthorized:
		return fail(parley.Unauthenticated)
	case s.status == http.StatusForbidden:
		return fail(parley.Forbidden)
	case s.is != nil:
		return hub.Outcome{Answered: true, Failure: refusedBy(s, s.text)}
	case s.status == http.StatusRequestEntityTooLarge:
		return fail(parley.TooLarge)
	case s.status == http.StatusUnsupportedMediaType, s.status == http.StatusUnprocessableEntity,
		s.status == http.StatusBadRequest:
		return fail(parley.InvalidContent)
	case s.status == http.StatusNotImplemented:
		return fail(parley.Unsupported)
	}
	return fail(parley.HandlerFailed)
}

// movedAway reports that a call failed as it does when an agent has moved or changed.
func movedAway(err error) bool {
	status, ok := errors.AsType[*statusError](err)
	return ok && status.moved() || errors.Is(err, protocol.ErrVersionNotSupported) ||
		errors.Is(err, protocol.ErrMethodNotFound)
}

// refusesContext reports that an agent may have refused the contextId of a message.
func refusesContext(err error) bool {
	return errors.Is(err, protocol.ErrTaskNotFound) || errors.Is(err, protocol.ErrInvalidParams)
}

// notTheProtocol reports that an agent answered, and not as the protocol has it. The SDK's
// own errors about that have no type.
func notTheProtocol(err error) bool {
	_, isLost := errors.AsType[*lostError](err)
	_, hasStatus := errors.AsType[*statusError](err)
	_, isToken := errors.AsType[*peerauth.TokenError](err)
	_, isRefused := errors.AsType[*protocol.Error](err)
	return err != nil && !isLost && !hasStatus && !isToken && !isRefused && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}
