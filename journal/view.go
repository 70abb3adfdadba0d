package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

// A checkpoint is a partition's view at one sequence: its open deliveries, and
// beside it segments of replay keys. It lies in the state, in parts; a note names
// them and is what makes them valid. Without one, or with one that cannot be read, the whole
// log is read: it is never the truth.
//
// It is written when the log has grown by a quarter of what the checkpoint holds,
// so that its cost is a small and constant part of each record's, and a start
// after a crash reads little.
const (
	viewBucket  = "parley-view"
	viewVersion = 3
	viewPart    = 1 << 20

	viewDelivery = 1 // tag of an open delivery
)

// viewNote makes a checkpoint valid.
type viewNote struct {
	Version  int    `json:"version"`
	Sequence uint64 `json:"sequence"`
	Parts    int    `json:"parts"`
	Sum      uint32 `json:"sum"` // CRC-32C over all parts
	Name     string `json:"name"`
}

func viewKey(partition int) string { return strconv.Itoa(partition) }

func (n *viewNote) part(partition, i int) string {
	return fmt.Sprintf("%d/%s/%d", partition, n.Name, i)
}

// held is an open delivery in a checkpoint.
type held struct {
	t target
	d *delivery
}

func (c *coder) held(x *held) {
	ident(c, 1, &x.t.message)
	c.handle(2, &x.t.to)
	number(c, 3, &x.d.seq, math.MaxUint64)
	ident(c, 4, &x.d.conversation)
	ident(c, 5, &x.d.reply)
	c.handle(6, &x.d.from)
	c.handle(7, &x.d.node)
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
}

func (c *coder) handle(tag int, h *unique.Handle[string]) {
	s := h.Value()
	if text(c, tag, &s); c.reading {
		*h = unique.Make(s)
	}
}

// snapshot encodes the view, and gives the facts that were noted so far.
func (p *partition) snapshot() (seq uint64, data []byte, facts []keyFact, factsFrom uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := coder{b: make([]byte, 0, 1024+len(p.open)*160)}
	for t, d := range p.open {
		one(&c, viewDelivery, &held{t, d}, (*coder).held)
	}
	p.since = 0
	return p.applied, c.b, p.facts, p.factsFrom
}

// restore takes a snapshot over.
func (p *partition) restore(seq uint64, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := coder{reading: true, b: data, end: len(data)}
	for c.next(); c.tag >= 0; c.next() {
		if !c.at(viewDelivery, wireList) {
			continue
		}
		none := unique.Make("")
		x := held{target{to: none}, &delivery{from: none, node: none}}
		// Each has texts of its own: few have any, and most are soon gone.
		if err := read(data[c.start:c.i], nil, &x, (*coder).held); err != nil {
			return err
		}
		p.open[x.t] = x.d
		if x.d.state == parley.Dead {
			p.dead++
		}
	}
	if c.err != nil {
		return c.err
	}
	p.applied = seq
	return nil
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
			p.mu.Lock()
			p.expire()
			p.long.expireAll(nanos(j.cfg.Now()))
			p.mu.Unlock()
			if !p.due() || !j.Owned(p.index) {
				continue
			}
			if err := p.checkpoint(j.ctx); err != nil && j.ctx.Err() == nil {
				j.cfg.Log.Warn("no checkpoint could be written; it is tried again", "partition", p.index, "err", err)
			}
		}
	}
}

// due reports whether the log has grown enough for a checkpoint.
func (p *partition) due() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.since >= max(p.j.cfg.checkpointEvery, len(p.open)/4)
}

// checkpointAll writes the last checkpoints of an orderly end. Without them the
// next start only takes longer.
func (j *Journal) checkpointAll(ctx context.Context) {
	for _, p := range j.parts {
		p.mu.RLock()
		since := p.since
		p.mu.RUnlock()
		if since == 0 || !j.Owned(p.index) {
			continue
		}
		if err := p.checkpoint(ctx); err != nil {
			j.cfg.Log.Warn("no checkpoint could be written at the end; the next start reads more of the log", "err", err)
		}
	}
}

