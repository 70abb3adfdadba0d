package directory

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Put adds an agent, or replaces the one that the same source put in. It
// fails with [ErrTaken], [ErrIdentity] or [ErrFull].
//
// Without skills an entry keeps those that its agent declared itself under the same
// identity; see [Directory.Learn].
func (d *Directory) Put(ctx context.Context, a parley.Agent, s Source) (*Entry, error) {
	return d.Register(ctx, a, s, "")
}

// Register is Put of an agent that registered itself, with the skills that it
// declared in a protocol; see [Directory.Learn].
func (d *Directory) Register(ctx context.Context, a parley.Agent, s Source, protocol string) (*Entry, error) {
	return d.change(ctx, a.Name, func(old *Entry) (*Entry, error) {
		if err := parley.CheckName(a.Name); err != nil {
			return nil, err
		}
		e := &Entry{Agent: a, Source: s, Added: d.now(), Learned: protocol}
		if !s.stored() {
			e.Pause, e.Paused = d.paused[a.Name], d.isPaused(a.Name)
		}
		if old != nil {
			if old.Source != s {
				return nil, fmt.Errorf("%w: agent %q comes from %s", ErrTaken, a.Name, old.Source)
			}
			e.Added, e.Paused, e.Pause = old.Added, old.Paused, old.Pause
			if s.registered() { // an operator set them
				e.Retries, e.Record = old.Retries, old.Record
			}
			was, ok := old.Identity(old.Learned)
			if ok && protocol == "" && slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
				return i.Protocol == was.Protocol && i.ID == was.ID
			}) {
				e.inherit(old)
			}
		}
		return e, nil
	})
}

// Remove removes an agent. Agents of the configuration and of the program
// fail with [ErrReadOnly].
func (d *Directory) Remove(ctx context.Context, name string) error {
	_, err := d.change(ctx, name, func(old *Entry) (*Entry, error) {
		switch {
		case old == nil:
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		case !old.Source.stored():
			return nil, fmt.Errorf("%w: %q comes from %s; take it out there", ErrReadOnly, name, old.Source)
		}
		return nil, nil
	})
	return err
}

// Withdraw removes an agent of source s that s does not name any more.
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

// Pause holds back the deliveries to an agent, or resumes them.
func (d *Directory) Pause(ctx context.Context, name string, paused bool) error {
	if paused {
		return d.PauseBy(ctx, name, "", "")
	}
	return d.edit(ctx, name, func(e *Entry) error { e.Paused, e.Pause = false, Pause{}; return nil })
}

// PauseBy holds back the deliveries to an agent, and notes by whom and why.
func (d *Directory) PauseBy(ctx context.Context, name, by, reason string) error {
	return d.edit(ctx, name, func(e *Entry) error {
		p := Pause{Since: d.now().UTC(), By: by, Reason: reason}
		if e.Paused && !e.Pause.Since.IsZero() {
			p.Since = e.Pause.Since
		}
		e.Paused, e.Pause = true, p
		return nil
	})
}

