package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/minio/highwayhash"
	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/parley-hub/parley"
)

// Erasing takes the content out of records that stay where they are: who wrote
// to whom and when, replay keys, chains and what became of each delivery are
// kept, so that nothing that rests on a record's place has to change. The new
// form of a record is filled up to the length of the old one and written over
// it in the engine's block.
//
// The engine itself is not asked to: it would rewrite blocks of the log without
// a sync (the log's part leaves that to the journal, see syncer), and rewrite a
// whole block for each record. Overwriting is safe because the log is only
// appended to: a record never moves. It is made durable so:
//
//  1. what will be written is put into the file "erasing", which is synced and
//     renamed into place;
//  2. it is written over the records, and the blocks are synced;
//  3. the file is removed.
//
// A crash in between is mended at the next start, before the files are checked:
// the file is whole and its writes are made again, or it is not whole and
// nothing was overwritten.
//
// The engine may still hold a block in memory as it was; until it has read it
// anew, what is read of it is erased on the way (see overlay).

// Erased says that the content of a record's message was erased: the bytes as
// received and their headers, the data of its parts, names of files,
// extensions, texts of errors and the network address. Digests remain where
// they cannot be guessed: of the envelope, and of parts of 64 bytes or more.
type Erased struct {
	Number uint64 // of the [Erasure]
	Digest []byte // SHA-256 of the envelope as received; nil where there was none
	Size   uint64 // of the envelope
}

// digestFrom is the size from which content has a digest after its erasure: of
// less, a digest would give the content away to who tries all.
const digestFrom = 64

func (r *sealed) erased() *Erased {
	if r.Erased == nil {
		r.Erased = new(Erased)
	}
	return r.Erased
}

// An Erasure is why content was erased: one for each command, and one for each
// change of what retention says.
type Erasure struct {
	Number  uint64    `json:"number"`
	What    string    `json:"what"` // "agent", "conversation" or "retention"
	Name    string    `json:"name,omitempty"`
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
	Begun   time.Time `json:"begun"`
	Ended   time.Time `json:"ended,omitzero"` // zero: not finished; it goes on at the next start
	UpTo    []uint64  `json:"upTo,omitempty"` // by partition: what is recorded later is not meant
	Records uint64    `json:"records"`        // erased by it
	Kept    uint64    `json:"kept,omitempty"` // could not be erased yet
}

const erasureBucket = "erasures"

func erasureKey(n uint64) string { return fmt.Sprintf("%012d", n) }

// NewErasure gives e the next number and records it.
func (j *Journal) NewErasure(ctx context.Context, e Erasure) (Erasure, error) {
	if j.external() {
		return e, fail(ErrServer, "content on a NATS cluster cannot be erased: its servers keep copies in the logs by which they replicate, and overwrite nothing where they encrypt; what must go can only be removed there, record and all, with nats stream rmm %s_LOG_… SEQUENCE while no hub runs", j.prefix)
	}
	s := j.State(erasureBucket)
	for {
		last, err := j.Erasures(ctx)
		if err != nil {
			return e, err
		}
		e.Number = 1
		if n := len(last); n > 0 {
			e.Number = last[n-1].Number + 1
		}
		if e.Begun.IsZero() {
			e.Begun = j.cfg.Now().UTC()
		}
		e.UpTo = nil
		for _, p := range j.parts {
			e.UpTo = append(e.UpTo, p.position())
		}
		b, err := json.Marshal(&e)
		if err != nil {
			return e, err
		}
		if _, err = s.Create(ctx, erasureKey(e.Number), b, time.Time{}); !errors.Is(err, ErrExists) {
			return e, err
		}
	}
}

// PutErasure records how far an erasure has come.
func (j *Journal) PutErasure(ctx context.Context, e Erasure) error {
	b, err := json.Marshal(&e)
	if err == nil {
		_, err = j.State(erasureBucket).Put(ctx, erasureKey(e.Number), b, time.Time{})
	}
	return err
}

