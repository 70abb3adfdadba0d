// Package samvad joins SAMVAD to the hub: it hosts agents of the directory as
// SAMVAD agents, each under a base path (and a sub-domain where one is
// configured), and calls SAMVAD agents elsewhere for those who speak another
// protocol.
//
// # Hosting
//
// An agent named crew/scout is served under /agents/crew/scout; its card says
// which identity to address. The hub itself is the agent at the root, so that
// peers who fetch cards find the key with which the hub signs.
//
// # Scope and replay
//
// The scope of a message is the addressed agent; the replay key is sender and
// nonce within it. The journal's record is the reservation: a request whose
// nonce was recorded before is answered REPLAY_DETECTED, whatever else it is.
package samvad

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
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
	protocol "github.com/parley-hub/parley/samvad"
)

// Config of a Binding. Hub, Keys and Journal must be set.
type Config struct {
	Hub     *hub.Hub
	Keys    *keyring.Ring
	Journal *journal.Journal

	Guard     *netguard.Guard // outbound addresses
	RootCAs   *x509.CertPool  // trusted by outbound calls; nil: the system's
	PublicURL string          // base URL under which agents reach the hub
	Domain    string          // agents are hosted at its sub-domains too; "": paths only

	Legacy    bool                                      // accept protocol 1.1
	Origins   []string                                  // web origins whose pages may call; "*": any
	Transport func(http.RoundTripper) http.RoundTripper // around outbound calls; nil: nothing
	Window    time.Duration                             // how old a message may be; 0: 300 s
	MaxBody   int64                                     // 0: 1 MiB

	Tokens       []string // bearer tokens that authenticated skills of agents here accept; none: such skills refuse everybody
	TokensPerDay int      // that a sender may have an agent here use up in a UTC day; 0: no limit
	Unscanned    []string // skills whose payloads are not scanned for injection: patterns over agent or agent.skill
	Lightweight  []string // public skills that unsigned requests may call: patterns of the same kind; none by default

	Now    func() time.Time
	Logger *slog.Logger
}

// Binding is the hub's SAMVAD side. It is an http.Handler for the protocol
// listener, and a hub.Binding.
type Binding struct {
	c         Config
	public    *url.URL
	server    *protocol.Server
	keys      *keyIndex
	client    *protocol.Client
	identity  identity
	stopWatch func()
	taskKey   []byte
	tokens    *tokens
	slots     chan struct{} // bounds the background jobs
	work      sync.WaitGroup
	ctx       context.Context
	stop      context.CancelFunc

	budget *budget // nil where there is none

	tasks   *journal.Table[task] // by message, and those that the server refused
	tasksMu sync.Mutex
	running map[parley.ID]bool // tasks that are not finished, by message

	remoteTasks *journal.Table[remoteTask] // by message
	remoteMu    sync.Mutex
	followed    map[parley.ID]*remoteTask // tasks elsewhere that this node polls, by message
	peers       map[string]*peerTasks     // by directory name
	owned       chan struct{}             // has a token when there may be more to follow

	mu     sync.RWMutex
	hosted map[string]*protocol.Agent // by directory name; made when first asked for
	shown  string                     // the hub's keys and limits that are on their cards

	remotes map[string]*remote // cards of agents elsewhere, by directory name
	pace    pacer

	credentials map[string]Credentials // of agents elsewhere, by directory name
	labels      map[string]string      // names of agents by DNS label
}

// Root is the directory name of the agent that is served at the root: the hub
// itself.
const Root = "parley"

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
	b := &Binding{c: c, public: public, hosted: map[string]*protocol.Agent{}, remotes: map[string]*remote{}, credentials: map[string]Credentials{}, pace: pacer{now: c.Now}, labels: map[string]string{},
		tasks: journal.NewTable[task](c.Journal, "samvad-tasks", 0), running: map[parley.ID]bool{},
		remoteTasks: journal.NewTable[remoteTask](c.Journal, "samvad-outgoing", 0), followed: map[parley.ID]*remoteTask{},
		peers: map[string]*peerTasks{}, owned: make(chan struct{}, 1)}
	b.keys = newKeyIndex(c.Keys, c.Hub.Directory())
	var guard protocol.Guard
	if c.Guard != nil {
		guard = c.Guard.Prefixes
	}
	cards := &protocol.CardStore{Guard: guard, Now: c.Now}
	if c.RootCAs != nil {
		cards.HTTP = c.Guard.Client(netguard.Options{Timeout: protocol.DefaultCardTimeout, MaxRedirects: 3, RootCAs: c.RootCAs})
	}
	if b.identity, err = newIdentity(c.Keys, "agent://"+public.Host); err != nil {
		return nil, err
	}
	b.client = &protocol.Client{Identity: b.identity, Guard: guard, Now: c.Now,
		HTTP: c.Guard.Client(netguard.Options{Timeout: -1, MaxResponseBytes: -1, RootCAs: c.RootCAs})}
	if c.Transport != nil {
		b.client.HTTP.Transport = c.Transport(b.client.HTTP.Transport)
	}
	b.client.HTTP.Transport = telling{b.client.HTTP.Transport}
	b.slots = make(chan struct{}, 32)
	b.ctx, b.stop = context.WithCancel(context.Background())
	if b.taskKey, err = c.Keys.Secret("samvad tasks", 32); err != nil {
		return nil, err
	}
	if b.tokens, err = newTokens(c.Keys); err != nil {
		return nil, err
	}
	verifier := &protocol.Verifier{
		Keys:   protocol.FirstOf(b.keys, cards),
		Memory: memory{c.Journal},
		Now:    c.Now,
		Limits: protocol.Limits{MaxBody: c.MaxBody, Window: c.Window},
		Prefix: public.Path,
		Legacy: c.Legacy,
	}
	b.server = &protocol.Server{
		Resolve:  b.resolve,
		Verifier: verifier,
		Record:   b.record,
		Refused:  b.refused,
		Accept:   b.accept,
		Inline:   true, // a call returns when its context ends
		// What was recorded must be run: the hub has bounds of its own.
		MaxRunning: math.MaxInt,
		Limiter:    &protocol.Limiter{},
		Tasks:      (*taskStore)(b),
		Webhook: &protocol.Webhook{Guard: guard, Now: c.Now,
			HTTP: c.Guard.Client(netguard.Options{Timeout: protocol.DefaultWebhookTimeout, MaxRedirects: -1, RootCAs: c.RootCAs})},
	}
	if c.TokensPerDay > 0 {
		b.budget = newBudget(journal.NewTable[spending](c.Journal, "samvad-tokens", 0), b.server.Limiter, c.Now)
	}
	b.server.CORS = c.Origins
	b.stopWatch = c.Hub.Directory().Watch(func(ch directory.Change) {
		b.keys.update(ch)
		b.mu.Lock()
		defer b.mu.Unlock()
		if ch.Old != nil {
			delete(b.hosted, ch.Old.Name)
			delete(b.remotes, ch.Old.Name)
			delete(b.labels, label(ch.Old.Name))
		}
		if ch.New == nil && ch.Old != nil {
			delete(b.credentials, ch.Old.Name)
		}
		if ch.New != nil {
			delete(b.hosted, ch.New.Name)
			b.labels[label(ch.New.Name)] = ch.New.Name
		}
	})
	for _, e := range c.Hub.Directory().All() {
		b.labels[label(e.Name)] = e.Name
	}
	return b, nil
}

