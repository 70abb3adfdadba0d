package delivery

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/stack"
	"github.com/parley-hub/parley/journal"
)

// Log is what delivery needs of a journal; [*journal.Journal] is one.
type Log interface {
	Append(ctx context.Context, e journal.Entry) (journal.Position, error)
	Read(ctx context.Context, p journal.Position) (*journal.Record, error)
	Deliveries(f journal.Filter) []journal.Delivery
	Delivery(message parley.ID, to string) (journal.Delivery, bool)
	Owned(partition int) bool
	Owner(partition int) *journal.Lease
	LivesElsewhere(node string, at time.Time) bool
	Node() string
}

// A Carrier brings a message to its recipient. The hub is one.
type Carrier interface {
	// Carry makes one attempt. It returns when the recipient has the message,
	// or has answered it, or the attempt failed; it must heed ctx.
	Carry(ctx context.Context, a Attempt) Result
	// GivenUp composes what the sender of a request is told when no attempt
	// will answer it, and to whom that is delivered; nil for messages whose
	// sender is told nothing.
	GivenUp(m *parley.Message, at journal.Position, to string, err *parley.Error) *Reply
	// Repeatable says whether the recipient recognises a message that it has
	// had before, or what became of an attempt to bring it can be found out by
	// another.
	Repeatable(message parley.ID, to string) bool
	// Paused says whether deliveries to the recipient are held back.
	Paused(to string) bool
	// AtOnce is how many lanes of the recipient may be at work at once; 0 for
	// [Config.PerRecipient].
	AtOnce(to string) int
}

// An Attempt is one try to bring a message to a recipient.
type Attempt struct {
	Message  *parley.Message
	Position journal.Position
	Scope    string
	To       string
	Number   int  // from 1
	Sync     bool // the sender waits on an open connection

	Request *parley.Message // what Message answers, where it is at hand; else nil
}

// A Reply is the terminal reply of a request, ready to be recorded.
type Reply struct {
	Message *parley.Message
	Open    []journal.Opening // to whom it is delivered; none when the sender waits for it here
	Losses  []parley.Loss     // of the reply, for the delivery of its request; where it has no delivery itself
}

// A Result is what came of an attempt.
type Result struct {
	Reply   *Reply        // the request was answered, with a Response or a Failure
	Err     *parley.Error // the attempt failed; nil: the recipient has the message
	Wait    time.Duration // with Err: the recipient asked to come back after this; no try is used up
	Unknown bool          // with Err: the recipient may have had the message all the same
	Losses  []parley.Loss

	then func() // what goes on in the same goroutine when the lane is released
}

// Retry says how failures are repeated. The zero value means the defaults.
type Retry struct {
	First   time.Duration // pause after the first failure; 1 s
	Longest time.Duration // 5 min
	Tries   int           // 12
	For     time.Duration // since the message was recorded; 24 h
}

// Config of a Dispatcher.
type Config struct {
	Log     Log
	Carrier Carrier

	Retry        Retry
	AtLeastOnce  bool          // repeat attempts of unknown outcome to recipients that do not recognise repeats
	PerRecipient int           // lanes of one recipient at work at once, where the Carrier names no number; 64
	Active       int           // attempts under way at once, of all; 8,192
	Attempt      time.Duration // how long an attempt may take when the message has no deadline; 60 s
	HandOver     time.Duration // how long attempts in flight may keep a partition from its next owner; 5 s
	Relaxed      bool          // answer a waiting caller before its reply is recorded
	HeldBytes    int64         // content of waiting messages kept in memory rather than read again; 64 MiB

	Now    func() time.Time
	Jitter func() float64 // in [0,1)
	Logger *slog.Logger
}

// Dispatcher delivers. It is safe for concurrent use.
type Dispatcher struct {
	c    Config
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	lanes  map[laneKey]*lane
	peers  map[string]*peer
	full   []*lane // lanes that wait for one of Config.Active
	active int
	held   int64
	closed bool
	mine   map[delivered]struct{} // what this process is at work on, from before it is recorded until its outcome is
	parts  map[int]*part          // with something in mine, or not dispatched here
	in     map[delivered]int      // the partitions of mine
	others map[delivered]*lane    // what other hubs are at work on
	ahead  map[delivered]struct{} // what is being recorded with its first attempt, to be made when its turn comes
}

// delivered is one message to one recipient.
type delivered struct {
	id parley.ID
	to string
}

type laneKey struct {
	to           string
	conversation parley.ID
}

