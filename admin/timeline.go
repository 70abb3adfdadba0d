package admin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal/index"
)

// This file makes one list of messages and of the refusals that the hub keeps in memory, by time.

// Show chooses what an operator looks for in a list: see [TimelineFilter] and [UndeliveredFilter].
type Show string

// The choices for the timeline; "" shows all.
const (
	ShowFailed  Show = "failed"
	ShowRefused Show = "refused"
	ShowWaiting Show = "waiting"
	ShowSlow    Show = "slow"
)

// DefaultSlow is how long an answer may take before ShowSlow shows its request, unless the filter
// says another duration.
const DefaultSlow = 2 * time.Second

// TimelineFilter chooses entries of the timeline, and a page of them. Text is also searched in the
// references, the claimed names, the sources and the reasons of refusals.
type TimelineFilter struct {
	index.Filter // Cursor and Oldest are not used
	Show         Show
	Before       string // Older of a page, or the cursor of an entry: the page of entries before it
	After        string // Newer of a page, or the cursor of an entry: the page of entries after it
}

// A TimelineEntry is a message; a refusal that was not recorded; or both: a refused message, with the
// reference that its sender got as long as the hub has it in memory.
type TimelineEntry struct {
	Message *Summary  `json:"message,omitzero"`
	Refusal *Refusal  `json:"refusal,omitzero"`
	Folded  int       `json:"folded,omitzero"` // events of one request with the same state; Message is the newest
	First   time.Time `json:"first,omitzero"`  // of the folded events
	Cursor  string    `json:"cursor"`          // of its oldest record
}

// A TimelinePage is a page of the timeline, the newest entry first.
type TimelinePage struct {
	Entries []TimelineEntry `json:"entries"`
	Older   string          `json:"older,omitzero"` // for Before; "": nothing is older
	Newer   string          `json:"newer,omitzero"` // for After, also while nothing is newer; "": the page is empty
	More    bool            `json:"more,omitzero"`  // with After: there are newer entries than these

	// RefusalsSince is the time from which the hub has refusals in memory. Earlier ones are shown only if
	// they were recorded.
	RefusalsSince time.Time `json:"refusalsSince,omitzero"`
	// NoWords says that Text was not searched in content: the journal is encrypted, or the caller may not
	// see content.
	NoWords bool `json:"noWords,omitzero"`
}

const (
	foldFrom = 3  // events of one request and state are folded
	foldMost = 10 // pages of records that one page of entries may need
)

// query gives the filter as the index takes it.
func (a *Admin) query(by Actor, f TimelineFilter) (index.Filter, error) {
	q := f.Filter
	if err := cmp.Or(by.may(Observe), a.resolveNames(&q.Agent, &q.From, &q.To)); err != nil {
		return q, err
	}
	switch f.Show {
	case "":
	case ShowFailed:
		q.Failed = true
	case ShowRefused:
		q.Refused = true
	case ShowWaiting:
		q.Waiting = true
	case ShowSlow:
		q.Slow = cmp.Or(q.Slow, DefaultSlow)
	default:
		return q, parley.Refuse(parley.Malformed, "show=%.20q: want failed, refused, waiting or slow", string(f.Show))
	}
	if q.Now.IsZero() {
		q.Now = a.c.Now()
	}
	q.NoWords = q.NoWords || by.may(Read) != nil || !a.c.Index.HasText()
	q.Cursor, q.Oldest = "", false
	return q, nil
}

// Timeline gives a page of messages and refusals, the newest first.
func (a *Admin) Timeline(ctx context.Context, by Actor, f TimelineFilter) (TimelinePage, error) {
	none := TimelinePage{}
	q, err := a.query(by, f)
	if err != nil {
		return none, err
	}
	if f.Before != "" && f.After != "" {
		return none, parley.Refuse(parley.Malformed, "before and after exclude each other")
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return none, err
	}
	n := f.Limit
	if n <= 0 {
		n = 100
	}
	n = min(n, index.MaxLimit)
	q.Oldest, q.Limit = f.After != "", n
	w := &walk{ctx: ctx, x: x, f: q, more: true}
	kept := a.c.Hub.Refused(0)
	if err := w.begin(cmp.Or(f.Before, f.After), a.choose(by, &q, kept)); err != nil {
		return none, unresolved(err, "message", "")
	}
	var rows []row
	var runs [][]row
	for len(runs) <= n && len(rows) <= foldMost*n && !w.end() {
		more, err := w.take(n + 1)
		if err != nil {
			return none, unresolved(err, "message", "")
		}
		rows = append(rows, more...)
		runs = fold(rows)
	}
	more := len(runs) > n || !w.end()
	runs = runs[:min(len(runs), n)]
	page := TimelinePage{Entries: make([]TimelineEntry, 0, len(runs)), RefusalsSince: a.refusalsSince(kept),
		NoWords: q.Text != "" && q.NoWords}
	refusals := recordedRefusals(kept)
	for _, run := range runs {
		page.Entries = append(page.Entries, a.viewRun(by, run, q.Oldest, refusals))
	}
	page.limits(runs, q.Oldest, more)
	return page, nil
}

