package samvad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/sleep"
	protocol "github.com/parley-hub/parley/samvad"
)

// A request whose caller does not wait on a connection goes to an agent elsewhere
// as a task, if the skill offers tasks: its answer then outlasts a restart of the
// hub. The hub records the envelope's nonce and time before it sends the request,
// and the task's id before the delivery counts as made. If the hub ends in
// between, the next attempt sends the same envelope again: an agent that had it
// answers REPLAY_DETECTED, another one takes it.

// peerTasks are the tasks of this hub at one agent.
type peerTasks struct {
	n     int
	polls chan struct{} // bounds polls at once
}

const (
	// maxPeerTasks is how many tasks of this hub one agent may have at once;
	// further ones wait.
	maxPeerTasks = 1024
	// pollsAtOnce is how many of them are polled at once.
	pollsAtOnce = 8
	// resendWithin is how old an envelope may be that is sent again: peers take
	// messages of up to 300 s, by their own clocks.
	resendWithin = 240 * time.Second
	// maxMisses polls in a row that find no task make it lost: not every process of
	// an agent may know it at once.
	maxMisses = 3
)

// Pauses between two polls of a task: a part of the time that it has taken so
// far, so that the end of a quick one is seen soon and a long one costs little.
const (
	shortestPoll = 100 * time.Millisecond
	longestPoll  = 15 * time.Second
)

func (b *Binding) putRemoteTask(ctx context.Context, id parley.ID, w *remoteTask) error {
	_, err := b.remoteTasks.Put(ctx, id.String(), *w, w.Until)
	return err
}

// unfollow ends the polls of a task.
func (b *Binding) unfollow(id parley.ID) {
	b.remoteMu.Lock()
	defer b.remoteMu.Unlock()
	if w := b.followed[id]; w != nil {
		delete(b.followed, id)
		p := b.peers[w.To]
		p.n--
		if p.n == 0 {
			delete(b.peers, w.To)
		}
	}
}

func (b *Binding) dropRemoteTask(ctx context.Context, id parley.ID) {
	b.unfollow(id)
	if err := b.remoteTasks.Delete(ctx, id.String(), 0); err != nil && b.ctx.Err() == nil {
		b.c.Logger.Warn("the record of a task elsewhere stays until it expires", "message", id, "error", err)
	}
}

// resumes reports whether a request was sent as a task: another attempt finds out
// its outcome.
func (b *Binding) resumes(message parley.ID) bool {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	row, err := b.remoteTasks.Get(ctx, message.String())
	if err != nil {
		b.c.Logger.Error("cannot read how a request was sent; it counts as one that cannot be repeated", "message",
			message, "error", err)
	}
	return err == nil && row.Revision != 0
}

// sendTask sends a request as a task. before is the record of an earlier attempt;
// nil if there was none.
func (b *Binding) sendTask(ctx context.Context, o hub.Outbound, call protocol.Call, before *remoteTask) hub.Outcome {
	m, now := o.Message, b.c.Now()
	w := before
	if w == nil {
		b.remoteMu.Lock()
		p := b.peers[o.Recipient.Name]
		full := p != nil && p.n >= maxPeerTasks
		b.remoteMu.Unlock()
		if full {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil,
				"%q works on %d tasks of this hub", o.Recipient.Name, maxPeerTasks).
				With(parley.ByLimit, parley.OpenRequests, ""), Wait: 2 * time.Second}
		}
		base, err := baseOf(call)
		if err != nil {
			return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the agent has no address: %v", err).
				With(parley.ByNetwork, parley.NoAddress, err.Error())}
		}
		w = &remoteTask{To: o.Recipient.Name, Peer: o.Identity.ID, Base: base, Trace: call.TraceID, Hop: m.Trace.Parent,
			Nonce: fmt.Sprintf("%s-%d", m.ID, o.Attempt), Made: now.UTC().Truncate(time.Millisecond),
			Until: m.Deadline.Add(retention)}
		if err := b.putRemoteTask(ctx, m.ID, w); err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err,
				"the hub cannot record how it sends the request").With(parley.ByHub, parley.HubStorage, "")}
		}
	} else if now.Sub(w.Made) > resendWithin {
		b.dropRemoteTask(ctx, m.ID)
		return hub.Outcome{Unknown: true, Err: parley.Fail(parley.Unavailable, nil,
			"it is too late to find out whether %q had the request", o.Recipient.Name).
			With(parley.ByNetwork, parley.ConnectionLost, "the connection was lost before its answer")}
	}
	call.Nonce, call.Timestamp = w.Nonce, w.Made
	var task string
	err := b.identity.withAnyKey(&call, func() (err error) {
		if call.As != nil { // the agent may have noted the nonce all the same
			w.Nonce, w.Made = w.Nonce+"-next", b.c.Now().UTC().Truncate(time.Millisecond)
			call.Nonce, call.Timestamp = w.Nonce, w.Made
			if err := b.putRemoteTask(ctx, m.ID, w); err != nil {
				return err
			}
		}
		task, err = b.client.Send(ctx, call)
		return err
	})
	if err != nil {
		out := failedCall(err)
		switch {
		case before != nil && errors.Is(err, protocol.ErrReplay):
			b.dropRemoteTask(ctx, m.ID)
			return hub.Outcome{Unknown: true, Err: parley.Fail(parley.Unavailable, err,
				"%q had the request, and does not say under which task", o.Recipient.Name).
				With(parley.ByNetwork, parley.ConnectionLost, "the connection was lost before its answer")}
		case out.Unknown, before != nil && !errors.Is(err, protocol.ErrRemote) && !errors.Is(err, protocol.ErrResponse):
			return hub.Outcome{Unknown: true, Err: out.Err} // the next attempt, with the same envelope, tells
		}
		b.dropRemoteTask(ctx, m.ID)
		return out
	}
	w.Task = task
	if err := b.putRemoteTask(ctx, m.ID, w); err != nil {
		// The agent has it. It is polled, and lost only if the hub ends before it
		// is answered.
		b.c.Logger.Error("cannot record the task of a request elsewhere", "message", m.ID, "agent", w.To, "error", err)
	}
	b.follow(m.ID, w)
	return hub.Outcome{}
}

