package journal

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Read reads one record. Errors: ErrNotFound (never there, or removed).
func (j *Journal) Read(ctx context.Context, at Position) (*Record, error) {
	if at.Partition < 0 || at.Partition >= len(j.parts) || at.Sequence == 0 {
		return nil, fail(ErrNotFound, "record %s", at)
	}
	l, err := j.live()
	if err != nil {
		return nil, err
	}
	p := j.parts[at.Partition]
	s, err := l.get(ctx, p.writer.stream, at.Sequence, "")
	for tries := 0; errors.Is(err, errNoMessage) && tries < behindTries && p.ahead(ctx, l, at.Sequence); tries++ {
		s, err = l.get(ctx, p.writer.stream, at.Sequence, "")
	}
	if errors.Is(err, errNoMessage) {
		return nil, fail(ErrNotFound, "record %s", at)
	}
	if err != nil {
		return nil, j.readError(ctx, err)
	}
	r, err := p.read(s)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail(ErrNotFound, "record %s", at)
	}
	return r.Record, nil
}

func (j *Journal) readError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var f *failure
	if errors.As(err, &f) {
		return err
	}
	return failBy(ErrBusy, err, "the engine cannot be read now")
}

// Head is the sequence of a chain's last record, 0 when it has none; at least
// that of what [Journal.Watch] has told.
func (j *Journal) Head(ctx context.Context, scope, chain string) (uint64, error) {
	l, err := j.live()
	if err != nil {
		return 0, err
	}
	p := j.parts[j.Partition(scope)]
	known := uint64(0)
	if l.srv == nil {
		known = p.head(chain) // the leader may not have come to it yet
	}
	s, err := l.get(ctx, p.writer.stream, 0, p.chainSubject(chain))
	if errors.Is(err, errNoMessage) {
		return known, nil
	}
	if err != nil {
		return 0, j.readError(ctx, err)
	}
	return max(s.seq, known), nil
}

// Records reads a partition in order. After an error it ends; begin again
// behind the last record.
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
			moved := p.beyond(last)
			if moved == nil {
				continue
			}
			select {
			case <-moved:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			case <-j.ctx.Done():
				yield(nil, fail(ErrClosed, ""))
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
	l, err := j.live()
	if err != nil {
		return err
	}
	var bad error
	ended := false
	each := func(s *stored) bool {
		r, err := p.read(s)
		if err != nil {
			bad = err
		}
		ended = bad != nil || r != nil && !fn(r.Record)
		return !ended
	}
	if l.srv != nil && j.cfg.Durability != Memory && last-seq >= blocksFrom {
		f := blockFiles{d: j.dir, cfg: &j.cfg, stream: p.writer.stream}
		log, err := l.last(ctx, p.writer.stream)
		if err == nil {
			seq, err = f.records(ctx, max(seq, log.FirstSeq), last, each)
		}
		if err != nil && !errors.Is(err, errBlocks) {
			return j.readError(ctx, err)
		}
	}
	if !ended {
		err = l.pages(ctx, p.writer.stream, seq, last, each)
	}
	if bad != nil {
		return bad
	}
	if err != nil {
		return j.readError(ctx, err)
	}
	return nil
}

// sequenceAt finds the first record of at least the time, by halving: the
// times of records are those of the hubs, and grow with the sequence.
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

// Stats counts.
func (j *Journal) Stats() Stats {
	out := Stats{Free: j.free.Load(), Reopened: j.reopened.Load()}
	ctx, cancel := context.WithTimeout(j.ctx, j.cfg.Timeout)
	defer cancel()
	l, _ := j.live()
	for _, p := range j.parts {
		s := PartitionStats{
			Partition: p.index, Appended: p.writer.appended.Load(), Groups: p.writer.groups.Load(), Owned: j.Owned(p.index),
		}
		p.mu.RLock()
		s.Applied, s.Keys, s.LongKeys = p.applied, p.guard.count, len(p.guard.long)
		s.Dead, s.Open, s.Replays = p.dead, len(p.open)-p.dead, p.replays
		p.mu.RUnlock()
		p.writer.mu.Lock()
		s.Queued = len(p.writer.queue)
		p.writer.mu.Unlock()
		if l != nil {
			if st, err := l.last(ctx, p.writer.stream); err == nil {
				s.First, s.Last, s.Bytes, s.Records = st.FirstSeq, st.LastSeq, st.Bytes, st.Msgs
			}
		}
		out.Partitions = append(out.Partitions, s)
	}
	return out
}

// Stats is what a journal holds and has done since Open.
type Stats struct {
	Partitions []PartitionStats
	Free       uint64 // bytes free in Dir; 0 when external
	Reopened   uint64 // how often the engine was reopened after a failure
}

// PartitionStats is what one partition holds and has done.
type PartitionStats struct {
	Partition   int
	First, Last uint64 // sequences in the log
	Bytes       uint64 // of the log in the engine
	Records     uint64 // in the log
	Applied     uint64 // the last sequence this node's view holds
	Keys        int    // replay keys within the window
	LongKeys    int    // replay keys that outlive it
	Open        int    // deliveries not settled
	Dead        int    // dead letters
	Queued      int    // appends waiting
	Appended    uint64 // by this node
	Groups      uint64 // group commits they took
	Replays     uint64 // entries recognised as replays
	Owned       bool
}
