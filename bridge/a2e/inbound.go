package a2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// From the wire to the hub: an agent proves itself by its token, and its requests
// become submissions of the hub (A2E has no signatures).

// Authenticate implements a2e.Authenticator. Tokens are looked up by their hashes, so
// that the time of the look-up reveals nothing of a token.
func (b *Binding) Authenticate(_ context.Context, c protocol.Credentials) (protocol.Identity, error) {
	if c.Token == "" {
		return protocol.Identity{}, protocol.ErrUnknownKey
	}
	d := b.c.Hub.Directory()
	for _, id := range []string{b.secretID(c.Token), TokenID(c.Token)} {
		e, ok := d.Lookup(Protocol, id)
		if !ok {
			continue
		}
		if _, ok := b.agent(e.Name); !ok {
			continue
		}
		// An agent_id is a claim: free, unless it is another agent's name.
		if other, taken := d.Agent(c.AgentID); taken && other.Name != e.Name {
			return protocol.Identity{}, protocol.ErrUnknownKey
		}
		return protocol.Identity{Name: e.Name}, nil
	}
	return protocol.Identity{}, protocol.ErrUnknownKey
}

// authenticated marks the connection of an agent with a valid token as no guest's.
func (b *Binding) authenticated(ctx context.Context, who protocol.Identity) {
	if !b.c.Hub.Guest(who.Name) {
		policy.Vouch(ctx)
	}
}

// scope is the scope of a session's messages. The session's id is a secret, so its hash
// stands for it.
func scope(sessionID string) string { return Protocol + " " + sessionKey(sessionID) }

// request makes the common part of every message of an agent.
func (b *Binding) request(r *protocol.Request, kind parley.Kind) *parley.Message {
	now := b.c.Now()
	m := &parley.Message{
		Kind: kind, From: r.Identity.Name, Hops: hopsOf(r),
		Origin: parley.Origin{Protocol: Protocol, Peer: r.Identity.Name, Raw: r.Raw(), Received: now,
			Verdict: parley.Verdict{Assurance: parley.Session, Checks: []parley.Check{
				{Name: "token", OK: true, Detail: "A2E has no signatures; the session's token answers for them"}}}},
	}
	if kind == parley.Request {
		m.Deadline = now.Add(timeLeft(r))
	}
	foreign := map[string]string{"a2e.id": bridge.Shorten(r.ID, 256)}
	if c := r.Str("correlation_id"); c != "" && len(c) <= 256 {
		foreign["a2e.correlationId"] = c
		if bridge.IsTraceParent(c) {
			// The request belongs to the trace of a message of the agent's inbox.
			m.Trace.Parent = c
		}
	}
	m.Trace.Foreign = foreign
	return m
}

// requestNamed finds the request that an agent names, by the id of the agent's call in the session
// or by the hub's id. Call ids come first: they may look like the hub's. The hub refuses the zero
// ID, which stands for an unknown request.
func (b *Binding) requestNamed(r *protocol.Request, name string) parley.ID {
	if p, ok := b.c.Journal.Seen(scope(r.Session.ID()), name); ok {
		return p.Message
	}
	id, err := parley.ParseID(name)
	if err != nil {
		return parley.ID{}
	}
	return id
}

// timeLeft is how long the hub works on a request: a little less than the agent waits,
// so that the agent still gets the error.
func timeLeft(r *protocol.Request) time.Duration {
	left := time.Until(r.Deadline)
	return max(left-min(left/10, 500*time.Millisecond), time.Millisecond)
}

// hideSession puts the hash of the session's id into the frame before it is recorded:
// over HTTP, the id alone lets its reader speak as the agent.
func hideSession(m *parley.Message) {
	raw, ok := jsonx.Replace(m.Origin.Raw, func(id string) string {
		if strings.HasPrefix(id, hashed) {
			return id
		}
		return hashed + sessionKey(id)
	}, sessionMember)
	if !ok {
		return
	}
	m.Origin.Raw = raw
	for i := range m.Parts {
		p := &m.Parts[i]
		if at := bytes.Index(raw, p.Data); at >= 0 && len(p.Data) > 0 {
			p.Data = raw[at : at+len(p.Data) : at+len(p.Data)] // the record holds the bytes once
		}
	}
}

// Masked gives a message as operators and exports may see it: without the session id
// that records of earlier versions hold.
func Masked(m *parley.Message) *parley.Message {
	if m.Origin.Protocol != Protocol {
		return m
	}
	masked := *m
	masked.Parts = slices.Clone(m.Parts)
	hideSession(&masked)
	return &masked
}

const (
	sessionMember = "session_id" // of a frame, names the session
	hashed        = "sha256:"    // begins the hash that stands for it
)

// keyEnd gives the end of a message's replay key. A2E messages never become stale; an
// agent that missed the answer repeats its message at once, three times at most. A
// request in flight is never begun again.
func (b *Binding) keyEnd(m *parley.Message) time.Time {
	end := b.c.Now().Add(cmp.Or(b.c.Limits.SeenFor, 5*time.Minute))
	if m.Deadline.After(end) {
		end = m.Deadline
	}
	return bridge.KeyEnd(end)
}

func (b *Binding) submission(r *protocol.Request, m *parley.Message) hub.Submission {
	hideSession(m)
	s := hub.Submission{
		Message: m, Scope: scope(r.Session.ID()), Foreign: m.Trace.Foreign["a2e.correlationId"],
		Key: journal.Key{ID: r.ID, Sender: r.Identity.Name, Until: b.keyEnd(m)},
	}
	if !m.InReplyTo.IsZero() { // recorded in the request's scope, which other sessions use too
		s.Key.ID = s.Scope + "\n" + s.Key.ID
	}
	return s
}

