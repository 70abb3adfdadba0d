package a2e

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Pure functions between A2E's content, events and errors, and the hub's messages.

// Protocol is this protocol's short name.
const Protocol = "a2e"

// toData encodes a reply's parts as the data of a tool's or skill's result, which is an
// object.
func toData(parts []parley.Part) (json.RawMessage, error) {
	v, err := bridge.Content(parts)
	if err == nil && jsonx.Kind(v) == '"' {
		return append(append(append(make(json.RawMessage, 0, len(v)+9), `{"text":`...), v...), '}'), nil
	}
	return v, err
}

// asObject gives a value that is an object unchanged, any other as a member of an
// object.
func asObject(v json.RawMessage) (json.RawMessage, error) {
	if jsonx.Kind(v) == '{' {
		return v, nil
	}
	return jsonx.Encode(map[string]json.RawMessage{wrappedMember: v})
}

// fromContent is the reverse of bridge.Content for content from agents.
func fromContent(v json.RawMessage) ([]parley.Part, error) {
	switch {
	case len(v) == 0 || jsonx.IsNull(v):
		return nil, nil
	case jsonx.Kind(v) == '"':
		var s string
		if err := jsonx.Decode(v, &s); err != nil {
			return nil, err
		}
		return []parley.Part{parley.Text(s)}, nil
	}
	return []parley.Part{jsonPart(v)}, nil
}

func jsonPart(v []byte) parley.Part {
	return parley.Part{MediaType: "application/json", Data: v}
}

// provenanceOf tells a recipient where a message came from: the member "parley" of its
// metadata.
func provenanceOf(m *parley.Message, hubID string, way bridge.Way) json.RawMessage {
	b, err := jsonx.Encode(map[string]bridge.ProvenanceObject{"parley": bridge.ProvenanceOf(way, m, hubID)})
	if err != nil {
		return nil
	}
	return b
}

// toError translates a failure. capability chooses between the codes of tools and of
// skills.
func toError(e *parley.Error, capability string) *protocol.Error {
	failed, unknown, denied := protocol.ToolError, protocol.UnknownTool, protocol.ToolDenied
	switch capability {
	case "tools":
	case "skill":
		failed, unknown, denied = protocol.SkillError, protocol.UnknownSkill, protocol.Unauthorized
	default:
		failed, unknown, denied = protocol.RuntimeError, protocol.InvalidMessage, protocol.Unauthorized
	}
	out := &protocol.Error{Code: failed, Text: e.Text, Step: "handler", Retryable: e.Retryable, Capability: capability,
		Reason: string(e.Code)}
	switch e.Code {
	case parley.UnknownAgent, parley.UnknownSkill:
		out.Code = unknown
	case parley.Forbidden, parley.Unauthenticated:
		out.Code = denied
	case parley.InvalidContent, parley.Malformed, parley.TooLarge:
		out.Code = protocol.SchemaViolation
	case parley.TimedOut:
		out.Code, out.Retryable = protocol.Timeout, true
	case parley.NoSpace:
		out.Code, out.Retryable = protocol.OutOfMemory, true
	case parley.Internal:
		out.Code = protocol.RuntimeError
	}
	detail := map[string]any{"reason": e.Code}
	if e.Ref != "" {
		detail["ref"] = e.Ref
	}
	if e.After > 0 {
		detail["retry_after"] = e.After.Seconds()
	}
	if v, err := jsonx.Encode(detail); err == nil {
		out.Detail = v
	}
	return out.Because(e)
}