// Close ends what runs in the background.
func (b *Binding) Close() error {
	b.stopWatch()
	b.mu.Lock() // nothing begins after it
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
		Resumes:     b.resumes,
		CallsBack:   callsBack,
		ReplyLosses: b.replyLosses,
		Address:     b.AgentURL,
	}
}

// ServeHTTP serves the seven endpoints of every hosted agent.
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
	for _, e := range b.c.Keys.Enrolled(agent, Protocol) {
		if string(e.Public) == string(public) && e.KeyID == or(kid, e.KeyID) {
			return nil
		}
	}
	_, err := b.c.Keys.Enroll(keyring.Enrolled{Agent: agent, Purpose: Protocol, KeyID: kid, Algorithm: keyring.Ed25519, Public: public, By: by, Note: id})
	return err
}

func or[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Serves implements hub.HTTPBinding: SAMVAD's endpoints have fixed ends under
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

// Start takes up the tasks of an earlier process, and follows the journal for
// answers.
func (b *Binding) Start(ctx context.Context) error {
	adopt := func() {
		select {
		case b.owned <- struct{}{}:
		default:
		}
	}
	stop := b.c.Journal.Watch(func(r *journal.Record) {
		if m := r.Message; m != nil && m.Kind.Terminal() && r.Refused == nil {
			if b.isRunning(m.InReplyTo) {
				b.background(m.InReplyTo, func() error { return b.finish(b.ctx, m.InReplyTo, m) })
			}
		}
		// A hub that had the partition before may end attempts there yet.
		j := b.c.Journal
		if slices.ContainsFunc(r.Steps, delivered) && j.Owned(r.Position.Partition) && j.LivesElsewhere(r.Node, r.Time) {
			adopt()
		}
	})
	stopOwned := b.c.Journal.WatchOwned(func(_ int, owned bool) {
		if owned {
			adopt()
		}
	})
	b.work.Go(b.adoptOwned)
	before := b.stopWatch
	b.stopWatch = func() { before(); stopOwned(); stop() }
	if b.budget != nil {
		end, err := b.budget.start(ctx)
		if err != nil {
			return err
		}
		b.stopWatch = func() { before(); stopOwned(); stop(); end() }
		b.work.Go(func() {
			b.budget.run(b.ctx, func(err error) { b.c.Logger.Error("cannot keep a token budget; trying again", "error", err) })
		})
	}
	for row, err := range b.tasks.Range(ctx, "") {
		if strings.HasPrefix(row.Key, refusedTask) {
			continue
		}
		var id parley.ID
		if err == nil {
			id, err = parley.ParseID(row.Key)
		}
		if err != nil {
			return fmt.Errorf("read the task %q: %w", row.Key, err)
		}
		if row.Value.Status.Finished() {
			continue
		}
		b.setRunning(id, true)
		if _, open := b.c.Journal.Delivery(id, row.Value.To); !open {
			b.background(id, func() error { return b.find(id) })
		}
	}
	return nil
}

// background finishes a task by f, which is repeated until it succeeds or the
// binding closes; after a restart, Start does it.
func (b *Binding) background(id parley.ID, f func() error) {
	b.work.Go(func() {
		for {
			select {
			case b.slots <- struct{}{}:
			case <-b.ctx.Done():
				return
			}
			err := f()
			<-b.slots
			if err == nil || b.ctx.Err() != nil {
				return
			}
			b.c.Logger.Error("cannot record how a task ended; trying again", "message", id, "error", err)
			if !b.rest(pause) {
				return
			}
		}
	})
}

// rest waits; false when the binding is closed.
func (b *Binding) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.ctx.Done():
		return false
	}
}

// pause before a failed call of the journal is repeated.
const pause = time.Second
