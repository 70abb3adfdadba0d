package journal

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"golang.org/x/sync/errgroup"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
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
	cfg      Config
	store    store.Store
	meta     store.Meta
	sealer   *sealer
	runID    uint64 // drawn at each Open; identifies an append together with opNumber
	opNumber atomic.Uint64

	ctx        context.Context // ends when Close has flushed
	cancel     context.CancelFunc
	closing    atomic.Bool
	closeOnce  sync.Once
	closeErr   error
	writers    sync.WaitGroup
	background taskGroup

	gate     sync.RWMutex // every write holds it for reading; Backup stops writes with it
	backupMu sync.Mutex   // one backup at a time
	eraseMu  sync.Mutex   // one erasure at a time
	free     atomic.Uint64
	full     atomic.Bool // the watermark is reached

	parts   []*partition
	state   *stateFeed
	owners  owners
	leaving atomic.Bool

	watchMu  sync.RWMutex
	watchers []*watcher
}

// taskGroup runs goroutines that Close waits for. After Wait none starts.
type taskGroup struct {
	mu      sync.Mutex
	stopped bool
	wg      sync.WaitGroup
}

func (c *taskGroup) Go(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.wg.Go(fn)
	}
}

func (c *taskGroup) Wait() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.wg.Wait()
}

// watcher is a function passed to Watch.
type watcher struct {
	mu sync.RWMutex // held for reading while fn runs
	fn func(*Record)
}

func (c *Config) complete() error {
	switch {
	case c.Store == nil:
		return fail(ErrInvalid, "it has no Store")
	case len(c.Key) > 0 && len(c.Key) < 16:
		return fail(ErrKey, "it has %d bytes; 16 or more are needed", len(c.Key))
	case c.Partitions < 0 || c.Partitions > maxPartitions:
		return fail(ErrInvalid, "%d partitions: 1 to %d are possible", c.Partitions, maxPartitions)
	case c.Window < 0 || c.Window > 24*time.Hour:
		return fail(ErrInvalid, "a window of %s: up to 24 hours are possible", c.Window)
	case c.MaxPayload < 0 || c.MaxPayload > 24<<20:
		return fail(ErrInvalid, "MaxPayload %d: up to 24 MiB are possible", c.MaxPayload)
	}
	setDefault(&c.Window, 15*time.Minute)
	setDefault(&c.MaxKeys, 32<<20)
	setDefault(&c.MaxLongKeys, 16384)
	setDefault(&c.MaxOpen, 1<<20)
	setDefault(&c.maxQueued, 8192)
	most := c.Store.MaxRecord() - sealOverhead
	if c.MaxPayload > most {
		return fail(ErrTooLarge, "records of up to %d bytes are wanted (MaxPayload), the store takes %d", c.MaxPayload,
			most)
	}
	setDefault(&c.MaxPayload, min(8<<20-64<<10, most))
	setDefault(&c.OwnerTTL, 10*time.Second)
	setDefault(&c.Timeout, 15*time.Second)
	setDefault(&c.checkpointEvery, 1<<14)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	if c.Node == "" {
		var b [4]byte
		rand.Read(b[:]) // never fails
		host, err := os.Hostname()
		if err != nil {
			host = "hub"
		}
		c.Node = fmt.Sprintf("%s-%x", host, b)
	}
	return nil
}

// setDefault sets a limit that is not set.
func setDefault[T int | time.Duration](limit *T, value T) {
	if *limit <= 0 {
		*limit = value
	}
}

// Open opens the journal described by cfg, and makes it if there is none. It
// returns when the view is rebuilt. Deliveries of synchronous requests that this
// hub left unsettled are Abandoned by then.
//
// ErrKey, ErrFormat and ErrCorrupt are returned before anything is changed.
func Open(ctx context.Context, cfg Config) (*Journal, error) {
	if cfg.Store == nil {
		return nil, fail(ErrInvalid, "it has no Store")
	}
	j, err := prepare(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, cfg.Store.Close())
	}
	if err := j.start(ctx); err != nil {
		j.stop()
		return nil, errors.Join(err, j.store.Close())
	}
	return j, nil
}

