// Package agh is the hub's binding for AGH Network v0. Package
// [github.com/parley-hub/parley/agh] implements the protocol, and agh/aghnats its
// transport; this package translates between them and the hub.
//
// Peers connect to the hub's own NATS, or the hub joins an operator's
// ([aghnats.Gateway]). A message of a conversation is recorded and then delivered,
// byte for byte: one record, and one delivery for each member of the channel, for
// the addressed peer, or for an agent of the directory. Greetings and whois pass
// unchanged and are not recorded. A peer that was away gets the messages that it
// missed, unless expired, when it greets again.
//
// # Peers and agents
//
// A peer's agent is the one to which the configuration gives the peer's identity
// (workspace/peer), else guest/agh/<workspace>/<peer>. A channel is an agent
// too, agh/<workspace>/<channel>: a notice to it goes to all its members. Agents of
// other protocols that are exposed in AGH are peers of the configured channels, with
// their name as peer id (a slash becomes "__"). For all other agents the hub speaks
// as the peer "parley".
//
// # Scope and replay
//
// The scope of a message is its workspace; the replay key is its sender and id
// within it.
package agh

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// Config of a Binding. Hub and Journal must be set, and Listen or URL.
type Config struct {
	Hub     *hub.Hub
	Journal *journal.Journal

	Listen string // where the hub serves NATS
	TLS    *tls.Config
	Users  []aghnats.User

	URL     string // an operator's NATS to join instead
	Options []nats.Option
	Durable string // JetStream consumer of AGH_NETWORK_V0 there

	// Channels are the channels in which agents of the directory appear.
	Channels []Channel

	Trust    bool          // verify the proofs of verified handles
	Pins     protocol.Keys // the keys that may speak as a nickname or handle; nil pins none
	Screen   bool          // do not send messages that AGH daemons drop as secret
	Lenient  bool          // accept and forward unknown members
	MaxTTL   time.Duration // how far ahead expires_at may lie; 0: 30 days, the maximum
	Interval time.Duration // greet interval; 0: 30 s
	Keep     time.Duration // how long a peer that is away is remembered; 0: 7 days
	Node     string        // name of this hub among the hubs on the same journal
	Alone    bool          // no other hub is on the journal: none has to learn the greetings of this hub's agents

	RequirePins bool // refuse verified handles that Pins does not know

	MaxMembers  int // 0: 65,536; peers of anonymous users have a quarter
	MaxChannels int // 0: 8,192

	MaxConnections int     // to Listen; 0: 1,024
	BroadcastRate  float64 // a peer's greetings and undirected whois requests a second; 0: 5, below 0: no limit

	Now    func() time.Time
	Logger *slog.Logger
}

// A Channel is a channel in which agents of the directory appear as peers.
type Channel struct {
	WorkspaceID string
	Channel     string
	Agents      []string // directory names; none: all that are exposed
}

// Self is the peer id, and the directory name, as which the hub itself speaks.
const Self = "parley"

// Binding is the hub's AGH side.
type Binding struct {
	c            Config
	gateway      *aghnats.Gateway
	router       *protocol.Router
	memory       *protocol.ReplayMemory // of greetings and whois
	works        *works
	threads      *journal.Table[container] // of conversations
	members      *members
	handoffs     *journal.Table[handoff] // by the receiving hub
	remoteAgents *remoteAgents
	handoffQueue handoffQueue
	pending      pending
	anonymous    map[string]bool // users without credentials

	stop  []func()
	wake  chan struct{}
	work  sync.WaitGroup
	ctx   context.Context
	close context.CancelFunc

	mu              sync.Mutex
	channels        map[[2]string]bool // channels in the directory
	hosted          map[peerAddress]standIn
	changed         map[string]bool // agents of the directory that populate has to look at
	broadcasts      recent[parley.ID, *broadcast]
	envelopes       recent[parley.ID, *protocol.Envelope]
	pendingReceipts map[parley.ID]*pendingReceipt // by request, until the receipt is sent
}

