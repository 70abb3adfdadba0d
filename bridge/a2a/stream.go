package a2a

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/sse"
	"github.com/parley-hub/parley/policy"
)

// Streams are server-sent events (rules A2A-030 to A2A-033): each is one line of data. An
// error before the first event is a plain answer. A client that loses its stream subscribes
// again; so nothing is kept for it here.

// stall is how long one write to a client may take.
const stall = 30 * time.Second

// streams counts the open streams of each caller. Guests are counted by source: one guest may have many
// addresses.
type streams struct {
	most int

	mu   sync.Mutex
	open map[string]int
}

// take reserves a stream for the caller of a request.
func (s *streams) take(ctx context.Context, c *bridge.Caller) (done func(), err error) {
	caller := c.Name
	if from := policy.SourceOf(ctx); c.Guest && from != "" {
		caller = "guest " + from // no agent has such a name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[caller] >= s.most {
		return nil, &parley.Error{Code: parley.RateLimited, Text: "too many open streams", Retryable: true,
			After: 10 * time.Second, Source: parley.ByLimit}
	}
	s.open[caller]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[caller]--; s.open[caller] == 0 {
			delete(s.open, caller)
		}
	}, nil
}

// EndStreams ends all streams, so that servers can shut down. Clients subscribe again.
func (b *Binding) EndStreams() { b.endStreams() }

var errStopping = &parley.Error{Code: parley.Unavailable, Text: "the hub is stopping", Retryable: true}

// streamContext is a context for a stream of a caller: it ends with EndStreams and with the
// caller's credentials too. Its cause is then an error for the caller.
func (b *Binding) streamContext(ctx context.Context, c *bridge.Caller) (context.Context, func(), error) {
	if b.streaming.Err() != nil {
		return nil, nil, errStopping
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stops := []func() bool{context.AfterFunc(b.streaming, func() { cancel(errStopping) })}
	end := func() {}
	if c.During != nil {
		var valid context.Context
		valid, end = c.During(ctx)
		stops = append(stops, context.AfterFunc(valid, func() {
			cancel(parley.Refuse(parley.Unauthenticated, "the credentials are no longer valid"))
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
		end()
	}, nil
}

// endedBy gives the error for the caller of a stream that the hub ended; otherwise err.
func endedBy(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*parley.Error](context.Cause(ctx)); ok {
		return e
	}
	return err
}

// stream runs a method with events.
func (x *exchange) stream(c *call, m *method) {
	done, err := x.b.opened.take(x.r.Context(), &x.caller)
	if err != nil {
		x.fail("admit", err)
		return
	}
	defer done()
	ctx, cancel, err := x.b.streamContext(withCall(x.r.Context(), c), &x.caller)
	if err != nil {
		x.fail("admit", err)
		return
	}
	defer cancel()
	event := toEvent1
	legacy := &events03{send: m.sends}
	if c.version == V03 {
		event = legacy.event
	}
	var out *sse.Writer
	for e, err := range m.stream(ctx, x.b.methods, c.params) {
		var result any
		if err == nil {
			result, err = event(e)
		}
		switch {
		case err != nil && out == nil:
			x.fail("admit", endedBy(ctx, err))
			return
		case err != nil && ctx.Err() != nil:
			out.Close()
			return // the client is gone, or the hub ended it: it subscribes again
		}
		if out == nil {
			out = x.startEvents(cancel)
			defer out.Close()
		}
		if err != nil {
			_ = out.Write(x.frameError(err))
			return
		}
		if !x.writeEvent(out, result) {
			return
		}
	}
	if out == nil {
		x.fail("admit", endedBy(ctx, parley.Refuse(parley.Internal, "no event")))
		return
	}
	if ctx.Err() != nil || c.version != V03 {
		return
	}
	if last, err := legacy.close(); err == nil && last != nil {
		x.writeEvent(out, last)
	}
}

func (x *exchange) startEvents(gone func()) *sse.Writer {
	h := x.w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	h.Set("X-Content-Type-Options", "nosniff")
	return sse.Start(x.w, "text/event-stream", sse.Options{Stall: stall, Idle: x.b.c.KeepAlive, Beat: ": keep-alive\n\n",
		Gone: gone})
}

// writeEvent writes one event, and reports whether the stream goes on.
func (x *exchange) writeEvent(out *sse.Writer, result any) bool {
	b, err := encodeJSON(result)
	if err == nil && x.rpc {
		b, err = encodeJSON(rpcAnswer{Version: "2.0", ID: x.id, Result: b})
	}
	if err != nil {
		_ = out.Write(x.frameError(err))
		return false
	}
	return out.Write(eventFrame(b)) == nil
}

// eventFrame is an event with one line of data.
func eventFrame(data []byte) []byte {
	return append(append(append(make([]byte, 0, len(data)+8), "data: "...), data...), '\n', '\n')
}

// frameError is the event of an error within a stream. Its status cannot be told any more.
func (x *exchange) frameError(err error) []byte {
	f := x.noted("stream", err)
	var body any = f.restBody()
	if x.rpc {
		e := f.rpcBody()
		if e.Code == 0 {
			e.Code = internalCause.rpc
		}
		body = rpcAnswer{Version: "2.0", ID: x.id, Error: e}
	}
	b, err := encodeJSON(body)
	if err != nil {
		return nil
	}
	return eventFrame(b)
}
