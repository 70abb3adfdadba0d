// Package testcluster runs a JetStream cluster of real NATS servers in the
// test's own process, on loopback, with its files in the test's directory.
package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"
)

// A Cluster is a JetStream cluster of NATS servers. Its methods are safe for
// concurrent use.
type Cluster struct {
	// URLs are the addresses for clients, one for each server; a restarted server
	// keeps its address.
	URLs []string

	t       testing.TB
	dir     string
	mu      sync.Mutex
	options []server.Options
	servers []*server.Server // nil: killed
}

// patience is how long a cluster may take to form; a loaded machine with the race
// detector needs long.
const patience = 90 * time.Second

// Start runs n servers (3 for a cluster that survives the loss of one) until
// the test ends. It returns when they have elected a leader and accept streams
// with n replicas.
func Start(t testing.TB, n int) *Cluster {
	t.Helper()
	if n < 1 {
		t.Fatalf("testcluster: a cluster of %d servers", n)
	}
	dir, err := os.MkdirTemp("", "testcluster")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, dir: dir, servers: make([]*server.Server, n)}
	t.Cleanup(func() { c.stop(); c.remove() })
	// Between the choice of a port and its use another process may take it.
	for range 5 {
		if err = c.choose(n); err != nil {
			continue
		}
		if err = c.startAll(); err == nil {
			break
		}
		c.stop()
	}
	if err == nil {
		err = c.ready(n)
	}
	if err != nil {
		t.Fatal("testcluster: ", err)
	}
	return c
}

// Leaks names the goroutines that may outlive a server which is not ours, for goleak:
// waiting for them does not help. A NATS server that is shut down while it makes a
// stream does not stop the file store of that stream. A server of the A2A SDK keeps
// the broker of a task's events if a reader of them comes as the task ends.
func Leaks() []goleak.Option {
	const nats = "github.com/nats-io/nats-server/v2/server"
	return []goleak.Option{
		goleak.IgnoreAnyFunction(nats + ".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(nats + ".(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction(nats + "/ats.Register.func1"),
		goleak.IgnoreAnyFunction("github.com/a2aproject/a2a-go/v2/a2asrv/eventqueue.newInMemoryEventBroker.func1"),
	}
}

// choose gives each server its ports and its folder.
func (c *Cluster) choose(n int) error {
	ports, err := freePorts(2 * n)
	if err != nil {
		return err
	}
	var routes []*url.URL
	for i := range n {
		routes = append(routes, &url.URL{Scheme: "nats", Host: hostPort(ports[n+i])})
	}
	c.options, c.URLs = nil, nil
	for i := range n {
		o := server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: ports[i], NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: filepath.Join(c.dir, strconv.Itoa(i)), JetStreamMaxStore: 1 << 40,
			JetStreamMaxMemory: 1 << 40,
		}
		if n > 1 {
			o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[n+i]}
			o.Routes = routes
		}
		c.options = append(c.options, o)
		c.URLs = append(c.URLs, "nats://"+hostPort(ports[i]))
	}
	return nil
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts finds unused ports, below the ports that the system gives to outgoing
// connections.
func freePorts(n int) ([]int, error) {
	var out []int
	for range 1000 {
		port := 10000 + rand.IntN(20000)
		l, err := net.Listen("tcp", hostPort(port))
		if err != nil {
			continue
		}
		defer l.Close() // all are held until the last is found, so that they differ
		if out = append(out, port); len(out) == n {
			return out, nil
		}
	}
	return nil, errors.New("there are no free ports")
}

func (c *Cluster) startAll() error {
	for i := range c.options {
		if err := c.start(i); err != nil {
			return err
		}
	}
	for i := range c.options {
		if !c.Server(i).ReadyForConnections(patience) {
			return fmt.Errorf("server %d does not listen at %s", i, c.URLs[i])
		}
	}
	return nil
}

func (c *Cluster) start(i int) error {
	o := c.options[i].Clone() // a server changes its options
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.servers[i] = s
	c.mu.Unlock()
	s.Start()
	return nil
}

// Server is the server i, or nil while it is killed.
func (c *Cluster) Server(i int) *server.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[i]
}

// Kill stops the server i and closes all of its connections. The engine hands
// over what the server leads, as far as it can: a stop, not a crash.
func (c *Cluster) Kill(i int) {
	c.mu.Lock()
	s := c.servers[i]
	c.servers[i] = nil
	c.mu.Unlock()
	if s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// Restart runs the server i again, at the same address and with its files,
// and returns when it has caught up with the others.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.Kill(i)
	if err := c.start(i); err != nil {
		c.t.Fatal("testcluster: ", err)
	}
	if !c.Server(i).ReadyForConnections(patience) {
		c.t.Fatalf("testcluster: server %d does not listen at %s again", i, c.URLs[i])
	}
	if err := c.ready(1); err != nil {
		c.t.Fatal("testcluster: ", err)
	}
}

// ready waits until all running servers belong to the group that leads the
// cluster, and the group has at least the given number of members.
func (c *Cluster) ready(members int) error {
	if len(c.options) == 1 {
		return nil
	}
	if !poll(func() bool { return c.settled(members) }) {
		return fmt.Errorf("the servers formed no cluster within %s", patience)
	}
	return nil
}

// poll waits until so returns true; false: it did not within patience.
func poll(so func() bool) bool {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !so() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// remove deletes the files. It tries for a while, as t.TempDir would not: a server
// that has shut down may still write some files.
func (c *Cluster) remove() {
	var err error
	if !poll(func() bool { err = os.RemoveAll(c.dir); return err == nil }) {
		c.t.Error("testcluster: ", err)
	}
}

func (c *Cluster) settled(members int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	led := false
	for _, s := range c.servers {
		if s == nil {
			continue
		}
		if !s.JetStreamIsCurrent() {
			return false
		}
		led = led || s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) >= members
	}
	return led
}

func (c *Cluster) stop() {
	for i := range c.servers {
		c.Kill(i)
	}
}
