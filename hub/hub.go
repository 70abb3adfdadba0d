package hub

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/stack"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
)

// A Binding joins one protocol to the hub. Its methods are called from many
// goroutines.
type Binding interface {
	// Protocol is the protocol's short name: "samvad", "uagents", …
	Protocol() string
	// Capabilities says what the protocol can do. The hub asks once, in Bind.
	Capabilities() Capabilities
	// Deliver brings a message to a recipient. It returns when the recipient
	// has it, or has answered, or the attempt failed; it heeds ctx.
	Deliver(ctx context.Context, o Outbound) Outcome
}

// A Service is a Binding with a life of its own. Start is called before the
// hub delivers anything, Close after the listeners are shut.
type Service interface {
	Binding
	Start(ctx context.Context) error
	Close() error
}

// An HTTPBinding has endpoints on the hub's HTTP listener. The first binding
// that says Serves gets the request.
type HTTPBinding interface {
	Binding
	Serves(r *http.Request) bool
	http.Handler
}

// An Outbound is what a binding is to deliver.
type Outbound struct {
	Message   *parley.Message
	Request   *parley.Message // what an Event, Response, Failure or Cancel is about; else nil
	Scope     string          // in which Message is recorded, and in which the keys of its replies are kept
	Recipient *directory.Entry
	Identity  parley.Identity // the recipient's, in the binding's protocol
	Attempt   int
	Waits     bool // who asked waits on an open connection, and is gone when the hub is
	Streams   bool // who asked is told of events as they come
	// Event records an event about the request and passes it on; it may be
	// called until Deliver returns.
	Event func(state parley.State, parts ...parley.Part) error
}

// An Outcome is what came of a delivery. The zero value says that the
// recipient has the message and that a reply, if one is due, comes later.
type Outcome struct {
	Answered bool            // the recipient answered with Parts or Failure
	Parts    []parley.Part   // of a Response
	Failure  *parley.Error   // the recipient's own refusal or failure: its answer
	Reply    *parley.Message // more of the reply than Parts and Failure: Act, Schema, Origin, Extensions, Trace; may be nil

	Err     *parley.Error // the attempt failed
	Wait    time.Duration // with Err: come back after this; no try is used up
	Unknown bool          // with Err: the recipient may have had it all the same
	Losses  []parley.Loss
}

// Config of a Hub. Journal, Directory and Policy must be set.
type Config struct {
	ID        string // of this hub, as in Message.Hops
	Secret    []byte // 32 bytes: conversations of foreign ids are derived with it; must stay the same
	Journal   *journal.Journal
	Directory *directory.Directory
	Policy    *policy.Policy
	Guests    *policy.Guests // nil: one of default size

	Delivery     delivery.Config // Log and Carrier are set by the hub
	Timeout      time.Duration   // a request's deadline when its caller waits and gave none; 30 s
	LongTimeout  time.Duration   // when nobody waits; 2 h: an hour's work has room in it
	HandlerCalls int             // of one Go agent at once; 1,024
	Events       int             // of one request, kept for a caller that reads slowly; 1,024
	Refusals     int             // kept for `parley refused`; 4,096
	Relaxed      bool            // answer before the reply is recorded

	Now      func() time.Time
	Rand     io.Reader
	Logger   *slog.Logger
	Observer Observer // nil: none
}

// Hub is safe for concurrent use.
type Hub struct {
	c         Config
	deliver   *delivery.Dispatcher
	policy    atomic.Pointer[policy.Policy]
	maps      atomic.Pointer[map[mapKey]Program] // nil: none
	refusals  *refusals
	bindings  map[string]*bound // by protocol
	stopWatch func()
	macs      sync.Pool // of hash.Hash, keyed with Config.Secret

	recent requests

	mu      sync.Mutex
	local   map[string]*local
	waiters map[parley.ID]*waiter
	running map[parley.ID]context.CancelFunc // attempts under way, by request
	numbers map[parley.ID]int                // last event number of requests that are open
	timers  map[parley.ID]*time.Timer        // deadlines of requests that were delivered and not answered
	inboxes map[string]*inbox
	unsure  lostAppends
	started bool
	quiet   chan struct{} // closed when no caller waits; nil until Drain
	ended   bool          // Close has no more patience
}

