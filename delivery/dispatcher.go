package delivery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// Log is the part of a journal that delivery uses; [*journal.Journal] is one.
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

// A Transport makes attempts: it sends a message to its recipient. The hub is one.
type Transport interface {
	// Attempt makes one attempt. It returns when the recipient has the message,
	// or has answered it, or the attempt failed; it must heed ctx.
	Attempt(ctx context.Context, a Attempt) Result
	// FailureReply composes the failure that the sender of a request gets when no
	// attempt will answer it, and names its recipients; nil for messages whose
	// sender gets none.
	FailureReply(m *parley.Message, at journal.Position, to string, err *parley.Error) *Reply
	// Repeatable says whether an attempt of unknown outcome may be made again:
	// the recipient deduplicates, or another attempt finds out the outcome.
	Repeatable(message parley.ID, to string) bool
	// Paused says whether deliveries to the recipient are held back.
	Paused(to string) bool
	// Absent says whether no attempt can be made now, because the recipient connects to
	// the hub and is not connected. Then deliveries are held back, too.
	Absent(to string) bool
	// Retries is the retry policy of the recipient; a zero field is that of
	// [Config.Retry].
	Retries(to string) parley.Retries
	// KeepsHealth says whether the health of the recipient is kept while nothing is
	// to be delivered to it. It must be false for all but a bounded number.
	KeepsHealth(to string) bool
	// LaneLimit is how many lanes of the recipient may be active at once; 0 for
	// [Config.PerRecipient].
	LaneLimit(to string) int
	// Nested says whether a handler of this process waits for the answer of another one
	// to a request: such a request needs no room of its own, see [Dispatcher.Claim].
	Nested(request parley.ID, to string) bool
	// Waits says whether the recipient's handler, at work on a message, itself waits for
	// an answer.
	Waits(message parley.ID, to string) bool
}

// An Attempt is one try to send a message to a recipient.
type Attempt struct {
	Message  *parley.Message
	Position journal.Position
	Scope    string
	To       string
	Number   int  // from 1
	Sync     bool // the sender waits on an open connection

	Request *parley.Message // the request that Message answers, if in memory; else nil
}

// A Reply is the terminal reply of a request, ready to be recorded.
type Reply struct {
	Message *parley.Message
	Open    []journal.Opening // its recipients; none when the sender waits for it here
	Losses  []parley.Loss     // of a reply without a delivery of its own: for the delivery of its request
}

// A Result is the outcome of an attempt.
type Result struct {
	Reply   *Reply        // the request was answered, with a Response or a Failure
	Err     *parley.Error // the attempt failed; nil: the recipient has the message
	Wait    time.Duration // with Err: the recipient asked to come back after this; no try is used up
	Unknown bool          // with Err: the recipient may have received the message
	Losses  []parley.Loss
	Via     string // by which of several ways it went to the recipient; see [Dispatcher.HealthBy]; "": not known

	then func() // called in the same goroutine once the lane is released
}

// Retry says how failed attempts are repeated. The zero value means the defaults.
type Retry struct {
	First   time.Duration // pause after the first failure; 1 s
	Longest time.Duration // 5 min
	Tries   int           // 12
	For     time.Duration // since the message was recorded; 24 h
}

// Config of a Dispatcher.
type Config struct {
	Log       Log
	Transport Transport

	Retry        Retry
	AtLeastOnce  bool          // repeat attempts of unknown outcome to recipients that do not deduplicate
	PerRecipient int           // lanes of one recipient active at once, where the Transport names no number; 64
	Active       int           // attempts in flight at once, of all recipients; 8,192
	Attempt      time.Duration // how long an attempt may take when the message has no deadline; 60 s
	HandOver     time.Duration // how long attempts in flight may keep a partition from its next owner; 5 s
	Relaxed      bool          // answer a waiting caller before its reply is recorded
	HeldBytes    int64         // content of waiting messages kept in memory rather than read again; 64 MiB

	// HealthChanged is called, and must not block, when a recipient begins to fail or
	// is reached again, and now and then while it fails. See [Dispatcher.Health].
	HealthChanged func(to string)

	Now    func() time.Time
	Jitter func() float64 // in [0,1)
	Logger *slog.Logger
}

