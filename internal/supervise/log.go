package supervise

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of what a program may write to the log.
const (
	maxNote   = 2 << 10 // bytes of a line
	noteRate  = 10      // lines in a second
	noteBurst = 200
)

// bounded writes lines of the program to the log, but not more than the bounds allow.
type bounded struct {
	to  *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	limit   *rate.Limiter
	leftOut int
}

func newBounded(to *slog.Logger, now func() time.Time) *bounded {
	return &bounded{to: to, now: now, limit: rate.NewLimiter(noteRate, noteBurst)}
}

// lines logs what the program writes to its standard error, until its end.
func (l *bounded) lines(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		line, whole, err := readLine(r, maxNote)
		if err != nil {
			return
		}
		l.line(slog.LevelInfo, "stderr", line)
		for !whole { // the rest of the line
			if _, err = r.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
		}
	}
}

func (l *bounded) line(level slog.Level, what string, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.limit.AllowN(l.now(), 1) {
		l.leftOut++
		return
	}
	l.flushLocked()
	if len(text) > maxNote {
		text = text[:maxNote]
	}
	l.to.Log(context.Background(), level, what, "line", strings.TrimSpace(strings.ToValidUTF8(string(text), "\uFFFD")))
}

// flush logs how many lines were left out.
func (l *bounded) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushLocked()
}

func (l *bounded) flushLocked() {
	if l.leftOut > 0 {
		l.to.Warn("lines of the program were left out", "left_out", l.leftOut)
		l.leftOut = 0
	}
}