// New makes a hub; Bind and Handle may follow, then Start.
func New(c Config) (*Hub, error) {
	if c.Journal == nil || c.Directory == nil || c.Policy == nil {
		return nil, errors.New("hub: Journal, Directory and Policy must be set")
	}
	if len(c.Secret) < 32 {
		return nil, errors.New("hub: Secret must have 32 bytes")
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.LongTimeout == 0 {
		c.LongTimeout = 2 * time.Hour
	}
	if c.HandlerCalls == 0 {
		c.HandlerCalls = 1024
	}
	if c.Events == 0 {
		c.Events = 1024
	}
	if c.Refusals == 0 {
		c.Refusals = 4096
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Guests == nil {
		c.Guests = policy.NewGuests(policy.GuestConfig{Now: c.Now})
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Hub{c: c, bindings: map[string]*bound{}, local: map[string]*local{}, waiters: map[parley.ID]*waiter{},
		running: map[parley.ID]context.CancelFunc{}, numbers: map[parley.ID]int{}, timers: map[parley.ID]*time.Timer{},
		inboxes: map[string]*inbox{}, refusals: newRefusals(c.Refusals, c.Rand)}
	h.policy.Store(c.Policy)
	dc := c.Delivery
	dc.Log, dc.Carrier, dc.Now, dc.Logger, dc.Relaxed = c.Journal, (*carrier)(h), c.Now, c.Logger, c.Relaxed
	h.deliver = delivery.New(dc)
	return h, nil
}

// ID is this hub's own.
func (h *Hub) ID() string { return h.c.ID }

// Bindings are the protocols that are bound.
func (h *Hub) Bindings() []Binding {
	var out []Binding
	for _, b := range h.bindings {
		out = append(out, b.Binding)
	}
	slices.SortFunc(out, func(a, b Binding) int { return strings.Compare(a.Protocol(), b.Protocol()) })
	return out
}

// Directory is what the hub routes by.
func (h *Hub) Directory() *directory.Directory { return h.c.Directory }

// Journal is where the hub records.
func (h *Hub) Journal() *journal.Journal { return h.c.Journal }

// SetPolicy puts other rules in force; messages under way are not judged anew.
func (h *Hub) SetPolicy(p *policy.Policy) { h.policy.Store(p) }

// SenderRate is how much it takes of one proved sender.
func (h *Hub) SenderRate() policy.Rate { return h.policy.Load().SenderRate() }

// Guests is the budget of guests.
func (h *Hub) Guests() *policy.Guests { return h.c.Guests }

// Now is the hub's clock.
func (h *Hub) Now() time.Time { return h.c.Now() }

// Bind adds a protocol; before Start.
func (h *Hub) Bind(b Binding) error {
	if h.started || h.bindings[b.Protocol()] != nil {
		return fmt.Errorf("hub: protocol %q is bound already, or the hub has started", b.Protocol())
	}
	h.bindings[b.Protocol()] = &bound{b, b.Capabilities()}
	return nil
}

// Start begins to deliver: first what the journal holds from before.
func (h *Hub) Start(ctx context.Context) error {
	h.started = true
	stopRecords := h.c.Journal.Watch(h.recorded)
	stopAgents := h.c.Directory.Watch(func(c directory.Change) {
		if c.Old != nil && c.New != nil && c.Old.Paused && !c.New.Paused {
			h.deliver.Kick(c.New.Name)
		}
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var resuming sync.WaitGroup
	stopOwned := h.c.Journal.WatchOwned(func(partition int, owned bool) {
		if !owned {
			h.deliver.Lose(partition)
			return
		}
		resuming.Add(1)
		go func() {
			defer resuming.Done()
			h.takeUp(ctx, partition)
		}()
	})
	stopDrain := h.c.Journal.OnHandOver(h.deliver.HandOver)
	h.stopWatch = func() {
		stop()
		stopDrain()
		stopAgents()
		stopOwned()
		resuming.Wait()
		stopRecords()
	}
	return nil
}

// takeUp is resume, again while the journal cannot: a partition often changes
// hands when servers do not answer.
func (h *Hub) takeUp(ctx context.Context, partition int) {
	for h.c.Journal.Owned(partition) {
		err := h.resume(ctx, partition)
		if err == nil || ctx.Err() != nil {
			return
		}
		h.c.Logger.Error("cannot take up the deliveries of a partition; trying again", "partition", partition, "error", err)
		pause := time.NewTimer(endAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

func (h *Hub) resume(ctx context.Context, partition int) error {
	if err := h.deliver.Resume(ctx, partition); err != nil {
		return err
	}
	for _, v := range h.c.Journal.Deliveries(journal.Filter{States: []parley.DeliveryState{parley.Delivered}, Partition: func(p int) bool { return p == partition }}) {
		if v.Kind == parley.Request {
			h.await(v.Message, v.To, v.Position, v.Deadline)
		}
	}
	return nil
}

// Close stops delivering, and hands over to other hubs on the journal. Attempts
// in flight are given until ctx ends.
func (h *Hub) Close(ctx context.Context) error {
	// Callers of this process wait with contexts of their own.
	cut := false // something was under way when ctx ended; under h.mu
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		h.ended = true
		cut = len(h.running) > 0
		for _, cancel := range h.running {
			cancel()
		}
		var held []*waiter
		for _, w := range h.waiters {
			if w.held != nil {
				held = append(held, w)
			}
		}
		h.mu.Unlock()
		for _, w := range held {
			w.dismiss()
		}
	})
	defer stop()
	if err := h.c.Journal.Leave(ctx); err != nil {
		h.c.Logger.Warn("not all partitions are handed over", "error", err)
	}
	err := h.deliver.Close(ctx)
	if h.stopWatch != nil {
		h.stopWatch()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.timers {
		t.Stop()
	}
	clear(h.timers)
	for _, w := range h.waiters {
		w.end(errStopping())
	}
	if err == nil && cut {
		err = context.Cause(ctx)
	}
	return err
}

// A Submission is a proved message on its way in. Its Message has From, To or
// Audience as directory names; the hub mints ID and Conversation where they
// are zero and adds itself to Hops.
type Submission struct {
	Message *parley.Message
	Scope   string        // the protocol's scope: order and replay are kept within it
	Key     journal.Key   // the replay key; the zero Key: none
	Foreign string        // the foreign conversation id, in the protocol's words
	Refused *parley.Error // the protocol's own refusal of a proved message: it is recorded and consumes the key
	Fits    bool          // the content was checked against the skill's schema already

	Chain    *journal.ChainLink // record it only as the next of a chain, which lies in Scope; else the error wraps journal.ErrConflict
	Admitted bool               // it is the hub's own wording of a message that was admitted: policy is not asked again
	Vouched  bool               // the sender's connection is one that the operator configured: it is no guest, known or not
	Reads    []string           // recipients who read the record itself: they are admitted, and no delivery to them is opened
	Began    []string           // recipients who began the exchange that the message goes on with: see [policy.Recipient]
	At       *journal.Position  // where to note the position of the record; may be nil
}

func (s *Submission) note(p journal.Position) {
	if s.At != nil {
		*s.At = p
	}
}

// Prior is the error for a message whose key was recorded before.
type Prior struct {
	Of      journal.Prior
	Refused *parley.Error // the refusal that was recorded; nil: it was taken
}

func (p *Prior) Error() string { return "the message was recorded before, as " + p.Of.Message.String() }

// Unwrap makes errors.As find a parley.Error with code Replayed.
func (p *Prior) Unwrap() error {
	return parley.Refuse(parley.Replayed, "the message was received before")
}

// Accept records a message and sets its delivery going. It returns as soon as
// the message is as durable as the journal promises. Errors are [*Prior] and
// [*parley.Error]; after one nothing is delivered.
func (h *Hub) Accept(ctx context.Context, s Submission) (*parley.Message, error) {
	a, err := h.submit(ctx, s, false)
	if err != nil {
		return nil, err
	}
	h.bring(a)
	return a.message, nil
}

// bring makes the attempts that were recorded with a message, in the background.
func (h *Hub) bring(a *accepted) {
	for _, c := range a.claims {
		c.claim.Go(delivery.Attempt{Message: a.message, Position: a.position, Scope: a.scope, To: c.to, Request: a.request})
	}
}

// Ask records a request and waits for its terminal reply, a message of kind
// Response or Failure, at most until its deadline. An error means that the
// request was not accepted, or that its reply could not be recorded.
func (h *Hub) Ask(ctx context.Context, s Submission) (*parley.Message, error) {
	c, err := h.Begin(ctx, s)
	if err != nil {
		return nil, err
	}
	return c.Reply(ctx)
}

// A Call is a request that is recorded, whose caller waits. One of Reply and
// Stream must be called, once.
type Call struct {
	h *Hub
	w *waiter
	a *accepted
}

// Message is the request as it was recorded.
func (c *Call) Message() *parley.Message { return c.a.message }

// Reply waits for the terminal reply, as Ask does.
func (c *Call) Reply(ctx context.Context) (*parley.Message, error) {
	defer c.h.leave(c.a)
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	if len(c.a.claims) == 1 {
		c.h.first(ctx, c.a, c.w)
	}
	for {
		m, err := c.h.next(ctx, c.a, c.w)
		if err != nil || m.Kind.Terminal() {
			return m, err
		}
	}
}

// Stream yields the request's events as they are recorded, last its terminal
// reply. Breaking off, or the end of ctx, cancels the request.
func (c *Call) Stream(ctx context.Context) iter.Seq2[*parley.Message, error] {
	return func(yield func(*parley.Message, error) bool) {
		defer c.h.leave(c.a)
		c.w.streams.Store(true)
		ctx, cancel := context.WithTimeout(ctx, c.patience())
		if len(c.a.claims) == 1 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				stack.Deepen()
				c.h.first(ctx, c.a, c.w)
			}()
			defer func() { cancel(); <-done }()
		} else {
			defer cancel()
		}
		for {
			m, err := c.h.next(ctx, c.a, c.w)
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(m, nil) {
				if !m.Kind.Terminal() {
					c.h.abandon(c.a)
				}
				return
			}
			if m.Kind.Terminal() {
				return
			}
		}
	}
}

// Begin records a request whose caller waits, and gives what it waits with.
func (h *Hub) Begin(ctx context.Context, s Submission) (*Call, error) {
	if s.Message.Kind != parley.Request {
		return nil, parley.Refuse(parley.Malformed, "only a request has a reply to wait for")
	}
	if err := h.mint(s.Message, true); err != nil {
		return nil, err
	}
	c := &Call{h: h, w: newWaiter(h.c.Events, s.Message.Recipients()), a: &accepted{message: s.Message}}
	h.mu.Lock()
	if h.quiet != nil && !h.askedLocked(s.Message.From) {
		h.mu.Unlock()
		return nil, errStopping()
	}
	h.waiters[s.Message.ID] = c.w
	h.mu.Unlock()
	a, err := h.submit(ctx, s, true)
	if err != nil {
		h.leave(c.a)
		return nil, err
	}
	c.a = a
	if len(a.claims) == 1 {
		h.mu.Lock()
		c.w.held = a.claims[0].claim
		ended := h.ended
		h.mu.Unlock()
		if ended {
			c.w.dismiss()
		}
	}
	return c, nil
}

func (h *Hub) leave(a *accepted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiters, a.message.ID)
	if h.quiet != nil {
		h.quietLocked()
	}
}

func errStopping() *parley.Error {
	return parley.Fail(parley.Unavailable, nil, "the hub is stopping; send the request again in a moment")
}

// Drain refuses further requests whose callers wait, and returns when no caller
// waits any more, or when ctx ends: callers that wait then are told. Agents may
// answer meanwhile, and ask others for what a caller waits for. What senders leave
// at the hub is recorded as always. Close follows.
func (h *Hub) Drain(ctx context.Context) {
	h.mu.Lock()
	if h.quiet == nil {
		h.quiet = make(chan struct{})
	}
	h.quietLocked()
	quiet := h.quiet
	h.mu.Unlock()
	select {
	case <-quiet:
		return
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiters {
		w.end(errStopping())
	}
}

// quietLocked notes whether a caller waits.
func (h *Hub) quietLocked() {
	select {
	case <-h.quiet:
	default:
		if len(h.waiters) == 0 {
			close(h.quiet)
		}
	}
}

// askedLocked reports whether a caller waits for an answer of the agent.
func (h *Hub) askedLocked(agent string) bool {
	for _, w := range h.waiters {
		if slices.Contains(w.to, agent) {
			return true
		}
	}
	return false
}

// first makes the attempt that was recorded with the request.
func (h *Hub) first(ctx context.Context, a *accepted, w *waiter) {
	if !w.began.CompareAndSwap(false, true) {
		return // the hub ended before the caller came to it
	}
	r := a.claims[0].claim.Run(ctx, delivery.Attempt{Message: a.message, Position: a.position, Scope: a.scope, To: a.claims[0].to, Sync: true})
	switch {
	case r.Reply != nil:
		w.push(r.Reply.Message)
	case r.Err != nil:
		w.end(r.Err)
	}
}

// next waits for the next message about a request; when the caller's time is
// up it ends the request.
func (h *Hub) next(ctx context.Context, a *accepted, w *waiter) (*parley.Message, error) {
	m, err := w.next(ctx)
	if err == nil {
		return m, nil
	}
	if ctx.Err() != nil {
		if reply := h.giveUp(context.WithoutCancel(ctx), a, err); reply != nil {
			return reply, nil
		}
	}
	return nil, parley.AsError(err)
}

// grace is how long a caller waits beyond the deadline for the Failure with
// which the attempt that is under way ends then.
const grace = 2 * time.Second

// patience is how long the caller waits from now on.
func (c *Call) patience() time.Duration {
	d := c.a.message.Deadline.Sub(c.h.c.Now())
	if len(c.a.claims) == 1 {
		d += grace
	}
	return d
}

// accepted is a message that is recorded.
type accepted struct {
	message  *parley.Message
	position journal.Position
	scope    string
	claims   []claim
	request  *parley.Message // that message is about; nil for what begins something
}

type claim struct {
	to    string
	claim *delivery.Claim
}

// mint gives a message what only the hub can give.
func (h *Hub) mint(m *parley.Message, waits bool) error {
	if m.ID.IsZero() {
		id, err := parley.NewID(h.c.Now(), h.c.Rand)
		if err != nil {
			return parley.Refuse(parley.Internal, "internal error").Because(err)
		}
		m.ID = id
	}
	if m.Origin.Received.IsZero() {
		m.Origin.Received = h.c.Now()
	}
	if m.Sent.IsZero() {
		m.Sent = m.Origin.Received
	}
	if m.Kind == parley.Request && m.Deadline.IsZero() {
		t := h.c.LongTimeout
		if waits {
			t = h.c.Timeout
		}
		m.Deadline = h.c.Now().Add(t)
	}
	return nil
}

// Conversation derives the hub's conversation of a foreign one. It is the same
// for the same protocol, scope, participants (in any order) and foreign id,
// and nobody can compute it without the hub's secret, so that knowing a
// foreign id lets nobody into a conversation of others.
func (h *Hub) Conversation(protocol, scope, foreign string, participants ...string) parley.ID {
	participants = slices.Clone(participants)
	slices.Sort(participants)
	mac, ok := h.macs.Get().(hash.Hash)
	if !ok {
		mac = hmac.New(sha256.New, h.c.Secret)
	}
	defer func() { mac.Reset(); h.macs.Put(mac) }()
	text := make([]byte, 0, 512)
	part := func(s string) { text = append(binary.BigEndian.AppendUint32(text, uint32(len(s))), s...) }
	part("conversation")
	part(protocol)
	part(scope)
	part(foreign)
	for _, s := range slices.Compact(participants) {
		part(s)
	}
	mac.Write(text)
	return parley.HashID(mac.Sum(text[:0]))
}

// submit admits and records.
func (h *Hub) submit(ctx context.Context, s Submission, waits bool) (*accepted, error) {
	m := s.Message
	if err := h.mint(m, waits); err != nil {
		return nil, err
	}
	switch {
	case m.From == "":
		return nil, parley.Refuse(parley.Malformed, "the message has no sender")
	case m.Kind == parley.Event || m.Kind.Terminal():
		return h.reply(ctx, s)
	case m.Kind == parley.Cancel:
		return h.cancel(ctx, s)
	}
	if err := h.address(m); err != nil {
		return nil, err
	}
	if m.Kind == parley.Notice && len(m.Audience) == 0 && m.To != "" {
		m.Audience = h.members(m)
	}
	names := m.Recipients()
	if m.Conversation.IsZero() {
		if s.Foreign == "" {
			m.Conversation = parley.HashID(m.ID[:])
		} else {
			m.Conversation = h.Conversation(m.Origin.Protocol, s.Scope, s.Foreign, append(names, m.From)...)
		}
	}
	refused := s.Refused
	if refused == nil && !s.Admitted {
		refused = h.admit(m, names, s)
	}
	if refused != nil && (s.Key.ID == "" || refused.Code == parley.RateLimited) {
		return nil, refused // nothing proved it, or it must not cost anything
	}
	if h.isGuest(&s) {
		if err := h.chargeGuest(ctx, m, refused != nil); err != nil {
			return nil, cmp.Or(refused, err)
		}
	} else {
		policy.Vouch(ctx)
	}
	entry := journal.Entry{Scope: s.Scope, Message: m, Key: s.Key, Refused: refused}
	if refused == nil {
		entry.Chain = s.Chain // what is refused is no part of the chain
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	a := &accepted{message: m, scope: s.Scope}
	if refused == nil {
		for _, to := range names {
			if slices.Contains(s.Reads, to) {
				continue
			}
			entry.Open = append(entry.Open, journal.Opening{To: to, Sync: waits})
		}
		h.claimAll(a, entry.Open)
	}
	if err := h.write(ctx, entry, a, waits); err != nil {
		return nil, err
	}
	s.note(a.position)
	if refused != nil {
		return nil, refused
	}
	h.recent.note(m, s.Scope, a.position)
	return a, nil
}

// write records an entry, with the first attempts for which a holds the lanes;
// where it is not recorded they are given back.
func (h *Hub) write(ctx context.Context, e journal.Entry, a *accepted, waits bool) error {
	position, prior, err := h.append(ctx, e)
	return h.written(ctx, a, position, prior, err, waits)
}

// written sees to what became of an entry.
func (h *Hub) written(ctx context.Context, a *accepted, position journal.Position, prior *journal.Prior, err error, waits bool) error {
	if err == nil && prior == nil {
		a.position = position
		return nil
	}
	unmade := a.claims[:0]
	for _, c := range a.claims {
		if c.claim.Release() {
			unmade = append(unmade, c)
		}
	}
	if errors.Is(err, journal.ErrUnknown) && len(unmade) > 0 {
		h.unmade(a.message.ID, waits, unmade)
	}
	if err != nil {
		return recordError(err)
	}
	return h.prior(ctx, prior)
}

// claimAll takes the lanes for first attempts that can be recorded with the
// message, if this node dispatches its scope.
func (h *Hub) claimAll(a *accepted, open []journal.Opening) {
	j := h.c.Journal
	partition := j.Partition(a.scope)
	if len(open) == 0 || !j.Owned(partition) {
		return
	}
	for i := range open {
		o := &open[i]
		if c := h.deliver.Claim(partition, a.message.ID, o.To, a.message.Conversation, o.Sync); c != nil {
			o.Attempt = 1
			a.claims = append(a.claims, claim{o.To, c})
		}
	}
}

// address gives the recipients of a message by their directory names where it
// says what a protocol calls them.
func (h *Hub) address(m *parley.Message) *parley.Error {
	name := func(ref string) (string, *parley.Error) {
		e, err := h.c.Directory.Resolve(ref)
		switch {
		case err == nil:
			return e.Name, nil
		case errors.Is(err, directory.ErrAmbiguous):
			// Names of agents are for who may list them: `parley agents show` gives them.
			return "", parley.Refuse(parley.Conflict, "%q is the address of several agents; give a name", ref)
		}
		return ref, nil // policy says that it is not here
	}
	if m.To != "" {
		to, err := name(m.To)
		if err != nil {
			return err
		}
		m.To = to
	}
	m.Audience = slices.Clone(m.Audience)
	for i, ref := range m.Audience {
		to, err := name(ref)
		if err != nil {
			return err
		}
		m.Audience[i] = to
	}
	return nil
}

// admit asks policy, and makes the content fit the recipients' skills.
func (h *Hub) admit(m *parley.Message, names []string, s Submission) *parley.Error {
	if len(names) == 0 {
		return parley.Refuse(parley.UnknownAgent, "the message names no recipient")
	}
	if m.Kind == parley.Request && len(names)-len(s.Reads) > 1 {
		return parley.Refuse(parley.Malformed, "a request has one recipient; send a notice to many")
	}
	to := make([]policy.Recipient, len(names))
	entries := make([]*directory.Entry, len(names))
	for i, name := range names {
		e, ok := h.c.Directory.Agent(name)
		if !ok {
			return parley.Refuse(parley.UnknownAgent, "no agent %q here", name)
		}
		to[i], entries[i] = policy.Recipient{Agent: &e.Agent, Native: e.Native(), Began: slices.Contains(s.Began, name)}, e
	}
	if err := h.policy.Load().Admit(m, to); err != nil {
		return err
	}
	if s.Fits {
		return nil
	}
	return h.admitContent(m, entries[0])
}

// append records an entry, with the replay check where it has a key.
func (h *Hub) append(ctx context.Context, e journal.Entry) (p journal.Position, prior *journal.Prior, err error) {
	if o := h.c.Observer; o != nil {
		var end func(error)
		if ctx, end = o.Record(ctx, e.Message); end != nil {
			defer func() { end(err) }()
		}
	}
	if e.Key.ID != "" {
		return h.c.Journal.Accept(ctx, e)
	}
	p, err = h.c.Journal.Append(ctx, e)
	return p, nil, err
}

// recordError tells a sender why its message could not be recorded. The
// journal's errors carry what strangers may see.
func recordError(err error) *parley.Error { return parley.AsError(err).Because(err) }

// reply takes an Event, Response or Failure about a request that was delivered
// before.
func (h *Hub) reply(ctx context.Context, s Submission) (*accepted, error) {
	m := s.Message
	v, ok, err := h.delivery(ctx, m.InReplyTo, m.From)
	if err != nil {
		return nil, recordError(err)
	}
	if !ok || v.Kind != parley.Request {
		return nil, parley.Refuse(parley.Conflict, "no open request that this could be a reply to")
	}
	request, scope, err := h.request(ctx, m.InReplyTo, v.Position)
	if err != nil {
		return nil, recordError(err)
	}
	if !request.Origin.Received.IsZero() && h.isGuest(&Submission{Message: request}) {
		h.c.Guests.Wrote(policy.Source(request.Origin.Address), recordCost(m))
	}
	m.Conversation, m.To = v.Conversation, request.From
	// A reply is part of its request's trace, whatever brought it.
	if t := request.Trace; len(t.Parent) == 55 && (len(m.Trace.Parent) != 55 || m.Trace.Parent[3:35] != t.Parent[3:35]) {
		m.Trace.Parent, m.Trace.State = t.Parent, t.State
	}
	if err := h.policy.Load().Admit(m, nil); err != nil {
		return nil, err
	}
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	h.fitReply(ctx, request, m.From, m)
	if s.Chain != nil {
		scope = s.Scope // a reply that is a record of a chain as well lies there; the journal refuses it where the request does not
	}
	entry := journal.Entry{Scope: scope, Message: m, Key: s.Key, Chain: s.Chain}
	if entry.Open = h.replyTo(request, m, v.Sync); entry.Open != nil {
		refer(m, v.Position)
	}
	losses := h.lost(request, m, entry.Open)
	if m.Kind == parley.Event {
		m.Number, entry.Losses = h.number(m.InReplyTo), losses
	} else {
		entry.Steps = []journal.Step{{Message: m.InReplyTo, To: m.From, State: parley.Answered, Attempt: v.Attempt, Reply: m.ID, Error: m.Error, Losses: union(v.Losses, losses)}}
	}
	for {
		a := &accepted{message: m, scope: scope, request: request}
		h.claimAll(a, entry.Open)
		err := h.write(ctx, entry, a, false)
		if err == nil {
			s.note(a.position)
			return a, nil
		}
		if !h.attemptedSince(&entry, err) {
			return nil, err
		}
	}
}

// cancel takes the sender's word that it no longer wants an answer of To.
func (h *Hub) cancel(ctx context.Context, s Submission) (*accepted, error) {
	m := s.Message
	v, ok, err := h.delivery(ctx, m.InReplyTo, m.To)
	if err != nil {
		return nil, recordError(err)
	}
	if !ok || v.From != m.From || v.Kind != parley.Request {
		return nil, parley.Refuse(parley.Conflict, "no open request of yours that could be cancelled")
	}
	_, scope, err := h.request(ctx, m.InReplyTo, v.Position)
	if err != nil {
		return nil, recordError(err)
	}
	m.Conversation = v.Conversation
	m.Hops = append(slices.Clone(m.Hops), h.c.ID)
	entry := journal.Entry{Scope: scope, Message: m, Key: s.Key, Chain: s.Chain}
	if h.reachable(m.To, m.Kind) {
		entry.Open = []journal.Opening{{To: m.To}}
		refer(m, v.Position)
	}
	position, prior, err := h.append(ctx, entry)
	if err != nil {
		return nil, recordError(err)
	}
	if prior != nil {
		return nil, h.prior(ctx, prior)
	}
	s.note(position)
	h.mu.Lock()
	if stop := h.running[m.InReplyTo]; stop != nil {
		stop()
	}
	h.mu.Unlock()
	return &accepted{message: m, position: position, scope: scope}, nil
}

// replyTo opens the delivery of what is said about a request to its sender;
// none where the sender waits here, fetches it, or cannot be reached.
func (h *Hub) replyTo(request, reply *parley.Message, waits bool) []journal.Opening {
	if waits {
		return nil
	}
	b := h.bindings[request.Origin.Protocol]
	if b != nil && !b.can.CarriesReplies {
		return b.callback(request, reply.Kind)
	}
	if b != nil && b.can.CarriesEvent != nil && reply.Kind == parley.Event && !b.can.CarriesEvent(reply) {
		return nil
	}
	if !h.reachable(request.From, parley.Response) {
		return nil
	}
	return []journal.Opening{{To: request.From}}
}

// reachable reports whether there is a way to bring a message of a kind to an
// agent. A handler in this process takes requests and notices only.
func (h *Hub) reachable(name string, k parley.Kind) bool {
	h.mu.Lock()
	_, local := h.local[name]
	_, inbox := h.inboxes[name]
	h.mu.Unlock()
	if inbox {
		return true
	}
	if local {
		return k == parley.Request || k == parley.Notice
	}
	e, ok := h.c.Directory.Agent(name)
	if !ok {
		return false
	}
	_, _, ok = h.route(e, "")
	return ok
}

// route picks the binding for a recipient: the protocol given, if the agent
// speaks it natively, else the first protocol that it speaks.
func (h *Hub) route(e *directory.Entry, protocol string) (*bound, parley.Identity, bool) {
	var binding *bound
	var identity parley.Identity
	for _, i := range e.Identities {
		b := h.bindings[i.Protocol]
		if b == nil || i.StandIn {
			continue
		}
		if i.Protocol == protocol {
			return b, i, true
		}
		if binding == nil {
			binding, identity = b, i
		}
	}
	return binding, identity, binding != nil
}

// recorded is told of every record, in order.
func (h *Hub) recorded(r *journal.Record) {
	h.deliver.Recorded(r)
	j := h.c.Journal
	elsewhere := len(r.Steps) > 0 && j.Owned(r.Position.Partition) && j.LivesElsewhere(r.Node, r.Time)
	for _, s := range r.Steps {
		if elsewhere && s.State == parley.Delivered {
			go h.awaitOf(s.Message, s.To) // the journal forbids to ask it from here
		}
		if s.State.Settled(parley.Request) {
			h.forget(s.Message)
		}
	}
	m := r.Message
	if m != nil {
		h.landed(m.ID)
	}
	if m == nil || m.InReplyTo.IsZero() || m.Kind == parley.Cancel || r.Refused != nil {
		return
	}
	h.mu.Lock()
	w := h.waiters[m.InReplyTo]
	h.mu.Unlock()
	if w != nil {
		w.push(m)
	}
}

func (h *Hub) forget(id parley.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.numbers, id)
	if t := h.timers[id]; t != nil {
		t.Stop()
		delete(h.timers, id)
	}
}

func (h *Hub) number(request parley.ID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers[request]++
	return h.numbers[request]
}

// await sees to it that a delivered request whose answer comes later is
// answered by its deadline.
func (h *Hub) await(id parley.ID, to string, p journal.Position, deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timers[id] != nil {
		return
	}
	h.timers[id] = time.AfterFunc(max(0, deadline.Sub(h.c.Now())), func() { h.overdue(id, to, p) })
}

// awaitOf is await for what another hub delivered, whose partition is this one's.
func (h *Hub) awaitOf(id parley.ID, to string) {
	if v, ok := h.c.Journal.Delivery(id, to); ok && v.State == parley.Delivered && v.Kind == parley.Request {
		h.await(v.Message, v.To, v.Position, v.Deadline)
	}
}

// endAgain is the pause before it is tried again to end a request, or to take
// up a partition.
const endAgain = time.Second

// overdue ends a request whose deadline has passed. What the journal cannot
// read or record just now is tried again: nobody else would end it.
func (h *Hub) overdue(id parley.ID, to string, p journal.Position) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := h.c.Journal.Read(ctx, p)
	if err == nil {
		_, err = h.timeout(ctx, &accepted{message: r.Message, position: p, scope: r.Scope, claims: nil}, context.DeadlineExceeded)
	}
	if err == nil || errors.Is(err, journal.ErrClosed) {
		return
	}
	if !parley.AsError(err).Retryable {
		h.c.Logger.Error("cannot end a request whose deadline passed", "message", id, "to", to, "error", err)
		return
	}
	h.c.Logger.Warn("cannot end a request whose deadline passed; trying again", "message", id, "to", to, "error", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.timers[id]; t != nil { // it is not settled, and the hub does not stop
		t.Reset(endAgain)
	}
}

// timeout records the Failure of a request that nobody answered, unless its
// delivery is settled meanwhile; then it gives nil.
func (h *Hub) timeout(ctx context.Context, a *accepted, cause error) (*parley.Message, error) {
	to := a.message.To
	v, ok := h.c.Journal.Delivery(a.message.ID, to)
	if !ok {
		return nil, nil
	}
	reply := h.failure(a.message, to, parley.AsError(cause))
	entry := journal.Entry{Scope: a.scope, Message: reply,
		Steps: []journal.Step{{Message: a.message.ID, To: to, State: parley.Answered, Attempt: v.Attempt, Reply: reply.ID, Error: reply.Error}}}
	if entry.Open = h.replyTo(a.message, reply, v.Sync); entry.Open != nil {
		refer(reply, a.position)
	}
	entry.Steps[0].Losses = union(v.Losses, h.lost(a.message, reply, entry.Open))
	if _, err := h.c.Journal.Append(ctx, entry); errors.Is(err, journal.ErrConflict) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if v.State == parley.Delivered {
		h.takeBack(ctx, a, to, reply.Error)
	}
	return reply, nil
}

// giveUp is timeout for a caller who goes, or is gone.
func (h *Hub) giveUp(ctx context.Context, a *accepted, cause error) *parley.Message {
	reply, err := h.timeout(ctx, a, cause)
	if err != nil {
		h.c.Logger.Error("cannot record that a request was not answered", "message", a.message.ID, "error", err)
	}
	return reply
}

// takeBack tells who works on a request that nobody waits for it any more: its
// time is up, or its caller has gone. Who cannot be told is let work.
func (h *Hub) takeBack(ctx context.Context, a *accepted, to string, why *parley.Error) {
	if !h.reachable(to, parley.Cancel) {
		return
	}
	m := h.about(a.message, a.message.From, &parley.Message{Kind: parley.Cancel, Parts: []parley.Part{parley.Text(why.Text)}})
	m.To = to
	refer(m, a.position)
	if _, err := h.c.Journal.Append(ctx, journal.Entry{Scope: a.scope, Message: m, Open: []journal.Opening{{To: to}}}); err != nil {
		h.c.Logger.Warn("cannot take back a request that nobody waits for", "message", a.message.ID, "to", to, "error", err)
	}
}

// abandon ends a request whose caller has gone.
func (h *Hub) abandon(a *accepted) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	h.mu.Lock()
	stop := h.running[a.message.ID]
	h.mu.Unlock()
	if stop != nil {
		stop() // the attempt ends as cancelled, and is recorded so
		return
	}
	h.giveUp(ctx, a, context.Canceled)
}

// response and failure compose terminal replies.
func (h *Hub) response(m *parley.Message, from string, parts []parley.Part) *parley.Message {
	return h.about(m, from, &parley.Message{Kind: parley.Response, Parts: parts})
}

func (h *Hub) failure(m *parley.Message, from string, err *parley.Error) *parley.Message {
	return h.about(m, from, &parley.Message{Kind: parley.Failure, Error: err})
}

// foreignRequest is where, in Trace.Foreign, a reply says at which position of
// the journal its request is recorded: the way back to the sender begins there.
const foreignRequest = "parley.request"

// refer notes in r where its request is recorded.
func refer(r *parley.Message, p journal.Position) {
	f := make(map[string]string, len(r.Trace.Foreign)+1)
	for k, v := range r.Trace.Foreign {
		f[k] = v
	}
	f[foreignRequest] = p.String()
	r.Trace.Foreign = f
}

// requestOf finds the request that a message is about.
func (h *Hub) requestOf(ctx context.Context, m *parley.Message) (*parley.Message, error) {
	p, err := journal.ParsePosition(m.Trace.Foreign[foreignRequest])
	if err != nil {
		return nil, err
	}
	request, _, err := h.request(ctx, m.InReplyTo, p)
	return request, err
}

// withoutRequest is what comes of an attempt for which the request could not be
// read: it may be gone, or the journal cannot be read just now.
func withoutRequest(err error) delivery.Result {
	if e := parley.AsError(err); e.Retryable {
		return delivery.Result{Err: parley.Fail(e.Code, err, "the request that this is about cannot be read now"), Wait: time.Second}
	}
	return delivery.Result{Err: parley.Refuse(parley.Conflict, "the request that this is about is not in the journal any more").Because(err)}
}

// about makes r a message of from about the request m.
func (h *Hub) about(m *parley.Message, from string, r *parley.Message) *parley.Message {
	r.From, r.To, r.Conversation, r.InReplyTo, r.Hops = from, m.From, m.Conversation, m.ID, []string{h.c.ID}
	if r.Trace.Parent == "" {
		r.Trace = m.Trace
	}
	if r.Origin.Protocol == "" {
		r.Origin = parley.Origin{Protocol: "go", Peer: from, Verdict: parley.Verdict{Assurance: parley.Session}}
	}
	if err := h.mint(r, false); err != nil {
		// Only a broken source of randomness brings this: the ID of the
		// request and its answer's kind still make one that is used once.
		sum := sha256.Sum256(append(m.ID[:], byte(r.Kind)))
		r.ID = parley.HashID(sum[:])
	}
	return r
}

// Stats of the moment.
type Stats struct {
	Delivery delivery.Stats
	Waiting  int // callers that wait for an answer
	Agents   int
	Refused  uint64
}

// Stats tells how much is going on.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	waiting := len(h.waiters)
	h.mu.Unlock() // the dispatcher asks this hub things while it holds its own lock
	return Stats{h.deliver.Stats(), waiting, h.c.Directory.Len(), h.refusals.total()}
}
