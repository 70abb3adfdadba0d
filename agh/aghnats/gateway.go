package aghnats

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
)

// Gateway is a hub of AGH peers over NATS. Set its fields, then Start it.
type Gateway struct {
	// Router checks messages. The gateway sets its Relay when it serves NATS
	// itself. An embedder sets Router.Admit to record each validated message
	// before it is republished or answered; Admission.Principal is the name of
	// the authenticated User.
	Router *agh.Router

	// Listen is where the gateway serves NATS: host:port, port 0 for any free
	// one; 127.0.0.1:4222 if empty. It is not used when URL is set.
	Listen string
	TLS    *tls.Config
	Users  []User // if empty, no peer may connect

	// URL of an operator's NATS to join instead of serving.
	URL     string
	Options []nats.Option // credentials and the like, for URL
	// Durable, when set with URL, names the JetStream consumer by which the
	// gateway reads AGH_NETWORK_V0 instead of subscribing.
	Durable string

	// Admitted is called for every accepted message, after the router has applied
	// it and before its answers are published. Result.Deliver names the hosted
	// peers that receive it.
	Admitted func(ctx context.Context, user string, res agh.Result)
	// Greeted gets the greetings of hosted peers, as they are published.
	Greeted func(e *agh.Envelope)
	// Away forwards a message of a hosted peer to a peer of another hub. It returns
	// false if the recipient belongs to no other hub.
	Away func(e *agh.Envelope) bool
	// Refused is called for every message that was not accepted, with the user that
	// sent it; Result.Err is the reason.
	Refused func(user, subject string, raw []byte, res agh.Result)
	// Unknown is called for a user's message to an unknown peer, before the
	// message is refused. If it returns true, it has taken the message; calling
	// again receives the message anew.
	Unknown func(user string, res agh.Result, again func()) bool

	Interval time.Duration // greet interval of hosted peers; 0 means 30 s
	Workers  int           // messages processed at once; 0 means 16
	MaxConns int           // connections of peers; 0 means 16,384
	AuthWait time.Duration // time for a connection to authenticate; 0 means 2 s
	Log      *slog.Logger  // nil discards

	hubUser, hubPassword string

	mu      sync.RWMutex
	server  *server.Server
	hub     *server.Account
	users   map[string]*account   // by uid
	proofs  map[string]*account   // by credentials, see proofOf
	exact   map[string][]*account // by each peer id that User.Peers has without *
	claims  claims
	nc      *nats.Conn
	workers []chan job
	hosted  hosted
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	stopJS  func()
}

type job struct {
	user     *account // nil when joined by URL
	subject  string   // of the envelope, "" for answers on a reply subject
	reply    string
	data     []byte
	finished func(agh.Result)

	ctx       context.Context // of a message that another node forwarded, else nil
	forwarder string          // that node
	principal string          // its sender there
}

// Start serves, or joins, until ctx is done or Close is called.
func (g *Gateway) Start(ctx context.Context) error {
	if g.Router == nil {
		g.Router = &agh.Router{}
	}
	if g.Log == nil {
		g.Log = slog.New(slog.DiscardHandler)
	}
	g.ctx, g.cancel = context.WithCancel(ctx)
	for range cmp.Or(g.Workers, 16) {
		w := make(chan job, 256)
		g.workers = append(g.workers, w)
		g.wg.Go(func() { g.work(w) })
	}
	var err error
	if g.URL == "" {
		err = g.startServer()
	} else {
		err = g.startClient()
	}
	if err != nil {
		g.Close()
		return err
	}
	g.wg.Go(g.heartbeat)
	context.AfterFunc(ctx, g.cancel)
	return nil
}

func (g *Gateway) startClient() error {
	options := append([]nats.Option{nats.MaxReconnects(-1), nats.Name("parley"),
		nats.ReconnectHandler(func(*nats.Conn) { g.greet(g.now().Add(g.interval()), g.now()) })}, g.Options...)
	nc, err := nats.Connect(g.URL, options...)
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	g.nc = nc
	if g.Durable != "" {
		return g.consume()
	}
	return nil
}

// A Server is one of the servers of [Gateway.URL].
type Server struct {
	URL   string
	Shown string // URL without user and password
}

// Servers gives the servers that a URL lists, separated by commas.
func Servers(list string) (out []Server) {
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		shown := s[strings.LastIndexByte(s, '@')+1:]
		if u, err := url.Parse(s); err == nil {
			u.User = nil
			shown = u.String()
		}
		out = append(out, Server{s, shown})
	}
	return out
}

