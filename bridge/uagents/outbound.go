package uagents

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
	protocol "github.com/parley-hub/parley/uagents"
)

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	switch o.Message.Kind {
	case parley.Cancel:
		return hub.Outcome{Losses: bridge.Losses(bridge.Chat, o.Message, o.Recipient.Name)}
	case parley.Input:
		return b.sendInput(ctx, o)
	case parley.Request, parley.Notice:
		if o.Message.Origin.Protocol == Protocol && o.Message.InReplyTo.IsZero() {
			if e, err := protocol.Decode(o.Message.Origin.Raw); err == nil && e.Target == o.Identity.ID {
				return b.forward(ctx, o, e)
			}
		}
		return b.sendAsStandIn(ctx, o)
	}
	return b.reply(ctx, o)
}

// forward sends the envelope of another uAgent unchanged.
func (b *Binding) forward(ctx context.Context, o hub.Outbound, e *protocol.Envelope) hub.Outcome {
	if o.Message.Kind == parley.Notice {
		return outcome(b.sendEnvelope(ctx, o.Message, o.Identity, e, bridge.Provenance(o.Message)))
	}
	if b.usesMailbox(o.Identity, b.almanac.registered(o.Identity.ID)) {
		return hub.Outcome{Answered: true, Failure: parley.Refuse(parley.Unsupported,
			"%s", protocol.ErrMailboxSync.Text).Stated()}
	}
	endpoints, err := b.endpoints(ctx, o.Identity)
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
	out := hub.Outcome{Answered: true, Reply: &parley.Message{Schema: reply.Schema,
		Origin: parley.Origin{Protocol: Protocol, Peer: reply.Envelope.Sender, Raw: reply.Envelope.Raw(),
			Verdict: parley.Verdict{Assurance: assurance, Checks: []parley.Check{{Name: "transport", OK: true,
				Detail: detail}}}}}}
	if _, bad := reply.IsError(); bad {
		out.Failure = peerFailure(reply.Message)
		return out
	}
	parts, _, err := toParts(reply.Schema, reply.Payload)
	if err != nil {
		out.Failure = bridge.NotUnderstood(parley.Refuse(parley.HandlerFailed,
			"the agent's answer is not what its model says").Because(err), err)
		return out
	}
	if len(parts) == 0 {
		out.Failure = answersNothing()
	}
	out.Parts = parts
	return out
}

