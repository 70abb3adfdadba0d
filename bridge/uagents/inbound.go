package uagents

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// sessionTries is the number of requests of one session, each newer than the last, for
// which recordInSession tries to record a reply.
const sessionTries = 4

// accept implements [protocol.Server.Accept]: it makes an envelope durable. For a waiting
// sender it sets the handler.
func (b *Binding) accept(ctx context.Context, r *protocol.Request) (bool, error) {
	if r.Refusal == nil {
		agent, err := b.resolve(ctx, r.Target)
		if err == nil {
			err = r.Admit(agent)
		}
		if err != nil {
			return false, err
		}
	}
	if r.Sync {
		r.Handler = answerNone
	}
	return b.record(ctx, r)
}

// acceptMail is accept for the path of the mailboxes.
func (b *Binding) acceptMail(ctx context.Context, r *protocol.Request) (bool, error) {
	if r.Refusal == nil {
		var agent *protocol.Agent
		if b.mailbox.has(r.Target) {
			agent = b.agent(r.Target)
		}
		if err := r.Admit(agent); err != nil {
			return false, err
		}
	}
	return b.record(ctx, r)
}

func answerNone(context.Context, *protocol.Request) (protocol.Response, error) {
	return protocol.Response{}, nil
}

// record makes an admitted or refused envelope durable.
func (b *Binding) record(ctx context.Context, r *protocol.Request) (bool, error) {
	now := b.c.Now()
	from := b.sender(r)
	if r.Verdict.Assurance == protocol.Signed {
		b.almanac.budget.Use(r.Sender)
		b.noteProof(ctx, r.Sender)
	}
	to, standIn := b.nameAt(r.Target)
	key := journal.Key{ID: r.ReplayKey(), Sender: from, Until: bridge.KeyEnd(r.Until)}
	if r.Refusal != nil {
		return b.recordRefusal(ctx, r, from, to, key)
	}
	if !standIn {
		return b.recordNative(ctx, r, from, to, key, now)
	}
	talk, taken, prior, err := b.recordInSession(ctx, r, key, now)
	if taken || err != nil {
		return prior, err
	}
	s := hub.Submission{Scope: scope(r.Target), Key: key, Foreign: r.Session,
		Message: toMessage(r, parley.Request, from, to, now)}
	m := s.Message
	m.Trace.Parent = b.sessions.trace(signer(r), r.Session)
	switch classOf(r.SchemaDigest) {
	case acknowledgement:
		return false, nil // no effect: nothing to record
	case failure:
		s.Refused = parley.Refuse(parley.Conflict, "the error answers nothing that this hub asked")
		_, err := b.c.Hub.Accept(ctx, s)
		var prior *hub.Prior
		if errors.As(err, &prior) || parley.CodeOf(err) == parley.Conflict {
			return prior != nil, nil // the envelope is dropped, and answered as if it were recorded
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
			// The start or end of a session: there is nothing to deliver.
			fresh, err := b.seenChats.Seen(ctx, r.ReplayKey(), bridge.KeyEnd(r.Until))
			if err == nil && fresh {
				b.acknowledgeChat(r, nil)
			}
			return !fresh && err == nil, err
		}
		m.Parts = parts
		m.Extensions = map[string]json.RawMessage{Protocol: extension}
		if request, open := b.openQuestion(r, to); open {
			m.Kind, m.InReplyTo = parley.Input, request
		} else if talk || c.Ends() {
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

// submit gives the hub a message for a stand-in. It begins a call if the sender waits for
// the answer and cannot be reached in another way.
func (b *Binding) submit(ctx context.Context, r *protocol.Request, s hub.Submission, now time.Time) (bool, error) {
	m := s.Message
	isChat := classOf(r.SchemaDigest) == chat
	b.addSender(ctx, r)
	reach := b.reachable(r)
	if m.Kind == parley.Request && r.Sync && (!isChat || !reach) {
		m.Deadline = now.Add(30 * time.Second)
		if !m.Expires.IsZero() && m.Expires.Before(m.Deadline) && m.Expires.After(now) {
			m.Deadline = m.Expires
		}
		return b.begin(ctx, r, s)
	}
	if m.Kind == parley.Notice && r.Sync && !isChat {
		r.Handler = func(context.Context, *protocol.Request) (protocol.Response, error) {
			return protocol.Response{}, errors.New("a notice is not answered")
		}
	}
	var a *ack
	if isChat && m.Kind == parley.Request && reach {
		// The answer waits for the ack, so the ack is made first.
		id, err := parley.NewID(now, rand.Reader)
		if err != nil {
			return false, err
		}
		m.ID = id
		a, _ = b.newAck(id)
	}
	_, err := b.c.Hub.Accept(ctx, s)
	switch {
	case err != nil && a != nil:
		a.end(false)
		b.forgetAck(m.ID)
	case err == nil && isChat:
		b.acknowledgeChat(r, a)
	}
	return answerTo(err)
}

// recordRefusal records a refusal of the protocol's own checks. An unsigned envelope
// leaves no record, nor does one for an unknown target, which may be added later.
func (b *Binding) recordRefusal(ctx context.Context, r *protocol.Request, from, to string, key journal.Key) (bool,
	error) {
	if r.Verdict.Assurance != protocol.Signed || to == "" {
		return false, nil
	}
	if errors.Is(r.Refusal, protocol.ErrStale) {
		key.Until = time.Time{} // refused for good; the journal's window bounds the number of records
	}
	m := toMessage(r, parley.Notice, from, to, b.c.Now())
	_, err := b.c.Hub.Accept(ctx, hub.Submission{Scope: scope(r.Target), Key: key, Foreign: r.Session, Message: m,
		Refused: toRefusal(r.Refusal)})
	var prior *hub.Prior
	if !errors.As(err, &prior) && parley.CodeOf(err) == refusalCode(r.Refusal) {
		return false, nil // the server answers with the reason
	}
	return answerTo(err)
}

// recordNative records an envelope for an agent that speaks uAgents itself. The hub
// forwards it unchanged, and passes an answer back only to a waiting sender.
func (b *Binding) recordNative(ctx context.Context, r *protocol.Request, from, to string, key journal.Key,
	now time.Time) (bool, error) {
	if to == "" {
		return false, protocol.ErrUnknownAgent
	}
	m := toMessage(r, parley.Notice, from, to, now)
	m.Trace.Parent = b.sessions.trace(signer(r), r.Session)
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
	return b.begin(ctx, r, s)
}

// begin begins a call whose reply is the answer to a waiting sender.
func (b *Binding) begin(ctx context.Context, r *protocol.Request, s hub.Submission) (bool, error) {
	call, err := b.c.Hub.Begin(ctx, s)
	if err == nil {
		r.Handler = func(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
			return b.awaitReply(ctx, r, call)
		}
	}
	return answerTo(err)
}

// answerToPrior is [answerTo] for an envelope in the journal.
func (b *Binding) answerToPrior(ctx context.Context, p *journal.Prior) (prior bool, _ error) {
	if !p.Refused {
		return true, nil
	}
	record, err := b.c.Journal.Read(ctx, p.Position)
	if err != nil {
		return false, problem(err)
	}
	return answerTo(&hub.Prior{Of: *p, Refused: record.Refused})
}

// recordInSession records an envelope in a session that the hub opened. talk is false in
// any other session. taken is false there, and where the request is answered already.
func (b *Binding) recordInSession(ctx context.Context, r *protocol.Request, key journal.Key, now time.Time) (talk,
	taken, prior bool, err error) {
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
			prior, err := b.answerToPrior(ctx, p)
			return talk, true, prior, err
		}
		if x.Request == asked {
			c := classOf(r.SchemaDigest)
			return talk, c == acknowledgement || c == failure, false, nil // too late: no effect
		}
		if done {
			return talk, false, false, nil
		}
		if taken, prior, err = b.recordReply(ctx, r, x, key, now); taken || err != nil {
			return talk, true, prior, err
		}
		// That request was answered. Another hub may have sent a newer one in the session.
		asked = x.Request
	}
	return talk, false, false, nil
}

// recordReply records an envelope as the reply to a request of the hub. taken is false if
// the request was answered before.
func (b *Binding) recordReply(ctx context.Context, r *protocol.Request, x *exchange, key journal.Key,
	now time.Time) (taken, prior bool, err error) {
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
		b.acknowledgeChat(r, nil)
	}
	return true, false, nil
}

