package asp

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Protocol is this protocol's short name.
const Protocol = "asp"

// Names of the protocol's own ids in parley.Trace.Foreign.
const (
	foreignSession = "asp.sessionId"
	foreignMessage = "asp.says" // id of the hub's message in an envelope that the hub sent
)

// The informTypes with which the hub marks kinds and states of messages.
const (
	informResult   = "result"
	informError    = "error"
	informProgress = "progress"
	informAccepted = "accepted"
	informInput    = "input-required"
	informMore     = "input"
	informChunk    = "chunk"
	informMessage  = "message"
	introduction   = "introduction"
)

// skillOf finds the skill that a QUERY or DELEGATE calls: its queryType or scope, else
// its subject, if the agent has such a skill. Otherwise queryType message, and any
// scope, is a message without a skill. Any other queryType is returned as it is, so
// that the hub refuses it and names the skills.
func skillOf(e *protocol.Envelope, skills []parley.SkillSpec) string {
	query := e.BodyText("queryType")
	for _, name := range []string{query, e.BodyText("scope"), e.BodyText("subject")} {
		if name != "" && slices.ContainsFunc(skills, func(s parley.SkillSpec) bool { return s.ID == name }) {
			return name
		}
	}
	if query != informMessage && len(skills) > 0 {
		return query
	}
	return ""
}

// maxResponseTime bounds the response time that a request may ask for.
const maxResponseTime = 30 * 24 * time.Hour

// responseTime is the time that a request leaves for its answer: from the message, else
// from the terms of the session; 0 if neither has it.
func responseTime(e *protocol.Envelope, l *protocol.Ledger) time.Duration {
	ms := l.MaxResponseMs
	if e.Constraints != nil {
		ms = cmp.Or(e.Constraints.MaxResponseTimeMs, ms)
	}
	return time.Duration(min(ms, maxResponseTime.Milliseconds())) * time.Millisecond
}

// remainingTime gives the deadline of a request as the constraint of its QUERY.
func remainingTime(m *parley.Message, now time.Time) *protocol.Constraints {
	if m.Kind != parley.Request || m.Deadline.IsZero() {
		return nil
	}
	return &protocol.Constraints{MaxResponseTimeMs: max(m.Deadline.Sub(now).Milliseconds(), 1)}
}

// requestParts are the content of a QUERY: its parameters, else its subject.
func requestParts(e *protocol.Envelope) []parley.Part {
	mimeType, parameters := e.Content.MimeType, jsonx.Value(e.BodyMember("parameters"))
	switch {
	case e.Performative == protocol.Delegate:
		return wholeBody(e)
	case parameters.Kind() == '{':
		return []parley.Part{typed(mimeType, parameters)}
	case mimeType == mimeText && e.BodyText("text") != "":
		return []parley.Part{parley.Text(e.BodyText("text"))}
	case mimeType == mimeBytes && e.BodyText("data") != "":
		return []parley.Part{bytesPart(e.BodyText("data"), e.BodyText("mediaType"), e.BodyText("name"),
			jsonx.Value(e.Content.Body))}
	case e.BodyText("subject") != "":
		return []parley.Part{parley.Text(e.BodyText("subject"))}
	}
	return nil
}

// wholeBody is the content of a message that is carried unchanged.
func wholeBody(e *protocol.Envelope) []parley.Part {
	return []parley.Part{typed(e.Content.MimeType, jsonx.Value(e.Content.Body))}
}

// The values of content.mimeType that are not JSON. The body is an object nevertheless:
// {"text": …} and {"data": base64url, "mediaType": …, "name": …} (project).
const (
	mimeText  = "text/plain"
	mimeBytes = "application/octet-stream"
)

// typed gives the content of an object under a mimeType: text, bytes, or the object.
func typed(mimeType string, v jsonx.Value) parley.Part {
	var text struct {
		Text *string `json:"text"`
	}
	var file struct {
		Data      *string `json:"data"`
		MediaType string  `json:"mediaType"`
		Name      string  `json:"name"`
	}
	switch {
	case mimeType == mimeText && jsonx.DecodeKnown(v, &text) == nil && text.Text != nil:
		return parley.Text(*text.Text)
	case mimeType == mimeBytes && jsonx.DecodeKnown(v, &file) == nil && file.Data != nil:
		return bytesPart(*file.Data, file.MediaType, file.Name, v)
	}
	return parley.Part{MediaType: "application/json", Data: v}
}

