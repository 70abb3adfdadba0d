// Package uagents joins uAgents to the hub. It gives agents the services of
// Agentverse (a registry, mailboxes, an endpoint for envelopes), it stands in
// for agents of other protocols with keys that the hub holds, and it calls
// uAgents for agents of another protocol.
//
// # Scope and replay
//
// The scope of an envelope is its target; the replay key is sender and
// envelope digest. An envelope that was recorded before has no second effect:
// it is answered 200 {}, or with the same refusal as the first time.
//
// # Requests and replies
//
// The protocol has no reference from a reply to its request. The hub opens a
// session for each request that it sends, and takes the recipient's envelopes in it
// as replies: an acknowledgement as accepted, an ErrorMessage as a failure, the
// first other message as the response. Later envelopes are notices. An agent's question
// about a chat goes as a chat message in the session of the request; chat messages that
// its sender adds there are inputs, until the request is answered.
//
// # Between two uAgents
//
// An envelope for an agent that speaks uAgents itself is forwarded unchanged,
// with its own signature.
package uagents

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	protocol "github.com/parley-hub/parley/uagents"
)

// Config of a Binding. Hub, Keys and Journal must be set.
type Config struct {
	Hub     *hub.Hub
	Keys    *keyring.Ring
	Journal *journal.Journal

	// Allow gives further addresses that the hub may call, besides public ones; nil: none.
	// It is asked before each connection, so the list may change.
	Allow     func() []netip.Prefix
	RootCAs   *x509.CertPool // trusted by outbound calls; nil: the system's
	PublicURL string         // base URL under which agents reach the hub
	Unnamed   bool           // PublicURL is a guess: agents get URLs with the host that they used
	Hosts     []string       // further host:port under which agents reach the hub
	Root      string         // directory name of the hub itself

	Legacy     bool          // take envelopes after their expiry, and keep them in mailboxes
	AllowNonce bool          // take a nonce without an expiry
	Horizon    time.Duration // how far ahead an expiry may lie; 0: 24 h
	// base URL of a registry for agents that are not registered here; "": none
	Registry string
	Closed   bool     // only agents of the directory may register and have mailboxes
	Expose   []string // protocols in which agents that register themselves appear
	// Direct reports whether the registry shows an agent's own endpoints; name is its
	// name in the directory, or "". Nil: never; the registry shows the hub's /submit.
	Direct func(name string) bool

	Lifetime     time.Duration // of a registration; 0: 3 h
	Retention    time.Duration // of an envelope without expiry in a mailbox; 0: 24 h
	UnsignedRate float64       // unsigned messages a second; 0: 20, below zero: none
	MaxBody      int64         // content of a message; 0: 1 MiB. Envelopes are larger

	// Account gives the name of the account of a bearer token. nil: there are no
	// accounts.
	Account func(secret string) (name, why string)

	Now    func() time.Time
	Logger *slog.Logger
}

// Binding is the hub's uAgents side. It is an http.Handler for the protocol
// listener, and a hub.Binding.
type Binding struct {
	c              Config
	public         *url.URL
	verifier       *protocol.Verifier
	server         *protocol.Server
	almanac        *almanac
	almanacServer  *protocol.AlmanacServer
	mailbox        *mailbox
	mailboxServer  *protocol.MailboxServer
	accounts       *accounts
	identityServer *protocol.IdentityServer
	limit          int // bytes of an envelope, both ways
	http           *http.Client
	upstream       protocol.Resolver
	sessions       *sessions
	questions      *journal.Table[question]
	standIns       *standIns
	seenChats      protocol.Memory // acknowledged chat messages without content

	acksMu     sync.Mutex
	acks       map[parley.ID]*ack
	ackWorkers chan struct{} // acknowledgements in flight

	stopWatch func()
	stops     []func() // end the watches of the journal's state
	ctx       context.Context
	stop      context.CancelFunc
	work      sync.WaitGroup
}

const (
	maxAcks      = 1 << 16
	ackSlots     = 256
	ackTimeout   = 15 * time.Second
	answerExpiry = time.Hour
	sweepEvery   = 10 * time.Minute
	pathSubmit   = "/submit"
	pathMailbox  = "/v2/agents/mailbox/submit"
	pathProxy    = "/v2/agents/proxy/submit"
)

