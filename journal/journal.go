package journal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
)

const (
	defaultPrefix  = "PARLEY"
	defaultMinFree = 256 << 20
	maxPartitions  = 256
)

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

func validPrefix(s string) bool { return prefixForm.MatchString(s) }

// A Journal is an open journal. Its methods are safe for concurrent use.
type Journal struct {
	cfg        Config
	prefix     string
	partitions int
	dir        *directory // nil: external
	run        uint64     // drawn at each Open
	number     atomic.Uint64

	ctx        context.Context // ends when Close has flushed
	cancel     context.CancelFunc
	closing    atomic.Bool
	closeOnce  sync.Once
	closeErr   error
	writers    sync.WaitGroup
	background crew

	gate      sync.RWMutex // held for reading by every commit; see Backup
	backupMu  sync.Mutex   // one backup at a time
	eraseMu   sync.Mutex   // one erasure at a time
	restoring bool         // nothing is acknowledged before all is synced
	link      atomic.Pointer[link]
	linkMu    sync.Mutex
	changed   chan struct{} // closed when link changes
	failure   atomic.Pointer[error]
	reopened  atomic.Uint64
	free      atomic.Uint64
	full      atomic.Bool // the watermark refuses
	broken    atomic.Bool // the disk does not sync

	parts   []*partition
	state   *stateMachine
	owners  owners
	leaving atomic.Bool
	found   bool // external: the journal was there

	rebuilt bool // set before anything else runs
	orphans []orphan

	watchMu  sync.RWMutex
	watchers []*watcher
}

// crew are goroutines that Close waits for; none starts after it did.
type crew struct {
	mu      sync.Mutex
	stopped bool
	wg      sync.WaitGroup
}

func (c *crew) Go(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.wg.Go(fn)
	}
}

func (c *crew) Wait() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.wg.Wait()
}

// watcher is one function of Watch.
type watcher struct {
	mu sync.RWMutex // held for reading while fn runs
	fn func(*Record)
}

