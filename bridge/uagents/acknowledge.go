package uagents

import (
	"context"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/uagents"
)

// took sees to the acknowledgement of a chat message that is recorded: who waits
// has it with the response, from handle.
func (b *Binding) took(r *protocol.Request, a acknowledging) {
	if r.Sync {
		r.State = a
		return
	}
	r.Handled = true
	m, err := b.acknowledged(r)
	if err != nil { // of what the server has read: the answer will fail at it too
		b.c.Logger.Error("an acknowledgement cannot be made", "to", r.Sender, "session", r.Session, "error", err)
		a.place.end(false)
		return
	}
	b.acknowledge(r, a.place, m)
}

// acknowledged is the acknowledgement of the chat message in a request.
func (b *Binding) acknowledged(r *protocol.Request) (protocol.Message, error) {
	c, err := r.Chat()
	if err != nil {
		return protocol.Message{}, err
	}
	return b.acknowledgement(c)
}

// An ack is an acknowledgement on its way; the answer to the same message
// waits for it, and brings it when it did not arrive.
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

// acknowledgementOf is that of the chat message in an envelope.
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

// end tells whether the acknowledgement arrived. Nobody waits for a nil one.
func (a *ack) end(ok bool) {
	if a != nil {
		a.ok = ok
		close(a.done)
	}
}

// newAck gives the place of an acknowledgement that nobody brings yet; nil when
// somebody does.
func (b *Binding) newAck(request parley.ID) *ack {
	b.acksMu.Lock()
	defer b.acksMu.Unlock()
	if b.acks[request] != nil || len(b.acks) >= maxAcks {
		return nil
	}
	a := &ack{begun: b.c.Now(), done: make(chan struct{})}
	b.acks[request] = a
	return a
}

// acknowledge sends an acknowledgement at once, in the background. What does
// not arrive comes with the answer.
func (b *Binding) acknowledge(r *protocol.Request, place *ack, m protocol.Message) {
	if !b.reaches(r) {
		place.end(false)
		return
	}
	select {
	case b.slots <- struct{}{}:
	default:
		place.end(false)
		return
	}
	b.work.Go(func() {
		defer func() { <-b.slots }()
		ctx, cancel := context.WithTimeout(b.ctx, ackTimeout)
		defer cancel()
		err := b.say(ctx, nil, r.Envelope, m, "")
		if err != nil && b.ctx.Err() == nil {
			b.c.Logger.Debug("an acknowledgement did not arrive", "to", r.Sender, "session", r.Session, "error", err)
		}
		place.end(err == nil)
	})
}

// acknowledgeFirst sees to it that a chat message was acknowledged before it
// is answered with reply.
func (b *Binding) acknowledgeFirst(ctx context.Context, reply *parley.Message, request parley.ID,
	e *protocol.Envelope) error {
	a := b.newAck(request)
	if a == nil {
		b.acksMu.Lock()
		a = b.acks[request]
		b.acksMu.Unlock()
		if a != nil {
			select {
			case <-a.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if a.ok {
				return nil
			}
		}
		a = nil
	}
	m, err := b.acknowledgementOf(e)
	if err == nil {
		err = b.say(ctx, reply, e, m, "")
	}
	if a.end(err == nil); a != nil && err != nil {
		b.forgetAck(request)
	}
	return err
}

func (b *Binding) forgetAck(request parley.ID) {
	b.acksMu.Lock()
	defer b.acksMu.Unlock()
	delete(b.acks, request)
}
