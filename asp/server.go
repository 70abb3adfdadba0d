package asp

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A Server is the sequencer of sessions and their registry of agents: an
// [http.Handler] for the HTTP, SSE and WebSocket bindings, and a library
// ([Server.Ingest], [Server.Register] …) for programs that bring their own.
// Its zero value works in process and lets nobody register. It is safe for
// concurrent use; its fields must not change after the first use.
type Server struct {
	Store     Store  // nil: in process, bounded
	PublicURL string // scheme and host as clients see them, e.g. "https://hub.example"; empty: from the request
	Identity  *Identity
	// Identity, when set, signs exported transcripts; its card is served as
	// the well-known document.

	Registration Registration
	TokenKey     []byte        // of access tokens, 32 bytes; nil: a new one for this process
	TokenLife    time.Duration // 0: 1 h

	Limits     Limits
	Timeouts   Timeouts
	Proofs     Window
	Skew       time.Duration // of timestamps; 0: 300 s
	Levels     TrustLevels   // zero: DefaultTrustLevels
	MinTrust   float64       // score that an inviter needs; by what is computed here
	Invites    Rates         // invitations per agent
	Messages   rate.Limit    // messages per second and agent; 0: no limit
	Heartbeat  time.Duration // of streams; 0: 30 s
	AuthWait   time.Duration // for the first frame of a WebSocket; 0: 10 s
	WriteWait  time.Duration // for a peer that does not read; 0: 30 s
	MaxLive    int           // sessions held ready; 0: 10,000
	MaxStreams int           // SSE and WebSocket connections; 0: 10,000

	// Admit is asked before a message that passed all checks is recorded. An
	// error refuses it: make it with [Refuse].
	Admit func(context.Context, *Request) error
	// Handler gets every recorded message, in the order of the chain within its
	// session and before the sender hears "accepted". If it fails, the sender is
	// told to try again; the retransmission comes with Duplicate set.
	Handler func(context.Context, *Request) error
	// Refused is told of every refusal. The reference that it returns goes to
	// the sender as header Parley-Ref and in details.reference.
	Refused func(context.Context, *Refusal) (reference string)
	// Changed is told of records that no message caused: timeouts, closings,
	// disputes.
	Changed func(context.Context, *Record)
	// Guest reports whether an agent is one for whom nobody vouches: it
	// registered itself. All guests together have a sixteenth of the memory for
	// proofs of requests, and a quarter of the streams. Nil: there are none.
	Guest func(agent string) bool
	// Authenticated is told the agent that an HTTP request was proved to come
	// from, and again now and then while the answer is a stream.
	Authenticated func(ctx context.Context, agent string)

	Now func() time.Time // nil: time.Now

	once     sync.Once
	store    Store
	tokenKey []byte
	mu       sync.Mutex
	scores   atomic.Int64 // counts changes of agents, for streams
	live     map[string]*liveSession
	inboxes  map[string]*inbox
	streams  streams
	limiters map[string]*limiter
	passing  Memory        // of the proofs of requests that only bring a signed message
	ended    chan struct{} // closed by EndStreams
	endOnce  sync.Once
}

// Registration says who may register an agent that is not there yet. A
// registered agent can always replace its card by proof of its present key.
type Registration int

// The policies.
const (
	RegistrationClosed Registration = iota // only [Server.Register] does
	RegistrationOpen                       // anybody who proves the card's own keys
)

// Rates are invitations per minute and agent, by trust level (project).
type Rates struct {
	Low  int // levels 0 and 1; 0: 10
	High int // levels above; 0: 60
}

// A Request is a message on its way in.
type Request struct {
	*Envelope
	Verdict   Verdict
	Agent     *Agent
	Position  int64
	Before    *Ledger // nil for an invitation that opens a session
	After     *Ledger
	Received  time.Time
	Duplicate bool // a retransmission of what is recorded already
}

