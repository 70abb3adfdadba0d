// Package asp joins ASP to the hub. The hub is the sequencer of sessions and the
// registry of agents. For agents of other protocols it keeps stand-ins: identities
// with which it sends and receives their messages.
//
// # One append
//
// The hub's record of a message is the session's record of it: the message, its
// place in the chain, the use of its proof and the deliveries that it opens are
// one entry of the journal. The scope is the session. The hub records a message
// only after it has verified the signature.
//
// # Sessions with the hub
//
// An agent that is exposed in ASP has an agent URI, with keys that the hub holds. The
// hub accepts invitations to it. A QUERY or DELEGATE to it is a request, WITHDRAW
// cancels that, and any other message is a notice with the performative as its act,
// carried whole. Answers are INFORM, refusals REJECT. For a request to an ASP agent the
// hub opens a session, uses it for the next requests too, and closes it when it is idle.
//
// Between two ASP agents the hub records each message as a notice, and answers none.
package asp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// Config of a Binding. Hub, Keys, Journal and TokenKey must be set.
type Config struct {
	Hub      *hub.Hub
	Keys     *keyring.Ring
	Journal  *journal.Journal
	TokenKey []byte // of access tokens: the same on all nodes of a journal

	PublicURL    string   // base URL under which agents reach the hub
	Root         string   // directory name of the hub itself
	Domain       string   // of the stand-ins' agent URIs; "": the host of PublicURL
	Organization string   // of the stand-ins; "": org_parley
	Open         bool     // agents may register themselves, by proof of the card's keys
	Expose       []string // protocols in which agents that register themselves appear

	MinTrust  float64 // score that an inviter needs; stand-ins need none
	Timeouts  protocol.Timeouts
	Idle      time.Duration // after which the hub closes a session that it opened; 0: 10 min
	Answer    time.Duration // how long an attempt waits for the answer to an invitation; 0: 20 s
	MaxLive   int           // sessions in memory; 0: 10,000
	MaxAgents int           // registered, guests not counted; 0: 100,000

	Now    func() time.Time
	Logger *slog.Logger
}

// Binding is the hub's ASP side. It is an http.Handler for the protocol
// listener, and a hub.Binding.
type Binding struct {
	c          Config
	public     *url.URL
	store      *store
	opened     *journal.Table[opened]
	server     *protocol.Server
	trust      sync.Map // agent URI → protocol.TrustComponents from the operator
	standIns   *standIns
	reconciler *reconciler
	opening    locks // by openedKey of two agents: to find or open a session
	sending    locks // by session: one message at a time is signed for its head

	registrations *bridge.GuestLedger // of guests, by agent URI
	evicted       sync.Map            // agent URI → when the guest's registration was evicted
	heard         heard

	stopWatch []func()
	ctx       context.Context
	stop      context.CancelFunc
	work      sync.WaitGroup
}

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
	if len(c.TokenKey) < 32 {
		return nil, errors.New("asp: TokenKey must have 32 bytes")
	}
	c.Organization = cmp.Or(c.Organization, "org_parley")
	if c.Domain == "" {
		c.Domain = domainOf(public.Hostname())
	}
	if !protocol.ValidAgentID("agent://" + c.Domain + "/parley/hub") {
		return nil, fmt.Errorf("asp.domain %q: want a host name in lower case", c.Domain)
	}
	b := &Binding{c: c, public: public, opened: journal.NewTable[opened](c.Journal, bucketOpened, 0)}
	b.store = newStore(b)
	b.registrations = bridge.NewGuestLedger(c.Hub.Guests(), policy.Registration, Protocol, b.evict,
		func(e *parley.Error) error { return admission(e) })
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.standIns = newStandIns(b)
	b.reconciler = newReconciler(b)
	own, err := b.standIns.identity(c.Root)
	if err != nil {
		return nil, err
	}
	b.server = &protocol.Server{Store: b.store, PublicURL: b.public.String(), Identity: own, TokenKey: c.TokenKey,
		Timeouts: c.Timeouts, MaxLive: c.MaxLive, Admit: b.admit, Refused: b.refused, Now: c.Now,
		Guest: b.guest, Authenticated: b.authenticated,
		Invites: protocol.Rates{Low: 60, High: 600}}
	if c.Open {
		b.server.Registration = protocol.RegistrationOpen
	}
	return b, nil
}

