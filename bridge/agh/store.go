package agh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// keepWork is how long the state of a piece of work is kept. No message can be
// fresh for longer, so that none can open closed work anew.
const keepWork = 31 * 24 * time.Hour

// works keeps the state of work in the journal, where all hubs on it find it. It
// is the protocol's Works: a step is durable when Update returns, and refused if
// another hub has ended the work meanwhile.
type works struct {
	state journal.State
	now   func() time.Time

	mu   sync.Mutex
	held map[[2]string]row // as this hub read or wrote them last, by workspace and work
}

const maxWorks = 4096 // in works.held

// link is what the hub knows of work beside its state. It is the Note of the
// envelope that opens the work, if that is a request of the hub's.
type link struct {
	Request parley.ID // what it is about
	Scope   string    // in which the request is recorded
	Target  string    // directory name of who works
	Opened  string    `json:",omitzero"` // replay key of the message by which a peer gave it to an agent
	Text    []byte    `json:",omitzero"` // the last that the target said, for a result that says nothing itself
}

// row is a value of the state. It is not changed.
type row struct {
	Work protocol.Work
	Link *link `json:",omitzero"` // of open work

	revision uint64 // 0: there is none
}

func workKey(workspaceID, workID string) string {
	sum := sha256.Sum256([]byte(workspaceID + "\x00" + workID))
	return hex.EncodeToString(sum[:16])
}

// read gives the row of some work as it is now.
func (w *works) read(ctx context.Context, workspaceID, workID string) (r row, err error) {
	v, err := w.state.Get(ctx, workKey(workspaceID, workID))
	if errors.Is(err, journal.ErrNotFound) {
		return row{}, nil
	}
	if err == nil {
		err = json.Unmarshal(v.Data, &r)
	}
	if err == nil {
		r.revision = v.Revision
		w.hold([2]string{workspaceID, workID}, r)
	}
	return r, err
}

func (w *works) hold(id [2]string, r row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = map[[2]string]row{}
	}
	for old := range w.held {
		if len(w.held) < maxWorks {
			break
		}
		delete(w.held, old)
	}
	if r.revision > w.held[id].revision {
		w.held[id] = r
	}
}

func (w *works) drop(id [2]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, id)
}

// last gives the row of some work as this hub knows it: another may have changed it.
func (w *works) last(ctx context.Context, workspaceID, workID string) (row, error) {
	w.mu.Lock()
	r, ok := w.held[[2]string{workspaceID, workID}]
	w.mu.Unlock()
	if ok {
		return r, nil
	}
	return w.read(ctx, workspaceID, workID)
}

// change writes what step makes of a row, if that says so.
func (w *works) change(ctx context.Context, workspaceID, workID string,
	step func(row) (next row, write bool, err error)) (row, error) {
	id, key := [2]string{workspaceID, workID}, workKey(workspaceID, workID)
	for {
		old, err := w.last(ctx, workspaceID, workID)
		if err != nil {
			return old, err
		}
		next, write, err := step(old)
		if err != nil || !write {
			return next, err
		}
		b, err := json.Marshal(next)
		if err != nil {
			return old, err
		}
		until := w.now().Add(keepWork)
		if old.revision == 0 {
			next.revision, err = w.state.Create(ctx, key, b, until)
		} else {
			next.revision, err = w.state.Update(ctx, key, b, until, old.revision)
		}
		switch {
		case err == nil:
			w.hold(id, next)
			return next, nil
		case !errors.Is(err, journal.ErrExists) && !errors.Is(err, journal.ErrConflict):
			return old, err
		}
		w.drop(id) // it is another now
	}
}

// Work implements agh.Works.
func (w *works) Work(ctx context.Context, workspaceID, workID string) (protocol.Work, bool, error) {
	r, err := w.read(ctx, workspaceID, workID)
	return r.Work, r.revision > 0, err
}

// Update implements agh.Works.
func (w *works) Update(ctx context.Context, e *protocol.Envelope,
	step func(protocol.Work, bool) (protocol.Work, error)) (protocol.Work, error) {
	r, err := w.change(ctx, e.WorkspaceID, e.WorkID, func(old row) (next row, write bool, err error) {
		next = old
		if next.Work, err = step(old.Work, old.revision > 0); err != nil {
			return next, false, err
		}
		if old.revision == 0 {
			next.Link, _ = e.Note.(*link)
		}
		if next.Work.State.Terminal() {
			next.Link = nil
		}
		return next, old.revision == 0 || next.Work.State != old.Work.State, nil
	})
	return r.Work, err
}

// linked finds the request that some open work is.
func (w *works) linked(ctx context.Context, workspaceID, workID string) (link, bool, error) {
	if workID == "" {
		return link{}, false, nil
	}
	r, err := w.last(ctx, workspaceID, workID)
	if err != nil || r.Link == nil {
		return link{}, false, err
	}
	return *r.Link, true, nil
}

// said keeps what the target of some work said last.
func (w *works) said(ctx context.Context, workspaceID, workID string, text []byte) error {
	const most = 64 << 10
	_, err := w.change(ctx, workspaceID, workID, func(r row) (row, bool, error) {
		if r.Link == nil || len(text) > most {
			return r, false, nil
		}
		l := *r.Link
		l.Text, r.Link = text, &l
		return r, true, nil
	})
	return err
}

// container is a conversation of AGH.
type container struct {
	WorkspaceID string
	protocol.Container
}

func (c container) foreign() string {
	return string(c.Surface) + " " + c.Channel + " " + c.ID
}

// containers maps conversations of the hub to threads, so that a message of the
// conversation goes to the thread. It has no rooms: a room's id follows from the ids
// of its two peers, and its conversation from the room.
type containers struct {
	state journal.State
	now   func() time.Time

	mu    sync.Mutex
	known map[parley.ID]container
	order []parley.ID
}

const (
	maxContainers = 16384 // held in memory; the others are looked up
	keepContainer = 180 * 24 * time.Hour
)

func (c *containers) note(ctx context.Context, id parley.ID, at container) error {
	if at.Surface != protocol.SurfaceThread {
		return nil
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
	c.mu.Unlock()
	if ok {
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
