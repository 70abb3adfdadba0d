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

// admit refuses the invitations of those whose score is too low. The hub's own
// are for agents that it knows by other means.
func (b *Binding) admit(_ context.Context, r *protocol.Request) error {
	if _, own := saidByHub(r); own || !r.IsInvitation() || r.Agent.Score() >= b.c.MinTrust {
		return nil
	}
	return protocol.Refuse("insufficient_trust_score", "")
}

// refused notes what the server turned away, for `parley refused`.
func (b *Binding) refused(_ context.Context, x *protocol.Refusal) string {
	if _, own := x.Note.(says); own {
		return "" // the hub lost a race with itself
	}
	f := hub.Refusal{Protocol: Protocol, Claim: x.Agent, To: x.Session, Step: stepOf(x.Err), Code: refusalCode(x.Err), Text: x.Err.Text,
		Cause: strings.TrimSuffix(x.Err.Code+" "+x.Err.Path, " "), Size: len(x.Raw), Verdict: verdict(x.Verdict)}
	if cause := x.Err.Unwrap(); cause != nil {
		f.Cause += ": " + cause.Error()
	}
	return b.c.Hub.Refuse(f)
}

// submit records one record of a session: [store.submit].
func (b *Binding) submit(ctx context.Context, c *chain, r *protocol.Record, joined []protocol.Participant,
	link *journal.ChainLink) (at journal.Position, err error) {
	said, own := saidByHub(r.Request)
	ext, err := encodeExtension(r, joined, own, said.asks)
	if err != nil {
		return at, err
	}
	by := cmp.Or(r.Sender, r.By)
	guest := by != "" && b.guest(by)
	cost := recordBytes + 2*len(r.Raw) + len(ext[Protocol])
	if guest {
		b.used(by)
	}
	for _, p := range joined {
		b.used(p.AgentID)
	}
	if c.conversation.IsZero() {
		c.conversation = b.conversation(r.Session)
	}
	m := &parley.Message{Kind: parley.Notice, From: b.c.Root, Act: string(r.Kind), Conversation: c.conversation, Sent: r.Time, Extensions: ext,
		Trace: parley.Trace{Foreign: map[string]string{foreignSession: r.Session}}, Origin: parley.Origin{Protocol: Protocol, Received: r.Time}}
	s := hub.Submission{Message: m, Scope: scope(r.Session), Chain: link, At: &at}
	s.Vouched = !guest
	if r.Request == nil || own {
		ctx = byHub(ctx)
	}
	if guest && r.Request == nil { // in the hub's name: the hub counts it for nobody
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
		s.Admitted = true // what the hub itself notes
	} else if answers := b.describe(ctx, c, r, req, &s); answers && guest { // the hub does not count the replies of guests
		if err := b.charge(ctx, cost); err != nil {
			return at, err
		}
	}
	_, err = b.c.Hub.Accept(ctx, s)
	isGuest := func(p protocol.Participant) bool { return b.guest(p.AgentID) }
	if err == nil && (r.Request == nil || own) && slices.ContainsFunc(r.Ledger.Participants, isGuest) {
		b.c.Hub.Guests().Wrote(policy.SourceOf(ctx), cost) // what a guest has the hub say
	}
	if e := r.Request; err == nil && m.Kind == parley.Request {
		b.askings.note(m.ID, askingOf(e.Envelope, bodyOf(e.Envelope)))
	}
	return at, appendError(err)
}

// conversation of a session. Nobody can tell it from the session's id.
func (b *Binding) conversation(session string) parley.ID {
	return b.c.Hub.Conversation(Protocol, scope(session), session)
}

