package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
)

// rpcCodes are the hub's codes for JSON-RPC errors; others are handler_failed.
var rpcCodes = map[int64]parley.Code{
	jsonrpc.CodeMethodNotFound: parley.Unsupported,
	jsonrpc.CodeInvalidParams:  parley.InvalidContent,
	-32021:                     parley.Unsupported, // the client lacks a capability
	-32022:                     parley.Unsupported, // protocol version
	-32042:                     parley.Unsupported, // the user must visit a URL first
}

// statusCodes are the hub's codes for HTTP statuses that refuse a call; others are handler_failed.
var statusCodes = map[int]parley.Code{
	http.StatusUnauthorized:          parley.Unauthenticated,
	http.StatusForbidden:             parley.Forbidden,
	http.StatusRequestEntityTooLarge: parley.TooLarge,
	http.StatusUnprocessableEntity:   parley.InvalidContent,
}

// failedCall is the outcome of a call without an answer that can be used.
func failedCall(agent string, err error) hub.Outcome {
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return hub.Outcome{Answered: true, Failure: refusedCall(e)}
	}
	call, _ := errors.AsType[*callError](err)
	sent := call == nil || call.sent
	lost := func(text string) *parley.Error { return parley.Fail(parley.Unavailable, err, text, agent) }
	if status, ok := errors.AsType[*serverStatus](err); ok {
		return failedStatus(agent, status, sent)
	}
	if token, ok := errors.AsType[*peerauth.TokenError](err); ok {
		return hub.Outcome{Err: bridge.NoToken(agent, token.Status, token)}
	}
	if e, ok := errors.AsType[*parley.Error](err); ok { // the hub refused the call or the answer
		if e.Retryable {
			out := hub.Outcome{Err: e, Unknown: sent}
			if e.Reason == parley.NotConnected { // the message waits until the server is attached: it counts as no try
				out.Wait = retryPause
			}
			return out
		}
		return hub.Outcome{Answered: true, Failure: e}
	}
	unusable := errors.Is(err, errMalformed) || errors.Is(err, errFlood) || errors.Is(err, netguard.ErrTooLarge)
	switch {
	case unusable && !sent:
		return hub.Outcome{Err: bridge.NotUnderstood(lost("%q cannot be called: its answer is not understood"), err)}
	case errors.Is(err, netguard.ErrTooLarge):
		return hub.Outcome{Answered: true, Failure: bridge.AnswerTooLarge(parley.Refuse(parley.HandlerFailed,
			"the answer of %q is too large", agent).Because(err), "the hub takes")}
	case unusable:
		return hub.Outcome{Answered: true, Failure: bridge.NotUnderstood(parley.Refuse(parley.HandlerFailed,
			"the answer of %q is not understood", agent).Because(err), err)}
	}
	e := lost("%q did not answer")
	if !sent {
		e = lost("%q cannot be reached")
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Code = parley.TimedOut
	case errors.Is(err, context.Canceled):
		e.Code = parley.Cancelled
	}
	e = bridge.Unreachable(e, err)
	if e.Source == parley.NotStated {
		e = e.With(parley.ByNetwork, parley.ConnectionLost, shownText(err.Error(), maxErrorText))
	}
	return hub.Outcome{Err: e, Unknown: sent}
}

// refusedCall is the failure for a JSON-RPC error.
func refusedCall(e *jsonrpc.Error) *parley.Error {
	said := shownText(e.Message, maxErrorText)
	code := cmp.Or(rpcCodes[e.Code], parley.HandlerFailed)
	number := strconv.FormatInt(e.Code, 10)
	if e.Code == jsonrpc.CodeInvalidParams && namesNoTool(said) {
		code, number = parley.UnknownSkill, "" // the code's usual reason is another
	}
	text := cmp.Or(said, fmt.Sprintf("the server answered with error %d", e.Code))
	return bridge.Answered(parley.Refuse(code, "%s", text).Because(e), Protocol, said, number)
}

// namesNoTool reports that the text of an error for bad parameters is about the name of the tool, in the words of the
// specification and of the SDKs.
func namesNoTool(text string) bool {
	t := strings.ToLower(text)
	return strings.Contains(t, "unknown tool") || strings.Contains(t, "tool") && strings.Contains(t, "not found")
}

// failedStatus is the outcome of a call that was answered with an HTTP status.
func failedStatus(agent string, s *serverStatus, sent bool) hub.Outcome {
	number := strconv.Itoa(s.status)
	said := func(e *parley.Error) *parley.Error { return bridge.Answered(e.Because(s), Protocol, s.text, number) }
	switch {
	case s.status == http.StatusTooManyRequests, s.status == http.StatusServiceUnavailable:
		out := bridge.TryLater(agent, s.status, s.after)
		out.Err = said(out.Err)
		return out
	case sent:
		return hub.Outcome{Err: said(parley.Fail(parley.Unavailable, s, "%q did not answer", agent)), Unknown: true}
	case s.gone, s.status == http.StatusNotFound, s.status == http.StatusMethodNotAllowed, s.status == http.StatusGone,
		s.status >= 300 && s.status < 400:
		return hub.Outcome{Err: said(parley.Fail(parley.Unavailable, s, "%q is not where it was enrolled", agent))}
	}
	return hub.Outcome{Answered: true, Failure: said(parley.Refuse(cmp.Or(statusCodes[s.status], parley.HandlerFailed),
		"the server answered with HTTP status %s", number))}
}
