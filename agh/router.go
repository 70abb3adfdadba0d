package agh

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Outcome is the result for a received message.
type Outcome string

// The outcomes. Failed means that the message was valid but could not be acted
// on, which is logged and otherwise silent.
const (
	Accepted  Outcome = "accepted"
	Refused   Outcome = "rejected"
	Duplicate Outcome = "duplicate"
	Ignored   Outcome = "ignored"
	Failed    Outcome = "error"
)

// Local is a peer that a [Router] hosts.
type Local struct {
	WorkspaceID string
	Channel     string
	Card        *Card        // NewCard makes one
	Catalog     []Capability // in answers to a whois that asks for it
	Identity    *Identity    // signs as Card.PeerID, which must be its handle; nil for a plain peer
}

// Inbound is one received message.
type Inbound struct {
	Raw []byte
	// Subject that the message arrived on, checked against the envelope; "" is
	// not checked.
	Subject string
	// Reply is the transport's reply subject, for [Router.ReplyTo].
	Reply string
	// Principal names the sender as the transport authenticated it, for hooks.
	Principal string
	// Forwarder is the node that forwarded the message to this one; "": none.
	Forwarder string
	// Anonymous says that the principal needs no credentials: all its peers
	// together may broadcast as much as forty peers.
	Anonymous bool
	// May refuses senders that the principal may not speak as, with any error;
	// an error of this package is kept. Nil allows every sender. May is called
	// before the router remembers, answers or publishes anything.
	May func(*Envelope) error
}

// Admission is a validated message that the router is about to act on.
type Admission struct {
	Principal string
	Subject   string
	Forwarder string // see [Inbound.Forwarder]
	Envelope  *Envelope
	Verdict   Verdict
	// Refused is the error with which the work lifecycle will refuse the message
	// once its replay key is consumed; nil if the lifecycle allows it.
	Refused error
	Until   time.Time // the replay key is needed until then
	// Work is the message's work before the message; nil if there is none.
	Work *Work
	// Advance takes the message through the work lifecycle at once instead of
	// after the hook has returned. A hook that starts the answer to a message
	// calls Advance first, once it knows that the message is new.
	Advance func(context.Context) (Work, error)
}

// Decision is a hook's choice for an admitted message.
type Decision int

// The decisions.
const (
	Pass    Decision = iota // deliver, relay and answer as the protocol says
	Take                    // the hook has taken the message: update state and answer, do not deliver or relay
	Forward                 // another node acts on the message: this one does nothing more
)

// Outgoing is a message to publish.
type Outgoing struct {
	Subject  string
	Data     []byte
	Envelope *Envelope
}

// Result holds the outcome, and the messages to publish and deliver.
type Result struct {
	Outcome   Outcome
	Err       error     // the reason, unless accepted
	Envelope  *Envelope // nil if the message was not JSON
	Verdict   Verdict
	Taken     bool        // the Admit hook took the message
	Deliver   []string    // local peers to hand the envelope to, sorted
	Relay     bool        // republish Envelope.Raw on its subject
	Published []Outgoing  // receipts and answers to publish
	Events    []PeerEvent // remote peers that came or went
	Work      *Work       // the work after the message, if it concerned any

	forwarded bool
}

