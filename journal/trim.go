package journal

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// trimLook is how many messages one Trim looks at.
const trimLook = 1 << 20

// Trim removes the oldest records of a partition for good, so that their disk
// space is free: those from before a time that have no content any more. It ends
// at the first record that is needed still: of an open delivery or a dead letter,
// of a replay key that has not ended, the last one of a chain or lease.
//
// Only whole blocks go, and at a block's border: there the engine removes files
// and rewrites none, for the log is not synced by it (see syncer). If the power
// fails before the removal is on the disk, the blocks are back at the next
// start, and what they hold was erased before. It gives how many records went.
func (j *Journal) Trim(ctx context.Context, partition int, before time.Time) (removed uint64, err error) {
	if j.external() {
		return 0, fail(ErrServer, "on a NATS cluster nothing is removed: it would have to be made durable there")
	}
	if partition < 0 || partition >= len(j.parts) {
		return 0, fail(ErrNotFound, "partition %d of %d", partition, len(j.parts))
	}
	if j.cfg.Durability == Memory || !j.backupMu.TryLock() {
		return 0, nil // a backup reads from the beginning: another time
	}
	defer j.backupMu.Unlock()
	j.eraseMu.Lock()
	defer j.eraseMu.Unlock()
	l, err := j.live()
	if err != nil {
		return 0, err
	}
	p := j.parts[partition]
	log, err := l.last(ctx, p.writer.stream)
	if err != nil {
		return 0, j.readError(ctx, err)
	}
	borders, err := j.borders(p)
	if err != nil || len(borders) == 0 {
		return 0, err
	}
	end, err := j.disposable(ctx, l, p, log.FirstSeq, min(p.needed(), borders[len(borders)-1]), before)
	if err != nil {
		return 0, err
	}
	to := uint64(0)
	for _, b := range borders {
		if b <= end {
			to = b
		}
	}
	if to <= log.FirstSeq {
		return 0, nil
	}
	s, err := l.js.Stream(ctx, p.writer.stream)
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSequence(to))
	}
	if err != nil {
		return 0, j.readError(ctx, err)
	}
	after, err := l.last(ctx, p.writer.stream)
	if err != nil {
		return 0, j.readError(ctx, err)
	}
	p.erasing.mu.Lock()
	for seq := range p.erasing.m {
		if seq < after.FirstSeq {
			delete(p.erasing.m, seq)
		}
	}
	p.erasing.mu.Unlock()
	return log.Msgs - min(log.Msgs, after.Msgs), nil
}

// borders are the first sequences of all blocks but the first.
func (j *Journal) borders(p *partition) (out []uint64, err error) {
	f := blockFiles{d: j.dir, cfg: &j.cfg, stream: j.logStream(p.index)}
	dir := j.dir.stream(partLog + "/" + f.stream)
	blocks, err := blockNumbers(dir)
	if err != nil || len(blocks) < 2 {
		return nil, err
	}
	for _, n := range blocks[1:] {
		first, err := f.first(dir, n)
		if err != nil {
			return nil, err
		}
		out = append(out, first)
	}
	return out, nil
}

// needed is the first record that the partition's view rests on.
func (p *partition) needed() uint64 {
	now := nanos(p.j.cfg.Now())
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := p.applied
	for _, d := range p.open {
		out = min(out, d.seq)
	}
	p.guard.each(func(s *slot) {
		if s.until > now {
			out = min(out, s.seq)
		}
	})
	return out
}

// disposable finds the first record in a range that must stay, or what comes
// behind the range.
func (j *Journal) disposable(ctx context.Context, l *link, p *partition, from, to uint64, before time.Time) (uint64, error) {
	if from >= to {
		return from, nil
	}
	base := j.logSubject(p.index)
	end, looked := to, 0
	err := j.backupPages(ctx, l, p.writer.stream, from, to-1, func(m *stored) error {
		stay := func() error {
			end = m.seq
			return errStay
		}
		if looked++; looked > trimLook {
			return stay()
		}
		kind := strings.TrimPrefix(m.subject, base)
		if strings.HasPrefix(kind, subjectChain) || strings.HasPrefix(kind, subjectEpoch) {
			last, err := l.get(ctx, p.writer.stream, 0, m.subject)
			if err != nil {
				return j.readError(ctx, err)
			}
			if last.seq <= m.seq {
				return stay()
			}
		}
		r, err := p.read(m)
		if err != nil {
			return err
		}
		if r != nil && (!r.Time.Before(before) || r.Erased == nil && messageContent(r.Message)) {
			return stay()
		}
		return nil
	})
	if errors.Is(err, errStay) {
		err = nil
	}
	return end, err
}

var errStay = errors.New("a record that stays")
