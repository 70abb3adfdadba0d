package uagents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/uagents"
)

// The buckets of the journal's state.
const (
	bucketSessions  = "uagents-sessions"
	bucketAlmanac   = "uagents-almanac"
	bucketManifests = "uagents-manifests"
	bucketMailbox   = "uagents-mailbox"
	bucketProfiles  = "uagents-profiles"
)

// exchange is a request of this hub's in a session of its own: the protocol
// has no reference from a reply to its request but sender, target and session.
type exchange struct {
	Self         string    `json:"self"` // the stand-in that asked
	Peer         string    `json:"peer"` // the agent that was asked
	Session      string    `json:"session"`
	Request      parley.ID `json:"request"`
	Agent        string    `json:"agent"` // directory name of the peer
	Scope        string    `json:"scope"` // where the request, and so the keys of its replies, are recorded
	Conversation parley.ID `json:"conversation"`
	Until        time.Time `json:"until"`
	Trace        string    `json:"trace,omitempty"` // of the request: W3C traceparent

	done     bool   // answered; what comes now is talk
	revision uint64 // of the state's value
}

func sessionKey(self, peer, session string) string { return self + "/" + peer + "/" + session }

func (x *exchange) key() string { return sessionKey(x.Self, x.Peer, x.Session) }

// sessions remembers exchanges over restarts and between nodes.
type sessions struct {
	state journal.State
	now   func() time.Time
	max   int

	mu        sync.Mutex
	byKey     map[string]*exchange
	byRequest map[parley.ID]*exchange
	last      map[string]string    // self, peer and conversation → session
	byPeer    map[string]*exchange // peer and session → the latest
	stop      func()
}

func newSessions(s journal.State, now func() time.Time) *sessions {
	return &sessions{state: s, now: now, max: 1 << 18, byKey: map[string]*exchange{}, byRequest: map[parley.ID]*exchange{},
		last: map[string]string{}, byPeer: map[string]*exchange{}, stop: func() {}}
}

func (s *sessions) start(ctx context.Context) (err error) {
	s.stop, err = s.state.Watch(ctx, "", s.changed)
	return err
}

// changed takes what this hub or another wrote.
func (s *sessions) changed(v journal.Value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.Deleted {
		return
	}
	x := &exchange{revision: v.Revision}
	if json.Unmarshal(v.Data, x) != nil {
		return
	}
	if old := s.byKey[v.Key]; old == nil || old.Request != x.Request && old.revision < v.Revision {
		s.set(x)
	}
}

// set indexes an exchange. The caller holds the lock.
func (s *sessions) set(x *exchange) {
	if old := s.byKey[x.key()]; old != nil {
		delete(s.byRequest, old.Request)
	}
	s.byKey[x.key()], s.byRequest[x.Request] = x, x
	s.byPeer[x.peer()] = x
	s.last[x.conversation()] = x.Session
}

func (x *exchange) peer() string { return x.Peer + "/" + x.Session }

func (x *exchange) conversation() string {
	return x.Self + "/" + x.Peer + "/" + x.Conversation.String()
}

// errSessions refuses to begin more than can be remembered.
var errSessions = parley.Fail(parley.Unavailable, nil, "too many requests wait for answers of uAgents")

// open gives the session in which a request goes out: that of an earlier
// attempt; that of the conversation, if nothing is outstanding in it; else a
// new one. It is recorded when open returns.
func (s *sessions) open(ctx context.Context, x exchange) (*exchange, error) {
	s.mu.Lock()
	if old := s.byRequest[x.Request]; old != nil {
		s.mu.Unlock()
		return old, nil
	}
	if len(s.byKey) >= s.max {
		s.sweep()
		if len(s.byKey) >= s.max {
			s.mu.Unlock()
			return nil, errSessions
		}
	}
	x.Session = s.last[x.conversation()]
	if old := s.byKey[x.key()]; x.Session == "" || old != nil && !old.done {
		x.Session = protocol.NewSession()
	}
	s.set(&x)
	s.mu.Unlock()
	b, err := jsonx.Encode(x)
	var revision uint64
	if err == nil {
		revision, err = s.state.Put(ctx, x.key(), b, x.Until)
	}
	if err != nil {
		s.drop(&x)
		return nil, fmt.Errorf("keep a session: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x.revision = revision
	return &x, nil
}

func (s *sessions) drop(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[x.key()] == x {
		delete(s.byKey, x.key())
		s.forget(x)
	}
}

// forget takes an exchange out of all indexes but byKey. The caller holds the
// lock.
func (s *sessions) forget(x *exchange) {
	delete(s.byRequest, x.Request)
	if s.last[x.conversation()] == x.Session {
		delete(s.last, x.conversation())
	}
	if s.byPeer[x.peer()] == x {
		delete(s.byPeer, x.peer())
	}
}

// trace gives the trace of the request that opened a session with an agent: what
// the agent asks of others in the same session, as its library does by itself
// while it works on the request, belongs to that.
func (s *sessions) trace(peer, session string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byPeer[peer+"/"+session]; x != nil && x.Until.After(s.now()) {
		return x.Trace
	}
	return ""
}

// find gives the exchange that an envelope of peer to self in a session is
// about, and whether it is answered already; nil: about none. An answer may be
// here sooner than the change of the hub that asked, also in a session that was
// used before: so the state is read before there is none.
func (s *sessions) find(ctx context.Context, self, peer, session string) (x *exchange, done bool, err error) {
	key := sessionKey(self, peer, session)
	if x, done = s.known(key); x != nil && !done {
		return x, done, nil
	}
	switch v, err := s.state.Get(ctx, key); {
	case err == nil:
		s.changed(v)
	case !errors.Is(err, journal.ErrNotFound):
		return nil, false, err
	}
	x, done = s.known(key)
	return x, done, nil
}

func (s *sessions) known(key string) (x *exchange, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byKey[key]
	if found == nil || !found.Until.After(s.now()) {
		return nil, false
	}
	copied := *found
	return &copied, found.done
}

// answered notes that a request got its terminal reply. After a restart the
// journal, which has no open request any more, says the same.
func (s *sessions) answered(request parley.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.byRequest[request]; x != nil {
		x.done = true
	}
}

// sweep forgets what is over. The caller holds the lock.
func (s *sessions) sweep() {
	now := s.now()
	for k, x := range s.byKey {
		if !x.Until.After(now) {
			delete(s.byKey, k)
			s.forget(x)
		}
	}
}
