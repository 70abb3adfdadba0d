package agh

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
)

// From the hub to the wire: Deliver sends a message to a peer or a channel, from the
// peer that speaks for its sender.

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	workspaceID, peer, ok := split(o.Identity.ID)
	if !ok {
		return hub.Outcome{Err: parley.Refuse(parley.Malformed,
			"%q is no AGH identity: want workspace/peer", o.Identity.ID)}
	}
	switch {
	case m.Kind == parley.Notice && m.Origin.Protocol == Protocol && len(m.Origin.Raw) > 0:
		return b.relay(ctx, o, workspaceID, peer)
	case peer[0] == channelMark[0]:
		return b.toChannel(ctx, m, workspaceID, peer[1:], peer)
	case m.Kind == parley.Cancel || m.Kind == parley.Input:
		return b.addToWork(ctx, o, workspaceID)
	case o.Request != nil && o.Request.Origin.Protocol == Protocol:
		return b.reply(ctx, o)
	}
	if channel, ok := b.channelOf(m, workspaceID); ok {
		return b.toChannel(ctx, m, workspaceID, channel, peer)
	}
	return b.say(ctx, o, workspaceID, peer)
}

// relay publishes a peer's message unchanged.
func (b *Binding) relay(ctx context.Context, o hub.Outbound, workspaceID, peer string) hub.Outcome {
	m := o.Message
	e, err := b.original(m)
	if err != nil {
		return hub.Outcome{Err: err}
	}
	if workspaceID != e.WorkspaceID {
		return hub.Outcome{Err: parley.Refuse(parley.Forbidden, "AGH messages do not leave their workspace")}
	}
	at := peerAddress{workspaceID, e.Channel, peer}
	if o.Attempt > 1 && e.WorkID != "" && (e.Kind == protocol.KindTrace || e.Kind == protocol.KindReceipt) {
		// The hub may have stopped between recording the message that ends the work
		// and recording the end.
		_, err := b.works.Update(ctx, e, func(w protocol.Work, ok bool) (protocol.Work, error) {
			next, err := protocol.Advance(w, ok, e)
			next.Updated = b.now()
			if err == nil && !next.State.Terminal() {
				return w, nil
			}
			return next, err
		})
		if err != nil && !errors.As(err, new(*protocol.Error)) { // a protocol error: the end is recorded
			return b.outcome(err)
		}
	}
	if e.To != "" {
		return b.outcome(b.publishAt(ctx, e, at))
	}
	return b.outcome(b.broadcast(ctx, m.ID, e, peer))
}

// broadcast delivers a channel message to one member, or to all present members if
// peer names the channel itself. The first delivery publishes the message to all;
// later ones publish it again only for a peer that was away then.
func (b *Binding) broadcast(ctx context.Context, id parley.ID, e *protocol.Envelope, peer string) error {
	t, err := b.publishOnce(ctx, id, e)
	at := peerAddress{e.WorkspaceID, e.Channel, peer}
	if err != nil || peer[0] == channelMark[0] || b.members.presentSince(at, t) {
		return err
	}
	return b.publishAt(ctx, e, at)
}

// publishAt publishes here, or hands the message over to the peer's hub.
func (b *Binding) publishAt(ctx context.Context, e *protocol.Envelope, at peerAddress) error {
	if x, ok := b.members.at(at.workspaceID, at.channel, at.peer); ok {
		if !b.here(x) {
			return errAway
		}
		leaves(ctx, e)
		if x.node != b.members.node {
			return b.handOff(e, x.node, x.peer)
		}
	}
	leaves(ctx, e)
	return b.gateway.PublishTo(e, at.peer)
}

// leaves records that a message is about to be published. NATS does not tell who takes it.
func leaves(ctx context.Context, e *protocol.Envelope) {
	if raw := e.Raw(); raw != nil {
		recorder.Sent(ctx, "", raw)
	}
}

var errAway = errors.New("the peer is away")

// maxBroadcasts bounds the broadcasts whose time is remembered. Older ones, and
// broadcasts before a restart, are published again; members deduplicate them by id.
const maxBroadcasts = 1 << 16

