package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley"
)

// A checkpoint is a partition's view at one sequence: its open deliveries, the
// keys of its guard and what nodes compare on. It lies in a stream of its own,
// in chunks; the last message names them and is what makes them valid. Without
// one, or with one that cannot be read, the whole log is read: it is never the
// truth.
//
// It is written when the log has grown by as much as the checkpoint holds, so
// that its cost is a small and constant part of each record's.

const checkpointVersion = 1

// checkpointNote is the message that makes a checkpoint valid.
type checkpointNote struct {
	Version  int    `json:"version"`
	Sequence uint64 `json:"sequence"`
	Chunks   int    `json:"chunks"`
	Sum      uint32 `json:"sum"` // CRC-32C over all chunks
	Name     string `json:"name"`
}

const (
	cpDelivery = iota + 1
	cpKey
	cpBucket
	cpHead
)

const (
	cpdMessage = iota + 1
	cpdTo
	cpdSeq
	cpdConversation
	cpdReply
	cpdFrom
	cpdNode
	cpdNext
	cpdExpires
	cpdDeadline
	cpdChanged
	cpdAttempt
	cpdPostponed
	cpdState
	cpdKind
	cpdSync
	cpdError
	cpdLoss
)

const (
	cpkKey = iota + 1
	cpkMessage
	cpkSeq
	cpkAt
	cpkUntil
	cpkReplyPartition
	cpkReplySequence
	cpkRefused
	cpkRequest
	cpkSender
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshot encodes the view.
func (p *partition) snapshot() (seq uint64, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guard.expire(nanos(p.j.cfg.Now()))
	e := encoder{b: make([]byte, 0, 1024+len(p.open)*160+p.guard.count*80)}
	for t, d := range p.open {
		at := e.open(cpDelivery)
		e.id(cpdMessage, t.message)
		e.string(cpdTo, t.to.Value())
		e.uint(cpdSeq, d.seq)
		e.id(cpdConversation, d.conversation)
		e.id(cpdReply, d.reply)
		e.string(cpdFrom, d.from.Value())
		e.string(cpdNode, d.node.Value())
		e.nanos(cpdNext, d.next)
		e.nanos(cpdExpires, d.expires)
		e.nanos(cpdDeadline, d.deadline)
		e.nanos(cpdChanged, d.changed)
		e.uint(cpdAttempt, uint64(d.attempt))
		e.uint(cpdPostponed, uint64(d.postponed))
		e.uint(cpdState, uint64(d.state))
		e.uint(cpdKind, uint64(d.kind))
		e.bool(cpdSync, d.sync)
		e.failure(cpdError, d.err)
		e.losses(cpdLoss, d.losses)
		e.close(at)
	}
	p.guard.each(func(s *slot) {
		at := e.open(cpKey)
		e.id(cpkKey, s.key)
		e.id(cpkMessage, s.message)
		e.uint(cpkSeq, s.seq)
		e.nanos(cpkAt, s.at)
		e.nanos(cpkUntil, s.until)
		e.uint(cpkReplyPartition, uint64(s.reply.Partition))
		e.uint(cpkReplySequence, s.reply.Sequence)
		e.bool(cpkRefused, s.refused)
		e.bool(cpkRequest, s.request)
		e.id(cpkSender, s.sender)
		e.close(at)
	})
	for i, seq := range p.bucket {
		if seq != 0 {
			at := e.open(cpBucket)
			e.uint(1, uint64(i))
			e.uint(2, seq)
			e.close(at)
		}
	}
	p.since = 0
	return p.applied, e.b
}

func (e *encoder) nanos(tag int, n int64) { e.uint(tag, uint64(n)) }

// restore takes a snapshot over.
func (p *partition) restore(seq uint64, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := fields{b: data, s: string(data)}
	for f.next() {
		l := f.list()
		switch f.tag {
		case cpDelivery:
			p.restoreDelivery(&l)
		case cpKey:
			p.restoreKey(&l)
		case cpBucket:
			var i, n uint64
			for l.next() {
				switch l.tag {
				case 1:
					i = l.small(buckets - 1)
				case 2:
					n = l.uint()
				}
			}
			p.bucket[i] = n
		}
		f.join(&l)
	}
	if f.err != nil {
		return f.err
	}
	p.applied = seq
	return nil
}

func (p *partition) restoreDelivery(f *fields) {
	d := &delivery{from: unique.Make(""), node: unique.Make("")}
	t := target{to: unique.Make("")}
	for f.next() {
		switch f.tag {
		case cpdMessage:
			t.message = f.id()
		case cpdTo:
			t.to = unique.Make(f.string())
		case cpdSeq:
			d.seq = f.uint()
		case cpdConversation:
			d.conversation = f.id()
		case cpdReply:
			d.reply = f.id()
		case cpdFrom:
			d.from = unique.Make(f.string())
		case cpdNode:
			d.node = unique.Make(f.string())
		case cpdNext:
			d.next = int64(f.uint())
		case cpdExpires:
			d.expires = int64(f.uint())
		case cpdDeadline:
			d.deadline = int64(f.uint())
		case cpdChanged:
			d.changed = int64(f.uint())
		case cpdAttempt:
			d.attempt = int32(f.small(1 << 30))
		case cpdPostponed:
			d.postponed = int32(f.small(1 << 30))
		case cpdState:
			d.state = parley.DeliveryState(f.small(255))
		case cpdKind:
			d.kind = parley.Kind(f.small(255))
		case cpdSync:
			d.sync = f.bool()
		case cpdError:
			l := f.list()
			d.err = cloneError(l.failure())
			f.join(&l)
		case cpdLoss:
			d.losses = append(d.losses, cloneLoss(f.loss()))
		}
	}
	if f.err == nil {
		p.open[t] = d
		if d.state == parley.Dead {
			p.dead++
		}
	}
}

func (p *partition) restoreKey(f *fields) {
	var s slot
	for f.next() {
		switch f.tag {
		case cpkKey:
			s.key = f.id()
		case cpkMessage:
			s.message = f.id()
		case cpkSeq:
			s.seq = f.uint()
		case cpkAt:
			s.at = int64(f.uint())
		case cpkUntil:
			s.until = int64(f.uint())
		case cpkReplyPartition:
			s.reply.Partition = f.int()
		case cpkReplySequence:
			s.reply.Sequence = f.uint()
		case cpkRefused:
			s.refused = f.bool()
		case cpkRequest:
			s.request = f.bool()
		case cpkSender:
			s.sender = f.id()
		}
	}
	if f.err == nil {
		p.guard.add(s)
	}
}

// checkpoints writes checkpoints from time to time.
func (j *Journal) checkpoints() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-j.ctx.Done():
			return
		}
		for _, p := range j.parts {
			if !p.due() || !j.Owned(p.index) {
				continue
			}
			l, err := j.live()
			if err == nil {
				err = j.checkpoint(j.ctx, l, p)
			}
			if err != nil && j.ctx.Err() == nil {
				j.cfg.Log.Warn("no checkpoint could be written; it is tried again", "partition", p.index, "err", err)
			}
		}
	}
}

