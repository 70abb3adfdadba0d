package samvad

import (
	"cmp"
	"encoding/json"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/sse"
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

func chunkEvent(v json.RawMessage) streamEvent {
	if isNull(v) {
		v = json.RawMessage("null")
	}
	return streamEvent{Chunk: v}
}

// startStream begins the event stream of a request: each block one line
// "data: …" in LF framing, as the TypeScript clients need it (SAM-140).
func (r *Request) startStream() {
	h := r.w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Connection", "keep-alive")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	r.out = sse.Start(r.w, "text/event-stream", sse.Options{Stall: cmp.Or(r.server.WriteTimeout, DefaultWriteTimeout),
		Idle: cmp.Or(r.server.KeepAlive, DefaultKeepAlive), Beat: ": keep-alive\n\n", Gone: r.cancel})
}

// endStream writes the last events of a stream.
func (r *Request) endStream(resp Response, err error) {
	final := streamEvent{Done: true, TraceID: &r.TraceID, SpanID: &resp.SpanID}
	last := make([]streamEvent, 0, 2)
	if err != nil {
		resp.SpanID = newID()
		final.Error = failure(err).wire()
	} else {
		// The TypeScript clients show chunks only and drop the result (SAM-141). So
		// both go at once; clients that know this see one answer.
		if r.chunks == 0 {
			last = append(last, chunkEvent(resp.Result))
		}
		final.Result = resp.Result
	}
	// A client that is gone needs no last word.
	_ = r.write(append(last, final)...)
	r.out.Close()
}

func (r *Request) write(events ...streamEvent) error {
	var block []byte
	for i := range events {
		data, err := jsonx.Encode(&events[i])
		if err != nil {
			return err
		}
		block = append(append(append(block, "data: "...), data...), "\n\n"...)
	}
	return r.out.Write(block)
}
