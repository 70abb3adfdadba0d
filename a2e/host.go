package a2e

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/source"
)

// Host is the environment's side of A2E: it serves agents over HTTP with SSE
// (it is an [net/http.Handler]), over any [net.Listener] with [Host.Serve], and
// over one stream with [Host.ServeConn] or [Host.ServeStdio]. Set its fields
// before the first use and leave them alone afterwards; its methods are safe
// for concurrent use. The zero value refuses every handshake: set Auth.
type Host struct {
	// Auth decides who may connect. Nil refuses all agents.
	Auth Authenticator

	// Capabilities are the host's offer: a provider for each namespace of A2E §6.15
	// (tools, skill, memory, multi_agent, …) or of the embedder's own. The provider of
	// an own namespace such as "foo" serves every type "foo/…", even types that no
	// registry knows; own namespaces cannot be negotiated.
	Capabilities map[string]Provider

	// Handler serves the requests that no capability serves: those of unknown types,
	// whole (A2E §9), and those whose capability is not offered. Nil answers them with
	// unknown_type.
	Handler Handler

	// Registry knows the message types. Nil means all of A2E §6.
	Registry *Registry

	// Strict limits an agent to the capabilities that it negotiated; a request of any
	// other fails with capability_missing. By default only the identity counts, because
	// SDK agents use capabilities that they did not request (A2E §14).
	Strict bool

	// Memory remembers request ids beyond this process. Nil: per session.
	Memory Memory

	// Store keeps sessions beyond this process. Nil: in memory.
	Store Store

	// Limits bound everything; the zero value is the default.
	Limits Limits

	// TLS, when set, is spoken on the connections of [Host.Serve].
	TLS *tls.Config

	// Refused, if set, gets a record of every message that did not reach a handler.
	Refused func(Refusal)

	// Authenticated, if set, is called for each HTTP request, stream and connection
	// of a session whose handshake succeeded, with its context.
	Authenticated func(ctx context.Context, id Identity)

	// ConnContext, if set, gives the context of a connection of [Host.Serve].
	ConnContext func(ctx context.Context, c net.Conn) context.Context

	// Log gets faults of handlers and stores; nil discards them.
	Log *slog.Logger

	// Now is the clock of the members ts and created_at. Nil: time.Now.
	Now func() time.Time

	once     sync.Once
	limits   Limits
	types    *Registry
	mu       sync.Mutex
	sessions map[string]*Session
	moved    map[*Session]struct{}    // moved to another host, with requests still executed here
	loading  map[string]chan struct{} // by id: closed after the look-up in the store
	pending  *list.List               // of *Session without a handshake, oldest first
	held     int                      // bytes of messages that the pending sessions are sending
	remotes  remotes
	answers  answerBudget
	closed   bool
	idle     chan struct{} // closed when closed and no session is left
}

// Refusal is one message that was not served.
type Refusal struct {
	Time     time.Time
	Identity string // empty before the handshake
	AgentID  string // claimed by the agent
	Remote   string
	Type     string
	ReqID    string
	Size     int
	Dropped  bool // no answer was sent: a response, an event, or a duplicate whose answer follows
	Err      *Error
}

func (h *Host) init() {
	h.once.Do(func() {
		h.limits = h.Limits.filled()
		h.types = cmp.Or(h.Registry, builtin())
		h.Log = cmp.Or(h.Log, slog.New(slog.DiscardHandler))
		if h.Now == nil {
			h.Now = time.Now
		}
		h.sessions, h.loading, h.pending = map[string]*Session{}, map[string]chan struct{}{}, list.New()
		h.moved = map[*Session]struct{}{}
		h.idle = make(chan struct{})
		h.remotes.perMinute = h.limits.SessionsPerMinute
		h.answers.session, h.answers.all = h.limits.Answers, h.limits.AllAnswers
	})
}

