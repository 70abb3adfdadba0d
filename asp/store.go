package asp

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Store keeps the durable state of a [Server]. Several servers may share a Store:
// the head of a session decides between concurrent appends. The values that a Store
// returns must not be changed.
type Store interface {
	Memory // the proofs of HTTP requests

	// Append adds r to a session whose head is expect, and makes r.Ledger its
	// ledger. It is atomic: the record, the head, the counters (in the ledger) and
	// the memory of r.Proof. It fails with ErrConflict when the session has another
	// head, with ErrReplay when r.Proof was recorded before, with ErrFull when there
	// is no room. A Head with Count 0 opens a session.
	Append(ctx context.Context, session string, expect Head, r *Record) error
	// Ledger gives the newest ledger, or ErrNotFound.
	Ledger(ctx context.Context, session string) (*Ledger, error)
	// Message finds a message by its id in constant time, or gives ErrNotFound.
	Message(ctx context.Context, session, messageID string) (*Record, error)
	// Records gives at most limit records from position from on.
	Records(ctx context.Context, session string, from int64, limit int) ([]*Record, error)
	// Ledgers gives at most limit sessions, those after the session named, in the
	// order of their ids, which is the order of their creation.
	Ledgers(ctx context.Context, q LedgerQuery, after string, limit int) ([]*Ledger, error)

	// Agent gives an agent, or ErrNotFound.
	Agent(ctx context.Context, id string) (*Agent, error)
	// PutAgent writes an agent if its stored revision is a.Revision-1 (0: not
	// stored), or fails with ErrConflict.
	PutAgent(ctx context.Context, a *Agent) error
	// Agents gives at most limit agents in the order of their ids.
	Agents(ctx context.Context, q AgentQuery, after string, limit int) ([]*Agent, error)
}

// LedgerQuery selects sessions.
type LedgerQuery struct {
	Participant string // empty: any
	Live        bool   // only those not in a terminal state
}

// AgentQuery selects agents.
type AgentQuery struct {
	Capability string  // empty: any
	MinTrust   float64 // of the server's score
	Name       string  // the last segment of the URI; empty: any
}