// lane is one (recipient, conversation). It exists while it has work.
type lane struct {
	key   laneKey
	peer  *peer
	busy  bool // claimed, at work, or queued for a slot
	items []*item
	timer *time.Timer
	ends  time.Time // none of items ends before; zero: none ends
}

// peer is a recipient with lanes.
type peer struct {
	lanes    int
	active   int
	limit    int // of active
	failures int // in a row
	ready    []*lane
}

// item is one delivery that is not settled.
type item struct {
	position  journal.Position
	id        parley.ID
	scope     string
	attempts  int // recorded so far
	tries     int // of them, those that count
	sync      bool
	recorded  time.Time
	notBefore time.Time
	ends      time.Time       // when the message expires, or the deadline of a request passes; zero: never
	message   *parley.Message // nil: read it from the journal
	size      int64
	again     bool           // it was to be taken up while it was here: look at it once more at its end
	begun     bool           // its next attempt is recorded already
	outcome   *journal.Entry // what it ended with, while that could not be recorded
	turn      bool           // its attempt is being made, or it is being settled
	elsewhere bool           // another hub made the attempt that is recorded, and may be at it still
	owed      bool           // that the last attempt failed could not be recorded
	unsure    bool           // the journal could not say whether it recorded the next attempt,
	owner     *journal.Lease // which was fenced with this

	request *parley.Message // that message answers, where it is at hand
}

// New makes a Dispatcher that does nothing before Resume.
func New(c Config) *Dispatcher {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Retry.First, time.Second)
	def(&c.Retry.Longest, 5*time.Minute)
	def(&c.Retry.For, 24*time.Hour)
	def(&c.Attempt, time.Minute)
	def(&c.HandOver, 5*time.Second)
	if c.Retry.Tries == 0 {
		c.Retry.Tries = 12
	}
	if c.PerRecipient == 0 {
		c.PerRecipient = 64
	}
	if c.Active == 0 {
		c.Active = 8192
	}
	if c.HeldBytes == 0 {
		c.HeldBytes = 64 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Jitter == nil {
		c.Jitter = rand.Float64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Dispatcher{c: c, ctx: ctx, stop: stop, lanes: map[laneKey]*lane{}, peers: map[string]*peer{},
		mine: map[delivered]struct{}{}, ahead: map[delivered]struct{}{}, parts: map[int]*part{}, in: map[delivered]int{}, others: map[delivered]*lane{}}
}

// Close stops: no attempt is begun any more, those under way are given until
// ctx ends and then cancelled. What is not settled is taken up by the next
// Resume.
func (d *Dispatcher) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	for _, l := range d.lanes {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	d.mu.Unlock()
	done := make(chan struct{})
	go func() { d.work.Wait(); close(done) }()
	defer d.stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		d.stop()
		<-done
		return context.Cause(ctx)
	}
}

// A Claim is the right to record a message with its first attempt. It must be
// ended by Release, Run or Go.
type Claim struct {
	d  *Dispatcher
	l  *lane // idle before, and held since; nil: the attempt is made when the message's turn comes
	of delivered
}

// Claim takes the lane of (recipient, conversation) for the message id if
// nothing waits in it and the recipient can take one more. If the lane is at
// work, it lets the message be recorded with its first attempt all the same
// where that is soon to be made and may be repeated; not for one who waits for
// the outcome. Else it gives nil: then the message is recorded as waiting, and
// its turn comes through Recorded.
func (d *Dispatcher) Claim(partition int, id parley.ID, to string, conversation parley.ID, waits bool) *Claim {
	if d.c.Carrier.Paused(to) {
		return nil
	}
	key, of := laneKey{to, conversation}, delivered{id, to}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[to]
	switch {
	case d.closed || d.given(partition) || d.active >= d.c.Active || p != nil && p.failures >= suspect:
		return nil
	case d.lanes[key] != nil:
		if waits || !d.lanes[key].flows() {
			return nil
		}
		d.mu.Unlock()
		repeatable := d.c.Carrier.Repeatable(parley.ID{}, to)
		d.mu.Lock()
		if l := d.lanes[key]; !repeatable || d.closed || d.given(partition) || l != nil && !l.flows() {
			return nil
		}
		d.take(of, partition)
		d.ahead[of] = struct{}{}
		return &Claim{d, nil, of}
	case p != nil && p.active >= p.limit:
		return nil
	}
	l := d.lane(key)
	l.busy = true
	l.peer.active++
	d.active++
	d.work.Add(1) // until Release or Run has ended: Close waits for it
	d.take(of, partition)
	return &Claim{d, l, of}
}

// suspect is how many failures in a row make a recipient be tried by one lane
// at a time.
const suspect = 5

