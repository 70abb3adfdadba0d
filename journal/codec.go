package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/parley-hub/parley"
)

// The form of a record, version 1:
//
//	'P' 'j' version  length of meta (4 bytes, little-endian)  meta  blobs
//
// meta is a list of fields, each a uvarint key (tag<<2 | type) and a value: a
// uvarint (type 0), a length and bytes (1), a time as zigzag seconds and
// uvarint nanoseconds (2), or a length in four bytes and a list of fields (3).
// Unknown tags are skipped, so that a later release may add fields; the version
// changes only if an old program must not read the record.
//
// Blobs are contents, in the order in which meta has their lengths: first the
// envelope as received, then every content that is not part of it. A content that
// is part of the envelope is recorded as offset and length in it, and shares its
// memory after decoding.
const (
	magic0        = 'P'
	magic1        = 'j'
	recordVersion = 1
	recordHead    = 7
)

const (
	wireUint = iota
	wireBytes
	wireTime
	wireList
)

// hash16 stands for a replay key, a chain's name or a sender.
type hash16 [16]byte

// logRecord is a Record with the fields that only the journal needs.
type logRecord struct {
	cachedTargets *targets // of targets()
	*Record
	run    uint64 // the Open that made the record, of any hub
	number uint64 // of the append in that run
	key    hash16 // zero: none
	sender hash16 // of a key that outlives the window
}

// These functions list the fields of a record with their tags, for both
// directions: a coder that writes encodes each named field, and a coder that reads
// sets it.

func (c *coder) record(r *logRecord) {
	c.time(1, &r.Time)
	text(c, 2, &r.Node)
	number(c, 3, &r.run, math.MaxUint64)
	number(c, 4, &r.number, math.MaxUint64)
	text(c, 5, &r.Scope)
	if c.reading && c.tag == 6 {
		r.Keyed = true
	}
	ident(c, 6, &r.key)
	c.time(7, &r.Until)
	ident(c, 14, &r.sender)
	if c.part(r.Erased != nil, 15, 17) {
		x := r.erased()
		number(c, 15, &x.Number, math.MaxUint64)
		c.bytes(16, &x.Digest)
		number(c, 17, &x.Size, math.MaxUint64)
	}
	if c.part(r.Chain != nil, 8, 9) {
		if r.Chain == nil {
			r.Chain = new(ChainLink)
		}
		c.anyText(8, &r.Chain.Name)
		number(c, 9, &r.Chain.After, math.MaxUint64)
	}
	if c.reading && c.tag == 10 {
		c.findEnvelope()
	}
	pointer(c, 10, &r.Message, (*coder).message)
	each(c, 11, &r.Open, (*coder).opening)
	each(c, 12, &r.Steps, (*coder).step)
	pointer(c, 13, &r.Refused, (*coder).failure)
	each(c, 18, &r.Losses, (*coder).loss)
}

func (c *coder) message(m *parley.Message) {
	ident(c, 1, &m.ID)
	number(c, 2, &m.Kind, 255)
	number(c, 3, &m.State, 255)
	number(c, 4, &m.Number, math.MaxInt32)
	pointer(c, 5, &m.Error, (*coder).failure)
	text(c, 6, &m.From)
	text(c, 7, &m.To)
	c.texts(8, &m.Audience)
	ident(c, 9, &m.Conversation)
	ident(c, 10, &m.InReplyTo)
	text(c, 11, &m.Skill)
	text(c, 12, &m.Act)
	text(c, 13, &m.Schema)
	each(c, 14, &m.Parts, (*coder).messagePart)
	c.time(15, &m.Sent)
	c.time(16, &m.Expires)
	c.time(17, &m.Deadline)
	text(c, 18, &m.Trace.Parent)
	text(c, 19, &m.Trace.State)
	pairs(c, 20, &m.Trace.Foreign, (*coder).textPair)
	c.texts(21, &m.Hops)
	pairs(c, 22, &m.Extensions, (*coder).extension)
	one(c, tagOrigin, &m.Origin, (*coder).origin)
}