// prepare reads the journal's settings from the store, or makes the journal.
func prepare(ctx context.Context, cfg Config) (*Journal, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	j := &Journal{cfg: cfg, store: cfg.Store}
	var b [8]byte
	rand.Read(b[:]) // never fails
	j.runID = binary.LittleEndian.Uint64(b[:])
	var err error
	if j.meta, err = j.store.Meta(ctx); errors.Is(err, store.ErrNotFound) {
		j.meta = newMeta(&cfg)
		err = j.store.Init(ctx, j.meta)
		if errors.Is(err, store.ErrExists) { // another hub made it first
			j.meta, err = j.store.Meta(ctx)
		}
	}
	if err != nil {
		return nil, storeError(ctx, err)
	}
	m := &j.meta
	switch {
	case m.Format > format:
		return nil, fail(ErrFormat, "the journal has format %d, this program knows %d; "+useLater, m.Format, format)
	case m.Restoring:
		return nil, fail(ErrCorrupt,
			"a restore of a backup is running here, or was cut off; remove the files or streams and restore again")
	case cfg.Partitions != 0 && cfg.Partitions != m.Partitions:
		return nil, fail(ErrInvalid,
			"the journal was made with %d partitions, not %d; the number is fixed when a journal is made",
			m.Partitions, cfg.Partitions)
	}
	if j.sealer, err = newSealer(m, cfg.Key); err != nil {
		return nil, err
	}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j, nil
}

// format is the one this release writes. Format 1 belonged to the engine before
// SQLite.
const format = 2

func newMeta(c *Config) store.Meta {
	m := store.Meta{Format: format, Created: c.Now().UTC(), Prefix: defaultPrefix, Partitions: c.Partitions}
	if m.Partitions == 0 {
		m.Partitions = 8
		if c.Store.Exclusive() {
			m.Partitions = 1
		}
	}
	m.Salt, m.Check = newSalt(c.Key, "check")
	return m
}

// start rebuilds the view and starts the background work.
func (j *Journal) start(ctx context.Context) error {
	j.state = newStateFeed(j)
	j.owners.parts = make([]ownership, j.meta.Partitions)
	for p := range j.meta.Partitions {
		j.parts = append(j.parts, newPartition(j, p))
	}
	if err := j.state.start(ctx); err != nil {
		return err
	}
	if err := j.rebuild(ctx); err != nil {
		return err
	}
	for _, p := range j.parts {
		j.writers.Go(p.writer.run)
	}
	if !j.store.Exclusive() {
		for _, p := range j.parts {
			j.background.Go(p.follow)
		}
		j.background.Go(j.ownLoop)
	}
	j.background.Go(j.checkpoints)
	return j.abandonSync(ctx)
}

// retry runs do, which follows the store, again after each error until the journal
// is closed.
func (j *Journal) retry(what string, do func(context.Context) error) {
	for j.ctx.Err() == nil {
		err := do(j.ctx)
		if err == nil || j.ctx.Err() != nil {
			return
		}
		j.cfg.Log.Warn("following "+what+" failed; trying again", "err", err)
		_ = sleep.For(j.ctx, time.Second/4) // the loop sees its end
	}
}

