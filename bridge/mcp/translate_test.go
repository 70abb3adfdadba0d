package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
)

func part(media, name, data string) parley.Part {
	return parley.Part{MediaType: media, Name: name, Data: []byte(data)}
}

// The result on the wire for every kind of content, in both eras.
func TestContentOfAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.MaxAnswer = 2000 })
	var parts []parley.Part
	w.handle("free", func(_ context.Context, _ *parley.Message, r parley.Replier) error { return r.Reply(parts...) })
	clients := map[string]*client{legacy: w.connect("alice", legacy), modern: w.connect("bob", modern)}
	for _, x := range []struct {
		name   string
		parts  []parley.Part
		both   []string // in both eras
		modern string
		legacy string
	}{
		{"text", []parley.Part{parley.Text("hi")}, []string{`"content":[{"type":"text","text":"hi"}]`}, "", ""},
		{"an object, with its text", []parley.Part{part("application/json", "", `{"n":12345678901234567890}`)},
			[]string{`"text":"{\"n\":12345678901234567890}"`, `"structuredContent":{"n":12345678901234567890}`}, "", ""},
		{"decimals keep their digits", []parley.Part{part("application/json", "", `{"n":0.10000000000000000001}`)},
			[]string{`"structuredContent":{"n":0.10000000000000000001}`}, "", ""},
		{"MCP-027 other JSON", []parley.Part{part("application/json", "", `[1,2.50]`)}, []string{`"text":"[1,2.50]"`},
			`"structuredContent":[1,2.50]`, `"structuredContent":{"value":[1,2.50]}`},
		{"null", []parley.Part{part("application/json", "", `null`)}, []string{`"text":"null"`},
			`"structuredContent":null`, `"structuredContent":{"value":null}`},
		{"half a surrogate pair", []parley.Part{part("application/json", "", `{"s":"\ud83d"}`)},
			[]string{`"structuredContent":{"s":"\ufffd"}`}, "", ""},
		{"JSON that is none", []parley.Part{part("application/json", "", `{`)}, []string{`"text":"{"`}, "", ""},
		{"the first JSON of several parts", []parley.Part{parley.Text("see"), part("application/json", "", `{"a":1}`),
			part("application/json", "", `{"b":2}`)}, []string{`"content":[{"type":"text","text":"see"},` +
			`{"type":"text","text":"{\"a\":1}"},{"type":"text","text":"{\"b\":2}"}]`, `"structuredContent":{"a":1}`}, "", ""},
		{"an image", []parley.Part{part("image/png", "x", "PNG")},
			[]string{`{"type":"image","mimeType":"image/png","data":"UE5H"}`}, "", ""},
		{"audio", []parley.Part{part("audio/wav", "x", "WAV")},
			[]string{`{"type":"audio","mimeType":"audio/wav","data":"V0FW"}`}, "", ""},
		{"other bytes", []parley.Part{part("application/pdf", "a b.pdf", "PDF")}, []string{`{"type":"resource","resource":`,
			`/parts/0/a%20b.pdf","mimeType":"application/pdf","blob":"UERG"`}, "", ""},
		{"empty bytes", []parley.Part{part("application/pdf", "", "")}, []string{`"blob":""`}, "", ""},
		{"another text", []parley.Part{part("text/html", "", "<b>")},
			[]string{`"mimeType":"text/html","text":"\u003cb\u003e"`}, "", ""},
		{"a link", []parley.Part{{MediaType: "text/csv", URI: "https://x.test/d/t.csv", Digest: "sha-256=:AA==:"}},
			[]string{`{"type":"resource_link","mimeType":"text/csv","uri":"https://x.test/d/t.csv","name":"t.csv",` +
				`"_meta":{"hub.parley/digest":"sha-256=:AA==:"}}`}, "", ""},
		{"a link with a name", []parley.Part{{URI: "https://x.test", Name: "site"}}, []string{`"name":"site"`}, "", ""},
		{"nothing", nil, []string{`"content":[]`}, "", ""},
		{"too much", []parley.Part{parley.Text(strings.Repeat("x", 2001))},
			[]string{`"isError":true`, `more than 2000 bytes`, `"code":"too_large"`}, "", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			parts = x.parts
			for revision, c := range clients {
				if _, err := c.tool(t.Context(), "free__do", `{"text":"go"}`); err != nil && x.name != "null" {
					t.Fatal(err)
				}
				got := c.wrote(`"content"`)
				wire := got[len(got)-1]
				want := append([]string{map[string]string{legacy: x.legacy, modern: x.modern}[revision]}, x.both...)
				for _, s := range want {
					if !strings.Contains(wire, s) {
						t.Errorf("%s: %s\nhas no %s", revision, wire, s)
					}
				}
				if structured := strings.Contains(strings.Join(want, ""), "structuredContent"); strings.Contains(wire,
					"structuredContent") != structured {
					t.Errorf("%s: structured content: want %v", revision, structured)
				}
				if strings.Contains(wire, `"code":0`) {
					t.Error(wire)
				}
			}
		})
	}
}

