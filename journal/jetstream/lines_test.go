package jetstream

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// within limits the retries of a call after a server froze: an election takes four to
// nine seconds, more on a loaded machine.
const within = time.Minute

// lines records the log lines at Info and above.
type lines struct {
	slog.Handler
	mu   sync.Mutex
	text []string
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, r.Message)
	return nil
}
