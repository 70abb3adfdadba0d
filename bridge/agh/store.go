package agh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// keepWork is how long the state of a piece of work is kept. No message can be
// fresh for longer, so that none can open closed work anew.
const keepWork = 31 * 24 * time.Hour

// works keeps work in memory and in the journal. It is the protocol's Works: a
// step is in force in memory at once, and durable when Update returns, or,
// where the context has a collector, when the collector says so. A step that a
// record of the log says is durable by that record (see [closed]); every other,
// and every one where other hubs use the same journal, is written to the state.
type works struct {
	table protocol.WorkTable
	state journal.State
	now   func() time.Time
	log   *closed // nil where other hubs use the same journal, which look into the state

	mu      sync.Mutex
	links   map[[2]string]*link // of open work that is a request of the hub's, by workspace and work
	pending map[string]*pending
	writing sync.WaitGroup
}

// link is what the hub knows of work beside its state.
type link struct {
	Request parley.ID // what it is about
	Scope   string    // in which the request is recorded
	Target  string    // directory name of who works
	Inbound bool      // a peer gave it to an agent: while it is open, the request's delivery is its record
	Text    []byte    `json:",omitzero"` // the last that the target said, for a result that says nothing itself
}

type row struct {
	Work protocol.Work
	Link *link `json:",omitzero"`
}

type pending struct{ waiters []chan error }

func workKey(workspaceID, workID string) string {
	sum := sha256.Sum256([]byte(workspaceID + "\x00" + workID))
	return hex.EncodeToString(sum[:16])
}

// keep writes the state of some work, all at once.
func (w *works) keep(ctx context.Context, ids [][2]string) error {
	var c collector
	for _, id := range ids {
		work, ok, err := w.table.Work(ctx, id[0], id[1])
		if err != nil {
			return err
		}
		if ok {
			c.waits = append(c.waits, w.put(workKey(id[0], id[1]), work))
		}
	}
	return c.wait()
}

// load fills the memory with what the journal holds.
func (w *works) load(ctx context.Context) error {
	w.links, w.pending = map[[2]string]*link{}, map[string]*pending{}
	for v, err := range w.state.Range(ctx, "") {
		if err != nil {
			return fmt.Errorf("read the work of AGH: %w", err)
		}
		if err := w.take(ctx, v.Data); err != nil {
			return fmt.Errorf("the work %s of AGH: %w", v.Key, err)
		}
	}
	return nil
}

func (w *works) take(ctx context.Context, data []byte) error {
	var r row
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	_, err := w.table.Update(ctx, r.Work.WorkspaceID, r.Work.WorkID, func(protocol.Work, bool) (protocol.Work, error) { return r.Work, nil })
	if err == nil && r.Link != nil && !r.Work.State.Terminal() {
		w.mu.Lock()
		w.links[[2]string{r.Work.WorkspaceID, r.Work.WorkID}] = r.Link
		w.mu.Unlock()
	}
	return err
}

// restore puts work as it was into the memory, where the oldest makes room.
func (w *works) restore(ctx context.Context, work protocol.Work) {
	_, _ = w.table.Update(ctx, work.WorkspaceID, work.WorkID, func(protocol.Work, bool) (protocol.Work, error) { return work, nil })
}

// replay takes work one step on as a recorded message of a peer to another did.
// What agents were asked for is found by its request.
func (w *works) replay(ctx context.Context, e *protocol.Envelope, t time.Time, toAgent bool) {
	work, err := w.table.Update(ctx, e.WorkspaceID, e.WorkID, func(old protocol.Work, ok bool) (protocol.Work, error) {
		next, err := protocol.Advance(old, ok, e)
		if err == nil && !ok && toAgent {
			err = protocol.ErrWorkTarget
		}
		next.Updated = t
		return next, err // it was refused when it came
	})
	switch {
	case err != nil:
	case work.State.Terminal():
		w.log.over(work, parley.ID{})
	default:
		w.log.openedBefore([2]string{work.WorkspaceID, work.WorkID}, parley.ID{})
	}
}

// place says where some work is that was found after a crash, if that is not
// known.
func (w *works) place(ctx context.Context, workspaceID, workID string, at protocol.Container, initiator string) (protocol.Work, bool, error) {
	if work, ok, err := w.Work(ctx, workspaceID, workID); err != nil || !ok || work.Container != (protocol.Container{}) {
		return work, ok, err
	}
	work, err := w.Update(recorded(ctx), workspaceID, workID, func(work protocol.Work, ok bool) (protocol.Work, error) {
		if ok && work.Container == (protocol.Container{}) {
			work.Container, work.Initiator = at, initiator
		}
		return work, nil
	})
	return work, true, err
}

// follow takes over what other hubs on the same journal change.
func (w *works) follow(ctx context.Context) (stop func(), err error) {
	return w.state.Watch(ctx, "", func(v journal.Value) {
		w.mu.Lock()
		_, own := w.pending[v.Key]
		w.mu.Unlock()
		if !own && !v.Deleted {
			_ = w.take(context.Background(), v.Data) // a full table forgets the closed ones first
		}
	})
}

