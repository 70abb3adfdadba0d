package uagents

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// What record leaves for handle.
type (
	// waiting is a request whose answer goes into the HTTP response.
	waiting struct{ call *hub.Call }
	// acknowledging is a chat message that was taken, whose acknowledgement goes
	// into the HTTP response. place is nil where no answer follows that would
	// wait for it.
	acknowledging struct{ place *ack }
)

// sessionTries is for how many requests of one session, each newer than the one
// before, a reply is tried.
const sessionTries = 4

// record makes an envelope durable: the servers call it once for each envelope
// whose sender was authenticated, or is well-formed and unsigned.
func (b *Binding) record(ctx context.Context, r *protocol.Request, refusal *protocol.Error) (bool, error) {
	now := b.c.Now()
	from := b.sender(r)
	if r.Verdict.Assurance == protocol.Signed {
		b.almanac.count.use(r.Sender)
		b.proved(ctx, r.Sender)
	}
	to, standIn := b.nameAt(r.Target)
	key := journal.Key{ID: r.ReplayKey(), Sender: from, Until: bridge.KeyEnd(r.Until)}
	if refusal != nil {
		return b.recordRefusal(ctx, r, from, to, key, refusal)
	}
	if !standIn {
		return b.recordNative(ctx, r, from, to, key, now)
	}
	talk, taken, prior, err := b.recordInSession(ctx, r, key, now)
	if taken || err != nil {
		return prior, err
	}
	s := hub.Submission{Scope: scope(r.Target), Key: key, Foreign: r.Session, Message: toMessage(r, parley.Request, from, to, now)}
	m := s.Message
	if r.Verdict.Assurance == protocol.Signed {
		m.Trace.Parent = b.sessions.trace(r.Sender, r.Session)
	}
	switch classOf(r.SchemaDigest) {
	case acknowledgement:
		r.Handled = true
		return false, nil // it has no effect, so that there is nothing to keep
	case failure:
		s.Refused = parley.Refuse(parley.Conflict, "the error answers nothing that this hub asked")
		_, err := b.c.Hub.Accept(ctx, s)
		var prior *hub.Prior
		if errors.As(err, &prior) || parley.CodeOf(err) == parley.Conflict {
			return prior != nil, nil // it is dropped, and answered as if it was taken
		}
		return false, problem(err)
	case chat:
		parts, extension, err := partsOf(r)
		if err != nil {
			return false, protocol.AsError(err)
		}
		c, err := r.Chat()
		if err != nil {
			return false, protocol.AsError(err)
		}
		m.Sent = c.Timestamp.Time
		if len(parts) == 0 {
			// A session that begins or ends: there is nothing to deliver.
			fresh, err := b.talks.Seen(ctx, r.ReplayKey(), bridge.KeyEnd(r.Until))
			if err == nil && fresh {
				b.took(r, acknowledging{})
			}
			return !fresh && err == nil, err
		}
		m.Parts = parts
		m.Extensions = map[string]json.RawMessage{Protocol: extension}
		if talk || c.Ends() {
			m.Kind = parley.Notice
		}
	default:
		m.Parts, _, _ = partsOf(r)
		m.Skill = b.skillOf(to, r)
		if talk {
			m.Kind = parley.Notice
		}
	}
	return b.submit(ctx, r, s, now)
}

// submit hands a message for a stand-in to the hub: it waits for the answer
// where the sender does, and cannot be reached otherwise.
func (b *Binding) submit(ctx context.Context, r *protocol.Request, s hub.Submission, now time.Time) (bool, error) {
	m := s.Message
	isChat := classOf(r.SchemaDigest) == chat
	b.meet(ctx, r)
	reach := b.reaches(r)
	if m.Kind == parley.Request && r.Sync && (!isChat || !reach) {
		m.Deadline = now.Add(30 * time.Second)
		if !m.Expires.IsZero() && m.Expires.Before(m.Deadline) && m.Expires.After(now) {
			m.Deadline = m.Expires
		}
		call, err := b.c.Hub.Begin(ctx, s)
		if err == nil {
			r.State = waiting{call}
		}
		return answerTo(err)
	}
	if m.Kind == parley.Notice && r.Sync && !isChat {
		r.State = errors.New("a notice is not answered")
	}
	var a acknowledging
	if isChat && m.Kind == parley.Request && reach {
		// The place is taken before the answer can be there.
		id, err := parley.NewID(now, rand.Reader)
		if err != nil {
			return false, err
		}
		m.ID = id
		a.place = b.newAck(id)
	}
	_, err := b.c.Hub.Accept(ctx, s)
	switch {
	case err != nil && a.place != nil:
		a.place.end(false)
		b.forgetAck(m.ID)
	case err == nil && isChat:
		b.took(r, a)
	}
	return answerTo(err)
}

