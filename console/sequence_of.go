package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// This file makes the model of the diagram from the data of admin. It adds nothing that admin does not give.

const (
	maxLanes  = 8
	foldFrom  = 3 // progress events of one request in a row are one
	longQuiet = time.Minute

	mostTracks = 12 // attempts of one delivery that are drawn
)

// A history is a page of a conversation or of a trace, as admin tells it, and how to show it.
type history struct {
	hub   string
	now   time.Time
	start time.Time // of the conversation
	said  []said    // in the order of recording
	first bool      // nothing is before said
	gaps  []string  // what is missing before said

	chosen string // id of a message, or a reference
	events bool   // do not fold
	failed bool   // only failures
	link   func(id string) string
}

// said is one entry of a history: a message, or a refusal that was not recorded.
type said struct {
	*admin.Summary
	refusal  *admin.Refusal
	times    admin.Times
	erased   *admin.Erasure             // of its content
	removed  bool                       // the journal has removed the record
	untold   string                     // an event without a delivery: why no recipient gets it
	lost     int                        // of an event that a recipient gets without a delivery
	attempts map[string][]admin.Attempt // by recipient
}

func (s *said) at() time.Time {
	if s.refusal != nil {
		return s.refusal.Time
	}
	return s.Time
}

// took is the time from receipt until it was recorded; 0: not known.
func (s *said) took() time.Duration {
	if s.times.Received.IsZero() {
		return 0
	}
	return s.times.Recorded.Sub(s.times.Received)
}

func (s *said) id() string {
	if s.refusal != nil {
		return s.refusal.Ref
	}
	return s.ID.String()
}

// bad reports whether it is a failure, or something about it failed.
func (s *said) bad() bool {
	if s.refusal != nil || s.Failed || s.Refused {
		return true
	}
	for i := range s.Deliveries {
		if _, failed := s.tries(&s.Deliveries[i]); failed > 0 || s.Deliveries[i].State > parley.Answered {
			return true
		}
	}
	return false
}

// progress reports whether it may be folded: an event about which nothing failed.
func (s *said) progress() bool { return s.refusal == nil && s.Kind == parley.Event && !s.bad() }

func (s *said) folds(next *said) bool {
	return s.progress() && next.progress() && s.InReplyTo == next.InReplyTo && s.From == next.From &&
		s.State == next.State &&
		s.untold == next.untold
}

// sequenceOf makes the model.
func sequenceOf(h history) *Sequence {
	b := &builder{h: h, s: &Sequence{Hub: h.hub}, lane: map[string]int{}, requests: map[parley.ID]place{}}
	b.lanes()
	for _, text := range h.gaps {
		b.s.Rows = append(b.s.Rows, SequenceRow{Kind: GapRow, Text: text})
	}
	b.rows()
	b.s.Label = fmt.Sprintf("Sequence of %s between %s, through the hub. The same is in the tab Table.",
		plural(len(h.said), "message", "messages"), plural(b.agents, "agent", "agents"))
	return b.s
}

type builder struct {
	h        history
	s        *Sequence
	lane     map[string]int // by name
	agents   int
	requests map[parley.ID]place // deliveries of requests that are in rows
}

// place is where a request went out.
type place struct {
	row     int
	summary *admin.Summary
}

// rows adds a row for each entry, or for several that are folded.
func (b *builder) rows() {
	hidden := 0
	for i := 0; i < len(b.h.said); {
		n := 1
		for !b.h.events && i+n < len(b.h.said) && b.h.said[i+n-1].folds(&b.h.said[i+n]) {
			n++
		}
		if n < foldFrom {
			n = 1
		}
		list := b.h.said[i : i+n]
		if b.h.failed && !list[0].bad() {
			hidden += n
		} else {
			b.between(i, hidden)
			hidden = 0
			b.add(list)
		}
		i += n
	}
	b.between(len(b.h.said), hidden)
}

