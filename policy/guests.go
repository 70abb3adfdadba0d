package policy

import (
	"cmp"
	"container/list"
	"math"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/source"
)

// GuestConfig is the budget of all guests together. Zero means the default named
// with each field.
type GuestConfig struct {
	Memory        int64   // bytes held for guests: 16 MiB
	Disk          int64   // bytes recorded for guests in 24 hours, of which 12 minutes' worth may come at once: 1 GiB
	Registrations int     // agents that registered themselves: 4,096
	Mailboxes     int     // of agents that registered themselves: 1,024
	Requests      float64 // a second from one source, twice as many at once; the answers to more are delayed: 100
	Share         float64 // of the budget that one source may use where it is scarce: 0.25

	Now func() time.Time
}

// Kind is the kind of a guest's entry.
type Kind int

// The kinds of entries.
const (
	Registration Kind = iota // of an agent that registered itself, in any protocol
	Mailbox                  // of such an agent, with the messages in it
	Manifest                 // that a guest published
	kinds
)

func (k Kind) String() string {
	return [...]string{"registration", "mailbox", "manifest", "entry"}[min(k, kinds)]
}

// Guests keeps the one budget of all guests: callers and identities that no
// operator, configuration or key vouches for. For example, a binding calls
// [Guests.Keep] before it stores a registration, and the hub calls [Guests.Write]
// before it records a guest's message. When the budget is used up, both return a
// refusal with the time of the next try. Enrolled agents never pass through here.
//
// One source, a network address or the /64 of an IPv6 address, has a share of
// everything. A new entry that needs room evicts the least recently used one, if
// that was never used or not for an hour. Guests is safe for concurrent use.
type Guests struct {
	c GuestConfig

	mu      sync.Mutex
	entries map[entryKey]*list.Element // of *guestEntry
	order   *list.List                 // least recently used first
	count   [kinds]int
	bytes   int64
	sources map[string]*account
	disk    debtBucket
	stats   GuestStats
}

// GuestStats is the use of the budget.
type GuestStats struct {
	Limits        GuestConfig `json:"-"`
	Memory        int64       `json:"memory"` // bytes
	Registrations int         `json:"registrations"`
	Mailboxes     int         `json:"mailboxes"`
	Manifests     int         `json:"manifests"`
	Disk          int64       `json:"disk"`    // bytes that may be recorded now
	Written       uint64      `json:"written"` // bytes since the start
	Refused       uint64      `json:"refused"` // for want of budget, since the start
	Evicted       uint64      `json:"evicted"` // entries, since the start
	Delayed       uint64      `json:"delayed"` // answers, since the start
}

type entryKey struct {
	kind Kind
	key  string
}

type guestEntry struct {
	GuestEntry
	used    time.Time
	touched bool // used since it was made
}

// A GuestEntry is something the hub stores for a guest.
type GuestEntry struct {
	Kind   Kind
	Key    string // unique within the kind
	Source string // of [Source]; "" where it is not known
	Bytes  int64  // held in memory
	// Evict removes it to make room for another. It is called without locks, by
	// the goroutine that needs the room.
	Evict func()
}

// account is the use of one source.
type account struct {
	count [kinds]int
	bytes int64
	disk  debtBucket
	pace  debtBucket
	seen  time.Time
}

// debtBucket is a token bucket that may go into debt, so that one thing that is
// larger than the bucket passes when the bucket is not empty.
type debtBucket struct {
	tokens float64
	at     time.Time
}

// fill adds the tokens earned since the last call, up to size.
func (b *debtBucket) fill(now time.Time, size, perSecond float64) {
	if b.at.IsZero() {
		b.tokens = size
	} else if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens = min(size, b.tokens+d*perSecond)
	}
	b.at = now
}

const (
	entryBytes  = 1 << 10 // the overhead of an entry
	idle        = time.Hour
	maxSources  = 1 << 14
	diskAtOnce  = 120 // part of the day's bytes that may come at once: those of 12 minutes
	paceAtOnce  = 2   // seconds of requests that may come at once
	maxPace     = 10 * time.Second
	bodyRequest = 16 << 10 // bytes of a body that count as one more request
)

// NewGuests makes a budget.
func NewGuests(c GuestConfig) *Guests {
	c.Memory = cmp.Or(c.Memory, 16<<20)
	c.Disk = cmp.Or(c.Disk, 1<<30)
	c.Registrations = cmp.Or(c.Registrations, 4096)
	c.Mailboxes = cmp.Or(c.Mailboxes, 1024)
	c.Requests = cmp.Or(c.Requests, 100)
	c.Share = cmp.Or(c.Share, 0.25)
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Guests{c: c, entries: map[entryKey]*list.Element{}, order: list.New(), sources: map[string]*account{}}
}