// New makes a binding.
func New(c Config) (*Binding, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	public, err := bridge.PublicURL(c.PublicURL)
	if err != nil {
		return nil, err
	}
	b := &Binding{c: c, public: public,
		sessions: newSessions(c.Journal), questions: newQuestions(c.Journal), acks: map[parley.ID]*ack{},
		ackWorkers: make(chan struct{}, ackSlots),
		seenChats:  protocol.NewMemory(0, c.Now)}
	guard := netguard.Live(c.Allow, netguard.HubAdvice)
	b.http = guard.Client(netguard.Options{Timeout: -1, MaxRedirects: -1, MaxResponseBytes: -1, RootCAs: c.RootCAs})
	if c.Registry != "" {
		b.upstream = &protocol.AlmanacResolver{URL: c.Registry, Now: c.Now,
			HTTP: guard.Client(netguard.Options{Timeout: 5 * time.Second, MaxRedirects: -1, RootCAs: c.RootCAs})}
	}
	b.standIns = newStandIns(b)
	b.ctx, b.stop = context.WithCancel(context.Background())
	if c.MaxBody == 0 {
		c.MaxBody = 1 << 20
	}
	b.limit = protocol.EnvelopeSize(int(c.MaxBody))
	b.verifier = &protocol.Verifier{Now: c.Now, AllowExpired: c.Legacy, AllowNonce: c.AllowNonce,
		Limits: protocol.Limits{Body: b.limit, Horizon: c.Horizon}}
	b.server = &protocol.Server{Verifier: b.verifier, Resolve: b.resolve, Accept: b.accept, Refused: b.refused,
		Info: b.info, Log: c.Logger, Now: c.Now, UnsignedRate: c.UnsignedRate, MaxQueued: 8192, MaxWaiting: 8192}
	b.almanac, b.mailbox = newAlmanac(b), newMailbox(b)
	b.almanacServer = &protocol.AlmanacServer{Store: b.almanac, Now: c.Now, Allow: b.mayRegister, Changed: b.registered,
		Lifetime: c.Lifetime}
	b.mailboxServer = &protocol.MailboxServer{Store: b.mailbox, Verifier: b.verifier, Now: c.Now,
		Allow: b.mayHaveMailbox, Proved: b.noteProof, Accept: b.acceptMail, Refused: b.refused,
		Retention: c.Retention}
	b.accounts = newAccounts(b)
	b.identityServer = &protocol.IdentityServer{Now: c.Now, User: b.accountOf, Store: b.accounts}
	b.stopWatch = c.Hub.Directory().Watch(b.directoryChanged)
	return b, nil
}

// Start implements hub.Service: it reads the state of the journal.
func (b *Binding) Start(ctx context.Context) error {
	for _, state := range []struct {
		name  string
		start func(context.Context) (stop func(), err error)
	}{
		{"profiles", b.accounts.start}, // first: their agents are no guests
		{"mailboxes", b.mailbox.start},
		{"registry", b.almanac.startManifests}, // so that the models of a record are known when it is indexed
		{"registry", b.almanac.startRecords},
		{"sessions", b.sessions.start},
		{"questions", func(ctx context.Context) (func(), error) { return b.questions.Follow(ctx, nil) }},
	} {
		stop, err := state.start(ctx)
		if err != nil {
			return fmt.Errorf("read the %s: %w", state.name, err)
		}
		b.stops = append(b.stops, stop)
	}
	for _, e := range b.c.Hub.Directory().All() {
		b.directoryChanged(directory.Change{New: e}) // some guests have nothing but their entry
	}
	if err := b.standIns.start(ctx); err != nil {
		return err
	}
	b.accounts.restore(ctx)
	b.work.Go(b.standIns.run)
	b.work.Go(func() {
		t := time.NewTicker(sweepEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				b.sweep(b.ctx)
			case <-b.ctx.Done():
				return
			}
		}
	})
	return nil
}

// sweep removes expired sessions, mailboxes, and registrations with their entries in the
// directory.
func (b *Binding) sweep(ctx context.Context) {
	b.sessions.sweep()
	b.mailbox.sweep()
	b.acksMu.Lock()
	oldest := b.c.Now().Add(-2 * time.Hour)
	maps.DeleteFunc(b.acks, func(_ parley.ID, a *ack) bool { return a.begun.Before(oldest) })
	b.acksMu.Unlock()
	b.almanac.sweep()
	b.accounts.restore(ctx)
	b.sweepGuests(ctx)
}

// Close ends the background work.
func (b *Binding) Close() error {
	b.stopWatch()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := b.server.Shutdown(ctx)
	b.stop()
	b.work.Wait()
	for _, stop := range b.stops {
		stop()
	}
	b.http.CloseIdleConnections()
	return err
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		DeduplicatesFor: b.deduplicates,
		CarriesReplies:  true,
		// A question goes as a chat message. The only event of the protocol is the
		// acknowledgement of a chat message, which the hub itself sends.
		CarriesEvent: func(event *parley.Message) bool { return event.State == parley.NeedsInput },
		ReplyLosses:  replyLosses,
		Address:      b.Address,
		Way:          b.way,
		Connection:   b.connection,
		// The address is made of a key, which the stand-in gets when it is made.
		StandInAddress: func(string) string { return "" },
		Profile:        b.profile,
	}
}

// deduplicates reports whether the recipient deduplicates: a mailbox does, but agents of
// the reference library handle every copy of an envelope.
func (b *Binding) deduplicates(_ *directory.Entry, id parley.Identity) bool {
	return b.usesMailbox(id, b.almanac.registered(id.ID))
}

