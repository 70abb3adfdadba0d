package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// retainRules are the rules of retention: the configuration's, and those of agents that record less.
type retainRules struct {
	Retention
	record map[string]parley.Recording // by the agent's name; without those that record in full
}

// rules are those in force.
func (n *Node) retainRules() *retainRules {
	r := &retainRules{n.live.Load().Retention, map[string]parley.Recording{}}
	for _, e := range n.directory.All() {
		if e.Record != "" && e.Record != parley.RecordFull {
			r.record[e.Name] = e.Record
		}
	}
	return r
}

func (r *retainRules) on() bool {
	return len(r.stages()) > 0 || r.Conversations.Duration > 0 || r.Drop.Duration > 0
}

// A stage of retention erases content that was kept for a time.
type stage struct {
	Keep time.Duration   `json:"keep"`
	Left journal.Remains `json:"left,omitempty"` // what stays
}

// key names the stage in the marks.
func (s stage) key() string {
	if s.Left == journal.Headers {
		return s.Keep.String() + " headers"
	}
	return s.Keep.String()
}

// stages are those that the rules need, the earliest first.
func (r *retainRules) stages() []stage {
	out := []stage{{Keep: r.Keep.Duration}}
	for _, a := range r.Agents {
		out = append(out, stage{Keep: a.Keep.Duration})
	}
	for _, v := range r.record {
		out = append(out, recordStage(v))
	}
	out = slices.DeleteFunc(out, func(s stage) bool { return s.Keep <= 0 })
	slices.SortFunc(out, func(a, b stage) int {
		return cmp.Or(cmp.Compare(a.Keep, b.Keep), cmp.Compare(a.Left, b.Left))
	})
	return slices.Compact(out)
}

func recordStage(r parley.Recording) stage {
	if r == parley.RecordHeaders {
		return stage{leastKeep, journal.Headers}
	}
	return stage{leastKeep, journal.Digests}
}

// of reports whether a stage is for a record between agents. A record has at most two: one that leaves headers, and one
// that leaves nothing but digests.
func (r *retainRules) of(names []string, s stage) bool {
	recorded := func(v parley.Recording) bool {
		return slices.ContainsFunc(names, func(n string) bool { return r.record[n] == v })
	}
	switch {
	case recorded(parley.RecordDigest):
		return s == recordStage(parley.RecordDigest)
	case s.Left == journal.Headers:
		return recorded(parley.RecordHeaders)
	}
	return r.keep(names) == s.Keep
}

// agentsOf names the agents between which a record's message, or its deliveries, went.
func agentsOf(rec *journal.Record) (names []string) {
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
	return names
}

