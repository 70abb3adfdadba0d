package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/uagents"
)

// The buckets of the journal's state.
const (
	bucketSessions  = "uagents-sessions"
	bucketAlmanac   = "uagents-almanac"
	bucketManifests = "uagents-manifests"
	bucketMailbox   = "uagents-mailbox"
)

// exchange is a request of this hub's in a session of its own: the protocol
// has no reference from a reply to its request but sender, target and session.
type exchange struct {
	Self         string    `json:"self"` // the stand-in that asked
	Peer         string    `json:"peer"` // the agent that was asked
	Session      string    `json:"session"`
	Request      parley.ID `json:"request"`
	Agent        string    `json:"agent"` // directory name of the peer
	Scope        string    `json:"scope"` // where the request, and so the keys of its replies, are recorded
	Conversation parley.ID `json:"conversation"`
	Until        time.Time `json:"until"`
	Trace        string    `json:"trace,omitempty"` // of the request: W3C traceparent

	done     bool   // answered; what comes now is talk
	revision uint64 // of the state's value
}

func sessionKey(self, peer, session string) string { return self + "/" + peer + "/" + session }

func (x *exchange) key() string { return sessionKey(x.Self, x.Peer, x.Session) }

// sessions remembers exchanges over restarts and between nodes.
type sessions struct {
	state  journal.State
	shared bool // other hubs open sessions, too
	now    func() time.Time
	max    int

	mu        sync.Mutex
	byKey     map[string]*exchange
	byRequest map[parley.ID]*exchange
	last      map[string]string    // self, peer and conversation → session
	byPeer    map[string]*exchange // peer and session → the latest
	stop      func()
}

func newSessions(s journal.State, shared bool, now func() time.Time) *sessions {
	return &sessions{state: s, shared: shared, now: now, max: 1 << 18, byKey: map[string]*exchange{}, byRequest: map[parley.ID]*exchange{}, last: map[string]string{}, byPeer: map[string]*exchange{}, stop: func() {}}
}

func (s *sessions) start(ctx context.Context) (err error) {
	s.stop, err = s.state.Watch(ctx, "", s.changed)
	return err
}

// changed takes what this hub or another wrote.
func (s *sessions) changed(v journal.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.Deleted {
		return
	}
	x := &exchange{revision: v.Revision}
	if json.Unmarshal(v.Data, x) != nil {
		return
	}
	if old := s.byKey[v.Key]; old == nil || old.Request != x.Request && old.revision < v.Revision {
		s.set(x)
	}
}

// set indexes an exchange. The caller holds the lock.
func (s *sessions) set(x *exchange) {
	if old := s.byKey[x.key()]; old != nil {
		delete(s.byRequest, old.Request)
	}
	s.byKey[x.key()], s.byRequest[x.Request] = x, x
	s.byPeer[x.peer()] = x
	s.last[x.conversation()] = x.Session
}

func (x *exchange) peer() string { return x.Peer + "/" + x.Session }

func (x *exchange) conversation() string {
	return x.Self + "/" + x.Peer + "/" + x.Conversation.String()
}

// errSessions refuses to begin more than can be remembered.
var errSessions = parley.Fail(parley.Unavailable, nil, "too many requests wait for answers of uAgents")

