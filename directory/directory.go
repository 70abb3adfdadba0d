// Package directory knows the agents: what each is called, here and in every
// protocol, what it can do, where it came from, and whether it is paused.
//
// # Sources
//
// What the configuration file or the program itself says ([FromConfig],
// [FromCode]) is told anew at each start, and cannot be changed while the hub
// runs. What operators add and what agents register themselves ([FromOperator],
// [FromAgent], [FromGuest]) is kept in the journal's state, and is there again
// after a restart. A name belongs to one source: a second one is refused. Guests
// have places of their own: they never take those of the other sources.
//
// # Several hubs
//
// Hubs that share a journal share what is kept. A change at one of them reaches
// the watchers of all, by the same function. A change starts from the newest
// entry: of two hubs that change one agent at once, the second starts again from
// what the first has made.
//
// # Identities
//
// An identity (protocol, id) leads to one agent. Where several senders claim
// the same id and enrolled keys tell them apart, each has the fingerprint of
// its key in its identity, and Lookup by the id alone finds none of them. Where
// two hubs give one identity to two agents at once, it leads to the older one. A
// proved sender that nobody added gets a name from [Stranger], which is the same
// each time and is kept nowhere.
package directory

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Source is who put an agent into the directory.
type Source string

const (
	FromConfig   Source = "config"
	FromCode     Source = "code"
	FromOperator Source = "operator"
	FromAgent    Source = "agent" // registered itself, over a connection that the operator configured
	FromGuest    Source = "guest" // registered itself, and nobody vouches for it
)

// kept reports whether entries of the source live in the state.
func (s Source) kept() bool { return s == FromOperator || s.registered() }

// registered reports whether entries of the source are made by the agents
// themselves.
func (s Source) registered() bool { return s == FromAgent || s == FromGuest }

// An Entry is an agent and what the hub knows about it besides. Entries are
// not changed after they were put in; a change makes a new one.
type Entry struct {
	parley.Agent
	Source Source
	Added  time.Time
	Paused bool // deliveries are held back; what arrives is kept

	// Learned is the protocol in which the agent itself tells its skills; "":
	// they were declared, or nothing is known of them.
	Learned string `json:",omitempty"`
}

// Learns reports whether an agent's skills are what it tells in a protocol: it
// speaks no other, and nobody declared any.
func (e *Entry) Learns(protocol string) bool {
	return (len(e.Skills) == 0 || e.Learned == protocol) && e.onlySpeaks(protocol)
}

func (e *Entry) onlySpeaks(protocol string) bool { return slices.Equal(e.Native(), []string{protocol}) }

// Native lists the protocols that the agent itself speaks.
func (e *Entry) Native() []string {
	var out []string
	if e.Source == FromCode {
		out = append(out, "go")
	}
	for _, i := range e.Identities {
		if !i.StandIn && !slices.Contains(out, i.Protocol) {
			out = append(out, i.Protocol)
		}
	}
	return out
}

// Identity finds what the agent is called in a protocol: natively, else as a
// stand-in.
func (e *Entry) Identity(protocol string) (parley.Identity, bool) {
	var found parley.Identity
	ok := false
	for _, i := range e.Identities {
		if i.Protocol == protocol && (!ok || found.StandIn && !i.StandIn) {
			found, ok = i, true
		}
	}
	return found, ok
}

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
	State  journal.State // nil: nothing is kept over a restart
	Agents int           // at the most, guests not counted; 0: 100,000
	Guests int           // at the most; 0: 4,096
	Now    func() time.Time
	Log    *slog.Logger // nil: discards
}

// Directory is safe for concurrent use.
type Directory struct {
	state journal.State
	limit int
	guest int // the limit of guests
	now   func() time.Time
	log   *slog.Logger
	stop  func()

	write     sync.Mutex        // serialises changes, which may wait for the state
	revisions map[string]uint64 // of the entries that are kept
	paused    map[string]bool   // agents of the configuration and of programs that are held back

	mu       sync.RWMutex
	byName   map[string]*Entry
	byID     map[identity]string
	called   map[string][]string // names of the agents that have an id, in whatever protocol
	guests   int                 // entries of guests
	watchers map[int]func(Change)
	nextID   int
}

type identity struct{ protocol, id, key string }

func identityOf(i parley.Identity) identity { return identity{i.Protocol, i.ID, i.Key} }

