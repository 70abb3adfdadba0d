package bridge

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

var update = flag.Bool("update", false, "write docs/translation.md anew")

func TestTableIsWhole(t *testing.T) {
	seen := map[Aspect]bool{}
	for _, r := range Table {
		if seen[r.Aspect] || r.Title == "" {
			t.Errorf("%s is there twice, or has no title", r.Aspect)
		}
		seen[r.Aspect] = true
		for _, w := range Ways {
			e, ok := r.Out[w.Way]
			if !ok || e.Fate != Survives && e.How == "" {
				t.Errorf("%s on the way %s: %v", r.Aspect, w.Way, e)
			}
			if e.Fate == Lost && r.Field == "" {
				t.Errorf("%s can be lost and names no field", r.Aspect)
			}
		}
		if len(r.Out) != len(Ways) {
			t.Errorf("%s has ways that there are not", r.Aspect)
		}
	}
	for protocol := range Within {
		if Look(protocol, Way(""), Text).Fate != Absent {
			t.Errorf("a way that is none has an entry")
		}
	}
}

// samples are messages with one aspect each.
func samples() map[Aspect]*parley.Message {
	object := parley.Part{MediaType: "application/json",
		Data: []byte(`{"a":1.5,"b":"0.1000000000000000055","c":12345678901234567890}`)}
	event := func(s parley.State, act string, parts ...parley.Part) *parley.Message {
		return &parley.Message{Kind: parley.Event, State: s, Act: act, Parts: parts}
	}
	extension := func(protocol, members string) *parley.Message {
		return &parley.Message{Kind: parley.Notice, Parts: []parley.Part{object},
			Extensions: map[string]json.RawMessage{protocol: json.RawMessage(members)}}
	}
	says := func(parts ...parley.Part) *parley.Message { return &parley.Message{Kind: parley.Notice, Parts: parts} }
	named, own, precise := object, object, object
	named.Name, own.MediaType, precise.Data = "x", "application/geo+json; v=1",
		[]byte(`{"n":[0.1000000000000000055511151231257827]}`)
	return map[Aspect]*parley.Message{
		Text: says(parley.Text("x")), Object: says(object), OtherJSON: says(parley.Part{MediaType: "application/json",
			Data: []byte("[1]")}),
		Numbers: says(precise), Bytes: says(parley.Part{MediaType: "image/png", Data: []byte{1}}),
		Link:    says(parley.Part{URI: "https://x"}),
		Several: says(object, object), Name: says(named), Type: says(own),
		Request: {Kind: parley.Request, Parts: []parley.Part{object}, Deadline: time.Unix(1, 0),
			Expires: time.Unix(1, 0)},
		Response: {Kind: parley.Response, Parts: []parley.Part{object}}, Failure: {Kind: parley.Failure},
		Code:     {Kind: parley.Failure, Error: parley.Refuse(parley.Rejected, "no")},
		Retry:    {Kind: parley.Failure, Error: parley.Fail(parley.Unavailable, nil, "no")},
		Accepted: event(parley.Accepted, ""), Working: event(parley.Working, ""),
		NeedsInput: event(parley.NeedsInput, ""), Chunk: event(parley.NoState, "", object),
		Detail: event(parley.Accepted, "", object), EventAct: event(parley.Accepted, "inform"), Notice: says(object),
		Cancel: {Kind: parley.Cancel}, Input: {Kind: parley.Input, Parts: []parley.Part{object}},
		Act: {Kind: parley.Notice, Act: "inform"}, Skill: {Kind: parley.Request, Skill: "x"},
		Schema:      {Kind: parley.Notice, Schema: "x"},
		Audience:    {Kind: parley.Notice, From: "alice", Audience: []string{"alice", "bob", "carol"}},
		Credentials: extension("samvad", `{"delegation":{}}`),
		Budget:      extension("asp", `{"constraints":{},"record":{}}`), Context: extension("asp", `{"context":[]}`),
		Surrogates: extension("samvad", `{"surrogates":true}`),
		Extra:      extension("uagents", `{"metadata":{},"msg_id":"x"}`),
	}
}

