package samvad

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	protocol "github.com/parley-hub/parley/samvad"
)

// Protocol is this protocol's short name.
const Protocol = "samvad"

// Names of the protocol's own ids in parley.Trace.Foreign.
const (
	foreignTrace = "samvad.traceId"
	foreignSpan  = "samvad.spanId"
	foreignMode  = "samvad.mode" // the endpoint at which a request came in
)

// toMessage makes a message of a verified request. From and to are directory names.
func toMessage(r *protocol.Request, from, to string, received time.Time) *parley.Message {
	m := &parley.Message{
		Kind:  parley.Request,
		From:  from,
		To:    to,
		Skill: r.Envelope.Skill,
		Parts: []parley.Part{{MediaType: "application/json", Data: r.Payload}},
		Sent:  r.Timestamp,
		Hops:  bridge.HopsIn(r.Header.Get(bridge.ProvenanceHeader)),
		Trace: parley.Trace{
			Parent:  traceparent(r.TraceID, r.SpanID),
			Foreign: map[string]string{foreignTrace: r.TraceID, foreignSpan: r.SpanID, foreignMode: string(r.Endpoint)},
		},
		Origin: parley.Origin{
			Protocol: Protocol,
			Peer:     r.From,
			Address:  r.Remote,
			Raw:      r.Raw(),
			Header:   signatureHeadersOf(r.Header),
			Received: received,
			Verdict:  verdict(&r.Verdict),
		},
	}
	// bridge.Losses names credentials, which end at the hub.
	if e := r.Envelope; e.Delegated() || e.Auth != nil || e.Replaced {
		x := extension(false, nil, e.Auth != nil, e.Delegated(), e.Replaced)
		m.Extensions = map[string]json.RawMessage{Protocol: x}
	}
	return m
}

// signatureHeaders are the headers that the hub records: those that the signature
// needs to be verified again. None has a token.
var signatureHeaders = [...]string{"Content-Type", "Content-Digest", "Signature-Input", "Signature"}

func signatureHeadersOf(h map[string][]string) map[string]string {
	out := make(map[string]string, len(signatureHeaders))
	for _, k := range signatureHeaders {
		if v := h[k]; len(v) == 1 {
			out[k] = v[0]
		}
	}
	return out
}

func verdict(v *protocol.Verdict) parley.Verdict {
	out := parley.Verdict{KeyID: v.KeyID, Checks: make([]parley.Check, len(v.Checks))}
	if v.Assurance == protocol.Signed {
		out.Assurance = parley.Signed
	}
	for i, c := range v.Checks {
		out.Checks[i] = parley.Check{Name: string(c.Name), OK: c.OK, Detail: c.Detail}
	}
	return out
}

// traceparent makes W3C trace context of a trace id and a span id in any form.
func traceparent(trace, span string) string {
	return "00-" + hexID(trace, 32) + "-" + hexID(span, 16) + "-01"
}

// hexID makes n hexadecimal digits of an id: its own if it is a UUID or has n of
// them, else those of its hash, so that an id always gives the same digits.
func hexID(id string, n int) string {
	h := strings.ToLower(strings.ReplaceAll(id, "-", ""))
	if (len(h) == 32 || len(h) == n) && strings.Trim(h, "0123456789abcdef") == "" && strings.Trim(h[:n], "0") != "" {
		return h[:n]
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:n/2])
}

// toResult makes a SAMVAD result or payload, which is one JSON object: an object
// stays as it is, other JSON becomes {"result": …}, text {"text": …}. Of several
// parts it takes the main JSON, else the first.
func toResult(parts []parley.Part) (json.RawMessage, error) {
	if len(parts) == 0 {
		return json.RawMessage("{}"), nil
	}
	return object(parts[max(0, parley.MainJSON(parts))], "result")
}

// toReply makes the outcome of a request, for tasks and webhooks.
func toReply(trace string, reply *parley.Message) *protocol.Reply {
	r := &protocol.Reply{TraceID: trace, SpanID: reply.ID.String()}
	if reply.Kind == parley.Failure {
		r.Err = toError(reply.Error)
		return r
	}
	v, err := toResult(reply.Parts)
	if err != nil {
		r.Err = &protocol.Error{Code: protocol.CodeAgentUnavailable,
			Text: "The agent answered with something that is not JSON."}
		return r
	}
	r.Result = json.RawMessage(v)
	return r
}

