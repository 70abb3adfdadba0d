package a2a

import (
	"encoding/json"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/source"
)

// Names in parley.Trace.Foreign of a message that an A2A client sent.
const (
	foreignContext = "a2a.contextId"
	foreignMessage = "a2a.messageId"
	foreignStream  = "a2a.stream" // "true": the client reads a stream
)

// members are those of a JSON object, as they were written.
type members = map[string]json.RawMessage

// kept is the A2A member of [parley.Message.Extensions]: what only A2A says.
type kept struct {
	Metadata    members             `json:"metadata,omitempty"` // of the message, without Parley's extension
	Request     members             `json:"request,omitempty"`  // metadata of the call
	Extensions  []string            `json:"extensions,omitempty"`
	References  []protocol.TaskID   `json:"referenceTaskIds,omitempty"`
	OutputModes []string            `json:"acceptedOutputModes,omitempty"`
	Parts       map[string]keptPart `json:"parts,omitempty"`     // by index
	Artifacts   []keptArtifact      `json:"artifacts,omitempty"` // of an answer, in the order of its parts
}

type keptPart struct {
	Metadata members `json:"metadata,omitempty"`
}

type keptArtifact struct {
	ID          protocol.ArtifactID `json:"artifactId"`
	Name        string              `json:"name,omitzero"`
	Description string              `json:"description,omitzero"`
	Metadata    members             `json:"metadata,omitempty"`
	Extensions  []string            `json:"extensions,omitempty"`
	Parts       int                 `json:"parts"` // how many parts of the answer it has
}

// extensions gives k as the Extensions of a message; nil if it says nothing.
func (k *kept) extensions() map[string]json.RawMessage {
	b := marshal(k)
	if string(b) == "{}" || b == nil {
		return nil
	}
	return map[string]json.RawMessage{Protocol: b}
}

// keptOf reads what A2A said with a message.
func keptOf(m *parley.Message) (k kept) {
	if x := m.Extensions[Protocol]; x != nil && jsonx.Decode(x, &k) != nil {
		return kept{}
	}
	return k
}

// recordedHeaders are the headers of a client that the hub records. None has a credential.
var recordedHeaders = []string{"A2a-Version", "A2a-Extensions", "Content-Type"}

// maxTraceState is how much of W3C's tracestate is passed on, in bytes (Trace Context, section 3.3.1.5).
const maxTraceState = 512

// toMessage makes a Request, or an Input where the message names a task, of a message that
// passed [checkSend]. The caller sets ID, InReplyTo and the context.
func toMessage(c *call, r *protocol.SendMessageRequest, received time.Time) (*parley.Message, error) {
	raw, params := rawOf(c, r)
	wire := memberAt(params, "message")
	m := &parley.Message{Kind: parley.Request, From: c.caller.Name, To: c.agent, Sent: received,
		Trace: parley.Trace{Foreign: map[string]string{foreignMessage: r.Message.ID}},
		Origin: parley.Origin{Protocol: Protocol, Peer: c.caller.Peer, Address: source.Host(c.remote),
			Raw: withoutSecrets(raw), Header: map[string]string{}, Received: received, Verdict: c.caller.Verdict}}
	if r.Message.TaskID != "" {
		m.Kind = parley.Input
	}
	for _, name := range recordedHeaders {
		if v := c.header[name]; len(v) == 1 {
			m.Origin.Header[name] = v[0]
		}
	}
	if t := c.header["Traceparent"]; len(t) == 1 && bridge.IsTraceParent(t[0]) {
		m.Trace.Parent = t[0]
		if state := strings.Join(c.header["Tracestate"], ","); len(state) <= maxTraceState {
			m.Trace.State = state
		}
	}
	metadata := memberAt(wire, "metadata")
	readExtension(m, memberAt(metadata, ExtensionURI))
	k := kept{Metadata: without(metadata, ExtensionURI), Request: without(memberAt(params, "metadata"), ""),
		Extensions: r.Message.Extensions, References: r.Message.ReferenceTasks, Parts: map[string]keptPart{}}
	if r.Config != nil {
		k.OutputModes = r.Config.AcceptedOutputModes
	}
	var literals []jsonx.Value
	jsonx.Elements(memberAt(wire, "parts"), func(v jsonx.Value) bool {
		literals = append(literals, v)
		return true
	})
	for i, p := range r.Message.Parts {
		var literal jsonx.Value
		if len(literals) == len(r.Message.Parts) {
			literal = literals[i]
		}
		part, err := toPart(fmt.Sprintf("message.parts[%d]", i), p, literal)
		if err != nil {
			return nil, err
		}
		m.Parts = append(m.Parts, part)
		if v := without(memberAt(literal, "metadata"), ExtensionURI, compatMark); v != nil {
			k.Parts[strconv.Itoa(i)] = keptPart{v}
		}
	}
	m.Extensions = k.extensions()
	return m, nil
}

