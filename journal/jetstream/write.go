package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/journal/store"
)

// Headers of messages, beside the client's constants.
const (
	headerBatch         = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
	headerOperation     = "KV-Operation" // of a marker: what was here is removed

	headerCall  = "Parley-Call"  // which call of which Store made the message
	headerUntil = "Parley-Until" // of a value, in nanoseconds
	headerTag   = "Parley-Tag"   // of a record of which the remains are kept
)

// A batch holds at most so much; more is several batches.
const (
	maxBatch      = 1000
	maxBatchBytes = 8 << 20
)

// publish has messages stored, several as one batch, and gives the last sequence.
// Only the first says what it is to follow, in the stream or under its subject; see
// the package's documentation why each by itself, with what it would follow then,
// would not do. place is the header that says it. It can be tried again without harm.
func (s *Store) publish(
	ctx context.Context, stream, place string, after uint64, msgs []*nats.Msg,
) (seq uint64, err error) {
	msgs[0].Header.Set(place, strconv.FormatUint(after, 10))
	msgs[0].Header.Set(headerCall, s.run+strconv.FormatUint(s.called.Add(1), 36))
	maybe := false // an attempt may have been stored, or may yet be
	err = retry(ctx, s.cfg.Timeout, func(ctx context.Context, try int) (err error) {
		seq, err = s.send(ctx, msgs, try)
		if maybe && conflicts(err) {
			seq, err = s.resolve(ctx, stream, place, after, msgs)
		}
		maybe = !errors.Is(err, store.ErrConflict) && (maybe || !notStored(err))
		return err
	})
	if err == nil {
		s.report(stream, seq)
		return seq, nil
	}
	if refusal := refused(err); refusal != nil {
		err = refusal
	}
	if maybe && !errors.Is(err, store.ErrUnknown) {
		err = fmt.Errorf("%w: %v", store.ErrUnknown, err) // the cause may say that nothing was recorded
	}
	return 0, err
}

// Headers that say what a message is to follow.
const (
	inStream     = jetstream.ExpectedLastSeqHeader
	underSubject = jetstream.ExpectedLastSubjSeqHeader
)

// resolve says what became of attempts of a call that were not answered, when
// another is refused because the last sequence is not the expected one: one was
// stored; ErrConflict, none was or ever will be; ErrUnknown; every other error: that
// is not clear yet.
func (s *Store) resolve(ctx context.Context, stream, place string, after uint64, msgs []*nats.Msg) (uint64, error) {
	at := get{Seq: after + 1}
	if place == underSubject {
		at = get{Last: msgs[0].Subject}
	}
	m, err := s.readFromLeader(ctx, stream, at)
	switch {
	case err != nil:
		return 0, err
	case m.header.Get(headerCall) == msgs[0].Header.Get(headerCall):
		return m.Seq + uint64(len(msgs)) - 1, nil
	case m.Seq == 0 || m.Seq == after:
		return 0, errors.New("what has its place is on its way to a majority")
	case place == inStream || m.header.Get(place) == strconv.FormatUint(after, 10):
		return 0, fmt.Errorf("%w: another has its place", store.ErrConflict)
	}
	return 0, fmt.Errorf("%w: the value was replaced since", store.ErrUnknown)
}

