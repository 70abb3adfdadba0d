package bridge

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Losses lists what a message loses on a way to a recipient, by the table: the field
// and the reason for each aspect that the message has and the way cannot carry.
// recipient is a directory name. A message that loses nothing costs no allocation.
// It is not for protocols that pass on the original envelope.
func Losses(way Way, m *parley.Message, recipient string) []parley.Loss {
	var out []parley.Loss
	add := func(a Aspect) {
		if e := rows[a].Out[way]; e.Fate == Lost {
			out = append(out, parley.Loss{Field: rows[a].Field, Reason: e.How})
		}
	}
	content := true
	switch m.Kind {
	case parley.Cancel:
		add(Cancel)
		return out // a cancel has no content
	case parley.Input:
		if add(Input); len(out) > 0 {
			return out // the whole input is lost
		}
	case parley.Event:
		if m.State != parley.NoState || len(m.Parts) == 0 {
			add(stateAspects[m.State])
		} else {
			add(Chunk)
		}
		if len(out) > 0 {
			return out // the whole event is lost
		}
		message := way != Chat || m.State == parley.NeedsInput // other chat events are acknowledgements, without content
		if m.Act != "" && (way != Chat || !message) {
			add(EventAct)
		}
		if m.State == parley.Accepted && len(m.Parts) > 0 &&
			(way != AGH || slices.ContainsFunc(m.Parts, func(p parley.Part) bool { return !p.IsText() })) {
			add(Detail)
		}
		if way == MCPClient && slices.ContainsFunc(m.Parts, func(p parley.Part) bool { return !isPlain(&p) }) {
			out = append(out, parley.Loss{Field: "Parts", Reason: textEvents})
		}
		content = message
	case parley.Failure:
		if m.Error != nil {
			add(Code)
			if m.Error.Retryable || m.Error.After > 0 {
				add(Retry)
			}
		}
	}
	if content {
		parts(way, m, add)
	}
	switch e := audience(way, m); {
	case e.Fate == Lost && slices.ContainsFunc(m.Audience, func(a string) bool {
		return a != m.From && a != recipient &&
			a != m.To
	}):
		add(Audience)
	case e.Fate == As && len(m.Audience) > MaxAudience:
		out = append(out, parley.Loss{Field: rows[Audience].Field, Reason: tooMany})
	}
	protocol := ""
	if len(m.Extensions) > 0 {
		protocol = way.Protocol()
	}
	for name, raw := range m.Extensions {
		if name != protocol && name != hubExtension {
			out = append(out, extensions(way, name, raw)...)
		}
	}
	if len(out) > 1 {
		slices.SortFunc(out, func(a, b parley.Loss) int {
			return strings.Compare(a.Field+"\x00"+a.Reason, b.Field+"\x00"+b.Reason)
		})
		out = slices.Compact(out)
	}
	return out
}

// hubExtension is the name of the hub's own notes in [parley.Message.Extensions].
const hubExtension = "parley"

// textEvents is the reason for bytes and links of an event to an MCP client.
const textEvents = "the message of progress or elicitation is text: bytes and links of the event are left out"

var tooMany = fmt.Sprintf("more than %d names are not listed", MaxAudience)

var stateAspects = map[parley.State]Aspect{parley.NoState: Chunk, parley.Accepted: Accepted, parley.Working: Working,
	parley.NeedsInput: NeedsInput}

// audience gives the fate of a message's audience, if it has one.
func audience(way Way, m *parley.Message) Entry {
	if len(m.Audience) == 0 {
		return Entry{}
	}
	return rows[Audience].Out[way]
}

// parts adds the losses of the content.
func parts(way Way, m *parley.Message, add func(Aspect)) {
	if len(m.Parts) > 1 {
		add(Several)
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		plain := isPlain(p)
		single := len(m.Parts) == 1
		keeps := (way == Inbox || way == Call || way == MCPClient && InInbox(m.Kind)) && !single
		if p.Name != "" && (plain || way == Model || way == MCPClient && m.Kind == parley.Response && isMedia(p)) &&
			!keeps && m.Kind != parley.Failure {
			add(Name)
		}
		if plain && !keeps && specificJSON(p.MediaType) {
			add(Type)
		}
		if way == Model && plain && isJSON(p) && losesDigits(p.Data) {
			add(Numbers)
		}
	}
}

