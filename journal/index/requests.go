package index

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley"
)

// A RequestFilter selects requests with their state. From and To must be set; other zero
// fields select all.
type RequestFilter struct {
	From, To     string // To: as addressed
	Protocol     string // of the request's origin
	Conversation parley.ID
	Changed      time.Time                   // the state changed after this
	Keep         func(last *LastRecord) bool // nil: every state. It must not call the index
	Cursor       string                      // Next of the previous page
	Limit        int                         // 0: 100; at most MaxLimit
}

// A LastRecord is the record that gave a request its present state: the request itself; an
// event that has a state; an input that answered the state NeedsInput; or the first terminal
// reply, after which nothing counts.
type LastRecord struct {
	Kind  parley.Kind
	State parley.State // of an event
	Act   string
	Code  parley.Code // of a failure
	Time  time.Time
}

// A RequestState is a request and the record that gave it its present state.
type RequestState struct {
	Message
	Last LastRecord
}

// A RequestPage is a part of the requests that a filter selects: those whose state changed
// last come first. A page may be shorter than its limit, and yet not be the last.
type RequestPage struct {
	Requests []RequestState
	Next     string // cursor of the next page; "": this page is the last
	Total    int    // on all pages, counted among the MaxRequests that changed last
}

// MaxRequests bounds the requests that one call of [Index.Requests] looks at.
const MaxRequests = 10_000

// Requests returns a page of the requests from one agent to another. The time it takes grows with
// their number, up to MaxRequests. Errors: ErrFilter, or the context's own.
func (x *Index) Requests(ctx context.Context, f RequestFilter) (page RequestPage, err error) {
	if f.From == "" || f.To == "" {
		return page, errors.Join(ErrFilter, errors.New("requests are found by sender and recipient"))
	}
	before := int64(math.MaxInt64)
	if f.Cursor != "" {
		if before, err = parseCursor(f.Cursor); err != nil {
			return page, err
		}
	}
	err = x.view(ctx, func(tx *sqlite.Conn) error {
		from, err := agentKey(tx, f.From)
		if err != nil || from == 0 {
			return err
		}
		to, err := agentKey(tx, f.To)
		if err != nil || to == 0 {
			return err
		}
		s := requestScan{f: &f, from: from, to: to, limit: limit(f.Limit)}
		if err := s.scan(tx, before); err != nil {
			return err
		}
		page.Total = s.found
		if f.Cursor != "" {
			all := requestScan{f: &f, from: from, to: to}
			if err := all.scan(tx, math.MaxInt64); err != nil {
				return err
			}
			page.Total = all.found
		}
		page.Next = s.next
		page.Requests, err = s.read(tx)
		return err
	})
	return page, err
}

// requestScan reads the states of requests, the last changed first.
type requestScan struct {
	f        *RequestFilter
	from, to int64 // numbers of the agents
	limit    int   // of page

	page  []requestRow
	found int // more may follow the page
	next  string
}

type requestRow struct {
	key, last int64
	record    LastRecord
}

// scan looks at the requests whose state has a key before the given one.
func (s *requestScan) scan(tx *sqlite.Conn, before int64) error {
	c := clause{}
	c.and(true, "m.sender=? AND m.recipient=? AND m.last<?", s.from, s.to, before)
	c.and(!s.f.Changed.IsZero(), "m.last>=?", s.f.Changed.UnixMicro()<<8) // a key is never older than its time
	c.and(!s.f.Changed.IsZero(), "a.time>?", s.f.Changed.UnixNano())
	c.and(s.f.Protocol != "", "m.protocol=?", s.f.Protocol)
	c.and(!s.f.Conversation.IsZero(), "m.conversation=(SELECT n FROM conversations WHERE id=?)", s.f.Conversation[:])
	query, rows, last := "", 0, int64(0)
	for i, w := range c.where {
		if i > 0 {
			query += " AND "
		}
		query += w
	}
	err := execute(tx, `SELECT m.n, m.last, a.kind, a.state, a.act, a.time, a.error
		FROM messages m INDEXED BY messages_requests CROSS JOIN messages a ON a.n=m.last
		WHERE `+query+" ORDER BY m.last DESC LIMIT ?", func(q *sqlite.Stmt) error {
		r := requestRow{q.ColumnInt64(0), q.ColumnInt64(1), LastRecord{Kind: parley.Kind(q.ColumnInt(2)),
			State: parley.State(q.ColumnInt(3)), Act: q.ColumnText(4), Time: timeOf(q.ColumnInt64(5))}}
		if e := readReason(q, 6); e != nil && r.record.Kind == parley.Failure {
			r.record.Code = e.Code
		}
		rows, last = rows+1, r.last
		if s.f.Keep != nil && !s.f.Keep(&r.record) {
			return nil
		}
		s.found++
		switch {
		case len(s.page) < s.limit:
			s.page = append(s.page, r)
		case s.next == "" && s.limit > 0:
			s.next = formatCursor(s.page[len(s.page)-1].last)
		}
		return nil
	}, append(c.args, MaxRequests)...)
	if rows == MaxRequests && s.next == "" && s.limit > 0 {
		s.next = formatCursor(last) // older ones were not looked at
	}
	return err
}

// read reads the requests of the page.
func (s *requestScan) read(tx *sqlite.Conn) ([]RequestState, error) {
	keys := make([]int64, len(s.page))
	for i := range s.page {
		keys[i] = s.page[i].key
	}
	list, err := selectMessages(tx, false, in("m.n", keys))
	if err != nil {
		return nil, err
	}
	slices.Reverse(list) // by key
	out := make([]RequestState, 0, len(list))
	for _, r := range s.page {
		if i, ok := slices.BinarySearchFunc(list, r.key, func(m Message, key int64) int {
			return cmp.Compare(m.key, key)
		}); ok {
			out = append(out, RequestState{list[i], r.record})
		}
	}
	return out, nil
}

// lastRecord is the record of [LastRecord] in a row that may still change.
type lastRecord struct {
	key   int64
	kind  parley.Kind
	state parley.State
}

// changeRequest notes that w may have changed the state of its request.
func (s *store) changeRequest(w *row) error {
	switch w.Kind {
	case parley.Response, parley.Failure, parley.Input:
	case parley.Event:
		if w.State == parley.NoState {
			return nil
		}
	default:
		return nil
	}
	t, err := s.track(w.InReplyTo, w.Position.Partition)
	if err != nil || t == nil || t.last.key == 0 || t.last.kind.Terminal() ||
		w.Kind == parley.Input && t.last.state != parley.NeedsInput {
		return err
	}
	t.last = lastRecord{w.tracked.key, w.Kind, w.State}
	s.change(t)
	if !w.Kind.Terminal() {
		return nil
	}
	t.answer = max(w.Time.UnixNano()-t.time, 1) // 0: not answered
	for _, step := range slowSteps {
		if t.answer < int64(step) {
			break
		}
		if err := s.enlistAs(t.key, slowList(step)); err != nil {
			return err
		}
	}
	return nil
}