// A Refusal is a message or request that was refused.
type Refusal struct {
	Time    time.Time
	Agent   string // authenticated; empty if not
	Session string
	Raw     []byte // the message, if it was one
	Note    any    // of the envelope that Say took
	Err     *Error
	Verdict Verdict
}

// A Receipt acknowledges a message: it is recorded.
type Receipt struct {
	MessageID      string `json:"messageId"`
	SequenceNumber int64  `json:"sequenceNumber"`
	Position       int64  `json:"position"`
	State          State  `json:"state"`
	Duplicate      bool   `json:"-"`
}

type liveSession struct {
	id     string
	mu     sync.Mutex
	ledger *Ledger // nil: not loaded, or not there

	// Under Server.mu.
	users    int
	watchers []*watcher
	members  int // at the last wake
}

type limiter struct {
	invites, messages *rate.Limiter
	used              time.Time
}

func (s *Server) init() {
	s.once.Do(func() {
		if s.store = s.Store; s.store == nil {
			s.store = NewMemoryStore(MemoryLimits{}, s.Now)
		}
		if s.tokenKey = s.TokenKey; len(s.tokenKey) == 0 {
			s.tokenKey = make([]byte, 32)
			_, _ = rand.Read(s.tokenKey) // never fails
		}
		s.live = make(map[string]*liveSession)
		s.inboxes = make(map[string]*inbox)
		s.limiters = make(map[string]*limiter)
		s.passing = NewMemory(0, s.Now)
		s.ended = make(chan struct{})
	})
}

func (s *Server) now() time.Time { return clock(s.Now)() }

func (s *Server) levels() TrustLevels {
	return or(s.Levels, DefaultTrustLevels())
}

// refused reports err to the hook and gives it as *Error with its reference.
func (s *Server) refused(ctx context.Context, agent, session string, raw []byte, err error) *Error {
	return s.report(ctx, &Refusal{Agent: agent, Session: session, Raw: raw}, err)
}

func (s *Server) report(ctx context.Context, x *Refusal, err error) *Error {
	e := *asError(err)
	if s.Refused != nil {
		x.Time, x.Err, x.Verdict = s.now(), &e, VerdictOf(&e)
		e.Reference = s.Refused(ctx, x)
	}
	return &e
}

// acquire gives the live session, to be released. At most MaxLive idle ones
// are kept.
func (s *Server) acquire(id string) *liveSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.live[id]
	if l == nil {
		if len(s.live) >= or(s.MaxLive, 10_000) {
			s.evict()
		}
		l = &liveSession{id: id}
		s.live[id] = l
	}
	l.users++
	return l
}

// evict forgets a few idle sessions; they are loaded again when needed.
func (s *Server) evict() {
	freed := 0
	for id, l := range s.live {
		if l.users == 0 {
			delete(s.live, id)
			if freed++; freed == 64 {
				return
			}
		}
	}
}

func (s *Server) release(l *liveSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.users--; l.users == 0 && l.ledger == nil {
		delete(s.live, l.id) // somebody asked for a session that is not there
	}
}

// load gives the ledger under l's lock, timeouts applied; nil if there is no
// such session.
func (s *Server) load(ctx context.Context, id string, l *liveSession, fresh bool) (*Ledger, error) {
	if l.ledger == nil || fresh {
		ledger, err := s.store.Ledger(ctx, id)
		switch {
		case errors.Is(err, ErrNotFound):
			l.ledger = nil
			return nil, nil
		case err != nil:
			return nil, err
		}
		l.ledger = ledger
	}
	for range 3 { // AGREEING may time out into a CONVERSING that is over too
		now := s.now()
		if l.ledger.Deadline.IsZero() || now.Before(l.ledger.Deadline) {
			return l.ledger, nil
		}
		after, reason := l.ledger.timeout(now, s.Timeouts)
		r := &Record{Kind: RecordTimeout, Reason: reason}
		if err := s.append(ctx, l, after, r, now); errors.Is(err, ErrConflict) {
			return s.load(ctx, id, l, true)
		} else if err != nil {
			return nil, err
		}
		if s.Changed != nil {
			s.Changed(ctx, r)
		}
	}
	return l.ledger, nil
}