// sendAsStandIn sends a message of an agent of another protocol, signed by its stand-in;
// a request has its own session.
func (b *Binding) sendAsStandIn(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	id, err := b.standIns.speaker(ctx, m.From)
	if err != nil {
		return hub.Outcome{Err: parley.Fail(parley.Internal, err, "the hub has no key to speak with").
			With(parley.ByHub, parley.HubKey, "")}
	}
	content, losses, perr := b.encodeContent(o)
	if perr == nil {
		perr = b.tooLarge(content)
	}
	if perr != nil {
		return hub.Outcome{Err: perr}
	}
	o.Loses(ctx, losses)
	peer := o.Identity.ID
	expires := m.Expires
	session := messageID(m.Conversation)
	if m.Kind == parley.Request {
		expires = m.Deadline
		x, err := b.sessions.open(ctx, exchange{Self: id.Address(), Peer: peer, Request: m.ID, Agent: m.To,
			Scope:        o.Scope,
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
		out := outcome(b.sendEnvelope(ctx, m, o.Identity, e, bridge.Provenance(m)))
		out.Losses = losses
		return out
	}
	// An agent that does not use this registry cannot find the stand-in: it has to
	// answer on the same connection.
	endpoints, err := b.endpoints(ctx, o.Identity)
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

// tooLarge refuses a message whose envelope the hub itself would refuse.
func (b *Binding) tooLarge(m protocol.Message) *parley.Error {
	if n := base64.StdEncoding.EncodedLen(len(m.Payload)) + envelopeBytes; n > b.limit {
		return parley.Refuse(parley.TooLarge,
			"the content makes an envelope of %d bytes, more than the %d that limits.body allows; send less at once", n,
			b.limit).With(parley.ByLimit, parley.BodySize, "")
	}
	return nil
}

// envelopeBytes is an upper bound for the envelope without its payload.
const envelopeBytes = 1 << 10

// encodeContent encodes the content in a model: the model that the message names, the
// model of its skill, else as a chat message.
func (b *Binding) encodeContent(o hub.Outbound) (protocol.Message, []parley.Loss, *parley.Error) {
	m := o.Message
	model, digest, proto, perr := b.modelFor(o)
	if perr != nil {
		return protocol.Message{}, nil, perr
	}
	if digest == protocol.ChatMessageDigest {
		return b.chatOf(m, o.Recipient.Name)
	}
	text, err := toObject(m, model)
	if err != nil {
		e := parley.Refuse(parley.InvalidContent, "the content does not fit the model: %v", err).Because(err)
		if model != nil {
			if schema, serr := model.Schema(); serr == nil && len(schema) <= 2048 {
				e = parley.Refuse(parley.InvalidContent, "the content does not fit model %s: %v; expected %s",
					model.Name(), err, schema).Because(err)
			}
		}
		return protocol.Message{}, nil, e
	}
	return protocol.Message{Schema: digest, Payload: text, Protocol: proto},
		bridge.Losses(bridge.Model, m, o.Recipient.Name), nil
}

// skillOf is the skill that takes a message which names one, or none.
func skillOf(skill string, e *directory.Entry) (id string, k parley.SkillSpec, declared bool) {
	k, declared = e.SkillNamed(skill)
	if skill == "" && declared {
		skill = k.ID
	}
	return cmp.Or(skill, chatSkill), k, declared
}

// WayTo is the form in which a message of another protocol that names a skill, or none, gets to a uAgent.
func WayTo(skill string, e *directory.Entry) bridge.Way {
	if id, _, _ := skillOf(skill, e); id == chatSkill {
		return bridge.Chat
	}
	return bridge.Model
}

// modelFor chooses the model of a message; model is nil if only its digest is known.
func (b *Binding) modelFor(o hub.Outbound) (model *protocol.Model, digest, proto string, perr *parley.Error) {
	m := o.Message
	if protocol.IsSchemaDigest(m.Schema) && classOf(m.Schema) == other {
		return b.almanac.model(m.Schema), m.Schema, "", nil
	}
	skill, k, declared := skillOf(m.Skill, o.Recipient)
	if skill == chatSkill {
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
	return nil, "", "", parley.Refuse(parley.UnknownSkill,
		"agent %q declares no model %q; without a skill it is sent a chat message", o.Recipient.Name, skill)
}

// reply sends a reply to the uAgent that made the request.
func (b *Binding) reply(ctx context.Context, o hub.Outbound) hub.Outcome {
	m := o.Message
	asked, err := protocol.Decode(o.Request.Origin.Raw)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.Internal,
			"the request's envelope is not there any more").Because(err)}
	}
	if _, _, ok := b.standIns.at(asked.Target); !ok {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the hub holds no key of the agent that was asked").
			With(parley.ByHub, parley.HubKey, "")}
	}
	isChat := classOf(asked.SchemaDigest) == chat
	if m.Kind == parley.Event && m.State == parley.NeedsInput && isChat {
		return b.put(ctx, o, asked)
	}
	if m.Kind == parley.Event { // of a model, or opened by an earlier release
		way := bridge.Model
		if m.State == parley.Accepted && isChat {
			way = bridge.Chat // acknowledged with the answer at the latest
		}
		return hub.Outcome{Losses: bridge.Losses(way, m, o.Recipient.Name)}
	}
	if isChat {
		if err := b.acknowledgeFirst(recorder.Aside(ctx), m, o.Request.ID, asked); err != nil {
			return outcome(err)
		}
	}
	var content protocol.Message
	var losses []parley.Loss
	if m.Kind == parley.Failure {
		if classOf(asked.SchemaDigest) == failure {
			return hub.Outcome{} // no error answers an error
		}
		content, losses = protocol.NewErrorMessage(failureText(m.Error)),
			bridge.Losses(bridge.Chat, m, o.Recipient.Name)
	} else if content, losses, err = b.toAnswer(asked, m, o.Request); err != nil {
		content = protocol.NewErrorMessage(protocol.AsError(err).Text)
		losses = append(losses, parley.Loss{Field: "Parts", Reason: err.Error()})
	}
	if err := b.tooLarge(content); err != nil {
		content = protocol.NewErrorMessage(protocol.ErrAnswerSize.Text)
		losses = append(losses, parley.Loss{Field: "Parts", Reason: err.Text})
	}
	out := outcome(b.sendReply(ctx, m, asked, content, bridge.Provenance(m)))
	out.Losses = losses
	if out.Err == nil {
		b.forgetAck(o.Request.ID)
	}
	return out
}