// maxAhead is how many deliveries may be in a lane for another to be recorded
// with its attempt ahead of its turn. If the hub is stopped by force before that
// is made, its outcome is unknown: so only recipients that recognise repeats
// get a message so, by the next attempt.
const maxAhead = 16

// flows reports whether a lane is at work, and nothing in it has failed; d.mu is
// held.
func (l *lane) flows() bool {
	return l.busy && l.peer.failures == 0 && len(l.items) < maxAhead && (len(l.items) == 0 || l.items[0].notBefore.IsZero())
}

// Release gives the lane back untouched: the message was not recorded. It
// reports whether nobody has made the attempt, nor will.
func (c *Claim) Release() bool {
	d := c.d
	d.mu.Lock()
	if c.l == nil {
		defer d.mu.Unlock()
		if _, ok := d.ahead[c.of]; !ok {
			return false // it was recorded after all, and has its turn
		}
		delete(d.ahead, c.of)
		d.drop(c.of)
		return true
	}
	defer d.work.Done()
	d.drop(c.of)
	d.mu.Unlock()
	d.release(c.l)
	return true
}

// Run makes the first attempt, which was recorded with the message, in the
// calling goroutine, and returns its result after that is recorded. If the
// attempt failed and will be repeated, later attempts go on in the background.
// Where the lane was not idle, the attempt has its turn by itself.
func (c *Claim) Run(ctx context.Context, a Attempt) Result {
	d, l := c.d, c.l
	if l == nil {
		return Result{}
	}
	defer d.work.Done()
	a.Number = 1
	it := &item{position: a.Position, id: a.Message.ID, scope: a.Scope, attempts: 1, tries: 1,
		sync: a.Sync, recorded: d.c.Now(), message: a.Message, request: a.Request, turn: true}
	d.mu.Lock()
	d.push(l, it, true)
	d.mu.Unlock()
	r := d.attempt(ctx, l, it)
	d.ended(it)
	d.release(l)
	if r.then != nil {
		r.then()
	}
	return r
}

// Go makes the first attempt in the background.
func (c *Claim) Go(a Attempt) {
	if c.l == nil {
		return
	}
	go func() {
		stack.Deepen()
		c.Run(c.d.ctx, a)
	}()
}

// Recorded takes a record from the journal, in order: what it opens as waiting,
// or with an attempt ahead of its turn, gets its turn here.
func (d *Dispatcher) Recorded(r *journal.Record) {
	if len(r.Steps) > 0 {
		d.mu.Lock()
		d.heard(r.Steps)
		d.mu.Unlock()
	}
	owned := d.c.Log.Owned(r.Position.Partition)
	for _, o := range r.Open {
		if owned && o.Attempt > 0 && d.c.Log.LivesElsewhere(r.Node, r.Time) {
			d.enqueue(laneKey{o.To, r.Message.Conversation}, &item{position: r.Position, id: r.Message.ID, scope: r.Scope,
				sync: o.Sync, recorded: r.Time, notBefore: d.c.Now().Add(lookAgain), elsewhere: true})
			continue
		}
		if o.Attempt > 0 && !d.tookAhead(delivered{r.Message.ID, o.To}, r.Position, owned) || !owned {
			continue // who recorded the attempt holds the lane for it
		}
		d.enqueue(laneKey{o.To, r.Message.Conversation}, &item{position: r.Position, id: r.Message.ID, scope: r.Scope,
			sync: o.Sync, recorded: r.Time, notBefore: o.NotBefore, message: r.Message, attempts: o.Attempt, tries: o.Attempt, begun: o.Attempt > 0})
	}
	if !owned {
		return
	}
	for _, s := range r.Steps {
		// A step back to waiting that no attempt of this process is the cause
		// of is an operator's retry of a dead letter.
		if s.State == parley.Waiting {
			d.work.Add(1)
			go func() { // the journal forbids to ask it from here
				defer d.work.Done()
				d.revive(s.Message, s.To)
			}()
		}
	}
}

// tookAhead ends the claim of what is recorded ahead of its turn; false if it is
// not. Where the partition is not owned any more, the attempt is handed back.
func (d *Dispatcher) tookAhead(of delivered, at journal.Position, owned bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.ahead[of]; !ok {
		return false
	}
	delete(d.ahead, of)
	if !owned || d.given(at.Partition) {
		d.handBack(of, &item{id: of.id, position: at, attempts: 1})
		return false
	}
	return true
}