// recordRefusal records what the protocol's own checks refused. What nobody
// proved leaves no trace, nor does a target that may be here later.
func (b *Binding) recordRefusal(ctx context.Context, r *protocol.Request, from, to string, key journal.Key, refusal *protocol.Error) (bool, error) {
	if r.Verdict.Assurance != protocol.Signed || to == "" {
		return false, nil
	}
	if errors.Is(refusal, protocol.ErrStale) {
		key.Until = time.Time{} // it stays refused: the journal's window bounds how often that is recorded
	}
	m := toMessage(r, parley.Notice, from, to, b.c.Now())
	_, err := b.c.Hub.Accept(ctx, hub.Submission{Scope: scope(r.Target), Key: key, Foreign: r.Session, Message: m, Refused: toRefusal(refusal)})
	var prior *hub.Prior
	if !errors.As(err, &prior) && parley.CodeOf(err) == refusalCode(refusal) {
		return false, nil // the server tells why
	}
	return answerTo(err)
}

// recordNative takes an envelope for an agent that speaks uAgents itself. It
// will be forwarded as it is; only one who waits is answered by way of the
// hub.
func (b *Binding) recordNative(ctx context.Context, r *protocol.Request, from, to string, key journal.Key, now time.Time) (bool, error) {
	if to == "" {
		return false, protocol.ErrUnknownAgent
	}
	m := toMessage(r, parley.Notice, from, to, now)
	if r.Verdict.Assurance == protocol.Signed {
		m.Trace.Parent = b.sessions.trace(r.Sender, r.Session)
	}
	var err error
	if m.Parts, _, err = partsOf(r); err != nil {
		return false, protocol.AsError(err)
	}
	if b.c.Legacy && !m.Expires.After(now) {
		m.Expires = time.Time{}
	}
	s := hub.Submission{Scope: scope(r.Target), Key: key, Foreign: r.Session, Message: m, Fits: true}
	if !r.Sync {
		_, err = b.c.Hub.Accept(ctx, s)
		return answerTo(err)
	}
	m.Kind = parley.Request
	m.Deadline = now.Add(30 * time.Second)
	if !m.Expires.IsZero() && m.Expires.Before(m.Deadline) {
		m.Deadline = m.Expires
	}
	call, err := b.c.Hub.Begin(ctx, s)
	if err == nil {
		r.State = waiting{call}
	}
	return answerTo(err)
}

// answerTo is what the server does after the hub took a message, or did not. An
// envelope that was refused before is answered as it was then.
func answerTo(err error) (prior bool, _ error) {
	var p *hub.Prior
	switch {
	case err == nil:
		return false, nil
	case !errors.As(err, &p):
		return false, problem(err)
	case p.Refused == nil:
		return true, nil
	}
	if first := firstRefusal(p.Refused); first != nil {
		return false, first
	}
	return false, problem(p.Refused)
}

// seen is [answerTo] for what the journal has.
func (b *Binding) seen(ctx context.Context, p *journal.Prior) (prior bool, _ error) {
	if !p.Refused {
		return true, nil
	}
	record, err := b.c.Journal.Read(ctx, p.Position)
	if err != nil {
		return false, problem(err)
	}
	return answerTo(&hub.Prior{Of: *p, Refused: record.Refused})
}

// problem says the hub's refusal. A sender that waits reads it in an
// ErrorMessage, unless the same envelope may be taken later.
func problem(err error) error {
	out := toError(parley.AsError(err))
	if out.Retryable {
		return out
	}
	return protocol.ErrorAnswer{Err: out}
}

// firstRefusal says a recorded refusal of the protocol's own checks as the
// server said it; nil: the hub refused.
func firstRefusal(e *parley.Error) error {
	for _, check := range []struct {
		err  *protocol.Error
		said bool // in an ErrorMessage, to a sender that waits
	}{
		{protocol.ErrStale, true}, {protocol.ErrContent, true}, {protocol.ErrVerifiedOnly, true},
		{protocol.ErrHorizon, false}, {protocol.ErrAmbiguous, false}, {protocol.ErrSchemaDigest, false},
		{protocol.ErrPayload, false}, {protocol.ErrUnknownAgent, false},
	} {
		if e.Code != refusalCode(check.err) || e.Text != check.err.Text && !strings.HasPrefix(e.Text, check.err.Text+": ") {
			continue
		}
		if first := check.err.Saying(e.Text); check.said {
			return protocol.ErrorAnswer{Err: first}
		} else {
			return first
		}
	}
	return nil
}

