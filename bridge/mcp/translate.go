package mcp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/source"
)

// Members of _meta. A call may have metaKey, metaHops and the W3C trace context; the others are the hub's.
const (
	metaKey          = "hub.parley/idempotencyKey"
	metaHops         = "hub.parley/hops"
	metaProvenance   = "hub.parley/provenance"
	metaError        = "hub.parley/error"
	metaHandle       = "hub.parley/handle" // id of the request, for parley_result
	metaConversation = "hub.parley/conversation"
	metaDigest       = "hub.parley/digest" // of the target of a resource_link
	metaTraceParent  = "traceparent"
	metaTraceState   = "tracestate"
	metaBaggage      = "baggage"
)

// Names in parley.Trace.Foreign of a request that an MCP client made.
const (
	foreignArguments = "mcp.arguments" // digest of the tool and its arguments
	foreignProgress  = "mcp.progress"  // "no": the client gave no token for progress
	foreignBaggage   = "mcp.baggage"   // W3C baggage
)

// from makes the common part of the messages of the caller.
func (e *clientCall) from(kind parley.Kind) *parley.Message {
	c := e.t.caller
	return &parley.Message{Kind: kind, From: c.Name, Hops: hopsOf(e.t.params.Meta), Trace: traceOf(e.t.params.Meta),
		Origin: parley.Origin{Protocol: Protocol, Peer: c.Peer, Address: source.Host(c.remote), Raw: rawOf(e.t),
			Received: e.b.c.Now(), Verdict: c.Verdict}}
}

// recordedMeta are the members of _meta that the hub records: others may hold secrets of the client.
var recordedMeta = []string{metaKey, metaHops, metaTraceParent, metaTraceState, metaBaggage}

// rawOf gives the bytes to be recorded of a call: its parameters, with the arguments as they were written.
func rawOf(t *toolCall) []byte {
	p := t.params
	raw := jsonx.AppendText([]byte(`{"name":`), t.name)
	if len(p.Arguments) > 0 {
		raw = append(append(raw, `,"arguments":`...), p.Arguments...)
	}
	add := func(member string, v any) {
		if b, err := json.Marshal(v); err == nil {
			raw = append(append(raw, member...), b...)
		}
	}
	if len(p.InputResponses) > 0 {
		add(`,"inputResponses":`, p.InputResponses)
	}
	recorded := map[string]any{}
	for _, name := range recordedMeta {
		if v, ok := p.Meta[name]; ok {
			recorded[name] = v
		}
	}
	if len(recorded) > 0 {
		add(`,"_meta":`, recorded)
	}
	return append(raw, '}')
}

// inRaw makes the parts of a message pieces of its recorded bytes, so that the record holds them once.
func inRaw(m *parley.Message) {
	for i := range m.Parts {
		p := &m.Parts[i]
		if at := bytes.Index(m.Origin.Raw, p.Data); at >= 0 && len(p.Data) > 0 {
			p.Data = m.Origin.Raw[at : at+len(p.Data) : at+len(p.Data)]
		}
	}
}

// argumentsDigest identifies the tool and the arguments of a call, whatever the order of members and the white space.
// Numbers are compared by their literals.
func argumentsDigest(t *toolCall) string {
	arguments := []byte(t.params.Arguments)
	var tree any
	d := json.NewDecoder(bytes.NewReader(arguments))
	d.UseNumber()
	if d.Decode(&tree) == nil {
		if b, err := jsonx.EncodeTree(tree); err == nil {
			arguments = b
		}
	}
	sum := sha256.Sum256(append([]byte(t.name+"\x00"), arguments...))
	return hex.EncodeToString(sum[:])
}

// idempotencyKey gives the key of a call; "" for none.
func idempotencyKey(meta mcp.Meta) (string, error) {
	v, ok := meta[metaKey]
	if !ok {
		return "", nil
	}
	key, ok := v.(string)
	if !ok || key == "" || len(key) > 256 {
		return "", invalidArgument("_meta "+metaKey, "want a text of 1 to 256 bytes")
	}
	return key, nil
}

// hopsOf gives the hubs that a call has passed, if a hub made it.
func hopsOf(meta mcp.Meta) []string {
	v, ok := meta[metaHops]
	if !ok {
		return nil
	}
	b, err := jsonx.Encode(map[string]any{"hops": v})
	if err != nil {
		return nil
	}
	return bridge.HopsOf(b)
}

