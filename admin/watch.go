package admin

import (
	"context"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// feed is what happens at the hub, for one reader. Its queue is bounded.
type feed struct {
	news    chan *journal.Record
	missed  atomic.Uint64 // records that did not fit
	refused uint64        // refusals that were looked at
	leave   func()
}

// follow starts a feed. The reader calls leave.
func (a *Admin) follow(by Actor) (*feed, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	leave, err := a.enter()
	if err != nil {
		return nil, err
	}
	f := &feed{news: make(chan *journal.Record, tailQueue), refused: a.c.Hub.Stats().Refused}
	stop := a.c.Hub.Journal().Watch(func(r *journal.Record) {
		select {
		case f.news <- r:
		default:
			f.missed.Add(1)
		}
	})
	f.leave = func() { stop(); leave() }
	return f, nil
}

const (
	watchEvery   = 250 * time.Millisecond // between batches
	watchLooked  = index.MaxLimit         // messages that are looked at for a batch
	watchEntries = 200                    // of a batch
)

// A Batch is what changed in the timeline since the last one.
type Batch struct {
	// Entries are those that the filter chooses and that are new, or have changed; the newest first, at
	// most 200. None is folded.
	Entries []TimelineEntry `json:"entries"`
	// Others are messages that have changed, and that the filter does not choose, or no longer.
	Others []Summary `json:"others"`
	Missed uint64    `json:"missed,omitzero"` // messages and records of steps that were too many to be shown
}

// Watch yields what changes in the timeline, until ctx ends or the loop breaks off: the first news after a
// quiet time at once, and at most four batches a second. Too many changes end nothing: they are counted in
// Missed. Before and After count for nothing. Started, if not nil, is called once no later change can be missed.
func (a *Admin) Watch(ctx context.Context, by Actor, f TimelineFilter, started func()) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		_, err := a.query(by, f)
		var in *feed
		if err == nil {
			in, err = a.follow(by)
		}
		if err != nil {
			yield(Batch{}, err)
			return
		}
		defer in.leave()
		if started != nil {
			started()
		}
		var t touched
		paced(ctx, a.ended, in.news, t.add, func() (some, more bool) {
			b, err := a.batch(ctx, by, f, in, &t)
			if ctx.Err() != nil {
				return false, false
			}
			some = err != nil || len(b.Entries)+len(b.Others) > 0 || b.Missed > 0
			return some, (!some || yield(b, err)) && err == nil
		})
	}
}

// paced adds news, and calls batch for them: at once after a quiet time, else watchEvery after the last call with news.
// It calls batch without news as often, and ends when that reports no more, with ctx, or when ended is closed.
// Some tells whether there was something in the batch.
func paced[T any](ctx context.Context, ended <-chan struct{}, news <-chan T, add func(T),
	batch func() (some, more bool)) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var last time.Time
	fresh := false
	for {
		select {
		case r := <-news:
			add(r)
			fresh = true
			if time.Since(last) < watchEvery {
				continue // they wait for the tick
			}
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-ended:
			return
		}
		begun := time.Now()
		some, more := batch()
		if !more {
			return
		}
		if fresh || some {
			last, fresh = begun, false
			tick.Reset(watchEvery)
		}
	}
}

// touched are the messages that are new or have changed since the last batch, in this order.
type touched struct {
	list   []parley.ID
	is     map[parley.ID]bool
	missed uint64
}

func (t *touched) add(r *journal.Record) {
	if m := r.Message; m != nil {
		t.touch(m.ID)
		if m.Kind.Terminal() && r.Refused == nil {
			t.touch(m.InReplyTo)
		}
	}
	for i := range r.Steps {
		t.touch(r.Steps[i].Message)
	}
}

func (t *touched) touch(id parley.ID) {
	if t.is == nil {
		t.is = map[parley.ID]bool{}
	}
	if id.IsZero() || t.is[id] {
		return
	}
	if len(t.list) == watchLooked { // the newest are the ones that a list shows
		delete(t.is, t.list[0])
		t.list = t.list[1:]
		t.missed++
	}
	t.list, t.is[id] = append(t.list, id), true
}

// batch makes a batch of the touched messages, as far as the index has them, and of new refusals.
func (a *Admin) batch(ctx context.Context, by Actor, f TimelineFilter, in *feed, t *touched) (b Batch, err error) {
	b.Entries, b.Others = []TimelineEntry{}, []Summary{}
	q, err := a.query(by, f)
	if err != nil {
		return b, err
	}
	var rows []row
	kept, n := a.c.Hub.RefusedSince(in.refused)
	in.refused = n
	list := a.choose(by, &q, kept)
	for i := range list {
		rows = append(rows, row{place: placeOf(&list[i]), refusal: &list[i]})
	}
	if len(t.list) > 0 {
		wait, cancel := context.WithTimeout(ctx, freshness)
		err = a.c.Index.Wait(wait)
		cancel()
	}
	if len(t.list) > 0 && err == nil { // else they wait for the next batch
		var others []index.Message
		if rows, others, err = a.look(ctx, q, t.list, rows); err != nil {
			return b, unresolved(err, "message", "")
		}
		b.Others = viewAll(by, others, viewSummary)
		*t = touched{missed: t.missed}
	}
	b.Missed, t.missed = t.missed+in.missed.Swap(0), 0
	slices.SortFunc(rows, func(x, y row) int { return y.place.compare(x.place) })
	if more := len(rows) - watchEntries; more > 0 {
		b.Missed += uint64(more)
		rows = rows[:watchEntries]
	}
	if len(rows) == 0 {
		return b, nil
	}
	refusals := recordedRefusals(a.c.Hub.Refused(watchEntries))
	for i := range rows {
		b.Entries = append(b.Entries, a.viewRun(by, rows[i:i+1], false, refusals))
	}
	return b, nil
}

// look divides messages into rows that the filter chooses, which are added, and others that it would
// choose in another state.
func (a *Admin) look(ctx context.Context, q index.Filter, ids []parley.ID, rows []row) ([]row, []index.Message, error) {
	list, err := a.c.Index.Select(ctx, q, ids)
	if err != nil {
		return nil, nil, err
	}
	chosen := map[parley.ID]bool{}
	for i := range list {
		m := &list[i]
		chosen[m.ID] = true
		rows = append(rows, row{place: place{key: m.Key()}, message: m})
	}
	if !changes(&q) {
		return rows, nil, nil
	}
	q.Waiting, q.Slow, q.Failed, q.State, q.Via = false, 0, false, 0, ""
	rest := slices.DeleteFunc(slices.Clone(ids), func(id parley.ID) bool { return chosen[id] })
	others, err := a.c.Index.Select(ctx, q, rest[max(0, len(rest)-watchEntries):])
	return rows, others, err
}

// refusedSince gives the refusals after the first n that a filter chooses, the oldest first.
func (a *Admin) refusedSince(by Actor, f *index.Filter, n uint64) (out []Refusal, total uint64) {
	list, total := a.c.Hub.RefusedSince(n)
	for i := len(list) - 1; i >= 0; i-- {
		if a.refusalMatches(by, f, &list[i]) {
			out = append(out, a.viewRefusal(by, list[i]))
		}
	}
	return out, total
}

// changes reports whether a filter depends on more than a message's record.
func changes(f *index.Filter) bool {
	return f.Waiting || f.Slow > 0 || f.Failed || f.State != 0 || f.Via != ""
}
