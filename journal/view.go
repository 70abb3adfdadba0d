package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
)

// A checkpoint is a partition's view at one sequence: its open deliveries, and
// segments of replay keys. It is kept in the state, in parts; a note lists the
// parts and makes them valid. A checkpoint only saves time: without a readable one
// the whole log is read.
//
// A checkpoint is due after as many records as a quarter of the open deliveries. So
// its cost per record is small and constant, and a start after a crash reads little.
const (
	viewBucket  = "parley-view"
	viewVersion = 4
	viewPart    = 1 << 20

	viewDelivery = 1 // tag of an open delivery
)

// viewNote lists a checkpoint's parts. Each hub has its own names for the parts that
// it writes.
type viewNote struct {
	Version  int    `json:"version"`
	Sequence uint64 `json:"sequence"`
	Parts    int    `json:"parts"`
	Name     string `json:"name"`
}

func viewKey(partition int) string { return strconv.Itoa(partition) }

func (n *viewNote) part(partition, i int) string {
	return fmt.Sprintf("%d/%s/%d", partition, n.Name, i)
}

// readNote reads the note of the last checkpoint; zero: there is none, or it cannot
// be read.
func (p *partition) readNote(ctx context.Context) (n viewNote, revision uint64, err error) {
	v, err := p.j.bucket(viewBucket).read(ctx, viewKey(p.index))
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return n, 0, err
	}
	if json.Unmarshal(v.Data, &n) != nil || n.Version != viewVersion {
		n = viewNote{}
	}
	return n, v.Revision, nil
}

// savedDelivery is an open delivery in a checkpoint.
type savedDelivery struct {
	t target
	d *delivery
}

func (c *coder) savedDelivery(x *savedDelivery) {
	ident(c, 1, &x.t.message)
	c.internedText(2, &x.t.to)
	number(c, 3, &x.d.seq, math.MaxUint64)
	ident(c, 4, &x.d.conversation)
	ident(c, 5, &x.d.reply)
	c.internedText(6, &x.d.from)
	c.internedText(7, &x.d.node)
	number(c, 8, &x.d.next, math.MaxUint64)
	number(c, 9, &x.d.expires, math.MaxUint64)
	number(c, 10, &x.d.deadline, math.MaxUint64)
	number(c, 11, &x.d.changed, math.MaxUint64)
	number(c, 12, &x.d.attempt, math.MaxInt32)
	number(c, 13, &x.d.postponed, math.MaxInt32)
	number(c, 14, &x.d.state, 255)
	number(c, 15, &x.d.kind, 255)
	c.bool(16, &x.d.sync)
	pointer(c, 17, &x.d.err, (*coder).failure)
	each(c, 18, &x.d.losses, (*coder).loss)
	ident(c, 19, &x.d.key)
	c.bool(20, &x.d.retried)
}

func (c *coder) internedText(tag int, h *unique.Handle[string]) {
	s := h.Value()
	text(c, tag, &s)
	if c.reading {
		*h = unique.Make(s)
	}
}

// snapshot encodes the view, and returns the facts noted so far.
func (p *partition) snapshot() (seq uint64, data []byte, facts []keyFact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := coder{b: make([]byte, 0, 1024+len(p.open)*160)}
	for t, d := range p.open {
		one(&c, viewDelivery, &savedDelivery{t, d}, (*coder).savedDelivery)
	}
	p.sinceCheckpoint = 0
	return p.applied, c.b, p.facts
}

// restore loads a snapshot into an empty view.
func (p *partition) restore(seq uint64, data []byte) error {
	c := coder{reading: true, b: data, end: len(data)}
	for c.next(); c.tag >= 0; c.next() {
		if !c.at(viewDelivery, wireList) {
			continue
		}
		none := unique.Make("")
		x := savedDelivery{target{to: none}, &delivery{from: none, node: none}}
		// Decoded one by one, so that a delivery does not keep the texts of all.
		if err := read(data[c.start:c.i], nil, &x, (*coder).savedDelivery); err != nil {
			return err
		}
		p.open[x.t] = x.d
		if x.d.state == parley.Dead {
			p.dead++
		}
	}
	p.applied = seq
	return c.err
}