// domainOf gives the domain for agent URIs at a host: an IP address is no domain.
func domainOf(host string) string {
	if host == "localhost" || strings.Trim(host, "0123456789.:abcdef") == "" {
		return "parley.local"
	}
	return strings.ToLower(host)
}

// Start implements hub.Service: it reads the journal's state.
func (b *Binding) Start(ctx context.Context) error {
	if err := b.store.start(ctx); err != nil {
		return err
	}
	if err := b.standIns.start(ctx); err != nil {
		return err
	}
	b.stopWatch = append(b.stopWatch, b.c.Hub.Directory().Watch(b.directoryChanged),
		b.c.Journal.Watch(b.reconciler.recorded), b.c.Journal.WatchOwned(func(partition int, owned bool) {
			b.reconciler.enqueueDue()
			if owned {
				b.reconciler.partitionOwned(partition)
			}
		}))
	b.reconciler.start()
	return nil
}

// Close ends the background work.
func (b *Binding) Close() error {
	for _, f := range b.stopWatch {
		f()
	}
	b.stop()
	b.work.Wait()
	b.store.stop()
	return nil
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. A session deduplicates messages, and replies
// are messages of the session.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{Deduplicates: true, CarriesReplies: true, Address: b.Address, Way: b.way,
		Erasing: b.erasing, Connection: b.connection, StandInAddress: b.standIns.id}
}

// Serves implements hub.HTTPBinding.
func (b *Binding) Serves(r *http.Request) bool {
	p := r.URL.EscapedPath()
	return strings.HasPrefix(p, "/v1/asp/") || p == "/oauth/token" || p == "/.well-known/asp-agent.json"
}

// ServeHTTP serves sessions, registry and tokens.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r, end := b.heard.begin(r, b.c.Now)
	defer end()
	b.server.ServeHTTP(w, r)
}

// Server is the sequencer, for programs and operators.
func (b *Binding) Server() *protocol.Server { return b.server }

// EndStreams ends the streams of peers, which would delay the shutdown of a listener.
func (b *Binding) EndStreams() { b.server.EndStreams() }

// Identity makes the directory's identity of an ASP agent.
func (b *Binding) Identity(id string) (parley.Identity, error) {
	if !protocol.ValidAgentID(id) {
		return parley.Identity{}, fmt.Errorf("id %q: want agent://domain/department/name", id)
	}
	return parley.Identity{Protocol: Protocol, ID: id}, nil
}

// Enroll registers the card of an agent for the operator.
func (b *Binding) Enroll(ctx context.Context, card []byte) (*protocol.Agent, error) {
	return b.server.Register(ctx, card)
}

// SetTrust sets the operator's components of an agent's trust score. They also apply
// to an agent that registers later.
func (b *Binding) SetTrust(ctx context.Context, agent string, c protocol.TrustComponents) error {
	b.trust.Store(agent, c)
	return b.applyTrust(ctx, agent)
}

func (b *Binding) applyTrust(ctx context.Context, agent string) error {
	want, ok := b.trust.Load(agent)
	if !ok {
		return nil
	}
	a, err := b.store.Agent(ctx, agent)
	if errors.Is(err, protocol.ErrNotFound) || err == nil && a.Components == want.(protocol.TrustComponents) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.server.SetTrust(ctx, agent, want.(protocol.TrustComponents))
}

// agentPut follows the registration of an agent at this node.
func (b *Binding) agentPut(ctx context.Context, a *protocol.Agent) {
	if err := b.applyTrust(ctx, a.ID); err != nil {
		b.c.Logger.Warn("cannot set the trust of a registered agent", "agent", a.ID, "error", err)
	}
	if b.isPeer(a) {
		if err := b.enter(ctx, a.ID); err != nil {
			b.c.Logger.Warn("cannot take a registered agent into the directory", "agent", a.ID, "error", err)
		}
	}
	b.recount(a.ID) // it may have been evicted meanwhile
}