// Bounds of W3C trace context (section 3.3.1.5) and baggage (section 3.3.2), in bytes.
const (
	maxTraceState = 512
	maxBaggage    = 8192
)

// traceOf gives the trace of a call. What is not well formed is left out, as W3C says.
func traceOf(meta mcp.Meta) parley.Trace {
	t := parley.Trace{Foreign: map[string]string{}}
	value := func(name string, most int) string {
		s, _ := meta[name].(string)
		if len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
			return ""
		}
		return s
	}
	if p := value(metaTraceParent, 55); bridge.IsTraceParent(p) {
		t.Parent, t.State = p, value(metaTraceState, maxTraceState)
	}
	if b := value(metaBaggage, maxBaggage); b != "" {
		t.Foreign[foreignBaggage] = b
	}
	return t
}

// talkText gives the text of arguments that have nothing else.
func talkText(content []byte) (text string, ok bool) {
	var m map[string]jsonx.Value
	if jsonx.Decode(content, &m) != nil || len(m) != 1 || jsonx.Kind(m["text"]) != '"' {
		return "", false
	}
	return text, jsonx.Decode(m["text"], &text) == nil
}

func jsonPart(v []byte) parley.Part { return parley.Part{MediaType: "application/json", Data: v} }

// fromContent gives the parts of the argument "content" of a hub's tool: text, or other JSON.
func fromContent(v jsonx.Value) ([]parley.Part, error) {
	switch {
	case jsonx.IsNull(v):
		return nil, nil
	case jsonx.Kind(v) == '"':
		var s string
		if err := jsonx.Decode(v, &s); err != nil {
			return nil, invalidArgument("content", "it is not a text")
		}
		return []parley.Part{parley.Text(s)}, nil
	}
	return []parley.Part{jsonPart(v)}, nil
}

// wantContent is fromContent for a message that must have content.
func wantContent(v jsonx.Value) ([]parley.Part, error) {
	if jsonx.IsNull(v) {
		return nil, invalidArgument("content", "want the message: text, or JSON as the skill asks for it")
	}
	return fromContent(v)
}

// eventText gives an event's content as text: its texts, and JSON as it is written. Of an event with a state and no
// content it is the state.
func eventText(m *parley.Message) string {
	var lines []string
	for _, p := range m.Parts {
		if p.URI == "" && (p.IsText() || p.IsJSON()) {
			lines = append(lines, strings.ToValidUTF8(string(p.Data), "\uFFFD"))
		}
	}
	if len(lines) == 0 && m.State != parley.NoState {
		return m.State.String()
	}
	return strings.Join(lines, "\n")
}

// oneText is a result's content of one text.
func oneText(format string, args ...any) []mcp.Content {
	return []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}
}

// errorMeta is what a client's program is told of a failure. The reason is for operators alone.
type errorMeta struct {
	Code      parley.Code `json:"code"`
	Retryable bool        `json:"retryable"`
	After     int64       `json:"after,omitzero"` // milliseconds
	Ref       string      `json:"ref,omitzero"`
}

// failedResult gives the result for an error.
func failedResult(e *parley.Error) *mcp.CallToolResult {
	m := errorMeta{e.Code, e.Retryable, 0, e.Ref}
	if e.Retryable {
		m.After = e.After.Milliseconds()
	}
	return &mcp.CallToolResult{IsError: true, Meta: mcp.Meta{metaError: m},
		Content: oneText("%s", cmp.Or(e.Text, string(e.Code)))}
}

// name adds to a result which request it is about.
func (e *clientCall) name(r *mcp.CallToolResult) {
	if r.Meta == nil {
		r.Meta = mcp.Meta{}
	}
	r.Meta[metaHandle] = e.id
	if e.request != nil {
		r.Meta[metaConversation] = e.request.Conversation
	}
}

// answer gives the result for the terminal reply.
func (e *clientCall) answer() *mcp.CallToolResult {
	m := e.reply
	var r *mcp.CallToolResult
	switch {
	case m.Kind == parley.Failure && m.Error == nil:
		r = failedResult(parley.Refuse(parley.HandlerFailed, "agent %q failed", m.From))
	case m.Kind == parley.Failure:
		r = failedResult(m.Error)
	default:
		r = e.content()
	}
	e.name(r)
	r.Meta[metaProvenance] = bridge.ProvenanceOf(bridge.MCPClient, m, e.b.c.Hub.ID())
	if len(m.Hops) > 0 {
		r.Meta[metaHops] = m.Hops
	}
	if m.Trace.Parent != "" {
		r.Meta[metaTraceParent] = m.Trace.Parent
		if m.Trace.State != "" {
			r.Meta[metaTraceState] = m.Trace.State
		}
	}
	return r
}

