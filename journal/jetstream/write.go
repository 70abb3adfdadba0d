package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/journal/store"
)

// Headers of messages.
const (
	headerExpect        = "Nats-Expected-Last-Sequence"
	headerExpectSubject = "Nats-Expected-Last-Subject-Sequence"
	headerBatch         = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
	headerTTL           = "Nats-TTL"
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

// attempt publishes what a call writes; call marks it, and n counts the attempts.
type attempt func(ctx context.Context, call string, n int) (*nats.Msg, error)

// settle says what became of earlier attempts of a call that were not answered,
// when another is refused because the last sequence is not the expected one.
type settle func(ctx context.Context, call string) (verdict, uint64, error)

type verdict int

const (
	notSeen   verdict = iota // nothing is there yet that could refuse it
	isStored                 // by an earlier attempt, with a sequence
	isRefused                // no attempt was stored, or ever will be
	isUnclear
)

// write has something stored, and tries again where that can do no harm: what
// it publishes must name what it is to follow. refused is the server's error where
// another was sooner.
func (s *Store) write(ctx context.Context, try attempt, settled settle) (seq uint64, refused *apiError, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	call := s.run + strconv.FormatUint(s.number.Add(1), 36)
	maybe := false // an attempt may have been stored, or may yet be
	give := func(err error) error {
		if maybe {
			return fmt.Errorf("%w: %w", store.ErrUnknown, err)
		}
		return err
	}
	pause := firstPause
	for n := 0; ; n++ {
		m, err := try(ctx, call, n)
		if err == nil {
			var refusal *apiError
			if seq, refusal = parseAck(m.Data); refusal == nil {
				return seq, nil, nil
			}
			switch {
			case refusal.conflict() && maybe:
				v, at, looked := settled(ctx, call)
				switch {
				case looked != nil:
					err = looked
				case v == isStored:
					return at, nil, nil
				case v == isRefused:
					return 0, refusal, nil
				case v == isUnclear:
					return 0, nil, give(refusal)
				}
			case refusal.ErrCode == codeWrongLastNow: // until it is known what that was
			case refusal.conflict():
				return 0, refusal, nil
			case !refusal.temporary():
				return 0, nil, give(refusal.refusal())
			}
			if err == nil {
				err = refusal
			}
		} else if !notSent(err) {
			maybe = true
		}
		if !await(ctx, pause) {
			err = fmt.Errorf("%w: %w", err, ctx.Err())
			if !maybe {
				err = fmt.Errorf("%w: %w", store.ErrBusy, err)
			}
			return 0, nil, give(err)
		}
		pause = min(2*pause, maxPause)
	}
}

func parseAck(data []byte) (uint64, *apiError) {
	var x struct {
		Sequence uint64    `json:"seq"`
		Error    *apiError `json:"error"`
	}
	if err := json.Unmarshal(data, &x); err != nil {
		return 0, &apiError{Code: 503, Description: "an answer that cannot be read"}
	}
	return x.Sequence, x.Error
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

// Append implements [store.Store].
func (s *Store) Append(ctx context.Context, p int, after uint64, records []store.Record) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	for i := range records {
		if n := len(records[i].Data); n > s.cfg.MaxPayload {
			return fmt.Errorf("%w: a record has %d bytes, the limit is %d", store.ErrTooLarge, n, s.cfg.MaxPayload)
		}
	}
	for begun := false; len(records) > 0; begun = true {
		var err error
		if last := records[0].Sequence - 1; records[0].Sequence > after+1 {
			if err = s.skip(ctx, p, after, last); err == nil {
				after = last
			}
		}
		n := group(after, records)
		if err == nil {
			err = s.append(ctx, p, after, records[:n])
		}
		if err != nil {
			if begun && !errors.Is(err, store.ErrUnknown) {
				err = fmt.Errorf("%w: a first part was recorded: %w", store.ErrUnknown, err)
			}
			return err
		}
		after += uint64(n)
		records = records[n:]
	}
	return nil
}

// group counts the records that are one batch.
func group(after uint64, records []store.Record) int {
	size := 0
	for i := range records {
		size += len(records[i].Data)
		if i > 0 && (i == maxBatch || size > maxBatchBytes || records[i].Sequence > after+uint64(i)+1) {
			return i
		}
	}
	return len(records)
}

// append has a group stored, whole or not at all.
func (s *Store) append(ctx context.Context, p int, after uint64, records []store.Record) error {
	subjects := make([]string, len(records))
	for i := range records {
		subjects[i] = s.logSubject(p) + plainRecord
		if tag := records[i].Tag; tag != "" {
			subjects[i] = s.logSubject(p) + taggedRecord + tagToken(tag)
		}
	}
	return s.publish(ctx, p, after, subjects, func(i int) []byte { return records[i].Data })
}

// publish has messages stored behind after. Only the first of a batch says what
// it is to follow; see the package's documentation why each message by itself, with
// what it would follow then, would not do.
func (s *Store) publish(ctx context.Context, p int, after uint64, subjects []string, data func(int) []byte) error {
	stream, n := s.logStream(p), len(subjects)
	expect := strconv.FormatUint(after, 10)
	try := func(ctx context.Context, call string, try int) (*nats.Msg, error) {
		var batch string
		if n > 1 {
			batch = call + "." + strconv.Itoa(try)
		}
		for i := range n {
			h := make(nats.Header, 4)
			if i == 0 {
				h[headerExpect], h[headerCall] = []string{expect}, []string{call}
			}
			if n > 1 {
				h[headerBatch], h[headerBatchSequence] = []string{batch}, []string{strconv.Itoa(i + 1)}
			}
			m := &nats.Msg{Subject: subjects[i], Header: h, Data: data(i)}
			if i < n-1 {
				if err := s.nc.PublishMsg(m); err != nil {
					return nil, fmt.Errorf("%w: %w", nats.ErrReconnectBufExceeded, err) // without its end a batch is dropped
				}
				continue
			}
			if n > 1 {
				h[headerBatchCommit] = []string{"1"}
			}
			return s.once(ctx, m, try)
		}
		return nil, nil
	}
	settled := func(ctx context.Context, call string) (verdict, uint64, error) {
		m, err := s.leader(ctx, stream, after+1, "")
		switch {
		case errors.Is(err, errNoMessage):
			return notSeen, 0, nil // it may be on its way to a majority
		case err != nil:
			return 0, 0, err
		case m.header.Get(headerCall) == call:
			return isStored, after + uint64(n), nil
		}
		return isRefused, 0, nil
	}
	seq, refused, err := s.write(ctx, try, settled)
	switch {
	case err != nil:
		return err
	case refused != nil:
		return fmt.Errorf("%w: partition %d does not end at %d: %w", store.ErrConflict, p, after, refused)
	case seq != after+uint64(n):
		return fmt.Errorf("%w: stream %s stored behind %d has sequence %d", store.ErrCorrupt, stream, after, seq)
	}
	s.tell(stream, seq)
	return nil
}

// Skip implements [store.Store].
func (s *Store) Skip(ctx context.Context, p int, last uint64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	t, err := s.tail(ctx, s.logStream(p))
	if err != nil {
		return err
	}
	return s.skip(ctx, p, t.last, last)
}

// skip has the stream go on behind last. An empty stream is moved there; one that
// is not gets fillers, which are removed later.
func (s *Store) skip(ctx context.Context, p int, after, last uint64) error {
	t, err := s.tail(ctx, s.logStream(p))
	if err != nil {
		return err
	}
	if t.last != after {
		return fmt.Errorf("%w: partition %d ends at %d, not at %d", store.ErrConflict, p, t.last, after)
	}
	if t.last >= last {
		return nil
	}
	if t.records == 0 {
		return s.purge(ctx, s.logStream(p), "", last+1)
	}
	s.mu.Lock()
	s.gaps[p] = true
	s.mu.Unlock()
	for after < last {
		subjects := make([]string, min(maxBatch, last-after))
		for i := range subjects {
			subjects[i] = s.logSubject(p) + filler
		}
		if err := s.publish(ctx, p, after, subjects, func(int) []byte { return nil }); err != nil {
			return err
		}
		after += uint64(len(subjects))
	}
	return nil
}

// removeFillers removes what skip put there.
func (s *Store) removeFillers(ctx context.Context, p int) error {
	if err := s.purge(ctx, s.logStream(p), s.logSubject(p)+filler, 0); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gaps, p)
	return nil
}