// addSender adds a sender to the directory if another registry may know it.
func (b *Binding) addSender(ctx context.Context, r *protocol.Request) {
	if b.upstream == nil || r.Verdict.Assurance != protocol.Signed {
		return
	}
	if _, ok := b.c.Hub.Directory().Lookup(Protocol, r.Sender); ok {
		return
	}
	if err := b.almanac.budget.Keep(r.Sender, policy.SourceOf(ctx), 0); err == nil {
		b.enter(ctx, &protocol.Record{Address: r.Sender})
	}
	b.recount(r.Sender)
}

// reachable reports whether the hub can send an envelope to the sender of a request.
func (b *Binding) reachable(r *protocol.Request) bool {
	i, ok := b.identity(signer(r))
	return ok && !i.StandIn && b.routable(i)
}

// skillOf finds the skill of an agent for a model: the skill that declares the model, the
// skill with the model's name, else the default skill. The name counts only if the sender
// or an enrolled agent published the model.
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

// awaitReply waits for the reply to the request of a waiting sender.
func (b *Binding) awaitReply(ctx context.Context, r *protocol.Request, call *hub.Call) (protocol.Response, error) {
	reply, err := call.Reply(ctx)
	if err != nil {
		return protocol.Response{}, toError(parley.AsError(err)).Saying(failureText(parley.AsError(err)))
	}
	// The answer of another uAgent is passed on unchanged, signed or not.
	if reply.Origin.Protocol == Protocol && r.Agent.Identity == nil {
		if e, err := protocol.Decode(reply.Origin.Raw); err == nil && e.Sender == r.Target && e.Target == r.Sender &&
			e.Session == r.Session {
			return protocol.Response{Envelope: e}, nil
		}
	}
	if reply.Kind == parley.Failure {
		return protocol.Response{Header: http.Header{protocol.RefHeader: {reply.Error.Ref}}},
			toError(reply.Error).Saying(failureText(reply.Error))
	}
	m, _, err := b.toAnswer(r.Envelope, reply, call.Message())
	if err != nil {
		return protocol.Response{}, err
	}
	answer := protocol.Answer(m)
	answer.Header = http.Header{bridge.ProvenanceHeader: {bridge.Provenance(reply)}}
	return answer, nil
}

