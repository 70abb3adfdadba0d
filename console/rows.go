package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// This file makes the rows of Messages from the entries of the timeline.

// sayRunes is how much of a content a row shows.
const sayRunes = 60

// Row is a message, a refusal, or several events of one request.
type Row struct {
	ID       string // of the element
	Key      string // id of the message, or reference of the refusal
	When     Moment
	From, To string
	Claim    bool // From is not proved
	More     int  // further recipients
	In, Out  string
	Kind     string
	What     string // skill, act or state
	Folded   int    // events that the row stands for
	Fold     string // equal for events that may be folded
	Say      []Piece
	Hidden   bool // the actor may not see content
	Size     int
	Proof    Proof
	State    Sign
	Note     string // the one thing to know about the state
	Took     time.Duration
	Slow     bool
	Tries    int
	Bad      bool
	Gone     bool // the filter does not choose it any more: it is shown where it was
	Selected bool
	Link     string // of the row
	Conv     string // id of the conversation; ""
	ConvLink string

	Refusal *Explanation // of the chosen row
}

// Micro is the time of the record as a number.
func (r *Row) Micro() int64 { return r.When.At.UnixMicro() }

// A Piece is a part of a text; Found marks a match of the search.
type Piece struct {
	Text  string
	Found bool
}

// list is what the rows of a page have in common.
type list struct {
	now    time.Time
	slow   time.Duration // from which an answer is late
	chosen string
	query  url.Values
	read   bool // the actor may see content
}

// row makes the row of an entry.
func (l *list) row(e *admin.TimelineEntry) Row {
	if e.Message == nil {
		return l.refusal(e.Refusal)
	}
	m := e.Message
	r := Row{ID: "m-" + m.ID.String(), Key: m.ID.String(), When: Moment{m.Time, l.now}, From: m.From, To: m.To,
		In: protocolName(m.Protocol), Kind: m.Kind.String(), What: m.Skill, Folded: e.Folded, Size: m.Size,
		Proof: proofOf(m.Assurance), Bad: m.Failed, Hidden: !l.read && m.Size > 0}
	if m.Act != "" && m.Skill == "" {
		r.What = m.Act
	}
	if m.Kind == parley.Event && m.State != parley.NoState {
		r.What = m.State.String()
	}
	if m.Kind == parley.Event {
		r.Fold = m.InReplyTo.String() + " " + m.State.String() + " " + m.From
	}
	r.Say = pieces(m.Snippet)
	if m.Snippet == "" {
		r.Say = plainPieces(first(m.Preview, sayRunes))
	}
	l.deliveries(&r, m)
	l.took(&r, m)
	r.Conv = m.Conversation.String()
	if m.Conversation.IsZero() {
		r.Conv = ""
	}
	r.ConvLink = Base + "conversations/" + m.Conversation.String() + "?m=" + r.Key
	if r.Conv == "" {
		r.ConvLink = Base + "conversations/" + r.Key
	}
	r.Link = r.ConvLink
	r.Selected = l.chosen == r.Key
	if m.Refused {
		r.Proof, r.State, r.Note = "refused", Sign{"bad", "", "refused"}, code(m)
		if e.Refusal != nil {
			r.refused(l, e.Refusal)
		}
	}
	return r
}

// refusal makes the row of a refusal that was not recorded.
func (l *list) refusal(f *admin.Refusal) Row {
	r := Row{Key: f.Ref, When: Moment{f.Time, l.now}, From: f.Claim, To: cmp.Or(f.Agent, f.To), Claim: true,
		In: protocolName(f.Protocol), What: string(f.Code), Size: f.Size, Proof: "refused", Bad: true}
	r.Say = plainPieces(first(refusalWords(f), 2*sayRunes))
	r.refused(l, f)
	r.ID = "r-" + f.Ref
	return r
}

// refused adds what the hub knows of a refusal: its row leads to the explanation.
func (r *Row) refused(l *list, f *admin.Refusal) {
	r.State, r.Note = Sign{"bad", "", "at " + f.Step}, ""
	r.Link = with(l.query, "m", f.Ref, "before", l.query.Get("before"))
	if r.Selected = r.Selected || l.chosen == f.Ref; r.Selected {
		r.Refusal = explanation(f, l.now)
	}
}

// refusalWords are the words of a refusal: the text that the sender got, the size and the source of the request.
func refusalWords(f *admin.Refusal) string {
	var out []string
	if f.Text != "" {
		out = append(out, f.Text)
	}
	from := size(int64(f.Size))
	if f.Source != "" {
		from += " from " + f.Source
	}
	return strings.Join(append(out, from), " · ")
}