// isPaused reports whether an agent of the configuration or of a program is paused. d.changing is held.
func (d *Directory) isPaused(name string) bool {
	_, is := d.paused[name]
	return is
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

// SetRetries sets how messages to an agent are delivered when an attempt fails. Agents
// of the configuration and of the program fail with [ErrReadOnly].
func (d *Directory) SetRetries(ctx context.Context, name string, r parley.Retries) error {
	return d.edit(ctx, name, func(e *Entry) error {
		if !e.Source.stored() {
			return fmt.Errorf("%w: %q comes from %s; set its delivery there", ErrReadOnly, name, e.Source)
		}
		e.Retries = r
		return nil
	})
}

// Record sets what the journal keeps of the content of an agent's messages.
func (d *Directory) Record(ctx context.Context, name string, r parley.Recording) error {
	if err := r.Check(); err != nil {
		return err
	}
	return d.edit(ctx, name, func(e *Entry) error {
		if !e.Source.stored() {
			return fmt.Errorf("%w: set record for %q where it comes from, the %s", ErrReadOnly, name, e.Source)
		}
		e.Agent.Record = r
		return nil
	})
}

// Learn sets the skills that an agent itself declared in a protocol, in place of its
// earlier ones. It changes nothing unless [Entry.Learns] holds.
func (d *Directory) Learn(ctx context.Context, name, protocol string, skills []parley.SkillSpec) error {
	return d.edit(ctx, name, func(e *Entry) error {
		if e.Learns(protocol) {
			e.Skills, e.Learned = skills, protocol
		}
		return nil
	})
}

// LearnCard is [Directory.Learn] of an agent that describes itself on a card: its texts
// are taken over too, where the entry's source wrote none.
func (d *Directory) LearnCard(ctx context.Context, name, protocol string, c Card, skills []parley.SkillSpec) error {
	return d.edit(ctx, name, func(e *Entry) error {
		if e.Learns(protocol) {
			e.Skills, e.Learned = skills, protocol
			e.describe(c)
		}
		return nil
	})
}

// Link gives an agent a further identity of its own. A stand-in in the same protocol
// retires: its address still leads to the agent, but the hub uses the agent's own.
func (d *Directory) Link(ctx context.Context, name string, id parley.Identity) error {
	return d.edit(ctx, name, func(e *Entry) error {
		id.StandIn = false
		e.Identities = append(slices.DeleteFunc(slices.Clone(e.Identities), func(i parley.Identity) bool {
			return i.Protocol == id.Protocol && i.ID == id.ID
		}), id)
		return nil
	})
}

// StandIn sets the identity of the hub's stand-in for an agent.
func (d *Directory) StandIn(ctx context.Context, name string, id parley.Identity) error {
	return d.edit(ctx, name, standIn(id))
}

// standIn makes id the only identity of a stand-in in its protocol.
func standIn(id parley.Identity) func(*Entry) error {
	id.StandIn = true
	return func(e *Entry) error {
		e.Identities = append(slices.DeleteFunc(slices.Clone(e.Identities), func(i parley.Identity) bool {
			return i.Protocol == id.Protocol && i.StandIn
		}), id)
		return nil
	}
}

// StandIns is [Directory.StandIn] for many agents, by name; agents that are not in the directory are passed over. It
// stores some entries at once, so that they share the syncs of the journal.
func (d *Directory) StandIns(ctx context.Context, ids map[string]parley.Identity) error {
	for names := range slices.Chunk(slices.Sorted(maps.Keys(ids)), writers) {
		if err := d.standIns(ctx, names, ids); err != nil {
			return err
		}
	}
	return nil
}

// writers is how many entries are stored at once.
const writers = 128

func (d *Directory) standIns(ctx context.Context, names []string, ids map[string]parley.Identity) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	type change struct {
		old, e   *Entry
		guests   []*Entry
		revision uint64
		err      error
	}
	changes := make([]change, len(names))
	var writes sync.WaitGroup
	for i, name := range names {
		c := &changes[i]
		if c.old, c.e, c.guests, c.err = d.next(name, edited(name, standIn(ids[name]))); c.err != nil ||
			d.state == nil || !c.e.Source.stored() {
			continue
		}
		was := d.revisions[name]
		writes.Go(func() { c.revision, c.err = d.write(ctx, name, c.old, c.e, was) })
	}
	writes.Wait()
	var errs []error
	for i, name := range names {
		c := &changes[i]
		switch {
		case c.err == nil:
			if c.revision != 0 {
				d.stored(name, c.revision)
			}
			c.err = d.show(ctx, c.old, c.e, c.guests)
		case overtaken(c.err):
			_, c.err = d.settle(ctx, name, edited(name, standIn(ids[name])))
		}
		if c.err != nil && !errors.Is(c.err, ErrUnknown) {
			errs = append(errs, fmt.Errorf("keep the stand-in for %q: %w", name, c.err))
		}
	}
	return errors.Join(errs...)
}

func (d *Directory) edit(ctx context.Context, name string, f func(*Entry) error) error {
	_, err := d.change(ctx, name, edited(name, f))
	return err
}