// limits sets the cursors of a page whose runs are in the order of the walk.
func (p *TimelinePage) limits(runs [][]row, oldest, more bool) {
	if len(runs) == 0 {
		return
	}
	run := runs[len(runs)-1]
	first, last := runs[0][0].place.String(), run[len(run)-1].place.String()
	if oldest {
		slices.Reverse(p.Entries)
		p.Older, p.Newer, p.More = first, last, more
		return
	}
	if p.Newer = first; more {
		p.Older = last
	}
}

// refusalsSince is the time since which all refusals are kept.
func (a *Admin) refusalsSince(kept []hub.Refusal) time.Time {
	if a.c.Hub.Stats().Refused > uint64(len(kept)) && len(kept) > 0 {
		return kept[len(kept)-1].Time
	}
	if a.c.Info != nil {
		return a.c.Info().Started
	}
	return time.Time{}
}

// place is the place of a row in the timeline.
type place struct {
	key int64
	ref string // of a refusal
}

func (p place) String() string {
	s := index.CursorAt(p.key)
	if p.ref != "" {
		s += "." + p.ref
	}
	return s
}

func parsePlace(s string) (p place, err error) {
	cursor, ref, _ := strings.Cut(s, ".")
	p.key, err = index.KeyOf(cursor)
	p.ref = ref
	return p, err
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.key, q.key), cmp.Compare(p.ref, q.ref))
}

// row is a message or a refusal.
type row struct {
	place
	message *index.Message
	refusal *hub.Refusal
}

func placeOf(r *hub.Refusal) place { return place{index.KeyAt(r.Time), r.Ref} }

// walk goes over messages and refusals in one order.
type walk struct {
	ctx      context.Context
	x        *index.Index
	f        index.Filter
	messages []index.Message // read, and not taken yet
	more     bool            // others can be read
	refusals []hub.Refusal   // not taken yet
}

// begin starts behind a cursor; refusals are the newest first.
func (w *walk) begin(cursor string, refusals []hub.Refusal) error {
	sign := -1
	if w.f.Oldest {
		slices.Reverse(refusals)
		sign = 1
	}
	// The ring is in the order of times, to which refusals of the same moment have no order of their own.
	slices.SortStableFunc(refusals, func(a, b hub.Refusal) int { return sign * placeOf(&a).compare(placeOf(&b)) })
	w.refusals = refusals
	if cursor == "" {
		return nil
	}
	from, err := parsePlace(cursor)
	if err != nil {
		return err
	}
	w.f.Cursor = index.CursorAt(from.key)
	w.refusals = slices.DeleteFunc(refusals, func(r hub.Refusal) bool { return sign*placeOf(&r).compare(from) <= 0 })
	return nil
}

// end reports whether nothing is left. It may be false at the end.
func (w *walk) end() bool { return !w.more && len(w.messages) == 0 && len(w.refusals) == 0 }

// take gives at most n further rows.
func (w *walk) take(n int) (rows []row, err error) {
	for ; n > 0; n-- {
		if len(w.messages) == 0 && w.more {
			page, err := w.x.Messages(w.ctx, w.f)
			if err != nil {
				return nil, err
			}
			w.messages, w.f.Cursor, w.more = page.Messages, page.Next, page.Next != ""
		}
		switch {
		case w.end():
			return rows, nil
		case len(w.messages) == 0 || len(w.refusals) > 0 && w.refusalFirst():
			r := &w.refusals[0]
			rows, w.refusals = append(rows, row{place: placeOf(r), refusal: r}), w.refusals[1:]
		default:
			m := &w.messages[0]
			rows, w.messages = append(rows, row{place: place{key: m.Key()}, message: m}), w.messages[1:]
		}
	}
	return rows, nil
}

