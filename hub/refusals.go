package hub

import (
	"cmp"
	"encoding/base32"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
)

// A Refusal is a refused message or request, for `parley refused` and
// `parley explain`.
type Refusal struct {
	Ref      string
	Time     time.Time
	Protocol string
	Source   string // network address
	Claim    string // the claimed sender; proved only if Verdict says so
	To       string
	Step     string // "decode", "verify", "admit", …
	Code     parley.Code
	Text     string // sent to the sender
	Cause    string // for the operator only
	By       parley.Source
	Reason   parley.Reason // as in parley.Error
	Detail   string
	Size     int // bytes
	Verdict  parley.Verdict

	Message parley.ID // of the record, if the refused message was recorded; the hub sets it

	number uint64 // of all, from 1
}

// Because gives r with the source, reason and detail of the parley.Error in err, which
// need not have one.
func (r Refusal) Because(err error) Refusal {
	if e, ok := errors.AsType[*parley.Error](err); ok {
		r.By, r.Reason, r.Detail = e.Source, e.Reason, e.Detail
	}
	return r
}

// refusals is a ring. One source fills at most an eighth of it within a minute; beyond
// that it overwrites its own earlier refusals. So a flood cannot hide the refusals of
// others, and every reference can be explained for a while.
type refusals struct {
	rnd io.Reader

	mu      sync.Mutex
	ring    []Refusal
	next    int
	count   uint64
	kinds   map[RefusalKind]uint64
	lately  [60]secondCount // by second
	minute  time.Time
	sources map[string]*sourceSlots

	unreported []recordedRefusal
}

// sourceSlots are the slots of the ring that one source took in this minute.
type sourceSlots struct {
	at   []int
	next int
}

func newRefusals(size int, rnd io.Reader) *refusals {
	return &refusals{rnd: rnd, ring: make([]Refusal, 0, size), sources: map[string]*sourceSlots{},
		kinds: map[RefusalKind]uint64{}}
}

// Refuse keeps a refusal and returns its reference.
func (h *Hub) Refuse(r Refusal) string {
	if r.Time.IsZero() {
		r.Time = h.c.Now()
	}
	r.By = cmp.Or(r.By, (&parley.Error{Code: r.Code}).Stated().Source)
	return h.refusals.add(r)
}

func (q *refusals) add(r Refusal) string {
	var b [10]byte
	if _, err := io.ReadFull(q.rnd, b[:]); err != nil {
		return ""
	}
	r.Ref = strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
	r.Text, r.Cause, r.Claim, r.To = clip(r.Text), clip(r.Cause), clip(r.Claim), clip(r.To)
	r.Detail = clip(r.Detail)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count++
	r.number = q.count
	r.Message = q.record(&r)
	q.note(r)
	q.countSecond(r.Time)
	i := q.slotFor(r) // which may extend the ring
	q.ring[i] = r
	return r.Ref
}

// slotFor finds the slot of a refusal.
func (q *refusals) slotFor(r Refusal) int {
	if m := r.Time.Truncate(time.Minute); !m.Equal(q.minute) {
		q.minute = m
		clear(q.sources)
	}
	source := r.Source
	p := q.sources[source]
	if p == nil {
		if len(q.sources) >= cap(q.ring) {
			source = "" // all further sources of this minute share their slots
		}
		if p = q.sources[source]; p == nil {
			p = &sourceSlots{}
			q.sources[source] = p
		}
	}
	if share := max(1, cap(q.ring)/8); len(p.at) >= share {
		i := p.at[p.next%share]
		p.next++
		if source == "" || q.ring[i].Source == source {
			return i
		}
	}
	i := q.next
	if len(q.ring) < cap(q.ring) {
		i = len(q.ring)
		q.ring = append(q.ring, Refusal{})
	} else {
		q.next = (q.next + 1) % len(q.ring)
	}
	if len(p.at) < max(1, cap(q.ring)/8) {
		p.at = append(p.at, i)
	}
	return i
}

// clip bounds texts that guests choose.
func clip(s string) string {
	if len(s) > 512 {
		return strings.ToValidUTF8(s[:512], "") + "…"
	}
	return s
}

func (q *refusals) total() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}

// secondCount is the number of refusals in one second.
type secondCount struct {
	unix int64
	n    int
}

// countSecond counts a refusal; q.mu is held.
func (q *refusals) countSecond(at time.Time) {
	unix := at.Unix()
	c := &q.lately[uint64(unix)%uint64(len(q.lately))]
	switch {
	case c.unix > unix:
		return // older than a minute
	case c.unix < unix:
		*c = secondCount{unix: unix}
	}
	c.n++
}

// RefusedLately counts the refusals of the last minute.
func (h *Hub) RefusedLately() (n int) {
	q, now := h.refusals, h.c.Now().Unix()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.lately {
		if c.unix <= now && c.unix > now-int64(len(q.lately)) {
			n += c.n
		}
	}
	return n
}

// Refused lists the refusals in the ring, the newest first, at most n; all for n <= 0.
func (h *Hub) Refused(n int) []Refusal {
	out, _ := h.RefusedSince(0)
	if n > 0 && len(out) > n {
		out = out[:n]
	}
	return out
}

// RefusedSince lists the refusals in the ring after the first n of all, the newest first, and gives the number of all.
func (h *Hub) RefusedSince(n uint64) (out []Refusal, all uint64) {
	q := h.refusals
	q.mu.Lock()
	if all = q.count; all > n {
		for i := range q.ring {
			if q.ring[i].number > n {
				out = append(out, q.ring[i])
			}
		}
	}
	q.mu.Unlock()
	slices.SortFunc(out, func(a, b Refusal) int { return cmp.Compare(b.number, a.number) })
	return out, all
}

// Explain finds a refusal by its reference.
func (h *Hub) Explain(ref string) (Refusal, bool) {
	q := h.refusals
	q.mu.Lock()
	defer q.mu.Unlock()
	ref = strings.ToLower(ref)
	i := slices.IndexFunc(q.ring, func(r Refusal) bool { return r.Ref == ref })
	if i < 0 {
		return Refusal{}, false
	}
	return q.ring[i], true
}