// broadcast is a message to a channel that was published, or is being.
type broadcast struct {
	at     time.Time
	done   chan struct{}
	failed error // when done
}

// publishOnce publishes a broadcast, unless it was published, and gives the time.
func (b *Binding) publishOnce(ctx context.Context, id parley.ID, e *protocol.Envelope) (time.Time, error) {
	b.mu.Lock()
	x, begun := b.broadcasts.byKey[id]
	if !begun {
		x = &broadcast{at: b.now(), done: make(chan struct{})}
		b.broadcasts.add(id, x)
	}
	b.mu.Unlock()
	if begun {
		select {
		case <-x.done:
			return x.at, x.failed
		case <-ctx.Done():
			return x.at, ctx.Err()
		}
	}
	leaves(ctx, e)
	if x.failed = b.gateway.Publish(e); x.failed != nil {
		b.mu.Lock()
		b.broadcasts.remove(id) // the next attempt publishes it
		b.mu.Unlock()
	}
	close(x.done)
	return x.at, x.failed
}

// original gives the original envelope of a peer's message.
func (b *Binding) original(m *parley.Message) (*protocol.Envelope, *parley.Error) {
	if e := b.cached(m.ID); e != nil {
		return e, nil
	}
	e, err := b.decode(m.Origin.Raw)
	if err != nil {
		return nil, parley.Refuse(parley.Internal, "the recorded message cannot be read").Because(err)
	}
	return e, nil
}

func (b *Binding) decode(raw []byte) (*protocol.Envelope, error) {
	return (&protocol.Decoder{Lenient: b.c.Lenient, Handles: b.c.Trust}).Decode(raw)
}

// outcome turns the result of publishing into the outcome of a delivery.
func (b *Binding) outcome(err error, ls ...parley.Loss) hub.Outcome {
	var e *protocol.Error
	switch {
	case err == nil:
		return hub.Outcome{Losses: ls}
	case errors.Is(err, errAway), errors.Is(err, protocol.ErrNotTarget):
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the peer is away").
			With(parley.ByNetwork, parley.NotConnected, ""), Wait: time.Second, Losses: ls}
	case errors.Is(err, protocol.ErrWorkClosed):
		return hub.Outcome{Losses: append(ls, parley.Loss{Field: "Kind",
			Reason: "the work was closed before this could be said"})}
	case errors.As(err, &e) && !e.Retryable:
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent,
			"it cannot be said in AGH: %s", said(e)).Because(err), Losses: ls}
	}
	return hub.Outcome{Err: bridge.Unreachable(parley.Fail(parley.Unavailable, err, "it could not be published").
		With(parley.ByHub, parley.HubStorage, ""), err), Losses: ls}
}

// reply sends an event or the reply of a request to the requester.
func (b *Binding) reply(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	var outs []*protocol.Envelope
	var e *protocol.Envelope
	a := b.pendingReceipt(o.Request.ID)
	if a != nil { // the receipt goes before the answer, or with it
		select {
		case <-a.admitted:
		case <-ctx.Done():
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, ctx.Err(), "the request is not acknowledged yet").Stated()}
		}
		e = a.request
		if receipt := b.takeReceipt(o.Request.ID, a); receipt != nil {
			defer b.release(o.Request.ID)
			outs = append(outs, receipt)
		} else {
			select {
			case <-a.sent:
			case <-ctx.Done():
				return hub.Outcome{Err: parley.Fail(parley.Unavailable, ctx.Err(),
					"the receipt of the request is not sent yet")}
			}
		}
	}
	if e == nil {
		var err *parley.Error
		if e, err = b.original(o.Request); err != nil {
			return hub.Outcome{Err: err}
		}
	}
	if !b.router.Hosts(e.WorkspaceID, e.Channel, e.To) {
		return hub.Outcome{Err: parley.Refuse(parley.Unavailable,
			"agent %q is no peer of the channel any more", m.From).Stated()}
	}
	answers, ls := b.answers(e, m, o.Recipient.Name)
	if a == nil { // the work may have ended at another hub, or be forgotten
		_, known, err := b.works.Work(ctx, e.WorkspaceID, e.WorkID)
		if err == nil && !known {
			again := *e
			again.Note = nil // the request is answered: no link
			_, err = b.works.advance(ctx, &again)
		}
		if err != nil {
			return b.outcome(err, ls...)
		}
	}
	return b.outcome(b.send(ctx, o.Attempt, append(outs, answers...)...), ls...)
}

