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
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// mailbox keeps envelopes for agents that fetch them: [protocol.MailboxStore]. Memory has
// the index; envelopes are read from the state.
type mailbox struct {
	b        *Binding
	boxRows  *journal.Table[storedBox]  // below prefixBox
	itemRows *journal.Table[storedItem] // below prefixItem
	budget   *bridge.GuestLedger

	mu    sync.Mutex
	boxes map[string]*box
	bytes int
}

type box struct {
	address string
	source  string    // of the agent that made the mailbox; see policy.Source
	kept    time.Time // end of its lifetime in the state
	listed  time.Time // when the agent last listed its messages at this hub
	last    int64     // number of the newest item
	items   []*boxItem
	byKey   map[string]*boxItem // by replay key; with taken items, until they expire
}

type boxItem struct {
	number   int64  // order of items: arrival in nanoseconds, but above that of the item before
	key      string // replay key
	state    string // key in the state
	uuid     string
	received time.Time
	expires  time.Time
	size     int
	taken    bool
	taking   bool // being taken
	stored   bool // written to the state; only then is the item listed
}

// itemBytes is about the memory of an item, or of the key of a taken item.
const itemBytes = 512

// storedBox is a mailbox in the state.
type storedBox struct {
	Source string `json:"source,omitempty"`
}

// storedItem is an item in the state; a taken item has no envelope.
type storedItem struct {
	UUID     string    `json:"uuid"`
	Key      string    `json:"key"`
	Received time.Time `json:"received"`
	Expires  time.Time `json:"expires"`
	Envelope []byte    `json:"envelope,omitempty"`
	Message  parley.ID `json:"message,omitzero"` // of the hub; zero for another agent's envelope
}

// Bounds of the mailboxes.
const (
	maxBoxes     = 4096 // guests have at most half of these
	maxItems     = 10_000
	maxItemBytes = 1 << 30 // of all envelopes
)

func newMailbox(b *Binding) *mailbox {
	return &mailbox{b: b, boxRows: journal.NewTable[storedBox](b.c.Journal, bucketMailbox, 0),
		itemRows: journal.NewTable[storedItem](b.c.Journal, bucketMailbox, 0),
		budget:   b.newGuestLedger(policy.Mailbox, b.evictMailbox), boxes: map[string]*box{}}
}

const (
	prefixBox  = "box/"
	prefixItem = "item/"
)

// start follows boxes and items with one watch, because their order matters: an item may
// create the index of its box.
func (m *mailbox) start(ctx context.Context) (stop func(), err error) {
	type either struct {
		storedBox
		storedItem
	}
	rows := journal.NewTable[either](m.b.c.Journal, bucketMailbox, 0)
	return rows.Watch(ctx, "", func(row journal.Row[either]) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if address, ok := strings.CutPrefix(row.Key, prefixBox); ok {
			m.boxChanged(address, row.Value.storedBox, row.Until, row.Revision != 0)
		} else if rest, ok := strings.CutPrefix(row.Key, prefixItem); ok && row.Revision != 0 {
			address, name, _ := strings.Cut(rest, "/")
			m.itemChanged(row.Key, address, name, &row.Value.storedItem)
		}
	})
}

// boxChanged indexes a mailbox that this hub or another wrote. The caller holds the lock.
func (m *mailbox) boxChanged(address string, s storedBox, until time.Time, there bool) {
	if !there {
		m.removeBox(address)
		return
	}
	b := m.box(address)
	b.kept, b.source = until, s.Source
	m.weighBox(b, m.b.countsAsGuest(address))
}

// itemChanged indexes an item that this hub or another wrote. The caller holds the lock.
func (m *mailbox) itemChanged(key, address, name string, s *storedItem) {
	digits, _, _ := strings.Cut(name, "-")
	at, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !s.Expires.After(m.b.c.Now()) {
		return
	}
	b := m.box(address)
	old := b.byKey[s.Key]
	switch {
	case old == nil:
		m.add(b, &boxItem{number: at, key: s.Key, state: key, uuid: s.UUID, received: s.Received, expires: s.Expires,
			size: len(s.Envelope), taken: s.Envelope == nil, stored: true})
		_ = m.budget.Grow(address, itemBytes) // the item exists, even if the budget is exceeded
	case s.Envelope == nil && !old.taken:
		m.take(b, old)
	}
}