// append records r, whose ledger is after, and wakes who waits.
func (s *Server) append(ctx context.Context, l *liveSession, after *Ledger, r *Record, now time.Time) error {
	var expect Head
	from := Idle
	if l.ledger != nil {
		expect, from = l.ledger.Head, l.ledger.State
	}
	r.Session, r.Position, r.Time, r.From, r.To, r.Ledger = after.ID, expect.Count, now, from, after.State, after
	if err := s.store.Append(ctx, after.ID, expect, r); err != nil {
		return err
	}
	l.ledger = after
	knows := r.Sender
	if from != after.State {
		knows = ""
	}
	s.wake(l, after, knows)
	return nil
}

// wake tells those who follow a session that there is something new. Who said it
// knows already: it is told a little later.
func (s *Server) wake(l *liveSession, after *Ledger, knows string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range l.watchers {
		if w.agent == knows {
			w.later(&s.mu)
		} else {
			w.now()
		}
	}
	before := l.members
	if l.members = len(after.Participants); l.members == before {
		return // nobody was brought in
	}
	for _, p := range after.Participants {
		if i := s.inboxes[p.AgentID]; i != nil {
			close(i.wake)
			i.wake = make(chan struct{})
		}
	}
}

// Notify tells the server that another one sharing its Store appended to a
// session.
func (s *Server) Notify(ctx context.Context, session string) error {
	s.init()
	l := s.acquire(session)
	defer s.release(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.load(ctx, session, l, true)
	if err == nil && ledger != nil {
		s.wake(l, ledger, "")
	}
	return err
}

// Ingest takes one message: it does all steps of [Verifier] in their order and
// records the message, or gives an [*Error] and changes nothing. session is
// the one that the transport names; empty if it names none.
func (s *Server) Ingest(ctx context.Context, raw []byte, t Transport, session string) (*Receipt, error) {
	s.init()
	var receipt *Receipt
	e, err := s.Limits.Decode(raw, or(t.Format, JSON))
	if err == nil {
		receipt, err = s.ingest(ctx, e, t, session)
	}
	if err != nil {
		return nil, s.refused(ctx, t.Agent, session, raw, err)
	}
	return receipt, nil
}

// Say takes a message that [Draft.Sign] made in this process, for an agent
// whose keys the program holds: as Ingest, but what the program computed itself
// a moment ago (hash, signatures) is not computed once more.
func (s *Server) Say(ctx context.Context, e *Envelope) (*Receipt, error) {
	s.init()
	receipt, err := s.ingest(ctx, e, Transport{Format: e.format, Agent: e.Sender.AgentID}, e.SessionID)
	if err != nil {
		return nil, s.report(ctx, &Refusal{Agent: e.Sender.AgentID, Session: e.SessionID, Raw: e.raw, Note: e.Note}, err)
	}
	return receipt, nil
}

func (s *Server) ingest(ctx context.Context, e *Envelope, t Transport, session string) (*Receipt, error) {
	now := s.now()
	if t.Agent != "" && t.Agent != e.Sender.AgentID {
		return nil, refuse("sender_mismatch", "sender.agentId").at(6)
	}
	if session != "" && session != e.SessionID {
		return nil, refuse("session_mismatch", "sessionId").at(6)
	}
	agent, err := s.agent(ctx, e.Sender.AgentID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, refuseCause("internal", "", err).at(6)
	}
	var card *Card
	if agent != nil {
		if card, err = agent.Card(); err != nil {
			return nil, refuseCause("internal", "", err).at(6)
		}
		if card.OrgID != e.Sender.OrgID {
			return nil, refuse("sender_mismatch", "sender.orgId").at(6)
		}
	}
	l := s.acquire(e.SessionID)
	defer s.release(l)
	if err := s.checkMember(ctx, e, l); err != nil {
		return nil, err
	}
	// What needs no session is done without its lock.
	made := card != nil && e.madeBy(card)
	if !made {
		if err := e.checkHash(); err != nil {
			return nil, err
		}
	}
	if card == nil {
		return nil, refuse("key_unknown", "sender.agentId").at(9)
	}
	if !made && !e.signedBy(card.SigningKey) {
		return nil, refuse("bad_signature", "integrity.signature").at(9)
	}
	proof, proofErr := e.checkProof(card.Key(), t.AccessToken, now, s.Proofs, made)
	digest := e.Digest()

	l.mu.Lock()
	defer l.mu.Unlock()
	for try := range maxTries {
		receipt, err := s.sequence(ctx, e, agent, l, proof, proofErr, digest, now, try > 0)
		if errors.Is(err, ErrConflict) || try == 0 && mayBeStale(err) {
			continue
		}
		return receipt, err
	}
	return nil, refuse("chain_mismatch", "integrity.previousHash").at(14)
}

// maxTries bounds how often one message is judged again because another server
// appended meanwhile.
const maxTries = 8

// mayBeStale reports whether a refusal may come of a ledger that another
// server sharing the Store has appended to, or this one without hearing of it:
// a proof that was used may be that of the message itself.
func mayBeStale(err error) bool {
	return errors.Is(err, ErrReplay) || errors.Is(err, ErrChain) || errors.Is(err, ErrSequenceGap) || errors.Is(err, ErrTransition) || errors.Is(err, ErrInvalidBody)
}

// checkMember is step 7.
func (s *Server) checkMember(ctx context.Context, e *Envelope, l *liveSession) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.load(ctx, e.SessionID, l, false)
	if err == nil && ledger != nil && ledger.participant(e.Sender.AgentID) == nil {
		ledger, err = s.load(ctx, e.SessionID, l, true) // another server may have let it in
	}
	switch {
	case err != nil:
		return atStep(asError(err), 7)
	case ledger == nil && !e.IsInvitation():
		return refuse("session_not_found", "sessionId").at(7)
	case ledger != nil && ledger.participant(e.Sender.AgentID) == nil:
		return refuse("not_participant", "sender.agentId").at(7)
	}
	return nil
}

// sequence is steps 10 to 18 and the append, under the lock of the session.
func (s *Server) sequence(ctx context.Context, e *Envelope, agent *Agent, l *liveSession, proof *Proof, proofErr error, digest string, now time.Time, fresh bool) (*Receipt, error) {
	ledger, err := s.load(ctx, e.SessionID, l, fresh)
	if err != nil {
		return nil, err
	}
	req := &Request{Envelope: e, Agent: agent, Before: ledger, Received: now}
	if ledger != nil {
		switch old, err := s.store.Message(ctx, e.SessionID, e.MessageID); {
		case err == nil && old.Signature == e.Integrity.Signature:
			return s.repeat(ctx, req, old, ledger)
		case err != nil && !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	if proofErr != nil {
		return nil, proofErr
	}
	if err := s.checkPlace(ctx, e, ledger); err != nil {
		return nil, err
	}
	if err := e.checkTime(now, s.Skew); err != nil {
		return nil, err
	}
	after, err := s.judge(ctx, e, agent, ledger, now)
	if err != nil {
		return nil, err
	}
	req.After, req.Position = after, after.Head.Count-1
	if s.Admit != nil || s.Handler != nil || s.Store != nil {
		req.Verdict = signedVerdict(agent.keyID, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
	}
	if s.Admit != nil {
		if err := s.Admit(ctx, req); err != nil {
			return nil, atStep(asError(err), 18)
		}
	}
	r := &Record{Kind: RecordMessage, Raw: e.raw, Format: e.format, MessageID: e.MessageID, Sender: e.Sender.AgentID,
		Sequence: e.SequenceNumber, Signature: e.Integrity.Signature, Digest: digest,
		Proof: proof.ReplayKey(), ProofUntil: proof.Until, Request: req, ScoreFrom: e.score.from, ScoreTo: e.score.to}
	err = s.append(ctx, l, after, r, now)
	if r.Request = nil; err != nil { // the log may be kept in memory
		if errors.Is(err, ErrReplay) {
			return nil, refuse("dpop_jti_replayed", "sender.dpopProof").at(11)
		}
		return nil, err
	}
	if err := s.handle(ctx, req); err != nil {
		return nil, err
	}
	return &Receipt{e.MessageID, e.SequenceNumber, r.Position, after.State, false}, nil
}

func (s *Server) handle(ctx context.Context, req *Request) error {
	if s.Handler == nil {
		return nil
	}
	if err := s.Handler(ctx, req); err != nil {
		return refuseCause("internal", "", err)
	}
	return nil
}

// repeat answers a message that is recorded already: success, nothing done
// twice (step 10).
func (s *Server) repeat(ctx context.Context, req *Request, old *Record, ledger *Ledger) (*Receipt, error) {
	req.After, req.Position, req.Duplicate, req.Received = ledger, old.Position, true, old.Time
	if err := s.handle(ctx, req); err != nil {
		return nil, err
	}
	return &Receipt{old.MessageID, old.Sequence, old.Position, ledger.State, true}, nil
}

// checkPlace is steps 12 to 14. The sender has proved to be a participant:
// it may be told the head.
func (s *Server) checkPlace(ctx context.Context, e *Envelope, ledger *Ledger) error {
	next, head, count := int64(0), ZeroHash, int64(0)
	if ledger != nil {
		next, head, count = ledger.participant(e.Sender.AgentID).Next, ledger.Head.Hash, ledger.Head.Count
	}
	with := func(e *Error) error {
		e.Details = map[string]any{"head": head, "lastSequence": count - 1, "nextSequenceNumber": next}
		return e
	}
	switch {
	case e.SequenceNumber < next:
		return with(refuse("equivocation", "sequenceNumber").at(12))
	case e.SequenceNumber > next:
		return with(refuse("sequence_gap", "sequenceNumber").at(12))
	}
	if ledger != nil {
		if _, err := s.store.Message(ctx, e.SessionID, e.MessageID); err == nil {
			return refuse("duplicate_message_id", "messageId").at(13)
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	if e.Integrity.PreviousHash != head {
		return with(refuse("chain_mismatch", "integrity.previousHash").at(14))
	}
	return nil
}

// judge is steps 16 to 18: it gives the ledger that e would lead to.
func (s *Server) judge(ctx context.Context, e *Envelope, agent *Agent, ledger *Ledger, now time.Time) (*Ledger, error) {
	card := agent.card
	var joins *join
	if ledger == nil {
		if e.Recipient == nil {
			return nil, refuse("missing_field", "recipient").at(17)
		}
		to, err := s.join(ctx, e.Recipient.AgentID, "recipient.agentId")
		if err != nil {
			return nil, err
		}
		if to.agent == e.Sender.AgentID {
			return nil, refuse("invalid_field", "recipient.agentId").at(17)
		}
		if err := checkBody(e.Performative, e.body()); err != nil {
			return nil, liveBody(err)
		}
		if f := e.body().get("terms").text("format"); f != "" && Format(f) != e.format {
			return nil, refuse("format_mismatch", "content.body.terms.format").at(17)
		}
		ledger = openLedger(e, join{agent.ID, card.OrgID, agent.keyID}, *to, now)
	} else {
		switch {
		case e.format != ledger.Format:
			return nil, refuse("format_mismatch", "").at(3)
		case e.Version != ledger.Version:
			return nil, refuse("unsupported_version", "version").at(4)
		case ledger.participant(agent.ID).KeyID != agent.keyID:
			return nil, refuse("key_unknown", "sender.agentId").at(9)
		}
	}
	if e.Performative == Delegate && !ledger.State.Terminal() && e.body() != nil {
		if target := e.body().text("targetAgent"); ledger.participant(target) == nil && ValidAgentID(target) {
			var err error
			if joins, err = s.join(ctx, target, "content.body.targetAgent"); err != nil {
				return nil, err
			}
		}
	}
	after, err := ledger.admit(e, joins, now, s.Timeouts)
	if err != nil {
		return nil, err
	}
	if err := s.checkSubject(ctx, e, ledger); err != nil {
		return nil, err
	}
	if err := checkOwnCard(e, card); err != nil {
		return nil, err
	}
	return after, s.gate(e, agent, now)
}

// checkSubject refuses a CLARIFY about something that was not said in the session: it refers
// to an item, a commitment or a message.
func (s *Server) checkSubject(ctx context.Context, e *Envelope, l *Ledger) error {
	about := e.Reference()
	if e.Performative != Clarify || l.item(about) != nil || l.commitment(about) != nil {
		return nil
	}
	_, err := s.store.Message(ctx, e.SessionID, about)
	if errors.Is(err, ErrNotFound) {
		return wrongBody(reference)
	}
	return err
}

// join finds an agent that a message brings into a session.
func (s *Server) join(ctx context.Context, id, path string) (*join, error) {
	a, err := s.agent(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return nil, refuse("agent_not_found", path).at(17)
	}
	if err != nil {
		return nil, err
	}
	card, err := a.Card()
	if err != nil {
		return nil, err
	}
	return &join{id, card.OrgID, a.keyID}, nil
}

// checkOwnCard refuses a card in a message whose keys are not those
// registered for its sender.
func checkOwnCard(e *Envelope, card *Card) error {
	for _, o := range e.Content.Context {
		if o.Type != AgentCardContext {
			continue
		}
		n, err := parseJSON(o.Data)
		if err != nil || n.text("agentId") != "" && n.text("agentId") != e.Sender.AgentID {
			continue
		}
		shown, err := cardOf(n)
		if err != nil || !shown.SigningKey.Equal(card.SigningKey) || !shown.ProofKey.Equal(card.ProofKey) {
			return refuseCause("card_mismatch", "content.context", err).at(17)
		}
	}
	return nil
}

// gate is step 18.
func (s *Server) gate(e *Envelope, agent *Agent, now time.Time) error {
	invitation := e.IsInvitation()
	if invitation && agent.Score() < s.MinTrust {
		return refuse("insufficient_trust_score", "").at(18)
	}
	if !invitation && s.Messages == 0 {
		return nil
	}
	s.mu.Lock()
	l := s.limiters[agent.ID]
	if l == nil {
		if len(s.limiters) >= or(s.MaxLive, 10_000) {
			s.forgetLimiters(now)
		}
		perMinute := or(s.Invites.Low, 10)
		if s.levels().Level(agent.Score()) > 1 {
			perMinute = or(s.Invites.High, 60)
		}
		l = &limiter{invites: rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute),
			messages: rate.NewLimiter(s.Messages, int(max(s.Messages, 1)))}
		s.limiters[agent.ID] = l
	}
	l.used = now
	s.mu.Unlock()
	for _, r := range []struct {
		use   bool
		limit *rate.Limiter
	}{{invitation, l.invites}, {s.Messages > 0, l.messages}} {
		if !r.use || r.limit.AllowN(now, 1) {
			continue
		}
		err := refuse("rate_limited", "").at(18)
		after := int64(1/float64(r.limit.Limit())) + 1
		err.Details = map[string]any{"limit": r.limit.Burst(), "remaining": 0, "retryAfter": after, "reset": now.Unix() + after}
		return err
	}
	return nil
}

// forgetLimiters makes room for one more: those that are full again go, else
// the one not used for longest of those looked at.
func (s *Server) forgetLimiters(now time.Time) {
	oldest, looked := "", 0
	for id, l := range s.limiters {
		if now.Sub(l.used) > time.Minute {
			delete(s.limiters, id)
		} else if oldest == "" || l.used.Before(s.limiters[oldest].used) {
			oldest = id
		}
		if looked++; looked == 256 {
			break
		}
	}
	if len(s.limiters) >= or(s.MaxLive, 10_000) {
		delete(s.limiters, oldest)
	}
}

func (s *Server) agent(ctx context.Context, id string) (*Agent, error) {
	a, err := s.store.Agent(ctx, id)
	if err == nil && a.Removed {
		return nil, ErrNotFound
	}
	return a, err
}

// Session gives the ledger of a session as a participant may see it; agent
// empty means the operator.
func (s *Server) Session(ctx context.Context, id, agent string) (*Ledger, error) {
	s.init()
	l := s.acquire(id)
	defer s.release(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.load(ctx, id, l, false)
	switch {
	case err != nil:
		return nil, err
	case ledger == nil:
		return nil, refuse("session_not_found", "")
	case agent != "" && ledger.participant(agent) == nil:
		return nil, refuse("not_participant", "")
	}
	return ledger, nil
}

// change appends a record that no message caused.
func (s *Server) change(ctx context.Context, id string, r *Record, step func(*Ledger) (*Ledger, error)) (*Ledger, error) {
	s.init()
	l := s.acquire(id)
	defer s.release(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	for fresh := false; ; fresh = true {
		ledger, err := s.load(ctx, id, l, fresh)
		if err != nil {
			return nil, err
		}
		if ledger == nil {
			return nil, refuse("session_not_found", "")
		}
		after, err := step(ledger)
		if err != nil {
			return nil, err
		}
		if err := s.append(ctx, l, after, r, s.now()); err == nil {
			if s.Changed != nil {
				s.Changed(ctx, r)
			}
			return after, nil
		} else if !errors.Is(err, ErrConflict) || fresh {
			return nil, err
		}
	}
}

// CloseSession ends a session without a signed CLOSE. It is recorded outside
// the chain, because the server holds no agent's key.
func (s *Server) CloseSession(ctx context.Context, id, by, reason string) error {
	_, err := s.change(ctx, id, &Record{Kind: RecordClose, By: by, Reason: reason}, func(l *Ledger) (*Ledger, error) {
		if by != "" && l.participant(by) == nil {
			return nil, refuse("not_participant", "")
		}
		if l.State.Terminal() {
			return nil, refuse("session_closed", "")
		}
		return l.closed(reason), nil
	})
	return err
}

// FileDispute records a dispute about an accepted commitment. Escrow and
// penalties are data: nothing here moves money.
func (s *Server) FileDispute(ctx context.Context, d Dispute) error {
	_, err := s.change(ctx, d.SessionID, &Record{Kind: RecordDispute, By: d.FiledBy, Reason: d.Reason, Dispute: &d},
		func(l *Ledger) (*Ledger, error) { return l.dispute(&d) })
	return err
}

// Expire applies the timeouts that are due in all live sessions. Sessions
// that are used do so by themselves; call it now and then for the others.
func (s *Server) Expire(ctx context.Context) error {
	s.init()
	after := ""
	for {
		page, err := s.store.Ledgers(ctx, LedgerQuery{Live: true}, after, 256)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, ledger := range page {
			after = ledger.ID
			if ledger.Deadline.IsZero() || s.now().Before(ledger.Deadline) {
				continue
			}
			if _, err := s.Session(ctx, ledger.ID, ""); err != nil && !errors.Is(err, ErrSessionNotFound) {
				return err
			}
		}
	}
}

// Run calls [Server.Expire] once a second until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if err := s.Expire(ctx); err != nil && ctx.Err() == nil {
				s.refused(ctx, "", "", nil, err)
			}
		}
	}
}

// Register enrols an agent or replaces its card, on the operator's word. Keys
// cannot change while the agent is in a live session.
func (s *Server) Register(ctx context.Context, card []byte) (*Agent, error) {
	s.init()
	for tries := 1; ; tries++ {
		a, err := s.register(ctx, card, true, func(*Card, *Agent) error { return nil })
		// Another server on the same store was sooner, perhaps with this card.
		if !errors.Is(err, ErrAgentExists) || tries == 8 || ctx.Err() != nil {
			return a, err
		}
	}
}

func (s *Server) register(ctx context.Context, b []byte, enrolled bool,
	allow func(*Card, *Agent) error) (*Agent, error) {
	card, err := ParseCard(slices.Clone(b))
	if err != nil {
		return nil, err
	}
	old, err := s.store.Agent(ctx, card.AgentID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if err := allow(card, old); err != nil {
		return nil, err
	}
	now := s.now()
	next := &Agent{ID: card.AgentID, Revision: 1, Enrolled: enrolled}
	if old == nil {
		next.Cards = []CardVersion{{Card: card.raw}}
	} else {
		current, err := old.Card()
		if err != nil {
			return nil, err
		}
		next.Revision, next.Components, next.Enrolled = old.Revision+1, old.Components, enrolled || old.Enrolled
		next.Cards = slices.Clone(old.Cards)
		last := &next.Cards[len(next.Cards)-1]
		switch {
		case current.SigningKey.Equal(card.SigningKey) && current.ProofKey.Equal(card.ProofKey) && current.OrgID == card.OrgID:
			last.Card = card.raw // the same keys: their span goes on
		case len(next.Cards) >= maxCardVersions:
			return nil, refuse("capacity_unavailable", "")
		default:
			if busy, err := s.store.Ledgers(ctx, LedgerQuery{Participant: card.AgentID, Live: true}, "", 1); err != nil {
				return nil, err
			} else if len(busy) > 0 {
				return nil, refuse("agent_in_session", "")
			}
			last.NotAfter = now
			next.Cards = append(next.Cards, CardVersion{Card: card.raw, NotBefore: now})
		}
	}
	if err := s.store.PutAgent(ctx, next); err != nil {
		if errors.Is(err, ErrConflict) {
			return nil, refuse("agent_exists", "")
		}
		return nil, err
	}
	return next, nil
}

// maxCardVersions bounds the rotations of one agent (project).
const maxCardVersions = 256

// Unregister removes an agent: it can neither speak nor be invited. Its id
// stays taken, and its keys stay known for old transcripts.
func (s *Server) Unregister(ctx context.Context, id string) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Removed, a.Evicted = true, false })
}

