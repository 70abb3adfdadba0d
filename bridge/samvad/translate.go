package samvad

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
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

// toMessage says a verified request in the hub's terms. From and to are
// directory names.
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
	// What ends at the hub is named where it is not passed on; see bridge.Losses.
	if e := r.Envelope; e.Delegated() || e.Auth != nil || e.Replaced {
		m.Extensions = map[string]json.RawMessage{Protocol: extension(false, nil, e.Auth != nil, e.Delegated(), e.Replaced)}
	}
	return m
}

// kept is the allow-list of headers that are stored: what a signature needs
// to be verified again. Tokens are in none of them.
var signatureHeaders = [...]string{"Content-Type", "Content-Digest", "Signature-Input", "Signature"}

func signatureHeadersOf(h http.Header) map[string]string {
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

// traceparent maps a trace id and span id of any form to W3C trace context:
// those that are hexadecimal as they are, others by their hash, so that the
// same id always leads to the same trace.
func traceparent(trace, span string) string {
	var b [55]byte
	copy(b[:], "00-")
	hexID(b[3:35], trace)
	b[35] = '-'
	hexID(b[36:52], span)
	copy(b[52:], "-01")
	return string(b[:])
}

func hexID(dst []byte, id string) {
	n := 0
	for i := range len(id) {
		c := id[i]
		switch {
		case c == '-':
			continue
		case c >= 'A' && c <= 'F':
			c += 'a' - 'A'
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f':
		default:
			n = -1
		}
		if n < 0 || n >= 32 {
			n = -1
			break
		}
		if n < len(dst) {
			dst[n] = c
		}
		n++
	}
	if n != 32 && n != len(dst) || allZero(dst) {
		sum := sha256.Sum256([]byte(id))
		hex.Encode(dst, sum[:len(dst)/2])
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != '0' {
			return false
		}
	}
	return true
}

// toResult says parts as a SAMVAD result or payload, which is one JSON object:
// an object as it is, other JSON as {"result": …}, text as {"text": …}. Of
// several parts the main JSON goes, else the first.
func toResult(parts []parley.Part) (json.RawMessage, error) {
	if len(parts) == 0 {
		return json.RawMessage("{}"), nil
	}
	return object(parts[max(0, parley.MainJSON(parts))], "result")
}

// toReply says how a request ended, as tasks and webhooks tell it.
func toReply(trace string, reply *parley.Message) *protocol.Reply {
	r := &protocol.Reply{TraceID: trace, SpanID: reply.ID.String()}
	if reply.Kind == parley.Failure {
		r.Err = toError(reply.Error)
		return r
	}
	v, err := toResult(reply.Parts)
	if err != nil {
		r.Err = &protocol.Error{Code: protocol.CodeAgentUnavailable, Text: "The agent answered with something that is not JSON."}
		return r
	}
	r.Result = json.RawMessage(v)
	return r
}

// replyLosses gives the losses of an event or a reply in a response, stream or task.
func (b *Binding) replyLosses(reply, request *parley.Message) []parley.Loss {
	losses := bridge.Losses(bridge.SAMVAD, reply, request.From)
	mode := protocol.Mode(request.Trace.Foreign[foreignMode])
	if reply.Kind == parley.Event && len(losses) == 0 && mode != protocol.ModeStream {
		losses = []parley.Loss{{Field: "Kind", Reason: "only a stream shows pieces of the result before it"}}
	}
	if reply.Kind == parley.Failure && reply.Error != nil && reply.Error.After > 0 && mode != protocol.ModeSync {
		losses = append(losses, parley.Loss{Field: "Error.After", Reason: "a task or stream does not say when to try again"})
	}
	if surrogatesReplaced(reply) {
		losses = append(losses, bridge.SurrogatesReplaced)
	}
	return bridge.OfReply(reply.Kind, losses)
}

// answered is the extension of an answer.
func replyExtension(replaced bool) map[string]json.RawMessage {
	if !replaced {
		return nil
	}
	return map[string]json.RawMessage{Protocol: extension(false, nil, false, false, true)}
}

// object makes a JSON object of any part; what is none goes under a name.
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

// callOf says a message as a call of a SAMVAD agent, in the hub's name.
func callOf(m *parley.Message, recipient *parley.Agent, id parley.Identity) (protocol.Call, error) {
	payload, err := toResult(m.Parts)
	if err == nil && m.Origin.Protocol == Protocol && surrogatesReplaced(m) {
		payload = asWritten(m, payload)
	}
	call := protocol.Call{URL: id.URL, To: id.ID, Skill: m.Skill, Payload: json.RawMessage(payload), TraceID: m.Trace.Foreign[foreignTrace],
		ParentSpanID: m.Trace.Foreign[foreignSpan], SpanID: m.ID.String(), Header: http.Header{bridge.ProvenanceHeader: {bridge.Provenance(m)}}}
	if call.TraceID == "" {
		if call.TraceID = m.Conversation.String(); len(m.Trace.Parent) == 55 {
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
// pairs, which an agent elsewhere can have, unless a mapping changed it.
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

// toError says a failure in the protocol's words; what has no code of its own
// is AGENT_UNAVAILABLE.
func toError(e *parley.Error) *protocol.Error {
	code, ok := codes[e.Code]
	if !ok {
		code = protocol.CodeAgentUnavailable
	}
	return &protocol.Error{Code: code, Text: e.Text, Retryable: e.Retryable, RetryAfter: e.After}
}

// refusals maps the protocol's own refusals of a proved message.
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

// toRefusal says a refusal of this side in the hub's terms.
func toRefusal(e *protocol.Error) *parley.Error {
	code, ok := refusals[e.Code]
	if !ok {
		code = parley.Rejected
	}
	return parley.Refuse(code, "%s", e.Text).Because(e)
}

// answer sorts what a call to a remote agent ended with: its own answer
// (Failure), or a failed attempt.
type answer struct {
	failure *parley.Error // the agent answered so
	err     *parley.Error // the attempt failed
	wait    time.Duration
	unknown bool
}

func fromError(err error) answer {
	e := protocol.AsError(err)
	if !errors.Is(err, protocol.ErrRemote) {
		out := answer{err: parley.Fail(parley.Unavailable, err, "%s", strings.TrimSuffix(e.Text, "."))}
		out.unknown = errors.Is(err, protocol.ErrOutcomeUnknown)
		out.err.Retryable = e.Retryable || out.unknown // which the delivery decides
		if errors.Is(err, protocol.ErrTimeout) {
			out.err.Code = parley.TimedOut
		}
		return out
	}
	code := map[protocol.Code]parley.Code{
		protocol.CodeSchemaInvalid:       parley.InvalidContent,
		protocol.CodeAuthFailed:          parley.Forbidden,
		protocol.CodeSkillNotFound:       parley.UnknownSkill,
		protocol.CodeInjectionDetected:   parley.Rejected,
		protocol.CodeDelegationExceeded:  parley.Forbidden,
		protocol.CodeReplayDetected:      parley.Stale,
		protocol.CodeTimestampExpired:    parley.Stale,
		protocol.CodeRateLimited:         parley.RateLimited,
		protocol.CodeTokenBudgetExceeded: parley.RateLimited,
	}[e.Code]
	switch {
	case code == parley.RateLimited:
		wait := max(e.RetryAfter, time.Second)
		limited := parley.Fail(code, err, "the agent asks to come back later")
		limited.After = wait
		return answer{err: limited, wait: wait}
	case code == "":
		code = parley.HandlerFailed
	}
	return answer{failure: parley.Refuse(code, "the agent answered %s", e.Code).Because(err)}
}

func stepCode(e *protocol.Error) parley.Code {
	switch {
	case errors.Is(e, protocol.ErrStale):
		return parley.Stale
	case errors.Is(e, protocol.ErrTooLarge):
		return parley.TooLarge
	case errors.Is(e, protocol.ErrNotFound):
		return parley.UnknownAgent
	case errors.Is(e, protocol.ErrMalformed), errors.Is(e, protocol.ErrMediaType), errors.Is(e, protocol.ErrRecipient), errors.Is(e, protocol.ErrMethod):
		return parley.Malformed
	case e.Code == protocol.CodeAuthFailed && !errors.Is(e, protocol.ErrTrust):
		return parley.Unauthenticated
	case e.Code == protocol.CodeAgentUnavailable:
		return parley.Unavailable
	}
	return toRefusal(e).Code
}
