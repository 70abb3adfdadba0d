package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
)

// This file makes calls of tools from messages, and messages from their answers: it is pure.

// toCall makes the call of a tool. The error is for the requester.
func toCall(m *parley.Message, tool *ToolText, hubID string) (*mcp.CallToolParams, *parley.Error) {
	arguments, why := toArguments(m.Parts, tool.Input)
	if why == "" {
		if err := hub.CheckContent(tool.Input, arguments); err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		return nil, parley.Refuse(parley.InvalidContent, "the content does not fit the tool %q: %s; it takes %s", tool.Name,
			why, wants(tool.Input))
	}
	meta := metaOf(m, hubID)
	meta[metaKey] = m.ID.String()
	return &mcp.CallToolParams{Meta: meta, Name: tool.Name, Arguments: arguments}, nil
}

// metaOf tells a server what a message says besides its content.
func metaOf(m *parley.Message, hubID string) mcp.Meta {
	meta := mcp.Meta{metaProvenance: bridge.ProvenanceOf(bridge.MCPServer, m, hubID),
		metaConversation: m.Conversation.String()}
	if len(m.Hops) > 0 {
		meta[metaHops] = m.Hops
	}
	for name, v := range map[string]string{metaTraceParent: m.Trace.Parent, metaTraceState: m.Trace.State,
		metaBaggage: m.Trace.Foreign[foreignBaggage]} {
		if v != "" {
			meta[name] = v
		}
	}
	return meta
}

// wants says what a tool takes.
func wants(schema json.RawMessage) string {
	if len(schema) == 0 {
		return "one JSON object"
	}
	return "one JSON object with the schema " + bridge.Shorten(string(schema), 2000)
}

// toArguments gives the arguments of a call; why says why the content cannot be some.
func toArguments(parts []parley.Part, schema json.RawMessage) (arguments json.RawMessage, why string) {
	if len(parts) == 0 {
		return json.RawMessage("{}"), ""
	}
	p := &parts[0]
	switch {
	case len(parts) > 1:
		return nil, fmt.Sprintf("it has %d parts, and a tool has a place for one", len(parts))
	case p.URI != "":
		return nil, "it is a link, for which a tool has no place"
	case p.IsJSON():
		if err := jsonx.Valid(p.Data, 0); err != nil {
			return nil, err.Error()
		}
		if jsonx.Kind(p.Data) == '{' {
			return p.Data, ""
		}
		return placed(p.Data, schema)
	case p.IsText():
		v, err := jsonx.AppendString(nil, string(p.Data))
		if err != nil {
			return nil, "it is not valid text"
		}
		return placed(v, schema)
	}
	return nil, fmt.Sprintf("it is of type %q, for which a tool has no place", bridge.Shorten(p.MediaType, 100))
}

// placed gives a value the place that a schema has for it: the one required property, else the one that is named for
// content.
func placed(v json.RawMessage, schema json.RawMessage) (json.RawMessage, string) {
	s, _ := bridge.ReadSchema(schema)
	names := []string{"content", "text", "message"}
	if len(s.Required) == 1 {
		names = append(s.Required, names...)
	}
	for _, name := range names {
		property := s.Properties[name]
		if property == nil {
			continue
		}
		if jsonx.Kind(v) == '"' { // text is for strings: a number that is spelled is no number
			if p, ok := bridge.ReadSchema(property); ok && p.Kind() != "" && p.Kind() != "string" {
				continue
			}
		}
		if b, err := jsonx.Encode(map[string]jsonx.Value{name: jsonx.Value(v)}); err == nil &&
			hub.CheckContent(schema, b) == nil {
			return b, ""
		}
	}
	return nil, "it is no JSON object, and no member of the arguments is for it"
}

// Bounds of answers, besides Config.MaxAnswer.
const (
	maxContent      = 1024 // items
	maxErrorText    = 1000 // characters of a text about a failure
	maxProgressText = 1000
	maxQuestionText = 4000
)