// answers are the messages in which an event or a reply goes out.
func (b *Binding) answers(e *protocol.Envelope, m *parley.Message, recipient string) ([]*protocol.Envelope,
	[]parley.Loss) {
	ls := bridge.Losses(bridge.AGH, m, recipient)
	var bodies []any
	said := pieces(m.Parts)
	result, text, more := toResult(said)
	switch {
	case m.Kind == parley.Event && m.State == parley.Accepted:
		bodies = append(bodies, &protocol.Receipt{ForID: e.ID, Status: protocol.StatusAccepted, Detail: text})
	case m.Kind == parley.Event:
		bodies = append(bodies, &protocol.Trace{State: states[m.State], Message: text, Result: result,
			ArtifactRefs: more})
	case m.Kind == parley.Response:
		say, unsaid := toSay(said, "response")
		ls = append(ls, unsaid...)
		bodies = append(bodies, say, &protocol.Trace{State: protocol.StateCompleted, Message: text, Result: result,
			ArtifactRefs: more})
	default:
		failure := m.Error
		if failure == nil {
			failure = parley.Refuse(parley.HandlerFailed, "the agent failed")
		}
		switch reason, never := refused[failure.Code]; {
		case never && len(e.ID) <= maxFor:
			bodies = append(bodies, &protocol.Receipt{ForID: e.ID, Status: protocol.StatusRejected, Reason: reason,
				Detail: failure.Text})
		case failure.Code == parley.Cancelled:
			bodies = append(bodies, &protocol.Trace{State: protocol.StateCanceled, Message: failure.Text})
		default:
			bodies = append(bodies, &protocol.Trace{State: protocol.StateFailed, Message: failure.Text})
		}
	}
	outs := make([]*protocol.Envelope, 0, len(bodies))
	stated := answerTo(e, "") // with the provenance, the same for all answers
	if err := stated.SetExt(ExtParley, provenanceOf(m)); err != nil {
		return nil, append(ls, parley.Loss{Field: "Parts", Reason: "not valid text"})
	}
	for i, body := range bodies {
		out := *stated
		out.ID = messageID(m.ID, string(rune('a'+i)))
		if err := out.SetContent(body); err != nil { // only text that is not UTF-8 can be the reason
			ls = append(ls, parley.Loss{Field: "Parts", Reason: "not valid text"})
			continue
		}
		outs = append(outs, &out)
	}
	return outs, ls
}

// send sends messages of a stand-in in order to one peer, which may be connected to
// another hub. The resulting state of the work is written once, before the first
// message is published. A retry is published although the first attempt closed the
// work: that attempt may not have arrived.
func (b *Binding) send(ctx context.Context, attempt int, es ...*protocol.Envelope) error {
	made := make([]*protocol.Envelope, 0, len(es))
	var invalid error
	for _, e := range es {
		e.TS = b.now().Unix()
		out, err := b.router.Prepare(ctx, e)
		var perr *protocol.Error
		if errors.As(err, &perr) && perr.Step == protocol.StepRouting {
			if _, elsewhere := b.remoteHub(e.WorkspaceID, e.Channel, e.To); elsewhere {
				out.Envelope, err = e, nil // the other hub has sender and recipient
			}
		}
		if err != nil {
			invalid = err
			break
		}
		made = append(made, out.Envelope)
	}
	allowed, refused := b.works.advance(ctx, made...)
	if errors.Is(refused, protocol.ErrWorkClosed) && attempt > 1 {
		allowed, refused = len(made), nil
	}
	for _, e := range made[:allowed] {
		leaves(ctx, e)
		if err := b.publish(e); err != nil {
			return err
		}
	}
	return cmp.Or(refused, invalid)
}

