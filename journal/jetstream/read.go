package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/journal/store"
)

// stored is a message as a stream holds it.
type stored struct {
	subject string
	seq     uint64
	header  nats.Header
	data    []byte
}

// removal reports whether the message says that a value was removed.
func (m *stored) removal() bool { return m.header.Get(headerOperation) != "" }

func (m *stored) until() time.Time {
	n, err := strconv.ParseInt(m.header.Get(headerUntil), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// record is what a message of a partition, or of the remains, says.
func (s *Store) record(m *stored) store.Record {
	r := store.Record{Sequence: m.seq, Data: m.data, Tag: m.header.Get(headerTag)}
	if _, tag, ok := strings.Cut(m.subject, "."+taggedRecord); ok && r.Tag == "" {
		r.Tag = untag(tag)
	}
	return r
}

var errNoMessage = errors.New("no such message")

// leader reads one message from a stream's leader: the one with a sequence, or the
// last of a subject. Another server may lag behind.
func (s *Store) leader(ctx context.Context, stream string, seq uint64, subject string) (*stored, error) {
	body := fmt.Appendf(nil, `{"seq":%d}`, seq)
	if seq == 0 {
		body = fmt.Appendf(nil, `{"last_by_subj":%q}`, subject)
	} else if subject != "" {
		body = fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, seq, subject)
	}
	data, err := s.ask(ctx, apiGet+stream, body)
	if api := (*apiError)(nil); errors.As(err, &api) && api.Code == 404 {
		return nil, errNoMessage
	}
	if err != nil {
		return nil, err
	}
	var x struct {
		Message struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Header  []byte `json:"hdrs"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &x); err != nil {
		return nil, err
	}
	m := &stored{subject: x.Message.Subject, seq: x.Message.Seq, data: x.Message.Data}
	if len(x.Message.Header) > 0 {
		m.header, err = nats.DecodeHeadersMsg(x.Message.Header)
	}
	return m, err
}

// tail is a stream's state as its leader knows it.
type tail struct{ first, last, records, bytes uint64 }

func (s *Store) tail(ctx context.Context, stream string) (tail, error) {
	for try := 0; ; try++ {
		data, err := s.ask(ctx, apiInfo+stream, nil)
		if err != nil {
			return tail{}, err
		}
		var x struct {
			State struct {
				First    uint64 `json:"first_seq"`
				Last     uint64 `json:"last_seq"`
				Messages uint64 `json:"messages"`
				Bytes    uint64 `json:"bytes"`
			} `json:"state"`
		}
		if err := json.Unmarshal(data, &x); err != nil {
			return tail{}, err
		}
		// A new leader may be behind what the one before it, or another server, has
		// given out.
		if told := s.toldOf(stream); x.State.Last < told {
			if try < behindTries && await(ctx, behindBy) {
				continue
			}
			return tail{}, fmt.Errorf("%w: stream %s ends at %d, and ended at %d before: the servers lost records, "+
				"or their leader has not caught up", store.ErrBusy, stream, x.State.Last, told)
		}
		if x.State.Messages == 0 {
			x.State.First = x.State.Last + 1
		}
		return tail{x.State.First, x.State.Last, x.State.Messages, x.State.Bytes}, nil
	}
}

// A server that lags behind is asked again so often, with such a pause: what it
// does not have then, it has lost.
const (
	behindBy    = 5 * time.Millisecond
	behindTries = 400
)

// Reading goes in pages: one request, many answers of the nearest server that has
// the stream, no consumer that it would have to keep. Where a page ends, the leader
// has the last word.
const (
	firstPage   = 512
	largestPage = 8192
	pageBytes   = 4 << 20
	endless     = math.MaxUint64
)

// pages reads a stream's messages of a filter from seq to last, until fn gives
// false.
func (s *Store) pages(
	ctx context.Context, stream, filter string, seq, last uint64, fn func(*stored) bool,
) error {
	for page := firstPage; seq <= last; page = min(2*page, largestPage) {
		body := fmt.Appendf(nil, `{"seq":%d,"batch":%d,"max_bytes":%d,"next_by_subj":%q}`,
			seq, min(uint64(page), last-seq+1), pageBytes, filter)
		got := 0
		whole, err := s.page(ctx, stream, body, func(m *stored) bool {
			got++
			more := m.seq <= last && fn(m)
			seq = m.seq + 1
			return more
		})
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil:
			return err
		case got > 0 || !whole:
			continue
		}
		m, err := s.leader(ctx, stream, seq, filter)
		if errors.Is(err, errNoMessage) {
			if s.toldOf(stream) >= seq { // the leader may lag too
				t, err := s.tail(ctx, stream)
				if err != nil {
					return err
				}
				if m, err = s.leader(ctx, stream, seq, filter); t.last >= seq && err == nil {
					if m.seq > last || !fn(m) {
						return nil
					}
					seq = m.seq + 1
					continue
				} else if err != nil && !errors.Is(err, errNoMessage) {
					return err
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
		if m.seq > last || !fn(m) {
			return nil
		}
		seq = m.seq + 1
	}
	return nil
}

var errEnough = errors.New("enough")

// page asks for one page, again while nobody answers, and hands out what comes. It
// is not whole where some of it did not come: each message names the one before it,
// for a connection may be lost and made again in between.
func (s *Store) page(ctx context.Context, stream string, body []byte, fn func(*stored) bool) (whole bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		some, err := s.pageOnce(ctx, stream, body, fn)
		var api *apiError
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, errEnough) || errors.As(err, &api):
			return false, err
		case ctx.Err() == nil && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, errGap):
			s.unanswered(err)
		}
		if some {
			return false, nil
		}
		if !await(ctx, pause) {
			return false, fmt.Errorf("%w: %w", store.ErrBusy, errors.Join(err, ctx.Err()))
		}
	}
}

func (s *Store) pageOnce(
	ctx context.Context, stream string, body []byte, fn func(*stored) bool,
) (some bool, err error) {
	sub, err := s.nc.SubscribeSync(s.nc.NewInbox())
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails where the connection is closed, and all with it
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return false, err
	}
	if err := s.nc.PublishRequest(apiDirect+stream, sub.Subject, body); err != nil {
		return false, err
	}
	for before := "0"; ; some = true {
		m, err := s.next(ctx, sub)
		if err != nil {
			return some, err
		}
		status := m.Header.Get("Status")
		switch {
		case status == "404":
			return some, nil
		case status != "" && status != "204":
			return some, &apiError{Description: "status " + status + " " + m.Header.Get("Description")}
		case m.Header.Get("Nats-Last-Sequence") != before:
			return some, errGap
		case status != "":
			return some, nil
		}
		before = m.Header.Get("Nats-Sequence")
		x := &stored{subject: m.Header.Get("Nats-Subject"), header: m.Header, data: m.Data}
		if x.seq, err = strconv.ParseUint(before, 10, 64); err != nil {
			return some, &apiError{Description: "a message without a sequence"}
		}
		if !fn(x) {
			return some, errEnough
		}
	}
}

// next waits for one message of a page.
func (s *Store) next(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	// Most are there already: a context for each would cost more than they do.
	if m, err := sub.NextMsg(1); !errors.Is(err, nats.ErrTimeout) {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.answerWithin)
	defer cancel()
	m, err := sub.NextMsgWithContext(ctx)
	if err == nil {
		s.outage.answered(s.cfg.Now())
	}
	return m, err
}

// all collects what one request gives.
func (s *Store) all(ctx context.Context, stream string, body []byte) (out []*stored, err error) {
	for {
		out = nil
		whole, err := s.page(ctx, stream, body, func(m *stored) bool { out = append(out, m); return true })
		if err != nil || whole {
			return out, err
		}
	}
}

// replicaLacks reports whether the server that is read from has no message with
// the sequence.
func (s *Store) replicaLacks(ctx context.Context, stream string, seq uint64) (bool, error) {
	ms, err := s.all(ctx, stream, fmt.Appendf(nil, `{"seq":%d,"batch":1}`, seq))
	return err == nil && (len(ms) == 0 || ms[0].seq != seq), err
}

// fresh returns when the server that is read from has what was told of a stream.
func (s *Store) fresh(ctx context.Context, stream string) error {
	told := s.toldOf(stream)
	if told == 0 {
		return nil
	}
	body := fmt.Appendf(nil, `{"seq":%d,"batch":1}`, told)
	for range behindTries {
		ms, err := s.all(ctx, stream, body)
		if err != nil || len(ms) > 0 {
			return err
		}
		_, err = s.leader(ctx, stream, told, ">")
		if errors.Is(err, errNoMessage) {
			return nil // it was removed since
		}
		if err != nil {
			return err
		}
		if !await(ctx, behindBy) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: a server that has stream %s lags behind", store.ErrBusy, stream)
}

// Read implements [store.Store].
func (s *Store) Read(ctx context.Context, p int, first, last uint64, fn func(store.Record) bool) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	s.mu.Lock()
	next := max(first, s.floors[p], 1)
	s.mu.Unlock()
	stream := s.logStream(p)
	var failed error
	more := true
	// What is missing was erased, if its remains are kept.
	fill := func(before uint64) bool {
		if next < before {
			more, failed = s.fill(ctx, p, next, before, fn)
		}
		return more && failed == nil
	}
	if err := s.pages(ctx, stream, s.logSubject(p)+">", next, last, func(m *stored) bool {
		if !fill(m.seq) {
			return false
		}
		next = m.seq + 1
		if !s.isFiller(m) {
			more = fn(s.record(m))
		}
		return more
	}); err != nil {
		return err
	}
	if !more || failed != nil || next > last {
		return failed
	}
	t, err := s.tail(ctx, stream)
	if err != nil {
		return err
	}
	fill(min(last, t.last) + 1)
	return failed
}

func (s *Store) isFiller(m *stored) bool { return strings.HasSuffix(m.subject, "."+filler) }

// fill calls fn for the remains of erased records from next up to before.
func (s *Store) fill(
	ctx context.Context, p int, next, before uint64, fn func(store.Record) bool,
) (more bool, err error) {
	first, erased, err := s.first(ctx, p)
	if err != nil || !erased {
		return true, err
	}
	next = max(next, first)
	for next < before {
		block := next / remainsBlock
		of, err := s.remains(ctx, p, block)
		if err != nil {
			return false, err
		}
		for ; next < min(before, (block+1)*remainsBlock); next++ {
			m := of[next]
			if m == nil {
				// A server may have come to the erasure before it came to the remains.
				if m, err = s.leader(ctx, s.remainsStream(), 0, s.remainsOf(p, next)); errors.Is(err, errNoMessage) {
					continue
				} else if err != nil {
					return false, err
				}
				m.seq = next
			}
			if !fn(s.record(m)) {
				return false, nil
			}
		}
	}
	return true, nil
}

// remains gives those of a block's records, by their sequence.
func (s *Store) remains(ctx context.Context, p int, block uint64) (map[uint64]*stored, error) {
	body := fmt.Appendf(nil, `{"multi_last":[%q],"batch":%d}`, s.remainsBlockOf(p, block)+".*", remainsBlock)
	ms, err := s.all(ctx, s.remainsStream(), body)
	if err != nil {
		return nil, err
	}
	of := make(map[uint64]*stored, len(ms))
	for _, m := range ms {
		if m.seq, err = strconv.ParseUint(m.subject[strings.LastIndexByte(m.subject, '.')+1:], 10, 64); err != nil {
			return nil, fmt.Errorf("%w: %s in stream %s", store.ErrCorrupt, m.subject, s.remainsStream())
		}
		of[m.seq] = m
	}
	return of, nil
}

// Tagged implements [store.Store].
func (s *Store) Tagged(ctx context.Context, p int, tag string) (store.Record, error) {
	if err := s.enter(ctx); err != nil {
		return store.Record{}, err
	}
	defer s.leave()
	type answer struct {
		seq uint64
		err error
	}
	erased := make(chan answer, 1)
	go func() {
		seq, _, err := s.number64(ctx, s.newestOf(p, tag))
		erased <- answer{seq, err}
	}()
	m, err := s.leader(ctx, s.logStream(p), 0, s.logSubject(p)+taggedRecord+tagToken(tag))
	other := <-erased
	switch {
	case err != nil && !errors.Is(err, errNoMessage):
		return store.Record{}, err
	case other.err != nil:
		return store.Record{}, other.err
	}
	if other.seq > 0 && (err != nil || m.seq < other.seq) {
		r, kept := s.leader(ctx, s.remainsStream(), 0, s.remainsOf(p, other.seq))
		switch {
		case kept == nil:
			r.seq = other.seq
			return s.record(r), nil
		case !errors.Is(kept, errNoMessage): // else it was removed
			return store.Record{}, kept
		}
	}
	if err != nil {
		return store.Record{}, fmt.Errorf("%w: tag %q in partition %d", store.ErrNotFound, tag, p)
	}
	s.tell(s.logStream(p), m.seq)
	return s.record(m), nil
}

// Span implements [store.Store].
func (s *Store) Span(ctx context.Context, p int) (store.Span, error) {
	if err := s.enter(ctx); err != nil {
		return store.Span{}, err
	}
	defer s.leave()
	s.mu.Lock()
	gaps := s.gaps[p]
	s.mu.Unlock()
	if gaps {
		if err := s.removeFillers(ctx, p); err != nil {
			return store.Span{}, err
		}
	}
	t, err := s.tail(ctx, s.logStream(p))
	if err != nil {
		return store.Span{}, err
	}
	out := store.Span{First: t.first, Last: t.last, Records: t.records, Bytes: t.bytes}
	if first, erased, err := s.first(ctx, p); err != nil {
		return store.Span{}, err
	} else if erased {
		n, err := s.erased(ctx, p)
		if err != nil {
			return store.Span{}, err
		}
		out.First = first
		out.Records += n
		if out.Records > 0 {
			out.Bytes = max(out.Bytes, 1)
		}
	}
	s.tell(s.logStream(p), t.last)
	return out, nil
}

// erased counts a partition's remains.
func (s *Store) erased(ctx context.Context, p int) (uint64, error) {
	if err := s.fresh(ctx, s.remainsStream()); err != nil {
		return 0, err
	}
	filter := fmt.Sprintf("%s%d.>", s.remainsSubject(), p)
	ms, err := s.all(ctx, s.remainsStream(), fmt.Appendf(nil, `{"seq":1,"batch":1,"next_by_subj":%q}`, filter))
	if err != nil || len(ms) == 0 {
		return 0, err
	}
	pending, err := strconv.ParseUint(ms[0].header.Get("Nats-Num-Pending"), 10, 64)
	return pending + 1, err
}