func itemOf(v journal.Delivery) *item {
	return &item{position: v.Position, id: v.Message, attempts: v.Attempt, tries: v.Tries(), sync: v.Sync,
		recorded: v.Message.Time(), notBefore: v.Next, ends: endOf(v.Kind, v.Expires, v.Deadline)}
}

// endOf is when a message is over that was not delivered.
func endOf(k parley.Kind, expires, deadline time.Time) time.Time {
	if k == parley.Request && !deadline.IsZero() && (expires.IsZero() || deadline.Before(expires)) {
		return deadline
	}
	return expires
}

// Resume takes up what the journal holds unsettled, after a start or when this
// node becomes the owner of a partition.
func (d *Dispatcher) Resume(ctx context.Context, partition int) error {
	open := []parley.DeliveryState{parley.Waiting, parley.Delivering}
	mine := func(p int) bool { return p == partition }
	d.mu.Lock()
	if p := d.parts[partition]; p != nil {
		p.given = false
		d.forgetPart(partition)
	}
	d.mu.Unlock()
	for _, v := range d.c.Log.Deliveries(journal.Filter{States: open, Partition: mine}) {
		it := itemOf(v)
		switch {
		case d.works(v.Message, v.To):
			continue // it came since the start, and is at work already
		case v.Sync && v.State == parley.Delivering && v.Node == d.c.Log.Node():
			continue // its caller is here and is told, or the journal has abandoned it
		case d.atWorkElsewhere(v):
			it.elsewhere, it.notBefore = true, d.c.Now().Add(lookAgain)
		case v.Sync && v.State == parley.Delivering:
			if err := d.abandon(ctx, it, v.To); err != nil && !errors.Is(err, journal.ErrConflict) {
				return err
			}
			continue
		case v.State == parley.Delivering && !d.c.AtLeastOnce && !d.c.Carrier.Repeatable(v.Message, v.To):
			err := d.giveUp(ctx, it, v.To, parley.Dead, stopped(v.To))
			if err != nil && !errors.Is(err, journal.ErrConflict) {
				return err
			}
			continue
		}
		d.enqueue(laneKey{v.To, v.Conversation}, it)
	}
	return nil
}

// works reports whether this process is at work on a delivery.
func (d *Dispatcher) works(id parley.ID, to string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.mine[delivered{id, to}]
	return ok
}

// Kick looks again at a recipient that was paused.
func (d *Dispatcher) Kick(to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, l := range d.lanes {
		if key.to == to {
			d.kick(l)
		}
	}
}

// lane finds or makes a lane; d.mu is held.
func (d *Dispatcher) lane(key laneKey) *lane {
	l := d.lanes[key]
	if l == nil {
		p := d.peers[key.to]
		if p == nil {
			p = &peer{}
			d.peers[key.to] = p
		}
		if p.lanes == 0 {
			if p.limit = d.c.Carrier.AtOnce(key.to); p.limit == 0 {
				p.limit = d.c.PerRecipient
			}
		}
		p.lanes++
		l = &lane{key: key, peer: p}
		d.lanes[key] = l
	}
	return l
}

func (d *Dispatcher) enqueue(key laneKey, it *item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.given(it.position.Partition) {
		return
	}
	l := d.lane(key)
	for _, v := range l.items {
		if v.id == it.id {
			v.again = true // it is here already, perhaps at its end
			return
		}
	}
	d.push(l, it, false)
	d.kick(l)
}

// push adds an item at a lane's end, or at its head; d.mu is held.
func (d *Dispatcher) push(l *lane, it *item, first bool) {
	if m := it.message; m != nil {
		it.ends = endOf(m.Kind, m.Expires, m.Deadline)
		for _, p := range m.Parts {
			it.size += int64(len(p.Data))
		}
		it.size += int64(len(m.Origin.Raw)) + 512
		if !first && d.held+it.size > d.c.HeldBytes {
			it.message, it.size = nil, 0
		}
		d.held += it.size
	}
	of := delivered{it.id, l.key.to}
	d.take(of, it.position.Partition)
	if it.elsewhere {
		d.others[of] = l
	}
	l.bound(it.ends)
	if first {
		l.items = append([]*item{it}, l.items...)
	} else {
		l.items = append(l.items, it)
	}
}

// bound notes when something in the lane ends; d.mu is held.
func (l *lane) bound(end time.Time) {
	if !end.IsZero() && (l.ends.IsZero() || end.Before(l.ends)) {
		l.ends = end
	}
}

// over finds what ended before its turn came, nil if nothing did; d.mu is held.
func (l *lane) over(now time.Time) *item {
	if l.ends.IsZero() || now.Before(l.ends) {
		return nil
	}
	l.ends = time.Time{}
	for _, it := range l.items {
		l.bound(it.ends)
		if !it.ends.IsZero() && !now.Before(it.ends) {
			return it
		}
	}
	return nil
}

