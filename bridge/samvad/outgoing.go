package samvad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// What nobody waits for on a connection is left with an agent elsewhere as a
// task, where its skill offers that: its answer then outlasts the end of the
// hub. How the task was asked for is kept before it is sent, under the id of
// the message; the task's id before the delivery counts as made. Should the hub
// end in between, the next one sends the same envelope again: who had it says
// so (REPLAY_DETECTED), who had not takes it.

// outgoing is a request to an agent elsewhere that is left there as a task.
type outgoing struct {
	To    string    // directory name of the agent
	Peer  string    // its identity
	Base  string    // where it is asked
	Trace string    // of the request
	Hop   string    `json:",omitempty"` // W3C trace context of the request
	Nonce string    // of the envelope
	Made  time.Time // the envelope's timestamp
	Until time.Time // when it is forgotten
	Task  string    `json:",omitempty"` // "": it is not known that it was taken

	looks int // that found no such task, in a row
}

const (
	bucketOutgoing = "samvad-outgoing"

	// maxOutgoing is how many tasks of this hub one agent may have at once;
	// further ones wait.
	maxOutgoing = 1024
	// looksAtOnce is at how many of them is looked at once.
	looksAtOnce = 8
	// again is how old an envelope may be that is sent once more: peers take
	// messages of up to 300 s, by their own clocks.
	again = 240 * time.Second
	// missing is how many looks in a row must find no task before it is lost:
	// an agent of several processes may not know it everywhere at once.
	missing = 3
)

// Pauses between two looks at a task: a part of the time that it has taken so
// far, so that a quick one is seen soon and a long one costs little.
const (
	shortestLook = 100 * time.Millisecond
	longestLook  = 15 * time.Second
)

func (b *Binding) left() journal.State { return b.c.Journal.State(bucketOutgoing) }

// keepOutgoing makes durable what is known of a task elsewhere.
func (b *Binding) keepOutgoing(ctx context.Context, id parley.ID, w *outgoing) error {
	v, err := json.Marshal(w)
	if err != nil {
		return err
	}
	_, err = b.left().Put(ctx, id.String(), v, w.Until)
	return err
}

// outgoingOf finds what was kept of a request; nil where nothing was.
func (b *Binding) outgoingOf(ctx context.Context, id parley.ID) (*outgoing, error) {
	v, err := b.left().Get(ctx, id.String())
	if errors.Is(err, journal.ErrNotFound) {
		return nil, nil
	}
	w := new(outgoing)
	if err == nil {
		err = json.Unmarshal(v.Data, w)
	}
	return w, err
}

// unfollow looks at a task no more.
func (b *Binding) unfollow(id parley.ID) {
	b.outMu.Lock()
	defer b.outMu.Unlock()
	if w := b.out[id]; w != nil {
		delete(b.out, id)
		if b.outPeers[w.To]--; b.outPeers[w.To] == 0 {
			delete(b.outPeers, w.To)
			delete(b.looking, w.To)
		}
	}
}

func (b *Binding) dropOutgoing(ctx context.Context, id parley.ID) {
	b.unfollow(id)
	if err := b.left().Delete(ctx, id.String(), 0); err != nil && b.ctx.Err() == nil {
		b.c.Logger.Warn("what was kept of a task elsewhere stays until it expires", "message", id, "error", err)
	}
}

// resumes reports whether a request was left as a task: another attempt finds out
// its outcome.
func (b *Binding) resumes(message parley.ID) bool {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	w, err := b.outgoingOf(ctx, message)
	if err != nil {
		b.c.Logger.Error("cannot read how a request was sent; it counts as one that cannot be repeated", "message", message, "error", err)
	}
	return err == nil && w != nil
}

