package asp

import (
	"errors"
	"net/http/httptest"
	"testing"
)

// TestEventThatCannotBeEncoded: the stream ends with an error event, without a part of
// the failed event before it.
func TestEventThatCannotBeEncoded(t *testing.T) {
	t.Parallel()
	s := new(Server)
	s.init()
	e := &sse{s: s, r: httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)}
	err := e.emit(&frame{kind: "message", record: &Record{Kind: RecordMessage, Sender: aliceID}})
	if !errors.Is(err, ErrNotFound) || len(e.b) > 0 {
		t.Errorf("%v, with %q to be sent", err, e.b)
	}
}
