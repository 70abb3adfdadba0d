package testcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Processes is a cluster in which every server is a process of its own: killing
// one is like a loss of power, except that the page cache stays.
type Processes struct {
	URLs []string // one for each server, the same after a restart

	args    [][]string
	mu      sync.Mutex
	running []*process
}

// StartProcesses is Start with a process for each server. It builds the server
// first.
func StartProcesses(t testing.TB, n int) *Processes {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "testnats")
	if out, err := exec.Command("go", "build", "-o", program,
		"github.com/parley-hub/parley/internal/testnats").CombinedOutput(); err != nil {
		t.Fatalf("testcluster: build the server: %v\n%s", err, out)
	}
	ports, err := freePorts(2 * n)
	if err != nil {
		t.Fatal("testcluster: ", err)
	}
	c := &Processes{running: make([]*process, n)}
	var routes []string
	for i := range n {
		routes = append(routes, "nats://"+hostPort(ports[n+i]))
		c.URLs = append(c.URLs, "nats://"+hostPort(ports[i]))
	}
	for i := range n {
		c.args = append(c.args, []string{program, "-name", fmt.Sprintf("n%d", i),
			"-dir", filepath.Join(dir, strconv.Itoa(i)), "-port", strconv.Itoa(ports[i]),
			"-route", strconv.Itoa(ports[n+i]), "-routes", strings.Join(routes, ",")})
	}
	t.Cleanup(func() {
		for i := range n {
			c.Kill(i)
		}
	})
	for i := range n {
		err = errors.Join(err, c.launch(i))
	}
	for i := range n {
		err = errors.Join(err, c.await(i))
	}
	if err == nil {
		err = c.accepts(n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Kill ends the server i at once, as kill -9 does.
func (c *Processes) Kill(i int) {
	c.mu.Lock()
	p := c.running[i]
	c.running[i] = nil
	c.mu.Unlock()
	if p != nil {
		p.kill()
	}
}

// Restart runs the server i again, at the same address and with its files, and
// returns when it has caught up with the others.
func (c *Processes) Restart(i int) error {
	c.Kill(i)
	return errors.Join(c.launch(i), c.await(i))
}

func (c *Processes) launch(i int) error {
	p, err := launch(c.args[i]...)
	if err != nil {
		return fmt.Errorf("testcluster: %w", err)
	}
	c.mu.Lock()
	c.running[i] = p
	c.mu.Unlock()
	return nil
}

func (c *Processes) await(i int) error {
	c.mu.Lock()
	p := c.running[i]
	c.mu.Unlock()
	if p == nil {
		return nil // not launched
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case ok := <-p.ready:
		if !ok {
			p.kill()
			return fmt.Errorf("testcluster: server %d ended\n%s", i, p.errs)
		}
		return nil
	case <-timer.C:
		p.kill()
		return fmt.Errorf("testcluster: server %d is not ready after %s\n%s", i, patience, p.errs)
	}
}

// accepts waits until a stream with n replicas can be made.
func (c *Processes) accepts(n int) error {
	nc, err := nats.Connect(strings.Join(c.URLs, ","))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if !poll(func() bool {
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "probe", Subjects: []string{"probe"},
			Replicas: n})
		if err == nil {
			err = js.DeleteStream(ctx, "probe")
		}
		return err == nil
	}) {
		return fmt.Errorf("testcluster: the servers take no streams: %w", err)
	}
	return nil
}

// process is a child that says when it is ready.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan bool // true: the process is ready; false: it ended before
	ended chan struct{}
	errs  *strings.Builder // to be read when it has ended
}

func launch(args ...string) (*process, error) {
	p := &process{cmd: exec.Command(args[0], args[1:]...), ready: make(chan bool, 1), ended: make(chan struct{}),
		errs: new(strings.Builder)}
	p.cmd.Stderr = p.errs
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		r := bufio.NewReader(out)
		_, err := r.ReadString('\n')
		p.ready <- err == nil
		_, copied := io.Copy(io.Discard, r)
		_ = errors.Join(copied, p.cmd.Wait()) // it was killed
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
	_ = p.stdin.Close()
}