// checkpoints writes checkpoints when they are due.
func (j *Journal) checkpoints() {
	for sleep.For(j.ctx, time.Second) == nil {
		for _, p := range j.parts {
			p.mu.Lock()
			p.expire()
			p.longKeys.expire(nanos(j.cfg.Now()))
			since := max(j.cfg.checkpointEvery, len(p.open)/4)
			p.mu.Unlock()
			j.checkpoint(j.ctx, p, since)
		}
	}
}

// checkpoint writes a checkpoint of a partition if it has at least since new
// records. If that fails, the next start only takes longer.
func (j *Journal) checkpoint(ctx context.Context, p *partition, since int) {
	p.mu.RLock()
	due, facts := p.sinceCheckpoint >= since, len(p.facts)
	p.mu.RUnlock()
	var err error
	switch owned := j.Owned(p.index); {
	case due && owned:
		err = p.checkpoint(ctx)
	case facts > maxFacts && !owned:
		err = p.dropWrittenFacts(ctx)
	}
	if err != nil && j.ctx.Err() == nil {
		j.cfg.Log.Warn("no checkpoint could be written; the next start reads more of the log", "partition", p.index,
			"err", err)
	}
}

// checkpoint writes a checkpoint and removes earlier ones.
func (p *partition) checkpoint(ctx context.Context) error {
	p.checkpointMu.Lock()
	defer p.checkpointMu.Unlock()
	seq, data, facts := p.snapshot()
	last, revision, err := p.readNote(ctx)
	if err != nil {
		return err
	}
	if err := p.writeKeys(ctx, factsAfter(facts, last.Sequence)); err != nil {
		return err
	}
	note := viewNote{Version: viewVersion, Sequence: seq, Name: fmt.Sprintf("%x-%x", seq, p.j.runID)}
	views := p.j.bucket(viewBucket)
	for part := range slices.Chunk(data, min(p.j.cfg.MaxPayload-1024, viewPart)) {
		if _, err := views.write(ctx, Value{Key: note.part(p.index, note.Parts), Data: part}, nil); err != nil {
			return err
		}
		note.Parts++
	}
	b, err := json.Marshal(&note)
	if err != nil {
		return err
	}
	// Another hub may have written its own checkpoint meanwhile: that one stays.
	if _, err := views.write(ctx, Value{Key: viewKey(p.index), Data: b}, &revision); err != nil {
		return err
	}
	p.dropFacts(seq)
	var old []string
	err = p.j.store.Range(ctx, viewBucket, viewKey(p.index)+"/", func(v store.Value) bool {
		if !strings.HasPrefix(v.Key, viewKey(p.index)+"/"+note.Name+"/") {
			old = append(old, v.Key)
		}
		return true
	})
	for _, key := range old {
		if err == nil {
			_, err = views.write(ctx, Value{Key: key, Deleted: true}, nil)
		}
	}
	return err
}

// A segment of replay keys is written once, beside a checkpoint, and kept until its
// last key expires. So a checkpoint need not hold all keys.
const (
	keysBucket  = "parley-keys"
	keysSegment = 1 << 14
)

// writeKeys writes facts that are not in a checkpoint yet.
func (p *partition) writeKeys(ctx context.Context, facts []keyFact) error {
	for some := range slices.Chunk(facts, keysSegment) {
		until := int64(0)
		for _, f := range some {
			until = max(until, f.until)
		}
		v := Value{
			Key: fmt.Sprintf("%d/%020d/%x", p.index, some[0].at, p.j.runID), Data: encodeKeys(some),
			Until: fromNanos(until).Add(time.Minute),
		}
		if _, err := p.j.bucket(keysBucket).write(ctx, v, nil); err != nil {
			return err
		}
	}
	return nil
}

