package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/policy"
)

// Retention says how long the content of messages is kept.
type Retention struct {
	Keep          Duration    `toml:"keep" reload:"yes" doc:"how long the content of messages is kept, e.g. \"2160h\"; default: for ever. The records stay, with who wrote to whom and when. At least 1h"`
	Conversations Duration    `toml:"conversations" reload:"yes" doc:"content of a conversation goes as a whole when nothing was said in it for so long; default: never. At least 1h. Needs listen.admin"`
	Agents        []KeepAgent `toml:"agents" reload:"yes" doc:"what is to be otherwise for some agents"`
	Drop          Duration    `toml:"drop" reload:"yes" doc:"records without content, and all before them, are removed from the front of the journal when they are so old, and their disk space is free: nothing then tells that there was something; default: never. At least 1h"`
	Every         Duration    `toml:"every" default:"\"1h\"" doc:"how often it is looked for what is due"`
	Records       int         `toml:"records" default:"100000" reload:"yes" doc:"at most so many records are looked at each time"`
}

// KeepAgent is how long the content of messages from and to some agents is
// kept.
type KeepAgent struct {
	Agent string   `toml:"agent" reload:"yes" doc:"pattern over directory names: * within a segment, ** for all the rest; the first that fits counts"`
	Keep  Duration `toml:"keep" reload:"yes" doc:"how long, in place of retention.keep; \"0s\": for ever. Of two agents that are named here and have a message in common the shorter time counts"`
}

const leastKeep = time.Hour

func (r *Retention) check() error {
	least := func(key string, d time.Duration) error {
		if d != 0 && d < leastKeep {
			return fmt.Errorf("retention.%s = %q: at least %s, for answers and replays are looked for that long", key, d, leastKeep)
		}
		return nil
	}
	if err := errors.Join(least("keep", r.Keep.Duration), least("conversations", r.Conversations.Duration), least("drop", r.Drop.Duration)); err != nil {
		return err
	}
	if r.Every.Duration < 0 || r.Records < 0 {
		return errors.New("retention.every and retention.records must not be negative")
	}
	for i, a := range r.Agents {
		if err := least(fmt.Sprintf("agents[%d].keep", i), a.Keep.Duration); err != nil {
			return err
		}
	}
	return nil
}

func (r *Retention) on() bool {
	return len(r.times()) > 0 || r.Conversations.Duration > 0 || r.Drop.Duration > 0
}

// times are the different times for which something is kept, the shortest first.
func (r *Retention) times() []time.Duration {
	out := []time.Duration{r.Keep.Duration}
	for _, a := range r.Agents {
		out = append(out, a.Keep.Duration)
	}
	out = slices.DeleteFunc(out, func(d time.Duration) bool { return d <= 0 })
	slices.Sort(out)
	return slices.Compact(out)
}

// of is how long a record's content is kept; 0: for ever. What is said of one of
// the agents counts before what is said of all.
func (r *Retention) of(rec *journal.Record) time.Duration {
	const forever = time.Duration(math.MaxInt64)
	least, named := forever, false
	one := func(name string) {
		if name == "" {
			return
		}
		for _, a := range r.Agents {
			if policy.Match(a.Agent, name) {
				named = true
				if d := a.Keep.Duration; d > 0 && d < least {
					least = d
				}
				return
			}
		}
	}
	if rec.Message != nil {
		one(rec.Message.From)
		one(rec.Message.To)
	}
	for i := range rec.Steps {
		if rec.Message == nil {
			one(rec.Steps[i].To)
		}
	}
	for i := range rec.Open {
		one(rec.Open[i].To)
	}
	switch {
	case !named:
		return r.Keep.Duration
	case least == forever:
		return 0
	}
	return least
}

