package mcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// Protocol is this protocol's short name.
const Protocol = "mcp"

// Config of a Binding. Hub, Keys, Journal, Index and PublicURL must be set.
type Config struct {
	Hub     *hub.Hub
	Keys    *keyring.Ring
	Journal *journal.Journal
	Index   *index.Index

	// Callers identifies callers; nil: every caller is a guest.
	Callers bridge.Callers

	// Allow gives further addresses that the hub may call, besides public ones; nil: none.
	// It is asked before each connection, so the list may change.
	Allow     func() []netip.Prefix
	RootCAs   *x509.CertPool                            // trusted by outbound calls; nil: the system's
	Transport func(http.RoundTripper) http.RoundTripper // around outbound calls; nil: nothing

	PublicURL string   // base URL under which clients reach the hub
	Hosts     []string // values of the header Host that are taken besides that of PublicURL: host or host:port
	Origins   []string // web origins whose pages may call besides that of PublicURL
	Guests    []string // agents open to callers without credentials, besides AgentSettings.Guests: names or patterns
	Version   string   // of the hub, for clients and servers; "": "unknown"

	Tools     int           // more than these are found by parley_find, not listed; 0: 20, at most 500
	MaxBody   int64         // of a request, and of one message of a tunnel; 0: 1 MiB
	MaxAnswer int64         // of an answer of an attached server, and of one event or line; 0: 4 MiB
	Wait      time.Duration // how long a call waits for its answer; then it gets a handle; 0: 50 s
	LongWait  time.Duration // the same for a client that asked for progress; 0: 10 min
	KeepAlive time.Duration // between comments in an idle stream; 0: 15 s
	Sessions  int           // open at once for one caller, with its subscriptions and tunnels; 0: 32
	Idle      time.Duration // ends a session without a request; 0: 30 min
	Ceiling   time.Duration // of one call of an attached server, whatever its request's deadline; 0: 1 h

	Now    func() time.Time
	Rand   io.Reader
	Logger *slog.Logger
}

// AgentSettings are the operator's settings for one agent in MCP. The zero value is valid.
type AgentSettings struct {
	// Guests lets callers without credentials use an agent of this hub.
	Guests bool
	// Credentials are for calls of an attached server over HTTP.
	Credentials peerauth.Credentials
	// Accept takes changes of the server's tools at once; else they are held until they are approved.
	Accept bool
	// Elicitation lets the server ask the requester for input.
	Elicitation bool
	// Repeatable are tools that may be called again when it is not known whether a call arrived: names, or "*".
	Repeatable []string
}

// Binding is the hub's MCP side. It is an http.Handler for the protocol listener, and a
// hub.Binding.
type Binding struct {
	c         Config
	public    *url.URL
	catalogue *bridge.Catalogue
	requests  *follow.Requests
	secrets   *peerauth.Store

	door     *door     // HTTP endpoints of clients
	clients  *clients  // the server that clients talk to
	calls    *calls    // calls of clients, in progress
	inbox    *inbox    // messages for callers
	servers  *servers  // attached servers
	outgoing *outgoing // calls of attached servers

	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
	stops []func() // end the watches of the directory and the journal

	streaming  context.Context // ends with EndStreams
	endStreams context.CancelFunc

	mu       sync.RWMutex
	closed   bool
	settings map[string]AgentSettings // by directory name
}