// Work implements agh.Works.
func (w *works) Work(ctx context.Context, workspaceID, workID string) (protocol.Work, bool, error) {
	work, ok, err := w.table.Work(ctx, workspaceID, workID)
	if err != nil || ok || w.log != nil {
		return work, ok, err
	}
	// Another hub may have opened it just now.
	v, err := w.state.Get(ctx, workKey(workspaceID, workID))
	switch {
	case errors.Is(err, journal.ErrNotFound):
		return work, false, nil
	case err == nil:
		err = w.take(ctx, v.Data)
	}
	if err != nil {
		return work, false, err
	}
	return w.table.Work(ctx, workspaceID, workID)
}

// written waits until other hubs can know what is known here of some work.
func (w *works) written(workspaceID, workID string) error {
	w.mu.Lock()
	p := w.pending[workKey(workspaceID, workID)]
	if p == nil {
		w.mu.Unlock()
		return nil
	}
	done := make(chan error, 1)
	p.waiters = append(p.waiters, done)
	w.mu.Unlock()
	return <-done
}

// Update implements agh.Works.
func (w *works) Update(ctx context.Context, workspaceID, workID string, step func(protocol.Work, bool) (protocol.Work, error)) (protocol.Work, error) {
	if w.log == nil {
		if _, _, err := w.Work(ctx, workspaceID, workID); err != nil {
			return protocol.Work{}, err
		}
	}
	changed, opened := false, false
	work, err := w.table.Update(ctx, workspaceID, workID, func(old protocol.Work, ok bool) (protocol.Work, error) {
		next, err := step(old, ok)
		changed, opened = !ok || next.State != old.State || next.Container != old.Container, !ok
		return next, err
	})
	if err != nil || !changed {
		return work, err
	}
	if w.log != nil && w.logged(work, opened, ctx.Value(recordedKey{}) != nil) {
		return work, nil
	}
	done := w.put(workKey(workspaceID, workID), work)
	if c, ok := ctx.Value(collectorKey{}).(*collector); ok {
		c.waits = append(c.waits, done)
		return work, nil
	}
	return work, <-done
}

// logged reports whether the log is enough to know, after a crash, how some
// work stands now. recorded says that there is, or is about to be, a record of
// what changed it.
func (w *works) logged(work protocol.Work, opened, recorded bool) bool {
	id, over := [2]string{work.WorkspaceID, work.WorkID}, work.State.Terminal()
	l, linked := w.linked(id[0], id[1])
	switch {
	case linked && l.Inbound && !over:
		return true // the request's delivery is not settled
	case linked && l.Inbound && !recorded:
		return false
	case linked && l.Inbound:
	case !recorded:
		w.log.written(id)
		return false
	case opened:
		w.log.opened(id, l.Request)
	case !w.log.has(id):
		return false // the state has it already, and would say something else
	}
	if over {
		w.log.over(work, l.Request)
		w.unlink(id[0], id[1])
	}
	return true
}

// recordedKey marks the context of steps that a record of the log is the reason
// of: the message itself, the request that the work is, or its reply.
type recordedKey struct{}

func recorded(ctx context.Context) context.Context {
	return context.WithValue(ctx, recordedKey{}, true)
}

// collector gathers writes, so that a caller can do something else meanwhile.
type collector struct{ waits []<-chan error }

type collectorKey struct{}

func collect(ctx context.Context) (context.Context, *collector) {
	c := &collector{}
	return context.WithValue(ctx, collectorKey{}, c), c
}

func (c *collector) wait() error {
	var first error
	for _, w := range c.waits {
		if err := <-w; err != nil && first == nil {
			first = err
		}
	}
	c.waits = nil
	return first
}

// put makes the current state of some work durable. Writes of one key follow
// each other, and the last one wins.
func (w *works) put(key string, work protocol.Work) <-chan error {
	done := make(chan error, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pending[key]
	if p != nil {
		p.waiters = append(p.waiters, done)
		return done
	}
	p = &pending{waiters: []chan error{done}}
	w.pending[key] = p
	w.writing.Add(1)
	go w.write(key, work.WorkspaceID, work.WorkID, p)
	return done
}

func (w *works) write(key, workspaceID, workID string, p *pending) {
	defer w.writing.Done()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		w.mu.Lock()
		waiters := p.waiters
		p.waiters = nil
		if len(waiters) == 0 {
			delete(w.pending, key)
			w.mu.Unlock()
			return
		}
		work, ok, err := w.table.Work(ctx, workspaceID, workID)
		r := row{Work: work, Link: w.links[[2]string{workspaceID, workID}]}
		if ok && work.State.Terminal() {
			delete(w.links, [2]string{workspaceID, workID})
		}
		w.mu.Unlock()
		if err == nil && ok {
			var b []byte
			if b, err = json.Marshal(r); err == nil {
				_, err = w.state.Put(ctx, key, b, w.now().Add(keepWork))
			}
		}
		for _, c := range waiters {
			c <- err
		}
	}
}