// fromAnswer gives the reply for an answer. It has no sender yet.
func fromAnswer(agent string, a *serverAnswer) *parley.Message {
	m := &parley.Message{Kind: parley.Response, Hops: hopsOf(a.Meta)}
	if parent, ok := a.Meta[metaTraceParent].(string); ok && bridge.IsTraceParent(parent) {
		m.Trace.Parent = parent
	}
	if a.IsError {
		m.Kind, m.Error = parley.Failure, toolFailure(a)
		return m
	}
	if len(a.Content) > maxContent {
		m.Kind, m.Error = parley.Failure, bridge.AnswerTooLarge(parley.Refuse(parley.HandlerFailed,
			"the answer of %q is too large: it has %d items", agent, len(a.Content)), fmt.Sprintf("%d items", maxContent))
		return m
	}
	if a.structured != nil {
		m.Parts = append(m.Parts, parley.Part{MediaType: "application/json", Data: a.structured})
	}
	for _, c := range a.Content {
		if p, ok := fromItem(c); ok && !(p.IsText() && spells(p.Data, a.structured)) {
			m.Parts = append(m.Parts, p)
		}
	}
	return m
}

// toolFailure gives the failure that a tool reports in its result.
func toolFailure(a *serverAnswer) *parley.Error {
	var lines []string
	for _, c := range a.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			lines = append(lines, t.Text)
		}
	}
	said := shownText(strings.Join(lines, "\n"), maxErrorText)
	return bridge.Answered(parley.Refuse(parley.HandlerFailed, "%s", cmp.Or(said, "the tool failed")), Protocol, said,
		"isError")
}

// spells reports whether a text is a JSON value written in another way.
func spells(text []byte, v json.RawMessage) bool {
	if v == nil || jsonx.Valid(text, 0) != nil {
		return false
	}
	a, b := jsonx.Value(bytes.Clone(text)), jsonx.Value(bytes.Clone(v))
	return a.Compact() == nil && b.Compact() == nil && (bytes.Equal(a, b) || sameJSON(a, b))
}

// sameJSON compares values whatever the order of their members.
func sameJSON(a, b []byte) bool {
	x, err := jsonx.Canonicalize(a)
	if err != nil {
		return false
	}
	y, err := jsonx.Canonicalize(b)
	return err == nil && bytes.Equal(x, y)
}

// fromItem gives an item of an answer as a part.
func fromItem(c mcp.Content) (parley.Part, bool) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return parley.Text(c.Text), true
	case *mcp.ImageContent:
		return parley.Part{MediaType: mediaType(c.MIMEType), Data: c.Data}, true
	case *mcp.AudioContent:
		return parley.Part{MediaType: mediaType(c.MIMEType), Data: c.Data}, true
	case *mcp.ResourceLink:
		p := parley.Part{URI: c.URI, Name: c.Name}
		if c.MIMEType != "" {
			p.MediaType = mediaType(c.MIMEType)
		}
		p.Digest, _ = c.Meta[metaDigest].(string)
		return p, c.URI != ""
	case *mcp.EmbeddedResource:
		if c.Resource == nil {
			return parley.Part{}, false
		}
		return fromResource(c.Resource), true
	}
	return parley.Part{}, false
}

func fromResource(r *mcp.ResourceContents) parley.Part {
	p := parley.Part{MediaType: mediaType(r.MIMEType), Data: r.Blob, Name: fileName(r.URI)}
	if r.Blob != nil {
		if p.IsJSON() && jsonx.Valid(p.Data, 0) != nil {
			p.MediaType = mediaType("")
		}
		return p
	}
	p.Data = []byte(r.Text)
	if r.MIMEType == "" || p.IsJSON() && jsonx.Valid(p.Data, 0) != nil {
		p.MediaType = parley.Text("").MediaType
	}
	return p
}

// mediaType gives a media type that a server states, or that of bytes.
func mediaType(s string) string {
	if _, _, err := mime.ParseMediaType(s); err != nil || len(s) > 200 {
		return "application/octet-stream"
	}
	return s
}

// fileName is the last segment of a resource's URI.
func fileName(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	name := path.Base(cmp.Or(u.Path, u.Opaque))
	if name == "." || name == "/" || len(name) > 255 {
		return ""
	}
	return shownText(name, 255)
}

