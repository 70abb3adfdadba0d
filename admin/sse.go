package admin

import (
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	stream "github.com/parley-hub/parley/internal/sse"
)

// sse writes server-sent events.
type sse struct {
	c      *call
	out    *stream.Writer
	failed bool
}

const sseWrite = 30 * time.Second // a reader that takes nothing for this long is gone

func newSSE(c *call) *sse {
	return &sse{c: c, out: stream.Start(c.w, "text/event-stream", stream.Options{Stall: sseWrite, Idle: 15 * time.Second,
		Beat: ": \n\n"})}
}

func (s *sse) send(event, id string, v any) error {
	b, err := jsonx.Encode(v)
	if err != nil {
		return err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return s.out.Write(fmt.Appendf(nil, "event: %s\n%sdata: %s\n\n", event, id, b))
}

func (s *sse) fail(err error) {
	if ended := s.c.ended(); ended != nil {
		err = ended
	}
	s.failed = true
	// If this fails, the caller is gone.
	_ = s.send("error", "", bodyOf(parley.AsError(err)))
}

// close ends the stream, if it was begun. Its last event says so if the caller's token
// expired or was revoked.
func (s *sse) close() {
	if s == nil {
		return
	}
	if ended := s.c.ended(); ended != nil && !s.failed {
		s.fail(ended)
	}
	s.out.Close()
}