// Connected is nil while the gateway is connected to its NATS, the own one or that of URL; else it says why not.
func (g *Gateway) Connected() error {
	switch {
	case g.nc == nil:
		return errors.New("not started")
	case g.nc.IsConnected():
		return nil
	}
	return cmp.Or(g.nc.LastError(), error(nats.ErrDisconnected))
}

// Close stops the gateway and waits for its goroutines.
func (g *Gateway) Close() {
	if g.cancel == nil {
		return
	}
	g.cancel()
	if g.stopJS != nil {
		g.stopJS()
	}
	g.wg.Wait()
	if g.nc != nil {
		g.nc.Close()
	}
	if g.server != nil {
		g.server.Shutdown()
		g.server.WaitForShutdown()
	}
}

// up takes the messages that users publish: agh-up.<uid>.agh-in.<subject> or
// agh-up.<uid>.agh-reply.<token>.
func (g *Gateway) up(m *nats.Msg) {
	uid, subject, _ := strings.Cut(strings.TrimPrefix(m.Subject, upPrefix), ".")
	g.mu.RLock()
	a := g.users[uid]
	g.mu.RUnlock()
	if a == nil {
		return // removed while the message was on its way
	}
	j := job{user: a, reply: m.Reply, data: m.Data}
	if s, ok := strings.CutPrefix(subject, inPrefix); ok {
		j.subject = s
	}
	g.enqueue(uid, j)
}

// enqueue keeps the order of one sender's messages. It blocks while the worker is
// behind; in the end the server reports a slow consumer.
func (g *Gateway) enqueue(sender string, j job) {
	h := fnv.New32a()
	h.Write([]byte(sender))
	select {
	case g.workers[h.Sum32()%uint32(len(g.workers))] <- j:
	case <-g.ctx.Done():
	}
}

func (g *Gateway) work(jobs chan job) {
	for {
		select {
		case j := <-jobs:
			res := g.handle(j)
			if j.finished != nil {
				j.finished(res)
			}
		case <-g.ctx.Done():
			return
		}
	}
}

func (g *Gateway) handle(j job) agh.Result {
	received := j
	j = g.inward(j)
	authentic := false
	in := agh.Inbound{Raw: j.data, Subject: j.subject, Reply: j.reply, May: g.Router.Guard}
	ctx := g.ctx
	if j.ctx != nil {
		ctx, in.Forwarder, in.Principal = j.ctx, j.forwarder, j.principal
	}
	if j.user != nil {
		in.Principal, in.Anonymous = j.user.user.Name, j.user.user.Anonymous
		in.May = func(e *agh.Envelope) error {
			if w, ok := e.Content().(*agh.Whois); j.subject == "" && (!ok || w.Type != agh.WhoisResponse) {
				return errors.New("aghnats: only whois answers come on reply subjects")
			}
			err := g.may(j.user, e)
			authentic = err == nil
			return err
		}
	}
	res := g.Router.Receive(ctx, in)
	if authentic && res.Envelope.WorkID != "" {
		g.claim(j.user, res.Envelope) // so that a refusal reaches the sender
	}
	if g.Unknown != nil && j.user != nil && errors.Is(res.Err, agh.ErrNotTarget) &&
		g.Unknown(in.Principal, res, func() { g.enqueue(j.user.uid, received) }) {
		return res
	}
	if res.Outcome != agh.Accepted && g.Refused != nil {
		g.Refused(in.Principal, j.subject, j.data, res)
	}
	if res.Outcome == agh.Accepted {
		if j.user != nil {
			g.claim(j.user, res.Envelope)
		}
		if g.Admitted != nil {
			g.Admitted(ctx, in.Principal, res)
		}
	}
	for _, out := range res.Published {
		g.logged(g.say(out))
	}
	if res.Relay {
		g.logged(g.publish(res.Envelope, res.Envelope.Raw()))
	}
	return res
}

// may binds from to the authenticated user. It changes nothing.
func (g *Gateway) may(a *account, e *agh.Envelope) error {
	switch {
	case !a.user.sees(e.WorkspaceID):
		return fmt.Errorf("aghnats: user %s has no part in the workspace", a.user.Name)
	case !a.user.speaksAs(e.From):
		return fmt.Errorf("aghnats: user %s may not speak as that peer", a.user.Name)
	}
	if other := g.lists(e.WorkspaceID, e.From); other != nil && other != a {
		return fmt.Errorf("aghnats: the peer belongs to user %s", other.user.Name)
	}
	if err := g.aliasTaken(e); err != nil {
		return err
	}
	if err := g.Router.Guard(e); err != nil {
		return err
	}
	return g.claims.may(claimKey{e.WorkspaceID, e.From}, a.uid, cmp.Or(a.user.MaxPeers, 4096), g.now())
}

