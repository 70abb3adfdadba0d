// Package directory holds the agents: their names, their identities in every
// protocol, their skills, where their entries came from, and whether they are
// paused.
//
// # Sources
//
// Entries of the configuration file and of the program ([FromConfig], [FromCode])
// are put in at each start, and cannot be changed while the hub runs. Entries that
// operators add and agents register ([FromOperator], [FromAgent], [FromGuest]) are
// stored in the journal's state, and outlive a restart. A name belongs to one
// source: a second one is refused. Guests have their own limit: they never take the
// room of others.
//
// # Several hubs
//
// Hubs that share a journal share the stored entries. A change at one hub reaches
// the watchers of all. A change is made from the newest entry: when two hubs change
// one agent at once, the second makes its change again from the first one's result.
//
// # Identities
//
// An identity (protocol, id) leads to one agent. Where several senders claim the same
// id and enrolled keys tell them apart, each identity has the fingerprint of its key,
// and Lookup by the id alone finds none of them. Where two hubs give one identity to
// two agents at once, it leads to the older agent. A proved sender that is not in the
// directory has a name from [GuestName]: the same each time, and stored nowhere.
package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

var (
	ErrUnknown   = errors.New("no such agent")
	ErrAmbiguous = errors.New("several agents are called so")
	ErrTaken     = errors.New("the name is taken")
	ErrIdentity  = errors.New("the identity belongs to another agent")
	ErrReadOnly  = errors.New("the agent is not kept here")
	ErrFull      = errors.New("the directory is full")
)

// Options of Open.
type Options struct {
	State  journal.State // nil: entries do not outlive a restart
	Agents int           // at the most, guests not counted; 0: 100,000
	Guests int           // at the most; 0: 4,096
	Now    func() time.Time
	Log    *slog.Logger // nil: discards
}

// Directory is safe for concurrent use.
type Directory struct {
	state      journal.State
	limit      int
	guestLimit int // the limit of guests
	now        func() time.Time
	log        *slog.Logger
	stop       func()

	changing  sync.Mutex        // serialises changes, which may wait for the state
	revisions map[string]uint64 // of the stored entries
	paused    map[string]Pause  // agents of the configuration and of programs that are paused

	mu        sync.RWMutex
	byName    map[string]*Entry
	sorted    []*Entry // all, by name; nil: not since the last change
	byID      map[identity]string
	namesByID map[string][]string // names of the agents that have an id, in any protocol
	guests    int                 // entries of guests
	watchers  map[int]func(Change)
	nextID    int
}

type identity struct{ protocol, id, key string }

func identityOf(i parley.Identity) identity { return identity{i.Protocol, i.ID, i.Key} }

// A Change of the directory; Old is nil for an addition, New for a removal.
type Change struct{ Old, New *Entry }