// Erasure finds one by its number, or says ErrNotFound.
func (j *Journal) Erasure(ctx context.Context, number uint64) (e Erasure, err error) {
	v, err := j.State(erasureBucket).Get(ctx, erasureKey(number))
	if err == nil {
		err = json.Unmarshal(v.Data, &e)
	}
	return e, err
}

// Erasures lists all, by number.
func (j *Journal) Erasures(ctx context.Context) (out []Erasure, err error) {
	for v, err := range j.State(erasureBucket).Range(ctx, "") {
		if err != nil {
			return nil, err
		}
		var e Erasure
		if err := json.Unmarshal(v.Data, &e); err != nil {
			return nil, failBy(ErrCorrupt, err, "erasure %s", v.Key)
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Erasure) int { return int(a.Number) - int(b.Number) })
	return out, nil
}

// Held says why the content of a record must stay for now, "" if it need not:
// a delivery of its message, or one that it has steps of and no message, is not
// settled, or is a dead letter.
func (j *Journal) Held(r *Record) string {
	if r.Position.Partition >= len(j.parts) {
		return ""
	}
	p := j.parts[r.Position.Partition]
	why := func(message parley.ID, to string) string {
		d, ok := p.find(message, to)
		switch {
		case !ok:
			return ""
		case d.State == parley.Dead:
			return "dead letter"
		}
		return "not delivered"
	}
	if r.Message == nil {
		for i := range r.Steps {
			if why := why(r.Steps[i].Message, r.Steps[i].To); why != "" {
				return why
			}
		}
		return ""
	}
	for i := range r.Open {
		if why := why(r.Message.ID, r.Open[i].To); why != "" {
			return why
		}
	}
	return ""
}

// HasContent reports whether there is something in a record to erase: content
// of its message, or texts of errors, which may quote some.
func HasContent(r *Record) bool {
	return r.Erased == nil && (messageContent(r.Message) || r.Refused != nil && r.Refused.Text != "" ||
		slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Error != nil && s.Error.Text != "" }))
}

func messageContent(m *parley.Message) bool {
	if m == nil {
		return false
	}
	return len(m.Origin.Raw) > 0 || len(m.Origin.Header) > 0 || len(m.Extensions) > 0 || m.Origin.Address != "" || m.Error != nil && m.Error.Text != "" ||
		slices.ContainsFunc(m.Parts, func(p parley.Part) bool { return len(p.Data) > 0 || p.Name != "" || p.URI != "" })
}

// stripped gives a record without content. It must not be longer than the one it
// replaces: the less there was, the less of the rest is kept beside it.
func stripped(data []byte, number uint64) ([]byte, error) {
	r, err := decode(data)
	if err != nil {
		return nil, err
	}
	if !HasContent(r.Record) {
		return nil, nil
	}
	old, rest := r.Message, *r.Record
	rest.Refused, rest.Steps = textless(rest.Refused), slices.Clone(rest.Steps)
	for i := range rest.Steps {
		rest.Steps[i].Error = textless(rest.Steps[i].Error)
	}
	seal := func(rec *Record) []byte {
		return encode(&sealed{Record: rec, run: r.run, number: r.number, key: r.key, sender: r.sender})
	}
	if old == nil {
		return seal(&rest), nil
	}
	for level := range 4 {
		m := *old
		x := &Erased{Number: number}
		if raw := old.Origin.Raw; len(raw) > 0 {
			x.Size = uint64(len(raw))
			if len(raw) >= digestFrom && level < 2 {
				sum := sha256.Sum256(raw)
				x.Digest = sum[:]
			}
		}
		m.Origin.Raw, m.Origin.Header, m.Origin.Address, m.Extensions = nil, nil, "", nil
		m.Parts = slices.Clone(old.Parts)
		for i := range m.Parts {
			p := &m.Parts[i]
			digest := ""
			if level == 0 && len(p.Data) >= digestFrom {
				sum := sha256.Sum256(p.Data)
				digest = "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
			}
			*p = parley.Part{MediaType: p.MediaType, Digest: digest}
		}
		m.Error = textless(m.Error)
		if level == 3 {
			m.Trace, m.Schema, m.Origin.Verdict.Checks = parley.Trace{}, "", nil
			for i := range m.Parts {
				m.Parts[i].MediaType = ""
			}
		}
		rec := rest
		rec.Message, rec.Erased = &m, x
		if out := seal(&rec); len(out) <= len(data) {
			return out, nil
		}
	}
	return nil, fail(ErrTooLarge, "there is less content than the note that it was erased")
}

