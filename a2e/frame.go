package a2e

import (
	"bytes"
	"cmp"
	"errors"
	"io"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Reader splits a byte stream into lines (A2E §2.1): LF ends a line, CR before
// it is dropped, a lone CR is white space, blank lines are passed over, and the
// last line needs no end. It holds at most one line and keeps no more than
// [Reader.Limit] bytes of one. A Reader is not safe for concurrent use.
type Reader struct {
	// Limit is the longest line in bytes, without its end. 0 means [DefaultMaxFrame];
	// values over [HardMaxFrame] mean HardMaxFrame.
	Limit int

	hold       func(n int) // gets changes in the number of held bytes beyond minBuffer
	src        io.Reader
	buf        []byte
	start, end int // unread bytes of buf
	scanned    int // number of unread bytes known to hold no LF
	skipping   bool
	head       []byte // first bytes of the last line over the limit
	got        int    // bytes of the last read
	full       bool   // the last read filled the buffer
	err        error
}

// minBuffer is what an idle connection holds, maxBuffer what a busy one reads
// at once.
const (
	minBuffer = 2 << 10
	maxBuffer = 16 << 10
)

// headBytes is how much of a message over the limit is kept, to read its type and
// req_id: the members of the protocol come first.
const headBytes = 1 << 10

// headOf reads type and req_id from the first bytes of a message.
func headOf(head []byte) (typ, reqID string) {
	jsonx.Members(head, func(name string, v jsonx.Value) bool {
		switch name {
		case "type":
			typ, _ = textOf(v)
		case "req_id":
			reqID, _ = textOf(v)
		}
		return true
	})
	return typ, reqID
}

// NewReader reads lines from src.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

func (r *Reader) limit() int { return min(orDefault(r.Limit, DefaultMaxFrame), HardMaxFrame) }

// Next gives the next line that is not blank, without its end; the line stays valid
// until the next call. A line over the limit gives [ErrTooLarge] once, as soon as its
// length is known; the following call continues with the next line. At the end of the
// stream: [io.EOF], or the stream's own error. last reports that the last line lacks
// its end.
func (r *Reader) Next() (line []byte, last bool, err error) {
	for {
		if i := bytes.IndexByte(r.buf[r.start+r.scanned:r.end], '\n'); i >= 0 {
			line := r.buf[r.start : r.start+r.scanned+i]
			r.start += r.scanned + i + 1
			r.scanned = 0
			if r.skipping {
				r.skipping = false
				continue
			}
			if len(line) > r.limit()+1 || len(line) == r.limit()+1 && line[len(line)-1] != '\r' {
				r.head = bytes.Clone(line[:min(headBytes, len(line))])
				return nil, false, ErrTooLarge
			}
			line = trimLine(line)
			if len(line) == 0 {
				continue
			}
			return line, false, nil
		}
		r.scanned = r.end - r.start
		if r.skipping {
			r.start, r.end, r.scanned = 0, 0, 0
		} else if r.scanned > r.limit()+1 {
			r.head = bytes.Clone(r.buf[r.start:][:min(headBytes, r.scanned)])
			r.start, r.end, r.scanned = 0, 0, 0
			r.skipping = true
			return nil, false, ErrTooLarge
		}
		if r.err != nil {
			line := r.buf[r.start:r.end]
			r.start, r.end, r.scanned = 0, 0, 0
			line = trimLine(line)
			if len(line) > 0 && !r.skipping {
				return line, true, nil
			}
			return nil, false, r.err
		}
		r.fill()
	}
}

// fill reads once. The buffer grows by doubling up to the limit. Once empty, it adapts
// to the size of the last reads, so that an idle connection holds little and a busy one
// reads seldom.
func (r *Reader) fill() {
	if r.start == r.end {
		r.start, r.end = 0, 0
		switch size := len(r.buf); {
		case size == 0 || size > maxBuffer:
			r.buf = r.resized(minBuffer)
		case r.full && size < maxBuffer:
			r.buf = r.resized(2 * size)
		case r.got < size/8 && size > minBuffer:
			r.buf = r.resized(size / 2)
		}
	} else if r.start > 0 && r.end == len(r.buf) {
		copy(r.buf, r.buf[r.start:r.end])
		r.end -= r.start
		r.start = 0
	}
	if r.end == len(r.buf) {
		grown := r.resized(min(2*len(r.buf), r.limit()+2+minBuffer))
		copy(grown, r.buf[:r.end])
		r.buf = grown
	}
	for range 64 { // a reader may return nothing now and then, not for ever
		n, err := r.src.Read(r.buf[r.end:])
		r.got, r.full = n, n == len(r.buf)-r.end
		r.end += n
		if err != nil {
			r.err = err
			return
		}
		if n > 0 {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// resized gives a buffer in place of r.buf.
func (r *Reader) resized(size int) []byte {
	if by := size - max(len(r.buf), minBuffer); by != 0 && r.hold != nil {
		r.hold(by)
	}
	return make([]byte, size)
}

// trimLine drops white space at both ends.
func trimLine(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// ReadMessage reads and decodes the next message with the types of reg (nil: all of A2E
// §6). A malformed message gives an [*Error], after which reading continues with the
// next line; every other error ends the stream.
func (r *Reader) ReadMessage(reg *Registry) (*Envelope, error) {
	reg = cmp.Or(reg, builtin())
	for {
		line, last, err := r.Next()
		if err != nil {
			return nil, err
		}
		m, e := reg.decode(bytes.Clone(line), DefaultMaxDepth)
		if e == nil {
			return m, nil
		}
		if last && errors.Is(e, ErrParse) {
			continue // an unfinished tail: no requester could match an answer (A2E §2.1)
		}
		return nil, e
	}
}