// box gives the index of a mailbox, and creates a missing one. The caller holds the
// lock.
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
	m.budget.Drop(address)
}

// weigh adds a guest's mailbox to the budget of guests, and removes any other.
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
		m.budget.Restore(b.address, b.source, int64(len(b.byKey))*itemBytes)
	} else {
		m.budget.Drop(b.address)
	}
}

// add inserts an item by its number. The caller holds the lock.
func (m *mailbox) add(b *box, i *boxItem) {
	b.byKey[i.key] = i
	b.last = max(b.last, i.number)
	if i.taken {
		return
	}
	m.bytes += i.size
	at := len(b.items)
	for at > 0 && b.items[at-1].number > i.number {
		at--
	}
	b.items = slices.Insert(b.items, at, i)
}

// take removes an item from the list. The caller holds the lock.
func (m *mailbox) take(b *box, i *boxItem) {
	i.taken = true
	if at := slices.Index(b.items, i); at >= 0 {
		b.items = slices.Delete(b.items, at, at+1)
		m.bytes -= i.size
	}
}

// purge drops expired items. The caller holds the lock.
func (m *mailbox) purge(b *box, now time.Time) {
	for key, i := range b.byKey {
		if i.stored && !i.expires.After(now) {
			m.take(b, i)
			m.drop(b, key)
		}
	}
}

// drop removes an item with its key. The caller holds the lock.
func (m *mailbox) drop(b *box, key string) {
	delete(b.byKey, key)
	_ = m.budget.Grow(b.address, -itemBytes) // a decrease is never refused
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
	guest, source := m.b.countsAsGuest(address), policy.SourceOf(ctx)
	m.mu.Lock()
	has, full := m.boxes[address] != nil, len(m.boxes) >= maxBoxes
	m.mu.Unlock()
	switch {
	case has:
		return nil
	case full, guest && m.budget.Len() >= maxBoxes/2:
		return protocol.ErrFull
	case !guest:
		return m.putBox(ctx, address, source)
	}
	if err := m.budget.Write(source, writeCost(0)); err != nil {
		return err
	}
	err := m.budget.Keep(address, source, 0)
	if err == nil {
		err = m.putBox(ctx, address, source)
	}
	switch {
	case err != nil && !m.has(address):
		m.budget.Drop(address)
	case err == nil && !m.budget.Has(address) && m.b.countsAsGuest(address):
		return cmp.Or(m.remove(ctx, address), error(protocol.ErrBusy)) // the mailbox was evicted meanwhile
	}
	return err
}

// boxKept is the lifetime of a mailbox after its agent last asked for messages.
const boxKept = 30 * 24 * time.Hour

// putBox makes a mailbox, or extends its lifetime.
func (m *mailbox) putBox(ctx context.Context, address, source string) error {
	until := m.b.c.Now().Add(boxKept)
	if _, err := m.boxRows.Put(ctx, prefixBox+address, storedBox{source}, until); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.box(address)
	b.kept, b.source = until, source
	return nil
}

// sweep removes expired mailboxes and items.
func (m *mailbox) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.b.c.Now()
	for address, b := range m.boxes {
		m.purge(b, now)
		if !b.kept.IsZero() && !b.kept.After(now) {
			m.removeBox(address)
		}
	}
}

// remove drops a mailbox with all its items.
func (m *mailbox) remove(ctx context.Context, address string) error {
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
		if err := m.itemRows.Delete(ctx, k, 0); err != nil {
			return err
		}
	}
	return nil
}

// Put implements [protocol.MailboxStore]. The key is remembered until the item
// expires, taken or not.
func (m *mailbox) Put(ctx context.Context, address, key string, _ time.Time, item protocol.MailboxItem) (prior bool,
	err error) {
	return m.put(ctx, itemOrigin{}, address, key, item)
}