// edited makes the next entry of an agent with f.
func edited(name string, f func(*Entry) error) func(old *Entry) (*Entry, error) {
	return func(old *Entry) (*Entry, error) {
		if old == nil {
			return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
		}
		e := *old
		return &e, f(&e)
	}
}

// change makes the next entry of a name from the newest one, stores it if entries of
// its source are stored, and only then shows it.
func (d *Directory) change(ctx context.Context, name string, next func(old *Entry) (*Entry, error)) (*Entry, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	return d.settle(ctx, name, next)
}

// settle is change while d.changing is held.
func (d *Directory) settle(ctx context.Context, name string, next func(old *Entry) (*Entry, error)) (*Entry, error) {
	for {
		old, e, guests, err := d.next(name, next)
		if err != nil {
			return nil, err
		}
		if err = d.store(ctx, name, old, e); err == nil {
			return e, d.show(ctx, old, e, guests)
		}
		if !overtaken(err) {
			return nil, fmt.Errorf("keep agent %q: %w", name, err)
		}
		if err := d.refresh(ctx, name); err != nil {
			return nil, err
		}
	}
}

// overtaken reports that another hub changed the stored entry first.
func overtaken(err error) bool {
	return errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrExists)
}

// next makes the next entry of a name and checks it. The guests give way to it.
func (d *Directory) next(name string, next func(old *Entry) (*Entry, error)) (old, e *Entry, guests []*Entry,
	err error) {
	old, _ = d.Agent(name)
	if e, err = next(old); err != nil || e == nil {
		return old, nil, nil, err
	}
	if err := d.checkRoom(old, e); err != nil {
		return nil, nil, nil, err
	}
	for _, i := range e.Identities {
		d.mu.RLock()
		other, ok := d.byID[identityOf(i)]
		d.mu.RUnlock()
		if !ok || other == name {
			continue
		}
		// A chosen name replaces the name that the hub made for an agent that
		// registered itself.
		guest, _ := d.Agent(other)
		if !e.Source.registered() && guest.Source.registered() && strings.HasPrefix(other, "guest/") {
			guests = append(guests, guest)
			e.inherit(guest)
			continue
		}
		return nil, nil, nil, fmt.Errorf("%w: %s %s is %q", ErrIdentity, i.Protocol, i.ID, other)
	}
	if e.Learned != "" && !e.onlySpeaks(e.Learned) {
		e.Skills, e.Learned = nil, "" // its skills in other protocols are unknown
	}
	return old, e, guests, nil
}

// show shows an entry that is stored, and takes the guests out that give way to it.
func (d *Directory) show(ctx context.Context, old, e *Entry, guests []*Entry) error {
	for _, g := range guests {
		if err := d.store(ctx, g.Name, g, nil); err != nil && !errors.Is(err, journal.ErrConflict) {
			return fmt.Errorf("take the guest %q out: %w", g.Name, err)
		}
		d.set(g, nil)
	}
	d.set(old, e)
	for _, g := range guests {
		d.tell(Change{g, nil})
	}
	d.tell(Change{old, e})
	if e == nil && old != nil && !old.Source.stored() {
		// Another hub may have an agent of that name already.
		return d.refresh(ctx, old.Name)
	}
	return nil
}

// store replaces the stored entry old by e.
func (d *Directory) store(ctx context.Context, name string, old, e *Entry) error {
	if d.state == nil {
		return nil
	}
	if of := cmp.Or(e, old); of != nil && !of.Source.stored() {
		return d.storePause(ctx, name, e)
	}
	revision, err := d.write(ctx, name, old, e, d.revisions[name])
	if err == nil {
		d.stored(name, revision)
	}
	return err
}

// write replaces the entry old of the state by e, and gives the new revision; 0: there is no entry.
func (d *Directory) write(ctx context.Context, name string, old, e *Entry, revision uint64) (uint64, error) {
	if e == nil {
		return 0, d.state.Delete(ctx, name, revision)
	}
	b, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	if was, err := json.Marshal(old); err == nil && bytes.Equal(was, b) {
		return revision, nil // the state has it already
	}
	if revision == 0 {
		return d.state.Create(ctx, name, b, time.Time{})
	}
	return d.state.Update(ctx, name, b, time.Time{}, revision)
}

