// Package sse writes server-sent events (WHATWG HTML §9.2). A reader that takes
// nothing for too long is cut off; one that hears nothing for a while gets a
// comment, so that each side notices when the other is gone.
package sse

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// Options of a Writer.
type Options struct {
	Stall time.Duration // how long one write may take
	Idle  time.Duration // after the last write, until a beat; 0: no beats
	Beat  string        // a comment as a block of its own
	Gone  func()        // called once, when a write fails; may be nil
}

// A Writer writes one event stream. It is safe for concurrent use.
type Writer struct {
	w   http.ResponseWriter
	ctl *http.ResponseController
	o   Options

	mu   sync.Mutex
	idle *time.Timer
	err  error
}

var errOver = errors.New("sse: the stream is over")

// Start sends the header of the response, with the content type given, and begins
// its stream.
func Start(w http.ResponseWriter, contentType string, o Options) *Writer {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	s := &Writer{w: w, ctl: http.NewResponseController(w), o: o}
	_ = s.ctl.Flush() // a writer that cannot flush sends the header with the first event
	if o.Idle > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.idle = time.AfterFunc(o.Idle, func() { _ = s.Write([]byte(o.Beat)) })
	}
	return s
}

// Write writes whole events. After an error every further call returns it.
func (s *Writer) Write(events []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	// Not every ResponseWriter knows deadlines; those of net/http do.
	_ = s.ctl.SetWriteDeadline(time.Now().Add(s.o.Stall))
	_, err := s.w.Write(events)
	if err == nil {
		err = s.ctl.Flush()
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = err
		if s.o.Gone != nil {
			s.o.Gone()
		}
		return err
	}
	if s.idle != nil {
		s.idle.Reset(s.o.Idle)
	}
	return nil
}

// Close ends the stream: nothing is written after it. The connection may serve
// further requests.
func (s *Writer) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.err == nil {
		s.err = errOver
	}
	_ = s.ctl.SetWriteDeadline(time.Time{})
}