// conflicts reports that the last sequence is another, of what is stored or of
// what is still under way.
func conflicts(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// send makes one attempt, and gives the last sequence. A batch without its end is
// dropped by the servers, so each attempt has an id of its own.
func (s *Store) send(ctx context.Context, msgs []*nats.Msg, try int) (uint64, error) {
	end := msgs[len(msgs)-1]
	if len(msgs) > 1 {
		id := msgs[0].Header.Get(headerCall) + "." + strconv.Itoa(try)
		for i, m := range msgs {
			m.Header.Set(headerBatch, id)
			m.Header.Set(headerBatchSequence, strconv.Itoa(i+1))
			if m == end {
				m.Header.Set(headerBatchCommit, "1")
			} else if err := s.nc.PublishMsg(m); err != nil {
				return 0, fmt.Errorf("%w: %w", nats.ErrReconnectBufExceeded, err)
			}
		}
	}
	ack, err := s.attempt(ctx, s.answerTimeout(try), end)
	return ack.Seq, err
}

// Subjects of a partition's messages.
const (
	plainRecord  = "r"
	taggedRecord = "t." // and the tag
	filler       = "gap"
)

// tagToken is a tag as the end of a subject, of which a dot may not be at an end.
func tagToken(tag string) string { return strings.ReplaceAll(tag, ".", "=") }
func untag(token string) string  { return strings.ReplaceAll(token, "=", ".") }

func (s *Store) taggedSubject(p int, tag string) string {
	return s.logSubject(p) + taggedRecord + tagToken(tag)
}

// Append implements [store.Store].
func (s *Store) Append(ctx context.Context, p int, after uint64, records []store.Record) error {
	for i := range records {
		if err := s.checkSize(records[i].Data); err != nil {
			return err
		}
	}
	for begun := false; len(records) > 0; begun = true {
		var err error
		msgs := s.group(p, after, records)
		if len(msgs) == 0 {
			err = s.skip(ctx, p, &after, records[0].Sequence-1)
			after = records[0].Sequence - 1
		} else {
			err = s.append(ctx, p, after, msgs)
			after += uint64(len(msgs))
		}
		if err != nil {
			if begun && !errors.Is(err, store.ErrUnknown) {
				err = fmt.Errorf("%w: a first part was recorded: %w", store.ErrUnknown, err)
			}
			return err
		}
		records = records[len(msgs):]
	}
	return nil
}

func (s *Store) checkSize(data []byte) error {
	if len(data) > s.cfg.MaxPayload {
		return fmt.Errorf("%w: %d bytes, the limit is %d", store.ErrTooLarge, len(data), s.cfg.MaxPayload)
	}
	return nil
}

// group makes a batch of the first records; it is empty where a gap comes first.
func (s *Store) group(p int, after uint64, records []store.Record) (msgs []*nats.Msg) {
	size := 0
	for i := range records {
		r := &records[i]
		size += len(r.Data)
		if i > 0 && (i == maxBatch || size > maxBatchBytes) || r.Sequence > after+uint64(i)+1 {
			break
		}
		m := &nats.Msg{Subject: s.logSubject(p) + plainRecord, Header: nats.Header{}, Data: r.Data}
		if r.Tag != "" {
			m.Subject = s.taggedSubject(p, r.Tag)
		}
		msgs = append(msgs, m)
	}
	return msgs
}

// append has messages stored behind after, all or none.
func (s *Store) append(ctx context.Context, p int, after uint64, msgs []*nats.Msg) error {
	stream, end := s.logStream(p), after+uint64(len(msgs))
	seq, err := s.publish(ctx, stream, inStream, after, msgs)
	switch {
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("partition %d does not end at %d: %w", p, after, err)
	case err == nil && seq != end:
		return fmt.Errorf("%w: stream %s stored behind %d has sequence %d", store.ErrCorrupt, stream, after, seq)
	}
	return err
}

// Skip implements [store.Store].
func (s *Store) Skip(ctx context.Context, p int, last uint64) error {
	return s.skip(ctx, p, nil, last)
}

// skip has a stream that ends at after, nil: wherever it ends, go on behind last. An
// empty one is moved there; one that is not gets fillers, which are removed at once.
func (s *Store) skip(ctx context.Context, p int, after *uint64, last uint64) error {
	t, err := s.tail(ctx, s.logStream(p))
	switch {
	case err != nil:
		return err
	case after != nil && *after != t.LastSeq:
		return fmt.Errorf("%w: partition %d ends at %d, not at %d", store.ErrConflict, p, t.LastSeq, *after)
	case t.LastSeq >= last:
		return nil
	case t.Msgs == 0:
		return s.purge(ctx, s.logStream(p), "", last+1)
	}
	for end := t.LastSeq; end < last; {
		msgs := make([]*nats.Msg, min(maxBatch, last-end))
		for i := range msgs {
			msgs[i] = &nats.Msg{Subject: s.logSubject(p) + filler, Header: nats.Header{}}
		}
		if err := s.append(ctx, p, end, msgs); err != nil {
			return err
		}
		end += uint64(len(msgs))
	}
	return s.removeFillers(ctx, p)
}

func (s *Store) removeFillers(ctx context.Context, p int) error {
	return s.purge(ctx, s.logStream(p), s.logSubject(p)+filler, 0)
}

// purge removes the messages of a subject, or all before a sequence.
func (s *Store) purge(ctx context.Context, stream, subject string, before uint64) error {
	_, err := s.request(ctx, s.cfg.Timeout, apiPurge+stream, jetstream.StreamPurgeRequest{Subject: subject, Sequence: before})
	return err
}

// erase removes one message and has the servers overwrite it in their files; one
// that is not there is no error.
func (s *Store) erase(ctx context.Context, stream string, seq uint64) error {
	_, err := s.request(ctx, s.cfg.Timeout, apiDelete+stream, get{Seq: seq})
	if refused(err) != nil {
		if m, err := s.readFromLeader(ctx, stream, get{Seq: seq}); err == nil && m.Seq == 0 {
			return nil
		}
	}
	return err
}

// Replace implements [store.Store]. What remains is stored first, then the record
// is erased.
func (s *Store) Replace(ctx context.Context, p int, records []store.Record) error {
	for _, r := range records {
		if err := s.replace(ctx, p, r); err != nil {
			return fmt.Errorf("record %d of partition %d: %w", r.Sequence, p, err)
		}
	}
	return nil
}

func (s *Store) replace(ctx context.Context, p int, r store.Record) error {
	if err := s.checkSize(r.Data); err != nil {
		return err
	}
	stream := s.logStream(p)
	old, err := s.readFromLeader(ctx, stream, get{Seq: r.Sequence})
	erased := err == nil && old.Seq == 0
	if erased {
		old, err = s.readFromLeader(ctx, s.remainsStream(), get{Last: s.remainsOf(p, r.Sequence)})
	}
	if err == nil && old.Seq == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return err
	}
	first, err := s.readNumber(ctx, s.firstOf(p))
	if err == nil && first == 0 {
		var t jetstream.StreamState
		if t, err = s.tail(ctx, stream); err == nil {
			err = s.putNumber(ctx, s.firstOf(p), t.FirstSeq)
		}
	}
	if err != nil {
		return err
	}
	h := nats.Header{}
	if tag := old.record().Tag; tag != "" {
		h.Set(headerTag, tag)
		newest, err := s.readNumber(ctx, s.newestOf(p, tag))
		if err == nil && newest < r.Sequence {
			err = s.putNumber(ctx, s.newestOf(p, tag), r.Sequence)
		}
		if err != nil {
			return err
		}
	}
	if err := s.putRemains(ctx, s.remainsOf(p, r.Sequence), h, r.Data); err != nil || erased {
		return err
	}
	if err := s.erase(ctx, stream, r.Sequence); err != nil {
		return err
	}
	return s.waitAbsent(ctx, stream, r.Sequence, r.Sequence+1)
}

