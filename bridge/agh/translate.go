package agh

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Pure functions between the protocol's envelopes and the hub's messages.

// Protocol is this protocol's short name.
const Protocol = "agh"

// ExtParley is the ext member in which the hub states the origin of a message,
// and in which a peer may name the skill that it wants ("skill").
const ExtParley = "parley"

// Names of the protocol's own ids in parley.Trace.Foreign.
const (
	foreignID     = "agh.id"
	foreignWork   = "agh.work_id"
	foreignTrace  = "agh.trace_id"
	foreignCause  = "agh.causation_id"
	foreignThread = "agh.container"
)

// maxForeign is the longest id of the protocol that the hub keeps unhashed, in bytes.
const maxForeign = 4096

// shortened gives an id as the hub keeps it: hashed if longer than maxForeign. The
// original has the whole id.
func shortened(id string) string {
	if len(id) <= maxForeign {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Identity writes a peer of a workspace as the ID of a parley.Identity.
func Identity(workspaceID, peerID string) parley.Identity {
	return parley.Identity{Protocol: Protocol, ID: workspaceID + "/" + peerID}
}

// channelMark begins the name of a whole channel in place of a peer id. No peer id
// can begin with it.
const channelMark = "#"

// split splits the ID of an identity; a peer id has no slash.
func split(id string) (workspaceID, peerID string, ok bool) {
	i := strings.LastIndexByte(id, '/')
	if i < 1 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// peerID gives the peer id of a directory agent. Agent names hold no "__", so
// that no two collide; a name that is too long is cut and hashed.
func peerID(name string) string {
	id := strings.ReplaceAll(name, "/", "__")
	if len(id) <= 128 {
		return id
	}
	sum := sha256.Sum256([]byte(name))
	return id[:111] + "-" + hex.EncodeToString(sum[:8])
}

// agentName proposes the directory name of a peer without a configured one:
// guest/agh/<workspace>/<peer>, with the @ of a verified handle as a dot. ok is
// false if that is no agent name.
func agentName(workspaceID, peer string) (string, bool) {
	name := "guest/agh/" + workspaceID + "/" + strings.Replace(peer, "@", ".", 1)
	return name, strings.Count(name, "/") == 3 && parley.CheckName(name) == nil
}

// toMessage translates a verified envelope into the hub's message. The caller sets
// sender, recipients and kind.
func toMessage(e *protocol.Envelope, v protocol.Verdict, principal string, received time.Time) *parley.Message {
	m := &parley.Message{
		Kind:  parley.Notice,
		Parts: parts(e),
		Sent:  time.Unix(e.TS, 0),
		Hops:  bridge.HopsOf(e.ExtValue(ExtParley)),
		Trace: parley.Trace{Parent: traceparent(e), Foreign: map[string]string{foreignID: shortened(e.ID)}},
		Origin: parley.Origin{Protocol: Protocol, Peer: e.WorkspaceID + "/" + e.From, Raw: e.Raw(), Received: received,
			Verdict: verdict(v, principal)},
	}
	for _, f := range []struct{ name, value string }{
		{foreignWork, e.WorkID}, {foreignTrace, e.TraceID}, {foreignCause, e.CausationID},
		{foreignThread, e.ThreadID + e.DirectID},
	} {
		if f.value != "" {
			m.Trace.Foreign[f.name] = shortened(f.value)
		}
	}
	if s, ok := e.Content().(*protocol.Say); ok {
		m.Act = s.Intent
	}
	m.Extensions = extensions(e)
	return m
}

// extensions gives a peer's ext members, without ExtParley, which is for the hub.
func extensions(e *protocol.Envelope) map[string]json.RawMessage {
	var ext map[string]jsonx.Value
	if len(e.Ext) == 0 || jsonx.Decode(e.Ext, &ext) != nil {
		return nil
	}
	delete(ext, ExtParley)
	if len(ext) == 0 {
		return nil
	}
	b, err := jsonx.Encode(map[string]any{"ext": ext})
	if err != nil { // cannot happen: ext was parsed as JSON
		return nil
	}
	return map[string]json.RawMessage{Protocol: json.RawMessage(b)}
}

// parts gives the parts of a body: the text first, then the JSON members.
func parts(e *protocol.Envelope) []parley.Part {
	var out []parley.Part
	jsonPart := func(name string, b []byte) {
		if len(b) > 0 && string(b) != "null" {
			out = append(out, parley.Part{MediaType: "application/json", Name: name, Data: b})
		}
	}
	text := func(s string) {
		if s != "" {
			out = append(out, parley.Text(s))
		}
	}
	switch c := e.Content().(type) {
	case *protocol.Say:
		text(c.Text)
		for _, a := range c.Artifacts {
			jsonPart("", a)
		}
	case *protocol.Transfer:
		var body struct {
			Capability jsonx.Value `json:"capability"`
		}
		if jsonx.Decode(e.Body, &body) == nil {
			jsonPart("capability", body.Capability)
		}
	case *protocol.Trace:
		jsonPart("", c.Result)
		if same, ok := parley.OnlyText(parley.Part{MediaType: "application/json", Data: c.Result}); !ok ||
			same != c.Message {
			text(c.Message) // unless the result is the same text
		}
		for _, a := range c.ArtifactRefs {
			jsonPart("artifact", a)
		}
	case *protocol.Receipt:
		text(c.Detail)
	}
	return out
}

// verdict gives the checks of a message. v0 itself proves no sender; the connection
// may.
func verdict(v protocol.Verdict, principal string) parley.Verdict {
	out := parley.Verdict{Checks: []parley.Check{{Name: "envelope", OK: true}, {Name: "freshness", OK: true}}}
	switch {
	case v.Verified:
		out.Assurance, out.KeyID = parley.Signed, v.KeyID
		out.Checks = append(out.Checks, parley.Check{Name: "signature", OK: true, Detail: v.Handle})
	case principal != "":
		out.Assurance, out.KeyID = parley.Session, "nats user "+principal
		out.Checks = append(out.Checks, parley.Check{Name: "session", OK: true, Detail: "the NATS user " + principal +
			" may speak as this peer"})
	default:
		out.Checks = append(out.Checks, parley.Check{Name: "session",
			Detail: "an operator's NATS does not say who published"})
	}
	return out
}

// traceparent maps a trace id to W3C trace context. An id of the W3C form is kept, so
// that later requests stay in the trace; any other id is hashed.
func traceparent(e *protocol.Envelope) string {
	trace := e.TraceID
	if trace == "" {
		trace = e.WorkspaceID + "\x00" + e.From + "\x00" + e.ID
	}
	s := sha256.Sum256([]byte(e.From + "\x00" + e.ID))
	b := append(make([]byte, 0, 55), "00-"...)
	if bridge.IsTraceID(trace) {
		b = append(b, trace...)
	} else {
		t := sha256.Sum256([]byte(trace))
		b = hex.AppendEncode(b, t[:16])
	}
	return string(append(hex.AppendEncode(append(b, '-'), s[:8]), "-01"...))
}

// skillWanted gives the skill that e asks for: the skill that ext names, else the
// intent, if the agent has a skill of that name, else the transferred capability.
func skillWanted(e *protocol.Envelope, has func(string) bool) string {
	var ext struct {
		Skill string `json:"skill"`
	}
	if v := e.ExtValue(ExtParley); v != nil && jsonx.Decode(v, &ext) == nil && ext.Skill != "" {
		return ext.Skill
	}
	switch c := e.Content().(type) {
	case *protocol.Say:
		if c.Intent != "" && has(c.Intent) {
			return c.Intent
		}
	case *protocol.Transfer:
		if has(c.Capability.ID) {
			return c.Capability.ID
		}
	}
	return ""
}

// provenance is the hub's statement about a message that it sends for an agent.
type provenance struct {
	Message string `json:"message"`
	Kind    string `json:"kind"`
	From    string `json:"from"`
	Skill   string `json:"skill,omitzero"`
	Act     string `json:"act,omitzero"`
	bridge.Rest
	Protocol  string   `json:"protocol"`
	Peer      string   `json:"peer,omitzero"`
	Assurance string   `json:"assurance"`
	Key       string   `json:"key,omitzero"`    // the sender's key, in its protocol's form
	Proved    []string `json:"proved,omitzero"` // checks that passed
	Digest    string   `json:"digest,omitzero"` // of the original, sha256:hex
	Hops      []string `json:"hops,omitzero"`
	Code      string   `json:"code,omitzero"` // of a failure
}

func provenanceOf(m *parley.Message) *provenance {
	p := &provenance{Message: m.ID.String(), Kind: m.Kind.String(), From: m.From, Skill: m.Skill, Act: m.Act,
		Protocol: m.Origin.Protocol, Peer: m.Origin.Peer, Assurance: m.Origin.Verdict.Assurance.String(),
		Key: m.Origin.Verdict.KeyID, Proved: bridge.Proved(m.Origin.Verdict), Hops: m.Hops,
		Rest: bridge.RestOf(bridge.AGH, m)}
	if len(m.Origin.Raw) > 0 {
		sum := sha256.Sum256(m.Origin.Raw)
		p.Digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	if m.Error != nil {
		p.Code = string(m.Error.Code)
	}
	return p
}

// piece is a part, with its JSON unless it is text.
type piece struct {
	parley.Part
	json json.RawMessage
}

func pieces(ps []parley.Part) []piece {
	out := make([]piece, len(ps))
	for i, p := range ps {
		out[i].Part = p
		if !p.IsText() {
			out[i].json = value(p)
		}
	}
	return out
}

// toSay makes a say of parts. Its text is that of the text parts, else of the first
// part; its artifacts are the JSON of all other parts.
func toSay(ps []piece, intent string) (*protocol.Say, []parley.Loss) {
	s := &protocol.Say{Intent: intent}
	var texts []string
	for _, p := range ps {
		if p.json == nil {
			texts = append(texts, string(p.Data))
		} else {
			s.Artifacts = append(s.Artifacts, p.json)
		}
	}
	s.Text = strings.Join(texts, "\n")
	if strings.TrimSpace(s.Text) == "" && len(ps) > 0 {
		if t, ok := parley.OnlyText(ps[0].Part); ok {
			s.Text = t
		} else if len(s.Artifacts) > 0 {
			s.Text = string(s.Artifacts[0])
		}
	}
	var losses []parley.Loss
	if strings.TrimSpace(s.Text) == "" {
		s.Text = "(no text)"
		losses = append(losses, parley.Loss{Field: "Parts", Reason: "an AGH say needs text; this message had none"})
	}
	return s, losses
}

// toResult gives a trace's result, an object as the pages demand, its message, and
// the JSON of all further parts.
func toResult(ps []piece) (json.RawMessage, string, []json.RawMessage) {
	var message []string
	var result json.RawMessage
	var more []json.RawMessage
	for _, p := range ps {
		switch {
		case p.json == nil:
			message = append(message, string(p.Data))
		case result == nil:
			result = p.json
		default:
			more = append(more, p.json)
		}
	}
	switch text := strings.Join(message, "\n"); {
	case result == nil && text == "":
		return nil, "", nil
	case result == nil:
		return object("text", text), text, nil
	case result[0] != '{':
		return object("result", json.RawMessage(result)), text, more
	default:
		return result, text, more
	}
}

// value makes JSON of any part.
func value(p parley.Part) json.RawMessage {
	switch {
	case p.IsJSON() && jsonx.Valid(p.Data, 0) == nil:
		return json.RawMessage(p.Data)
	case p.URI != "":
		return object("uri", p.URI, "digest", p.Digest, "media_type", p.MediaType, "name", p.Name)
	}
	return object("media_type", p.MediaType, "name", p.Name, "base64", p.Data)
}

func object(pairs ...any) json.RawMessage {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	b, err := json.Marshal(m)
	if err != nil { // strings, bytes and checked JSON: cannot happen
		return json.RawMessage("{}")
	}
	return b
}

// states maps an event's state to the state of a trace. Other events are receipts.
var states = map[parley.State]protocol.WorkState{
	parley.NoState: protocol.StateWorking, parley.Working: protocol.StateWorking,
	parley.NeedsInput: protocol.StateNeedsInput,
}

// refused are the failures of work that was not begun. They are sent as a receipt
// "rejected", all others as a trace "failed". The registry of reasons is closed, and
// has none for an agent's refusal: ext.parley.code has the hub's code.
var refused = map[parley.Code]protocol.Reason{
	parley.Malformed:       protocol.ReasonMalformed,
	parley.TooLarge:        protocol.ReasonMalformed,
	parley.InvalidContent:  protocol.ReasonMalformed,
	parley.Unauthenticated: protocol.ReasonVerificationFailed,
	parley.Forbidden:       protocol.ReasonVerificationFailed,
	parley.UnknownAgent:    protocol.ReasonNotFound,
	parley.UnknownSkill:    protocol.ReasonNotFound,
	parley.RateLimited:     protocol.ReasonBusy,
	parley.Unsupported:     protocol.ReasonUnsupportedProfile,
	parley.Loop:            protocol.ReasonInternal,
	parley.Rejected:        protocol.ReasonInternal,
}

// toFailure gives the failure of a request that a receipt or a trace reports.
func toFailure(e *protocol.Envelope) *parley.Error {
	switch c := e.Content().(type) {
	case *protocol.Receipt:
		answered := func(f *parley.Error) *parley.Error {
			return bridge.Answered(f, Protocol, c.Detail, string(c.Reason), string(c.Status))
		}
		text := cmp.Or(c.Detail, string(c.Reason))
		switch c.Status {
		case protocol.StatusCanceled:
			return answered(parley.Refuse(parley.Cancelled, "the peer cancelled it: %s", cmp.Or(text, "no reason given")))
		case protocol.StatusExpired:
			return answered(parley.Refuse(parley.Stale, "it reached the peer too late"))
		case protocol.StatusUnsupported:
			return answered(parley.Refuse(parley.Unsupported, "the peer does not support it: %s", text))
		}
		return answered(parley.Refuse(parley.Rejected, "the peer refused it: %s", text))
	case *protocol.Trace:
		answered := func(f *parley.Error) *parley.Error {
			return bridge.Answered(f, Protocol, c.Message, string(c.State))
		}
		if c.State == protocol.StateCanceled {
			return answered(parley.Refuse(parley.Cancelled, "the peer cancelled it: %s",
				cmp.Or(c.Message, "no reason given")))
		}
		return answered(parley.Refuse(parley.HandlerFailed, "the peer failed: %s", cmp.Or(c.Message, "no reason given")))
	}
	return parley.Refuse(parley.HandlerFailed, "the peer failed").FromPeer()
}

// answerTo begins a message from the recipient of e to its sender, about e.
func answerTo(e *protocol.Envelope, id string) *protocol.Envelope {
	out := e.Answer()
	out.ID = id
	return out
}

// messageID and workID are the same at each attempt, so that peers can deduplicate.
func messageID(id parley.ID, part string) string { return "msg_" + hex.EncodeToString(id[:]) + part }

func workID(id parley.ID) string { return "work_" + hex.EncodeToString(id[:]) }

// recordOf gives the id of the hub's message from an envelope's messageID.
func recordOf(e *protocol.Envelope) (id parley.ID, ok bool) {
	hexed, ok := strings.CutPrefix(e.ID, "msg_")
	if !ok || len(hexed) < hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(hexed[:hex.EncodedLen(len(id))]))
	return id, err == nil
}

// traceOf gives the AGH trace id of m, else the W3C trace id.
func traceOf(m *parley.Message) string {
	if t := m.Trace.Foreign[foreignTrace]; t != "" {
		return t
	}
	if p := strings.Split(m.Trace.Parent, "-"); len(p) == 4 {
		return p[1]
	}
	return ""
}