// rawOf gives the bytes to be recorded of a call, and its parameters as JSON. A call over gRPC
// has no JSON of its own: the parameters are recorded in that of the protocol.
func rawOf(c *call, r *protocol.SendMessageRequest) (raw []byte, params jsonx.Value) {
	raw, params = c.body, jsonx.Value(c.params)
	if params == nil {
		params, _ = json.Marshal(r) // decoded from the wire, so it encodes
	}
	if raw == nil {
		raw = params
	}
	return raw, params
}

// replacedSecret replaces a webhook's secret in the recorded bytes of a call.
const replacedSecret = "[redacted]"

// hookMembers are the names of the member for a message's webhook, in both versions and spellings.
var hookMembers = []string{"taskPushNotificationConfig", "task_push_notification_config", "pushNotificationConfig",
	"push_notification_config"}

// withoutSecrets removes the token and credentials of a webhook from the bytes of a call: any reader of
// the journal could use them. The webhook's row has them, sealed.
func withoutSecrets(raw []byte) []byte {
	for _, path := range [][]string{{"params", "configuration"}, {"configuration"}} {
		from, to := jsonx.Find(raw, path...)
		config, found := raw[from:to], false
		for _, hook := range hookMembers {
			for _, secret := range [][]string{{hook, "token"}, {hook, "authentication", "credentials"}} {
				replaced, ok := jsonx.Replace(config, func(string) string { return replacedSecret }, secret...)
				config, found = replaced, found || ok
			}
		}
		if found {
			raw = slices.Concat(raw[:from], config, raw[to:])
		}
	}
	return raw
}

// sentMessage finds the message in the recorded bytes of a call: in the params of JSON-RPC, or
// at the top.
func sentMessage(raw []byte) jsonx.Value {
	if params := memberAt(raw, "params"); params != nil {
		raw = params
	}
	return memberAt(raw, "message")
}

// sameContent reports whether two messages in JSON are the same but for the order of members
// and white space. Numbers are compared by their literals.
func sameContent(a, b jsonx.Value) bool {
	if string(a) == string(b) {
		return true
	}
	tree := func(v jsonx.Value) string {
		var x any
		d := json.NewDecoder(strings.NewReader(string(v)))
		d.UseNumber()
		if d.Decode(&x) != nil {
			return ""
		}
		out, err := jsonx.EncodeTree(x)
		if err != nil {
			return ""
		}
		return string(out)
	}
	x := tree(a)
	return x != "" && x == tree(b)
}

// memberAt gives the value at a path of member names; nil if there is none. v is strict JSON, as
// transports and the journal give it.
func memberAt(v jsonx.Value, path ...string) jsonx.Value {
	if from, to := jsonx.Find(v, path...); to > from {
		return v[from:to]
	}
	return nil
}

// without gives the members of an object but for some; nil if nothing is left.
func without(object jsonx.Value, names ...string) (rest members) {
	jsonx.Members(object, func(name string, v jsonx.Value) bool {
		if !slices.Contains(names, name) {
			if rest == nil {
				rest = members{}
			}
			rest[name] = json.RawMessage(v)
		}
		return true
	})
	return rest
}