// bytesPart decodes bytes; without valid base64url the part is the whole object.
func bytesPart(data, mediaType, name string, object jsonx.Value) parley.Part {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(data, "="))
	if err != nil {
		return parley.Part{MediaType: "application/json", Data: object}
	}
	return parley.Part{MediaType: cmp.Or(mediaType, mimeBytes), Name: name, Data: b}
}

// replyOf translates a message as a reply to a request of the hub; nil: it is no reply.
func replyOf(e *protocol.Envelope) *parley.Message {
	text := e.BodyText
	m := &parley.Message{Act: string(e.Performative)}
	switch e.Performative {
	case protocol.Reject:
		m.Kind, m.Error = parley.Failure, bridge.Answered(parley.Refuse(codeOf(text("code"), parley.Rejected),
			"%s", cmp.Or(text("reason"), "the agent refused")), Protocol, text("reason"), text("code"))
	case protocol.Clarify:
		m.Kind, m.State, m.Parts = parley.Event, parley.NeedsInput,
			[]parley.Part{parley.Text(cmp.Or(text("question"), text("answer")))}
	case protocol.Accept:
		m.Kind, m.State = parley.Event, parley.Accepted
	case protocol.Inform:
		m.Parts = informParts(e)
		switch text("informType") {
		case introduction:
			return nil
		case informError:
			why := cmp.Or(text("reason"), text("topic"))
			m.Kind, m.Error = parley.Failure, bridge.Answered(parley.Refuse(codeOf(text("code"), parley.HandlerFailed),
				"%s", cmp.Or(why, "the agent failed")), Protocol, why, text("code"))
			m.Parts = nil
		case informAccepted:
			m.Kind, m.State = parley.Event, parley.Accepted
		case informProgress, "status", "working":
			m.Kind, m.State = parley.Event, parley.Working
		case informInput:
			m.Kind, m.State = parley.Event, parley.NeedsInput
		case informChunk, "partial":
			m.Kind = parley.Event
		default:
			m.Kind = parley.Response
		}
	default:
		return nil
	}
	return m
}

func informParts(e *protocol.Envelope) []parley.Part {
	data, topic := jsonx.Value(e.BodyMember("data")), e.BodyText("topic")
	switch {
	case !jsonx.IsNull(data):
		p := typed(e.Content.MimeType, data)
		if !p.IsJSON() {
			return []parley.Part{p}
		}
		if text, ok := parley.OnlyText(p); ok {
			return []parley.Part{parley.Text(text)}
		}
		var r struct {
			Result jsonx.Value `json:"result"`
		}
		if jsonx.DecodeKnown(data, &r) == nil && len(r.Result) > 0 && r.Result.Kind() != '{' {
			p.Data = r.Result // function object wraps other JSON like this
		}
		return []parley.Part{p}
	case topic != "":
		return []parley.Part{parley.Text(topic)}
	}
	return nil
}

// inputParts are what a requester adds to its QUERY.
func inputParts(e *protocol.Envelope) []parley.Part {
	if e.Performative == protocol.Clarify {
		text := cmp.Or(e.BodyText("answer"), e.BodyText("question"))
		if text == "" {
			return wholeBody(e)
		}
		return []parley.Part{parley.Text(text)}
	}
	if parts := informParts(e); len(parts) > 0 {
		return parts
	}
	return wholeBody(e)
}