func (c *Config) complete() error {
	switch {
	case c.URL != "" && c.Dir != "":
		return fail(ErrInvalid, "give Dir for the embedded engine or URL for an external one, not both")
	case c.URL != "" && len(c.Key) > 0:
		return fail(ErrInvalid, "Key encrypts the embedded engine's files; an external server has its own encryption at rest")
	case len(c.Key) > 0 && len(c.Key) < 16:
		return fail(ErrKey, "it has %d bytes; 16 or more are needed", len(c.Key))
	case c.Prefix != "" && !validPrefix(c.Prefix):
		return fail(ErrInvalid, "prefix %q: up to 32 letters, digits, - and _", c.Prefix)
	case c.Partitions < 0 || c.Partitions > maxPartitions:
		return fail(ErrInvalid, "%d partitions: 1 to %d are possible", c.Partitions, maxPartitions)
	case c.Window < 0 || c.Window > 24*time.Hour:
		return fail(ErrInvalid, "a window of %s: up to 24 hours are possible", c.Window)
	case c.MaxPayload < 0 || c.MaxPayload > 24<<20:
		return fail(ErrInvalid, "MaxPayload %d: up to 24 MiB are possible", c.MaxPayload)
	case c.MaxBatchBytes < 0 || c.MaxBatchBytes > 16<<20:
		return fail(ErrInvalid, "MaxBatchBytes %d: up to 16 MiB are possible", c.MaxBatchBytes)
	case c.MaxBatch < 0 || c.MaxBatch > 1000:
		return fail(ErrInvalid, "MaxBatch %d: up to 1000 are possible", c.MaxBatch)
	}
	switch c.Durability {
	case "":
		c.Durability = Disk
		if c.URL != "" {
			c.Durability = Replicated
		}
	case Disk, Memory:
	case Replicated:
		if c.URL == "" {
			return fail(ErrInvalid, "durability %q needs the URL of a cluster", c.Durability)
		}
	default:
		return fail(ErrInvalid, "durability %q: %q, %q and %q are known", c.Durability, Disk, Replicated, Memory)
	}
	set := func(v *int, value int) {
		if *v <= 0 {
			*v = value
		}
	}
	if c.Window == 0 {
		c.Window = 15 * time.Minute
	}
	set(&c.MaxKeys, 4<<20)
	set(&c.MaxLongKeys, 16384)
	set(&c.MaxOpen, 1<<20)
	set(&c.MaxBatch, 512)
	set(&c.MaxBatchBytes, 8<<20)
	set(&c.MaxQueued, 8192)
	set(&c.MaxQueuedBytes, 64<<20)
	if c.URL == "" {
		set(&c.MaxPayload, 8<<20-payloadMargin)
	}
	if c.OwnerTTL <= 0 {
		c.OwnerTTL = 10 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	if c.checkpointEvery == 0 {
		c.checkpointEvery = 1 << 16
	}
	if c.reopenEvery == 0 {
		c.reopenEvery = time.Second
	}
	if c.goneAfter == 0 {
		c.goneAfter = goneAfter
	}
	if c.Node == "" {
		var b [4]byte
		if _, err := io.ReadFull(c.Rand, b[:]); err != nil {
			return err
		}
		host, err := os.Hostname()
		if err != nil {
			host = "hub"
		}
		c.Node = fmt.Sprintf("%s-%x", host, b)
	}
	return nil
}

// Open opens the journal that cfg describes, and makes it where there is none.
// It returns once the state is rebuilt; deliveries of synchronous requests that
// this node had not settled when it ended are Abandoned by then.
//
// The embedded engine refuses with ErrForeign, ErrLocked, ErrKey, ErrFormat
// or ErrCorrupt before it touches anything.
func Open(ctx context.Context, cfg Config) (*Journal, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	j := &Journal{cfg: cfg, changed: make(chan struct{})}
	var b [8]byte
	if _, err := io.ReadFull(cfg.Rand, b[:]); err != nil {
		return nil, err
	}
	j.run = binary.LittleEndian.Uint64(b[:])
	j.ctx, j.cancel = context.WithCancel(context.Background())
	open := j.openEmbedded
	if j.external() {
		open = j.openExternal
	}
	if err := open(ctx); err != nil {
		j.cancel()
		return nil, err
	}
	if err := j.begin(ctx); err != nil {
		j.abandon()
		return nil, err
	}
	return j, nil
}

func (j *Journal) external() bool { return j.cfg.URL != "" }

// Shared reports whether other processes may write to the journal, too: with an
// external engine they may.
func (j *Journal) Shared() bool { return j.external() }

// begin rebuilds the state and starts what runs beside.
func (j *Journal) begin(ctx context.Context) error {
	j.state = newStateMachine(j)
	j.owners.leases, j.owners.told = make([]*Lease, j.partitions), make([]bool, j.partitions)
	for p := range j.partitions {
		part := newPartition(j, p)
		part.writer = newWriter(j, part, j.logStream(p), false)
		if j.cfg.Durability == Disk && !j.external() {
			var err error
			dir := j.dir.stream(partLog + "/" + j.logStream(p))
			if part.writer.syncer, err = newSyncer(dir, j.dir.manifest.Encrypted); err != nil {
				return err
			}
		}
		j.parts = append(j.parts, part)
	}
	if err := j.rebuild(ctx); err != nil {
		return err
	}
	for _, w := range j.allWriters() {
		j.writers.Go(w.run)
	}
	if j.external() {
		j.followAll()
	}
	j.background.Go(j.checkpoints)
	return j.settleAbandoned(ctx)
}

func (j *Journal) allWriters() []*writer {
	out := []*writer{j.state.writer}
	for _, p := range j.parts {
		out = append(out, p.writer)
	}
	return out
}

// settleAbandoned gives up the synchronous deliveries that this node had open
// when it ended: their callers are gone.
func (j *Journal) settleAbandoned(ctx context.Context) error {
	for _, d := range j.Deliveries(Filter{States: []parley.DeliveryState{parley.Waiting, parley.Delivering}}) {
		if !d.Sync || d.Node != j.cfg.Node && j.external() {
			continue
		}
		_, err := j.Append(ctx, Entry{Steps: []Step{{
			Message: d.Message, To: d.To, State: parley.Abandoned,
			Error: parley.Refuse(parley.Cancelled, "the caller was gone when the hub started again"),
		}}})
		if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNoSpace) {
			return fmt.Errorf("settle an abandoned delivery: %w", err)
		}
	}
	return nil
}

