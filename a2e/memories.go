package a2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Tiers of a memory (A2E §6.15).
const (
	TierWorking  = "working"  // of one session
	TierEpisodic = "episodic" // of one agent, over its sessions
	TierSemantic = "semantic" // of all agents
)

// HomeTier is the tier with whose entries those of a tier are kept: itself, or
// episodic for a name that is not of the protocol, which [MemoryEntry] allows.
func HomeTier(tier string) string {
	switch tier {
	case TierWorking, TierSemantic:
		return tier
	}
	return TierEpisodic
}

// MemoryEntry is one entry of a memory (A2E §6.14). Key is an object; two keys
// are the same when their members are.
type MemoryEntry struct {
	Key       json.RawMessage `json:"key"`
	Content   json.RawMessage `json:"content"`
	Tier      string          `json:"tier"`
	Tags      []string        `json:"tags"`
	Source    string          `json:"source"`
	Score     float64         `json:"score"`
	TTL       int64           `json:"ttl"`        // seconds; 0: for ever
	CreatedAt json.RawMessage `json:"created_at"` // seconds since 1970, the literal as given
	UpdatedAt json.RawMessage `json:"updated_at"`
}

// MemoryQuery selects entries: all filters that are set must hold. Keys match
// whole, of Tags one suffices, an empty Tier is every tier.
type MemoryQuery struct {
	Keys     []json.RawMessage
	Query    string // for a similarity search, where there is one
	Tags     []string
	Tier     string
	Limit    int64 // of retrieve
	MinScore float64
}

// Match reports whether retrieve finds an entry, and its score: 1 for its key, the
// share of the tags that it has, and 0.25 for a tier that was asked for. keyed says
// that its key is one of q.Keys.
func (q MemoryQuery) Match(e MemoryEntry, keyed bool) (score float64, ok bool) {
	tags := slices.Compact(slices.Sorted(slices.Values(q.Tags)))
	hits := 0
	for _, t := range tags {
		if slices.Contains(e.Tags, t) {
			hits++
		}
	}
	if q.Tier != "" && q.Tier != e.Tier || len(q.Keys) > 0 && !keyed || len(tags) > 0 && hits == 0 {
		return 0, false
	}
	if q.Tier != "" {
		score += 0.25
	}
	if len(q.Keys) > 0 {
		score++
	}
	if len(tags) > 0 {
		score += float64(hits) / float64(len(tags))
	}
	return score, true
}

// Best gives the entries with the highest scores, at most q.Limit. Less than 1 gives
// none.
func (q MemoryQuery) Best(found []MemoryEntry) []MemoryEntry {
	slices.SortStableFunc(found, func(a, b MemoryEntry) int { return cmp.Compare(b.Score, a.Score) })
	return found[:min(max(q.Limit, 0), int64(len(found)))]
}

// Forgets reports whether forget deletes an entry: one of the tier, if one is named,
// with one of the keys or one of the tags. Episodic memory has entries of other names
// too.
func (q MemoryQuery) Forgets(e MemoryEntry, keyed bool) bool {
	return (q.Tier == "" || q.Tier == e.Tier || q.Tier == TierEpisodic && HomeTier(e.Tier) == TierEpisodic) &&
		(keyed || slices.ContainsFunc(q.Tags, func(t string) bool { return slices.Contains(e.Tags, t) }))
}

// Memories is the capability "memory". A memory_id belongs to the identity that
// opened it: for every other it is [ErrMemoryNotFound].
type Memories interface {
	Init(ctx context.Context, r *Request, namespace string, scope map[string]string,
		metadata json.RawMessage) (memoryID string, err error)
	// Store writes entries and reports those that were written, and a text for
	// each that was not.
	Store(ctx context.Context, r *Request, memoryID string, entries []json.RawMessage) (stored []MemoryEntry,
		faults []string, err error)
	Retrieve(ctx context.Context, r *Request, memoryID string, q MemoryQuery) ([]MemoryEntry, error)
	Forget(ctx context.Context, r *Request, memoryID string, q MemoryQuery) (deleted int, err error)
}

// ServeMemories makes the provider of the capability "memory".
func ServeMemories(m Memories) Provider { return memoryProvider{m} }

type memoryProvider struct{ m Memories }