// Dispatcher delivers. It is safe for concurrent use.
type Dispatcher struct {
	c       Config
	ctx     context.Context
	stop    context.CancelCauseFunc
	running sync.WaitGroup

	mu         sync.Mutex
	lanes      map[laneKey]*lane
	recipients map[string]*recipient
	waiting    []*lane // lanes that wait for one of Config.Active
	active     int
	heldBytes  int64
	closed     bool
	// this process's deliveries, until their outcome is recorded, with their partitions
	tracked    map[deliveryKey]int
	partitions map[int]*partitionState // those of tracked, and those released
	elsewhere  map[deliveryKey]*lane   // items whose attempt another hub makes
	// Deliveries that are being recorded with a first attempt that is made when its turn
	// comes. true: the journal could not say whether it recorded them, see Claim.Release.
	recordedAhead map[deliveryKey]bool
	toRevive      []deliveryKey // see reviveLater
}

// New makes a Dispatcher that does nothing before Resume.
func New(c Config) *Dispatcher {
	c.Retry.First = cmp.Or(c.Retry.First, time.Second)
	c.Retry.Longest = cmp.Or(c.Retry.Longest, 5*time.Minute)
	c.Retry.Tries = cmp.Or(c.Retry.Tries, 12)
	c.Retry.For = cmp.Or(c.Retry.For, 24*time.Hour)
	c.Attempt = cmp.Or(c.Attempt, time.Minute)
	c.HandOver = cmp.Or(c.HandOver, 5*time.Second)
	c.PerRecipient = cmp.Or(c.PerRecipient, 64)
	c.Active = cmp.Or(c.Active, 8192)
	c.HeldBytes = cmp.Or(c.HeldBytes, 64<<20)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Jitter == nil {
		c.Jitter = rand.Float64
	}
	d := &Dispatcher{c: c, lanes: map[laneKey]*lane{}, recipients: map[string]*recipient{},
		tracked: map[deliveryKey]int{}, partitions: map[int]*partitionState{},
		elsewhere: map[deliveryKey]*lane{}, recordedAhead: map[deliveryKey]bool{}}
	d.ctx, d.stop = context.WithCancelCause(context.Background())
	return d
}

// ErrStopped is the cause of the end of an attempt's context when this hub stops.
var ErrStopped = errors.New("delivery: the hub stops")

// Close starts no more attempts. Attempts in flight have until ctx ends, then they
// are cancelled. The next Resume queues the deliveries that are not settled.
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
	go func() { d.running.Wait(); close(done) }()
	defer d.stop(ErrStopped)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		d.stop(ErrStopped)
		<-done
		return context.Cause(ctx)
	}
}

// Recorded takes a record from the journal, in order: a delivery that it opens as
// waiting, or with an attempt ahead of its turn, is queued.
func (d *Dispatcher) Recorded(r *journal.Record) {
	if len(r.Steps) > 0 {
		d.mu.Lock()
		d.recheckElsewhere(r.Steps)
		d.mu.Unlock()
	}
	owned := d.c.Log.Owned(r.Position.Partition)
	for _, o := range r.Open {
		it := &item{position: r.Position, id: r.Message.ID, to: o.To, scope: r.Scope, sync: o.Sync, recorded: r.Time}
		if o.Attempt == 0 {
			d.forgetAhead(it.key())
		}
		switch {
		case owned && o.Attempt > 0 && d.c.Log.LivesElsewhere(r.Node, r.Time):
			d.leaveElsewhere(it, r.Message.Kind, r.Message.Deadline, r.Time)
		case o.Attempt > 0 && !d.confirmAhead(it.key(), r.Position, o.Sync), !owned:
			continue // the claim of the attempt holds the lane, or another hub owns the partition
		default:
			it.notBefore, it.message, it.attempts, it.tries = o.NotBefore, r.Message, o.Attempt, o.Attempt
			it.recordedAhead = o.Attempt > 0
		}
		d.enqueue(r.Message.Conversation, it)
	}
	if !owned {
		return
	}
	for _, s := range r.Steps {
		// Where no attempt of this process caused a step back to waiting, an
		// operator retried a dead letter.
		if s.State == parley.Waiting {
			d.reviveLater(deliveryKey{s.Message, s.To}) // the journal must not be called from here
		}
	}
}