// abandon ends without a word to the log.
func (j *Journal) abandon() {
	j.closing.Store(true)
	j.cancel()
	for _, w := range j.allWriters() {
		w.close()
	}
	j.writers.Wait()
	j.background.Wait()
	if l := j.link.Load(); l != nil {
		l.stop()
	}
	j.closeSyncers()
	if j.dir != nil {
		j.dir.release()
	}
}

// closeSyncers lets go of the blocks, after the writers have ended.
func (j *Journal) closeSyncers() {
	for _, p := range j.parts {
		if s := p.writer.syncer; s != nil {
			if err := s.close(); err != nil {
				j.cfg.Log.Warn("a block was not closed in order", "err", err)
			}
		}
	}
}

// Close stops taking entries, waits for those under way, writes a checkpoint
// and shuts the engine down.
func (j *Journal) Close() error {
	j.closeOnce.Do(func() { j.closeErr = j.close() })
	return j.closeErr
}

func (j *Journal) close() error {
	if j.external() {
		return j.closeExternal()
	}
	for _, w := range j.allWriters() {
		w.close()
	}
	j.awaitWriters()
	j.closing.Store(true)
	if l := j.link.Load(); !l.failed() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		j.checkpointAll(ctx, l)
		cancel()
	}
	j.cancel()
	j.background.Wait()
	l := j.link.Load()
	failed := l.failed()
	l.stop()
	j.closeSyncers()
	var err error
	if !failed {
		err = j.dir.closed()
	}
	j.dir.release()
	return err
}

// awaitWriters lets the writers finish their queues. One that waits for a
// failed engine does not get more than a while.
func (j *Journal) awaitWriters() {
	ended := make(chan struct{})
	go func() {
		j.writers.Wait()
		close(ended)
	}()
	limit := j.cfg.Timeout
	if j.link.Load().failed() {
		limit = 0
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		j.closing.Store(true)
		j.cancel()
		<-ended
	}
}

func (j *Journal) closeExternal() error {
	l := j.link.Load()
	if !l.failed() && l.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), j.cfg.Timeout)
		j.checkpointAll(ctx, l)
		j.leave(ctx)
		cancel()
	} else {
		j.leaving.Store(true)
		j.cancel()
	}
	for _, w := range j.allWriters() {
		w.close()
	}
	j.awaitWriters()
	j.closing.Store(true)
	j.cancel()
	j.background.Wait()
	l.stop()
	return nil
}

// Accept records e, or tells where its Key was recorded before; then nothing
// is recorded. Errors: as Append.
func (j *Journal) Accept(ctx context.Context, e Entry) (Position, *Prior, error) {
	if e.Key.ID == "" {
		return Position{}, nil, fail(ErrInvalid, "Accept needs a Key")
	}
	return j.record(ctx, &e)
}

// Append records e, which has no Key. Errors: ErrInvalid, ErrTooLarge,
// ErrConflict (a step or the chain; see ConflictError), ErrFenced, ErrScope,
// ErrBusy, ErrNoSpace, ErrUnknown, ErrClosed, or the context's own.
func (j *Journal) Append(ctx context.Context, e Entry) (Position, error) {
	if e.Key.ID != "" {
		return Position{}, fail(ErrInvalid, "an entry with a Key is for Accept")
	}
	at, _, err := j.record(ctx, &e)
	return at, err
}

func (j *Journal) record(ctx context.Context, e *Entry) (Position, *Prior, error) {
	p, err := j.place(e)
	if err != nil {
		return Position{}, nil, err
	}
	r, err := j.seal(e, p)
	if err != nil {
		return Position{}, nil, err
	}
	if r.Keyed {
		if prior := p.seen(r.key); prior != nil {
			return Position{}, prior, nil
		}
	}
	o, err := p.op(r, e)
	if err != nil {
		return Position{}, nil, err
	}
	if err := p.writer.submit(ctx, o); err != nil {
		return Position{}, nil, err
	}
	if o.prior != nil {
		return Position{}, o.prior, nil
	}
	return Position{Partition: p.index, Sequence: o.seq}, nil, nil
}