// open makes a session for a new connection from remote.
func (h *Host) open(remote string, kind transportKind) (*Session, error) {
	h.init()
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrShuttingDown
	}
	counted, ok := h.remotes.allow(remote, now, h.limits.PendingPerRemote)
	if !ok {
		return nil, ErrBusy
	}
	room := h.pending.Len() < h.limits.Pending || h.evictPending(nil)
	if !room || len(h.sessions) >= h.limits.Sessions && !h.evict() {
		h.remotes.release(counted)
		return nil, ErrFull
	}
	s := newSession(h, NewID(), remote, kind)
	s.counted = counted
	h.sessions[s.id] = s
	s.pending = h.pending.PushBack(s)
	return s, nil
}

// evictPending makes room by closing the oldest session without a handshake: a
// permitted agent shakes hands at once. If holder is set, it must have room for more
// bytes, so evictPending closes another session that holds some.
func (h *Host) evictPending(holder *Session) bool {
	for at := h.pending.Front(); at != nil; at = at.Next() {
		s := at.Value.(*Session)
		if holder != nil && (s == holder || s.held == 0) {
			continue
		}
		if s.closeIf(func() bool { return s.state == StateConnected }) {
			h.settle(s)
			h.drop(s)
			return true
		}
	}
	return false
}

// hold adds n, which may be negative, to the bytes that the host holds for a session
// without a handshake; false if there is no room.
func (h *Host) hold(s *Session, n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.pending == nil {
		return true
	}
	for n > 0 && h.held+n > h.limits.HandshakeBytes {
		if !h.evictPending(s) {
			return false
		}
	}
	s.held += n
	h.held += n
	return true
}

// evict makes room by closing a session without a handshake, or a disconnected one
// without pending frames and requests. It looks at a bounded number of sessions.
func (h *Host) evict() bool {
	if h.evictPending(nil) {
		return true
	}
	looked := 0
	for id, s := range h.sessions {
		looked++
		if looked > 256 {
			return false
		}
		if s.closeIf(func() bool {
			return s.out.stream == nil && s.kind == transportConn && s.state == StateActive && s.out.len() == 0 &&
				len(s.inflight) == 0
		}) {
			delete(h.sessions, id)
			return true
		}
	}
	return false
}

// settled moves a session from pending to active or gone.
func (h *Host) settled(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settle(s)
}

// settle is settled, with h.mu held.
func (h *Host) settle(s *Session) {
	if s.pending != nil {
		h.pending.Remove(s.pending)
		h.held -= s.held
		s.pending, s.held = nil, 0
		h.remotes.release(s.counted)
	}
}

// forget drops a closed session.
func (h *Host) forget(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settle(s)
	h.drop(s)
}

// drop removes a session; h.mu is held.
func (h *Host) drop(s *Session) {
	if h.sessions[s.id] == s {
		delete(h.sessions, s.id)
	}
	delete(h.moved, s)
	if h.closed && len(h.sessions)+len(h.moved) == 0 {
		closeOnce(h.idle)
	}
}

// find gives a session by its id: one of this process, or one from the store.
func (h *Host) find(ctx context.Context, id string, kind transportKind) (*Session, error) {
	h.init()
	for {
		h.mu.Lock()
		s, closed, others := h.sessions[id], h.closed, h.loading[id]
		if s != nil {
			h.mu.Unlock()
			return s, nil
		}
		if h.Store == nil || closed || len(id) != 32 {
			h.mu.Unlock()
			return nil, ErrClosed
		}
		if others == nil {
			break
		}
		h.mu.Unlock()
		select {
		case <-others:
		case <-ctx.Done():
			return nil, ErrNotLoaded.Because(ctx.Err())
		}
	}
	// Loading takes the session over: parallel loads would take it from each other.
	done := make(chan struct{})
	h.loading[id] = done
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.loading, id)
		h.mu.Unlock()
		close(done)
	}()
	rec, found, err := h.Store.Load(ctx, id)
	if err != nil {
		h.Log.Warn("a2e: session not loaded", "err", err)
		return nil, ErrNotLoaded.Because(err) // the session may exist: its agent should retry, not begin another
	}
	if !found {
		return nil, ErrClosed
	}
	s := newSession(h, id, "", kind)
	s.restore(rec)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sessions) >= h.limits.Sessions && !h.evict() {
		return nil, ErrFull
	}
	h.sessions[id] = s
	if relay, ok := h.Store.(Relay); ok {
		relay.Held(id)
	}
	return s, nil
}

