package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/policy"
)

// Retention says how long the content of messages is kept.
type Retention struct {
	// how long the content of messages is kept, e.g. "2160h"; default: for ever. The records stay, with sender,
	// recipient and time. At least 1h
	Keep Duration `toml:"keep" reload:"yes"`
	// erase the content of a whole conversation when its last message is so old; default: never. At least 1h.
	// Needs listen.admin
	Conversations Duration `toml:"conversations" reload:"yes"`
	// exceptions for some agents; default: none
	Agents []KeepAgent `toml:"agents" reload:"yes"`
	// remove records without content, and all before them, from the front of the journal when they are so old,
	// and free their disk space: no trace of them remains; default: never. At least 1h
	Drop Duration `toml:"drop" reload:"yes"`
	// how often the hub looks for content to erase
	Every Duration `toml:"every" default:"\"1h\""`
	// records that it reads each time, at most
	Records int `toml:"records" default:"100000" reload:"yes"`
}

// KeepAgent is how long the content of messages from and to some agents is kept.
type KeepAgent struct {
	// pattern over directory names: * within a segment, ** for all the rest; the first that fits counts
	Agent string `toml:"agent" reload:"yes"`
	// how long, in place of retention.keep; "0s": for ever. For a message between two agents of this list the
	// shorter time counts
	Keep Duration `toml:"keep" reload:"yes"`
}

const (
	leastKeep      = time.Hour
	defaultRecords = 100_000
)

