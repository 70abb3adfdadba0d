package a2a

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/recorder"
)

// outgoing is what the binding needs to call agents elsewhere.
type outgoing struct {
	guard *netguard.Guard
	// checkCard checks the signature of a card as it came from a URL, and gives the JSON to
	// parse. agent is "" for a card that is only looked at. nil: cards are not checked.
	checkCard func(ctx context.Context, agent, at string, card []byte) ([]byte, error)
	patience  time.Duration // see handOver
	secrets   *peerauth.Store

	outMu    sync.Mutex
	peers    map[string][]*peer          // by directory name, one for each URL, former ones too
	followed map[parley.ID]*taskFollower // requests whose tasks this hub follows, by message
	ending   map[parley.ID]struct{}      // requests with a row whose answer is being recorded
	ended    chan endedRequest           // requests whose rows are to be removed
	reads    chan struct{}               // bounds reads of cards ahead of calls
}

// handOver is how long Deliver waits for the end of a stream that has begun: an answer
// within it costs one record. Longer streams go on in the background, because Deliver
// holds the lane.
const handOver = 250 * time.Millisecond

// retryPause is the pause before a failed call of the journal is repeated.
const retryPause = time.Second

func newOutgoing(c Config) outgoing {
	return outgoing{guard: netguard.Live(c.Allow, netguard.HubAdvice), patience: handOver,
		secrets: peerauth.NewStore(c.Journal, c.Keys, Protocol, c.Rand), peers: map[string][]*peer{},
		followed: map[parley.ID]*taskFollower{}, ending: map[parley.ID]struct{}{},
		ended: make(chan endedRequest, 1024), reads: make(chan struct{}, readsAtOnce)}
}

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if o.Callback != "" {
		return b.notify(ctx, o)
	}
	p, err := b.peerOf(o.Recipient.Name, o.Identity.URL)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.Unavailable, "agent %q has no address", o.Recipient.Name).
			With(parley.ByNetwork, parley.NoAddress, err.Error())}
	}
	ctx = withTrace(ctx, o.Message.Trace)
	losses := bridge.Losses(wayOut, o.Message, o.Recipient.Name)
	o.Loses(ctx, losses)
	var out hub.Outcome
	switch o.Message.Kind {
	case parley.Request:
		out = b.request(ctx, o, p)
	case parley.Notice, parley.Input:
		out = b.say(ctx, o, p)
	case parley.Cancel:
		out = b.cancel(ctx, o, p)
	default:
		out = hub.Outcome{Err: parley.Refuse(parley.Unsupported,
			"A2A callers fetch events and answers; the hub does not send them")}
	}
	out.Losses = losses
	return out
}

// callable makes a peer ready for a message, or gives the outcome of the attempt.
func (b *Binding) callable(ctx context.Context, p *peer) (*remote, *hub.Outcome) {
	r, err := b.remoteOf(ctx, p, false)
	if err != nil {
		return nil, &hub.Outcome{Err: noCard(p.name, err)}
	}
	if _, unknown := r.extension(); unknown != "" {
		return nil, &hub.Outcome{Answered: true, Failure: parley.Refuse(parley.Unsupported,
			"%q requires an extension of A2A that the hub does not know", p.name).
			With(parley.ByPeer, parley.PeerUnsupported, "its card requires the extension "+unknown)}
	}
	return r, nil
}