// A Change of the directory; Old or New is nil for what came or went.
type Change struct{ Old, New *Entry }

// Open makes a directory of what the state holds, and follows what other hubs
// change there.
func Open(ctx context.Context, o Options) (*Directory, error) {
	d := &Directory{state: o.State, limit: cmp.Or(o.Agents, 100_000), guest: cmp.Or(o.Guests, 4096), now: o.Now, log: o.Log,
		revisions: map[string]uint64{}, paused: map[string]bool{}, stop: func() {},
		byName: map[string]*Entry{}, byID: map[identity]string{}, called: map[string][]string{},
		watchers: map[int]func(Change){}}
	if d.now == nil {
		d.now = time.Now
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if o.State == nil {
		return d, nil
	}
	var damaged error
	opened := false
	stop, err := o.State.Watch(ctx, "", func(v journal.Value) {
		d.write.Lock()
		defer d.write.Unlock()
		switch err := d.take(v); {
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
	d.write.Lock()
	opened = true
	d.write.Unlock()
	if damaged != nil {
		stop()
		return nil, damaged
	}
	d.stop = stop
	return d, nil
}

// Close ends the following of other hubs.
func (d *Directory) Close() { d.stop() }

// take shows what the state holds of a name, unless it is older than what is
// here. d.write is held.
func (d *Directory) take(v journal.Value) error {
	if v.Revision <= d.revisions[v.Key] {
		return nil
	}
	var e *Entry
	if !v.Deleted {
		e = new(Entry)
		if err := json.Unmarshal(v.Data, e); err != nil {
			return fmt.Errorf("the directory's entry %q is damaged: %w", v.Key, err)
		}
	}
	old, _ := d.Agent(v.Key)
	paused := e != nil && !e.Source.kept() && e.Paused
	if d.paused[v.Key] = true; !paused {
		delete(d.paused, v.Key)
	}
	switch {
	case old != nil && !old.Source.kept(): // this hub's configuration or program has the name
		if old.Paused != paused {
			next := *old
			next.Paused = paused
			d.set(old, &next)
			d.tell(Change{old, &next})
		}
		return nil
	case e != nil && !e.Source.kept():
		e = nil
	}
	if v.Deleted {
		delete(d.revisions, v.Key)
	} else {
		d.revisions[v.Key] = v.Revision
	}
	if e != nil {
		e.mend()
	}
	if old != nil || e != nil {
		d.set(old, e)
		d.tell(Change{old, e})
	}
	return nil
}

// mend brings an entry of an earlier release to the form of this one.
func (e *Entry) mend() {
	for i := range e.Skills { // a schema that is not there was once written as null
		for _, v := range []*json.RawMessage{&e.Skills[i].Input, &e.Skills[i].Output} {
			if string(*v) == "null" {
				*v = nil
			}
		}
	}
	// Guests had no source of their own once, nor was it noted who told their
	// skills. The ASP binding sees to its own.
	if e.Source.registered() && strings.HasPrefix(e.Name, "guest/uagents/") {
		e.Source, e.Learned = FromGuest, "uagents"
	}
}

// Agent finds an agent by its name.
func (d *Directory) Agent(name string) (*Entry, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e, ok := d.byName[name]
	return e, ok
}

// Lookup finds the agent whose own an id of a protocol is.
func (d *Directory) Lookup(protocol, id string) (*Entry, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	name, ok := d.byID[identity{protocol, id, ""}]
	if !ok {
		return nil, false
	}
	return d.byName[name], true
}

// Resolve finds the agent that people and programs mean: by its name, else by
// what any protocol calls it, such as "agent1q…", "agent://host" or a stand-in's
// address. A uAgent's address may have its prefix, "agent://". It fails with
// [ErrUnknown], or with [ErrAmbiguous] where several agents have the id.
func (d *Directory) Resolve(ref string) (*Entry, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e, ok := d.byName[ref]; ok {
		return e, nil
	}
	names := d.called[ref]
	if len(names) == 0 {
		names = d.called[strings.TrimPrefix(strings.TrimPrefix(ref, "test-"), "agent://")]
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

// All lists the agents by name.
func (d *Directory) All() []*Entry {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.SortedFunc(maps.Values(d.byName), func(a, b *Entry) int { return cmp.Compare(a.Name, b.Name) })
}

// Len counts the agents.
func (d *Directory) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.byName)
}

// Put adds an agent, or replaces the one that the same source put in. It
// fails with [ErrTaken], [ErrIdentity] or [ErrFull].
//
// Without skills an entry keeps those that its agent told under the same
// identity; see [Directory.Learn].
func (d *Directory) Put(ctx context.Context, a parley.Agent, s Source) (*Entry, error) {
	return d.put(ctx, a, s, "")
}

// Register is Put of an agent that registered itself, and told its skills in a
// protocol: see [Directory.Learn].
func (d *Directory) Register(ctx context.Context, a parley.Agent, s Source, protocol string) (*Entry, error) {
	return d.put(ctx, a, s, protocol)
}

func (d *Directory) put(ctx context.Context, a parley.Agent, s Source, learned string) (*Entry, error) {
	return d.change(ctx, a.Name, func(old *Entry) (*Entry, error) {
		if err := parley.CheckName(a.Name); err != nil {
			return nil, err
		}
		e := &Entry{Agent: a, Source: s, Added: d.now(), Learned: learned, Paused: !s.kept() && d.paused[a.Name]}
		if old != nil {
			if old.Source != s {
				return nil, fmt.Errorf("%w: agent %q comes from %s", ErrTaken, a.Name, old.Source)
			}
			e.Added, e.Paused = old.Added, old.Paused
			was, ok := old.Identity(old.Learned)
			if ok && learned == "" && slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
				return i.Protocol == was.Protocol && i.ID == was.ID
			}) {
				e.inherit(old)
			}
		}
		return e, nil
	})
}

// Remove takes an agent out. Agents of the configuration and of the program
// fail with [ErrReadOnly].
func (d *Directory) Remove(ctx context.Context, name string) error {
	_, err := d.change(ctx, name, func(old *Entry) (*Entry, error) {
		switch {
		case old == nil:
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		case !old.Source.kept():
			return nil, fmt.Errorf("%w: %q comes from %s; take it out there", ErrReadOnly, name, old.Source)
		}
		return nil, nil
	})
	return err
}

// Withdraw takes out an agent that comes from s and is named there no more.
func (d *Directory) Withdraw(ctx context.Context, name string, s Source) error {
	_, err := d.change(ctx, name, func(old *Entry) (*Entry, error) {
		switch {
		case old == nil:
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		case old.Source != s:
			return nil, fmt.Errorf("%w: %q comes from %s, not from %s", ErrReadOnly, name, old.Source, s)
		}
		return nil, nil
	})
	return err
}

// Pause holds deliveries to an agent back, or lets them go on.
func (d *Directory) Pause(ctx context.Context, name string, paused bool) error {
	return d.edit(ctx, name, func(e *Entry) error { e.Paused = paused; return nil })
}

// Expose sets the protocols in which the hub stands in for an agent.
func (d *Directory) Expose(ctx context.Context, name string, protocols []string) error {
	return d.edit(ctx, name, func(e *Entry) error {
		if e.Source == FromConfig {
			return fmt.Errorf("%w: set expose for %q in the configuration", ErrReadOnly, name)
		}
		e.Exposed = slices.Clone(protocols)
		return nil
	})
}

// Learn notes the skills that an agent itself told in a protocol, in place of
// those that it told before. It changes nothing where the agent does not learn
// there: see [Entry.Learns].
func (d *Directory) Learn(ctx context.Context, name, protocol string, skills []parley.SkillSpec) error {
	return d.edit(ctx, name, func(e *Entry) error {
		if e.Learns(protocol) {
			e.Skills, e.Learned = skills, protocol
		}
		return nil
	})
}

// inherit takes over the skills that the agent told under another entry, unless
// some are declared.
func (e *Entry) inherit(from *Entry) {
	if len(e.Skills) == 0 && from.Learned != "" {
		e.Skills, e.Learned = from.Skills, from.Learned
	}
}

// Link gives an agent a further native identity. A stand-in in the same
// protocol retires: its address leads to the agent still, but the agent is
// called by the native one.
func (d *Directory) Link(ctx context.Context, name string, id parley.Identity) error {
	return d.edit(ctx, name, func(e *Entry) error {
		id.StandIn = false
		e.Identities = append(slices.DeleteFunc(slices.Clone(e.Identities), func(i parley.Identity) bool {
			return i.Protocol == id.Protocol && i.ID == id.ID
		}), id)
		return nil
	})
}

// StandIn notes the identity that the hub keeps for an agent.
func (d *Directory) StandIn(ctx context.Context, name string, id parley.Identity) error {
	return d.edit(ctx, name, func(e *Entry) error {
		id.StandIn = true
		e.Identities = append(slices.DeleteFunc(slices.Clone(e.Identities), func(i parley.Identity) bool {
			return i.Protocol == id.Protocol && i.StandIn
		}), id)
		return nil
	})
}

func (d *Directory) edit(ctx context.Context, name string, f func(*Entry) error) error {
	_, err := d.change(ctx, name, func(old *Entry) (*Entry, error) {
		if old == nil {
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		}
		e := *old
		return &e, f(&e)
	})
	return err
}

// change makes the next entry of a name from the newest one, keeps it where its
// source is kept, and only then shows it.
func (d *Directory) change(ctx context.Context, name string, next func(old *Entry) (*Entry, error)) (*Entry, error) {
	d.write.Lock()
	defer d.write.Unlock()
	for {
		e, err := d.attempt(ctx, name, next)
		if !errors.Is(err, journal.ErrConflict) && !errors.Is(err, journal.ErrExists) {
			return e, err
		}
		// Another hub was first.
		if err := d.refresh(ctx, name); err != nil {
			return nil, err
		}
	}
}

func (d *Directory) attempt(ctx context.Context, name string, next func(old *Entry) (*Entry, error)) (*Entry, error) {
	old, _ := d.Agent(name)
	e, err := next(old)
	if err != nil {
		return nil, err
	}
	var guests []*Entry
	if e != nil {
		if err := d.room(old, e); err != nil {
			return nil, err
		}
		for _, i := range e.Identities {
			d.mu.RLock()
			other, ok := d.byID[identityOf(i)]
			d.mu.RUnlock()
			if !ok || other == name {
				continue
			}
			// An agent that registered itself under a name that the hub made
			// gives way to the name that somebody chooses for it.
			if guest, _ := d.Agent(other); !e.Source.registered() && guest.Source.registered() && strings.HasPrefix(other, "guest/") {
				guests = append(guests, guest)
				e.inherit(guest)
				continue
			}
			return nil, fmt.Errorf("%w: %s %s is %q", ErrIdentity, i.Protocol, i.ID, other)
		}
		if e.Learned != "" && !e.onlySpeaks(e.Learned) {
			e.Skills, e.Learned = nil, "" // nothing is known of its skills elsewhere
		}
	}
	if err := d.keep(ctx, name, old, e); err != nil {
		return nil, fmt.Errorf("keep agent %q: %w", name, err)
	}
	for _, g := range guests {
		if err := d.keep(ctx, g.Name, g, nil); err != nil && !errors.Is(err, journal.ErrConflict) {
			return nil, fmt.Errorf("take the guest %q out: %w", g.Name, err)
		}
		d.set(g, nil)
	}
	d.set(old, e)
	for _, g := range guests {
		d.tell(Change{g, nil})
	}
	d.tell(Change{old, e})
	if e == nil && old != nil && !old.Source.kept() {
		// Another hub may have an agent of that name already.
		if err := d.refresh(ctx, name); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// keep brings the state from old to e.
func (d *Directory) keep(ctx context.Context, name string, old, e *Entry) error {
	if d.state == nil {
		return nil
	}
	if of := cmp.Or(e, old); of != nil && !of.Source.kept() {
		return d.keepPause(ctx, name, e)
	}
	revision := d.revisions[name]
	if e == nil {
		if err := d.state.Delete(ctx, name, revision); err != nil {
			return err
		}
		delete(d.revisions, name)
		return nil
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if was, err := json.Marshal(old); err == nil && bytes.Equal(was, b) {
		return nil // the state says so already
	}
	if revision == 0 {
		revision, err = d.state.Create(ctx, name, b, time.Time{})
	} else {
		revision, err = d.state.Update(ctx, name, b, time.Time{}, revision)
	}
	if err == nil {
		d.revisions[name] = revision
		delete(d.paused, name)
	}
	return err
}

// keepPause keeps of an agent of the configuration or of a program whether
// deliveries to it are held back.
func (d *Directory) keepPause(ctx context.Context, name string, e *Entry) (err error) {
	switch {
	case e == nil || e.Paused == d.paused[name]:
	case e.Paused:
		var b []byte
		if b, err = json.Marshal(Entry{Agent: parley.Agent{Name: name}, Source: e.Source, Paused: true}); err == nil {
			_, err = d.state.Put(ctx, name, b, time.Time{})
		}
		if err == nil {
			d.paused[name] = true
		}
	default:
		if err = d.state.Delete(ctx, name, 0); err == nil {
			delete(d.paused, name)
		}
	}
	return err
}

// refresh takes over what the state holds of a name now.
func (d *Directory) refresh(ctx context.Context, name string) error {
	if d.state == nil {
		return nil
	}
	v, err := d.state.Get(ctx, name)
	if errors.Is(err, journal.ErrNotFound) {
		v, err = journal.Value{Key: name, Deleted: true, Revision: math.MaxUint64}, nil
	}
	if err != nil {
		return fmt.Errorf("read agent %q: %w", name, err)
	}
	return d.take(v)
}

// tell has the watchers follow a change. d.write is held.
func (d *Directory) tell(c Change) {
	d.mu.RLock()
	watchers := slices.Collect(maps.Values(d.watchers))
	d.mu.RUnlock()
	for _, w := range watchers {
		w(c)
	}
}

// room reports whether there is a place for a new entry.
func (d *Directory) room(old, e *Entry) error {
	if old != nil {
		return nil
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e.Source == FromGuest {
		if d.guests >= d.guest {
			return fmt.Errorf("%w: %d guests; raise guests.registrations, or add the agent yourself", ErrFull, d.guest)
		}
		return nil
	}
	if len(d.byName)-d.guests >= d.limit {
		return fmt.Errorf("%w: %d agents; raise limits.agents", ErrFull, d.limit)
	}
	return nil
}

func (d *Directory) set(old, e *Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old != nil {
		if old.Source == FromGuest {
			d.guests--
		}
		delete(d.byName, old.Name)
		for _, i := range old.Identities {
			rest := slices.DeleteFunc(d.called[i.ID], func(name string) bool { return name == old.Name })
			if d.called[i.ID] = rest; len(rest) == 0 {
				delete(d.called, i.ID)
			}
		}
	}
	if e != nil {
		if e.Source == FromGuest {
			d.guests++
		}
		d.byName[e.Name] = e
		for _, i := range e.Identities {
			if !slices.Contains(d.called[i.ID], e.Name) {
				d.called[i.ID] = append(d.called[i.ID], e.Name)
			}
		}
	}
	for _, e := range []*Entry{old, e} {
		if e == nil {
			continue
		}
		for _, i := range e.Identities {
			d.lead(identityOf(i))
		}
	}
}

// lead has an identity lead to its agent. Of several, which two hubs added at
// once, it is the one that every hub chooses.
func (d *Directory) lead(i identity) {
	var first *Entry
	for _, name := range d.called[i.id] {
		e := d.byName[name]
		has := slices.ContainsFunc(e.Identities, func(o parley.Identity) bool { return identityOf(o) == i })
		if has && (first == nil || e.before(first)) {
			first = e
		}
	}
	if first == nil {
		delete(d.byID, i)
	} else {
		d.byID[i] = first.Name
	}
}

// before: agents that an operator added come before those that registered
// themselves, and older ones before newer.
func (e *Entry) before(o *Entry) bool {
	if e.Source.registered() != o.Source.registered() {
		return o.Source.registered()
	}
	return cmp.Or(e.Added.Compare(o.Added), cmp.Compare(e.Name, o.Name)) < 0
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

// Stranger names a proved sender that nobody added: "guest/<protocol>/<id>",
// with the id made to fit a name, and eight digits of a hash of id and key
// fingerprint, so that two who claim one id under different keys are two.
func Stranger(protocol, id, fingerprint string) string {
	sum := sha256.Sum256([]byte(protocol + "\x00" + id + "\x00" + fingerprint))
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimPrefix(id, "agent://")) {
		if b.Len() >= 64 {
			break
		}
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || b.Len() > 0 && r == '.' {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && s[len(s)-1] != '-' {
			b.WriteByte('-')
		}
	}
	if b.Len() > 0 {
		b.WriteByte('-')
	}
	return "guest/" + protocol + "/" + b.String() + hex.EncodeToString(sum[:4])
}