// A note is what is read of Parley's extension, in the metadata of a message or an artifact.
type note struct {
	Skill    string `json:"skill"`
	Act      string `json:"act"`
	Schema   string `json:"schema"`
	Sent     string `json:"sent"`
	Deadline string `json:"deadline"`
	Expires  string `json:"expires"`
	Trace    string `json:"trace"`

	Code       parley.Code `json:"code"`
	Retryable  bool        `json:"retryable"`
	RetryAfter float64     `json:"retry_after"` // seconds
}

// maxWait is the longest time that a client may state as the deadline of a request.
const maxWait = 24 * time.Hour

// readExtension takes from Parley's extension what A2A has no member for. It is the sender's
// claim: it names neither sender nor assurance, and its hops can only have the message refused.
func readExtension(m *parley.Message, x jsonx.Value) {
	var e note
	if x == nil || jsonx.Decode(x, &e) != nil {
		return
	}
	m.Skill, m.Act, m.Schema, m.Hops = e.Skill, e.Act, e.Schema, bridge.HopsOf(x)
	for _, stated := range []struct {
		text string
		at   *time.Time
	}{{e.Sent, &m.Sent}, {e.Deadline, &m.Deadline}, {e.Expires, &m.Expires}} {
		if t, err := time.Parse(time.RFC3339Nano, stated.text); err == nil {
			*stated.at = t
		}
	}
	if most := m.Origin.Received.Add(maxWait); m.Deadline.After(most) {
		m.Deadline = most
	}
	if m.Trace.Parent == "" && bridge.IsTraceParent(e.Trace) {
		m.Trace.Parent = e.Trace
	}
}

// compatMark marks, in the metadata of a part, data that is not an object. 0.3 has only objects, so the
// SDKs wrap any other value: {"value": …}.
const compatMark = "data_part_compat"

const (
	plainText   = "text/plain; charset=utf-8"
	plainJSON   = "application/json"
	octetStream = "application/octet-stream"
)

// toPart makes a part of A2A's. literal is the part as it was on the wire, in 1.0 or 0.3; nil if
// that is not known.
func toPart(field string, p *protocol.Part, literal jsonx.Value) (parley.Part, error) {
	if p == nil {
		return parley.Part{}, invalidParams(field, "it is null")
	}
	out := parley.Part{MediaType: p.MediaType, Name: p.Filename}
	if p.MediaType != "" {
		if _, _, err := mime.ParseMediaType(p.MediaType); err != nil {
			return out, invalidParams(field+".mediaType", "it is not a media type")
		}
	}
	media := func(usual string) {
		if out.MediaType == "" {
			out.MediaType = usual
		}
	}
	switch v := p.Content.(type) {
	case protocol.Text:
		media(plainText)
		out.Data = []byte(v)
		if out.IsJSON() {
			if err := jsonx.Valid(out.Data, 0); err != nil {
				return out, invalidParams(field+".text", "it is not JSON, as its media type says")
			}
		}
	case protocol.Data:
		media(plainJSON)
		data := memberAt(literal, "data")
		if string(memberAt(literal, "metadata", compatMark)) == "true" {
			data = memberAt(data, "value")
		}
		if data == nil {
			var err error
			if data, err = json.Marshal(v.Value); err != nil {
				return out, invalidParams(field+".data", "it is not JSON")
			}
		}
		if !out.IsJSON() {
			return out, invalidParams(field+".mediaType", "data is JSON")
		}
		out.Data = data
	case protocol.Raw:
		media(octetStream)
		out.Data = []byte(v)
	case protocol.URL:
		if v == "" {
			return out, invalidParams(field+".url", "it is empty")
		}
		out.URI = string(v)
		if x, ok := p.Metadata[ExtensionURI].(map[string]any); ok {
			out.Digest, _ = x["digest"].(string)
		}
	default:
		return out, invalidParams(field, "it has none of text, raw, url and data")
	}
	return out, nil
}

// fromParts makes parts of A2A, with the metadata that A2A gave them.
func fromParts(parts []parley.Part, metadata map[string]keptPart) protocol.ContentParts {
	out := make(protocol.ContentParts, len(parts))
	for i := range parts {
		out[i] = fromPart(&parts[i])
		for name, v := range object(metadata[strconv.Itoa(i)].Metadata) {
			out[i].SetMeta(name, v)
		}
	}
	return out
}

