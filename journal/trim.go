package journal

import (
	"context"
	"strings"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// trimLimit bounds the records that one Trim reads.
const trimLimit = 1 << 20

// Trim removes the oldest records of a partition, to free their disk space: records
// from before a time that have no content any more. It ends at the first record
// that is still needed: one with an open delivery, a dead letter or an unexpired
// replay key, or the last one of a chain or lease. It returns the number of removed
// records.
func (j *Journal) Trim(ctx context.Context, partition int, before time.Time) (removed uint64, err error) {
	if partition < 0 || partition >= len(j.parts) {
		return 0, fail(ErrNotFound, "partition %d of %d", partition, len(j.parts))
	}
	if !j.backupMu.TryLock() {
		return 0, nil // a backup reads from the beginning: another time
	}
	defer j.backupMu.Unlock()
	j.eraseMu.Lock()
	defer j.eraseMu.Unlock()
	p := j.parts[partition]
	span, err := j.store.Span(ctx, partition)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	end, err := p.trimEnd(ctx, span.First, p.needed(), before)
	if err != nil || end <= span.First {
		return 0, err
	}
	if err := j.store.Remove(ctx, partition, end); err != nil {
		return 0, storeError(ctx, err)
	}
	after, err := j.store.Span(ctx, partition)
	return span.Records - min(span.Records, after.Records), storeError(ctx, err)
}

// needed is the first record that the partition's view needs.
func (p *partition) needed() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.applied
	for _, d := range p.open {
		out = min(out, d.seq)
	}
	if seq, ok := p.keys.oldest(nanos(p.j.cfg.Now())); ok {
		out = min(out, seq)
	}
	return out
}

// trimEnd finds the first record in a range that must stay, or the end of the
// range.
func (p *partition) trimEnd(ctx context.Context, from, to uint64, before time.Time) (end uint64, err error) {
	if from >= to {
		return from, nil
	}
	end = from
	tagged := map[string]uint64{} // the last record of a tag stays; looked up after the reading
	looked := 0
	err = p.read(ctx, from, to-1, false, func(x store.Record, r *logRecord) bool {
		if looked++; looked > trimLimit || r != nil &&
			(!r.Time.Before(before) || r.Erased == nil && hasContent(r.Message, Digests)) {
			return false
		}
		if x.Tag != "" {
			tagged[strings.Clone(x.Tag)] = x.Sequence
		}
		if r != nil { // a lease goes only with later records
			end = x.Sequence + 1
		}
		return true
	})
	if err != nil {
		return from, err
	}
	for tag, seq := range tagged {
		if seq >= end {
			continue
		}
		last, err := p.j.store.Tagged(ctx, p.index, tag)
		if err != nil {
			return from, storeError(ctx, err)
		}
		if last.Sequence <= seq {
			end = seq
		}
	}
	return end, nil
}
