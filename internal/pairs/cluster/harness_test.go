//go:build cluster

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/node"
)

// within bounds every wait of the test on a busy machine.
const within = 2 * time.Minute

// public is the name that all nodes share. Each peer's dialer resolves it to one of
// them.
const public = "hub.pairs.example:8080"

// A hubNode is one of the hubs, in a process of its own.
type hubNode struct {
	t                  *testing.T
	program            string
	data, config, name string
	http, agh          string // addresses, the same after a restart

	cmd       *exec.Cmd
	at        node.Addresses
	ended     chan struct{}
	err       error // of Wait; set when ended is closed
	downtimes []downtime
	errs      *os.File
	dialer    net.Dialer
}

// A downtime is a time in which a hub did not run, because it was killed or frozen.
type downtime struct{ from, until time.Time }

// newNodes makes n nodes on one journal, and does not start them. each, which may be
// nil, changes the configuration of one node.
func newNodes(t *testing.T, n int, c node.Config, each func(i int, c *node.Config), peers ...pairs.Peer) []*hubNode {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "parley")
	if out, err := exec.Command("go", "build", "-o", program,
		"github.com/parley-hub/parley/cmd/parley").CombinedOutput(); err != nil {
		t.Fatalf("build the hub: %v\n%s", err, out)
	}
	c.PublicURL = "http://" + public
	c.Listen.Admin, c.Listen.HTTP, c.Listen.AGH = "127.0.0.1:0", "filled in", "below"
	if err := pairs.Configure(&c, dir, peers...); err != nil {
		t.Fatal(err)
	}
	var out []*hubNode
	for i := range n {
		h := &hubNode{t: t, program: program, name: fmt.Sprintf("hub-%d", i), http: freeAddress(t), agh: freeAddress(t)}
		h.data, h.config = filepath.Join(dir, h.name), filepath.Join(dir, h.name+".toml")
		if err := os.Mkdir(h.data, 0o700); err != nil {
			t.Fatal(err)
		}
		c.Name, c.Data, c.Listen.HTTP, c.Listen.AGH = h.name, h.data, h.http, h.agh
		if each != nil {
			each(i, &c)
		}
		b, err := toml.Marshal(c)
		if err == nil {
			err = os.WriteFile(h.config, b, 0o600)
		}
		if err == nil {
			h.errs, err = os.Create(filepath.Join(dir, h.name+".log"))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			shown := 20 // few, so that the end of the output shows what failed
			if t.Failed() && h.alive() {
				shown = 300
				_ = h.quit() // its log then shows its goroutines
			}
			h.kill()
			if err := h.errs.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("%s wrote:\n%s", h.name, h.wrote(shown))
			}
		})
		out = append(out, h)
	}
	return out
}

// freeAddress finds an address for a process that is started again, below the ports
// that systems give out themselves.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 500 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(5000))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	t.Fatal("no free port")
	return ""
}

// start runs the node and waits until it is ready.
func (h *hubNode) start() error {
	h.cmd, h.ended = exec.Command(h.program, "serve", "--json", "--log", "warn", "--config", h.config),
		make(chan struct{})
	h.cmd.Stderr, h.cmd.Env = h.errs, append(os.Environ(), "PARLEY_PASSPHRASE=of all three")
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		return err
	}
	line := make(chan []byte, 1)
	go func() {
		defer close(h.ended)
		r := bufio.NewReader(out)
		b, _ := r.ReadBytes('\n') // a cut line fails to decode below
		line <- b
		_, copied := io.Copy(io.Discard, r)
		h.err = errors.Join(copied, h.cmd.Wait())
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case b := <-line:
		if err := json.Unmarshal(b, &h.at); err != nil {
			return fmt.Errorf("%s did not get ready: %w", h.name, err)
		}
		h.recovered()
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s is not ready after %s", h.name, within), h.quit())
	}
}

// quit has the node write what its goroutines do, and end.
func (h *hubNode) quit() error {
	err := errors.Join(h.cmd.Process.Signal(syscall.SIGCONT), h.cmd.Process.Signal(syscall.SIGQUIT))
	if err == nil {
		<-h.ended
	}
	return err
}

func (h *hubNode) alive() bool {
	if h.cmd == nil || h.cmd.Process == nil {
		return false
	}
	select {
	case <-h.ended:
		return false
	default:
		return true
	}
}

// kill ends the node at once, like kill -9.
func (h *hubNode) kill() {
	if h.cmd != nil && h.cmd.Process != nil {
		h.downtimes = append(h.downtimes, downtime{from: time.Now()})
		_ = h.cmd.Process.Kill() // it may have ended already
		<-h.ended
	}
}

// freeze stops the node where it stands: its connections stay open.
func (h *hubNode) freeze() error {
	h.downtimes = append(h.downtimes, downtime{from: time.Now()})
	return testcluster.Freeze(h.cmd.Process)
}

// thaw lets a frozen node go on.
func (h *hubNode) thaw() error {
	defer h.recovered()
	return testcluster.Thaw(h.cmd.Process)
}

// recovered notes that the node runs again.
func (h *hubNode) recovered() {
	if n := len(h.downtimes); n > 0 && h.downtimes[n-1].until.IsZero() {
		h.downtimes[n-1].until = time.Now()
	}
}

// interrupted reports whether the node was killed or frozen between two times.
func (h *hubNode) interrupted(begun, ended time.Time) bool {
	return slices.ContainsFunc(h.downtimes, func(x downtime) bool {
		return (x.until.IsZero() || begun.Before(x.until)) && ended.After(x.from)
	})
}

// stop asks the node to end, and waits until it has.
func (h *hubNode) stop() error {
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-h.ended:
		if h.err != nil {
			return fmt.Errorf("%s ended with %w", h.name, h.err)
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not end within %s", h.name, within), h.quit())
	}
}

// place is where peers find the node: the shared name, which leads them to this node.
func (h *hubNode) place() pairs.Place {
	return pairs.Place{HTTP: "http://" + public, AGH: "nats://" + h.agh, Token: pairs.Announced(h.data),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == public {
				address = h.http
			}
			return h.dialer.DialContext(ctx, network, address)
		}}
}

// operator gives a client of the node's admin API.
func (h *hubNode) operator(web *http.Client) *admin.Client {
	h.t.Helper()
	at, err := node.ReadAnnouncement(h.data)
	if err != nil {
		h.t.Fatal(err)
	}
	return &admin.Client{Base: h.at.Admin, Token: at.Token, HTTP: web}
}

// wrote gives the last lines of the node's log, at most so many.
func (h *hubNode) wrote(most int) string {
	b, err := os.ReadFile(h.errs.Name())
	if err != nil {
		return err.Error()
	}
	if lines := bytes.Split(b, []byte("\n")); len(lines) > most {
		b = bytes.Join(lines[len(lines)-most:], []byte("\n"))
	}
	return strings.TrimSpace(string(b))
}

// all calls f for each element at the same time, and fails the test where f fails.
func all[T any](t testing.TB, list []T, f func(T) error) {
	t.Helper()
	errs := make([]error, len(list))
	var work sync.WaitGroup
	for i, v := range list {
		work.Go(func() { errs[i] = f(v) })
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// until polls so until it is true; false: it was not within the time limit of every
// wait.
func until(ctx context.Context, so func() bool) bool {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	look := time.NewTicker(100 * time.Millisecond)
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
