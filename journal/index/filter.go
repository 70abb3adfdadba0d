package index

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
)

// Proof chooses messages by the proof of their sender; the zero value chooses all.
type Proof uint8

// The choices of Proof.
const (
	AnyProof Proof = iota
	ProvedNothing
	ProvedSession
	ProvedSigned
	ProvedRefused // not admitted, whatever was proved
)

var proofNames = [...]string{"", "unsigned", "session", "signed", "refused"}

// ProofOf chooses messages with an assurance.
func ProofOf(a parley.Assurance) Proof { return ProvedNothing + Proof(a) }

func (p Proof) assurance() parley.Assurance { return parley.Assurance(p - ProvedNothing) }

func (p Proof) String() string {
	if int(p) < len(proofNames) {
		return proofNames[p]
	}
	return fmt.Sprintf("unknown(%d)", uint8(p))
}

// UnmarshalText reads what String writes.
func (p *Proof) UnmarshalText(b []byte) error {
	i := slices.Index(proofNames[:], string(b))
	if i <= 0 {
		return fmt.Errorf("%w: proof %.20q: want signed, session, unsigned or refused", ErrFilter, b)
	}
	*p = Proof(i)
	return nil
}

// Duration is a duration that is "412ms" in JSON.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes a duration as package time does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Key is the place of a message in lists: they are ordered by it. It grows with the time of the
// record.
func (m *Message) Key() int64 { return m.key }

// KeyAt is greater than the keys of the messages that were recorded up to t, and less than those
// of later ones, if no clock went back.
func KeyAt(t time.Time) int64 { return t.UnixMicro()<<8 | 255 }

// CursorAt is the cursor behind a key: a page behind it begins with the next message.
func CursorAt(key int64) string { return formatCursor(key) }

// KeyOf gives the key in a cursor. Errors: ErrFilter.
func KeyOf(cursor string) (int64, error) { return parseCursor(cursor) }

// slowSteps are the durations for which the index has lists: a request is in the list of each
// step that its answer reached. Other durations are searched in the list of the next shorter one.
var slowSteps = [...]time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, time.Hour}

// The names of values that own a list of messages; see [schema].
func kindList(k parley.Kind) string       { return "\x01kind " + strconv.Itoa(int(k)) }
func proofList(a parley.Assurance) string { return "\x01proof " + strconv.Itoa(int(a)) }
func protocolList(protocol string) string { return "\x01protocol " + protocol }
func viaList(protocol string) string      { return "\x01via " + protocol }
func slowList(step time.Duration) string  { return "\x01slow " + step.String() }

// window is the part of the order in which a page is: keys between low and high, without both.
type window struct {
	low, high int64
	oldest    bool // the oldest first
	probe     int  // see [probeRows]
}

// newWindow reads the limits of a filter.
func newWindow(since, until time.Time, cursor string, oldest bool) (window, error) {
	w := window{low: 0, high: math.MaxInt64, oldest: oldest}
	if !since.IsZero() {
		w.low = since.UnixMicro()<<8 - 1
	}
	if !until.IsZero() {
		w.high = until.UnixMicro() << 8
	}
	if cursor == "" {
		return w, nil
	}
	n, err := parseCursor(cursor)
	if oldest {
		w.low = max(w.low, n)
	} else {
		w.high = min(w.high, n)
	}
	return w, err
}

func (w window) order() string {
	if w.oldest {
		return "ASC"
	}
	return "DESC"
}

// behind is the part of w behind a key.
func (w window) behind(key int64) window {
	if w.oldest {
		w.low = key
	} else {
		w.high = key
	}
	return w
}

// upTo is the part of w that ends with a key.
func (w window) upTo(key int64) window {
	if w.oldest {
		w.high = min(w.high, key+1)
	} else {
		w.low = max(w.low, key-1)
	}
	return w
}

// union returns the keys of a page of the rows that any of the queries chooses, and one more if
// others follow.
func union(tx *sqlite.Conn, list []clause, w window, limit int) (keys []int64, err error) {
	for i := range list {
		its, err := list[i].page(tx, w, limit)
		if err != nil {
			return nil, err
		}
		keys = append(keys, its...)
	}
	if len(list) < 2 {
		return keys, nil
	}
	slices.SortFunc(keys, func(a, b int64) int {
		if w.oldest {
			a, b = b, a
		}
		return cmp.Compare(b, a)
	})
	keys = slices.Compact(keys)
	return keys[:min(len(keys), limit+1)], nil
}

// now is the present for Slow.
func (f *Filter) now() time.Time {
	if f.Now.IsZero() {
		return time.Now()
	}
	return f.Now
}

// finder collects the queries of a filter: each with another index, and all with the same
// conditions.
type finder struct {
	tx   *sqlite.Conn
	f    *Filter
	list []clause
	all  clause // the conditions
	none bool   // no message can match
}

