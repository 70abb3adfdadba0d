package mcp

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

// outgoing makes calls of attached servers.
type outgoing struct {
	b        *Binding
	sent     *journal.Table[sentCall] // by message
	patience time.Duration            // see handOver

	// What it needs of servers.
	call  func(context.Context, serverCall) (*serverAnswer, error)
	tools func(agent string, id parley.Identity) []ToolText // the approved ones
	meet  func(ctx context.Context, agent string, id parley.Identity) error
	state func(agent string) serverState

	mu        sync.Mutex
	calls     map[parley.ID]*outCall // those that this hub makes, by message
	open      map[string]int         // their number, by directory name
	rows      map[parley.ID]struct{} // requests with a row that this hub is to remove
	elsewhere map[parley.ID]sentCall // calls that another hub makes, of partitions of this one

	ended chan parley.ID // requests whose rows are to be removed
	more  chan struct{}  // elsewhere is not empty
}

// A sentCall is a call that a server has, or may have. There is a row for each call of a request that may outlive its
// attempt, and for each message whose tool may be called again.
type sentCall struct {
	To    string    // directory name of the server's agent
	Peer  string    // its identity
	Tool  string    // name
	Node  string    // of the hub that makes the call
	Begun time.Time // the call
}

const (
	// handOver is how long Deliver waits for the answer to a call that has left the hub: an answer within it costs one
	// record. Longer calls go on in the background, because Deliver holds the lane.
	handOver = 250 * time.Millisecond
	// retryPause is the pause before a failed call of the journal is repeated.
	retryPause = time.Second
	// rowRetention is how long a row outlives its request, for clocks that differ.
	rowRetention = time.Hour
	// maxCalls is how many calls one server may work on at once; further ones wait.
	maxCalls = 64
	// maxRows bounds the rows that this hub removes; others expire.
	maxRows = 1 << 16
)

func newOutgoing(b *Binding) *outgoing {
	return &outgoing{b: b, sent: journal.NewTable[sentCall](b.c.Journal, "mcp-outgoing", 0), patience: handOver,
		call: b.servers.call, tools: b.servers.approvedTools, meet: b.servers.meet, state: b.servers.state,
		calls: map[parley.ID]*outCall{}, open: map[string]int{}, rows: map[parley.ID]struct{}{},
		elsewhere: map[parley.ID]sentCall{}, ended: make(chan parley.ID, 1024), more: make(chan struct{}, 1)}
}

// Deliver implements hub.Binding: a call of an attached server, or a message for the inbox of a caller.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if IsCaller(o.Identity.ID) {
		return b.inbox.deliver(ctx, o)
	}
	return b.outgoing.deliver(ctx, o)
}

// deliver sends a message to an attached server.
func (o *outgoing) deliver(ctx context.Context, out hub.Outbound) (r hub.Outcome) {
	losses := bridge.Losses(bridge.MCPServer, out.Message, out.Recipient.Name)
	out.Loses(ctx, losses)
	switch out.Message.Kind {
	case parley.Request, parley.Notice:
		r = o.begin(ctx, out)
	case parley.Input:
		r = o.input(ctx, out)
	case parley.Cancel:
		r = o.cancel(ctx, out)
	default:
		return hub.Outcome{Err: parley.Refuse(parley.Unsupported, "an MCP server takes requests")}
	}
	r.Losses = losses
	return r
}

