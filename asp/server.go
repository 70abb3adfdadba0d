package asp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A Server is the sequencer of sessions and their registry of agents: an
// [http.Handler] for the HTTP, SSE and WebSocket bindings, and a library
// ([Server.Ingest], [Server.Register] …) for programs with their own bindings. Its
// zero value works in process, with registration closed. It is safe for concurrent
// use; its fields must not change after the first use.
type Server struct {
	Store     Store  // nil: in process, bounded
	PublicURL string // scheme and host as clients see them, e.g. "https://hub.example"; empty: from the request
	Identity  *Identity
	// Identity, when set, signs exported transcripts; its card is served as
	// the well-known document.

	Registration Registration
	TokenKey     []byte // of access tokens, 32 bytes; nil: a new one for this process

	Timeouts   Timeouts
	Invites    Rates         // invitations per agent
	Heartbeat  time.Duration // of streams; 0: 30 s
	AuthWait   time.Duration // for the first frame of a WebSocket; 0: 10 s
	WriteWait  time.Duration // for a peer that does not read; 0: 30 s
	MaxLive    int           // sessions kept in memory; 0: 10,000
	MaxStreams int           // SSE and WebSocket connections; 0: 10,000

	// Admit is called before the server records a message that passed all checks.
	// An error refuses the message: make it with [Refuse].
	Admit func(context.Context, *Request) error
	// Refused is called for every refusal. The returned reference goes to the sender
	// as header Parley-Ref and in details.reference.
	Refused func(context.Context, *Refusal) (reference string)
	// Guest reports whether an agent is a guest: it registered itself, and nobody
	// vouches for it. All guests together get a sixteenth of the memory for proofs
	// of requests, and a quarter of the streams. Nil: there are no guests.
	Guest func(agent string) bool
	// Authenticated is called with the authenticated agent of an HTTP request, and
	// repeatedly while the answer is a stream.
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
	passing  Memory        // of the proofs of requests that only carry a signed message
	ended    chan struct{} // closed by EndStreams
	endOnce  sync.Once
}

// Registration is the policy for new agents. A registered agent can always replace
// its card by proof of its current key.
type Registration int

// The policies.
const (
	RegistrationClosed Registration = iota // only by [Server.Register]
	RegistrationOpen                       // also by agents, with proof of the card's keys
)

// A Request is a message before it is recorded.
type Request struct {
	*Envelope
	Verdict  Verdict
	Agent    *Agent
	Position int64
	Before   *Ledger // nil for an invitation that opens a session
	After    *Ledger
}

// A Refusal is a message or request that was refused.
type Refusal struct {
	Time    time.Time
	Agent   string // authenticated; empty if not
	Session string
	To      string // the agent that the message names as its recipient
	Raw     []byte // the message, if there was one
	Note    any    // of the envelope that Say took
	Err     *Error
	Verdict Verdict
}

// A Receipt acknowledges a recorded message.
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
	ledger *Ledger // nil: not loaded, or no such session

	// Under Server.mu.
	users    int
	watchers []*watcher
	members  int // at the last wake
}

