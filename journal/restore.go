package journal

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// RestoreConfig says where a backup goes.
type RestoreConfig struct {
	// Store is empty. Restore closes it.
	Store store.Store
	Key   []byte // of the backup, where it is encrypted; the journal is encrypted with it

	// File is given the files of the backup. Nil: they are left out.
	File func(BackupFile) error

	Now      func() time.Time
	Rand     io.Reader
	Progress func(done, total uint64) // records and values
}

// Restore makes a journal of a backup in a store that has none, and reads it back:
// counts and hashes must be those of what was taken from the backup. It does not
// return before everything is as durable as the store promises. After an error
// there may be a part, with which no journal opens. Errors: ErrForeign, ErrBackup,
// ErrFormat, ErrKey, ErrCorrupt.
func Restore(ctx context.Context, r io.Reader, c RestoreConfig) (s *BackupSummary, err error) {
	defer func() { err = errors.Join(err, c.Store.Close()) }()
	x, err := NewBackupReader(r, c.Key, true)
	if err != nil {
		return nil, err
	}
	switch _, err := c.Store.Meta(ctx); {
	case err == nil:
		return nil, fail(ErrForeign, "a journal is there already; restore into an empty place")
	case !errors.Is(err, store.ErrNotFound):
		return nil, storeError(ctx, err)
	}
	cfg := Config{Store: c.Store, Partitions: x.Header.Partitions, Now: c.Now, Rand: c.Rand, MaxPayload: c.Store.MaxRecord() - sealOverhead, Node: "restore"}
	cfg.MaxPayload = min(cfg.MaxPayload, 24<<20)
	if x.Header.Encrypted() {
		cfg.Key = c.Key
	}
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	w := &restorer{ctx: ctx, c: &c, store: c.Store, check: newChecker(&x.Header), links: newLinks(), header: &x.Header}
	if w.meta, err = newMeta(&cfg); err != nil {
		return nil, err
	}
	w.meta.Restoring = true
	w.links.loose = x.Header.Salvaged
	if w.sealer, err = newSealer(&w.meta, cfg.Key, cfg.Rand); err != nil {
		return nil, err
	}
	w.most = cfg.MaxPayload
	w.ends, w.sums, w.counts = make([]uint64, cfg.Partitions), make([]logHash, cfg.Partitions), make([]uint64, cfg.Partitions)
	w.now = cfg.Now()
	if err := c.Store.Init(ctx, w.meta); err != nil {
		return nil, storeError(ctx, err)
	}
	s, err = x.each(w.take)
	if err == nil {
		err = w.flush()
	}
	if err == nil {
		err = w.check.fits(s)
	}
	if err == nil {
		err = w.finish(s)
	}
	if err != nil {
		return nil, storeError(ctx, err)
	}
	if c.Progress != nil {
		c.Progress(w.done, w.done)
	}
	return s, nil
}

// restorer puts what a backup holds into a store.
type restorer struct {
	ctx    context.Context
	c      *RestoreConfig
	store  store.Store
	meta   store.Meta
	sealer *sealer
	header *BackupHeader
	check  *checker
	links  links
	now    time.Time
	most   int // bytes of a record

	ends   []uint64 // the last sequence of each partition
	sums   []logHash
	counts []uint64

	done  uint64
	part  int
	batch []store.Record
	bytes int
}

func (w *restorer) take(it *backupItem) error {
	if err := errors.Join(w.ctx.Err(), w.check.add(it)); err != nil {
		return err
	}
	if w.done++; w.c.Progress != nil && w.done%4096 == 0 {
		w.c.Progress(w.done, max(w.done, w.header.Total))
	}
	switch it.kind {
	case frameFile:
		if w.c.File == nil {
			return nil
		}
		return w.c.File(BackupFile{it.name, it.data})
	case frameState:
		return w.value(it)
	}
	return w.record(it)
}

// value puts a value of the state back, if its time is not over.
func (w *restorer) value(it *backupItem) error {
	bucket, v, err := decodeState(w.header.Prefix, it.name, it.data)
	if err != nil {
		return err
	}
	if v.gone(w.now) {
		_, err := w.store.Delete(w.ctx, bucket, v.Key, nil)
		return err
	}
	data, err := w.sealer.seal(valuePlace(bucket, v.Key), v.Data[:len(v.Data):len(v.Data)])
	if err != nil {
		return err
	}
	_, err = w.store.Put(w.ctx, bucket, store.Value{Key: v.Key, Data: data, Until: v.Until}, nil)
	return err
}

// record puts a record back under the sequence that it had. What a backup of an
// earlier release has besides records, marks for compare-and-set, leaves a gap.
func (w *restorer) record(it *backupItem) error {
	if err := w.links.follows(it); err != nil {
		return err
	}
	tag, ok := tagOf(it.name)
	if !ok || len(it.data) == 0 {
		return nil
	}
	if len(it.data) > w.most {
		return fail(ErrTooLarge, "record %d-%d has %d bytes, the store takes %d", it.partition, it.seq, len(it.data), w.most)
	}
	if len(w.batch) > 0 && (w.part != it.partition || len(w.batch) >= 512 || w.bytes > 4<<20) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.part = it.partition
	w.sums[w.part].add(kindOf(tag), it.seq, it.data)
	w.counts[w.part]++
	x := store.Record{Sequence: it.seq, Tag: tag}
	if r, err := decode(it.data); err == nil && w.sealer.aead == nil {
		x.About = about(r.Record)
	}
	var err error
	if x.Data, err = w.sealer.seal(recordPlace(it.partition, it.seq), it.data[:len(it.data):len(it.data)]); err != nil {
		return err
	}
	w.batch = append(w.batch, x)
	w.bytes += len(x.Data)
	return nil
}

func (w *restorer) flush() error {
	if len(w.batch) == 0 {
		return nil
	}
	err := w.store.Append(w.ctx, w.part, w.ends[w.part], w.batch)
	w.ends[w.part] = w.batch[len(w.batch)-1].Sequence
	w.batch, w.bytes = w.batch[:0], 0
	return err
}

// finish reads everything back, and makes a journal of it.
func (w *restorer) finish(s *BackupSummary) error {
	for p, part := range s.Partitions {
		if part.Last > w.ends[p] {
			if err := w.store.Skip(w.ctx, p, part.Last); err != nil { // it goes on where it was
				return err
			}
		}
		var sum logHash
		var count uint64
		var bad error
		err := w.store.Read(w.ctx, p, 1, part.Last, func(x store.Record) bool {
			data, err := w.sealer.open(recordPlace(p, x.Sequence), x.Data)
			if err != nil {
				bad = damaged(err, "record %d-%d", p, x.Sequence)
				return false
			}
			sum.add(kindOf(strings.Clone(x.Tag)), x.Sequence, data)
			count++
			return true
		})
		if err := errors.Join(bad, err); err != nil {
			return err
		}
		if count != w.counts[p] || hex.EncodeToString(sum.sum) != hex.EncodeToString(w.sums[p].sum) {
			return fail(ErrCorrupt, "partition %d reads back as %d records with the head %s, not %d with %s", p, count, &sum, w.counts[p], &w.sums[p])
		}
	}
	w.meta.Restoring = false
	return w.store.Init(w.ctx, w.meta)
}