// The rejection codes of the protocol and the hub's.
var (
	rejections = map[parley.Code]string{
		parley.Forbidden: "unauthorized", parley.Unauthenticated: "unauthorized",
		parley.RateLimited: "capacity_unavailable",
		parley.Unavailable: "capacity_unavailable", parley.NoSpace: "capacity_unavailable", parley.TimedOut: "timeout",
		parley.Stale:        "timeout",
		parley.UnknownSkill: "schema_unsupported", parley.InvalidContent: "schema_unsupported",
		parley.Unsupported: "schema_unsupported",
		parley.Rejected:    "policy_violation", parley.Replayed: "duplicate",
	}
	meanings = map[string]parley.Code{
		"insufficient_trust_score": parley.Forbidden, "unauthorized": parley.Forbidden,
		"schema_unsupported": parley.InvalidContent,
		"budget_exceeded":    parley.RateLimited, "capacity_unavailable": parley.Unavailable,
		"policy_violation": parley.Rejected,
		"timeout":          parley.TimedOut, "duplicate": parley.Replayed, "escalation_required": parley.Rejected,
	}
)

func rejection(c parley.Code) string { return cmp.Or(rejections[c], "unspecified") }

func codeOf(code string, other parley.Code) parley.Code { return cmp.Or(meanings[code], other) }

// isRefusal reports whether a failure is a refusal of the recipient, which becomes a
// REJECT, and not an error of its work.
func isRefusal(c parley.Code) bool {
	switch c {
	case parley.Rejected, parley.Forbidden, parley.Unauthenticated, parley.UnknownSkill, parley.UnknownAgent,
		parley.InvalidContent,
		parley.Unsupported, parley.RateLimited:
		return true
	}
	return false
}

// admission translates the hub's refusal of a message for the server.
func admission(e *parley.Error) error {
	code := map[parley.Code]string{parley.RateLimited: "rate_limited", parley.InvalidContent: "schema_unsupported",
		parley.UnknownSkill: "schema_unsupported",
		parley.UnknownAgent: "agent_not_found", parley.Unavailable: "capacity_unavailable",
		parley.NoSpace:  "capacity_unavailable",
		parley.TooLarge: "message_too_large", parley.Conflict: "invalid_transition", parley.Internal: "internal"}[e.Code]
	err := protocol.Refuse(cmp.Or(code, "policy_violation"), e.Text)
	pe, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		return err
	}
	if e.After > 0 {
		pe.Details = map[string]any{"retryAfter": int64(e.After/time.Second) + 1}
	}
	// Without its cause, which may be an error of this protocol about another message.
	return pe.Because(e.Because(nil))
}

// object encodes parts as one JSON object, with its mimeType: an object unchanged, text
// as {"text": …}, other JSON as {"result": …}, bytes as {"data": base64url, …}.
func object(parts []parley.Part) (v jsonx.Value, mimeType string, err error) {
	if len(parts) == 0 {
		return jsonx.Value("{}"), "", nil
	}
	use := parts[max(0, parley.MainJSON(parts))]
	switch {
	case use.IsJSON():
		v := jsonx.Value(use.Data)
		if err := jsonx.Valid(v, 0); err != nil {
			return nil, "", err
		}
		if v.Kind() == '{' {
			return v, "", nil
		}
		v, err = jsonx.Encode(map[string]jsonx.Value{"result": v})
		return v, "", err
	case use.IsText():
		v, err = jsonx.Encode(map[string]string{"text": string(use.Data)})
		return v, mimeText, err
	}
	named := map[string]string{"mediaType": use.MediaType}
	if use.Name != "" {
		named["name"] = use.Name
	}
	if use.URI != "" {
		named["uri"], named["digest"] = use.URI, use.Digest
	} else {
		named["data"], mimeType = base64.RawURLEncoding.EncodeToString(use.Data), mimeBytes
	}
	v, err = jsonx.Encode(named)
	return v, mimeType, err
}

// speechAct is a hub message as a performative and its body.
type speechAct struct {
	act         protocol.Performative
	mimeType    string // ""; JSON
	body        any
	constraints *protocol.Constraints
	losses      []parley.Loss
}

