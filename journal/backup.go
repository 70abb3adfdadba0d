package journal

import (
	"bufio"
	"bytes"
	"cmp"
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
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/chacha20poly1305"
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
	Journal    int       `json:"journal"` // format of the journal
	Prefix     string    `json:"prefix"`
	Partitions int       `json:"partitions"`
	Durability string    `json:"durability"`
	Total      uint64    `json:"total"` // records and values, about
	Salt       string    `json:"salt,omitempty"`
	Check      string    `json:"check,omitempty"` // tells whether a key is the right one; empty: not encrypted
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

// logHash is the hash over a partition's messages.
type logHash struct{ sum []byte }

func (h *logHash) add(s *stored) {
	d := sha256.New()
	d.Write(h.sum)
	var b [20]byte
	binary.LittleEndian.PutUint64(b[:], s.seq)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(s.subject)))
	binary.LittleEndian.PutUint64(b[12:], uint64(len(s.data)))
	d.Write(b[:])
	io.WriteString(d, s.subject)
	d.Write(s.data)
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

// maxStateRest is how much of the state may change while it is read for the
// last time, with all writers stopped.
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
// On an external engine other nodes go on writing: what the state names is in
// the log of the backup, but the partitions' ends are some milliseconds apart.
// Errors: ErrBusy; those of w.
func (j *Journal) Backup(ctx context.Context, w io.Writer, o BackupOptions) (*BackupSummary, error) {
	l, err := j.live()
	if err != nil {
		return nil, err
	}
	j.backupMu.Lock() // one at a time: each holds a page of the log in memory
	defer j.backupMu.Unlock()
	total := uint64(0)
	for _, p := range j.parts {
		if st, err := l.last(ctx, p.writer.stream); err == nil {
			total += st.Msgs
		}
	}
	if st, err := l.side.last(ctx, j.stateStream()); err == nil {
		total += st.Msgs
	}
	out, header, err := j.beginBackup(w, o.Hub, total)
	if err != nil {
		return nil, err
	}
	s := &BackupSummary{Header: *header}
	done := uint64(0)
	tell := func() {
		if done++; o.Progress != nil && done%1024 == 0 {
			o.Progress(done, max(total, done))
		}
	}
	value := func(m *stored) error {
		s.Values++
		tell()
		return out.item(frameState, nil, []byte(m.subject), m.data)
	}
	// The state is read in the order of its changes, so that at its end every
	// key has been met with its last value. What changes meanwhile comes again.
	seen, read := uint64(0), 0
	for {
		last, err := j.stateEnd(ctx, l)
		if err != nil {
			return nil, err
		}
		if read++; read > maxStateReads || read > 1 && last-min(last, seen) <= fewStateRest {
			break
		}
		if err := j.backupState(ctx, l, seen+1, last, value); err != nil {
			return nil, err
		}
		seen = max(seen, last)
	}
	ends := make([]uint64, len(j.parts))
	var rest []*stored
	var files []BackupFile
	err = j.still(ctx, func() error {
		if !j.external() {
			for i, p := range j.parts {
				ends[i] = p.position()
			}
		}
		// With other nodes, what is there at the end of this reading is the state:
		// each key's last value was met, for it goes on until nothing is left.
		last := uint64(math.MaxUint64)
		if !j.external() {
			last = j.state.position()
		}
		size := 0
		err := j.backupState(ctx, l, seen+1, last, func(m *stored) error {
			if size += len(m.data); size > maxStateRest {
				return fail(ErrBusy, "the state changes faster than the backup is taken away; write it to a faster place")
			}
			rest = append(rest, m)
			return nil
		})
		for i, p := range j.parts {
			if err != nil || !j.external() {
				break
			}
			var st jetstream.StreamState
			if st, err = l.last(ctx, p.writer.stream); err != nil {
				err = j.readError(ctx, err)
			}
			ends[i] = st.LastSeq
		}
		if err == nil && o.Files != nil {
			files, err = o.Files()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, m := range rest {
		if err := value(m); err != nil {
			return nil, err
		}
	}
	rest = nil
	for i, p := range j.parts {
		part, err := j.backupLog(ctx, l, p, ends[i], out, tell)
		if err != nil {
			return nil, err
		}
		s.Partitions = append(s.Partitions, part)
	}
	for _, f := range files {
		s.Files = append(s.Files, f.Name)
		if err := out.item(frameFile, nil, []byte(f.Name), f.Data); err != nil {
			return nil, err
		}
	}
	s.Ended = j.cfg.Now().UTC()
	if err := out.end(s); err != nil {
		return nil, err
	}
	if o.Progress != nil {
		o.Progress(done, done)
	}
	s.Bytes = out.bytes
	return s, nil
}

// stateEnd is the last change of the state.
func (j *Journal) stateEnd(ctx context.Context, l *link) (uint64, error) {
	if !j.external() {
		return j.state.position(), nil
	}
	st, err := l.side.last(ctx, j.stateStream())
	if err != nil {
		return 0, j.readError(ctx, err)
	}
	return st.LastSeq, nil
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
	m := &manifest{Prefix: j.prefix, Partitions: j.partitions, Durability: j.cfg.Durability}
	if j.dir != nil {
		m = &j.dir.manifest
	}
	h := &BackupHeader{
		What: backupWhat, Created: j.cfg.Now().UTC(), Hub: hub, Journal: manifestFormat, Prefix: m.Prefix, Partitions: m.Partitions,
		Durability: string(m.Durability), Total: total,
	}
	out := &backupWriter{w: bufio.NewWriterSize(w, 64<<10), sum: sha256.New()}
	if m.Encrypted {
		var salt [16]byte
		if _, err := io.ReadFull(j.cfg.Rand, salt[:]); err != nil {
			return nil, nil, err
		}
		h.Salt = hex.EncodeToString(salt[:])
		h.Check = hex.EncodeToString(h.derive(j.cfg.Key, "check"))
		var err error
		if out.aead, err = chacha20poly1305.New(h.derive(j.cfg.Key, "frames")); err != nil {
			return nil, nil, err
		}
	}
	b, err := json.Marshal(h)
	if err != nil {
		return nil, nil, err
	}
	head := append([]byte(backupMagic), backupVersion)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(b)))
	head = append(head, b...)
	sum := sha256.Sum256(head)
	out.aad = sum[:]
	return out, h, out.raw(head)
}

func (h *BackupHeader) derive(key []byte, use string) []byte {
	m := manifest{Salt: h.Salt}
	return m.derive(key, "backup "+use)
}

// backupState reads the values of a range of the state.
func (j *Journal) backupState(ctx context.Context, l *link, from, last uint64, fn func(*stored) error) error {
	if from > last {
		return nil
	}
	return j.backupPages(ctx, l.side, j.stateStream(), from, last, fn)
}

func (j *Journal) backupPages(ctx context.Context, l *link, stream string, from, last uint64, fn func(*stored) error) error {
	var bad error
	err := l.pages(ctx, stream, from, last, func(m *stored) bool {
		bad = fn(m)
		return bad == nil
	})
	if bad != nil {
		return bad
	}
	if err != nil {
		return j.readError(ctx, err)
	}
	return nil
}

// backupLog writes a partition up to its end as it was noted.
func (j *Journal) backupLog(ctx context.Context, l *link, p *partition, end uint64, out *backupWriter, tell func()) (BackupPartition, error) {
	var part BackupPartition
	var sum logHash
	base := j.logSubject(p.index)
	index := binary.AppendUvarint(nil, uint64(p.index))
	err := j.backupPages(ctx, l, p.writer.stream, 1, end, func(m *stored) error {
		m = p.current(m)
		switch kind := m.subject[len(base):]; {
		case kind == subjectGap:
			return nil
		case strings.HasPrefix(kind, subjectKey):
			// It has an end of its own, which it would not have when restored; the
			// key is known from its record.
			m = &stored{base + subjectMark, m.seq, nil}
		}
		if part.First == 0 {
			part.First = m.seq
		}
		part.Last = m.seq
		part.Records++
		sum.add(m)
		tell()
		return out.item(frameLog, binary.AppendUvarint(index[:len(index):len(index)], m.seq), []byte(m.subject[len(base):]), m.data)
	})
	part.Last = max(part.Last, end)
	part.Head = sum.String()
	return part, err
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
	if h.Journal > manifestFormat {
		return nil, fail(ErrFormat, "the backup is of a journal of format %d, this program knows %d; use the release that wrote it, or a later one", h.Journal, manifestFormat)
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
	base   func(p int) string
	values uint64
	files  []string
}

func newChecker(h *BackupHeader) *checker {
	j := Journal{prefix: h.Prefix}
	return &checker{parts: make([]BackupPartition, h.Partitions), sums: make([]logHash, h.Partitions), base: j.logSubject}
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
		c.sums[it.partition].add(&stored{c.base(it.partition) + it.name, it.seq, it.data})
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
	j := &Journal{prefix: x.Header.Prefix, partitions: x.Header.Partitions}
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
			return l.follows(j, it)
		case frameState:
			_, _, err := j.readState(&stored{it.name, 1, it.data})
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
type links struct{ heads map[hash16]uint64 }

func newLinks() links { return links{make(map[hash16]uint64)} }

// follows reads a record and checks its chain. The heads of so many chains are
// held; of the others the next record is believed.
func (l *links) follows(j *Journal, it *backupItem) error {
	p := partition{j: j, index: it.partition}
	r, err := p.read(&stored{j.logSubject(it.partition) + it.name, it.seq, it.data})
	if err != nil {
		return err
	}
	if r == nil || r.Chain == nil {
		return nil
	}
	name := nameHash(fmt.Sprintf("chain of %d", it.partition), r.Chain.Name)
	if head, ok := l.heads[name]; ok && head != r.Chain.After {
		return fail(ErrCorrupt, "record %s follows %d of its chain, which ends at %d", r.Position, r.Chain.After, head)
	}
	if len(l.heads) >= maxHeads {
		clear(l.heads)
	}
	l.heads[name] = it.seq
	return nil
}

// RestoreConfig says where a backup goes: into a directory, for the embedded
// engine, or to an external engine.
type RestoreConfig struct {
	Dir string // absent or empty
	Key []byte // of the backup, where it is encrypted; the journal in Dir is encrypted with it

	URL      string // of the external engine, in place of Dir
	Prefix   string // of the streams there; "": the backup's
	Replicas int    // of each stream there; 0: as in Config
	NATS     []nats.Option

	// File is given the files of the backup. Nil: they are left out.
	File func(BackupFile) error

	Now      func() time.Time
	Rand     io.Reader
	Log      *slog.Logger
	Progress func(done, total uint64) // records and values
}

// Restore makes a journal of a backup in an empty directory, or with an external
// engine that has none under the prefix, and reads it back: counts and hashes must
// be those of the backup. It does not return before all is synced, or
// acknowledged by the external engine. After an error there may be a part, with
// which no journal opens. Errors: ErrForeign, ErrBackup, ErrFormat, ErrKey,
// ErrServer, ErrCorrupt.
func Restore(ctx context.Context, r io.Reader, c RestoreConfig) (*BackupSummary, error) {
	x, err := NewBackupReader(r, c.Key, true)
	if err != nil {
		return nil, err
	}
	cfg := Config{Dir: c.Dir, Prefix: x.Header.Prefix, Partitions: x.Header.Partitions, Durability: Durability(x.Header.Durability), Key: c.Key,
		Now: c.Now, Rand: c.Rand, Log: c.Log, MaxPayload: 24 << 20, Node: "restore"}
	switch {
	case c.URL != "":
		cfg.URL, cfg.Key, cfg.Durability, cfg.MaxPayload = c.URL, nil, Replicated, 0
		cfg.Replicas, cfg.NATS, cfg.Prefix = c.Replicas, c.NATS, cmp.Or(c.Prefix, cfg.Prefix)
	case cfg.Durability != Disk:
		cfg.Durability = Disk
	}
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	j := &Journal{cfg: cfg, changed: make(chan struct{})}
	j.ctx, j.cancel = context.WithCancel(ctx)
	defer j.cancel()
	w := restorer{j: j, c: &c, check: newChecker(&x.Header), total: x.Header.Total, links: newLinks(), from: &Journal{prefix: x.Header.Prefix}}
	if j.external() {
		err = w.openExternal(ctx, x.Header.Partitions)
	} else {
		err = w.openEmbedded(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer w.stop()
	w.next, w.records = make([]uint64, j.partitions), make([]uint64, j.partitions)
	s, err := x.each(func(it *backupItem) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return w.take(ctx, it)
	})
	if err == nil {
		err = w.flush()
	}
	if err == nil {
		err = w.check.fits(s)
	}
	if err == nil {
		err = w.finish(ctx, s)
	}
	if err == nil {
		err = w.complete(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.undo())
	}
	if c.Progress != nil {
		c.Progress(w.done, w.done)
	}
	return s, nil
}

func (w *restorer) openEmbedded(ctx context.Context) (err error) {
	j := w.j
	if j.dir, err = openDirectory(&j.cfg, j.cfg.Rand); err != nil {
		return err
	}
	if !j.dir.fresh {
		j.dir.release()
		return fail(ErrForeign, "%s holds a journal already; give an empty directory", w.c.Dir)
	}
	j.prefix, j.partitions = j.dir.manifest.Prefix, j.dir.manifest.Partitions
	j.restoring = true // nothing is acknowledged before everything is synced
	if w.l, err = j.startEmbedded(ctx); err != nil {
		j.dir.release()
		return err
	}
	j.link.Store(w.l)
	return nil
}

// openExternal sees that there is no journal yet, and makes the state's stream,
// by which hubs find that there is one that is not whole.
func (w *restorer) openExternal(ctx context.Context, partitions int) (err error) {
	j := w.j
	if w.l, err = j.connect(ctx); err != nil {
		return err
	}
	j.partitions = partitions
	j.link.Store(w.l)
	for _, spec := range j.streams() {
		var there bool
		err := j.patiently(ctx, "stream "+spec.Name, func(ctx context.Context) error {
			_, err := w.l.js.Stream(ctx, spec.Name)
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				return nil
			}
			there = err == nil
			return err
		})
		if err == nil && there {
			err = fail(ErrForeign, "stream %s is there already: remove the streams %s_… if nothing of them is needed, or choose another prefix", spec.Name, j.prefix)
		}
		if err != nil {
			w.stop()
			return err
		}
	}
	if err := w.make(ctx, j.stateStream(), 0); err != nil {
		err = errors.Join(err, w.undo())
		w.stop()
		return err
	}
	return nil
}

// stop ends what was opened.
func (w *restorer) stop() {
	if w.stopped {
		return
	}
	w.stopped = true
	w.j.closing.Store(true)
	w.l.stop()
	if w.j.dir != nil {
		w.j.dir.release()
	}
}

// complete makes a journal of what was restored.
func (w *restorer) complete(ctx context.Context) error {
	j := w.j
	if !j.external() {
		j.closing.Store(true)
		w.l.stop()
		if err := syncTree(j.dir.engine()); err != nil {
			return err
		}
		for _, spec := range j.streams() {
			j.dir.manifest.Streams = append(j.dir.manifest.Streams, spec.path())
		}
		return errors.Join(j.dir.save(), j.dir.closed())
	}
	for _, spec := range j.streams() {
		if spec.Name != j.stateStream() {
			continue
		}
		return j.patiently(ctx, "stream "+spec.Name, func(ctx context.Context) error {
			_, err := w.l.js.UpdateStream(ctx, spec.StreamConfig)
			return err
		})
	}
	return nil
}

// undo removes from an external engine what was made there.
func (w *restorer) undo() error {
	if !w.j.external() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.j.cfg.Timeout)
	defer cancel()
	var errs []error
	for name := range w.made {
		if err := w.l.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, fmt.Errorf("remove stream %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// restorer publishes what a backup holds.
type restorer struct {
	j      *Journal
	l      *link
	c      *RestoreConfig
	check  *checker
	links  links
	logs   *publisher
	states *publisher
	made   map[string]bool
	from   *Journal // names things as the backup does
	next   []uint64 // the sequence that each partition's next message gets

	records []uint64 // of each partition, and gaps between them
	gaps    uint64
	stopped bool

	done  uint64
	total uint64

	kind  byte
	part  int
	batch []*outgoing
	bytes int
}

func (w *restorer) take(ctx context.Context, it *backupItem) error {
	if err := w.check.add(it); err != nil {
		return err
	}
	if w.kind != it.kind || w.part != it.partition || len(w.batch) >= 512 || w.bytes > 4<<20 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.kind, w.part = it.kind, it.partition
	if w.done++; w.c.Progress != nil && w.done%4096 == 0 {
		w.c.Progress(w.done, max(w.done, w.total))
	}
	switch it.kind {
	case frameFile:
		if w.c.File == nil {
			return nil
		}
		return w.c.File(BackupFile{it.name, it.data})
	case frameState:
		return w.value(ctx, it)
	}
	return w.record(ctx, it)
}

// value puts a value of the state back, if its time is not over.
func (w *restorer) value(ctx context.Context, it *backupItem) error {
	if err := w.make(ctx, w.j.stateStream(), 0); err != nil {
		return err
	}
	c, _, err := w.from.readState(&stored{it.name, 1, it.data})
	if err != nil {
		return err
	}
	if c == nil {
		return fail(ErrBackup, "%q is no key of the state", it.name)
	}
	m := &outgoing{subject: w.j.stateSubject() + strings.TrimPrefix(it.name, w.from.stateSubject()), data: it.data}
	switch now := w.j.cfg.Now(); {
	case c.value.Deleted:
		m.ttl = int64(removalsKept / time.Second)
	case !c.value.Until.IsZero():
		m.ttl = int64((max(0, c.value.Until.Sub(now)) + ttlMargin) / time.Second)
	}
	w.put(m)
	return nil
}

// record puts a record back under the sequence that it had.
func (w *restorer) record(ctx context.Context, it *backupItem) error {
	j := w.j
	if w.next[it.partition] == 0 {
		w.next[it.partition] = it.seq
		if err := w.make(ctx, j.logStream(it.partition), it.seq); err != nil {
			return err
		}
	}
	if err := w.links.follows(w.from, it); err != nil {
		return err
	}
	base := j.logSubject(it.partition)
	if err := w.fill(it.partition, it.seq); err != nil {
		return err
	}
	w.next[it.partition] = it.seq + 1
	w.records[it.partition]++
	w.put(&outgoing{subject: base + it.name, data: it.data})
	return nil
}

// maxGap is how many sequences of a journal may be missing, beside as many as it
// has records: with an external engine each long-lived key leaves a gap when it ends.
const maxGap = 1 << 20

// fill puts marks where the log had nothing, so that what follows gets its own
// sequence.
func (w *restorer) fill(p int, to uint64) error {
	for ; w.next[p] < to; w.next[p]++ {
		if w.gaps++; w.gaps > maxGap+4*w.records[p] {
			return fail(ErrBackup, "partition %d lacks more than %d records in between", p, maxGap)
		}
		if len(w.batch) >= 512 {
			if err := w.flush(); err != nil {
				return err
			}
		}
		w.put(&outgoing{subject: w.j.logSubject(p) + subjectGap})
	}
	return nil
}

func (w *restorer) put(m *outgoing) {
	w.batch = append(w.batch, m)
	w.bytes += len(m.data) + len(m.subject)
}

// make makes a stream when its first message comes.
func (w *restorer) make(ctx context.Context, name string, first uint64) error {
	if w.made[name] {
		return nil
	}
	if w.made == nil {
		w.made = make(map[string]bool)
	}
	for _, spec := range w.j.streams() {
		if spec.Name != name {
			continue
		}
		spec.FirstSeq = first
		if w.j.external() && name == w.j.stateStream() {
			spec.Metadata[metaFormat] = formatRestoring
		}
		w.made[name] = true
		if err := w.j.patiently(ctx, "stream "+name, func(ctx context.Context) error {
			_, err := spec.on(w.l).js.CreateStream(ctx, spec.StreamConfig)
			return err
		}); err != nil {
			return fmt.Errorf("make stream %s: %w", name, err)
		}
	}
	return nil
}

func (w *restorer) flush() error {
	if len(w.batch) == 0 {
		return nil
	}
	pub := &w.logs
	if w.kind == frameState {
		pub = &w.states
	}
	if *pub == nil {
		var err error
		if *pub, err = newPublisher(w.l, w.kind == frameState); err != nil {
			return err
		}
	}
	seq := uint64(0)
	if w.kind == frameLog {
		seq = w.next[w.part] - uint64(len(w.batch))
	}
	for i, a := range (*pub).plain(w.batch, w.j.cfg.Timeout) {
		switch {
		case !a.arrived:
			return fail(ErrBusy, "the engine does not answer")
		case a.err != nil:
			return w.j.engineError(a)
		case seq != 0 && a.seq != seq+uint64(i):
			return fail(ErrCorrupt, "a record of sequence %d was stored as %d", seq+uint64(i), a.seq)
		}
	}
	w.batch, w.bytes = w.batch[:0], 0
	return nil
}

// finish makes the streams that had nothing, and reads everything back.
func (w *restorer) finish(ctx context.Context, s *BackupSummary) error {
	j := w.j
	for p := range j.partitions {
		// A log that is empty goes on where it was.
		if err := w.make(ctx, j.logStream(p), max(1, s.Partitions[p].Last+1)); err != nil {
			return err
		}
		if w.next[p] == 0 {
			w.next[p] = s.Partitions[p].Last + 1
		}
		w.kind, w.part = frameLog, p
		if err := errors.Join(w.fill(p, s.Partitions[p].Last+1), w.flush()); err != nil {
			return err
		}
	}
	for _, name := range []string{j.stateStream(), j.checkpointStream()} {
		if err := w.make(ctx, name, 0); err != nil {
			return err
		}
	}
	for p, want := range s.Partitions {
		got := BackupPartition{Last: want.Last}
		var sum logHash
		err := j.backupPages(ctx, w.l, j.logStream(p), 1, math.MaxUint64, func(m *stored) error {
			kind := m.subject[len(j.logSubject(p)):]
			if kind == subjectGap {
				return nil
			}
			m.subject = w.from.logSubject(p) + kind
			if got.First == 0 {
				got.First = m.seq
			}
			got.Records++
			sum.add(m)
			return nil
		})
		got.Head = sum.String()
		if err != nil {
			return err
		}
		if got != want {
			return fail(ErrCorrupt, "partition %d reads back as %d records with the head %s, the backup has %d with %s", p, got.Records, got.Head, want.Records, want.Head)
		}
	}
	return j.backupPages(ctx, w.l.side, j.stateStream(), 1, math.MaxUint64, func(m *stored) error {
		_, _, err := j.readState(m)
		return err
	})
}
