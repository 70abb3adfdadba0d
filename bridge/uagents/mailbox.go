package uagents

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// mailbox keeps envelopes for agents that fetch them:
// [protocol.MailboxStore]. What is held in memory is the index; envelopes are
// read from the state.
type mailbox struct {
	kept     *journal.Table[storedBox]  // below prefixBox
	stored   *journal.Table[storedItem] // below prefixItem
	now      func() time.Time
	count    *ledger
	guest    func(address string) bool
	maxBoxes int // guests have at most half of these
	maxItems int
	maxBytes int
	stops    []func()

	mu    sync.Mutex
	boxes map[string]*box
	bytes int
}

type box struct {
	address string
	source  string    // that made it; see policy.Source
	kept    time.Time // until when the state keeps it
	last    int64     // the newest place
	items   []*boxItem
	byKey   map[string]*boxItem // by replay key; taken ones too, until they expire
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

// itemBytes is about what an item, or the key of one that was taken, holds in
// memory. The envelope is in the state only.
const itemBytes = 512

// storedBox is the form of a mailbox in the state.
type storedBox struct {
	Source string `json:"source,omitempty"`
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
	return &mailbox{kept: journal.NewTable[storedBox](j, bucketMailbox, 0), stored: journal.NewTable[storedItem](j, bucketMailbox, 0),
		now: now, maxBoxes: 4096, maxItems: 10_000, maxBytes: 1 << 30, boxes: map[string]*box{}}
}

const (
	prefixBox  = "box/"
	prefixItem = "item/"
)

func (m *mailbox) start(ctx context.Context) error {
	stop, err := m.kept.Watch(ctx, prefixBox, m.boxChanged)
	if err != nil {
		return err
	}
	m.stops = append(m.stops, stop)
	if stop, err = m.stored.Watch(ctx, prefixItem, m.itemChanged); err == nil {
		m.stops = append(m.stops, stop)
	}
	return err
}

func (m *mailbox) stop() {
	for _, f := range m.stops {
		f()
	}
}

func (m *mailbox) boxChanged(row journal.Row[storedBox]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	address := strings.TrimPrefix(row.Key, prefixBox)
	if row.Revision == 0 {
		m.removeBox(address)
		return
	}
	b := m.box(address)
	b.kept, b.source = row.Until, row.Value.Source
	m.weighBox(b, m.guest(address))
}

func (m *mailbox) itemChanged(row journal.Row[storedItem]) {
	address, name, cut := strings.Cut(strings.TrimPrefix(row.Key, prefixItem), "/")
	number, _, _ := strings.Cut(name, "-")
	place, err := strconv.ParseInt(number, 10, 64)
	s := &row.Value
	m.mu.Lock()
	defer m.mu.Unlock()
	if !cut || err != nil || row.Revision == 0 || !s.Expires.After(m.now()) {
		return
	}
	b := m.box(address)
	old := b.byKey[s.Key]
	switch {
	case old == nil:
		m.add(b, &boxItem{place: place, key: s.Key, state: row.Key, uuid: s.UUID, received: s.Received, expires: s.Expires,
			size: len(s.Envelope), taken: s.Envelope == nil, stored: true})
		_ = m.count.grow(address, itemBytes) // it is there, whatever the budget says
	case s.Envelope == nil && !old.taken:
		m.take(b, old)
	}
}

// box gives the index of a mailbox, made if there is none. The caller holds
// the lock.
func (m *mailbox) box(address string) *box {
	b := m.boxes[address]
	if b == nil {
		b = &box{address: address, byKey: map[string]*boxItem{}}
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
	m.count.drop(address)
}

// weigh counts a mailbox if it is a guest's.
func (m *mailbox) weigh(address string, guest bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[address]; b != nil {
		m.weighBox(b, guest)
	}
}

// weighBox is weigh. The caller holds the lock.
func (m *mailbox) weighBox(b *box, guest bool) {
	if guest {
		m.count.restore(b.address, b.source, int64(len(b.byKey))*itemBytes)
	} else {
		m.count.drop(b.address)
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
			m.drop(b, key)
		}
	}
}

// drop forgets a key. The caller holds the lock.
func (m *mailbox) drop(b *box, key string) {
	delete(b.byKey, key)
	_ = m.count.grow(b.address, -itemBytes) // less is never refused
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
	guest, source := m.guest(address), policy.SourceOf(ctx)
	m.mu.Lock()
	has, full := m.boxes[address] != nil, len(m.boxes) >= m.maxBoxes
	m.mu.Unlock()
	switch {
	case has:
		return nil
	case full, guest && m.count.len() >= max(1, m.maxBoxes/2):
		return protocol.ErrFull
	case !guest:
		return m.keep(ctx, address, source)
	}
	if err := m.count.write(source, 0); err != nil {
		return err
	}
	err := m.count.keep(address, source, 0)
	if err == nil {
		err = m.keep(ctx, address, source)
	}
	switch {
	case err != nil && !m.has(address):
		m.count.drop(address)
	case err == nil && !m.count.has(address) && m.guest(address):
		return cmp.Or(m.Remove(ctx, address), error(protocol.ErrBusy)) // it gave way meanwhile
	}
	return err
}

// boxKept is how long a mailbox stays that nobody empties.
const boxKept = 30 * 24 * time.Hour

// keep makes a mailbox, or prolongs its life.
func (m *mailbox) keep(ctx context.Context, address, source string) error {
	until := m.now().Add(boxKept)
	if _, err := m.kept.Put(ctx, prefixBox+address, storedBox{source}, until); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.box(address)
	b.kept, b.source = until, source
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
		if err := m.stored.Delete(ctx, k, 0); err != nil {
			return err
		}
	}
	return nil
}