// publish publishes here, or hands the message over to the hub that has the peer.
func (b *Binding) publish(e *protocol.Envelope) error {
	if x, ok := b.remoteHub(e.WorkspaceID, e.Channel, e.To); ok {
		return b.handOff(e, x.node, x.peer)
	}
	return b.gateway.Publish(e)
}

// commonChannel finds the channel in which an agent can speak to a peer: a channel
// of both, else a channel of the peer.
func (b *Binding) commonChannel(workspaceID, peer, agent string) (channel, speaker string, err error) {
	present := slices.DeleteFunc(b.members.memberships(workspaceID, peer), func(x member) bool { return !b.here(x) })
	if len(present) == 0 {
		return "", "", errAway
	}
	both := func(x member) bool { return b.agentAt(workspaceID, x.channel, peerID(agent)) == agent }
	channel = present[max(0, slices.IndexFunc(present, both))].channel
	speaker, err = b.speaker(workspaceID, channel, agent)
	return channel, speaker, err
}

// chooseContainer sets container and sender of e, the envelope of m to a peer: the
// thread of m's conversation, else the room of the peer and the sender.
func (b *Binding) chooseContainer(ctx context.Context, e *protocol.Envelope, m *parley.Message) (err error) {
	if at, ok := b.thread(ctx, m.Conversation, e.WorkspaceID); ok {
		for _, x := range b.members.memberships(e.WorkspaceID, e.To) {
			if x.channel == at.Channel && b.here(x) {
				e.Channel, e.Surface, e.ThreadID = at.Channel, protocol.SurfaceThread, at.ID
				e.From, err = b.speaker(e.WorkspaceID, at.Channel, m.From)
				return err
			}
		}
	}
	e.Surface = protocol.SurfaceDirect
	if e.Channel, e.From, err = b.commonChannel(e.WorkspaceID, e.To, m.From); err == nil {
		e.DirectID, err = protocol.VerifiedDirectID(e.WorkspaceID, e.Channel, e.From, e.To)
	}
	return err
}

// say sends an agent's request or notice to a peer.
func (b *Binding) say(ctx context.Context, o hub.Outbound, workspaceID, peer string) hub.Outcome {
	m := o.Message
	e := &protocol.Envelope{ID: messageID(m.ID, ""), WorkspaceID: workspaceID, To: peer, TraceID: traceOf(m)}
	err := b.chooseContainer(ctx, e, m)
	if err != nil {
		return b.outcome(err)
	}
	intent := m.Act
	if m.Kind == parley.Request {
		intent = cmp.Or(intent, "request")
		e.WorkID = workID(m.ID)
		e.Note = &link{Request: m.ID, Scope: o.Scope, Target: o.Recipient.Name}
	}
	for _, t := range []time.Time{m.Expires, m.Deadline} {
		if !t.IsZero() && (e.ExpiresAt == 0 || t.Unix() < e.ExpiresAt) {
			e.ExpiresAt = min(t.Unix(), b.now().Add(cmp.Or(b.c.MaxTTL, 30*24*time.Hour)).Unix())
		}
	}
	ls := bridge.Losses(bridge.AGH, m, o.Recipient.Name)
	content := m.Parts
	if m.Error != nil {
		content = append(content, parley.Text(m.Error.Text))
	}
	s, more := toSay(pieces(content), intent)
	ls = append(ls, more...)
	o.Loses(ctx, ls)
	if err = setContent(e, s, m); err == nil {
		err = b.send(ctx, o.Attempt, e)
	}
	return b.outcome(err, ls...)
}

