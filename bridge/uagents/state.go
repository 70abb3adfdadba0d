package uagents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/uagents"
)

// The buckets of the journal's state.
const (
	bucketSessions  = "uagents-sessions"  // by sessionKey: exchange
	bucketAlmanac   = "uagents-almanac"   // by recordKey: registration
	bucketManifests = "uagents-manifests" // by digest: storedManifest
	bucketMailbox   = "uagents-mailbox"   // box/address: storedBox; item/address/number-uuid: storedItem
	bucketProfiles  = "uagents-profiles"  // by address: protocol.Profile
	bucketQuestions = "uagents-questions" // by sessionKey: question
)

// exchange is a request of this hub in its own session. Only sender, target and session
// refer from a reply to its request.
type exchange struct {
	Self         string    `json:"self"` // the stand-in that sent the request
	Peer         string    `json:"peer"` // its recipient
	Session      string    `json:"session"`
	Request      parley.ID `json:"request"`
	Agent        string    `json:"agent"` // directory name of the peer
	Scope        string    `json:"scope"` // of the request, and so of the keys of its replies
	Conversation parley.ID `json:"conversation"`
	Until        time.Time `json:"until"`
	Trace        string    `json:"trace,omitempty"` // of the request: W3C traceparent
}

func sessionKey(self, peer, session string) string { return self + "/" + peer + "/" + session }

func (x *exchange) key() string { return sessionKey(x.Self, x.Peer, x.Session) }

func (x *exchange) peer() string { return x.Peer + "/" + x.Session }

func (x *exchange) conversation() string {
	return x.Self + "/" + x.Peer + "/" + x.Conversation.String()
}

// sessions remembers exchanges over restarts and between nodes.
type sessions struct {
	table *journal.Table[exchange]
	max   int

	mu        sync.Mutex
	answers   map[parley.ID]bool   // requests that have their terminal reply
	byRequest map[parley.ID]string // keys of exchanges
	last      map[string]string    // by conversation
	byPeer    map[string]string    // the latest by peer and session
}

func newSessions(j *journal.Journal) *sessions {
	return &sessions{table: journal.NewTable[exchange](j, bucketSessions, 0), max: 1 << 18,
		answers: map[parley.ID]bool{}, byRequest: map[parley.ID]string{}, last: map[string]string{},
		byPeer: map[string]string{}}
}

func (s *sessions) start(ctx context.Context) (stop func(), err error) {
	return s.table.Follow(ctx, s.changed)
}

// changed indexes an exchange that this hub or another wrote.
func (s *sessions) changed(before, after journal.Row[exchange]) {
	if after.Revision == 0 {
		return // sweep finds it missing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &after.Value
	if old := before.Value.Request; old != x.Request {
		delete(s.byRequest, old)
		delete(s.answers, old)
	}
	s.byRequest[x.Request], s.byPeer[x.peer()], s.last[x.conversation()] = after.Key, after.Key, after.Key
}

// errSessions refuses a request beyond the bound of open sessions.
var errSessions = parley.Fail(parley.Unavailable, nil, "too many requests wait for answers of uAgents").
	With(parley.ByLimit, parley.OpenRequests, "")

// open gives the session in which a request is sent: the session of an earlier attempt;
// the session of the conversation, if nothing is pending in it; else a new one. The
// session is recorded when open returns.
func (s *sessions) open(ctx context.Context, x exchange) (*exchange, error) {
	if earlier := indexed(s, s.byRequest, x.Request); earlier.Revision != 0 {
		return &earlier.Value, nil
	}
	if s.table.Len() >= s.max && len(s.table.All()) >= s.max {
		return nil, errSessions
	}
	for {
		last := indexed(s, s.last, x.conversation())
		x.Session = last.Value.Session
		if last.Revision == 0 || !s.isAnswered(last.Value.Request) {
			x.Session, last.Revision = protocol.NewSession(), 0
		}
		row := journal.Row[exchange]{Key: x.key(), Value: x, Revision: last.Revision, Until: x.Until}
		_, err := s.table.Replace(ctx, row)
		if errors.Is(err, journal.ErrConflict) { // another hub uses the session now
			if _, err = s.table.Get(ctx, row.Key); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("keep a session: %w", err)
		}
		return &x, nil
	}
}

// indexed gives the exchange that an index has for a key; Revision 0: none.
func indexed[K comparable](s *sessions, index map[K]string, key K) journal.Row[exchange] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Known(index[key])
}

// trace gives the trace of the request that opened a session with an agent. The
// agent's own requests in that session belong to the trace, because the library uses the
// session for all messages while it handles the request.
func (s *sessions) trace(peer, session string) string {
	return indexed(s, s.byPeer, peer+"/"+session).Value.Trace
}

// find gives the exchange of an envelope from peer to self in a session, nil for none,
// and reports whether it is answered already. An answer may arrive before this hub's index
// has the request, sent by another hub, even in a session that was used before: so find
// reads the state too.
func (s *sessions) find(ctx context.Context, self, peer, session string) (x *exchange, done bool, err error) {
	key := sessionKey(self, peer, session)
	row := s.table.Known(key)
	if row.Revision == 0 || s.isAnswered(row.Value.Request) {
		row, err = s.table.Get(ctx, key)
	}
	if err != nil || row.Revision == 0 {
		return nil, false, err
	}
	return &row.Value, s.isAnswered(row.Value.Request), nil
}

func (s *sessions) isAnswered(request parley.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answers[request]
}

// answered notes that a request got its terminal reply. After a restart the journal
// tells: the request is no longer open.
func (s *sessions) answered(request parley.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRequest[request] != "" {
		s.answers[request] = true
	}
}

// sweep removes ended exchanges from the indexes.
func (s *sessions) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := func(key string) bool { return s.table.Known(key).Revision == 0 }
	maps.DeleteFunc(s.byRequest, func(_ parley.ID, key string) bool { return ended(key) })
	maps.DeleteFunc(s.answers, func(request parley.ID, _ bool) bool { return s.byRequest[request] == "" })
	maps.DeleteFunc(s.last, func(_, key string) bool { return ended(key) })
	maps.DeleteFunc(s.byPeer, func(_, key string) bool { return ended(key) })
}
