//go:build cluster

package cluster

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A direction is one of the two of a proxy.
type direction int

const (
	toServer direction = iota // from the hub to the server
	toHub
)

// A proxy connects a hub to a server. Either direction can be cut: nothing
// arrives any more, and no error says so, as in a network that loses packets.
type proxy struct {
	listener net.Listener
	server   string
	arrived  atomic.Int64 // bytes that came back
	done     chan struct{}

	mu    sync.Mutex
	gates [2]chan struct{} // by direction; closed: it is open
	conns map[net.Conn]bool
	work  sync.WaitGroup
}

// newProxy starts a proxy to the server at a URL. It ends with the test.
func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &proxy{listener: l, server: strings.TrimPrefix(server, "nats://"),
		done: make(chan struct{}), conns: map[net.Conn]bool{}}
	for d := range w.gates {
		w.gates[d] = make(chan struct{})
	}
	w.mend()
	w.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			w.work.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() {
		close(w.done)
		l.Close()
		w.mu.Lock()
		for c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.work.Wait()
	})
	return w
}

func (w *proxy) url() string { return "nats://" + w.listener.Addr().String() }

// cut stops the traffic in some directions.
func (w *proxy) cut(directions ...direction) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range directions {
		w.gates[d] = make(chan struct{})
	}
}

// mend opens both directions: held bytes arrive, and all that follow.
func (w *proxy) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d := range w.gates {
		select {
		case <-w.gates[d]:
		default:
			close(w.gates[d])
		}
	}
}

// waitOpen waits until a direction is open; false: the test has ended.
func (w *proxy) waitOpen(d direction) bool {
	for {
		w.mu.Lock()
		gate := w.gates[d]
		w.mu.Unlock()
		select {
		case <-gate:
			return true
		case <-w.done:
			return false
		}
	}
}

// track notes a connection for the end of the test to close; false: the test has ended.
func (w *proxy) track(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.done:
		c.Close()
		return false
	default:
		w.conns[c] = true
		return true
	}
}

func (w *proxy) untrack(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	c.Close()
}

func (w *proxy) serve(hub net.Conn) {
	if !w.track(hub) {
		return
	}
	defer w.untrack(hub)
	server, err := net.Dial("tcp", w.server)
	if err != nil || !w.track(server) {
		return // the hub sees a closed connection
	}
	defer w.untrack(server)
	var both sync.WaitGroup
	both.Go(func() { w.pass(server, hub, toServer) })
	both.Go(func() { w.pass(hub, server, toHub) })
	both.Wait()
}

// pass copies bytes while the direction is open. When one connection ends, it ends the
// other.
func (w *proxy) pass(to, from net.Conn, d direction) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !w.waitOpen(d) {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				err = io.EOF
			} else if d == toHub {
				w.arrived.Add(int64(n))
			}
		}
		if err != nil {
			to.Close()
			return
		}
	}
}