// Evict is Unregister for an agent that registered itself and gives its place
// to another: it may register again by proof of its present key.
func (s *Server) Evict(ctx context.Context, id string) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Removed, a.Evicted = true, true })
}

// SetTrust replaces the components of an agent's score and tells the sessions
// that it is in.
func (s *Server) SetTrust(ctx context.Context, id string, c TrustComponents) error {
	return s.editAgent(ctx, id, func(a *Agent) { a.Components = c })
}

func (s *Server) editAgent(ctx context.Context, id string, edit func(*Agent)) error {
	s.init()
	old, err := s.store.Agent(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return refuse("agent_not_found", "")
	}
	if err != nil {
		return err
	}
	next := &Agent{ID: id, Revision: old.Revision + 1, Cards: old.Cards, Components: old.Components,
		Enrolled: old.Enrolled, Removed: old.Removed, Evicted: old.Evicted}
	edit(next)
	if err := s.store.PutAgent(ctx, next); err != nil {
		return err
	}
	s.scores.Add(1) // streams look at their participants when they wake
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.live {
		for _, w := range l.watchers {
			w.now()
		}
	}
	return nil
}

// Keys makes the registry a source of keys: also those retired.
func (s *Server) Keys(ctx context.Context, agentID string) ([]Key, error) {
	s.init()
	a, err := s.store.Agent(ctx, agentID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a.Keys(ctx, agentID)
}
