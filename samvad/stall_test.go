package samvad

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http/httptest"
	"testing"
	"time"
)

// SAM-143: a client that opens a stream and reads nothing is cut off, and its handler
// ends; no other client waits for it.
func TestStalledReaderIsCutOff(t *testing.T) {
	ended := make(chan error, 1)
	chunk := json.RawMessage(`"` + string(bytes.Repeat([]byte("x"), 256<<10)) + `"`)
	w := newWorld(t, func(w *world) {
		w.srv.WriteTimeout = 100 * time.Millisecond
		w.agent.Handler = func(ctx context.Context, r *Request) (Response, error) {
			if r.Endpoint != ModeStream {
				return Response{}, nil
			}
			for {
				if err := r.Chunk(chunk); err != nil {
					<-ctx.Done()
					ended <- ctx.Err()
					return Response{}, err
				}
			}
		}
	})
	srv := httptest.NewServer(w.srv)
	defer srv.Close()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := signedRequest(t, w.me, "/agent/stream", w.envelope(nil), w.clk.now())
	r.Host = "self.test"
	if err := r.Write(c); err != nil {
		t.Fatal(err)
	}
	w.want(w.post("/agent/message", w.envelope(nil)), 200, "") // meanwhile
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