// Router is a node of the network. It checks the messages for the peers that it
// hosts, in the order of the envelope page, and makes the messages that they
// send. It does no I/O: the caller publishes and delivers by the [Result].
// Configure it before the first call; then it is safe for concurrent use.
type Router struct {
	// Verifier checks messages. Its Memory is the replay memory (a
	// [ReplayMemory] if nil). The router consults it after validation and
	// routing: refused messages and those for other nodes take no memory.
	Verifier Verifier
	// Works remembers work; nil means a [WorkTable].
	Works Works
	// Presence of remote peers; nil means the defaults.
	Presence *Presence
	// Relay makes the node a hub: messages between remote peers are accepted
	// and marked for republishing. Reachable then says whether a peer can be
	// reached that has not greeted; nil means that none can.
	Relay     bool
	Reachable func(workspaceID, channel, peerID string) bool
	// Admit, when set, replaces Memory. It is called once for each validated
	// message, before the router remembers, delivers, relays or answers it.
	// Admit records the message and gives an error of [ErrReplay] if the
	// message was recorded before. Any other error refuses the message.
	Admit func(context.Context, *Admission) (Decision, error)
	// Screen refuses outgoing messages that seem to hold a secret, because AGH
	// daemons drop them silently.
	Screen bool
	// Broadcasts bounds one peer's greetings and undirected whois requests in a
	// channel: so many a second, and six times as many at once. Further ones are
	// refused with [ErrRate]. 0 means 5, below 0 no limit.
	Broadcasts float64
	// Self is the Peer ID from which a relay sends receipts about messages to
	// remote peers; "" sends none.
	Self string

	once     sync.Once
	mu       sync.RWMutex
	locals   map[peerKey]*Local
	byChan   map[channelKey][]*Local
	works    Works
	memory   Memory
	presence *Presence
	asks     asks
	paces    paces
}

func (r *Router) init() {
	r.once.Do(func() {
		r.locals, r.byChan = map[peerKey]*Local{}, map[channelKey][]*Local{}
		r.works = cmp.Or[Works](r.Works, &WorkTable{})
		r.memory = cmp.Or[Memory](r.Verifier.Memory, &ReplayMemory{Now: r.Verifier.Now})
		r.presence = cmp.Or(r.Presence, &Presence{})
	})
}

// Host adds a peer to the node; a peer of the same id in the channel is
// replaced. It gives the greeting to publish.
func (r *Router) Host(l *Local) (Outgoing, error) {
	r.init()
	if l.Card == nil {
		return Outgoing{}, malformed(StepBody, "peer_card", "is missing")
	}
	if l.Identity != nil && l.Card.PeerID != l.Identity.ID() {
		return Outgoing{}, malformed(StepBody, "peer_card.peer_id", "must be the handle of the identity")
	}
	out, err := r.Greeting(l)
	if err != nil {
		return Outgoing{}, err
	}
	k := peerKey{channelKey{l.WorkspaceID, l.Channel}, l.Card.PeerID}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(k)
	r.locals[k] = l
	// Readers hold the old slice, whose length stays; drop makes a new one.
	r.byChan[k.channelKey] = append(r.byChan[k.channelKey], l)
	r.presence.Forget(l.WorkspaceID, l.Channel, l.Card.PeerID)
	return out, nil
}

// Unhost removes a peer. The protocol has no farewell: other nodes notice when
// the peer's greetings stop.
func (r *Router) Unhost(workspaceID, channel, peerID string) {
	r.init()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(peerKey{channelKey{workspaceID, channel}, peerID})
}

func (r *Router) drop(k peerKey) {
	if _, ok := r.locals[k]; !ok {
		return
	}
	delete(r.locals, k)
	rest := slices.DeleteFunc(slices.Clone(r.byChan[k.channelKey]),
		func(l *Local) bool { return l.Card.PeerID == k.peerID })
	if len(rest) == 0 {
		delete(r.byChan, k.channelKey)
	} else {
		r.byChan[k.channelKey] = rest
	}
}

func (r *Router) local(workspaceID, channel, peerID string) *Local {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.locals[peerKey{channelKey{workspaceID, channel}, peerID}]
}

func (r *Router) channel(workspaceID, channel string) []*Local {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byChan[channelKey{workspaceID, channel}]
}

// Peers lists the peers that are present in a channel: hosted peers first, each
// group by id.
func (r *Router) Peers(workspaceID, channel string) []Peer {
	r.init()
	var peers []Peer
	for _, l := range r.channel(workspaceID, channel) {
		peers = append(peers, Peer{WorkspaceID: workspaceID, Channel: channel, Card: l.Card, State: PresenceLocal})
	}
	sortPeers(peers)
	return append(peers, r.presence.Channel(workspaceID, channel, r.Verifier.now())...)
}

// Expire removes the peers that are gone. Call it now and then for a router that
// receives nothing.
func (r *Router) Expire() []PeerEvent {
	r.init()
	return r.presence.Expire(r.Verifier.now())
}

