package asp

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// admit refuses an invitation whose sender has too low a score. Stand-ins need none:
// the hub authenticates their agents by other means.
func (b *Binding) admit(_ context.Context, r *protocol.Request) error {
	if _, own := ownMessageOf(r); own || !r.IsInvitation() || r.Agent.Score() >= b.c.MinTrust {
		return nil
	}
	return protocol.Refuse("insufficient_trust_score", "")
}

// refused records a refusal of the server, for `parley refused`.
func (b *Binding) refused(_ context.Context, x *protocol.Refusal) string {
	if _, own := x.Note.(ownMessage); own {
		return "" // the hub lost a race with itself
	}
	f := hub.Refusal{Protocol: Protocol, Claim: x.Agent, To: cmp.Or(x.To, x.Session), Step: stepOf(x.Err),
		Code: refusalCode(x.Err), Text: x.Err.Text,
		Cause: strings.TrimSuffix(x.Err.Code+" "+x.Err.Path, " "), Size: len(x.Raw), Verdict: verdict(x.Verdict)}
	if cause := x.Err.Unwrap(); cause != nil {
		f.Cause += ": " + cause.Error()
	}
	return b.c.Hub.Refuse(f.Because(x.Err))
}

// submit records one record of a session through the hub; a is the answer in it, or nil.
func (b *Binding) submit(ctx context.Context, c *chain, r *protocol.Record, joined []protocol.Participant,
	a *answered) (at journal.Position, err error) {
	note, own := ownMessageOf(r.Request)
	ext, err := encodeExtension(r, joined, own, note.callee)
	if err != nil {
		return at, err
	}
	by := cmp.Or(r.Sender, r.By)
	guest := by != "" && b.guest(by)
	cost := recordBytes + 2*len(r.Raw) + len(ext[Protocol])
	if guest {
		b.registrations.Use(by)
	}
	for _, p := range joined {
		b.registrations.Use(p.AgentID)
	}
	if c.conversation.IsZero() {
		c.conversation = b.conversation(r.Session)
	}
	m := &parley.Message{Kind: parley.Notice, From: b.c.Root, Act: string(r.Kind), Conversation: c.conversation,
		Sent: r.Time, Extensions: ext,
		Trace:  parley.Trace{Foreign: map[string]string{foreignSession: r.Session}},
		Origin: parley.Origin{Protocol: Protocol, Received: r.Time}}
	s := hub.Submission{Message: m, Scope: scope(c.id), Chain: &journal.ChainLink{Name: scope(c.id), After: c.seq},
		At: &at, Vouched: !guest}
	if r.Request == nil || own {
		ctx = byHub(ctx)
	}
	if guest && r.Request == nil { // the hub does not charge for its own message
		if err := b.charge(ctx, cost); err != nil {
			return at, err
		}
	}
	for _, p := range r.Ledger.Participants {
		name, standIn := b.nameOf(p.AgentID)
		if _, ok := b.c.Hub.Directory().Agent(name); !ok && !standIn {
			if err := b.enter(ctx, p.AgentID); err != nil {
				return at, err
			}
		}
		if p.AgentID == r.Sender {
			m.From = name
		} else {
			m.Audience = append(m.Audience, name)
		}
	}
	s.Reads = m.Audience
	if req := r.Request; req == nil {
		s.Admitted = true // a record of the hub itself
		// the hub does not count the replies of guests
	} else if answers := b.describe(ctx, c, r, a, &s); answers && guest {
		if err := b.charge(ctx, cost); err != nil {
			return at, err
		}
	}
	_, err = b.c.Hub.Accept(ctx, s)
	isGuest := func(p protocol.Participant) bool { return b.guest(p.AgentID) }
	if err == nil && (r.Request == nil || own) && slices.ContainsFunc(r.Ledger.Participants, isGuest) {
		b.c.Hub.Guests().Wrote(policy.SourceOf(ctx), cost) // the hub sent it because of a guest
	}
	return at, appendError(err)
}

// conversation gives the conversation of a session. The session's id does not reveal
// it.
func (b *Binding) conversation(session string) parley.ID {
	return b.c.Hub.Conversation(Protocol, scope(session), session)
}

// describe translates a message for the hub, and reports whether it answers a request
// of the hub.
func (b *Binding) describe(ctx context.Context, c *chain, r *protocol.Record, a *answered,
	s *hub.Submission) (answers bool) {
	m, req := s.Message, r.Request
	e := req.Envelope
	m.Act, m.Schema = string(e.Performative), e.Version
	m.Sent, _ = protocol.ParseTimestamp(e.Timestamp)
	m.Parts = wholeBody(e)
	m.Origin.Peer, m.Origin.Raw, m.Origin.Verdict = e.Sender.AgentID, e.Raw(), verdict(req.Verdict)
	s.Key = journal.Key{ID: r.Proof, Sender: m.From, Until: bridge.KeyEnd(r.ProofUntil)}
	if note, own := ownMessageOf(req); own {
		// The envelope carries a message of the hub, which has its deliveries already.
		s.Admitted = true
		if !note.message.IsZero() {
			m.Trace.Foreign[foreignMessage] = note.message.String()
		}
		return false
	}
	s.Began = b.inviterOf(e, req)
	if e.IsInvitation() || req.Before == nil || req.Before.State == protocol.Invited ||
		req.After.State == protocol.Introduced || e.Performative == protocol.Close {
		return false // handlers do not see the opening and closing of sessions
	}
	m.Hops = hopsOf(e)
	switch e.Performative {
	case protocol.Query, protocol.Delegate:
		name, ok := b.standIns.name(requestTarget(e, req))
		entry, here := b.c.Hub.Directory().Agent(name)
		if !ok || !here {
			return false
		}
		m.Kind, m.To = parley.Request, name
		if wait := responseTime(e, req.Before); wait > 0 {
			m.Deadline = r.Time.Add(wait)
		}
		m.Skill, m.Parts = skillOf(e, entry.Skills), requestParts(e)
		s.Reads = slices.DeleteFunc(slices.Clone(m.Audience), func(a string) bool { return a == name })
	case protocol.Withdraw:
		if id, to, ok := b.openRequest(ctx, c, req, e.Reference()); ok {
			m.Kind, m.To, m.Audience, m.InReplyTo = parley.Cancel, to, nil, id
		}
	default:
		if id, to, ok := b.addedTo(ctx, c, req); ok && a == nil {
			m.Kind, m.To, m.InReplyTo, m.Parts = parley.Input, to, id, inputParts(e)
			return false
		}
		// The reconciler gives an answer to the requester.
		if readers := b.readers(m); len(readers) < len(m.Audience) {
			if answers = a != nil; !answers {
				s.Reads = readers
			}
		}
		if e.Performative == protocol.Inform { // readers of the record see it whole
			if parts := informParts(e); len(parts) > 0 {
				m.Parts = parts
			}
		}
	}
	return answers
}

