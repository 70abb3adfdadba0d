package a2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// memory is the capability memory, kept in the journal's state. Working memory belongs
// to a session, episodic memory to an agent, a namespace and a scope, semantic memory
// to a namespace and all its users. All of it outlives the hub, working memory for a
// day at the most.
type memory struct {
	entries *journal.Table[stored]
	handles *journal.Table[memoryHandle] // in the same bucket, under another prefix
	now     func() time.Time

	mu    sync.Mutex // one writer at a time, so that bounds hold
	used  map[string]int
	total int
}

// Bounds of the memories.
const (
	memoryEntry   = 64 << 10 // bytes of one entry
	memoryPerSelf = 8 << 20  // written by one agent
	memoryTotal   = 256 << 20
	memoryTier    = 1000 // entries of one tier; the oldest is dropped
	memoryHandles = 256  // of one agent
	workingFor    = 24 * time.Hour
)

func newMemory(j *journal.Journal, now func() time.Time) *memory {
	const bucket = "a2e.memory"
	return &memory{entries: journal.NewTable[stored](j, bucket, 0),
		handles: journal.NewTable[memoryHandle](j, bucket, 0),
		now:     now, used: map[string]int{}}
}

// memoryHandle is the memory of a memory_id.
type memoryHandle struct {
	Owner     string `json:"owner"`
	Namespace string `json:"namespace"`
	Scope     string `json:"scope"` // canonical JSON
}

// stored is the recorded form of an entry.
type stored struct {
	Owner string               `json:"owner"`
	Entry protocol.MemoryEntry `json:"entry"`
	Size  int                  `json:"size"`
}

// load counts the stored entries.
func (m *memory) load(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r, err := range m.entries.Range(ctx, "e/") {
		if err != nil && r.Revision == 0 { // else the record cannot be decoded
			return err
		}
		m.count(r.Value.Owner, r.Value.Size)
	}
	return nil
}

func (m *memory) count(owner string, n int) {
	m.total += n
	if m.used[owner] += n; m.used[owner] <= 0 {
		delete(m.used, owner)
	}
}

