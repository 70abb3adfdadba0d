package mcp

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/policy"
)

// guestShare bounds the sessions of all guests: as many as this number of callers may have.
const guestShare = 16

// sessions are those of the handshake revisions, by id. They are counted for each caller, together with its
// subscriptions and tunnels.
type sessions struct {
	b    *Binding
	most int // of one caller

	mu     sync.Mutex
	closed bool
	byID   map[string]*httpSession
	open   map[string]int // by caller
	guests int
}

func newSessions(b *Binding) *sessions {
	return &sessions{b: b, most: b.c.Sessions, byID: map[string]*httpSession{}, open: map[string]int{}}
}

// An httpSession is one of the handshake revisions over HTTP.
type httpSession struct {
	user string // as of caller.user
	*mcp.ServerSession

	mu    sync.Mutex
	calls map[string]*httpReply // that are open, by the id of the request
}

// take reserves a session, subscription or tunnel for a caller. Guests are counted by source: one guest may have many
// addresses.
func (s *sessions) take(ctx context.Context, c *caller) (done func(), err error) {
	if s.b.streaming.Err() != nil {
		return nil, errHubStopping
	}
	name := c.Name
	if c.Guest {
		name = "guest " + cmp.Or(policy.SourceOf(ctx), source.Of(c.remote), source.Host(c.remote)) // no agent has such a name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, errHubStopping
	case s.open[name] >= s.most:
		return nil, tooManySessions("one caller may have %d sessions, subscriptions and tunnels open at once", s.most)
	case c.Guest && s.guests >= s.most*guestShare:
		return nil, tooManySessions("callers without credentials may have %d sessions and subscriptions open at once",
			s.most*guestShare)
	}
	s.open[name]++
	if c.Guest {
		s.guests++
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.Guest {
			s.guests--
		}
		if s.open[name]--; s.open[name] == 0 {
			delete(s.open, name)
		}
	}), nil
}

func tooManySessions(format string, args ...any) *parley.Error {
	e := parley.Refuse(parley.RateLimited, format, args...).With(parley.ByLimit, "", "")
	e.Retryable, e.After = true, 10*time.Second
	return e
}

var errHubStopping = &parley.Error{Code: parley.Unavailable, Text: "the hub is stopping", Retryable: true,
	After: 5 * time.Second}

// add keeps a session that the SDK has begun for a caller, until it ends. done is that of take.
func (s *sessions) add(id string, c *caller, from *mcp.Server, done func()) {
	for ss := range from.Sessions() {
		if ss.ID() != id {
			continue
		}
		s.mu.Lock()
		s.byID[id] = &httpSession{user: c.user(), ServerSession: ss, calls: map[string]*httpReply{}}
		s.mu.Unlock()
		end := func() {
			_ = ss.Wait() // why it ended matters to nobody
			s.remove(id)
			done()
		}
		if !s.b.spawn(end) {
			s.remove(id)
			done() // close ends the session
		}
		return
	}
	done()
}

func (s *sessions) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

// of finds a session of a caller; nil: it has none with this id.
func (s *sessions) of(id string, c *caller) *httpSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.byID[id]; found != nil && found.user == c.user() {
		return found
	}
	return nil
}

// close ends all sessions.
func (s *sessions) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	server := s.b.door.server()
	if server == nil {
		return
	}
	var ends sync.WaitGroup
	for ss := range server.Sessions() {
		ends.Go(func() { _ = ss.Close() })
	}
	ends.Wait()
}

// began notes an open call of the session.
func (s *httpSession) began(id string, p *httpReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[id] == nil { // the SDK refuses a second one
		s.calls[id] = p
	}
}

func (s *httpSession) ended(id string, p *httpReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[id] == p {
		delete(s.calls, id)
	}
}

// cancel ends the stream of a call without an answer (rule MCP-033): the SDK would send one.
func (s *httpSession) cancel(id string) {
	s.mu.Lock()
	p := s.calls[id]
	s.mu.Unlock()
	if p != nil {
		p.mute()
	}
}

// streamContext is a context for what goes on for long: it ends with EndStreams and with the caller's credentials too.
func (b *Binding) streamContext(ctx context.Context, c *caller) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.streaming, cancel)
	end := func() {}
	if c.During != nil {
		ctx, end = c.During(ctx)
	}
	return ctx, func() { stop(); end(); cancel() }
}