// TestEveryLossIsReported: an aspect that the table calls lost is reported for a
// message that has it, with the table's reason, and nothing else is.
func TestEveryLossIsReported(t *testing.T) {
	for aspect, m := range samples() {
		for _, w := range Ways {
			e := rows[aspect].Out[w.Way]
			var want []string
			own := false // carried within its own protocol
			for name := range m.Extensions {
				own = own || name == w.Protocol
			}
			if e.Fate == Lost && !own {
				want = append(want, e.How)
			}
			// Further aspects of some samples.
			switch {
			case aspect == Retry && rows[Code].Out[w.Way].Fate == Lost:
				want = append(want, rows[Code].Out[w.Way].How)
			case (aspect == Detail || aspect == EventAct) && rows[Accepted].Out[w.Way].Fate == Lost:
				want = []string{rows[Accepted].Out[w.Way].How}
			}
			losses := Losses(w.Way, m, "bob")
			if len(losses) != len(want) {
				t.Errorf("%s on the way %s: %v, want %q", aspect, w.Way, losses, want)
				continue
			}
			for i, l := range losses {
				if l.Reason != want[i] || !strings.HasPrefix(l.Field, rows[aspect].Field) && aspect != Retry &&
					aspect != Detail && aspect != EventAct {
					t.Errorf("%s on the way %s: %v, want %q", aspect, w.Way, l, want[i])
				}
			}
		}
	}
	for _, r := range Table {
		if _, ok := samples()[r.Aspect]; !ok {
			for w, e := range r.Out {
				if e.Fate == Lost {
					t.Errorf("no sample of %s, which is lost on the way %s", r.Aspect, w)
				}
			}
		}
	}
}