// open gives the session in which a request goes out: that of an earlier
// attempt; that of the conversation, if nothing is outstanding in it; else a
// new one. It is recorded when open returns.
func (s *sessions) open(ctx context.Context, x exchange) (*exchange, error) {
	s.mu.Lock()
	if old := s.byRequest[x.Request]; old != nil {
		s.mu.Unlock()
		return old, nil
	}
	if len(s.byKey) >= s.max {
		s.sweep()
		if len(s.byKey) >= s.max {
			s.mu.Unlock()
			return nil, errSessions
		}
	}
	x.Session = s.last[x.conversation()]
	if old := s.byKey[x.key()]; x.Session == "" || old != nil && !old.done {
		x.Session = protocol.NewSession()
	}
	s.set(&x)
	s.mu.Unlock()
	b, err := jsonx.Encode(x)
	var revision uint64
	if err == nil {
		revision, err = s.state.Put(ctx, x.key(), b, x.Until)
	}
	if err != nil {
		s.drop(&x)
		return nil, fmt.Errorf("keep a session: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x.revision = revision
	return &x, nil
}

func (s *sessions) drop(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[x.key()] == x {
		delete(s.byKey, x.key())
		s.forget(x)
	}
}

// forget takes an exchange out of all indexes but byKey. The caller holds the
// lock.
func (s *sessions) forget(x *exchange) {
	delete(s.byRequest, x.Request)
	if s.last[x.conversation()] == x.Session {
		delete(s.last, x.conversation())
	}
	if s.byPeer[x.peer()] == x {
		delete(s.byPeer, x.peer())
	}
}

// trace gives the trace of the request that opened a session with an agent: what
// the agent asks of others in the same session, as its library does by itself
// while it works on the request, belongs to that.
func (s *sessions) trace(peer, session string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byPeer[peer+"/"+session]; x != nil && x.Until.After(s.now()) {
		return x.Trace
	}
	return ""
}

// find gives the exchange that an envelope of peer to self in a session is
// about, and whether it is answered already; nil: about none. An answer may be
// sooner here than the word of the hub that asked, in a session that was used
// before, too: where others share the journal, it is asked.
func (s *sessions) find(ctx context.Context, self, peer, session string) (x *exchange, done bool, err error) {
	key := sessionKey(self, peer, session)
	if x, done = s.known(key); x != nil && !done || !s.shared {
		return x, done, nil
	}
	switch v, err := s.state.Get(ctx, key); {
	case err == nil:
		s.changed(v)
	case !errors.Is(err, journal.ErrNotFound):
		return nil, false, err
	}
	x, done = s.known(key)
	return x, done, nil
}

func (s *sessions) known(key string) (x *exchange, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byKey[key]
	if found == nil || !found.Until.After(s.now()) {
		return nil, false
	}
	copied := *found
	return &copied, found.done
}

// answered notes that a request got its terminal reply. After a restart the
// journal, which has no open request any more, says the same.
func (s *sessions) answered(request parley.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byRequest[request]; x != nil {
		x.done = true
	}
}

// sweep forgets what is over. The caller holds the lock.
func (s *sessions) sweep() {
	now := s.now()
	for k, x := range s.byKey {
		if !x.Until.After(now) {
			delete(s.byKey, k)
			s.forget(x)
		}
	}
}

// almanac is the registry on the journal's state: [protocol.AlmanacStore]. Reads
// are answered from memory, writes compare and set, so that it is one registry
// over several nodes.
type almanac struct {
	records, manifests journal.State
	now                func() time.Time
	max, maxManifests  int
	// extra finds what is not registered: agents that the hub stands in for.
	extra func(ctx context.Context, network, address string) *protocol.Record
	named func(ctx context.Context, name string) (address string)

	mu         sync.RWMutex
	byKey      map[string]*protocol.Record
	byProtocol map[string]map[string]bool
	byDigest   map[string]*protocol.Manifest
	digests    []string // of manifests, the oldest first
	models     map[string]*protocol.Model
	own        func(digest string) *protocol.Manifest // of the agents that the hub stands in for
	stops      []func()
	changed    func(r *protocol.Record) // of the index, on any node
}

func newAlmanac(j *journal.Journal, now func() time.Time) *almanac {
	return &almanac{records: j.State(bucketAlmanac), manifests: j.State(bucketManifests), now: now, max: 65536, maxManifests: 1024,
		byKey: map[string]*protocol.Record{}, byProtocol: map[string]map[string]bool{}, byDigest: map[string]*protocol.Manifest{}, models: map[string]*protocol.Model{}}
}

func recordKey(network, address string) string { return network + "/" + address }

func (a *almanac) start(ctx context.Context) error {
	// Manifests first: records are told with what is known of their protocols.
	stop, err := a.manifests.Watch(ctx, "", func(v journal.Value) {
		if v.Deleted {
			a.mu.Lock()
			a.forget(v.Key)
			a.mu.Unlock()
			return
		}
		if m, err := protocol.ParseManifest(v.Data); err == nil {
			a.addManifest(m)
		}
	})
	if err != nil {
		return err
	}
	a.stops = append(a.stops, stop)
	stop, err = a.records.Watch(ctx, "", func(v journal.Value) {
		if v.Deleted {
			a.set(v.Key, nil)
			return
		}
		r := new(protocol.Record)
		if json.Unmarshal(v.Data, r) == nil {
			a.set(v.Key, r)
		}
	})
	if err == nil {
		a.stops = append(a.stops, stop)
	}
	return err
}

func (a *almanac) stop() {
	for _, f := range a.stops {
		f()
	}
}

func (a *almanac) set(key string, r *protocol.Record) {
	a.mu.Lock()
	old := a.byKey[key]
	if old != nil && r != nil && (old.Registered > r.Registered || old.Registered == r.Registered && old.Updated > r.Updated) {
		a.mu.Unlock()
		return // a late echo of an older write
	}
	if old != nil {
		for _, p := range old.Protocols {
			delete(a.byProtocol[p], key)
			if len(a.byProtocol[p]) == 0 {
				delete(a.byProtocol, p)
			}
		}
		delete(a.byKey, key)
	}
	if r != nil {
		a.byKey[key] = r
		for _, p := range r.Protocols {
			if a.byProtocol[p] == nil {
				a.byProtocol[p] = map[string]bool{}
			}
			a.byProtocol[p][key] = true
		}
	}
	a.mu.Unlock()
	if r != nil && a.changed != nil {
		a.changed(r)
	}
}

// registered gives the live record of an address, of whichever network.
func (a *almanac) registered(address string) *protocol.Record {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, network := range []string{"agent", "test-agent"} {
		if r := a.byKey[recordKey(network, address)]; r != nil && r.Expires.After(a.now()) {
			return r
		}
	}
	return nil
}

// Get implements [protocol.AlmanacStore].
func (a *almanac) Get(ctx context.Context, network, address string) (*protocol.Record, error) {
	a.mu.RLock()
	r := a.byKey[recordKey(network, address)]
	a.mu.RUnlock()
	if (r == nil || !r.Expires.After(a.now())) && a.extra != nil {
		if x := a.extra(ctx, network, address); x != nil {
			return x, nil
		}
	}
	return r, nil
}

// Update implements [protocol.AlmanacStore].
func (a *almanac) Update(ctx context.Context, network, address string, change func(*protocol.Record) (*protocol.Record, error)) error {
	key := recordKey(network, address)
	for range 5 {
		var old *protocol.Record
		v, err := a.records.Get(ctx, key)
		switch {
		case err == nil:
			old = new(protocol.Record)
			if err := json.Unmarshal(v.Data, old); err != nil {
				return fmt.Errorf("the registration of %s is damaged: %w", address, err)
			}
		case !errors.Is(err, journal.ErrNotFound):
			return err
		}
		r, err := change(old)
		if err != nil {
			return err
		}
		if r == old {
			return nil
		}
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if old == nil {
			a.mu.RLock()
			full := len(a.byKey) >= a.max
			a.mu.RUnlock()
			if full {
				a.sweep()
				a.mu.RLock()
				full = len(a.byKey) >= a.max
				a.mu.RUnlock()
			}
			if full {
				return protocol.ErrFull
			}
			_, err = a.records.Create(ctx, key, b, r.Expires)
		} else {
			_, err = a.records.Update(ctx, key, b, r.Expires, v.Revision)
		}
		if errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrExists) {
			continue // another was faster; look again
		}
		if err == nil {
			a.set(key, r)
		}
		return err
	}
	return protocol.ErrBusy
}

// sweep forgets registrations that ran out, and tells which.
func (a *almanac) sweep() (gone []*protocol.Record) {
	now := a.now()
	a.mu.RLock()
	for _, r := range a.byKey {
		if !r.Expires.After(now) {
			gone = append(gone, r)
		}
	}
	a.mu.RUnlock()
	for _, r := range gone {
		a.set(recordKey(r.Network, r.Address), nil)
	}
	return gone
}

// ByProtocol implements [protocol.AlmanacStore].
func (a *almanac) ByProtocol(_ context.Context, digest string, limit int) ([]*protocol.Record, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []*protocol.Record
	for key := range a.byProtocol[digest] {
		if len(out) >= limit {
			break
		}
		if r := a.byKey[key]; r.Expires.After(a.now()) {
			out = append(out, r)
		}
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
	return &protocol.Domain{Name: name, Status: "Registered", Agents: []protocol.DomainAgent{{Address: address, Weight: 1}}}, nil
}

// manifestKept is how long a manifest is kept after it was last published.
const manifestKept = 30 * 24 * time.Hour

// PutManifest implements [protocol.AlmanacStore]. When there is no room, the
// oldest manifest that no registered agent names makes place.
func (a *almanac) PutManifest(ctx context.Context, m *protocol.Manifest) error {
	b, err := m.JSON()
	if err != nil {
		return err
	}
	digest := m.Digest()
	a.mu.RLock()
	_, known := a.byDigest[digest]
	var victim string
	if !known && len(a.digests) >= a.maxManifests {
		for _, d := range a.digests {
			if len(a.byProtocol[d]) == 0 {
				victim = d
				break
			}
		}
		if victim == "" {
			a.mu.RUnlock()
			return protocol.ErrFull
		}
	}
	a.mu.RUnlock()
	if known {
		m, err = a.Manifest(ctx, digest) // the first one stays
		if err == nil && m != nil {
			b, err = m.JSON()
		}
		if err != nil {
			return err
		}
	}
	if _, err := a.manifests.Put(ctx, digest, b, a.now().Add(manifestKept)); err != nil {
		return err
	}
	if victim != "" {
		if err := a.manifests.Delete(ctx, victim, 0); err != nil {
			return err
		}
		a.mu.Lock()
		a.forget(victim)
		a.mu.Unlock()
	}
	a.addManifest(m)
	return nil
}

// forget drops a manifest. The caller holds the lock.
func (a *almanac) forget(digest string) {
	delete(a.byDigest, digest)
	a.digests = slices.DeleteFunc(a.digests, func(d string) bool { return d == digest })
	a.models = map[string]*protocol.Model{}
	for _, m := range a.byDigest {
		for _, model := range m.Models() {
			a.models[model.Digest()] = model
		}
	}
}

func (a *almanac) addManifest(m *protocol.Manifest) {
	a.mu.Lock()
	var told []*protocol.Record
	if _, known := a.byDigest[m.Digest()]; !known {
		a.byDigest[m.Digest()] = m
		a.digests = append(a.digests, m.Digest())
		for _, model := range m.Models() {
			a.models[model.Digest()] = model
		}
		for key := range a.byProtocol[m.Digest()] {
			told = append(told, a.byKey[key])
		}
	}
	a.mu.Unlock()
	if a.changed != nil {
		for _, r := range told {
			a.changed(r)
		}
	}
}

// Manifest implements [protocol.AlmanacStore].
func (a *almanac) Manifest(_ context.Context, digest string) (*protocol.Manifest, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if m := a.byDigest[digest]; m != nil {
		return m, nil
	}
	if a.own != nil {
		return a.own(digest), nil
	}
	return nil, nil
}

// model finds a model that somebody published.
func (a *almanac) model(digest string) *protocol.Model {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.models[digest]
}

// answers are the models that may answer a request, by anybody's manifest.
func (a *almanac) answers(request string) []*protocol.Model {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []*protocol.Model
	for _, d := range a.digests {
		m := a.byDigest[d]
		for _, r := range m.Requests()[request] {
			if model := m.Model(r); model != nil && r != protocol.ErrorMessageDigest {
				out = append(out, model)
			}
		}
	}
	return out
}

// mailbox keeps envelopes for agents that fetch them:
// [protocol.MailboxStore]. What is held in memory is the index; envelopes are
// read from the state.
type mailbox struct {
	state    journal.State
	now      func() time.Time
	maxBoxes int
	maxItems int
	maxBytes int
	stop     func()

	mu    sync.Mutex
	boxes map[string]*box
	bytes int
}

type box struct {
	kept  time.Time // until when the state keeps it
	last  int64     // the newest place
	items []*boxItem
	byKey map[string]*boxItem // by replay key; taken ones too, until they expire
}

type boxItem struct {
	place    int64  // among the items: when it came in nanoseconds, or one more than the item before it
	key      string // replay key
	state    string // key in the state
	uuid     string
	received time.Time
	expires  time.Time
	size     int
	taken    bool
	going    bool // being taken
	stored   bool // the state has it; before that nobody sees it
}

// storedItem is the form of an item in the state; one that was taken has no
// envelope.
type storedItem struct {
	UUID     string    `json:"uuid"`
	Key      string    `json:"key"`
	Received time.Time `json:"received"`
	Expires  time.Time `json:"expires"`
	Envelope []byte    `json:"envelope,omitempty"`
	Message  parley.ID `json:"message,omitzero"` // of the hub's that it says; of another agent's envelope none
}

func newMailbox(j *journal.Journal, now func() time.Time) *mailbox {
	return &mailbox{state: j.State(bucketMailbox), now: now, maxBoxes: 4096, maxItems: 10_000, maxBytes: 1 << 30, boxes: map[string]*box{}, stop: func() {}}
}

const (
	prefixBox  = "box/"
	prefixItem = "item/"
)

func (m *mailbox) start(ctx context.Context) (err error) {
	m.stop, err = m.state.Watch(ctx, "", func(v journal.Value) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if address, ok := strings.CutPrefix(v.Key, prefixBox); ok {
			if v.Deleted {
				m.removeBox(address)
			} else {
				m.box(address).kept = v.Until
			}
			return
		}
		rest, ok := strings.CutPrefix(v.Key, prefixItem)
		address, name, cut := strings.Cut(rest, "/")
		place, _, _ := strings.Cut(name, "-")
		at, err := strconv.ParseInt(place, 10, 64)
		var s storedItem
		if !ok || !cut || err != nil || v.Deleted || json.Unmarshal(v.Data, &s) != nil || !s.Expires.After(m.now()) {
			return
		}
		b := m.box(address)
		old := b.byKey[s.Key]
		switch {
		case old == nil:
			m.add(b, &boxItem{place: at, key: s.Key, state: v.Key, uuid: s.UUID, received: s.Received, expires: s.Expires, size: len(s.Envelope), taken: s.Envelope == nil, stored: true})
		case s.Envelope == nil && !old.taken:
			m.take(b, old)
		}
	})
	return err
}

// box gives the index of a mailbox, made if there is none. The caller holds
// the lock.
func (m *mailbox) box(address string) *box {
	b := m.boxes[address]
	if b == nil {
		b = &box{byKey: map[string]*boxItem{}}
		m.boxes[address] = b
	}
	return b
}

func (m *mailbox) removeBox(address string) {
	if b := m.boxes[address]; b != nil {
		for _, i := range b.items {
			m.bytes -= i.size
		}
		delete(m.boxes, address)
	}
}

// add puts an item at its place. The caller holds the lock.
func (m *mailbox) add(b *box, i *boxItem) {
	b.byKey[i.key] = i
	b.last = max(b.last, i.place)
	if i.taken {
		return
	}
	m.bytes += i.size
	at := len(b.items)
	for at > 0 && b.items[at-1].place > i.place {
		at--
	}
	b.items = slices.Insert(b.items, at, i)
}

// take removes an item from what is listed. The caller holds the lock.
func (m *mailbox) take(b *box, i *boxItem) {
	i.taken = true
	if at := slices.Index(b.items, i); at >= 0 {
		b.items = slices.Delete(b.items, at, at+1)
		m.bytes -= i.size
	}
}

// purge drops what is past its time. The caller holds the lock.
func (m *mailbox) purge(b *box, now time.Time) {
	for key, i := range b.byKey {
		if i.stored && !i.expires.After(now) {
			m.take(b, i)
			delete(b.byKey, key)
		}
	}
}

// Has implements [protocol.MailboxStore].
func (m *mailbox) Has(_ context.Context, address string) (bool, error) { return m.has(address), nil }

func (m *mailbox) has(address string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[address] != nil
}

// Create implements [protocol.MailboxStore].
func (m *mailbox) Create(ctx context.Context, address string) error {
	m.mu.Lock()
	has, full := m.boxes[address] != nil, len(m.boxes) >= m.maxBoxes
	m.mu.Unlock()
	switch {
	case has:
		return nil
	case full:
		return protocol.ErrFull
	}
	return m.keep(ctx, address)
}

// boxKept is how long a mailbox stays that nobody empties.
const boxKept = 30 * 24 * time.Hour

// keep makes a mailbox, or prolongs its life.
func (m *mailbox) keep(ctx context.Context, address string) error {
	until := m.now().Add(boxKept)
	if _, err := m.state.Put(ctx, prefixBox+address, []byte("{}"), until); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.box(address).kept = until
	return nil
}

// sweep forgets mailboxes that nobody emptied for long, and items past their
// time.
func (m *mailbox) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for address, b := range m.boxes {
		m.purge(b, now)
		if !b.kept.IsZero() && !b.kept.After(now) {
			m.removeBox(address)
		}
	}
}