func (c *coder) messagePart(p *parley.Part) {
	text(c, 1, &p.MediaType)
	text(c, 2, &p.Name)
	c.content(3, &p.Data)
	text(c, 6, &p.URI)
	text(c, 7, &p.Digest)
}

func (c *coder) extension(x *pair[json.RawMessage]) {
	text(c, 2, &x.name)
	c.content(3, (*[]byte)(&x.value))
}

func (c *coder) textPair(x *pair[string]) {
	text(c, 1, &x.name)
	text(c, 2, &x.value)
}

const (
	tagOrigin   = 23 // of a message
	tagEnvelope = 4  // of an origin: the length of the first blob
)

func (c *coder) origin(o *parley.Origin) {
	text(c, 1, &o.Protocol)
	text(c, 2, &o.Peer)
	text(c, 3, &o.Address)
	switch {
	case !c.reading && o.Raw != nil:
		c.putNumber(tagEnvelope, uint64(len(o.Raw)))
	case c.at(tagEnvelope, wireUint):
		o.Raw = c.raw
		c.next()
	}
	pairs(c, 5, &o.Header, (*coder).textPair)
	c.time(6, &o.Received)
	each(c, 7, &o.Verdict.Checks, (*coder).check)
	text(c, 8, &o.Verdict.KeyID)
	number(c, 9, &o.Verdict.Assurance, 255)
	number(c, 10, &o.Verified, math.MaxInt64)
	number(c, 11, &o.Admitted, math.MaxInt64)
}

func (c *coder) check(x *parley.Check) {
	text(c, 1, &x.Name)
	c.bool(2, &x.OK)
	text(c, 3, &x.Detail)
}

func (c *coder) opening(o *Opening) {
	text(c, 1, &o.To)
	number(c, 2, &o.Attempt, math.MaxInt32)
	c.bool(3, &o.Sync)
	c.time(4, &o.NotBefore)
}

func (c *coder) step(s *Step) {
	ident(c, 1, &s.Message)
	text(c, 2, &s.To)
	number(c, 3, &s.State, 255)
	number(c, 4, &s.Attempt, math.MaxInt32)
	c.time(5, &s.Next)
	c.bool(6, &s.Postponed)
	ident(c, 7, &s.Reply)
	pointer(c, 8, &s.Error, (*coder).failure)
	each(c, 9, &s.Losses, (*coder).loss)
	pointer(c, 10, &s.Exchange, (*coder).exchange)
}

func (c *coder) exchange(x *parley.Exchange) {
	text(c, 1, &x.Protocol)
	text(c, 2, &x.Address)
	text(c, 3, &x.Status)
	c.time(4, &x.Started)
	number(c, 5, &x.Routed, math.MaxInt64)
	number(c, 6, &x.Written, math.MaxInt64)
	number(c, 7, &x.Took, math.MaxInt64)
	number(c, 8, &x.Size, math.MaxInt64)
	c.bytes(9, &x.Digest)
	c.bytes(10, &x.Sent)
	c.bytes(11, &x.Answer)
}

func (c *coder) loss(x *parley.Loss) {
	text(c, 1, &x.Field)
	text(c, 2, &x.Reason)
}

func (c *coder) failure(x *parley.Error) {
	text(c, 1, &x.Code)
	text(c, 2, &x.Text)
	c.bool(3, &x.Retryable)
	if c.reading || x.After > 0 {
		number(c, 4, &x.After, 1<<62)
	}
	text(c, 5, &x.Ref)
	number(c, 6, &x.Source, 255)
	text(c, 7, &x.Reason)
	text(c, 8, &x.Detail)
}

