package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// almanac is the registry on the journal's state: [protocol.AlmanacStore]. Reads
// are answered from memory, writes compare and set, so that it is one registry
// over several nodes. Of manifests the memory holds an index of their models;
// the text is in the state.
type almanac struct {
	records           *journal.Table[registration]
	manifests         *journal.Table[json.RawMessage] // see readManifest
	now               func() time.Time
	max, maxManifests int // guests have at most half of these
	count             *ledger
	countManifests    *ledger
	guest             func(address string) bool
	counted           func(address string) bool // whether its records are in the guests' budget
	// extra finds what is not registered: agents that the hub stands in for.
	extra func(ctx context.Context, network, address string) *protocol.Record
	named func(ctx context.Context, name string) (address string)
	own   func(digest string) *protocol.Manifest // of the agents that the hub stands in for
	// entered is what the directory holds of an address.
	entered func(address string) int64
	// shown is what agents read of a record; see [Binding.shown].
	shown func(context.Context, *protocol.Record) *protocol.Record

	mu         sync.RWMutex
	byKey      map[string]*registration
	byProtocol map[string]map[string]bool // keys of the records that name it
	enrolled   map[string]int             // how many of these are of enrolled agents
	published  map[string]*published      // manifests, by digest
	digests    []string                   // of manifests, the oldest first
	byModel    map[string][]string        // digests of the manifests that have a model
	stops      []func()
	changed    func(r *protocol.Record) // of the index, on any node
	moved      func(address string)     // another node wrote or removed a record
}

// registration is a record as it is kept.
type registration struct {
	protocol.Record
	Source string `json:"source,omitempty"` // that registered it; see policy.Source

	guest bool
}

func (r *registration) olderThan(o *protocol.Record) bool {
	return r.Registered < o.Registered || r.Registered == o.Registered && r.Updated < o.Updated
}

// size is about what a registration holds in memory.
func (r *registration) size() int64 {
	n := int64(512 + len(r.Metadata))
	for _, e := range r.Endpoints {
		n += int64(len(e.URL)) + 32
	}
	return n + int64(len(r.Protocols))*384 // with its places in the indexes
}

// storedManifest is the form of a manifest in the state. Earlier releases wrote
// the manifest alone.
type storedManifest struct {
	Source   string          `json:"source,omitempty"`
	Manifest json.RawMessage `json:"manifest"`
}

// published is the index of a manifest.
type published struct {
	digest   string
	source   string
	until    time.Time
	models   map[string]publishedModel // by digest
	requests map[string][]string       // digests of requests, with those of their answers
	size     int64
}

type publishedModel struct {
	name   string
	schema []byte
}

func (m publishedModel) model() *protocol.Model {
	model, err := protocol.ParseModel(m.schema)
	if err != nil {
		return nil // it was read before
	}
	return model
}

// description is the class's doc string, as far as it fits a description.
func (m publishedModel) description() string {
	model := m.model()
	if model == nil {
		return ""
	}
	if r := []rune(model.Description()); len(r) > maxDescription {
		return string(r[:maxDescription-1]) + "…"
	}
	return model.Description()
}

const maxDescription = 500

// newPublished makes the index of a manifest. It holds no part of its text.
func newPublished(m *protocol.Manifest, source string, until time.Time) (*published, error) {
	p := &published{digest: m.Digest(), source: source, until: until,
		models: map[string]publishedModel{}, requests: map[string][]string{}, size: 512}
	names := map[string]string{}
	for _, model := range m.Models() {
		schema, err := model.Schema()
		if err != nil {
			return nil, err
		}
		digest := model.Digest()
		names[digest] = digest
		p.models[digest] = publishedModel{strings.Clone(model.Name()), schema}
		p.size += int64(len(schema)+len(model.Name())) + 384
	}
	for request, responses := range m.Requests() {
		answers := make([]string, 0, len(responses))
		for _, r := range responses {
			answers = append(answers, names[r])
		}
		p.requests[names[request]] = answers
		p.size += 128 + 16*int64(len(answers))
	}
	return p, nil
}

// Limits of what the state holds from earlier releases, which had none.
const (
	maxRecord   = 64 << 10
	maxManifest = 256 << 10
)

func newAlmanac(j *journal.Journal, now func() time.Time) *almanac {
	return &almanac{records: journal.NewTable[registration](j, bucketAlmanac, 0),
		manifests: journal.NewTable[json.RawMessage](j, bucketManifests, 0), now: now,
		max: 65536, maxManifests: 1024,
		byKey: map[string]*registration{}, byProtocol: map[string]map[string]bool{}, enrolled: map[string]int{},
		published: map[string]*published{}, byModel: map[string][]string{}}
}

func recordKey(network, address string) string { return network + "/" + address }

// networks are those in which an address may be registered.
var networks = [...]string{"agent", "test-agent"}

