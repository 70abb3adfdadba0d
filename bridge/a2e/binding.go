// Package a2e joins A2E to the hub, in both roles of the protocol.
//
// # Agents at the hub's host
//
// An A2E agent connects to the hub as to its environment: over HTTP with SSE
// under a base path of the hub's listener, over TCP, or through the command
// that it starts as a child process. It proves who it is by a token, which
// leads to one agent of the directory; what it sends is authenticated by its
// session, never signed. The agents of the directory are its tools and skills,
// its inbox is the tool parley_inbox, and its memory is in the journal.
//
// # Hosts that the hub attaches to
//
// An agent of the directory with the URL of an A2E host stands for that host:
// the host's tools are its skills. An operator may also name such an agent as
// the provider of a capability, to which requests of that capability are then
// passed as they are. The hub itself never starts a process.
//
// # Scope and replay
//
// The scope of a message is the session, the replay key the request's id within
// it. A request that is sent again, to another node for example, is answered
// with the recorded answer.
package a2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// DefaultPath is where the host is found on the hub's HTTP listener.
const DefaultPath = "/a2e"

// Config of a Binding. Hub, Keys, Journal and Guard must be set.
type Config struct {
	Hub     *hub.Hub
	Keys    *keyring.Ring
	Journal *journal.Journal

	Guard     *netguard.Guard   // outbound addresses
	RootCAs   *x509.CertPool    // trusted by outbound calls; nil: the system's
	PublicURL string            // base URL under which agents reach the hub
	Path      string            // base path on the HTTP listener; "": DefaultPath
	Listen    net.Listener      // for NDJSON over TCP; nil: none
	TLS       *tls.Config       // of Listen; nil: none
	Strict    bool              // agents may use only the capabilities that they negotiated
	Providers map[string]string // capability → agent of the directory that is a host, to which its requests are passed
	Limits    protocol.Limits
	Tools     int // agents' skills that are listed as tools one by one; past so many they are found by asking. 0: 20

	// Remote names where an HTTP request comes from, for limits per address.
	Remote func(*http.Request) string
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
	stops []func() // of what is followed
}

// New makes a binding.
func New(c Config) (*Binding, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Path == "" {
		c.Path = DefaultPath
	}
	if !strings.HasPrefix(c.Path, "/") || len(c.Path) < 2 {
		return nil, fmt.Errorf("a2e.path = %q: want a path such as %s", c.Path, DefaultPath)
	}
	c.Path = strings.TrimRight(c.Path, "/")
	if c.Tools == 0 {
		c.Tools = 20
	}
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
		Auth: b, Capabilities: capabilities, Strict: c.Strict, Store: b.sessions, Limits: c.Limits, TLS: c.TLS, Remote: c.Remote,
		ConnContext: c.ConnContext, Authenticated: b.authenticated, Refused: b.refused,
		Log: c.Logger, Now: c.Now,
	}
	b.sessions.session = b.host.Session
	b.sessions.attached = func(id string) bool {
		s, ok := b.host.Session(id)
		if !ok {
			return false
		}
		_, attached := s.State()
		return attached
	}
	b.stops = append(b.stops, c.Hub.Directory().Watch(func(ch directory.Change) {
		b.tools.changed()
		b.hosts.changed(ch)
	}))
	return b, nil
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. Deliver reports work that was delegated, so
// it carries replies.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		DeduplicatesFor: b.deduplicates,
		CarriesReplies:  true,
		ReplyLosses:     b.replyLosses,
		Holds:           b.holds,
		Address:         b.address,
	}
}

// deduplicates: agents know a message by the hub's id. Of hosts, only those that
// say so remember the ids of requests.
func (b *Binding) deduplicates(e *directory.Entry, id parley.Identity) bool {
	return id.URL == "" || b.hosts.remembers(e.Name)
}

// holds: the messages of an agent wait until it asks for them, at any hub.
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

