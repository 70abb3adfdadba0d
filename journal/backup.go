package journal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/hmac"
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

// A backup is one file: what a journal held at one moment, in a form that
// depends neither on the engine nor on how it lays out its files.
//
//	"PARLEYBACKUP" version header                 the header's length (4 bytes) and JSON
//	frames: type  items (4)  length (4)  payload  little-endian
//	the last frame, of type frameEnd, is the summary
//	SHA-256 of everything before it
//
// The payload of a frame is sealed with ChaCha20-Poly1305 where the journal is
// encrypted, under a key derived from the journal's and a salt drawn for this
// backup; its nonce is the frame's number, and its type and the header's hash
// are authenticated with it. So frames can neither be read nor changed, left
// out or put elsewhere without the key. Without encryption only the checksum
// protects, against accidents.
const (
	backupMagic   = "PARLEYBACKUP"
	backupVersion = 1

	frameState = 'S' // values of the state
	frameLog   = 'L' // records of one partition
	frameFile  = 'F' // a file that belongs to the hub
	frameEnd   = 'E'

	frameTarget = 256 << 10 // bytes that make a frame full
	frameMax    = 64 << 20  // larger ones are damage
	frameHead   = 9
	headerMax   = 1 << 20

	// backupFormat is that of records and values in the frames.
	backupFormat = 1
)

// ErrBackup says that a file is no backup, or one that was cut off or altered.
var ErrBackup = errors.New("not a whole backup")

// A BackupFile is a file that goes into a backup beside the journal, and comes
// out again at [Restore]. Name has slashes and is relative.
type BackupFile struct {
	Name string `json:"name"`
	Data []byte `json:"-"`
}

// BackupOptions of [Journal.Backup]; every zero value does.
type BackupOptions struct {
	Hub string // for the header: whose it is

	// Files gives those that belong to the backup. It is called while no
	// append is under way, so that they fit the journal, and must be quick.
	Files func() ([]BackupFile, error)

	Progress func(done, total uint64) // records and values
}

// BackupHeader is what a backup says of itself in clear.
type BackupHeader struct {
	What       string    `json:"what"` // "parley backup"
	Created    time.Time `json:"created"`
	Hub        string    `json:"hub,omitempty"`
	Journal    int       `json:"journal"` // format of what the frames hold
	Prefix     string    `json:"prefix"`
	Partitions int       `json:"partitions"`
	Total      uint64    `json:"total"` // records and values, about
	Salt       string    `json:"salt,omitempty"`
	Salvaged   bool      `json:"salvaged,omitempty"` // of a damaged journal: records may be missing
	Check      string    `json:"check,omitempty"`    // tells whether a key is the right one; empty: not encrypted
}

// Encrypted reports whether a key is needed.
func (h *BackupHeader) Encrypted() bool { return h.Check != "" }

const backupWhat = "parley backup"

// BackupPartition is what a backup has of one partition.
type BackupPartition struct {
	First   uint64 `json:"first"` // sequence of the first message, 0: none
	Last    uint64 `json:"last"`
	Records uint64 `json:"records"`
	Head    string `json:"head"` // hash over all messages in their order, hexadecimal
}

// A BackupSummary is the end of a backup.
type BackupSummary struct {
	Partitions []BackupPartition `json:"partitions"`
	Values     uint64            `json:"values"` // of the state
	Files      []string          `json:"files,omitempty"`
	Ended      time.Time         `json:"ended"`

	Header BackupHeader `json:"-"`
	Bytes  int64        `json:"-"` // of the whole file
}

// Records is how many messages of the log the backup has.
func (s *BackupSummary) Records() (n uint64) {
	for _, p := range s.Partitions {
		n += p.Records
	}
	return n
}

// The frames name records and values by the subjects that they had with the first
// engine: a record is "r", "c.…" where it belongs to a chain and "e.…" where it is
// a lease, behind the partition's subject.
func logSubject(prefix string, partition int) string {
	return fmt.Sprintf("%s.log.%d.", prefix, partition)
}
func stateSubject(prefix string) string { return prefix + ".state." }