// Remove implements [protocol.MailboxStore].
func (m *mailbox) Remove(ctx context.Context, address string) error {
	m.mu.Lock()
	b := m.boxes[address]
	var keys []string
	if b != nil {
		for _, i := range b.byKey {
			keys = append(keys, i.state)
		}
	}
	m.removeBox(address)
	m.mu.Unlock()
	for _, k := range append(keys, prefixBox+address) {
		if err := m.state.Delete(ctx, k, 0); err != nil {
			return err
		}
	}
	return nil
}

// Put implements [protocol.MailboxStore]. The key is remembered until the item
// expires, taken or not.
func (m *mailbox) Put(ctx context.Context, address, key string, _ time.Time, item protocol.MailboxItem) (prior bool, err error) {
	i := &boxItem{key: key, uuid: item.UUID, received: item.ReceivedAt, expires: item.ExpiresAt, size: len(item.Envelope)}
	m.mu.Lock()
	b := m.boxes[address]
	if b == nil {
		m.mu.Unlock()
		return false, protocol.ErrUnknownAgent
	}
	if old := b.byKey[key]; old != nil {
		m.mu.Unlock()
		if !old.stored {
			return false, protocol.ErrBusy
		}
		return true, nil
	}
	full := func() bool {
		return len(b.items) >= m.maxItems || len(b.byKey) >= 10*m.maxItems || m.bytes+i.size > m.maxBytes
	}
	if full() {
		m.purge(b, m.now())
	}
	if full() {
		m.mu.Unlock()
		return false, protocol.ErrFull
	}
	i.place = max(item.ReceivedAt.UnixNano(), b.last+1) // also when the clock stands, or goes back
	i.state = fmt.Sprintf("%s%s/%020d-%s", prefixItem, address, i.place, item.UUID)
	m.add(b, i)
	m.mu.Unlock()
	v, err := jsonx.Encode(storedItem{UUID: i.uuid, Key: key, Received: i.received, Expires: i.expires, Envelope: item.Envelope, Message: broughtBy(ctx)})
	if err == nil {
		_, err = m.state.Put(ctx, i.state, v, i.expires)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.take(b, i)
		delete(b.byKey, key)
		return false, err
	}
	i.stored = true
	return false, nil
}

