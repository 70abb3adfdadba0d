package asp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parley-hub/parley/internal/jsonx"
)

// An Invitation opens a session with the agents in To. A session begins with two
// participants: the first agent is invited, and the others are added by DELEGATE as
// soon as the session's state allows it.
type Invitation struct {
	To       []string
	Purpose  string
	Schemas  []string
	Duration time.Duration  // proposedDuration; 0: none
	Format   Format         // JSON
	Terms    map[string]any // further members of terms
}

// A Session is a client's side of a session: the head up to which it has verified
// the chain, and the position up to which the program has read it. Both are in the
// client's Store, so that a new process continues where the last one stopped. A
// Session is safe for concurrent use; calls of Send wait for each other.
type Session struct {
	c    *Client
	send sync.Mutex // held over requests: keeps messages in order

	mu sync.Mutex
	st sessionState
}

// sessionState is the stored form of a session.
type sessionState struct {
	ID      string            `json:"sessionId"`
	Agent   string            `json:"agentId"`
	Format  Format            `json:"format"`
	State   State             `json:"state"`
	Head    point             `json:"head"`
	Read    point             `json:"read"`
	Last    string            `json:"lastTimestamp"`
	Cards   map[string][]byte `json:"cards"` // as first seen: keys do not change in a session
	Invite  []string          `json:"invite,omitempty"`
	Pending *pending          `json:"pending,omitempty"`
}

// A point is a position in the chain, with the state needed to check the next
// message.
type point struct {
	Position int64            `json:"position"` // of the next record
	Hash     string           `json:"hash"`
	Next     map[string]int64 `json:"next"`
	State    State            `json:"state"`
	Before   State            `json:"before,omitempty"`
}

func startState(session, agent string) sessionState {
	start := point{Hash: ZeroHash, Next: map[string]int64{}, State: Idle}
	return sessionState{ID: session, Agent: agent, Head: start, Read: start.clone(), Cards: map[string][]byte{}}
}

// move follows the state machine.
func (p *point) move(to State) {
	if to == Escalated && p.State != Escalated {
		p.Before = p.State
	}
	p.State = to
}

func (p point) clone() point {
	p.Next = maps.Clone(p.Next)
	return p
}

// pending is a message with an unknown outcome.
type pending struct {
	Intent string          `json:"intent"` // hash of the requested message
	Act    Performative    `json:"performative"`
	Body   jsonx.Value     `json:"body"`
	To     *Party          `json:"to,omitempty"`
	Ctx    []ContextObject `json:"context,omitempty"`
	Wishes *Constraints    `json:"constraints,omitempty"`
	Raw    []byte          `json:"raw"`
}

// A Message is a verified message of another participant.
type Message struct {
	*Envelope
	Body     []byte // content.body: a JSON object
	Position int64
	State    State // of the session after this message
}

// ID is the session id.
func (s *Session) ID() string { return s.st.ID }

// State is the last known state.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.State
}

// Open invites an agent to a new session.
func (c *Client) Open(ctx context.Context, inv Invitation) (*Session, error) {
	c.init()
	if len(inv.To) == 0 {
		return nil, refuse("missing_field", "recipient")
	}
	id, err := NewSessionID()
	if err != nil {
		return nil, err
	}
	s := &Session{c: c, st: startState(id, c.Identity.ID())}
	s.st.Format, s.st.State, s.st.Invite = cmp.Or(inv.Format, JSON), Idle, inv.To[1:]
	to, err := s.party(ctx, inv.To[0])
	if err != nil {
		return nil, err
	}
	terms := maps.Clone(inv.Terms)
	if terms == nil {
		terms = make(map[string]any)
	}
	terms["format"] = s.st.Format
	if inv.Schemas != nil {
		terms["schemas"] = inv.Schemas
	}
	if inv.Duration > 0 {
		terms["proposedDuration"] = inv.Duration.Milliseconds()
	}
	body := Proposal{Type: "session-invitation", Subject: cmp.Or(inv.Purpose, "session"), Terms: terms}
	if _, err := s.Send(ctx, Propose, body, To(to.AgentID)); err != nil {
		return nil, err
	}
	return s, nil
}

