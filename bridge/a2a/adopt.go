package a2a

import (
	"context"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// expectEnd notes that the row of a request is to be removed when its answer is recorded.
func (b *Binding) expectEnd(id parley.ID) {
	b.outMu.Lock()
	defer b.outMu.Unlock()
	if len(b.ending) < 1<<16 { // else the row expires
		b.ending[id] = struct{}{}
	}
}

// startCalls goes on with the tasks of an earlier process, reads cards, and follows
// credentials.
func (b *Binding) startCalls(ctx context.Context) error {
	stop, err := b.secrets.Follow(ctx, b.disconnect)
	if err != nil {
		return err
	}
	d := b.c.Hub.Directory()
	b.stops = append(b.stops, stop, d.Watch(b.readAhead))
	for _, e := range d.All() {
		b.readAhead(directory.Change{New: e})
	}
	takeOver, stop := bridge.TakeOver(b.ctx, b.c.Journal, b.sent, b.c.Logger, func(id parley.ID, w *sentRequest) {
		d, open := b.c.Journal.Delivery(id, w.To)
		if open && d.State == parley.Delivered && w.Task != "" && b.c.Journal.Owned(d.Position.Partition) {
			b.adoptTask(id, w)
		} // else it is over, or an attempt is in flight or to come
	})
	b.stops = append(b.stops, stop, b.c.Journal.Watch(func(r *journal.Record) {
		if r.Message != nil && r.Message.Kind.Terminal() {
			b.settled(r.Message)
		}
	}))
	b.spawn(takeOver)
	b.spawn(b.dropEnded)
	return nil
}

// cancelTime is how long an agent may take to name the task of a request that is over
// already. Then the task cannot be cancelled.
const cancelTime = 10 * time.Second

// settled follows that a request has its answer: its task needs no follower, and its row
// goes. It does no I/O: the journal waits for it.
func (b *Binding) settled(reply *parley.Message) {
	id := reply.InReplyTo
	// The hub sends a cancel for a request that was delivered: then its agent is the silent peer. One
	// whose attempt was cut by a stop of the hub is overdue before the next.
	e := reply.Error
	late := e != nil && (e.Code == parley.TimedOut || e.Code == parley.Stale) && e.Reason != parley.PeerSilent &&
		b.isElsewhere(reply.From)
	b.outMu.Lock()
	f := b.followed[id]
	_, row := b.ending[id]
	delete(b.ending, id)
	b.outMu.Unlock()
	switch {
	case f == nil:
	case f.task() != "":
		f.stop()
	default: // its task is to be cancelled as soon as it has a name
		t := time.AfterFunc(cancelTime, f.stop)
		context.AfterFunc(f.ctx, func() { t.Stop() })
	}
	if row || late {
		select {
		case b.ended <- endedRequest{id, late}:
		default: // it expires
		}
	}
}

// isElsewhere reports whether an agent is called over A2A.
func (b *Binding) isElsewhere(name string) bool {
	e, ok := b.c.Hub.Directory().Agent(name)
	return ok && addressOf(e) != ""
}

// An endedRequest has its answer, or, late, has none in time.
type endedRequest struct {
	id   parley.ID
	late bool
}

// giveUp tells an agent that nobody waits for the task of a request any more, if it has one.
func (b *Binding) giveUp(id parley.ID) {
	row, err := b.sent.Get(b.ctx, id.String())
	if err != nil || row.Value.Task == "" {
		return // the agent never named a task, or the row has expired
	}
	if p, err := b.peerOf(row.Value.To, row.Value.URL); err == nil {
		b.abandon(p, row.Value.Task)
	}
	b.dropRow(b.ctx, id)
}

// dropEnded removes the rows of requests that have their answer.
func (b *Binding) dropEnded() {
	for {
		select {
		case e := <-b.ended:
			if e.late {
				b.giveUp(e.id)
				continue
			}
			b.dropRow(b.ctx, e.id)
		case <-b.ctx.Done():
			return
		}
	}
}
