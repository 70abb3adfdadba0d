package journal

import (
	"bufio"
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/parley-hub/parley/journal/store"
)

// A backup is one file. It has the contents of a journal at one moment, in a form
// that does not depend on the store.
//
//	"PARLEYBACKUP" version header                 the header's length (4 bytes) and JSON
//	frames: type  items (4)  length (4)  payload  little-endian
//	the last frame, of type frameEnd, is the summary
//	SHA-256 of everything before it
//
// If the journal is encrypted, so are the payloads of frames: with
// ChaCha20-Poly1305, under a key derived from the journal's key and a salt drawn
// for this backup. The nonce is the frame's number; its type and the header's hash
// are associated data. So only a holder of the key can read, change, omit or move a
// frame. A backup that is not encrypted has a checksum, against accidents only.
const (
	backupMagic   = "PARLEYBACKUP"
	backupVersion = 1
	backupWhat    = "parley backup"

	frameState = 'S' // values of the state
	frameLog   = 'L' // records of one partition
	frameFile  = 'F' // a file that belongs to the hub
	frameEnd   = 'E'

	frameTarget = 256 << 10 // bytes that make a frame full
	frameMax    = 64 << 20  // larger ones are damage
	headerMax   = 1 << 20

	// backupFormat is the format of records and values in the frames.
	backupFormat = 1
)

// ErrBackup: the file is not a backup, or was cut off or altered.
var ErrBackup = errors.New("not a whole backup")

// A BackupFile is a file that goes into a backup beside the journal, and comes out
// at [Restore]. Name is relative, with slashes.
type BackupFile struct {
	Name string `json:"name"`
	Data []byte `json:"-"`
}

// BackupOptions of [Journal.Backup]. Every zero value is usable.
type BackupOptions struct {
	Hub string // name of the hub, for the header

	// Files returns the files that belong into the backup. It is called while no
	// append is in flight, so that they match the journal; it must be quick.
	Files func() ([]BackupFile, error)

	Progress func(done, total uint64) // records and values
}

// BackupHeader is not encrypted.
type BackupHeader struct {
	What       string    `json:"what"` // "parley backup"
	Created    time.Time `json:"created"`
	Hub        string    `json:"hub,omitempty"`
	Journal    int       `json:"journal"` // format of the frames' contents
	Prefix     string    `json:"prefix"`
	Partitions int       `json:"partitions"`
	Total      uint64    `json:"total"` // records and values, approximately
	Salt       string    `json:"salt,omitempty"`
	Salvaged   bool      `json:"salvaged,omitempty"` // of a damaged journal: records may be missing
	Check      string    `json:"check,omitempty"`    // to compare a key with; empty: not encrypted
}

// Encrypted reports whether a key is needed.
func (h *BackupHeader) Encrypted() bool { return h.Check != "" }

// aead encrypts the frames; nil: they are not encrypted.
func (h *BackupHeader) aead(key []byte) (cipher.AEAD, error) {
	if !h.Encrypted() {
		return nil, nil
	}
	return chacha20poly1305.New(deriveKey(key, h.Salt, "backup frames"))
}

// BackupPartition is the part of a backup from one partition.
type BackupPartition struct {
	First   uint64 `json:"first"` // sequence of the first message, 0: none
	Last    uint64 `json:"last"`
	Records uint64 `json:"records"`
	Head    string `json:"head"` // hash over all messages in their order, hexadecimal
}

// A BackupSummary ends a backup.
type BackupSummary struct {
	Partitions []BackupPartition `json:"partitions"`
	Values     uint64            `json:"values"` // of the state
	Files      []string          `json:"files,omitempty"`
	Ended      time.Time         `json:"ended"`

	Header BackupHeader `json:"-"`
	Bytes  int64        `json:"-"` // of the whole file
}

// Records is the number of records in the backup.
func (s *BackupSummary) Records() (n uint64) {
	for _, p := range s.Partitions {
		n += p.Records
	}
	return n
}

