package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-hub/parley/journal/store"
)

const useLater = "use the release that wrote it, or a later one"

// backupReader reads a backup and verifies it.
type backupReader struct {
	tally
	r      *bufio.Reader
	sum    hash.Hash
	sealed bool // encrypted, and the key is missing: only the form is checked
	aead   cipher.AEAD
	aad    []byte
	n      uint64 // frames
	links  links
}

// readBackup reads the header. With open the payloads are decrypted and decoded,
// which needs the key of an encrypted backup. Without open only the form and the
// checksum of an encrypted one are checked. Errors: ErrBackup, ErrFormat, ErrKey.
func readBackup(
	r io.Reader, key []byte, open bool, progress func(done, total uint64),
) (*backupReader, error) {
	x := &backupReader{r: bufio.NewReaderSize(r, 64<<10), sum: sha256.New(), links: links{}}
	head, err := x.read(int64(len(backupMagic) + 5))
	if err != nil && !errors.Is(err, ErrBackup) {
		return nil, err
	}
	if err != nil || string(head[:len(backupMagic)]) != backupMagic {
		return nil, fail(ErrBackup, "it does not begin like one of Parley's")
	}
	if v := head[len(backupMagic)]; v != backupVersion {
		return nil, fail(ErrFormat, "the backup has version %d, this program knows %d; "+useLater, v, backupVersion)
	}
	n := binary.LittleEndian.Uint32(head[len(backupMagic)+1:])
	if n > headerMax {
		return nil, fail(ErrBackup, "its header is damaged")
	}
	b, err := x.read(int64(n))
	if err != nil {
		return nil, err
	}
	var h BackupHeader
	if err := json.Unmarshal(b, &h); err != nil || h.What != backupWhat ||
		h.Partitions < 1 || h.Partitions > maxPartitions || !validPrefix(h.Prefix) {
		return nil, fail(ErrBackup, "its header is damaged")
	}
	if h.Journal > backupFormat {
		return nil, fail(ErrFormat, "the backup is of a journal of format %d, this program knows %d; "+useLater,
			h.Journal, backupFormat)
	}
	sum := sha256.Sum256(append(head, b...))
	x.tally, x.aad, x.sealed = newTally(h, progress), sum[:], h.Encrypted() && !open
	x.s.Bytes = int64(len(head) + len(b))
	if x.sealed || !h.Encrypted() {
		return x, nil
	}
	if err := checkKey("backup", key, h.Salt, h.Check, "backup check"); err != nil {
		return nil, err
	}
	x.aead, err = h.aead(key)
	return x, err
}

// read reads n bytes. Memory grows with what arrives, not with n.
func (x *backupReader) read(n int64) ([]byte, error) {
	var b bytes.Buffer
	_, err := io.CopyN(&b, x.r, n)
	if errors.Is(err, io.EOF) {
		return nil, fail(ErrBackup, "it is cut off after %d bytes", x.s.Bytes)
	}
	x.sum.Write(b.Bytes())
	x.s.Bytes += n
	return b.Bytes(), err
}

// frame reads the next frame.
func (x *backupReader) frame() (kind byte, items int, payload []byte, err error) {
	at := x.s.Bytes
	head, err := x.read(9)
	if err != nil {
		return 0, 0, nil, err
	}
	kind = head[0]
	items, size := int(binary.LittleEndian.Uint32(head[1:])), binary.LittleEndian.Uint32(head[5:])
	if size > frameMax || !slices.Contains([]byte{frameState, frameLog, frameFile, frameEnd}, kind) {
		return 0, 0, nil, fail(ErrBackup, "it is damaged at byte %d", at)
	}
	if payload, err = x.read(int64(size)); err == nil && x.aead != nil {
		if payload, err = x.aead.Open(nil, frameNonce(x.n), payload, frameAAD(x.aad, kind)); err != nil {
			err = fail(ErrBackup, "it was altered, at byte %d or later", at)
		}
	}
	x.n++
	return kind, items, payload, err
}

// each verifies all items and passes them to fn, and returns the summary if the
// items agree with it.
func (x *backupReader) each(fn func(*backupItem) error) (*BackupSummary, error) {
	want := BackupSummary{Header: x.s.Header}
	for last := false; !last; {
		kind, items, payload, err := x.frame()
		if err != nil {
			return nil, err
		}
		last = kind == frameEnd
		c := coder{b: payload, end: len(payload)}
		switch {
		case x.sealed:
			x.tell(items)
			continue
		case last:
			items = 0
			if json.Unmarshal(c.field(), &want) != nil {
				c.fail()
			}
		}
		for range items {
			it, err := x.item(kind, &c)
			if err == nil {
				err = fn(it)
			}
			if err != nil {
				return nil, err
			}
		}
		if c.err != nil || c.i < c.end {
			return nil, x.damaged()
		}
	}
	sum := x.sum.Sum(nil)
	switch got, err := x.read(int64(len(sum))); {
	case err != nil:
		return nil, err
	case !bytes.Equal(got, sum):
		return nil, fail(ErrBackup, "its checksum does not fit: it was altered")
	}
	if _, err := x.r.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, fail(ErrBackup, "there is more after its end")
	}
	want.Bytes = x.s.Bytes
	x.end()
	if x.sealed {
		return &want, nil
	}
	return &want, x.compare(&want)
}

