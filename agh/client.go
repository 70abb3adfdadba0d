package agh

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Message is a message that a [Transport] delivers.
type Message struct {
	Subject string
	Reply   string // a further subject for answers; "" for none
	Data    []byte
}

// Transport carries messages by subject. aghnats has one for NATS.
type Transport interface {
	// Publish sends data on subject. reply may be "".
	Publish(ctx context.Context, subject, reply string, data []byte) error
	// Subscribe calls handle for each message on subject, one after another,
	// until stop is called.
	Subscribe(ctx context.Context, subject string, handle func(Message)) (stop func() error, err error)
}

// Reconnecter is a [Transport] that reports a reconnection, so that the peer can
// greet again.
type Reconnecter interface {
	OnReconnect(func())
}

// Request is a message that reached a [Client], for its Handler.
type Request struct {
	*Verified
	client *Client
}

// Say answers in the conversation of the request, to its sender.
func (r *Request) Say(ctx context.Context, s *Say) error { return r.send(ctx, r.answer(), s) }

// Trace reports the state of the request's work to its sender. The request
// must have a work_id.
func (r *Request) Trace(ctx context.Context, t *Trace) error { return r.send(ctx, r.answer(), t) }

// Receipt acknowledges the request, which must have a work_id.
func (r *Request) Receipt(ctx context.Context, status ReceiptStatus, reason Reason, detail string) error {
	e := r.answer()
	e.CausationID = r.Envelope.ID
	return r.send(ctx, e, &Receipt{ForID: r.Envelope.ID, Status: status, Reason: reason, Detail: detail})
}

func (r *Request) send(ctx context.Context, e *Envelope, content any) error {
	_, err := r.client.sendContent(ctx, e, content)
	return err
}

func (r *Request) answer() *Envelope {
	q := r.Envelope
	return &Envelope{Surface: q.Surface, ThreadID: q.ThreadID, DirectID: q.DirectID, To: q.From, WorkID: q.WorkID,
		ReplyTo: q.ID, TraceID: q.TraceID}
}

// Event is one message about work that a [Client] gave to another peer: a
// receipt, a trace, or a say of the target.
type Event struct {
	*Verified
	State WorkState // of the work after the message
}

// maxQueue bounds the events that wait for one Ask or Stream, and the requests for
// Handler.
const maxQueue = 256

// Client is one peer of one channel. Set its fields, then Join.
type Client struct {
	Transport   Transport
	WorkspaceID string
	Channel     string
	// PeerID names a plain peer; Identity makes a verified one instead.
	PeerID      string
	Identity    *Identity
	DisplayName string
	Catalog     []Capability
	// Handler gets each message to this peer that no call of Whois, Ask or
	// Stream is waiting for. One goroutine calls it, in the order of arrival;
	// while it is busy, up to 256 requests wait.
	Handler func(ctx context.Context, r *Request)
	// Router has the limits, the clock, memory and trust of the peer; nil means
	// the defaults. Its Relay and Admit are as in [Router].
	Router   *Router
	Interval time.Duration // greet interval; 0 means 30 s

	local    *Local
	ctx      context.Context
	requests chan *Request

	mu      sync.Mutex
	waiting map[string]chan Event     // by work id
	finding map[string]chan *Verified // by the id of a whois
	stops   []func() error
}

// ID gives the id that the client speaks as.
func (c *Client) ID() string {
	if c.Identity != nil {
		return c.Identity.ID()
	}
	return c.PeerID
}