// keep puts a message into the remains, and erases the ones before it.
func (s *Store) putRemains(ctx context.Context, subject string, h nats.Header, data []byte) error {
	_, before, err := s.put(ctx, s.remainsStream(), subject, h, data, nil)
	if err != nil || before == 0 {
		return err
	}
	return s.erase(ctx, s.remainsStream(), before)
}

func (s *Store) putNumber(ctx context.Context, subject string, seq uint64) error {
	return s.putRemains(ctx, subject, nats.Header{}, strconv.AppendUint(nil, seq, 10))
}

// Remove implements [store.Store].
func (s *Store) Remove(ctx context.Context, p int, before uint64) error {
	t, err := s.tail(ctx, s.logStream(p))
	if err != nil {
		return err
	}
	before = min(before, t.LastSeq+1) // the engine would move the end
	first, err := s.readNumber(ctx, s.firstOf(p))
	if err == nil && first != 0 && before > first {
		err = s.putNumber(ctx, s.firstOf(p), before)
	}
	if err == nil && before > t.FirstSeq {
		err = s.purge(ctx, s.logStream(p), "", before)
	}
	if err == nil {
		err = s.waitAbsent(ctx, s.logStream(p), 1, before)
	}
	if err != nil || first == 0 {
		return err
	}
	for block := first / remainsBlock; err == nil && block*remainsBlock < before; block++ {
		if (block+1)*remainsBlock <= before {
			err = s.purge(ctx, s.remainsStream(), s.remainsBlockOf(p, block)+".*", 0)
			continue
		}
		var of map[uint64]store.Record
		of, err = s.remains(ctx, p, block)
		for seq := range of {
			if err == nil && seq < before {
				err = s.purge(ctx, s.remainsStream(), s.remainsOf(p, seq), 0)
			}
		}
	}
	return err
}