// Frames name records and values by the NATS subjects of the first engine. A record
// is "r", "c.…" if it belongs to a chain and "e.…" if it is a lease, after the
// partition's subject. A value's key is split at its slashes.
const (
	kindRecord = "r"
	kindBucket = "d." // of records with steps, in backups of clusters before format 2
)

// tagOf returns the tag of a kind; ok is false if the kind is not one of a record.
func tagOf(kind string) (tag string, ok bool) {
	switch {
	case kind == kindRecord || strings.HasPrefix(kind, kindBucket):
		return "", true
	case strings.HasPrefix(kind, tagOfChain) || strings.HasPrefix(kind, tagOfLease):
		return kind, true
	}
	return "", false
}

// statePrefix begins the names of values.
func statePrefix(prefix string) string { return prefix + ".state." }

// backupItem is a record, a value or a file.
type backupItem struct {
	kind      byte
	partition int
	seq       uint64
	name      string // kind of a record, subject of a value, name of a file
	data      []byte

	// Decoded by a backupReader:
	record bool   // false: a mark that earlier releases kept in the log
	tag    string // of the record
	entry  *logRecord
	bucket string
	value  Value
}

// tally counts the items written or read so far.
type tally struct {
	s        BackupSummary
	progress func(done, total uint64)
	done     uint64
}

func newTally(h BackupHeader, progress func(done, total uint64)) tally {
	return tally{s: BackupSummary{Header: h, Partitions: make([]BackupPartition, h.Partitions)}, progress: progress}
}

func (t *tally) add(it *backupItem) error {
	t.tell(1)
	switch it.kind {
	case frameState:
		t.s.Values++
	case frameFile:
		t.s.Files = append(t.s.Files, it.name)
	case frameLog:
		p := &t.s.Partitions[it.partition]
		if it.seq <= p.Last {
			return fail(ErrBackup, "record %d-%d comes after %d", it.partition, it.seq, p.Last)
		}
		p.First, p.Last = cmp.Or(p.First, it.seq), it.seq
		p.Records++
		return p.hash(fmt.Sprintf("%s.log.%d.%s", t.s.Header.Prefix, it.partition, it.name), it.seq, it.data)
	}
	return nil
}

func (t *tally) tell(n int) {
	before := t.done
	if t.done += uint64(n); t.progress != nil && before/1024 != t.done/1024 {
		t.progress(t.done, max(t.done, t.s.Header.Total))
	}
}

func (t *tally) end() {
	if t.progress != nil {
		t.progress(t.done, t.done)
	}
}

// hash chains a record to the hash of those before it.
func (p *BackupPartition) hash(subject string, seq uint64, data []byte) error {
	b, err := hex.DecodeString(p.Head)
	b = binary.LittleEndian.AppendUint64(b, seq)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(subject)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	d := sha256.New()
	d.Write(append(b, subject...))
	d.Write(data)
	p.Head = hex.EncodeToString(d.Sum(nil))
	return err
}

// backupWriter writes the header, items and the end of a backup.
type backupWriter struct {
	tally
	w    *bufio.Writer
	sum  hash.Hash
	aead cipher.AEAD // nil: not encrypted
	aad  []byte
	n    uint64 // frames

	kind  byte
	items uint32
	b     []byte
}

// newBackupWriter writes the header. With a key the backup is encrypted.
func newBackupWriter(
	w io.Writer, h BackupHeader, key []byte, progress func(done, total uint64),
) (*backupWriter, error) {
	h.What, h.Journal = backupWhat, backupFormat
	h.Salt, h.Check = newSalt(key, "backup check")
	b, err := json.Marshal(&h)
	if err != nil {
		return nil, err
	}
	head := append([]byte(backupMagic), backupVersion)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(b)))
	head = append(head, b...)
	sum := sha256.Sum256(head)
	out := &backupWriter{tally: newTally(h, progress), w: bufio.NewWriterSize(w, 64<<10), sum: sha256.New(),
		aad: sum[:]}
	if out.aead, err = h.aead(key); err != nil {
		return nil, err
	}
	return out, out.write(head)
}