// New makes a binding.
func New(c Config) (*Binding, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxTTL < 0 || c.MaxTTL > 30*24*time.Hour {
		return nil, errors.New("the longest expiry of AGH messages is 30 days")
	}
	for _, p := range c.Channels {
		if !protocol.ValidWorkspaceID(p.WorkspaceID) || !protocol.ValidChannel(p.Channel) {
			return nil, fmt.Errorf("%q in %q is no AGH channel", p.Channel, p.WorkspaceID)
		}
	}
	b := &Binding{c: c, wake: make(chan struct{}, 1), channels: map[[2]string]bool{}, hosted: map[peerAddress]standIn{},
		changed:         map[string]bool{},
		broadcasts:      recent[parley.ID, *broadcast]{max: maxBroadcasts},
		pendingReceipts: map[parley.ID]*pendingReceipt{},
		memory:          &protocol.ReplayMemory{Now: c.Now},
		envelopes:       recent[parley.ID, *protocol.Envelope]{max: maxEnvelopes},
		works:           newWorks(c.Journal, c.Now),
		threads:         journal.NewTable[container](c.Journal, "agh.containers", maxThreads),
		members: &members{rows: journal.NewTable[peerRecord](c.Journal, "agh.members", 0),
			node: cmp.Or(c.Node, c.Hub.ID()), limit: cmp.Or(c.MaxMembers, 1<<16)},
		handoffs:     journal.NewTable[handoff](c.Journal, "agh.handoffs", 0),
		remoteAgents: &remoteAgents{rows: journal.NewTable[peerRecord](c.Journal, "agh.hostings", 0)},
		anonymous:    map[string]bool{},
	}
	for _, u := range c.Users {
		b.anonymous[u.Name] = u.Anonymous
	}
	b.pending.within, b.pending.refuse = b.interval(), b.refusePending
	b.router = &protocol.Router{
		Verifier: protocol.Verifier{Trust: c.Trust, Keys: c.Pins, RequirePin: c.RequirePins, Lenient: c.Lenient,
			Now: c.Now, Limits: protocol.Limits{MaxTTL: int64(c.MaxTTL / time.Second)}},
		Works: b.works, Presence: &protocol.Presence{Interval: c.Interval},
		Reachable: b.reachable, Admit: b.admit, Screen: c.Screen, Broadcasts: c.BroadcastRate,
	}
	b.gateway = &aghnats.Gateway{Router: b.router, Listen: c.Listen, TLS: c.TLS, Users: c.Users, URL: c.URL,
		Options: c.Options, Durable: c.Durable,
		Admitted: b.admitted, Refused: b.refused, Unknown: b.keepPending,
		Greeted: b.recordGreeting, Away: b.sendElsewhere, Interval: c.Interval, Log: c.Logger,
		MaxConns: cmp.Or(c.MaxConnections, 1024),
		Workers:  256} // each waits for an append; the journal batches appends
	return b, nil
}

// Start implements hub.Service.
func (b *Binding) Start(ctx context.Context) error {
	b.ctx, b.close = context.WithCancel(context.WithoutCancel(ctx))
	if err := b.members.load(ctx); err != nil {
		return err
	}
	b.restoreGuests()
	for _, c := range b.members.channels() {
		if err := b.openChannel(ctx, c[0], c[1], false); err != nil {
			return err
		}
	}
	for _, p := range b.c.Channels {
		if err := b.openChannel(ctx, p.WorkspaceID, p.Channel, false); err != nil {
			return err
		}
	}
	if err := b.gateway.Start(b.ctx); err != nil {
		return err
	}
	b.stop = append(b.stop, b.c.Hub.Directory().Watch(func(c directory.Change) {
		// Greeting peers change the directory too; they are not hosted.
		if (c.New == nil || !c.New.ExposedIn(Protocol)) && (c.Old == nil || !c.Old.ExposedIn(Protocol)) {
			return
		}
		b.enqueue(cmp.Or(c.New, c.Old).Name)
	}))
	var names []string
	for _, e := range b.c.Hub.Directory().All() {
		names = append(names, e.Name)
	}
	if err := b.populate(names, func(done int) {
		b.c.Hub.Progress("stand-ins in agh", done, len(names))
	}); err != nil {
		return err
	}
	if err := b.followHubs(ctx); err != nil { // after populate: other hubs forward messages for its agents
		return err
	}
	b.work.Go(b.run)
	return nil
}

