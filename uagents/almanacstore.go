package uagents

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Record is the entry of an agent in the Almanac.
type Record struct {
	Network    string // agent or test-agent
	Address    string
	Endpoints  []Endpoint
	Protocols  []string
	Metadata   []byte // JSON object, or nil
	Active     bool
	Expires    time.Time
	Registered uint64 // timestamp of the last registration, Unix seconds
	Updated    uint64 // timestamp of the last status update
	Signed     []byte // SHA-256 of the signed text of the last registration
}

// A Domain is a name that stands for agents.
type Domain struct {
	Name    string
	Status  string // Registered, Pending, Checking, Updating, Deleting or Failed
	Expires time.Time
	Agents  []DomainAgent
}

// A DomainAgent is one agent of a name, chosen by weight.
type DomainAgent struct {
	Address string
	Weight  float64
}

// An AlmanacStore keeps the registry.
type AlmanacStore interface {
	// Get gives a record, or nil.
	Get(ctx context.Context, network, address string) (*Record, error)
	// Update changes a record atomically: change sees the present one (nil
	// for none) and gives the new one, or an error, which is returned and
	// leaves the record as it was. The error is ErrFull when there is no room
	// for a new one.
	Update(ctx context.Context, network, address string, change func(old *Record) (*Record, error)) error
	// ByProtocol gives up to limit records that name a protocol digest.
	ByProtocol(ctx context.Context, digest string, limit int) ([]*Record, error)
	// Domain gives a name's entry, or nil. Names are the operator's to give.
	Domain(ctx context.Context, network, name string) (*Domain, error)
	// PutManifest keeps a manifest under its digest. It holds nothing else
	// than the digest binds, see [Manifest.Bound].
	PutManifest(ctx context.Context, m *Manifest) error
	// Manifest gives a manifest, or nil.
	Manifest(ctx context.Context, digest string) (*Manifest, error)
}

// MemoryAlmanac is a bounded [AlmanacStore] in process. The zero value is
// ready; fields must not change once it is in use.
type MemoryAlmanac struct {
	Max          int              // agents; default 65536
	MaxManifests int              // default 1024
	Now          func() time.Time // nil: time.Now

	mu        sync.Mutex
	records   map[[2]string]*Record
	protocols map[string]map[[2]string]bool
	domains   map[[2]string]*Domain
	manifests map[string][]byte // as JSON, which takes a fraction of the memory
	order     []string          // manifests, oldest first
	swept     time.Time
}

func (m *MemoryAlmanac) now() time.Time {
	if m.Now != nil {
		return m.Now()
	}
	return time.Now()
}

// Get implements [AlmanacStore].
func (m *MemoryAlmanac) Get(_ context.Context, network, address string) (*Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[[2]string{network, address}], nil
}

// Update implements [AlmanacStore].
func (m *MemoryAlmanac) Update(
	_ context.Context,
	network, address string,
	change func(*Record) (*Record, error),
) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{network, address}
	old := m.records[key]
	// A record is never changed in place: readers hold it without the lock.
	next, err := change(old)
	if err != nil || next == old {
		return err
	}
	if old == nil && len(m.records) >= cmp.Or(m.Max, 1<<16) {
		m.sweep()
		if len(m.records) >= cmp.Or(m.Max, 1<<16) {
			return ErrFull
		}
	}
	if m.records == nil {
		m.records, m.protocols = map[[2]string]*Record{}, map[string]map[[2]string]bool{}
	}
	m.unlink(key)
	m.records[key] = next
	for _, p := range next.Protocols {
		if m.protocols[p] == nil {
			m.protocols[p] = map[[2]string]bool{}
		}
		m.protocols[p][key] = true
	}
	return nil
}

// unlink takes a record out of the index of protocols.
func (m *MemoryAlmanac) unlink(key [2]string) {
	if old := m.records[key]; old != nil {
		for _, p := range old.Protocols {
			delete(m.protocols[p], key)
			if len(m.protocols[p]) == 0 {
				delete(m.protocols, p)
			}
		}
	}
}

// sweep drops expired records, at most once a second.
func (m *MemoryAlmanac) sweep() {
	now := m.now()
	if now.Sub(m.swept) < time.Second && !m.swept.IsZero() {
		return
	}
	m.swept = now
	for key, r := range m.records {
		if !r.Expires.After(now) {
			m.unlink(key)
			delete(m.records, key)
		}
	}
}

// ByProtocol implements [AlmanacStore].
func (m *MemoryAlmanac) ByProtocol(_ context.Context, digest string, limit int) ([]*Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*Record
	now := m.now()
	for key := range m.protocols[digest] {
		if r := m.records[key]; r.Expires.After(now) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Record) int {
		return strings.Compare(a.Network+a.Address, b.Network+b.Address)
	})
	return out[:min(limit, len(out))], nil
}

// SetDomain gives a name to agents; without agents it takes the name away.
func (m *MemoryAlmanac) SetDomain(network string, d Domain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.domains == nil {
		m.domains = map[[2]string]*Domain{}
	}
	key := [2]string{network, d.Name}
	if len(d.Agents) == 0 {
		delete(m.domains, key)
		return
	}
	d.Agents = slices.Clone(d.Agents)
	m.domains[key] = &d
}

// Domain implements [AlmanacStore].
func (m *MemoryAlmanac) Domain(_ context.Context, network, name string) (*Domain, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.domains[[2]string{network, name}], nil
}

// PutManifest implements [AlmanacStore]. When there is no room, the oldest
// manifest that no registered agent names makes place.
func (m *MemoryAlmanac) PutManifest(_ context.Context, manifest *Manifest) error {
	b, err := manifest.JSON()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.manifests[manifest.digest] != nil {
		return nil
	}
	if len(m.manifests) >= cmp.Or(m.MaxManifests, 1024) {
		i := slices.IndexFunc(m.order, func(d string) bool { return len(m.protocols[d]) == 0 })
		if i < 0 {
			return ErrFull
		}
		delete(m.manifests, m.order[i])
		m.order = slices.Delete(m.order, i, i+1)
	}
	if m.manifests == nil {
		m.manifests = map[string][]byte{}
	}
	m.manifests[manifest.digest] = b
	m.order = append(m.order, manifest.digest)
	return nil
}

// Manifest implements [AlmanacStore].
func (m *MemoryAlmanac) Manifest(_ context.Context, digest string) (*Manifest, error) {
	m.mu.Lock()
	b := m.manifests[digest]
	m.mu.Unlock()
	if b == nil {
		return nil, nil
	}
	return ParseManifest(b)
}