// purge removes the messages of a subject, or all before a sequence.
func (s *Store) purge(ctx context.Context, stream, subject string, before uint64) error {
	body, err := json.Marshal(struct {
		Filter string `json:"filter,omitempty"`
		Before uint64 `json:"seq,omitempty"`
	}{subject, before})
	if err == nil {
		_, err = s.ask(ctx, apiPurge+stream, body)
	}
	return err
}

// erase removes one message and has the servers overwrite it in their files; one
// that is not there is no error.
func (s *Store) erase(ctx context.Context, stream string, seq uint64) error {
	_, err := s.ask(ctx, apiDelete+stream, fmt.Appendf(nil, `{"seq":%d}`, seq))
	if api := (*apiError)(nil); errors.As(err, &api) && (api.Code == 404 || api.ErrCode == 10057 || api.ErrCode == 10043) {
		if _, err := s.leader(ctx, stream, seq, ""); errors.Is(err, errNoMessage) {
			return nil
		}
	}
	return err
}

// Replace implements [store.Store]. What remains is stored first, then the record
// is erased.
func (s *Store) Replace(ctx context.Context, p int, records []store.Record) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	for _, r := range records {
		if err := s.replace(ctx, p, r); err != nil {
			return fmt.Errorf("record %d of partition %d: %w", r.Sequence, p, err)
		}
	}
	return nil
}