// begin makes an attempt to send a request or a notice.
func (o *outgoing) begin(ctx context.Context, out hub.Outbound) hub.Outcome {
	m, agent := out.Message, out.Recipient.Name
	c := &outCall{o: o, m: m, agent: agent, identity: out.Identity, streams: out.Streams, begun: make(chan struct{}),
		hand: newHandover()}
	again := false // an earlier attempt may have reached the server
	if out.Attempt > 1 {
		row, err := o.sent.Get(ctx, m.ID.String())
		switch {
		case err != nil:
			return hub.Outcome{Err: unreadable(err), Wait: retryPause}
		case o.making(m.ID) != nil:
			return hub.Outcome{} // an earlier attempt goes on: only its end is missing
		case row.Revision != 0 && o.b.c.Journal.LivesElsewhere(row.Value.Node, row.Value.Begun):
			o.leaveElsewhere(m.ID, row.Value)
			return hub.Outcome{}
		case row.Revision != 0 && !o.repeatable(agent, row.Value.Tool):
			o.dropRow(context.WithoutCancel(ctx), m.ID)
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "%q may have run the tool %q, and cannot be asked",
				agent, row.Value.Tool).With(parley.ByHub, parley.HubStops, hubStopped), Unknown: true}
		case row.Revision != 0:
			again, c.kept = true, true
			o.expectEnd(m.ID)
		}
	}
	failure := o.compose(c, out)
	if failure != nil && failure.Retryable { // the tools were never read
		if err := o.meet(ctx, c.agent, out.Identity); err != nil {
			if e, ok := errors.AsType[*parley.Error](err); ok && !e.Retryable { // such as a loop
				return hub.Outcome{Answered: true, Failure: e}
			}
			failure = failure.Because(err)
			why := failedCall(c.agent, &callError{err: err})
			if e := cmp.Or(why.Err, why.Failure); e.Reason != "" {
				failure = failure.With(e.Source, e.Reason, e.Detail)
			}
		} else {
			failure = o.compose(c, out)
		}
	}
	if failure != nil {
		if failure.Retryable {
			return hub.Outcome{Err: failure, Unknown: again}
		}
		return hub.Outcome{Answered: true, Failure: failure}
	}
	c.repeatable = o.repeatable(agent, c.params.Name)
	c.limit()
	c.ctx = recorder.Join(c.ctx, ctx)
	if !o.reserve(c) {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "%q works on %d calls of this hub", agent, maxCalls).
			With(parley.ByLimit, parley.OpenRequests, ""), Wait: 2 * time.Second, Unknown: again}
	}
	// A caller that waits gets no second attempt, and nothing is told of a notice.
	if !out.Waits && (m.Kind == parley.Request || c.repeatable) {
		if err := c.keep(ctx); err != nil {
			o.release(c)
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the hub cannot record how it sends the message").
				With(parley.ByHub, parley.HubStorage, ""), Unknown: again}
		}
	}
	if !o.b.spawn(c.run) {
		o.release(c)
		return hub.Outcome{Err: parley.AsError(o.b.ctx.Err()), Wait: retryPause, Unknown: again}
	}
	return c.await(ctx, out.Waits)
}

// hubStopped is the detail of errors about a call whose outcome is unknown.
const hubStopped = "the hub that made the call stopped before the answer"

func unreadable(err error) *parley.Error {
	return parley.Fail(parley.Unavailable, err, "how the message was sent before cannot be read").
		With(parley.ByHub, parley.HubStorage, "")
}

// compose makes the call of a message. The error is the server's answer, unless it is retryable.
func (o *outgoing) compose(c *outCall, out hub.Outbound) *parley.Error {
	skill := out.Message.Skill
	if s, ok := out.Recipient.SkillNamed(skill); ok {
		skill = s.ID
	}
	tools := o.tools(c.agent, c.identity)
	tool, known := toolOf(tools, skill)
	switch {
	case known:
	case len(tools) == 0: // whatever skills an operator gave the agent
		return parley.Fail(parley.Unavailable, nil, "the tools of %q are not known yet", c.agent).
			With(parley.ByNetwork, parley.NotConnected, "its list of tools was never read")
	case skill == "":
		return parley.Refuse(parley.UnknownSkill, "%q has several tools; name one of them as the skill", c.agent)
	default:
		return parley.Refuse(parley.UnknownSkill, "%q has no tool %q", c.agent, skill)
	}
	var err *parley.Error
	c.params, err = toCall(out.Message, tool, o.b.c.Hub.ID())
	return err
}

// repeatable reports whether a tool may be called again when it is not known whether a call arrived.
func (o *outgoing) repeatable(agent, tool string) bool {
	list := o.b.settingsOf(agent).Repeatable
	return slices.Contains(list, tool) || slices.Contains(list, "*")
}

// input gives more from the requester to the call of its request.
func (o *outgoing) input(ctx context.Context, out hub.Outbound) hub.Outcome {
	id := out.Message.InReplyTo
	c := o.making(id)
	if c != nil && c.take(out.Message) {
		return hub.Outcome{}
	}
	if c == nil {
		row, err := o.sent.Get(ctx, id.String())
		switch {
		case err != nil:
			return hub.Outcome{Err: unreadable(err), Wait: retryPause}
		case row.Revision != 0 && o.b.c.Journal.LivesElsewhere(row.Value.Node, row.Value.Begun):
			return hub.Outcome{} // the other hub takes it from the record
		}
	}
	return hub.Outcome{Err: parley.Refuse(parley.Conflict, "%q does not ask for input now", out.Recipient.Name)}
}