// Source is the source of an address: itself, or the /64 of an IPv6 address. The
// address may have a port; "" and everything that is no address are one source.
func Source(address string) string { return source.Of(address) }

// limit is how many entries of a kind there may be.
func (g *Guests) limit(k Kind) int {
	switch k {
	case Registration:
		return g.c.Registrations
	case Mailbox:
		return g.c.Mailboxes
	}
	return math.MaxInt
}

func (g *Guests) share(n float64) float64 { return max(1, n*g.c.Share) }

// accountOf gives the account of a source; g.mu is held. If there are too many, it
// forgets one without entries: the least recently used of a sample.
func (g *Guests) accountOf(name string, now time.Time) *account {
	s := g.sources[name]
	if s == nil {
		if len(g.sources) >= maxSources {
			g.forgetSource()
		}
		s = &account{}
		g.sources[name] = s
	}
	s.seen = now
	return s
}

func (g *Guests) forgetSource() {
	oldest, looked := "", 0
	for name, s := range g.sources {
		if s.count == [kinds]int{} && (oldest == "" || s.seen.Before(g.sources[oldest].seen)) {
			oldest = name
		}
		looked++
		if looked >= 64 && oldest != "" {
			break
		}
	}
	delete(g.sources, oldest)
}

// Keep makes room for an entry and counts it; an entry with the same kind and key
// is replaced. Others are evicted before Keep returns.
func (g *Guests) Keep(e GuestEntry) *parley.Error {
	e.Bytes += entryBytes
	g.mu.Lock()
	now := g.c.Now()
	old := g.entries[entryKey{e.Kind, e.Key}]
	touched := false
	if old != nil {
		touched = old.Value.(*guestEntry).touched
		g.remove(old)
	}
	var out []*guestEntry
	for over, ofSource := g.over(e); over; over, ofSource = g.over(e) {
		victim := g.victim(e, ofSource, now)
		if victim == nil {
			for _, v := range out { // put back: none is evicted in vain
				g.add(v)
			}
			if old != nil {
				g.add(old.Value.(*guestEntry))
			}
			g.stats.Refused++
			g.mu.Unlock()
			return tryLater(time.Minute, "no more room for guests (%s)", e.Kind)
		}
		out = append(out, victim.Value.(*guestEntry))
		g.remove(victim)
	}
	g.add(&guestEntry{GuestEntry: e, used: now, touched: touched || old != nil})
	g.stats.Evicted += uint64(len(out))
	g.mu.Unlock()
	for _, v := range out {
		if v.Evict != nil {
			v.Evict()
		}
	}
	return nil
}

// Restore counts an entry from before the hub was started. It is never refused.
func (g *Guests) Restore(e GuestEntry) {
	e.Bytes += entryBytes
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.entries[entryKey{e.Kind, e.Key}]; old != nil {
		g.remove(old)
	}
	g.add(&guestEntry{GuestEntry: e, used: g.c.Now(), touched: true})
}

// Use notes that an entry was used by its owner or by others.
func (g *Guests) Use(k Kind, key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.entries[entryKey{k, key}]; at != nil {
		e := at.Value.(*guestEntry)
		e.used, e.touched = g.c.Now(), true
		g.order.MoveToBack(at)
	}
}

// Grow changes the size of an entry by a number of bytes, which may be below zero.
// It is refused where the share of the source is used up.
func (g *Guests) Grow(k Kind, key string, by int64) *parley.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.entries[entryKey{k, key}]
	if at == nil {
		return nil
	}
	e := at.Value.(*guestEntry)
	s := g.sources[e.Source]
	if by > 0 && (g.bytes+by > g.c.Memory || s.bytes+by > int64(g.share(float64(g.c.Memory)))) {
		g.stats.Refused++
		return tryLater(time.Minute, "no more room for guests (%s)", k)
	}
	e.Bytes += by
	s.bytes += by
	g.bytes += by
	return nil
}

// Drop ends the counting of an entry.
func (g *Guests) Drop(k Kind, key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.entries[entryKey{k, key}]; at != nil {
		g.remove(at)
	}
}

// over reports whether one more entry is too many, and whether for its source.
func (g *Guests) over(e GuestEntry) (over, ofSource bool) {
	limit := g.limit(e.Kind)
	if e.Source != "" {
		s := g.sources[e.Source]
		if s == nil {
			s = &account{}
		}
		if float64(s.count[e.Kind]+1) > g.share(float64(limit)) ||
			float64(s.bytes+e.Bytes) > g.share(float64(g.c.Memory)) {
			return true, true
		}
	}
	return g.count[e.Kind]+1 > limit || g.bytes+e.Bytes > g.c.Memory, false
}

