package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
// uvarint nanoseconds (2), or a list of fields behind its length in four bytes
// (3). A field whose tag is unknown is passed over, so that a later release
// may add some; a version is added only when an old program must not go on.
//
// Blobs are the contents, in the order in which meta tells their lengths: the
// envelope as received first, then what does not lie in it. What does is told
// as offset and length in the envelope, and shares its memory after reading.
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

// Tags of a record.
const (
	tagTime = iota + 1
	tagNode
	tagRun
	tagNumber
	tagScope
	tagKey
	tagUntil
	tagChain
	tagAfter
	tagMessage
	tagOpening
	tagStep
	tagRefused
	tagSender
	tagErased
	tagEnvelopeDigest
	tagEnvelopeSize
	tagLoss
)

// Tags of a message.
const (
	msgID = iota + 1
	msgKind
	msgState
	msgNumber
	msgError
	msgFrom
	msgTo
	msgAudience
	msgConversation
	msgInReplyTo
	msgSkill
	msgAct
	msgSchema
	msgPart
	msgSent
	msgExpires
	msgDeadline
	msgTraceParent
	msgTraceState
	msgForeign
	msgHop
	msgExtension
	msgOrigin
)

// Tags within the lists of a message.
const (
	partMediaType = iota + 1
	partName
	partInline // length of the next blob
	partOffset // in the envelope
	partLength // in the envelope
	partURI
	partDigest
)

const (
	pairKey = iota + 1
	pairValue
)

const (
	originProtocol = iota + 1
	originPeer
	originAddress
	originRaw // length of the first blob
	originHeader
	originReceived
	originCheck
	originKeyID
	originAssurance
)

const (
	checkName = iota + 1
	checkOK
	checkDetail
)

const (
	openTo = iota + 1
	openAttempt
	openSync
	openNotBefore
)

const (
	stepMessage = iota + 1
	stepTo
	stepState
	stepAttempt
	stepNext
	stepPostponed
	stepReply
	stepError
	stepLoss
)

const (
	errCode = iota + 1
	errText
	errRetryable
	errAfter
	errRef
)

// hash16 is what is kept of a replay key, a chain's name or a sender.
type hash16 [16]byte

// sealed is a record with what is in the log beside it.
type sealed struct {
	named *targets // see there
	*Record
	run    uint64 // which Open of which node made it
	number uint64 // which append of that run
	key    hash16 // zero: none
	sender hash16 // of a key that outlives the window
}

type encoder struct {
	b     []byte
	blobs [][]byte
	raw   []byte
}

func (e *encoder) key(tag, wire int) {
	e.b = binary.AppendUvarint(e.b, uint64(tag<<2|wire))
}

func (e *encoder) uint(tag int, v uint64) {
	if v != 0 {
		e.key(tag, wireUint)
		e.b = binary.AppendUvarint(e.b, v)
	}
}

func (e *encoder) present(tag int, v uint64) {
	e.key(tag, wireUint)
	e.b = binary.AppendUvarint(e.b, v)
}

func (e *encoder) bool(tag int, v bool) {
	if v {
		e.uint(tag, 1)
	}
}

func (e *encoder) string(tag int, s string) {
	if s != "" {
		e.key(tag, wireBytes)
		e.b = binary.AppendUvarint(e.b, uint64(len(s)))
		e.b = append(e.b, s...)
	}
}