// leave asks an agent elsewhere for a task. before is what is kept of an
// earlier attempt; nil at the first.
func (b *Binding) leave(ctx context.Context, o hub.Outbound, call protocol.Call, before *outgoing) hub.Outcome {
	m, now := o.Message, b.c.Now()
	w := before
	if w == nil {
		b.outMu.Lock()
		full := b.outPeers[o.Recipient.Name] >= maxOutgoing
		b.outMu.Unlock()
		if full {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "%q has %d tasks of this hub at work", o.Recipient.Name, maxOutgoing), Wait: 2 * time.Second}
		}
		base := call.URL
		if base == "" {
			var err error
			if base, err = protocol.AgentOrigin(call.To); err != nil {
				return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the agent has no address: %v", err)}
			}
		}
		w = &outgoing{To: o.Recipient.Name, Peer: o.Identity.ID, Base: base, Trace: call.TraceID, Hop: m.Trace.Parent,
			Nonce: fmt.Sprintf("%s-%d", m.ID, o.Attempt), Made: now.UTC().Truncate(time.Millisecond), Until: m.Deadline.Add(retention)}
		if err := b.keepOutgoing(ctx, m.ID, w); err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "how the request is sent cannot be kept")}
		}
	} else if now.Sub(w.Made) > again {
		b.dropOutgoing(ctx, m.ID)
		return hub.Outcome{Unknown: true, Err: parley.Fail(parley.Unavailable, nil, "whether %q had the request cannot be found out any more", o.Recipient.Name)}
	}
	call.Nonce, call.Timestamp = w.Nonce, w.Made
	var task string
	err := b.identity.withAnyKey(&call, func() (err error) {
		if call.As != nil { // the agent may have noted the nonce all the same
			w.Nonce, w.Made = w.Nonce+"-next", b.c.Now().UTC().Truncate(time.Millisecond)
			call.Nonce, call.Timestamp = w.Nonce, w.Made
			if err := b.keepOutgoing(ctx, m.ID, w); err != nil {
				return err
			}
		}
		task, err = b.client.Send(ctx, call)
		return err
	})
	if err != nil {
		a := fromError(err)
		switch {
		case before != nil && errors.Is(err, protocol.ErrReplay):
			b.dropOutgoing(ctx, m.ID)
			return hub.Outcome{Unknown: true, Err: parley.Fail(parley.Unavailable, err, "%q had the request, and does not say under which task", o.Recipient.Name)}
		case a.unknown, before != nil && !errors.Is(err, protocol.ErrRemote) && !errors.Is(err, protocol.ErrResponse):
			return hub.Outcome{Unknown: true, Err: a.err} // the same envelope, sent once more, tells
		}
		b.dropOutgoing(ctx, m.ID)
		return hub.Outcome{Answered: a.failure != nil, Failure: a.failure, Err: a.err, Wait: a.wait}
	}
	w.Task = task
	if err := b.keepOutgoing(ctx, m.ID, w); err != nil {
		// The agent has it. It is followed, and lost only if the hub ends before
		// it is answered.
		b.c.Logger.Error("cannot keep under which task a request is at work elsewhere", "message", m.ID, "agent", w.To, "error", err)
	}
	b.follow(m.ID, w)
	return hub.Outcome{}
}

// follow looks at a task from time to time until its request has ended.
func (b *Binding) follow(id parley.ID, w *outgoing) {
	b.outMu.Lock()
	defer b.outMu.Unlock()
	if b.out[id] != nil {
		return
	}
	b.out[id] = w
	b.outPeers[w.To]++
	if b.looking[w.To] == nil {
		b.looking[w.To] = make(chan struct{}, looksAtOnce)
	}
	slots := b.looking[w.To]
	b.work.Go(func() {
		began := b.c.Now()
		pause := shortestLook
		for b.rest(pause) {
			select {
			case slots <- struct{}{}:
			case <-b.ctx.Done():
				return
			}
			wait, over := b.look(id, w)
			<-slots
			if over {
				return
			}
			pause = max(wait, min(max(b.c.Now().Sub(began)/8, shortestLook), longestLook))
		}
	})
}

// rest waits; false when the binding is closed.
func (b *Binding) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.ctx.Done():
		return false
	}
}

