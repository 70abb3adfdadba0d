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
				yield(Event{}, answerTooLarge())
				return
			}
			p.line = append(p.line, part...)
			if end < 0 {
				return
			}
			p.cr = b[end] == '\r'
			b = b[end+1:]
			ev, err := p.endLine()
			switch {
			case err != nil:
				p.over = true
				yield(Event{}, err)
				return
			case ev == nil:
				continue
			}
			p.over = ev.Done
			if !yield(*ev, nil) {
				return
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

// endLine takes a line, and gives the event that it ends; nil if there is none.
func (p *sseParser) endLine() (*Event, error) {
	line := p.line
	p.line = p.line[:0]
	if !p.started {
		p.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		name, data, has := p.event, p.data, p.hasData
		p.event, p.data, p.hasData, p.size = "", nil, false, 0
		if !has {
			return nil, nil
		}
		return readEvent(name, data)
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
	return nil, nil
}

// readEvent understands the protocol's own events and those of the deployed
// agents: status, result, error, done with envelopes in data (digest §12). It
// gives nil for an event without a meaning.
func readEvent(name string, data []byte) (*Event, error) {
	r, err := readRemote(data)
	if err != nil {
		return nil, notUnderstood(err)
	}
	ev := &Event{TraceID: text(r.TraceID), SpanID: text(r.SpanID), Replaced: r.replaced}
	status := text(r.Status)
	switch {
	case name == "result" || name == "error" || name == "done" || kindOf(r.Done) == 't',
		(status == "ok" || status == "error") && name != "status":
		if name == "error" && isNull(r.Error) && status != "error" {
			return nil, remoteErr(Code(text(r.Code)), text(r.Message), http.StatusOK, nil)
		}
		if e := r.remoteError(http.StatusOK, nil); e != nil {
			return nil, e
		}
		if kindOf(r.Result) != '{' {
			return nil, notUnderstood(errors.New("last event without a result object"))
		}
		ev.Done, ev.Result = true, r.Result
	case r.Chunk != nil:
		ev.Chunk = r.Chunk
	case status != "":
		ev.State = status
	default:
		return nil, nil
	}
	return ev, nil
}
