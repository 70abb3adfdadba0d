package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"html/template"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// This file makes the parts beside and below the diagram: one message as received, as recorded, and as sent.

// shownContent bounds the bytes of one content on a page.
const shownContent = 64 << 10

// shownLeft bounds the attempts whose sent bytes a page shows.
const shownLeft = 3

// A Chosen is the message beside the diagram.
type Chosen struct {
	admin.Recorded
	Title    string
	Proof    Proof
	At, Sent Moment
	Drift    string // of the sender's clock
	Steps    []Passage
	Tries    []AttemptRow
	Between  map[string]int // attempts that are left out, by recipient
	Address  string         // that all attempts dialled
	Losses   []LossRow
	Came     *Came
	Left     []Left
	Parts    []PartView
	Hidden   bool // the actor may not see content
	Removed  bool // the journal no longer has the record
	Key      *keyring.Enrolled
	Reply    *admin.Recorded // that answered it
	Signed   *SignedView     // of the view proof; nil: nothing was signed, or it is not known
}

// A Passage is one step of the way through the hub.
type Passage struct{ Name, Detail, At, Class string }

// An AttemptRow is one attempt.
type AttemptRow struct {
	Number         int
	At             Moment
	To, Text, Took string
	Address        string
	Bad, Open      bool
	Answer         string
}

// A LossRow is a loss: the field, the reason, and of which message, if it is not this one.
type LossRow struct{ Field, Reason, Of, To string }

// Came is a message as it came.
type Came struct {
	Protocol string
	Header   []HeaderRow
	Body     template.HTML
	Size     int
	Digest   string
	Cut      bool
	Note     string // why there is no body
}

// A HeaderRow is a header of the transport.
type HeaderRow struct {
	Name, Value string
	Signed      bool // it is of the signature
}

// Left is what an attempt sent.
type Left struct {
	Protocol, To, Digest string
	Size, Attempt        int
	Body                 template.HTML // if the bytes are kept
	Cut                  bool
}

// A PartView is one part of a content.
type PartView struct {
	Type, Name, Digest string
	Size               int
	Text               string
	Cut                bool
	Note               string // in place of Text
}

// chosen makes the view of a message.
func (c *Console) chosen(ctx context.Context, q *request, r *admin.Recorded) (*Chosen, error) {
	v := &Chosen{Recorded: *r, Proof: proofOf(r.Assurance), At: Moment{r.Time, q.now}, Hidden: !q.by.May(admin.Read)}
	v.Title = strings.TrimSpace(r.Kind.String() + " " + cmp.Or(r.Skill, r.Act))
	v.Removed = r.Content == nil
	if m := r.Content; m != nil && !m.Sent.IsZero() {
		v.Sent = Moment{m.Sent, q.now}
		v.Drift = drift(m.Sent, cmp.Or(m.Received, r.Time))
	}
	v.tries(q.now)
	v.losses()
	v.came()
	v.parts()
	v.passages()
	return v, c.proved(ctx, q.by, v)
}

// drift gives the difference between the sender's clock and the hub's; the console corrects no times.
func drift(sent, received time.Time) string {
	switch d := received.Sub(sent); {
	case d >= time.Millisecond:
		return took(d) + " before the hub received it"
	case d <= -time.Millisecond:
		return took(-d) + " ahead of the hub"
	}
	return "the same"
}

// tries fills the table of attempts.
func (v *Chosen) tries(now time.Time) {
	x := said{Summary: &v.Summary, times: v.Times, attempts: v.Course.Attempts}
	v.Between = v.Omitted
	address := map[string]bool{}
	for i := range v.Deliveries {
		d := &v.Deliveries[i]
		steps, _ := x.tries(d)
		byNumber := map[int]*Try{}
		for j := range steps {
			byNumber[steps[j].Number] = &steps[j]
		}
		for _, a := range v.Course.Attempts[d.To] {
			row := AttemptRow{Number: a.Number, At: Moment{a.Begun, now}, To: d.To, Answer: a.Answer,
				Address: a.Address}
			if t := byNumber[a.Number]; t != nil {
				row.Bad, row.Open = t.Failed, t.Open
				row.Text, row.Took, _ = strings.Cut(t.Result, " after ")
			}
			switch {
			case row.Open:
				row.Text = "in flight"
			case row.Text == "" && !row.Bad:
				row.Text = "delivered"
			}
			if a.Postponed {
				row.Text += ", does not count"
			}
			if a.Address != "" {
				address[a.Address] = true
			}
			v.Tries = append(v.Tries, row)
			v.left(&a, d.To)
		}
	}
	if len(address) == 1 {
		for v.Address = range address {
		}
		for i := range v.Tries {
			v.Tries[i].Address = ""
		}
	}
}