// recordInSession takes what an agent says in a session that the hub opened.
// taken is false where it says it in another (talk false), or in one that was
// answered (talk true).
func (b *Binding) recordInSession(ctx context.Context, r *protocol.Request, key journal.Key, now time.Time) (talk, taken, prior bool, err error) {
	if r.Verdict.Assurance != protocol.Signed {
		return false, false, false, nil
	}
	var asked parley.ID
	for range sessionTries {
		x, done, err := b.sessions.find(ctx, r.Target, r.Sender, r.Session)
		if err != nil {
			return talk, true, false, problem(err)
		}
		if x == nil {
			return talk, false, false, nil
		}
		talk = true
		if p, seen := b.c.Journal.Seen(x.Scope, key.ID); seen {
			prior, err := b.seen(ctx, p)
			return talk, true, prior, err
		}
		if x.Request == asked {
			c := classOf(r.SchemaDigest)
			return talk, c == acknowledgement || c == failure, false, nil // these come too late
		}
		if done {
			return talk, false, false, nil
		}
		if taken, prior, err = b.recordReply(ctx, r, x, key, now); taken || err != nil {
			return talk, true, prior, err
		}
		// That one was answered. Another hub may have asked in the same session since.
		asked = x.Request
	}
	return talk, false, false, nil
}

// recordReply takes what an agent says in the session of a request that the
// hub sent it. taken is false when the request was answered before.
func (b *Binding) recordReply(ctx context.Context, r *protocol.Request, x *exchange, key journal.Key, now time.Time) (taken, prior bool, err error) {
	m := toMessage(r, parley.Response, x.Agent, "", now)
	m.InReplyTo, m.Expires = x.Request, time.Time{}
	switch classOf(r.SchemaDigest) {
	case acknowledgement:
		m.Kind, m.State = parley.Event, parley.Accepted
	case failure:
		m.Kind, m.Error = parley.Failure, peerFailure(r.Content)
	default:
		var extension []byte
		m.Parts, extension, err = partsOf(r)
		if err != nil {
			return true, false, protocol.AsError(err)
		}
		if extension != nil {
			m.Extensions = map[string]json.RawMessage{Protocol: extension}
		}
		if len(m.Parts) == 0 {
			m.Kind, m.Error = parley.Failure, answersNothing()
		}
	}
	_, err = b.c.Hub.Accept(ctx, hub.Submission{Scope: x.Scope, Key: key, Message: m})
	var p *hub.Prior
	switch {
	case errors.As(err, &p):
		prior, err = answerTo(err)
		return true, prior, err
	case parley.CodeOf(err) == parley.Conflict:
		b.sessions.answered(x.Request)
		return false, false, nil
	case err != nil:
		return true, false, problem(err)
	}
	if m.Kind.Terminal() {
		b.sessions.answered(x.Request)
	}
	if classOf(r.SchemaDigest) == chat {
		b.took(r, acknowledging{})
	} else if !r.Sync {
		r.Handled = true
	}
	return true, false, nil
}

// peerFailure is the failure that an ErrorMessage says.
func peerFailure(m protocol.Message) *parley.Error {
	text, _ := m.IsError()
	switch text {
	case protocol.ErrTimeout.Text:
		return parley.Refuse(parley.TimedOut, "the agent did not answer in time")
	case protocol.ErrVerifiedOnly.Text:
		return parley.Refuse(parley.Unauthenticated, "the agent answered: %s", text)
	}
	if r := []rune(text); len(r) > 500 {
		text = string(r[:500]) + "…"
	}
	return parley.Refuse(parley.HandlerFailed, "the agent answered: %s", text)
}

// meet takes a sender into the directory that could be answered by way of
// another registry.
func (b *Binding) meet(ctx context.Context, r *protocol.Request) {
	if b.upstream == nil || r.Verdict.Assurance != protocol.Signed {
		return
	}
	if _, ok := b.c.Hub.Directory().Lookup(Protocol, r.Sender); ok {
		return
	}
	if err := b.almanac.count.keep(r.Sender, policy.SourceOf(ctx), 0); err == nil {
		b.enter(ctx, &protocol.Record{Address: r.Sender})
	}
	b.weigh(r.Sender)
}

// reaches reports whether the hub can send the sender an envelope of its own.
func (b *Binding) reaches(r *protocol.Request) bool {
	if r.Verdict.Assurance != protocol.Signed {
		return false
	}
	e, ok := b.c.Hub.Directory().Lookup(Protocol, r.Sender)
	if !ok {
		return false
	}
	for _, i := range e.Identities {
		if i.Protocol == Protocol && i.ID == r.Sender && !i.StandIn {
			return b.routable(i)
		}
	}
	return false
}

