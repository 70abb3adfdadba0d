// Package bridgetest checks the bindings against the loss table. It makes random
// messages as they come in by each protocol, with a mark in every value, and checks
// that each mark is on the wire that a binding makes of the message, or that the
// binding reports its loss.
package bridgetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
)

// Recipient is the directory name to whom messages go.
const Recipient = "bob"

// A Case is a random message and its marks.
type Case struct {
	Message *parley.Message
	Marks   []Mark
}

// A Mark is a value that must be found, or be reported as lost.
type Mark struct {
	Field string // of the Loss that would say so
	Value string
}

// reported reports whether the losses name the mark's field, or the whole part or
// message.
func (k Mark) reported(losses []parley.Loss) bool {
	return slices.ContainsFunc(losses, func(l parley.Loss) bool {
		return l.Field == k.Field || l.Field == "Kind" || l.Field == "State" ||
			l.Field == "Parts" && strings.HasPrefix(k.Field, "Parts.")
	})
}

// Origins are the sources of messages: the protocols, and the hub's API.
var Origins = append(slices.Clone(bridge.Protocols), "api")

// maker makes one message.
type maker struct {
	*rand.Rand
	n int
	c *Case
}

func (m *maker) mark(field string) string {
	m.n++
	v := fmt.Sprintf("m%dx%08x", m.n, m.Uint32())
	m.c.Marks = append(m.c.Marks, Mark{field, v})
	return v
}

func (m *maker) some(of int) bool { return m.IntN(of) == 0 }

// numbers that JSON libraries like to change.
var numbers = []string{"12345678901234567890", "0.1000000000000000055511151231257827", "9007199254740993",
	"-0.30000000000000004", "1.5"}

// beyond reports whether a number is one that ASP refuses.
func beyond(n string) bool { return n == "12345678901234567890" || n == "9007199254740993" }

