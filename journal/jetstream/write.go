package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
)

// Headers of messages that the client library does not name.
const (
	headerBatch         = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
	headerOperation     = "KV-Operation" // of a message that marks a removed value

	headerCall  = "Parley-Call"  // identifies the call that made the message
	headerUntil = "Parley-Until" // of a value, in nanoseconds
	headerTag   = "Parley-Tag"   // of the remains of a record: its tag
)

// Bounds of a batch.
const (
	maxBatch      = 1000
	maxBatchBytes = 8 << 20
)

// publish stores messages, several as one batch, and returns the last sequence. The
// first message expects a last sequence, of the stream or of its subject, in the
// header expectHeader. The package's documentation says why several messages must be
// a batch. publish may be repeated without harm.
func (s *Store) publish(
	ctx context.Context, stream, expectHeader string, after uint64, msgs []*nats.Msg,
) (seq uint64, err error) {
	msgs[0].Header.Set(expectHeader, strconv.FormatUint(after, 10))
	msgs[0].Header.Set(headerCall, s.run+strconv.FormatUint(s.called.Add(1), 36))
	begun := time.Now()
	maybe := false // an attempt may have been stored, or still will be
	var last error // of the last attempt
	err = retry(ctx, s.cfg.Timeout, func(ctx context.Context, try int) error {
		if end, _ := ctx.Deadline(); try > 0 && !maybe && time.Until(end) < end.Sub(begun)/8 {
			return fmt.Errorf("%w: %w", errNoTime, last) // the outcome of one more might stay unknown
		}
		seq, last = s.send(ctx, msgs, try)
		if maybe && conflicts(last) {
			seq, last = s.resolve(ctx, stream, expectHeader, after, msgs)
		}
		maybe = !errors.Is(last, store.ErrConflict) && (maybe || !notStored(last))
		return last
	})
	if err == nil {
		s.report(stream, seq)
		return seq, nil
	}
	if refusal := refused(err); refusal != nil {
		err = refusal
	}
	if maybe && !errors.Is(err, store.ErrUnknown) {
		err = fmt.Errorf("%w: %v", store.ErrUnknown, err) // not wrapped: the cause may mean that nothing was recorded
	}
	return 0, err
}

// Headers with the expected last sequence.
const (
	inStream     = jetstream.ExpectedLastSeqHeader
	underSubject = jetstream.ExpectedLastSubjSeqHeader
)

// resolve finds the outcome of unanswered attempts of a call when a later attempt is
// refused because of the last sequence. No error: an attempt was stored. ErrConflict:
// none was or ever will be. ErrUnknown: the outcome cannot be known. Any other error:
// not clear yet.
func (s *Store) resolve(
	ctx context.Context, stream, expectHeader string, after uint64, msgs []*nats.Msg,
) (uint64, error) {
	at := get{Seq: after + 1}
	if expectHeader == underSubject {
		at = get{Last: msgs[0].Subject}
	}
	m, err := s.readFromLeader(ctx, stream, at)
	switch {
	case err != nil:
		return 0, err
	case m.header.Get(headerCall) == msgs[0].Header.Get(headerCall):
		return m.Seq + uint64(len(msgs)) - 1, nil
	case m.Seq == 0 || m.Seq == after:
		return 0, errors.New("the message at this sequence is not stored by a majority yet")
	case expectHeader == inStream || m.header.Get(expectHeader) == strconv.FormatUint(after, 10):
		return 0, fmt.Errorf("%w: another message has this sequence", store.ErrConflict)
	}
	return 0, fmt.Errorf("%w: the value was replaced since", store.ErrUnknown)
}

// conflicts reports that the last sequence is another one: of the stored messages,
// or of the messages in flight.
func conflicts(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// send makes one attempt, and returns the last sequence. The servers drop an
// incomplete batch, so each attempt has an id of its own.
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

// tagToken encodes a tag as the end of a subject, which must not end in a dot.
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

// group makes a batch of the first records; empty: a gap comes first.
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

// append stores messages behind after, all or none.
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

// skip moves the end of a stream to last. after is its expected end, nil: any. An
// empty stream is moved; another gets fillers, which are removed at once.
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
	_, err := s.request(ctx, s.cfg.Timeout, apiPurge+stream,
		jetstream.StreamPurgeRequest{Subject: subject, Sequence: before})
	return err
}

// erase removes a message and has the servers overwrite it in their files. A
// missing message is no error.
func (s *Store) erase(ctx context.Context, stream string, seq uint64) error {
	_, err := s.request(ctx, s.cfg.Timeout, apiDelete+stream, get{Seq: seq})
	if refused(err) != nil {
		if m, err := s.readFromLeader(ctx, stream, get{Seq: seq}); err == nil && m.Seq == 0 {
			return nil
		}
	}
	return err
}

// Replace implements [store.Store]. It stores the remains first and then erases the
// record.
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

// putRemains stores a message in the remains, and erases the subject's earlier one.
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
	before = min(before, t.LastSeq+1) // a later sequence would move the end
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

// The remains of erased records are kept in blocks, which one request reads. Beside
// them are kept the first record of each partition with erased records, and the
// newest erased record of each tag.
const remainsBlock = 256

func (s *Store) remainsBlockOf(p int, block uint64) string {
	return fmt.Sprintf("%s%d.%d", s.remainsSubject(), p, block)
}

func (s *Store) remainsOf(p int, seq uint64) string {
	return s.remainsBlockOf(p, seq/remainsBlock) + "." + strconv.FormatUint(seq, 10)
}

// firstOf is the subject for the sequence of a partition's first record. It has a
// message once a record was erased; before that the stream itself has the sequence.
func (s *Store) firstOf(p int) string { return fmt.Sprintf("%sfirst.%d", s.remainsSubject(), p) }

func (s *Store) newestOf(p int, tag string) string {
	return fmt.Sprintf("%stag.%d.%s", s.remainsSubject(), p, tagToken(tag))
}

// readNumber reads a sequence from the remains; 0: there is none.
func (s *Store) readNumber(ctx context.Context, subject string) (uint64, error) {
	m, err := s.readFromLeader(ctx, s.remainsStream(), get{Last: subject})
	if err != nil || m.Seq == 0 {
		return 0, err
	}
	return strconv.ParseUint(string(m.Data), 10, 64)
}

// put stores a message as the last of its subject. expect is the required last
// sequence of the subject, nil: any. before is the sequence of the subject's previous
// message.
//
// Without expect, put reads the present last sequence and expects that: a frozen
// server could otherwise store an old copy of this call over a later value.
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
			// A first value may follow a removal.
			if expect != nil && there.Seq != 0 && !there.removal() {
				return 0, 0, fmt.Errorf("%w: the key has a value", store.ErrConflict)
			}
			before = there.Seq
		}
		msg := &nats.Msg{Subject: subject, Header: h, Data: data}
		seq, err = s.publish(ctx, stream, underSubject, before, []*nats.Msg{msg})
		if !errors.Is(err, store.ErrConflict) || expect != nil && *expect != 0 {
			return seq, before, err
		}
		if err := sleep.For(ctx, firstPause); err != nil { // another write is in flight
			return 0, 0, fmt.Errorf("%w: %w", store.ErrBusy, err)
		}
	}
}
