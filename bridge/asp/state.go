package asp

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// The buckets of the journal's state.
const (
	bucketAgents   = "asp-agents"   // by agent URI: protocol.Agent
	bucketSessions = "asp-sessions" // by session: checkpoint
	bucketPages    = "asp-pages"    // session/number: positions of pageSize records, 24 bytes each
	bucketProofs   = "asp-proofs"   // used proofs of HTTP requests
	bucketOpened   = "asp-opened"   // sessions that the hub opened, by [openedKey]
)

// store is a [protocol.Store] on the journal. The log of a session is a chain of the
// journal: the hub's record of a message is the session's record. The state of a
// session is derived from its log; a checkpoint every pageSize records shortens the
// replay.
type store struct {
	protocol.Memory // of this process; for a key that it does not know, the journal decides

	b        *Binding
	j        *journal.Journal
	agents   *journal.Table[*protocol.Agent] // without removed agents, which only old transcripts need
	sessions *journal.Table[*checkpoint]
	erased   *journal.Table[*protocol.Record]
	pages    journal.State
	proofs   journal.State

	mu        sync.Mutex
	chains    map[string]*chain
	summaries map[string]*summary
	byAgent   map[string][]string  // sessions, sorted
	talks     map[parley.ID]string // session by its conversation
	ids       []string             // sessions, sorted
	agentIDs  []string             // sorted
	stops     []func()
}

// summary is in memory for every session.
type summary struct {
	participants []string
	over         bool
	deadline     time.Time // when the state times out; zero: never, or unknown
	known        bool      // deadline is that of the newest record
}

func newStore(b *Binding) *store {
	j := b.c.Journal
	s := &store{Memory: protocol.NewMemory(0, b.c.Now), b: b, j: j,
		agents:   journal.NewTable[*protocol.Agent](j, bucketAgents, 0),
		sessions: journal.NewTable[*checkpoint](j, bucketSessions, 0),
		erased:   journal.NewTable[*protocol.Record](j, bucketErased, 0),
		pages:    j.State(bucketPages), proofs: j.State(bucketProofs),
		chains: map[string]*chain{}, summaries: map[string]*summary{},
		byAgent: map[string][]string{}, talks: map[parley.ID]string{}}
	s.agents.Omit(func(a *protocol.Agent) bool { return a.Removed })
	return s
}

// start reads the state from the journal.
func (s *store) start(ctx context.Context) error {
	stop, err := s.agents.Follow(ctx, s.agentChanged)
	if err != nil {
		return fmt.Errorf("read the registered agents: %w", err)
	}
	s.stops = append(s.stops, stop)
	if stop, err = s.sessions.Watch(ctx, "", s.sessionChanged); err != nil {
		return fmt.Errorf("read the sessions: %w", err)
	}
	s.stops = append(s.stops, stop)
	return nil
}

func (s *store) stop() {
	for _, f := range s.stops {
		f()
	}
}

// liveSession gives the live session of a conversation, if both agents are in it.
func (s *store) liveSession(conversation parley.ID, one, other string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.talks[conversation]
	if m := s.summaries[id]; m == nil || m.over || !slices.Contains(m.participants, one) ||
		!slices.Contains(m.participants, other) {
		return ""
	}
	return id
}

func (s *store) sessionChanged(row journal.Row[*checkpoint]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := row.Value; row.Revision == 0 {
		s.abandonedLocked(row.Key)
	} else {
		s.noteSession(row.Key, c.Participants, c.Ledger != nil && c.Ledger.State.Terminal())
	}
}

// noteSession updates the summary of a session. The caller holds s.mu.
func (s *store) noteSession(id string, participants []string, over bool) *summary {
	m := s.summaries[id]
	if m == nil {
		m = &summary{}
		s.summaries[id] = m
		s.ids = insertSorted(s.ids, id)
		s.talks[s.b.conversation(id)] = id
	}
	for _, p := range participants {
		if !slices.Contains(m.participants, p) {
			m.participants = append(m.participants, p)
			s.byAgent[p] = insertSorted(s.byAgent[p], id)
		}
	}
	m.over = m.over || over
	return m
}

