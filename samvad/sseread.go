package samvad

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"net/http"
)

// sseParser reads an event stream as it arrives, in any framing: lines may end
// with LF, CR LF or CR, comments may stand anywhere, pieces may be cut at any
// byte (WHATWG HTML §9.2.6).
type sseParser struct {
	limit int // bytes of one event

	line    []byte
	data    []byte
	hasData bool
	event   string
	size    int  // of the event so far
	cr      bool // the last byte was CR: an LF that follows belongs to it
	started bool // past the place for a byte order mark
	over    bool
}

var errEventTooLarge = errors.New("event too large")

// feed takes a piece of the stream and gives the events that it completes. It
// stops after the last event and after an error.
func (p *sseParser) feed(b []byte) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for len(b) > 0 && !p.over {
			if p.cr {
				p.cr = false
				if b[0] == '\n' {
					b = b[1:]
					continue
				}
			}
			end := bytes.IndexAny(b, "\r\n")
			part := b
			if end >= 0 {
				part = b[:end]
			}
			p.size += len(part) + 1
			if p.size > p.limit {
				p.over = true
				yield(Event{}, clientError(CodeAgentUnavailable, "The agent's answer is too large.",
					because(ErrTooLarge, errEventTooLarge)))
				return
			}
			p.line = append(p.line, part...)
			if end < 0 {
				return
			}
			p.cr = b[end] == '\r'
			b = b[end+1:]
			ev, ok, err := p.endLine()
			if err != nil {
				p.over = true
				yield(Event{}, err)
				return
			}
			if ok {
				p.over = ev.Done
				if !yield(ev, nil) {
					return
				}
			}
		}
	}
}

// within reports whether a part of the next event has come.
func (p *sseParser) within() bool { return len(p.line) > 0 || p.hasData || p.event != "" }

// end says why a stream that ended too early failed.
func (p *sseParser) end(err error) *Error {
	e := transportError(fmt.Errorf("stream ended without its last event: %w", err))
	if !errors.Is(err, ErrTimeout) {
		e.Text = "The agent's answer ended early."
	}
	return e
}

func (p *sseParser) endLine() (Event, bool, error) {
	line := p.line
	p.line = p.line[:0]
	if !p.started {
		p.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		return p.dispatch()
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "data":
		if p.hasData {
			p.data = append(p.data, '\n')
		}
		p.hasData = true
		p.data = append(p.data, value...)
	case "event":
		p.event = string(value)
	}
	return Event{}, false, nil
}

func (p *sseParser) dispatch() (Event, bool, error) {
	name, data, has := p.event, p.data, p.hasData
	p.event, p.hasData, p.size = "", false, 0
	p.data = nil
	if !has {
		return Event{}, false, nil
	}
	return readEvent(name, data)
}

// readEvent understands the protocol's own events and those of the deployed
// agents: status, result, error, done with envelopes in data (digest §12).
func readEvent(name string, data []byte) (Event, bool, error) {
	r, err := readRemote(data)
	if err != nil {
		return Event{}, false, notUnderstood(err)
	}
	ev := Event{TraceID: text(r.TraceID), SpanID: text(r.SpanID), Replaced: r.replaced}
	final := name == "result" || name == "error" || name == "done" || kindOf(r.Done) == 't'
	if status := text(r.Status); !final && (status == "ok" || status == "error") && name != "status" {
		final = true
	}
	if final {
		if name == "error" && isNull(r.Error) && text(r.Status) != "error" {
			return Event{}, false, remoteErr(Code(text(r.Code)), text(r.Message), http.StatusOK, nil)
		}
		if e := r.remoteError(http.StatusOK, nil); e != nil {
			return Event{}, false, e
		}
		if kindOf(r.Result) != '{' {
			return Event{}, false, notUnderstood(errors.New("last event without a result object"))
		}
		ev.Done, ev.Result = true, r.Result
		return ev, true, nil
	}
	if r.Chunk != nil {
		ev.Chunk = r.Chunk
		return ev, true, nil
	}
	ev.State = text(r.Status)
	if ev.State != "" {
		return ev, true, nil
	}
	return Event{}, false, nil
}