// claim records the user that speaks as a peer. The caller has checked that the
// user may.
func (g *Gateway) claim(a *account, e *agh.Envelope) {
	g.claims.take(claimKey{e.WorkspaceID, e.From}, a.uid, g.now().Add(2*g.interval()))
}

// lists finds the user that lists a peer exactly.
func (g *Gateway) lists(workspaceID, peer string) *account {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, a := range g.exact[peer] {
		if a.user.sees(workspaceID) {
			return a
		}
	}
	return nil
}

// owner finds the user through which a peer is reached.
func (g *Gateway) owner(workspaceID, peer string) *account {
	if a := g.lists(workspaceID, peer); a != nil {
		return a
	}
	uid := g.claims.holder(claimKey{workspaceID, peer}, g.now())
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.users[uid]
}

// subscribed reports whether a peer subscribes its own subject. Peers of other
// implementations may do so without a greeting.
func (g *Gateway) subscribed(workspaceID, channel, peer string) bool {
	a := g.owner(workspaceID, peer)
	if a == nil {
		return false
	}
	subject, err := agh.VerifiedPeerSubject(workspaceID, channel, peer)
	return err == nil && g.hub.SubscriptionInterest(toPrefix+a.uid+"."+subject)
}

// Publish sends an envelope on its subject, to its recipients only: the Raw bytes
// of a received envelope, so that signatures stay valid, otherwise its encoding.
// It checks only the target. An embedder publishes by it the messages that it
// took with [agh.Take], and those of hosted peers after [agh.Router.Prepare].
func (g *Gateway) Publish(e *agh.Envelope) error {
	data := e.Raw()
	if data == nil {
		var err error
		data, err = e.Encode()
		if err != nil {
			return err
		}
	}
	return g.publish(e, data)
}

// PublishQuestion publishes a whois request of another hub's peer, and answers it
// for the hosted peers. This gateway accepts the answers, on the requester's
// subject and on a reply subject; the embedder forwards them to the other hub.
func (g *Gateway) PublishQuestion(e *agh.Envelope) error {
	answers := g.Router.Expect(e, elsewhere)
	var err error
	if e.To == "" || !g.Router.Hosts(e.WorkspaceID, e.Channel, e.To) {
		err = g.Publish(e)
	}
	for _, out := range answers {
		err = errors.Join(err, g.say(out))
	}
	return err
}

// Forwarded takes a message for a peer that is hosted here. Another hub received
// it from its user principal and checked that the user may speak as the sender.
// Forwarded calls done at the end.
func (g *Gateway) Forwarded(ctx context.Context, hub, principal string, raw []byte, done func(agh.Result)) {
	g.enqueue(principal, job{ctx: ctx, forwarder: hub, principal: principal, data: raw, finished: done})
}

// elsewhere stands for the reply subject of a requester at another hub.
const elsewhere = "-"

// PublishTo publishes a broadcast once more, on the same subject, for one peer
// that was away the first time. Other peers of the same user receive it too, and
// deduplicate it by its id. On an operator's NATS all peers receive it.
func (g *Gateway) PublishTo(e *agh.Envelope, peerID string) error {
	data := e.Raw()
	if g.server == nil || e.To != "" || data == nil {
		return g.Publish(e)
	}
	subject, err := e.Subject()
	if err != nil {
		return err
	}
	a := g.owner(e.WorkspaceID, peerID)
	if a == nil {
		return agh.Refuse(agh.ErrNotTarget, "no user has that peer", nil)
	}
	data, _, err = g.outward(e, data, peerID)
	if err != nil {
		return err
	}
	return g.nc.Publish(toPrefix+a.uid+"."+subject, data)
}

// Listens reports whether a peer is connected and subscribes its own subject
// in a channel. It is always true on an operator's NATS, which does not tell.
func (g *Gateway) Listens(workspaceID, channel, peerID string) bool {
	return g.server == nil || g.subscribed(workspaceID, channel, peerID)
}

func (g *Gateway) publish(e *agh.Envelope, data []byte) error {
	subject, err := e.Subject()
	if err != nil {
		return err
	}
	return g.publishOn(subject, e, data)
}