// A coder encodes or decodes a list of fields. Each call names one field: the
// encoder writes it; the decoder takes it if it is the next one. Fields are encoded
// in the order of the calls. After an unknown field the decoder repeats the calls.
type coder struct {
	reading bool
	b       []byte   // written so far, or to be read
	raw     []byte   // the envelope
	blobs   [][]byte // contents written so far
	rest    []byte   // contents not read yet

	// Decoding only. Texts share the memory of s, which is b as a string.
	s         string
	i, end    int // the next field, the end of the list
	tag, wire int // of the current field; tag -1: there is none
	start     int // of the field's bytes
	num       uint64
	sec       int64
	offset    uint64
	err       error
}

var coders = sync.Pool{New: func() any { return new(coder) }}

func (c *coder) free() {
	clear(c.blobs)
	*c = coder{b: c.b[:0], blobs: c.blobs[:0]}
	coders.Put(c)
}

var (
	errRecord        = errors.New("not a record of the journal")
	errRecordVersion = errors.New("a record of a later release")
)

// encode encodes a record, with spare capacity for the trailer. The log's sequence
// is not encoded.
func encode(r *logRecord) []byte {
	c := coders.Get().(*coder)
	defer c.free()
	size := recordHead + trailerSize
	if m := r.Message; m != nil && m.Origin.Raw != nil {
		c.raw = m.Origin.Raw
		c.blobs = append(c.blobs, c.raw)
	}
	c.record(r)
	size += len(c.b)
	for _, b := range c.blobs {
		size += len(b)
	}
	out := append(make([]byte, 0, size), magic0, magic1, recordVersion)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(c.b)))
	out = append(out, c.b...)
	for _, b := range c.blobs {
		out = append(out, b...)
	}
	return out
}

// decode decodes a record; contents share the memory of data.
func decode(data []byte) (*logRecord, error) {
	if len(data) < recordHead || data[0] != magic0 || data[1] != magic1 {
		return nil, errRecord
	}
	if data[2] != recordVersion {
		return nil, fmt.Errorf("%w: version %d", errRecordVersion, data[2])
	}
	n := binary.LittleEndian.Uint32(data[3:])
	if uint64(n) > uint64(len(data)-recordHead) {
		return nil, errRecord
	}
	end := recordHead + int(n)
	r := &logRecord{Record: new(Record)}
	return r, read(data[recordHead:end], data[end:], r, (*coder).record)
}

// read decodes a list of fields, whose contents are in blobs.
func read[T any](list, blobs []byte, x *T, fields func(*coder, *T)) error {
	c := coder{reading: true, b: list, s: string(list), rest: blobs, end: len(list)}
	all(&c, x, fields)
	return c.err
}

// all decodes a list to its end.
func all[T any](c *coder, x *T, fields func(*coder, *T)) {
	for c.next(); c.tag >= 0; {
		before := c.i
		fields(c, x)
		if c.i == before && c.tag >= 0 {
			c.next() // not known
		}
	}
}

// one encodes or decodes a nested list.
func one[T any](c *coder, tag int, x *T, fields func(*coder, *T)) {
	if !c.reading {
		c.key(tag, wireList)
		c.b = append(c.b, 0, 0, 0, 0)
		at := len(c.b)
		fields(c, x)
		binary.LittleEndian.PutUint32(c.b[at-4:], uint32(len(c.b)-at))
		return
	}
	if c.at(tag, wireList) {
		i, end := c.i, c.end
		c.i, c.end = c.start, c.i
		all(c, x, fields)
		c.i, c.end = i, end
		c.next()
	}
}

// pointer is one for an optional value.
func pointer[T any](c *coder, tag int, x **T, fields func(*coder, *T)) {
	if c.at(tag, wireList) {
		*x = new(T)
	}
	if c.part(*x != nil, tag, tag) {
		one(c, tag, *x, fields)
	}
}

// each is one for each element of a slice.
func each[T any](c *coder, tag int, list *[]T, fields func(*coder, *T)) {
	if !c.reading {
		for i := range *list {
			one(c, tag, &(*list)[i], fields)
		}
		return
	}
	for c.at(tag, wireList) {
		*list = append(*list, *new(T))
		one(c, tag, &(*list)[len(*list)-1], fields)
	}
}