// Join continues a session that this client opened or joined before, from its
// stored head, or enters a session to which it was invited, from the start.
func (c *Client) Join(ctx context.Context, session string) (*Session, error) {
	c.init()
	s := &Session{c: c}
	switch b, err := c.store.Load(ctx, session); {
	case err == nil:
		if err := jsonx.DecodeKnown(b, &s.st); err != nil {
			return nil, fmt.Errorf("asp: stored session %s: %w", session, err)
		}
		if s.st.Agent != c.Identity.ID() || s.st.ID != session {
			return nil, fmt.Errorf("asp: stored session %s belongs to %s", session, s.st.Agent)
		}
	case errors.Is(err, ErrNotFound):
		s.st = startState(session, c.Identity.ID())
	default:
		return nil, err
	}
	if s.st.Pending != nil {
		s.send.Lock()
		defer s.send.Unlock()
		if _, err := s.deliver(ctx); err != nil {
			return nil, err
		}
	}
	return s, s.sync(ctx)
}

// party finds an agent and pins its keys.
func (s *Session) party(ctx context.Context, agent string) (*Party, error) {
	card, err := s.card(ctx, agent)
	if err != nil {
		return nil, err
	}
	return &Party{agent, card.OrgID}, nil
}

// card gives the card of an agent in this session.
func (s *Session) card(ctx context.Context, agent string) (*Card, error) {
	s.mu.Lock()
	known := s.st.Cards[agent]
	s.mu.Unlock()
	if known != nil {
		return ParseCard(known)
	}
	card, err := s.c.Card(ctx, agent)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.Cards[agent] = card.raw
	return card, nil
}

// save writes the state; s.mu is held.
func (s *Session) save(ctx context.Context) error {
	b, err := jsonx.Encode(s.st)
	if err != nil {
		return err
	}
	return s.c.store.Save(ctx, s.st.ID, b)
}

// Send sends one message and returns when the server has recorded it. body becomes
// a JSON object; Send adds required ids that it lacks. If another message was
// recorded first, Send fetches and verifies the new messages, then links, signs
// and sends its own again.
//
// If the outcome is unknown (the connection broke), the error is not an *Error, and
// the Session keeps the message. The next Send or Join first sends the same bytes
// again, so that the message is never recorded twice.
func (s *Session) Send(ctx context.Context, p Performative, body any, opts ...SendOption) (*Envelope, error) {
	encoded, err := jsonx.Encode(body)
	if err != nil {
		return nil, err
	}
	m := &pending{Act: p, Body: encoded}
	for _, o := range opts {
		o(m)
	}
	wishes, err := jsonx.Encode([]any{m.Act, m.Body, m.To, m.Ctx, m.Wishes})
	if err != nil {
		return nil, err
	}
	m.Intent = hashOf(wishes)
	if m.To != nil {
		if m.To, err = s.party(ctx, m.To.AgentID); err != nil {
			return nil, err
		}
	}
	if member := ownIDs[p]; member != "" && p != Delegate {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		m.setMember(member, id.String())
	}
	s.send.Lock()
	defer s.send.Unlock()
	if old := s.waiting(); old != nil {
		e, err := s.deliver(ctx)
		if old.Intent == m.Intent || isUnknown(err) {
			return e, err
		}
	}
	if err := s.delegateRest(ctx, p); err != nil {
		return nil, err
	}
	return s.post(ctx, m)
}

func (s *Session) waiting() *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.Pending
}

// isUnknown reports whether err leaves open that the message was recorded.
func isUnknown(err error) bool {
	var e *Error
	return err != nil && (!errors.As(err, &e) || codes[e.Code].status >= 500 || codes[e.Code].status == 0)
}

// delegateRest adds the other agents of the invitation.
func (s *Session) delegateRest(ctx context.Context, p Performative) error {
	for {
		s.mu.Lock()
		ready := len(s.st.Invite) > 0 && (s.st.State == Conversing || s.st.State == Executing) && p != Close
		var next string
		if ready {
			next = s.st.Invite[0]
		}
		s.mu.Unlock()
		if !ready {
			return nil
		}
		if _, err := s.party(ctx, next); err != nil {
			return err
		}
		body, err := jsonx.Encode(Delegation{TargetAgent: next, Scope: "participate", Protocol: "asp",
			DelegationID: "dlg_" + next})
		if err != nil {
			return err
		}
		if _, err := s.post(ctx, &pending{Intent: hashOf(body), Act: Delegate, Body: body}); err != nil {
			return err
		}
		s.mu.Lock()
		s.st.Invite = s.st.Invite[1:]
		s.mu.Unlock()
	}
}