// between says what is between two rows: entries that the filter hides, or silence.
func (b *builder) between(i, hidden int) {
	if hidden > 0 {
		b.s.Rows = append(b.s.Rows, SequenceRow{Kind: GapRow, Text: plural(hidden,
			"entry that did not fail is", "entries that did not fail are") +
			" not shown"})
		return
	}
	if i == 0 || i >= len(b.h.said) {
		return
	}
	if quiet := b.h.said[i].at().Sub(b.h.said[i-1].at()); quiet > longQuiet {
		b.s.Rows = append(b.s.Rows, SequenceRow{Kind: SilenceRow, Text: ago(quiet) + " of silence"})
	}
}

// add adds a row of one entry, or of events that are folded.
func (b *builder) add(list []said) {
	x, last := &list[0], &list[len(list)-1]
	if x.refusal != nil {
		b.refusal(x)
		return
	}
	r := b.message(last)
	r.At, r.Since = x.at(), distance(x.at().Sub(b.h.start))
	if len(list) > 1 {
		r.Kind, r.Folded, r.Took = EventsRow, len(list), ""
		r.What, r.Name = fmt.Sprintf("%d events", len(list)), stateWord(x.State)
		r.Since = "to " + distance(last.at().Sub(b.h.start))
		r.Wires = b.merged(list)
	}
	for i := range list {
		r.Chosen = r.Chosen || list[i].id() == b.h.chosen
	}
	r.Desc = b.sentence(&r, x, last)
	b.s.Rows = append(b.s.Rows, r)
	b.work(last, len(b.s.Rows)-1)
}

// stateWord is what an event reports.
func stateWord(s parley.State) string {
	switch s {
	case parley.NoState:
		return "pieces of the result"
	case parley.NeedsInput:
		return "needs input"
	}
	return s.String()
}

// message makes the row of a message.
func (b *builder) message(x *said) SequenceRow {
	m := x.Summary
	r := SequenceRow{Kind: MessageRow, ID: m.ID.String(), Href: b.h.link(m.ID.String()), What: m.Kind.String(),
		Name: cmp.Or(m.Skill, m.Act), Say: m.Preview, Bad: m.Failed && m.Kind == parley.Failure || m.Refused,
		Took: took(x.took()), From: b.laneOf(m.From), Proof: proofOf(m.Assurance), Passed: beadRecorded + 1,
		Refused: -1}
	if m.Kind == parley.Event {
		r.Name = strings.TrimSpace(stateWord(m.State) + " " + r.Name)
		if m.State == parley.NoState {
			r.Name = "piece"
		}
	}
	switch {
	case x.removed:
		r.Say = "removed by retention"
	case x.erased != nil:
		r.Say = "erased " + x.erased.Begun.UTC().Format("2 Jan 2006, 15:04")
	}
	if m.Kind == parley.Failure && m.Error != nil {
		r.Name = string(m.Error.Code)
		r.Say = cmp.Or(m.Error.Text, r.Say)
	}
	r.Names, r.Ways = [2]string{m.From, m.To}, [2]string{protocolName(m.Protocol), ""}
	if m.Refused {
		r.Refused, r.Text, r.State = beadAdmitted,
			"not admitted: "+reasonText(m.Error)+" · recorded, not delivered", "refused"
		return r
	}
	r.Wires, r.State = b.wires(x), stateOf(m)
	b.ways(&r, x)
	if u := untoldOf(r.Wires); u != "" {
		r.Text, r.Lossy, r.State = "not told to "+m.To+": "+u, true, "untold"
	}
	return r
}