// abandonSync settles the synchronous deliveries that this hub left open when it
// stopped: their callers are gone.
func (j *Journal) abandonSync(ctx context.Context) error {
	for _, d := range j.Deliveries(Filter{States: []parley.DeliveryState{parley.Waiting, parley.Delivering}}) {
		if !d.Sync || d.Node != j.cfg.Node && !j.store.Exclusive() {
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

// stop ends all goroutines without writing anything.
func (j *Journal) stop() {
	j.closing.Store(true)
	j.cancel()
	for _, p := range j.parts {
		p.writer.close()
	}
	j.writers.Wait()
	j.background.Wait()
}

// Close takes no more entries, waits for those in flight, writes a checkpoint,
// hands over the partitions that this hub owns and closes the store.
func (j *Journal) Close() error {
	j.closeOnce.Do(func() { j.closeErr = j.close() })
	return j.closeErr
}

func (j *Journal) close() error {
	for _, p := range j.parts {
		p.writer.close()
	}
	timer := time.AfterFunc(j.cfg.Timeout, j.cancel) // until then writers finish their queues
	j.writers.Wait()
	timer.Stop()
	healthy := j.store.Healthy() == nil
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if healthy {
		for _, p := range j.parts {
			j.checkpoint(ctx, p, 1)
		}
		if err := j.Leave(ctx); err != nil {
			j.cfg.Log.Warn("partitions are not handed over and stay without an owner until their leases end",
				"err", err)
		}
	}
	j.stop()
	if healthy && !j.store.Exclusive() {
		if _, err := j.store.Delete(ctx, ownerBucket, j.cfg.Node, nil); err != nil {
			j.cfg.Log.Warn("others notice later that this node has left", "err", err)
		}
	}
	return j.store.Close()
}

// space refuses entries when the disk is nearly full: refusal is for new messages;
// reserve, at half the watermark, also for entries that settle earlier ones.
func (j *Journal) space() (refusal, reserve error) {
	var free, total uint64
	var err error
	if j.cfg.FreeSpace != nil {
		free, err = j.cfg.FreeSpace()
	} else if free, total, err = j.store.Space(); err == nil && total == 0 || errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		err = failBy(ErrNoSpace, err, "the free space of the journal is not known")
		return err, err
	}
	least := j.cfg.MinFree
	if least == 0 {
		least = defaultMinFree
		if total > 0 {
			least = min(least, total/10)
		}
	}
	j.free.Store(free)
	if free < least {
		refusal = fail(ErrNoSpace, "%d MiB free, less than the %d MiB that are kept free (MinFree); free some space, "+
			"then entries are taken again without a restart", free>>20, least>>20)
	}
	if free < least/2 {
		reserve = refusal
	}
	return refusal, reserve
}

// admission reports whether a group may be written now, and logs changes.
func (j *Journal) admission() (refusal, reserve error) {
	refusal, reserve = j.space()
	if (refusal != nil) != j.full.Swap(refusal != nil) {
		if refusal != nil {
			j.cfg.Log.Error("the journal takes no new messages", "err", refusal)
		} else {
			j.cfg.Log.Info("the journal takes new messages again")
		}
	}
	return refusal, reserve
}

// Accept records e. If its Key was used before, nothing is recorded and the Prior
// is returned. Errors: as Append.
func (j *Journal) Accept(ctx context.Context, e Entry) (Position, *Prior, error) {
	if e.Key.ID == "" {
		return Position{}, nil, fail(ErrInvalid, "Accept needs a Key")
	}
	return j.record(ctx, &e)
}

// Append records e, which has no Key. Errors: ErrInvalid, ErrTooLarge, ErrConflict
// (a step or the chain; see ConflictError), ErrFenced, ErrScope, ErrBusy,
// ErrNoSpace, ErrUnknown, ErrClosed, or the context's own.
func (j *Journal) Append(ctx context.Context, e Entry) (Position, error) {
	if e.Key.ID != "" {
		return Position{}, fail(ErrInvalid, "an entry with a Key is for Accept")
	}
	at, _, err := j.record(ctx, &e)
	return at, err
}

func (j *Journal) record(ctx context.Context, e *Entry) (Position, *Prior, error) {
	p, err := j.route(e)
	if err != nil {
		return Position{}, nil, err
	}
	r, err := j.newRecord(e, p)
	if err != nil {
		return Position{}, nil, err
	}
	if r.Keyed {
		if prior, err := p.seen(ctx, r.key); prior != nil || err != nil {
			return Position{}, prior, err
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

// route validates the parts of an entry that need no state, and finds its partition.
func (j *Journal) route(e *Entry) (*partition, error) {
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
		at := j.partitionOf(&e.Steps[i], p)
		switch {
		case at == nil && p == nil && i == len(e.Steps)-1:
			return nil, fail(ErrConflict, "%s: there is no such delivery, or it is settled", e.Steps[i])
		case at == nil:
		case p == nil:
			p = at
		case at != p:
			return nil, fail(ErrScope, "the delivery of %s is in partition %d, the scope in %d", e.Steps[i].Message,
				at.index, p.index)
		}
	}
	if e.Fence != nil && e.Fence.part != p {
		return nil, fail(ErrScope, "the lease is in partition %d, the entry in %d", e.Fence.part.index, p.index)
	}
	return p, nil
}

// partitionOf finds the partition that holds a step's delivery. It looks in the
// likely partition first.
func (j *Journal) partitionOf(s *Step, likely *partition) *partition {
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

// newRecord makes the record of an entry.
func (j *Journal) newRecord(e *Entry, p *partition) (*logRecord, error) {
	now := j.cfg.Now()
	r := &logRecord{
		run: j.runID, number: j.opNumber.Add(1),
		Record: &Record{
			Position: Position{Partition: p.index}, Time: now.Round(0).UTC(), Node: j.cfg.Node, Scope: e.Scope,
			Message: e.Message, Open: e.Open, Steps: e.Steps, Losses: e.Losses, Refused: e.Refused, Chain: e.Chain,
		},
	}
	if e.Key.ID != "" {
		r.Keyed, r.key = true, keyHash(e.Scope, e.Key.ID)
		if !e.Key.Until.IsZero() {
			r.Until = e.Key.Until.Round(0).UTC()
		}
		if r.Until.After(now.Add(j.cfg.Window)) {
			r.sender = nameHash("sender", e.Key.Sender)
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

// Seen looks up a replay key. It reads the store only if the key is probably known.
func (j *Journal) Seen(scope, keyID string) (*Prior, bool) {
	prior, err := j.parts[j.Partition(scope)].seen(j.ctx, keyHash(scope, keyID))
	if err != nil {
		j.cfg.Log.Error("a replay key cannot be compared with its record", "err", err)
	}
	return prior, prior != nil
}

// Partition is the partition of a scope.
func (j *Journal) Partition(scope string) int {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(scope) {
		h = (h ^ uint64(scope[i])) * 1099511628211
	}
	return int(h % uint64(j.meta.Partitions))
}

// Partitions is the number of partitions.
func (j *Journal) Partitions() int { return j.meta.Partitions }

// Deliveries lists unsettled deliveries and dead letters, oldest first.
func (j *Journal) Deliveries(f Filter) []Delivery {
	var out []Delivery
	for _, p := range j.parts {
		if f.Partition == nil || f.Partition(p.index) {
			out = p.list(&f, out)
		}
	}
	slices.SortFunc(out, func(a, b Delivery) int {
		return cmp.Or(slices.Compare(a.Message[:], b.Message[:]), cmp.Compare(a.To, b.To))
	})
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
	}
	return out
}

// Delivery finds an unsettled delivery or a dead letter.
func (j *Journal) Delivery(message parley.ID, to string) (Delivery, bool) {
	for _, p := range j.parts {
		if d, ok := p.find(target{message, unique.Make(to)}); ok {
			return d, true
		}
	}
	return Delivery{}, false
}

// Watch calls fn for every record that becomes durable from now on, of all hubs: in
// sequence order within a partition, and for several partitions at the same time.
// fn must not block and must not append; hand over to a goroutine of your own. When
// stop returns, no call of fn is running or will follow.
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

// notify passes a durable record to all watchers.
func (j *Journal) notify(r *Record) {
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

// Promise says in a sentence what "accepted" means for this journal.
func (j *Journal) Promise() string { return j.store.Promise() }

// Healthy is nil while the journal takes entries; else the reason why it does not.
func (j *Journal) Healthy() error {
	if j.closing.Load() {
		return fail(ErrClosed, "")
	}
	if refusal, _ := j.admission(); refusal != nil {
		return refusal
	}
	return storeError(j.ctx, j.store.Healthy())
}

// CatchUp returns when this hub's view has every record that the store had at the
// time of the call: a message may refer to a record that another hub has just made
// and this hub has not read yet. It returns at once if no other process writes to
// the store.
func (j *Journal) CatchUp(ctx context.Context) error {
	if j.store.Exclusive() {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	var asking errgroup.Group
	for _, p := range j.parts {
		asking.Go(func() error {
			span, err := j.store.Span(within, p.index)
			if err != nil {
				return err
			}
			return p.waitFor(within, span.Last)
		})
	}
	return storeError(ctx, asking.Wait())
}