// replyLosses gives the losses of an event or a reply in a response, stream or task.
func replyLosses(reply, request *parley.Message) []parley.Loss {
	losses := bridge.Losses(bridge.SAMVAD, reply, request.From)
	mode := protocol.Mode(request.Trace.Foreign[foreignMode])
	if reply.Kind == parley.Event && len(losses) == 0 && mode != protocol.ModeStream {
		losses = []parley.Loss{{Field: "Kind", Reason: "only a stream shows pieces of the result before it"}}
	}
	if reply.Kind == parley.Failure && reply.Error != nil && reply.Error.After > 0 && mode != protocol.ModeSync {
		losses = append(losses, parley.Loss{Field: "Error.After",
			Reason: "a task or stream does not say when to try again"})
	}
	if surrogatesReplaced(reply) {
		losses = append(losses, bridge.SurrogatesReplaced)
	}
	return bridge.OfReply(reply.Kind, losses)
}

// replyExtension is the extension of a reply.
func replyExtension(replaced bool) map[string]json.RawMessage {
	if !replaced {
		return nil
	}
	return map[string]json.RawMessage{Protocol: extension(false, nil, false, false, true)}
}

// object makes a JSON object of any part; other JSON becomes its member name.
func object(p parley.Part, name string) (json.RawMessage, error) {
	switch {
	case p.IsJSON():
		if err := jsonx.Valid(p.Data, 0); err != nil {
			return nil, err
		}
		v := json.RawMessage(p.Data)
		if jsonx.Kind(v) == '{' {
			return v, nil
		}
		return jsonx.Encode(map[string]json.RawMessage{name: v})
	case p.IsText():
		return jsonx.Encode(map[string]string{"text": string(p.Data)})
	}
	named := map[string]string{"mediaType": p.MediaType}
	if p.Name != "" {
		named["name"] = p.Name
	}
	if p.URI != "" {
		named["uri"], named["digest"] = p.URI, p.Digest
	} else {
		named["base64"] = base64.StdEncoding.EncodeToString(p.Data)
	}
	return jsonx.Encode(named)
}

// callOf makes a call of a SAMVAD agent, in the hub's name.
func callOf(m *parley.Message, recipient *parley.Agent, id parley.Identity) (protocol.Call, error) {
	payload, err := toResult(m.Parts)
	if err == nil && m.Origin.Protocol == Protocol && surrogatesReplaced(m) {
		payload = asWritten(m, payload)
	}
	call := protocol.Call{
		URL: id.URL, To: id.ID, Skill: m.Skill, Payload: payload,
		TraceID: m.Trace.Foreign[foreignTrace], ParentSpanID: m.Trace.Foreign[foreignSpan], SpanID: m.ID.String(),
		Header: map[string][]string{bridge.ProvenanceHeader: {bridge.Provenance(m)}},
	}
	if call.TraceID == "" {
		call.TraceID = m.Conversation.String()
		if len(m.Trace.Parent) == 55 {
			call.TraceID = m.Trace.Parent[3:35]
		}
	}
	if m.Skill == "" {
		if s, ok := recipient.SkillNamed(""); ok {
			call.Skill = s.ID
		}
	}
	return call, err
}

// asWritten gives the payload of a recorded request with its halves of surrogate
// pairs, for an agent elsewhere, unless a mapping changed it.
func asWritten(m *parley.Message, payload json.RawMessage) json.RawMessage {
	e, err := protocol.Decode(m.Origin.Raw)
	if err != nil || !bytes.Equal(e.Payload, payload) {
		return payload
	}
	return json.RawMessage(e.RawPayload())
}

// codes maps the hub's failures to the nine codes of the response schema.
var codes = map[parley.Code]protocol.Code{
	parley.Malformed:       protocol.CodeSchemaInvalid,
	parley.TooLarge:        protocol.CodeSchemaInvalid,
	parley.InvalidContent:  protocol.CodeSchemaInvalid,
	parley.Unsupported:     protocol.CodeSchemaInvalid,
	parley.Unauthenticated: protocol.CodeAuthFailed,
	parley.Stale:           protocol.CodeAuthFailed,
	parley.Forbidden:       protocol.CodeAuthFailed,
	parley.Replayed:        protocol.CodeReplayDetected,
	parley.UnknownAgent:    protocol.CodeSkillNotFound,
	parley.UnknownSkill:    protocol.CodeSkillNotFound,
	parley.RateLimited:     protocol.CodeRateLimited,
}