// List implements [protocol.MailboxStore].
func (m *mailbox) List(ctx context.Context, address string, offset, limit int, now time.Time) ([]protocol.MailboxItem, error) {
	m.mu.Lock()
	b := m.boxes[address]
	if b == nil {
		m.mu.Unlock()
		return nil, nil
	}
	m.purge(b, now)
	renew := !b.kept.IsZero() && b.kept.Sub(now) < boxKept-24*time.Hour
	var want []*boxItem
	for _, i := range b.items {
		if i.stored {
			want = append(want, i)
		}
	}
	want = want[min(offset, len(want)):]
	want = want[:min(limit, len(want))]
	m.mu.Unlock()
	if renew {
		if err := m.keep(ctx, address); err != nil {
			return nil, err
		}
	}
	out := make([]protocol.MailboxItem, 0, len(want))
	for _, i := range want {
		item, err := m.read(ctx, i)
		if err != nil {
			return nil, err
		}
		if item != nil {
			out = append(out, *item)
		}
	}
	return out, nil
}

// read fetches an item's envelope; nil for one that is gone meanwhile.
func (m *mailbox) read(ctx context.Context, i *boxItem) (*protocol.MailboxItem, error) {
	v, err := m.state.Get(ctx, i.state)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s storedItem
	if err := json.Unmarshal(v.Data, &s); err != nil {
		return nil, fmt.Errorf("an item of a mailbox is damaged: %w", err)
	}
	if s.Envelope == nil {
		return nil, nil
	}
	return &protocol.MailboxItem{UUID: s.UUID, Envelope: s.Envelope, ReceivedAt: s.Received, ExpiresAt: s.Expires}, nil
}