func (x *backupReader) damaged() error {
	return fail(ErrBackup, "a frame before byte %d is damaged", x.s.Bytes)
}

// item reads an item of a frame, counts and verifies it.
func (x *backupReader) item(kind byte, c *coder) (it *backupItem, err error) {
	it = &backupItem{kind: kind}
	if kind == frameLog {
		p := c.uvarint()
		it.partition, it.seq = int(p), c.uvarint()
		if p >= uint64(x.s.Header.Partitions) || it.seq == 0 {
			c.fail()
		}
	}
	it.name, it.data = string(c.field()), c.field()
	if c.err != nil {
		return nil, x.damaged()
	}
	if err := x.add(it); err != nil {
		return nil, err
	}
	if kind == frameState {
		it.bucket, it.value, err = decodeState(x.s.Header.Prefix, it.name, it.data)
		return it, err
	}
	if kind == frameLog && len(it.data) > 0 {
		it.tag, it.record = tagOf(it.name)
	}
	if !it.record || strings.HasPrefix(it.tag, tagOfLease) {
		return it, nil
	}
	at := Position{it.partition, it.seq}
	switch it.entry, err = decode(it.data); {
	case errors.Is(err, errRecordVersion):
		return nil, failBy(ErrFormat, err, "record %s; "+useLater, at)
	case err != nil:
		err = failBy(ErrCorrupt, err, "record %s", at)
	case !x.s.Header.Salvaged:
		it.entry.Position = at
		err = x.links.follow(it.entry.Record)
	}
	if err != nil {
		err = failBy(ErrBackup, err, "it was altered, or the journal was damaged when it was made")
	}
	return it, err
}

// compare compares the items with the summary. A partition may end after its last
// record.
func (x *backupReader) compare(want *BackupSummary) error {
	got := &x.s
	if len(want.Partitions) != len(got.Partitions) || got.Values != want.Values ||
		!slices.Equal(got.Files, want.Files) {
		return fail(ErrBackup, "it holds something else than its summary says")
	}
	for i, p := range want.Partitions {
		last := got.Partitions[i].Last
		got.Partitions[i].Last = max(last, p.Last)
		if got.Partitions[i] != p {
			return fail(ErrBackup, "partition %d does not fit its summary", i)
		}
	}
	return nil
}

// CheckBackup reads a whole backup and verifies its form and its checksum. With
// open it also verifies that every record and value can be read and that chains
// hold, which needs the key of an encrypted backup.
func CheckBackup(r io.Reader, key []byte, open bool, progress func(done, total uint64)) (*BackupSummary, error) {
	x, err := readBackup(r, key, open, progress)
	if err != nil {
		return nil, err
	}
	return x.each(func(*backupItem) error { return nil })
}

// RestoreConfig describes the destination of a restore.
type RestoreConfig struct {
	// Store must be empty. Restore closes it.
	Store store.Store
	Key   []byte // of an encrypted backup; it encrypts the journal, too

	// File is called with the files of the backup. nil: they are skipped.
	File func(BackupFile) error

	Now      func() time.Time
	Progress func(done, total uint64) // records and values
}

// Restore makes a journal from a backup in an empty store and reads it back: counts
// and hashes must agree with the backup. When it returns, everything is as durable
// as the store promises. After an error a part of the journal may remain; Open
// refuses it. Values are written many at a time, so Range may return values in
// another order than before if they changed shortly after each other. Errors:
// ErrForeign, ErrBackup, ErrFormat, ErrKey, ErrCorrupt.
func Restore(ctx context.Context, r io.Reader, c RestoreConfig) (s *BackupSummary, err error) {
	defer func() { err = errors.Join(err, c.Store.Close()) }()
	x, err := readBackup(r, c.Key, true, c.Progress)
	if err != nil {
		return nil, err
	}
	switch _, err := c.Store.Meta(ctx); {
	case err == nil:
		return nil, fail(ErrForeign, "a journal is there already; restore into an empty place")
	case !errors.Is(err, store.ErrNotFound):
		return nil, storeError(ctx, err)
	}
	h := x.s.Header
	cfg := Config{
		Store: c.Store, Partitions: h.Partitions, Now: c.Now, Node: "restore",
		MaxPayload: min(c.Store.MaxRecord()-sealOverhead, 24<<20),
	}
	if h.Encrypted() {
		cfg.Key = c.Key
	}
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	w := &restorer{
		ctx: ctx, c: &c, now: cfg.Now(), most: cfg.MaxPayload, tally: newTally(h, nil), values: map[stateKey]Value{},
	}
	meta := newMeta(&cfg)
	if w.sealer, err = newSealer(&meta, cfg.Key); err != nil {
		return nil, err
	}
	meta.Restoring = true
	if err := c.Store.Init(ctx, meta); err != nil {
		return nil, storeError(ctx, err)
	}
	s, err = x.each(w.put)
	if err == nil {
		err = errors.Join(w.flush(), w.flushValues())
	}
	if err == nil {
		err = w.readBack(s)
	}
	if err == nil {
		meta.Restoring = false
		err = c.Store.Init(ctx, meta)
	}
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return s, nil
}