// text says it in words, for the record of the erasure.
func (r *Retention) text() string {
	var out []string
	if r.Keep.Duration > 0 {
		out = append(out, "keep "+r.Keep.String())
	}
	if r.Conversations.Duration > 0 {
		out = append(out, "conversations "+r.Conversations.String())
	}
	for _, a := range r.Agents {
		out = append(out, a.Agent+" "+a.Keep.String())
	}
	s := strings.Join(out, ", ")
	if len(s) > 400 {
		s = strings.ToValidUTF8(s[:400], "") + "…"
	}
	return s
}

// print tells one setting from another: what was looked at under another must
// be looked at again.
func (r *Retention) print() string {
	sum := sha256.Sum256(fmt.Append(nil, r.Keep, r.Conversations, r.Agents))
	return hex.EncodeToString(sum[:6])
}

// eraser erases: what retention says and what operators ask for.
type eraser struct {
	n      *Node
	state  journal.State
	cancel context.CancelFunc
	ctx    context.Context
	work   sync.WaitGroup
	one    sync.Mutex // one erasure at a time
	erased *prometheus.CounterVec
	drops  prometheus.Counter
	held   prometheus.Gauge
	passed prometheus.Gauge
}

func newEraser(n *Node) *eraser {
	e := &eraser{n: n, state: n.journal.State("retention"),
		erased: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_erased_messages_total", Help: "Messages whose content was erased, by why."}, []string{"by"}),
		drops:  prometheus.NewCounter(prometheus.CounterOpts{Name: "parley_dropped_records_total", Help: "Records that were removed from the front of the journal."}),
		held:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "parley_retention_held", Help: "Messages that are due but still needed: not delivered, dead letters, sessions that go on."}),
		passed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "parley_retention_pass_seconds", Help: "When retention last went through without an error; 0: not since the start."})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for _, by := range []string{"retention", "forget"} {
		e.erased.WithLabelValues(by)
	}
	n.metrics.registry.MustRegister(e.erased, e.drops, e.held, e.passed)
	return e
}

// start finishes what was interrupted, and looks from time to time for what is
// due.
func (e *eraser) start() {
	if err := e.follow(e.ctx); err != nil {
		e.n.log.Error("what other hubs erase stays in this hub's index", "error", err)
	}
	e.work.Go(func() {
		if err := e.resume(e.ctx); err != nil && e.ctx.Err() == nil {
			e.n.log.Error("an erasure that was interrupted cannot be finished; it is tried again at the next start", "error", err)
		}
		every := e.n.c.Retention.Every.Duration
		if every == 0 {
			every = time.Hour
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			if err := e.retain(e.ctx); err != nil && e.ctx.Err() == nil {
				e.n.log.Error("retention did not go through; it is tried again", "error", err)
			}
			select {
			case <-tick.C:
			case <-e.ctx.Done():
				return
			}
		}
	})
}

func (e *eraser) close() {
	e.cancel()
	e.work.Wait()
}

// eraseTTL is how long a hub that ended in the middle of an erasure keeps the
// others from theirs.
const eraseTTL = 2 * time.Minute

