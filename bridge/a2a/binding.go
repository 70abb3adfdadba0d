package a2a

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

	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley"

	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// Protocol is this protocol's short name.
const Protocol = "a2a"

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

	PublicURL string   // base URL under which agents reach the hub
	Domain    string   // agents have their card at its sub-domains too; "": not
	Root      string   // the agent whose card is at the root of the public URL's host; "": none
	CardForm  CardForm // of the card for a client that names no version, or for all
	Guests    []string // agents open to callers without credentials, besides AgentSettings.Guests: names or patterns
	Origins   []string // web origins whose pages may call; "*": any
	GRPC      string   // address that clients reach GRPCServer at, host:port; "": cards list no gRPC

	MaxBody   int64         // of a request; 0: 1 MiB
	MaxAnswer int64         // of an answer of an agent elsewhere, and of one event; 0: 4 MiB
	Wait      time.Duration // how long a blocking call waits; then it gets the task as it is; 0: 60 s
	KeepAlive time.Duration // between comments in an idle stream; 0: 15 s
	Streams   int           // open at once for one caller; 0: 256
	Webhooks  int           // of one task; 0: 8
	PlainPush bool          // webhooks may be http:// too, at addresses of Allow

	Now    func() time.Time
	Rand   io.Reader
	Logger *slog.Logger
}

// CardForm is the form of an agent card.
type CardForm string

// The forms.
const (
	// Negotiated: pure for a client that asks with A2A-Version 1.0, else hybrid.
	Negotiated CardForm = ""
	// Pure has the members of 1.0 alone.
	Pure CardForm = "1.0"
	// Hybrid has the members of 0.3 beside them.
	Hybrid CardForm = "hybrid"
)

// AgentSettings are the operator's settings for one agent in A2A. The zero value is valid.
type AgentSettings struct {
	// Message answers a blocking request that ends in time with a Message in place of a Task.
	Message bool
	// Guests lets callers without credentials call an agent of this hub.
	Guests bool
	// Credentials are for calls of an agent elsewhere.
	Credentials peerauth.Credentials
	// Unsigned takes the card of an agent elsewhere that was signed and is no longer.
	Unsigned bool
}

// Binding is the hub's A2A side. It is an http.Handler for the protocol listener, and a
// hub.Binding.
type Binding struct {
	c      Config
	public *url.URL
	state
	outgoing
	requests   *follow.Requests
	webhooks   *webhooks
	hookClient *http.Client
	methods    a2asrv.RequestHandler // of the protocol, for all transports
	opened     *streams

	streaming  context.Context // ends with EndStreams
	endStreams context.CancelFunc

	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
	stops []func() // end the watches of the directory and the journal

	mu       sync.RWMutex
	settings map[string]AgentSettings // by directory name
	labels   map[string]string        // directory names by the label of their sub-domain

	cards cardState
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
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.MaxBody, c.MaxAnswer = cmp.Or(c.MaxBody, 1<<20), cmp.Or(c.MaxAnswer, 4<<20)
	c.Wait, c.KeepAlive = cmp.Or(c.Wait, time.Minute), cmp.Or(c.KeepAlive, 15*time.Second)
	c.Streams, c.Webhooks = cmp.Or(c.Streams, 256), cmp.Or(c.Webhooks, 8)
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	b := &Binding{c: c, public: public, state: newState(c.Journal), outgoing: newOutgoing(c),
		requests: follow.New(follow.Config{Journal: c.Journal, Index: c.Index}),
		settings: map[string]AgentSettings{}, labels: map[string]string{},
		opened: &streams{most: c.Streams, open: map[string]int{}}}
	b.methods, b.checkCard = checked{service{b}}, b.verifyCard
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.streaming, b.endStreams = context.WithCancel(b.ctx)
	guard := netguard.Live(c.Allow, netguard.HubAdvice)
	if b.webhooks, err = newWebhooks(b, guard); err != nil {
		return nil, err
	}
	b.hookClient = guard.Client(netguard.Options{MaxRedirects: -1, MaxResponseBytes: maxHookAnswer, RootCAs: c.RootCAs})
	if c.Transport != nil {
		b.hookClient.Transport = c.Transport(b.hookClient.Transport)
	}
	b.stops = append(b.stops, b.endStreams, c.Hub.Directory().Watch(b.relabel))
	for _, e := range c.Hub.Directory().All() {
		b.relabel(directory.Change{New: e})
	}
	return b, nil
}

// SetAgent sets the operator's settings for an agent.
func (b *Binding) SetAgent(name string, s AgentSettings) {
	b.mu.Lock()
	b.settings[name] = s
	b.mu.Unlock()
	b.disconnect(name)
}

// settingsOf gives the operator's settings for an agent.
func (b *Binding) settingsOf(name string) AgentSettings {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.settings[name]
}

// opensToGuests reports whether callers without credentials may call an agent.
func (b *Binding) opensToGuests(name string) bool {
	return b.settingsOf(name).Guests ||
		slices.ContainsFunc(b.c.Guests, func(pattern string) bool { return policy.Match(pattern, name) })
}

// Start begins the work in the background.
func (b *Binding) Start(ctx context.Context) error {
	b.requests.Start()
	if err := b.webhooks.start(ctx); err != nil {
		return err
	}
	return b.startCalls(ctx)
}

// Close ends the work in the background.
func (b *Binding) Close() error {
	for _, stop := range b.stops {
		stop()
	}
	b.requests.Close()
	b.outMu.Lock() // no work begins after it
	b.stop()
	b.outMu.Unlock()
	b.work.Wait()
	b.closePeers()
	return nil
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		Streams:        b.streams,
		CallsBack:      b.callsBack,
		ReplyLosses:    replyLosses,
		Way:            b.way,
		Resumes:        b.resumes,
		Reaches:        func(id parley.Identity) bool { return !IsCaller(id.ID) },
		Address:        b.address,
		StandInAddress: b.AgentURL,
	}
}

// streams reports whether events of a request are told as they come: its client asked for a
// stream, a client follows it now, or a webhook is called.
func (b *Binding) streams(request *parley.Message) bool {
	return request.Trace.Foreign[foreignStream] == "true" || b.requests.Streaming(request.ID) ||
		len(b.webhooks.of(request.ID)) > 0
}

// Serves implements hub.HTTPBinding.
func (b *Binding) Serves(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, Base) || r.URL.Path == CardPath
}

// Paths of the protocol listener, below the public URL.
const (
	// Base begins the URLs of agents: /a2a/NAME.
	Base = "/a2a/"
	// CardPath is the path of a card below an agent's URL, and at the root of a host
	// (A2A 1.0, section 8.2).
	CardPath = "/.well-known/agent-card.json"
)

// AgentURL is where clients reach an agent of the hub.
func (b *Binding) AgentURL(name string) string { return b.public.String() + Base + name }

// address is where clients reach an agent that is exposed, "" for one that is not.
func (b *Binding) address(e *directory.Entry) string {
	if !b.exposes(e) {
		return ""
	}
	return b.AgentURL(e.Name)
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)
