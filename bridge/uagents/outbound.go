package uagents

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	protocol "github.com/parley-hub/parley/uagents"
)

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	switch o.Message.Kind {
	case parley.Cancel:
		return hub.Outcome{Losses: bridge.Losses(bridge.Chat, o.Message, o.Recipient.Name)}
	case parley.Request, parley.Notice:
		if o.Message.Origin.Protocol == Protocol && o.Message.InReplyTo.IsZero() {
			if e, err := protocol.Decode(o.Message.Origin.Raw); err == nil && e.Target == o.Identity.ID {
				return b.forward(ctx, o, e)
			}
		}
		return b.ask(ctx, o)
	}
	return b.reply(ctx, o)
}

// forward passes the envelope of another uAgent on, as it is.
func (b *Binding) forward(ctx context.Context, o hub.Outbound, e *protocol.Envelope) hub.Outcome {
	if o.Message.Kind == parley.Notice {
		return outcome(b.bring(ctx, o.Message, o.Identity, e, bridge.Provenance(o.Message)))
	}
	if b.usesMailbox(o.Identity, b.almanac.registered(o.Identity.ID)) {
		return hub.Outcome{Answered: true, Failure: parley.Refuse(parley.Unsupported, "%s", protocol.ErrMailboxSync.Text)}
	}
	endpoints, _, err := b.endpoints(ctx, o.Identity)
	if err != nil {
		return outcome(err)
	}
	reply, err := b.client(bridge.Provenance(o.Message)).ForwardSync(ctx, endpoints, e)
	if reply == nil {
		return outcome(err)
	}
	return b.answered(reply)
}

// answered is the outcome of a call whose answer came with the HTTP response.
func (b *Binding) answered(reply *protocol.Reply) hub.Outcome {
	assurance, detail := parley.Session, "the answer is not signed; the connection answers for it"
	if reply.Assurance == protocol.Signed {
		assurance, detail = parley.Signed, ""
	}
	out := hub.Outcome{Answered: true, Reply: &parley.Message{Schema: reply.Schema, Origin: parley.Origin{Protocol: Protocol, Peer: reply.Envelope.Sender, Raw: reply.Envelope.Raw(),
		Verdict: parley.Verdict{Assurance: assurance, Checks: []parley.Check{{Name: "transport", OK: true, Detail: detail}}}}}}
	if _, bad := reply.IsError(); bad {
		out.Failure = peerFailure(reply.Message)
		return out
	}
	parts, _, err := toParts(reply.Schema, reply.Payload)
	if err != nil {
		out.Failure = parley.Refuse(parley.HandlerFailed, "the agent's answer is not what its model says").Because(err)
		return out
	}
	if len(parts) == 0 {
		out.Failure = answersNothing()
	}
	out.Parts = parts
	return out
}

// ask says a message of an agent that has no key of its own here: as its
// stand-in, in a session of its own where an answer is expected.
func (b *Binding) ask(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	id, err := b.standIns.speaker(ctx, m.From)
	if err != nil {
		return hub.Outcome{Err: parley.Fail(parley.Internal, err, "the hub has no key to speak with")}
	}
	content, losses, perr := b.compose(o)
	if perr == nil {
		perr = b.tooLarge(content)
	}
	if perr != nil {
		return hub.Outcome{Err: perr}
	}
	peer := o.Identity.ID
	expires := m.Expires
	session := messageID(m.Conversation)
	if m.Kind == parley.Request {
		expires = m.Deadline
		x, err := b.sessions.open(ctx, exchange{Self: id.Address(), Peer: peer, Request: m.ID, Agent: m.To, Scope: o.Scope,
			Conversation: m.Conversation, Until: m.Deadline.Add(24 * time.Hour), Trace: m.Trace.Parent})
		if err != nil {
			return hub.Outcome{Err: parley.AsError(err), Wait: time.Second}
		}
		session = x.Session
	}
	if expires.IsZero() {
		expires = m.Origin.Received.Add(answerExpiry)
	}
	e, err := protocol.NewEnvelope(id.Address(), peer, session, content, expires.Add(time.Second-1))
	if err == nil {
		err = e.Sign(id)
	}
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content makes no envelope").Because(err)}
	}
	r := b.almanac.registered(peer)
	mailbox := b.usesMailbox(o.Identity, r)
	if m.Kind == parley.Notice || mailbox || r != nil {
		out := outcome(b.bring(ctx, m, o.Identity, e, bridge.Provenance(m)))
		out.Losses = losses
		return out
	}
	// Who does not use this registry does not find the stand-in: its answer
	// has to come on the same connection.
	endpoints, _, err := b.endpoints(ctx, o.Identity)
	if err != nil {
		return outcome(err)
	}
	reply, err := b.client(bridge.Provenance(m)).ForwardSync(ctx, endpoints, e)
	if reply == nil {
		out := outcome(err)
		out.Losses = losses
		return out
	}
	if classOf(reply.Schema) == acknowledgement {
		if err := o.Event(parley.Accepted); err != nil {
			b.c.Logger.Debug("an acknowledgement could not be recorded", "message", m.ID, "error", err)
		}
		return hub.Outcome{Losses: losses}
	}
	b.sessions.answered(m.ID)
	out := b.answered(reply)
	out.Losses = losses
	return out
}