// alone has this hub be the only one of those on the journal that erases, until
// end is called. ErrExists: another one does.
func (e *eraser) alone(ctx context.Context) (end func(), err error) {
	e.one.Lock()
	lease, err := e.n.journal.Lease(ctx, "erasing", "erasing", eraseTTL)
	if err != nil {
		e.one.Unlock()
		return nil, err
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(eraseTTL / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := lease.Renew(e.ctx); err != nil && e.ctx.Err() == nil {
					e.n.log.Warn("this hub may not be the only one that erases for a while", "error", err)
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		if err := lease.Release(context.WithoutCancel(ctx)); err != nil {
			e.n.log.Warn("other hubs may erase only after a while", "error", err)
		}
		e.one.Unlock()
	}, nil
}

// turn is alone, and waits for another hub that erases: the erasure is recorded,
// and begun it goes on without its caller.
func (e *eraser) turn(ctx context.Context) (end func(), err error) {
	for {
		end, err := e.alone(ctx)
		if !errors.Is(err, journal.ErrExists) {
			return end, err
		}
		pause := time.NewTimer(2 * time.Second)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		}
	}
}

// erasedElsewhere is what other hubs have erased and this hub's index may have:
// erasures by number, and the revision of each.
type erasedElsewhere struct {
	mu      sync.Mutex
	numbers map[uint64]uint64
	wake    chan struct{}
}

// follow takes out of this hub's index what other hubs have erased, also while
// this one was not running.
func (e *eraser) follow(ctx context.Context) error {
	if e.n.index == nil {
		return nil
	}
	const key = "unindexed/"
	var seen uint64
	switch v, err := e.state.Get(ctx, key+e.n.journal.Node()); {
	case err == nil:
		if seen, err = strconv.ParseUint(string(v.Data), 10, 64); err != nil {
			seen = 0
		}
	case !errors.Is(err, journal.ErrNotFound):
		return err
	}
	w := erasedElsewhere{numbers: map[uint64]uint64{}, wake: make(chan struct{}, 1)}
	stop, err := e.n.journal.WatchErasures(ctx, func(x journal.Erasure, revision uint64) {
		if x.Node == e.n.journal.Node() || revision <= seen {
			return
		}
		w.mu.Lock()
		w.numbers[x.Number] = revision
		w.mu.Unlock()
		select {
		case w.wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	e.work.Go(func() {
		defer stop()
		for {
			select {
			case <-w.wake:
			case <-e.ctx.Done():
				return
			}
			w.mu.Lock()
			numbers := w.numbers
			w.numbers = map[uint64]uint64{}
			w.mu.Unlock()
			err := e.unindex(e.ctx, numbers)
			if err == nil && len(numbers) > 0 {
				last := slices.Max(slices.Collect(maps.Values(numbers)))
				_, err = e.state.Put(e.ctx, key+e.n.journal.Node(), strconv.AppendUint(nil, last, 10), time.Time{})
			}
			if err != nil && e.ctx.Err() == nil {
				e.n.log.Error("what another hub has erased may still be in this hub's index; it is tried again at the next start", "error", err)
			}
		}
	})
	return nil
}

// unindex takes the messages of some erasures out of the index.
func (e *eraser) unindex(ctx context.Context, numbers map[uint64]uint64) error {
	e.n.hub.ForgetRecent()
	var ids []parley.ID
	for p := range e.n.journal.Partitions() {
		for r, err := range e.n.journal.Records(ctx, p, journal.From{}) {
			if err != nil {
				return err
			}
			if r.Message == nil || r.Erased == nil {
				continue
			}
			if _, ok := numbers[r.Erased.Number]; ok {
				ids = append(ids, r.Message.ID)
			}
			if len(ids) >= 2048 {
				if err := e.gone(false)(ctx, ids); err != nil {
					return err
				}
				ids = ids[:0]
			}
		}
	}
	return e.gone(true)(ctx, ids)
}

// gone takes erased messages out of the index.
func (e *eraser) gone(thorough bool) func(context.Context, []parley.ID) error {
	return func(ctx context.Context, ids []parley.ID) error {
		if e.n.index == nil {
			return nil
		}
		return e.n.index.Erase(ctx, thorough, ids...)
	}
}

// sessionsEnd is how long a chain of records may still be needed after its last
// one.
const sessionsEnd = time.Hour

// ongoing reports whether a record belongs to a chain to which something was
// added since a time. The chain's owner reads all of it to go on.
func (e *eraser) ongoing(ctx context.Context, r *journal.Record, since time.Time) bool {
	if r.Chain == nil {
		return false
	}
	if !r.Time.Before(since) {
		return true
	}
	head, err := e.n.journal.Head(ctx, r.Scope, r.Chain.Name)
	if err != nil {
		return true
	}
	last, err := e.n.journal.Read(ctx, journal.Position{Partition: r.Position.Partition, Sequence: head})
	if errors.Is(err, journal.ErrNotFound) {
		return false
	}
	return err != nil || !last.Time.Before(since)
}

// forget erases the content of an agent's or a conversation's messages.
func (e *eraser) forget(ctx context.Context, what, name, by, reason string, dry bool) (admin.Forgotten, error) {
	if dry {
		return e.run(ctx, journal.Erasure{What: what, Name: name, By: by, Reason: reason}, true)
	}
	j, err := e.n.journal.NewErasure(ctx, journal.Erasure{What: what, Name: name, By: by, Reason: reason})
	if err != nil {
		return admin.Forgotten{}, err
	}
	// Begun, it goes on without its caller.
	type result struct {
		f   admin.Forgotten
		err error
	}
	done := make(chan result, 1)
	e.work.Go(func() {
		f, err := e.run(e.ctx, j, false)
		done <- result{f, err}
	})
	select {
	case r := <-done:
		return r.f, r.err
	case <-ctx.Done():
		return admin.Forgotten{}, ctx.Err()
	}
}

const (
	maxIdentities = 1024
	maxGone       = 1 << 20
)

// run carries an erasure out, from the beginning: what is done already costs
// only a look.
func (e *eraser) run(ctx context.Context, x journal.Erasure, dry bool) (out admin.Forgotten, err error) {
	if !dry {
		end, err := e.turn(ctx)
		if err != nil {
			return out, err
		}
		defer end()
		switch now, err := e.n.journal.Erasure(ctx, x.Number); {
		case err != nil:
			return out, err
		case !now.Ended.IsZero():
			return out, nil // another hub has finished it meanwhile
		}
	}
	out = admin.Forgotten{Erasure: x.Number, What: x.What, Name: x.Name, DryRun: dry}
	j := e.n.journal
	since := e.n.c.Now().Add(-sessionsEnd)
	f := hub.Forgetting{}
	if x.What == "conversation" {
		if f.Conversation, err = parley.ParseID(x.Name); err != nil {
			return out, err
		}
	} else {
		f.Agent = x.Name
		if a, ok := e.n.directory.Agent(x.Name); ok {
			f.Identities = slices.Clone(a.Identities)
		}
	}
	wanted := func(m *parley.Message, open []journal.Opening) bool {
		if x.What == "conversation" {
			return m.Conversation == f.Conversation
		}
		return m.From == x.Name || m.To == x.Name || slices.ContainsFunc(open, func(o journal.Opening) bool { return o.To == x.Name })
	}
	gone := map[parley.ID]struct{}{}
	f.Message = func(id parley.ID) bool { _, ok := gone[id]; return ok }
	forget := func() error {
		if dry {
			return nil
		}
		n, err := e.n.hub.Forget(ctx, f)
		out.Values += uint64(n)
		clear(gone)
		return err
	}
	for p := range j.Partitions() {
		upTo := uint64(0)
		if p < len(x.UpTo) {
			if upTo = x.UpTo[p]; upTo == 0 {
				continue
			}
		}
		// What protocols keep is found by the messages that were erased, of which
		// so many are known at a time.
		for from := uint64(1); from > 0; {
			full := uint64(0)
			s, err := j.Sweep(ctx, journal.Sweep{Partition: p, Number: x.Number, From: from, To: upTo, Dry: dry, Before: e.n.hub.Erasing, Done: e.gone(false),
				Choose: func(r *journal.Record) journal.Choice {
					m := r.Message
					if m == nil {
						if journal.HasContent(r) && j.Held(r) == "" && slices.ContainsFunc(r.Steps, func(t journal.Step) bool { return t.To == f.Agent || f.Message(t.Message) }) {
							return journal.Take
						}
						return journal.Pass
					}
					if !wanted(m, r.Open) {
						return journal.Pass
					}
					if x.What == "agent" && m.From == x.Name && len(f.Identities) < maxIdentities && m.Origin.Peer != "" && !f.Is(m.Origin.Protocol, m.Origin.Peer) {
						f.Identities = append(f.Identities, parley.Identity{Protocol: m.Origin.Protocol, ID: m.Origin.Peer})
					}
					if r.Erased == nil {
						left := &out.Ongoing
						switch why := j.Held(r); {
						case why == "dead letter":
							left = &out.Dead
						case why != "":
							left = &out.Undelivered
						case !e.ongoing(ctx, r, since):
							left = nil
						}
						if left != nil {
							if full == 0 {
								*left++
							}
							return journal.Pass
						}
					}
					if len(gone) >= maxGone && full == 0 {
						full = r.Position.Sequence
					}
					if full == 0 {
						gone[m.ID] = struct{}{}
					}
					return journal.Take
				}})
			out.Erased += uint64(s.Erased)
			x.Records += uint64(s.Erased)
			if !dry {
				e.erased.WithLabelValues("forget").Add(float64(s.Erased))
			}
			if err != nil {
				return out, fmt.Errorf("erase partition %d: %w", p, err)
			}
			if from = full; full > 0 {
				if err := forget(); err != nil {
					return out, err
				}
			}
		}
	}
	if dry {
		return out, nil
	}
	if err := forget(); err != nil {
		return out, err
	}
	if err := j.Scrub(ctx); err != nil {
		return out, fmt.Errorf("overwrite what the state had: %w", err)
	}
	if err := e.gone(true)(ctx, nil); err != nil {
		return out, fmt.Errorf("take it out of the index: %w", err)
	}
	out.Ended = e.n.c.Now().UTC()
	x.Ended, x.Kept = out.Ended, out.Kept()
	return out, j.PutErasure(ctx, x)
}

// resume finishes the erasures that were interrupted.
func (e *eraser) resume(ctx context.Context) error {
	list, err := e.n.journal.Erasures(ctx)
	if err != nil {
		return err
	}
	for _, x := range list {
		if !x.Ended.IsZero() {
			continue
		}
		e.n.log.Info("an erasure goes on that was interrupted", "number", x.Number, "what", x.What, "name", x.Name)
		if _, err := e.run(ctx, x, false); err != nil {
			return err
		}
	}
	return nil
}

// progress is how far retention has come under one setting.
type progress struct {
	Print  string              `json:"print"`
	Number uint64              `json:"number"`           // of the erasure
	Marks  map[string][]uint64 `json:"marks"`            // by time, then partition: what comes next
	Idle   time.Time           `json:"idle,omitzero"`    // conversations whose last message is before it are done
	Held   []heldAt            `json:"held,omitempty"`   // passed over because they were still needed
	Full   bool                `json:"full,omitempty"`   // there were more than can be noted: all is looked at again
	Passes uint64              `json:"passes,omitempty"` //
}

type heldAt struct {
	At   journal.Position `json:"at"`
	Keep time.Duration    `json:"keep"` // what it was due by; 0: its conversation
}

const (
	maxHeld   = 20_000
	idleSteps = 24 * time.Hour
)

// retain erases what is due, as much as one pass may.
func (e *eraser) retain(ctx context.Context) error {
	r := e.n.live.Load().Retention
	if !r.on() {
		return nil
	}
	end, err := e.alone(ctx)
	if errors.Is(err, journal.ErrExists) {
		return nil // another hub is at it
	}
	if err != nil {
		return err
	}
	defer end()
	var p progress
	v, err := e.state.Get(ctx, "progress")
	if err == nil {
		err = json.Unmarshal(v.Data, &p)
	} else if errors.Is(err, journal.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("read how far retention has come: %w", err)
	}
	if p.Print != r.print() || p.Full && len(p.Held) == 0 {
		number := p.Number
		if p.Print != r.print() || number == 0 {
			x, err := e.n.journal.NewErasure(ctx, journal.Erasure{What: "retention", Name: r.text(), By: "retention", Ended: e.n.c.Now().UTC()})
			if err != nil {
				return err
			}
			number = x.Number
		}
		p = progress{Print: r.print(), Number: number}
	}
	if p.Marks == nil {
		p.Marks = map[string][]uint64{}
	}
	erased, err := e.pass(ctx, &r, &p)
	if erased > 0 {
		e.n.hub.ForgetRecent()
	}
	e.erased.WithLabelValues("retention").Add(float64(erased))
	e.held.Set(float64(len(p.Held)))
	if erased > 0 {
		x, xerr := e.n.journal.Erasure(ctx, p.Number)
		if xerr == nil {
			x.Records += uint64(erased)
			x.Kept = uint64(len(p.Held))
			xerr = e.n.journal.PutErasure(ctx, x)
		}
		err = errors.Join(err, xerr)
		e.n.log.Info("retention erased the content of messages", "messages", erased, "stillNeeded", len(p.Held))
	}
	if err == nil {
		err = e.drop(ctx, &r)
	}
	b, merr := json.Marshal(&p)
	if merr == nil {
		_, merr = e.state.Put(ctx, "progress", b, time.Time{})
	}
	if err = errors.Join(err, merr); err == nil {
		e.passed.Set(float64(e.n.c.Now().UnixMilli()) / 1e3)
	}
	return err
}

// drop removes what is left of what was erased, at the front of the journal.
func (e *eraser) drop(ctx context.Context, r *Retention) error {
	if r.Drop.Duration <= 0 {
		return nil
	}
	dropped := uint64(0)
	for p := range e.n.journal.Partitions() {
		n, err := e.n.journal.Trim(ctx, p, e.n.c.Now().Add(-r.Drop.Duration))
		if dropped += n; err != nil {
			return err
		}
	}
	if dropped == 0 {
		return nil
	}
	e.drops.Add(float64(dropped))
	e.n.log.Info("retention removed records from the front of the journal", "records", dropped)
	if e.n.index == nil {
		return nil
	}
	_, err := e.n.index.Prune(ctx)
	return err
}

func (e *eraser) pass(ctx context.Context, r *Retention, p *progress) (erased int, err error) {
	j, now := e.n.journal, e.n.c.Now()
	left := r.Records
	if left == 0 {
		left = 100_000
	}
	hold := func(at journal.Position, keep time.Duration) {
		if len(p.Held) >= maxHeld {
			p.Full = true
			return
		}
		p.Held = append(p.Held, heldAt{at, keep})
	}
	needed := func(rec *journal.Record, keep time.Duration) bool {
		return j.Held(rec) != "" || e.ongoing(ctx, rec, now.Add(-keep))
	}
	take := func(list []*journal.Record) error {
		var at []journal.Position
		var ids []parley.ID
		for _, rec := range list {
			at = append(at, rec.Position)
			if rec.Message != nil {
				ids = append(ids, rec.Message.ID)
			}
		}
		if len(at) == 0 {
			return nil
		}
		if err := e.n.hub.Erasing(ctx, list); err != nil {
			return err
		}
		n, err := j.Erase(ctx, p.Number, at)
		erased += n
		if err == nil {
			err = e.gone(false)(ctx, ids)
		}
		return err
	}
	// Those that were needed: perhaps not any more.
	var due []*journal.Record
	held := p.Held
	p.Held = nil
	for i, h := range held {
		if left--; left < 0 || ctx.Err() != nil {
			p.Held = append(p.Held, held[i:]...)
			break
		}
		rec, err := j.Read(ctx, h.At)
		switch {
		case errors.Is(err, journal.ErrNotFound):
		case err != nil:
			p.Held = append(p.Held, held[i:]...)
			return erased, errors.Join(err, take(due))
		case !journal.HasContent(rec):
		case needed(rec, cmpKeep(h.Keep, r)):
			hold(h.At, h.Keep)
		default:
			due = append(due, rec)
		}
	}
	if err := take(due); err != nil {
		return erased, err
	}
	for _, keep := range r.times() {
		marks := p.Marks[keep.String()]
		for len(marks) < j.Partitions() {
			marks = append(marks, 1)
		}
		p.Marks[keep.String()] = marks
		for i := range marks {
			if left <= 0 {
				return erased, nil
			}
			s, err := j.Sweep(ctx, journal.Sweep{Partition: i, Number: p.Number, From: marks[i], Limit: left, Before: e.n.hub.Erasing, Done: e.gone(false), Choose: func(rec *journal.Record) journal.Choice {
				switch {
				case !rec.Time.Before(now.Add(-keep)):
					return journal.Stop
				case r.of(rec) != keep || !journal.HasContent(rec) && rec.Erased == nil:
					return journal.Pass
				case rec.Erased == nil && needed(rec, keep):
					return journal.Later
				}
				return journal.Take
			}})
			erased += s.Erased
			left -= s.Looked
			if err != nil {
				return erased, err
			}
			for _, at := range s.Later {
				hold(at, keep)
			}
			marks[i] = s.Next
		}
	}
	return erased, e.idle(ctx, r, p, now, &left, hold, needed, take)
}

// cmpKeep is the time by which something held is due.
func cmpKeep(keep time.Duration, r *Retention) time.Duration {
	if keep == 0 {
		return r.Conversations.Duration
	}
	return keep
}

// idle erases conversations in which nothing was said for long. They are gone
// through by the time of their last message, a day at a time.
func (e *eraser) idle(ctx context.Context, r *Retention, p *progress, now time.Time, left *int, hold func(journal.Position, time.Duration),
	needed func(*journal.Record, time.Duration) bool, take func([]*journal.Record) error) error {
	x, d := e.n.index, r.Conversations.Duration
	if d <= 0 || x == nil {
		return nil
	}
	if err := x.Wait(ctx); err != nil {
		return err
	}
	end := now.Add(-d)
	if p.Idle.IsZero() {
		first, err := e.oldest(ctx)
		if err != nil || first.IsZero() {
			return err
		}
		p.Idle = first
	}
	for p.Idle.Before(end) && *left > 0 {
		until := p.Idle.Add(idleSteps)
		if until.After(end) {
			until = end
		}
		for cursor := ""; ; {
			page, err := x.Conversations(ctx, index.ConversationFilter{Since: p.Idle, Until: until, Cursor: cursor, Limit: 200})
			if err != nil {
				return err
			}
			for _, c := range page.Conversations {
				if err := e.conversation(ctx, x, c.ID, d, left, hold, needed, take); err != nil {
					return err
				}
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		p.Idle = until
	}
	return nil
}

// oldest is the time of the oldest record.
func (e *eraser) oldest(ctx context.Context) (t time.Time, err error) {
	for p := range e.n.journal.Partitions() {
		for r, err := range e.n.journal.Records(ctx, p, journal.From{}) {
			if err != nil {
				return t, err
			}
			if t.IsZero() || r.Time.Before(t) {
				t = r.Time
			}
			break
		}
	}
	return t, nil
}

// conversation erases one that is over.
func (e *eraser) conversation(ctx context.Context, x *index.Index, id parley.ID, d time.Duration, left *int, hold func(journal.Position, time.Duration),
	needed func(*journal.Record, time.Duration) bool, take func([]*journal.Record) error) error {
	for cursor := ""; ; {
		page, err := x.History(ctx, id, cursor, 500)
		if err != nil {
			return err
		}
		var due []*journal.Record
		for _, m := range page.Messages {
			*left = max(math.MinInt32, *left-1)
			rec, err := e.n.journal.Read(ctx, m.Position)
			switch {
			case errors.Is(err, journal.ErrNotFound):
			case err != nil:
				return err
			case !journal.HasContent(rec):
			case needed(rec, d):
				hold(rec.Position, 0)
			default:
				due = append(due, rec)
			}
		}
		if err := take(due); err != nil {
			return err
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}
