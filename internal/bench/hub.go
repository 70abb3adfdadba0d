package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// withHub opens a hub in a directory of its own, calls measure, and removes both.
// Measure adds agents, starts the hub and sends the load.
func (c *Config) withHub(ctx context.Context, storage floor.Storage, hub node.Config,
	measure func(dir string, n *node.Node) error) (err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	hub.Data, hub.Durability, hub.Log, hub.Limits.SenderRate = filepath.Join(dir, "data"), string(storage), c.Log, -1
	n, err := node.Open(ctx, hub)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close(context.WithoutCancel(ctx))) }()
	return measure(dir, n)
}

// addEcho adds the agent "echo", which answers each request with one small part, and
// c.Agents idle agents. Output is the schema of the answer, or nil.
func (c *Config) addEcho(n *node.Node, output []byte) error {
	answer := parley.Part{MediaType: "application/json", Data: []byte(`{"ok":true}`)}
	skill := parley.RawSkill("echo",
		func(_ context.Context, _ *parley.Message, r parley.Replier) error { return r.Reply(answer) })
	skill.Output = output
	names := []string{"echo"}
	for i := range c.Agents {
		names = append(names, fmt.Sprintf("agent-%d", i))
	}
	for _, name := range names {
		if err := n.Handle(parley.Agent{Name: name, Exposed: parley.Everywhere}, skill); err != nil {
			return err
		}
	}
	return nil
}

// profiled starts the CPU profile of a name if c asks for profiles.
func (c *Config) profiled(name string) (stop func()) {
	if c.Profile == nil {
		return func() {}
	}
	return c.Profile(name)
}

// overHTTP is a path over HTTP to the agent "echo" of a hub.
type overHTTP struct {
	name            string // of its profile
	hub             node.Config
	output          []byte // the schema of the answer, or nil
	perSecond, most int    // how many requests are rendered before the clock starts
	// prepare adds the senders to the hub, which runs at host, and returns the function
	// that renders request i.
	prepare func(n *node.Node, host string) (render func(i int) ([]byte, error), err error)
	// replayed reports whether an answer is that to a replay; nil: the protocol has no replays.
	replayed func(status int, body string) bool
	// answered refuses an answer, besides by its status; nil: the status says all.
	answered func(status int, body []byte) error
}

// overHTTP measures a path. From the 1,000th request on, c.Replays percent are repeats
// of an earlier one.
func (c *Config) overHTTP(ctx context.Context, storage floor.Storage, connections int, p overHTTP) (f Figures,
	err error) {
	err = c.withHub(ctx, storage, p.hub, func(_ string, n *node.Node) error {
		if err := c.addEcho(n, p.output); err != nil {
			return err
		}
		if err := n.Start(ctx); err != nil {
			return err
		}
		host := strings.TrimPrefix(n.Addresses().HTTP, "http://")
		render, err := p.prepare(n, host)
		if err != nil {
			return err
		}
		requests := make([][]byte, min(int(c.Duration.Seconds()*float64(p.perSecond))+2000, p.most))
		for i := range requests {
			if c.Replays > 0 && i > 1000 && i%100 < c.Replays {
				requests[i] = requests[i-997] // a request that was answered a while ago
			} else if requests[i], err = render(i); err != nil {
				return err
			}
		}
		var replays atomic.Int64
		conns := load.NewConns(host, connections)
		defer conns.Close()
		stop := c.profiled(fmt.Sprintf("%s-%d", p.name, connections))
		r := load.Do(ctx, connections, c.Duration/10, c.Duration, func(ctx context.Context, w, i int) error {
			if i >= len(requests) {
				return load.ErrEnd
			}
			status, body, err := conns.Exchange(ctx, w, requests[i])
			if err != nil {
				return err
			}
			repeated := p.replayed != nil && p.replayed(status, string(body))
			if repeated && c.Replays > 0 {
				replays.Add(1)
				return nil
			}
			if repeated || status != http.StatusOK {
				return fmt.Errorf("HTTP %d: %.300s", status, body)
			}
			if p.answered != nil {
				return p.answered(status, body)
			}
			return nil
		})
		stop()
		f, err = figures(r)
		f.Replayed = int(replays.Load())
		return errors.Join(err, ctx.Err())
	})
	return f, err
}

// figures converts the result of a load. More than one failure in a hundred is an
// error.
func figures(r load.Result) (Figures, error) {
	if r.Failed > r.Requests/100 {
		return Figures{}, fmt.Errorf("%d of %d requests failed: %w", r.Failed, r.Failed+r.Requests, r.FirstError)
	}
	return Figures{Throughput: r.Throughput, P50: r.P50, P99: r.P99, CPU: r.CPUPerRequest, Failed: r.Failed}, nil
}

// filler is text for a message of size bytes, of which the envelope takes overhead.
func filler(size, overhead int) string { return strings.Repeat("x", max(1, size-overhead)) }

// writeConfig writes the configuration of a hub with peers to a file in dir.
func writeConfig(dir string, c node.Config, peers []pairs.Peer) (path string, err error) {
	if err := pairs.Configure(&c, dir, peers...); err != nil {
		return "", err
	}
	b, err := toml.Marshal(c)
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "parley.toml")
	return path, os.WriteFile(path, b, 0o600)
}