// request makes an attempt to send a request.
func (b *Binding) request(ctx context.Context, o hub.Outbound, p *peer) hub.Outcome {
	m := o.Message
	again := false // an earlier attempt may have reached the agent
	w := &sentRequest{To: p.name, Peer: o.Identity.ID, URL: o.Identity.URL, Hop: m.Trace.Parent, Streams: o.Streams,
		Until: m.Deadline.Add(rowRetention)}
	if o.Attempt > 1 {
		row, err := b.sent.Get(ctx, m.ID.String())
		switch {
		case err != nil:
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err,
				"how the request was sent before cannot be read").With(parley.ByHub, parley.HubStorage, ""), Wait: retryPause}
		case row.Value.Task != "": // the agent has it: only its end is missing
			b.adoptTask(m.ID, &row.Value)
			return hub.Outcome{}
		case row.Revision != 0:
			w, again = &row.Value, true
		}
	}
	r, failed := b.callable(ctx, p)
	if failed != nil {
		failed.Unknown = again && failed.Err != nil
		return *failed
	}
	f := b.newFollower(p, m, w)
	f.again, f.kept = again, again
	if !b.reserve(f) {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "%q works on %d requests of this hub", p.name, maxTasks).
			With(parley.ByLimit, parley.OpenRequests, ""), Wait: 2 * time.Second, Unknown: again}
	}
	if again && !r.declares {
		return b.findOut(ctx, f, r)
	}
	if !again {
		w.Context = b.contextOf(ctx, p.name, m.Conversation)
		if !o.Waits { // a caller that waits gets no second attempt
			if err := f.keep(ctx); err != nil {
				b.unfollow(f)
				return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the hub cannot record how it sends the request").
					With(parley.ByHub, parley.HubStorage, "")}
			}
		}
	}
	streams := o.Streams && r.Card.Capabilities.Streaming
	if streams {
		select {
		case p.streams <- struct{}{}:
		default:
			streams = false // the agent has too many of this hub: one call does
		}
	}
	return b.begin(ctx, o, f, r, streams)
}

// goOn follows a task in the background.
func (b *Binding) goOn(f *taskFollower) {
	if !b.spawn(func() {
		defer b.unfollow(f)
		f.follow(f.ctx)
	}) {
		b.unfollow(f) // the hub's next process goes on
	}
}

// begin sends a request, and follows its task. If it reads a stream, the caller holds one
// of the peer's. The call may outlive the attempt: what it tells of the task is needed to
// cancel that.
func (b *Binding) begin(ctx context.Context, o hub.Outbound, f *taskFollower, r *remote, streams bool) hub.Outcome {
	f.attend()
	sending := recorder.Join(f.ctx, ctx)
	release := func() {
		if streams {
			<-f.p.streams
		}
	}
	call := func(r *remote, req *protocol.SendMessageRequest) error {
		f.use(r)
		if !streams {
			result, err := r.transport.SendMessage(sending, r.params(), req)
			if err == nil && !f.observe(f.ctx, result) {
				f.hand.pause() // the end takes longer than the call
			}
			return err
		}
		f.live = true
		return f.read(sending, func(ctx context.Context) iter.Seq2[protocol.Event, error] {
			return r.transport.SendStreamingMessage(ctx, r.params(), req)
		})
	}
	if !b.spawn(func() {
		defer b.unfollow(f)
		err := b.calls(sending, r, outMessage{m: o.Message, context: f.w.Context, immediately: !streams && !o.Waits}, call)
		release()
		switch {
		case f.over:
		case err != nil && f.task() == "":
			f.give(f.failed(context.WithoutCancel(f.ctx), err))
		default:
			f.follow(f.ctx)
		}
	}) {
		release()
		b.unfollow(f)
		return hub.Outcome{Err: parley.AsError(b.ctx.Err()), Wait: retryPause}
	}
	return f.await(ctx, o.Waits)
}

// outMessage is a message to an agent elsewhere, with what its request says besides.
type outMessage struct {
	m             *parley.Message
	task, context string
	immediately   bool
}

// calls sends a message with do. It tries again without the hub's context if the agent
// refuses that, and with the agent's present card if the agent may have moved: neither
// call had an effect.
func (b *Binding) calls(ctx context.Context, r *remote, s outMessage,
	do func(*remote, *protocol.SendMessageRequest) error) error {
	send := func(r *remote) error {
		req, err := toSend(s.m, sendForm{version: r.Version,
			rest:     r.Interface.ProtocolBinding == protocol.TransportProtocolHTTPJSON,
			declares: r.declares, task: s.task, context: s.context, immediately: s.immediately})
		if err != nil {
			return &contentError{err}
		}
		req.Tenant = r.Interface.Tenant
		return do(r, req)
	}
	err := send(r)
	if s.context != "" && s.task == "" && refusesContext(err) {
		b.dropContext(ctx, r.peer.name, s.m.Conversation)
		s.context = ""
		err = send(r)
	}
	if movedAway(err) {
		if next, cerr := b.remoteOf(ctx, r.peer, true); cerr == nil && *next.Interface != *r.Interface {
			r = next
			err = send(r)
		}
	}
	r.peer.note(b.c.Now(), err)
	return err
}