// ways are the recipients and the protocols by which they got it.
func (b *builder) ways(r *SequenceRow, x *said) {
	var out, names []string
	for i := range x.Deliveries {
		d := &x.Deliveries[i]
		names = append(names, d.To)
		if p := protocolName(d.Protocol); p != "" && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(names) > 0 {
		r.Names[1] = strings.Join(names, ", ")
	}
	r.Ways[1] = strings.Join(out, ", ")
}

func untoldOf(list []Wire) string {
	for i := range list {
		if list[i].Untold != "" {
			return list[i].Untold
		}
	}
	return ""
}

// stateOf is one word for a message: the worst of its deliveries.
func stateOf(m *admin.Summary) string {
	var worst parley.DeliveryState
	rank := []parley.DeliveryState{0, parley.Answered, parley.Delivered, parley.Delivering, parley.Waiting,
		parley.Abandoned,
		parley.Expired, parley.Dropped, parley.Dead}
	for i := range m.Deliveries {
		if slices.Index(rank, m.Deliveries[i].State) > slices.Index(rank, worst) {
			worst = m.Deliveries[i].State
		}
	}
	if worst == 0 {
		return "recorded"
	}
	return worst.String()
}

// reasonText is a reason as a line: its text, or its code where the text may not be seen.
func reasonText(r *index.Reason) string {
	if r == nil {
		return "no reason was recorded"
	}
	return cmp.Or(r.Text, string(r.Code))
}

// merged are the wires of folded events: those of the last, with the losses of all.
func (b *builder) merged(list []said) []Wire {
	out := b.wires(&list[len(list)-1])
	for i := range out {
		for j := range list[:len(list)-1] {
			for k := range list[j].Deliveries {
				if d := &list[j].Deliveries[k]; b.laneOf(d.To) == out[i].To {
					out[i].Lost += len(d.Losses)
				}
			}
		}
		if len(out[i].Attempts) == 1 && !out[i].Attempts[0].Failed {
			out[i].Attempts = nil
		}
	}
	return out
}

// wires are the ways of a message to its recipients.
func (b *builder) wires(x *said) (out []Wire) {
	m := x.Summary
	for i := range m.Deliveries {
		d := &m.Deliveries[i]
		w := Wire{To: b.laneOf(d.To), State: d.State, Lost: len(d.Losses), Settled: d.State.Settled(m.Kind),
			Passed: beadRouted}
		if m.Kind == parley.Request {
			w.Lost = len(slices.DeleteFunc(slices.Clone(d.Losses), aboutReply))
		}
		if d.State == parley.Delivered || d.State == parley.Answered {
			w.Passed = beadDelivered
		}
		list := x.attempts[d.To]
		w.Attempts, w.Failed = x.tries(d)
		w.Tried = len(w.Attempts)
		for j := range list {
			e := &list[j]
			w.Own = w.Own || e.Protocol == "go" || e.Protocol == "api"
			if e.Written > 0 {
				w.Passed = beadDelivered
			} else if e.Routed > 0 {
				w.Passed = max(w.Passed, beadTranslated)
			}
		}
		w.Own = w.Own || d.Protocol == "go" || d.Protocol == "api"
		b.ending(&w, d)
		w.Attempts = drawn(w.Attempts)
		out = append(out, w)
	}
	if len(out) == 0 && m.To != "" {
		// An answer or an event without a delivery: the requester gets it by its own call, or nobody gets it.
		out = []Wire{{To: b.laneOf(m.To), Untold: x.untold, Own: true, Passed: beadRouted, Settled: m.Kind.Terminal(),
			Lost: x.lost + b.lostReply(m)}}
	}
	return out
}

// ending describes the next step of a delivery, or how it ended without arriving.
func (b *builder) ending(w *Wire, d *index.Delivery) {
	end := ""
	switch d.State {
	case parley.Waiting:
		switch until := d.Next.Sub(b.h.now); {
		case d.Next.IsZero() && len(w.Attempts) == 0:
			w.Next = "not tried yet"
		case until > 0:
			w.Next = "next " + d.Next.UTC().Format("15:04:05") + ", in " + ago(max(until, time.Second))
		default:
			w.Next = "next attempt is due"
		}
		return
	case parley.Dead:
		end = "given up"
	case parley.Dropped, parley.Expired, parley.Abandoned:
		end = d.State.String()
	default:
		return
	}
	if n := len(w.Attempts); n > 0 {
		t := &w.Attempts[n-1]
		if !t.Failed {
			w.Failed++
		}
		t.Failed, t.Open = true, false
		t.Result = strings.TrimPrefix(t.Result+", "+end, ", ")
		return
	}
	w.Attempts = []Try{{Result: end + ": " + reasonText(d.Error), Failed: true}}
}

// drawn are the attempts that are drawn: of many the first and the last.
func drawn(list []Try) []Try {
	if len(list) <= mostTracks {
		return list
	}
	out := append(slices.Clone(list[:mostTracks/2]), list[len(list)-mostTracks/2:]...)
	out[mostTracks/2].Omitted = len(list) - mostTracks
	return out
}

// lostReply counts the losses of an answer; they are noted at its request.
func (b *builder) lostReply(m *admin.Summary) (n int) {
	p, ok := b.requests[m.InReplyTo]
	if !ok || !m.Kind.Terminal() {
		return 0
	}
	for i := range p.summary.Deliveries {
		d := &p.summary.Deliveries[i]
		for _, l := range d.Losses {
			if d.Reply == m.ID && strings.HasPrefix(l, "Reply.") {
				n++
			}
		}
	}
	return n
}

// aboutReply reports whether a loss that is noted at a request is one of its answer or its events.
func aboutReply(loss string) bool {
	return strings.HasPrefix(loss, "Reply.") || strings.HasPrefix(loss, "Event.")
}

// tries are the attempts of a delivery, by its steps, and how many failed.
func (s *said) tries(d *index.Delivery) (out []Try, failed int) {
	var ended time.Time // of the attempt before
	for i := range d.Steps {
		x := &d.Steps[i]
		if x.State == parley.Delivering {
			t := Try{Number: x.Attempt, At: x.Time, Open: true}
			if !ended.IsZero() {
				t.Pause = "paused " + took(x.Time.Sub(ended))
			}
			out = append(out, t)
			continue
		}
		if len(out) == 0 || !out[len(out)-1].Open {
			continue
		}
		t := &out[len(out)-1]
		t.Open, ended = false, x.Time
		t.Failed = x.Code != "" && x.State != parley.Answered
		if t.Failed {
			failed++
		}
		text := string(x.Code)
		if t.Failed && i == len(d.Steps)-1 && d.Error != nil && d.Error.Code == x.Code {
			text = cmp.Or(d.Error.Text, text)
		}
		t.Result = s.result(d.To, t, text, x.Time.Sub(t.At))
	}
	return out, failed
}

// result describes the result of an attempt: the status of the exchange if there is one.
func (s *said) result(to string, t *Try, text string, steps time.Duration) string {
	for i := range s.attempts[to] {
		if a := &s.attempts[to][i]; a.Number == t.Number {
			if e := a.Error; t.Failed && e != nil {
				text = cmp.Or(e.Detail, e.Text, text)
			}
			text = cmp.Or(a.Status, text)
			steps = cmp.Or(time.Duration(a.Took), steps)
		}
	}
	if text == "" {
		return ""
	}
	if after := took(steps); after != "" {
		text += " after " + after
	}
	return text
}

// refusal makes the row of a refusal.
func (b *builder) refusal(x *said) {
	f := x.refusal
	r := SequenceRow{Kind: RefusalRow, ID: f.Ref, Href: b.h.link(f.Ref), What: "refused", Bad: true, At: f.Time,
		Since: distance(f.Time.Sub(b.h.start)), From: -1, Address: f.Source, Proof: proofOf(f.Assurance),
		Chosen: f.Ref == b.h.chosen, Passed: beadReceived + 1, Refused: refusedAt(f), State: "refused",
		Names: [2]string{f.Claim, cmp.Or(f.Agent, f.To)}, Ways: [2]string{protocolName(f.Protocol), ""}}
	if f.Claim != "" {
		r.Name = "claims " + f.Claim
	}
	r.Text = cmp.Or(f.Text, string(f.Code)) + " · never recorded · ref " + f.Ref
	r.Desc = fmt.Sprintf("%s, refused at the step %s: somebody at %s", f.Time.UTC().Format("15:04:05"), f.Step,
		cmp.Or(f.Source, "an unknown address"))
	if f.Claim != "" {
		r.Desc += " who claims to be " + f.Claim
	}
	b.s.Rows = append(b.s.Rows, r)
}

// refusedAt is the bead of a refusal: the policy admits, everything before it is a check.
func refusedAt(f *admin.Refusal) bead {
	if f.Step == "admit" || f.Step == "admin" {
		return beadAdmitted
	}
	return beadVerified
}

// work adds the time from the delivery of a request to its answer.
func (b *builder) work(x *said, row int) {
	m := x.Summary
	if m.Kind == parley.Request {
		b.requests[m.ID] = place{row, m}
		return
	}
	p, ok := b.requests[m.InReplyTo]
	if !ok || m.Kind != parley.Event && !m.Kind.Terminal() {
		return
	}
	for i := range p.summary.Deliveries {
		d := &p.summary.Deliveries[i]
		if d.To != m.From || b.lane[d.To] == maxLanes-1 && len(b.s.Lanes[maxLanes-1].Agents) > 1 {
			continue
		}
		since := begun(d)
		if since.IsZero() || m.Time.Before(since) {
			continue
		}
		for j := range b.s.Work {
			if w := &b.s.Work[j]; w.From == p.row && w.Wire == i {
				w.To = row
				w.Label = took(m.Time.Sub(since))
				return
			}
		}
		b.s.Work = append(b.s.Work, Work{Lane: b.laneOf(d.To), From: p.row, To: row, Wire: i,
			Label: took(m.Time.Sub(since))})
	}
}

// begun is when the recipient had a request: when its delivery was recorded, or else when the last attempt began.
func begun(d *index.Delivery) (t time.Time) {
	for i := range d.Steps {
		switch d.Steps[i].State {
		case parley.Delivering, parley.Delivered:
			t = d.Steps[i].Time
		}
	}
	return t
}

// sentence says all of a row.
func (b *builder) sentence(r *SequenceRow, x, last *said) string {
	m := x.Summary
	var s strings.Builder
	s.WriteString(x.at().UTC().Format("15:04:05"))
	if r.Folded > 0 {
		fmt.Fprintf(&s, " to %s", last.at().UTC().Format("15:04:05"))
	}
	fmt.Fprintf(&s, ", %s", strings.TrimSpace(r.What+" "+cut(r.Name, 200)))
	fmt.Fprintf(&s, " from %s, %s", m.From, r.Proof)
	if r.Names[1] != "" {
		fmt.Fprintf(&s, ", to %s", cut(r.Names[1], 400))
	}
	if r.Text != "" {
		return s.String() + ": " + r.Text
	}
	s.WriteString(": " + outcome(m, r))
	lost := 0
	for i := range r.Wires {
		lost += r.Wires[i].Lost
	}
	if lost > 0 {
		s.WriteString(", " + plural(lost, "loss", "losses"))
	}
	return s.String()
}

// outcome describes the result of a message in words.
func outcome(m *admin.Summary, r *SequenceRow) string {
	if len(m.Deliveries) != 1 {
		if len(m.Deliveries) == 0 {
			return "recorded, without a delivery of its own"
		}
		return plural(len(m.Deliveries), "recipient", "recipients") + ", " + r.State
	}
	w := &r.Wires[0]
	failed := w.Failed
	out := w.State.String()
	switch {
	case failed > 0 && failed < w.Tried:
		out = plural(failed, "attempt", "attempts") + " failed, " + out
	case failed > 0:
		out += " after " + plural(failed, "failed attempt", "failed attempts")
	}
	if w.Next != "" {
		out += ", " + w.Next
	}
	return out
}