// sameTrace reports whether two spans are of one trace.
func sameTrace(a, b string) bool {
	return bridge.IsTraceParent(a) && bridge.IsTraceParent(b) && a[3:35] == b[3:35]
}

// progressText says how far a call is; "": nothing is said.
func progressText(p *mcp.ProgressNotificationParams) string {
	n := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	text, far := shownText(p.Message, maxProgressText), ""
	switch {
	case p.Total > 0:
		far = n(p.Progress) + " of " + n(p.Total)
	case text == "":
		far = n(p.Progress)
	}
	switch {
	case text == "":
		return far
	case far == "":
		return text
	}
	return text + " (" + far + ")"
}

// formType is the media type of the JSON Schema of the answer to a question.
const formType = "application/schema+json"

// questionEvent asks the requester what a server asks. why says why an earlier answer does not fit.
func questionEvent(message, why string, schema []byte) *parley.Message {
	text := cmp.Or(shownText(message, maxQuestionText), "the tool needs more input")
	if why != "" {
		text = "The answer does not fit: " + why + ".\n" + text
	}
	m := &parley.Message{Kind: parley.Event, State: parley.NeedsInput, Parts: []parley.Part{parley.Text(text)}}
	if jsonx.Kind(schema) == '{' {
		m.Parts = append(m.Parts, parley.Part{MediaType: formType, Data: schema})
	}
	return m
}

// toElicitResult gives the answer to a question from an input. why says why the input is none.
func toElicitResult(in *parley.Message, schema []byte, hubID string) (_ *mcp.ElicitResult, why string) {
	content, why := formContent(in, schema)
	if why != "" {
		return nil, why
	}
	return &mcp.ElicitResult{Meta: metaOf(in, hubID), Action: "accept", Content: content}, ""
}

// formContent gives the content of the answer to a question from an input: its JSON object, or its text for the one
// member that needs it. Members that it lacks get the form's default values. why says why it is none.
func formContent(in *parley.Message, schema []byte) (content map[string]any, why string) {
	if len(in.Parts) > 1 {
		return nil, fmt.Sprintf("it has %d parts, and a form has a place for one", len(in.Parts))
	}
	var candidates [][]byte
	if i := parley.MainJSON(in.Parts); i >= 0 {
		candidates = append(candidates, in.Parts[i].Data)
	}
	text := in.Text()
	if text != "" {
		candidates = append(candidates, []byte(text))
	}
	if len(in.Parts) == 0 {
		candidates = append(candidates, []byte("{}"))
	}
	if name := fieldFor(schema); name != "" && text != "" {
		if quoted, err := jsonx.AppendString(nil, text); err == nil {
			for _, v := range [][]byte{quoted, []byte(strings.TrimSpace(text))} {
				if b, err := jsonx.Encode(map[string]jsonx.Value{name: v}); err == nil {
					candidates = append(candidates, b)
				}
			}
		}
	}
	why = "want one JSON object with the members of the schema"
	for _, b := range candidates {
		if jsonx.Kind(b) != '{' || jsonx.Valid(b, 0) != nil {
			continue
		}
		b = withDefaults(b, schema)
		if err := hub.CheckContent(schema, b); err != nil {
			why = err.Error()
			continue
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if d.Decode(&content) == nil {
			return content, ""
		}
	}
	return nil, why
}

// withDefaults adds the default values of a form for members that an object lacks.
func withDefaults(object, schema []byte) []byte {
	s, _ := bridge.ReadSchema(schema)
	var members map[string]jsonx.Value
	if err := jsonx.Decode(object, &members); err != nil {
		return object
	}
	for name, property := range s.Properties {
		if v := jsonx.Member(property, "default"); v != nil && members[name] == nil {
			members[name] = v
		}
	}
	full, err := jsonx.Encode(members)
	if err != nil {
		return object
	}
	return full
}

// fieldFor is the member of a form that a text alone answers: the only one, or the only one that is required.
func fieldFor(schema []byte) string {
	s, ok := bridge.ReadSchema(schema)
	switch {
	case !ok:
	case len(s.Required) == 1:
		return s.Required[0]
	case len(s.Properties) == 1:
		for name := range s.Properties {
			return name
		}
	}
	return ""
}