// Stop lets sessions finish and ends them; what their agents have not read is
// recorded. It is called before the HTTP listener shuts, whose streams would
// not end otherwise.
func (b *Binding) Stop(ctx context.Context) {
	b.inboxes.shut()
	b.subagents.shut()
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
	b.work.Wait()
	b.sessions.shut(ctx)
	if b.c.Listen != nil {
		if err := b.c.Listen.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

// Host is the host that agents connect to, for programs that serve further
// connections themselves.
func (b *Binding) Host() *protocol.Host { return b.host }

// Serves implements hub.HTTPBinding.
func (b *Binding) Serves(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, b.c.Path) && len(r.URL.Path) > len(b.c.Path) && r.URL.Path[len(b.c.Path)] == '/'
}

// connect is where a connection becomes a stream of NDJSON (RFC 9110 §7.8):
// what `parley a2e stdio` uses.
const connect = "/connect"

// ServeHTTP serves the host's endpoints, and connect.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, b.c.Path)
	if path == connect {
		b.connect(w, r)
		return
	}
	inner, u := *r, *r.URL // as http.StripPrefix does: a stream holds it for long
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
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Upgrade+"\r\n\r\n"); err != nil {
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

// upgraded is a connection of which some has been read already.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.r.Read(p) }

// NewToken makes a token: 256 random bits.
func NewToken() (string, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

// TokenID is the identity of an agent with a token that is long and random,
// as [NewToken] makes it: its hash.
func TokenID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha-256:" + hex.EncodeToString(sum[:])
}

// Identity is what an agent is called that has a token of the configuration,
// or that is a host at a URL.
func (b *Binding) Identity(token, hostURL string) (parley.Identity, error) {
	switch {
	case hostURL != "":
		u, err := url.Parse(hostURL)
		if err != nil || u.Host == "" && u.Scheme != "unix" || !slices.Contains([]string{"http", "https", "tcp", "tls", "unix"}, u.Scheme) || u.User != nil {
			return parley.Identity{}, fmt.Errorf("url = %q: want http(s)://, tcp://, tls:// or unix://", hostURL)
		}
		return parley.Identity{Protocol: Protocol, ID: hostURL, URL: hostURL}, nil
	case len(token) < 16:
		return parley.Identity{}, errors.New("the token has fewer than 16 characters: make one with `openssl rand -hex 32`")
	}
	return parley.Identity{Protocol: Protocol, ID: b.secretID(token)}, nil
}

// SetToken gives the token that the hub shows to the host of an agent; it is
// not kept over a restart.
func (b *Binding) SetToken(agent, token string) { b.hosts.setToken(agent, token) }

func (b *Binding) secretID(token string) string {
	mac := hmac.New(sha256.New, b.tokens)
	_, _ = io.WriteString(mac, token) // never fails
	return "hmac-sha-256:" + hex.EncodeToString(mac.Sum(nil))
}

// agent finds an agent that may connect here.
func (b *Binding) agent(name string) (*directory.Entry, bool) {
	e, ok := b.c.Hub.Directory().Agent(name)
	if !ok {
		return nil, false
	}
	return e, slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		return i.Protocol == Protocol && !i.StandIn && i.URL == ""
	})
}

// Authenticate implements a2e.Authenticator. Tokens are looked up by their
// hashes: the time that takes tells nothing of a token.
func (b *Binding) Authenticate(_ context.Context, c protocol.Credentials) (protocol.Identity, error) {
	if c.Token == "" {
		return protocol.Identity{}, protocol.ErrUnknownKey
	}
	d := b.c.Hub.Directory()
	for _, id := range []string{b.secretID(c.Token), TokenID(c.Token)} {
		e, ok := d.Lookup(Protocol, id)
		if !ok {
			continue
		}
		if _, ok := b.agent(e.Name); !ok {
			continue
		}
		// An agent_id is a claim: free, unless it is another agent's name.
		if other, taken := d.Agent(c.AgentID); taken && other.Name != e.Name {
			return protocol.Identity{}, protocol.ErrUnknownKey
		}
		return protocol.Identity{Name: e.Name}, nil
	}
	return protocol.Identity{}, protocol.ErrUnknownKey
}

// authenticated notes that an agent proved itself by its token: its connection
// is no guest's.
func (b *Binding) authenticated(ctx context.Context, who protocol.Identity) {
	if !b.c.Hub.Guest(who.Name) {
		policy.Vouch(ctx)
	}
}

// address: agents that are exposed are tools of the host.
func (b *Binding) address(e *directory.Entry) string {
	if b.c.PublicURL == "" || !e.ExposedIn(Protocol) {
		return ""
	}
	return b.Base()
}

// Base is the URL to set in agents.
func (b *Binding) Base() string { return strings.TrimRight(b.c.PublicURL, "/") + b.c.Path }

// scope of messages of a session. The session's id is a secret, so its hash
// stands for it.
func scope(sessionID string) string { return Protocol + " " + sessionKey(sessionID) }

// request says what every message of an agent has in common.
func (b *Binding) request(r *protocol.Request, kind parley.Kind) *parley.Message {
	now := b.c.Now()
	m := &parley.Message{
		Kind: kind, From: r.Identity.Name, Hops: hopsOf(r),
		Origin: parley.Origin{Protocol: Protocol, Peer: r.Identity.Name, Raw: r.Raw(), Received: now,
			Verdict: parley.Verdict{Assurance: parley.Session, Checks: []parley.Check{
				{Name: "token", OK: true, Detail: "A2E has no signatures; the session's token answers for them"}}}},
	}
	if kind == parley.Request {
		m.Deadline = now.Add(timeLeft(r))
	}
	foreign := map[string]string{"a2e.id": clip(r.ID, 256)}
	if c := r.Str("correlation_id"); c != "" && len(c) <= 256 {
		foreign["a2e.correlationId"] = c
		if bridge.IsTraceParent(c) {
			// An agent that asks on within the trace of a message of its inbox.
			m.Trace.Parent = c
		}
	}
	m.Trace.Foreign = foreign
	return m
}