const (
	kindRecord = "r"
	kindBucket = "d." // of records with steps, in backups of clusters before format 2
)

// kindOf is the tag of a record as a backup names it.
func kindOf(tag string) string {
	if tag == "" {
		return kindRecord
	}
	return tag
}

// tagOf is the tag that a kind stands for; ok is false for what is no record.
func tagOf(kind string) (tag string, ok bool) {
	switch {
	case kind == kindRecord || strings.HasPrefix(kind, kindBucket):
		return "", true
	case strings.HasPrefix(kind, tagOfChain) || strings.HasPrefix(kind, tagOfLease):
		return kind, true
	}
	return "", false
}

// logHash is the hash over a partition's records.
type logHash struct{ sum []byte }

func (h *logHash) add(subject string, seq uint64, data []byte) {
	d := sha256.New()
	d.Write(h.sum)
	var b [20]byte
	binary.LittleEndian.PutUint64(b[:], seq)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(subject)))
	binary.LittleEndian.PutUint64(b[12:], uint64(len(data)))
	d.Write(b[:])
	io.WriteString(d, subject)
	d.Write(data)
	h.sum = d.Sum(h.sum[:0])
}

func (h *logHash) String() string { return hex.EncodeToString(h.sum) }

// backupWriter writes frames.
type backupWriter struct {
	w     *bufio.Writer
	sum   hash.Hash
	aead  cipher.AEAD // nil: not encrypted
	aad   []byte
	n     uint64 // frames
	bytes int64

	kind  byte
	items uint32
	b     []byte
}

func (w *backupWriter) raw(b []byte) error {
	w.sum.Write(b)
	w.bytes += int64(len(b))
	_, err := w.w.Write(b)
	return err
}

// flush ends the frame that is being filled.
func (w *backupWriter) flush() error {
	if w.kind == 0 {
		return nil
	}
	payload := w.b
	if w.aead != nil {
		payload = w.aead.Seal(nil, frameNonce(w.n), w.b, append(w.aad[:len(w.aad):len(w.aad)], w.kind))
	}
	var head [frameHead]byte
	head[0] = w.kind
	binary.LittleEndian.PutUint32(head[1:], w.items)
	binary.LittleEndian.PutUint32(head[5:], uint32(len(payload)))
	w.kind, w.items, w.b = 0, 0, w.b[:0]
	w.n++
	if err := w.raw(head[:]); err != nil {
		return err
	}
	return w.raw(payload)
}

func frameNonce(n uint64) []byte {
	b := make([]byte, chacha20poly1305.NonceSize)
	binary.LittleEndian.PutUint64(b[4:], n)
	return b
}