// toError makes the protocol's error of a failure; its code is AGENT_UNAVAILABLE
// where SAMVAD has no other.
func toError(e *parley.Error) *protocol.Error {
	out := &protocol.Error{Code: cmp.Or(codes[e.Code], protocol.CodeAgentUnavailable), Text: e.Text,
		Retryable: e.Retryable, RetryAfter: e.After, Ref: e.Ref}
	// Without its cause, which may be an error of this package about another message.
	return out.Because(e.Because(nil))
}

// refusals maps the refusals of a proved message by the protocol's server.
var refusals = map[protocol.Code]parley.Code{
	protocol.CodeSchemaInvalid:       parley.InvalidContent,
	protocol.CodeAuthFailed:          parley.Forbidden,
	protocol.CodeSkillNotFound:       parley.UnknownSkill,
	protocol.CodeInjectionDetected:   parley.Rejected,
	protocol.CodeDelegationExceeded:  parley.Forbidden,
	protocol.CodeRateLimited:         parley.RateLimited,
	protocol.CodeTokenBudgetExceeded: parley.RateLimited,
	protocol.CodeReplayDetected:      parley.Replayed,
}

// toRefusal makes the hub's error of a refusal by the protocol's server.
func toRefusal(e *protocol.Error) *parley.Error {
	return parley.Refuse(cmp.Or(refusals[e.Code], parley.Rejected), "%s", e.Text).Because(e)
}

// failedCall makes the outcome of a call that failed: a failure that the agent
// answered, or an attempt that did not succeed.
func failedCall(err error) hub.Outcome {
	e := protocol.AsError(err)
	switch {
	case errors.Is(err, protocol.ErrRemote):
	case errors.Is(err, protocol.ErrTooLarge):
		return hub.Outcome{Answered: true, Failure: bridge.AnswerTooLarge(parley.Refuse(parley.HandlerFailed,
			"the agent's answer is too large").Because(err), fmt.Sprintf("%d bytes", protocol.DefaultMaxReply))}
	default:
		out := hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "%s", strings.TrimSuffix(e.Text, "."))}
		out.Unknown = errors.Is(err, protocol.ErrOutcomeUnknown)
		out.Err.Retryable = e.Retryable || out.Unknown // whether to retry, delivery decides
		if errors.Is(err, protocol.ErrTimeout) {
			out.Err.Code = parley.TimedOut
		}
		if errors.Is(err, protocol.ErrResponse) {
			out.Err = bridge.NotUnderstood(out.Err, err)
		} else {
			out.Err = bridge.Unreachable(out.Err, err)
		}
		return out
	}
	answered := func(out *parley.Error) *parley.Error {
		return bridge.Answered(out, Protocol, e.Text, statusCode(e), string(e.Code))
	}
	code := cmp.Or(refusals[e.Code], parley.HandlerFailed)
	switch e.Code {
	case protocol.CodeReplayDetected, protocol.CodeTimestampExpired:
		code = parley.Stale
	case protocol.CodeRateLimited, protocol.CodeTokenBudgetExceeded:
		wait := max(e.RetryAfter, time.Second)
		limited := parley.Fail(code, err, "the agent asks to come back later")
		limited.After = wait
		return hub.Outcome{Err: answered(limited), Wait: wait}
	}
	return hub.Outcome{Answered: true,
		Failure: answered(parley.Refuse(code, "the agent answered %s", e.Code).Because(err))}
}

// statusCode is the HTTP status of an answer where it says more than the code: agents
// refuse a sender that they know with 403.
func statusCode(e *protocol.Error) string {
	if e.Status == http.StatusForbidden {
		return strconv.Itoa(e.Status)
	}
	return ""
}

func stepCode(e *protocol.Error) parley.Code {
	switch {
	case errors.Is(e, protocol.ErrStale):
		return parley.Stale
	case errors.Is(e, protocol.ErrTooLarge):
		return parley.TooLarge
	case errors.Is(e, protocol.ErrNotFound):
		return parley.UnknownAgent
	case errors.Is(e, protocol.ErrMalformed), errors.Is(e, protocol.ErrMediaType), errors.Is(e, protocol.ErrRecipient),
		errors.Is(e, protocol.ErrMethod):
		return parley.Malformed
	case e.Code == protocol.CodeAuthFailed && !errors.Is(e, protocol.ErrTrust):
		return parley.Unauthenticated
	case e.Code == protocol.CodeAgentUnavailable:
		return parley.Unavailable
	}
	return toRefusal(e).Code
}