// fromError sorts the error of a call to a host: the host's own answer (failure),
// or a failed attempt.
func fromError(err error) (failure, failed *parley.Error, unknown bool) {
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		failed = parley.AsError(err)
		if failed.Code == parley.Internal {
			failed = parley.Fail(parley.Unavailable, err, "the host cannot be reached").
				With(parley.ByNetwork, parley.ConnectionLost, err.Error())
		}
		failed = bridge.Unreachable(failed, err)
		return nil, failed, failed.Code == parley.TimedOut
	}
	if e.Step != "peer" {
		switch {
		case errors.Is(e, protocol.ErrTimeout):
			return nil, parley.Fail(parley.TimedOut, err,
				"the host has the request and did not answer in time; its tool may still be at work").
				With(parley.ByPeer, parley.PeerSilent, "no answer in time"), true
		case errors.Is(e, protocol.ErrOutcomeUnknown):
			return nil, bridge.Unreachable(parley.Fail(parley.Unavailable, err,
				"the connection to the host broke before its answer; its tool may have worked").
				With(parley.ByNetwork, parley.ConnectionLost, "connection lost before its answer"), err), true
		case errors.Is(e, protocol.ErrAnswerTooLarge):
			return bridge.AnswerTooLarge(parley.Refuse(parley.HandlerFailed,
				"the result is too large: the host's answer has more than %d bytes",
				protocol.DefaultMaxFrame).Because(err), fmt.Sprintf("%d bytes", protocol.DefaultMaxFrame)), nil, false
		case errors.Is(e, protocol.ErrTooLarge):
			return bridge.Answered(parley.Refuse(parley.TooLarge, "the request is too large for the host").Because(err),
				Protocol, "", protocol.ErrTooLarge.Reason), nil, false
		case errors.Is(e, protocol.ErrUnauthorized), errors.Is(e, protocol.ErrUnknownKey):
			return nil, bridge.Answered(parley.Refuse(parley.Unauthenticated, "the host refused the hub's token").
				Because(err), Protocol, "", bridge.Shorten(e.Reason, 64), protocol.ErrUnknownKey.Reason), false
		}
		failed := parley.Fail(parley.Unavailable, err, "the host cannot be reached: %s", e.Text)
		if errors.Is(e, protocol.ErrUnreachable) { // its text says so
			failed.Text = e.Text
		}
		if said := statusOf(e); said != nil {
			return nil, bridge.Answered(failed, Protocol, said.Text), false
		}
		return nil, bridge.Unreachable(failed.With(parley.ByNetwork, parley.ConnectionLost, e.Text), err), false
	}
	code := parley.HandlerFailed
	switch e.Code {
	case protocol.UnknownTool, protocol.UnknownSkill:
		code = parley.UnknownSkill
	case protocol.ToolDenied, protocol.Unauthorized, protocol.CapabilityMissing:
		code = parley.Forbidden
	case protocol.SchemaViolation, protocol.ParseError:
		code = parley.InvalidContent
	case protocol.InvalidMessage:
		code = parley.Rejected
		if protocol.NotSupported(e) {
			code = parley.Unsupported
		}
	case protocol.VersionMismatch:
		code = parley.Unsupported
	case protocol.Timeout:
		code = parley.TimedOut
	}
	answer, text := bridge.Shorten(string(e.Code), 64), bridge.Shorten(cmp.Or(e.Text, string(e.Code)), 200)
	failure = bridge.Answered(parley.Refuse(code, "the host answered %s: %s", answer, text).Because(err), Protocol, text,
		e.Reason, answer)
	failure.Retryable = e.Retryable
	return failure, nil, false
}

// statusOf finds the answer of a host that did not open a session, or took no more
// frames; nil if there is none.
func statusOf(e *protocol.Error) *protocol.Error {
	for e != nil && e.Reason != protocol.ErrStatus.Reason && e.Reason != protocol.ErrFull.Reason {
		e, _ = errors.AsType[*protocol.Error](e.Unwrap())
	}
	return e
}

// foreignEvents is "no" if the caller wants no events.
const foreignEvents = "a2e.events"

// replyLosses gives the losses of an event or a reply in the result of a call.
func replyLosses(reply, request *parley.Message) []parley.Loss {
	losses := bridge.Losses(bridge.Call, reply, request.From)
	if reply.Kind == parley.Event && request.Trace.Foreign[foreignEvents] == "no" {
		losses = []parley.Loss{{Field: "Kind", Reason: "the call is not a streaming one"}}
	}
	return bridge.OfReply(reply.Kind, losses)
}