// say publishes a message of a hosted peer, here or at the hub that its recipient
// is connected to.
func (g *Gateway) say(out agh.Outgoing) error {
	if g.Away != nil && out.Envelope.To != "" && g.Away(out.Envelope) {
		return nil
	}
	return g.publishOn(out.Subject, out.Envelope, out.Data)
}

func (g *Gateway) publishOn(subject string, e *agh.Envelope, data []byte) error {
	var err error
	if e.To != "" {
		data, _, err = g.outward(e, data, e.To)
	} else {
		err = g.publishAliased(e, subject)
	}
	if err != nil {
		return err
	}
	reply := ""
	if w, ok := e.Content().(*agh.Whois); ok {
		switch to := g.Router.ReplyTo(e); {
		case to == "":
		case w.Type == agh.WhoisRequest && g.server != nil:
			reply = replyPrefix + agh.NewID()
		case w.Type == agh.WhoisResponse && to != elsewhere:
			g.logged(g.nc.Publish(to, data))
		}
	}
	if g.server != nil && e.To != "" {
		a := g.owner(e.WorkspaceID, e.To)
		if a == nil {
			return agh.Refuse(agh.ErrNotTarget, "no user has that peer", nil)
		}
		subject = toPrefix + a.uid + "." + subject
	}
	if reply != "" {
		return g.nc.PublishRequest(subject, reply, data)
	}
	return g.nc.Publish(subject, data)
}

// Host adds a peer to the gateway and greets for it, now and every Interval.
func (g *Gateway) Host(l *agh.Local) error {
	out, err := g.Router.Host(l)
	if err != nil {
		return err
	}
	if err := g.publishOn(out.Subject, out.Envelope, out.Data); err != nil {
		return err
	}
	if g.server == nil && g.Durable == "" {
		if err := g.join(l); err != nil {
			return err
		}
	}
	if g.Greeted != nil {
		g.Greeted(out.Envelope)
	}
	g.hosted.add(l, g.now().Add(g.interval()))
	return nil
}

// join subscribes the two subjects of a hosted peer on an operator's NATS.
func (g *Gateway) join(l *agh.Local) error {
	broadcast, err := agh.BroadcastSubject(l.WorkspaceID, l.Channel)
	if err != nil {
		return err
	}
	peer, err := agh.VerifiedPeerSubject(l.WorkspaceID, l.Channel, l.Card.PeerID)
	if err != nil {
		return err
	}
	for _, subject := range []string{broadcast, peer} {
		err := g.hosted.subscribe(subject, func() (*nats.Subscription, error) {
			return g.nc.Subscribe(subject, func(m *nats.Msg) {
				g.enqueue(m.Subject, job{subject: m.Subject, reply: m.Reply, data: m.Data})
			})
		})
		if err != nil {
			return fmt.Errorf("aghnats: %w", err)
		}
	}
	return g.nc.FlushTimeout(5 * time.Second)
}

// Unhost removes a hosted peer. Other peers notice when its greetings stop.
func (g *Gateway) Unhost(workspaceID, channel, peerID string) {
	g.Router.Unhost(workspaceID, channel, peerID)
	g.hosted.remove(workspaceID, channel, peerID)
}

func (g *Gateway) heartbeat() {
	tick := time.NewTicker(min(g.interval()/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.beat(g.now())
		case <-g.ctx.Done():
			return
		}
	}
}

// beat publishes the greetings of hosted peers that are due, and forgets remote
// peers that are gone.
func (g *Gateway) beat(now time.Time) {
	g.greet(now, now)
	g.Router.Expire()
}

// greet publishes the greetings of hosted peers that are due by a time.
func (g *Gateway) greet(by, now time.Time) {
	for _, l := range g.hosted.due(by, now.Add(g.interval())) {
		out, err := g.Router.Greeting(l)
		if err == nil {
			err = g.publishOn(out.Subject, out.Envelope, out.Data)
		}
		if err == nil && g.Greeted != nil {
			g.Greeted(out.Envelope)
		}
		g.logged(err)
	}
}

func (g *Gateway) interval() time.Duration { return cmp.Or(g.Interval, 30*time.Second) }

func (g *Gateway) now() time.Time {
	if g.Router.Verifier.Now != nil {
		return g.Router.Verifier.Now()
	}
	return time.Now()
}

func (g *Gateway) logged(err error) {
	if err != nil {
		g.Log.Warn("agh: not published", "err", err)
	}
}