// Receive takes one message through all checks. It never fails as a call:
// Result.Err is the error of the message.
func (r *Router) Receive(ctx context.Context, in Inbound) Result {
	r.init()
	e, verified, err := r.Verifier.verify(ctx, in.Raw)
	if err != nil {
		return r.refused(ctx, Result{Envelope: e}, in, err)
	}
	res := Result{Envelope: e, Verdict: verified.Verdict}
	if err := r.route(e, in); err != nil {
		return r.refused(ctx, res, in, err)
	}
	if err := r.pace(e, in); err != nil {
		return r.refused(ctx, res, in, err)
	}
	work, refusal := r.foresee(ctx, e)
	if err := r.admit(ctx, &res, in, work, refusal); err != nil {
		return r.refused(ctx, res, in, err)
	}
	switch {
	case res.forwarded:
		res.Outcome = Accepted
		return res
	case refusal != nil:
		return r.refused(ctx, res, in, refusal)
	}
	return r.act(ctx, res, in)
}

// route is step 6: it checks that the principal may speak as the sender, that the
// subject is that of the envelope, and that the recipient is known.
func (r *Router) route(e *Envelope, in Inbound) error {
	if in.May != nil {
		var own *Error
		if err := in.May(e); errors.As(err, &own) {
			return own
		} else if err != nil {
			return refuse(ErrForbidden, StepRouting, "from", "is not a peer that this sender may speak as").because(err)
		}
	}
	if in.Subject != "" {
		if err := e.CheckSubject(in.Subject); err != nil {
			return err
		}
	}
	if e.To != "" && r.local(e.WorkspaceID, e.Channel, e.To) == nil && !r.remote(e.WorkspaceID, e.Channel, e.To) {
		return refuse(ErrNotTarget, StepRouting, "to", "is not a peer that can be reached from here")
	}
	return nil
}

// Guard refuses messages that no honest node sends: [ErrForbidden] for a message
// from elsewhere in the name of a peer of this node, [ErrUnsolicited] for a whois
// answer to no request. A transport passes it, or calls it, in [Inbound.May].
func (r *Router) Guard(e *Envelope) error {
	r.init()
	if r.local(e.WorkspaceID, e.Channel, e.From) != nil {
		return refuse(ErrForbidden, StepRouting, "from", "is a peer of this node")
	}
	if w, ok := e.content.(*Whois); ok && w.Type == WhoisResponse {
		if _, ok := r.asks.match(e, r.Verifier.now()); !ok {
			return refuse(ErrUnsolicited, StepRouting, "reply_to", "answers no open question")
		}
	}
	return nil
}

// remote reports whether this node relays to a peer.
func (r *Router) remote(workspaceID, channel, peerID string) bool {
	if !r.Relay {
		return false
	}
	if _, ok := r.presence.Peer(workspaceID, channel, peerID, r.Verifier.now()); ok {
		return true
	}
	return r.Reachable != nil && r.Reachable(workspaceID, channel, peerID)
}

// foresee returns the work and the error with which the lifecycle will refuse the
// message, so that a refused message is recorded as such.
func (r *Router) foresee(ctx context.Context, e *Envelope) (*Work, error) {
	if e.WorkID == "" {
		return nil, nil
	}
	w, ok, err := r.works.Work(ctx, e.WorkspaceID, e.WorkID)
	if err != nil {
		return nil, refuse(ErrBusy, StepLifecycle, "work_id", "cannot be looked up now").because(err)
	}
	_, err = Advance(w, ok, e)
	if !ok {
		return nil, err
	}
	return &w, err
}