// Session gives a live session by its id.
func (h *Host) Session(id string) (*Session, bool) {
	h.init()
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.sessions[id]
	return s, ok
}

// Sessions gives all sessions whose handshake succeeded, in no order.
func (h *Host) Sessions() []*Session {
	h.init()
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*Session
	for _, s := range h.sessions {
		if s.pending == nil {
			out = append(out, s)
		}
	}
	return out
}

// Shutdown ends the host in order: the host refuses new sessions and requests, lets
// running requests finish and delivers their answers until ctx ends, then closes every
// session. Sessions of a [Store] stay there, to be resumed elsewhere.
func (h *Host) Shutdown(ctx context.Context) error {
	h.init()
	h.mu.Lock()
	h.closed = true
	all := slices.AppendSeq(slices.Collect(maps.Values(h.sessions)), maps.Keys(h.moved))
	if len(all) == 0 {
		closeOnce(h.idle)
	}
	h.mu.Unlock()
	for _, s := range all {
		s.drain(h.limits.Drain, h.Store != nil)
	}
	select {
	case <-h.idle:
		return nil
	case <-ctx.Done():
		for _, s := range all {
			s.close()
		}
		return ctx.Err()
	}
}

func (h *Host) refused(s *Session, m *Envelope, size int, e *Error, dropped bool) {
	if h.Refused == nil {
		return
	}
	r := Refusal{Time: h.Now(), Size: size, Dropped: dropped, Err: e, Remote: s.remote}
	s.mu.Lock()
	r.Identity, r.AgentID = s.identity.Name, s.agentID
	s.mu.Unlock()
	if m != nil {
		r.Type, r.ReqID = clip(m.Type, maxType), m.ID
	}
	h.Refused(r)
}

// remotes counts the sessions of each address: those made within a minute, and those
// not authenticated yet.
type remotes struct {
	perMinute int
	by        map[string]*remoteCount
	swept     time.Time
}

type remoteCount struct {
	minute  time.Time
	made    int
	pending int
}

func (r *remotes) allow(remote string, now time.Time, pending int) (counted string, ok bool) {
	if r.by == nil {
		r.by = map[string]*remoteCount{}
	}
	if now.Sub(r.swept) > time.Minute {
		for k, c := range r.by {
			if c.pending == 0 && now.Sub(c.minute) > time.Minute {
				delete(r.by, k)
			}
		}
		r.swept = now
	}
	c := r.by[remote]
	if c == nil {
		if len(r.by) >= 65_536 { // further addresses share one count
			remote = ""
			c = r.by[remote]
		}
		if c == nil {
			c = &remoteCount{minute: now}
			r.by[remote] = c
		}
	}
	if now.Sub(c.minute) > time.Minute {
		c.minute, c.made = now, 0
	}
	if c.made >= r.perMinute || c.pending >= pending {
		return "", false
	}
	c.made++
	c.pending++
	return remote, true
}

func (r *remotes) release(remote string) {
	if c := r.by[remote]; c != nil && c.pending > 0 {
		c.pending--
	}
}

// remoteOf is the address without its port; IPv6 counts by /64.
func remoteOf(addr string) string { return cmp.Or(source.Of(addr), addr) }

// Serve accepts connections until ctx ends or the listener fails, and serves
// each with [Host.ServeConn]. When ctx ends, it closes the listener, lets the
// sessions of its connections finish as [Host.Shutdown] does, and returns nil.
func (h *Host) Serve(ctx context.Context, l net.Listener) error {
	h.init()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	pause := 5 * time.Millisecond
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Out of descriptors, or the peer gave up: the listener still works.
			h.Log.Warn("a2e: accept", "err", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		ctx := ctx
		if h.ConnContext != nil {
			ctx = h.ConnContext(ctx, conn)
		}
		if h.TLS != nil {
			conn = tls.Server(conn, h.TLS)
		}
		wg.Go(func() { _ = h.ServeConn(ctx, conn) })
	}
}