// agent is the server's view of an agent for which the hub takes envelopes.
func (b *Binding) agent(address string) *protocol.Agent {
	return &protocol.Agent{Address: address, Models: b.model, Unsigned: anyMessage}
}

// resolve implements [protocol.Server.Resolve]: it finds stand-ins, whose answers the hub
// signs, and agents to which the hub forwards.
func (b *Binding) resolve(_ context.Context, address string) (*protocol.Agent, error) {
	if _, id, ok := b.standIns.at(address); ok {
		a := b.agent(address)
		a.Identity = id
		return a, nil
	}
	if i, ok := b.identity(address); ok && !i.StandIn && b.routable(i) {
		b.almanac.budget.Use(address)
		return b.agent(address), nil
	}
	return nil, nil
}

// identity finds the identity of an address in the directory.
func (b *Binding) identity(address string) (parley.Identity, bool) {
	e, ok := b.c.Hub.Directory().Lookup(Protocol, address)
	if !ok {
		return parley.Identity{}, false
	}
	return identityOf(e, address)
}

// identityOf finds the identity of an address in an entry.
func identityOf(e *directory.Entry, address string) (parley.Identity, bool) {
	at := slices.IndexFunc(e.Identities, func(i parley.Identity) bool {
		return i.Protocol == Protocol && i.ID == address
	})
	if at < 0 {
		return parley.Identity{}, false
	}
	return e.Identities[at], true
}

func anyMessage(string) bool { return true }

// model finds a published model; the server itself knows the models of the chat.
func (b *Binding) model(digest string) *protocol.Model {
	if classOf(digest) != other {
		return nil
	}
	return b.almanac.model(digest)
}

// sender finds the directory name of a sender.
func (b *Binding) sender(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return directory.GuestName(Protocol, r.Sender, "unsigned")
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, r.Sender); ok {
		return e.Name
	}
	return directory.GuestName(Protocol, r.Sender, "")
}

// scope of an envelope: its target.
func scope(target string) string { return Protocol + " " + target }

// refused notes a refusal of the server, for `parley refused`.
func (b *Binding) refused(_ context.Context, x *protocol.Refusal) string {
	f := hub.Refusal{Protocol: Protocol, Source: source.Host(x.Remote), Step: x.Err.Step, Code: refusalCode(x.Err),
		Text: x.Err.Text, Cause: x.Err.Error(), Size: x.Size}
	if x.Envelope != nil {
		f.Claim, f.To = x.Envelope.Sender, x.Envelope.Target
	}
	if x.Verified != nil {
		f.Verdict = verdict(&x.Verified.Verdict)
	}
	return b.c.Hub.Refuse(f.Because(x.Err))
}

// info answers GET /agent_info for a stand-in.
func (b *Binding) info(_ context.Context, address string) (*protocol.AgentInfo, error) {
	name, _, ok := b.standIns.at(address)
	if !ok {
		return nil, nil
	}
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok || !b.hosts(e) {
		return nil, nil
	}
	return &protocol.AgentInfo{Address: address, Endpoints: []protocol.Endpoint{{URL: b.public.String() + pathSubmit,
		Weight: 1}}, Protocols: b.standIns.protocols(e)}, nil
}