// toSpeechAct translates a message for recipient (a directory name). reference is the id
// of the message in the session that it answers; "" for none.
func toSpeechAct(m *parley.Message, reference, recipient string) (speechAct, error) {
	w := speechAct{act: protocol.Inform, losses: bridge.Losses(bridge.ASP, m, recipient)}
	data, mimeType, err := object(m.Parts)
	if err != nil {
		return w, err
	}
	w.mimeType = mimeType
	inform := protocol.Information{ReferenceID: reference, Data: data}
	switch m.Kind {
	case parley.Request:
		w.act = protocol.Query
		q := protocol.Question{QueryID: m.ID.String(), QueryType: cmp.Or(m.Skill, informMessage), Parameters: data}
		if text := m.Text(); text != "" && len(text) <= 200 {
			q.Subject = text
		}
		w.body = q
		return w, nil
	case parley.Response:
		inform.InformType, inform.Topic = informResult, m.Skill
	case parley.Failure:
		w.mimeType = "" // the parts of a failure are not sent
		info := protocol.Information{InformType: informError, Code: rejection(m.Error.Code), Topic: m.Error.Text,
			ReferenceID: reference}
		if m.Error.Ref != "" {
			info.Data = map[string]string{"ref": m.Error.Ref}
		}
		w.body = info
		return w, nil
	case parley.Event:
		inform.InformType = map[parley.State]string{parley.NoState: informChunk, parley.Accepted: informAccepted,
			parley.Working: informProgress, parley.NeedsInput: informInput}[m.State]
	case parley.Input:
		if len(m.Parts) == 1 && m.Parts[0].IsText() {
			w.act, w.mimeType = protocol.Clarify, ""
			w.body = protocol.Clarification{ReferenceID: reference, Answer: string(m.Parts[0].Data)}
			return w, nil
		}
		inform.InformType = informMore
	case parley.Notice:
		if act := protocol.Performative(m.Act); act.Valid() && act != protocol.Inform &&
			protocol.CheckBody(act, data) == nil {
			w.act, w.body = act, data // carried whole
			return w, nil
		}
		inform.InformType, inform.Topic = informMessage, cmp.Or(m.Act, m.Skill)
	}
	w.body = inform
	return w, nil
}

// TrustEvidence is the type of the context object with the origin of a message that the
// hub sends for another agent.
const TrustEvidence = "trust-evidence"

// trustEvidence is the data of the TrustEvidence object.
type trustEvidence struct {
	MessageID parley.ID        `json:"messageId"`
	Protocol  string           `json:"protocol"`
	Sender    string           `json:"sender"`
	Peer      string           `json:"peer,omitzero"`
	Assurance parley.Assurance `json:"assurance"`
	Key       string           `json:"key,omitzero"`
	Proved    []string         `json:"proved,omitzero"`
	Digest    string           `json:"digest,omitzero"` // of the original, sha256:hex
	Hub       string           `json:"hub"`
	Hops      []string         `json:"hops"`
	bridge.Rest
}