// eventOf translates an event of a host.
func eventOf(e protocol.Event) (parley.State, []parley.Part) {
	switch e.Kind {
	case protocol.KindProgress, protocol.KindStatus:
		var d struct {
			Message string `json:"message"`
		}
		if jsonx.Decode(e.Data, &d) == nil && d.Message != "" && e.Kind == protocol.KindStatus {
			return parley.Working, []parley.Part{parley.Text(d.Message)}
		}
		return parley.Working, []parley.Part{jsonPart(bytes.Clone(e.Data))}
	case protocol.KindArtifact:
		var d struct {
			Name  string `json:"name"`
			MIME  string `json:"mime"`
			Chunk []byte `json:"chunk"`
		}
		if jsonx.Decode(e.Data, &d) == nil && d.MIME != "" {
			return parley.NoState, []parley.Part{{MediaType: d.MIME, Name: d.Name, Data: d.Chunk}}
		}
	}
	return parley.NoState, []parley.Part{jsonPart(bytes.Clone(e.Data))}
}

// toEvent translates an event about a request into one about a call.
func toEvent(m *parley.Message) (protocol.EventKind, any) {
	content, err := bridge.Content(m.Parts)
	if err != nil {
		content = json.RawMessage("{}")
	}
	if m.State != parley.NoState {
		text := cmp.Or(m.Text(), m.State.String())
		if jsonx.Kind(content) == '{' && len(m.Parts) > 0 && m.State != parley.NeedsInput {
			var d struct {
				Percent *float64 `json:"pct"`
			}
			if jsonx.Decode(content, &d) == nil && d.Percent != nil {
				return protocol.KindProgress, content
			}
		}
		data := map[string]any{"message": text, "state": m.State.String()}
		if m.State == parley.NeedsInput {
			data["in_reply_to"] = m.InReplyTo // for parley_send
		}
		if len(m.Parts) > 1 || slices.ContainsFunc(m.Parts, func(p parley.Part) bool { return !p.IsText() }) {
			data["value"] = content // content beyond the message
		}
		return protocol.KindStatus, data
	}
	if len(m.Parts) == 1 && !m.Parts[0].IsJSON() && m.Parts[0].URI == "" {
		p := m.Parts[0]
		return protocol.KindArtifact, map[string]any{"name": p.Name, "mime": p.MediaType,
			"chunk": base64.StdEncoding.EncodeToString(p.Data), "final": false}
	}
	if jsonx.Kind(content) != '{' {
		return protocol.KindStatus, map[string]any{"message": m.Text(), "value": content}
	}
	return protocol.KindStatus, content
}

// hopsOf gives the hubs that a request has passed, if another hub made it: see
// provenanceOf.
func hopsOf(r *protocol.Request) []string {
	var metadata struct {
		Parley jsonx.Value `json:"parley"`
	}
	v := r.Get("metadata")
	if len(v) == 0 || jsonx.Decode(v, &metadata) != nil {
		return nil
	}
	return bridge.HopsOf(metadata.Parley)
}

// bodyOf gives the members of a message besides the base members.
func bodyOf(e *protocol.Envelope) (json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := jsonx.Decode(e.Raw(), &all); err != nil {
		return nil, err
	}
	// The session belongs to its two ends, and over HTTP its id is their secret.
	for _, base := range []string{"a2e", "version", "scp", "id", "type", "ts", "req_id", sessionMember} {
		delete(all, base)
	}
	return jsonx.Encode(all)
}

// extension is the content of this protocol's extension of messages.
type extension struct {
	Subagent string   `json:"subagent,omitempty"`
	Task     string   `json:"task_name,omitempty"`
	Criteria []string `json:"success_criteria,omitempty"`
	Type     string   `json:"type,omitempty"` // of a request that is passed on unchanged, and of its response
}

func (x extension) in() (map[string]json.RawMessage, error) {
	b, err := jsonx.Encode(x)
	return map[string]json.RawMessage{Protocol: json.RawMessage(b)}, err
}

func extensionOf(m *parley.Message) (x extension) {
	if m == nil || m.Extensions[Protocol] == nil || json.Unmarshal(m.Extensions[Protocol], &x) != nil {
		return extension{}
	}
	return x
}
