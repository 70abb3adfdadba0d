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

// A direction is one of the two of a way.
type direction int

const (
	there direction = iota // from the hub to the server
	back
)

// A way leads from a hub to a server. Either direction can be cut: then nothing
// arrives any more, and nothing tells of it, as where a network loses packets.
type way struct {
	listener net.Listener
	server   string
	arrived  atomic.Int64 // bytes that came back
	done     chan struct{}

	mu    sync.Mutex
	gates [2]chan struct{} // by direction; closed: it is open
	conns map[net.Conn]bool
	work  sync.WaitGroup
}

// newWay leads to a server, given by its URL, until the test ends.
func newWay(t *testing.T, server string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{listener: l, server: strings.TrimPrefix(server, "nats://"),
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

func (w *way) url() string { return "nats://" + w.listener.Addr().String() }

// cut lets nothing more arrive in the directions.
func (w *way) cut(directions ...direction) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range directions {
		w.gates[d] = make(chan struct{})
	}
}

// mend lets arrive what was held, and all that follows.
func (w *way) mend() {
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

// passes waits until a direction is open; false: the test has ended.
func (w *way) passes(d direction) bool {
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

// keep notes a connection, which the end of the test closes; false: it has ended.
func (w *way) keep(c net.Conn) bool {
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

func (w *way) drop(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	c.Close()
}

func (w *way) serve(hub net.Conn) {
	if !w.keep(hub) {
		return
	}
	defer w.drop(hub)
	server, err := net.Dial("tcp", w.server)
	if err != nil || !w.keep(server) {
		return // the hub sees that nobody is there
	}
	defer w.drop(server)
	var both sync.WaitGroup
	both.Go(func() { w.pass(server, hub, there) })
	both.Go(func() { w.pass(hub, server, back) })
	both.Wait()
}

// pass copies what comes, while the direction is open. An end of the one
// connection is the end of the other.
func (w *way) pass(to, from net.Conn, d direction) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !w.passes(d) {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				err = io.EOF
			} else if d == back {
				w.arrived.Add(int64(n))
			}
		}
		if err != nil {
			to.Close()
			return
		}
	}
}
