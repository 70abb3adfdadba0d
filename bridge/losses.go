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

// Losses tells what a message loses on a way to a recipient, by the table: for
// each thing that the message really says and the way cannot, the field and
// the reason. recipient is its directory name. A message that loses nothing
// costs no allocation; protocols that pass on the original envelope do not ask.
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
		return out // there is nothing more to it
	case parley.Event:
		if m.State != parley.NoState || len(m.Parts) == 0 {
			add(stateAspects[m.State])
		} else {
			add(Chunk)
		}
		if len(out) > 0 {
			return out // nothing of it arrives
		}
		if m.Act != "" {
			add(EventAct)
		}
		if m.State == parley.Accepted && len(m.Parts) > 0 && (way != AGH || slices.ContainsFunc(m.Parts, func(p parley.Part) bool { return !p.IsText() })) {
			add(Detail)
		}
		content = way != Chat // an acknowledgement is all there is
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
	case e.Fate == Lost && slices.ContainsFunc(m.Audience, func(a string) bool { return a != m.From && a != recipient && a != m.To }):
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

// own is under which name of [parley.Message.Extensions] the hub notes what is
// for itself.
const hubExtension = "parley"

var tooMany = fmt.Sprintf("more than %d names are not listed", MaxAudience)

var stateAspects = map[parley.State]Aspect{parley.NoState: Chunk, parley.Accepted: Accepted, parley.Working: Working, parley.NeedsInput: NeedsInput}

// audience is what becomes of the message's, if it has one.
func audience(way Way, m *parley.Message) Entry {
	if len(m.Audience) == 0 {
		return Entry{}
	}
	return rows[Audience].Out[way]
}

// parts are the losses of the content.
func parts(way Way, m *parley.Message, add func(Aspect)) {
	if len(m.Parts) > 1 {
		add(Several)
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		json := isJSON(p)
		plain := p.URI == "" && (json || p.IsText())
		single := len(m.Parts) == 1
		keeps := (way == Inbox || way == Call) && !single
		if p.Name != "" && (plain || way == Model) && !keeps && m.Kind != parley.Failure {
			add(Name)
		}
		if plain && !keeps && specificJSON(p.MediaType) {
			add(Type)
		}
		if way == Model && plain && json && losesDigits(p.Data) {
			add(Numbers)
		}
	}
}

// extensions are the losses of what only another protocol says.
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

// OfReply makes losses of a reply, or of an event, that has no delivery of its
// own losses in the delivery of its request.
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

// isJSON is p.IsJSON, without a look at the parameters of what is plain JSON.
func isJSON(p *parley.Part) bool { return p.MediaType == "application/json" || p.IsJSON() }

// ownType: a JSON media type that says more than that it is JSON.
func specificJSON(t string) bool {
	if t == "application/json" || strings.HasPrefix(t, "text/plain") {
		return false
	}
	t, _, _ = strings.Cut(t, ";")
	return !strings.EqualFold(strings.TrimSpace(t), "application/json")
}

// rounded reports whether JSON holds a decimal that a 64-bit float does not
// hold as it is written: 0.1 does (it is written so again), 0.10000000000000001
// does not. Whole numbers do not count: they keep any size.
func losesDigits(b []byte) bool {
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
			for i++; i < len(b) && (b[i] >= '0' && b[i] <= '9' || b[i] == '.' || b[i] == 'e' || b[i] == 'E' || b[i] == '+' || b[i] == '-'); i++ {
				decimal = decimal || b[i] == '.' || b[i] == 'e' || b[i] == 'E'
			}
			// Fifteen digits always come back; most numbers end here.
			if decimal && i-start > 15 && roundsDecimal(string(b[start:i])) {
				return true
			}
		default:
			i++
		}
	}
	return false
}

// changes reports whether a literal, read as a float and written in the
// shortest form, is another number.
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

// String makes a line of an entry, for documentation.
func (e Entry) String() string {
	switch {
	case e.Fate == As:
		return "as " + e.How
	case e.How == "":
		return e.Fate.String()
	}
	return fmt.Sprintf("%s: %s", e.Fate, e.How)
}