// post signs m for the present head and delivers it.
func (s *Session) post(ctx context.Context, m *pending) (*Envelope, error) {
	if err := s.sign(ctx, m); err != nil {
		return nil, err
	}
	return s.deliver(ctx)
}

// sign makes the bytes of m, and stores them before deliver sends them.
func (s *Session) sign(ctx context.Context, m *pending) error {
	token, err := s.c.access(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := Draft{SessionID: s.st.ID, SequenceNumber: s.st.Head.Next[s.st.Agent], PreviousHash: s.st.Head.Hash,
		Time: NextTimestamp(s.c.now(), s.st.Last), Recipient: m.To, Performative: m.Act, Body: m.Body, Context: m.Ctx,
		Constraints: m.Wishes, AccessToken: token, Format: s.st.Format}.Sign(s.c.Identity)
	if err != nil {
		return err
	}
	m.Raw = e.raw
	s.st.Pending = m
	return s.save(ctx)
}

// maxRelinks bounds how often one message loses the race for the head.
const maxRelinks = 32

// deliver sends the pending message until its outcome is known.
func (s *Session) deliver(ctx context.Context) (*Envelope, error) {
	for range maxRelinks {
		m := s.waiting()
		token, err := s.c.access(ctx)
		if err != nil {
			return nil, err
		}
		e, err := s.st.Format.Decode(m.Raw)
		if err != nil {
			return nil, err
		}
		path := "/v1/asp/sessions/" + s.st.ID + "/messages"
		if e.IsInvitation() && e.Integrity.PreviousHash == ZeroHash {
			path = "/v1/asp/sessions"
		}
		b, err := s.c.call(ctx, "POST", path, string(s.st.Format), m.Raw, token, nil)
		switch code := codeName(err); {
		case err == nil:
			return s.settled(ctx, e, b)
		case tokenRefused(err), code == "dpop_ath_mismatch":
			s.c.forget(token)
		case code == "chain_mismatch", code == "sequence_gap", code == "dpop_jti_replayed",
			(code == "dpop_iat_out_of_window" || code == "timestamp_out_of_window") && s.stale(e):
		case isUnknown(err):
			return nil, err
		default:
			s.mu.Lock()
			s.st.Pending = nil
			saveErr := s.save(ctx)
			s.mu.Unlock()
			return nil, errors.Join(err, saveErr)
		}
		if e.Integrity.PreviousHash != ZeroHash || e.SequenceNumber > 0 {
			if err := s.sync(ctx); err != nil {
				return nil, err
			}
		}
		if err := s.sign(ctx, m); err != nil {
			return nil, err
		}
	}
	return nil, refuse("chain_mismatch", "integrity.previousHash")
}

// stale reports whether e is so old that it needs a new timestamp.
func (s *Session) stale(e *Envelope) bool {
	t, _ := ParseTimestamp(e.Timestamp)
	return s.c.now().Sub(t) > time.Minute
}

// settled takes the receipt of the pending message. Only its position shows whether
// there are records between the head and the message, since messages of the same
// content have the same hash. settled fetches those records while the message is
// still pending, so that the next call does so if this call fails.
func (s *Session) settled(ctx context.Context, e *Envelope, b []byte) (*Envelope, error) {
	var r Receipt
	if err := jsonx.Decode(b, &r); err != nil {
		return nil, fmt.Errorf("asp: receipt: %w", err)
	}
	s.mu.Lock()
	h := &s.st.Head
	if r.Position == h.Position && e.Integrity.PreviousHash == h.Hash && e.SequenceNumber == h.Next[s.st.Agent] {
		h.Position, h.Hash = r.Position+1, e.Integrity.Hash
		h.move(r.State)
		h.Next[s.st.Agent] = e.SequenceNumber + 1
		s.st.Last = e.Timestamp
	}
	behind := e.SequenceNumber >= h.Next[s.st.Agent]
	s.mu.Unlock()
	if behind {
		if err := s.sync(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.Pending = nil
	s.st.State = r.State
	return e, s.save(ctx)
}

// sync fetches and verifies the messages after the head, and the state.
func (s *Session) sync(ctx context.Context) error {
	for {
		s.mu.Lock()
		at := s.st.Head.clone()
		s.mu.Unlock()
		b, err := s.c.get(ctx, "/v1/asp/sessions/"+s.st.ID+"/messages?cursor="+strconv.FormatInt(at.Position, 10))
		if err != nil {
			return err
		}
		var page struct {
			Messages  []jsonx.Value `json:"messages"`
			Positions []int64       `json:"positions"`
			Next      string        `json:"nextCursor"`
		}
		if err := jsonx.Decode(b, &page); err != nil || len(page.Messages) != len(page.Positions) {
			return fmt.Errorf("asp: list of messages: %w", errors.Join(err, errors.ErrUnsupported))
		}
		for i, raw := range page.Messages {
			e, err := Decode(raw)
			if err != nil {
				return err
			}
			if err := s.verify(ctx, &at, e, page.Positions[i]); err != nil {
				return err
			}
			s.mu.Lock()
			s.advance(at, e)
			s.mu.Unlock()
		}
		if page.Next != "" {
			next, err := strconv.ParseInt(page.Next, 10, 64)
			if err != nil || next < at.Position {
				return errors.New("asp: the list of messages goes backwards")
			}
			s.mu.Lock()
			s.st.Head.Position = max(s.st.Head.Position, next)
			s.mu.Unlock()
			continue
		}
		return s.refresh(ctx)
	}
}

// refresh asks for the state of the session.
func (s *Session) refresh(ctx context.Context) error {
	b, err := s.c.get(ctx, "/v1/asp/sessions/"+s.st.ID)
	if err != nil {
		return err
	}
	var v sessionView
	if err := jsonx.Decode(b, &v); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.State, s.st.Format = v.State, v.Format
	if v.LastSequence < s.st.Head.Position || v.Head == s.st.Head.Hash {
		s.st.Head.move(v.State) // the list has no timeouts
	}
	return s.save(ctx)
}

// verify checks e as the next message after at, and advances at.
func (s *Session) verify(ctx context.Context, at *point, e *Envelope, position int64) error {
	if e.SessionID != s.st.ID {
		return refuse("session_mismatch", "sessionId")
	}
	if err := e.checkHash(); err != nil {
		return err
	}
	if e.Integrity.PreviousHash != at.Hash {
		return refuse("chain_mismatch", "integrity.previousHash")
	}
	card, err := s.card(ctx, e.Sender.AgentID)
	var refused *Error
	switch {
	case errors.As(err, &refused) && !refused.Retryable:
		return err
	case err != nil: // the server is unreachable; the message may still be valid
		return &unverified{err}
	case !e.signedBy(card.SigningKey):
		return refuse("bad_signature", "integrity.signature")
	case e.Sender.OrgID != card.OrgID:
		return refuse("sender_mismatch", "sender.orgId")
	case e.SequenceNumber < at.Next[e.Sender.AgentID]:
		return refuse("sequence_replay", "sequenceNumber")
	case e.SequenceNumber > at.Next[e.Sender.AgentID]:
		return refuse("sequence_gap", "sequenceNumber")
	case position < at.Position:
		return refuse("sequence_replay", "position")
	}
	at.Position, at.Hash = position+1, e.Integrity.Hash
	at.Next[e.Sender.AgentID] = e.SequenceNumber + 1
	if to, err := Next(at.State, e.event(), at.Before); err == nil {
		at.move(to)
	}
	return nil
}

// unverified is a temporary error: a message could not be verified.
type unverified struct{ error }

func (u *unverified) Unwrap() error { return u.error }

// advance moves the head to at if that is further; s.mu is held.
func (s *Session) advance(at point, e *Envelope) {
	if at.Position > s.st.Head.Position {
		s.st.Head = at.clone()
		s.st.Last = e.Timestamp
		s.st.State = at.State
	}
}

// Messages gives the messages of the other participants, verified and in the order
// of the chain, from the first unread message on. A message counts as read when the
// loop asks for the next; this position is stored. Messages waits for new messages,
// across broken connections and restarts, until the session is over or ctx ends. A
// message that does not verify is an error and ends it, too.
func (s *Session) Messages(ctx context.Context) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		s.mu.Lock()
		at := s.st.Read.clone()
		s.mu.Unlock()
		s.follow(ctx, at, func(m *Message, at point) error {
			if m.Sender.AgentID != s.st.Agent && !yield(m, nil) {
				return errStop
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.st.Read = at.clone()
			return s.save(ctx)
		}, func(err error) { yield(nil, err) })
	}
}

// follow verifies and delivers the messages after at.
func (s *Session) follow(ctx context.Context, at point, take func(*Message, point) error, fail func(error)) {
	path := "/v1/asp/sessions/" + s.st.ID + "/events"
	last := func() string {
		if at.Position == 0 {
			return ""
		}
		return strconv.FormatInt(at.Position-1, 10)
	}
	over := false
	onEvent := func(ev event) error {
		switch ev.kind {
		case "session_state":
			var f struct {
				State State `json:"state"`
			}
			if err := jsonx.Decode(ev.data, &f); err == nil {
				over = f.State.Terminal()
			}
			if ev.id >= at.Position { // a record of the server: a timeout or a close
				at.Position = ev.id + 1
				at.move(f.State)
				s.mu.Lock()
				if at.Position > s.st.Head.Position && at.Hash == s.st.Head.Hash {
					s.st.Head, s.st.State = at.clone(), f.State
				}
				s.mu.Unlock()
			}
		case "message":
			e, err := s.c.envelopeOf(ev)
			if err == nil {
				err = s.verify(ctx, &at, e, ev.id)
			}
			if later := new(unverified); errors.As(err, &later) {
				return later // the next stream repeats it
			}
			if err != nil {
				fail(err)
				return errStop
			}
			s.mu.Lock()
			s.advance(at, e)
			s.mu.Unlock()
			return take(&Message{e, e.Content.Body, ev.id, at.State}, at)
		}
		if over {
			return errStop
		}
		return nil
	}
	s.c.stream(ctx, path, last, onEvent, fail)
}

// Ask sends a QUERY and waits for its answer: a message of another participant that
// refers to the QUERY, or the first INFORM without a reference, and that is not
// [Envelope.Interim]. [Session.Messages] still gives the answer and the messages
// before it.
func (s *Session) Ask(ctx context.Context, q Question, opts ...SendOption) (*Message, error) {
	e, err := s.Send(ctx, Query, q, opts...)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	at := s.st.Read.clone()
	s.mu.Unlock()
	var answer *Message
	asked := false
	s.follow(ctx, at, func(m *Message, _ point) error {
		if m.MessageID == e.MessageID {
			asked = true
		}
		ref := m.Reference()
		if !asked || m.Interim() || m.Sender.AgentID == s.st.Agent ||
			ref != e.ownID() && ref != e.MessageID && (ref != "" || m.Performative != Inform) {
			return nil
		}
		answer = m
		return errStop
	}, func(failed error) { err = failed })
	if answer == nil && err == nil {
		err = refuse("session_closed", "")
	}
	return answer, err
}

// Close sends a CLOSE.
func (s *Session) Close(ctx context.Context, reason string) error {
	_, err := s.Send(ctx, Close, Closing{Reason: reason})
	return err
}

// Export writes the transcript of the session and verifies it meanwhile, against
// the keys and the head of this Session: it detects a server that left out an
// acknowledged message. [VerifyTranscript] reads the result.
func (s *Session) Export(ctx context.Context, w io.Writer) (*TranscriptReport, error) {
	token, err := s.c.access(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := s.c.start(ctx, "GET", "/v1/asp/sessions/"+url.PathEscape(s.st.ID)+"/transcript", "", nil, token, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	report, err := TranscriptVerifier{}.Verify(ctx, io.TeeReader(resp.Body, w))
	if err != nil {
		return report, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if report.SessionID != s.st.ID || report.Records < s.st.Head.Position ||
		report.Records == s.st.Head.Position && report.Head != s.st.Head.Hash {
		return report, fmt.Errorf("%w: it lacks messages that were acknowledged", ErrTranscript)
	}
	return report, nil
}