// MCP-026: what does not fit the schema that was shown is an error, and no structured content.
func TestOutputSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const number = `{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}`
	w.handleAt(w.node, "object", schemas(parley.RawSkill("do", echo), `{}`, number))
	w.handleAt(w.node, "array", schemas(parley.RawSkill("do", func(_ context.Context, m *parley.Message,
		r parley.Replier) error {
		var v struct{ Give json.RawMessage }
		if err := m.Bind(&v); err != nil {
			return err
		}
		return r.Reply(part("application/json", "", string(v.Give)))
	}), `{"type":"object"}`, `{"type":"array"}`))
	w.handleAt(w.node, "talker", schemas(parley.RawSkill("do", echo), "", number))
	for _, x := range []struct {
		name, tool, arguments string
		legacy, modern        bool // isError
	}{
		{"it fits", "object__do", `{"n":1}`, false, false},
		{"a wrong member", "object__do", `{"n":"1"}`, true, true},
		{"no JSON", "talker__do", `{"text":"hi"}`, true, true},
		{"the handshake revisions show objects only", "array__do", `{"Give":{"a":1}}`, false, true},
		{"no object, and it fits", "array__do", `{"Give":[1]}`, false, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			for revision, isError := range map[string]bool{legacy: x.legacy, modern: x.modern} {
				r, err := w.connect("alice", revision).tool(t.Context(), x.tool, x.arguments)
				words := []string{}
				if isError {
					words = append(words, "output schema")
				}
				wantText(t, r, err, isError, append(words, "")...)
				if (r.StructuredContent != nil) == isError {
					t.Errorf("%s: structured content %v", revision, r.StructuredContent)
				}
			}
		})
	}
}

// A failure is an error for the model, with what a program needs in _meta, and nothing of the inside.
func TestFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var fails error
	w.handle("free", func(context.Context, *parley.Message, parley.Replier) error { return fails })
	c := w.connect("alice", modern)
	busy := parley.Fail(parley.RateLimited, fmt.Errorf("inside"), "come back later").
		With(parley.ByLimit, parley.SenderRate, "192.0.2.9")
	busy.After = 1500 * time.Millisecond
	for _, x := range []struct {
		err  error
		text string
		meta []string
	}{
		{parley.Refuse(parley.Rejected, "not today"), "not today",
			[]string{`"code":"rejected"`, `"retryable":false`, `"ref":"`}},
		{busy, "come back later", []string{`"code":"rate_limited"`, `"retryable":true`, `"after":1500`}},
		{fmt.Errorf("inside"), "", []string{`"code":"handler_failed"`}},
	} {
		fails = x.err
		r, err := c.tool(t.Context(), "free__do", `{"text":"go"}`)
		wantText(t, r, err, true, x.text)
		got := encoded(t, r.Meta[metaError])
		for _, s := range x.meta {
			if !strings.Contains(got, s) {
				t.Errorf("%s has no %s", got, s)
			}
		}
		all := c.wrote(`"isError":true`)
		for _, s := range []string{"inside", "192.0.2.9", "sender_rate"} {
			if strings.Contains(all[len(all)-1], s) {
				t.Errorf("%q is told: %s", s, all[len(all)-1])
			}
		}
	}
}

// An answer without content has the pieces that came before it.
func TestPieces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var answer []parley.Part
	w.handle("free", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
		for _, s := range []string{"a", "b"} {
			if err := r.Chunk(parley.Text(s)); err != nil {
				return err
			}
		}
		return r.Reply(answer...)
	})
	c := w.connect("alice", legacy)
	r, err := c.tool(t.Context(), "free__do", `{"text":"go"}`)
	wantText(t, r, err, false, "a\nb")
	answer = []parley.Part{parley.Text("ab")}
	r, err = c.tool(t.Context(), "free__do", `{"text":"go"}`)
	if wantText(t, r, err, false, "ab"); texts(r) != "ab" {
		t.Error(texts(r))
	}
}

func TestReplyLosses(t *testing.T) {
	t.Parallel()
	event := &parley.Message{Kind: parley.Event, State: parley.Working, Parts: []parley.Part{parley.Text("half")}}
	asks := &parley.Message{Kind: parley.Event, State: parley.NeedsInput, Parts: []parley.Part{parley.Text("where?")}}
	quiet := &parley.Message{From: "alice", Trace: parley.Trace{Foreign: map[string]string{foreignProgress: "no"}}}
	for _, x := range []struct {
		reply, request *parley.Message
		lost           bool
	}{{event, quiet, true}, {asks, quiet, false}, {event, &parley.Message{From: "alice"}, false}} {
		if got := replyLosses(x.reply, x.request); (len(got) > 0) != x.lost {
			t.Errorf("%v: %v", x.reply.State, got)
		}
	}
}

func TestArgumentsDigest(t *testing.T) {
	t.Parallel()
	digest := func(name, arguments string) string {
		return argumentsDigest(&toolCall{name: name, params: &mcp.CallToolParamsRaw{Arguments: json.RawMessage(arguments)}})
	}
	one := digest("x", `{"a":1,"b":[1,2]}`)
	for _, x := range []struct {
		name, arguments string
		same            bool
	}{
		{"x", ` {"b":[1, 2],"a":1}`, true}, {"y", `{"a":1,"b":[1,2]}`, false}, {"x", `{"a":1.0,"b":[1,2]}`, false},
		{"x", `{"a":1,"b":[2,1]}`, false}, {"x", ``, false},
	} {
		if (digest(x.name, x.arguments) == one) != x.same {
			t.Errorf("%s %s: want same %v", x.name, x.arguments, x.same)
		}
	}
}
