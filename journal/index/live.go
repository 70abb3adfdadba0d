package index

import (
	"encoding/hex"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Of returns a record's message as the index will have it, for callers that follow
// the journal. false: the record has steps only.
func (x *Index) Of(r *journal.Record) (Message, bool) {
	if r.Message == nil {
		return Message{}, false
	}
	w := prepare(r, x.c.NoText)
	w.Trace = hex.EncodeToString(w.trace)
	w.Deliveries = make([]Delivery, len(w.list))
	for i := range w.list {
		w.Deliveries[i] = w.list[i].export(r.Position.Partition, false)
	}
	return w.Message, true
}

// prepare makes the part of a row that follows from the record alone.
func prepare(r *journal.Record, noText bool) *row {
	m := r.Message
	failure := m.Error
	if r.Refused != nil {
		failure = r.Refused
	}
	w := &row{tracked: &tracked{kind: m.Kind, conversation: m.Conversation}, Message: Message{
		Position: r.Position, ID: m.ID, Kind: m.Kind, State: m.State, Number: m.Number, From: m.From, To: m.To,
		Conversation: m.Conversation, InReplyTo: m.InReplyTo, Skill: m.Skill, Act: m.Act, Protocol: m.Origin.Protocol,
		Assurance: m.Origin.Verdict.Assurance, trace: traceID(m.Trace.Parent), Time: r.Time,
		Size: len(m.Origin.Raw), Refused: r.Refused != nil, Failed: r.Refused != nil || m.Kind == parley.Failure,
		Error: ReasonOf(failure)}}
	if w.Size == 0 {
		for _, p := range m.Parts {
			w.Size += len(p.Data)
		}
	}
	if w.Refused {
		w.flags |= flagRefused
	}
	if m.Kind == parley.Failure {
		w.flags |= flagFailure
	}
	if !noText {
		w.text = textOf(m, maxText)
		w.Preview = previewOf(m, w.text)
	}
	if len(r.Open) > 0 {
		w.list = make([]delivery, len(r.Open))
	}
	for i, o := range r.Open {
		first := step{State: uint8(parley.Waiting), Sequence: r.Position.Sequence, Time: r.Time.UnixNano()}
		next := nanos(o.NotBefore)
		if o.Attempt == 1 {
			first.State, first.Attempt, next = uint8(parley.Delivering), 1, 0
		}
		w.list[i] = delivery{To: o.To, Next: next, Steps: append(make([]step, 0, 2), first)}
	}
	return w
}
