package admin

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// sse writes server-sent events. Between events it sends comments, so that each
// side notices when the other is gone.
type sse struct {
	c     *call
	write chan func() error
	done  chan error
	end   chan struct{}
}

const (
	sseBeat  = 15 * time.Second
	sseWrite = 30 * time.Second // a reader that takes nothing for this long is gone
)

func newSSE(c *call) *sse {
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	s := &sse{c: c, write: make(chan func() error), done: make(chan error), end: make(chan struct{})}
	// A writer that cannot flush sends the header with the first event.
	_ = http.NewResponseController(c.w).Flush()
	go s.run()
	return s
}

// run is the only writer of the response.
func (s *sse) run() {
	beat := time.NewTicker(sseBeat)
	defer beat.Stop()
	out := http.NewResponseController(s.c.w)
	for {
		select {
		case f := <-s.write:
			// A writer without deadlines returns an error, which changes nothing.
			_ = out.SetWriteDeadline(time.Now().Add(sseWrite))
			err := f()
			if err == nil {
				err = out.Flush()
			}
			s.done <- err
		case <-beat.C:
			_ = out.SetWriteDeadline(time.Now().Add(sseWrite))
			if _, err := io.WriteString(s.c.w, ": \n\n"); err == nil {
				_ = out.Flush()
			}
		case <-s.end:
			close(s.done)
			return
		}
	}
}

func (s *sse) send(event, id string, v any) error {
	b, err := jsonx.Encode(v)
	if err != nil {
		return err
	}
	s.write <- func() error {
		if id != "" {
			id = "id: " + id + "\n"
		}
		_, err := fmt.Fprintf(s.c.w, "event: %s\n%sdata: %s\n\n", event, id, b)
		return err
	}
	return <-s.done
}

func (s *sse) fail(err error) {
	// If this fails, the caller is gone.
	_ = s.send("error", "", problemBody{*problem(parley.AsError(err))})
}

// close ends the writer and waits for it.
func (s *sse) close() {
	close(s.end)
	<-s.done
}