// sendEnvelope delivers an envelope: to the agent's mailbox here, or to the first endpoint
// that takes it.
func (b *Binding) sendEnvelope(ctx context.Context, m *parley.Message, id parley.Identity, e *protocol.Envelope,
	provenance string) error {
	if b.usesMailbox(id, b.almanac.registered(id.ID)) {
		return b.putInMailbox(ctx, m, id.ID, e)
	}
	endpoints, err := b.endpoints(ctx, id)
	if err != nil {
		return err
	}
	_, err = b.client(provenance).Forward(ctx, endpoints, e)
	return err
}

// putInMailbox puts an envelope into a mailbox, once. m is the hub's message in it; nil
// for an acknowledgement of the hub.
func (b *Binding) putInMailbox(ctx context.Context, m *parley.Message, address string, e *protocol.Envelope) error {
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
	recorder.Sent(ctx, "", raw) // the agent fetches it
	v := &protocol.Verified{Envelope: e, Digest: digest}
	item := b.mailboxServer.Item(v)
	if kept := b.c.Now().Add(cmp.Or(b.c.Retention, 24*time.Hour)); b.c.Legacy && !item.ExpiresAt.After(kept) {
		item.ExpiresAt = kept
	}
	_, err = b.mailbox.put(ctx, b.originOf(m), address, v.ReplayKey(), item)
	return err
}

// client gives a client that sends a provenance header.
func (b *Binding) client(provenance string) *protocol.Client {
	c := &protocol.Client{HTTP: b.http, Now: b.c.Now, MaxResponse: b.limit}
	if provenance != "" {
		c.Header = http.Header{bridge.ProvenanceHeader: {provenance}}
	}
	return c
}

// toAnswer translates a reply for the sender of a request: a chat message for a chat
// message, else a message of a model that may answer. For a request that the responder
// declares, the responder's models come first; for another request, the models of the
// requester's registration. Models of other agents count only if these are enrolled.
func (b *Binding) toAnswer(asked *protocol.Envelope, reply, request *parley.Message) (protocol.Message, []parley.Loss,
	error) {
	if classOf(asked.SchemaDigest) == chat {
		m, losses := toChat(reply, request.From, reply.Origin.Received, true)
		m.Protocol = protocol.ChatProtocolDigest
		return m, losses, m.Err()
	}
	models := b.almanac.answers(asked.SchemaDigest, asked.Sender)
	var own []*protocol.Model // of the responder
	var standIn *protocol.Model
	declared, proto := false, ""
	if e, ok := b.c.Hub.Directory().Agent(request.To); ok {
		p := b.standIns.of(e)
		declared = p.skills[asked.SchemaDigest] != ""
		k, _ := e.SkillNamed(request.Skill)
		standIn = p.answers[k.ID]
		if standIn != nil {
			own = append(own, standIn)
			if p.manifest != nil {
				proto = p.manifest.Digest()
			}
		}
		// A responder that speaks the protocol itself names the model of its reply.
		if i, ok := e.Identity(Protocol); ok && !i.StandIn && classOf(reply.Schema) == other {
			if m := b.almanac.modelOf(reply.Schema, i.ID, asked.Sender); m != nil {
				own, declared = append([]*protocol.Model{m}, own...), true
			}
		}
	}
	if declared {
		models = append(own, models...)
	} else {
		models = append(models, own...)
	}
	last := errors.New("no model is declared for it")
	for _, model := range models {
		text, err := toObject(reply, model)
		if err == nil {
			m := protocol.Message{Schema: model.Digest(), Payload: text}
			if model == standIn {
				m.Protocol = proto
			}
			return m, bridge.Losses(bridge.Model, reply, request.From), nil
		}
		last = err
	}
	if len(models) == 0 {
		// The model of most examples carries any text.
		text := reply.Text()
		if text == "" {
			for _, p := range reply.Parts {
				if p.IsJSON() {
					text = compact(p.Data)
				}
			}
		}
		m := protocol.ModelOf[textMessage]().Message(textMessage{text})
		return m, bridge.Losses(bridge.Model, reply, request.From), m.Err()
	}
	return protocol.Message{}, nil,
		protocol.ErrHandler.Saying("the answer fits none of the models that may answer").Because(last)
}