func (w *backupWriter) write(b []byte) error {
	w.sum.Write(b)
	w.s.Bytes += int64(len(b))
	_, err := w.w.Write(b)
	return err
}

// flush writes the frame that is being filled.
func (w *backupWriter) flush() error {
	if w.kind == 0 {
		return nil
	}
	payload := w.b
	if w.aead != nil {
		payload = w.aead.Seal(nil, frameNonce(w.n), w.b, frameAAD(w.aad, w.kind))
	}
	head := binary.LittleEndian.AppendUint32([]byte{w.kind}, w.items)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(payload)))
	w.kind, w.items, w.b = 0, 0, w.b[:0]
	w.n++
	return errors.Join(w.write(head), w.write(payload))
}

func frameNonce(n uint64) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 4, chacha20poly1305.NonceSize), n)
}

func frameAAD(aad []byte, kind byte) []byte { return append(aad[:len(aad):len(aad)], kind) }

// begin makes room for an item in a frame of its kind.
func (w *backupWriter) begin(kind byte) error {
	if w.kind != kind || len(w.b) >= frameTarget {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.kind = kind
	w.items++
	return nil
}

func (w *backupWriter) field(f []byte) {
	w.b = binary.AppendUvarint(w.b, uint64(len(f)))
	w.b = append(w.b, f...)
}

func (w *backupWriter) put(it *backupItem) error {
	if err := errors.Join(w.add(it), w.begin(it.kind)); err != nil {
		return err
	}
	if it.kind == frameLog {
		w.b = binary.AppendUvarint(w.b, uint64(it.partition))
		w.b = binary.AppendUvarint(w.b, it.seq)
	}
	w.field([]byte(it.name))
	w.field(it.data)
	return nil
}

// inBackup is false for buckets whose values are rebuilt after a restore.
func inBackup(bucket string) bool { return bucket != viewBucket && bucket != keysBucket }

func (w *backupWriter) value(bucket string, v *Value) error {
	return w.put(&backupItem{kind: frameState, name: statePrefix(w.s.Header.Prefix) + store.KeyTokens(bucket, v.Key),
		data: encodeState(v)})
}

func (w *backupWriter) record(at Position, tag string, data []byte) error {
	return w.put(&backupItem{
		kind: frameLog, partition: at.Partition, seq: at.Sequence, name: cmp.Or(tag, kindRecord), data: data,
	})
}

func (w *backupWriter) file(f BackupFile) error {
	return w.put(&backupItem{kind: frameFile, name: f.Name, data: f.Data})
}

// finish writes the summary and the checksum.
func (w *backupWriter) finish(now time.Time) (*BackupSummary, error) {
	w.s.Ended = now.UTC()
	b, err := json.Marshal(&w.s)
	if err := errors.Join(err, w.begin(frameEnd)); err != nil {
		return nil, err
	}
	w.field(b)
	if err := errors.Join(w.flush(), w.write(w.sum.Sum(nil)), w.w.Flush()); err != nil {
		return nil, err
	}
	w.end()
	return &w.s, nil
}

// Backup writes the journal as it is at one moment between the call and its return,
// with every record and value acknowledged before the call. Appends wait only for
// the milliseconds in which the positions are noted. Memory does not grow with the
// journal.
//
// Other hubs of a cluster go on writing: the ends of the partitions are some
// milliseconds apart. Errors: those of w.
func (j *Journal) Backup(ctx context.Context, w io.Writer, o BackupOptions) (*BackupSummary, error) {
	if j.closing.Load() {
		return nil, fail(ErrClosed, "")
	}
	j.backupMu.Lock() // one at a time; no record is removed meanwhile
	defer j.backupMu.Unlock()
	h := BackupHeader{Created: j.cfg.Now().UTC(), Hub: o.Hub, Prefix: j.meta.Prefix, Partitions: j.meta.Partitions}
	for i := range j.parts {
		if span, err := j.store.Span(ctx, i); err == nil {
			h.Total += span.Records
		}
	}
	out, err := newBackupWriter(w, h, j.cfg.Key, o.Progress)
	if err != nil {
		return nil, err
	}
	changed := &stateWatcher{match: func(bucket, _ string) bool { return inBackup(bucket) }}
	unwatch := j.state.watch(changed)
	defer unwatch()
	if err := j.backupState(ctx, out); err != nil {
		return nil, err
	}
	ends := make([]uint64, len(j.parts))
	var rest []stateChange // changes since the values were read
	var files []BackupFile
	err = func() (err error) {
		j.gate.Lock() // no write is in flight
		defer j.gate.Unlock()
		if err := j.CatchUp(ctx); err != nil {
			return err
		}
		for i, p := range j.parts {
			ends[i] = p.position()
		}
		rest = changed.take()
		unwatch()
		if o.Files != nil {
			files, err = o.Files()
		}
		return err
	}()
	for i := 0; i < len(rest) && err == nil; i++ {
		err = out.value(rest[i].bucket, &rest[i].Value)
	}
	if err != nil {
		return nil, err
	}
	for i, p := range j.parts {
		err := readOpened(ctx, j.store, j.sealer, p.index, 1, ends[i], func(x store.Record) error {
			return out.record(Position{i, x.Sequence}, x.Tag, x.Data)
		})
		if err != nil {
			return nil, err
		}
		out.s.Partitions[i].Last = ends[i]
	}
	for _, f := range files {
		if err := out.file(f); err != nil {
			return nil, err
		}
	}
	return out.finish(j.cfg.Now())
}

// backupState writes all values.
func (j *Journal) backupState(ctx context.Context, out *backupWriter) error {
	buckets, err := j.store.Buckets(ctx)
	if err != nil {
		return storeError(ctx, err)
	}
	for _, bucket := range slices.DeleteFunc(buckets, func(name string) bool { return !inBackup(name) }) {
		for v, err := range j.State(bucket).Range(ctx, "") {
			if err == nil {
				err = out.value(bucket, &v)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readOpened reads and decrypts the records of a range.
func readOpened(
	ctx context.Context, s store.Store, sealer *sealer, partition int, first, last uint64, fn func(store.Record) error,
) error {
	var bad error
	err := s.Read(ctx, partition, first, last, func(x store.Record) bool {
		if x.Data, bad = sealer.open(recordAAD(partition, x.Sequence), x.Data); bad != nil {
			bad = damaged(bad, "record %d-%d", partition, x.Sequence)
		} else {
			bad = fn(x)
		}
		return bad == nil
	})
	return errors.Join(bad, storeError(ctx, err))
}

// The form of a value in a backup: version, flags, a number that is always 0 now,
// the value's until, the data.
const (
	stateVersion = 1
	stateRemoved = 1
	stateHead    = 10
)

func encodeState(v *Value) []byte {
	b := make([]byte, stateHead, len(v.Data)+stateHead+12)
	b[0] = stateVersion
	if v.Deleted {
		b[1] = stateRemoved
	}
	b = binary.AppendUvarint(b, 0)
	b = binary.AppendVarint(b, nanos(v.Until))
	return append(b, v.Data...)
}

func decodeState(prefix, subject string, b []byte) (bucket string, v Value, err error) {
	name, ok := strings.CutPrefix(subject, statePrefix(prefix))
	bucket, key, valid := store.ParseKeyTokens(name)
	if !ok || !valid {
		return "", v, fail(ErrBackup, "%q is no key of the state", subject)
	}
	bad := fail(ErrBackup, "the value of %q in %q cannot be read", key, bucket)
	if len(b) < stateHead {
		return "", v, bad
	}
	if b[0] != stateVersion {
		return "", v, fail(ErrFormat, "the value of %q in %q has version %d; "+useLater, key, bucket, b[0])
	}
	c := coder{b: b, i: stateHead, end: len(b)}
	c.uvarint()
	until := c.uvarint()
	if c.err != nil {
		return "", v, bad
	}
	v = Value{Key: key, Data: b[c.i:], Until: fromNanos(int64(until>>1) ^ -int64(until&1)),
		Deleted: b[1]&stateRemoved != 0}
	return bucket, v, nil
}