// stored notes the revision of a name in the state; 0: the state has none.
func (d *Directory) stored(name string, revision uint64) {
	if revision == 0 {
		delete(d.revisions, name)
		return
	}
	d.revisions[name] = revision
	delete(d.paused, name)
}

// storePause stores whether an agent of the configuration or of a program is paused.
func (d *Directory) storePause(ctx context.Context, name string, e *Entry) (err error) {
	switch {
	case e == nil || e.Paused == d.isPaused(name) && e.Pause == d.paused[name]:
	case e.Paused:
		var b []byte
		if b, err = json.Marshal(Entry{Agent: parley.Agent{Name: name}, Source: e.Source, Paused: true,
			Pause: e.Pause}); err == nil {
			_, err = d.state.Put(ctx, name, b, time.Time{})
		}
		if err == nil {
			d.paused[name] = e.Pause
		}
	default:
		if err = d.state.Delete(ctx, name, 0); err == nil {
			delete(d.paused, name)
		}
	}
	return err
}

// refresh applies the newest state of a name.
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
	return d.apply(v)
}

// apply shows the stored entry of a name, unless it is older than the one shown.
// d.changing is held.
func (d *Directory) apply(v journal.Value) error {
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
	paused := e != nil && !e.Source.stored() && e.Paused
	if paused {
		d.paused[v.Key] = e.Pause
	} else {
		delete(d.paused, v.Key)
	}
	switch {
	case old != nil && !old.Source.stored(): // this hub's configuration or program has the name
		if old.Paused != paused || old.Pause != d.paused[v.Key] {
			next := *old
			next.Paused, next.Pause = paused, d.paused[v.Key]
			d.set(old, &next)
			d.tell(Change{old, &next})
		}
		return nil
	case e != nil && !e.Source.stored():
		e = nil
	}
	if v.Deleted {
		delete(d.revisions, v.Key)
	} else {
		d.revisions[v.Key] = v.Revision
	}
	if e != nil {
		e.upgrade()
	}
	if old != nil || e != nil {
		d.set(old, e)
		d.tell(Change{old, e})
	}
	return nil
}

// tell calls the watchers. d.changing is held.
func (d *Directory) tell(c Change) {
	d.mu.RLock()
	watchers := slices.Collect(maps.Values(d.watchers))
	d.mu.RUnlock()
	for _, w := range watchers {
		w(c)
	}
}

// checkRoom fails with ErrFull where there is no room for a new entry.
func (d *Directory) checkRoom(old, e *Entry) error {
	if old != nil {
		return nil
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e.Source == FromGuest {
		if d.guests >= d.guestLimit {
			return fmt.Errorf("%w: %d guests; raise guests.registrations, or add the agent yourself", ErrFull,
				d.guestLimit)
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
	d.sorted = nil
	if old != nil {
		if old.Source == FromGuest {
			d.guests--
		}
		delete(d.byName, old.Name)
		for _, i := range old.Identities {
			rest := slices.DeleteFunc(d.namesByID[i.ID], func(name string) bool { return name == old.Name })
			d.namesByID[i.ID] = rest
			if len(rest) == 0 {
				delete(d.namesByID, i.ID)
			}
		}
	}
	if e != nil {
		if e.Source == FromGuest {
			d.guests++
		}
		d.byName[e.Name] = e
		for _, i := range e.Identities {
			if !slices.Contains(d.namesByID[i.ID], e.Name) {
				d.namesByID[i.ID] = append(d.namesByID[i.ID], e.Name)
			}
		}
	}
	for _, e := range []*Entry{old, e} {
		if e == nil {
			continue
		}
		for _, i := range e.Identities {
			d.updateOwner(identityOf(i))
		}
	}
}

// updateOwner finds the agent that an identity leads to. Of several, which hubs
// added at once, every hub chooses the same.
func (d *Directory) updateOwner(i identity) {
	var first *Entry
	for _, name := range d.namesByID[i.id] {
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