// textMessage is class Message(message: str), which most examples use.
type textMessage struct {
	Message string `json:"message"`
}

// ModelDoc implements [protocol.Documented].
func (textMessage) ModelDoc() (string, string) { return "Message", "" }

// sendReply answers an envelope with a message, from its target to its sender in its
// session. of is the hub's message that the answer carries; nil: none.
func (b *Binding) sendReply(ctx context.Context, of *parley.Message, to *protocol.Envelope, m protocol.Message,
	provenance string) error {
	_, id, ok := b.standIns.at(to.Target)
	if !ok {
		return fmt.Errorf("the hub holds no key of %s any more", to.Target)
	}
	e, err := protocol.NewEnvelope(id.Address(), to.Sender, to.Session, m, b.c.Now().Add(answerExpiry))
	if err != nil {
		return err
	}
	if err := e.Sign(id); err != nil {
		return err
	}
	identity, ok := b.identity(to.Sender)
	if !ok {
		identity = parley.Identity{Protocol: Protocol, ID: to.Sender}
	}
	return b.sendEnvelope(ctx, of, identity, e, provenance)
}

// endpoints finds the endpoints of an agent.
func (b *Binding) endpoints(ctx context.Context, id parley.Identity) (list []protocol.Endpoint, err error) {
	if id.URL != "" {
		return []protocol.Endpoint{{URL: id.URL, Weight: 1}}, nil
	}
	if r := b.almanac.registered(id.ID); r != nil {
		for _, e := range r.Endpoints {
			if b.isOwnPath(e.URL, pathProxy) {
				if p := b.accounts.of(id.ID); p != nil && p.URL != "" {
					e.URL = p.URL
				}
			}
			if b.elsewhere(e) {
				list = append(list, e)
			}
		}
		if len(list) > 0 {
			return list, nil
		}
	}
	if b.upstream != nil {
		_, list, err = b.upstream.Resolve(ctx, id.ID)
		return list, err
	}
	return nil, protocol.ErrUnresolved.Because(errors.New("it is not registered here"))
}

// routable reports, without a request to another registry, whether an agent may have an
// endpoint or a mailbox.
func (b *Binding) routable(id parley.Identity) bool {
	r := b.almanac.registered(id.ID)
	return id.URL != "" || r != nil && len(r.Endpoints) > 0 || b.mailbox.has(id.ID) || b.upstream != nil
}

// usesMailbox reports whether an agent fetches its messages here.
func (b *Binding) usesMailbox(id parley.Identity, r *protocol.Record) bool {
	if !b.mailbox.has(id.ID) {
		return false
	}
	if id.URL != "" {
		return b.isOwnPath(id.URL, pathMailbox)
	}
	if r == nil || len(r.Endpoints) == 0 {
		return true
	}
	return slices.ContainsFunc(r.Endpoints, func(e protocol.Endpoint) bool {
		return strings.HasSuffix(e.URL, pathMailbox)
	})
}