// cancel ends the call of a request.
func (o *outgoing) cancel(ctx context.Context, out hub.Outbound) hub.Outcome {
	id := out.Message.InReplyTo
	if c := o.making(id); c != nil {
		c.stop(errGivenUp)
		return hub.Outcome{}
	}
	if _, open := o.b.c.Journal.Delivery(id, out.Recipient.Name); !open {
		return hub.Outcome{}
	}
	row, err := o.sent.Get(ctx, id.String())
	switch {
	case err != nil:
		return hub.Outcome{Err: unreadable(err), Wait: retryPause}
	case row.Revision != 0 && !o.b.c.Journal.LivesElsewhere(row.Value.Node, row.Value.Begun):
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, nil, "the call of %q is being resumed", out.Recipient.Name).
			With(parley.ByHub, parley.HubStops, ""), Wait: retryPause}
	}
	return hub.Outcome{} // the other hub sees the record, or there is no call
}

// resumes reports whether another attempt to send a message finds out, or does not mind, what became of the earlier
// one.
func (o *outgoing) resumes(message parley.ID) bool {
	ctx, cancel := context.WithTimeout(o.b.ctx, 10*time.Second)
	defer cancel()
	row, err := o.sent.Get(ctx, message.String())
	if err != nil {
		o.b.c.Logger.Error("cannot read how a message was sent; it counts as one that cannot be repeated", "message", message,
			"error", err)
	}
	return err == nil && row.Revision != 0
}

// making gives the call of a message that this hub makes; nil: none.
func (o *outgoing) making(id parley.ID) *outCall {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls[id]
}

// reserve notes that a server gets one more call; false: it has too many.
func (o *outgoing) reserve(c *outCall) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open[c.agent] >= maxCalls || o.calls[c.m.ID] != nil {
		c.stop(nil)
		return false
	}
	o.open[c.agent]++
	o.calls[c.m.ID] = c
	return true
}

// release ends a call.
func (o *outgoing) release(c *outCall) {
	c.stop(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.calls, c.m.ID)
	if o.open[c.agent]--; o.open[c.agent] == 0 {
		delete(o.open, c.agent)
	}
}

// expectEnd notes that the row of a message is to be removed when its answer is recorded.
func (o *outgoing) expectEnd(id parley.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.rows) < maxRows {
		o.rows[id] = struct{}{}
	}
}

func (o *outgoing) dropRow(ctx context.Context, id parley.ID) {
	o.mu.Lock()
	delete(o.rows, id)
	o.mu.Unlock()
	if err := o.sent.Delete(ctx, id.String(), 0); err != nil && o.b.ctx.Err() == nil {
		o.b.c.Logger.Warn("the record of a call stays until it expires", "message", id, "error", err)
	}
}

// start goes on with the calls of an earlier process, and follows which requests end.
func (o *outgoing) start(context.Context) error {
	j := o.b.c.Journal
	takeOver, stop := bridge.TakeOver(o.b.ctx, j, o.sent, o.b.c.Logger,
		func(id parley.ID, w *sentCall) { o.adopt(id, *w) })
	o.b.stops = append(o.b.stops, stop, j.Watch(o.recorded))
	o.b.spawn(takeOver)
	o.b.spawn(o.dropEnded)
	o.b.spawn(o.recheck)
	return nil
}

// recorded follows what is recorded about the calls of this hub. It does no I/O: the journal waits for it.
func (o *outgoing) recorded(r *journal.Record) {
	m := r.Message
	if m == nil || r.Refused != nil {
		return
	}
	switch {
	case m.Kind.Terminal():
		o.mu.Lock()
		c := o.calls[m.InReplyTo]
		_, row := o.rows[m.InReplyTo]
		delete(o.rows, m.InReplyTo)
		o.mu.Unlock()
		if c != nil {
			c.stop(errSettled)
		}
		if row {
			select {
			case o.ended <- m.InReplyTo:
			default: // it expires
			}
		}
	case (m.Kind == parley.Cancel || m.Kind == parley.Input) && !o.b.c.Journal.Owned(r.Position.Partition):
		// The hub that owns the partition delivers it, and does not have the call.
		switch c := o.making(m.InReplyTo); {
		case c == nil:
		case m.Kind == parley.Cancel:
			c.stop(errGivenUp)
		default:
			c.take(m)
		}
	}
}