func (r *Router) admit(ctx context.Context, res *Result, in Inbound, work *Work, refusal error) error {
	if r.Admit == nil {
		return r.Verifier.remember(ctx, r.memory, res.Envelope)
	}
	decision, err := r.Admit(ctx, &Admission{Principal: in.Principal, Subject: in.Subject, Forwarder: in.Forwarder,
		Envelope: res.Envelope, Verdict: res.Verdict, Refused: refusal, Work: work,
		Until: r.Verifier.Limits.Until(res.Envelope),
		Advance: func(ctx context.Context) (Work, error) {
			if res.Work != nil || res.Envelope.WorkID == "" {
				return Work{}, nil
			}
			w, err := r.works.Update(ctx, res.Envelope, r.step(res.Envelope, r.Verifier.now()))
			if err == nil {
				res.Work = &w
			}
			return w, err
		}})
	if err != nil {
		var own *Error
		switch {
		case errors.As(err, &own):
			return err
		case errors.Is(err, ErrReplay):
			return refuse(ErrReplay, StepRouting, "id", "was seen before").because(err)
		}
		return (&Error{Code: ReasonInternal, Step: StepRouting, Retryable: true, is: ErrBusy}).because(err)
	}
	res.Taken, res.forwarded = decision != Pass, decision == Forward
	return nil
}

// act is steps 7 and 8: work, presence, answers, delivery.
func (r *Router) act(ctx context.Context, res Result, in Inbound) Result {
	e, now := res.Envelope, r.Verifier.now()
	if e.WorkID != "" && res.Work == nil {
		w, err := r.works.Update(ctx, e, r.step(e, now))
		if err != nil {
			return r.refused(ctx, res, in, err)
		}
		res.Work = &w
	}
	res.Outcome = Accepted
	// refresh records a sender that this node does not host as present.
	refresh := func(card *Card, keep bool) (err error) {
		if r.local(e.WorkspaceID, e.Channel, e.From) == nil {
			owner := cmp.Or(in.Principal, e.From)
			res.Events, err = r.presence.Refresh(owner, e.WorkspaceID, e.Channel, card, keep, now)
		}
		return err
	}
	switch c := e.content.(type) {
	case *Greet:
		if e.To == "" || r.local(e.WorkspaceID, e.Channel, e.To) != nil {
			if err := refresh(c.Card, false); err != nil {
				return r.refused(ctx, res, in, err)
			}
		}
		if e.To == "" || r.remote(e.WorkspaceID, e.Channel, e.To) {
			res.Relay = r.Relay
		}
	case *Whois:
		if c.Type == WhoisRequest {
			r.asked(&res, e, c, in.Reply, now)
			break
		}
		// A filtered answer shows part of the card: it must not replace the known card.
		a, _ := r.asks.match(e, now)
		if err := refresh(c.Card, a.filtered); err != nil {
			return r.refused(ctx, res, in, err)
		}
		// A peer joins by its greeting.
		res.Events = slices.DeleteFunc(res.Events, func(ev PeerEvent) bool { return ev.Joined })
		r.deliver(&res, e)
	case *Say, *Transfer:
		r.deliver(&res, e)
	default: // receipts and traces concern the work; a broadcast one has no recipient
		if e.To != "" {
			r.deliver(&res, e)
		}
	}
	if res.Taken {
		res.Deliver, res.Relay = nil, false
	}
	return res
}

func (r *Router) step(e *Envelope, now time.Time) func(Work, bool) (Work, error) {
	return func(w Work, ok bool) (Work, error) {
		w, err := Advance(w, ok, e)
		w.Updated = now
		return w, err
	}
}

// deliver finds the recipients of e: the target, or all peers of the channel but
// the sender. In a direct room the target must belong to the room.
func (r *Router) deliver(res *Result, e *Envelope) {
	if e.To == "" {
		for _, l := range r.channel(e.WorkspaceID, e.Channel) {
			if l.Card.PeerID != e.From {
				res.Deliver = append(res.Deliver, l.Card.PeerID)
			}
		}
		slices.Sort(res.Deliver)
		res.Relay = r.Relay
		return
	}
	if e.Surface == SurfaceDirect && !e.InRoom(e.To) {
		return
	}
	if r.local(e.WorkspaceID, e.Channel, e.To) != nil {
		res.Deliver = []string{e.To}
		return
	}
	res.Relay = r.Relay
}