func digest(s ...string) string {
	h := sha256.New()
	for _, v := range s {
		_, _ = h.Write([]byte(strconv.Itoa(len(v)) + "\n" + v)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Init implements a2e.Memories: the same agent, namespace and scope get the
// same memory_id.
func (m *memory) Init(ctx context.Context, r *protocol.Request, namespace string, scope map[string]string,
	_ json.RawMessage) (string, error) {
	b, err := json.Marshal(scope) // sorts the names
	if err != nil {
		return "", protocol.ErrSchema.Because(err)
	}
	if len(namespace)+len(b) > 4096 {
		return "", badMemory("namespace and scope are too long")
	}
	h := memoryHandle{r.Identity.Name, namespace, string(b)}
	id := digest(h.Owner, h.Namespace, h.Scope)
	key := "h/" + digest(h.Owner) + "/" + id
	if r, err := m.handles.Get(ctx, key); err != nil || r.Revision != 0 {
		return id, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	others, err := m.handles.List(ctx, "h/"+digest(h.Owner)+"/")
	if err != nil {
		return "", err
	}
	if len(others) >= memoryHandles {
		return "", protocol.ErrMemoryFull
	}
	_, err = m.handles.Replace(ctx, journal.Row[memoryHandle]{Key: key, Value: h})
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		return "", err
	}
	return id, nil
}

func badMemory(text string) error {
	e := *protocol.ErrSchema
	e.Text, e.Capability = text, "memory"
	return &e
}

// handle finds the memory of an id; another agent's is unknown.
func (m *memory) handle(ctx context.Context, r *protocol.Request, id string) (h memoryHandle, err error) {
	if len(id) != 32 {
		return h, protocol.ErrMemoryNotFound
	}
	row, err := m.handles.Get(ctx, "h/"+digest(r.Identity.Name)+"/"+id)
	if err == nil && row.Revision == 0 {
		err = protocol.ErrMemoryNotFound
	}
	return row.Value, err
}

// tier is the prefix of the entries of a tier.
func (h memoryHandle) tier(name string, r *protocol.Request) string {
	switch protocol.HomeTier(name) {
	case protocol.TierWorking:
		return "e/w" + digest(r.Session.ID(), h.Namespace, h.Scope) + "/"
	case protocol.TierSemantic:
		return "e/s" + digest(h.Namespace) + "/"
	}
	return "e/e" + digest(h.Owner, h.Namespace, h.Scope) + "/"
}

// Store implements a2e.Memories.
func (m *memory) Store(ctx context.Context, r *protocol.Request, id string,
	entries []json.RawMessage) (out []protocol.MemoryEntry, faults []string, err error) {
	h, err := m.handle(ctx, r, id)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tiers := map[string]tierRows{}
	for i, raw := range entries {
		fault := func(text string) { faults = append(faults, "entry "+strconv.Itoa(i)+": "+text) }
		e, key, text := m.entry(raw)
		if text != "" {
			fault(text)
			continue
		}
		prefix := h.tier(e.Tier, r)
		there := tiers[prefix]
		if there == nil {
			list, err := m.entries.List(ctx, prefix)
			if err != nil {
				return out, faults, err
			}
			there = tierRows{}
			for _, r := range list {
				there[r.Key] = r
			}
			tiers[prefix] = there
		}
		s := stored{Owner: h.Owner, Entry: e, Size: len(raw) + 512}
		old, exists := there[prefix+key]
		before := old.Value
		more := s.Size
		if before.Owner == h.Owner {
			more -= before.Size
		}
		if m.used[h.Owner]+more > memoryPerSelf || m.total+s.Size-before.Size > memoryTotal {
			if len(out) == 0 {
				return nil, faults, protocol.ErrMemoryFull
			}
			fault("memory full")
			continue
		}
		if !exists && len(there) >= memoryTier {
			if err := m.dropOldest(ctx, there); err != nil {
				return out, faults, err
			}
		}
		until := e.Expires(m.now())
		if limit := m.now().Add(workingFor); e.Tier == protocol.TierWorking && (until.IsZero() || until.After(limit)) {
			until = limit
		}
		row, err := m.entries.Put(ctx, prefix+key, s, until)
		if err != nil {
			return out, faults, err
		}
		m.count(before.Owner, -before.Size)
		m.count(s.Owner, s.Size)
		there[row.Key] = row
		out = append(out, e)
	}
	return out, faults, nil
}

// tierRows are the entries of a tier by their keys in the state.
type tierRows map[string]journal.Row[stored]

func (m *memory) dropOldest(ctx context.Context, there tierRows) error {
	oldest := slices.MinFunc(slices.Collect(maps.Values(there)), func(a, b journal.Row[stored]) int {
		return cmp.Compare(a.Revision, b.Revision)
	})
	delete(there, oldest.Key)
	return m.remove(ctx, oldest)
}

func (m *memory) remove(ctx context.Context, row journal.Row[stored]) error {
	err := m.entries.Delete(ctx, row.Key, 0)
	if err == nil {
		m.count(row.Value.Owner, -row.Value.Size)
	}
	return err
}

// entry reads an entry, and gives the last part of its key in the state, which is equal
// for keys with equal members.
func (m *memory) entry(raw json.RawMessage) (e protocol.MemoryEntry, key, fault string) {
	if len(raw) > memoryEntry {
		return e, "", "too large"
	}
	now := json.RawMessage(strconv.FormatFloat(float64(m.now().UnixMilli())/1000, 'f', 3, 64))
	if e, fault = protocol.ParseMemoryEntry(raw, now); fault != "" {
		return e, "", fault
	}
	key, err := memoryKey(e.Key)
	if err != nil {
		return e, "", "key is not usable"
	}
	return e, key, ""
}

func memoryKey(key json.RawMessage) (string, error) {
	c, err := jsonx.Canonicalize(key)
	if err != nil {
		return "", err
	}
	return digest(string(c)), nil
}

// each visits the entries of the tiers of q. keyed: the entry has one of q.Keys.
func (m *memory) each(ctx context.Context, r *protocol.Request, h memoryHandle, q protocol.MemoryQuery,
	visit func(row journal.Row[stored], keyed bool) error) error {
	keys := map[string]bool{}
	for _, k := range q.Keys {
		if d, err := memoryKey(k); err == nil {
			keys[d] = true
		}
	}
	for _, tier := range q.Tiers() {
		prefix := h.tier(tier, r)
		list, err := m.entries.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, row := range list {
			if err := visit(row, keys[strings.TrimPrefix(row.Key, prefix)]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Retrieve implements a2e.Memories: best first. An entry scores 1 for its key, the
// share of the query's tags and of the query's words that it has, and 0.25 if its tier
// was requested.
func (m *memory) Retrieve(ctx context.Context, r *protocol.Request, id string,
	q protocol.MemoryQuery) ([]protocol.MemoryEntry, error) {
	h, err := m.handle(ctx, r, id)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(strings.ToLower(q.Query))
	found := []protocol.MemoryEntry{}
	err = m.each(ctx, r, h, q, func(row journal.Row[stored], keyed bool) error {
		e := row.Value.Entry
		score, ok := q.Match(e, keyed)
		if !ok {
			return nil
		}
		if len(words) > 0 {
			text := strings.ToLower(string(e.Content) + " " + string(e.Key) + " " + strings.Join(e.Tags, " "))
			n := 0
			for _, w := range words {
				if strings.Contains(text, w) {
					n++
				}
			}
			score += float64(n) / float64(len(words))
		}
		e.Score = math.Round(score*1e4) / 1e4
		if e.Score >= q.MinScore {
			found = append(found, e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return q.Best(found), nil
}

// Forget implements a2e.Memories: it deletes the agent's own entries with one of the
// keys or one of the tags. Other agents' entries in semantic memory stay.
func (m *memory) Forget(ctx context.Context, r *protocol.Request, id string, q protocol.MemoryQuery) (int, error) {
	h, err := m.handle(ctx, r, id)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	err = m.each(ctx, r, h, q, func(row journal.Row[stored], keyed bool) error {
		s := row.Value
		if s.Owner != h.Owner || !q.Forgets(s.Entry, keyed) {
			return nil
		}
		n++
		return m.remove(ctx, row)
	})
	return n, err
}

var _ protocol.Memories = (*memory)(nil)