const (
	// Between quotes a string has no quote that is not escaped: the member is not found in another's value.
	isTo = "(m.recipient=? OR instr(m.deliveries, ?) > 0)"

	// isSlow is about a request that was answered late, or is not yet.
	isSlow = "m.kind=? AND (m.answer>=? OR m.answer IS NULL AND m.open>0 AND m.time<=?)"

	// asked has the requests that wait for their answers.
	asked, isAsked = "messages_asked", "m.open > 0 AND m.kind = 1 AND m.answer IS NULL"
)

// member is a member of an object of the column deliveries, as it is written there.
func member(name, value string) string {
	b, _ := json.Marshal(value) // a string always encodes
	return `"` + name + `":` + string(b)
}

// over adds the rows of an index, "": of the table.
func (s *finder) over(index string) *clause {
	s.list = append(s.list, clause{from: "messages m", index: index, key: "m.n"})
	return &s.list[len(s.list)-1]
}

// owned adds the rows of an owner's lists, if there are any.
func (s *finder) owned(name string) error {
	n, err := agentKey(s.tx, name)
	if n != 0 {
		s.over("").owners = []int64{n}
	}
	return err
}

// owners gives the owners whose lists have all messages that the filter selects. none is set if one has no list.
func (s *finder) owners() (owners []int64, err error) {
	f, names := s.f, []string{s.f.Agent, s.f.To, s.f.From}
	if f.Via != "" {
		names = append(names, viaList(f.Via))
	}
	if f.Proof != AnyProof && f.Proof != ProvedRefused {
		names = append(names, proofList(f.Proof.assurance()))
	}
	if f.Protocol != "" {
		names = append(names, protocolList(f.Protocol))
	}
	if f.Kind != 0 {
		names = append(names, kindList(f.Kind))
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		n, err := agentKey(s.tx, name)
		if err != nil {
			return nil, err
		}
		s.none = s.none || n == 0
		owners = append(owners, n)
	}
	return owners, nil
}

// build makes the queries whose union a filter selects, each with the most selective index; none:
// no message can match.
func (f *Filter) build(tx *sqlite.Conn, noText bool) ([]clause, error) {
	s := finder{tx: tx, f: f}
	if err := s.conditions(); err != nil || s.none {
		return nil, err
	}
	owners, err := s.owners()
	if err != nil || s.none {
		return nil, err
	}
	if err := s.choose(noText); err != nil {
		return nil, err
	}
	for i := range s.list {
		c := &s.list[i]
		if c.listable() {
			c.owners = append(c.owners, owners...)
		}
		c.own, c.ownArgs = len(c.where), len(c.args)
		c.where, c.args = append(c.where, s.all.where...), append(c.args, s.all.args...)
	}
	return s.list, nil
}

// conditions makes the conditions that every message meets.
func (s *finder) conditions() error {
	f, c := s.f, &s.all
	party := func(name, sql string, args func(n int64) []any) error {
		if name == "" || s.none {
			return nil
		}
		n, err := agentKey(s.tx, name)
		s.none = n == 0
		c.and(n != 0, sql, args(n)...)
		return err
	}
	if err := cmp.Or(
		party(f.Agent, "(m.sender=? OR "+isTo+")", func(n int64) []any { return []any{n, n, member("to", f.Agent)} }),
		party(f.From, "m.sender=?", func(n int64) []any { return []any{n} }),
		party(f.To, isTo, func(n int64) []any { return []any{n, member("to", f.To)} })); err != nil {
		return err
	}
	c.and(!f.Conversation.IsZero(), "m.conversation=(SELECT n FROM conversations WHERE id=?)", f.Conversation[:])
	c.and(!f.InReplyTo.IsZero(), "m.reply_to=?", f.InReplyTo[:])
	c.and(f.Trace != "", "m.trace=?", traceKey(f.Trace))
	c.and(f.Kind != 0, "m.kind=?", int(f.Kind))
	c.and(f.State != 0, "m.flags & ? <> 0", 1<<f.State)
	c.and(f.Protocol != "", "m.protocol=?", f.Protocol)
	c.and(f.Failed, "m.flags & ? <> 0", flagFailed)
	c.and(f.Refused || f.Proof == ProvedRefused, "m.flags & ? <> 0", flagRefused)
	c.and(f.Waiting, "m.flags & ? <> 0", 1<<parley.Waiting)
	c.and(f.Proof != AnyProof && f.Proof != ProvedRefused, "m.assurance=?", int(f.Proof.assurance()))
	c.and(f.Via != "", "instr(m.deliveries, ?) > 0", member("o", f.Via))
	c.and(f.Slow > 0, isSlow, int(parley.Request), int64(f.Slow), f.now().Add(-f.Slow).UnixNano())
	return nil
}

