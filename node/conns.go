package node

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"

	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/policy"
)

// conns bounds the connections of all listeners, so that callers can neither use up the
// process's file descriptors nor hold its memory. A connection is a guest's until an
// enrolled agent proved itself on it. If there is no room for a new connection, the
// guest's connection that has been idle for longest is closed; a connection with a
// request at work stays. A source of enrolled agents may have more connections, since new
// ones are probably theirs.
type conns struct {
	total   int // of all listeners
	guests  int // of total: for guests
	source  int // of guests: for one source
	known   int // of guests: for one source at which an enrolled agent proved itself
	trusted func(netip.Addr) bool

	mu       sync.Mutex
	open     int
	guest    *list.List // of *conn; the longest idle first
	neighbor *list.List // guests' at sources of enrolled agents: new connections that may be an enrolled agent's
	vouched  *list.List
	bySource map[string]int      // guests' connections
	sources  map[string]struct{} // at which enrolled agents proved themselves; at most maxSources
	stats    connStats
}

type connStats struct {
	Open, Guests     int
	Refused, Evicted uint64 // since the start
}

// conn is a connection of one of the listeners.
type conn struct {
	*net.TCPConn
	set    *conns
	caller *policy.Caller
	proxy  bool          // a trusted proxy's, shared by many callers
	gone   chan struct{} // closed with the connection

	// Under set.mu.
	list  *list.List // that holds the connection; nil once it is closed
	at    *list.Element
	busy  int // requests at work
	reads int // of busy: requests whose body is incomplete
}

// descriptorReserve is how many of the process's file descriptors are left to
// the journal, the index and outbound calls.
func descriptorReserve(limit int) int { return max(96, limit/4) }

// newConns makes the bounds. A limit of 0 stands for the file descriptors that the
// process has left.
func newConns(total, guests int, trusted func(netip.Addr) bool) *conns {
	limit := disk.MaxFiles()
	if most := max(16, limit-descriptorReserve(limit)); total == 0 || total > most {
		total = most
	}
	guests = min(guests, max(8, total/2))
	return &conns{total: total, guests: guests, source: max(4, guests/2), known: 4 * max(4, guests/2), trusted: trusted,
		guest: list.New(), neighbor: list.New(), vouched: list.New(), bySource: map[string]int{},
		sources: map[string]struct{}{}}
}

// spare gives up a quarter of the connections, at most 1,024, to a listener that
// accepts its own; 0 where address is "".
func (s *conns) spare(address string) int {
	if address == "" {
		return 0
	}
	n := min(1024, s.total/4)
	s.total -= n
	return n
}

// listen bounds the connections of a listener.
func (s *conns) listen(l net.Listener) net.Listener { return &boundListener{l, s} }

type boundListener struct {
	net.Listener
	set *conns
}

// Accept implements net.Listener. A connection for which there is no room is
// closed at once.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.set.add(c.(*net.TCPConn)); c != nil {
			return c, nil
		}
	}
}

// add takes a connection, or closes it and gives nil.
func (s *conns) add(t *net.TCPConn) *conn {
	c := &conn{TCPConn: t, set: s, gone: make(chan struct{})}
	if a, err := netip.ParseAddrPort(t.RemoteAddr().String()); err == nil {
		c.proxy = s.trusted != nil && s.trusted(a.Addr())
	}
	c.caller = policy.NewCaller(policy.Source(t.RemoteAddr().String()), func() { s.vouch(c) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.room(c) {
		s.stats.Refused++
		// Do not linger: this frees the descriptor at once.
		_ = t.SetLinger(0)
		_ = t.Close()
		return nil
	}
	s.open++
	if c.proxy {
		c.put(s.vouched)
		return c
	}
	c.put(s.listOf(c.caller.Source))
	s.bySource[c.caller.Source]++
	return c
}

// maxSources is how many sources of enrolled agents are remembered.
const maxSources = 1 << 14

// listOf is where a guest's connection goes; s.mu is held.
func (s *conns) listOf(source string) *list.List {
	if _, known := s.sources[source]; known {
		return s.neighbor
	}
	return s.guest
}

// room makes room for a connection; s.mu is held.
func (s *conns) room(c *conn) bool {
	if !c.proxy {
		source, limit := c.caller.Source, s.source
		l := s.listOf(source)
		if l == s.neighbor {
			limit = s.known
		}
		if s.bySource[source] >= limit && !s.evict(l, func(o *conn) bool { return o.caller.Source == source }) {
			return false
		}
		if l == s.guest && l.Len() >= s.guests && !s.evict(l, nil) {
			return false
		}
	}
	return s.open < s.total || s.evict(s.guest, nil) || s.evict(s.neighbor, nil) || s.evict(s.vouched, nil)
}

// evict closes the longest idle connection of a list.
func (s *conns) evict(from *list.List, of func(*conn) bool) bool {
	for at := from.Front(); at != nil; at = at.Next() {
		c := at.Value.(*conn)
		if c.busy > c.reads || from == s.vouched && c.busy > 0 || of != nil && !of(c) {
			continue
		}
		s.drop(c)
		s.stats.Evicted++
		_ = c.TCPConn.SetLinger(0)
		_ = c.TCPConn.Close()
		return true
	}
	return false
}

// put files a connection under a list; s.mu is held.
func (c *conn) put(l *list.List) { c.list, c.at = l, l.PushBack(c) }

// drop removes a connection from its list; s.mu is held.
func (s *conns) drop(c *conn) {
	if c.list == nil {
		return
	}
	if c.list != s.vouched {
		s.gone(c)
	}
	c.list.Remove(c.at)
	c.list, c.at = nil, nil
	close(c.gone)
	s.open--
}

// gone counts one guest's connection less; s.mu is held.
func (s *conns) gone(c *conn) {
	if s.bySource[c.caller.Source]--; s.bySource[c.caller.Source] == 0 {
		delete(s.bySource, c.caller.Source)
	}
}

// vouch takes a connection out of the guests'.
func (s *conns) vouch(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sources) >= maxSources {
		for source := range s.sources {
			delete(s.sources, source)
			break
		}
	}
	s.sources[c.caller.Source] = struct{}{}
	if c.list == s.guest || c.list == s.neighbor {
		s.gone(c)
		c.list.Remove(c.at)
		c.put(s.vouched)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.set.mu.Lock()
	c.set.drop(c)
	c.set.mu.Unlock()
	return c.TCPConn.Close()
}

// isNeighbor reports whether enrolled agents proved themselves at the source.
func (c *conn) isNeighbor() bool {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	return c.set.listOf(c.caller.Source) == c.set.neighbor
}

// count changes the numbers of requests at work, and of requests whose body is incomplete. A request that begins
// or ends shows that the connection is in use. A nil connection counts nothing.
func (c *conn) count(busy, reads int) {
	if c == nil {
		return
	}
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.busy += busy
	c.reads += reads
	if busy != 0 && c.list != nil {
		c.list.MoveToBack(c.at)
	}
}

func (s *conns) snapshot() connStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Open, out.Guests = s.open, s.guest.Len()+s.neighbor.Len()
	return out
}

// connKey is the key of the *conn in the context of a request: net/http passes only the
// context from the connection to the handler.
type connKey struct{}

// withConn gives the context of a connection: requests find the connection there,
// and bindings vouch for it.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if c, ok := c.(*conn); ok {
		return policy.WithCaller(context.WithValue(ctx, connKey{}, c), c.caller)
	}
	return ctx
}
