package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// almanac is the registry on the journal's state: [protocol.AlmanacStore]. It reads from
// memory, and writes by compare-and-set, so that several nodes have one registry. Memory
// has an index of the manifests' models; their text is in the state.
type almanac struct {
	b              *Binding
	records        *journal.Table[registration]
	manifests      *journal.Table[json.RawMessage] // see readManifest
	budget         *bridge.GuestLedger
	manifestBudget *bridge.GuestLedger

	mu         sync.RWMutex
	byKey      map[string]*registration
	byProtocol map[string]map[string]bool // keys of the records that name a protocol, by digest
	enrolled   map[string]int             // number of these records that belong to enrolled agents
	published  map[string]*published      // manifests, by digest
	digests    []string                   // of manifests, oldest first
	byModel    map[string][]string        // digests of the manifests that have a model
}

// registration is a record as the state has it.
type registration struct {
	protocol.Record
	Source string `json:"source,omitempty"` // of the client that registered it; see policy.Source

	guest bool
}

func (r *registration) olderThan(o *protocol.Record) bool {
	return r.Registered < o.Registered || r.Registered == o.Registered && r.Updated < o.Updated
}

// size is about the memory that a registration takes.
func (r *registration) size() int64 {
	n := int64(512 + len(r.Metadata))
	for _, e := range r.Endpoints {
		n += int64(len(e.URL)) + 32
	}
	return n + int64(len(r.Protocols))*384 // with its entries in the indexes
}

// Limits of values in the state: earlier releases had none.
const (
	maxRecord   = 64 << 10
	maxManifest = 256 << 10
)

// The most entries of the registry; guests have at most half of them.
const (
	maxRegistrations = 65536
	maxManifests     = 1024
)

func newAlmanac(b *Binding) *almanac {
	return &almanac{b: b, records: journal.NewTable[registration](b.c.Journal, bucketAlmanac, 0),
		manifests:      journal.NewTable[json.RawMessage](b.c.Journal, bucketManifests, 0),
		budget:         b.newGuestLedger(policy.Registration, b.evict),
		manifestBudget: b.newGuestLedger(policy.Manifest, b.evictManifest),
		byKey:          map[string]*registration{}, byProtocol: map[string]map[string]bool{}, enrolled: map[string]int{},
		published: map[string]*published{}, byModel: map[string][]string{}}
}

func recordKey(network, address string) string { return network + "/" + address }

// networks are the networks of the registry.
var networks = [...]string{"agent", "test-agent"}

// startManifests reads the manifests. Larger ones of earlier releases are ignored until they expire.
func (a *almanac) startManifests(ctx context.Context) (stop func(), err error) {
	return a.manifests.Watch(ctx, "", func(row journal.Row[json.RawMessage]) {
		if row.Revision == 0 {
			a.forget(row.Key)
			return
		}
		s, m, err := readManifest(row.Value)
		if err != nil {
			return
		}
		if p, err := newPublished(m, s.Source, row.Until); err == nil {
			a.addManifest(p)
		}
	})
}

// startRecords reads the registrations.
func (a *almanac) startRecords(ctx context.Context) (stop func(), err error) {
	return a.records.Watch(ctx, "", func(row journal.Row[registration]) {
		r := &row.Value
		switch {
		case row.Revision == 0:
			a.set(row.Key, nil)
		case len(r.Metadata) > maxRecord:
			return
		default:
			r.guest = a.b.guest(r.Address)
			a.set(row.Key, r)
		}
		_, address, _ := strings.Cut(row.Key, "/")
		a.b.recount(address)
	})
}

