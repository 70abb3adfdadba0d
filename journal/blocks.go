package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/minio/highwayhash"
	"golang.org/x/crypto/chacha20"
)

// Reading much of the log goes to the embedded engine's files rather than
// through the engine, which hands each message over as a message of its own:
// that costs more than all that is done with it. The log's blocks are only
// appended to, what was acknowledged is in them (see syncer), and nothing is
// removed from them but whole blocks, and bytes of erased content. Every record
// is checked. Where anything is not as expected, the engine is asked.

// errBlocks says that the rest must be read through the engine.
var errBlocks = errors.New("the blocks cannot be read")

// blocksFrom is how many records must be wanted for the files to be read: to
// find the first of them, all before it in its block is passed over.
const blocksFrom = 2048

// blockRead is how much of a block is read at once.
const blockRead = 1 << 20

// records hands the records from seq up to last to fn, until that returns
// false, and tells what comes next. The error is errBlocks or the context's own.
func (f *blockFiles) records(ctx context.Context, seq, last uint64, fn func(*stored) bool) (next uint64, err error) {
	dir := f.d.stream(partLog + "/" + f.stream)
	blocks, err := blockNumbers(dir)
	if err != nil {
		return seq, errBlocks
	}
	i, err := f.find(dir, blocks, seq)
	if err != nil {
		return seq, errBlocks
	}
	r := blockReader{stored: stored{seq: seq - 1}, buf: make([]byte, blockRead)}
	for _, n := range blocks[max(0, i):] {
		if r.hash, err = highwayhash.NewDigest64(digestKey(fmt.Sprintf("%s-%d", f.stream, n))); err != nil {
			return r.seq + 1, errBlocks
		}
		if r.cipher, err = f.cipher(dir, n); err != nil {
			return r.seq + 1, errBlocks
		}
		more, err := r.block(ctx, filepath.Join(dir, "msgs", strconv.Itoa(n)+".blk"), last, fn)
		if err != nil || !more {
			return r.seq + 1, err
		}
	}
	return r.seq + 1, nil
}

// blockReader reads blocks one after the other.
type blockReader struct {
	stored // the last one that was handed over
	hash   interface {
		io.Writer
		Reset()
		Sum([]byte) []byte
	}
	cipher *chacha20.Cipher
	buf    []byte
	sum    [recordSum]byte
}

// block reads one block. It reports whether there may be more behind it.
func (r *blockReader) block(ctx context.Context, path string, last uint64, fn func(*stored) bool) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, errBlocks // removed meanwhile
	}
	if err != nil {
		return false, errBlocks
	}
	defer file.Close()
	have, at := 0, 0 // buf[at:have] is still to be looked at
	for {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		have, at = copy(r.buf, r.buf[at:have]), 0
		n, err := io.ReadFull(file, r.buf[have:])
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return false, errBlocks
		}
		if r.cipher != nil {
			r.cipher.XORKeyStream(r.buf[have:have+n], r.buf[have:have+n])
		}
		have += n
		for have-at >= recordHeader {
			b := r.buf[at:have]
			length := int(binary.LittleEndian.Uint32(b) &^ recordHasHdr)
			if length < recordHeader+recordSum || length > recordMaxSize {
				return false, errBlocks
			}
			if length > len(b) {
				if length > len(r.buf) {
					r.buf = append(r.buf, make([]byte, length-len(r.buf))...)
				}
				break
			}
			at += length
			seq := binary.LittleEndian.Uint64(b[4:])
			if seq&engineBits != 0 {
				continue
			}
			if !r.record(b[:length]) { // its sequence may be what is damaged
				return false, errBlocks
			}
			if seq <= r.seq {
				continue
			}
			if seq > last {
				return false, nil
			}
			r.seq = seq
			s := r.stored
			if !fn(&s) {
				return false, nil
			}
		}
		if end {
			return true, nil
		}
	}
}

// record takes a record apart and checks it.
func (r *blockReader) record(b []byte) bool {
	subject := int(binary.LittleEndian.Uint16(b[20:]))
	body := b[recordHeader:]
	end := len(body) - recordSum
	start, hashed := subject, subject
	if binary.LittleEndian.Uint32(b)&recordHasHdr != 0 {
		if hashed += 4; hashed > end {
			return false
		}
		start = hashed + int(binary.LittleEndian.Uint32(body[subject:]))
	}
	if start < 0 || start > end {
		return false
	}
	// The engine's sum does not cover the length of the headers.
	if start != subject && !bytes.HasSuffix(body[hashed:start], []byte("\r\n\r\n")) {
		return false
	}
	r.hash.Reset()
	r.hash.Write(b[4:20])
	r.hash.Write(body[:subject])
	r.hash.Write(body[hashed:end])
	if !bytes.Equal(r.hash.Sum(r.sum[:0]), body[end:]) {
		return false
	}
	if r.stored.subject != string(body[:subject]) {
		r.stored.subject = string(body[:subject])
	}
	r.data = bytes.Clone(body[start:end]) // the buffer is used again
	return true
}