func (r *Retention) check() error {
	least := func(key string, d time.Duration) error {
		if d != 0 && d < leastKeep {
			return fmt.Errorf("retention.%s = %q: want at least %s, for the hub needs content that long to find "+
				"answers and replays", key, d, leastKeep)
		}
		return nil
	}
	err := errors.Join(least("keep", r.Keep.Duration), least("conversations", r.Conversations.Duration),
		least("drop", r.Drop.Duration))
	if err != nil {
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

// times are the different times for which content is kept, the shortest first.
func (r *Retention) times() []time.Duration {
	out := []time.Duration{r.Keep.Duration}
	for _, a := range r.Agents {
		out = append(out, a.Keep.Duration)
	}
	out = slices.DeleteFunc(out, func(d time.Duration) bool { return d <= 0 })
	slices.Sort(out)
	return slices.Compact(out)
}

// of gives the time for which a record's content is kept; 0: for ever. An entry for one of its agents overrides
// retention.keep.
func (r *Retention) of(rec *journal.Record) time.Duration {
	var names []string
	if rec.Message != nil {
		names = append(names, rec.Message.From, rec.Message.To)
	} else {
		for i := range rec.Steps {
			names = append(names, rec.Steps[i].To)
		}
	}
	for i := range rec.Open {
		names = append(names, rec.Open[i].To)
	}
	const forever = time.Duration(math.MaxInt64)
	least, listed := forever, false
	for _, name := range names {
		i := slices.IndexFunc(r.Agents, func(a KeepAgent) bool { return name != "" && policy.Match(a.Agent, name) })
		if i < 0 {
			continue
		}
		listed = true
		if d := r.Agents[i].Keep.Duration; d > 0 {
			least = min(least, d)
		}
	}
	switch {
	case !listed:
		return r.Keep.Duration
	case least == forever:
		return 0
	}
	return least
}

// text is the setting as the record of the erasure shows it.
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

// print is a digest of the setting. When it changes, the journal is read from its beginning.
func (r *Retention) print() string {
	sum := sha256.Sum256(fmt.Append(nil, r.Keep, r.Conversations, r.Agents))
	return hex.EncodeToString(sum[:6])
}

// retained is the progress of retention under one setting.
type retained struct {
	Print  string              `json:"print"`
	Number uint64              `json:"number"`         // of the erasure
	Marks  map[string][]uint64 `json:"marks"`          // by time, then partition: the next sequence number
	Idle   time.Time           `json:"idle,omitzero"`  // conversations whose last message is older have been erased
	Held   []heldAt            `json:"held,omitempty"` // records that were due and still needed
	Full   bool                `json:"full,omitempty"` // Held had no room: the journal is read again from its beginning
}

type heldAt struct {
	At   journal.Position `json:"at"`
	Keep time.Duration    `json:"keep"` // for which it was kept; 0: as long as its conversation
}

const (
	maxHeld   = 20_000
	idleSteps = 24 * time.Hour
)

// retain makes one pass: it erases content that is due.
func (e *eraser) retain(ctx context.Context) error {
	r := e.n.live.Load().Retention
	if !r.on() {
		return nil
	}
	end, err := e.lock(ctx)
	if errors.Is(err, journal.ErrExists) {
		return nil // another hub erases
	}
	if err != nil {
		return err
	}
	defer end()
	p, err := e.retained(ctx, &r)
	if err != nil {
		return err
	}
	pass := &retentionPass{e: e, r: &r, done: p, now: e.n.c.Now(), left: cmp.Or(r.Records, defaultRecords)}
	err = pass.run(ctx)
	e.erased.WithLabelValues("retention").Add(float64(pass.erased))
	e.held.Set(float64(len(p.Held)))
	if pass.erased > 0 {
		e.n.hub.ForgetRecent()
		x, xerr := e.n.journal.Erasure(ctx, p.Number)
		if xerr == nil {
			x.Records += uint64(pass.erased)
			x.Kept = uint64(len(p.Held))
			xerr = e.n.journal.PutErasure(ctx, x)
		}
		err = errors.Join(err, xerr)
		e.n.log.Info("retention erased the content of messages", "messages", pass.erased, "stillNeeded", len(p.Held))
	}
	if err == nil {
		err = e.drop(ctx, &r)
	}
	b, merr := json.Marshal(p)
	if merr == nil {
		_, merr = e.state.Put(ctx, "progress", b, time.Time{})
	}
	if err = errors.Join(err, merr); err == nil {
		e.passed.Set(float64(e.n.c.Now().UnixMilli()) / 1e3)
	}
	return err
}

// retained reads the progress of retention. A new setting begins at the front of the journal with a new erasure.
func (e *eraser) retained(ctx context.Context, r *Retention) (*retained, error) {
	var p retained
	v, err := e.state.Get(ctx, "progress")
	if err == nil {
		err = json.Unmarshal(v.Data, &p)
	}
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return nil, fmt.Errorf("read how far retention has come: %w", err)
	}
	same := p.Print == r.print()
	if !same || p.Full && len(p.Held) == 0 {
		number := p.Number
		if !same || number == 0 {
			x, err := e.n.journal.NewErasure(ctx, journal.Erasure{What: "retention", Name: r.text(), By: "retention",
				Ended: e.n.c.Now().UTC()})
			if err != nil {
				return nil, err
			}
			number = x.Number
		}
		p = retained{Print: r.print(), Number: number}
	}
	if p.Marks == nil {
		p.Marks = map[string][]uint64{}
	}
	return &p, nil
}

// drop removes old records without content from the front of the journal.
func (e *eraser) drop(ctx context.Context, r *Retention) error {
	if r.Drop.Duration <= 0 {
		return nil
	}
	dropped := uint64(0)
	for p := range e.n.journal.Partitions() {
		n, err := e.n.journal.Trim(ctx, p, e.n.c.Now().Add(-r.Drop.Duration))
		dropped += n
		if err != nil {
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

// A retentionPass reads a bounded number of records and erases content that is due.
type retentionPass struct {
	e      *eraser
	r      *Retention
	done   *retained
	now    time.Time
	left   int // records that it may still read
	erased int
}

func (p *retentionPass) run(ctx context.Context) error {
	if err := p.again(ctx); err != nil {
		return err
	}
	for _, keep := range p.r.times() {
		if err := p.sweep(ctx, keep); err != nil || p.left <= 0 {
			return err
		}
	}
	return p.idle(ctx)
}

// needed reports whether a record that is due must stay: its delivery is pending, or its chain still
// grows.
func (p *retentionPass) needed(ctx context.Context, rec *journal.Record, keep time.Duration) bool {
	return p.e.n.journal.Held(rec) != "" || p.e.ongoing(ctx, rec, p.now.Add(-keep))
}

// due gives a record whose content must be erased now; nil: it has no content, or is still needed and held for
// later passes. Keep is as in heldAt.
func (p *retentionPass) due(ctx context.Context, at journal.Position, keep time.Duration) (*journal.Record, error) {
	rec, err := p.e.n.journal.Read(ctx, at)
	switch {
	case errors.Is(err, journal.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !journal.HasContent(rec):
		return nil, nil
	case p.needed(ctx, rec, cmp.Or(keep, p.r.Conversations.Duration)):
		p.hold(at, keep)
		return nil, nil
	}
	return rec, nil
}

// hold notes a record for later passes.
func (p *retentionPass) hold(at journal.Position, keep time.Duration) {
	if len(p.done.Held) >= maxHeld {
		p.done.Full = true
		return
	}
	p.done.Held = append(p.done.Held, heldAt{at, keep})
}

// erase erases the content of records.
func (p *retentionPass) erase(ctx context.Context, list []*journal.Record) error {
	if len(list) == 0 {
		return nil
	}
	var at []journal.Position
	var ids []parley.ID
	for _, rec := range list {
		at = append(at, rec.Position)
		if rec.Message != nil {
			ids = append(ids, rec.Message.ID)
		}
	}
	if err := p.e.n.hub.Erasing(ctx, list); err != nil {
		return err
	}
	n, err := p.e.n.journal.Erase(ctx, p.done.Number, at)
	p.erased += n
	if err != nil {
		return err
	}
	return p.e.unindexMessages(false)(ctx, ids)
}

// again reads the records that earlier passes held.
func (p *retentionPass) again(ctx context.Context) error {
	var due []*journal.Record
	held := p.done.Held
	p.done.Held = nil
	for i, h := range held {
		p.left--
		if p.left < 0 || ctx.Err() != nil {
			p.done.Held = append(p.done.Held, held[i:]...)
			break
		}
		rec, err := p.due(ctx, h.At, h.Keep)
		if err != nil {
			p.done.Held = append(p.done.Held, held[i:]...)
			return errors.Join(err, p.erase(ctx, due))
		}
		if rec != nil {
			due = append(due, rec)
		}
	}
	return p.erase(ctx, due)
}

// sweep erases the content that is older than keep, of records kept for that time.
func (p *retentionPass) sweep(ctx context.Context, keep time.Duration) error {
	j := p.e.n.journal
	marks := p.done.Marks[keep.String()]
	for len(marks) < j.Partitions() {
		marks = append(marks, 1)
	}
	p.done.Marks[keep.String()] = marks
	choose := func(rec *journal.Record) journal.Choice {
		switch {
		case !rec.Time.Before(p.now.Add(-keep)):
			return journal.Stop
		case p.r.of(rec) != keep || !journal.HasContent(rec) && rec.Erased == nil:
			return journal.Pass
		case rec.Erased == nil && p.needed(ctx, rec, keep):
			return journal.Later
		}
		return journal.Take
	}
	for i := range marks {
		if p.left <= 0 {
			return nil
		}
		s, err := j.Sweep(ctx, journal.Sweep{Partition: i, Number: p.done.Number, From: marks[i], Limit: p.left,
			Before: p.e.n.hub.Erasing, Done: p.e.unindexMessages(false), Choose: choose})
		p.erased += s.Erased
		p.left -= s.Looked
		if err != nil {
			return err
		}
		for _, at := range s.Later {
			p.hold(at, keep)
		}
		marks[i] = s.Next
	}
	return nil
}

// idle erases conversations that ended long ago. It reads them in order of their last message,
// a day at a time.
func (p *retentionPass) idle(ctx context.Context) error {
	x, d := p.e.n.index, p.r.Conversations.Duration
	if d <= 0 || x == nil {
		return nil
	}
	if err := x.Wait(ctx); err != nil {
		return err
	}
	end := p.now.Add(-d)
	if p.done.Idle.IsZero() {
		first, err := p.e.oldest(ctx)
		if err != nil || first.IsZero() {
			return err
		}
		p.done.Idle = first
	}
	for p.done.Idle.Before(end) && p.left > 0 {
		until := p.done.Idle.Add(idleSteps)
		if until.After(end) {
			until = end
		}
		f := index.ConversationFilter{Since: p.done.Idle, Until: until, Limit: 200}
		for {
			page, err := x.Conversations(ctx, f)
			if err != nil {
				return err
			}
			for _, c := range page.Conversations {
				if err := p.conversation(ctx, c.ID); err != nil {
					return err
				}
			}
			if f.Cursor = page.Next; f.Cursor == "" {
				break
			}
		}
		p.done.Idle = until
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

// conversation erases an idle conversation.
func (p *retentionPass) conversation(ctx context.Context, id parley.ID) error {
	for cursor := ""; ; {
		page, err := p.e.n.index.History(ctx, id, cursor, 500)
		if err != nil {
			return err
		}
		var due []*journal.Record
		for _, m := range page.Messages {
			p.left--
			rec, err := p.due(ctx, m.Position, 0)
			if err != nil {
				return err
			}
			if rec != nil {
				due = append(due, rec)
			}
		}
		if err := p.erase(ctx, due); err != nil {
			return err
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}