// Message makes a message of a kind as it comes in by a protocol, or by the API,
// which has every aspect. It has no aspect that the table refuses on the way out.
func Message(r *rand.Rand, from string, way bridge.Way, kind parley.Kind) Case {
	var c Case
	m := &maker{Rand: r, c: &c}
	var id, conversation parley.ID
	for i := range id {
		id[i], conversation[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	at := time.Unix(1767225600, 0).UTC()
	out := &parley.Message{ID: id, Conversation: conversation, Kind: kind, From: "alice", To: Recipient, Sent: at,
		Hops: []string{"hub-one"},
		Origin: parley.Origin{Protocol: from, Peer: m.mark("Origin"), Received: at, Raw: []byte(from + " envelope"),
			Verdict: parley.Verdict{Assurance: parley.Signed, Checks: []parley.Check{{Name: "signature", OK: true}}}}}
	c.Message = out
	// The peer is named where a protocol has a place for it.
	if p := way.Protocol(); p == "samvad" || p == "uagents" {
		c.Marks = c.Marks[:0]
	}
	says := func(a bridge.Aspect) bool { return from == "api" || in(from, a) }
	if kind == parley.Event {
		states := []parley.State{parley.NoState}
		for s, a := range map[parley.State]bridge.Aspect{parley.Accepted: bridge.Accepted,
			parley.Working: bridge.Working, parley.NeedsInput: bridge.NeedsInput} {
			if says(a) {
				states = append(states, s)
			}
		}
		slices.Sort(states)
		out.State, out.Number = states[r.IntN(len(states))], 1
	}
	if kind == parley.Failure {
		out.Error = &parley.Error{Code: parley.HandlerFailed, Text: m.mark("Error.Text")}
		if says(bridge.Retry) && m.some(2) {
			out.Error.Retryable, out.Error.After = true, 7*time.Second
		}
	}
	if kind != parley.Request && kind != parley.Notice {
		out.InReplyTo = conversation
	}
	if kind == parley.Cancel {
		c.Marks = append(c.Marks, Mark{"Kind", "cancel"})
		return c
	}
	if kind != parley.Failure {
		m.parts(says, way)
	}
	if says(bridge.Act) && m.some(2) && kind != parley.Failure {
		out.Act = m.mark("Act")
	}
	if says(bridge.Schema) && m.some(2) && kind != parley.Event && kind != parley.Failure {
		out.Schema = m.mark("Schema")
	}
	if says(bridge.Expiry) && m.some(2) && kind == parley.Request {
		out.Expires = at.Add(time.Hour)
	}
	if kind == parley.Request {
		out.Deadline = at.Add(time.Duration(1+r.IntN(1000)) * time.Second)
	}
	if says(bridge.Audience) && m.some(2) && kind == parley.Notice {
		out.Audience = []string{Recipient, m.mark("Audience")}
	}
	extension := map[string]string{}
	for _, x := range [...]struct{ protocol, member string }{
		{"samvad", "delegation"}, {"uagents", "metadata"}, {"uagents", "msg_id"}, {"a2e", "task_name"}, {"agh", "ext"},
		{"asp", "constraints"}, {"asp", "context"}, {"asp", "record"}, {"a2a", "metadata"}, {"a2a", "referenceTaskIds"},
	} {
		if x.protocol == from && m.some(2) && way.Protocol() != from {
			extension[x.member] = "x"
			if x.member != "msg_id" && x.member != "record" {
				extension[x.member] = m.mark("Extensions." + from + "." + x.member)
			}
		}
	}
	if len(extension) > 0 {
		b, err := json.Marshal(extension)
		if err != nil {
			panic(err) // strings only
		}
		out.Extensions = map[string]json.RawMessage{from: b}
	}
	return c
}

func in(from string, a bridge.Aspect) bool {
	return slices.ContainsFunc(bridge.Table, func(r bridge.Row) bool {
		_, ok := r.In[from]
		return ok && r.Aspect == a
	})
}

// refuses reports whether a message with an aspect is refused on a way.
func refuses(way bridge.Way, a bridge.Aspect) bool {
	return slices.ContainsFunc(bridge.Table, func(r bridge.Row) bool {
		return r.Aspect == a && r.Out[way].Fate == bridge.Refused
	})
}

// parts makes the content.
func (m *maker) parts(says func(bridge.Aspect) bool, way bridge.Way) {
	count := 1
	if says(bridge.Several) && !refuses(way, bridge.Several) {
		count = 1 + m.IntN(3)
	}
	out := m.c.Message
	for i := range count {
		// Of several parts some may be left out; the first JSON part never is.
		field := "Parts"
		var kinds []func()
		name := func() string {
			if !says(bridge.Name) || m.some(2) {
				return ""
			}
			return m.mark("Parts.Name")
		}
		if says(bridge.Text) {
			kinds = append(kinds, func() {
				n := name()
				out.Parts = append(out.Parts, parley.Part{MediaType: "text/plain; charset=utf-8", Name: n,
					Data: []byte("say " + m.mark(field))})
			})
		}
		if says(bridge.Object) || i == 0 {
			kinds = append(kinds, func() {
				n := name()
				number := numbers[m.IntN(len(numbers))]
				if way == bridge.ASP && beyond(number) {
					number = "1.5"
				}
				body := fmt.Sprintf(`{"a":"%s","n":%s,"z":["é"]}`, m.mark(field), number)
				if number != "1.5" {
					m.c.Marks = append(m.c.Marks, Mark{"Parts.Numbers", number})
				}
				media := "application/json"
				if says(bridge.Type) && m.some(3) {
					media = "application/" + m.mark("Parts.MediaType") + "+json"
				}
				out.Parts = append(out.Parts, parley.Part{MediaType: media, Name: n, Data: []byte(body)})
			})
		}
		if says(bridge.OtherJSON) && !refuses(way, bridge.OtherJSON) {
			kinds = append(kinds, func() {
				out.Parts = append(out.Parts, parley.Part{MediaType: "application/json",
					Data: []byte(`["` + m.mark(field) + `"]`)})
			})
		}
		if says(bridge.Bytes) && (i > 0 || !refuses(way, bridge.Bytes)) {
			kinds = append(kinds, func() {
				n := name()
				out.Parts = append(out.Parts, parley.Part{MediaType: "image/png", Name: n,
					Data: []byte("\x89PNG" + m.mark(field))})
			})
		}
		if says(bridge.Link) && (i > 0 || !refuses(way, bridge.Link)) {
			kinds = append(kinds, func() {
				n := name()
				out.Parts = append(out.Parts, parley.Part{MediaType: "text/html", Name: n,
					URI: "https://example.com/" + m.mark(field), Digest: "sha-256=:" + m.mark(field) + ":"})
			})
		}
		kinds[m.IntN(len(kinds))]()
	}
}

// Check runs many messages of each kind on a way. wire gives all bytes and headers that
// the recipient gets, and the losses that the delivery reports; it must not fail,
// because [Message] makes nothing that the way refuses. The fields of byID may be
// missing where the message's ID is on the wire: a recipient finds them by it.
func Check(t *testing.T, way bridge.Way, kinds []parley.Kind,
	wire func(m *parley.Message) (text string, losses []parley.Loss, err error), byID ...string) {
	t.Helper()
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for _, from := range Origins {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s to %s, %s", from, way, kind), func(t *testing.T) {
				for seed := range rounds {
					c := Message(rand.New(rand.NewPCG(uint64(seed), uint64(kind))), from, way, kind)
					text, losses, err := wire(c.Message)
					if err != nil {
						t.Fatalf("seed %d: %v\n%s", seed, err, show(c.Message))
					}
					if want := bridge.Losses(way, c.Message, Recipient); !slices.Equal(losses, want) {
						t.Fatalf("seed %d: the binding reports %v, the table %v", seed, losses, want)
					}
					all := spell(text)
					for _, mark := range c.Marks {
						found := mark.Value != "" && strings.Contains(all, mark.Value)
						reported := mark.reported(losses) ||
							slices.Contains(byID, mark.Field) && strings.Contains(all, c.Message.ID.String())
						if !found && !reported {
							t.Fatalf("seed %d: %s %q is neither on the wire nor reported as lost; losses %v\nmessage %s\nwire %s",
								seed, mark.Field, mark.Value, losses, show(c.Message), text)
						}
						if found && strings.HasPrefix(mark.Field, "Extensions.") {
							t.Fatalf("seed %d: %s is on the wire, and the table says that it is lost", seed, mark.Field)
						}
					}
				}
			})
		}
	}
}

// spell adds to a wire text its decoded base64, and the text without URL escapes.
func spell(text string) string {
	out := text
	for range 3 { // JSON in base64 in JSON
		var more strings.Builder
		for signs, encoding := range map[string]*base64.Encoding{"+/=": base64.StdEncoding,
			"-_": base64.RawURLEncoding} {
			for _, word := range strings.FieldsFunc(out, func(r rune) bool {
				return !(r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' ||
					strings.ContainsRune(signs, r))
			}) {
				if len(word) >= 12 {
					if b, err := encoding.DecodeString(word); err == nil && bytes.Contains(b, []byte("m")) {
						more.Write(b)
						more.WriteByte('\n')
					}
				}
			}
		}
		if more.Len() == 0 || strings.Contains(out, more.String()) {
			break
		}
		out += "\n" + more.String()
	}
	if u, err := url.PathUnescape(text); err == nil {
		out += "\n" + u
	}
	return out
}

func show(m *parley.Message) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s act=%q schema=%q", m.Kind, m.Act, m.Schema)
	for _, p := range m.Parts {
		fmt.Fprintf(&b, " [%s %q %q %s]", p.MediaType, p.Name, p.Data, p.URI)
	}
	return b.String()
}