// due reports whether the log has grown by as much as a checkpoint holds.
func (p *partition) due() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.since >= max(p.j.cfg.checkpointEvery, len(p.open)+p.guard.count+len(p.guard.long))
}

// checkpointAll writes the last checkpoints of an orderly end.
func (j *Journal) checkpointAll(ctx context.Context, l *link) {
	if j.cfg.Durability == Memory && !j.external() {
		return
	}
	var errs []error
	for _, p := range j.parts {
		p.mu.RLock()
		since := p.since
		p.mu.RUnlock()
		if since > 0 && j.Owned(p.index) {
			if err := j.checkpoint(ctx, l, p); err != nil {
				errs = append(errs, err)
			}
		}
	}
	// Without it the next start only takes longer.
	if err := errors.Join(errs...); err != nil {
		j.cfg.Log.Warn("no checkpoint could be written at the end; the next start reads more of the log", "err", err)
	}
}

func (j *Journal) chunkSize() int { return min(j.cfg.MaxPayload, 1<<20) }

// checkpoint writes one and removes those before it.
func (j *Journal) checkpoint(ctx context.Context, l *link, p *partition) error {
	p.checkpointMu.Lock()
	defer p.checkpointMu.Unlock()
	seq, data := p.snapshot()
	base := j.checkpointSubject(p.index)
	note := checkpointNote{
		Version: checkpointVersion, Sequence: seq, Sum: crc32.Checksum(data, castagnoli),
		Name: strconv.FormatUint(seq, 36) + "-" + strconv.FormatUint(j.run, 36),
	}
	for len(data) > 0 {
		n := min(len(data), j.chunkSize())
		m := &nats.Msg{Subject: fmt.Sprintf("%s.%s.%d", base, note.Name, note.Chunks), Data: data[:n]}
		if _, err := l.side.js.PublishMsg(ctx, m); err != nil {
			return err
		}
		data = data[n:]
		note.Chunks++
	}
	b, err := json.Marshal(&note)
	if err != nil {
		return err
	}
	ack, err := l.side.js.PublishMsg(ctx, &nats.Msg{Subject: base, Data: b})
	if err != nil {
		return err
	}
	s, err := l.side.js.Stream(ctx, j.checkpointStream())
	if err != nil {
		return err
	}
	first := ack.Sequence - uint64(note.Chunks)
	err = s.Purge(ctx, jetstream.WithPurgeSubject(base), jetstream.WithPurgeSequence(ack.Sequence))
	return errors.Join(err, s.Purge(ctx, jetstream.WithPurgeSubject(base+".>"), jetstream.WithPurgeSequence(first)))
}