// Join subscribes the two subjects of the peer (broadcast and its own), greets,
// and greets again every Interval and after a reconnection, until ctx is done.
func (c *Client) Join(ctx context.Context) error {
	card, err := NewCard(c.ID(), c.DisplayName, c.Catalog)
	if err != nil {
		return err
	}
	if c.Identity != nil {
		card.Profiles = append(card.Profiles, Profile)
		card.TrustModes = []string{string(TrustVerified)}
	}
	if c.Router == nil {
		c.Router = &Router{}
	}
	if c.Identity != nil {
		c.Router.Verifier.Trust = true
	}
	c.local, c.ctx = &Local{WorkspaceID: c.WorkspaceID, Channel: c.Channel, Card: card, Catalog: c.Catalog,
		Identity: c.Identity}, ctx
	c.waiting, c.finding = map[string]chan Event{}, map[string]chan *Verified{}
	if _, err := c.Router.Host(c.local); err != nil {
		return err
	}
	c.requests = make(chan *Request, maxQueue)
	if c.Handler != nil {
		go c.handle(ctx)
	}
	broadcast, err := BroadcastSubject(c.WorkspaceID, c.Channel)
	if err != nil {
		return err
	}
	own, err := VerifiedPeerSubject(c.WorkspaceID, c.Channel, c.ID())
	if err != nil {
		return err
	}
	for _, subject := range []string{broadcast, own} {
		stop, err := c.Transport.Subscribe(ctx, subject, c.receive)
		if err != nil {
			return errors.Join(err, c.leave())
		}
		c.stops = append(c.stops, stop)
	}
	context.AfterFunc(ctx, func() { c.leave() }) // Join has returned: no caller takes the error
	if r, ok := c.Transport.(Reconnecter); ok {
		r.OnReconnect(func() { c.Greet(ctx) }) // the next interval greets again
	}
	if err := c.Greet(ctx); err != nil {
		return err
	}
	go c.heartbeat(ctx)
	return nil
}

func (c *Client) leave() error {
	var errs []error
	for _, stop := range c.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

func (c *Client) heartbeat(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(c.Interval, 30*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.Greet(ctx) // the next interval retries a failed greeting
		case <-ctx.Done():
			return
		}
	}
}

// Greet publishes the peer's greeting once more.
func (c *Client) Greet(ctx context.Context) error {
	out, err := c.Router.Greeting(c.local)
	if err != nil {
		return err
	}
	return c.Transport.Publish(ctx, out.Subject, "", out.Data)
}

func (c *Client) receive(m Message) {
	// The client reads answers on its own subject only; reply subjects belong to
	// the transport.
	res := c.Router.Receive(c.ctx, Inbound{Raw: m.Data, Subject: m.Subject, May: c.Router.Guard})
	for _, out := range res.Published {
		c.Transport.Publish(c.ctx, out.Subject, "", out.Data) // best effort, like the network
		if w, ok := out.Envelope.content.(*Whois); ok && w.Type == WhoisResponse && m.Reply != "" {
			c.Transport.Publish(c.ctx, m.Reply, "", out.Data)
		}
	}
	if res.Outcome != Accepted || len(res.Deliver) == 0 {
		return
	}
	v := &Verified{Envelope: res.Envelope, Verdict: res.Verdict}
	if c.waited(v, res.Work) || c.Handler == nil {
		return
	}
	select {
	case c.requests <- &Request{Verified: v, client: c}:
	case <-c.ctx.Done():
	}
}

func (c *Client) handle(ctx context.Context) {
	for {
		select {
		case r := <-c.requests:
			c.Handler(ctx, r)
		case <-ctx.Done():
			return
		}
	}
}

// waited hands v to the call that waits for it, if there is one.
func (c *Client) waited(v *Verified, w *Work) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if find := c.finding[v.Envelope.ReplyTo]; find != nil && v.Envelope.Kind == KindWhois {
		select {
		case find <- v:
		default: // more answers than the queue holds
		}
		return true
	}
	wait := c.waiting[v.Envelope.WorkID]
	if wait == nil || w == nil || w.Initiator != c.ID() {
		return false
	}
	select {
	case wait <- Event{v, w.State}:
	default: // a slow caller loses an event, but never the last
		if w.State.Terminal() {
			select {
			case <-wait:
			default:
			}
			wait <- Event{v, w.State} // there is room: c.mu allows no other writer
		}
	}
	return true
}

func (c *Client) send(ctx context.Context, e *Envelope) (*Envelope, error) {
	if c.local == nil {
		return nil, refuse(ErrClosed, StepRouting, "", "the client has not joined")
	}
	e.WorkspaceID, e.Channel, e.From = c.WorkspaceID, c.Channel, c.ID()
	res, err := c.Router.Send(ctx, e)
	if err != nil {
		return nil, err
	}
	for _, out := range res.Published {
		if err := c.Transport.Publish(ctx, out.Subject, "", out.Data); err != nil {
			return nil, err
		}
	}
	return res.Envelope, nil
}

func (c *Client) sendContent(ctx context.Context, e *Envelope, content any) (*Envelope, error) {
	if err := e.SetContent(content); err != nil {
		return nil, err
	}
	return c.send(ctx, e)
}

