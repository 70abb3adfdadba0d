package index

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Of gives what the index will know of a record's message, before it does:
// for who follows the journal. It reports false for a record of steps alone.
func (x *Index) Of(r *journal.Record) (Message, bool) {
	m := x.prepare(r).Message
	m.Trace = hex.EncodeToString(m.trace)
	return m, r.Message != nil
}

// prepare makes all of a message but its Trace.
func (x *Index) prepare(r *journal.Record) entry {
	e := entry{r: r}
	m := r.Message
	if m == nil {
		return e
	}
	failure := m.Error
	if r.Refused != nil {
		failure = r.Refused
	}
	e.Message = Message{Position: r.Position, ID: m.ID, Kind: m.Kind, State: m.State, Number: m.Number, From: m.From, To: m.To,
		Conversation: m.Conversation, InReplyTo: m.InReplyTo, Skill: m.Skill, Act: m.Act, Protocol: m.Origin.Protocol,
		Assurance: m.Origin.Verdict.Assurance, trace: traceID(m.Trace.Parent), Time: r.Time,
		Size: len(m.Origin.Raw), Refused: r.Refused != nil, Failed: r.Refused != nil || m.Kind == parley.Failure,
		Error: reasonOf(failure), Deliveries: make([]Delivery, len(r.Open))}
	if e.Size == 0 {
		for _, p := range m.Parts {
			e.Size += len(p.Data)
		}
	}
	if !x.c.NoText {
		e.text = textOf(m, maxText)
		e.Preview = previewOf(m, e.text)
	}
	for i, o := range r.Open {
		d := Delivery{To: o.To, State: parley.Waiting, Opened: r.Time, Changed: r.Time, Next: o.NotBefore}
		if o.Attempt == 1 {
			d.State, d.Attempts, d.Next = parley.Delivering, 1, time.Time{}
		}
		e.Deliveries[i] = d
	}
	return e
}

func reasonOf(e *parley.Error) *Reason {
	if e == nil {
		return nil
	}
	return &Reason{e.Code, e.Text}
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