func (e *encoder) each(tag int, s string) {
	e.key(tag, wireBytes)
	e.b = binary.AppendUvarint(e.b, uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) id(tag int, id [16]byte) {
	if id != [16]byte{} {
		e.key(tag, wireBytes)
		e.b = append(e.b, 16)
		e.b = append(e.b, id[:]...)
	}
}

func (e *encoder) time(tag int, t time.Time) {
	if !t.IsZero() {
		e.key(tag, wireTime)
		e.b = binary.AppendVarint(e.b, t.Unix())
		e.b = binary.AppendUvarint(e.b, uint64(t.Nanosecond()))
	}
}

func (e *encoder) open(tag int) int {
	e.key(tag, wireList)
	e.b = append(e.b, 0, 0, 0, 0)
	return len(e.b)
}

func (e *encoder) close(at int) {
	binary.LittleEndian.PutUint32(e.b[at-4:], uint32(len(e.b)-at))
}

func (e *encoder) pairs(tag int, m map[string]string) {
	if len(m) == 0 {
		return
	}
	for _, k := range sorted(m) {
		at := e.open(tag)
		e.string(pairKey, k)
		e.string(pairValue, m[k])
		e.close(at)
	}
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, 8) // most have fewer
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// content writes where data is found: in the envelope, or a blob of its own.
func (e *encoder) content(inline, offset, length int, data []byte) {
	if data == nil {
		return
	}
	if at, ok := within(e.raw, data); ok {
		e.present(offset, uint64(at))
		e.present(length, uint64(len(data)))
		return
	}
	e.present(inline, uint64(len(data)))
	e.blobs = append(e.blobs, data)
}

// within finds the place of part in whole when they share memory.
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

// encode writes a record. The log's sequence is not part of it.
func encode(r *sealed) []byte {
	size := 512 + len(r.Scope) + 64*(len(r.Open)+len(r.Steps))
	if m := r.Message; m != nil {
		size += 512 + len(m.Origin.Raw)
		for i := range m.Parts {
			size += 64
			if _, shared := within(m.Origin.Raw, m.Parts[i].Data); !shared {
				size += len(m.Parts[i].Data)
			}
		}
		for _, v := range m.Extensions {
			size += 64 + len(v)
		}
	}
	var first [4][]byte
	e := encoder{b: make([]byte, recordHead, size), blobs: first[:0]}
	e.b[0], e.b[1], e.b[2] = magic0, magic1, recordVersion
	if m := r.Message; m != nil && m.Origin.Raw != nil {
		e.raw = m.Origin.Raw
		e.blobs = append(e.blobs, e.raw)
	}
	e.time(tagTime, r.Time)
	e.string(tagNode, r.Node)
	e.uint(tagRun, r.run)
	e.uint(tagNumber, r.number)
	e.string(tagScope, r.Scope)
	e.id(tagKey, r.key)
	e.time(tagUntil, r.Until)
	e.id(tagSender, r.sender)
	if x := r.Erased; x != nil {
		e.uint(tagErased, x.Number)
		e.string(tagEnvelopeDigest, string(x.Digest))
		e.uint(tagEnvelopeSize, x.Size)
	}
	if r.Chain != nil {
		e.each(tagChain, r.Chain.Name)
		e.uint(tagAfter, r.Chain.After)
	}
	if r.Message != nil {
		at := e.open(tagMessage)
		e.message(r.Message)
		e.close(at)
	}
	for i := range r.Open {
		o := &r.Open[i]
		at := e.open(tagOpening)
		e.string(openTo, o.To)
		e.uint(openAttempt, uint64(o.Attempt))
		e.bool(openSync, o.Sync)
		e.time(openNotBefore, o.NotBefore)
		e.close(at)
	}
	for i := range r.Steps {
		at := e.open(tagStep)
		e.step(&r.Steps[i])
		e.close(at)
	}
	e.failure(tagRefused, r.Refused)
	e.losses(tagLoss, r.Losses)

	binary.LittleEndian.PutUint32(e.b[3:], uint32(len(e.b)-recordHead))
	for _, b := range e.blobs {
		e.b = append(e.b, b...)
	}
	return e.b
}

func (e *encoder) message(m *parley.Message) {
	e.id(msgID, m.ID)
	e.uint(msgKind, uint64(m.Kind))
	e.uint(msgState, uint64(m.State))
	e.uint(msgNumber, uint64(m.Number))
	e.failure(msgError, m.Error)
	e.string(msgFrom, m.From)
	e.string(msgTo, m.To)
	for _, a := range m.Audience {
		e.each(msgAudience, a)
	}
	e.id(msgConversation, m.Conversation)
	e.id(msgInReplyTo, m.InReplyTo)
	e.string(msgSkill, m.Skill)
	e.string(msgAct, m.Act)
	e.string(msgSchema, m.Schema)
	for i := range m.Parts {
		p := &m.Parts[i]
		at := e.open(msgPart)
		e.string(partMediaType, p.MediaType)
		e.string(partName, p.Name)
		e.content(partInline, partOffset, partLength, p.Data)
		e.string(partURI, p.URI)
		e.string(partDigest, p.Digest)
		e.close(at)
	}
	e.time(msgSent, m.Sent)
	e.time(msgExpires, m.Expires)
	e.time(msgDeadline, m.Deadline)
	e.string(msgTraceParent, m.Trace.Parent)
	e.string(msgTraceState, m.Trace.State)
	e.pairs(msgForeign, m.Trace.Foreign)
	for _, h := range m.Hops {
		e.each(msgHop, h)
	}
	if len(m.Extensions) > 0 {
		for _, k := range sorted(m.Extensions) {
			at := e.open(msgExtension)
			e.string(partName, k)
			e.content(partInline, partOffset, partLength, m.Extensions[k])
			e.close(at)
		}
	}
	at := e.open(msgOrigin)
	o := &m.Origin
	e.string(originProtocol, o.Protocol)
	e.string(originPeer, o.Peer)
	e.string(originAddress, o.Address)
	if o.Raw != nil {
		e.present(originRaw, uint64(len(o.Raw)))
	}
	e.pairs(originHeader, o.Header)
	e.time(originReceived, o.Received)
	for i := range o.Verdict.Checks {
		c := &o.Verdict.Checks[i]
		at := e.open(originCheck)
		e.string(checkName, c.Name)
		e.bool(checkOK, c.OK)
		e.string(checkDetail, c.Detail)
		e.close(at)
	}
	e.string(originKeyID, o.Verdict.KeyID)
	e.uint(originAssurance, uint64(o.Verdict.Assurance))
	e.close(at)
}

func (e *encoder) step(s *Step) {
	e.id(stepMessage, s.Message)
	e.string(stepTo, s.To)
	e.uint(stepState, uint64(s.State))
	e.uint(stepAttempt, uint64(s.Attempt))
	e.time(stepNext, s.Next)
	e.bool(stepPostponed, s.Postponed)
	e.id(stepReply, s.Reply)
	e.failure(stepError, s.Error)
	e.losses(stepLoss, s.Losses)
}

func (e *encoder) losses(tag int, losses []parley.Loss) {
	for _, l := range losses {
		at := e.open(tag)
		e.string(pairKey, l.Field)
		e.string(pairValue, l.Reason)
		e.close(at)
	}
}

func (e *encoder) failure(tag int, f *parley.Error) {
	if f == nil {
		return
	}
	at := e.open(tag)
	e.string(errCode, string(f.Code))
	e.string(errText, f.Text)
	e.bool(errRetryable, f.Retryable)
	if f.After > 0 {
		e.uint(errAfter, uint64(f.After))
	}
	e.string(errRef, f.Ref)
	e.close(at)
}

var (
	errRecord        = errors.New("not a record of the journal")
	errRecordVersion = errors.New("a record of a later release")
)

// fields reads a list of fields: b as bytes and s as the same in a string, of
// which all strings are parts.
type fields struct {
	b    []byte
	s    string
	i    int
	tag  int
	wire int
	num  uint64
	at   int // where the bytes of the field begin
	sec  int64
	err  error
}

// next reads one field and reports whether there was one.
func (f *fields) next() bool {
	if f.err != nil || f.i >= len(f.b) {
		return false
	}
	key, ok := f.uvarint()
	if !ok {
		return false
	}
	f.tag, f.wire = int(key>>2), int(key&3)
	switch f.wire {
	case wireUint:
		f.num, ok = f.uvarint()
		return ok
	case wireTime:
		sec, n := binary.Varint(f.b[f.i:])
		if n <= 0 {
			f.err = errRecord
			return false
		}
		f.i += n
		f.sec = sec
		f.num, ok = f.uvarint()
		if ok && f.num > 999_999_999 {
			f.err = errRecord
		}
		return f.err == nil
	case wireBytes:
		if f.num, ok = f.uvarint(); !ok {
			return false
		}
	case wireList:
		if len(f.b)-f.i < 4 {
			f.err = errRecord
			return false
		}
		f.num = uint64(binary.LittleEndian.Uint32(f.b[f.i:]))
		f.i += 4
	}
	if f.num > uint64(len(f.b)-f.i) {
		f.err = errRecord
		return false
	}
	f.at = f.i
	f.i += int(f.num)
	return true
}

func (f *fields) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(f.b[f.i:])
	if n <= 0 {
		f.err = errRecord
		return 0, false
	}
	f.i += n
	return v, true
}