// live gives the sessions that this node knows as live, with their participants.
func (s *store) live() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]string{}
	for id, m := range s.summaries {
		if !m.over {
			out[id] = m.participants[:len(m.participants):len(m.participants)]
		}
	}
	return out
}

// inSession reports whether an agent is in a live session.
func (s *store) inSession(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.byAgent[id] {
		if !s.summaries[session].over {
			return true
		}
	}
	return false
}

// noteJoining notes participants before the record that adds them, so that
// forgetAgent forgets none of them.
func (s *store) noteJoining(session string, joined []protocol.Participant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, len(joined))
	for i, p := range joined {
		if s.held(p.AgentID) == nil {
			return protocol.Refuse("agent_not_found", "")
		}
		names[i] = p.AgentID
	}
	s.noteSession(session, names, false)
	return nil
}

// abandon forgets a session that could not be opened.
func (s *store) abandon(ctx context.Context, c *chain, cause error) {
	head, err := s.j.Head(ctx, scope(c.id), scope(c.id))
	if err != nil || head > 0 || codeIs(cause, "internal") {
		return // the session was opened, or may have been, perhaps at another node
	}
	if err := s.sessions.Delete(context.WithoutCancel(ctx), c.id, 0); err != nil {
		s.b.c.Logger.Warn("cannot forget a session that was not opened", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.chains, c.id)
	s.abandonedLocked(c.id)
}

// abandonedLocked forgets the summary of a session without records; s.mu is held.
func (s *store) abandonedLocked(id string) {
	m := s.summaries[id]
	if m == nil || m.known {
		return
	}
	for _, p := range m.participants {
		s.byAgent[p] = removeSorted(s.byAgent[p], id)
		if len(s.byAgent[p]) == 0 {
			delete(s.byAgent, p)
		}
	}
	delete(s.summaries, id)
	delete(s.talks, s.b.conversation(id))
	s.ids = removeSorted(s.ids, id)
}

func removeSorted(list []string, v string) []string {
	at, found := slices.BinarySearch(list, v)
	if !found {
		return list
	}
	return slices.Delete(slices.Clone(list), at, at+1) // readers hold the old slice
}

func insertSorted(list []string, v string) []string {
	at, found := slices.BinarySearch(list, v)
	if found {
		return list
	}
	return slices.Insert(slices.Clip(list), at, v) // readers hold the old slice
}

// due lists live sessions whose state may time out by now.
func (s *store) due(now time.Time, mine func(session string) bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for id, m := range s.summaries {
		if !m.over && (!m.known || !m.deadline.IsZero() && !m.deadline.After(now)) && mine(id) {
			out = append(out, id)
		}
	}
	return out
}

// Ledgers implements [protocol.Store].
func (s *store) Ledgers(ctx context.Context, q protocol.LedgerQuery, after string, limit int) ([]*protocol.Ledger,
	error) {
	s.mu.Lock()
	ids := s.ids
	if q.Participant != "" {
		ids = s.byAgent[q.Participant]
	}
	at, found := slices.BinarySearch(ids, after)
	if found {
		at++
	}
	var want []string
	for _, id := range ids[at:] {
		if !q.Live || !s.summaries[id].over {
			want = append(want, id)
		}
	}
	s.mu.Unlock()
	var out []*protocol.Ledger
	for _, id := range want {
		if len(out) == limit {
			break
		}
		l, err := s.Ledger(ctx, id)
		if errors.Is(err, protocol.ErrNotFound) {
			continue // its first record is not in the journal yet
		}
		if err != nil {
			return nil, err
		}
		if q.Live && l.State.Terminal() {
			continue
		}
		out = append(out, l)
	}
	return out, nil
}

// agentChanged updates the order of the registered agents, their share of the guests'
// budget, and their entries in the directory.
func (s *store) agentChanged(before, after journal.Row[*protocol.Agent]) {
	a := after.Value
	s.mu.Lock()
	switch {
	case after.Revision != 0 && !a.Removed:
		if at, found := slices.BinarySearch(s.agentIDs, after.Key); !found {
			s.agentIDs = slices.Insert(s.agentIDs, at, after.Key) // nobody reads it without s.mu
		}
	case before.Revision != 0:
		s.agentIDs = removeSorted(s.agentIDs, after.Key)
	default:
		s.mu.Unlock()
		return // no change: a removed agent was read
	}
	s.mu.Unlock()
	s.b.recount(after.Key)
	if after.Revision != 0 && s.b.isPeer(a) {
		s.b.reconciler.enqueueAgent(a.ID)
	}
}

// held gives an agent from memory, nil if it is not registered.
func (s *store) held(id string) *protocol.Agent { return s.agents.Known(id).Value }

// Agent implements [protocol.Store].
func (s *store) Agent(ctx context.Context, id string) (*protocol.Agent, error) {
	if a := s.held(id); a != nil {
		return a, nil
	}
	if !protocol.ValidAgentID(id) {
		return nil, protocol.ErrNotFound
	}
	row, err := s.agents.Get(ctx, id)
	if err == nil && row.Revision == 0 {
		err = protocol.ErrNotFound
	}
	return row.Value, err
}

// PutAgent implements [protocol.Store].
func (s *store) PutAgent(ctx context.Context, a *protocol.Agent) error {
	b, err := jsonx.Encode(a)
	if err != nil {
		return err
	}
	undo, err := s.b.admitAgent(ctx, a, len(b))
	if err != nil {
		return err
	}
	row, err := s.agents.Get(ctx, a.ID)
	if before := row.Value; err == nil && (row.Revision == 0) != (a.Revision == 1) ||
		before != nil && before.Revision != a.Revision-1 {
		err = protocol.ErrConflict
	}
	if err == nil {
		row.Value = a
		_, err = s.agents.Replace(ctx, row)
	}
	if err != nil {
		undo()
		if errors.Is(err, journal.ErrConflict) {
			err = protocol.ErrConflict
		}
		return err
	}
	s.b.agentPut(context.WithoutCancel(ctx), a)
	return nil
}

// Agents implements [protocol.Store].
func (s *store) Agents(_ context.Context, q protocol.AgentQuery, after string, limit int) ([]*protocol.Agent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := slices.BinarySearch(s.agentIDs, after)
	if found {
		at++
	}
	var out []*protocol.Agent
	for _, id := range s.agentIDs[at:] {
		if len(out) == limit {
			break
		}
		if a := s.held(id); a != nil && q.Matches(a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// forgetAgent deletes an agent that was removed and was never in a session.
func (s *store) forgetAgent(ctx context.Context, id string) error {
	s.mu.Lock()
	sessions := len(s.byAgent[id])
	s.mu.Unlock()
	if sessions > 0 {
		return nil
	}
	row, err := s.agents.Get(ctx, id)
	if err == nil && row.Revision != 0 && row.Value.Removed {
		err = s.agents.Delete(ctx, id, row.Revision)
	}
	if errors.Is(err, journal.ErrConflict) {
		return nil // the agent has registered again
	}
	return err
}

// Seen implements [protocol.Memory]: proofs of HTTP requests.
func (s *store) Seen(ctx context.Context, key string, until time.Time) (bool, error) {
	proof, guest := strings.CutPrefix(key, protocol.GuestOwner+" ")
	if guest {
		if err := s.b.charge(ctx, stateBytes); err != nil {
			return false, err
		}
	}
	fresh, err := s.Memory.Seen(ctx, key, until)
	if err != nil || !fresh {
		return false, err
	}
	sum := sha256.Sum256([]byte(proof))
	_, err = s.proofs.Create(ctx, base64.RawURLEncoding.EncodeToString(sum[:]), nil, until.Add(time.Second))
	if errors.Is(err, journal.ErrExists) {
		return false, nil
	}
	return err == nil, err
}

var _ protocol.Store = (*store)(nil)