// New makes a binding.
func New(c Config) (*Binding, error) {
	public, err := bridge.PublicURL(c.PublicURL)
	if err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Version = cmp.Or(c.Version, "unknown") // MCP requires one
	c.Tools = min(cmp.Or(c.Tools, 20), 500)
	c.MaxBody, c.MaxAnswer = cmp.Or(c.MaxBody, 1<<20), cmp.Or(c.MaxAnswer, 4<<20)
	c.Wait, c.LongWait = cmp.Or(c.Wait, 50*time.Second), cmp.Or(c.LongWait, 10*time.Minute)
	c.KeepAlive, c.Idle = cmp.Or(c.KeepAlive, 15*time.Second), cmp.Or(c.Idle, 30*time.Minute)
	c.Sessions, c.Ceiling = cmp.Or(c.Sessions, 32), cmp.Or(c.Ceiling, time.Hour)
	b := &Binding{c: c, public: public, settings: map[string]AgentSettings{},
		catalogue: bridge.NewCatalogue(c.Hub),
		requests:  follow.New(follow.Config{Journal: c.Journal, Index: c.Index}),
		secrets:   peerauth.NewStore(c.Journal, c.Keys, Protocol, c.Rand)}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.streaming, b.endStreams = context.WithCancel(b.ctx)
	b.calls, b.inbox = newCalls(b), newInbox(b)
	b.clients = newClients(b)
	b.door = newDoor(b)
	b.servers = newServers(b)
	b.outgoing = newOutgoing(b)
	return b, nil
}

// SetAgent sets the operator's settings for an agent.
func (b *Binding) SetAgent(name string, s AgentSettings) {
	b.mu.Lock()
	b.settings[name] = s
	b.mu.Unlock()
	b.servers.changed(name)
	b.clients.changed()
}

// settingsOf gives the operator's settings for an agent.
func (b *Binding) settingsOf(name string) AgentSettings {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.settings[name]
}

// StoreCredentials keeps the credentials for calls of an attached server, sealed, for all hubs on the journal. Those of
// the configuration win over them. Empty ones are forgotten.
func (b *Binding) StoreCredentials(ctx context.Context, agent string, c peerauth.Credentials) error {
	return b.secrets.Put(ctx, agent, c)
}

// opensToGuests reports whether callers without credentials may use an agent.
func (b *Binding) opensToGuests(name string) bool {
	return b.settingsOf(name).Guests ||
		slices.ContainsFunc(b.c.Guests, func(pattern string) bool { return policy.Match(pattern, name) })
}

// Start begins the work in the background.
func (b *Binding) Start(ctx context.Context) error {
	b.requests.Start()
	for _, start := range []func(context.Context) error{b.inbox.start, b.clients.start, b.servers.start,
		b.outgoing.start} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// EndStreams ends streams and tunnels, which would hold up the shutdown of the listener. Calls that wait get their
// handle.
func (b *Binding) EndStreams() { b.endStreams() }

// Close ends the work in the background.
func (b *Binding) Close() error {
	b.endStreams()
	for _, stop := range slices.Backward(b.stops) {
		stop()
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.door.close()
	b.work.Wait()
	b.requests.Close()
	return nil
}

// spawn does work that Close waits for; false: the binding is closed.
func (b *Binding) spawn(work func()) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return false
	}
	b.work.Go(work)
	return true
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		ReplyLosses:     replyLosses,
		Streams:         func(request *parley.Message) bool { return b.requests.Streaming(request.ID) },
		DeduplicatesFor: func(_ *directory.Entry, id parley.Identity) bool { return IsCaller(id.ID) },
		Resumes:         b.outgoing.resumes,
		Holds:           b.servers.holds,
		Way:             b.way,
		Address:         b.address,
		StandInAddress:  func(agent string) string { return b.public.String() + Base + agentsPath + agent },
		Connection:      b.connection,
	}
}

// address is the endpoint of an agent that clients can use, "" for another.
func (b *Binding) address(e *directory.Entry) string {
	if !b.exposes(e.Name) {
		return ""
	}
	return b.public.String() + Base + agentsPath + e.Name
}

// Paths of the protocol listener, below the public URL.
const (
	// Base is the endpoint of all agents; below it are the others.
	Base = "/mcp"
	// MetadataPath is that of the protected resource metadata (RFC 9728, section 3.1), for the resource Base.
	MetadataPath = "/.well-known/oauth-protected-resource"
)

// Serves implements hub.HTTPBinding.
func (b *Binding) Serves(r *http.Request) bool {
	for _, p := range []string{Base, MetadataPath} {
		if rest, ok := strings.CutPrefix(r.URL.Path, p); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)