// maxFacts bounds the facts of a hub that writes no checkpoints, because another hub
// owns the partition.
const maxFacts = 1 << 14

// dropWrittenFacts drops the facts that the owner of the partition has written.
func (p *partition) dropWrittenFacts(ctx context.Context) error {
	note, _, err := p.readNote(ctx)
	p.dropFacts(note.Sequence)
	return err
}

func (p *partition) dropFacts(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts = slices.Clone(factsAfter(p.facts, seq)) // a checkpoint may be reading them
}

// factsAfter returns the facts of later records.
func factsAfter(facts []keyFact, seq uint64) []keyFact {
	i, _ := slices.BinarySearchFunc(facts, seq+1, func(f keyFact, seq uint64) int { return cmp.Compare(f.at, seq) })
	return facts[i:]
}

// restoreView restores the view from the last checkpoint, if there is a readable
// one.
func (p *partition) restoreView(ctx context.Context, last uint64) error {
	note, revision, err := p.readNote(ctx)
	switch {
	case err != nil || revision == 0:
		return err
	case note.Sequence > last:
		return damaged(nil, "the log of partition %d ends at %d, but had %d records", p.index, last, note.Sequence)
	case note.Version != 0:
		err = p.restoreParts(ctx, &note)
		if err == nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, errRecord) {
			return err
		}
	}
	p.j.cfg.Log.Warn("a checkpoint cannot be read; the whole log is read", "partition", p.index, "err", err)
	p.j.parts[p.index] = newPartition(p.j, p.index)
	return nil
}

// restoreParts reads the open deliveries and the segments of keys.
func (p *partition) restoreParts(ctx context.Context, note *viewNote) error {
	var data bytes.Buffer
	for i := range note.Parts {
		v, err := p.j.bucket(viewBucket).read(ctx, note.part(p.index, i))
		if err == nil && v.Revision == 0 {
			err = fail(ErrCorrupt, "part %d is missing", i)
		}
		if err != nil {
			return err
		}
		data.Write(v.Data)
	}
	if err := p.restore(note.Sequence, data.Bytes()); err != nil {
		return err
	}
	segments := map[string][]byte{}
	size := 0
	for v, err := range p.j.bucket(keysBucket).Range(ctx, viewKey(p.index)+"/") {
		if err != nil {
			return err
		}
		segments[v.Key] = v.Data
		size += len(v.Data)
	}
	p.keys.grow(size / factSize)
	now := nanos(p.j.cfg.Now())
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		err := decodeKeys(segments[key], func(f keyFact) {
			if f.until > now {
				p.applyFact(f)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// rebuild makes every partition's view from its checkpoint and the log behind that.
func (j *Journal) rebuild(ctx context.Context) error {
	ends := make([]uint64, len(j.parts))
	var done, total uint64
	for i, p := range j.parts {
		span, err := j.store.Span(ctx, i)
		if err != nil {
			return storeError(ctx, err)
		}
		if err := p.restoreView(ctx, span.Last); err != nil {
			return err
		}
		p = j.parts[i]
		ends[i] = span.Last
		p.applied = max(p.applied, span.First-min(span.First, 1))
		total += span.Last - min(span.Last, p.applied)
	}
	j.cfg.Progress(0, total)
	for i, p := range j.parts {
		start := p.position()
		err := p.read(ctx, start+1, ends[i], false, func(x store.Record, r *logRecord) bool {
			p.apply(x.Sequence, x.Tag, r)
			if (x.Sequence-start)%8192 == 0 {
				j.cfg.Progress(done+x.Sequence-start, total)
			}
			return true
		})
		if err != nil {
			return err
		}
		done += ends[i] - min(ends[i], start)
		p.moveTo(ends[i])
	}
	j.cfg.Progress(total, total)
	return nil
}