// link notes which request some work is; before the work is opened.
func (w *works) link(workspaceID, workID string, l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links[[2]string{workspaceID, workID}] = l
}

func (w *works) unlink(workspaceID, workID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.links, [2]string{workspaceID, workID})
}

// linked finds the request that some open work is.
func (w *works) linked(workspaceID, workID string) (link, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.links[[2]string{workspaceID, workID}]
	if !ok {
		return link{}, false
	}
	return *l, true
}

// said remembers what the target of some work said last.
func (w *works) said(workspaceID, workID string, text []byte) {
	const most = 64 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	if l, ok := w.links[[2]string{workspaceID, workID}]; ok && len(text) <= most {
		c := *l
		c.Text = text
		w.links[[2]string{workspaceID, workID}] = &c
	}
}

// container is a conversation of AGH.
type container struct {
	WorkspaceID string
	protocol.Container
}

func (c container) foreign() string {
	return string(c.Surface) + " " + c.Channel + " " + c.ID
}

// containers remembers which conversation of the hub is which thread, so that
// who speaks in the conversation is heard there.
type containers struct {
	state journal.State
	now   func() time.Time
	rooms bool // direct rooms too: what is forgotten of a conversation may wait for another hub

	mu    sync.Mutex
	known map[parley.ID]container
	order []parley.ID
	noted map[parley.ID]struct{} // all that the state has; nil where that is not known, and it is asked
}

const (
	maxContainers = 16384 // held in memory; the others are looked up
	maxNoted      = 1 << 18
	keepContainer = 180 * 24 * time.Hour
)

// load finds out of which conversations the state knows: of most it does not,
// and need not be asked. Where other hubs write it too, nobody can tell.
func (c *containers) load(ctx context.Context) error {
	if c.rooms {
		return nil
	}
	noted := map[parley.ID]struct{}{}
	for v, err := range c.state.Range(ctx, "") {
		if err != nil {
			return fmt.Errorf("read the threads of AGH: %w", err)
		}
		id, err := parley.ParseID(v.Key)
		if err != nil {
			return fmt.Errorf("the thread %s of AGH: %w", v.Key, err)
		}
		if noted[id] = struct{}{}; len(noted) > maxNoted {
			return nil
		}
	}
	c.mu.Lock()
	c.noted = noted
	c.mu.Unlock()
	return nil
}

func (c *containers) note(ctx context.Context, id parley.ID, at container) error {
	if at.Surface == protocol.SurfaceDirect && !c.rooms {
		return nil // its two peers say where it is
	}
	c.mu.Lock()
	_, ok := c.known[id]
	c.mu.Unlock()
	if ok {
		return nil
	}
	b, err := json.Marshal(at)
	if err != nil {
		return err
	}
	if _, err := c.state.Put(ctx, id.String(), b, c.now().Add(keepContainer)); err != nil {
		return err
	}
	c.mu.Lock()
	if c.noted != nil {
		if c.noted[id] = struct{}{}; len(c.noted) > maxNoted {
			c.noted = nil
		}
	}
	c.mu.Unlock()
	c.remember(id, at)
	return nil
}

func (c *containers) remember(id parley.ID, at container) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[parley.ID]container{}
	}
	if _, ok := c.known[id]; ok {
		return
	}
	if len(c.order) >= maxContainers {
		delete(c.known, c.order[0])
		c.order = c.order[1:]
	}
	c.known[id] = at
	c.order = append(c.order, id)
}

func (c *containers) find(ctx context.Context, id parley.ID) (container, bool) {
	c.mu.Lock()
	at, ok := c.known[id]
	_, noted := c.noted[id]
	noted = noted || c.noted == nil
	c.mu.Unlock()
	if ok || !noted {
		return at, ok
	}
	v, err := c.state.Get(ctx, id.String())
	if err != nil || json.Unmarshal(v.Data, &at) != nil {
		return container{}, false
	}
	c.remember(id, at)
	return at, true
}

// asked remembers the newest messages of peers as they were read, so that what
// is relayed or answered soon is not read again. The journal has them all.
type asked struct {
	mu    sync.Mutex
	byID  map[parley.ID]*protocol.Envelope
	order []parley.ID
}

// Bounds of asked: 16 MiB of envelopes.
const (
	maxAsked  = 2048
	askedSize = 8 << 10
)

func (a *asked) note(id parley.ID, e *protocol.Envelope) {
	if len(e.Raw()) > askedSize {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byID == nil {
		a.byID = map[parley.ID]*protocol.Envelope{}
	}
	if len(a.order) >= maxAsked {
		delete(a.byID, a.order[0])
		a.order = a.order[1:]
	}
	a.byID[id] = e
	a.order = append(a.order, id)
}

func (a *asked) of(id parley.ID) *protocol.Envelope {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[id]
}
