// Package a2e is the hub's binding for A2E, in both roles of the protocol. Package
// [github.com/parley-hub/parley/a2e] implements the protocol; this package translates
// between it and the hub.
//
// # Agents at the hub's host
//
// An A2E agent connects to the hub as to its environment: over HTTP with SSE under a
// base path of the hub's listener, over TCP, or through the command that it starts as a
// child process. Its token proves that it is one agent of the directory; the session
// authenticates its messages, which are never signed. The agents of the directory are
// its tools and skills, its inbox is the tool parley_inbox, and its memory is in the
// journal.
//
// # Hosts that the hub attaches to
//
// An agent of the directory with the URL of an A2E host stands for that host: the
// host's tools are its skills. An operator may also name such an agent as the provider
// of a capability; it then gets the requests of that capability unchanged. The hub
// itself never starts a process.
//
// # Scope and replay
//
// The scope of a message is the session, the replay key the request's id within it. A
// request that is sent again, even to another node, is answered with the recorded
// answer.
package a2e

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// DefaultPath is the path of the host on the hub's HTTP listener.
const DefaultPath = "/a2e"

// Config of a Binding. Hub, Keys and Journal must be set.
type Config struct {
	Hub     *hub.Hub
	Keys    *keyring.Ring
	Journal *journal.Journal

	// Allow gives further addresses that the hub may call, besides public ones; nil: none.
	// It is asked before each connection, so the list may change.
	Allow     func() []netip.Prefix
	RootCAs   *x509.CertPool    // trusted by outbound calls; nil: the system's
	PublicURL string            // base URL under which agents reach the hub
	Path      string            // base path on the HTTP listener; "": DefaultPath
	Listen    net.Listener      // for NDJSON over TCP; nil: none
	TLS       *tls.Config       // of Listen; nil: none
	Strict    bool              // agents may use only the capabilities that they negotiated
	Providers map[string]string // capability → agent of the directory that is a host and serves the requests
	Limits    protocol.Limits
	Tools     int // skills listed as tools one by one; agents find further skills by search. 0: 20

	// ConnContext gives the context of a connection of Listen; nil: the binding's.
	ConnContext func(ctx context.Context, c net.Conn) context.Context

	Now    func() time.Time
	Logger *slog.Logger
}

// Binding is the hub's A2E side. It is an http.Handler for the protocol
// listener, and a hub.Binding.
type Binding struct {
	c         Config
	host      *protocol.Host
	sessions  *sessionStore
	tools     *tools
	inboxes   *inboxes
	memory    *memory
	subagents *subagents
	hosts     *hosts
	tokens    []byte // key under which tokens of the configuration are hashed

	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
	stops []func() // stop the watches that New and Start began
}

// New makes a binding.
func New(c Config) (*Binding, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Path = cmp.Or(c.Path, DefaultPath)
	if !strings.HasPrefix(c.Path, "/") || len(c.Path) < 2 {
		return nil, fmt.Errorf("a2e.path = %q: want a path such as %s", c.Path, DefaultPath)
	}
	c.Path = strings.TrimRight(c.Path, "/")
	c.Tools = cmp.Or(c.Tools, 20)
	b := &Binding{c: c}
	var err error
	if b.tokens, err = c.Keys.Secret("a2e tokens", 32); err != nil {
		return nil, err
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.sessions = newSessionStore(c.Journal, c.Now, c.Logger)
	b.tools = newTools(b)
	b.inboxes = newInboxes(b)
	b.memory = newMemory(c.Journal, c.Now)
	b.subagents = newSubagents(b)
	b.hosts = newHosts(b)
	b.sessions.known = func(name string) bool { _, ok := b.agent(name); return ok }
	b.sessions.inboxIDs = b.inboxes.ids
	capabilities := map[string]protocol.Provider{
		"tools":       protocol.ServeTools(b.tools),
		"skill":       protocol.ServeSkills(skills{b.tools}),
		"memory":      protocol.ServeMemories(b.memory),
		"multi_agent": protocol.ServeMultiAgent(b.subagents),
	}
	for capability, name := range c.Providers {
		if capabilities[capability] != nil {
			return nil, fmt.Errorf("a2e.providers.%s = %q: the hub serves this capability itself", capability, name)
		}
		capabilities[capability] = hostProvider{b, capability, name}
	}
	b.host = &protocol.Host{
		Auth: b, Capabilities: capabilities, Strict: c.Strict, Store: b.sessions, Limits: c.Limits, TLS: c.TLS,
		ConnContext: c.ConnContext, Authenticated: b.authenticated, Refused: b.refused,
		Log: c.Logger, Now: c.Now,
	}
	b.sessions.session = b.host.Session
	b.stops = append(b.stops, c.Hub.Directory().Watch(b.hosts.changed))
	return b, nil
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. Deliver reports the results of delegated work,
// so it carries replies.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		DeduplicatesFor: b.deduplicates,
		CarriesReplies:  true,
		ReplyLosses:     replyLosses,
		Holds:           b.holds,
		Address:         b.address,
		Way:             b.way,
		Connection:      b.connection,
		StandInAddress:  func(string) string { return b.Base() },
	}
}