// find gives the listed item of a UUID. The caller holds the lock.
func (m *mailbox) find(address, uuid string, now time.Time) (*box, *boxItem) {
	b := m.boxes[address]
	if b == nil {
		return nil, nil
	}
	for _, i := range b.items {
		if i.uuid == uuid && i.stored && i.expires.After(now) {
			return b, i
		}
	}
	return b, nil
}

// Get implements [protocol.MailboxStore].
func (m *mailbox) Get(ctx context.Context, address, uuid string, now time.Time) (*protocol.MailboxItem, error) {
	m.mu.Lock()
	_, i := m.find(address, uuid, now)
	m.mu.Unlock()
	if i == nil {
		return nil, nil
	}
	return m.read(ctx, i)
}

// Delete implements [protocol.MailboxStore]. What is left until it expires is
// the key: the same message will not be put again.
func (m *mailbox) Delete(ctx context.Context, address, uuid string) (bool, error) {
	m.mu.Lock()
	b, i := m.find(address, uuid, m.now())
	if i == nil || i.going {
		m.mu.Unlock()
		return false, nil
	}
	i.going = true // the watcher may take it before this is back
	m.mu.Unlock()
	v, err := jsonx.Encode(storedItem{UUID: i.uuid, Key: i.key, Received: i.received, Expires: i.expires})
	if err == nil {
		_, err = m.state.Put(ctx, i.state, v, i.expires)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i.going = false
	if err != nil {
		return false, err
	}
	if !i.taken {
		m.take(b, i)
	}
	return true, nil
}

var (
	_ protocol.AlmanacStore = (*almanac)(nil)
	_ protocol.MailboxStore = (*mailbox)(nil)
)
