// Package agh joins AGH Network to the hub.
//
// Peers connect to the hub's own NATS, or meet it on an operator's
// ([aghnats.Gateway]). What they say in conversations is recorded and then
// delivered, byte for byte: one record, and a delivery for each member of the
// channel, for the one peer that is addressed, or for an agent of the
// directory. Greetings and whois pass as the protocol has them and are not
// recorded. A peer that is away gets what it missed when it greets again, until
// each message expires.
//
// # Who is who
//
// A peer is the agent that the configuration gives its identity
// (workspace/peer), else guest/agh/<workspace>/<peer>. A channel is an agent
// too, agh/<workspace>/<channel>: a notice to it is said to all. Agents of other
// protocols that are exposed in AGH are greeted peers of the configured
// channels, with their name as peer id (a slash becomes "__"); for everybody
// else the hub speaks as the peer "parley".
//
// # Scope and replay
//
// The scope of a message is its workspace; the replay key is its sender and id
// within it.
package agh

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	"github.com/parley-hub/parley/bridge"
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

	// Places are the channels in which agents of the directory appear.
	Places []Place

	Trust    bool          // verify the proofs of verified handles
	Pins     protocol.Keys // which keys may speak as a nickname or handle; nil pins none
	Screen   bool          // do not send what AGH daemons drop as secret
	Lenient  bool          // accept and forward unknown members
	MaxTTL   time.Duration // how far ahead expires_at may lie; 0: 30 days, which is the most
	Interval time.Duration // greet interval; 0: 30 s
	Keep     time.Duration // how long a peer that is away is remembered; 0: 7 days
	Node     string        // of this hub, among those on the same journal

	RequirePins bool // refuse verified handles that Pins does not know

	MaxMembers  int // 0: 65,536; peers of anonymous users have a quarter
	MaxChannels int // 0: 8,192

	MaxConnections int     // to Listen; 0: 1,024
	BroadcastRate  float64 // greetings and whois requests for all, of a peer a second; 0: 5, below 0: no limit

	Now    func() time.Time
	Logger *slog.Logger
}

// A Place is a channel in which agents of the directory appear as peers.
type Place struct {
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
	containers   *containers
	members      *members
	handoffs     *journal.Table[handoff] // by the hub that they are for
	remoteAgents *remoteAgents
	handoffQueue handoffQueue
	pending      pending
	envelopes    envelopes
	anonymous    map[string]bool // users without credentials

	stop  []func()
	wake  chan struct{}
	work  sync.WaitGroup
	ctx   context.Context
	close context.CancelFunc

	mu              sync.Mutex
	channels        map[[2]string]bool     // channels in the directory
	hosted          map[peerAddress]string // peers of the hub's → agents
	broadcasts      recent[parley.ID, *broadcast]
	accepting       map[*protocol.Envelope]*parley.Message
	pendingReceipts map[parley.ID]*pendingReceipt // requests whose receipt has not gone out
	receipts        []*pendingReceipt             // those, and some more, in the order in which they are due

	receiptClock *time.Timer // runs while there are receipts
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
	for _, p := range c.Places {
		if !protocol.ValidWorkspaceID(p.WorkspaceID) || !protocol.ValidChannel(p.Channel) {
			return nil, fmt.Errorf("%q in %q is no AGH channel", p.Channel, p.WorkspaceID)
		}
	}
	b := &Binding{c: c, wake: make(chan struct{}, 1), channels: map[[2]string]bool{}, hosted: map[peerAddress]string{},
		broadcasts: recent[parley.ID, *broadcast]{max: maxBroadcasts}, accepting: map[*protocol.Envelope]*parley.Message{}, pendingReceipts: map[parley.ID]*pendingReceipt{},
		memory:       &protocol.ReplayMemory{Now: c.Now},
		envelopes:    envelopes{recent: recent[parley.ID, *protocol.Envelope]{max: maxEnvelopes}},
		works:        newWorks(c.Journal, c.Now),
		containers:   newContainers(c.Journal, c.Now),
		members:      &members{rows: journal.NewTable[peerRecord](c.Journal, "agh.members", 0), node: cmp.Or(c.Node, c.Hub.ID()), limit: cmp.Or(c.MaxMembers, 1<<16)},
		handoffs:     journal.NewTable[handoff](c.Journal, "agh.handoffs", 0),
		remoteAgents: newRemoteAgents(c.Journal),
		anonymous:    map[string]bool{},
	}
	for _, u := range c.Users {
		b.anonymous[u.Name] = u.Anonymous
	}
	b.pending.within, b.pending.refuse = b.interval(), b.refusePending
	b.router = &protocol.Router{
		Verifier: protocol.Verifier{Trust: c.Trust, Keys: c.Pins, RequirePin: c.RequirePins, Lenient: c.Lenient, Now: c.Now, Limits: protocol.Limits{MaxTTL: int64(c.MaxTTL / time.Second)}},
		Works:    b.works, Presence: &protocol.Presence{Interval: c.Interval},
		Reachable: b.reachable, Admit: b.admit, Screen: c.Screen, Broadcasts: c.BroadcastRate,
	}
	b.gateway = &aghnats.Gateway{Router: b.router, Listen: c.Listen, TLS: c.TLS, Users: c.Users, URL: c.URL, Options: c.Options, Durable: c.Durable,
		Admitted: b.admitted, Refused: b.refused, Unknown: b.keepPending,
		Greeted: b.recordGreeting, Away: b.sendElsewhere, Interval: c.Interval, Log: c.Logger,
		MaxConns: cmp.Or(c.MaxConnections, 1024),
		Workers:  256} // each waits for an append; appends of many go together
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
	for _, p := range b.c.Places {
		if err := b.openChannel(ctx, p.WorkspaceID, p.Channel, false); err != nil {
			return err
		}
	}
	if err := b.gateway.Start(b.ctx); err != nil {
		return err
	}
	if err := b.populate(); err != nil {
		return err
	}
	if err := b.followHubs(ctx); err != nil { // what others forward is for agents that are there
		return err
	}
	b.stop = append(b.stop, b.c.Hub.Directory().Watch(func(c directory.Change) {
		// Peers that greet change the directory too; they are not hosted.
		if (c.New == nil || !c.New.ExposedIn(Protocol)) && (c.Old == nil || !c.Old.ExposedIn(Protocol)) {
			return
		}
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}))
	b.work.Go(b.run)
	return nil
}