// fromPart makes one part. A text with a file name is a file.
func fromPart(p *parley.Part) *protocol.Part {
	out := &protocol.Part{Filename: p.Name, MediaType: p.MediaType}
	media, _, err := mime.ParseMediaType(p.MediaType)
	switch {
	case p.URI != "":
		out.Content = protocol.URL(p.URI)
		if p.Digest != "" {
			out.SetMeta(ExtensionURI, map[string]any{"digest": p.Digest})
		}
	case p.IsJSON() && keepsNumbers(p.Data):
		var v any
		if json.Unmarshal(p.Data, &v) != nil {
			out.Content = protocol.Raw(p.Data)
			break
		}
		out.Content = protocol.Data{Value: v}
		if media == plainJSON {
			out.MediaType = ""
		}
	case utf8.Valid(p.Data) && (p.IsJSON() || p.Name == "" && err == nil && strings.HasPrefix(media, "text/")):
		out.Content = protocol.Text(p.Data)
		if media == "text/plain" {
			out.MediaType = ""
		}
	default:
		out.Content = protocol.Raw(p.Data)
	}
	return out
}

// object decodes members, for metadata of the SDK's types.
func object(of members) map[string]any {
	if len(of) == 0 {
		return nil
	}
	out := make(map[string]any, len(of))
	for name, raw := range of {
		var v any
		if json.Unmarshal(raw, &v) == nil {
			out[name] = v
		}
	}
	return out
}

// keepsNumbers reports whether every number of a JSON text is the same after it was read as a
// double, as A2A's data parts are.
func keepsNumbers(b []byte) bool {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case c == '-' || c >= '0' && c <= '9':
			start := i
			for i < len(b) && strings.IndexByte("0123456789.eE+-", b[i]) >= 0 {
				i++
			}
			literal := string(b[start:i])
			i--
			f, err := strconv.ParseFloat(literal, 64)
			if err != nil || digits(literal) != digits(strconv.FormatFloat(f, 'e', -1, 64)) {
				return false
			}
		}
	}
	return true
}

// digits gives a decimal number in one form: its significant digits and exponent.
func digits(literal string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	e, err := strconv.Atoi(strings.TrimPrefix(exponent, "+"))
	if exponent != "" && err != nil {
		return literal
	}
	sign, mantissa := strings.HasPrefix(mantissa, "-"), strings.TrimPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	e -= len(fraction)
	all := strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(all, "0")
	if short == "" {
		return "0"
	}
	return fmt.Sprint(sign, short, e+len(all)-len(short))
}

// provenance is Parley's extension of a message: what A2A has no member for.
func provenance(m *parley.Message) map[string]any {
	out := map[string]any{"message": m.ID.String(), "protocol": m.Origin.Protocol, "sender": m.From,
		"assurance": m.Origin.Verdict.Assurance.String()}
	for name, v := range map[string]string{"digest": bridge.Digest(m), "skill": m.Skill, "act": m.Act,
		"schema": m.Schema, "conversation": m.Conversation.String(), "trace": m.Trace.Parent} {
		if v != "" {
			out[name] = v
		}
	}
	for name, t := range map[string]time.Time{"sent": m.Sent, "deadline": m.Deadline, "expires": m.Expires} {
		if !t.IsZero() {
			out[name] = t.UTC().Format(time.RFC3339Nano)
		}
	}
	for name, list := range map[string][]string{"hops": m.Hops, "audience": m.Audience} {
		if len(list) > 0 && len(list) <= bridge.MaxAudience {
			out[name] = anys(list)
		}
	}
	if m.Number > 0 {
		out["number"] = float64(m.Number)
	}
	if e := m.Error; e != nil {
		out["code"], out["retryable"] = string(e.Code), e.Retryable
		if e.After > 0 {
			out["retry_after"] = e.After.Seconds()
		}
		if e.Ref != "" {
			out["ref"] = e.Ref
		}
	}
	return out
}

func anys(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}