// loadCheckpoint restores the view from the last checkpoint, if there is one
// that can be read.
func (j *Journal) loadCheckpoint(ctx context.Context, l *link, p *partition, log jetstream.StreamState) error {
	base := j.checkpointSubject(p.index)
	m, err := l.side.get(ctx, j.checkpointStream(), 0, base)
	if errors.Is(err, errNoMessage) {
		return nil
	}
	if err != nil {
		return err
	}
	var note checkpointNote
	if err := json.Unmarshal(m.data, &note); err != nil || note.Version != checkpointVersion {
		j.cfg.Log.Warn("a checkpoint is of another release; the whole log is read", "partition", p.index)
		return nil
	}
	if note.Sequence > log.LastSeq {
		return fail(ErrCorrupt, "the log of partition %d ends at %d, but it had %d records; restore a backup", p.index, log.LastSeq, note.Sequence)
	}
	var data bytes.Buffer
	for i := range note.Chunks {
		c, err := l.side.get(ctx, j.checkpointStream(), 0, fmt.Sprintf("%s.%s.%d", base, note.Name, i))
		if errors.Is(err, errNoMessage) {
			break
		}
		if err != nil {
			return err
		}
		data.Write(c.data)
	}
	if crc32.Checksum(data.Bytes(), castagnoli) != note.Sum {
		j.cfg.Log.Warn("a checkpoint is not whole; the whole log is read", "partition", p.index)
		return nil
	}
	if err := p.restore(note.Sequence, data.Bytes()); err != nil {
		return fail(ErrCorrupt, "the checkpoint of partition %d: %v", p.index, err)
	}
	return nil
}

// rebuild makes every partition's view: its checkpoint and the log behind it.
func (j *Journal) rebuild(ctx context.Context) error {
	l := j.link.Load()
	ends := make([]uint64, len(j.parts))
	var done, total uint64
	for i, p := range j.parts {
		var log jetstream.StreamState
		err := j.patiently(ctx, "stream "+p.writer.stream, func(ctx context.Context) (err error) {
			log, err = l.last(ctx, p.writer.stream)
			return err
		})
		if err != nil {
			return err
		}
		if err := j.loadCheckpoint(ctx, l, p, log); err != nil {
			return err
		}
		ends[i] = log.LastSeq
		p.applied = max(p.applied, log.FirstSeq-min(log.FirstSeq, 1))
		total += log.LastSeq - min(log.LastSeq, p.applied)
	}
	j.cfg.Progress(0, total)
	for i, p := range j.parts {
		start := p.position()
		var bad error
		err := l.pages(ctx, p.writer.stream, start+1, ends[i], func(s *stored) bool {
			if _, bad = p.replay(s); bad != nil {
				return false
			}
			if (s.seq-start)%8192 == 0 {
				j.cfg.Progress(done+s.seq-start, total)
			}
			return true
		})
		if err := errors.Join(err, bad); err != nil {
			return err
		}
		done += ends[i] - min(ends[i], start)
		p.moveTo(ends[i])
	}
	for _, o := range j.orphans {
		j.repliedElsewhere(nil, o.request, o.reply)
	}
	j.orphans, j.rebuilt = nil, true
	j.cfg.Progress(total, total)
	return j.patiently(ctx, "stream "+j.state.writer.stream, func(ctx context.Context) error {
		state, err := l.side.last(ctx, j.state.writer.stream)
		j.state.seq = state.LastSeq
		return err
	})
}

// orphan is a reply that was read before its request, while rebuilding.
type orphan struct {
	request parley.ID
	reply   Position
}

func cloneError(e *parley.Error) *parley.Error {
	c := *e
	c.Code, c.Text, c.Ref = parley.Code(strings.Clone(string(e.Code))), strings.Clone(string(e.Text)), strings.Clone(string(e.Ref))
	return &c
}

func cloneLoss(l parley.Loss) parley.Loss {
	return parley.Loss{Field: strings.Clone(string(l.Field)), Reason: strings.Clone(string(l.Reason))}
}
