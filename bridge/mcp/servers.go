package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal"
)

const (
	callsAtOnce  = 64               // of one server
	connectTime  = 30 * time.Second // with the list of tools
	probeTime    = 10 * time.Second // then the server counts as one of the handshake revisions
	rereadEvery  = 10 * time.Second // at most, the list of tools
	aheadAtOnce  = 8                // servers that are reached before their first call
	aheadFirst   = time.Second
	aheadLongest = 10 * time.Minute
	passProgress = 100 * time.Millisecond // between two of one call
	maxRounds    = 10                     // of input for one call
	maxBusy      = 3                      // rounds in which the server asks to be called again later
	asksAtOnce   = 200                    // requests of a server to the hub, then 10 a second
)

// errFlood is the cause of errors about a server that sends too much.
var errFlood = errors.New("the server sends too many messages")

// servers has the connections to attached servers, and the tools that are pinned for them. Connections end with the
// binding's context, and are part of its work.
//
// Each hub of a cluster has sessions of its own with servers over HTTP. A tunnel is at the hub to which "parley mcp
// attach" connected; deliveries wait at a hub without one. So a cluster needs a tunnel to each of its hubs.
type servers struct {
	b     *Binding
	pins  *journal.Table[pinned] // by directory name
	ahead chan struct{}

	mu     sync.Mutex
	byName map[string]*server
}

// A server is an attached server.
type server struct {
	agent string
	slots chan struct{} // of calls
	turn  chan struct{} // held by the call that connects

	mu     sync.Mutex
	link   *link
	since  time.Time // the last connection opened, or ended, then
	err    error     // of the last try to connect; nil: it did
	tried  time.Time
	called time.Time          // the last call that was answered
	failed error              // of the last call; nil: it was answered
	stop   context.CancelFunc // ends reaching the server ahead of calls; nil: a tunnel
}

func newServers(b *Binding) *servers {
	return &servers{b: b, pins: journal.NewTable[pinned](b.c.Journal, "mcp-tools", 0),
		ahead: make(chan struct{}, aheadAtOnce), byName: map[string]*server{}}
}

// start follows the pinned tools, the credentials and the directory.
func (s *servers) start(ctx context.Context) error {
	stopPins, err := s.pins.Follow(ctx, s.pinChanged)
	if err != nil {
		return fmt.Errorf("read the tools of attached servers: %w", err)
	}
	s.b.stops = append(s.b.stops, stopPins)
	stopSecrets, err := s.b.secrets.Follow(ctx, func(agent string) { s.reconnect(agent, true) })
	if err != nil {
		return err
	}
	d := s.b.c.Hub.Directory()
	s.b.stops = append(s.b.stops, stopSecrets, d.Watch(s.enrolled))
	for _, e := range d.All() {
		s.enrolled(directory.Change{New: e})
	}
	return nil
}

// server gives the server of an agent.
func (s *servers) server(agent string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.byName[agent]
	if v == nil {
		v = &server{agent: agent, slots: make(chan struct{}, callsAtOnce), turn: make(chan struct{}, 1)}
		s.byName[agent] = v
	}
	return v
}

// known is the server of an agent, if there was one; else nil.
func (s *servers) known(agent string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[agent]
}

// serverOf is the identity of an attached server; false: the agent is none.
func serverOf(e *directory.Entry) (parley.Identity, bool) {
	if e == nil {
		return parley.Identity{}, false
	}
	i := slices.IndexFunc(e.Identities, func(i parley.Identity) bool {
		return i.Protocol == Protocol && !i.StandIn && !IsCaller(i.ID)
	})
	if i < 0 {
		return parley.Identity{}, false
	}
	return e.Identities[i], true
}

// enrolled follows the directory: servers over HTTP are reached at once, so that their tools are known before the first
// call. What belongs to a removed agent is removed.
func (s *servers) enrolled(ch directory.Change) {
	e := cmp.Or(ch.New, ch.Old)
	id, is := serverOf(ch.New)
	if !is {
		if old, was := serverOf(ch.Old); was {
			s.removed(e.Name, old)
		}
		return
	}
	if old, was := serverOf(ch.Old); was && old.ID == id.ID {
		return
	}
	v := s.server(e.Name)
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.link; l != nil && l.identity.ID != id.ID {
		v.link = nil
		s.b.spawn(l.retire)
	}
	s.reachAhead(v, id)
}

// reachAhead connects to a server over HTTP in the background. The caller holds v.mu.
func (s *servers) reachAhead(v *server, id parley.Identity) {
	if v.stop != nil {
		v.stop()
		v.stop = nil
	}
	v.err, v.tried = nil, time.Time{}
	if IsTunnel(id.ID) {
		return
	}
	ctx, stop := context.WithCancel(s.b.ctx)
	if v.stop = stop; !s.b.spawn(func() { s.reach(ctx, v, id) }) {
		stop()
	}
}