// The remains of erased records lie in blocks, of which one request gives all.
// Beside them are the first record of each partition in which something was
// erased, and the newest erased one of each tag.
const remainsBlock = 256

func (s *Store) remainsBlockOf(p int, block uint64) string {
	return fmt.Sprintf("%s%d.%d", s.remainsSubject(), p, block)
}

func (s *Store) remainsOf(p int, seq uint64) string {
	return s.remainsBlockOf(p, seq/remainsBlock) + "." + strconv.FormatUint(seq, 10)
}

// firstOf is where the sequence of a partition's first record is kept, once something
// was erased; before that the stream itself tells it.
func (s *Store) firstOf(p int) string { return fmt.Sprintf("%sfirst.%d", s.remainsSubject(), p) }

func (s *Store) newestOf(p int, tag string) string {
	return fmt.Sprintf("%stag.%d.%s", s.remainsSubject(), p, tagToken(tag))
}

// readNumber reads a sequence that the remains tell; 0: they do not.
func (s *Store) readNumber(ctx context.Context, subject string) (uint64, error) {
	m, err := s.readFromLeader(ctx, s.remainsStream(), get{Last: subject})
	if err != nil || m.Seq == 0 {
		return 0, err
	}
	return strconv.ParseUint(string(m.Data), 10, 64)
}

// put stores a message as the last of its subject. expect is what must be the
// last one, nil: whatever is. before is the one that was.
//
// Without expect it looks what is there all the same: what a frozen server still
// has of this call could else be stored over a later value.
func (s *Store) put(
	ctx context.Context, stream, subject string, h nats.Header, data []byte, expect *uint64,
) (seq, before uint64, err error) {
	if expect != nil {
		before = *expect
	}
	for look := expect == nil; ; look = true {
		if look {
			there, err := s.readFromLeader(ctx, stream, get{Last: subject})
			if err != nil {
				return 0, 0, err
			}
			// One that is to be the first may follow a removal.
			if expect != nil && there.Seq != 0 && !there.removal() {
				return 0, 0, fmt.Errorf("%w: there is a value already", store.ErrConflict)
			}
			before = there.Seq
		}
		msg := &nats.Msg{Subject: subject, Header: h, Data: data}
		seq, err = s.publish(ctx, stream, underSubject, before, []*nats.Msg{msg})
		if !errors.Is(err, store.ErrConflict) || expect != nil && *expect != 0 {
			return seq, before, err
		}
		if !sleep(ctx, firstPause) { // another is under way
			return 0, 0, fmt.Errorf("%w: %w", store.ErrBusy, ctx.Err())
		}
	}
}