func (s *Store) replace(ctx context.Context, p int, r store.Record) error {
	if len(r.Data) > s.cfg.MaxPayload {
		return fmt.Errorf("%w: %d bytes, the limit is %d", store.ErrTooLarge, len(r.Data), s.cfg.MaxPayload)
	}
	stream := s.logStream(p)
	old, err := s.leader(ctx, stream, r.Sequence, "")
	erased := errors.Is(err, errNoMessage)
	if erased {
		old, err = s.leader(ctx, s.remainsStream(), 0, s.remainsOf(p, r.Sequence))
	}
	if errors.Is(err, errNoMessage) {
		return store.ErrNotFound
	}
	if err != nil {
		return err
	}
	if _, ok, err := s.first(ctx, p); err == nil && !ok {
		var t tail
		if t, err = s.tail(ctx, stream); err == nil {
			err = s.setFirst(ctx, p, t.first)
		}
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	h := nats.Header{}
	if tag := s.record(old).Tag; tag != "" {
		h.Set(headerTag, tag)
		if err := s.setNewest(ctx, p, tag, r.Sequence); err != nil {
			return err
		}
	}
	if err := s.keep(ctx, s.remainsOf(p, r.Sequence), h, r.Data); err != nil || erased {
		return err
	}
	if err := s.erase(ctx, stream, r.Sequence); err != nil {
		return err
	}
	// The server that is read from may come to it later than the leader.
	for range behindTries {
		if gone, err := s.replicaLacks(ctx, stream, r.Sequence); err != nil || gone || !await(ctx, behindBy) {
			return err
		}
	}
	return nil
}

// keep puts a message into the remains, and erases the ones before it.
func (s *Store) keep(ctx context.Context, subject string, h nats.Header, data []byte) error {
	_, before, err := s.put(ctx, s.remainsStream(), subject, h, data, nil)
	if err != nil || before == 0 {
		return err
	}
	return s.erase(ctx, s.remainsStream(), before)
}

// Remove implements [store.Store].
func (s *Store) Remove(ctx context.Context, p int, before uint64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	t, err := s.tail(ctx, s.logStream(p))
	if err != nil {
		return err
	}
	before = min(before, t.last+1) // the engine would move the end
	first, has, err := s.first(ctx, p)
	if err != nil {
		return err
	}
	if has && before > first {
		err = s.setFirst(ctx, p, before)
	}
	if err == nil && before > t.first {
		err = s.purge(ctx, s.logStream(p), "", before)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.floors[p] = max(s.floors[p], before)
	s.mu.Unlock()
	if !has {
		return nil
	}
	for seq := first; seq < before; seq = (seq/remainsBlock + 1) * remainsBlock {
		if err := s.removeRemains(ctx, p, seq/remainsBlock, before); err != nil {
			return err
		}
	}
	return nil
}

// removeRemains removes the remains of a block's records before a sequence.
func (s *Store) removeRemains(ctx context.Context, p int, block, before uint64) error {
	if (block+1)*remainsBlock <= before {
		return s.purge(ctx, s.remainsStream(), s.remainsBlockOf(p, block)+".*", 0)
	}
	of, err := s.remains(ctx, p, block)
	for seq := range of {
		if err == nil && seq < before {
			err = s.purge(ctx, s.remainsStream(), s.remainsOf(p, seq), 0)
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

func (s *Store) firstOf(p int) string { return fmt.Sprintf("%sfirst.%d", s.remainsSubject(), p) }

func (s *Store) newestOf(p int, tag string) string {
	return fmt.Sprintf("%stag.%d.%s", s.remainsSubject(), p, tagToken(tag))
}

// number64 reads a sequence that the remains tell.
func (s *Store) number64(ctx context.Context, subject string) (seq uint64, ok bool, err error) {
	m, err := s.leader(ctx, s.remainsStream(), 0, subject)
	if errors.Is(err, errNoMessage) {
		return 0, false, nil
	}
	if err == nil {
		seq, err = strconv.ParseUint(string(m.data), 10, 64)
	}
	return seq, err == nil, err
}

// first is the sequence of a partition's first record, where something was erased;
// else the stream itself tells it.
func (s *Store) first(ctx context.Context, p int) (uint64, bool, error) {
	return s.number64(ctx, s.firstOf(p))
}

func (s *Store) setFirst(ctx context.Context, p int, seq uint64) error {
	return s.keep(ctx, s.firstOf(p), nil, strconv.AppendUint(nil, seq, 10))
}

func (s *Store) setNewest(ctx context.Context, p int, tag string, seq uint64) error {
	old, _, err := s.number64(ctx, s.newestOf(p, tag))
	if err != nil || old >= seq {
		return err
	}
	return s.keep(ctx, s.newestOf(p, tag), nil, strconv.AppendUint(nil, seq, 10))
}

// put stores a message as the last of its subject. expect is what must be the
// last one, nil: whatever is. before is the one that was.
//
// Without expect it asks for what is there all the same: what a frozen server
// still has of this call could else be stored over a later value.
func (s *Store) put(
	ctx context.Context, stream, subject string, h nats.Header, data []byte, expect *uint64,
) (seq, before uint64, err error) {
	if expect != nil {
		before = *expect
	}
	for {
		try := func(ctx context.Context, call string, n int) (*nats.Msg, error) {
			m := &nats.Msg{Subject: subject, Header: make(nats.Header, len(h)+2), Data: data}
			for k, v := range h {
				m.Header[k] = v
			}
			m.Header[headerExpectSubject] = []string{strconv.FormatUint(before, 10)}
			m.Header[headerCall] = []string{call}
			return s.once(ctx, m, n)
		}
		settled := func(ctx context.Context, call string) (verdict, uint64, error) {
			m, err := s.leader(ctx, stream, 0, subject)
			switch {
			case errors.Is(err, errNoMessage):
				return isUnclear, 0, nil
			case err != nil:
				return 0, 0, err
			case m.header.Get(headerCall) == call:
				return isStored, m.seq, nil
			case m.seq == before:
				return notSeen, 0, nil
			case m.header.Get(headerExpectSubject) == strconv.FormatUint(before, 10):
				return isRefused, 0, nil // it took the place of the same one
			}
			return isUnclear, 0, nil
		}
		seq, refused, err := s.write(ctx, try, settled)
		if err != nil {
			return 0, 0, err
		}
		if refused == nil {
			s.tell(stream, seq)
			return seq, before, nil
		}
		there, err := s.leader(ctx, stream, 0, subject)
		switch {
		case errors.Is(err, errNoMessage):
			there = &stored{}
		case err != nil:
			return 0, 0, err
		}
		// One that is to be the first may follow a removal.
		if expect != nil && (*expect != 0 || there.seq != 0 && !there.removal()) {
			return 0, 0, fmt.Errorf("%w: %w", store.ErrConflict, refused)
		}
		if there.seq == before && !await(ctx, firstPause) { // another is under way
			return 0, 0, fmt.Errorf("%w: %w", store.ErrBusy, ctx.Err())
		}
		before = there.seq
	}
}

// Scrub implements [store.Store], as far as that is possible: see the package's
// documentation. Values past their end are erased.
func (s *Store) Scrub(ctx context.Context, now time.Time) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	var ended []uint64
	err := s.pages(ctx, s.stateStream(), s.stateSubject()+">", 1, endless, func(m *stored) bool {
		if until := m.until(); !until.IsZero() && !until.After(now) {
			ended = append(ended, m.seq)
		}
		return true
	})
	for _, seq := range ended {
		if err == nil {
			err = s.erase(ctx, s.stateStream(), seq)
		}
	}
	return err
}