// inviterOf gives the participant that opened the session: it gets answers there even
// if it is not exposed. For a request to the inviter it gives none, since a recipient of
// requests must be exposed.
func (b *Binding) inviterOf(e *protocol.Envelope, req *protocol.Request) []string {
	if req.Before == nil {
		return nil
	}
	inviter := req.Before.Participants[0].AgentID
	if requestTarget(e, req) == inviter {
		return nil
	}
	name, _ := b.nameOf(inviter)
	return []string{name}
}

// requestTarget is the callee of a request: the target of a DELEGATE, the recipient of a
// QUERY or else the only other participant; "" for other messages.
func requestTarget(e *protocol.Envelope, req *protocol.Request) string {
	switch {
	case e.Performative == protocol.Delegate:
		return e.BodyText("targetAgent")
	case e.Performative != protocol.Query:
		return ""
	case e.Recipient != nil:
		return e.Recipient.AgentID
	case len(req.After.Participants) != 2:
		return ""
	}
	for _, p := range req.After.Participants {
		if p.AgentID != e.Sender.AgentID {
			return p.AgentID
		}
	}
	return ""
}

// readers are the participants that read a notice in the session and get no delivery:
// ASP agents, and agents behind stand-ins whose skills take no messages without a skill.
func (b *Binding) readers(m *parley.Message) []string {
	var out []string
	for _, name := range m.Audience {
		entry, ok := b.c.Hub.Directory().Agent(name)
		if !ok || !b.standIns.speaks(name) {
			out = append(out, name)
			continue
		}
		if len(entry.Skills) > 0 {
			if _, talks := entry.SkillNamed(""); !talks {
				out = append(out, name)
			}
		}
	}
	return out
}

// addedTo finds the open request to which a CLARIFY or INFORM of its sender adds: the body
// refers to the QUERY, or to another participant's message about it.
func (b *Binding) addedTo(ctx context.Context, c *chain, req *protocol.Request) (id parley.ID, to string, ok bool) {
	e := req.Envelope
	ref := e.Reference()
	if ref == "" || e.Performative != protocol.Clarify && e.Performative != protocol.Inform {
		return id, "", false
	}
	if mid, err := parley.ParseID(ref); err == nil {
		if at, known := c.ids[mid]; known {
			r, err := b.store.record(ctx, c, int64(at))
			if err == nil && r.Kind == protocol.RecordMessage && r.Sender != e.Sender.AgentID && r.Raw != nil {
				if about, err := r.Format.Decode(r.Raw); err == nil {
					ref = about.Reference()
				}
			}
		}
	}
	if id, to, ok = b.openRequest(ctx, c, req, ref); !ok {
		return id, "", false
	}
	if e.Recipient != nil {
		if name, _ := b.nameOf(e.Recipient.AgentID); name != to {
			return id, "", false // another participant should act
		}
	}
	v, _ := b.c.Journal.Delivery(id, to)
	return id, to, v.State != parley.Dead // the sender already has the failure of a dead letter
}

// openRequest finds the request of the sender that a message refers to; ok reports that it
// is still open.
func (b *Binding) openRequest(ctx context.Context, c *chain, req *protocol.Request, ref string) (id parley.ID,
	to string, ok bool) {
	for _, x := range req.Before.Items {
		if x.ID != ref && x.MessageID != ref || x.By != req.Sender.AgentID {
			continue
		}
		mid, err := parley.ParseID(x.MessageID)
		at, known := c.ids[mid]
		if err != nil || !known {
			return id, "", false
		}
		r, err := b.c.Journal.Read(ctx, journal.Position{Partition: b.c.Journal.Partition(scope(c.id)),
			Sequence: c.entries[at].seq})
		if err != nil || r.Message.Kind != parley.Request {
			return id, "", false
		}
		_, open := b.c.Journal.Delivery(r.Message.ID, r.Message.To)
		return r.Message.ID, r.Message.To, open
	}
	return id, "", false
}

// appendError translates the error of an append for the server.
func appendError(err error) error {
	var prior *hub.Prior
	switch {
	case err == nil:
		return nil
	case errors.Is(err, journal.ErrConflict):
		return protocol.ErrConflict
	case errors.As(err, &prior):
		return protocol.ErrReplay
	}
	return admission(parley.AsError(err))
}
