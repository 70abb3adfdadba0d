// Package samvad joins SAMVAD to the hub. For example, an agent named crew/scout
// that speaks another protocol has a stand-in under /agents/crew/scout (and at a
// sub-domain where one is configured): SAMVAD agents read its card there and send
// it requests. In the other direction, the hub calls SAMVAD agents elsewhere for
// senders of all protocols.
//
// The hub itself is the agent at the root, so that peers find the key with which
// it signs on its card.
//
// # Scope and replay
//
// The scope of a message is the addressed agent; the replay key is sender and
// nonce within it. The journal's record reserves the nonce: a request with a nonce
// that was recorded before is answered REPLAY_DETECTED, whatever its content.
package samvad

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"net/url"
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
	protocol "github.com/parley-hub/parley/samvad"
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
	Domain    string         // stand-ins are at its sub-domains too; "": paths only

	Legacy    bool                                      // accept protocol 1.1
	Origins   []string                                  // web origins whose pages may call; "*": any
	Transport func(http.RoundTripper) http.RoundTripper // around outbound calls; nil: nothing
	Window    time.Duration                             // how old a message may be; 0: 300 s
	MaxBody   int64                                     // 0: 1 MiB

	// Tokens are the bearer tokens that authenticated skills of agents here accept;
	// with none, such skills refuse every request.
	Tokens []string
	// TokensPerDay is how many tokens each sender may make each agent here use in a
	// UTC day; 0: no limit.
	TokensPerDay int
	// Unscanned names skills whose payloads are not scanned for injection, by
	// patterns over agent or agent.skill.
	Unscanned []string
	// Lightweight names public skills that unsigned requests may call, by patterns of
	// the same kind; none by default.
	Lightweight []string

	Now    func() time.Time
	Logger *slog.Logger
}

// Binding is the hub's SAMVAD side. It is an http.Handler for the protocol
// listener, and a hub.Binding.
type Binding struct {
	c        Config
	public   *url.URL
	server   *protocol.Server
	client   *protocol.Client
	identity identity
	taskKey  []byte
	tokens   *tokens
	pace     pacer
	budget   *budget // nil where there is none
	state

	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
	slots chan struct{} // bounds the jobs that finish tasks
	stops []func()      // end the watches of the directory and the journal

	running sync.Map // IDs of the messages whose tasks are not finished

	remoteMu sync.Mutex
	followed map[parley.ID]*remoteTask // tasks elsewhere that this node polls, by message
	peers    map[string]*peerTasks     // by directory name

	mu          sync.RWMutex
	standIns    map[string]*protocol.Agent // by directory name; made when first needed
	cardBasis   string                     // the hub's keys and limits that are on their cards
	cards       map[string]*cachedCard     // of agents elsewhere, by directory name
	credentials map[string]Credentials     // of agents elsewhere, by directory name
	labels      map[string]string          // directory names by DNS label
}

// Root is the directory name of the agent that is served at the root: the hub
// itself.
const Root = "parley"