// left adds what an attempt sent.
func (v *Chosen) left(a *admin.Attempt, to string) {
	if a.Size == 0 && a.Digest == "" && len(a.Sent) == 0 {
		return
	}
	l := Left{Protocol: protocolName(a.Protocol), To: to, Digest: a.Digest, Size: a.Size, Attempt: a.Number}
	if len(a.Sent) > 0 {
		l.Body, l.Cut = envelope(a.Sent)
	}
	if v.Left = append(v.Left, l); len(v.Left) > shownLeft {
		v.Left = slices.Delete(v.Left, 0, 1)
	}
}

// losses fills in the losses on the way of this message, or on the way of its answer and its events.
func (v *Chosen) losses() {
	for i := range v.Deliveries {
		d := &v.Deliveries[i]
		for _, l := range d.Losses {
			row := LossRow{To: d.To}
			row.Field, row.Reason, _ = strings.Cut(l, ": ")
			if f, ok := strings.CutPrefix(row.Field, "Reply."); ok {
				row.Field, row.Of = f, "the answer"
			} else if f, ok := strings.CutPrefix(row.Field, "Event."); ok {
				row.Field, row.Of = f, "its events"
			}
			v.Losses = append(v.Losses, row)
		}
	}
}

// passages fills the way through the hub. A step without a time has none.
func (v *Chosen) passages() {
	received := v.Times.Received
	add := func(name, detail, at, class string) { v.Steps = append(v.Steps, Passage{name, detail, at, class}) }
	since := func(from, to time.Time) string {
		if from.IsZero() || to.IsZero() {
			return ""
		}
		return "+" + cmp.Or(took(to.Sub(from)), "0 ms")
	}
	if !received.IsZero() {
		detail := protocolName(v.Protocol)
		if v.RawBytes > 0 {
			detail += " · " + size(int64(v.RawBytes))
		}
		add("received", detail, received.UTC().Format("15:04:05.000"), "")
	}
	v.checked(add, since(received, v.Times.Verified))
	if !v.Times.Admitted.IsZero() {
		add("admitted", "", since(cmp.Or(v.Times.Verified, received), v.Times.Admitted), "")
	}
	at := since(cmp.Or(v.Times.Admitted, v.Times.Verified, received), v.Time)
	if v.Refused {
		add("refused", "not admitted: "+reasonText(v.Error), at, "bad")
		return
	}
	add("recorded", v.Position.String(), at, "")
	for i := range v.Deliveries {
		v.passed(&v.Deliveries[i], add)
	}
}

// checked adds the step of verification. Only a signature is verified.
func (v *Chosen) checked(add func(name, detail, at, class string), at string) {
	if v.Content == nil {
		return
	}
	o, n := v.Content.Origin, len(v.Content.Origin.Checks)
	switch {
	case v.Proof == "signed":
		detail := plural(n, "check", "checks")
		if o.KeyID != "" {
			detail += ", key " + o.KeyID
		}
		add("verified", detail, at, "")
	case n > 0:
		add("checked", plural(n, "check", "checks")+", "+string(v.Proof), at, "")
	}
}