// followHubs watches the members, agents and hand-offs of the other hubs.
func (b *Binding) followHubs(ctx context.Context) error {
	stop, err := b.members.rows.Watch(ctx, "", func(row journal.Row[peerRecord]) {
		r := row.Value
		if row.Revision == 0 || r.Node == b.members.node {
			return
		}
		if b.members.note(r) { // this hub's deliveries waited for the peer
			b.c.Hub.Kick(r.Name)
		}
		b.relayGreeting(r)
		b.peerSeenElsewhere(r)
		b.work.Go(func() {
			if _, err := b.introduce(b.ctx, r.Workspace, r.Channel, r.Peer, nil, r.Guest); err != nil {
				b.c.Logger.Warn("a peer of another hub is not in the directory", "workspace", r.Workspace,
					"peer", r.Peer, "error", err)
			}
		})
	})
	if err != nil {
		return err
	}
	b.stop = append(b.stop, stop)
	if stop, err = b.remoteAgents.rows.Follow(ctx, b.remoteAgentSeen); err != nil {
		return err
	}
	b.stop = append(b.stop, stop)
	if stop, err = b.handoffs.Watch(ctx, b.members.node+"/", b.receiveHandoff); err != nil {
		return err
	}
	b.stop = append(b.stop, stop)
	return nil
}

// run watches the directory, and removes peers that were away for too long.
func (b *Binding) run() {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-b.wake:
			b.mu.Lock()
			names := slices.Collect(maps.Keys(b.changed))
			clear(b.changed)
			b.mu.Unlock()
			if err := b.populate(names, func(int) {}); err != nil {
				b.c.Logger.Warn("an agent cannot appear in AGH", "error", err)
			}
		case <-tick.C:
			b.dropAbsent(b.ctx)
		case <-b.ctx.Done():
			return
		}
	}
}

// Close implements hub.Service.
func (b *Binding) Close() error {
	for _, stop := range b.stop {
		stop()
	}
	if b.close != nil {
		b.close()
	}
	b.pending.close()
	b.work.Wait()
	b.gateway.Close()
	return nil
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. Peers deduplicate messages by id.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		Deduplicates:   true,
		CarriesReplies: true,
		CarriesEvent:   carriesEvent,
		Holds:          b.Holds,
		Members:        b.groupMembers,
		Address:        b.Address,
		Way:            b.way,
		Connection:     b.connection,
		ForgetRecent:   b.ForgetRecent,
	}
}

// carriesEvent reports whether an event is sent. The acceptance of a request is
// not, because the hub's own receipt has reported it, unless the event is a peer's
// receipt or has content.
func carriesEvent(e *parley.Message) bool {
	return e.State != parley.Accepted || e.Origin.Protocol == Protocol || len(e.Parts) > 0
}

// Addr is the address that peers connect to, "" on an operator's NATS or before
// Start.
func (b *Binding) Addr() string { return b.gateway.Addr() }

// Address gives the channels in which an agent is a peer.
func (b *Binding) Address(e *directory.Entry) string {
	if i, ok := e.Identity(Protocol); ok && !i.StandIn {
		return i.ID
	}
	var at []string
	for _, c := range b.c.Channels {
		if peer := peerID(e.Name); b.agentAt(c.WorkspaceID, c.Channel, peer) == e.Name {
			at = append(at, c.WorkspaceID+"/"+c.Channel+"/"+peer)
		}
	}
	slices.Sort(at)
	return strings.Join(slices.Compact(at), " ")
}

func (b *Binding) now() time.Time { return b.c.Now() }

func (b *Binding) keep() time.Duration { return cmp.Or(b.c.Keep, 7*24*time.Hour) }

func (b *Binding) interval() time.Duration { return cmp.Or(b.c.Interval, 30*time.Second) }

var (
	_ hub.Service   = (*Binding)(nil)
	_ hub.Forgetter = (*Binding)(nil)
)