func textless(e *parley.Error) *parley.Error {
	if e == nil || e.Text == "" {
		return e
	}
	c := e.Because(nil)
	c.Text = ""
	return c
}

// overlay is what was erased since the engine has read its blocks, perhaps.
type overlay struct {
	mu sync.RWMutex
	m  map[uint64]uint64 // number of the erasure by sequence
}

func (o *overlay) number(seq uint64) uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.m[seq]
}

// current gives a message as the log has it: the engine may have it in memory
// as it was before its content was erased.
func (p *partition) current(m *stored) *stored {
	n := p.erasing.number(m.seq)
	if n == 0 {
		return m
	}
	b, err := stripped(m.data, n)
	if err != nil || b == nil {
		return m // it is erased, or no record
	}
	return &stored{m.subject, m.seq, append(b, make([]byte, len(m.data)-len(b))...)}
}

// refresh forgets what the engine has read anew.
func (p *partition) refresh(ctx context.Context, l *link) {
	p.erasing.mu.RLock()
	seqs := make([]uint64, 0, len(p.erasing.m))
	for seq := range p.erasing.m {
		seqs = append(seqs, seq)
	}
	p.erasing.mu.RUnlock()
	slices.Sort(seqs)
	for _, seq := range seqs {
		m, err := l.get(ctx, p.writer.stream, seq, "")
		if err != nil {
			return
		}
		if r, err := decode(m.data); err == nil && !HasContent(r.Record) {
			p.erasing.mu.Lock()
			delete(p.erasing.m, seq)
			p.erasing.mu.Unlock()
		}
	}
}