// extensions gives the losses of a message's extension of another protocol.
func extensions(way Way, protocol string, raw json.RawMessage) []parley.Loss {
	var out []parley.Loss
	known := bookkeeping[protocol]
	object := jsonx.Members(raw, func(name string, _ jsonx.Value) bool {
		if known[name] {
			return true
		}
		a, ok := extensionAspects[protocol+"."+name]
		if !ok {
			a = Extra
		}
		field := rows[a].Field
		if field == rows[Extra].Field {
			field += "." + protocol + "." + name
		}
		out = append(out, parley.Loss{Field: field, Reason: rows[a].Out[way].How})
		return true
	})
	if !object && jsonx.Value(raw).Kind() != 'n' {
		return []parley.Loss{{Field: "Extensions." + protocol, Reason: rows[Extra].Out[way].How}}
	}
	return out
}

// OfReply names the losses of a reply or an event for the delivery record of its
// request, where the reply has none of its own.
func OfReply(kind parley.Kind, losses []parley.Loss) []parley.Loss {
	if len(losses) == 0 {
		return nil
	}
	prefix := "Reply."
	if kind == parley.Event {
		prefix = "Event."
	}
	out := make([]parley.Loss, len(losses))
	for i, l := range losses {
		out[i] = parley.Loss{Field: prefix + l.Field, Reason: l.Reason}
	}
	return out
}

// isJSON is p.IsJSON with a fast path.
func isJSON(p *parley.Part) bool { return p.MediaType == "application/json" || p.IsJSON() }

// isPlain reports whether a part is text or JSON, and no link.
func isPlain(p *parley.Part) bool { return p.URI == "" && (isJSON(p) || p.IsText()) }

// isMedia reports whether a part is what MCP calls an image or audio.
func isMedia(p *parley.Part) bool {
	return p.URI == "" && (strings.HasPrefix(p.MediaType, "image/") || strings.HasPrefix(p.MediaType, "audio/"))
}

// specificJSON reports whether a JSON media type says more than JSON.
func specificJSON(t string) bool {
	if t == "application/json" || strings.HasPrefix(t, "text/plain") {
		return false
	}
	t, _, _ = strings.Cut(t, ";")
	return !strings.EqualFold(strings.TrimSpace(t), "application/json")
}

// losesDigits reports whether JSON has a decimal that a 64-bit float changes: it
// writes 0.1 as 0.1 again, but not 0.10000000000000001. Whole numbers do not count:
// they keep any size.
func losesDigits(b []byte) bool {
	return hasNumber(b, func(literal []byte, decimal bool) bool {
		// A float keeps fifteen digits; most numbers end here.
		return decimal && len(literal) > 15 && roundsDecimal(string(literal))
	})
}

// hasNumber reports whether JSON has a number for which is gives true.
func hasNumber(b []byte, is func(literal []byte, decimal bool) bool) bool {
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			i++
		case c == '-' || c >= '0' && c <= '9':
			start, decimal := i, false
			for i++; i < len(b) && (b[i] >= '0' && b[i] <= '9' || b[i] == '.' || b[i] == 'e' || b[i] == 'E' ||
				b[i] == '+' || b[i] == '-'); i++ {
				decimal = decimal || b[i] == '.' || b[i] == 'e' || b[i] == 'E'
			}
			if is(b[start:i], decimal) {
				return true
			}
		default:
			i++
		}
	}
	return false
}

// roundsDecimal reports whether a literal is another number after it was read as a
// float and written in the shortest form.
func roundsDecimal(literal string) bool {
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		return true
	}
	var exact, again big.Rat
	if e := exponent(literal); e > 400 || e < -400 {
		return true // no float of that size; and no work on huge powers
	}
	if _, ok := exact.SetString(literal); !ok {
		return true
	}
	if _, ok := again.SetString(strconv.FormatFloat(f, 'e', -1, 64)); !ok {
		return true
	}
	return exact.Cmp(&again) != 0
}

func exponent(literal string) int {
	i := strings.IndexAny(literal, "eE")
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimPrefix(literal[i+1:], "+"))
	if err != nil {
		return 1 << 20
	}
	return n
}

// String gives an entry as a line of the documentation.
func (e Entry) String() string {
	switch {
	case e.Fate == As:
		return "as " + e.How
	case e.How == "":
		return e.Fate.String()
	}
	return fmt.Sprintf("%s: %s", e.Fate, e.How)
}