type pair[V any] struct {
	name  string
	value V
}

// pairs encodes a map, sorted by its keys.
func pairs[V any](c *coder, tag int, m *map[string]V, fields func(*coder, *pair[V])) {
	var list []pair[V]
	if !c.reading && len(*m) > 0 {
		list = make([]pair[V], 0, len(*m))
		for _, name := range slices.Sorted(maps.Keys(*m)) {
			list = append(list, pair[V]{name, (*m)[name]})
		}
	}
	each(c, tag, &list, fields)
	if c.reading && len(list) > 0 {
		if *m == nil {
			*m = make(map[string]V)
		}
		for _, x := range list {
			(*m)[x.name] = x.value
		}
	}
}

// part reports whether the fields from first to last are to be encoded, because
// there is a value, or decoded.
func (c *coder) part(there bool, first, last int) bool {
	if c.reading {
		return c.tag >= first && c.tag <= last
	}
	return there
}

func (c *coder) key(tag, wire int) {
	c.b = binary.AppendUvarint(c.b, uint64(tag<<2|wire))
}

func (c *coder) putNumber(tag int, v uint64) {
	c.key(tag, wireUint)
	c.b = binary.AppendUvarint(c.b, v)
}

func (c *coder) putText(tag int, s string) {
	c.key(tag, wireBytes)
	c.b = binary.AppendUvarint(c.b, uint64(len(s)))
	c.b = append(c.b, s...)
}

func number[T ~int | ~int32 | ~int64 | ~uint8 | ~uint64](c *coder, tag int, v *T, most uint64) {
	if !c.reading {
		if *v != 0 {
			c.putNumber(tag, uint64(*v))
		}
	} else if c.at(tag, wireUint) {
		if c.num > most {
			c.fail()
			return
		}
		*v = T(c.num)
		c.next()
	}
}

func (c *coder) bool(tag int, v *bool) {
	if !c.reading {
		if *v {
			c.putNumber(tag, 1)
		}
		return
	}
	n := uint8(0)
	number(c, tag, &n, 1)
	if n == 1 {
		*v = true
	}
}

func text[T ~string](c *coder, tag int, s *T) {
	if !c.reading {
		if *s != "" {
			c.putText(tag, string(*s))
		}
	} else if c.at(tag, wireBytes) {
		*s = T(c.s[c.start:c.i])
		c.next()
	}
}

// anyText is text, but encodes the empty string, too.
func (c *coder) anyText(tag int, s *string) {
	if c.reading {
		text(c, tag, s)
	} else {
		c.putText(tag, *s)
	}
}

func (c *coder) texts(tag int, list *[]string) {
	if !c.reading {
		for _, s := range *list {
			c.putText(tag, s)
		}
		return
	}
	for c.at(tag, wireBytes) {
		*list = append(*list, c.s[c.start:c.i])
		c.next()
	}
}

func (c *coder) bytes(tag int, b *[]byte) {
	s := string(*b)
	text(c, tag, &s)
	if c.reading && s != "" {
		*b = []byte(s)
	}
}

func ident[T ~[16]byte](c *coder, tag int, h *T) {
	if !c.reading {
		if *h != (T{}) {
			c.key(tag, wireBytes)
			c.b = append(append(c.b, 16), (*h)[:]...)
		}
	} else if c.at(tag, wireBytes) {
		if c.num != 16 {
			c.fail()
			return
		}
		*h = T(c.b[c.start:c.i])
		c.next()
	}
}

func (c *coder) time(tag int, t *time.Time) {
	if !c.reading {
		if !t.IsZero() {
			c.key(tag, wireTime)
			c.b = binary.AppendVarint(c.b, t.Unix())
			c.b = binary.AppendUvarint(c.b, uint64(t.Nanosecond()))
		}
	} else if c.at(tag, wireTime) {
		*t = time.Unix(c.sec, int64(c.num)).UTC()
		c.next()
	}
}