func (s *Server) init() {
	s.once.Do(func() {
		s.store = s.Store
		if s.store == nil {
			s.store = NewMemoryStore(MemoryLimits{}, s.Now)
		}
		s.tokenKey = s.TokenKey
		if len(s.tokenKey) == 0 {
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

// acquire gives the live session; the caller releases it. At most MaxLive idle
// sessions stay in memory.
func (s *Server) acquire(id string) *liveSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.live[id]
	if l == nil {
		if len(s.live) >= cmp.Or(s.MaxLive, 10_000) {
			s.evict()
		}
		l = &liveSession{id: id}
		s.live[id] = l
	}
	l.users++
	return l
}

// evict drops a few idle sessions from memory.
func (s *Server) evict() {
	freed := 0
	for id, l := range s.live {
		if l.users == 0 {
			delete(s.live, id)
			freed++
			if freed == 64 {
				return
			}
		}
	}
}

func (s *Server) release(l *liveSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.users--
	if l.users == 0 && l.ledger == nil {
		delete(s.live, l.id) // a caller named an unknown session
	}
}

// load gives the ledger under l's lock, timeouts applied; nil if there is no
// such session.
func (s *Server) load(ctx context.Context, l *liveSession, fresh bool) (*Ledger, error) {
	if l.ledger == nil || fresh {
		ledger, err := s.store.Ledger(ctx, l.id)
		switch {
		case errors.Is(err, ErrNotFound):
			l.ledger = nil
			return nil, nil
		case err != nil:
			return nil, err
		}
		l.ledger = ledger
	}
	for range 3 { // AGREEING may time out into a CONVERSING that has timed out, too
		now := s.now()
		if l.ledger.Deadline.IsZero() || now.Before(l.ledger.Deadline) {
			return l.ledger, nil
		}
		after, reason := l.ledger.timeout(now, s.Timeouts)
		r := &Record{Kind: RecordTimeout, Reason: reason}
		if err := s.append(ctx, l, after, r, now); errors.Is(err, ErrConflict) {
			return s.load(ctx, l, true)
		} else if err != nil {
			return nil, err
		}
	}
	return l.ledger, nil
}

// append records r, whose ledger is after, and wakes the waiting streams.
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

// wake notifies the streams of a session of a new record; the sender's stream a
// little later, because the sender has the receipt.
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
	l.members = len(after.Participants)
	if l.members == before {
		return // no participant was added
	}
	for _, p := range after.Participants {
		if i := s.inboxes[p.AgentID]; i != nil {
			close(i.wake)
			i.wake = make(chan struct{})
		}
	}
}

// Notify tells the server that another server on the same Store appended to a
// session.
func (s *Server) Notify(ctx context.Context, session string) error {
	s.init()
	l := s.acquire(session)
	defer s.release(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.load(ctx, l, true)
	if err == nil && ledger != nil {
		s.wake(l, ledger, "")
	}
	return err
}

// Session gives the ledger of a session to a participant, or to the operator if
// agent is empty.
func (s *Server) Session(ctx context.Context, id, agent string) (*Ledger, error) {
	s.init()
	l := s.acquire(id)
	defer s.release(l)
	ledger, err := s.look(ctx, l, agent)
	if err == nil && agent != "" && ledger.participant(agent) == nil {
		return nil, refuse("not_participant", "")
	}
	return ledger, err
}

// look gives the ledger of an acquired session, as loadFor does for an agent that is
// named.
func (s *Server) look(ctx context.Context, l *liveSession, agent string) (*Ledger, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ledger, err := s.loadFor(ctx, l, agent)
	if err == nil && ledger == nil {
		err = refuse("session_not_found", "")
	}
	return ledger, err
}

// loadFor gives the ledger of a session, nil if there is none. It reads it again from
// the Store if an agent that is named is no participant: another server may have added
// the agent. l.mu is held.
func (s *Server) loadFor(ctx context.Context, l *liveSession, agent string) (*Ledger, error) {
	ledger, err := s.load(ctx, l, false)
	if err == nil && ledger != nil && agent != "" && ledger.participant(agent) == nil {
		return s.load(ctx, l, true)
	}
	return ledger, err
}

// change appends a record without a message.
func (s *Server) change(ctx context.Context, id string, r *Record, step func(*Ledger) (*Ledger, error)) error {
	s.init()
	l := s.acquire(id)
	defer s.release(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	for fresh := false; ; fresh = true {
		ledger, err := s.load(ctx, l, fresh)
		if err != nil {
			return err
		}
		if ledger == nil {
			return refuse("session_not_found", "")
		}
		after, err := step(ledger)
		if err == nil {
			err = s.append(ctx, l, after, r, s.now())
		}
		// Another server may have appended.
		if err == nil || fresh || !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotParticipant) {
			return err
		}
	}
}

// CloseSession ends a session without a signed CLOSE. The record is outside the
// chain, because the server has no agent's key.
func (s *Server) CloseSession(ctx context.Context, id, by, reason string) error {
	return s.change(ctx, id, &Record{Kind: RecordClose, By: by, Reason: reason}, func(l *Ledger) (*Ledger, error) {
		if by != "" && l.participant(by) == nil {
			return nil, refuse("not_participant", "")
		}
		if l.State.Terminal() {
			return nil, refuse("session_closed", "")
		}
		return l.closed(reason), nil
	})
}

// FileDispute records a dispute about an accepted commitment. Escrow and
// penalties are data: nothing here moves money.
func (s *Server) FileDispute(ctx context.Context, d Dispute) error {
	return s.change(ctx, d.SessionID, &Record{Kind: RecordDispute, By: d.FiledBy, Reason: d.Reason, Dispute: &d},
		func(l *Ledger) (*Ledger, error) { return l.dispute(&d) })
}

// Expire applies the due timeouts of all live sessions. Call it regularly: without
// it, a session times out only at its next use.
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