func code(m *admin.Summary) string {
	if m.Error == nil {
		return ""
	}
	return string(m.Error.Code)
}

// severity orders delivery states: of several recipients a row shows the worst.
var severity = []parley.DeliveryState{parley.Answered, parley.Delivered, parley.Delivering, parley.Waiting,
	parley.Abandoned, parley.Expired, parley.Dropped, parley.Dead}

// deliveries sets what a row says of the deliveries.
func (l *list) deliveries(r *Row, m *admin.Summary) {
	if len(m.Deliveries) == 0 {
		r.State = Sign{"quiet", "dot", "recorded"}
		if m.Kind == parley.Failure {
			r.State, r.Note, r.Bad = Sign{"bad", "x", "failed"}, code(m), true
		}
		return
	}
	worst, same := &m.Deliveries[0], 0
	for i := range m.Deliveries {
		d := &m.Deliveries[i]
		if slices.Index(severity, d.State) > slices.Index(severity, worst.State) {
			worst = d
		}
		r.Tries = max(r.Tries, d.Attempts-d.Postponed)
		if d.Protocol != "" {
			r.Out = protocolName(d.Protocol)
		}
	}
	if r.To == "" || len(m.Deliveries) > 1 {
		r.To, r.More = worst.To, len(m.Deliveries)-1
	}
	for i := range m.Deliveries {
		if m.Deliveries[i].State == worst.State {
			same++
		}
	}
	r.State, r.Note = signOf(worst.State), l.note(m, worst)
	if m.Kind == parley.Failure && worst.State < parley.Dead {
		r.State, r.Note, r.Bad = Sign{"bad", "x", "failed"}, code(m), true
	}
	if r.Note == "" && same < len(m.Deliveries) {
		r.Note = fmt.Sprintf("%d of %d", same, len(m.Deliveries))
	}
}

// note is the one thing to know about a delivery.
func (l *list) note(m *admin.Summary, d *index.Delivery) string {
	switch {
	case d.State == parley.Waiting && !d.Next.IsZero():
		at := Moment{d.Next, l.now}.Seconds()
		if d.Next.Sub(l.now) > 24*time.Hour {
			at = Moment{d.Next, l.now}.Date()
		}
		if d.Postponed > 0 && d.Error != nil && d.Error.Source == parley.ByPeer {
			return "peer says " + at
		}
		return "next " + at
	case d.State >= parley.Dead && d.Error != nil:
		return string(d.Error.Code)
	case d.State == parley.Delivered && (m.Kind == parley.Event || m.Kind == parley.Input) && notTold(d):
		return "not told"
	}
	return ""
}

// notTold reports whether the recipient's protocol has no message of this kind.
func notTold(d *index.Delivery) bool {
	return slices.ContainsFunc(d.Losses, func(s string) bool { return strings.HasPrefix(s, "Kind: ") })
}

// took sets how long the answer of a request took.
func (l *list) took(r *Row, m *admin.Summary) {
	r.Took = time.Duration(m.Answer)
	r.Slow = r.Took >= l.slow
}

// first gives the first n characters of a text on one line.
func first(s string, n int) string {
	s = strings.Join(strings.Fields(cut(s, 8*n)), " ")
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n]) + "…"
}

// pieces divides a snippet: matches of the search are between « and ».
func pieces(s string) (out []Piece) {
	for s != "" {
		from := strings.Index(s, "«")
		to := strings.Index(s, "»")
		if from < 0 || to < from {
			return append(out, Piece{Text: s})
		}
		if from > 0 {
			out = append(out, Piece{Text: s[:from]})
		}
		out, s = append(out, Piece{s[from+len("«") : to], true}), s[to+len("»"):]
	}
	return out
}

// plainPieces is a text in which nothing was searched.
func plainPieces(s string) []Piece { return []Piece{{Text: s}} }

// An Explanation says why a message was refused, and what helps.
type Explanation struct {
	admin.Refusal
	When Moment
}

func explanation(f *admin.Refusal, now time.Time) *Explanation {
	return &Explanation{*f, Moment{f.Time, now}}
}

// Who is what the hub knows of the sender.
func (e *Explanation) Who() string {
	if e.Assurance == parley.Unsigned {
		return "a claim, not proved"
	}
	who := "proved: " + e.Assurance.String()
	if e.KeyID != "" {
		who += " by key " + e.KeyID
	}
	return who
}