// kick starts work on a lane if it can: while the recipient is to be left alone,
// only on what is over; d.mu is held.
func (d *Dispatcher) kick(l *lane) {
	if d.closed || l.busy || len(l.items) == 0 {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	now := d.c.Now()
	next := l.items[0].notBefore
	later := next.After(now)
	paused := !later && d.c.Carrier.Paused(l.key.to)
	if (later || paused) && l.over(now) == nil {
		if paused || !l.ends.IsZero() && l.ends.Before(next) {
			next = l.ends
		}
		if !next.IsZero() { // else Kick comes when the recipient is resumed
			l.timer = time.AfterFunc(next.Sub(now), func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.kick(l)
			})
		}
		return
	}
	limit := l.peer.limit
	if l.peer.failures >= suspect {
		limit = 1
	}
	l.busy = true
	switch {
	case l.peer.active >= limit:
		l.peer.ready = append(l.peer.ready, l)
	case d.active >= d.c.Active:
		d.full = append(d.full, l)
	default:
		d.start(l)
	}
}

// start runs a lane's head in the background; d.mu is held.
func (d *Dispatcher) start(l *lane) {
	l.peer.active++
	d.active++
	d.work.Add(1)
	go func() {
		defer d.work.Done()
		stack.Deepen()
		then := d.turn(l)
		d.release(l)
		if then != nil {
			then()
		}
	}()
}

// release ends a lane's turn and lets the next begin.
func (d *Dispatcher) release(l *lane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.busy = false
	l.peer.active--
	d.active--
	d.shed(l)
	d.leave(l)
	if d.closed {
		return
	}
	// The recipient's other lanes come first, in the order in which they asked.
	if len(l.peer.ready) > 0 && (l.peer.failures < suspect || l.peer.active == 0) {
		next := l.peer.ready[0]
		l.peer.ready = l.peer.ready[1:]
		next.busy = false
		d.kick(next)
		d.leave(next)
	}
	if len(d.full) > 0 && d.active < d.c.Active {
		next := d.full[0]
		d.full = d.full[1:]
		next.busy = false
		d.kick(next)
		d.leave(next)
	}
	d.kick(l)
}

// leave ends a lane without work; d.mu is held.
func (d *Dispatcher) leave(l *lane) {
	if len(l.items) > 0 || l.busy || d.lanes[l.key] != l {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	delete(d.lanes, l.key)
	if l.peer.lanes--; l.peer.lanes == 0 && l.peer.failures == 0 {
		delete(d.peers, l.key.to)
	}
}

// turn makes the next attempt of a lane's head, or gives up what is over
// wherever it stands, and gives what goes on when the lane is released.
func (d *Dispatcher) turn(l *lane) (then func()) {
	d.mu.Lock()
	if len(l.items) == 0 { // it was handed over
		d.mu.Unlock()
		return nil
	}
	it := l.items[0]
	if !l.ends.IsZero() {
		if over := l.over(d.c.Now()); over != nil {
			it = over
		}
	}
	it.turn = true
	d.mu.Unlock()
	defer d.ended(it)
	if it.elsewhere && it.outcome == nil && !d.comesBack(l, it) {
		return nil
	}
	if it.outcome != nil {
		_, err := d.c.Log.Append(d.ctx, *it.outcome)
		if errors.Is(err, journal.ErrConflict) {
			d.adopt(it.outcome)
		}
		d.finish(l, it, err)
		return nil
	}
	if it.message == nil {
		r, err := d.c.Log.Read(d.ctx, it.position)
		if err != nil {
			if d.ctx.Err() == nil {
				d.c.Logger.Error("cannot read a message to deliver; trying again", "message", it.id, "to", l.key.to, "error", err)
				d.later(it, d.c.Retry.First)
			}
			return nil
		}
		it.message, it.scope = r.Message, r.Scope
	}
	if !d.c.Log.Owned(it.position.Partition) {
		d.notOwned(l, it)
		return nil
	}
	if e := it.message.Expires; !e.IsZero() && !d.c.Now().Before(e) {
		d.finish(l, it, d.giveUp(d.ctx, it, l.key.to, parley.Expired, parley.Refuse(parley.Stale, "the message expired at %s before it could be delivered", e.UTC().Format(time.RFC3339))))
		return nil
	}
	if dl := it.message.Deadline; it.message.Kind == parley.Request && !dl.IsZero() && !d.c.Now().Before(dl) {
		d.finish(l, it, d.giveUp(d.ctx, it, l.key.to, parley.Expired, parley.Refuse(parley.TimedOut, "no answer before the deadline")))
		return nil
	}
	if it.begun {
		it.begun = false
		if v, ok := d.c.Log.Delivery(it.id, l.key.to); ok && v.State == parley.Delivering && v.Attempt == it.attempts {
			return d.attempt(d.ctx, l, it).then
		}
	}
	step := journal.Step{Message: it.id, To: l.key.to, State: parley.Delivering, Attempt: it.attempts + 1}
	owner := d.c.Log.Owner(it.position.Partition)
	if _, err := d.c.Log.Append(d.ctx, journal.Entry{Steps: []journal.Step{step}, Fence: owner}); err != nil && !d.begun(it, step, owner, err) {
		if errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrFenced) {
			d.finish(l, it, nil) // settled elsewhere: answered, dropped, or taken over
			return nil
		}
		if errors.Is(err, journal.ErrUnknown) {
			it.unsure, it.owner = true, owner
		}
		d.later(it, d.c.Retry.First)
		if d.ctx.Err() == nil {
			d.c.Logger.Warn("cannot record an attempt; trying again", "message", it.id, "to", l.key.to, "error", err)
		}
		return nil
	}
	it.attempts++
	it.tries++
	it.owed, it.unsure, it.owner = false, false, nil
	return d.attempt(d.ctx, l, it).then
}

