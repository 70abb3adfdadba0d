package samvad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// streamEvent is one block of an event stream (SAMVAD 1.2 §5.3).
type streamEvent struct {
	Chunk   json.RawMessage `json:"chunk,omitzero"`
	Done    bool            `json:"done"`
	Result  json.RawMessage `json:"result,omitzero"`
	Error   *wireError      `json:"error,omitzero"`
	TraceID *string         `json:"traceId,omitzero"`
	SpanID  *string         `json:"spanId,omitzero"`
}

var errStreamOver = errors.New("samvad: the stream is over")

func chunkEvent(v json.RawMessage) streamEvent {
	if isNull(v) {
		v = json.RawMessage("null")
	}
	return streamEvent{Chunk: v}
}

// startStream begins an event stream: each block one line "data: …" in LF
// framing, as the TypeScript clients need it (SAM-140). A client that is gone
// calls gone.
func startStream(w http.ResponseWriter, s *Server, gone context.CancelFunc) *streamWriter {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("Connection", "keep-alive")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	out := &streamWriter{rc: http.NewResponseController(w), w: w, gone: gone,
		stall: cmp.Or(s.WriteTimeout, DefaultWriteTimeout), wait: cmp.Or(s.KeepAlive, DefaultKeepAlive)}
	_ = out.rc.Flush()
	out.mu.Lock()
	defer out.mu.Unlock()
	out.idle = time.AfterFunc(out.wait, func() { _ = out.write([]byte(": keep-alive\n\n")) })
	return out
}

// endStream writes the last events of a stream.
func (r *Request) endStream(resp Response, err error) {
	final := streamEvent{Done: true, TraceID: &r.TraceID, SpanID: &resp.SpanID}
	last := make([]streamEvent, 0, 2)
	if err != nil {
		resp.SpanID = newID()
		final.Error = failure(err).wire()
	} else {
		// The TypeScript clients show chunks only and drop the result
		// (SAM-141). Both go at once: clients that know it see one answer.
		if r.chunks == 0 {
			last = append(last, chunkEvent(resp.Result))
		}
		final.Result = resp.Result
	}
	// A client that is gone needs no last word.
	_ = r.out.event(append(last, final)...)
	r.out.close()
}

// streamWriter serialises the writes to one event stream.
type streamWriter struct {
	rc   *http.ResponseController
	w    http.ResponseWriter
	gone context.CancelFunc // the client does not read any more

	stall time.Duration // how long one write may take
	wait  time.Duration // after the last write, until a keep-alive (SAM-142)

	mu   sync.Mutex
	idle *time.Timer // writes a comment as a block of its own
	err  error
}

func (s *streamWriter) event(events ...streamEvent) error {
	var block []byte
	for i := range events {
		data, err := jsonx.Encode(&events[i])
		if err != nil {
			return err
		}
		block = append(append(append(block, "data: "...), data...), "\n\n"...)
	}
	return s.write(block)
}

func (s *streamWriter) write(block []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	// Not every ResponseWriter knows deadlines; those of net/http do.
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.stall))
	_, err := s.w.Write(block)
	if err == nil {
		err = s.rc.Flush()
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = err
		s.gone()
		return err
	}
	s.idle.Reset(s.wait)
	return nil
}

func (s *streamWriter) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Stop()
	if s.err == nil {
		s.err = errStreamOver
	}
	// The connection may serve further requests.
	_ = s.rc.SetWriteDeadline(time.Time{})
}
