package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// What is replaced or removed in the state stays in the engine's blocks until
// it rewrites them, which may be never. Scrub overwrites it there.
//
// The engine rewrites blocks of the state while it runs, into new files: what
// is overwritten in an old one is of no use then, and does no harm, for the
// engine copies only what is in force. So each overwriting is of one open file,
// in which the record's beginning still stands where it was found; that holds
// for what a crash interrupted, too (see patch).

const (
	scrubKey      = "last"
	stateScrubbed = 2 // beside stateRemoved: nothing is left in it
)

// Scrub overwrites in the files of the embedded engine all values of the state
// that were replaced, removed or are past their time, and the checkpoints before
// the last, which it writes anew. It gives how many. What is in force stays. It
// returns when that is on the disk. An external engine has its files to itself:
// there Scrub does nothing.
func (j *Journal) Scrub(ctx context.Context) (n int, err error) {
	if j.external() || j.cfg.Durability == Memory {
		return 0, nil
	}
	j.eraseMu.Lock()
	defer j.eraseMu.Unlock()
	l, err := j.live()
	if err != nil {
		return 0, err
	}
	for _, p := range j.parts {
		if err := j.checkpoint(ctx, l, p); err != nil {
			return 0, j.readError(ctx, err)
		}
	}
	if err := j.removePast(ctx, l); err != nil {
		return 0, err
	}
	// The engine compares the last record of a stream with what it remembers of
	// it: that one must be in force.
	if _, err := j.State("scrubs").Put(ctx, scrubKey, []byte(j.cfg.Now().UTC().Format(time.RFC3339)), time.Time{}); err != nil {
		return 0, err
	}
	for _, stream := range []string{j.stateStream(), j.checkpointStream()} {
		k, err := j.scrub(ctx, l, stream)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// removePast removes the values that are past their time: the engine keeps them
// for a while yet.
func (j *Journal) removePast(ctx context.Context, l *link) error {
	var past []*change
	now := j.cfg.Now()
	err := j.backupState(ctx, l, 1, j.state.position(), func(m *stored) error {
		c, _, err := j.readState(m)
		if err == nil && c != nil && !c.value.Deleted && c.value.gone(now) {
			c.value.Data = nil
			past = append(past, c)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range past {
		s := stateBucket{j: j, name: c.bucket}
		if _, err := s.write(ctx, Value{Key: c.value.Key, Deleted: true}, &c.value.Revision); err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return nil
}

func (j *Journal) scrub(ctx context.Context, l *link, stream string) (n int, err error) {
	f := blockFiles{d: j.dir, cfg: &j.cfg, stream: stream}
	dir := j.dir.stream(partState + "/" + stream)
	blocks, err := blockNumbers(dir)
	if err != nil {
		return 0, err
	}
	if err := j.dir.redo(); err != nil {
		return 0, err
	}
	for _, block := range blocks {
		k, err := j.scrubBlock(ctx, l, &f, dir, block)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// scrubBlock overwrites what is not in force in one block. It was there before
// the engine is asked what is, so that nothing can come into force meanwhile.
func (j *Journal) scrubBlock(ctx context.Context, l *link, f *blockFiles, dir string, block int) (n int, err error) {
	seqs, err := f.sequences(dir, block)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the engine had no use for it any more
	}
	if err != nil || len(seqs) == 0 {
		return 0, err
	}
	var dead []uint64
	at := 0
	err = j.backupPages(ctx, l.side, f.stream, seqs[0], seqs[len(seqs)-1], func(m *stored) error {
		for ; at < len(seqs) && seqs[at] < m.seq; at++ {
			dead = append(dead, seqs[at])
		}
		if at < len(seqs) && seqs[at] == m.seq {
			at++
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	dead = append(dead, seqs[at:]...)
	var patches []patch
	size := 0
	flush := func() error {
		if len(patches) == 0 {
			return nil
		}
		err := j.dir.overwrite(patches)
		if err == nil {
			n += len(patches)
		}
		patches, size = nil, 0
		return err
	}
	_, err = f.block(dir, block, dead, func(_ uint64, x *patch, data []byte, seal func([]byte) []byte) error {
		keep := scrubbed(data)
		if keep < 0 || keep == len(data) {
			return nil
		}
		if j.dir.manifest.Encrypted {
			// See erase: known bytes would show what was there.
			if _, err := io.ReadFull(j.cfg.Rand, data[keep:]); err != nil {
				return err
			}
		} else {
			clear(data[keep:])
		}
		if keep > 0 {
			data[1] |= stateRemoved | stateScrubbed
		}
		x.Data = seal(data)
		patches = append(patches, *x)
		if size += len(x.Data); size >= eraseBytes {
			return flush()
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return n, errors.Join(err, flush())
}

// scrubbed tells how much of a value's form stays before what is overwritten: -1
// if nothing is to be, 0 for what is no value of the state.
func scrubbed(data []byte) int {
	if len(data) == 0 || allZero(data) {
		return -1
	}
	if len(data) < 10 || data[0] != stateVersion || data[1]&^(stateRemoved|stateScrubbed) != 0 {
		return 0
	}
	if data[1]&stateScrubbed != 0 {
		return -1
	}
	at := 10
	_, n := binary.Uvarint(data[at:])
	if n <= 0 {
		return 0
	}
	at += n
	if _, n = binary.Varint(data[at:]); n <= 0 {
		return 0
	}
	return at + n
}

// sequences lists what a block has records of.
func (f *blockFiles) sequences(dir string, n int) (out []uint64, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "msgs", strconv.Itoa(n)+".blk"))
	if err != nil {
		return nil, err
	}
	c, err := f.cipher(dir, n)
	if err != nil {
		return nil, err
	}
	if c != nil {
		c.XORKeyStream(b, b)
	}
	for len(b) >= recordHeader+recordSum {
		length := binary.LittleEndian.Uint32(b) &^ recordHasHdr
		if length < recordHeader+recordSum || uint64(length) > uint64(len(b)) {
			break // being written
		}
		if seq := binary.LittleEndian.Uint64(b[4:]); seq&engineBits == 0 && (len(out) == 0 || seq > out[len(out)-1]) {
			out = append(out, seq)
		}
		b = b[length:]
	}
	return out, nil
}