// A contentError is a message that A2A cannot carry.
type contentError struct{ error }

// note records the outcome of a call, for people.
func (p *peer) note(now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed = err; err == nil {
		p.called = now
	}
}

// say sends a notice, or an input to the task of an open request.
func (b *Binding) say(ctx context.Context, o hub.Outbound, p *peer) hub.Outcome {
	m := o.Message
	s := outMessage{m: m, immediately: true}
	var f *taskFollower
	if m.Kind == parley.Input {
		var err error
		if f, err = b.following(ctx, m.InReplyTo); err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the task of the request cannot be read").
				With(parley.ByHub, parley.HubStorage, ""), Wait: retryPause}
		}
		if f == nil {
			return hub.Outcome{Err: parley.Refuse(parley.Conflict, "%q has no open task for this request", p.name)}
		}
		s.task, s.context = f.task(), f.contextID()
		f.countInput()
	} else {
		s.context = b.contextOf(ctx, p.name, m.Conversation)
	}
	r, failed := b.callable(ctx, p)
	if failed != nil {
		failed.Answered, failed.Err = false, cmp.Or(failed.Err, failed.Failure)
		return *failed
	}
	if r.declares { // it deduplicates: an attempt of unknown outcome is repeated
		if _, err := b.sent.Put(ctx, m.ID.String(), sentRequest{To: p.name}, b.c.Now().Add(contextRetention)); err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the hub cannot record how it sends the message").
				With(parley.ByHub, parley.HubStorage, "")}
		}
	}
	var result protocol.SendMessageResult
	err := b.calls(ctx, r, s, func(r *remote, req *protocol.SendMessageRequest) (err error) {
		result, err = r.transport.SendMessage(ctx, r.params(), req)
		return err
	})
	var out hub.Outcome
	if err != nil {
		out = failedCall(p.name, err)
		out.Answered, out.Err = false, cmp.Or(out.Err, out.Failure)
		if f != nil && errors.Is(err, protocol.ErrInternalError) {
			// So do agents answer that have not quite ended the turn in which they asked.
			out.Err.Retryable = true
		}
	}
	if r.declares && !out.Unknown {
		b.dropRow(ctx, m.ID)
	}
	if f != nil && err == nil {
		f.add(result)
	}
	return out
}

// cancel tells an agent that the answer to a request is not needed any more, if the hub
// knows its task.
func (b *Binding) cancel(ctx context.Context, o hub.Outbound, p *peer) hub.Outcome {
	id := o.Message.InReplyTo
	if !b.named(ctx, id) {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "%q has not named its task yet", p.name).
			With(parley.ByNetwork, parley.NoAnswer, ""), Wait: retryPause}
	}
	f, err := b.following(ctx, id)
	if err != nil {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the task of the request cannot be read").
			With(parley.ByHub, parley.HubStorage, ""), Wait: retryPause}
	}
	if f == nil {
		return hub.Outcome{}
	}
	if err := b.cancelTask(ctx, p, f.task()); err != nil {
		out := failedCall(p.name, err)
		if out.Err != nil {
			out.Err.Retryable, out.Unknown = true, false // a second cancel does no harm
			return out
		}
		b.c.Logger.Info("an agent does not cancel a task", "agent", p.name, "message", id, "error", err)
	}
	if !f.open() {
		f.stop()
		b.dropRow(ctx, id)
	}
	f.add(nil) // it asks for the end of the task
	return hub.Outcome{}
}

func (b *Binding) cancelTask(ctx context.Context, p *peer, task string) error {
	r, err := b.remoteOf(ctx, p, false)
	if err != nil {
		return &lostError{false, err}
	}
	_, err = r.transport.CancelTask(ctx, r.params(), &protocol.CancelTaskRequest{Tenant: r.Interface.Tenant,
		ID: protocol.TaskID(task)})
	return err
}