// deduplicates: agents know a message by the hub's id. Hosts remember the ids of
// requests only if they announce it.
func (b *Binding) deduplicates(e *directory.Entry, id parley.Identity) bool {
	return id.URL == "" || b.hosts.remembers(e.Name)
}

// holds reports whether messages wait until their agent calls for them, at any hub.
func (b *Binding) holds(e *directory.Entry, id parley.Identity) bool {
	return id.URL == "" && !b.inboxes.hasCall(e.Name)
}

// Start implements hub.Service.
func (b *Binding) Start(ctx context.Context) error {
	if err := b.memory.load(ctx); err != nil {
		return fmt.Errorf("read the memories of A2E agents: %w", err)
	}
	for _, watch := range []func(context.Context) (stop func(), err error){
		b.sessions.watch, b.inboxes.watchCalls, b.inboxes.watchMessages, b.subagents.watch,
	} {
		stop, err := watch(ctx)
		if err != nil {
			return fmt.Errorf("follow what hubs have for A2E agents: %w", err)
		}
		b.stops = append(b.stops, stop)
	}
	b.hosts.start()
	if b.c.Listen != nil {
		b.work.Go(func() {
			if err := b.host.Serve(b.ctx, b.c.Listen); err != nil && !errors.Is(err, net.ErrClosed) {
				b.c.Logger.Error("the A2E listener failed", "error", err)
			}
		})
	}
	b.work.Go(func() {
		t := time.NewTicker(sessionTTL / 4)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				b.sessions.refresh(b.ctx)
			case <-b.ctx.Done():
				return
			}
		}
	})
	return nil
}

// Stop lets sessions finish and ends them; unread frames are recorded. It is called
// before the HTTP listener shuts, whose streams would not end otherwise.
func (b *Binding) Stop(ctx context.Context) {
	b.inboxes.shut()
	if err := b.host.Shutdown(ctx); err != nil {
		b.c.Logger.Debug("A2E sessions were cut off", "error", err)
	}
}

// Close implements hub.Service.
func (b *Binding) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b.Stop(ctx)
	for _, stop := range b.stops {
		stop()
	}
	b.stop()
	b.hosts.close()
	b.inboxes.close()
	b.work.Wait()
	b.sessions.shut(ctx)
	if b.c.Listen != nil {
		if err := b.c.Listen.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

// Host gives the host that agents connect to, for programs that serve further
// connections themselves.
func (b *Binding) Host() *protocol.Host { return b.host }

// Serves implements hub.HTTPBinding.
func (b *Binding) Serves(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, b.c.Path) && len(r.URL.Path) > len(b.c.Path) &&
		r.URL.Path[len(b.c.Path)] == '/'
}

// connect is the endpoint that turns a connection into a stream of NDJSON (RFC 9110
// §7.8), for `parley a2e stdio`.
const connect = "/connect"

// ServeHTTP serves the host's endpoints, and connect.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, b.c.Path)
	if path == connect {
		b.connect(w, r)
		return
	}
	inner, u := *r, *r.URL // as http.StripPrefix does: a stream holds the copies for long
	u.Path, u.RawPath = path, ""
	inner.URL = &u
	b.host.ServeHTTP(w, &inner)
}

// Upgrade is the name of the protocol that a connection changes to.
const Upgrade = "a2e-ndjson"

func (b *Binding) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !strings.EqualFold(r.Header.Get("Upgrade"), Upgrade) || r.ProtoMajor != 1 {
		w.Header().Set("Upgrade", Upgrade)
		w.Header().Set("Connection", "Upgrade")
		http.Error(w, `{"detail":"ask with Upgrade: `+Upgrade+`"}`, http.StatusUpgradeRequired)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, `{"detail":"this connection cannot be upgraded"}`, http.StatusNotImplemented)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Upgrade+
		"\r\n\r\n"); err != nil {
		_ = conn.Close()
		return
	}
	b.work.Add(1)
	defer b.work.Done()
	ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
	defer stop()
	defer context.AfterFunc(b.ctx, stop)()
	if err := b.host.ServeConn(ctx, &upgraded{conn, rw.Reader}); err != nil {
		b.c.Logger.Debug("an A2E connection ended", "error", err)
	}
}

// upgraded is a connection whose first bytes are in a buffer.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.r.Read(p) }

// address: agents that are exposed are tools of the host.
func (b *Binding) address(e *directory.Entry) string {
	if b.c.PublicURL == "" || !e.ExposedIn(Protocol) {
		return ""
	}
	return b.Base()
}

// Base is the URL to set in agents.
func (b *Binding) Base() string { return strings.TrimRight(b.c.PublicURL, "/") + b.c.Path }

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)