// passed adds the steps of one delivery.
func (v *Chosen) passed(d *index.Delivery, add func(name, detail, at, class string)) {
	since := func(t time.Time) string { return "+" + cmp.Or(took(t.Sub(v.Time)), "0 ms") }
	v.translated(d, add)
	detail := d.To
	if d.Protocol != "" {
		detail = protocolName(d.Protocol) + " to " + d.To
	}
	switch d.State {
	case parley.Delivered, parley.Answered:
		class := ""
		if d.Attempts > 1 {
			class, detail = "again", fmt.Sprintf("attempt %d, %s", d.Attempts, detail)
		}
		add("delivered", detail, since(deliveredAt(d)), class)
	case parley.Waiting:
		add("waiting", fmt.Sprintf("%s, %s", plural(d.Attempts, "attempt", "attempts"), detail), "", "again")
	default:
		add(d.State.String(), detail, since(d.Changed), "again")
	}
	if d.State.Settled(v.Kind) && d.State == parley.Answered {
		add("settled", "by its answer "+short8(d.Reply)+"…", since(d.Changed), "")
	}
}

// translated adds the steps of the last attempt that its exchange tells.
func (v *Chosen) translated(d *index.Delivery, add func(name, detail, at, class string)) {
	var last admin.Attempt
	if list := v.Course.Attempts[d.To]; len(list) > 0 {
		last = list[len(list)-1]
	}
	own := 0
	for _, l := range d.Losses {
		if !aboutReply(l) {
			own++
		}
	}
	detail, class, at := "", "", ""
	if own > 0 {
		detail, class = plural(own, "part lost", "parts lost"), "part"
	}
	if last.Routed > 0 {
		add("routed", "by "+protocolName(last.Protocol)+", to "+d.To, "+"+took(time.Duration(last.Routed)), "")
	}
	if last.Written > 0 {
		at = "+" + took(time.Duration(last.Written-last.Routed))
	}
	if own > 0 || last.Written > 0 {
		add("translated", detail, cmp.Or(strings.TrimSuffix(at, "+"), "+0 ms"), class)
	}
}

// deliveredAt is when a delivery was recorded as made; the record of an answer may hold it.
func deliveredAt(d *index.Delivery) (t time.Time) {
	t = d.Changed
	for i := range d.Steps {
		if d.Steps[i].State == parley.Delivered {
			return d.Steps[i].Time
		}
	}
	return t
}

// signatureHeaders are the headers of RFC 9421, RFC 9530 and the protocols that prove a message.
var signatureHeaders = []string{"signature", "signature-input", "content-digest", "digest", "dpop"}

// secretName reports whether a header or a member holds a secret by its name.
var secretName = regexp.MustCompile(`(?i)^(proxy-)?(authorization|auth|token|access_token|refresh_token|bearer|` +
	`password|passphrase|secret|client_secret|api[-_]?key|x-api-key|cookie|set-cookie|credentials?|sealed)$`)

const masked = "•••• masked"

// came fills the message as it came.
func (v *Chosen) came() {
	o := &Came{Protocol: protocolName(v.Protocol), Size: v.RawBytes, Digest: v.RawDigest}
	v.Came = o
	for _, name := range slices.Sorted(maps.Keys(v.Header)) {
		value := cut(v.Header[name], 4096)
		if secretName.MatchString(name) {
			value = masked
		}
		o.Header = append(o.Header, HeaderRow{name, value, slices.Contains(signatureHeaders, strings.ToLower(name))})
	}
	switch {
	case v.Removed:
		o.Note = "The journal no longer has this record."
	case v.Erased != nil:
		o.Note = "The content was erased " + erasedBy(v.Erased) + ". The digests and the record remain."
	case v.Hidden:
		o.Note = "Hidden: content needs the role read."
	case len(v.Raw) == 0:
		o.Note = "There is no envelope: it was said inside the hub, or the sender’s messages are recorded without " +
			"content."
	default:
		o.Body, o.Cut = envelope(v.Raw)
	}
}

// erasedBy describes an erasure: the content, the time, the operator.
func erasedBy(e *admin.Erasure) string {
	out := "with the " + e.What
	if e.What == "retention" {
		out = "by retention"
	}
	return out + " on " + e.Begun.UTC().Format("2 Jan 2006, 15:04") + " UTC by " + cut(e.By, nameBytes)
}

// member finds a string, and whether it is the name of a member with a string as its value.
var member = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"(\s*:\s*)?`)

// signatureMember names members that hold a signature, or the digest that one covers.
var signatureMember = regexp.MustCompile(`(?i)^(signature|sig|content_?digest|payload_?digest|digest|previous_?hash|` +
	`proof|nonce)$`)

