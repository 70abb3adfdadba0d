package a2e

import (
	"bytes"
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

// HomeTier is the tier that stores the entries of the given tier: itself, or episodic
// for a name unknown to the protocol, which [MemoryEntry] allows.
func HomeTier(tier string) string {
	switch tier {
	case TierWorking, TierSemantic:
		return tier
	}
	return TierEpisodic
}

// MemoryEntry is one entry of a memory (A2E §6.14). Key is an object; two keys are
// equal when their members are.
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

// ParseMemoryEntry reads an element of entries of memory/store/req; now, in seconds
// since 1970, is the default of its times. fault describes an error, or is empty.
func ParseMemoryEntry(raw, now json.RawMessage) (e MemoryEntry, fault string) {
	e = MemoryEntry{Score: 1, CreatedAt: now, UpdatedAt: now}
	err := jsonx.Decode(raw, &e)
	switch {
	case err != nil:
		return e, "not an entry"
	case jsonx.Kind(e.Key) != '{':
		return e, "key is not an object"
	case len(e.Content) == 0:
		return e, "content is missing"
	case e.Tier == "":
		return e, "tier is missing"
	case e.TTL < 0:
		return e, "ttl is negative"
	case jsonx.Kind(e.CreatedAt) != '0' || jsonx.Kind(e.UpdatedAt) != '0':
		return e, "a time is not a number"
	}
	if e.Tags == nil {
		e.Tags = []string{}
	}
	return e, ""
}

// Expires gives the end of an entry that is stored now; zero if it has none.
func (e *MemoryEntry) Expires(now time.Time) time.Time {
	if e.TTL <= 0 || e.TTL >= int64(math.MaxInt64/time.Second) {
		return time.Time{}
	}
	return now.Add(time.Duration(e.TTL) * time.Second)
}

// MemoryQuery selects entries that match all filters that are set. Keys match whole,
// one of Tags suffices, an empty Tier is every tier.
type MemoryQuery struct {
	Keys     []json.RawMessage
	Query    string // for a similarity search, where there is one
	Tags     []string
	Tier     string
	Limit    int64 // of retrieve
	MinScore float64
}

// Match reports whether retrieve finds an entry, and its score: 1 for its key, the
// share of q.Tags that it has, and 0.25 if its tier was requested. keyed: the key is
// one of q.Keys.
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

// Best gives the entries with the highest scores, at most q.Limit; none if that is
// below 1.
func (q MemoryQuery) Best(found []MemoryEntry) []MemoryEntry {
	slices.SortStableFunc(found, func(a, b MemoryEntry) int { return cmp.Compare(b.Score, a.Score) })
	return found[:min(max(q.Limit, 0), int64(len(found)))]
}

// Forgets reports whether forget deletes an entry: one of the tier, if set, with one of
// the keys or one of the tags. Episodic memory also has entries of other tier names.
func (q MemoryQuery) Forgets(e MemoryEntry, keyed bool) bool {
	return (q.Tier == "" || q.Tier == e.Tier || q.Tier == TierEpisodic && HomeTier(e.Tier) == TierEpisodic) &&
		(keyed || slices.ContainsFunc(q.Tags, func(t string) bool { return slices.Contains(e.Tags, t) }))
}

// Tiers gives the tiers that a query searches.
func (q MemoryQuery) Tiers() []string {
	if q.Tier != "" {
		return []string{HomeTier(q.Tier)}
	}
	return []string{TierWorking, TierEpisodic, TierSemantic}
}

// Memories is the capability "memory". A memory_id belongs to the identity that opened
// it; other identities get [ErrMemoryNotFound].
type Memories interface {
	Init(ctx context.Context, r *Request, namespace string, scope map[string]string,
		metadata json.RawMessage) (memoryID string, err error)
	// Store writes entries and reports the stored ones, and an error text for each
	// other entry.
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
		return Response{Body: map[string]any{"stored": stored, "errors": faults}}, err
	case "memory/retrieve/req":
		found, err := p.m.Retrieve(ctx, r, id, q)
		return Response{Body: map[string]any{"entries": found, "total": len(found)}}, err
	case "memory/forget/req":
		n, err := p.m.Forget(ctx, r, id, q)
		return Response{Body: map[string]any{"deleted": n}}, err
	}
	return Response{}, ErrUnknownType
}

// MemoryStore keeps memories in this process, within bounds, for embedders without a
// store of their own. Entries are matched exactly; without a similarity search, Query
// and MinScore have no effect. Working memory belongs to the session, episodic memory
// to the identity, namespace and scope, semantic memory to the namespace and all its
// users. When a tier is full, its oldest entry is dropped. The zero value is ready.
type MemoryStore struct {
	PerTier int              // entries of one tier of one memory; 0 means 1,000
	Entry   int              // bytes of one entry; 0 means 64 KiB
	PerSelf int              // bytes written by one identity; 0 means 8 MiB: more are memory_full
	Total   int              // bytes of all entries; 0 means 64 MiB: more are memory_full
	Handles int              // memory ids of one identity; 0 means 256: the oldest is dropped
	Now     func() time.Time // nil means time.Now

	mu       sync.Mutex
	used     map[string]int // identity → bytes
	total    int
	handles  map[string]*memoryHandle
	byOwner  map[string][]string       // identity → its handles, oldest first
	tiers    map[string][]*memoryEntry // oldest first
	sessions map[string]struct{}       // sessions whose end the store waits for
}