// choose takes the first condition that is set for its index.
func (s *finder) choose(noText bool) error {
	f := s.f
	switch {
	case f.Text != "":
		return s.search(noText)
	case !f.InReplyTo.IsZero():
		s.over("messages_reply")
	case !f.Conversation.IsZero():
		s.over("messages_conversation")
	case f.Trace != "":
		s.over("").owners = []int64{traceOwner(traceKey(f.Trace))}
	case f.Refused || f.Proof == ProvedRefused:
		s.over("messages_refused").and(true, "m.flags & 1 <> 0")
	case f.Waiting || f.State == parley.Waiting || f.State == parley.Delivering:
		s.over("messages_open").and(true, "m.open > 0")
	case f.Failed || f.State >= parley.Dead:
		s.over("messages_failed").and(true, "m.flags & 993 <> 0")
	case f.Slow >= slowSteps[0]:
		i, is := slices.BinarySearch(slowSteps[:], f.Slow)
		if !is {
			i--
		}
		s.over(asked).and(true, isAsked)
		return s.owned(slowList(slowSteps[i]))
	default:
		s.over("")
	}
	return nil
}

// search adds the messages that have the words of Text, the id or conversation that it begins, or the
// agent that it names.
func (s *finder) search(noText bool) error {
	text, words := strings.TrimSpace(s.f.Text), match(s.f.Text)
	if words == "" {
		return fmt.Errorf("%w: there is no word in %.100q", ErrFilter, s.f.Text)
	}
	if !noText && !s.f.NoWords {
		s.list = append(s.list, clause{from: "texts t CROSS JOIN messages m ON m.n=t.rowid", key: "t.rowid"})
		s.list[0].and(true, "texts MATCH ?", words)
	}
	if low, high, err := Range(text); err == nil {
		s.over("messages_id").and(true, "m.id BETWEEN ? AND ?", low[:], high[:])
		s.over("messages_conversation").and(true,
			"m.conversation IN (SELECT n FROM conversations WHERE id BETWEEN ? AND ?)", low[:], high[:])
	}
	n, err := agentKey(s.tx, text)
	if n != 0 {
		c := s.over("")
		c.owners = []int64{n}
		c.and(true, "(m.sender=? OR "+isTo+")", n, n, member("to", text))
	}
	if err == nil && len(s.list) == 0 && noText && !s.f.NoWords {
		err = fmt.Errorf("%w: this index keeps no text, because the journal is encrypted", ErrFilter)
	}
	return err
}

// finds reports whether Text selects m, as [finder.search] does.
func (f *Filter) finds(m *Message) bool {
	text := strings.TrimSpace(f.Text)
	if low, high, err := Range(text); err == nil {
		in := func(id parley.ID) bool {
			return bytes.Compare(id[:], low[:]) >= 0 && bytes.Compare(id[:], high[:]) <= 0
		}
		if in(m.ID) || in(m.Conversation) {
			return true
		}
	}
	if m.From == text || m.to(text) {
		return true
	}
	return !f.NoWords && contains(cmp.Or(m.text, m.Preview), f.Text)
}

// to reports whether m is for an agent.
func (m *Message) to(name string) bool {
	return m.To == name || m.any(func(d *Delivery) bool { return d.To == name })
}

// any reports whether a delivery is as wanted.
func (m *Message) any(wanted func(*Delivery) bool) bool {
	for i := range m.Deliveries {
		if wanted(&m.Deliveries[i]) {
			return true
		}
	}
	return false
}

// slow reports whether m was answered late, or waits for its answer too long.
func (m *Message) slow(than time.Duration, now time.Time) bool {
	if m.Kind != parley.Request {
		return false
	}
	if m.Answer != 0 {
		return time.Duration(m.Answer) >= than
	}
	return !m.Time.After(now.Add(-than)) && m.any(func(d *Delivery) bool {
		return d.State != parley.Dead && !d.State.Settled(m.Kind)
	})
}

// Matches reports whether the filter selects m, without regard to Cursor, Limit and
// order. Text is compared with the whole text of a message from [Index.Of], and with
// the preview of any other.
func (f *Filter) Matches(m *Message) bool {
	switch {
	case f.Agent != "" && m.From != f.Agent && !m.to(f.Agent),
		f.From != "" && m.From != f.From,
		f.To != "" && !m.to(f.To),
		!f.Conversation.IsZero() && m.Conversation != f.Conversation,
		!f.InReplyTo.IsZero() && m.InReplyTo != f.InReplyTo,
		f.Trace != "" && m.Trace != hex.EncodeToString(traceKey(f.Trace)),
		f.Kind != 0 && m.Kind != f.Kind,
		f.Protocol != "" && m.Protocol != f.Protocol,
		!f.Since.IsZero() && m.Time.Before(f.Since),
		!f.Until.IsZero() && !m.Time.Before(f.Until),
		f.Failed && !m.Failed,
		(f.Refused || f.Proof == ProvedRefused) && !m.Refused,
		f.Proof != AnyProof && f.Proof != ProvedRefused && m.Assurance != f.Proof.assurance(),
		f.State != 0 && !m.any(func(d *Delivery) bool { return d.State == f.State }),
		f.Waiting && !m.any(func(d *Delivery) bool { return d.State == parley.Waiting }),
		f.Via != "" && !m.any(func(d *Delivery) bool { return d.Protocol == f.Via }),
		f.Slow > 0 && !m.slow(f.Slow, f.now()):
		return false
	}
	return f.Text == "" || f.finds(m)
}