// Serves implements hub.HTTPBinding.
func (b *Binding) Serves(r *http.Request) bool {
	p := r.URL.Path
	return slices.Contains([]string{pathSubmit, pathSubmit + "/", "/agent_info", "/v1/events", "/v2/agents",
		"/v2/identity"}, p) ||
		slices.ContainsFunc([]string{"/v1/almanac/", "/v1/search/", "/v2/agents/", "/v2/almanac/", "/v2/identity/"},
			func(prefix string) bool { return strings.HasPrefix(p, prefix) })
}

// ServeHTTP serves envelopes, the registry, mailboxes and proofs of identity.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = withCaller(r)
	p := r.URL.Path
	if p == pathProxy {
		p = pathSubmit // every agent is behind the hub
	}
	if p != r.URL.Path {
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = p, ""
	}
	switch {
	case strings.HasPrefix(p, "/v1/almanac/"), strings.HasPrefix(p, "/v2/almanac/"):
		b.almanacServer.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), hostKey{}, r.Host)))
	case p == pathMailbox, strings.HasPrefix(p, "/v2/agents/") && strings.Contains(p, "/mailbox"):
		b.mailboxServer.ServeHTTP(w, r)
	case strings.HasPrefix(p, "/v2/"), strings.HasPrefix(p, "/v1/"):
		b.identityServer.ServeHTTP(w, r)
	default:
		b.server.ServeHTTP(w, r)
	}
}

// Hosting is the data that agents elsewhere need to reach this hub.
type Hosting struct {
	Agentverse string `json:"agentverse"` // the agentverse that an agent configures
	Submit     string `json:"submit"`     // the endpoint of all stand-ins
	Address    string `json:"address"`    // of the hub itself
}

// Hosting gives the URLs and the address of the hub in uAgents.
func (b *Binding) Hosting(ctx context.Context) (Hosting, error) {
	id, err := b.standIns.ensure(ctx, b.c.Root)
	if err != nil {
		return Hosting{}, err
	}
	return Hosting{Agentverse: b.public.String(), Submit: b.public.String() + pathSubmit, Address: id.Address()}, nil
}

// Identity makes the directory's identity of a uAgent. With endpoint "" the agent's own
// registration gives its endpoints.
func (b *Binding) Identity(address, endpoint string) (parley.Identity, error) {
	address = strings.TrimPrefix(strings.TrimPrefix(address, "agent://"), "test-agent://")
	if _, err := protocol.ParseAddress(address); err != nil {
		return parley.Identity{}, fmt.Errorf("address %q: want agent1q… with 65 characters: %w", address, err)
	}
	if endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return parley.Identity{}, fmt.Errorf("endpoint %q: want http(s)://host[:port]/submit", endpoint)
		}
	}
	return parley.Identity{Protocol: Protocol, ID: address, URL: endpoint}, nil
}

// Address gives the address of an agent or of its stand-in.
func (b *Binding) Address(e *directory.Entry) string {
	if i, ok := e.Identity(Protocol); ok {
		return i.ID
	}
	if !b.hosts(e) {
		return ""
	}
	id, err := b.standIns.ensure(b.ctx, e.Name)
	if err != nil {
		b.c.Logger.Error("cannot make a stand-in", "agent", e.Name, "error", err)
		return ""
	}
	return id.Address()
}

// hosts reports whether the hub stands in for an agent: it is exposed and does not speak
// the protocol itself.
func (b *Binding) hosts(e *directory.Entry) bool {
	return e.ExposedIn(Protocol) && !slices.Contains(e.Native(), Protocol)
}

// isOwnPath reports whether an endpoint is this path of the hub.
func (b *Binding) isOwnPath(endpoint, path string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	return (u.Host == b.public.Host && u.Path == b.public.Path+path) ||
		slices.Contains(b.c.Hosts, u.Host) && u.Path == path
}

// elsewhere reports whether an endpoint is in use and not this hub's own.
func (b *Binding) elsewhere(e protocol.Endpoint) bool {
	return e.Weight >= 1 && !b.isOwnPath(e.URL, pathSubmit) && !b.isOwnPath(e.URL, pathMailbox) &&
		!b.isOwnPath(e.URL, pathProxy)
}

// nameAt is the directory name of an address.
func (b *Binding) nameAt(address string) (name string, standIn bool) {
	if name, _, ok := b.standIns.at(address); ok {
		return name, true
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, address); ok {
		return e.Name, false
	}
	return "", false
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)

// directoryChanged follows the directory, which it must not change.
func (b *Binding) directoryChanged(c directory.Change) {
	b.standIns.changed(c)
	for _, e := range []*directory.Entry{c.Old, c.New} {
		if e == nil {
			continue
		}
		for _, i := range e.Identities {
			if i.Protocol != Protocol || i.StandIn {
				continue
			}
			b.recount(i.ID)
			b.accounts.entryRemoved(i.ID)
			if e == c.New && e.Learns(Protocol) {
				b.standIns.enqueueRecord(i.ID) // the address may be registered, with models
			}
		}
	}
}
