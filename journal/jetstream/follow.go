package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
)

const (
	followPause    = 100 * time.Millisecond
	followExpiry   = 10 * time.Second
	heartbeatEvery = time.Second // two missing ones break the connection
	consumerKept   = time.Minute // by a server, after the last request
)

// follow calls fn for the messages of a stream behind after, and continues after
// every break. ready is called each time it has begun.
func (s *Store) follow(
	ctx context.Context, stream string, after uint64, ready func(), fn func(context.Context, *stored) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var broken time.Time
	for {
		err := s.followOnce(ctx, stream, &after, func() { broken = time.Time{}; ready() }, fn)
		now := s.cfg.Now()
		if broken.IsZero() {
			broken = now
		}
		gone := errors.Is(err, jetstream.ErrStreamNotFound)
		switch {
		case s.ctx.Err() != nil:
			return store.ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		case gone && now.Sub(broken) >= s.cfg.goneAfter:
			return fmt.Errorf("%w: stream %s is gone; restore a backup", store.ErrCorrupt, stream)
		case stream == s.stateStream() && now.Sub(broken) > removalsKept/2:
			return fmt.Errorf("%w: removals of the state since %s may have been missed", store.ErrBusy, broken)
		case !gone && !errors.Is(err, errGap):
			s.unanswered(err)
		}
		_ = sleep.For(ctx, followPause) // the next try sees its end
	}
}

func (s *Store) followOnce(
	ctx context.Context, stream string, after *uint64, ready func(), fn func(context.Context, *stored) error,
) error {
	// The client's ordered consumer would wait 10 s for an answer of a missing
	// server, and longer each time.
	within, done := context.WithTimeout(ctx, 2*s.cfg.answerWithin)
	defer done()
	c, err := s.js.CreateConsumer(within, stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: consumerKept, Replicas: 1, MemoryStorage: true,
	})
	if err != nil {
		return err
	}
	it, err := c.Messages(jetstream.PullExpiry(followExpiry), jetstream.PullHeartbeat(heartbeatEvery),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return err
	}
	defer it.Stop()
	defer context.AfterFunc(ctx, it.Stop)()
	s.outage.answered()
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
		m := &stored{Subject: x.Subject(), Seq: meta.Sequence.Stream, header: x.Headers(), Data: x.Data()}
		if err := fn(ctx, m); err != nil {
			return err
		}
		*after = m.Seq
		s.report(stream, m.Seq)
	}
}

// Follow implements [store.Store]. It begins by reading: a consumer does not report
// erased records at the end of the stream.
func (s *Store) Follow(ctx context.Context, p int, after uint64, fn func(store.Record)) error {
	tell := func(r store.Record) bool {
		fn(r)
		after = max(after, r.Sequence)
		return ctx.Err() == nil
	}
	end, err := s.read(ctx, p, after+1, endless, tell)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	after = max(after, end)
	return s.follow(ctx, s.logStream(p), after, func() {}, func(ctx context.Context, m *stored) error {
		if m.Seq <= after {
			return nil // already reported
		}
		if _, err := s.fill(ctx, p, after+1, m.Seq, tell); err != nil {
			return err
		}
		after = m.Seq
		if !m.filler() {
			fn(m.record())
		}
		return nil
	})
}

// FollowState implements [store.Store].
func (s *Store) FollowState(ctx context.Context, after uint64, ready func(), fn func(string, store.Value)) error {
	if after /= 2; after == 0 { // see valueRevision
		t, err := s.tail(ctx, s.stateStream())
		if err != nil {
			return err
		}
		after = t.LastSeq
	}
	return s.follow(ctx, s.stateStream(), after, sync.OnceFunc(ready), func(_ context.Context, m *stored) error {
		if bucket, v, ok := s.value(m); ok {
			fn(bucket, v)
		}
		return nil
	})
}