// Send sends any message, with the client's workspace, channel and from. It
// gives the sent envelope.
func (c *Client) Send(ctx context.Context, e *Envelope) (*Envelope, error) {
	copied := *e
	return c.send(ctx, &copied)
}

// Say posts to a public thread of the channel; an empty threadID begins a new
// thread.
func (c *Client) Say(ctx context.Context, threadID string, s *Say) (*Envelope, error) {
	return c.sendContent(ctx, &Envelope{Surface: SurfaceThread, ThreadID: cmp.Or(threadID, NewThreadID())}, s)
}

// Direct sends a say to one peer, in the room of the two peers.
func (c *Client) Direct(ctx context.Context, to string, s *Say) (*Envelope, error) {
	return c.sendContent(ctx, &Envelope{Surface: SurfaceDirect, To: to}, s)
}

// Peers lists the peers that are present in the channel.
func (c *Client) Peers() []Peer { return c.Router.Peers(c.WorkspaceID, c.Channel) }

// Whois asks for the peers that match query (blank: all), or asks the peer to
// about itself. It gives the answers until ctx is done or the caller stops. With
// catalog the answers carry capability catalogues; see [CatalogOf].
func (c *Client) Whois(ctx context.Context, to, query string, catalog bool) iter.Seq2[*Verified, error] {
	return func(yield func(*Verified, error) bool) {
		e := &Envelope{ID: NewID(), To: to}
		if catalog {
			if err := e.SetExt(ExtInclude, []string{IncludeValue}); err != nil {
				yield(nil, err)
				return
			}
		}
		answers, stop := wait(c, c.finding, e.ID)
		defer stop()
		if _, err := c.sendContent(ctx, e, &Whois{Type: WhoisRequest, Query: query}); err != nil {
			yield(nil, err)
			return
		}
		for {
			select {
			case v := <-answers:
				if !yield(v, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// wait opens a queue for messages under a key, until stop is called. Before Join
// there is no map, and the queue stays empty.
func wait[T any](c *Client, by map[string]chan T, key string) (queue chan T, stop func()) {
	queue = make(chan T, maxQueue)
	c.mu.Lock()
	defer c.mu.Unlock()
	if by != nil {
		by[key] = queue
	}
	return queue, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(by, key)
	}
}

// CatalogOf reads the capability catalogue of a whois answer; nil if the answer
// has none. Every digest is checked.
func CatalogOf(e *Envelope) ([]Capability, error) {
	v := e.ExtValue(ExtCatalog)
	if v == nil {
		return nil, nil
	}
	var w struct {
		Capabilities []jsonx.Value `json:"capabilities"`
	}
	if err := jsonx.Decode(v, &w); err != nil {
		return nil, malformed(StepBody, "ext", "holds no capability catalogue").because(err)
	}
	catalog := make([]Capability, 0, len(w.Capabilities))
	for _, doc := range w.Capabilities {
		c, err := DecodeCapability(doc)
		if err != nil {
			return nil, err
		}
		catalog = append(catalog, *c)
	}
	return catalog, nil
}

// Stream gives work to a peer, in the room of the two peers, and yields the events
// of the work as they arrive. The last event has a terminal State. The sequence
// ends early when ctx is done or the caller stops.
func (c *Client) Stream(ctx context.Context, to string, s *Say) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		e := &Envelope{Surface: SurfaceDirect, To: to, WorkID: NewWorkID()}
		events, stop := wait(c, c.waiting, e.WorkID)
		defer stop()
		if _, err := c.sendContent(ctx, e, s); err != nil {
			yield(Event{}, err)
			return
		}
		for {
			select {
			case ev := <-events:
				if !yield(ev, nil) || ev.State.Terminal() {
					return
				}
			case <-ctx.Done():
				yield(Event{}, ctx.Err())
				return
			}
		}
	}
}

// Ask gives work to a peer and waits for its end: Content is the last trace, or
// the receipt that refused the request. When ctx is done, send a receipt
// "canceled" if the target should stop.
func (c *Client) Ask(ctx context.Context, to string, s *Say) (Event, error) {
	for ev, err := range c.Stream(ctx, to, s) {
		if err != nil || ev.State.Terminal() {
			return ev, err
		}
	}
	return Event{}, ctx.Err()
}