func (m *mailbox) put(ctx context.Context, from itemOrigin, address, key string,
	item protocol.MailboxItem) (prior bool, err error) {
	i := &boxItem{key: key, uuid: item.UUID, received: item.ReceivedAt, expires: item.ExpiresAt,
		size: len(item.Envelope)}
	m.budget.Use(address)
	m.mu.Lock()
	b := m.boxes[address]
	if b == nil {
		m.mu.Unlock()
		return false, protocol.ErrUnknownAgent
	}
	if old := b.byKey[key]; old != nil {
		stored := old.stored
		m.mu.Unlock()
		if !stored {
			return false, protocol.ErrBusy
		}
		return true, nil
	}
	full := func() bool {
		return len(b.items) >= maxItems || len(b.byKey) >= 10*maxItems || m.bytes+i.size > maxItemBytes
	}
	if full() {
		m.purge(b, m.b.c.Now())
	}
	if full() {
		m.mu.Unlock()
		return false, protocol.ErrFull
	}
	if err := m.budget.Grow(address, itemBytes); err != nil {
		m.mu.Unlock()
		return false, err
	}
	m.chargeSender(from, b, i.size)
	i.number = max(item.ReceivedAt.UnixNano(), b.last+1) // increases even when the clock stands still or goes back
	i.state = fmt.Sprintf("%s%s/%020d-%s", prefixItem, address, i.number, item.UUID)
	m.add(b, i)
	m.mu.Unlock()
	_, err = m.itemRows.Put(ctx, i.state, storedItem{UUID: i.uuid, Key: key, Received: i.received, Expires: i.expires,
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

// chargeSender charges an envelope to the sender if it is a guest, else to the owner of the
// mailbox if that is a guest. It never refuses, as the message was accepted.
func (m *mailbox) chargeSender(from itemOrigin, b *box, size int) {
	n := 4*size + writeBytes // the journal has the message too
	if from.guest {
		m.b.c.Hub.Guests().Wrote(from.source, n)
	} else if m.budget.Has(b.address) {
		m.b.c.Hub.Guests().Wrote(b.source, n)
	}
}

// List implements [protocol.MailboxStore].
func (m *mailbox) List(ctx context.Context, address string, offset, limit int, now time.Time) ([]protocol.MailboxItem,
	error) {
	m.mu.Lock()
	b := m.boxes[address]
	if b == nil {
		m.mu.Unlock()
		return nil, nil
	}
	m.purge(b, now)
	b.listed = now
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
	m.budget.Use(address)
	if renew {
		if err := m.putBox(ctx, address, source); err != nil {
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

// state gives how many messages are in a mailbox, and when the agent last listed them at this hub since its start.
func (m *mailbox) state(address string, now time.Time) (items int, listed time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.boxes[address]
	if b == nil {
		return 0, time.Time{}
	}
	m.purge(b, now)
	return len(b.items), b.listed
}

// read fetches an item's envelope; nil if the item was taken meanwhile.
func (m *mailbox) read(ctx context.Context, i *boxItem) (*protocol.MailboxItem, error) {
	row, err := m.itemRows.Get(ctx, i.state)
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

// Delete implements [protocol.MailboxStore]. The replay key stays until it expires, so
// that the same message is not put again.
func (m *mailbox) Delete(ctx context.Context, address, uuid string) (bool, error) {
	m.mu.Lock()
	b, i := m.find(address, uuid, m.b.c.Now())
	if i == nil || i.taking {
		m.mu.Unlock()
		return false, nil
	}
	i.taking = true // the watcher may take the item before Put returns
	m.mu.Unlock()
	_, err := m.itemRows.Put(ctx, i.state,
		storedItem{UUID: i.uuid, Key: i.key, Received: i.received, Expires: i.expires}, i.expires)
	m.mu.Lock()
	defer m.mu.Unlock()
	i.taking = false
	if err != nil {
		return false, err
	}
	if !i.taken {
		m.take(b, i)
	}
	return true, nil
}

var _ protocol.MailboxStore = (*mailbox)(nil)