// channelOf gives the channel to which a notice is addressed.
func (b *Binding) channelOf(m *parley.Message, workspaceID string) (string, bool) {
	if m.Kind != parley.Notice {
		return "", false
	}
	e, ok := b.c.Hub.Directory().Agent(m.To)
	if !ok {
		return "", false
	}
	id, ok := e.Identity(Protocol)
	if !ok {
		return "", false
	}
	ws, peer, ok := split(id.ID)
	if !ok || ws != workspaceID || peer[0] != channelMark[0] {
		return "", false
	}
	return peer[1:], true
}

// toChannel sends a notice to a member of a channel, or to all.
func (b *Binding) toChannel(ctx context.Context, m *parley.Message, workspaceID, channel, peer string) hub.Outcome {
	if m.Kind != parley.Notice {
		return hub.Outcome{Answered: m.Kind == parley.Request,
			Failure: parley.Refuse(parley.Unsupported, "a channel takes notices; send a request to one of its peers")}
	}
	speaker, err := b.speaker(workspaceID, channel, m.From)
	if err != nil {
		return b.outcome(err)
	}
	e := &protocol.Envelope{ID: messageID(m.ID, ""), WorkspaceID: workspaceID, Channel: channel,
		Surface: protocol.SurfaceThread, ThreadID: "thread_" + hex.EncodeToString(m.Conversation[:]), From: speaker,
		TraceID: traceOf(m), TS: b.now().Unix()}
	if at, ok := b.thread(ctx, m.Conversation, workspaceID); ok && at.Channel == channel {
		e.ThreadID = at.ID
	}
	if !m.Expires.IsZero() {
		e.ExpiresAt = m.Expires.Unix()
	}
	s, ls := toSay(pieces(m.Parts), m.Act)
	if err = setContent(e, s, m); err == nil {
		err = b.noteThread(ctx, m.Conversation, e)
	}
	var out protocol.Outgoing
	if err == nil {
		out, err = b.router.Prepare(ctx, e)
	}
	if err == nil {
		err = b.broadcast(ctx, m.ID, out.Envelope, peer)
	}
	return b.outcome(err, append(ls, bridge.Losses(bridge.AGH, m, "")...)...)
}

// addToWork tells a peer that the requester has cancelled, or has more to say about its
// request.
func (b *Binding) addToWork(ctx context.Context, o hub.Outbound, workspaceID string) hub.Outcome {
	if o.Request == nil {
		return hub.Outcome{Err: parley.Refuse(parley.Conflict, "there is no request that this is about")}
	}
	w, ok, err := b.works.Work(ctx, workspaceID, workID(o.Request.ID))
	if err != nil {
		return b.outcome(err)
	}
	if !ok || w.State.Terminal() {
		return hub.Outcome{Losses: []parley.Loss{{Field: "Kind", Reason: "the work is over, or was never begun"}}}
	}
	request := messageID(o.Request.ID, "")
	e := &protocol.Envelope{ID: messageID(o.Message.ID, ""), WorkspaceID: workspaceID, Channel: w.Container.Channel,
		Surface: w.Container.Surface, From: w.Initiator, To: w.Target, WorkID: w.WorkID, ReplyTo: request,
		CausationID: request}
	if e.Surface == protocol.SurfaceThread {
		e.ThreadID = w.Container.ID
	} else {
		e.DirectID = w.Container.ID
	}
	var content any = &protocol.Receipt{ForID: request, Status: protocol.StatusCanceled, Detail: o.Message.Text()}
	var losses []parley.Loss
	if o.Message.Kind == parley.Input {
		content, losses = toSay(pieces(o.Message.Parts), cmp.Or(o.Message.Act, "answer"))
		losses = append(losses, bridge.Losses(bridge.AGH, o.Message, o.Recipient.Name)...)
		e.TraceID = traceOf(o.Message)
	}
	if err = setContent(e, content, o.Message); err == nil {
		err = b.send(ctx, o.Attempt, e)
	}
	return b.outcome(err, losses...)
}

// setContent sets the content of e, the envelope of m, with the provenance of m.
func setContent(e *protocol.Envelope, content any, m *parley.Message) error {
	if err := e.SetContent(content); err != nil {
		return err
	}
	return e.SetExt(ExtParley, provenanceOf(m))
}