// place finds the partition of an entry, and checks what can be checked
// without looking at the state.
func (j *Journal) place(e *Entry) (*partition, error) {
	m := e.Message
	switch {
	case m == nil && len(e.Steps) == 0:
		return nil, fail(ErrInvalid, "it has neither a message nor steps")
	case m == nil && len(e.Open) > 0:
		return nil, fail(ErrInvalid, "it opens deliveries of no message")
	case m != nil && m.ID.IsZero():
		return nil, fail(ErrInvalid, "its message has no ID")
	case e.Refused != nil && (m == nil || len(e.Open) > 0):
		return nil, fail(ErrInvalid, "a refused entry has a message and opens no delivery")
	case len(e.Losses) > 0 && (m == nil || m.Kind != parley.Event):
		return nil, fail(ErrInvalid, "only an event has losses of its own")
	case e.Scope == "" && len(e.Steps) == 0:
		return nil, fail(ErrInvalid, "it has no scope")
	case e.Scope == "" && (e.Key.ID != "" || e.Chain != nil):
		return nil, fail(ErrInvalid, "a key and a chain need a scope")
	}
	for i := range e.Open {
		o := &e.Open[i]
		if o.To == "" || o.Attempt < 0 || o.Attempt > 1 {
			return nil, fail(ErrInvalid, "opening %d: want a recipient, and attempt 0 or 1", i)
		}
		for k := range i {
			if e.Open[k].To == o.To {
				return nil, fail(ErrInvalid, "it opens two deliveries to one recipient")
			}
		}
	}
	for i := range e.Steps {
		s := &e.Steps[i]
		if s.Message.IsZero() || s.To == "" || s.State < parley.Waiting || s.State > parley.Abandoned || s.Attempt < 0 {
			return nil, fail(ErrInvalid, "step %d: want a message, a recipient and a state", i)
		}
		for k := range i {
			if e.Steps[k].Message == s.Message && e.Steps[k].To == s.To {
				return nil, fail(ErrInvalid, "it has two steps of one delivery")
			}
		}
	}
	var p *partition
	if e.Scope != "" {
		p = j.parts[j.Partition(e.Scope)]
	}
	if len(j.parts) == 1 {
		return j.parts[0], nil
	}
	for i := range e.Steps {
		at := j.holder(&e.Steps[i], p)
		switch {
		case at == nil && p == nil && i == len(e.Steps)-1:
			return nil, fail(ErrConflict, "%s: there is no such delivery, or it is settled", e.Steps[i])
		case at == nil:
		case p == nil:
			p = at
		case at != p:
			return nil, fail(ErrScope, "the delivery of %s lies in partition %d, the scope in %d", e.Steps[i].Message, at.index, p.index)
		}
	}
	if e.Fence != nil && e.Fence.part != p {
		return nil, fail(ErrScope, "the lease lies in partition %d, the entry in %d", e.Fence.part.index, p.index)
	}
	return p, nil
}

// holder finds the partition that holds a step's delivery, the likely one
// first.
func (j *Journal) holder(s *Step, likely *partition) *partition {
	t := targetOf(s)
	if likely != nil && likely.has(t) {
		return likely
	}
	for _, p := range j.parts {
		if p != likely && p.has(t) {
			return p
		}
	}
	return nil
}

// seal makes the record of an entry.
func (j *Journal) seal(e *Entry, p *partition) (*sealed, error) {
	now := j.cfg.Now()
	r := &sealed{
		run: j.run, number: j.number.Add(1),
		Record: &Record{
			Position: Position{Partition: p.index}, Time: now.Round(0).UTC(), Node: j.cfg.Node, Scope: e.Scope,
			Message: e.Message, Open: e.Open, Steps: e.Steps, Losses: e.Losses, Refused: e.Refused, Chain: e.Chain,
		},
	}
	if e.Key.ID != "" {
		r.Keyed, r.key = true, keyHash(e.Scope, e.Key.ID)
		if e.Key.Until.After(now.Add(j.cfg.Window)) {
			r.Until, r.sender = e.Key.Until.Round(0).UTC(), nameHash("sender", e.Key.Sender)
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.State == parley.Answered && s.Reply.IsZero() {
			if e.Message == nil {
				return nil, fail(ErrInvalid, "step %d: Answered by no message", i)
			}
			r.Steps = slices.Clone(r.Steps)
			r.Steps[i].Reply = e.Message.ID
		}
	}
	return r, nil
}

// Seen looks a replay key up in memory, without waiting for anything.
func (j *Journal) Seen(scope, keyID string) (*Prior, bool) {
	prior := j.parts[j.Partition(scope)].seen(keyHash(scope, keyID))
	return prior, prior != nil
}

// Partition is where a scope lies.
func (j *Journal) Partition(scope string) int {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(scope) {
		h = (h ^ uint64(scope[i])) * 1099511628211
	}
	return int(h % uint64(j.partitions))
}

// Partitions is their number.
func (j *Journal) Partitions() int { return j.partitions }

// Deliveries lists what is not settled and what is dead, the oldest first.
func (j *Journal) Deliveries(f Filter) []Delivery {
	var out []Delivery
	for _, p := range j.parts {
		if f.Partition == nil || f.Partition(p.index) {
			out = p.list(&f, out)
		}
	}
	slices.SortFunc(out, func(a, b Delivery) int {
		if c := slices.Compare(a.Message[:], b.Message[:]); c != 0 {
			return c
		}
		if a.To < b.To {
			return -1
		}
		return 1
	})
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
	}
	return out
}