// envelope shows bytes as text: escaped, its signature underlined, secrets masked. Text that is no JSON stays as it is.
func envelope(raw []byte) (out template.HTML, isCut bool) {
	if isCut = len(raw) > shownContent; isCut {
		raw = raw[:shownContent]
	}
	if isCut {
		raw = []byte(strings.ToValidUTF8(string(raw), ""))
	}
	if !utf8.Valid(raw) {
		return template.HTML(template.HTMLEscapeString(hex.Dump(raw[:min(len(raw), 4096)]))), isCut || len(raw) > 4096
	}
	s := string(raw)
	e := template.HTMLEscapeString
	if t := strings.TrimSpace(s); t == "" || t[0] != '{' && t[0] != '[' {
		return template.HTML(e(s)), isCut
	}
	var b strings.Builder
	at, mark := 0, "" // class of the next value
	for _, m := range member.FindAllStringSubmatchIndex(s, -1) {
		if m[0] < at {
			continue
		}
		if between := s[at:m[0]]; between != "" {
			b.WriteString(e(between))
			if strings.TrimSpace(between) != "" {
				mark = "" // the value was no string
			}
		}
		at = m[1]
		text, name := s[m[0]:m[1]], s[m[2]:m[3]]
		switch {
		case m[4] >= 0:
			b.WriteString(`<span class="k">` + e(s[m[0]:m[4]]) + `</span>` + e(s[m[4]:m[5]]))
			mark = ""
			if secretName.MatchString(name) {
				mark = "v"
			} else if signatureMember.MatchString(name) {
				mark = "s"
			}
		case mark == "v":
			b.WriteString(`<mark class="v">"` + masked + `"</mark>`)
			mark = ""
		case mark == "s":
			b.WriteString(`<mark class="s">` + e(text) + `</mark>`)
			mark = ""
		default:
			b.WriteString(e(text))
		}
	}
	b.WriteString(e(s[at:]))
	return template.HTML(b.String()), isCut
}

// parts fills the content.
func (v *Chosen) parts() {
	if v.Content == nil {
		return
	}
	for _, p := range v.Content.Parts {
		w := PartView{Type: p.MediaType, Name: cut(p.Name, nameBytes), Digest: p.Digest}
		switch {
		case p.Text != nil:
			w.Size, w.Text = len(*p.Text), *p.Text
		case p.JSON != nil:
			w.Size, w.Text = len(p.JSON), string(p.JSON)
		case p.URI != "":
			w.Text = p.URI
		default:
			w.Size, w.Note = len(p.Data), "not text; the first bytes:"
			w.Text = hex.Dump(p.Data[:min(len(p.Data), 1024)])
		}
		if len(w.Text) > shownContent {
			w.Text, w.Cut = strings.ToValidUTF8(w.Text[:shownContent], ""), true
		}
		v.Parts = append(v.Parts, w)
	}
}

// proved finds the key that proved a message, and the message that answered it.
func (c *Console) proved(ctx context.Context, by admin.Actor, v *Chosen) error {
	if v.Content != nil && v.Content.Origin.KeyID != "" {
		keys, err := c.admin.Keys(ctx, by, v.From)
		if err != nil && parley.AsError(err).Code != parley.UnknownAgent {
			return err
		}
		v.Key = proving(keys.Enrolled, v)
	}
	for i := range v.Deliveries {
		if d := &v.Deliveries[i]; !d.Reply.IsZero() {
			r, err := c.admin.Message(ctx, by, d.Reply.String(), false)
			if err == nil {
				v.Reply = &r
			} else if parley.AsError(err).Code != "not_found" {
				return err
			}
		}
	}
	return nil
}

// proving is the enrolled key that proved a message: the one of that name, or the only one, if it answers to any name.
func proving(list []keyring.Enrolled, v *Chosen) *keyring.Enrolled {
	list = slices.DeleteFunc(list, func(k keyring.Enrolled) bool {
		return k.Purpose != v.Protocol ||
			k.Created.After(v.Time)
	})
	for i := range list {
		if list[i].KeyID == v.Content.Origin.KeyID {
			return &list[i]
		}
	}
	if len(list) == 1 && v.Proof == "signed" {
		return &list[0]
	}
	return nil
}