func (w *walk) refusalFirst() bool {
	c := placeOf(&w.refusals[0]).compare(place{key: w.messages[0].Key()})
	return c < 0 == w.f.Oldest
}

// fold divides rows into runs: events that are shown as one, or single rows. A failure is always
// alone.
func fold(rows []row) (runs [][]row) {
	for i := 0; i < len(rows); {
		n := 1
		for i+n < len(rows) && rows[i].folds(&rows[i+n]) {
			n++
		}
		if n < foldFrom {
			n = 1
		}
		runs = append(runs, rows[i:i+n])
		i += n
	}
	return runs
}

func (r *row) folds(next *row) bool {
	if !r.quiet() || !next.quiet() {
		return false
	}
	a, b := r.message, next.message
	return a.InReplyTo == b.InReplyTo && a.State == b.State && a.From == b.From
}

// quiet reports whether r is an event about which nothing failed.
func (r *row) quiet() bool {
	m := r.message
	return m != nil && m.Kind == parley.Event && !m.Failed && !slices.ContainsFunc(m.Deliveries,
		func(d index.Delivery) bool { return d.Error != nil && !d.State.Settled(m.Kind) })
}

func (a *Admin) viewRun(by Actor, run []row, oldest bool, refusals map[parley.ID]*hub.Refusal) TimelineEntry {
	first, last := &run[len(run)-1], &run[0]
	if oldest {
		first, last = last, first
	}
	e := TimelineEntry{Cursor: first.place.String()}
	refusal := last.refusal
	if m := last.message; m != nil {
		v := viewSummary(by, *m)
		e.Message, refusal = &v, refusals[m.ID]
	}
	if refusal != nil {
		v := a.viewRefusal(by, *refusal)
		e.Refusal = &v
	}
	if len(run) > 1 {
		e.Folded, e.First = len(run), first.message.Time
	}
	return e
}

// recordedRefusals are the refusals of recorded messages.
func recordedRefusals(kept []hub.Refusal) map[parley.ID]*hub.Refusal {
	out := map[parley.ID]*hub.Refusal{}
	for i := range kept {
		if r := &kept[i]; !r.Message.IsZero() {
			out[r.Message] = r
		}
	}
	return out
}

// choose gives the refusals that a filter chooses, without those that the index has as messages.
func (a *Admin) choose(by Actor, f *index.Filter, kept []hub.Refusal) (out []hub.Refusal) {
	for i := range kept {
		if r := &kept[i]; r.Message.IsZero() && a.refusalMatches(by, f, r) {
			out = append(out, *r)
		}
	}
	return out
}

// refusalMatches reports whether a filter chooses a refusal. One that needs a member that refusals lack
// chooses none.
func (a *Admin) refusalMatches(by Actor, f *index.Filter, r *hub.Refusal) bool {
	from := func(name string) bool { return a.claims(r, name) }
	to := func(name string) bool { return a.isNamed(r.To, name) }
	switch {
	case !f.Conversation.IsZero(), !f.InReplyTo.IsZero(), f.Trace != "", f.Kind != 0, f.State != 0, f.Waiting,
		f.Via != "", f.Slow > 0, f.Proof != index.AnyProof && f.Proof != index.ProvedRefused,
		f.Agent != "" && !from(f.Agent) && !to(f.Agent), f.From != "" && !from(f.From), f.To != "" && !to(f.To),
		f.Protocol != "" && r.Protocol != f.Protocol,
		!f.Since.IsZero() && r.Time.Before(f.Since), !f.Until.IsZero() && !r.Time.Before(f.Until):
		return false
	}
	text := strings.ToLower(strings.TrimSpace(f.Text))
	if text == "" || strings.HasPrefix(r.Ref, text) && len(text) >= 8 {
		return true
	}
	in := r.Claim + "\n" + r.To + "\n" + r.Source
	if by.may(Read) == nil {
		in += "\n" + r.Text + "\n" + r.Cause + "\n" + r.Detail
	}
	return strings.Contains(strings.ToLower(in), text)
}

// claims reports whether a refused sender claims to be an agent, by its name or one of its identities.
func (a *Admin) claims(r *hub.Refusal, name string) bool { return a.isNamed(r.Claim, name) }

// isNamed reports whether a name or an identity in a refused message is that of an agent.
func (a *Admin) isNamed(ref, name string) bool {
	if ref == name {
		return true
	}
	e, err := a.c.Hub.Directory().Resolve(ref)
	return err == nil && e.Name == name
}
