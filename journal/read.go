package journal

import (
	"context"
	"iter"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// Read reads one record. Errors: ErrNotFound (it never existed, or was removed).
func (j *Journal) Read(ctx context.Context, at Position) (*Record, error) {
	if at.Partition < 0 || at.Partition >= len(j.parts) || at.Sequence == 0 {
		return nil, fail(ErrNotFound, "record %s", at)
	}
	r, err := j.parts[at.Partition].record(ctx, at.Sequence)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail(ErrNotFound, "record %s", at)
	}
	return r.Record, nil
}

// Head is the sequence of a chain's last record, 0: none. It is never older than
// the records passed to [Journal.Watch].
func (j *Journal) Head(ctx context.Context, scope, chain string) (uint64, error) {
	return j.parts[j.Partition(scope)].head(ctx, chainTag(chain), !j.store.Exclusive())
}

// Records reads a partition in order. It ends after an error; begin again behind
// the last record.
func (j *Journal) Records(ctx context.Context, partition int, from From) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		if partition < 0 || partition >= len(j.parts) {
			yield(nil, fail(ErrNotFound, "partition %d of %d", partition, len(j.parts)))
			return
		}
		p := j.parts[partition]
		seq := max(1, from.Sequence)
		if from.Sequence == 0 && !from.Time.IsZero() {
			var err error
			if seq, err = j.sequenceAt(ctx, p, from.Time.Add(-clockMargin)); err != nil {
				yield(nil, err)
				return
			}
		}
		for {
			last := p.position()
			more := true
			err := j.scan(ctx, p, seq, last, func(r *Record) bool {
				if from.Sequence == 0 && r.Time.Before(from.Time) {
					return true
				}
				more = yield(r, nil)
				return more
			})
			if !more {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			seq = max(seq, last+1)
			if !from.Follow {
				return
			}
			if err := p.waitFor(ctx, last+1); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// clockMargin is how far the clocks of nodes may differ for From.Time.
const clockMargin = 2 * time.Second

// scan reads the records of a range.
func (j *Journal) scan(ctx context.Context, p *partition, seq, last uint64, fn func(*Record) bool) error {
	if seq > last {
		return nil
	}
	if j.closing.Load() {
		return fail(ErrClosed, "")
	}
	return p.read(ctx, seq, last, true, func(_ store.Record, r *logRecord) bool { return r == nil || fn(r.Record) })
}

// sequenceAt finds the first record of at least the time, by bisection: records
// bear the time of their hub, which grows with the sequence.
func (j *Journal) sequenceAt(ctx context.Context, p *partition, at time.Time) (uint64, error) {
	low, high := uint64(1), p.position()+1
	for low < high {
		mid := low + (high-low)/2
		var found *Record
		if err := j.scan(ctx, p, mid, high-1, func(r *Record) bool { found = r; return false }); err != nil {
			return 0, err
		}
		switch {
		case found == nil || !found.Time.Before(at):
			high = mid
		default:
			low = found.Position.Sequence + 1
		}
	}
	return low, nil
}

// Stats returns the journal's figures.
func (j *Journal) Stats() Stats {
	out := Stats{Free: j.free.Load()}
	ctx, cancel := context.WithTimeout(j.ctx, j.cfg.Timeout)
	defer cancel()
	for _, p := range j.parts {
		s := PartitionStats{
			Partition: p.index, Appended: p.writer.appended.Load(), Groups: p.writer.groups.Load(),
			Owned: j.Owned(p.index),
		}
		p.mu.Lock()
		p.expire()
		s.Applied, s.LongKeys = p.applied, p.longKeys.expire(nanos(j.cfg.Now()))
		s.Keys = max(0, p.keys.held-s.LongKeys)
		s.Dead, s.Open, s.Replays = p.dead, len(p.open)-p.dead, p.replays
		p.mu.Unlock()
		p.writer.mu.Lock()
		s.Queued = len(p.writer.queue)
		p.writer.mu.Unlock()
		if x, err := j.store.Span(ctx, p.index); err == nil {
			s.First, s.Last, s.Bytes, s.Records = x.First, x.Last, x.Bytes, x.Records
		}
		out.Partitions = append(out.Partitions, s)
	}
	return out
}

// Stats are figures since Open.
type Stats struct {
	Partitions []PartitionStats
	Free       uint64 // bytes that the store can still write; 0: unknown
}

// PartitionStats are the figures of one partition.
type PartitionStats struct {
	Partition   int
	First, Last uint64 // sequences in the log
	Bytes       uint64 // of the log in the store
	Records     uint64 // in the log
	Applied     uint64 // the last sequence in this hub's view
	Keys        int    // replay keys within the window
	LongKeys    int    // replay keys that outlive the window
	Open        int    // unsettled deliveries
	Dead        int    // dead letters
	Queued      int    // appends waiting
	Appended    uint64 // by this hub
	Groups      uint64 // groups they were appended in
	Replays     uint64 // entries that were replays
	Owned       bool
}