// Open reads the stored entries, and follows the changes of other hubs.
func Open(ctx context.Context, o Options) (*Directory, error) {
	d := &Directory{state: o.State, limit: cmp.Or(o.Agents, 100_000), guestLimit: cmp.Or(o.Guests, 4096), now: o.Now,
		log:       cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		revisions: map[string]uint64{}, paused: map[string]Pause{}, stop: func() {},
		byName: map[string]*Entry{}, byID: map[identity]string{}, namesByID: map[string][]string{},
		watchers: map[int]func(Change){}}
	if d.now == nil {
		d.now = time.Now
	}
	if o.State == nil {
		return d, nil
	}
	var damaged error
	opened := false
	stop, err := o.State.Watch(ctx, "", func(v journal.Value) {
		d.changing.Lock()
		defer d.changing.Unlock()
		switch err := d.apply(v); {
		case err == nil:
		case !opened:
			damaged = cmp.Or(damaged, err)
		default:
			d.log.Error("a change by another hub cannot be read", "agent", v.Key, "error", err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the directory: %w", err)
	}
	d.changing.Lock()
	opened = true
	d.changing.Unlock()
	if damaged != nil {
		stop()
		return nil, damaged
	}
	d.stop = stop
	return d, nil
}

// Close stops following other hubs.
func (d *Directory) Close() { d.stop() }

// Agent finds an agent by its name.
func (d *Directory) Agent(name string) (*Entry, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e, ok := d.byName[name]
	return e, ok
}

// Find is [Directory.Agent] that reads the journal for a name that is not known
// here: another hub may have just put it in. It fails with [ErrUnknown], or if the
// journal cannot be read.
func (d *Directory) Find(ctx context.Context, name string) (*Entry, error) {
	e, ok := d.Agent(name)
	if !ok {
		d.changing.Lock()
		err := d.refresh(ctx, name)
		d.changing.Unlock()
		if err != nil {
			return nil, err
		}
		if e, ok = d.Agent(name); !ok {
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		}
	}
	return e, nil
}

// Lookup finds the agent that has an id in a protocol.
func (d *Directory) Lookup(protocol, id string) (*Entry, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	name, ok := d.byID[identity{protocol, id, ""}]
	if !ok {
		return nil, false
	}
	return d.byName[name], true
}

// Claimants lists the agents whose own id in a protocol is id: several where their
// enrolled keys tell them apart.
func (d *Directory) Claimants(protocol, id string) (out []*Entry) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	own := func(i parley.Identity) bool { return i.Protocol == protocol && i.ID == id && !i.StandIn }
	for _, name := range d.namesByID[id] {
		if e := d.byName[name]; slices.ContainsFunc(e.Identities, own) {
			out = append(out, e)
		}
	}
	return out
}

// Resolve finds an agent by its name, else by its id in any protocol, such as
// "agent1q…", "agent://host" or a stand-in's address. A uAgent's address may have
// its prefix, "agent://". It fails with [ErrUnknown], or with [ErrAmbiguous] where
// several agents have the id.
func (d *Directory) Resolve(ref string) (*Entry, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e, ok := d.byName[ref]; ok {
		return e, nil
	}
	names := d.namesByID[ref]
	if len(names) == 0 {
		names = d.namesByID[strings.TrimPrefix(strings.TrimPrefix(ref, "test-"), "agent://")]
	}
	switch len(names) {
	case 0:
		return nil, fmt.Errorf("%w: %q", ErrUnknown, ref)
	case 1:
		return d.byName[names[0]], nil
	}
	names = slices.Sorted(slices.Values(names))
	list := strings.Join(names[:min(len(names), 10)], ", ")
	return nil, fmt.Errorf("%w: %q is %s; give the name", ErrAmbiguous, ref, list)
}

// All lists the agents by name. The result is shared: do not change it.
func (d *Directory) All() []*Entry {
	d.mu.RLock()
	list := d.sorted
	d.mu.RUnlock()
	if list != nil {
		return list
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sorted == nil {
		d.sorted = slices.SortedFunc(maps.Values(d.byName), func(a, b *Entry) int { return cmp.Compare(a.Name, b.Name) })
	}
	return d.sorted
}

// Page lists at most limit of the agents that chosen accepts, by name, from the first one behind the name after; after
// is "" for the first page. More counts those behind the page.
func (d *Directory) Page(after string, limit int, chosen func(*Entry) bool) (page []*Entry, more int) {
	all := d.All()
	at, found := slices.BinarySearchFunc(all, after, func(e *Entry, name string) int { return cmp.Compare(e.Name, name) })
	if found {
		at++
	}
	for _, e := range all[at:] {
		switch {
		case !chosen(e):
		case len(page) < limit:
			page = append(page, e)
		default:
			more++
		}
	}
	return page, more
}

// Len counts the agents.
func (d *Directory) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.byName)
}

// Watch calls f after each change, one at a time; f must not change the
// directory itself.
func (d *Directory) Watch(f func(Change)) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.nextID
	d.nextID++
	d.watchers[id] = f
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watchers, id)
	}
}