// want reports whether the field has the type that its tag has.
func (f *fields) want(wire int) bool {
	if f.wire != wire && f.err == nil {
		f.err = errRecord
	}
	return f.err == nil
}

func (f *fields) string() string {
	if !f.want(wireBytes) {
		return ""
	}
	return f.s[f.at:f.i]
}

func (f *fields) uint() uint64 {
	if !f.want(wireUint) {
		return 0
	}
	return f.num
}

func (f *fields) small(limit uint64) uint64 {
	v := f.uint()
	if v > limit {
		f.err = errRecord
		return 0
	}
	return v
}

func (f *fields) int() int   { return int(f.small(1 << 31)) }
func (f *fields) bool() bool { return f.small(1) == 1 }
func (f *fields) time() (t time.Time) {
	if f.want(wireTime) {
		t = time.Unix(f.sec, int64(f.num)).UTC()
	}
	return t
}

func (f *fields) id() (id [16]byte) {
	if f.want(wireBytes) {
		if f.num != 16 {
			f.err = errRecord
			return id
		}
		copy(id[:], f.b[f.at:f.i])
	}
	return id
}

func (f *fields) list() fields {
	if !f.want(wireList) {
		return fields{}
	}
	return fields{b: f.b[f.at:f.i], s: f.s[f.at:f.i]}
}