// describe says a message in the hub's terms, and reports whether it answers a
// request of the hub's.
func (b *Binding) describe(ctx context.Context, c *chain, r *protocol.Record, req *protocol.Request,
	s *hub.Submission) (answers bool) {
	m, e := s.Message, req.Envelope
	m.Act, m.Schema = string(e.Performative), e.Version
	m.Sent, _ = protocol.ParseTimestamp(e.Timestamp)
	m.Parts = wholeBody(e)
	m.Origin.Peer, m.Origin.Raw, m.Origin.Verdict = e.Sender.AgentID, e.Raw(), verdict(req.Verdict)
	s.Key = journal.Key{ID: r.Proof, Sender: m.From, Until: bridge.KeyEnd(r.ProofUntil)}
	if said, own := saidByHub(req); own {
		// The hub's own wording of a message that has its deliveries.
		s.Admitted = true
		if !said.message.IsZero() {
			m.Trace.Foreign[foreignSays] = said.message.String()
		}
		return false
	}
	bd := bodyOf(e)
	s.Began = b.began(e, bd, req)
	if e.IsInvitation() || req.Before == nil || req.Before.State == protocol.Invited || req.After.State == protocol.Introduced || e.Performative == protocol.Close {
		return false // how sessions come and go is not for handlers
	}
	m.Hops = hopsOf(e)
	switch e.Performative {
	case protocol.Query, protocol.Delegate:
		target := bd.TargetAgent
		if e.Performative == protocol.Query {
			target = b.addressed(e, req)
		}
		name, ok := b.standIns.name(target)
		entry, here := b.c.Hub.Directory().Agent(name)
		if !ok || !here {
			return false
		}
		m.Kind, m.To = parley.Request, name
		if wait := patience(e, req.Before); wait > 0 {
			m.Deadline = r.Time.Add(wait)
		}
		m.Skill, m.Parts = skillOf(bd, entry), requestParts(e, bd)
		s.Reads = slices.DeleteFunc(slices.Clone(m.Audience), func(a string) bool { return a == name })
	case protocol.Withdraw:
		if id, to, ok := b.asked(ctx, c, req); ok {
			m.Kind, m.To, m.Audience, m.InReplyTo = parley.Cancel, to, nil, id
		}
	default:
		// An answer goes to the requester, by the tender.
		if readers := b.readers(m); len(readers) < len(m.Audience) {
			x, _ := answered(c.calls, e, r.Position)
			if answers = x != nil; !answers {
				s.Reads = readers
			}
		}
		if e.Performative == protocol.Inform { // those who read the record see it whole
			if parts := informParts(bd); len(parts) > 0 {
				m.Parts = parts
			}
		}
	}
	return answers
}

// began gives the participant who opened the session. It is answered there although it is
// not exposed; a question to it is a call like any other.
func (b *Binding) began(e *protocol.Envelope, bd body, req *protocol.Request) []string {
	if req.Before == nil {
		return nil
	}
	asked := ""
	switch e.Performative {
	case protocol.Query:
		asked = b.addressed(e, req)
	case protocol.Delegate:
		asked = bd.TargetAgent
	}
	inviter := req.Before.Participants[0].AgentID
	if asked == inviter {
		return nil
	}
	name, _ := b.nameOf(inviter)
	return []string{name}
}

// addressed is the one of whom a QUERY asks: the recipient that it names, else
// the only other participant.
func (b *Binding) addressed(e *protocol.Envelope, req *protocol.Request) string {
	if e.Recipient != nil {
		return e.Recipient.AgentID
	}
	if len(req.After.Participants) != 2 {
		return ""
	}
	for _, p := range req.After.Participants {
		if p.AgentID != e.Sender.AgentID {
			return p.AgentID
		}
	}
	return ""
}

// readers are those to whom a notice is not delivered: agents of the protocol,
// and those behind stand-ins that take no talk.
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

// asked finds the request of a QUERY or DELEGATE that a WITHDRAW takes back.
func (b *Binding) asked(ctx context.Context, c *chain, req *protocol.Request) (id parley.ID, to string, ok bool) {
	ref := req.Reference()
	for _, x := range req.Before.Items {
		if x.ID != ref && x.MessageID != ref {
			continue
		}
		mid, err := parley.ParseID(x.MessageID)
		at, known := c.ids[mid]
		if err != nil || !known {
			return id, "", false
		}
		r, err := b.c.Journal.Read(ctx, journal.Position{Partition: b.c.Journal.Partition(scope(c.id)), Sequence: c.at[at].seq})
		if err != nil || r.Message.Kind != parley.Request {
			return id, "", false
		}
		_, open := b.c.Journal.Delivery(r.Message.ID, r.Message.To)
		return r.Message.ID, r.Message.To, open
	}
	return id, "", false
}

// appendError says what the journal or the hub made of an append.
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