// Resume queues the unsettled deliveries of the journal, after a start or when this
// hub becomes the owner of a partition.
func (d *Dispatcher) Resume(ctx context.Context, partition int) error {
	open := []parley.DeliveryState{parley.Waiting, parley.Delivering}
	mine := func(p int) bool { return p == partition }
	d.mu.Lock()
	if p := d.partitions[partition]; p != nil {
		p.released = false
		d.prunePartition(partition)
	}
	d.mu.Unlock()
	list := d.c.Log.Deliveries(journal.Filter{States: open, Partition: mine})
	// In the order of their records: ids order messages by milliseconds only.
	slices.SortFunc(list, func(a, b journal.Delivery) int {
		return cmp.Compare(a.Position.Sequence, b.Position.Sequence)
	})
	for _, v := range list {
		it := newItem(v)
		var err error
		switch inFlight := v.State == parley.Delivering; {
		case d.tracks(it.key()):
			continue // recorded since the start, and tracked already
		case v.Sync && inFlight && v.Node == d.c.Log.Node():
			continue // its caller is here and gets the outcome, or the journal has abandoned it
		case d.attemptedElsewhere(v):
			d.leaveElsewhere(it, v.Kind, v.Deadline, v.Changed)
			d.enqueue(v.Conversation, it)
		case v.Sync && inFlight:
			err = d.abandon(ctx, it)
		case inFlight && !d.repeatable(it):
			err = d.giveUp(ctx, it, parley.Dead, unknownAfterStop(v.To))
		default:
			d.enqueue(v.Conversation, it)
			d.notePostponed(v)
		}
		if err != nil && !errors.Is(err, journal.ErrConflict) {
			return err
		}
	}
	return nil
}

// reviveLater calls revive in the background, in the order of the calls.
func (d *Dispatcher) reviveLater(key deliveryKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.toRevive = append(d.toRevive, key)
	if len(d.toRevive) > 1 {
		return // the goroutine of the first goes on with this one
	}
	d.running.Go(func() {
		for more := true; more; {
			d.mu.Lock()
			next := d.toRevive[0]
			d.mu.Unlock()
			d.revive(next.id, next.to)
			d.mu.Lock()
			d.toRevive = d.toRevive[1:]
			more = len(d.toRevive) > 0
			d.mu.Unlock()
		}
	})
}

// revive queues a delivery that waits in the journal.
func (d *Dispatcher) revive(id parley.ID, to string) {
	if v, ok := d.c.Log.Delivery(id, to); ok && v.State == parley.Waiting {
		d.enqueue(v.Conversation, newItem(v))
	}
}

// Kick checks again whether a recipient is paused, and whether its messages may
// overtake each other.
func (d *Dispatcher) Kick(to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, l := range d.lanes {
		if key.to == to {
			d.kick(l)
		}
	}
}

// Stats are the numbers of the moment.
type Stats struct {
	Lanes  int   // (recipient, conversation) pairs with something to deliver
	Active int   // attempts in flight
	Held   int64 // bytes of waiting messages in memory
}

// Stats gives the numbers of the moment.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{len(d.lanes), d.active, d.heldBytes}
}
