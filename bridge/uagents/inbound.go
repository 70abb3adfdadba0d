package uagents

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
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

// resolve implements [protocol.Server.Resolve]: stand-ins, whose answers the
// hub signs, and agents that it forwards to.
func (b *Binding) resolve(_ context.Context, address string) (*protocol.Agent, error) {
	if _, id, ok := b.standIns.at(address); ok {
		return &protocol.Agent{Address: address, Identity: id, Handler: b.handle, Models: b.model, Unsigned: anyMessage}, nil
	}
	e, ok := b.c.Hub.Directory().Lookup(Protocol, address)
	if !ok {
		return nil, nil
	}
	for _, i := range e.Identities {
		if i.Protocol == Protocol && i.ID == address && !i.StandIn && b.routable(i) {
			b.almanac.count.use(address)
			return &protocol.Agent{Address: address, Handler: b.handle, Models: b.model, Unsigned: anyMessage}, nil
		}
	}
	return nil, nil
}

func anyMessage(string) bool { return true }

// model finds a published model; the server knows the chat's itself.
func (b *Binding) model(digest string) *protocol.Model {
	if classOf(digest) != other {
		return nil
	}
	return b.almanac.model(digest)
}

// sender finds the directory name of a sender.
func (b *Binding) sender(r *protocol.Request) string {
	if r.Verdict.Assurance != protocol.Signed {
		return directory.Stranger(Protocol, r.Sender, "unsigned")
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, r.Sender); ok {
		return e.Name
	}
	return directory.Stranger(Protocol, r.Sender, "")
}

// scope of an envelope: its target.
func scope(target string) string { return Protocol + " " + target }

// refused notes what the server turned away, for `parley refused`.
func (b *Binding) refused(_ context.Context, x *protocol.Refusal) string {
	f := hub.Refusal{Protocol: Protocol, Source: hostOf(x.Remote), Step: x.Err.Step, Code: refusalCode(x.Err), Text: x.Err.Text, Cause: x.Err.Error(), Size: x.Size}
	if x.Envelope != nil {
		f.Claim, f.To = x.Envelope.Sender, x.Envelope.Target
	}
	if x.Verified != nil {
		f.Verdict = verdict(&x.Verified.Verdict)
	}
	return b.c.Hub.Refuse(f)
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
	return &protocol.AgentInfo{Address: address, Endpoints: []protocol.Endpoint{{URL: b.public.String() + pathSubmit, Weight: 1}}, Protocols: b.standIns.protocols(e)}, nil
}