// tooLarge refuses a message whose envelope the hub itself would not take.
func (b *Binding) tooLarge(m protocol.Message) *parley.Error {
	if n := base64.StdEncoding.EncodedLen(len(m.Payload)) + envelopeBytes; n > b.limit {
		return parley.Refuse(parley.TooLarge,
			"the content makes an envelope of %d bytes, more than the %d that limits.body allows; send less at once", n, b.limit)
	}
	return nil
}

// envelopeBytes is more than an envelope has beside its payload.
const envelopeBytes = 1 << 10

// compose says the content in the model that the recipient wants: the one
// that the message names, the one of the skill that is called, else a chat.
func (b *Binding) compose(o hub.Outbound) (protocol.Message, []parley.Loss, *parley.Error) {
	m := o.Message
	model, digest, proto, perr := b.modelFor(o)
	if perr != nil {
		return protocol.Message{}, nil, perr
	}
	if digest == protocol.ChatMessageDigest {
		out, losses := toChat(m, o.Recipient.Name, m.Origin.Received, false)
		out.Protocol = protocol.ChatProtocolDigest
		if err := out.Err(); err != nil {
			return out, nil, parley.Refuse(parley.InvalidContent, "the content makes no chat message").Because(err)
		}
		return out, losses, nil
	}
	text, err := toObject(m, model)
	if err != nil {
		e := parley.Refuse(parley.InvalidContent, "the content does not fit the model: %v", err).Because(err)
		if model != nil {
			if schema, serr := model.Schema(); serr == nil && len(schema) <= 2048 {
				e = parley.Refuse(parley.InvalidContent, "the content does not fit model %s: %v; expected %s", model.Name(), err, schema).Because(err)
			}
		}
		return protocol.Message{}, nil, e
	}
	return protocol.Message{Schema: digest, Payload: text, Protocol: proto}, bridge.Losses(bridge.Model, m, o.Recipient.Name), nil
}

// modelFor chooses the model. It is nil where only its digest is known.
func (b *Binding) modelFor(o hub.Outbound) (model *protocol.Model, digest, proto string, perr *parley.Error) {
	m := o.Message
	if protocol.IsSchemaDigest(m.Schema) && classOf(m.Schema) == other {
		return b.almanac.model(m.Schema), m.Schema, "", nil
	}
	skill := m.Skill
	k, declared := o.Recipient.SkillNamed(skill)
	if skill == "" && declared && k.ID != chatSkill {
		skill = k.ID
	}
	if skill == "" || skill == chatSkill {
		return nil, protocol.ChatMessageDigest, protocol.ChatProtocolDigest, nil
	}
	if r := b.almanac.registered(o.Identity.ID); r != nil {
		for _, p := range r.Protocols {
			if known := b.almanac.protocol(p); known != nil {
				if request, model := known.requestOf(skill); model != nil {
					return model, request, p, nil
				}
			}
		}
	}
	if protocol.IsSchemaDigest(skill) {
		return b.almanac.model(skill), skill, "", nil
	}
	if declared {
		if model := derived(k, k.Input, "Request"); model != nil {
			return model, model.Digest(), "", nil
		}
	}
	return nil, "", "", parley.Refuse(parley.UnknownSkill, "agent %q declares no model %q; without a skill it is sent a chat message", o.Recipient.Name, skill)
}