func (p memoryProvider) Serve(ctx context.Context, r *Request) (Response, error) {
	id := r.Str("memory_id")
	q := MemoryQuery{
		Keys: r.Values("keys"), Query: r.Str("query"), Tags: r.Strings("tags"), Tier: r.Str("tier"),
		Limit: r.Int("limit"), MinScore: r.Float("min_score"),
	}
	switch r.Type {
	case "memory/init/req":
		scope := map[string]string{}
		if err := jsonx.Decode(r.Get("scope"), &scope); err != nil {
			return Response{}, ErrSchema.Because(err)
		}
		ns := r.Str("namespace")
		id, err := p.m.Init(ctx, r, ns, scope, r.Get("metadata"))
		return Response{Body: map[string]any{"memory_id": id, "namespace": ns, "success": true}}, err
	case "memory/store/req":
		stored, faults, err := p.m.Store(ctx, r, id, r.Values("entries"))
		return Response{Body: map[string]any{"stored": notNil(stored), "errors": notNil(faults)}}, err
	case "memory/retrieve/req":
		found, err := p.m.Retrieve(ctx, r, id, q)
		return Response{Body: map[string]any{"entries": notNil(found), "total": len(found)}}, err
	case "memory/forget/req":
		n, err := p.m.Forget(ctx, r, id, q)
		return Response{Body: map[string]any{"deleted": n}}, err
	}
	return Response{}, ErrUnknownType
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// MemoryStore keeps memories in this process, within bounds: what a host
// offers when the embedder has nothing better. Entries are matched exactly; it
// has no similarity search, so that Query and MinScore select nothing away.
// Working memory belongs to the session, episodic memory to the identity,
// namespace and scope, semantic memory to the namespace and everybody in it.
// When a tier is full, its oldest entry goes. The zero value is ready.
type MemoryStore struct {
	PerTier int              // entries of one tier of one memory; 0 means 1,000
	Entry   int              // bytes of one entry; 0 means 64 KiB
	PerSelf int              // bytes that one identity has written; 0 means 8 MiB: more are memory_full
	Total   int              // bytes of all entries; 0 means 64 MiB: more are memory_full
	Handles int              // memory ids of one identity; 0 means 256: the oldest goes
	Now     func() time.Time // nil means time.Now

	mu       sync.Mutex
	used     map[string]int // identity → bytes
	total    int
	handles  map[string]*memoryHandle
	byOwner  map[string][]string // identity → its handles, oldest first
	tiers    map[string]*memoryTier
	sessions map[string]struct{} // sessions whose end is awaited
}

type memoryHandle struct {
	owner string
	tiers map[string]string // tier name → key into tiers
}

type memoryTier struct{ entries []*memoryEntry } // oldest first

type memoryEntry struct {
	MemoryEntry
	canonical string
	expires   time.Time
	owner     string
	size      int
}

// count adds n bytes to what an identity holds.
func (m *MemoryStore) count(owner string, n int) {
	m.total += n
	m.used[owner] += n
	if m.used[owner] == 0 {
		delete(m.used, owner)
	}
}

func (m *MemoryStore) now() time.Time {
	if m.Now != nil {
		return m.Now()
	}
	return time.Now()
}

func orDefault(n, d int) int {
	if n <= 0 {
		return d
	}
	return n
}

// Init opens a memory. The same identity, namespace and scope find the same
// episodic entries again.
func (m *MemoryStore) Init(_ context.Context, r *Request, namespace string, scope map[string]string,
	_ json.RawMessage) (string, error) {
	scopeText, err := jsonx.Encode(scope)
	if err != nil {
		return "", ErrSchema.Because(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handles == nil {
		m.handles, m.byOwner = map[string]*memoryHandle{}, map[string][]string{}
		m.tiers, m.sessions = map[string]*memoryTier{}, map[string]struct{}{}
		m.used = map[string]int{}
	}
	owner, id, session := r.Identity.Name, NewID(), r.Session.ID()
	own := m.byOwner[owner]
	if len(own) >= orDefault(m.Handles, 256) {
		delete(m.handles, own[0])
		own = slices.Clone(own[1:])
	}
	m.byOwner[owner] = append(own, id)
	m.handles[id] = &memoryHandle{owner: owner, tiers: map[string]string{
		TierWorking:  fmt.Sprintf("w%q%q%q", session, namespace, scopeText),
		TierEpisodic: fmt.Sprintf("e%q%q%q", owner, namespace, scopeText),
		TierSemantic: fmt.Sprintf("s%q", namespace),
	}}
	if _, watched := m.sessions[session]; !watched {
		m.sessions[session] = struct{}{}
		context.AfterFunc(r.Session.ctx, func() { m.sessionEnded(session) })
	}
	return id, nil
}

// sessionEnded drops the working memory of a session.
func (m *MemoryStore) sessionEnded(session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, session)
	prefix := fmt.Sprintf("w%q", session)
	for k := range m.tiers {
		if strings.HasPrefix(k, prefix) {
			for _, e := range m.tiers[k].entries {
				m.count(e.owner, -e.size)
			}
			delete(m.tiers, k)
		}
	}
}

func (m *MemoryStore) handle(r *Request, id string) (*memoryHandle, error) {
	h := m.handles[id]
	if h == nil || h.owner != r.Identity.Name {
		return nil, ErrMemoryNotFound
	}
	return h, nil
}

// canonicalKey gives equal text for equal keys, whatever the order of their
// members and the spelling of their numbers, and different text for all others.
func canonicalKey(key json.RawMessage) (string, error) {
	if err := jsonx.Valid(key, DefaultMaxDepth); err != nil {
		return "", err
	}
	return string(appendCanonical(nil, trimLine(key))), nil
}

func appendCanonical(dst, v []byte) []byte {
	switch {
	case v[0] == '{':
		ms := members(v)
		names := make([]string, len(ms))
		order := make([]int, len(ms))
		for i := range ms {
			names[i], _ = unquote(ms[i].name.of(v))
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return strings.Compare(names[a], names[b]) })
		dst = append(dst, '{')
		for _, i := range order {
			dst = appendString(dst, names[i])
			dst = append(appendCanonical(append(dst, ':'), ms[i].value.of(v)), ',')
		}
		return append(dst, '}')
	case v[0] == '[':
		dst = append(dst, '[')
		elements(v, func(_ int, e []byte) bool {
			dst = append(appendCanonical(dst, e), ',')
			return true
		})
		return append(dst, ']')
	case v[0] == '"':
		s, _ := unquote(v)
		return appendString(dst, s)
	case isNumber(v[0]):
		return appendDecimal(dst, v)
	}
	return append(dst, v...)
}

// appendDecimal writes a number literal as digits without outer zeros and a
// power of ten: 1, 1.0 and 10e-1 are the same text.
func appendDecimal(dst, v []byte) []byte {
	mantissa, exp, _ := strings.Cut(strings.ToLower(string(v)), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	power, err := strconv.ParseInt(exp, 10, 32)
	if exp != "" && err != nil {
		return append(dst, v...) // beyond reason: equal only to itself
	}
	power -= int64(len(fraction))
	digits := strings.TrimLeft(whole+fraction, "0")
	n := len(digits)
	digits = strings.TrimRight(digits, "0")
	power += int64(n - len(digits))
	if digits == "" {
		return append(dst, '0')
	}
	if negative {
		dst = append(dst, '-')
	}
	dst = append(append(dst, digits...), 'e')
	return strconv.AppendInt(dst, power, 10)
}

// Store writes entries; one with the key of another in the same tier takes its
// place.
func (m *MemoryStore) Store(_ context.Context, r *Request, id string,
	entries []json.RawMessage) (stored []MemoryEntry, faults []string, err error) {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := m.handle(r, id)
	if err != nil {
		return nil, nil, err
	}
	for i, raw := range entries {
		e, fault := m.entry(raw, now)
		if fault != "" {
			faults = append(faults, fmt.Sprintf("entry %d: %s", i, fault))
			continue
		}
		e.owner, e.size = h.owner, len(raw)+512
		if m.used[e.owner]+e.size > orDefault(m.PerSelf, 8<<20) || m.total+e.size > orDefault(m.Total, 64<<20) {
			if len(stored) == 0 {
				return nil, faults, ErrMemoryFull
			}
			faults = append(faults, fmt.Sprintf("entry %d: memory full", i))
			continue
		}
		place := h.tiers[HomeTier(e.Tier)]
		t := m.tiers[place]
		if t == nil {
			t = &memoryTier{}
			m.tiers[place] = t
		}
		m.count(e.owner, e.size)
		if old := slices.IndexFunc(t.entries,
			func(o *memoryEntry) bool { return o.canonical == e.canonical }); old >= 0 {
			m.count(t.entries[old].owner, -t.entries[old].size)
			t.entries[old] = e
		} else {
			t.entries = append(t.entries, e)
			if len(t.entries) > orDefault(m.PerTier, 1000) {
				m.count(t.entries[0].owner, -t.entries[0].size)
				t.entries = slices.Clone(t.entries[1:])
			}
		}
		stored = append(stored, e.MemoryEntry)
	}
	return stored, faults, nil
}

var memoryEntryFields = []string{"key", "content", "tier"}

func (m *MemoryStore) entry(raw json.RawMessage, now time.Time) (*memoryEntry, string) {
	if len(raw) > orDefault(m.Entry, 64<<10) {
		return nil, "too large"
	}
	stamp := json.RawMessage(appendTime(nil, now))
	e := &memoryEntry{MemoryEntry: MemoryEntry{Score: 1, CreatedAt: stamp, UpdatedAt: stamp}}
	if err := jsonx.Decode(raw, &e.MemoryEntry); err != nil {
		return nil, "not an entry"
	}
	for i, v := range []json.RawMessage{e.Key, e.Content, json.RawMessage(e.Tier)} {
		if len(v) == 0 {
			return nil, memoryEntryFields[i] + " is missing"
		}
	}
	if jsonx.Kind(e.Key) != '{' {
		return nil, "key is not an object"
	}
	for _, v := range []*json.RawMessage{&e.CreatedAt, &e.UpdatedAt} {
		if jsonx.Kind(*v) != '0' {
			return nil, "a time is not a number"
		}
	}
	var err error
	e.canonical, err = canonicalKey(e.Key)
	if err != nil {
		return nil, "key is not usable"
	}
	if e.TTL < 0 {
		return nil, "ttl is negative"
	}
	if e.TTL > 0 && e.TTL < int64(math.MaxInt64/time.Second) {
		e.expires = now.Add(time.Duration(e.TTL) * time.Second)
	}
	e.Tags = notNil(e.Tags)
	e.Key, e.Content = slices.Clone(e.Key), slices.Clone(e.Content)
	return e, ""
}

// each visits the entries of the tiers that q names, and drops the expired.
func (m *MemoryStore) each(h *memoryHandle, q MemoryQuery, now time.Time, visit func(e *memoryEntry) (drop bool)) {
	for _, tier := range []string{TierWorking, TierEpisodic, TierSemantic} {
		key := h.tiers[tier]
		t := m.tiers[key]
		if t == nil || q.Tier != "" && HomeTier(q.Tier) != tier {
			continue
		}
		t.entries = slices.DeleteFunc(t.entries, func(e *memoryEntry) bool {
			drop := !e.expires.IsZero() && !now.Before(e.expires) || visit(e)
			if drop {
				m.count(e.owner, -e.size)
			}
			return drop
		})
		if len(t.entries) == 0 {
			delete(m.tiers, key)
		}
	}
}

func canonicalKeys(keys []json.RawMessage) map[string]bool {
	out := make(map[string]bool, len(keys))
	for _, k := range keys {
		if c, err := canonicalKey(k); err == nil {
			out[c] = true
		}
	}
	return out
}

// Retrieve gives matching entries, best first, as [MemoryQuery.Match] scores them.
func (m *MemoryStore) Retrieve(_ context.Context, r *Request, id string, q MemoryQuery) ([]MemoryEntry, error) {
	keys := canonicalKeys(q.Keys)
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := m.handle(r, id)
	if err != nil {
		return nil, err
	}
	found := []MemoryEntry{}
	m.each(h, q, m.now(), func(e *memoryEntry) bool {
		if score, ok := q.Match(e.MemoryEntry, keys[e.canonical]); ok {
			hit := e.MemoryEntry
			hit.Score = math.Round(score*1e4) / 1e4
			found = append(found, hit)
		}
		return false
	})
	return q.Best(found), nil
}

// Forget deletes entries that have one of the keys or one of the tags, in the
// tier given, or in all when it is empty. Without keys and tags nothing goes.
func (m *MemoryStore) Forget(_ context.Context, r *Request, id string, q MemoryQuery) (int, error) {
	keys := canonicalKeys(q.Keys)
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := m.handle(r, id)
	if err != nil {
		return 0, err
	}
	deleted := 0
	m.each(h, q, m.now(), func(e *memoryEntry) bool {
		forget := q.Forgets(e.MemoryEntry, keys[e.canonical])
		if forget {
			deleted++
		}
		return forget
	})
	return deleted, nil
}