const (
	putsAtOnce = 128  // values written at the same time
	maxWaiting = 4096 // values that wait to be written
)

// restorer writes the items of a backup into a store.
type restorer struct {
	tally  // records written
	ctx    context.Context
	c      *RestoreConfig
	sealer *sealer
	now    time.Time
	most   int // bytes of the largest record that the store takes

	part  int
	after uint64 // the record that the batch follows
	batch []store.Record
	size  int

	values     map[stateKey]Value // the last one of each key
	valuesSize int
}

func (w *restorer) put(it *backupItem) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	switch {
	case it.kind == frameFile && w.c.File != nil:
		return w.c.File(BackupFile{it.name, it.data})
	case it.kind == frameState:
		w.values[stateKey{it.bucket, it.value.Key}] = it.value
		if w.valuesSize += len(it.value.Data); len(w.values) >= maxWaiting || w.valuesSize > 4<<20 {
			return w.flushValues()
		}
	case it.kind == frameLog && it.record: // a mark leaves a gap
		return w.record(it)
	}
	return nil
}

// flushValues writes the waiting values, many at a time because each waits for the
// disk or the cluster. Expired values are left out.
func (w *restorer) flushValues() error {
	g, ctx := errgroup.WithContext(w.ctx)
	g.SetLimit(putsAtOnce)
	for k, v := range w.values {
		g.Go(func() error {
			if v.ended(w.now) {
				_, err := w.c.Store.Delete(ctx, k.bucket, k.key, nil)
				return err
			}
			data := w.sealer.seal(valueAAD(k.bucket, k.key), compress(slices.Clip(v.Data)))
			_, err := w.c.Store.Put(ctx, k.bucket, store.Value{Key: k.key, Data: data, Until: v.Until}, nil)
			return err
		})
	}
	clear(w.values)
	w.valuesSize = 0
	return g.Wait()
}

// record restores a record under its old sequence.
func (w *restorer) record(it *backupItem) error {
	if len(it.data) > w.most {
		return fail(ErrTooLarge, "record %d-%d has %d bytes, the store takes %d", it.partition, it.seq, len(it.data),
			w.most)
	}
	if w.part != it.partition || len(w.batch) >= 512 || w.size > 4<<20 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(w.batch) == 0 {
		w.part, w.after = it.partition, w.s.Partitions[it.partition].Last
	}
	it.name = cmp.Or(it.tag, kindRecord)
	if err := w.add(it); err != nil {
		return err
	}
	x := store.Record{Sequence: it.seq, Tag: it.tag}
	if it.entry != nil && w.sealer.aead == nil {
		x.About = about(it.entry.Record)
	}
	x.Data = w.sealer.seal(recordAAD(it.partition, it.seq), compress(it.data))
	w.batch = append(w.batch, x)
	w.size += len(x.Data)
	return nil
}

func (w *restorer) flush() error {
	if len(w.batch) == 0 {
		return nil
	}
	err := w.c.Store.Append(w.ctx, w.part, w.after, w.batch)
	w.batch, w.size = w.batch[:0], 0
	return err
}

// readBack compares the store with the backup. The next record of a partition will
// follow the partition's last sequence in the backup.
func (w *restorer) readBack(s *BackupSummary) error {
	back := newTally(s.Header, nil)
	for p, part := range s.Partitions {
		if part.Last > w.s.Partitions[p].Last {
			if err := w.c.Store.Skip(w.ctx, p, part.Last); err != nil {
				return err
			}
		}
		err := readOpened(w.ctx, w.c.Store, w.sealer, p, 1, part.Last, func(x store.Record) error {
			name := cmp.Or(x.Tag, kindRecord)
			return back.add(&backupItem{kind: frameLog, partition: p, seq: x.Sequence, name: name, data: x.Data})
		})
		if err != nil {
			return err
		}
		if got, want := back.s.Partitions[p], w.s.Partitions[p]; got != want {
			return fail(ErrCorrupt, "partition %d reads back as %+v, not %+v", p, got, want)
		}
	}
	return nil
}