// begun reports that an attempt which cannot be recorded was recorded before,
// when the journal could not say so: it is still to be made. Whoever held the
// partition without a break since then is the only one to record attempts.
func (d *Dispatcher) begun(it *item, step journal.Step, owner *journal.Lease, err error) bool {
	if !it.unsure || it.owner != owner || !errors.Is(err, journal.ErrConflict) {
		return false
	}
	v, ok := d.c.Log.Delivery(step.Message, step.To)
	return ok && v.State == parley.Delivering && v.Attempt == step.Attempt
}

func (d *Dispatcher) later(it *item, pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	it.notBefore = d.c.Now().Add(pause)
	if !it.ends.IsZero() && it.ends.Before(it.notBefore) {
		it.ends = it.notBefore
	}
}

// attempt makes an attempt that is recorded already, and records what came of it.
func (d *Dispatcher) attempt(ctx context.Context, l *lane, it *item) Result {
	limit := d.c.Attempt
	if dl := it.message.Deadline; it.message.Kind == parley.Request && !dl.IsZero() {
		limit = dl.Sub(d.c.Now())
	}
	actx, cancel := ctx, context.CancelFunc(func() {})
	// A caller whose own time ends about then brings its end along.
	if dl, ok := ctx.Deadline(); !ok || limit < time.Until(dl)-time.Second {
		actx, cancel = context.WithTimeout(ctx, limit)
	}
	r := d.c.Carrier.Carry(actx, Attempt{Message: it.message, Position: it.position, Scope: it.scope, To: l.key.to, Number: it.attempts, Sync: it.sync, Request: it.request})
	cancel()
	// What came of it is recorded even if the caller has gone meanwhile.
	ctx = context.WithoutCancel(ctx)

	d.mu.Lock()
	if r.Err == nil {
		l.peer.failures = 0
	} else if r.Wait == 0 {
		l.peer.failures++
	}
	d.mu.Unlock()

	switch {
	case r.Err == nil && r.Reply != nil && it.sync && d.c.Relaxed:
		d.work.Add(1)
		go func() {
			defer d.work.Done()
			if err := d.settle(ctx, it, l.key.to, parley.Answered, r.Reply.Message.Error, r.Reply, r.Losses...); err != nil {
				d.c.Logger.Error("a reply was sent and could not be recorded", "message", it.id, "to", l.key.to, "error", err)
			}
		}()
		d.finish(l, it, nil)
	case r.Err == nil && r.Reply != nil:
		claims := d.claimReply(it, r.Reply)
		at, err := d.settleAt(ctx, it, l.key.to, parley.Answered, r.Reply.Message.Error, r.Reply, r.Losses...)
		reply := r.Reply
		r = d.answered(l, it, r, err)
		if err != nil {
			d.unclaim(claims, it.outcome)
		} else if len(claims) > 0 {
			request := it.message
			r.then = func() {
				d.carryReply(claims, reply, Attempt{Message: reply.Message, Position: at, Scope: it.scope, Request: request})
			}
		}
	case r.Err == nil:
		err := d.settleLate(ctx, l, it, r.Losses)
		if errors.Is(err, journal.ErrConflict) {
			err = nil // the answer was recorded before, which says so too
		}
		r = d.answered(l, it, r, err)
	case d.ctx.Err() != nil && !it.sync:
		d.interrupted(ctx, l, it, r)
	case it.sync:
		// The caller waits and is told at once; to try again is up to it, and
		// would be another message to the recipient.
		if r.Unknown {
			code := parley.OutcomeUnknown
			if r.Err.Code == parley.TimedOut { // says so too, and more
				code = parley.TimedOut
			}
			r.Err = parley.Refuse(code, "%s; %q may have had the message all the same", r.Err.Text, l.key.to).Because(r.Err)
		}
		if r.Reply = d.c.Carrier.GivenUp(it.message, it.position, l.key.to, r.Err); r.Reply != nil {
			r = d.answered(l, it, r, d.settle(ctx, it, l.key.to, parley.Answered, r.Err, r.Reply))
		} else {
			r = d.answered(l, it, r, d.settle(ctx, it, l.key.to, parley.Dead, r.Err, nil))
		}
	default:
		d.failed(ctx, l, it, r)
	}
	return r
}