// CardAt gives an agent's card at a time, and the id of its key; nil for an agent or
// a time that the registry does not know.
func (b *Binding) CardAt(ctx context.Context, agent string, at time.Time) (keyID string, card []byte, err error) {
	a, err := b.store.Agent(ctx, agent)
	if errors.Is(err, protocol.ErrNotFound) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	for _, v := range slices.Backward(a.Cards) {
		if at.Before(v.NotBefore) || !v.NotAfter.IsZero() && !at.Before(v.NotAfter) {
			continue
		}
		c, err := protocol.ParseCard(v.Card)
		if err != nil {
			return "", nil, err
		}
		return c.Key().ID(), v.Card, nil
	}
	return "", nil, nil
}

// SessionOf gives the session of a message of the hub, "" for none; own reports that
// the session determines the message's conversation.
func (b *Binding) SessionOf(m *parley.Message) (session string, own bool) {
	session = m.Trace.Foreign[foreignSession]
	if m.Origin.Protocol != Protocol || !protocol.ValidUUID(session) {
		return "", false
	}
	return session, b.conversation(session) == m.Conversation
}

// Address gives the agent URI of an agent, or that of its stand-in.
func (b *Binding) Address(e *directory.Entry) string {
	if i, ok := e.Identity(Protocol); ok && !i.StandIn {
		return i.ID
	}
	if !b.hosts(e) {
		return ""
	}
	return b.standIns.id(e.Name)
}

// hosts reports whether the hub keeps a stand-in for an agent: the agent is exposed
// and does not speak ASP.
func (b *Binding) hosts(e *directory.Entry) bool {
	i, ok := e.Identity(Protocol)
	return e.ExposedIn(Protocol) && (!ok || i.StandIn)
}

// nameOf is the directory name of an agent in a session.
func (b *Binding) nameOf(id string) (name string, standIn bool) {
	if name, ok := b.standIns.name(id); ok {
		return name, true
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, id); ok {
		return e.Name, false
	}
	return directory.GuestName(Protocol, id, ""), false
}

// isPeer reports whether a registered agent is no stand-in of this node or another.
func (b *Binding) isPeer(a *protocol.Agent) bool {
	if _, ok := b.standIns.name(a.ID); ok {
		return false
	}
	card, err := a.Card()
	return err == nil && (card.OrgID != b.c.Organization || !b.standIns.looksOurs(a.ID))
}

// directoryChanged follows the directory. It must not change it.
func (b *Binding) directoryChanged(c directory.Change) {
	b.standIns.changed(c)
	for _, e := range []*directory.Entry{c.Old, c.New} {
		if e == nil {
			continue
		}
		if i, ok := e.Identity(Protocol); ok && !i.StandIn {
			b.recount(i.ID)
		}
	}
}

// enter adds or updates the directory's entry of a registered agent, unless the entry
// has another source.
func (b *Binding) enter(ctx context.Context, id string) error {
	d := b.c.Hub.Directory()
	a, err := b.store.Agent(ctx, id)
	if err != nil {
		return err
	}
	card, err := a.Card()
	if err != nil {
		return err
	}
	e, ok := d.Lookup(Protocol, id)
	name, source := directory.GuestName(Protocol, id, ""), directory.FromGuest
	if a.Enrolled {
		source = directory.FromAgent // the operator registered its card
	}
	made := ok && e.Name == name && (e.Source == directory.FromGuest || e.Source == directory.FromAgent)
	if a.Removed {
		if made {
			return d.Remove(ctx, e.Name)
		}
		return nil
	}
	if ok && !made {
		return nil
	}
	n := parley.Agent{Name: name, Title: card.Name, Description: card.Description, Exposed: b.c.Expose,
		Identities: []parley.Identity{{Protocol: Protocol, ID: id}}}
	if ok {
		if e.Source == source && e.Title == n.Title && e.Description == n.Description {
			return nil
		}
		n.Exposed, n.Identities = e.Exposed, e.Identities
	}
	if made && e.Source != source { // a name belongs to one source
		if err := d.Remove(ctx, name); err != nil {
			return err
		}
	}
	_, err = d.Put(ctx, n, source)
	return err
}

var (
	_ hub.Service     = (*Binding)(nil)
	_ hub.HTTPBinding = (*Binding)(nil)
	_ hub.Forgetter   = (*Binding)(nil)
)