// reply brings what was said about a request to the uAgent that made it.
func (b *Binding) reply(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	asked, err := protocol.Decode(o.Request.Origin.Raw)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the request's envelope is not there any more").Because(err)}
	}
	if _, _, ok := b.standIns.at(asked.Target); !ok {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the hub holds no key of the agent that was asked")}
	}
	isChat := classOf(asked.SchemaDigest) == chat
	if m.Kind == parley.Event { // opened by an earlier release
		way := bridge.Model
		if m.State == parley.Accepted && isChat {
			way = bridge.Chat // the acknowledgement comes with the answer, if it has not come
		}
		return hub.Outcome{Losses: bridge.Losses(way, m, o.Recipient.Name)}
	}
	if isChat {
		if err := b.acknowledgeFirst(ctx, m, o.Request.ID, asked); err != nil {
			return outcome(err)
		}
	}
	var content protocol.Message
	var losses []parley.Loss
	if m.Kind == parley.Failure {
		if classOf(asked.SchemaDigest) == failure {
			return hub.Outcome{} // no error answers an error
		}
		content, losses = protocol.NewErrorMessage(failureText(m.Error)), bridge.Losses(bridge.Chat, m, o.Recipient.Name)
	} else if content, losses, err = b.toAnswer(asked, m, o.Request); err != nil {
		content = protocol.NewErrorMessage(protocol.AsError(err).Text)
		losses = append(losses, parley.Loss{Field: "Parts", Reason: err.Error()})
	}
	if err := b.tooLarge(content); err != nil {
		content = protocol.NewErrorMessage(protocol.ErrAnswerSize.Text)
		losses = append(losses, parley.Loss{Field: "Parts", Reason: err.Text})
	}
	out := outcome(b.say(ctx, m, asked, content, bridge.Provenance(m)))
	out.Losses = losses
	if out.Err == nil {
		b.forgetAck(o.Request.ID)
	}
	return out
}

// bring hands an envelope to its agent: to its mailbox here, or to the first of
// its endpoints that takes it.
func (b *Binding) bring(ctx context.Context, m *parley.Message, id parley.Identity, e *protocol.Envelope,
	provenance string) error {
	if b.usesMailbox(id, b.almanac.registered(id.ID)) {
		return b.store(ctx, m, id.ID, e)
	}
	endpoints, _, err := b.endpoints(ctx, id)
	if err != nil {
		return err
	}
	_, err = b.client(provenance).Forward(ctx, endpoints, e)
	return err
}

// store puts an envelope into a mailbox, once. m is the hub's message that the
// envelope carries; nil for the hub's own acknowledgement.
func (b *Binding) store(ctx context.Context, m *parley.Message, address string, e *protocol.Envelope) error {
	digest, err := e.Digest()
	if err != nil {
		return err
	}
	raw := e.Raw()
	if raw == nil {
		if raw, err = e.Encode(); err != nil {
			return err
		}
		if e, err = protocol.Decode(raw); err != nil {
			return err
		}
	}
	item := b.boxes.Item(&protocol.Verified{Envelope: e})
	if now := b.c.Now(); b.c.Legacy && !item.ExpiresAt.After(now.Add(b.retention())) {
		item.ExpiresAt = now.Add(b.retention())
	}
	_, err = b.mailbox.put(ctx, b.originOf(m), address, e.Sender+" "+hex.EncodeToString(digest[:]), item)
	return err
}

func (b *Binding) retention() time.Duration {
	if b.c.Retention == 0 {
		return 24 * time.Hour
	}
	return b.c.Retention
}

// client is a client that tells where its message comes from.
func (b *Binding) client(provenance string) *protocol.Client {
	c := &protocol.Client{HTTP: b.http, Now: b.c.Now, MaxResponse: b.limit}
	if provenance != "" {
		c.Header = http.Header{bridge.ProvenanceHeader: {provenance}}
	}
	return c
}

// outcome sorts what an attempt ended with.
func outcome(err error) hub.Outcome {
	if err == nil {
		return hub.Outcome{}
	}
	e := protocol.AsError(err)
	var busy *protocol.StatusError
	if errors.As(err, &busy) && busy.Status == http.StatusTooManyRequests {
		return hub.Outcome{Err: parley.Fail(parley.RateLimited, err, "the agent asks to come back later"), Wait: max(busy.After, time.Second)}
	}
	switch {
	case errors.Is(e, protocol.ErrFull), errors.Is(e, protocol.ErrBusy), errors.Is(e, protocol.ErrRate):
		full := parley.Fail(parley.Unavailable, err, "the agent's mailbox is full")
		return hub.Outcome{Err: full, Wait: max(e.After, 5*time.Second)}
	case errors.Is(e, protocol.ErrTimeout):
		return hub.Outcome{Err: parley.Fail(parley.TimedOut, err, "the agent did not answer in time"), Unknown: true}
	case errors.Is(e, protocol.ErrResponse):
		return hub.Outcome{Err: parley.Refuse(parley.Unavailable, "the agent answered something else").Because(err)}
	}
	return hub.Outcome{
		Err: parley.Fail(parley.Unavailable, err, "the agent cannot be reached"), Unknown: errors.Is(err, protocol.ErrOutcomeUnknown),
	}
}
