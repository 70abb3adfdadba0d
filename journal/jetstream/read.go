package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
)

// stored is a message of a stream, in the JSON form of the API.
type stored struct {
	Subject string `json:"subject"`
	Seq     uint64 `json:"seq"`
	Headers []byte `json:"hdrs"`
	Data    []byte `json:"data"`

	header nats.Header
}

// removal reports whether the message marks a removed value.
func (m *stored) removal() bool { return m.header.Get(headerOperation) != "" }

func (m *stored) filler() bool { return strings.HasSuffix(m.Subject, "."+filler) }

func (m *stored) until() time.Time {
	n, err := strconv.ParseInt(m.header.Get(headerUntil), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// record makes a record of a message of a partition or of the remains.
func (m *stored) record() store.Record {
	r := store.Record{Sequence: m.Seq, Data: m.Data, Tag: m.header.Get(headerTag)}
	if _, tag, ok := strings.Cut(m.Subject, "."+taggedRecord); ok && r.Tag == "" {
		r.Tag = untag(tag)
	}
	return r
}

// get selects messages of a stream: the message with a sequence, the last message of
// a subject, or all messages of a subject from a sequence on.
type get struct {
	Seq      uint64 `json:"seq,omitempty"`
	Last     string `json:"last_by_subj,omitempty"`
	Next     string `json:"next_by_subj,omitempty"`
	Batch    uint64 `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// readFromLeader reads one message from a stream's leader, because other servers
// may lag behind. Sequence 0: there is none.
func (s *Store) readFromLeader(ctx context.Context, stream string, which get) (*stored, error) {
	a, err := s.request(ctx, s.cfg.Timeout, apiGet+stream, which)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return &stored{}, nil
	}
	if err == nil && len(a.Message.Headers) > 0 {
		a.Message.header, err = nats.DecodeHeadersMsg(a.Message.Headers)
	}
	return &a.Message, err
}

// A server that lags behind is asked again behindTries times. A message that it does
// not have then is lost.
const (
	behindBy    = 5 * time.Millisecond
	behindTries = 400
)

// waitUntil waits until a server has caught up with a stream.
func waitUntil(ctx context.Context, stream string, caughtUp func() (bool, error)) error {
	for range behindTries {
		if done, err := caughtUp(); done || err != nil {
			return err
		}
		if err := sleep.For(ctx, behindBy); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: a server that has stream %s lags behind, or the servers lost messages", store.ErrBusy,
		stream)
}

// tail returns a stream's state from its leader. A new leader may still lack
// messages that another server has returned.
func (s *Store) tail(ctx context.Context, stream string) (t jetstream.StreamState, err error) {
	err = waitUntil(ctx, stream, func() (bool, error) {
		a, err := s.request(ctx, s.cfg.Timeout, apiInfo+stream, nil)
		t = a.State
		return t.LastSeq >= s.lastReported(stream), err
	})
	if t.Msgs == 0 {
		t.FirstSeq = t.LastSeq + 1
	}
	if err == nil {
		s.report(stream, t.LastSeq)
	}
	return t, err
}

// waitFresh waits until the server that is read from has caught up with the leader.
func (s *Store) waitFresh(ctx context.Context, stream string) error {
	t, err := s.tail(ctx, stream)
	if err != nil || t.LastSeq == 0 {
		return err
	}
	return waitUntil(ctx, stream, func() (bool, error) {
		ms, err := s.page(ctx, stream, get{Seq: t.LastSeq, Batch: 1})
		if err != nil || len(ms) > 0 {
			return true, err
		}
		m, err := s.readFromLeader(ctx, stream, get{Seq: t.LastSeq, Next: ">"})
		return err == nil && m.Seq == 0, err // removed since
	})
}

// waitAbsent waits until the server that is read from has no message from a
// sequence to before another: it may apply an erasure later than the leader.
func (s *Store) waitAbsent(ctx context.Context, stream string, from, before uint64) error {
	return waitUntil(ctx, stream, func() (bool, error) {
		ms, err := s.page(ctx, stream, get{Seq: from, Batch: 1})
		return len(ms) == 0 || ms[0].Seq >= before, err
	})
}

// Reads go in pages: one request and many answers, from the nearest server that has
// the stream. The server needs to keep no consumer.
const (
	pageSize  = 1024
	pageBytes = 4 << 20
	endless   = math.MaxUint64
)

// messages returns a stream's messages of a filter from seq to last. If a page is
// not full, the leader is asked for the next message. A new leader may still be
// behind: if it has no message up to a last that was reported, its answer counts
// when it has caught up.
func (s *Store) messages(ctx context.Context, stream, filter string, seq, last uint64) iter.Seq2[*stored, error] {
	return func(yield func(*stored, error) bool) {
		for seq <= last {
			size := min(pageSize, last-seq+1)
			ms, err := s.page(ctx, stream, get{Seq: seq, Next: filter, Batch: size, MaxBytes: pageBytes})
			next := seq
			if len(ms) > 0 {
				next = ms[len(ms)-1].Seq + 1
			}
			if err == nil && uint64(len(ms)) < size && next <= last {
				which := get{Seq: next, Next: filter}
				var m *stored
				m, err = s.readFromLeader(ctx, stream, which)
				if err == nil && m.Seq == 0 && last <= s.lastReported(stream) {
					if _, err = s.tail(ctx, stream); err == nil {
						m, err = s.readFromLeader(ctx, stream, which)
					}
				}
				ms = append(ms, m)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, m := range ms {
				if m.Seq == 0 || m.Seq > last || !yield(m, nil) {
					return
				}
				seq = m.Seq + 1
			}
		}
	}
}

// page requests one page, and repeats the request until there is an answer. If a
// message does not arrive, the page ends before it.
func (s *Store) page(ctx context.Context, stream string, which get) (ms []*stored, err error) {
	body, _ := json.Marshal(which) // a struct of plain values
	err = retry(ctx, s.cfg.Timeout, func(ctx context.Context, _ int) (err error) {
		if ms, err = s.pageOnce(ctx, stream, body); len(ms) > 0 {
			return nil
		}
		return err
	})
	return ms, err
}

// errGap: a message did not arrive, for example because the connection was lost.
var errGap = errors.New("a message did not arrive")

// pageOnce returns the part of a page before an error.
func (s *Store) pageOnce(ctx context.Context, stream string, body []byte) (ms []*stored, err error) {
	s.requests.RLock()
	defer s.requests.RUnlock()
	if s.ctx.Err() != nil {
		return nil, store.ErrClosed
	}
	sub, err := s.nc.SubscribeSync(s.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	end := func() { _ = sub.Unsubscribe() } // fails if the connection is closed, and the subscription with it
	defer end()
	// A context for each message would cost more than the message does.
	defer context.AfterFunc(ctx, end)()
	err = errors.Join(sub.SetPendingLimits(-1, -1), s.nc.PublishRequest(apiDirect+stream, sub.Subject, body))
	if err != nil {
		return nil, err
	}
	for before := "0"; ; {
		m, err := sub.NextMsg(2 * s.cfg.answerWithin)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, nats.ErrNoResponders) {
				s.unanswered(err)
			}
			return ms, errors.Join(err, ctx.Err())
		}
		s.outage.answered()
		status := m.Header.Get("Status")
		switch {
		case status == "404":
			return ms, nil
		case status != "" && status != "204":
			return ms, &jetstream.APIError{Description: "status " + status + " " + m.Header.Get("Description")}
		case m.Header.Get(jetstream.LastSequenceHeader) != before: // each message names the one before it
			return ms, errGap
		case status != "":
			return ms, nil
		}
		before = m.Header.Get(jetstream.SequenceHeader)
		x := &stored{Subject: m.Header.Get(jetstream.SubjectHeader), header: m.Header, Data: m.Data}
		if x.Seq, err = strconv.ParseUint(before, 10, 64); err != nil {
			return ms, &jetstream.APIError{Description: "a message without a sequence"}
		}
		ms = append(ms, x)
	}
}

// Read implements [store.Store].
func (s *Store) Read(ctx context.Context, p int, first, last uint64, fn func(store.Record) bool) error {
	_, err := s.read(ctx, p, first, last, fn)
	return err
}

// read is Read, and returns the last sequence that it has read.
func (s *Store) read(ctx context.Context, p int, next, last uint64, fn func(store.Record) bool) (uint64, error) {
	stream := s.logStream(p)
	if last > s.lastReported(stream) {
		t, err := s.tail(ctx, stream)
		if err != nil {
			return 0, err
		}
		last = min(last, t.LastSeq)
	}
	next = max(next, 1)
	for m, err := range s.messages(ctx, stream, s.logSubject(p)+">", next, last) {
		if err != nil {
			return 0, err
		}
		if more, err := s.fill(ctx, p, next, m.Seq, fn); err != nil || !more {
			return 0, err
		}
		next = m.Seq + 1
		if !m.filler() && !fn(m.record()) {
			return m.Seq, nil
		}
	}
	_, err := s.fill(ctx, p, next, last+1, fn)
	return last, err
}

// fill calls fn for the remains of erased records from next to before. A sequence
// that is missing in a partition was erased, if its remains exist.
func (s *Store) fill(
	ctx context.Context, p int, next, before uint64, fn func(store.Record) bool,
) (more bool, err error) {
	if next >= before {
		return true, nil
	}
	first, err := s.readNumber(ctx, s.firstOf(p))
	if err != nil || first == 0 {
		return true, err
	}
	for next = max(next, first); next < before; {
		of, err := s.remains(ctx, p, next/remainsBlock)
		if err != nil {
			return false, err
		}
		for end := min(before, (next/remainsBlock+1)*remainsBlock); next < end; next++ {
			if r, ok := of[next]; ok && !fn(r) {
				return false, nil
			}
		}
	}
	return true, nil
}

// remains returns the remains of a block by sequence.
func (s *Store) remains(ctx context.Context, p int, block uint64) (map[uint64]store.Record, error) {
	of := make(map[uint64]store.Record)
	for m, err := range s.messages(ctx, s.remainsStream(), s.remainsBlockOf(p, block)+".*", 1, endless) {
		if err != nil {
			return nil, err
		}
		r := m.record()
		r.Sequence, err = strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %s in stream %s", store.ErrCorrupt, m.Subject, s.remainsStream())
		}
		of[r.Sequence] = r
	}
	return of, nil
}

// Tagged implements [store.Store].
func (s *Store) Tagged(ctx context.Context, p int, tag string) (store.Record, error) {
	var erased uint64
	var failed error
	var other sync.WaitGroup // both requests at once: renewing leases depends on it
	other.Go(func() { erased, failed = s.readNumber(ctx, s.newestOf(p, tag)) })
	m, err := s.readFromLeader(ctx, s.logStream(p), get{Last: s.taggedSubject(p, tag)})
	other.Wait()
	if err = errors.Join(err, failed); err != nil {
		return store.Record{}, err
	}
	if erased > m.Seq {
		r, err := s.readFromLeader(ctx, s.remainsStream(), get{Last: s.remainsOf(p, erased)})
		if err != nil {
			return store.Record{}, err
		}
		if r.Seq != 0 { // else the record was removed
			m = r
			m.Seq = erased
		}
	}
	if m.Seq == 0 {
		return store.Record{}, fmt.Errorf("%w: tag %q in partition %d", store.ErrNotFound, tag, p)
	}
	s.report(s.logStream(p), m.Seq)
	return m.record(), nil
}

// Span implements [store.Store].
func (s *Store) Span(ctx context.Context, p int) (store.Span, error) {
	t, err := s.tail(ctx, s.logStream(p))
	if err != nil {
		return store.Span{}, err
	}
	out := store.Span{First: t.FirstSeq, Last: t.LastSeq, Records: t.Msgs, Bytes: t.Bytes}
	first, err := s.readNumber(ctx, s.firstOf(p))
	if err != nil || first == 0 {
		return out, err
	}
	out.First = first
	if err := s.waitFresh(ctx, s.remainsStream()); err != nil {
		return out, err
	}
	filter := fmt.Sprintf("%s%d.>", s.remainsSubject(), p)
	ms, err := s.page(ctx, s.remainsStream(), get{Seq: 1, Next: filter, Batch: 1})
	if err != nil || len(ms) == 0 {
		return out, err
	}
	behind, err := strconv.ParseUint(ms[0].header.Get("Nats-Num-Pending"), 10, 64)
	out.Records += behind + 1
	out.Bytes = max(out.Bytes, 1)
	return out, err
}
