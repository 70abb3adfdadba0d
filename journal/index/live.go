package index

import (
	"encoding/hex"
	"slices"
	"strings"
	"unicode"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Of gives what the index will know of a record's message, before it does:
// for who follows the journal. It reports false for a record of steps alone.
func (x *Index) Of(r *journal.Record) (Message, bool) {
	m := r.Message
	if m == nil {
		return Message{}, false
	}
	e := x.prepare(r)
	out := Message{Position: r.Position, ID: m.ID, Kind: m.Kind, State: m.State, Number: m.Number, From: m.From, To: m.To, Conversation: m.Conversation,
		InReplyTo: m.InReplyTo, Skill: m.Skill, Act: m.Act, Protocol: m.Origin.Protocol, Assurance: m.Origin.Verdict.Assurance, Trace: hex.EncodeToString(e.trace),
		Time: r.Time, Size: e.size, Refused: r.Refused != nil, Failed: r.Refused != nil || m.Kind == parley.Failure, Preview: e.preview, text: e.body}
	failure := m.Error
	if r.Refused != nil {
		failure = r.Refused
	}
	if failure != nil {
		out.Code, out.Error = failure.Code, failure.Text
	}
	for _, o := range r.Open {
		d := Delivery{To: o.To, State: parley.Waiting, Opened: r.Time, Changed: r.Time, Next: o.NotBefore}
		if o.Attempt == 1 {
			d.State, d.Attempts = parley.Delivering, 1
		}
		out.Deliveries = append(out.Deliveries, d)
	}
	return out, true
}

// Matches reports whether the filter chooses m; Cursor, Limit and order are
// left out of account. The words of Text are looked for in what [Index.Of]
// gave; where m comes from elsewhere, in its preview.
func (f *Filter) Matches(m *Message) bool {
	to := func(name string) bool {
		return m.To == name || slices.ContainsFunc(m.Deliveries, func(d Delivery) bool { return d.To == name })
	}
	switch {
	case f.Agent != "" && m.From != f.Agent && !to(f.Agent),
		f.From != "" && m.From != f.From,
		f.To != "" && !to(f.To),
		!f.Conversation.IsZero() && m.Conversation != f.Conversation,
		!f.InReplyTo.IsZero() && m.InReplyTo != f.InReplyTo,
		f.Trace != "" && m.Trace != hex.EncodeToString(traceKey(f.Trace)),
		f.Kind != 0 && m.Kind != f.Kind,
		f.Protocol != "" && m.Protocol != f.Protocol,
		!f.Since.IsZero() && m.Time.Before(f.Since),
		!f.Until.IsZero() && !m.Time.Before(f.Until),
		f.Failed && !m.Failed,
		f.Refused && !m.Refused,
		f.State != 0 && !slices.ContainsFunc(m.Deliveries, func(d Delivery) bool { return d.State == f.State }):
		return false
	}
	if f.Text == "" {
		return true
	}
	text := m.text
	if text == "" {
		text = m.Preview
	}
	return contains(text, f.Text)
}

// contains looks for what match makes the index look for.
func contains(text, q string) bool {
	have := " " + strings.Join(words(strings.ToLower(text)), " ") + " "
	phrase := false
	for part := range strings.SplitSeq(strings.ToLower(q), `"`) {
		pieces := strings.FieldsFunc(part, unicode.IsSpace)
		if phrase {
			pieces = []string{strings.TrimSuffix(part, "*")}
		}
		for _, p := range pieces {
			w := words(p)
			if len(w) == 0 {
				continue
			}
			want := " " + strings.Join(w, " ")
			if phrase || !strings.HasSuffix(p, "*") {
				want += " "
			}
			if !strings.Contains(have, want) {
				return false
			}
		}
		phrase = !phrase
	}
	return true
}