// answered finishes an item. A reply that could not be recorded is not given
// to anybody; where it never can be, the sender is told so in its place.
func (d *Dispatcher) answered(l *lane, it *item, r Result, err error) Result {
	if hopeless(err) {
		r.Err = parley.Refuse(parley.AsError(err).Code, "the answer is not one that the hub can record").Because(err)
		if r.Reply = d.c.Carrier.GivenUp(it.message, it.position, l.key.to, r.Err); r.Reply != nil {
			err = d.settle(context.WithoutCancel(d.ctx), it, l.key.to, parley.Answered, r.Err, r.Reply)
		} else {
			err = d.settle(context.WithoutCancel(d.ctx), it, l.key.to, parley.Dead, r.Err, nil)
		}
	}
	d.finish(l, it, err)
	if err != nil {
		r.Reply = nil
		if errors.Is(err, journal.ErrConflict) {
			r.Err = parley.Refuse(parley.Conflict, "the request was ended before this reply").Because(err)
		} else {
			r.Err = parley.Fail(parley.Unavailable, err, "the hub could not record the reply")
		}
	}
	return r
}

func (d *Dispatcher) failed(ctx context.Context, l *lane, it *item, r Result) {
	if r.Wait > 0 {
		it.tries--
	}
	err := r.Err
	switch {
	case r.Unknown && !d.c.AtLeastOnce && !d.c.Carrier.Repeatable(it.id, l.key.to):
		err = parley.Refuse(parley.OutcomeUnknown, "%q may have had the message and does not recognise repeats", l.key.to).Because(r.Err)
	case !err.Retryable && r.Wait == 0:
	case it.tries >= d.c.Retry.Tries, d.c.Now().Sub(it.recorded) >= d.c.Retry.For:
	default:
		pause := max(r.Wait, err.After)
		if pause == 0 {
			pause = d.pause(it.tries)
		}
		next := d.c.Now().Add(pause)
		step := journal.Step{Message: it.id, To: l.key.to, State: parley.Waiting, Attempt: it.attempts, Next: next, Postponed: r.Wait > 0, Error: err, Losses: r.Losses}
		behind := d.behind(l, it)
		steps := []journal.Step{step}
		for _, v := range behind {
			steps = append(steps, journal.Step{Message: v.id, To: l.key.to, State: parley.Waiting, Attempt: v.attempts, Postponed: true})
		}
		_, aerr := d.c.Log.Append(ctx, journal.Entry{Steps: steps})
		if aerr != nil && len(behind) > 0 {
			behind = nil
			_, aerr = d.c.Log.Append(ctx, journal.Entry{Steps: steps[:1]})
		}
		if aerr != nil {
			d.c.Logger.Warn("cannot record a failed attempt", "message", it.id, "to", l.key.to, "error", aerr)
		}
		d.mu.Lock()
		it.notBefore, it.owed = next, aerr != nil && !errors.Is(aerr, journal.ErrConflict)
		for _, v := range behind {
			v.begun = false
			v.tries--
		}
		d.mu.Unlock()
		return
	}
	d.finish(l, it, d.giveUp(ctx, it, l.key.to, parley.Dead, err))
}

// behind are those whose attempt is recorded ahead of its turn, in the lane of
// one that failed: they wait with it.
func (d *Dispatcher) behind(l *lane, failed *item) (out []*item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range l.items {
		if v != failed && v.begun {
			out = append(out, v)
		}
	}
	return out
}