// link adds a record's protocols to the index, or removes them. The caller holds the
// lock.
func (a *almanac) link(key string, r *registration, there bool) {
	for _, p := range r.Protocols {
		if a.byProtocol[p][key] == there {
			continue // the record names the protocol twice
		}
		by := 1
		if there {
			if a.byProtocol[p] == nil {
				a.byProtocol[p] = map[string]bool{}
			}
			a.byProtocol[p][key] = true
		} else {
			by = -1
			delete(a.byProtocol[p], key)
			if len(a.byProtocol[p]) == 0 {
				delete(a.byProtocol, p)
			}
		}
		if !r.guest {
			a.enrolled[p] += by
			if a.enrolled[p] == 0 {
				delete(a.enrolled, p)
			}
		}
	}
}

func (a *almanac) set(key string, r *registration) {
	a.mu.Lock()
	old := a.byKey[key]
	if old != nil && r != nil && old.Expires.After(a.b.c.Now()) && r.olderThan(&old.Record) {
		a.mu.Unlock()
		return // a late echo of an older write
	}
	a.replace(key, r)
	a.mu.Unlock()
	a.weighManifests(old, r)
	if r != nil {
		a.b.standIns.enqueueRecord(r.Address)
	}
}

// replace replaces the record of a key. The caller holds the lock.
func (a *almanac) replace(key string, r *registration) {
	if old := a.byKey[key]; old != nil {
		a.link(key, old, false)
		delete(a.byKey, key)
	}
	if r != nil {
		a.byKey[key] = r
		a.link(key, r, true)
	}
}

// setGuest notes whether an address belongs to a guest.
func (a *almanac) setGuest(address string, guest bool) {
	for _, network := range networks {
		key := recordKey(network, address)
		a.mu.Lock()
		r := a.byKey[key]
		if r == nil || r.guest == guest {
			a.mu.Unlock()
			continue
		}
		next := *r
		next.guest = guest
		a.replace(key, &next)
		a.mu.Unlock()
		a.weighManifests(&next)
	}
}

// footprint is the memory that an address takes, here and in the directory.
func (a *almanac) footprint(address string) (source string, bytes int64, held bool) {
	return a.footprintWith(address, "", nil)
}

// footprintWith is the footprint with a further record.
func (a *almanac) footprintWith(address, key string, next *registration) (source string, bytes int64, held bool) {
	bytes = a.b.directoryBytes(address)
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, network := range networks {
		r := a.byKey[recordKey(network, address)]
		if recordKey(network, address) == key {
			r = next
		}
		if r != nil {
			source, bytes, held = r.Source, bytes+r.size(), true
		}
	}
	return source, bytes, held
}

// registered gives the live record of an address, in either network.
func (a *almanac) registered(address string) *protocol.Record {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, network := range networks {
		if r := a.byKey[recordKey(network, address)]; r != nil && r.Expires.After(a.b.c.Now()) {
			return &r.Record
		}
	}
	return nil
}

// Get implements [protocol.AlmanacStore].
func (a *almanac) Get(ctx context.Context, network, address string) (*protocol.Record, error) {
	a.mu.RLock()
	r := a.byKey[recordKey(network, address)]
	a.mu.RUnlock()
	if r != nil && r.Expires.After(a.b.c.Now()) {
		a.budget.Use(address)
		return a.b.recordForAgents(ctx, &r.Record), nil
	}
	return a.b.hostedRecord(ctx, network, address), nil
}

// Update implements [protocol.AlmanacStore]. A guest's registration is charged to its
// budget first.
func (a *almanac) Update(ctx context.Context, network, address string,
	change func(*protocol.Record) (*protocol.Record, error)) error {
	key := recordKey(network, address)
	guest, source, paid := a.b.countsAsGuest(address), policy.SourceOf(ctx), false
	for range 5 {
		row, err := a.records.Get(ctx, key)
		if err != nil {
			return err
		}
		var old *protocol.Record
		if row.Revision != 0 {
			old = &row.Value.Record
		}
		r, err := change(old)
		if err != nil {
			return err
		}
		if r == old {
			a.budget.Use(address)
			return nil
		}
		next := &registration{Record: *r, Source: source}
		b, err := json.Marshal(next)
		if err != nil {
			return err
		}
		if old == nil && a.full(guest) {
			return protocol.ErrFull
		}
		if guest && !paid {
			if err := a.budget.Write(source, writeCost(len(b))); err != nil {
				return err
			}
			_, bytes, _ := a.footprintWith(address, key, next)
			if err := a.budget.Keep(address, source, bytes); err != nil {
				return err
			}
			paid = true
		}
		_, err = a.records.Replace(ctx, journal.Row[registration]{Key: key, Value: *next, Revision: row.Revision,
			Until: r.Expires})
		if errors.Is(err, journal.ErrConflict) {
			continue // another hub was faster; try again
		}
		if err == nil {
			next.guest = a.b.guest(address)
			a.set(key, next)
		}
		if guest {
			err = cmp.Or(err, a.stillCounted(ctx, address))
		}
		a.b.recount(address)
		return err
	}
	a.b.recount(address)
	return protocol.ErrBusy
}