// checkpoint writes one and removes those before it.
func (p *partition) checkpoint(ctx context.Context) error {
	p.checkpointMu.Lock()
	defer p.checkpointMu.Unlock()
	seq, data, facts, factsFrom := p.snapshot()
	if err := p.keepKeys(ctx, facts, factsFrom); err != nil {
		return err
	}
	note := viewNote{Version: viewVersion, Sequence: seq, Sum: crc32.Checksum(data, castagnoli), Name: fmt.Sprintf("%x-%x", seq, p.j.run)}
	s := stateBucket{j: p.j, name: viewBucket}
	put := func(key string, b []byte) error {
		_, err := s.write(ctx, Value{Key: key, Data: b}, nil)
		return err
	}
	size := min(p.j.cfg.MaxPayload-1024, viewPart)
	for len(data) > 0 {
		n := min(len(data), size)
		if err := put(note.part(p.index, note.Parts), data[:n]); err != nil {
			return err
		}
		data = data[n:]
		note.Parts++
	}
	b, err := json.Marshal(&note)
	if err != nil {
		return err
	}
	if err := put(viewKey(p.index), b); err != nil {
		return err
	}
	p.mu.Lock()
	if p.factsFrom == factsFrom { // else they were forgotten meanwhile
		p.facts, p.factsFrom = append([]keyFact(nil), p.facts[len(facts):]...), seq
	}
	p.mu.Unlock()
	var old []string
	err = p.j.store.Range(ctx, viewBucket, viewKey(p.index)+"/", func(v store.Value) bool {
		if !strings.HasPrefix(v.Key, viewKey(p.index)+"/"+note.Name+"/") {
			old = append(old, v.Key)
		}
		return true
	})
	for _, key := range old {
		if err == nil {
			_, err = s.write(ctx, Value{Key: key, Deleted: true}, nil)
		}
	}
	return err
}

// A segment of replay keys is written once, beside a checkpoint, and stays until
// its last key has ended. So a checkpoint need not hold all keys.
const (
	keysBucket  = "parley-keys"
	keysSegment = 1 << 14
)

// keepKeys writes facts that no checkpoint has yet.
func (p *partition) keepKeys(ctx context.Context, facts []keyFact, from uint64) error {
	s := stateBucket{j: p.j, name: viewBucket}
	v, err := s.last(ctx, viewKey(p.index))
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return err
	}
	var last viewNote
	if v.Data != nil && json.Unmarshal(v.Data, &last) != nil {
		last = viewNote{}
	}
	if last.Sequence < from {
		earlier, err := p.readFacts(ctx, &last, from)
		if err != nil {
			return err
		}
		facts = append(earlier, facts...)
	}
	now := nanos(p.j.cfg.Now())
	var out []keyFact
	for _, f := range facts {
		if f.reply > last.Sequence || f.reply == 0 && f.seq > last.Sequence && f.until > now {
			out = append(out, f)
		}
	}
	s.name = keysBucket
	for some := range slices.Chunk(out, keysSegment) {
		until := now
		for _, f := range some {
			until = max(until, f.until)
		}
		key := fmt.Sprintf("%d/%020d", p.index, max(some[0].seq, some[0].reply))
		if _, err := s.write(ctx, Value{Key: key, Data: encodeKeys(some), Until: fromNanos(until).Add(time.Minute)}, nil); err != nil {
			return err
		}
	}
	return nil
}