// follow polls a task until its request has ended.
func (b *Binding) follow(id parley.ID, w *remoteTask) {
	b.remoteMu.Lock()
	defer b.remoteMu.Unlock()
	if b.followed[id] != nil {
		return
	}
	p := b.peers[w.To]
	if p == nil {
		p = &peerTasks{polls: make(chan struct{}, pollsAtOnce)}
		b.peers[w.To] = p
	}
	b.followed[id] = w
	p.n++
	b.work.Go(func() {
		began := b.c.Now()
		pause := shortestPoll
		for sleep.For(b.ctx, pause) == nil {
			select {
			case p.polls <- struct{}{}:
			case <-b.ctx.Done():
				return
			}
			wait, over := b.poll(id, w)
			<-p.polls
			if over {
				return
			}
			pause = max(wait, min(max(b.c.Now().Sub(began)/8, shortestPoll), longestPoll))
		}
	})
}

// poll asks for the state of a task elsewhere, and submits its outcome.
func (b *Binding) poll(id parley.ID, w *remoteTask) (wait time.Duration, over bool) {
	d, open := b.c.Journal.Delivery(id, w.To)
	switch {
	case !open || d.State == parley.Dead:
		b.dropRemoteTask(b.ctx, id) // its deadline passed, or it was cancelled
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
		w.misses = 0
		return 0, false
	case err == nil && t.Status == protocol.TaskDone:
		return b.submitReply(id, w, &parley.Message{Kind: parley.Response,
			Parts:      []parley.Part{{MediaType: "application/json", Data: t.Result}},
			Extensions: replyExtension(t.Replaced)})
	case err == nil:
		out := failedCall(t.Err)
		return b.submitReply(id, w, &parley.Message{Kind: parley.Failure, Error: cmp.Or(out.Failure, out.Err)})
	case errors.Is(err, protocol.ErrNotFound):
		w.misses++
		if w.misses < maxMisses {
			return 0, false
		}
		return b.submitReply(id, w, &parley.Message{Kind: parley.Failure,
			Error: parley.Refuse(parley.OutcomeUnknown, "%q took the request and does not know its task any more",
				w.To).With(parley.ByPeer, parley.PeerGone, "task "+w.Task+" is not there any more").Because(err)})
	case e.Retryable:
		return e.RetryAfter, false
	}
	failure := failedCall(err).Failure
	if failure == nil {
		failure = bridge.NotUnderstood(parley.Refuse(parley.HandlerFailed,
			"the state of the task at %q is not understood", w.To), err).Because(err)
	}
	return b.submitReply(id, w, &parley.Message{Kind: parley.Failure, Error: failure})
}

// submitReply records how a task elsewhere ended.
func (b *Binding) submitReply(id parley.ID, w *remoteTask, reply *parley.Message) (wait time.Duration, over bool) {
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
		return b.submitReply(id, w, &parley.Message{Kind: parley.Failure,
			Error: parley.Refuse(e.Code, "the answer is not one that the hub can record").Because(err).Stated()})
	default:
		b.c.Logger.Error("how a request ended elsewhere cannot be recorded; its deadline ends it", "message", id,
			"agent", w.To, "error", err)
	}
	b.dropRemoteTask(b.ctx, id)
	return 0, true
}

// remoteOrigin is where answers of agents elsewhere come from.
func remoteOrigin(peer string) parley.Origin {
	return parley.Origin{Protocol: Protocol, Peer: peer, Verdict: parley.Verdict{Assurance: parley.Session,
		Checks: []parley.Check{{Name: "transport", OK: true,
			Detail: "SAMVAD answers are not signed; the connection answers for them"}}}}
}

// cancelRemoteTask ends a request whose task goes on elsewhere: SAMVAD has no way
// to cancel it.
func (b *Binding) cancelRemoteTask(request parley.ID) {
	b.remoteMu.Lock()
	w := b.followed[request]
	b.remoteMu.Unlock()
	if w != nil {
		b.submitReply(request, w, &parley.Message{Kind: parley.Failure,
			Error: parley.Refuse(parley.Cancelled,
				"its sender cancelled the request; SAMVAD cannot tell %q, which may go on with it", w.To).
				With(parley.ByHub, "", "")})
	}
}

// followRemoteTasks follows the tasks of requests in partitions that this node owns, and
// drops the rows of those that are over.
func (b *Binding) followRemoteTasks() {
	run, stop := bridge.TakeOver(b.ctx, b.c.Journal, b.remoteTasks, b.c.Logger, func(id parley.ID, w *remoteTask) {
		switch d, open := b.c.Journal.Delivery(id, w.To); {
		case !open || d.State == parley.Dead:
			b.dropRemoteTask(b.ctx, id)
		case d.State == parley.Delivered && w.Task != "" && b.c.Journal.Owned(d.Position.Partition):
			b.follow(id, w)
		} // else an attempt is in flight, or to come
	})
	b.stops = append(b.stops, stop)
	b.work.Go(run)
}