// findOut continues a request whose earlier attempt may have reached an agent that does
// not deduplicate: it looks for the task among those of the agent (A2A 1.0, section 3.1.4).
func (b *Binding) findOut(ctx context.Context, f *taskFollower, r *remote) hub.Outcome {
	f.use(r)
	task, err := b.findTask(recorder.Aside(ctx), f, r)
	switch {
	case task != nil:
		f.attend()
		over := f.observe(ctx, task)
		out := f.leave(ctx)
		if over {
			b.unfollow(f)
		} else {
			b.goOn(f)
		}
		return out
	case err != nil:
		if out := failedCall(f.w.To, err); out.Err != nil {
			b.unfollow(f)
			out.Unknown = true
			return out
		}
	}
	b.unfollow(f)
	b.dropRow(ctx, f.id)
	return hub.Outcome{Unknown: true, Err: parley.Fail(parley.Unavailable, err,
		"%q may have had the request, and lists no task for it", f.w.To).
		With(parley.ByNetwork, parley.ConnectionLost, "the connection was lost before its answer")}
}

const (
	listPages   = 5 // of tasks that are looked through
	listSize    = 100
	listHistory = 100
)

// findTask looks for the task that began with a message; nil: none is listed.
func (b *Binding) findTask(ctx context.Context, f *taskFollower, r *remote) (*protocol.Task, error) {
	history := listHistory
	req := &protocol.ListTasksRequest{Tenant: r.Interface.Tenant, ContextID: f.w.Context, PageSize: listSize,
		HistoryLength: &history}
	for range listPages {
		page, err := r.transport.ListTasks(ctx, r.params(), req)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tasks {
			if t != nil && startedBy(t, f.id.String()) {
				// Artifacts are not listed.
				return r.transport.GetTask(ctx, r.params(), &protocol.GetTaskRequest{Tenant: r.Interface.Tenant, ID: t.ID})
			}
		}
		if page.NextPageToken == "" {
			break
		}
		next := *req
		next.PageToken = page.NextPageToken
		req = &next
	}
	return nil, nil
}

func startedBy(t *protocol.Task, message string) bool {
	for _, m := range t.History {
		if m != nil && m.ID == message {
			return true
		}
	}
	return false
}

// resumes reports whether another attempt to send a message finds out, or does not
// mind, what became of the earlier one.
func (b *Binding) resumes(message parley.ID) bool {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	row, err := b.sent.Get(ctx, message.String())
	if err != nil {
		b.c.Logger.Error("cannot read how a message was sent; it counts as one that cannot be repeated", "message", message,
			"error", err)
	}
	return err == nil && row.Revision != 0
}

func (b *Binding) dropRow(ctx context.Context, id parley.ID) {
	if err := b.sent.Delete(ctx, id.String(), 0); err != nil && b.ctx.Err() == nil {
		b.c.Logger.Warn("the record of a task elsewhere stays until it expires", "message", id, "error", err)
	}
}

// contextOf is the context that an agent gave to a conversation; "": none.
func (b *Binding) contextOf(ctx context.Context, agent string, conversation parley.ID) string {
	row, err := b.contexts.Last(ctx, contextKey(agent, conversation))
	if err != nil {
		b.c.Logger.Warn("the context of a conversation cannot be read; the agent makes a new one", "agent", agent,
			"error", err)
	}
	return row.Value.Context
}

// keepContext remembers the context that an agent gave to a conversation first.
func (b *Binding) keepContext(ctx context.Context, agent string, conversation parley.ID, contextID string) {
	if contextID == "" || conversation.IsZero() {
		return
	}
	_, err := b.contexts.Change(ctx, contextKey(agent, conversation), func(r *contextRow) (bool, error) {
		until := b.c.Now().Add(contextRetention)
		if r.Revision != 0 && until.Sub(r.Until) < contextRetention/2 {
			return false, nil
		}
		if r.Revision == 0 {
			r.Value = agentContext{agent, conversation, contextID}
		}
		r.Until = until
		return true, nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		b.c.Logger.Warn("the context of a conversation is not remembered", "agent", agent, "error", err)
	}
}

func (b *Binding) dropContext(ctx context.Context, agent string, conversation parley.ID) {
	if err := b.contexts.Delete(ctx, contextKey(agent, conversation), 0); err != nil {
		b.c.Logger.Warn("the context of a conversation stays", "agent", agent, "error", err)
	}
}