// New makes a binding.
func New(c Config) (*Binding, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	public, err := bridge.PublicURL(c.PublicURL)
	if err != nil {
		return nil, err
	}
	b := &Binding{c: c, public: public, state: newState(c.Journal), pace: pacer{now: c.Now},
		slots:    make(chan struct{}, 32),
		followed: map[parley.ID]*remoteTask{}, peers: map[string]*peerTasks{},
		standIns: map[string]*protocol.Agent{}, cards: map[string]*cachedCard{},
		credentials: map[string]Credentials{}, labels: map[string]string{}}
	guard := netguard.Live(c.Allow, netguard.HubAdvice)
	outbound := func(timeout time.Duration, redirects int, maxBytes int64) *http.Client {
		return guard.Client(netguard.Options{Timeout: timeout, MaxRedirects: redirects, MaxResponseBytes: maxBytes,
			RootCAs: c.RootCAs})
	}
	cards := &protocol.CardStore{Guard: guard, Now: c.Now}
	if c.RootCAs != nil {
		cards.HTTP = outbound(protocol.DefaultCardTimeout, 3, 0)
	}
	if b.identity, err = newIdentity(c.Keys, "agent://"+public.Host); err != nil {
		return nil, err
	}
	b.client = &protocol.Client{Identity: b.identity, Guard: guard, Now: c.Now, HTTP: outbound(-1, 0, -1)}
	if c.Transport != nil {
		b.client.HTTP.Transport = c.Transport(b.client.HTTP.Transport)
	}
	b.client.HTTP.Transport = hopsTransport{b.client.HTTP.Transport}
	if b.taskKey, err = c.Keys.Secret("samvad tasks", 32); err != nil {
		return nil, err
	}
	if b.tokens, err = newTokens(c.Keys); err != nil {
		return nil, err
	}
	b.server = &protocol.Server{
		Resolve: b.resolve,
		Verifier: &protocol.Verifier{
			Keys:   protocol.FirstOf(enrolledKeys{c.Hub.Directory(), c.Keys}, cards),
			Memory: memory{c.Journal},
			Now:    c.Now,
			Limits: protocol.Limits{MaxBody: c.MaxBody, Window: c.Window},
			Prefix: public.EscapedPath(),
			Legacy: c.Legacy,
		},
		Handle:     b.handle,
		Refused:    b.noteRefusal,
		MaxRunning: math.MaxInt, // recorded requests must run: the hub has bounds of its own
		Limiter:    &protocol.Limiter{},
		Tasks:      (*taskStore)(b),
		Webhook: &protocol.Webhook{Guard: guard, Now: c.Now,
			HTTP: outbound(protocol.DefaultWebhookTimeout, -1, 0)},
		CORS: c.Origins,
	}
	if c.TokensPerDay > 0 {
		b.budget = newBudget(b.spending, b.server.Limiter, c.Now)
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.stops = append(b.stops, c.Hub.Directory().Watch(b.update))
	for _, e := range c.Hub.Directory().All() {
		b.update(directory.Change{New: e})
	}
	return b, nil
}

// update follows a change of the directory.
func (b *Binding) update(ch directory.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ch.Old != nil {
		delete(b.standIns, ch.Old.Name)
		delete(b.cards, ch.Old.Name)
		delete(b.labels, bridge.HostLabel(ch.Old.Name))
	}
	if ch.New != nil {
		delete(b.standIns, ch.New.Name)
		b.labels[bridge.HostLabel(ch.New.Name)] = ch.New.Name
	} else if ch.Old != nil {
		delete(b.credentials, ch.Old.Name)
	}
}

// Start follows the journal for answers, and goes on with the tasks of an earlier
// process.
func (b *Binding) Start(ctx context.Context) error {
	if b.budget != nil {
		stop, err := b.budget.start(ctx)
		if err != nil {
			return err
		}
		b.stops = append(b.stops, stop)
		b.work.Go(func() {
			b.budget.run(b.ctx, func(err error) {
				b.c.Logger.Error("cannot record a token budget; trying again",
					"error", err)
			})
		})
	}
	b.followRemoteTasks()
	return b.followTasks(ctx)
}

// Close ends the work in the background.
func (b *Binding) Close() error {
	for _, stop := range b.stops {
		stop()
	}
	b.mu.Lock() // no work begins after it
	b.stop()
	b.mu.Unlock()
	b.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := b.server.Close(ctx)
	if b.budget != nil {
		err = errors.Join(err, b.budget.flush(ctx))
	}
	return err
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. Agents refuse a repeated nonce without
// repeating their answer, so they do not deduplicate. Callers wait on their
// connection, poll their task or are called back, so nothing carries replies.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		Resumes:        b.resumes,
		CallsBack:      callsBack,
		ReplyLosses:    replyLosses,
		Address:        b.AgentURL,
		Way:            b.way,
		StandInAddress: func(agent string) string { return b.public.String() + "/agents/" + agent },
	}
}

// ServeHTTP serves the seven endpoints of every stand-in.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.server.ServeHTTP(w, r) }

// Identity makes the directory's identity of a SAMVAD agent elsewhere. Without
// an id it is that of the URL's host.
func (b *Binding) Identity(id, base string) (parley.Identity, error) {
	if base != "" {
		u, err := url.Parse(base)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return parley.Identity{}, fmt.Errorf("url %q: want http(s)://host[:port][/path]", base)
		}
		if id == "" {
			id = "agent://" + u.Host
		}
	}
	if err := protocol.CheckAgent(id); err != nil {
		return parley.Identity{}, fmt.Errorf("id %q: %w", id, err)
	}
	return parley.Identity{Protocol: Protocol, ID: id, URL: base}, nil
}

// Enroll vouches for an agent's public key. The agent's directory entry says
// which SAMVAD identity it has.
func (b *Binding) Enroll(agent, id, kid string, public []byte, by string) error {
	key, known := b.Enrolment(agent, id, kid, public, by)
	if known {
		return nil
	}
	_, err := b.c.Keys.Enroll(key)
	return err
}

// Enrolment is the keyring's record that vouches for an agent's public key; known reports that the keyring has it.
func (b *Binding) Enrolment(agent, id, kid string, public []byte, by string) (key keyring.Enrolled, known bool) {
	for _, e := range b.c.Keys.Enrolled(agent, Protocol) {
		if string(e.Public) == string(public) && e.KeyID == cmp.Or(kid, e.KeyID) {
			return e, true
		}
	}
	return keyring.Enrolled{Agent: agent, Purpose: Protocol, KeyID: kid, Algorithm: keyring.Ed25519, Public: public,
		By: by, Note: id}, false
}

// Serves implements hub.HTTPBinding, by the ends of SAMVAD's paths: they follow
// any base path.
func (b *Binding) Serves(r *http.Request) bool {
	p := r.URL.Path
	return strings.Contains(p, "/agent/") || strings.HasSuffix(p, "/.well-known/agent.json")
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)

// pause before a failed call of the journal is repeated.
const pause = time.Second
