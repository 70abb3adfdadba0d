package uagents

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stores in this process, for tests and for programs that need not outlive a restart.

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
	manifests map[string][]byte // as JSON, to save memory
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

// SetDomain gives a name to agents; without agents it removes the name.
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

// PutManifest implements [AlmanacStore]. When there is no room, it removes
// the oldest manifest that no registered agent names.
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

// MemoryMailbox is a bounded [MailboxStore] in process. The zero value is
// ready; fields must not change once it is in use.
type MemoryMailbox struct {
	MaxBoxes int              // mailboxes; default 4096
	MaxItems int              // items of one mailbox; default 1000
	MaxBytes int              // of all envelopes; default 256 MiB
	Now      func() time.Time // nil: time.Now

	mu    sync.Mutex
	boxes map[string][]MailboxItem
	bytes int
	seen  Memory
}

// Has implements [MailboxStore].
func (m *MemoryMailbox) Has(_ context.Context, address string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.boxes[address]
	return ok, nil
}

// Create implements [MailboxStore].
func (m *MemoryMailbox) Create(_ context.Context, address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.boxes[address]; ok {
		return nil
	}
	if len(m.boxes) >= cmp.Or(m.MaxBoxes, 4096) {
		return ErrFull
	}
	if m.boxes == nil {
		m.boxes, m.seen = map[string][]MailboxItem{}, NewMemory(0, m.Now)
	}
	m.boxes[address] = nil
	return nil
}

// Remove implements [MailboxStore].
func (m *MemoryMailbox) Remove(_ context.Context, address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(address, func(MailboxItem) bool { return false })
	delete(m.boxes, address)
	return nil
}

// keep keeps the wanted items of a box and drops the others. The caller holds the lock.
func (m *MemoryMailbox) keep(address string, want func(MailboxItem) bool) (dropped int) {
	items := m.boxes[address]
	kept := slices.DeleteFunc(items, func(item MailboxItem) bool {
		if want(item) {
			return false
		}
		m.bytes -= len(item.Envelope)
		dropped++
		return true
	})
	if dropped > 0 {
		m.boxes[address] = kept
	}
	return dropped
}

// Put implements [MailboxStore].
func (m *MemoryMailbox) Put(ctx context.Context, address, key string, until time.Time, item MailboxItem) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.boxes[address]; !ok {
		return false, ErrUnknownAgent
	}
	if known, err := m.seen.Known(ctx, key); err != nil || known {
		return known, err
	}
	full := func() bool {
		return len(m.boxes[address]) >= cmp.Or(m.MaxItems, 1000) ||
			m.bytes+len(item.Envelope) > cmp.Or(m.MaxBytes, 256<<20)
	}
	if full() {
		m.keep(address, func(i MailboxItem) bool { return i.ExpiresAt.After(item.ReceivedAt) })
		if full() {
			return false, ErrFull
		}
	}
	fresh, err := m.seen.Seen(ctx, key, until)
	if err != nil || !fresh {
		return !fresh && err == nil, err
	}
	m.boxes[address] = append(m.boxes[address], item)
	m.bytes += len(item.Envelope)
	return false, nil
}

// List implements [MailboxStore].
func (m *MemoryMailbox) List(
	_ context.Context,
	address string,
	offset, limit int,
	now time.Time,
) ([]MailboxItem, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(address, func(i MailboxItem) bool { return i.ExpiresAt.After(now) })
	items := m.boxes[address]
	items = items[min(offset, len(items)):]
	return slices.Clone(items[:min(limit, len(items))]), nil
}

// Get implements [MailboxStore].
func (m *MemoryMailbox) Get(_ context.Context, address, id string, now time.Time) (*MailboxItem, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, item := range m.boxes[address] {
		if item.UUID == id && item.ExpiresAt.After(now) {
			return &item, nil
		}
	}
	return nil, nil
}

// Delete implements [MailboxStore].
func (m *MemoryMailbox) Delete(_ context.Context, address, id string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keep(address, func(i MailboxItem) bool { return i.UUID != id }) > 0, nil
}

// MemoryProfiles is a bounded [ProfileStore] in process. The zero value is
// ready.
type MemoryProfiles struct {
	Max int // profiles; default 1024

	mu        sync.Mutex
	byAddress map[string]*Profile
}

// Profile implements [ProfileStore].
func (m *MemoryProfiles) Profile(_ context.Context, address string) (*Profile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byAddress[address], nil
}

// PutProfile implements [ProfileStore].
func (m *MemoryProfiles) PutProfile(_ context.Context, p *Profile) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byAddress == nil {
		m.byAddress = map[string]*Profile{}
	}
	if m.byAddress[p.Address] == nil && len(m.byAddress) >= cmp.Or(m.Max, 1024) {
		return ErrFull
	}
	for _, other := range m.byAddress {
		if p.Handle != "" && other.Handle == p.Handle && other.Address != p.Address {
			return ErrHandle
		}
	}
	m.byAddress[p.Address] = p
	return nil
}

// Profiles implements [ProfileStore].
func (m *MemoryProfiles) Profiles(_ context.Context, account string) (own []*Profile, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, address := range slices.Sorted(maps.Keys(m.byAddress)) {
		if p := m.byAddress[address]; p.Account == account {
			own = append(own, p)
		}
	}
	return own, nil
}

// RemoveProfile implements [ProfileStore].
func (m *MemoryProfiles) RemoveProfile(_ context.Context, address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byAddress, address)
	return nil
}

// Listings implements [ProfileStore].
func (m *MemoryProfiles) Listings(context.Context) iter.Seq[Listing] {
	return func(yield func(Listing) bool) {
		m.mu.Lock()
		all := slices.Collect(maps.Values(m.byAddress))
		m.mu.Unlock()
		for _, p := range all {
			if p.Public() && !yield(Listing{p, "active", KindOf(p.Endpoints)}) {
				return
			}
		}
	}
}

var _ ProfileStore = (*MemoryProfiles)(nil)