// look sees how far a task elsewhere is, and hands its outcome in.
func (b *Binding) look(id parley.ID, w *outgoing) (wait time.Duration, over bool) {
	d, open := b.c.Journal.Delivery(id, w.To)
	switch {
	case !open || d.State == parley.Dead:
		b.dropOutgoing(b.ctx, id) // its time was up, or it was taken back
		return 0, true
	case !b.c.Journal.Owned(d.Position.Partition):
		b.unfollow(id) // another node goes on
		return 0, true
	}
	t, err := b.client.Task(b.ctx, w.Base, w.Task)
	switch e := protocol.AsError(err); {
	case b.ctx.Err() != nil:
		return 0, true
	case err == nil && !t.Status.Finished():
		w.looks = 0
		return 0, false
	case err == nil && t.Status == protocol.TaskDone:
		return b.handIn(id, w, &parley.Message{Kind: parley.Response, Parts: []parley.Part{{MediaType: "application/json", Data: t.Result}},
			Extensions: answered(t.Replaced)})
	case err == nil:
		a := fromError(t.Err)
		return b.handIn(id, w, &parley.Message{Kind: parley.Failure, Error: or(a.failure, a.err)})
	case errors.Is(err, protocol.ErrNotFound):
		if w.looks++; w.looks < missing {
			return 0, false
		}
		return b.handIn(id, w, &parley.Message{Kind: parley.Failure,
			Error: parley.Refuse(parley.OutcomeUnknown, "%q took the request and does not know its task any more", w.To).Because(err)})
	case e.Retryable:
		return e.RetryAfter, false
	}
	return b.handIn(id, w, &parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.HandlerFailed, "the state of the task at %q is not understood", w.To).Because(err)})
}

// handIn records how a request ended that was left elsewhere.
func (b *Binding) handIn(id parley.ID, w *outgoing, reply *parley.Message) (wait time.Duration, over bool) {
	reply.From, reply.InReplyTo = w.To, id
	reply.Origin = remoteOrigin(w.Peer)
	reply.Trace = parley.Trace{Parent: w.Hop, Foreign: map[string]string{foreignTrace: w.Trace}}
	_, err := b.c.Hub.Accept(b.ctx, hub.Submission{Message: reply})
	e := parley.AsError(err)
	switch {
	case b.ctx.Err() != nil:
		return 0, true
	case err == nil, e.Code == parley.Conflict: // it ended otherwise
	case e.Retryable:
		return max(e.After, pause), false
	case reply.Kind == parley.Response:
		return b.handIn(id, w, &parley.Message{Kind: parley.Failure, Error: parley.Refuse(e.Code, "the answer is not one that the hub can record").Because(err)})
	default:
		b.c.Logger.Error("how a request ended elsewhere cannot be recorded; its deadline ends it", "message", id, "agent", w.To, "error", err)
	}
	b.dropOutgoing(b.ctx, id)
	return 0, true
}

// remoteOrigin is where answers of agents elsewhere come from.
func remoteOrigin(peer string) parley.Origin {
	return parley.Origin{Protocol: Protocol, Peer: peer, Verdict: parley.Verdict{Assurance: parley.Session,
		Checks: []parley.Check{{Name: "transport", OK: true, Detail: "SAMVAD answers are not signed; the connection answers for them"}}}}
}

// takeBack ends a request that is at work elsewhere, where nobody can be told
// that its sender does not want it any more.
func (b *Binding) takeBack(request parley.ID) {
	b.outMu.Lock()
	w := b.out[request]
	b.outMu.Unlock()
	if w != nil {
		b.handIn(request, w, &parley.Message{Kind: parley.Failure,
			Error: parley.Refuse(parley.Cancelled, "its sender took the request back; %q cannot be told, and may go on with it", w.To)})
	}
}

// adopt follows the tasks of requests in partitions that are this node's: those
// of an earlier process, or of a node that is gone.
func (b *Binding) adopt() error {
	for v, err := range b.left().Range(b.ctx, "") {
		if err != nil {
			return fmt.Errorf("read the tasks elsewhere: %w", err)
		}
		id, err := parley.ParseID(v.Key)
		w := new(outgoing)
		if err == nil {
			err = json.Unmarshal(v.Data, w)
		}
		if err != nil {
			b.c.Logger.Error("what was kept of a task elsewhere is damaged", "key", v.Key, "error", err)
			continue
		}
		switch d, open := b.c.Journal.Delivery(id, w.To); {
		case !open || d.State == parley.Dead:
			b.dropOutgoing(b.ctx, id)
		case d.State == parley.Delivered && w.Task != "" && b.c.Journal.Owned(d.Position.Partition):
			b.follow(id, w)
		} // else it is for the attempt that is under way, or to come
	}
	return nil
}

// adoptOwned adopts whenever this node has become the owner of a partition.
func (b *Binding) adoptOwned() {
	for {
		select {
		case <-b.owned:
		case <-b.ctx.Done():
			return
		}
		for err := b.adopt(); err != nil && b.ctx.Err() == nil; err = b.adopt() {
			b.c.Logger.Error("cannot take up the tasks elsewhere; trying again", "error", err)
			b.rest(pause)
		}
	}
}