// Put implements [protocol.MailboxStore]. The key is remembered until the item
// expires, taken or not.
func (m *mailbox) Put(ctx context.Context, address, key string, _ time.Time, item protocol.MailboxItem) (prior bool, err error) {
	return m.put(ctx, itemOrigin{}, address, key, item)
}

func (m *mailbox) put(ctx context.Context, from itemOrigin, address, key string,
	item protocol.MailboxItem) (prior bool, err error) {
	i := &boxItem{key: key, uuid: item.UUID, received: item.ReceivedAt, expires: item.ExpiresAt, size: len(item.Envelope)}
	m.count.use(address)
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
	if err := m.count.grow(address, itemBytes); err != nil {
		m.mu.Unlock()
		return false, err
	}
	m.pay(from, b, i.size)
	i.place = max(item.ReceivedAt.UnixNano(), b.last+1) // also when the clock stands, or goes back
	i.state = fmt.Sprintf("%s%s/%020d-%s", prefixItem, address, i.place, item.UUID)
	m.add(b, i)
	m.mu.Unlock()
	_, err = m.stored.Put(ctx, i.state, storedItem{UUID: i.uuid, Key: key, Received: i.received, Expires: i.expires,
		Envelope: item.Envelope, Message: from.message}, i.expires)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.take(b, i)
		m.drop(b, key)
		return false, err
	}
	i.stored = true
	return false, nil
}

// pay charges an envelope to the sender if it is a guest, else to the owner of the
// mailbox if that is one. It never refuses: the message was accepted.
func (m *mailbox) pay(from itemOrigin, b *box, size int) {
	n := 4*size + writeBytes // the message is in the journal besides
	if from.guest {
		m.count.guests.Wrote(from.source, n)
	} else if m.count.has(b.address) {
		m.count.guests.Wrote(b.source, n)
	}
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
	renew, source := !b.kept.IsZero() && b.kept.Sub(now) < boxKept-24*time.Hour, b.source
	var want []*boxItem
	for _, i := range b.items {
		if i.stored {
			want = append(want, i)
		}
	}
	want = want[min(offset, len(want)):]
	want = want[:min(limit, len(want))]
	m.mu.Unlock()
	m.count.use(address)
	if renew {
		if err := m.keep(ctx, address, source); err != nil {
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
	row, err := m.stored.Get(ctx, i.state)
	s := &row.Value
	if err != nil || s.Envelope == nil {
		return nil, err
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
	_, err := m.stored.Put(ctx, i.state,
		storedItem{UUID: i.uuid, Key: i.key, Received: i.received, Expires: i.expires}, i.expires)
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

var _ protocol.MailboxStore = (*mailbox)(nil)
