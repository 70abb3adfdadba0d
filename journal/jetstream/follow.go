package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/journal/store"
)

const (
	followPause    = 100 * time.Millisecond
	followExpiry   = 10 * time.Second
	heartbeatEvery = time.Second // it is missed after two
	consumerKept   = time.Minute // by a server that cannot be told that it is not needed
)

// errGap: something that was sent did not come, as when a connection is lost.
var errGap = errors.New("what follows did not come")

// follow calls fn for the messages of a stream behind after, and begins anew
// after every break where it stands. ready, if not nil, is called when it has begun.
func (s *Store) follow(
	ctx context.Context, stream string, after uint64, ready func(), fn func(context.Context, *stored) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var gone, broken time.Time
	for {
		err := s.followOnce(ctx, stream, &after, func() {
			gone, broken = time.Time{}, time.Time{}
			if ready != nil {
				ready()
				ready = nil
			}
		}, fn)
		now := s.cfg.Now()
		switch {
		case s.ctx.Err() != nil:
			return store.ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, jetstream.ErrStreamNotFound):
			if gone.IsZero() {
				gone = now
			}
			if now.Sub(gone) >= s.cfg.goneAfter {
				return fmt.Errorf("%w: stream %s is gone; restore a backup", store.ErrCorrupt, stream)
			}
		case !errors.Is(err, errGap):
			s.unanswered(err)
		}
		if broken.IsZero() {
			broken = now
		}
		if stream == s.stateStream() && now.Sub(broken) > removalsKept/2 {
			return fmt.Errorf("%w: removals of the state since %s may have been missed", store.ErrBusy, broken)
		}
		await(ctx, followPause)
	}
}

func (s *Store) followOnce(
	ctx context.Context, stream string, after *uint64, ready func(), fn func(context.Context, *stored) error,
) error {
	// The client's ordered consumer would wait 10 s for an answer of a server that
	// is gone, and longer each time.
	within, done := context.WithTimeout(ctx, 2*s.cfg.answerWithin)
	defer done()
	c, err := s.js.CreateConsumer(within, stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: consumerKept, Replicas: 1, MemoryStorage: true,
	})
	if err != nil {
		return err
	}
	defer func() { go s.unfollow(stream, c.CachedInfo().Name) }()
	it, err := c.Messages(jetstream.PullExpiry(followExpiry), jetstream.PullHeartbeat(heartbeatEvery),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return err
	}
	defer it.Stop()
	defer context.AfterFunc(ctx, it.Stop)()
	s.outage.answered(s.cfg.Now())
	ready()
	for last := uint64(1); ; last++ {
		x, err := it.Next()
		if err != nil {
			return err
		}
		meta, err := x.Metadata()
		switch {
		case err != nil:
			return err
		case meta.Sequence.Consumer != last:
			return errGap
		case meta.Sequence.Stream <= *after:
			continue
		}
		m := &stored{subject: x.Subject(), seq: meta.Sequence.Stream, header: x.Headers(), data: x.Data()}
		if err := fn(ctx, m); err != nil {
			return err
		}
		*after = m.seq
		s.tell(stream, m.seq)
	}
}

// unfollow has the servers forget a consumer, which they do by themselves after a
// while.
func (s *Store) unfollow(stream, consumer string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.cfg.answerWithin)
	defer cancel()
	if err := s.js.DeleteConsumer(ctx, stream, consumer); err != nil {
		s.cfg.Log.Debug("a consumer is left to the servers", "stream", stream, "err", err)
	}
}

// Follow implements [store.Store].
func (s *Store) Follow(ctx context.Context, p int, after uint64, fn func(store.Record)) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	stream, next := s.logStream(p), after+1
	fill := func(ctx context.Context, before uint64) error {
		if next >= before {
			return nil
		}
		_, err := s.fill(ctx, p, next, before, func(r store.Record) bool {
			fn(r)
			next = r.Sequence + 1
			return true
		})
		return err
	}
	// No message tells of records at the end that were erased.
	t, err := s.tail(ctx, stream)
	if err != nil {
		return err
	}
	end, err := s.leader(ctx, stream, 0, s.logSubject(p)+">")
	switch {
	case err != nil && !errors.Is(err, errNoMessage):
		return err
	case err != nil || end.seq < next:
		if err := fill(ctx, t.last+1); err != nil {
			return err
		}
		after, end = max(after, t.last), &stored{}
	}
	return s.follow(ctx, stream, after, nil, func(ctx context.Context, m *stored) error {
		if m.seq >= next { // else it was told, and what follows it not
			if err := fill(ctx, m.seq); err != nil {
				return err
			}
			next = m.seq + 1
			if !s.isFiller(m) {
				fn(s.record(m))
			}
		}
		if m.seq == end.seq {
			return fill(ctx, t.last+1)
		}
		return nil
	})
}

// FollowState implements [store.Store].
func (s *Store) FollowState(ctx context.Context, after uint64, ready func(), fn func(string, store.Value)) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if after == 0 {
		t, err := s.tail(ctx, s.stateStream())
		if err != nil {
			return err
		}
		after = t.last
	} else {
		after /= 2 // see valueRevision
	}
	return s.follow(ctx, s.stateStream(), after, ready, func(_ context.Context, m *stored) error {
		if bucket, v, ok := s.value(m); ok {
			fn(bucket, v)
		}
		return nil
	})
}
