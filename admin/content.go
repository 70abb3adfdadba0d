package admin

import "github.com/parley-hub/parley/journal/index"

// This file decides which callers see content: forActor makes every view of a
// message or a delivery, and routes that give nothing but content need the role
// Read.

// A view is one form of a message in the API.
type view interface {
	// withoutContent removes every field that a sender can fill freely: content,
	// the rest of the envelope, and the texts of errors and checks, which may
	// quote them. Sender, recipient, times, codes and sizes stay.
	withoutContent()
}

// forActor gives a fresh view as the actor may see it.
func forActor[V view](by Actor, v V) V {
	if by.may(Read) != nil {
		v.withoutContent()
	}
	return v
}

// maySearch refuses a filter whose results reveal content.
func (a Actor) maySearch(f *index.Filter) error {
	if f.Text == "" {
		return nil
	}
	return a.may(Read)
}

func (m *Message) withoutContent() {
	m.Parts, m.Extensions = []Part{}, nil
	m.Error.withoutContent()
	withoutDetails(m.Origin.Checks)
}

func (p *Problem) withoutContent() {
	if p != nil {
		p.Text, p.Detail = "", ""
	}
}

func withoutDetails(checks []Check) {
	for i := range checks {
		checks[i].Detail = ""
	}
}

func (s *Summary) withoutContent() {
	s.Preview, s.Snippet = "", ""
	s.Error.WithoutContent()
	for i := range s.Deliveries {
		s.Deliveries[i].Losses = nil
		s.Deliveries[i].Error.WithoutContent()
	}
}

// withoutContent leaves Summary, Content, Recipients and Course, which are views of their own.
func (r *Recorded) withoutContent() { r.Header, r.Raw = nil, nil }

// withoutContent leaves Summary and Course, which are views of their own.
func (e *HistoryEntry) withoutContent() { e.Losses = nil }

func (c *ConversationInfo) withoutContent() { c.Preview = "" }

func (d *DeliveryNews) withoutContent() { d.Error.WithoutContent() }

// withoutContent leaves Content and History, which are views of their own.
func (d *DeadLetter) withoutContent() {
	d.Losses = nil
	d.Reason.withoutContent()
	d.Recipient.withoutContent()
}

func (r *Refusal) withoutContent() {
	r.Text, r.Cause, r.Detail = "", "", ""
	withoutDetails(r.Checks)
}