// removed removes what is kept about a server.
func (s *servers) removed(agent string, id parley.Identity) {
	s.mu.Lock()
	v := s.byName[agent]
	delete(s.byName, agent)
	s.mu.Unlock()
	if v != nil {
		v.mu.Lock()
		if v.stop != nil {
			v.stop()
		}
		l := v.link
		v.mu.Unlock()
		if l != nil {
			s.b.spawn(l.end)
		}
	}
	s.b.spawn(func() {
		err := s.pins.Delete(s.b.ctx, agent, 0)
		if !IsTunnel(id.ID) {
			err = errors.Join(err, s.b.secrets.Forget(s.b.ctx, agent))
		}
		if err != nil && s.b.ctx.Err() == nil {
			s.b.c.Logger.Error("the tools and credentials of a removed MCP server stay", "agent", agent, "error", err)
		}
	})
}

// reach connects to a server until that succeeds once.
func (s *servers) reach(ctx context.Context, v *server, id parley.Identity) {
	told := ""
	for pause := aheadFirst; ; pause = min(2*pause, aheadLongest) {
		select {
		case s.ahead <- struct{}{}:
		case <-ctx.Done():
			return
		}
		_, err := s.linked(ctx, v, id)
		<-s.ahead
		if err == nil || ctx.Err() != nil {
			return
		}
		if err.Error() != told {
			told = err.Error()
			s.b.c.Logger.Warn("cannot reach an MCP server", "agent", v.agent, "error", err)
		}
		if sleep.For(ctx, pause) != nil {
			return
		}
	}
}

// changed takes another connection for an agent whose settings or credentials changed. Calls in progress stay on the
// old one. A tunnel ends only if it must be opened anew.
func (s *servers) changed(agent string) {
	set := s.b.settingsOf(agent)
	if p := s.pins.Known(agent).Value; set.Accept && p.Digest != "" {
		s.b.spawn(func() {
			if err := s.b.ApproveTools(s.b.ctx, agent, p.Digest); err != nil && s.b.ctx.Err() == nil {
				s.b.c.Logger.Warn("changed tools are not taken", "agent", agent, "error", err)
			}
		})
	}
	s.reconnect(agent, false)
}

// reconnect takes another connection for an agent, unless it would be as the present one.
func (s *servers) reconnect(agent string, stored bool) {
	e, _ := s.b.c.Hub.Directory().Agent(agent)
	id, is := serverOf(e)
	v := s.known(agent)
	if v == nil || !is {
		return
	}
	set := s.b.settingsOf(agent)
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.link
	if l != nil && l.elicits == set.Elicitation &&
		(l.tunnel || !stored && reflect.DeepEqual(l.credentials, set.Credentials)) {
		return
	}
	if l != nil {
		v.link = nil
		s.b.spawn(l.retire)
	}
	s.reachAhead(v, id)
}

// holds reports whether an agent's server can take nothing now: it is joined by a tunnel, and there is none.
func (s *servers) holds(e *directory.Entry, id parley.Identity) bool {
	if !IsTunnel(id.ID) {
		return false
	}
	v := s.known(e.Name)
	return v == nil || v.usable(id) == nil
}

// usable is the link to a server, if there is one; else nil.
func (v *server) usable(id parley.Identity) *link {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.link == nil || v.link.identity.ID != id.ID || v.link.ctx.Err() != nil {
		return nil
	}
	return v.link
}

// drop makes the next call connect anew.
func (v *server) drop(l *link) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.link == l {
		v.link = nil
	}
}

// A status is what is known of the connection to a server, for people.
type serverState struct {
	open    bool
	version string    // of the protocol; "" where there is no connection
	err     error     // of the last try to connect
	called  time.Time // the last call that was answered
	failed  error     // of the last call
}

// state says how an attached server is reached.
func (s *servers) state(agent string) (st serverState) {
	v := s.known(agent)
	if v == nil {
		return st
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	st.err, st.called, st.failed = v.err, v.called, v.failed
	if v.link != nil && v.link.ctx.Err() == nil {
		st.open, st.version = true, v.link.session.InitializeResult().ProtocolVersion
	}
	return st
}

// linked gives a connection to a server, and makes it where there is none. Calls that wait for it share its failure.
func (s *servers) linked(ctx context.Context, v *server, id parley.Identity) (*link, error) {
	if l := v.usable(id); l != nil {
		return l, nil
	}
	if IsTunnel(id.ID) {
		return nil, parley.Fail(parley.Unavailable, nil, "the MCP server of %q is not attached", v.agent).
			With(parley.ByNetwork, parley.NotConnected, "\"parley mcp attach "+v.agent+" -- COMMAND\" attaches it")
	}
	since := time.Now()
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l := v.usable(id); l != nil {
		return l, nil
	}
	v.mu.Lock()
	err, tried := v.err, v.tried
	v.mu.Unlock()
	if err != nil && tried.After(since) {
		return nil, err
	}
	l, err := s.dial(ctx, v, id)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // else the caller gave up
			v.err, v.tried = err, time.Now()
		}
		return nil, err
	}
	v.link, v.err = l, nil
	v.noteLink(l, time.Now)
	return l, nil
}