// evidence makes the TrustEvidence object.
func evidence(m *parley.Message, hub string) (protocol.ContextObject, error) {
	v := m.Origin.Verdict
	data := trustEvidence{MessageID: m.ID, Protocol: m.Origin.Protocol, Sender: m.From, Peer: m.Origin.Peer,
		Assurance: v.Assurance, Key: v.KeyID,
		Proved: bridge.Proved(v), Hub: hub, Hops: m.Hops, Rest: bridge.RestOf(bridge.ASP, m)}
	if m.Origin.Raw != nil {
		sum := sha256.Sum256(m.Origin.Raw)
		data.Digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	b, err := jsonx.Encode(data)
	return protocol.ContextObject{Type: TrustEvidence, ID: "parley-" + m.ID.String(), Version: 1, Data: b,
		Visibility: protocol.VisibleTurn}, err
}

// cardObject holds the card with which a stand-in introduces itself in a session.
func cardObject(i *protocol.Identity) (protocol.ContextObject, error) {
	card, err := i.Card().JSON()
	return protocol.ContextObject{Type: protocol.AgentCardContext, ID: "card-" + i.Public().ID()[:16], Version: 1,
		Data: card, Visibility: protocol.VisibleSession}, err
}

func verdict(v protocol.Verdict) parley.Verdict {
	out := parley.Verdict{KeyID: v.KeyID, Checks: make([]parley.Check, len(v.Checks))}
	if v.Assurance == "signed" {
		out.Assurance = parley.Signed
	}
	for i, c := range v.Checks {
		out.Checks[i] = parley.Check{Name: c.Name, OK: c.Code == "", Detail: c.Code}
	}
	return out
}

// extension is recorded with the message: a protocol.Record, without the envelope's
// bytes if they are the message's original.
type extension struct {
	Record protocol.Record        `json:"record"`
	Joined []protocol.Participant `json:"joined,omitempty"`
	Asks   callee                 `json:"asks,omitzero"` // of a QUERY that is a request of the hub
	unmapped
}

// unmapped are the members of a message for which the hub's message has no field;
// bridge.Losses names them where they are lost.
type unmapped struct {
	Constraints *protocol.Constraints `json:"constraints,omitempty"`
	Context     []string              `json:"context,omitempty"` // type and id of each object
	Subject     string                `json:"subject,omitempty"` // beside parameters
}

func unmappedOf(e *protocol.Envelope) (u unmapped) {
	u.Constraints = e.Constraints
	request := e.Performative == protocol.Query || e.Performative == protocol.Delegate
	if u.Constraints != nil && request {
		left := *u.Constraints
		left.MaxResponseTimeMs = 0 // becomes the deadline of the request
		u.Constraints = &left
		if left.MaxTokenBudget == 0 && left.RequiredTrustScore == 0 && left.AllowedPerformatives == nil {
			u.Constraints = nil
		}
	}
	for _, o := range e.Content.Context {
		u.Context = append(u.Context, o.Type+" "+o.ID)
	}
	if e.Performative == protocol.Query && jsonx.Value(e.BodyMember("parameters")).Kind() == '{' {
		u.Subject = e.BodyText("subject")
	}
	return u
}

func encodeExtension(r *protocol.Record, joined []protocol.Participant, own bool,
	asks callee) (map[string]json.RawMessage, error) {
	x := extension{Record: *r, Joined: joined, Asks: asks}
	if r.Request != nil && !own {
		x.unmapped = unmappedOf(r.Request.Envelope)
	}
	x.Record.Request, x.Record.Ledger, x.Record.Raw = nil, nil, nil
	b, err := jsonx.Encode(x)
	if err != nil {
		return nil, err
	}
	return map[string]json.RawMessage{Protocol: json.RawMessage(b)}, nil
}

// recordOf reads the extension of a message.
func recordOf(m *parley.Message) (*extension, error) {
	x := new(extension)
	err := jsonx.Decode(m.Extensions[Protocol], x)
	if x.Record.Kind == protocol.RecordMessage && x.Record.Raw == nil {
		x.Record.Raw = m.Origin.Raw
	}
	return x, err
}

// segment makes one segment of an agent URI of part of a directory name.
func segment(s string) string {
	out := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, s)
	if out == s && len(s) <= 64 {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return out[:min(len(out), 54)] + "-" + hex.EncodeToString(sum[:4])
}

func stepOf(e *protocol.Error) string {
	switch {
	case e.Step == 0:
		return "request"
	case e.Step <= 5:
		return "decode"
	case e.Step < 16:
		return "verify"
	}
	return "admit"
}

func refusalCode(e *protocol.Error) parley.Code {
	switch s := e.Status(); {
	case errors.Is(e, protocol.ErrReplay), errors.Is(e, protocol.ErrEquivocation):
		return parley.Replayed
	case errors.Is(e, protocol.ErrStale), e.Code == "dpop_iat_out_of_window":
		return parley.Stale
	case s == http.StatusUnauthorized, e.Code == "sender_mismatch":
		return parley.Unauthenticated
	case s == http.StatusForbidden:
		return parley.Forbidden
	case s == http.StatusNotFound:
		return parley.UnknownAgent
	case s == http.StatusConflict:
		return parley.Conflict
	case s == http.StatusRequestEntityTooLarge:
		return parley.TooLarge
	case s == http.StatusTooManyRequests:
		return parley.RateLimited
	case s == http.StatusServiceUnavailable:
		return parley.Unavailable
	case s >= 500:
		return parley.Internal
	}
	return parley.Malformed
}

// hopsOf gives the hubs that a message has passed, if another hub sent it.
func hopsOf(e *protocol.Envelope) []string {
	for _, o := range e.Content.Context {
		if o.Type == TrustEvidence {
			return bridge.HopsOf(o.Data)
		}
	}
	return nil
}