// Delivery finds one that is not settled or dead.
func (j *Journal) Delivery(message parley.ID, to string) (Delivery, bool) {
	for _, p := range j.parts {
		if d, ok := p.find(message, to); ok {
			return d, true
		}
	}
	return Delivery{}, false
}

// Watch calls fn for every record that becomes durable from now on, of all
// nodes, in sequence order within a partition and for several partitions at
// once. fn must not block and must not call the journal's appends; hand over
// to a goroutine of your own. No call of fn is under way after stop returns.
func (j *Journal) Watch(fn func(*Record)) (stop func()) {
	w := &watcher{fn: fn}
	j.watchMu.Lock()
	j.watchers = append(slices.Clone(j.watchers), w)
	j.watchMu.Unlock()
	return func() {
		j.watchMu.Lock()
		j.watchers = slices.DeleteFunc(slices.Clone(j.watchers), func(x *watcher) bool { return x == w })
		j.watchMu.Unlock()
		w.mu.Lock()
		w.fn = nil
		w.mu.Unlock()
	}
}

// tell hands a durable record to all watchers.
func (j *Journal) tell(r *Record) {
	j.watchMu.RLock()
	list := j.watchers
	j.watchMu.RUnlock()
	for _, w := range list {
		w.mu.RLock()
		if w.fn != nil {
			w.fn(r)
		}
		w.mu.RUnlock()
	}
}

// repliedElsewhere looks for the request of a reply in the other partitions.
func (j *Journal) repliedElsewhere(not *partition, request parley.ID, reply Position) {
	for _, p := range j.parts {
		if p == not {
			continue
		}
		p.mu.Lock()
		found := p.guard.replied(request, reply)
		p.mu.Unlock()
		if found {
			return
		}
	}
}

// Promise says in words what "accepted" means here.
func (j *Journal) Promise() string {
	switch j.cfg.Durability {
	case Disk:
		if j.external() {
			return "Accepted means that the message is recorded by the NATS server; whether it is on its disk by then depends on the server's sync_interval."
		}
		return "Accepted means that the message is on this machine's disk: it survives the end of the program and a power cut."
	case Replicated:
		if j.cfg.Replicas <= 1 {
			return "Accepted means that one NATS server holds the message; there are no replicas, and whether it is on its disk by then depends on the server's sync_interval."
		}
		if j.cfg.SyncReplicated {
			return fmt.Sprintf("Accepted means that a majority of %d NATS servers hold the message on their disks: it survives the loss of a minority of them, and a power cut of all.", j.cfg.Replicas)
		}
		return fmt.Sprintf("Accepted means that a majority of %d NATS servers hold the message: it survives the loss of a minority of them, but if a majority loses power at the same moment, the last seconds may be lost.", j.cfg.Replicas)
	}
	return "Accepted means that the message is in this program's memory: it is gone when the program ends."
}

// Healthy is nil while the journal takes entries, and says why it does not.
func (j *Journal) Healthy() error {
	l, err := j.live()
	if err != nil {
		return err
	}
	if refusal, _ := j.admission(); refusal != nil {
		return refusal
	}
	if l.srv == nil && !l.nc.IsConnected() {
		return fail(ErrBusy, "no connection to the NATS server; it is tried again")
	}
	return nil
}
