// Package logbound shortens a log while one cause makes many operations fail: without
// a quorum, for example, each delivery and each session fails again and again, and
// one line in ten seconds says enough.
package logbound

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// every is the time in which one line of each text passes.
const every = 10 * time.Second

// New gives a logger that leaves out repeated lines: lines of one text with an error
// for which shared reports true. The next line that passes has the number of lines
// left out, as "left_out".
func New(l *slog.Logger, shared func(error) bool) *slog.Logger {
	return slog.New(&handler{l.Handler(), &bounds{shared: shared, of: map[string]*bound{}}})
}

type handler struct {
	slog.Handler
	*bounds
}

// bounds are shared by the loggers derived from one.
type bounds struct {
	shared func(error) bool
	mu     sync.Mutex
	of     map[string]*bound // by text, of which a program has a fixed number
}

type bound struct {
	passed  time.Time
	leftOut int
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	bounded := false
	r.Attrs(func(a slog.Attr) bool {
		err, is := a.Value.Any().(error)
		bounded = is && h.shared(err)
		return !bounded
	})
	if !bounded {
		return h.Handler.Handle(ctx, r)
	}
	h.mu.Lock()
	b := h.of[r.Message]
	if b == nil {
		b = new(bound)
		h.of[r.Message] = b
	}
	if !b.passed.IsZero() && r.Time.Sub(b.passed) < every {
		b.leftOut++
		h.mu.Unlock()
		return nil
	}
	n := b.leftOut
	*b = bound{passed: r.Time}
	h.mu.Unlock()
	if n > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", n))
	}
	return h.Handler.Handle(ctx, r)
}

func (h *handler) WithAttrs(a []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(a), h.bounds}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.bounds}
}