// refused completes the result of a message that is not acted on, with the
// automatic receipt if RFC 003 asks for one.
func (r *Router) refused(ctx context.Context, res Result, in Inbound, err error) Result {
	res.Outcome, res.Err = Refused, err
	switch {
	case errors.Is(err, ErrReplay):
		res.Outcome = Duplicate
	case errors.Is(err, ErrWorkUnknown), errors.Is(err, ErrWorkActor):
		res.Outcome = Ignored
	case errors.Is(err, ErrWorkTarget):
		res.Outcome = Failed
	}
	if e := res.Envelope; e != nil && e.WorkID != "" {
		if w, ok, err := r.works.Work(ctx, e.WorkspaceID, e.WorkID); ok && err == nil {
			res.Work = &w
		}
	}
	if out, ok := r.receiptFor(res.Envelope, in, err); ok {
		res.Published = append(res.Published, out)
	}
	return res
}

// receiptFor makes the automatic receipt of RFC 003: only for say and
// capability, only when directed to a peer of this node within work, and only
// if the receipt itself is a valid message.
func (r *Router) receiptFor(e *Envelope, in Inbound, err error) (Outgoing, bool) {
	if e == nil || e.WorkID == "" || e.To == "" || e.From == e.To || e.Kind != KindSay && e.Kind != KindCapability {
		return Outgoing{}, false
	}
	body := &Receipt{ForID: e.ID, Reason: ReasonOf(err)}
	switch {
	case errors.Is(err, ErrMalformed):
		body.Status = StatusRejected
	case errors.Is(err, ErrStale):
		body.Status = StatusExpired
	case errors.Is(err, ErrReplay):
		body.Status = StatusDuplicate
	case e.Kind == KindSay && (errors.Is(err, ErrWorkClosed) || errors.Is(err, ErrContainer)):
		body.Status = StatusRejected
	default:
		return Outgoing{}, false
	}
	// Otherwise a sender could cause receipts to another peer by using its name.
	if in.May != nil && in.May(e) != nil {
		return Outgoing{}, false
	}
	l := r.local(e.WorkspaceID, e.Channel, e.To)
	if l == nil {
		if r.Self == "" || !r.remote(e.WorkspaceID, e.Channel, e.To) {
			return Outgoing{}, false
		}
		l = &Local{WorkspaceID: e.WorkspaceID, Channel: e.Channel, Card: &Card{PeerID: r.Self}}
	}
	out := e.Answer()
	if out.SetContent(body) != nil {
		return Outgoing{}, false
	}
	sent, encErr := r.emit(l, out)
	return sent, encErr == nil
}

// extStrings reads an ext member that is an array of strings; ok is false for
// anything else.
func extStrings(e *Envelope, key string) (list []string, present, ok bool) {
	v := e.ExtValue(key)
	if v == nil {
		return nil, false, false
	}
	return list, true, jsonx.Decode(v, &list) == nil && !jsonx.IsNull(jsonx.Value(v))
}

// Expect records a whois request that another node forwards for one of its
// peers, so that answers arriving here are not unsolicited. It gives the answers
// of this node's peers, once. For reply see [Router.ReplyTo].
func (r *Router) Expect(e *Envelope, reply string) []Outgoing {
	r.init()
	w, ok := e.content.(*Whois)
	if !ok || w.Type != WhoisRequest {
		return nil
	}
	if _, known := r.asks.find(e, e.From, e.ID, r.Verifier.now()); known {
		return nil
	}
	var res Result
	r.asked(&res, e, w, reply, r.Verifier.now())
	return res.Published
}

// ReplyTo gives the [Inbound.Reply] of a whois request, or of the request that a
// whois response answers. It is "" for an unknown request; requests are forgotten
// after a minute.
func (r *Router) ReplyTo(e *Envelope) string {
	r.init()
	asker, id := e.From, e.ID
	if w, ok := e.content.(*Whois); ok && w.Type == WhoisResponse {
		asker, id = e.To, e.ReplyTo
	}
	q, _ := r.asks.find(e, asker, id, r.Verifier.now())
	return q.reply
}

// Hosts reports whether a peer of the node has that id in a channel.
func (r *Router) Hosts(workspaceID, channel, peerID string) bool {
	r.init()
	return r.local(workspaceID, channel, peerID) != nil
}
