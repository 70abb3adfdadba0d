package uagents

import (
	"context"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/uagents"
)

// acknowledgeChat acknowledges a recorded chat message, in the HTTP response to a waiting
// sender. a is nil if no answer waits for the acknowledgement.
func (b *Binding) acknowledgeChat(r *protocol.Request, a *ack) {
	if r.Sync {
		r.Handler = func(context.Context, *protocol.Request) (protocol.Response, error) {
			m, err := b.acknowledged(r)
			a.end(err == nil)
			return protocol.Answer(m), err
		}
		return
	}
	m, err := b.acknowledged(r)
	if err != nil { // unexpected: the server has read it. The answer will fail too
		b.c.Logger.Error("an acknowledgement cannot be made", "to", r.Sender, "session", r.Session, "error", err)
		a.end(false)
		return
	}
	b.acknowledge(r, a, m)
}

// acknowledged is the acknowledgement of the chat message in a request.
func (b *Binding) acknowledged(r *protocol.Request) (protocol.Message, error) {
	c, err := r.Chat()
	if err != nil {
		return protocol.Message{}, err
	}
	return b.acknowledgement(c)
}

// An ack is an acknowledgement in flight. The answer to the same message waits for it,
// and sends it again if it failed.
type ack struct {
	begun time.Time
	done  chan struct{}
	ok    bool // once done is closed
}

// acknowledgement makes the acknowledgement of a chat message.
func (b *Binding) acknowledgement(c *protocol.ChatMessage) (protocol.Message, error) {
	a := c.Acknowledge(b.c.Now()).Message()
	a.Protocol = protocol.ChatProtocolDigest
	return a, a.Err()
}

// acknowledgementOf makes the acknowledgement of the chat message in an envelope.
func (b *Binding) acknowledgementOf(e *protocol.Envelope) (protocol.Message, error) {
	m, err := e.Message()
	if err != nil {
		return m, err
	}
	c, err := protocol.DecodeChatMessage(m.Payload)
	if err != nil {
		return protocol.Message{}, err
	}
	return b.acknowledgement(c)
}

// end settles the ack; ok: it was delivered. A nil ack needs no end.
func (a *ack) end(ok bool) {
	if a != nil {
		a.ok = ok
		close(a.done)
	}
}

// newAck gives the ack of a request, or nil if there is an earlier ack or no room.
func (b *Binding) newAck(request parley.ID) (a, earlier *ack) {
	b.acksMu.Lock()
	defer b.acksMu.Unlock()
	if earlier := b.acks[request]; earlier != nil || len(b.acks) >= maxAcks {
		return nil, earlier
	}
	a = &ack{begun: b.c.Now(), done: make(chan struct{})}
	b.acks[request] = a
	return a, nil
}

// acknowledge sends an acknowledgement in the background. If that fails, it goes with the
// answer.
func (b *Binding) acknowledge(r *protocol.Request, place *ack, m protocol.Message) {
	if !b.reachable(r) {
		place.end(false)
		return
	}
	select {
	case b.ackWorkers <- struct{}{}:
	default:
		place.end(false)
		return
	}
	b.work.Go(func() {
		defer func() { <-b.ackWorkers }()
		ctx, cancel := context.WithTimeout(b.ctx, ackTimeout)
		defer cancel()
		err := b.sendReply(ctx, nil, r.Envelope, m, "")
		if err != nil && b.ctx.Err() == nil {
			b.c.Logger.Debug("an acknowledgement did not arrive", "to", r.Sender, "session", r.Session, "error", err)
		}
		place.end(err == nil)
	})
}

// acknowledgeFirst returns when a chat message is acknowledged, so that reply may follow.
func (b *Binding) acknowledgeFirst(ctx context.Context, reply *parley.Message, request parley.ID,
	e *protocol.Envelope) error {
	a, earlier := b.newAck(request)
	if earlier != nil {
		select {
		case <-earlier.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if earlier.ok {
			return nil
		}
	}
	m, err := b.acknowledgementOf(e)
	if err == nil {
		err = b.sendReply(ctx, reply, e, m, "")
	}
	a.end(err == nil)
	if a != nil && err != nil {
		b.forgetAck(request)
	}
	return err
}

func (b *Binding) forgetAck(request parley.ID) {
	b.acksMu.Lock()
	defer b.acksMu.Unlock()
	delete(b.acks, request)
}