// content encodes data as a blob of its own, whose length has the tag, or as offset
// and length in the envelope, which have the next two tags.
func (c *coder) content(tag int, data *[]byte) {
	if !c.reading {
		if *data == nil {
			return
		}
		if at, ok := within(c.raw, *data); ok {
			c.putNumber(tag+1, uint64(at))
			c.putNumber(tag+2, uint64(len(*data)))
			return
		}
		c.putNumber(tag, uint64(len(*data)))
		c.blobs = append(c.blobs, *data)
		return
	}
	if c.at(tag, wireUint) {
		*data = c.take(c.num)
		c.next()
	}
	if c.at(tag+1, wireUint) {
		c.offset = c.num
		c.next()
	}
	if c.at(tag+2, wireUint) {
		if size := uint64(len(c.raw)); c.offset > size || c.num > size-c.offset {
			c.fail()
			return
		}
		*data = c.raw[c.offset : c.offset+c.num : c.offset+c.num]
		c.next()
	}
}

// take returns the next blob.
func (c *coder) take(n uint64) []byte {
	if n > uint64(len(c.rest)) {
		c.fail()
		return nil
	}
	out := c.rest[:n:n]
	c.rest = c.rest[n:]
	return out
}

// findEnvelope reads the length of the envelope from the current field, a message.
// The envelope is the first blob, and fields before its length refer to it.
func (c *coder) findEnvelope() {
	m := coder{b: c.b, i: c.start, end: c.i}
	for m.next(); m.tag >= 0; m.next() {
		if m.tag != tagOrigin {
			continue
		}
		o := coder{b: c.b, i: m.start, end: m.i}
		for o.next(); o.tag >= 0; o.next() {
			if o.tag == tagEnvelope && o.wire == wireUint && c.raw == nil {
				c.raw = c.take(o.num)
			}
		}
	}
}

// within finds the offset of part in whole if they share memory.
func within(whole, part []byte) (int, bool) {
	if len(part) == 0 || len(part) > len(whole) {
		return 0, false
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	if at > uintptr(len(whole)-len(part)) {
		return 0, false
	}
	return int(at), true
}

func (c *coder) fail() { c.tag, c.err = -1, errRecord }

// at reports whether the current field has the tag. Another wire type than expected
// is an error.
func (c *coder) at(tag, wire int) bool {
	if !c.reading || c.tag != tag {
		return false
	}
	if c.wire != wire {
		c.fail()
	}
	return c.tag == tag
}

// next moves on to the next field.
func (c *coder) next() {
	c.tag = -1
	if c.err != nil || c.i >= c.end {
		return
	}
	key := c.uvarint()
	c.wire = int(key & 3)
	switch c.wire {
	case wireTime:
		sec, n := binary.Varint(c.b[c.i:c.end])
		if n <= 0 {
			c.fail()
			return
		}
		c.i += n
		c.sec = sec
		if c.num = c.uvarint(); c.num > 999_999_999 {
			c.fail()
		}
	case wireList:
		if c.end-c.i < 4 {
			c.fail()
			return
		}
		c.num = uint64(binary.LittleEndian.Uint32(c.b[c.i:]))
		c.i += 4
	default:
		c.num = c.uvarint()
	}
	if c.wire == wireBytes || c.wire == wireList {
		c.start = c.i
		if c.num > uint64(c.end-c.i) {
			c.fail()
			return
		}
		c.i += int(c.num)
	}
	if c.err == nil {
		c.tag = int(min(key>>2, math.MaxInt32))
	}
}

func (c *coder) uvarint() uint64 {
	v, n := binary.Uvarint(c.b[c.i:c.end])
	if n <= 0 {
		c.fail()
		return 0
	}
	c.i += n
	return v
}

// field returns bytes that follow their length.
func (c *coder) field() []byte {
	n := c.uvarint()
	if n > uint64(c.end-c.i) {
		c.fail()
		return nil
	}
	c.i += int(n)
	return c.b[c.i-int(n) : c.i : c.i]
}