// readFacts reads from the log behind a checkpoint what a node that did not write
// checkpoints has forgotten. Which request a reply is about, the deliveries tell
// that were open then.
func (p *partition) readFacts(ctx context.Context, last *viewNote, to uint64) (out []keyFact, err error) {
	scratch := newPartition(p.j, p.index)
	whole, err := scratch.restoreOpen(ctx, last)
	if err != nil {
		return nil, err
	}
	if !whole {
		scratch = newPartition(p.j, p.index)
	}
	var bad error
	err = p.j.store.Read(ctx, p.index, scratch.applied+1, to, func(x store.Record) bool {
		var r *sealed
		if r, bad = p.parse(x, false); bad != nil {
			return false
		}
		scratch.apply(x.Sequence, x.Tag, r)
		out = append(out, scratch.facts...)
		scratch.facts = scratch.facts[:0]
		return true
	})
	return out, errors.Join(bad, storeError(ctx, err))
}

// restoreKeys reads the segments.
func (p *partition) restoreKeys(ctx context.Context) error {
	s := stateBucket{j: p.j, name: keysBucket}
	segments := map[string][]byte{}
	for v, err := range s.Range(ctx, viewKey(p.index)+"/") {
		if err != nil {
			return err
		}
		segments[v.Key] = v.Data
	}
	size := 0
	for _, data := range segments {
		size += len(data)
	}
	p.keys.grow(size / factSize)
	now := nanos(p.j.cfg.Now())
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		err := decodeKeys(segments[key], func(f keyFact) {
			if f.reply != 0 || f.until > now {
				p.hold(f)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreOpen restores the open deliveries of a checkpoint, and reports whether
// it could be read.
func (p *partition) restoreOpen(ctx context.Context, note *viewNote) (whole bool, err error) {
	s := stateBucket{j: p.j, name: viewBucket}
	var data bytes.Buffer
	for i := range note.Parts {
		v, err := s.last(ctx, note.part(p.index, i))
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return false, err
		}
		data.Write(v.Data)
	}
	whole = note.Version == viewVersion && crc32.Checksum(data.Bytes(), castagnoli) == note.Sum
	return whole && p.restore(note.Sequence, data.Bytes()) == nil, nil
}

// restoreView restores the view from the last checkpoint, if there is one that
// can be read. What cannot be is no harm: the log has it all.
func (p *partition) restoreView(ctx context.Context, last uint64) error {
	log := p.j.cfg.Log.With("partition", p.index)
	s := stateBucket{j: p.j, name: viewBucket}
	v, err := s.last(ctx, viewKey(p.index))
	if errors.Is(err, ErrCorrupt) {
		return nil
	}
	if err != nil || v.Data == nil {
		return err
	}
	var note viewNote
	if err := json.Unmarshal(v.Data, &note); err != nil || note.Version != viewVersion {
		log.Warn("a checkpoint is of another release; the whole log is read")
		return nil
	}
	if note.Sequence > last {
		return damaged(nil, "the log of partition %d ends at %d, but had %d records", p.index, last, note.Sequence)
	}
	whole, err := p.restoreOpen(ctx, &note)
	if err != nil {
		return err
	}
	if whole {
		err := p.restoreKeys(ctx)
		if whole = !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat); whole && err != nil {
			return err
		}
		p.factsFrom = note.Sequence
	}
	if !whole {
		log.Warn("a checkpoint is not whole; the whole log is read")
		p.j.parts[p.index] = newPartition(p.j, p.index)
	}
	return nil
}

// rebuild makes every partition's view: its checkpoint and the log behind it.
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
		var bad error
		err := j.store.Read(ctx, i, start+1, ends[i], func(x store.Record) bool {
			var r *sealed
			if r, bad = p.parse(x, false); bad != nil {
				return false
			}
			p.apply(x.Sequence, x.Tag, r)
			if (x.Sequence-start)%8192 == 0 {
				j.cfg.Progress(done+x.Sequence-start, total)
			}
			return true
		})
		if err := errors.Join(bad, storeError(ctx, err)); err != nil {
			return err
		}
		done += ends[i] - min(ends[i], start)
		p.moveTo(ends[i])
	}
	j.cfg.Progress(total, total)
	return nil
}
