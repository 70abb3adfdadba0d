package a2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"mime"
	"strings"
)

// The stream from a host over HTTP (A2E §7.1), as the reference agent reads it, with
// two corrections: text without a charset is UTF-8, as the SSE standard says, and only
// CR and LF end a line.

// errContentType refuses a stream of unknown charset.
var errContentType = &Error{
	Code: ParseError, Reason: "content_type", Step: "transport",
	Text: "the content type of the stream says no charset that can be read: want text/event-stream; charset=utf-8",
}

// latin1 reports whether the charset of a stream is ISO 8859-1, not UTF-8. Without a
// charset the type must be text or JSON.
func latin1(contentType string) (bool, error) {
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return false, errContentType.Because(err)
	}
	charset, said := params["charset"]
	switch strings.ToLower(strings.Trim(charset, "'")) {
	case "utf-8", "utf8", "us-ascii", "ascii":
		return false, nil
	case "iso-8859-1", "iso8859-1", "latin-1", "latin1":
		return true, nil
	}
	if !said && (strings.HasPrefix(t, "text/") || t == "application/json") {
		return false, nil
	}
	return false, errContentType
}

// readEvents gives the data of each event of a stream, until it ends. An event over the
// limit is passed to dropped, by its first bytes. opened is called once the stream can
// be read.
func readEvents(body io.Reader, contentType string, limit int, opened func(), event, dropped func(data []byte)) error {
	narrow, err := latin1(contentType)
	if err != nil {
		return err
	}
	opened()
	lines := sseLines{r: bufio.NewReaderSize(body, 4096), latin1: narrow, limit: limit + len("data: ")}
	var data, head []byte
	has, over := false, false
	for {
		line, long, err := lines.next()
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case long:
			head, over = bytes.Clone(bytes.TrimLeft(value, " ")), true
		case len(line) > 0 && string(name) == "data":
			if has {
				data = append(data, '\n')
			}
			has = true
			data = append(data, bytes.TrimLeft(value, " ")...)
			if len(data) > limit {
				head, data, over = bytes.Clone(data[:min(headBytes, len(data))]), data[:0], true
			}
		}
		if len(line) == 0 && !long || err != nil { // an event at the end counts
			switch {
			case over:
				dropped(head)
			case has:
				event(bytes.Clone(data))
			}
			data, has, over = data[:0], false, false
			if cap(data) > 64<<10 {
				data = nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// sseLines splits a stream at CR, LF and CR LF, and gives its lines in UTF-8.
type sseLines struct {
	r       *bufio.Reader
	latin1  bool
	limit   int  // kept bytes of a line
	afterCR bool // an LF read next belongs to the CR before it
	line    []byte
}

// next gives a line without its end, valid until the next call; of a line over the
// limit only the first bytes. With an error, line holds the bytes before it.
func (s *sseLines) next() (line []byte, long bool, err error) {
	s.line = s.line[:0]
	if cap(s.line) > 64<<10 {
		s.line = nil
	}
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return s.line, long, err
		}
		afterCR := s.afterCR
		s.afterCR = c == '\r'
		switch {
		case c == '\n' && afterCR:
			continue
		case c == '\n', c == '\r':
			return s.line, long, nil
		case long:
			continue
		case c >= 0x80 && s.latin1:
			s.line = append(s.line, 0xc0|c>>6)
			c = 0x80 | c&0x3f
		}
		s.line = append(s.line, c)
		if len(s.line) > s.limit {
			s.line, long = s.line[:min(headBytes, len(s.line))], true
		}
	}
}