// A Record is one entry of a session's log: a message, a timeout, a close or a
// dispute.
type Record struct {
	Session  string     `json:"session"`
	Position int64      `json:"position"`
	Kind     RecordKind `json:"kind"`
	Time     time.Time  `json:"time"` // of receipt
	From     State      `json:"from"`
	To       State      `json:"to"`

	// Fields of messages.
	Raw       []byte `json:"raw,omitempty"` // as received
	Format    Format `json:"format,omitempty"`
	MessageID string `json:"messageId,omitempty"`
	Sender    string `json:"sender,omitempty"`
	Sequence  int64  `json:"sequence,omitempty"`
	Signature string `json:"signature,omitempty"`
	Digest    string `json:"digest,omitempty"`   // [Envelope.Digest]
	ScoreFrom int    `json:"scoreFrom,omitzero"` // where Raw holds sender.trustScore
	ScoreTo   int    `json:"scoreTo,omitzero"`

	// Fields of the other kinds.
	By      string   `json:"by,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Dispute *Dispute `json:"dispute,omitempty"`

	Proof      string    `json:"proof,omitempty"` // [Proof.ReplayKey], to be remembered
	ProofUntil time.Time `json:"proofUntil,omitzero"`
	Ledger     *Ledger   `json:"-"` // after this record; the Store keeps the newest of a session
	Request    *Request  `json:"-"` // of a new message, for a Store that records more than the log; else nil
}

// A RecordKind is the kind of a record.
type RecordKind string

// The kinds.
const (
	RecordMessage RecordKind = "message"
	RecordErased  RecordKind = "erased" // a message whose content was erased: Raw is gone
	RecordTimeout RecordKind = "timeout"
	RecordClose   RecordKind = "close" // ended by a participant without a signed CLOSE
	RecordDispute RecordKind = "dispute"
)

// An Agent is a registered agent.
type Agent struct {
	ID         string          `json:"agentId"`
	Revision   int64           `json:"revision"`
	Cards      []CardVersion   `json:"cards"` // oldest first; the last is current
	Components TrustComponents `json:"trustComponents"`
	Enrolled   bool            `json:"enrolled,omitempty"` // by the operator, [Server.Register]
	Removed    bool            `json:"removed,omitempty"`  // the id stays reserved, the keys known
	Evicted    bool            `json:"evicted,omitempty"`  // Removed to make room: it may register again

	once  sync.Once
	keys  []Key
	card  *Card
	keyID string // of card
	err   error
}

// A CardVersion is a card and the time span of its keys.
type CardVersion struct {
	Card      json.RawMessage `json:"card"`
	NotBefore time.Time       `json:"notBefore,omitzero"`
	NotAfter  time.Time       `json:"notAfter,omitzero"`
}

// Score is the agent's trust score, computed from its components.
func (a *Agent) Score() float64 { return a.Components.Score() }

// Card gives the current card.
func (a *Agent) Card() (*Card, error) {
	a.parse()
	return a.card, a.err
}

// Keys implements [Keys] for the agent's own keys, oldest first.
func (a *Agent) Keys(_ context.Context, agentID string) ([]Key, error) {
	a.parse()
	if agentID != a.ID {
		return nil, nil
	}
	return a.keys, a.err
}

// parse parses the cards once; registration has validated them.
func (a *Agent) parse() {
	a.once.Do(func() {
		for _, v := range a.Cards {
			card, err := ParseCard(v.Card)
			if err != nil {
				a.err = err
				return
			}
			key := card.Key()
			key.NotBefore, key.NotAfter = v.NotBefore, v.NotAfter
			a.keys = append(a.keys, key)
			a.card = card
		}
		if a.card == nil {
			a.err = refuse("key_unknown", "")
			return
		}
		a.keyID = a.card.Key().ID()
	})
}

// MemoryLimits bound a store in process. Each comment names the default.
type MemoryLimits struct {
	Sessions int   // 10,000; a full store drops the oldest session that is over
	Bytes    int64 // of messages: 256 MiB
	Agents   int   // 10,000
	Proofs   int   // 1,048,576
}

// NewMemoryStore gives a Store in memory, which does not survive the process.
func NewMemoryStore(l MemoryLimits, now func() time.Time) Store {
	return &memoryStore{limits: l, Memory: NewMemory(l.Proofs, now), sessions: make(map[string]*memorySession),
		agents: make(map[string]*Agent), byAgent: make(map[string][]string)}
}

type memoryStore struct {
	Memory
	limits MemoryLimits

	mu       sync.Mutex
	sessions map[string]*memorySession
	over     []string // sessions in a terminal state, oldest first
	byAgent  map[string][]string
	ids      []string // sessions, sorted
	bytes    int64
	agents   map[string]*Agent
	agentIDs []string // sorted
}

type memorySession struct {
	ledger  *Ledger
	records []*Record
	ids     map[string]*Record
	bytes   int64
}

func (m *memoryStore) Append(ctx context.Context, session string, expect Head, r *Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[session]
	switch {
	case s == nil && expect.Count != 0, s != nil && s.ledger.Head != expect:
		return ErrConflict
	case !m.room(s == nil, int64(len(r.Raw))):
		return refuse("capacity_unavailable", "")
	}
	if r.Proof != "" {
		fresh, err := m.Seen(ctx, r.Proof, r.ProofUntil)
		if err != nil {
			return err
		}
		if !fresh {
			return refuse("dpop_jti_replayed", "sender.dpopProof")
		}
	}
	var before []Participant
	if s == nil {
		s = &memorySession{ids: make(map[string]*Record)}
		m.sessions[session] = s
		m.ids = insertSorted(m.ids, session)
	} else {
		before = s.ledger.Participants
	}
	for _, p := range r.Ledger.Participants[len(before):] {
		m.byAgent[p.AgentID] = insertSorted(m.byAgent[p.AgentID], session)
	}
	s.records = append(s.records, r)
	if r.MessageID != "" {
		s.ids[r.MessageID] = r
	}
	s.bytes += int64(len(r.Raw))
	m.bytes += int64(len(r.Raw))
	if r.Ledger.State.Terminal() && (s.ledger == nil || !s.ledger.State.Terminal()) {
		m.over = append(m.over, session)
	}
	s.ledger = r.Ledger
	return nil
}

func insertSorted(list []string, s string) []string {
	at, found := slices.BinarySearch(list, s)
	if found {
		return list
	}
	return slices.Insert(list, at, s)
}

func removeSorted(list []string, s string) []string {
	if at, found := slices.BinarySearch(list, s); found {
		return slices.Delete(list, at, at+1)
	}
	return list
}

// room makes room for n bytes and, if session is set, for a session: it drops
// sessions that are over.
func (m *memoryStore) room(session bool, n int64) bool {
	full := func() bool {
		return session && len(m.sessions) >= cmp.Or(m.limits.Sessions, 10_000) ||
			m.bytes+n > cmp.Or(m.limits.Bytes, 256<<20)
	}
	for full() && len(m.over) > 0 {
		id := m.over[0]
		m.over = m.over[1:]
		s := m.sessions[id]
		m.bytes -= s.bytes
		for _, p := range s.ledger.Participants {
			m.byAgent[p.AgentID] = removeSorted(m.byAgent[p.AgentID], id)
			if len(m.byAgent[p.AgentID]) == 0 {
				delete(m.byAgent, p.AgentID)
			}
		}
		m.ids = removeSorted(m.ids, id)
		delete(m.sessions, id)
	}
	return !full()
}

func (m *memoryStore) Ledger(_ context.Context, session string) (*Ledger, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[session]; s != nil {
		return s.ledger, nil
	}
	return nil, ErrNotFound
}

func (m *memoryStore) Message(_ context.Context, session, messageID string) (*Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[session]; s != nil {
		if r := s.ids[messageID]; r != nil {
			return r, nil
		}
	}
	return nil, ErrNotFound
}

func (m *memoryStore) Records(_ context.Context, session string, from int64, limit int) ([]*Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[session]
	if s == nil {
		return nil, ErrNotFound
	}
	from = min(max(from, 0), int64(len(s.records)))
	to := min(from+int64(limit), int64(len(s.records)))
	return slices.Clone(s.records[from:to]), nil
}

func (m *memoryStore) Ledgers(_ context.Context, q LedgerQuery, after string, limit int) ([]*Ledger, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := m.ids
	if q.Participant != "" {
		ids = m.byAgent[q.Participant]
	}
	var out []*Ledger
	at, found := slices.BinarySearch(ids, after)
	if found {
		at++
	}
	for ; at < len(ids) && len(out) < limit; at++ {
		if l := m.sessions[ids[at]].ledger; !q.Live || !l.State.Terminal() {
			out = append(out, l)
		}
	}
	return out, nil
}

func (m *memoryStore) Agent(_ context.Context, id string) (*Agent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.agents[id]; a != nil {
		return a, nil
	}
	return nil, ErrNotFound
}

func (m *memoryStore) PutAgent(_ context.Context, a *Agent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.agents[a.ID]
	switch {
	case old == nil && a.Revision != 1, old != nil && old.Revision != a.Revision-1:
		return ErrConflict
	case old == nil && len(m.agents) >= cmp.Or(m.limits.Agents, 10_000):
		return refuse("capacity_unavailable", "")
	}
	m.agents[a.ID] = a
	m.agentIDs = insertSorted(m.agentIDs, a.ID)
	return nil
}

func (m *memoryStore) Agents(_ context.Context, q AgentQuery, after string, limit int) ([]*Agent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, found := slices.BinarySearch(m.agentIDs, after)
	if found {
		at++
	}
	var out []*Agent
	for ; at < len(m.agentIDs) && len(out) < limit; at++ {
		if a := m.agents[m.agentIDs[at]]; q.Matches(a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// Matches reports whether q selects a. Removed agents are never selected.
func (q AgentQuery) Matches(a *Agent) bool {
	card, err := a.Card()
	return err == nil && !a.Removed && (q.Capability == "" || slices.Contains(card.Capabilities, q.Capability)) &&
		a.Score() >= q.MinTrust && (q.Name == "" || a.ID[strings.LastIndexByte(a.ID, '/')+1:] == q.Name)
}