// item puts fields, each behind its length, into a frame of a kind.
func (w *backupWriter) item(kind byte, start []byte, fields ...[]byte) error {
	if w.kind != 0 && w.kind != kind {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if w.kind == 0 {
		w.kind = kind
	}
	w.items++
	w.b = append(w.b, start...)
	for _, f := range fields {
		w.b = binary.AppendUvarint(w.b, uint64(len(f)))
		w.b = append(w.b, f...)
	}
	if len(w.b) >= frameTarget {
		return w.flush()
	}
	return nil
}

// maxStateRest is how much of the state may change while the last changes are
// noted, with all writers stopped.
const (
	maxStateRest  = 64 << 20
	fewStateRest  = 256
	maxStateReads = 20
)

// Backup writes what the journal holds at one moment that lies between the call
// and its return: every record and value acknowledged before the call is in it.
// Appends go on meanwhile; they wait only while the positions are noted, which
// takes some milliseconds. Memory does not grow with the journal.
//
// Other nodes of a cluster go on writing: the partitions' ends are some
// milliseconds apart. Errors: ErrBusy; those of w.
func (j *Journal) Backup(ctx context.Context, w io.Writer, o BackupOptions) (*BackupSummary, error) {
	if j.closing.Load() {
		return nil, fail(ErrClosed, "")
	}
	j.backupMu.Lock() // one at a time, and no record is removed meanwhile
	defer j.backupMu.Unlock()
	total := uint64(0)
	for i := range j.parts {
		if span, err := j.store.Span(ctx, i); err == nil {
			total += span.Records
		}
	}
	out, header, err := j.beginBackup(w, o.Hub, total)
	if err != nil {
		return nil, err
	}
	b := &backup{j: j, out: out, s: &BackupSummary{Header: *header}, total: total, progress: o.Progress}
	changed := &stateWatcher{all: true}
	defer j.state.watch(changed)()
	if err := b.state(ctx); err != nil {
		return nil, err
	}
	// What has changed meanwhile comes again, until little is left.
	for range maxStateReads {
		keys, values := changed.take()
		if err := b.values(keys, values); err != nil {
			return nil, err
		}
		if len(keys) <= fewStateRest {
			break
		}
	}
	ends := make([]uint64, len(j.parts))
	var keys []stateKey
	var values map[stateKey]Value
	var files []BackupFile
	err = j.still(ctx, func() error {
		if err := j.CatchUp(ctx); err != nil {
			return err
		}
		for i, p := range j.parts {
			ends[i] = p.position()
		}
		size := 0
		keys, values = changed.take()
		for _, v := range values {
			size += len(v.Data)
		}
		if size > maxStateRest {
			return fail(ErrBusy, "the state changes faster than the backup is taken away; write it to a faster place")
		}
		if o.Files == nil {
			return nil
		}
		var err error
		files, err = o.Files()
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := b.values(keys, values); err != nil {
		return nil, err
	}
	for i, p := range j.parts {
		part, err := b.log(ctx, p, ends[i])
		if err != nil {
			return nil, err
		}
		b.s.Partitions = append(b.s.Partitions, part)
	}
	for _, f := range files {
		b.s.Files = append(b.s.Files, f.Name)
		if err := out.item(frameFile, nil, []byte(f.Name), f.Data); err != nil {
			return nil, err
		}
	}
	b.s.Ended = j.cfg.Now().UTC()
	if err := out.end(b.s); err != nil {
		return nil, err
	}
	if o.Progress != nil {
		o.Progress(b.done, b.done)
	}
	b.s.Bytes = out.bytes
	return b.s, nil
}

// backup is one that is being written.
type backup struct {
	j           *Journal
	out         *backupWriter
	s           *BackupSummary
	done, total uint64
	progress    func(done, total uint64)
}

func (b *backup) tell() {
	if b.done++; b.progress != nil && b.done%1024 == 0 {
		b.progress(b.done, max(b.total, b.done))
	}
}

// state writes all values.
func (b *backup) state(ctx context.Context) error {
	buckets, err := b.j.store.Buckets(ctx)
	if err != nil {
		return storeError(ctx, err)
	}
	for _, bucket := range buckets {
		var bad error
		err := b.j.store.Range(ctx, bucket, "", func(x store.Value) bool {
			var v Value
			if v, bad = b.j.openValue(bucket, x); bad == nil {
				bad = b.value(bucket, v)
			}
			return bad == nil
		})
		if err := errors.Join(bad, storeError(ctx, err)); err != nil {
			return err
		}
	}
	return nil
}

func (b *backup) values(keys []stateKey, values map[stateKey]Value) error {
	for _, k := range keys {
		if err := b.value(k.bucket, values[k]); err != nil {
			return err
		}
	}
	return nil
}

func (b *backup) value(bucket string, v Value) error {
	if bucket == viewBucket || bucket == keysBucket {
		return nil // it is made anew
	}
	b.s.Values++
	b.tell()
	return b.out.item(frameState, nil, []byte(keySubject(b.s.Header.Prefix, bucket, v.Key)), encodeState(&v))
}

// log writes a partition up to its end as it was noted.
func (b *backup) log(ctx context.Context, p *partition, end uint64) (part BackupPartition, err error) {
	var sum logHash
	base := logSubject(b.s.Header.Prefix, p.index)
	index := binary.AppendUvarint(nil, uint64(p.index))
	var bad error
	err = p.j.store.Read(ctx, p.index, 1, end, func(x store.Record) bool {
		data, err := p.j.sealer.open(recordPlace(p.index, x.Sequence), x.Data)
		if err != nil {
			bad = damaged(err, "record %d-%d", p.index, x.Sequence)
			return false
		}
		if part.First == 0 {
			part.First = x.Sequence
		}
		part.Records++
		kind := kindOf(x.Tag)
		sum.add(base+kind, x.Sequence, data)
		b.tell()
		bad = b.out.item(frameLog, binary.AppendUvarint(index[:len(index):len(index)], x.Sequence), []byte(kind), data)
		return bad == nil
	})
	part.Last, part.Head = end, sum.String()
	return part, errors.Join(bad, storeError(ctx, err))
}

// still runs fn while no append is under way.
func (j *Journal) still(ctx context.Context, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	locked := make(chan struct{})
	go func() {
		j.gate.Lock()
		close(locked)
	}()
	select {
	case <-locked:
		defer j.gate.Unlock()
		return fn()
	case <-ctx.Done():
		go func() {
			<-locked
			j.gate.Unlock()
		}()
		return failBy(ErrBusy, ctx.Err(), "appends under way do not end")
	}
}

func (j *Journal) beginBackup(w io.Writer, hub string, total uint64) (*backupWriter, *BackupHeader, error) {
	h := &BackupHeader{
		What: backupWhat, Created: j.cfg.Now().UTC(), Hub: hub, Journal: backupFormat, Prefix: j.meta.Prefix, Partitions: j.partitions, Total: total,
	}
	out, err := newBackupWriter(w, h, j.cfg.Key, j.meta.Check != "", j.cfg.Rand)
	return out, h, err
}

// begin writes the header. It draws the salt of an encrypted backup.
func (w *backupWriter) begin(h *BackupHeader, key []byte, encrypted bool, randomness io.Reader) error {
	if encrypted {
		var salt [16]byte
		if _, err := io.ReadFull(randomness, salt[:]); err != nil {
			return err
		}
		h.Salt = hex.EncodeToString(salt[:])
		h.Check = hex.EncodeToString(h.derive(key, "check"))
		var err error
		if w.aead, err = chacha20poly1305.New(h.derive(key, "frames")); err != nil {
			return err
		}
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	head := append([]byte(backupMagic), backupVersion)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(b)))
	head = append(head, b...)
	sum := sha256.Sum256(head)
	w.aad = sum[:]
	return w.raw(head)
}

func (h *BackupHeader) derive(key []byte, use string) []byte {
	return derive(key, h.Salt, "backup "+use)
}

func (w *backupWriter) end(s *BackupSummary) error {
	if err := w.flush(); err != nil {
		return err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := errors.Join(w.item(frameEnd, nil, b), w.flush()); err != nil {
		return err
	}
	if err := w.raw(w.sum.Sum(nil)); err != nil {
		return err
	}
	return w.w.Flush()
}

// A BackupReader reads a backup and checks it as it goes.
type BackupReader struct {
	Header BackupHeader

	r     *bufio.Reader
	sum   hash.Hash
	aead  cipher.AEAD
	aad   []byte
	n     uint64
	bytes int64
	ended bool
	open  bool // payloads are opened
}

// NewBackupReader reads the header. With open the payloads are read too, for
// which an encrypted backup needs its key; without, only the form and the
// checksum are checked. Errors: ErrBackup, ErrFormat, ErrKey.
func NewBackupReader(r io.Reader, key []byte, open bool) (*BackupReader, error) {
	x := &BackupReader{r: bufio.NewReaderSize(r, 64<<10), sum: sha256.New(), open: open}
	head := make([]byte, len(backupMagic)+5)
	if err := x.full(head); err != nil || string(head[:len(backupMagic)]) != backupMagic {
		if err != nil && !errors.Is(err, ErrBackup) {
			return nil, err
		}
		return nil, fail(ErrBackup, "it does not begin like one of Parley's")
	}
	if v := head[len(backupMagic)]; v != backupVersion {
		return nil, fail(ErrFormat, "the backup has version %d, this program knows %d; use the release that wrote it, or a later one", v, backupVersion)
	}
	n := binary.LittleEndian.Uint32(head[len(backupMagic)+1:])
	if n > headerMax {
		return nil, fail(ErrBackup, "its header is damaged")
	}
	b := make([]byte, n)
	if err := x.full(b); err != nil {
		return nil, err
	}
	h := &x.Header
	if err := json.Unmarshal(b, h); err != nil || h.What != backupWhat || h.Partitions < 1 || h.Partitions > maxPartitions || !validPrefix(h.Prefix) {
		return nil, fail(ErrBackup, "its header is damaged")
	}
	if h.Journal > backupFormat {
		return nil, fail(ErrFormat, "the backup is of a journal of format %d, this program knows %d; use the release that wrote it, or a later one", h.Journal, backupFormat)
	}
	sum := sha256.Sum256(append(head, b...))
	x.aad = sum[:]
	if !open || !h.Encrypted() {
		return x, nil
	}
	switch {
	case len(key) == 0:
		return nil, fail(ErrKey, "the backup is encrypted; give the key of the journal that it is of")
	case !hmac.Equal([]byte(hex.EncodeToString(h.derive(key, "check"))), []byte(h.Check)):
		return nil, fail(ErrKey, "the backup was made with another key")
	}
	var err error
	x.aead, err = chacha20poly1305.New(h.derive(key, "frames"))
	return x, err
}

func (x *BackupReader) full(b []byte) error {
	_, err := io.ReadFull(x.r, b)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fail(ErrBackup, "it is cut off after %d bytes", x.bytes)
	case err != nil:
		return err
	}
	x.sum.Write(b)
	x.bytes += int64(len(b))
	return nil
}

// next reads a frame; io.EOF after the last one, when the checksum fits.
func (x *BackupReader) next() (kind byte, items int, payload []byte, err error) {
	if x.ended {
		want := x.sum.Sum(nil)
		got := make([]byte, len(want))
		if err := x.full(got); err != nil {
			return 0, 0, nil, err
		}
		if !bytes.Equal(got, want) {
			return 0, 0, nil, fail(ErrBackup, "its checksum does not fit: it was altered")
		}
		if _, err := x.r.ReadByte(); !errors.Is(err, io.EOF) {
			return 0, 0, nil, fail(ErrBackup, "something stands behind its end")
		}
		return 0, 0, nil, io.EOF
	}
	var head [frameHead]byte
	if err := x.full(head[:]); err != nil {
		return 0, 0, nil, err
	}
	kind = head[0]
	size := binary.LittleEndian.Uint32(head[5:])
	if size > frameMax || !slices.Contains([]byte{frameState, frameLog, frameFile, frameEnd}, kind) {
		return 0, 0, nil, fail(ErrBackup, "it is damaged at byte %d", x.bytes-frameHead)
	}
	// The length is not to be believed before the bytes are there.
	var room bytes.Buffer
	if _, err := io.CopyN(&room, x.r, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, 0, nil, fail(ErrBackup, "it is cut off after %d bytes", x.bytes)
		}
		return 0, 0, nil, err
	}
	payload = room.Bytes()
	x.sum.Write(payload)
	x.bytes += int64(len(payload))
	if x.aead != nil {
		at := x.bytes - int64(len(payload))
		if payload, err = x.aead.Open(nil, frameNonce(x.n), payload, append(x.aad[:len(x.aad):len(x.aad)], kind)); err != nil {
			return 0, 0, nil, fail(ErrBackup, "it was altered, at byte %d or behind", at)
		}
	}
	x.n++
	x.ended = kind == frameEnd
	return kind, int(binary.LittleEndian.Uint32(head[1:])), payload, nil
}

// A backupItem is one of a frame.
type backupItem struct {
	kind      byte
	partition int
	seq       uint64
	name      string // subject of a value, subject behind the partition's, or name of a file
	data      []byte
}

// each gives all items, and the summary at the end.
func (x *BackupReader) each(fn func(*backupItem) error) (*BackupSummary, error) {
	s := &BackupSummary{}
	for {
		kind, items, b, err := x.next()
		if errors.Is(err, io.EOF) {
			s.Header, s.Bytes = x.Header, x.bytes
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		broken := fail(ErrBackup, "a frame before byte %d is damaged", x.bytes)
		field := func() []byte {
			n, k := binary.Uvarint(b)
			if k <= 0 || n > uint64(len(b)-k) {
				err = broken
				return nil
			}
			f := b[k : k+int(n)]
			b = b[k+int(n):]
			return f
		}
		number := func() uint64 {
			n, k := binary.Uvarint(b)
			if k <= 0 {
				err = broken
				return 0
			}
			b = b[k:]
			return n
		}
		if kind == frameEnd {
			if text := field(); err != nil || json.Unmarshal(text, s) != nil {
				return nil, broken
			}
			continue
		}
		for range items {
			it := backupItem{kind: kind}
			if kind == frameLog {
				p := number()
				it.seq = number()
				if err == nil && (p >= uint64(x.Header.Partitions) || it.seq == 0) {
					return nil, broken
				}
				it.partition = int(p)
			}
			it.name = string(field())
			it.data = field()
			if err != nil {
				return nil, err
			}
			if err := fn(&it); err != nil {
				return nil, err
			}
		}
		if len(b) > 0 {
			return nil, broken
		}
	}
}

// checker compares what comes out of a backup with its summary.
type checker struct {
	parts  []BackupPartition
	sums   []logHash
	prefix string
	values uint64
	files  []string
}

func newChecker(h *BackupHeader) *checker {
	return &checker{parts: make([]BackupPartition, h.Partitions), sums: make([]logHash, h.Partitions), prefix: h.Prefix}
}

func (c *checker) add(it *backupItem) error {
	switch it.kind {
	case frameState:
		c.values++
	case frameFile:
		c.files = append(c.files, it.name)
	case frameLog:
		p := &c.parts[it.partition]
		if it.seq <= p.Last {
			return fail(ErrBackup, "record %d-%d stands behind %d", it.partition, it.seq, p.Last)
		}
		if p.First == 0 {
			p.First = it.seq
		}
		p.Last = it.seq
		p.Records++
		c.sums[it.partition].add(logSubject(c.prefix, it.partition)+it.name, it.seq, it.data)
	}
	return nil
}

// fits compares with a summary.
func (c *checker) fits(s *BackupSummary) error {
	if len(s.Partitions) != len(c.parts) || c.values != s.Values || !slices.Equal(c.files, s.Files) {
		return fail(ErrBackup, "it holds something else than its summary says")
	}
	for i, p := range s.Partitions {
		got := c.parts[i]
		if got.Records != p.Records || got.First != p.First || got.Last > p.Last || c.sums[i].String() != p.Head {
			return fail(ErrBackup, "partition %d does not fit its summary", i)
		}
	}
	return nil
}

// CheckBackup reads a backup to its end: its form, its checksum, and with open
// also that every record and value can be read and that the chains hold. Key as
// in [NewBackupReader].
func CheckBackup(r io.Reader, key []byte, open bool, progress func(done, total uint64)) (*BackupSummary, error) {
	x, err := NewBackupReader(r, key, open)
	if err != nil {
		return nil, err
	}
	if !open && x.Header.Encrypted() {
		return x.skim(progress)
	}
	c := newChecker(&x.Header)
	l := newLinks()
	l.loose = x.Header.Salvaged
	done := uint64(0)
	s, err := x.each(func(it *backupItem) error {
		if done++; progress != nil && done%4096 == 0 {
			progress(done, max(done, x.Header.Total))
		}
		if err := c.add(it); err != nil {
			return err
		}
		switch it.kind {
		case frameLog:
			return l.follows(it)
		case frameState:
			_, _, err := decodeState(x.Header.Prefix, it.name, it.data)
			return err
		}
		return nil
	})
	if errors.Is(err, ErrCorrupt) {
		err = failBy(ErrBackup, err, "it was altered, or the journal was damaged when it was made")
	}
	if err != nil {
		return nil, err
	}
	if progress != nil {
		progress(done, done)
	}
	return s, c.fits(s)
}

// skim checks an encrypted backup as far as it goes without its key.
func (x *BackupReader) skim(progress func(done, total uint64)) (*BackupSummary, error) {
	done := uint64(0)
	for {
		_, items, _, err := x.next()
		if errors.Is(err, io.EOF) {
			return &BackupSummary{Header: x.Header, Bytes: x.bytes}, nil
		}
		if err != nil {
			return nil, err
		}
		if done += uint64(items); progress != nil {
			progress(done, max(done, x.Header.Total))
		}
	}
}

// links checks that each record of a chain follows the one before it.
type links struct {
	heads map[hash16]uint64
	loose bool // records may be missing
}

func newLinks() links { return links{heads: make(map[hash16]uint64)} }

// follows reads a record and checks its chain. The heads of so many chains are
// held; of the others the next record is believed.
func (l *links) follows(it *backupItem) error {
	tag, ok := tagOf(it.name)
	if !ok || len(it.data) == 0 || strings.HasPrefix(tag, tagOfLease) {
		return nil
	}
	at := Position{it.partition, it.seq}
	r, err := decode(it.data)
	if errors.Is(err, errRecordVersion) {
		return failBy(ErrFormat, err, "record %s; use the release that wrote it, or a later one", at)
	}
	if err != nil {
		return failBy(ErrCorrupt, err, "record %s", at)
	}
	r.Position = at
	return l.follow(r.Record)
}

func (l *links) follow(r *Record) error {
	if r.Chain == nil || l.loose {
		return nil
	}
	at := r.Position
	name := nameHash(fmt.Sprintf("chain of %d", at.Partition), r.Chain.Name)
	if head, ok := l.heads[name]; ok && head != r.Chain.After {
		return fail(ErrCorrupt, "record %s follows %d of its chain, which ends at %d", at, r.Chain.After, head)
	}
	if len(l.heads) >= maxHeads {
		clear(l.heads)
	}
	l.heads[name] = at.Sequence
	return nil
}

// The form of a value in a backup: version, flags, which append made it (now always
// none), its end, the data.
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
	bucket, key, ok := stateKeyOf(prefix, subject)
	if !ok {
		return "", v, fail(ErrBackup, "%q is no key of the state", subject)
	}
	bad := fail(ErrBackup, "the value of %q in %q cannot be read", key, bucket)
	if len(b) < stateHead {
		return "", v, bad
	}
	if b[0] != stateVersion {
		return "", v, fail(ErrFormat, "the value of %q in %q has version %d; use the release that wrote it, or a later one", key, bucket, b[0])
	}
	removed := b[1]&stateRemoved != 0
	b = b[stateHead:]
	_, n := binary.Uvarint(b)
	if n <= 0 {
		return "", v, bad
	}
	b = b[n:]
	until, n := binary.Varint(b)
	if n <= 0 {
		return "", v, bad
	}
	return bucket, Value{Key: key, Data: b[n:], Until: fromNanos(until), Deleted: removed}, nil
}

// token writes a name as one token of a subject: letters, digits and - as they
// are, other bytes as _ and two hexadecimal digits; "_" alone for nothing.
func token(b *strings.Builder, s string) {
	if s == "" {
		b.WriteByte('_')
		return
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('_')
		b.WriteString(hex.EncodeToString([]byte{c}))
	}
}

func untoken(s string) (string, bool) {
	if s == "_" {
		return "", true
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '_' {
			out = append(out, s[i])
			continue
		}
		if len(s)-i < 3 {
			return "", false
		}
		c, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", false
		}
		out = append(out, c[0])
		i += 2
	}
	return string(out), true
}

// keySubject is a key as a subject: what stands between slashes is a token.
func keySubject(prefix, bucket, key string) string {
	var b strings.Builder
	b.WriteString(stateSubject(prefix))
	token(&b, bucket)
	for part := range strings.SplitSeq(key, "/") {
		b.WriteByte('.')
		token(&b, part)
	}
	return b.String()
}

func stateKeyOf(prefix, subject string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(subject, stateSubject(prefix))
	if !ok {
		return "", "", false
	}
	var parts []string
	for t := range strings.SplitSeq(rest, ".") {
		s, ok := untoken(t)
		if !ok {
			return "", "", false
		}
		parts = append(parts, s)
	}
	if len(parts) < 2 {
		return "", "", false
	}
	return parts[0], strings.Join(parts[1:], "/"), true
}