// pause grows by doubling, half of it at random, so that recipients that come
// back are not met by all at once.
func (d *Dispatcher) pause(tries int) time.Duration {
	p := d.c.Retry.First << min(max(tries-1, 0), 20)
	if p <= 0 || p > d.c.Retry.Longest {
		p = d.c.Retry.Longest
	}
	return p/2 + time.Duration(d.c.Jitter()*float64(p/2))
}

// giveUp settles without success, together with what the sender is told.
func (d *Dispatcher) giveUp(ctx context.Context, it *item, to string, state parley.DeliveryState, err *parley.Error) error {
	m := it.message
	if m == nil {
		r, rerr := d.c.Log.Read(ctx, it.position)
		if rerr != nil {
			return rerr
		}
		m = r.Message
	}
	return d.settle(ctx, it, to, state, err, d.c.Carrier.GivenUp(m, it.position, to, err))
}

func (d *Dispatcher) settle(ctx context.Context, it *item, to string, state parley.DeliveryState, why *parley.Error, reply *Reply, losses ...parley.Loss) error {
	_, err := d.settleAt(ctx, it, to, state, why, reply, losses...)
	return err
}

// settleLate settles as delivered. Where nothing in the lane waits for that, it
// is recorded with what comes meanwhile.
func (d *Dispatcher) settleLate(ctx context.Context, l *lane, it *item, losses []parley.Loss) error {
	d.mu.Lock()
	alone := len(l.items) == 1 && !d.closed
	d.mu.Unlock()
	it.outcome = &journal.Entry{Late: alone, Steps: []journal.Step{
		{Message: it.id, To: l.key.to, State: parley.Delivered, Attempt: it.attempts, Losses: losses}}}
	_, err := d.c.Log.Append(ctx, *it.outcome)
	return err
}

func (d *Dispatcher) settleAt(ctx context.Context, it *item, to string, state parley.DeliveryState, why *parley.Error, reply *Reply, losses ...parley.Loss) (at journal.Position, err error) {
	var e journal.Entry
	step := journal.Step{Message: it.id, To: to, State: state, Attempt: it.attempts, Error: why, Losses: losses}
	if reply != nil {
		e.Message, e.Open, step.Reply, step.Losses = reply.Message, reply.Open, reply.Message.ID, append(losses, reply.Losses...)
	}
	e.Steps = []journal.Step{step}
	it.outcome = &e
	return d.c.Log.Append(ctx, e)
}

// hopeless reports that what could not be recorded never can be.
func hopeless(err error) bool {
	return errors.Is(err, journal.ErrTooLarge) || errors.Is(err, journal.ErrInvalid) || errors.Is(err, journal.ErrScope)
}

// finish takes a settled item out of its lane. If settling could not be
// recorded it stays at the lane's head: the attempt is not made again, its
// outcome is recorded as soon as the journal takes it. A caller that waited
// was told that there is no answer, and that is what is recorded.
func (d *Dispatcher) finish(l *lane, it *item, err error) {
	if err != nil && !errors.Is(err, journal.ErrConflict) && d.ctx.Err() == nil {
		d.c.Logger.Error("cannot record the outcome of a delivery", "message", it.id, "to", l.key.to, "error", err)
		if !hopeless(err) {
			if it.sync && it.outcome != nil {
				it.outcome = &journal.Entry{Steps: []journal.Step{{Message: it.id, To: l.key.to, State: parley.Abandoned, Attempt: it.attempts,
					Error: parley.Fail(parley.Unavailable, nil, "the hub could not record the reply")}}}
			}
			d.later(it, d.c.Retry.First)
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, v := range l.items {
		if v == it {
			l.items = append(l.items[:i], l.items[i+1:]...)
			d.held -= it.size
			d.drop(delivered{it.id, l.key.to})
			if it.again && !d.closed {
				d.work.Add(1)
				go func() {
					defer d.work.Done()
					d.revive(it.id, l.key.to)
				}()
			}
			break
		}
	}
}

// revive takes a delivery up that waits in the journal: an operator retried a
// dead letter.
func (d *Dispatcher) revive(id parley.ID, to string) {
	if v, ok := d.c.Log.Delivery(id, to); ok && v.State == parley.Waiting {
		d.enqueue(laneKey{v.To, v.Conversation}, itemOf(v))
	}
}

// Stats of the moment.
type Stats struct {
	Lanes  int   // (recipient, conversation) pairs with something to deliver
	Active int   // attempts under way
	Held   int64 // bytes of waiting messages in memory
}

// Stats tells how much is going on.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{len(d.lanes), d.active, d.held}
}
