package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
)

func TestToArguments(t *testing.T) {
	t.Parallel()
	object := func(s string) parley.Part { return parley.Part{MediaType: "application/json", Data: []byte(s)} }
	const one = `{"type":"object","properties":{"q":{"type":"string"},"n":{"type":"integer"}},"required":["q"]}`
	const content = `{"type":"object","properties":{"content":{},"n":{"type":"integer"}}}`
	const text = `{"type":"object","properties":{"text":{"type":"string"}}}`
	for name, c := range map[string]struct {
		schema string
		parts  []parley.Part
		want   string // arguments, or a part of the reason
	}{
		"an object": {one, []parley.Part{object(`{"q":"a","n":12345678901234567890}`)},
			`{"q":"a","n":12345678901234567890}`},
		"no content":                  {content, nil, `{}`},
		"text for the required one":   {one, []parley.Part{parley.Text("a")}, `{"q":"a"}`},
		"text for content":            {content, []parley.Part{parley.Text("a")}, `{"content":"a"}`},
		"text for text":               {text, []parley.Part{parley.Text("a")}, `{"text":"a"}`},
		"an array for content":        {content, []parley.Part{object(`[1]`)}, `{"content":[1]}`},
		"an array without a place":    {text, []parley.Part{object(`[1]`)}, "no member of the arguments"},
		"text without a place":        {`{"type":"object"}`, []parley.Part{parley.Text("a")}, "no member of the arguments"},
		"text without a schema":       {"", []parley.Part{parley.Text("a")}, "no member of the arguments"},
		"bytes":                       {content, []parley.Part{{MediaType: "image/png", Data: []byte("x")}}, `"image/png"`},
		"a link":                      {content, []parley.Part{{URI: "https://a.test"}}, "a link"},
		"several parts":               {one, []parley.Part{object(`{"q":"a"}`), parley.Text("b")}, "2 parts"},
		"MCP-025 a member is missing": {one, []parley.Part{object(`{"n":1}`)}, "'q'"},
		"MCP-025 a member is wrong":   {one, []parley.Part{object(`{"q":1}`)}, "at /q"},
		"duplicate members":           {one, []parley.Part{object(`{"q":"a","q":"b"}`)}, "duplicate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &parley.Message{Parts: c.parts}
			p, err := toCall(m, &ToolText{Name: "t", Input: json.RawMessage(c.schema)}, "here")
			switch {
			case c.want[0] == '{' && (err != nil || string(p.Arguments.(json.RawMessage)) != c.want):
				t.Errorf("%+v, %v", p, err)
			case c.want[0] != '{' && (err == nil || err.Code != parley.InvalidContent || !strings.Contains(err.Text, c.want) ||
				!strings.Contains(err.Text, "it takes one JSON object")):
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// What goes with a call in _meta.
func TestCallMeta(t *testing.T) {
	t.Parallel()
	trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	m := &parley.Message{ID: parley.ID{1}, Conversation: parley.ID{2}, From: "alice", Kind: parley.Request,
		Hops: []string{"there", "here"}, Sent: time.Unix(1767225600, 0),
		Trace: parley.Trace{Parent: trace, State: "a=b", Foreign: map[string]string{foreignBaggage: "c=d"}},
		Origin: parley.Origin{Protocol: "asp", Peer: "peer", Raw: []byte("secret"),
			Verdict: parley.Verdict{Assurance: parley.Signed, Checks: []parley.Check{{Name: "signature", OK: true}}}}}
	p, err := toCall(m, &ToolText{Name: "t"}, "here")
	if err != nil {
		t.Fatal(err)
	}
	b, merr := json.Marshal(p.Meta)
	if merr != nil {
		t.Fatal(merr)
	}
	var meta struct {
		Hops       []string `json:"hub.parley/hops"`
		Provenance struct {
			Sender, Assurance, Message, Hub string
			Proved                          []string
		} `json:"hub.parley/provenance"`
		Conversation                     string `json:"hub.parley/conversation"`
		Key                              string `json:"hub.parley/idempotencyKey"`
		TraceParent, TraceState, Baggage string
	}
	if err := json.Unmarshal(b, &meta); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"MCP-090 hops": fmt.Sprint(meta.Hops), "MCP-091 trace": meta.TraceParent,
		"state": meta.TraceState, "baggage": meta.Baggage, "sender": meta.Provenance.Sender,
		"assurance": meta.Provenance.Assurance,
		"message":   meta.Provenance.Message, "hub": meta.Provenance.Hub, "conversation": meta.Conversation, "key": meta.Key}
	for name, want := range map[string]string{"MCP-090 hops": "[there here]", "MCP-091 trace": trace, "state": "a=b",
		"baggage": "c=d", "sender": "alice", "assurance": "signed", "message": m.ID.String(), "hub": "here",
		"conversation": m.Conversation.String(), "key": m.ID.String()} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if strings.Contains(string(b), "secret") {
		t.Errorf("the envelope of the sender is in %s", b)
	}
}

// The answer to a question says whose it is, as a call does. An input of several parts is none: a form has no place for
// them.
func TestToElicitResult(t *testing.T) {
	t.Parallel()
	in := &parley.Message{ID: parley.ID{1}, Conversation: parley.ID{2}, From: "alice", Kind: parley.Input,
		Hops: []string{"here"}, Parts: []parley.Part{parley.Text("Bern")}}
	const schema = `{"type":"object","properties":{"city":{"type":"string"}}}`
	r, why := toElicitResult(in, []byte(schema), "here")
	if why != "" || r.Action != "accept" || r.Content["city"] != "Bern" {
		t.Fatalf("%+v, %s", r, why)
	}
	p, refused := toCall(in, &ToolText{Name: "t", Input: json.RawMessage(strings.Replace(schema, "city", "content", 1))},
		"here")
	if refused != nil {
		t.Fatal(refused)
	}
	delete(p.Meta, metaKey)
	if got, want := encoded(t, r.Meta), encoded(t, p.Meta); got != want {
		t.Errorf("_meta %s, want %s", got, want)
	}
	in.Parts = append(in.Parts, parley.Text("Thun"))
	if r, why := toElicitResult(in, []byte(schema), "here"); r != nil || !strings.Contains(why, "2 parts") {
		t.Errorf("%+v, %q", r, why)
	}
}

func TestFromAnswer(t *testing.T) {
	t.Parallel()
	text := func(s string) mcp.Content { return &mcp.TextContent{Text: s} }
	resource := func(r mcp.ResourceContents) mcp.Content { return &mcp.EmbeddedResource{Resource: &r} }
	show := func(p parley.Part) string {
		return strings.TrimSpace(fmt.Sprintf("%s|%s|%s%s %s", p.MediaType, p.Name, p.Data, p.URI, p.Digest))
	}
	const plain = "text/plain; charset=utf-8||"
	for name, c := range map[string]struct {
		structured string
		content    []mcp.Content
		want       []string
	}{
		"nothing": {"", nil, nil},
		"text":    {"", []mcp.Content{text("a"), text("")}, []string{plain + "a", plain}},
		"structured, with its text": {`{"a":1.0,"b":2}`, []mcp.Content{text("{\n \"b\": 2, \"a\": 1.0 }")},
			[]string{`application/json||{"a":1.0,"b":2}`}},
		"structured, with other text": {`{"a":1}`, []mcp.Content{text("one")},
			[]string{`application/json||{"a":1}`, plain + "one"}},
		"structured, with its literal": {`12345678901234567890`, []mcp.Content{text("12345678901234567890")},
			[]string{`application/json||12345678901234567890`}},
		"image": {"", []mcp.Content{&mcp.ImageContent{MIMEType: "image/png", Data: []byte("x")}},
			[]string{"image/png||x"}},
		"audio without a type": {"", []mcp.Content{&mcp.AudioContent{Data: []byte("x")}},
			[]string{"application/octet-stream||x"}},
		"a link": {"", []mcp.Content{&mcp.ResourceLink{URI: "https://a.test/b", Name: "b", MIMEType: "text/html",
			Meta: mcp.Meta{metaDigest: "sha-256=:x:"}}}, []string{"text/html|b|https://a.test/b sha-256=:x:"}},
		"a resource of text": {"", []mcp.Content{resource(mcp.ResourceContents{URI: "file:///d/a.md",
			MIMEType: "text/markdown", Text: "x"})}, []string{"text/markdown|a.md|x"}},
		"a resource of bytes": {"", []mcp.Content{resource(mcp.ResourceContents{URI: "x:", MIMEType: "a/b",
			Blob: []byte("x")})}, []string{"a/b||x"}},
		"JSON that is none": {"", []mcp.Content{resource(mcp.ResourceContents{URI: "file:///a",
			MIMEType: "application/json", Text: "x"}),
			resource(mcp.ResourceContents{URI: "file:///b", MIMEType: "application/json", Blob: []byte("x")})},
			[]string{"text/plain; charset=utf-8|a|x", "application/octet-stream|b|x"}},
		"a resource that is missing": {"", []mcp.Content{&mcp.EmbeddedResource{}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &serverAnswer{CallToolResult: &mcp.CallToolResult{Content: c.content}}
			if c.structured != "" {
				a.structured = json.RawMessage(c.structured)
			}
			var got []string
			m := fromAnswer("files", a)
			for _, p := range m.Parts {
				got = append(got, show(p))
			}
			if m.Kind != parley.Response || !slices.Equal(got, c.want) {
				t.Errorf("%s %q, want %q", m.Kind, got, c.want)
			}
		})
	}
}

// Failures of tools are clipped, and an answer with too many items is refused.
func TestFromFailedAnswer(t *testing.T) {
	t.Parallel()
	hops := fromAnswer("files", &serverAnswer{CallToolResult: &mcp.CallToolResult{IsError: true,
		Meta: mcp.Meta{metaHops: []any{"there", "further"}}}})
	if fmt.Sprint(hops.Hops) != "[there further]" {
		t.Errorf("MCP-090 hops: %v", hops.Hops)
	}
	long := &serverAnswer{CallToolResult: &mcp.CallToolResult{IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: "no\x1b[31m " + strings.Repeat("x", 1<<20)}}}}
	m := fromAnswer("files", long)
	if m.Kind != parley.Failure || m.Error.Code != parley.HandlerFailed || m.Error.Source != parley.ByPeer ||
		utf8.RuneCountInString(m.Error.Text) > maxErrorText || !strings.HasPrefix(m.Error.Text, "no[31m x") {
		t.Errorf("%s %.40q", m.Kind, m.Error.Text)
	}
	empty := fromAnswer("files", &serverAnswer{CallToolResult: &mcp.CallToolResult{IsError: true}})
	if empty.Error == nil || empty.Error.Text != "the tool failed" {
		t.Errorf("%+v", empty.Error)
	}
	many := &serverAnswer{CallToolResult: &mcp.CallToolResult{
		Content: slices.Repeat([]mcp.Content{&mcp.TextContent{Text: "x"}}, maxContent+1)}}
	if m := fromAnswer("files", many); m.Error == nil || m.Error.Reason != parley.PeerAnswerLarge {
		t.Errorf("%s %v", m.Kind, m.Error)
	}
}

func TestProgressText(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]mcp.ProgressNotificationParams{
		"3 of 10":      {Progress: 3, Total: 10},
		"0.5":          {Progress: 0.5},
		"row":          {Progress: 1, Message: "row"},
		"row (1 of 2)": {Progress: 1, Total: 2, Message: "row"},
		"+Inf":         {Progress: math.Inf(1)},
	} {
		if got := progressText(&p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