// join takes over the error of a list that was read.
func (f *fields) join(sub *fields) {
	if f.err == nil {
		f.err = sub.err
	}
}

// blobs hands out the contents in their order.
type blobs struct {
	rest []byte
	raw  []byte
}

func (b *blobs) take(f *fields, n uint64) []byte {
	if f.err != nil {
		return nil
	}
	if n > uint64(len(b.rest)) {
		f.err = errRecord
		return nil
	}
	out := b.rest[:n:n]
	b.rest = b.rest[n:]
	return out
}

func (b *blobs) part(f *fields, off, n uint64) []byte {
	if f.err != nil {
		return nil
	}
	if off > uint64(len(b.raw)) || n > uint64(len(b.raw))-off {
		f.err = errRecord
		return nil
	}
	return b.raw[off : off+n : off+n]
}

// decode reads a record; contents share the memory of data.
func decode(data []byte) (*sealed, error) {
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
	meta := data[recordHead : recordHead+int(n)]
	f := fields{b: meta, s: string(meta)}
	bl := blobs{rest: data[recordHead+int(n):]}
	r := &sealed{Record: new(Record)}
	for f.next() {
		switch f.tag {
		case tagTime:
			r.Time = f.time()
		case tagNode:
			r.Node = f.string()
		case tagRun:
			r.run = f.uint()
		case tagNumber:
			r.number = f.uint()
		case tagScope:
			r.Scope = f.string()
		case tagKey:
			r.key = f.id()
			r.Keyed = true
		case tagUntil:
			r.Until = f.time()
		case tagSender:
			r.sender = f.id()
		case tagErased:
			r.erased().Number = f.uint()
		case tagEnvelopeDigest:
			r.erased().Digest = []byte(f.string())
		case tagEnvelopeSize:
			r.erased().Size = f.uint()
		case tagChain:
			r.chain().Name = f.string()
		case tagAfter:
			r.chain().After = f.uint()
		case tagMessage:
			l := f.list()
			r.Message = l.message(&bl)
			f.join(&l)
		case tagOpening:
			l := f.list()
			r.Open = append(r.Open, l.opening())
			f.join(&l)
		case tagStep:
			l := f.list()
			r.Steps = append(r.Steps, l.step())
			f.join(&l)
		case tagLoss:
			r.Losses = append(r.Losses, f.loss())
		case tagRefused:
			l := f.list()
			r.Refused = l.failure()
			f.join(&l)
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	return r, nil
}

func (r *sealed) chain() *ChainLink {
	if r.Chain == nil {
		r.Chain = new(ChainLink)
	}
	return r.Chain
}

func (f *fields) message(bl *blobs) *parley.Message {
	m := new(parley.Message)
	// The envelope is the first blob, but its length stands behind the parts
	// that lie in it.
	for o := *f; o.next(); {
		if o.tag == msgOrigin {
			l := o.list()
			for l.next() {
				if l.tag == originRaw && bl.raw == nil {
					bl.raw = bl.take(&l, l.uint())
				}
			}
			f.join(&l)
		}
	}
	for f.next() {
		switch f.tag {
		case msgID:
			m.ID = f.id()
		case msgKind:
			m.Kind = parley.Kind(f.small(255))
		case msgState:
			m.State = parley.State(f.small(255))
		case msgNumber:
			m.Number = f.int()
		case msgError:
			l := f.list()
			m.Error = l.failure()
			f.join(&l)
		case msgFrom:
			m.From = f.string()
		case msgTo:
			m.To = f.string()
		case msgAudience:
			m.Audience = append(m.Audience, f.string())
		case msgConversation:
			m.Conversation = f.id()
		case msgInReplyTo:
			m.InReplyTo = f.id()
		case msgSkill:
			m.Skill = f.string()
		case msgAct:
			m.Act = f.string()
		case msgSchema:
			m.Schema = f.string()
		case msgPart:
			l := f.list()
			m.Parts = append(m.Parts, l.part(bl))
			f.join(&l)
		case msgSent:
			m.Sent = f.time()
		case msgExpires:
			m.Expires = f.time()
		case msgDeadline:
			m.Deadline = f.time()
		case msgTraceParent:
			m.Trace.Parent = f.string()
		case msgTraceState:
			m.Trace.State = f.string()
		case msgForeign:
			f.pair(&m.Trace.Foreign)
		case msgHop:
			m.Hops = append(m.Hops, f.string())
		case msgExtension:
			l := f.list()
			p := l.part(bl)
			if m.Extensions == nil {
				m.Extensions = make(map[string]json.RawMessage)
			}
			m.Extensions[p.Name] = p.Data
			f.join(&l)
		case msgOrigin:
			l := f.list()
			l.origin(&m.Origin, bl)
			f.join(&l)
		}
	}
	return m
}

func (f *fields) pair(m *map[string]string) {
	l := f.list()
	var k, v string
	for l.next() {
		switch l.tag {
		case pairKey:
			k = l.string()
		case pairValue:
			v = l.string()
		}
	}
	if *m == nil {
		*m = make(map[string]string)
	}
	(*m)[k] = v
	f.join(&l)
}

func (f *fields) part(bl *blobs) (p parley.Part) {
	var off uint64
	for f.next() {
		switch f.tag {
		case partMediaType:
			p.MediaType = f.string()
		case partName:
			p.Name = f.string()
		case partInline:
			p.Data = bl.take(f, f.uint())
		case partOffset:
			off = f.uint()
		case partLength:
			p.Data = bl.part(f, off, f.uint())
		case partURI:
			p.URI = f.string()
		case partDigest:
			p.Digest = f.string()
		}
	}
	return p
}

func (f *fields) origin(o *parley.Origin, bl *blobs) {
	for f.next() {
		switch f.tag {
		case originProtocol:
			o.Protocol = f.string()
		case originPeer:
			o.Peer = f.string()
		case originAddress:
			o.Address = f.string()
		case originRaw:
			o.Raw = bl.raw
		case originHeader:
			f.pair(&o.Header)
		case originReceived:
			o.Received = f.time()
		case originCheck:
			l := f.list()
			var c parley.Check
			for l.next() {
				switch l.tag {
				case checkName:
					c.Name = l.string()
				case checkOK:
					c.OK = l.bool()
				case checkDetail:
					c.Detail = l.string()
				}
			}
			o.Verdict.Checks = append(o.Verdict.Checks, c)
			f.join(&l)
		case originKeyID:
			o.Verdict.KeyID = f.string()
		case originAssurance:
			o.Verdict.Assurance = parley.Assurance(f.small(255))
		}
	}
}

func (f *fields) opening() (o Opening) {
	for f.next() {
		switch f.tag {
		case openTo:
			o.To = f.string()
		case openAttempt:
			o.Attempt = f.int()
		case openSync:
			o.Sync = f.bool()
		case openNotBefore:
			o.NotBefore = f.time()
		}
	}
	return o
}

func (f *fields) step() (s Step) {
	for f.next() {
		switch f.tag {
		case stepMessage:
			s.Message = f.id()
		case stepTo:
			s.To = f.string()
		case stepState:
			s.State = parley.DeliveryState(f.small(255))
		case stepAttempt:
			s.Attempt = f.int()
		case stepNext:
			s.Next = f.time()
		case stepPostponed:
			s.Postponed = f.bool()
		case stepReply:
			s.Reply = f.id()
		case stepError:
			l := f.list()
			s.Error = l.failure()
			f.join(&l)
		case stepLoss:
			s.Losses = append(s.Losses, f.loss())
		}
	}
	return s
}

func (f *fields) loss() (x parley.Loss) {
	l := f.list()
	for l.next() {
		switch l.tag {
		case pairKey:
			x.Field = l.string()
		case pairValue:
			x.Reason = l.string()
		}
	}
	f.join(&l)
	return x
}

func (f *fields) failure() *parley.Error {
	x := new(parley.Error)
	for f.next() {
		switch f.tag {
		case errCode:
			x.Code = parley.Code(f.string())
		case errText:
			x.Text = f.string()
		case errRetryable:
			x.Retryable = f.bool()
		case errAfter:
			x.After = time.Duration(f.small(1 << 62))
		case errRef:
			x.Ref = f.string()
		}
	}
	return x
}