// patch is one overwriting.
type patch struct {
	File   string `json:"file"` // relative to the data directory
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`

	// Before is what stands before the offset. Where the file has something else
	// there by now, it was written anew, without what was to be overwritten.
	Before []byte `json:"before,omitempty"`
}

const (
	redoName   = "erasing"
	redoMax    = 256 << 20
	eraseBatch = 256
	eraseBytes = 4 << 20
)

// Erase takes the content out of the records at the positions, as the erasure of
// that number, and returns when that is on the disk. It gives how many it has
// changed: records without content, or erased before, are left alone, so that it
// may be called again after any error. What is held (see [Journal.Held]) is
// erased too: ask before.
func (j *Journal) Erase(ctx context.Context, number uint64, at []Position) (n int, err error) {
	if j.external() {
		return 0, fail(ErrServer, "content on a NATS cluster cannot be erased in place")
	}
	if number == 0 {
		return 0, fail(ErrInvalid, "an erasure needs a number")
	}
	j.eraseMu.Lock()
	defer j.eraseMu.Unlock()
	byPartition := make(map[int][]uint64)
	for _, a := range at {
		if a.Partition < 0 || a.Partition >= len(j.parts) {
			return n, fail(ErrNotFound, "record %s", a)
		}
		byPartition[a.Partition] = append(byPartition[a.Partition], a.Sequence)
	}
	for _, p := range j.parts {
		seqs := byPartition[p.index]
		if len(seqs) == 0 {
			continue
		}
		slices.Sort(seqs)
		seqs = slices.Compact(seqs)
		l, err := j.live()
		if err != nil {
			return n, err
		}
		p.refresh(ctx, l)
		// The engine compares the last record of a block with what it remembers
		// of it: that one must not change.
		if seqs[len(seqs)-1] >= p.position() {
			if err := p.mark(ctx); err != nil {
				return n, err
			}
		}
		for len(seqs) > 0 {
			if err := ctx.Err(); err != nil {
				return n, err
			}
			some := seqs[:min(len(seqs), eraseBatch)]
			seqs = seqs[len(some):]
			k, err := j.erase(ctx, l, p, number, some)
			n += k
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// mark appends a message that is no record.
func (p *partition) mark(ctx context.Context) error {
	m := &outgoing{subject: p.subject(subjectMark, "")}
	return p.writer.submit(ctx, &op{id: opID{p.j.run, p.j.number.Add(1)}, msgs: []*outgoing{m}, size: len(m.subject) + 100, reserve: true})
}

// erase overwrites some records of a partition, in their order.
func (j *Journal) erase(ctx context.Context, l *link, p *partition, number uint64, seqs []uint64) (n int, err error) {
	if j.cfg.Durability == Memory {
		return 0, fail(ErrServer, "a journal in memory has nothing on a disk to erase; restart the hub")
	}
	// The engine must not read a block while it is overwritten: what it has
	// just been asked for it holds for some seconds.
	if _, err := l.get(ctx, p.writer.stream, seqs[0], ""); err != nil && !errors.Is(err, errNoMessage) {
		return 0, j.readError(ctx, err)
	}
	if err := j.dir.redo(); err != nil {
		return 0, err
	}
	f := blockFiles{d: j.dir, cfg: &j.cfg, stream: j.logStream(p.index)}
	var patches []patch
	var done []uint64
	size := 0
	flush := func() error {
		if len(patches) == 0 {
			return nil
		}
		p.erasing.mu.Lock()
		if p.erasing.m == nil {
			p.erasing.m = make(map[uint64]uint64)
		}
		for _, seq := range done {
			p.erasing.m[seq] = number
		}
		p.erasing.mu.Unlock()
		err := j.dir.overwrite(patches)
		if err == nil {
			n += len(patches)
		}
		patches, done, size = nil, nil, 0
		return err
	}
	err = f.each(seqs, func(seq uint64, x *patch, data []byte, seal func([]byte) []byte) error {
		b, err := stripped(data, number)
		if errors.Is(err, errRecord) {
			return nil // a mark, or a lease
		}
		if err != nil {
			return fmt.Errorf("record %d-%d: %w", p.index, seq, err)
		}
		if b == nil {
			return nil
		}
		fill := make([]byte, len(data)-len(b))
		if j.dir.manifest.Encrypted {
			// Known bytes under the same stream of the cipher would show
			// what was there to who has a copy from before.
			if _, err := io.ReadFull(j.cfg.Rand, fill); err != nil {
				return err
			}
		}
		x.Data = seal(append(b, fill...))
		patches, done = append(patches, *x), append(done, seq)
		if size += len(x.Data); size >= eraseBytes {
			return flush()
		}
		return nil
	})
	return n, errors.Join(err, flush())
}

// blockFiles finds records in the blocks of a stream.
type blockFiles struct {
	d      *directory
	cfg    *Config
	stream string
}

// find gives the index of the block that would have a record: the last one that
// begins at or before it, -1 if all begin behind it.
func (f *blockFiles) find(dir string, blocks []int, seq uint64) (int, error) {
	var bad error
	i, _ := slices.BinarySearchFunc(blocks, seq, func(n int, seq uint64) int {
		first, err := f.first(dir, n)
		if err != nil {
			bad = err
		}
		if first <= seq {
			return -1
		}
		return 1
	})
	return i - 1, bad
}

// each calls fn for each of the sequences, in their order, that a block holds:
// where its data stands, the data, and what seals new data of the same length
// together with the checksum behind it.
func (f *blockFiles) each(seqs []uint64, fn func(seq uint64, x *patch, data []byte, seal func([]byte) []byte) error) error {
	dir := f.d.stream(partLog + "/" + f.stream)
	blocks, err := blockNumbers(dir)
	if err != nil {
		return err
	}
	for len(seqs) > 0 {
		i, err := f.find(dir, blocks, seqs[0])
		if err != nil {
			return err
		}
		if i < 0 {
			seqs = seqs[1:] // it was removed
			continue
		}
		rest, err := f.block(dir, blocks[i], seqs, fn)
		if err != nil {
			return err
		}
		if len(rest) == len(seqs) {
			rest = rest[1:] // in a gap behind the block
		}
		seqs = rest
	}
	return nil
}

// cipher is that of a block; nil where it is not encrypted.
func (f *blockFiles) cipher(dir string, n int) (*chacha20.Cipher, error) {
	if !f.d.manifest.Encrypted {
		return nil, nil
	}
	s := streamFiles{dir: dir, name: f.stream, key: engineKey(&f.d.manifest, f.cfg.Key)}
	sealed, err := os.ReadFile(filepath.Join(dir, "msgs", strconv.Itoa(n)+".key"))
	if err != nil {
		return nil, err
	}
	seed, err := s.unseal(fmt.Sprintf("%s:%d", f.stream, n), sealed)
	if err != nil {
		return nil, err
	}
	return chacha20.NewUnauthenticatedCipher(seed, sealed[:chacha20poly1305.NonceSizeX])
}

const engineBits = uint64(1)<<63 | uint64(1)<<62 // of a sequence: erased, or the mark of a removal

// first is the sequence that a block begins with.
func (f *blockFiles) first(dir string, n int) (uint64, error) {
	file, err := os.Open(filepath.Join(dir, "msgs", strconv.Itoa(n)+".blk"))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var h [recordHeader]byte
	if _, err := io.ReadFull(file, h[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return 1<<64 - 1, nil // just made
		}
		return 0, err
	}
	c, err := f.cipher(dir, n)
	if err != nil {
		return 0, err
	}
	if c != nil {
		c.XORKeyStream(h[:], h[:])
	}
	return binary.LittleEndian.Uint64(h[4:]) &^ engineBits, nil
}

// block handles the sequences that lie in one block, and gives the others.
func (f *blockFiles) block(dir string, n int, seqs []uint64, fn func(uint64, *patch, []byte, func([]byte) []byte) error) ([]uint64, error) {
	path := filepath.Join(dir, "msgs", strconv.Itoa(n)+".blk")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	name, err := filepath.Rel(f.d.path, path)
	if err != nil {
		return nil, err
	}
	written := b
	var stream []byte // of the cipher
	if f.d.manifest.Encrypted {
		c, err := f.cipher(dir, n)
		if err != nil {
			return nil, err
		}
		stream = make([]byte, len(b))
		c.XORKeyStream(stream, stream)
		b = make([]byte, len(written))
		subtle.XORBytes(b, written, stream)
	}
	digest, err := highwayhash.NewDigest64(digestKey(fmt.Sprintf("%s-%d", f.stream, n)))
	if err != nil {
		return nil, err
	}
	for at := 0; at < len(b) && len(seqs) > 0; {
		if len(b)-at < recordHeader+recordSum {
			break // being written
		}
		h := b[at : at+recordHeader]
		length := binary.LittleEndian.Uint32(h)
		subject := int(binary.LittleEndian.Uint16(h[20:]))
		withHeader := length&recordHasHdr != 0
		length &^= recordHasHdr
		if length < recordHeader+recordSum || int(length) > len(b)-at {
			break
		}
		seq := binary.LittleEndian.Uint64(h[4:])
		for len(seqs) > 0 && seqs[0] < seq&^engineBits {
			seqs = seqs[1:]
		}
		if len(seqs) == 0 || seqs[0] != seq {
			at += int(length)
			continue
		}
		body := b[at+recordHeader : at+int(length)]
		start, hashed := subject, subject
		if withHeader {
			if len(body) < subject+4 {
				return nil, fail(ErrCorrupt, "record %d in %s", seq, name)
			}
			hashed += 4
			start = hashed + int(binary.LittleEndian.Uint32(body[subject:]))
		}
		if start < 0 || start > len(body)-recordSum {
			return nil, fail(ErrCorrupt, "record %d in %s", seq, name)
		}
		end := len(body) - recordSum
		sum := func(data []byte) []byte {
			digest.Reset()
			digest.Write(h[4:20])
			digest.Write(body[:subject])
			digest.Write(body[hashed:start])
			digest.Write(data)
			return digest.Sum(nil)
		}
		data := body[start:end]
		if !bytes.Equal(sum(data), body[end:]) {
			return nil, fail(ErrCorrupt, "record %d in %s does not match its checksum; restore a backup", seq, name)
		}
		offset := at + recordHeader + start
		seal := func(data []byte) []byte {
			out := append(data, sum(data)...)
			if stream != nil {
				subtle.XORBytes(out, out, stream[offset:])
			}
			return out
		}
		if err := fn(seq, &patch{File: filepath.ToSlash(name), Offset: int64(offset), Before: written[at:offset]}, data, seal); err != nil {
			return nil, err
		}
		seqs = seqs[1:]
		at += int(length)
	}
	return seqs, nil
}

// overwrite makes patches durably: wholly, or at the next start.
func (d *directory) overwrite(patches []patch) error {
	b, err := json.Marshal(patches)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	if err := d.replace(redoName, append([]byte(hex.EncodeToString(sum[:])+"\n"), b...)); err != nil {
		return err
	}
	d.step("noted")
	return d.redo()
}

// redo makes the overwritings that were noted, if there are any.
func (d *directory) redo() error {
	path := filepath.Join(d.path, redoName)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(file, redoMax))
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	head, rest, _ := bytes.Cut(b, []byte("\n"))
	sum := sha256.Sum256(rest)
	var patches []patch
	// It is renamed into place when it is whole; one that is not was never
	// begun to be carried out.
	if hex.EncodeToString(sum[:]) == string(head) && json.Unmarshal(rest, &patches) == nil {
		if err := d.patch(patches); err != nil {
			return fmt.Errorf("finish an erasure: %w", err)
		}
	}
	d.step("synced")
	if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(d.path)
}

// patch overwrites and syncs.
func (d *directory) patch(patches []patch) error {
	for len(patches) > 0 {
		name := patches[0].File
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return fail(ErrCorrupt, "%s names a file outside of %s", redoName, d.path)
		}
		file, err := os.OpenFile(filepath.Join(d.path, filepath.FromSlash(name)), os.O_RDWR, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for len(patches) > 0 && patches[0].File == name {
			x := patches[0]
			patches = patches[1:]
			if file == nil {
				continue // the block was removed with all it held
			}
			if len(x.Before) > 0 {
				there := make([]byte, len(x.Before)+len(x.Data))
				_, err := file.ReadAt(there, x.Offset-int64(len(x.Before)))
				if errors.Is(err, io.EOF) || err == nil && !bytes.HasPrefix(there, x.Before) {
					continue
				}
				if err != nil {
					return errors.Join(err, file.Close())
				}
			}
			info, err := file.Stat()
			if err == nil && info.Size() < x.Offset+int64(len(x.Data)) {
				err = fail(ErrCorrupt, "%s is shorter than what is to be erased in it", name)
			}
			if err == nil {
				d.step("overwriting")
				_, err = file.WriteAt(x.Data, x.Offset)
			}
			if err != nil {
				return errors.Join(err, file.Close())
			}
		}
		if file != nil {
			d.step("written")
			if err := errors.Join(file.Sync(), file.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// step lets tests end an erasure anywhere.
func (d *directory) step(name string) {
	if d.onStep != nil {
		d.onStep(name)
	}
}