// dropEnded removes the rows of requests that have their answer.
func (o *outgoing) dropEnded() {
	for {
		select {
		case id := <-o.ended:
			o.dropRow(o.b.ctx, id)
		case <-o.b.ctx.Done():
			return
		}
	}
}

// recheckEvery is how often this hub checks whether another hub, which makes a call of this hub's partition, still
// lives.
const recheckEvery = 2 * time.Second

// leaveElsewhere leaves a call to the hub that makes it, as long as that lives.
func (o *outgoing) leaveElsewhere(id parley.ID, w sentCall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.elsewhere[id] = w
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// recheck adopts calls of hubs that have ended.
func (o *outgoing) recheck() {
	for {
		select {
		case <-o.more:
		case <-o.b.ctx.Done():
			return
		}
		t := time.NewTimer(recheckEvery)
		select {
		case <-t.C:
		case <-o.b.ctx.Done():
			t.Stop()
			return
		}
		o.mu.Lock()
		list := o.elsewhere
		o.elsewhere = map[parley.ID]sentCall{}
		o.mu.Unlock()
		for id, w := range list {
			o.adopt(id, w)
		}
	}
}

// adopt sees to a request that was delivered by a call of another process: it still goes on there, or its outcome is
// unknown, or the tool may be called again.
func (o *outgoing) adopt(id parley.ID, w sentCall) {
	j := o.b.c.Journal
	if o.making(id) != nil {
		return
	}
	d, open := j.Delivery(id, w.To)
	switch {
	case !open || d.State != parley.Delivered || !j.Owned(d.Position.Partition):
		return // it is over, or an attempt is in flight or to come
	case j.LivesElsewhere(w.Node, w.Begun):
		o.leaveElsewhere(id, w)
		return
	}
	o.expectEnd(id)
	o.b.spawn(func() { o.resume(id, w, d.Position) })
}

// resume ends a request whose call was lost, or calls its tool again.
func (o *outgoing) resume(id parley.ID, w sentCall, at journal.Position) {
	c := &outCall{o: o, agent: w.To, identity: parley.Identity{Protocol: Protocol, ID: w.Peer}, kept: true,
		begun: make(chan struct{}), m: &parley.Message{ID: id}}
	lost := parley.Refuse(parley.OutcomeUnknown, "%q may have run the tool %q: the hub stopped before the answer", w.To,
		w.Tool).With(parley.ByHub, parley.HubStops, hubStopped)
	e, here := o.b.c.Hub.Directory().Agent(w.To)
	if !here || !o.repeatable(w.To, w.Tool) {
		c.answer(&parley.Message{Kind: parley.Failure, Error: lost})
		return
	}
	i := slices.IndexFunc(e.Identities, func(i parley.Identity) bool { return i.Protocol == Protocol && i.ID == w.Peer })
	r := o.request(at)
	if i < 0 || r == nil {
		c.answer(&parley.Message{Kind: parley.Failure, Error: lost})
		return
	}
	c.m, c.identity, c.repeatable = r, e.Identities[i], true
	if err := o.compose(c, hub.Outbound{Message: r, Recipient: e}); err != nil {
		c.answer(&parley.Message{Kind: parley.Failure, Error: lost.Because(err)})
		return
	}
	c.limit()
	if !o.reserve(c) { // the server works on too many
		o.leaveElsewhere(id, w)
		return
	}
	if err := c.keep(c.ctx); err != nil {
		o.b.c.Logger.Warn("the record of a call names the hub that made it before", "message", id, "error", err)
	}
	c.run()
}

// request reads a request again; nil: it is not to be had any more.
func (o *outgoing) request(at journal.Position) *parley.Message {
	for {
		r, err := o.b.c.Journal.Read(o.b.ctx, at)
		switch {
		case err == nil && r.Erased == nil:
			return r.Message
		case err == nil || !parley.AsError(err).Retryable || sleep.For(o.b.ctx, retryPause) != nil:
			return nil
		}
	}
}