// accept submits a message that no call waits for. For a duplicate it gives the id of
// the first.
func (b *Binding) accept(ctx context.Context, r *protocol.Request, s hub.Submission) (id, conversation parley.ID,
	err error) {
	to := s.Message.To // the hub may name the recipient of a reply
	sent, err := b.c.Hub.Accept(ctx, s)
	if prior, ok := errors.AsType[*hub.Prior](err); ok {
		return prior.Of.Message, parley.ID{}, nil
	}
	if err != nil {
		return id, conversation, b.refusal(err, r, to)
	}
	return sent.ID, sent.Conversation, nil
}

// call submits a request and waits for its reply; a Failure is an error. event gets the
// events as they arrive; nil: the agent wants none.
func (b *Binding) call(ctx context.Context, r *protocol.Request, m *parley.Message, fits bool,
	event func(*parley.Message) error) (*parley.Message, error) {
	s := b.submission(r, m)
	s.Fits = fits
	call, err := b.c.Hub.Begin(ctx, s)
	if prior, ok := errors.AsType[*hub.Prior](err); ok {
		var reply *parley.Message
		if reply, err = b.recordedReply(ctx, prior.Of, m.To); err == nil {
			return b.replyOrError(r, reply)
		}
	}
	if err != nil {
		return nil, b.refusal(err, r, m.To)
	}
	if event == nil {
		reply, err := call.Reply(ctx)
		if err != nil {
			return nil, toError(parley.AsError(err), r.Capability())
		}
		return b.replyOrError(r, reply)
	}
	for e, err := range call.Stream(ctx) {
		switch {
		case err != nil:
			return nil, toError(parley.AsError(err), r.Capability())
		case e.Kind.Terminal():
			return b.replyOrError(r, e)
		}
		if err := event(e); err != nil {
			return nil, err // the session is gone; that ends the request
		}
	}
	return nil, protocol.ErrTimeout
}

func (b *Binding) replyOrError(r *protocol.Request, reply *parley.Message) (*parley.Message, error) {
	if reply.Kind == parley.Failure {
		return nil, toError(reply.Error, r.Capability())
	}
	return reply, nil
}

// recordedReply gives the reply of a request that is recorded already, by another node
// for example, and waits for the reply if necessary.
func (b *Binding) recordedReply(ctx context.Context, p journal.Prior, to string) (*parley.Message, error) {
	j := b.c.Journal
	switch {
	case p.Refused:
		r, err := j.Read(ctx, p.Position)
		if err != nil {
			return nil, err
		}
		if r.Refused != nil {
			return nil, r.Refused
		}
	case !p.Reply.IsZero():
		r, err := j.Read(ctx, p.Reply)
		if err != nil {
			return nil, err
		}
		return r.Message, nil
	}
	for r, err := range j.Records(ctx, p.Position.Partition,
		journal.From{Sequence: p.Position.Sequence, Follow: true}) {
		if err != nil {
			return nil, err
		}
		if m := r.Message; m != nil && m.InReplyTo == p.Message && m.Kind.Terminal() {
			return m, nil
		}
		for _, s := range r.Steps {
			if s.Message == p.Message && s.To == to && s.State == parley.Abandoned {
				return nil, parley.Refuse(parley.OutcomeUnknown,
					"the hub stopped while the request was at work; it is not repeated")
			}
		}
	}
	return nil, context.Cause(ctx)
}

// refusal turns the hub's error into the protocol's, with the reference by which an
// operator finds the error.
func (b *Binding) refusal(err error, r *protocol.Request, to string) error {
	e := parley.AsError(err)
	if e.Ref == "" {
		cause := ""
		if c := errors.Unwrap(e); c != nil {
			cause = c.Error()
		}
		c := *e
		c.Ref = b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Claim: r.Identity.Name, To: to,
			Step: "admit", Code: e.Code, Text: e.Text, Cause: cause,
			Size: len(r.Raw()), Verdict: parley.Verdict{Assurance: parley.Session}}.Because(e))
		e = &c
	}
	return toError(e, r.Capability())
}

// refused records a refusal of the host, for `parley refused`.
func (b *Binding) refused(f protocol.Refusal) {
	if f.Dropped && errors.Is(f.Err, protocol.ErrReplay) {
		return // a duplicate of a request in flight: no refusal
	}
	code := parley.Malformed
	switch {
	case errors.Is(f.Err, protocol.ErrTooLarge):
		code = parley.TooLarge
	case errors.Is(f.Err, protocol.ErrBusy), errors.Is(f.Err, protocol.ErrFull):
		code = parley.RateLimited
	case errors.Is(f.Err, protocol.ErrShuttingDown):
		code = parley.Unavailable
	case errors.Is(f.Err, protocol.ErrUnknownKey), errors.Is(f.Err, protocol.ErrNoHandshake):
		code = parley.Unauthenticated
	case f.Err.Code == protocol.Unauthorized, f.Err.Code == protocol.CapabilityMissing:
		code = parley.Forbidden
	case errors.Is(f.Err, protocol.ErrUnknownType), f.Err.Code == protocol.VersionMismatch:
		code = parley.Unsupported
	case f.Err.Code == protocol.SchemaViolation:
		code = parley.InvalidContent
	}
	cause := f.Err.Error()
	if f.Dropped {
		cause = "not answered: " + cause
	}
	b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Source: f.Remote,
		Claim: cmp.Or(f.Identity, bridge.Shorten(f.AgentID, 128)), To: bridge.Shorten(f.Type, 128),
		Step: f.Err.Step, Code: code, Text: f.Err.Text, Cause: cause, Size: f.Size})
}