// TestLossesOfMCPClients: what a client finds depends on whether a message answers its call, or
// waits in its inbox.
func TestLossesOfMCPClients(t *testing.T) {
	named := func(mediaType, uri string) parley.Part {
		return parley.Part{MediaType: mediaType, Name: "x", URI: uri, Data: []byte("1")}
	}
	text, object, image, file, link := named("text/plain", ""), named("application/geo+json", ""), named("image/png", ""),
		named("application/pdf", ""), named("text/html", "https://x")
	name := parley.Loss{Field: "Parts.Name", Reason: rows[Name].Out[MCPClient].How}
	mediaType := parley.Loss{Field: "Parts.MediaType", Reason: rows[Type].Out[MCPClient].How}
	left := parley.Loss{Field: "Parts", Reason: textEvents}
	for _, c := range []struct {
		name  string
		kind  parley.Kind
		parts []parley.Part
		want  []parley.Loss
	}{
		{"a result names files and links", parley.Response, []parley.Part{file, link}, nil},
		{"a result does not name text", parley.Response, []parley.Part{text, link}, []parley.Loss{name}},
		{"a result does not name images", parley.Response, []parley.Part{image}, []parley.Loss{name}},
		{"a result has plain JSON", parley.Response, []parley.Part{object, text}, []parley.Loss{mediaType, name}},
		{"an inbox names several parts", parley.Notice, []parley.Part{text, image, object}, nil},
		{"an inbox does not name a single value", parley.Request, []parley.Part{object}, []parley.Loss{mediaType, name}},
		{"an inbox names a single image", parley.Input, []parley.Part{image}, nil},
		{"an event is text", parley.Event, []parley.Part{{MediaType: "application/json"}, parley.Text("x")}, nil},
		{"an event has no bytes", parley.Event, []parley.Part{image}, []parley.Loss{left}},
		{"an event has no links", parley.Event, []parley.Part{link}, []parley.Loss{left}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := Losses(MCPClient, &parley.Message{Kind: c.kind, Parts: c.parts}, "bob"); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// TestRestOfMCP: the provenance has what neither _meta nor parley_inbox has a place for.
func TestRestOfMCP(t *testing.T) {
	at := time.Unix(1767225600, 0).UTC()
	m := parley.Message{Conversation: parley.ID{1}, Act: "inform", Schema: "s", Sent: at, Deadline: at, Expires: at,
		Trace: parley.Trace{Parent: "00-t"}, Audience: []string{"alice", "bob"},
		Error: &parley.Error{Retryable: true, After: time.Second}}
	for _, c := range []struct {
		name string
		way  Way
		kind parley.Kind
		want Rest
	}{
		{"a message of the inbox", MCPClient, parley.Notice, Rest{Sent: at, Trace: "00-t"}},
		{"a result", MCPClient, parley.Failure, Rest{Conversation: m.Conversation, Act: "inform", Schema: "s", Sent: at,
			Deadline: at, Expires: at, Audience: m.Audience}},
		{"a call does not tell a server who else got it", MCPServer, parley.Notice, Rest{Conversation: m.Conversation,
			Act: "inform", Schema: "s", Sent: at, Deadline: at, Expires: at}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := m
			m.Kind = c.kind
			if got := RestOf(c.way, &m); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestNumbersBeyondAFloat(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a":0.1}`: false, `{"a":"0.10000000000000000001"}`: false, `[0.10000000000000000001]`: true,
		`12345678901234567890`: false, `1e400`: false, `1.0000000000000000e400`: true,
		`{"a\"0.10000000000000000001":1}`: false, `0.30000000000000004`: false, `-0.30000000000000004441`: true,
		`1.50000000000000000`: false, `1.000000000000000000001e-999999999`: true,
	} {
		if got := losesDigits([]byte(text)); got != want && text != `1e400` {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestNoLossCostsNothing: a message that loses nothing costs no allocation.
func TestNoLossCostsNothing(t *testing.T) {
	m := samples()[Request]
	for _, w := range Ways {
		if n := testing.AllocsPerRun(100, func() {
			if l := Losses(w.Way, m, "bob"); l != nil {
				t.Fatal(l)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", w.Way, n)
		}
	}
}

func BenchmarkLosses(b *testing.B) {
	m := samples()[Request]
	for b.Loop() {
		Losses(Model, m, "bob")
	}
}

func TestProvenanceIsASCII(t *testing.T) {
	m := &parley.Message{From: "alice", Act: "grüße\r\nX-Evil: 1", Schema: strings.Repeat("ü", 400),
		Sent: time.Unix(0, 0), Origin: parley.Origin{Protocol: "agh", Raw: []byte("x")}}
	p := Provenance(m)
	for _, c := range []byte(p) {
		if c < ' ' || c > '~' {
			t.Fatalf("%q", p)
		}
	}
	if !strings.Contains(p, `digest="sha-256=:`) || len(p) > 3000 {
		t.Error(p)
	}
}

// The page.

var titles = map[string]string{"samvad": "SAMVAD", "uagents": "uAgents", "a2e": "A2E", "agh": "AGH", "asp": "ASP",
	"a2a": "A2A", "mcp": "MCP"}

const before = `# Translation

Generated from the loss table (` + "`bridge/table.go`" + `) by ` + "`go test ./bridge -update`" + `. A message that comes in by one protocol
goes out in another; this page says what becomes of each thing that it says. Tests hold the bindings to it: what
survives is on the wire, and what is not on the wire is reported.

## Nothing is lost silently

What a message lost on its way to a recipient is recorded with its delivery, kept over restarts, and shown by

<!-- docs: check -->
` + "```sh" + `
parley conversation show ID
parley explain ID
parley dead show ID
` + "```" + `

and in the field ` + "`losses`" + ` of deliveries in the admin API. Each loss names the field and the reason, such as
` + "`Audience: SAMVAD has one recipient`" + `. Answers and events that go out with the response to a call, and events that the
requester's protocol has no word for, have no delivery of their own; their losses are with the delivery of the request,
as ` + "`Reply.…`" + ` and ` + "`Event.…`" + `, those of an event from when it is recorded. Nothing is lost for good: the hub's record
keeps the original bytes (` + "`parley conversation export`" + `).

Within a protocol the original envelope travels where the protocol allows it:

`

const mappings = `
## Content that does not fit a skill: mappings

Content crosses by one rule, for all protocols and kinds of messages, in this order:

1. What fits the skill's schema stays as it is.
2. Text that spells a fitting object becomes that object; other text becomes the skill's only required member, if that is a
   string. Text that spells an object of another shape is JSON that does not fit, unless that member is called
   ` + "`text`" + ` or ` + "`message`" + `.
3. A skill that takes text alone gets an object as its ` + "`text`" + ` or ` + "`message`" + `, if that is all it has, else as compact JSON.
4. A mapping that you configured for the agent and skill is applied.
5. Else the sender of a request gets an error that shows the schema.

A notice is shaped for each recipient when it is delivered. One that does not fit a recipient is noted with its delivery, as
` + "`Parts: the agent did not get it: …`" + `; it is no dead letter, and its sender gets no error.

A mapping is a [jq](https://jqlang.github.io/jq/) program in the configuration. It makes one JSON value of the content:

` + "```toml" + `
[[map]]
agent = "weather"
skill = "forecast"
jq = '{city: .place.name, days: (.days // 3)}'

[[map]]
agent = "weather"
skill = "forecast"
direction = "response"
jq = '{text: "\(.city): \(.temperature) °C"}'
` + "```" + `

- ` + "`.`" + ` is the first JSON part of the message, else its text as a string, else null. ` + "`$message`" + ` has kind, from, to, skill, act,
  protocol and text.
- It is applied where the content does not fit the skill's schema, and always where the skill has none; with
  ` + "`direction = \"response\"`" + `, to what the skill answers. What comes of it must fit the schema.
- Senders in SAMVAD are held to the schema on the agent's card before: for them it is not applied.
- A run has 250 ms and makes at most 1 MiB. A mapping reads no files, no environment and no modules. Whole numbers keep
  any size; decimals become 64-bit floats.
- What fails is an error to the sender (` + "`invalid_content`" + `; ` + "`too_large`" + ` over those bounds); of an answer, a failure of the request.
- A mistake in a program stops the hub from starting, with the line: ` + "`parley config check`" + ` finds it, ` + "`parley config reload`" + ` takes
  a change up.

Try one before you use it:

` + "```sh" + `
echo '{"place": {"name": "Bern"}}' | parley map test --agent weather --skill forecast --jq '{city: .place.name}'
` + "```" + `
`

var signs = map[Fate]string{Survives: "✓", As: "≈", Refused: "✗", Lost: "–"}

func page() string {
	var b strings.Builder
	b.WriteString(before)
	for _, p := range Protocols {
		how := "the message is said anew, in the hub's name"
		switch {
		case Within[p] != "":
			how = Within[p]
		case Own[p] != "":
			how += ", with " + Own[p]
		}
		fmt.Fprintf(&b, "- %s: %s.\n", titles[p], how)
	}
	b.WriteString("\n## At a glance\n\n✓ survives · ≈ in another form · – lost, and reported · ✗ refused, and the sender is told ·\nempty: it never goes that way\n\n| | said by |")
	for _, w := range Ways {
		fmt.Fprintf(&b, " %s |", w.Title)
	}
	b.WriteString("\n|---|---|" + strings.Repeat(":-:|", len(Ways)) + "\n")
	for _, r := range Table {
		var by []string
		for _, p := range Protocols {
			if r.In[p] != "" {
				by = append(by, titles[p])
			}
		}
		if len(by) == 0 {
			by = append(by, "Go, the API")
		}
		fmt.Fprintf(&b, "| %s | %s |", r.Title, strings.Join(by, ", "))
		for _, w := range Ways {
			fmt.Fprintf(&b, " %s |", signs[r.Out[w.Way].Fate])
		}
		b.WriteByte('\n')
	}
	b.WriteString("\nuAgents get a chat message, or a message of a model that they declare. A2E agents get messages by `parley_inbox`, and\nresults of their own calls; A2E hosts get tool calls. MCP clients get results of their calls, and agents that call also\nmessages by `parley_inbox`; attached MCP servers get tool calls.\n")
	b.WriteString(mappings)
	b.WriteString("\n## Pair by pair\n\nEach pair names what the sender's protocol can say. " +
		"\"the header Parley-Provenance\" and its like are where the hub states\nthe sender, the assurance and the digest of the original.\n")
	for _, from := range Protocols {
		for _, to := range Protocols {
			fmt.Fprintf(&b, "\n### %s to %s\n", titles[from], titles[to])
			if from == to && Within[from] != "" {
				fmt.Fprintf(&b,
					"\nEverything survives: %s. What the hub itself has to say there, for an agent of another protocol, is under that pair.\n", Within[from])
				continue
			}
			for _, w := range Ways {
				if w.Protocol != to {
					continue
				}
				if to == "uagents" || to == "a2e" || to == "mcp" {
					fmt.Fprintf(&b, "\n**%s**\n", w.Title)
				}
				pair(&b, from, w.Way)
			}
		}
	}
	return b.String()
}

func pair(b *strings.Builder, from string, way Way) {
	for _, k := range []struct {
		fate  Fate
		title string
	}{{Survives, "Survives"}, {As, "In another form"}, {Lost, "Lost, and reported"}, {Refused, "Refused"}} {
		var list []string
		for _, r := range Table {
			e := Look(from, way, r.Aspect)
			if e.Fate != k.fate {
				continue
			}
			said := lower(r.Title) + " (" + r.In[from] + ")"
			if e.Fate != Survives {
				said = lower(r.Title) + " (" + r.In[from] + "): " + e.How
			}
			list = append(list, said)
		}
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n%s:\n\n- %s\n", k.title, strings.Join(list, "\n- "))
	}
}

// lower begins a title in lower case, unless it is an abbreviation.
func lower(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func TestTranslationPage(t *testing.T) {
	const path = "../docs/translation.md"
	if *update {
		if err := os.WriteFile(path, []byte(page()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile(path)
	if err != nil || string(old) != page() {
		t.Errorf("docs/translation.md is not what the table says (%v): run go test ./bridge -update", err)
	}
}