type memoryHandle struct {
	owner string
	tiers map[string]string // tier name → key into tiers
}

type memoryEntry struct {
	MemoryEntry
	canonical string
	expires   time.Time
	owner     string
	size      int
}

// count adds n bytes to the total of an identity.
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

// Init opens a memory. The same identity, namespace and scope always reach the same
// episodic entries.
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
		m.tiers, m.sessions = map[string][]*memoryEntry{}, map[string]struct{}{}
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
	for k, tier := range m.tiers {
		if strings.HasPrefix(k, prefix) {
			for _, e := range tier {
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

// canonicalKey gives equal text for equal keys, whatever the order of their members and
// the spelling of their numbers, and different text for other keys.
func canonicalKey(key json.RawMessage) (string, error) {
	if err := jsonx.Valid(key, DefaultMaxDepth); err != nil {
		return "", err
	}
	d := json.NewDecoder(bytes.NewReader(key))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	b, err := json.Marshal(canonicalNumbers(v))
	return string(b), err
}

func canonicalNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			v[name] = canonicalNumbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = canonicalNumbers(e)
		}
	case json.Number:
		return json.Number(decimal(string(v)))
	}
	return v
}

// decimal writes a number literal as digits without outer zeros and a power of ten:
// 1, 1.0 and 10e-1 are the same text.
func decimal(literal string) string {
	mantissa, exp, _ := strings.Cut(strings.ToLower(literal), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	power, err := strconv.ParseInt(exp, 10, 32)
	if exp != "" && err != nil {
		return literal // too large: equal only to itself
	}
	power -= int64(len(fraction))
	digits := strings.TrimLeft(whole+fraction, "0")
	n := len(digits)
	digits = strings.TrimRight(digits, "0")
	power += int64(n - len(digits))
	if digits == "" {
		return "0"
	}
	if negative {
		digits = "-" + digits
	}
	return digits + "e" + strconv.FormatInt(power, 10)
}

// Store writes entries; an entry replaces one with the same key in the same tier.
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
		tier := m.tiers[place]
		m.count(e.owner, e.size)
		if old := slices.IndexFunc(tier, func(o *memoryEntry) bool { return o.canonical == e.canonical }); old >= 0 {
			m.count(tier[old].owner, -tier[old].size)
			tier[old] = e
		} else {
			tier = append(tier, e)
			if len(tier) > orDefault(m.PerTier, 1000) {
				m.count(tier[0].owner, -tier[0].size)
				tier = slices.Clone(tier[1:])
			}
		}
		m.tiers[place] = tier
		stored = append(stored, e.MemoryEntry)
	}
	return stored, faults, nil
}

func (m *MemoryStore) entry(raw json.RawMessage, now time.Time) (*memoryEntry, string) {
	if len(raw) > orDefault(m.Entry, 64<<10) {
		return nil, "too large"
	}
	parsed, fault := ParseMemoryEntry(raw, appendTime(nil, now))
	if fault != "" {
		return nil, fault
	}
	e := &memoryEntry{MemoryEntry: parsed, expires: parsed.Expires(now)}
	var err error
	e.canonical, err = canonicalKey(e.Key)
	if err != nil {
		return nil, "key is not usable"
	}
	e.Key, e.Content = slices.Clone(e.Key), slices.Clone(e.Content)
	return e, ""
}

// each visits the entries of the tiers of q, and drops expired ones. keyed: the entry
// has one of q.Keys.
func (m *MemoryStore) each(h *memoryHandle, q MemoryQuery, visit func(e *memoryEntry, keyed bool) (drop bool)) {
	keys := make(map[string]bool, len(q.Keys))
	for _, k := range q.Keys {
		if c, err := canonicalKey(k); err == nil {
			keys[c] = true
		}
	}
	now := m.now()
	for _, tier := range q.Tiers() {
		key := h.tiers[tier]
		left := slices.DeleteFunc(m.tiers[key], func(e *memoryEntry) bool {
			drop := !e.expires.IsZero() && !now.Before(e.expires) || visit(e, keys[e.canonical])
			if drop {
				m.count(e.owner, -e.size)
			}
			return drop
		})
		if m.tiers[key] = left; len(left) == 0 {
			delete(m.tiers, key)
		}
	}
}

// Retrieve gives matching entries, best first, as [MemoryQuery.Match] scores them.
func (m *MemoryStore) Retrieve(_ context.Context, r *Request, id string, q MemoryQuery) ([]MemoryEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := m.handle(r, id)
	if err != nil {
		return nil, err
	}
	found := []MemoryEntry{}
	m.each(h, q, func(e *memoryEntry, keyed bool) bool {
		if score, ok := q.Match(e.MemoryEntry, keyed); ok {
			hit := e.MemoryEntry
			hit.Score = math.Round(score*1e4) / 1e4
			found = append(found, hit)
		}
		return false
	})
	return q.Best(found), nil
}

// Forget deletes entries that have one of the keys or one of the tags, in the given
// tier, or in all if it is empty. Without keys and tags it deletes none.
func (m *MemoryStore) Forget(_ context.Context, r *Request, id string, q MemoryQuery) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := m.handle(r, id)
	if err != nil {
		return 0, err
	}
	deleted := 0
	m.each(h, q, func(e *memoryEntry, keyed bool) bool {
		forget := q.Forgets(e.MemoryEntry, keyed)
		if forget {
			deleted++
		}
		return forget
	})
	return deleted, nil
}