func (a *almanac) start(ctx context.Context) error {
	// Manifests first: records are told with what is known of their protocols.
	// Earlier releases took larger ones; these are left to expire.
	stop, err := a.manifests.Watch(ctx, "", func(row journal.Row[json.RawMessage]) {
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
	if err != nil {
		return err
	}
	a.stops = append(a.stops, stop)
	stop, err = a.records.Watch(ctx, "", func(row journal.Row[registration]) {
		r := &row.Value
		switch {
		case row.Revision == 0:
			a.set(row.Key, nil)
		case len(r.Metadata) > maxRecord:
			return
		default:
			r.guest = a.guest(r.Address)
			a.set(row.Key, r)
		}
		_, address, _ := strings.Cut(row.Key, "/")
		a.moved(address)
	})
	if err == nil {
		a.stops = append(a.stops, stop)
	}
	return err
}

func readManifest(b []byte) (s storedManifest, m *protocol.Manifest, err error) {
	if err = json.Unmarshal(b, &s); err == nil && s.Manifest == nil {
		s.Manifest = b
	}
	switch {
	case err != nil:
	case len(s.Manifest) > maxManifest:
		err = protocol.ErrTooLarge
	default:
		if m, err = protocol.ParseManifest(s.Manifest); err == nil {
			m = m.Bound()
		}
	}
	return s, m, err
}

func (a *almanac) stop() {
	for _, f := range a.stops {
		f()
	}
}

// link notes the protocols of a record, or that it is gone. The caller holds
// the lock.
func (a *almanac) link(key string, r *registration, there bool) {
	for _, p := range r.Protocols {
		if a.byProtocol[p][key] == there {
			continue // it names it twice
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
			if a.enrolled[p] += by; a.enrolled[p] == 0 {
				delete(a.enrolled, p)
			}
		}
	}
}

func (a *almanac) set(key string, r *registration) {
	a.mu.Lock()
	old := a.byKey[key]
	if old != nil && r != nil && old.Expires.After(a.now()) && r.olderThan(&old.Record) {
		a.mu.Unlock()
		return // a late echo of an older write
	}
	a.replace(key, r)
	a.mu.Unlock()
	a.weighManifests(old, r)
	if r != nil && a.changed != nil {
		a.changed(&r.Record)
	}
}

// replace puts a record in the place of another. The caller holds the lock.
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

// rank notes whether an address is a guest's.
func (a *almanac) rank(address string, guest bool) {
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

// weighManifests counts the manifests that records name, unless an enrolled
// agent names them.
func (a *almanac) weighManifests(records ...*registration) {
	for _, r := range records {
		if r == nil {
			continue
		}
		for _, digest := range r.Protocols {
			a.weighManifest(digest)
		}
	}
}

func (a *almanac) weighManifest(digest string) {
	a.mu.RLock()
	p, enrolled := a.published[digest], a.enrolled[digest] > 0
	a.mu.RUnlock()
	if p == nil || enrolled {
		a.countManifests.drop(digest)
	} else {
		a.countManifests.restore(digest, p.source, p.size)
	}
}

// held is what is held of an address, here and in the directory.
func (a *almanac) held(address string) (source string, bytes int64, held bool) {
	return a.with(address, "", nil)
}

// with is held once a record is in its place.
func (a *almanac) with(address, key string, next *registration) (source string, bytes int64, held bool) {
	bytes = a.entered(address)
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

// registered gives the live record of an address, of whichever network.
func (a *almanac) registered(address string) *protocol.Record {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, network := range networks {
		if r := a.byKey[recordKey(network, address)]; r != nil && r.Expires.After(a.now()) {
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
	if r != nil && r.Expires.After(a.now()) {
		a.count.use(address)
		return a.shown(ctx, &r.Record), nil
	}
	if a.extra != nil {
		return a.extra(ctx, network, address), nil
	}
	return nil, nil
}

// Update implements [protocol.AlmanacStore]. What a guest registers is taken
// from its budget first.
func (a *almanac) Update(ctx context.Context, network, address string,
	change func(*protocol.Record) (*protocol.Record, error)) error {
	key := recordKey(network, address)
	guest, source, paid := a.counted(address), policy.SourceOf(ctx), false
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
			a.count.use(address)
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
			if err := a.count.write(source, len(b)); err != nil {
				return err
			}
			_, bytes, _ := a.with(address, key, next)
			if err := a.count.keep(address, source, bytes); err != nil {
				return err
			}
			paid = true
		}
		_, err = a.records.Replace(ctx, journal.Row[registration]{Key: key, Value: *next, Revision: row.Revision, Until: r.Expires})
		if errors.Is(err, journal.ErrConflict) {
			continue // another was faster; look again
		}
		if err == nil {
			next.guest = a.guest(address)
			a.set(key, next)
		}
		if guest {
			err = cmp.Or(err, a.stillCounted(ctx, address))
		}
		a.moved(address)
		return err
	}
	a.moved(address)
	return protocol.ErrBusy
}

// stillCounted removes the record of a guest that was evicted while the record
// was written.
func (a *almanac) stillCounted(ctx context.Context, address string) error {
	if a.count.has(address) || !a.counted(address) {
		return nil
	}
	return cmp.Or(a.remove(ctx, address), error(protocol.ErrBusy))
}

// full reports that there is no place for one more record.
func (a *almanac) full(guest bool) bool {
	full := func() bool {
		a.mu.RLock()
		defer a.mu.RUnlock()
		return len(a.byKey) >= a.max || guest && a.count.len() >= max(1, a.max/2)
	}
	if !full() {
		return false
	}
	a.sweep()
	return full()
}

// remove takes the records of an address out.
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

// sweep forgets registrations and manifests that ran out.
func (a *almanac) sweep() {
	now := a.now()
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
		a.moved(r.Address)
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
		if r := a.byKey[key]; r.Expires.After(a.now()) {
			out = append(out, &r.Record)
		}
	}
	a.mu.RUnlock()
	for i, r := range out {
		out[i] = a.shown(ctx, r)
	}
	slices.SortFunc(out, func(x, y *protocol.Record) int { return cmp.Compare(x.Address, y.Address) })
	return out, nil
}

// Domain implements [protocol.AlmanacStore]: the names are those of the
// directory.
func (a *almanac) Domain(ctx context.Context, _, name string) (*protocol.Domain, error) {
	if a.named == nil {
		return nil, nil
	}
	address := a.named(ctx, name)
	if address == "" {
		return nil, nil
	}
	agents := []protocol.DomainAgent{{Address: address, Weight: 1}}
	return &protocol.Domain{Name: name, Status: "Registered", Agents: agents}, nil
}

// A manifest is kept for so long after it was last published. Publishing it
// again within a day changes nothing.
const manifestKept = 30 * 24 * time.Hour

// PutManifest implements [protocol.AlmanacStore]. When there is no room, the
// oldest manifest that no registered agent names makes place.
func (a *almanac) PutManifest(ctx context.Context, m *protocol.Manifest) error {
	digest := m.Digest()
	if a.own(digest) != nil {
		return nil
	}
	text, err := m.JSON()
	if err != nil {
		return err
	}
	caller, now := policy.SourceOf(ctx), a.now()
	source, until := caller, now.Add(manifestKept)
	a.mu.RLock()
	known, guest := a.published[digest], a.enrolled[digest] == 0
	a.mu.RUnlock()
	if known != nil {
		if known.until.Sub(now) > manifestKept-24*time.Hour {
			a.countManifests.use(digest)
			return nil
		}
		source = known.source
	}
	p, err := newPublished(m, source, until)
	if err != nil {
		return err
	}
	b, err := json.Marshal(storedManifest{Source: source, Manifest: text})
	if err != nil {
		return err
	}
	if guest {
		if err := a.countManifests.write(caller, len(b)); err != nil {
			return err
		}
	}
	if known == nil {
		if err := a.makeRoom(ctx, guest, source); err != nil {
			return err
		}
	}
	if guest {
		if err := a.countManifests.keep(digest, source, p.size); err != nil {
			return err
		}
	}
	if _, err := a.manifests.Put(ctx, digest, b, until); err != nil {
		a.weighManifest(digest)
		return err
	}
	a.addManifest(p)
	if guest && !a.countManifests.has(digest) {
		return cmp.Or(a.removeManifest(ctx, digest), error(protocol.ErrBusy)) // it gave way meanwhile
	}
	return nil
}

// makeRoom removes a manifest where there is no place for one more. A source
// that has a quarter of what guests may have gives way to itself.
func (a *almanac) makeRoom(ctx context.Context, guest bool, source string) error {
	most := max(1, a.maxManifests/2)
	a.mu.RLock()
	same := 0
	for _, p := range a.published {
		if p.source == source {
			same++
		}
	}
	share := guest && source != "" && same >= max(1, most/4)
	full := share || len(a.digests) >= a.maxManifests || guest && a.countManifests.len() >= most
	victim := ""
	for _, d := range a.digests {
		if full && len(a.byProtocol[d]) == 0 && (!share || a.published[d].source == source) {
			victim = d
			break
		}
	}
	a.mu.RUnlock()
	switch {
	case victim != "":
		return a.removeManifest(ctx, victim)
	case full:
		return protocol.ErrFull
	}
	return nil
}

func (a *almanac) removeManifest(ctx context.Context, digest string) error {
	if err := a.manifests.Delete(ctx, digest, 0); err != nil {
		return err
	}
	a.forget(digest)
	return nil
}

// forget drops a manifest from the index.
func (a *almanac) forget(digest string) {
	a.mu.Lock()
	if p := a.published[digest]; p != nil {
		delete(a.published, digest)
		a.digests = slices.DeleteFunc(a.digests, func(d string) bool { return d == digest })
		for model := range p.models {
			rest := slices.DeleteFunc(a.byModel[model], func(d string) bool { return d == digest })
			if a.byModel[model] = rest; len(rest) == 0 {
				delete(a.byModel, model)
			}
		}
	}
	a.mu.Unlock()
	a.countManifests.drop(digest)
}

func (a *almanac) addManifest(p *published) {
	a.mu.Lock()
	var told []*registration
	if known := a.published[p.digest]; known == nil {
		a.published[p.digest] = p
		a.digests = append(a.digests, p.digest)
		for model := range p.models {
			if classOf(model) == other {
				a.byModel[model] = append(a.byModel[model], p.digest)
			}
		}
		for key := range a.byProtocol[p.digest] {
			told = append(told, a.byKey[key])
		}
	} else if known.until.Before(p.until) {
		a.published[p.digest] = p // it says the same
	}
	a.mu.Unlock()
	a.weighManifest(p.digest)
	if a.changed != nil {
		for _, r := range told {
			a.changed(&r.Record)
		}
	}
}

// Manifest implements [protocol.AlmanacStore]: those of the hub's own agents
// come first.
func (a *almanac) Manifest(ctx context.Context, digest string) (*protocol.Manifest, error) {
	if m := a.own(digest); m != nil {
		return m, nil
	}
	a.mu.RLock()
	known := a.published[digest] != nil
	a.mu.RUnlock()
	if !known {
		return nil, nil
	}
	a.countManifests.use(digest)
	row, err := a.manifests.Get(ctx, digest)
	if err != nil || row.Revision == 0 {
		return nil, err
	}
	_, m, err := readManifest(row.Value)
	return m, err
}

// protocol is the index of a protocol that an agent names; nil where its
// manifest is not known.
func (a *almanac) protocol(digest string) *published {
	if m := a.own(digest); m != nil {
		if p, err := newPublished(m, "", time.Time{}); err == nil {
			return p
		}
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.published[digest]
}

// model finds the model of a digest, whoever published it: the digest binds all
// of its schema. It tells whether content fits, and nothing else: modelOf and
// answers choose the models of requests and answers.
func (a *almanac) model(digest string) *protocol.Model {
	return a.find(digest, func(string) bool { return true })
}

// modelOf finds a model of a protocol that one of the addresses names, or an
// enrolled agent.
func (a *almanac) modelOf(digest string, addresses ...string) *protocol.Model {
	return a.find(digest, func(proto string) bool {
		return a.enrolled[proto] > 0 ||
			slices.ContainsFunc(addresses, func(address string) bool { return a.names(address, proto) })
	})
}

// names reports whether an address names a protocol in its registration. The
// caller holds the lock.
func (a *almanac) names(address, proto string) bool {
	for _, network := range networks {
		if a.byProtocol[proto][recordKey(network, address)] {
			return true
		}
	}
	return false
}

func (a *almanac) find(digest string, counts func(proto string) bool) *protocol.Model {
	a.mu.RLock()
	var found publishedModel
	if i := slices.IndexFunc(a.byModel[digest], counts); i >= 0 {
		found = a.published[a.byModel[digest][i]].models[digest]
	}
	a.mu.RUnlock()
	if found.schema == nil {
		return nil
	}
	return found.model()
}

// answers are the models that may answer a request of an agent: by the
// protocols that it names itself, then by those of enrolled agents.
func (a *almanac) answers(request, asker string) []*protocol.Model {
	a.mu.RLock()
	var own, enrolled []publishedModel
	for _, d := range a.byModel[request] {
		to := &enrolled
		if a.names(asker, d) {
			to = &own
		} else if a.enrolled[d] == 0 {
			continue
		}
		p := a.published[d]
		for _, r := range p.requests[request] {
			if r != protocol.ErrorMessageDigest {
				*to = append(*to, p.models[r])
			}
		}
	}
	a.mu.RUnlock()
	var out []*protocol.Model
	for _, t := range append(own, enrolled...) {
		if m := t.model(); m != nil {
			out = append(out, m)
		}
	}
	return out
}

// requestOf finds a request of a protocol by its name or digest.
func (p *published) requestOf(skill string) (digest string, model *protocol.Model) {
	for _, request := range slices.Sorted(maps.Keys(p.requests)) {
		if m, ok := p.models[request]; ok && (m.name == skill || request == skill) {
			return request, m.model()
		}
	}
	return "", nil
}

var _ protocol.AlmanacStore = (*almanac)(nil)