// content gives the result for a response. One without content has the pieces that were sent ahead.
func (e *clientCall) content() *mcp.CallToolResult {
	m := e.reply
	parts := m.Parts
	if len(parts) == 0 {
		parts = e.pieces
	}
	size := 0
	for _, p := range parts {
		size += len(p.Data)
	}
	if int64(size) > e.b.c.MaxAnswer {
		return failedResult(parley.Refuse(parley.TooLarge, "the answer of agent %q has more than %d bytes, the most that "+
			"an MCP client gets; ask for less. The hub keeps it as message %s", m.From, e.b.c.MaxAnswer, m.ID))
	}
	r := &mcp.CallToolResult{Content: []mcp.Content{}}
	main := parley.MainJSON(parts)
	var structured []byte
	for i := range parts {
		r.Content = append(r.Content, contentItem(&parts[i], m.ID, i))
		if i == main && parts[i].URI == "" {
			structured, _, _ = jsonx.Whole(parts[i].Data) // nil if it is no JSON
		}
	}
	if why := e.misfit(structured); why != "" { // rule MCP-026
		r.IsError = true
		r.Meta = mcp.Meta{metaError: errorMeta{Code: parley.InvalidContent}}
		r.Content = append(oneText("The answer of agent %q does not fit the output schema of its tool: %s", m.From, why),
			r.Content...)
		return r
	}
	switch {
	case structured == nil:
	case e.can.modern || jsonx.Kind(structured) == '{':
		r.StructuredContent = json.RawMessage(structured)
	default: // rule MCP-027: the handshake revisions have objects only
		r.StructuredContent = map[string]json.RawMessage{"value": structured}
	}
	return r
}

// misfit says why an answer does not fit the schema that was shown; "": it fits, or none was.
func (e *clientCall) misfit(structured []byte) string {
	if e.output == nil {
		return ""
	}
	if structured == nil {
		return "it has no JSON"
	}
	if err := hub.CheckContent(e.output, structured); err != nil {
		return err.Error()
	}
	return ""
}

// contentItem gives a part as an item of a result.
func contentItem(p *parley.Part, message parley.ID, i int) mcp.Content {
	media, _, _ := mime.ParseMediaType(p.MediaType)
	kind, _, _ := strings.Cut(media, "/")
	switch {
	case p.URI != "":
		link := &mcp.ResourceLink{URI: p.URI, Name: cmp.Or(p.Name, lastOf(p.URI)), MIMEType: p.MediaType}
		if p.Digest != "" {
			link.Meta = mcp.Meta{metaDigest: p.Digest}
		}
		return link
	case p.IsText(), p.IsJSON():
		return &mcp.TextContent{Text: strings.ToValidUTF8(string(p.Data), "\uFFFD")}
	case kind == "image":
		return &mcp.ImageContent{Data: p.Data, MIMEType: p.MediaType}
	case kind == "audio":
		return &mcp.AudioContent{Data: p.Data, MIMEType: p.MediaType}
	}
	at := fmt.Sprintf("parley://messages/%s/parts/%d", message, i)
	if p.Name != "" {
		at += "/" + url.PathEscape(p.Name)
	}
	r := &mcp.ResourceContents{URI: at, MIMEType: p.MediaType}
	if kind == "text" && len(p.Data) > 0 && utf8.Valid(p.Data) {
		r.Text = string(p.Data)
	} else {
		r.Blob = append([]byte{}, p.Data...) // not nil: an empty one is written too
	}
	return &mcp.EmbeddedResource{Resource: r}
}

// lastOf names a link that has no name: the protocol wants one.
func lastOf(uri string) string {
	if u, err := url.Parse(uri); err == nil {
		if name := path.Base(u.Path); name != "." && name != "/" {
			return name
		}
	}
	return uri
}

// replyLosses gives the losses of an event or a reply in the result of a call.
func replyLosses(reply, request *parley.Message) []parley.Loss {
	losses := bridge.Losses(bridge.MCPClient, reply, request.From)
	if reply.Kind == parley.Event && reply.State != parley.NeedsInput && request.Trace.Foreign[foreignProgress] == "no" {
		losses = []parley.Loss{{Field: "Kind", Reason: "the client gave no token for progress"}}
	}
	return bridge.OfReply(reply.Kind, losses)
}
