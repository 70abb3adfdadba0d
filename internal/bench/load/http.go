package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// NewRequest renders a request to host ("127.0.0.1:8080"). Host and
// Content-Length are added; header must not have them.
func NewRequest(method, host, path string, header http.Header, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, host)
	_ = header.Write(&b) // to memory
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
	b.Write(body)
	return b.Bytes()
}

// openAtOnce is how many connections are open that have sent nothing yet. A server may
// close such connections when there are many: each sends its first request before more
// are opened, like a client's.
const openAtOnce = 64

// timeout bounds an exchange.
const timeout = 30 * time.Second

// Conns are the connections of several callers to one address, each opened by its
// first exchange.
type Conns struct {
	address string
	opening chan struct{}
	all     []conn
}

type conn struct {
	net.Conn // nil: none is open
	in       *bufio.Reader
	body     bytes.Buffer
	stop     func() bool // keeps the end of the context from closing it
}

// NewConns makes connections for some callers to an address ("127.0.0.1:8080"). Close
// them.
func NewConns(address string, callers int) *Conns {
	return &Conns{address: address, opening: make(chan struct{}, openAtOnce), all: make([]conn, callers)}
}

// Exchange sends a rendered request as a caller, and returns the answer. The body is
// valid until the caller's next exchange.
func (c *Conns) Exchange(ctx context.Context, caller int, request []byte) (status int, body []byte, err error) {
	one := &c.all[caller]
	if one.Conn == nil {
		c.opening <- struct{}{}
		defer func() { <-c.opening }()
		if one.Conn, err = (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", c.address); err != nil {
			return 0, nil, err
		}
		one.in = bufio.NewReaderSize(one.Conn, 8<<10)
		open := one.Conn
		one.stop = context.AfterFunc(ctx, func() { _ = open.Close() })
	}
	keep := false
	defer func() {
		if !keep {
			one.close()
		}
	}()
	if err := one.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, nil, err
	}
	if _, err := one.Write(request); err != nil {
		return 0, nil, err
	}
	answer, err := http.ReadResponse(one.in, nil)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	one.body.Reset()
	if _, err := one.body.ReadFrom(answer.Body); err != nil {
		return 0, nil, err
	}
	keep = !answer.Close
	return answer.StatusCode, one.body.Bytes(), nil
}

func (c *conn) close() {
	if c.Conn != nil {
		c.stop()
		_ = c.Close()
		c.Conn = nil
	}
}

// Close ends the connections.
func (c *Conns) Close() {
	for i := range c.all {
		c.all[i].close()
	}
}