// signer is the address whose registration counts for a request: that of its
// sender, if it is proved.
func signer(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return ""
	}
	return r.Sender
}

// skillOf finds which skill of an agent a model asks for: the one that
// declares it, the one that bears its name, else the default skill. The name is
// that of a model which the sender itself published, or an enrolled agent.
func (b *Binding) skillOf(name string, r *protocol.Request) string {
	digest := r.SchemaDigest
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok {
		return ""
	}
	if id := b.standIns.of(e).skills[digest]; id != "" {
		return id
	}
	if m := b.almanac.modelOf(digest, signer(r)); m != nil {
		for _, k := range e.Skills {
			if class := className(k.ID); m.Name() == k.ID || m.Name() == class || m.Name() == class+"Request" {
				return k.ID
			}
		}
	}
	return ""
}

// handle answers an envelope that was recorded.
func (b *Binding) handle(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
	switch st := r.State.(type) {
	case waiting:
		return b.await(ctx, r, st.call)
	case acknowledging:
		m, err := b.acknowledged(r)
		st.place.end(err == nil)
		return protocol.Answer(m), err
	case error:
		return protocol.Response{}, st
	}
	return protocol.Response{}, nil
}

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

// await waits for the reply to a request whose sender waits too.
func (b *Binding) await(ctx context.Context, r *protocol.Request, call *hub.Call) (protocol.Response, error) {
	reply, err := call.Reply(ctx)
	if err != nil {
		return protocol.Response{}, toError(parley.AsError(err)).Saying(failureText(parley.AsError(err)))
	}
	// Another agent's own answer, with or without its signature, stays as it
	// is.
	if reply.Origin.Protocol == Protocol && r.Agent.Identity == nil {
		if e, err := protocol.Decode(reply.Origin.Raw); err == nil && e.Sender == r.Target && e.Target == r.Sender && e.Session == r.Session {
			return protocol.Response{Envelope: e}, nil
		}
	}
	if reply.Kind == parley.Failure {
		return protocol.Response{}, toError(reply.Error).Saying(failureText(reply.Error))
	}
	m, _, err := b.toAnswer(r.Envelope, reply, call.Message())
	if err != nil {
		return protocol.Response{}, err
	}
	answer := protocol.Answer(m)
	answer.Header = http.Header{bridge.ProvenanceHeader: {bridge.Provenance(reply)}}
	return answer, nil
}

// toAnswer says a reply in the terms of the envelope that asked: a chat
// message to one; else a model that may answer it. For a request that the
// responder itself declares, that is the responder's own. For another, what the
// sender's own registration says of it comes first. What others published does
// not count, unless they are enrolled.
func (b *Binding) toAnswer(asked *protocol.Envelope, reply, request *parley.Message) (protocol.Message, []parley.Loss, error) {
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
		skill := request.Skill
		if skill == "" {
			if k, ok := e.SkillNamed(""); ok {
				skill = k.ID
			}
		}
		if standIn = p.answers[skill]; standIn != nil {
			own = append(own, standIn)
			if p.manifest != nil {
				proto = p.manifest.Digest()
			}
		}
		// One that speaks the protocol itself says which model its reply is.
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
		// The model that most examples use says any text.
		text := reply.Text()
		if text == "" {
			for _, p := range reply.Parts {
				if p.IsJSON() {
					text = compact(p.Data)
				}
			}
		}
		m := protocol.ModelOf[plain]().Message(plain{text})
		return m, bridge.Losses(bridge.Model, reply, request.From), m.Err()
	}
	return protocol.Message{}, nil, protocol.ErrHandler.Saying("the answer fits none of the models that may answer").Because(last)
}

// plain is class Message(message: str), which most examples use.
type plain struct {
	Message string `json:"message"`
}

// ModelDoc implements [protocol.Documented].
func (plain) ModelDoc() (string, string) { return "Message", "" }

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

// say sends a message in answer to an envelope, from its target to its sender
// in its session. of is the hub's message for which it is sent; nil: none.
func (b *Binding) say(ctx context.Context, of *parley.Message, to *protocol.Envelope, m protocol.Message,
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
	identity := parley.Identity{Protocol: Protocol, ID: to.Sender}
	if entry, ok := b.c.Hub.Directory().Lookup(Protocol, to.Sender); ok {
		for _, i := range entry.Identities {
			if i.Protocol == Protocol && i.ID == to.Sender {
				identity = i
			}
		}
	}
	return b.bring(ctx, of, identity, e, provenance)
}