// victim is the entry to evict for e; nil: there is none.
func (g *Guests) victim(e GuestEntry, ofSource bool, now time.Time) *list.Element {
	full := g.count[e.Kind]+1 > g.limit(e.Kind)
	if s := g.sources[e.Source]; ofSource && s != nil {
		full = float64(s.count[e.Kind]+1) > g.share(float64(g.limit(e.Kind)))
	}
	for at := g.order.Front(); at != nil; at = at.Next() {
		v := at.Value.(*guestEntry)
		switch {
		case ofSource && v.Source != e.Source:
		case full && v.Kind != e.Kind:
		case v.touched && now.Sub(v.used) < idle:
		default:
			return at
		}
	}
	return nil
}

func (g *Guests) add(e *guestEntry) {
	g.entries[entryKey{e.Kind, e.Key}] = g.order.PushBack(e)
	s := g.accountOf(e.Source, g.c.Now())
	s.count[e.Kind]++
	s.bytes += e.Bytes
	g.count[e.Kind]++
	g.bytes += e.Bytes
}

func (g *Guests) remove(at *list.Element) {
	e := g.order.Remove(at).(*guestEntry)
	delete(g.entries, entryKey{e.Kind, e.Key})
	s := g.sources[e.Source]
	s.count[e.Kind]--
	s.bytes -= e.Bytes
	g.count[e.Kind]--
	g.bytes -= e.Bytes
}

// Write takes the bytes of a guest's record from the day's budget before it is
// written, or refuses. A source that has used its share is refused while less than
// a quarter of the bytes that may come at once is left for all.
func (g *Guests) Write(from string, n int) *parley.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.fillDisk(from)
	size, perSecond := g.diskSize()
	switch {
	case g.disk.tokens <= 0:
		g.stats.Refused++
		return tryLater(wait(-g.disk.tokens, perSecond), "the hub records no more for guests just now")
	case s.disk.tokens <= 0 && g.disk.tokens < size/4:
		g.stats.Refused++
		return tryLater(wait(-s.disk.tokens, perSecond*g.c.Share),
			"the hub records no more for guests of this address just now")
	}
	g.wrote(s, n)
	return nil
}

// Wrote is Write for a record that cannot be refused, such as the answer to a
// guest's request.
func (g *Guests) Wrote(from string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wrote(g.fillDisk(from), n)
}

func (g *Guests) diskSize() (size, perSecond float64) {
	return float64(g.c.Disk) / diskAtOnce, float64(g.c.Disk) / (24 * 60 * 60)
}

func (g *Guests) fillDisk(from string) *account {
	now := g.c.Now()
	size, perSecond := g.diskSize()
	s := g.accountOf(from, now)
	g.disk.fill(now, size, perSecond)
	s.disk.fill(now, size*g.c.Share, perSecond*g.c.Share)
	return s
}

func (g *Guests) wrote(s *account, n int) {
	g.disk.tokens -= float64(n)
	s.disk.tokens -= float64(n)
	g.stats.Written += uint64(n)
}

// Pace counts a guest's request with a body of n bytes, and gives the delay of its
// answer: at most ten seconds.
func (g *Guests) Pace(from string, n int64) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.c.Now()
	s := g.accountOf(from, now)
	s.pace.fill(now, paceAtOnce*g.c.Requests, g.c.Requests)
	s.pace.tokens -= 1 + float64(n/bodyRequest)
	if s.pace.tokens >= 0 {
		return 0
	}
	g.stats.Delayed++
	// The debt is bounded, so that the longest delay pays it off.
	s.pace.tokens = max(s.pace.tokens, -g.c.Requests*maxPace.Seconds())
	return wait(-s.pace.tokens, g.c.Requests)
}

// Stats gives the use of the budget.
func (g *Guests) Stats() GuestStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	size, perSecond := g.diskSize()
	g.disk.fill(g.c.Now(), size, perSecond)
	s := g.stats
	s.Limits, s.Memory, s.Disk = g.c, g.bytes, int64(max(0, g.disk.tokens))
	s.Registrations, s.Mailboxes, s.Manifests = g.count[Registration], g.count[Mailbox], g.count[Manifest]
	return s
}

func wait(debt, perSecond float64) time.Duration {
	return time.Duration(min(debt/perSecond, 24*60*60)*float64(time.Second)) + time.Millisecond
}

func tryLater(after time.Duration, format string, args ...any) *parley.Error {
	e := parley.Refuse(parley.RateLimited, format+"; try again in %s, or ask the operator to enrol you",
		append(args, after.Round(time.Second))...)
	e.Retryable, e.After = true, after
	return e.With(parley.ByLimit, parley.GuestBudget, "")
}