// timeLeft is how long the hub works on a request: a little less than its
// agent waits, so that the agent hears why it failed.
func timeLeft(r *protocol.Request) time.Duration {
	left := time.Until(r.Deadline)
	return max(left-min(left/10, 500*time.Millisecond), time.Millisecond)
}

// hideSession puts the hash of the session's id into the frame that is about to be
// recorded: over HTTP the id alone lets its reader speak as the agent.
func hideSession(m *parley.Message) {
	raw, ok := jsonx.Replace(m.Origin.Raw, func(id string) string {
		if strings.HasPrefix(id, hashed) {
			return id
		}
		return hashed + sessionKey(id)
	}, sessionMember)
	if !ok {
		return
	}
	m.Origin.Raw = raw
	for i := range m.Parts {
		p := &m.Parts[i]
		if at := bytes.Index(raw, p.Data); at >= 0 && len(p.Data) > 0 {
			p.Data = raw[at : at+len(p.Data) : at+len(p.Data)] // the record holds it once
		}
	}
}

// Masked gives a message as operators and exports may see it: without the id of a
// session in a record of an earlier version.
func Masked(m *parley.Message) *parley.Message {
	if m.Origin.Protocol != Protocol {
		return m
	}
	masked := *m
	masked.Parts = slices.Clone(m.Parts)
	hideSession(&masked)
	return &masked
}

const (
	sessionMember = "session_id" // of a frame, names the session
	hashed        = "sha256:"    // begins the hash that stands for it
)

// keyEnd is until when the id of a message is recognised in its session. A2E
// messages never become stale. An agent repeats one whose answer it missed at once,
// three times at most; a request is not begun again as long as it is in flight.
func (b *Binding) keyEnd(m *parley.Message) time.Time {
	end := b.c.Now().Add(cmp.Or(b.c.Limits.SeenFor, 5*time.Minute))
	if m.Deadline.After(end) {
		end = m.Deadline
	}
	return bridge.KeyEnd(end)
}

func (b *Binding) submission(r *protocol.Request, m *parley.Message) hub.Submission {
	hideSession(m)
	return hub.Submission{
		Message: m, Scope: scope(r.Session.ID()), Foreign: m.Trace.Foreign["a2e.correlationId"],
		Key: journal.Key{ID: r.ID, Sender: r.Identity.Name, Until: b.keyEnd(m)},
	}
}

// refusal turns the hub's refusal of a proved message into the protocol's
// error, with the reference by which an operator finds it.
func (b *Binding) refusal(err error, r *protocol.Request, to string) error {
	e := parley.AsError(err)
	if e.Ref == "" {
		cause := ""
		if c := errors.Unwrap(e); c != nil {
			cause = c.Error()
		}
		c := *e
		c.Ref = b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Claim: r.Identity.Name, To: to, Step: "admit", Code: e.Code, Text: e.Text, Cause: cause,
			Size: len(r.Raw()), Verdict: parley.Verdict{Assurance: parley.Session}})
		e = &c
	}
	return toError(e, r.Capability())
}

// refused notes what the host turned away, for `parley refused`.
func (b *Binding) refused(f protocol.Refusal) {
	if f.Dropped && errors.Is(f.Err, protocol.ErrReplay) {
		return // a repeat of what is being answered: nothing was refused
	}
	claim := f.Identity
	if claim == "" {
		claim = clip(f.AgentID, 128)
	}
	code := parley.Malformed
	switch {
	case errors.Is(f.Err, protocol.ErrTooLarge):
		code = parley.TooLarge
	case errors.Is(f.Err, protocol.ErrBusy), errors.Is(f.Err, protocol.ErrFull):
		code = parley.RateLimited
	case errors.Is(f.Err, protocol.ErrShuttingDown):
		code = parley.Unavailable
	case errors.Is(f.Err, protocol.ErrUnknownKey), errors.Is(f.Err, protocol.ErrNoHandshake):
		code = parley.Unauthenticated
	case f.Err.Code == protocol.Unauthorized, f.Err.Code == protocol.CapabilityMissing:
		code = parley.Forbidden
	case errors.Is(f.Err, protocol.ErrUnknownType), f.Err.Code == protocol.VersionMismatch:
		code = parley.Unsupported
	case f.Err.Code == protocol.SchemaViolation:
		code = parley.InvalidContent
	}
	cause := f.Err.Error()
	if f.Dropped {
		cause = "not answered: " + cause
	}
	b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Source: f.Remote, Claim: claim, To: clip(f.Type, 128), Step: f.Err.Step, Code: code,
		Text: f.Err.Text, Cause: cause, Size: f.Size})
}

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if o.Identity.URL != "" {
		return b.hosts.deliver(ctx, o)
	}
	if done, out := b.subagents.report(ctx, o); done {
		return out
	}
	return b.inboxes.deliver(ctx, o)
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)
