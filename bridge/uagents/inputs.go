package uagents

import (
	"context"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// The protocol has no word for a question back, and none for its answer: in a chat both
// are chat messages in the session of the request. A chat message of a sender that was
// not asked is a request of its own.

// question is an open request in a chat whose agent asked its sender for more.
type question struct {
	Request parley.ID `json:"request"`
}

// put sends the question of an agent to the uAgent that made the request.
func (b *Binding) put(ctx context.Context, o hub.Outbound, asked *protocol.Envelope) hub.Outcome {
	m := o.Message
	if err := b.acknowledgeFirst(ctx, m, o.Request.ID, asked); err != nil {
		return outcome(err)
	}
	if len(m.Parts) == 0 {
		bare := *m
		bare.Parts = []parley.Part{parley.Text("the agent needs more input")}
		m = &bare
	}
	content, losses, err := b.chatOf(m, o.Recipient.Name)
	if err != nil {
		return hub.Outcome{Err: err}
	}
	// The answer may come before the question is reported as delivered.
	key := sessionKey(asked.Target, asked.Sender, asked.Session)
	if b.questions.Known(key).Value.Request != o.Request.ID {
		if b.countsAsGuest(asked.Sender) {
			b.c.Hub.Guests().Wrote(policy.Source(o.Request.Origin.Address), writeCost(len(key)))
		}
		until := o.Request.Deadline
		if until.IsZero() {
			until = b.c.Now().Add(24 * time.Hour)
		}
		if _, err := b.questions.Put(ctx, key, question{o.Request.ID}, until); err != nil {
			return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the question could not be kept").
				With(parley.ByHub, parley.HubStorage, ""), Wait: time.Second}
		}
	}
	out := outcome(b.sendReply(ctx, m, asked, content, bridge.Provenance(m)))
	out.Losses = losses
	return out
}

// openQuestion gives the open request that a chat message adds to: its agent asked the
// sender for more, in the session of the message.
func (b *Binding) openQuestion(r *protocol.Request, to string) (request parley.ID, ok bool) {
	if r.Verdict.Assurance != protocol.Signed {
		return request, false
	}
	x := b.questions.Known(sessionKey(r.Target, r.Sender, r.Session)).Value
	if x.Request.IsZero() {
		return request, false
	}
	v, ok := b.c.Journal.Delivery(x.Request, to)
	return x.Request, ok && v.State != parley.Dead // the sender already has the failure of a dead letter
}

// sendInput sends more about a request in the request's session.
func (b *Binding) sendInput(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	late := func(why string) hub.Outcome {
		return hub.Outcome{Losses: []parley.Loss{{Field: "Kind", Reason: why}}}
	}
	if o.Request == nil {
		return hub.Outcome{Err: parley.Refuse(parley.Conflict, "there is no request to add to")}
	}
	x := indexed(b.sessions, b.sessions.byRequest, o.Request.ID)
	switch {
	case x.Revision == 0:
		return late("the request went out in no session that the hub knows")
	case x.Value.Request != o.Request.ID || b.sessions.isAnswered(o.Request.ID):
		return late("the request was answered before this could be said")
	}
	asked := o
	asked.Message = o.Request
	if _, digest, _, err := b.modelFor(asked); err != nil || digest != protocol.ChatMessageDigest {
		return hub.Outcome{Losses: bridge.Losses(bridge.Model, m, o.Recipient.Name)}
	}
	_, id, ok := b.standIns.at(x.Value.Self)
	if !ok {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the hub holds no key of the agent that asked").
			With(parley.ByHub, parley.HubKey, "")}
	}
	content, losses, perr := b.chatOf(m, o.Recipient.Name)
	if perr != nil {
		return hub.Outcome{Err: perr}
	}
	e, err := protocol.NewEnvelope(id.Address(), x.Value.Peer, x.Value.Session, content,
		m.Origin.Received.Add(answerExpiry))
	if err == nil {
		err = e.Sign(id)
	}
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content makes no envelope").Because(err)}
	}
	out := outcome(b.sendEnvelope(ctx, m, o.Identity, e, bridge.Provenance(m)))
	out.Losses = losses
	return out
}

// chatOf is a message as a chat message that does not end its session.
func (b *Binding) chatOf(m *parley.Message, recipient string) (protocol.Message, []parley.Loss, *parley.Error) {
	content, losses := toChat(m, recipient, m.Origin.Received, false)
	content.Protocol = protocol.ChatProtocolDigest
	if err := content.Err(); err != nil {
		return content, nil, parley.Refuse(parley.InvalidContent, "the content makes no chat message").Because(err)
	}
	return content, losses, b.tooLarge(content)
}

func newQuestions(j *journal.Journal) *journal.Table[question] {
	return journal.NewTable[question](j, bucketQuestions, 0)
}
