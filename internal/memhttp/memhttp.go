// Package memhttp carries HTTP in memory, for the packages that help tests: a client
// whose connections are pipes to a handler. Streams and upgrades work as over a socket,
// and everything works inside a testing/synctest bubble.
package memhttp

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Client gives a client that reaches h at every URL, http and https alike. It follows no
// redirects. stop ends its connections, and returns when every call of h has returned.
func Client(h http.Handler) (c *http.Client, stop func()) {
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	var running sync.WaitGroup
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			h.ServeHTTP(w, r)
		})}
	running.Go(func() {
		_ = s.Serve(l) // until stop
	})
	t := &http.Transport{DialContext: l.dial, DialTLSContext: l.dial}
	c = &http.Client{Transport: t, CheckRedirect: stay}
	return c, sync.OnceFunc(func() {
		_ = s.Close() // of pipes: cannot fail
		l.end()
		t.CloseIdleConnections()
		running.Wait()
	})
}

// listener gives a server the connections that dial makes.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	open []net.Conn
}

// Source is the network address of every client: one that documentation may use
// (RFC 5737).
var source = net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4000}

// conn is the server's end of a pipe.
type conn struct{ net.Conn }

func (conn) RemoteAddr() net.Addr { a := source; return &a }

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- conn{theirs}:
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, ours)
	return &client{Conn: ours, l: l}, nil
}

// client is the client's end of a pipe.
type client struct {
	net.Conn
	l *listener
}

func (c *client) Close() error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.open = slices.DeleteFunc(c.l.open, func(o net.Conn) bool { return o == c.Conn })
	return c.Conn.Close()
}

// end closes every connection, those that a handler has taken over too.
func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open {
		_ = c.Close() // of a pipe: cannot fail
	}
	l.open = nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }
