package agh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
)

// The binding keeps the state of work and the threads of conversations in tables of
// the journal, and the newest envelopes in memory.

// keepWork is how long the state of a piece of work is kept. No message stays fresh
// for longer, so that no replay can reopen closed work.
const keepWork = 31 * 24 * time.Hour

// works is the protocol's Works in the journal, for all hubs on it: a step is durable
// when Update returns, and refused if another hub has ended the work meanwhile.
type works struct {
	rows *journal.Table[work]
	now  func() time.Time
}

const maxWorks = 4096 // cached

// link ties open work to a request of the hub. It is the Note of the envelope that
// opens the work.
type link struct {
	Request parley.ID
	Scope   string // of the request's record
	Target  string // directory name of the working agent
	Opened  string `json:",omitzero"` // replay key of the peer's message that opened the work, if any
	Text    []byte `json:",omitzero"` // last text of the target, for a result without content
}

// work is the record of a piece of work.
type work struct {
	Work protocol.Work
	Link *link `json:",omitzero"` // of open work
}

func newWorks(j *journal.Journal, now func() time.Time) *works {
	return &works{journal.NewTable[work](j, "agh.works", maxWorks), now}
}

func workKey(workspaceID, workID string) string {
	sum := sha256.Sum256([]byte(workspaceID + "\x00" + workID))
	return hex.EncodeToString(sum[:16])
}

// Work implements agh.Works.
func (w *works) Work(ctx context.Context, workspaceID, workID string) (protocol.Work, bool, error) {
	r, err := w.rows.Get(ctx, workKey(workspaceID, workID))
	return r.Value.Work, r.Revision > 0, err
}

// Update implements agh.Works.
func (w *works) Update(ctx context.Context, e *protocol.Envelope,
	step func(protocol.Work, bool) (protocol.Work, error)) (protocol.Work, error) {
	r, err := w.rows.Change(ctx, workKey(e.WorkspaceID, e.WorkID), func(r *journal.Row[work]) (write bool, err error) {
		isNew, before := r.Revision == 0, r.Value.Work.State
		if r.Value.Work, err = step(r.Value.Work, !isNew); err != nil {
			return false, err
		}
		if isNew {
			r.Value.Link, _ = e.Note.(*link)
		}
		if r.Value.Work.State.Terminal() {
			r.Value.Link = nil
		}
		r.Until = w.now().Add(keepWork)
		return isNew || r.Value.Work.State != before, nil
	})
	return r.Value.Work, err
}

// advance applies messages to a piece of work with one write. It returns the number
// of messages that the lifecycle allowed, and the error for the next one.
func (w *works) advance(ctx context.Context, es ...*protocol.Envelope) (allowed int, refused error) {
	if len(es) == 0 || es[0].WorkID == "" {
		return len(es), nil
	}
	_, err := w.Update(ctx, es[0], func(x protocol.Work, ok bool) (protocol.Work, error) {
		for allowed, refused = 0, nil; allowed < len(es); allowed++ {
			next, err := protocol.Advance(x, ok, es[allowed])
			if err != nil {
				refused = err
				break
			}
			next.Updated = w.now()
			x, ok = next, true
		}
		if allowed == 0 {
			return x, refused
		}
		return x, nil
	})
	if err != nil {
		return 0, err
	}
	return allowed, refused
}

// linked gives the link of open work, if there is one.
func (w *works) linked(ctx context.Context, workspaceID, workID string) (link, bool, error) {
	if workID == "" {
		return link{}, false, nil
	}
	r, err := w.rows.Last(ctx, workKey(workspaceID, workID))
	if err != nil || r.Value.Link == nil {
		return link{}, false, err
	}
	return *r.Value.Link, true, nil
}

// setLastText keeps the last text of the target.
func (w *works) setLastText(ctx context.Context, workspaceID, workID string, text []byte) error {
	const most = 64 << 10
	_, err := w.rows.Change(ctx, workKey(workspaceID, workID), func(r *journal.Row[work]) (bool, error) {
		if r.Value.Link == nil || len(text) > most {
			return false, nil
		}
		l := *r.Value.Link
		l.Text, r.Value.Link, r.Until = text, &l, w.now().Add(keepWork)
		return true, nil
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

const (
	maxThreads = 16384 // cached
	keepThread = 180 * 24 * time.Hour
)

// noteThread stores the thread of a conversation of the hub. A room is not stored:
// its id is derived from its two peers, and its conversation from the room.
func (b *Binding) noteThread(ctx context.Context, id parley.ID, e *protocol.Envelope) error {
	if e.Surface != protocol.SurfaceThread || b.threads.Known(id.String()).Revision != 0 {
		return nil
	}
	_, err := b.threads.Put(ctx, id.String(), container{e.WorkspaceID, e.Container()}, b.now().Add(keepThread))
	return err
}

// thread gives the thread of a conversation, if it has one in the workspace with an
// id that all implementations take.
func (b *Binding) thread(ctx context.Context, id parley.ID, workspaceID string) (container, bool) {
	r, err := b.threads.Last(ctx, id.String())
	return r.Value, err == nil && r.Revision != 0 && r.Value.WorkspaceID == workspaceID &&
		r.Value.Surface == protocol.SurfaceThread && protocol.ValidThreadID(r.Value.ID)
}

// recent is a map of the max newest keys. The caller locks it.
type recent[K comparable, V any] struct {
	max   int
	byKey map[K]V
	order []K // by age, the oldest first
}

func (r *recent[K, V]) add(key K, value V) {
	if r.byKey == nil {
		r.byKey = map[K]V{}
	}
	if _, known := r.byKey[key]; !known {
		if len(r.order) >= r.max {
			delete(r.byKey, r.order[0])
			r.order = r.order[1:]
		}
		r.order = append(r.order, key)
	}
	r.byKey[key] = value
}

func (r *recent[K, V]) remove(key K) {
	delete(r.byKey, key)
	if i := slices.Index(r.order, key); i >= 0 {
		r.order = slices.Delete(r.order, i, i+1)
	}
}

// Bounds of the newest messages of peers, which are cached decoded so that relaying
// and answering need not decode them again: 16 MiB.
const (
	maxEnvelopes = 2048
	envelopeSize = 8 << 10
)

func (b *Binding) cache(id parley.ID, e *protocol.Envelope) {
	if len(e.Raw()) > envelopeSize {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.envelopes.add(id, e)
}

func (b *Binding) cached(id parley.ID) *protocol.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.envelopes.byKey[id]
}