// followHubs follows what other hubs on the same journal note.
func (b *Binding) followHubs(ctx context.Context) error {
	stop, err := b.members.rows.Watch(ctx, "", func(row journal.Row[peerRecord]) {
		r := row.Value
		if row.Revision == 0 || r.Node == b.members.node {
			return
		}
		if b.members.note(r) { // what this hub is to deliver waited for it
			b.c.Hub.Kick(r.Name)
		}
		b.relayGreeting(r)
		b.peerSeenElsewhere(r)
		b.work.Go(func() {
			if _, err := b.introduce(b.ctx, r.Workspace, r.Channel, r.Peer, nil, r.Guest); err != nil {
				b.c.Logger.Warn("a peer of another hub is not in the directory", "workspace", r.Workspace, "peer", r.Peer, "error", err)
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
	stop, err = b.handoffs.Watch(ctx, b.members.node+"/", b.receiveHandoff)
	if err == nil {
		b.stop = append(b.stop, stop)
	}
	return err
}

// relayGreeting lets the peers of this hub hear the greeting of one that is
// connected to another.
func (b *Binding) relayGreeting(r peerRecord) {
	if b.c.URL != "" || r.Node == b.members.node || len(r.Greet) == 0 || b.now().Sub(r.Seen) >= 2*b.interval() {
		return
	}
	e, err := b.decode(r.Greet)
	if err == nil {
		err = b.router.Verifier.Limits.Fresh(e, b.now())
	}
	if err == nil {
		err = b.gateway.Publish(e)
	}
	if err != nil {
		b.c.Logger.Debug("a greeting from another hub is not passed on", "workspace", r.Workspace, "peer", r.Peer, "error", err)
	}
}

// run follows the directory and forgets the absent.
func (b *Binding) run() {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-b.wake:
			if err := b.populate(); err != nil {
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
	b.mu.Lock()
	if b.receiptClock != nil {
		b.receiptClock.Stop()
	}
	b.mu.Unlock()
	b.work.Wait()
	b.gateway.Close()
	return nil
}

// Protocol implements hub.Binding.
func (b *Binding) Protocol() string { return Protocol }

// Capabilities implements hub.Binding. Peers know a message by its id.
func (b *Binding) Capabilities() hub.Capabilities {
	return hub.Capabilities{
		Deduplicates:   true,
		CarriesReplies: true,
		CarriesEvent:   carriesEvent,
		Holds:          b.Holds,
		Members:        b.groupMembers,
		Address:        b.Address,
		ForgetRecent:   b.ForgetRecent,
	}
}

// carriesEvent leaves out the acceptance of a request: the hub's own receipt said
// it. A peer's receipt passes unchanged, and so does one with content.
func carriesEvent(e *parley.Message) bool {
	return e.State != parley.Accepted || e.Origin.Protocol == Protocol || len(e.Parts) > 0
}

// Addr is where peers connect, "" on an operator's NATS or before Start.
func (b *Binding) Addr() string { return b.gateway.Addr() }

// Address gives the places where an agent is a peer.
func (b *Binding) Address(e *directory.Entry) string {
	if i, ok := e.Identity(Protocol); ok && !i.StandIn {
		return i.ID
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var at []string
	for p, name := range b.hosted {
		if name == e.Name {
			at = append(at, p.workspaceID+"/"+p.channel+"/"+p.peer)
		}
	}
	slices.Sort(at)
	return strings.Join(at, " ")
}

func (b *Binding) now() time.Time          { return b.c.Now() }
func (b *Binding) interval() time.Duration { return cmp.Or(b.c.Interval, 30*time.Second) }

// populate makes the agents that appear in AGH peers of their channels, and
// takes out those that do no more.
func (b *Binding) populate() error {
	want := map[peerAddress]*directory.Entry{}
	for _, e := range b.c.Hub.Directory().All() {
		// A stand-in that has retired stays: what is said to it is forwarded.
		if !e.ExposedIn(Protocol) || slices.Contains(e.Native(), Protocol) && !hasStandIn(e) {
			continue
		}
		for _, p := range b.c.Places {
			if len(p.Agents) == 0 || slices.Contains(p.Agents, e.Name) {
				want[peerAddress{p.WorkspaceID, p.Channel, peerID(e.Name)}] = e
			}
		}
	}
	b.mu.Lock()
	var gone []peerAddress
	for p, name := range b.hosted {
		if want[p] == nil && name != Self {
			gone = append(gone, p)
			delete(b.hosted, p)
		}
	}
	b.mu.Unlock()
	for _, p := range gone {
		b.gateway.Unhost(p.workspaceID, p.channel, p.peer)
	}
	var first error
	for p, e := range want {
		if err := b.host(p, e); err != nil && first == nil {
			first = fmt.Errorf("agent %q as peer %s of %s: %w", e.Name, p.peer, p.channel, err)
			continue
		}
		if hasStandIn(e) {
			continue
		}
		id := Identity(p.workspaceID, p.peer)
		if err := b.c.Hub.Directory().StandIn(b.ctx, e.Name, id); err != nil && !errors.Is(err, directory.ErrUnknown) && first == nil {
			first = fmt.Errorf("note the stand-in for %s: %w", e.Name, err)
		}
	}
	return first
}

// hasStandIn reports whether it is noted in the directory that an agent is a
// peer of the hub's.
func hasStandIn(e *directory.Entry) bool {
	return slices.ContainsFunc(e.Identities, func(i parley.Identity) bool { return i.Protocol == Protocol && i.StandIn })
}

// host makes an agent a peer, with its skills as capabilities.
func (b *Binding) host(p peerAddress, e *directory.Entry) error {
	catalog := make([]protocol.Capability, 0, len(e.Skills))
	for _, s := range e.Skills {
		c := protocol.Capability{ID: s.ID, Summary: cmp.Or(s.Description, s.Name, s.ID), Outcome: "Answers with a trace completed that holds the result, and a say."}
		if len(s.Input) > 0 {
			c.ContextNeeded = []string{"Content that fits this JSON Schema: " + string(s.Input)}
		}
		if len(s.Output) > 0 {
			c.ArtifactsExpected = []string{"A result that fits this JSON Schema: " + string(s.Output)}
		}
		catalog = append(catalog, c)
	}
	if len(catalog) == 0 {
		catalog = nil
	}
	card, err := protocol.NewCard(p.peer, cmp.Or(e.Title, e.Name), catalog)
	if err != nil {
		return err
	}
	stated := &protocol.Envelope{Ext: card.Ext}
	if err := stated.SetExt(ExtParley, map[string]string{"hub": b.c.Hub.ID(), "agent": e.Name}); err != nil {
		return err
	}
	card.Ext = stated.Ext
	b.mu.Lock()
	_, there := b.hosted[p]
	b.mu.Unlock()
	if there && b.sameCard(p, card) {
		return nil
	}
	if err := b.gateway.Host(&protocol.Local{WorkspaceID: p.workspaceID, Channel: p.channel, Card: card, Catalog: catalog}); err != nil {
		return err
	}
	b.mu.Lock()
	b.hosted[p] = e.Name
	b.mu.Unlock()
	b.retryPending(p)
	return nil
}

func (b *Binding) sameCard(p peerAddress, card *protocol.Card) bool {
	for _, x := range b.router.Peers(p.workspaceID, p.channel) {
		if x.State == protocol.PresenceLocal && x.Card.PeerID == p.peer {
			return x.Card.DisplayName == card.DisplayName && slices.Equal(x.Card.Capability, card.Capability) && string(x.Card.Ext) == string(card.Ext)
		}
	}
	return false
}

// speaker is the peer id as which an agent speaks in a channel: its own, or
// the hub's.
func (b *Binding) speaker(workspaceID, channel, agent string) (string, error) {
	p := peerAddress{workspaceID, channel, peerID(agent)}
	b.mu.Lock()
	name := b.hosted[p]
	b.mu.Unlock()
	if name == agent {
		return p.peer, nil
	}
	p.peer = Self
	b.mu.Lock()
	_, ok := b.hosted[p]
	b.mu.Unlock()
	if ok {
		return p.peer, nil
	}
	return p.peer, b.host(p, &directory.Entry{Agent: parley.Agent{Name: Self, Title: "Parley"}})
}

// agentAt is the agent that is a peer of the hub's, "" if none is.
func (b *Binding) agentAt(workspaceID, channel, peer string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosted[peerAddress{workspaceID, channel, peer}]
}

// reachable reports whether something that is said to a peer gets there, now
// or when it comes back.
func (b *Binding) reachable(workspaceID, channel, peer string) bool {
	if _, ok := b.members.at(workspaceID, channel, peer); ok {
		return true
	}
	if _, ok := b.hostingHub(workspaceID, channel, peer); ok {
		return true
	}
	return b.c.URL == "" && b.gateway.Listens(workspaceID, channel, peer)
}

// scope of a message: its workspace.
func scope(workspaceID string) string { return Protocol + " " + workspaceID }

// key of a message within its scope. A long id counts by its hash.
func key(e *protocol.Envelope) string {
	if len(e.ID) <= maxForeign {
		return e.From + "\x00" + e.ID
	}
	return e.From + "\x01" + shortened(e.ID) // no peer id has either character
}

// admit records a validated message and sets its delivery going; see
// agh.Router.Admit.
func (b *Binding) admit(ctx context.Context, a *protocol.Admission) (protocol.Decision, error) {
	e := a.Envelope
	if e.Kind == protocol.KindGreet || e.Kind == protocol.KindWhois {
		if _, there := b.remoteHub(e.WorkspaceID, e.Channel, e.To); there && b.c.URL == "" {
			return protocol.Take, b.consumeKey(ctx, a) // its hub publishes it
		}
		return protocol.Pass, b.consumeKey(ctx, a)
	}
	guest, at := b.anonymous[a.Principal], peerAddress{e.WorkspaceID, e.Channel, e.From}
	from, err := b.introduceSender(ctx, at, nil, guest)
	forwarded := a.Forwarder != ""
	if err == nil && forwarded {
		b.members.note(peerRecord{Workspace: at.workspaceID, Channel: at.channel, Peer: at.peer, Name: from, Node: a.Forwarder,
			Seen: b.now(), Guest: guest})
	} else if err == nil {
		_, err = b.members.noteSeen(ctx, at, from, guest, nil, false, b.now())
	}
	if errors.As(err, new(*parley.Error)) { // the guests' budget is used up
		return protocol.Pass, b.refuse(ctx, e, err)
	}
	if err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	if x, ok := b.hostingHub(e.WorkspaceID, e.Channel, e.To); ok {
		return b.forward(ctx, a, x)
	}
	m := toMessage(e, a.Verdict, a.Principal, b.now())
	m.From = from
	s := hub.Submission{Message: m, Scope: scope(e.WorkspaceID), Vouched: !guest,
		Key: journal.Key{ID: key(e), Sender: from, Until: bridge.KeyEnd(a.Until)}}
	if forwarded {
		if s.Scope, err = b.ownScope(s.Scope, s.Key.ID); errors.Is(err, protocol.ErrReplay) {
			return protocol.Pass, err
		} else if err != nil {
			return protocol.Pass, b.refuse(ctx, e, err)
		}
	}
	if a.Refused != nil {
		m.To = b.nameOf(e.WorkspaceID, e.Channel, e.To)
		s.Refused = parley.Refuse(parley.Conflict, "%s", a.Refused).Because(a.Refused)
		if _, err := b.c.Hub.Accept(ctx, s); isPrior(err) {
			return protocol.Pass, protocol.ErrReplay
		}
		return protocol.Pass, nil // the router says why
	}
	m.Expires = a.Until
	if agent := b.agentAt(e.WorkspaceID, e.Channel, e.To); agent != "" {
		return b.admitToAgent(ctx, a, s, agent)
	}
	if _, seen := b.c.Journal.Seen(s.Scope, s.Key.ID); seen {
		return protocol.Pass, protocol.ErrReplay
	}
	if m.ID, err = parley.NewID(b.now(), rand.Reader); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	b.envelopes.note(m.ID, e) // it is relayed soon
	m.Conversation = b.conversation(e)
	if err := b.containers.note(ctx, m.Conversation, container{e.WorkspaceID, e.Container()}); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	switch {
	case e.To == "" && (e.Kind == protocol.KindReceipt || e.Kind == protocol.KindTrace):
		// It changes the work, and is for nobody.
		return protocol.Take, b.consumeKey(ctx, a)
	case e.To == "":
		m.To = ChannelName(e.WorkspaceID, e.Channel)
		m.Audience = b.audience(m, e.WorkspaceID, e.Channel)
	case e.Surface == protocol.SurfaceDirect && !e.InRoom(e.To):
		// The room of others, or of nobody: delivered to nobody (AGH-055).
		s.Refused = parley.Refuse(parley.Forbidden, "the direct room is not that of the two peers")
	default:
		if m.To, err = b.introduce(ctx, e.WorkspaceID, e.Channel, e.To, nil, guest); err != nil {
			return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
		}
	}
	if e.Kind == protocol.KindSay || e.Kind == protocol.KindCapability {
		if _, err := a.Advance(ctx); err != nil {
			return protocol.Pass, err
		}
	}
	return b.submit(ctx, e, s)
}

// submit hands a message to the hub.
func (b *Binding) submit(ctx context.Context, e *protocol.Envelope, s hub.Submission) (protocol.Decision, error) {
	var err error
	if !s.Vouched && !b.hubCounts(s.Message) {
		err = b.charge(ctx, recordBytes+2*len(e.Raw()))
	}
	if err == nil {
		_, err = b.c.Hub.Accept(ctx, s)
	}
	if err == nil {
		return protocol.Take, nil
	}
	return protocol.Pass, b.refuse(ctx, e, err)
}

// refuse makes the protocol's error of the hub's, and a receipt for work
// that is refused.
func (b *Binding) refuse(ctx context.Context, e *protocol.Envelope, err error) error {
	if isPrior(err) {
		return protocol.ErrReplay
	}
	perr := parley.AsError(err)
	ref := b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Claim: e.WorkspaceID + "/" + e.From, To: cmp.Or(e.To, e.Channel), Step: "admit",
		Code: perr.Code, Text: perr.Text, Cause: perr.Error(), Size: len(e.Raw())})
	b.rejectWork(e, perr, ref)
	sentinel := protocol.ErrForbidden
	if perr.Retryable {
		sentinel = protocol.ErrBusy
	}
	return protocol.Refuse(sentinel, perr.Text, perr)
}

// rejectWork answers work that is not taken with a receipt, in the name of the
// peer that it was for.
func (b *Binding) rejectWork(e *protocol.Envelope, why *parley.Error, ref string) {
	if e.WorkID == "" || e.To == "" || e.To == e.From || len(e.ID) > maxFor || e.Kind != protocol.KindSay && e.Kind != protocol.KindCapability {
		return
	}
	reason, ok := refused[why.Code]
	if !ok {
		reason = protocol.ReasonBusy
	}
	b.work.Go(func() { // the sender becomes reachable when this message is dealt with
		out := answerTo(e, protocol.NewID())
		out.TS = b.now().Unix()
		err := errors.Join(
			out.SetContent(&protocol.Receipt{ForID: e.ID, Status: protocol.StatusRejected, Reason: reason, Detail: why.Text + " (reference " + ref + ")"}),
			out.SetExt(ExtParley, map[string]string{"code": string(why.Code)}))
		if err == nil {
			_, err = b.gateway.Send(b.ctx, out)
		}
		if errors.Is(err, protocol.ErrWorkUnknown) || errors.Is(err, protocol.ErrForbidden) {
			err = nil // the work was never opened, or is for no peer of the hub's
			if !b.sendElsewhere(out) {
				err = b.gateway.Publish(out)
			}
		}
		if err != nil {
			b.c.Logger.Debug("a refusal was not told", "error", err)
		}
	})
}

func isPrior(err error) bool {
	var prior *hub.Prior
	return errors.As(err, &prior)
}

// consumeKey consumes the replay key of what is not recorded.
func (b *Binding) consumeKey(ctx context.Context, a *protocol.Admission) error {
	fresh, err := b.memory.Seen(ctx, protocol.ReplayKey(a.Envelope), bridge.KeyEnd(a.Until))
	if err == nil && !fresh {
		return protocol.ErrReplay
	}
	return err
}

// nameOf is the directory name of a peer, "" if it has none.
func (b *Binding) nameOf(workspaceID, channel, peer string) string {
	if name := b.agentAt(workspaceID, channel, peer); name != "" || peer == "" {
		return name
	}
	if e, ok := b.c.Hub.Directory().Lookup(Protocol, Identity(workspaceID, peer).ID); ok {
		return e.Name
	}
	return ""
}

// audience is who hears what is said in a channel: its members, here or away,
// and the agents that are peers there.
func (b *Binding) audience(m *parley.Message, workspaceID, channel string) []string {
	return b.c.Hub.Hearers(m, slices.DeleteFunc(b.inChannel(workspaceID, channel), func(n string) bool { return n == m.From }))
}

// groupMembers gives the agents in a channel; nil for a single peer.
func (b *Binding) groupMembers(_ *directory.Entry, id parley.Identity) []string {
	workspaceID, peer, ok := split(id.ID)
	if !ok || peer[0] != channelMark[0] {
		return nil
	}
	return b.inChannel(workspaceID, peer[1:])
}

func (b *Binding) inChannel(workspaceID, channel string) []string {
	names := b.members.of(workspaceID, channel)
	b.mu.Lock()
	for p, name := range b.hosted {
		if p.workspaceID == workspaceID && p.channel == channel && name != Self {
			names = append(names, name)
		}
	}
	b.mu.Unlock()
	slices.Sort(names)
	return slices.Compact(names)
}

// conversation of a container: a thread is one for the whole channel, a room
// one for its two peers. Peers cannot guess themselves into either: the
// server knows which workspaces they see, and a room's id is derived from them.
func (b *Binding) conversation(e *protocol.Envelope) parley.ID {
	return b.c.Hub.Conversation(Protocol, scope(e.WorkspaceID), container{e.WorkspaceID, e.Container()}.foreign())
}

// admitToAgent takes what is said to an agent of the directory.
func (b *Binding) admitToAgent(ctx context.Context, a *protocol.Admission, s hub.Submission, agent string) (protocol.Decision, error) {
	e, m := a.Envelope, s.Message
	m.To = agent
	l, linked, err := b.works.linked(ctx, e.WorkspaceID, e.WorkID)
	if err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	if linked && l.Target == m.From { // it works for us
		s.Scope, m.To, m.Expires = l.Scope, "", time.Time{}
	}
	if _, seen := b.c.Journal.Seen(s.Scope, s.Key.ID); seen {
		return protocol.Pass, protocol.ErrReplay
	}
	if e.Surface == protocol.SurfaceDirect && !e.InRoom(e.To) {
		s.Refused = parley.Refuse(parley.Forbidden, "the direct room is not that of the two peers")
		return b.submit(ctx, e, s)
	}
	talk := e.Kind == protocol.KindSay || e.Kind == protocol.KindCapability
	switch {
	case linked && l.Target == m.From:
		if !b.answer(m, e, l) {
			return protocol.Take, b.consumeKey(ctx, a)
		}
		if say, ok := e.Content().(*protocol.Say); ok {
			if err := b.works.setLastText(ctx, e.WorkspaceID, e.WorkID, []byte(say.Text)); err != nil {
				return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
			}
		}
		return b.submit(ctx, e, s)
	case linked && !talk && cancels(e):
		m.Kind, m.InReplyTo, m.Expires = parley.Cancel, l.Request, time.Time{}
		return b.submit(ctx, e, s)
	case !talk:
		return protocol.Take, b.consumeKey(ctx, a) // receipts for what an agent said: it has no use for them
	}
	m.Conversation = b.conversation(e)
	m.Skill = skillWanted(e, func(id string) bool {
		entry, ok := b.c.Hub.Directory().Agent(agent)
		return ok && id != "" && slices.ContainsFunc(entry.Skills, func(s parley.SkillSpec) bool { return s.ID == id })
	})
	// The hub may have stopped after it opened the work, and before it recorded the
	// request: then the peer says it again.
	if e.WorkID != "" && (a.Work == nil || linked && l.Opened == s.Key.ID) {
		if m.ID = l.Request; !linked {
			if m.ID, err = parley.NewID(b.now(), rand.Reader); err != nil {
				return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
			}
		}
		m.Kind = parley.Request
		b.envelopes.note(m.ID, e)
		e.Note = &link{Request: m.ID, Scope: s.Scope, Target: agent, Opened: s.Key.ID}
		b.mu.Lock()
		b.accepting[e], b.pendingReceipts[m.ID] = m, &pendingReceipt{request: e, made: make(chan struct{}), sent: make(chan struct{})}
		b.mu.Unlock()
	}
	if err := b.containers.note(ctx, m.Conversation, container{e.WorkspaceID, e.Container()}); err != nil {
		return protocol.Pass, protocol.Refuse(protocol.ErrBusy, "", err)
	}
	if _, err := a.Advance(ctx); err != nil {
		return protocol.Pass, err
	}
	return b.submit(ctx, e, s)
}

func cancels(e *protocol.Envelope) bool {
	switch c := e.Content().(type) {
	case *protocol.Receipt:
		return c.Status == protocol.StatusCanceled
	case *protocol.Trace:
		return c.State == protocol.StateCanceled
	}
	return false
}

// answer makes m what a peer says about a request of ours; false if it is
// nothing that the request knows of.
func (b *Binding) answer(m *parley.Message, e *protocol.Envelope, l link) bool {
	m.InReplyTo, m.Kind = l.Request, parley.Event
	switch c := e.Content().(type) {
	case *protocol.Receipt:
		switch c.Status {
		case protocol.StatusAccepted:
			m.State = parley.Accepted
		case protocol.StatusDuplicate:
			return false
		default:
			m.Kind, m.Error = parley.Failure, toFailure(e)
		}
	case *protocol.Trace:
		switch c.State {
		case protocol.StateWorking:
			m.State = parley.Working
		case protocol.StateNeedsInput:
			m.State = parley.NeedsInput
		case protocol.StateCompleted:
			m.Kind = parley.Response
			if len(m.Parts) == 0 && len(l.Text) > 0 {
				m.Parts = []parley.Part{parley.Text(string(l.Text))}
			}
		default:
			m.Kind, m.Error = parley.Failure, toFailure(e)
		}
	}
	return true
}

// pendingReceipt is a request on its way to its receipt "accepted".
type pendingReceipt struct {
	request *protocol.Envelope
	made    chan struct{}      // closed when there is a receipt, or will be none
	receipt *protocol.Envelope // nil when somebody has taken it, to send it
	id      parley.ID          // of the request
	due     time.Time          // when it goes out if no answer brings it
	sent    chan struct{}      // closed when it has gone out, or will not
}

// receiptWaits is how long the receipt "accepted" waits for the answer, so that
// the answer of an agent that has it at once goes out together with it: two
// flushes less for each piece of work, also when many are under way.
const receiptWaits = 100 * time.Millisecond

// acknowledge makes the receipt "accepted" for a request that is recorded, and
// lets what answers it go out.
func (b *Binding) acknowledge(e *protocol.Envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.accepting[e]
	if m == nil {
		return
	}
	delete(b.accepting, e)
	a := b.pendingReceipts[m.ID]
	if len(e.ID) > maxFor {
		b.releaseLocked(m.ID)
		return
	}
	out := answerTo(e, messageID(m.ID, "a"))
	if err := out.SetContent(&protocol.Receipt{ForID: e.ID, Status: protocol.StatusAccepted}); err != nil {
		b.c.Logger.Debug("a request is not acknowledged", "workspace", e.WorkspaceID, "error", err)
		b.releaseLocked(m.ID)
		return
	}
	a.receipt, a.id, a.due = out, m.ID, time.Now().Add(receiptWaits)
	close(a.made)
	// One clock is for all: those that an answer has taken with it are passed over.
	b.receipts = append(b.receipts, a)
	switch {
	case len(b.receipts) > 1:
	case b.receiptClock == nil:
		b.receiptClock = time.AfterFunc(receiptWaits, b.sendReceipts)
	default:
		b.receiptClock.Reset(receiptWaits)
	}
}

// sendReceipts sends the receipts that no answer has brought in time.
func (b *Binding) sendReceipts() {
	var due []*pendingReceipt
	b.mu.Lock()
	now := time.Now()
	for len(b.receipts) > 0 && (b.receipts[0].receipt == nil || !b.receipts[0].due.After(now)) {
		if b.receipts[0].receipt != nil {
			due = append(due, b.receipts[0])
		}
		b.receipts[0], b.receipts = nil, b.receipts[1:]
	}
	if len(b.receipts) > 0 {
		b.receiptClock.Reset(b.receipts[0].due.Sub(now))
	}
	b.mu.Unlock()
	for _, a := range due {
		if out := b.takeReceipt(a); out != nil {
			if _, err := b.gateway.Send(b.ctx, out); err != nil {
				b.c.Logger.Debug("a request was not acknowledged", "workspace", out.WorkspaceID, "error", err)
			}
			b.release(a.id)
		}
	}
}

// takeReceipt gives the receipt to who is to send it, nil if somebody has it.
func (b *Binding) takeReceipt(a *pendingReceipt) *protocol.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := a.receipt
	a.receipt = nil
	return out
}

// release lets answers to a request go out: its receipt has, or will not.
func (b *Binding) release(id parley.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseLocked(id)
}

func (b *Binding) releaseLocked(id parley.ID) {
	a := b.pendingReceipts[id]
	if a == nil {
		return
	}
	delete(b.pendingReceipts, id)
	select {
	case <-a.made:
	default:
		close(a.made)
	}
	close(a.sent)
}

// refused is told of what the gateway did not accept.
func (b *Binding) refused(user, subject string, raw []byte, res protocol.Result) {
	if e := res.Envelope; e != nil {
		b.mu.Lock()
		m := b.accepting[e]
		delete(b.accepting, e)
		b.mu.Unlock()
		if m != nil {
			b.release(m.ID)
		}
	}
	var told *parley.Error
	if errors.As(res.Err, &told) || errors.Is(res.Err, protocol.ErrReplay) {
		return // it is noted already, or known to be a repetition
	}
	f := hub.Refusal{Protocol: Protocol, Source: user, To: subject, Step: "decode", Code: parley.Malformed, Cause: fmt.Sprint(res.Err), Size: len(raw)}
	var e *protocol.Error
	if errors.As(res.Err, &e) {
		f.Step, f.Text, f.Code = string(e.Step), e.Text, codeOf(e)
	}
	if res.Envelope != nil {
		f.Claim, f.Verdict = res.Envelope.WorkspaceID+"/"+res.Envelope.From, verdict(res.Verdict, user)
	}
	ref := b.c.Hub.Refuse(f)
	if errors.Is(res.Err, protocol.ErrNotTarget) && user != "" {
		b.rejectWork(res.Envelope, parley.Refuse(parley.UnknownAgent, "no peer %q is in the channel", res.Envelope.To), ref)
	}
}

func codeOf(e *protocol.Error) parley.Code {
	switch {
	case errors.Is(e, protocol.ErrTooLarge):
		return parley.TooLarge
	case errors.Is(e, protocol.ErrStale):
		return parley.Stale
	case errors.Is(e, protocol.ErrForbidden), errors.Is(e, protocol.ErrPrivileged), errors.Is(e, protocol.ErrUnsolicited):
		return parley.Forbidden
	case errors.Is(e, protocol.ErrSignature), errors.Is(e, protocol.ErrUnknownKey):
		return parley.Unauthenticated
	case errors.Is(e, protocol.ErrNotTarget):
		return parley.UnknownAgent
	case errors.Is(e, protocol.ErrBusy):
		return parley.Unavailable
	case errors.Is(e, protocol.ErrRate):
		return parley.RateLimited
	case e.Step == protocol.StepLifecycle:
		return parley.Conflict
	}
	return parley.Malformed
}

// maxFor is the longest message id that a receipt can name: beyond it work is
// answered without one.
const maxFor = 512 << 10

// answerTo begins a message of whom e is to, about e.
func answerTo(e *protocol.Envelope, id string) *protocol.Envelope {
	out := e.Answer()
	out.ID = id
	return out
}

// messageID and workID are the same at each attempt, so that peers know a
// repetition.
func messageID(id parley.ID, part string) string { return "msg_" + hex.EncodeToString(id[:]) + part }
func workID(id parley.ID) string                 { return "work_" + hex.EncodeToString(id[:]) }

// recordOf gives the message of the hub that an envelope is, by its messageID.
func recordOf(e *protocol.Envelope) (id parley.ID, ok bool) {
	hexed, ok := strings.CutPrefix(e.ID, "msg_")
	if !ok || len(hexed) < hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(hexed[:hex.EncodedLen(len(id))]))
	return id, err == nil
}

var (
	_ hub.Service   = (*Binding)(nil)
	_ hub.Forgetter = (*Binding)(nil)
)