// stillCounted removes the record of a guest that was evicted while the record
// was written.
func (a *almanac) stillCounted(ctx context.Context, address string) error {
	if a.budget.Has(address) || !a.b.countsAsGuest(address) {
		return nil
	}
	return cmp.Or(a.remove(ctx, address), error(protocol.ErrBusy))
}

// full reports whether there is no room for another record.
func (a *almanac) full(guest bool) bool {
	full := func() bool {
		a.mu.RLock()
		defer a.mu.RUnlock()
		return len(a.byKey) >= maxRegistrations || guest && a.budget.Len() >= maxRegistrations/2
	}
	if !full() {
		return false
	}
	a.sweep()
	return full()
}

// remove removes the records of an address.
func (a *almanac) remove(ctx context.Context, address string) error {
	for _, network := range networks {
		key := recordKey(network, address)
		a.mu.RLock()
		r := a.byKey[key]
		a.mu.RUnlock()
		if r == nil {
			continue
		}
		if err := a.records.Delete(ctx, key, 0); err != nil {
			return err
		}
		a.set(key, nil)
	}
	return nil
}

// sweep removes expired registrations and manifests.
func (a *almanac) sweep() {
	now := a.b.c.Now()
	var gone []*registration
	var manifests []string
	a.mu.RLock()
	for _, r := range a.byKey {
		if !r.Expires.After(now) {
			gone = append(gone, r)
		}
	}
	for _, p := range a.published {
		if !p.until.After(now) {
			manifests = append(manifests, p.digest)
		}
	}
	a.mu.RUnlock()
	for _, r := range gone {
		a.set(recordKey(r.Network, r.Address), nil)
		a.b.recount(r.Address)
	}
	for _, digest := range manifests {
		a.forget(digest)
	}
}

// ByProtocol implements [protocol.AlmanacStore].
func (a *almanac) ByProtocol(ctx context.Context, digest string, limit int) ([]*protocol.Record, error) {
	a.mu.RLock()
	var out []*protocol.Record
	for key := range a.byProtocol[digest] {
		if len(out) >= limit {
			break
		}
		if r := a.byKey[key]; r.Expires.After(a.b.c.Now()) {
			out = append(out, &r.Record)
		}
	}
	a.mu.RUnlock()
	for i, r := range out {
		out[i] = a.b.recordForAgents(ctx, r)
	}
	slices.SortFunc(out, func(x, y *protocol.Record) int { return cmp.Compare(x.Address, y.Address) })
	return out, nil
}

// Domain implements [protocol.AlmanacStore] with the names of the directory.
func (a *almanac) Domain(_ context.Context, _, name string) (*protocol.Domain, error) {
	e, ok := a.b.c.Hub.Directory().Agent(name)
	if !ok {
		return nil, nil
	}
	address := a.b.Address(e)
	if address == "" {
		return nil, nil
	}
	agents := []protocol.DomainAgent{{Address: address, Weight: 1}}
	return &protocol.Domain{Name: name, Status: "Registered", Agents: agents}, nil
}

var _ protocol.AlmanacStore = (*almanac)(nil)