// meet connects to a server whose tools are not known, and so reads them.
func (s *servers) meet(ctx context.Context, agent string, id parley.Identity) error {
	_, err := s.linked(ctx, s.server(agent), id)
	return err
}

// dial connects to a server over HTTP.
func (s *servers) dial(ctx context.Context, v *server, id parley.Identity) (*link, error) {
	at, err := url.Parse(id.URL)
	if err != nil {
		return nil, err
	}
	if s.isHub(at) {
		return nil, errLoop(v.agent)
	}
	c, err := s.credentials(v.agent, id)
	if err != nil {
		return nil, err
	}
	l := s.newLink(v, id)
	w := s.b.newWire(l, at, c)
	l.wire = w
	if err := l.open(ctx, w.transport(at.String())); err != nil {
		l.end()
		return nil, err
	}
	return l, nil
}

// isHub reports whether a URL is one of this hub's own endpoints.
func (s *servers) isHub(at *url.URL) bool {
	base := strings.TrimSuffix(s.b.public.Path, "/") + Base
	rest, below := strings.CutPrefix(at.Path, base)
	return netguard.Origin(at) == netguard.Origin(s.b.public) && below && (rest == "" || rest[0] == '/')
}

func errLoop(agent string) error {
	return parley.Refuse(parley.Loop, "the MCP server of %q is this hub itself", agent)
}

// credentials are those for an enrolled server. Those of the configuration win over stored ones.
func (s *servers) credentials(agent string, id parley.Identity) (peerauth.Credentials, error) {
	e, ok := s.b.c.Hub.Directory().Agent(agent)
	if now, is := serverOf(e); !ok || !is || now.ID != id.ID { // a request may have waited since
		return peerauth.Credentials{}, nil
	}
	if c := s.b.settingsOf(agent).Credentials; !c.Empty() {
		return c, nil
	}
	c, err := s.b.secrets.Get(agent)
	if err != nil {
		return c, fmt.Errorf("the stored credentials for %q cannot be read; store them again: %w", agent, err)
	}
	return c, nil
}

// join serves a server that a tunnel brings, until the tunnel ends. A newer tunnel of the same agent takes its place.
// The transport bounds messages; all other checks of them are here.
func (s *servers) join(ctx context.Context, agent string, t mcp.Transport) error {
	e, _ := s.b.c.Hub.Directory().Agent(agent)
	id, is := serverOf(e)
	if !is || !IsTunnel(id.ID) {
		return fmt.Errorf("the agent %q is no MCP server that is attached by a tunnel: enrol it as one", agent)
	}
	v := s.server(agent)
	l := s.newLink(v, id)
	l.tunnel = true
	if t, ok := t.(interface{ replaced() }); ok {
		l.replaced = t.replaced
	}
	defer l.end()
	defer context.AfterFunc(ctx, l.end)()
	if err := l.open(ctx, t); err != nil {
		v.mu.Lock()
		v.err, v.tried = err, time.Now()
		v.mu.Unlock()
		return fmt.Errorf("the MCP server of %q: %w", agent, err)
	}
	v.mu.Lock()
	older := v.link
	v.link, v.err = l, nil
	v.noteLink(l, time.Now)
	v.mu.Unlock()
	if older != nil {
		if older.replaced != nil {
			older.replaced() // first: it is why the tunnel ends
		}
		older.end()
	}
	s.b.c.Hub.Kick(agent)
	<-l.ctx.Done()
	return ctx.Err()
}

// forget removes what is kept about the server of a forgotten agent that is enrolled no more; see [hub.Forgetter].
func (s *servers) forget(ctx context.Context, f hub.Forgetting) (int, error) {
	e, _ := s.b.c.Hub.Directory().Agent(f.Agent)
	if _, is := serverOf(e); f.Agent == "" || is { // without its tools, the next list would need no approval
		return 0, nil
	}
	row, err := s.pins.Get(ctx, f.Agent)
	if err != nil || row.Revision == 0 {
		return 0, err
	}
	if err := s.pins.Delete(ctx, f.Agent, 0); err != nil {
		return 0, err
	}
	return 1, nil
}