// keep gives the time for which the content of messages between agents is kept; 0: for ever. An entry for one of
// them overrides retention.keep.
func (r *retainRules) keep(names []string) time.Duration {
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
func (r *retainRules) text() string {
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
	for _, name := range slices.Sorted(maps.Keys(r.record)) {
		out = append(out, name+" "+string(r.record[name]))
	}
	s := strings.Join(out, ", ")
	if len(s) > 400 {
		s = strings.ToValidUTF8(s[:400], "") + "…"
	}
	return s
}

// print is a digest of the setting. When it changes, the journal is read from its beginning.
func (r *retainRules) print() string {
	b := fmt.Append(nil, r.Keep, r.Conversations, r.Agents)
	if len(r.record) > 0 {
		b = fmt.Append(b, r.record) // in the order of the names
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

// retained is the progress of retention under one setting.
type retained struct {
	Print  string              `json:"print"`
	Number uint64              `json:"number"`         // of the erasure
	Marks  map[string][]uint64 `json:"marks"`          // by stage, then partition: the next sequence number
	Idle   time.Time           `json:"idle,omitzero"`  // conversations whose last message is older have been erased
	Held   []heldAt            `json:"held,omitempty"` // records that were due and still needed
	Full   bool                `json:"full,omitempty"` // Held had no room: the journal is read again from its beginning
}

type heldAt struct {
	At    journal.Position `json:"at"`
	stage                  // Keep 0: as long as its conversation
}

const (
	maxHeld   = 20_000
	idleSteps = 24 * time.Hour
)

// retain makes one pass: it erases content that is due.
func (e *eraser) retain(ctx context.Context) error {
	r := e.n.retainRules()
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
	p, err := e.retained(ctx, r)
	if err != nil {
		return err
	}
	pass := &retentionPass{e: e, r: r, done: p, now: e.n.c.Now(), left: cmp.Or(r.Records, defaultRecords)}
	err = pass.run(ctx)
	e.erased.WithLabelValues("retention").Add(float64(pass.erased))
	e.held.Set(float64(len(p.Held)))
	if pass.erased > 0 {
		e.n.hub.ForgetRecent()
		err = errors.Join(err, e.unindexMessages(true)(ctx, nil))
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
		err = e.drop(ctx, &r.Retention)
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
func (e *eraser) retained(ctx context.Context, r *retainRules) (*retained, error) {
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
	r      *retainRules
	done   *retained
	now    time.Time
	left   int // records that it may still read
	erased int
}

func (p *retentionPass) run(ctx context.Context) error {
	if err := p.again(ctx); err != nil {
		return err
	}
	if x := p.e.n.index; x != nil && p.tellsApart() {
		if err := x.Wait(ctx); err != nil { // for between
			return err
		}
	}
	for _, s := range p.r.stages() {
		if err := p.sweep(ctx, s); err != nil || p.left <= 0 {
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
// later passes. The stage is as in heldAt.
func (p *retentionPass) due(ctx context.Context, at journal.Position, s stage) (*journal.Record, error) {
	rec, err := p.e.n.journal.Read(ctx, at)
	switch {
	case errors.Is(err, journal.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !journal.HasContent(rec, s.Left):
		return nil, nil
	case p.needed(ctx, rec, cmp.Or(s.Keep, p.r.Conversations.Duration)):
		p.hold(at, s)
		return nil, nil
	}
	return rec, nil
}

// hold notes a record for later passes.
func (p *retentionPass) hold(at journal.Position, s stage) {
	if len(p.done.Held) >= maxHeld {
		p.done.Full = true
		return
	}
	p.done.Held = append(p.done.Held, heldAt{at, s})
}

// erase erases the content of records, but for what stays.
func (p *retentionPass) erase(ctx context.Context, left journal.Remains, list []*journal.Record) error {
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
	n, err := p.e.n.journal.Erase(ctx, p.done.Number, left, at)
	p.erased += n
	if err != nil {
		return err
	}
	return p.e.unindexMessages(false)(ctx, ids)
}

// again reads the records that earlier passes held.
func (p *retentionPass) again(ctx context.Context) error {
	due := map[journal.Remains][]*journal.Record{}
	held := p.done.Held
	p.done.Held = nil
	var err error
	for i, h := range held {
		p.left--
		var rec *journal.Record
		if p.left >= 0 && ctx.Err() == nil {
			rec, err = p.due(ctx, h.At, h.stage)
		}
		if p.left < 0 || ctx.Err() != nil || err != nil {
			p.done.Held = append(p.done.Held, held[i:]...)
			break
		}
		if rec != nil {
			due[h.Left] = append(due[h.Left], rec)
		}
	}
	return errors.Join(err, p.erase(ctx, journal.Headers, due[journal.Headers]),
		p.erase(ctx, journal.Digests, due[journal.Digests]))
}

// sweep erases the content that is due at a stage.
func (p *retentionPass) sweep(ctx context.Context, st stage) error {
	j := p.e.n.journal
	marks := p.done.Marks[st.key()]
	for len(marks) < j.Partitions() {
		marks = append(marks, 1)
	}
	p.done.Marks[st.key()] = marks
	choose := func(rec *journal.Record) journal.Choice {
		switch {
		case !rec.Time.Before(p.now.Add(-st.Keep)):
			return journal.Stop
		case !p.r.of(p.between(ctx, rec), st) || !journal.HasContent(rec, st.Left) && rec.Erased == nil:
			return journal.Pass
		case rec.Erased == nil && p.needed(ctx, rec, st.Keep):
			return journal.Later
		}
		return journal.Take
	}
	for i := range marks {
		if p.left <= 0 {
			return nil
		}
		s, err := j.Sweep(ctx, journal.Sweep{Partition: i, Number: p.done.Number, Left: st.Left, From: marks[i],
			Limit:  p.left,
			Before: p.e.n.hub.Erasing, Done: p.e.unindexMessages(false), Choose: choose})
		p.erased += s.Erased
		p.left -= s.Looked
		if err != nil {
			return err
		}
		for _, at := range s.Later {
			p.hold(at, st)
		}
		marks[i] = s.Next
	}
	return nil
}

// between names the agents of a record. The steps of a delivery name its recipient alone; where the rules
// tell agents apart, the index knows the sender.
func (p *retentionPass) between(ctx context.Context, rec *journal.Record) []string {
	names := agentsOf(rec)
	if rec.Message != nil || p.e.n.index == nil || !p.tellsApart() || !journal.HasContent(rec, journal.Digests) {
		return names
	}
	for i := range rec.Steps {
		if m, err := p.e.n.index.Message(ctx, rec.Steps[i].Message.String()); err == nil {
			names = append(names, m.From)
		}
	}
	return names
}

// tellsApart reports whether the rules are not the same for all agents.
func (p *retentionPass) tellsApart() bool { return len(p.r.Agents)+len(p.r.record) > 0 }

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
			rec, err := p.due(ctx, m.Position, stage{})
			if err != nil {
				return err
			}
			if rec != nil {
				due = append(due, rec)
			}
		}
		if err := p.erase(ctx, journal.Digests, due); err != nil {
			return err
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}
