package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
)

// A2ERow is one measurement of A2E.
type A2ERow struct {
	What      string        `json:"what"`
	Parallel  int           `json:"parallel"`
	PerSecond float64       `json:"perSecond"`
	Each      time.Duration `json:"each"`          // time of one call of one caller
	CPU       time.Duration `json:"cpu,omitempty"` // of one call: client, host and tool
	Floor     float64       `json:"floorPerSecond,omitempty"`
	FloorCPU  time.Duration `json:"floorCPU,omitempty"`
	Ratio     float64       `json:"ratio,omitempty"`    // of calls a second; above 1 is faster than the floor
	CPURatio  float64       `json:"cpuRatio,omitempty"` // floor's CPU time per call by Parley's
}

// rounds is how often a path and its floor alternate, so that other work on the machine
// disturbs both.
const rounds = 4

// A2E measures framing and validation on one core, tool calls at a host of
// package a2e over TCP, pipes and HTTP with SSE, next to a floor of bare JSON
// echo on the same transport, and tool calls through a hub, each recorded with
// its answer. Its client shares the cores.
func A2E(ctx context.Context, c Config, each func(A2ERow)) error {
	c.defaults()
	row, err := c.framing(ctx)
	if err != nil {
		return err
	}
	each(row)
	for _, parallel := range []int{1, 16} {
		for _, kind := range []string{"pipes", "tcp", "http"} {
			row, err := c.toolCalls(ctx, kind, parallel)
			if err != nil {
				return err
			}
			each(row)
		}
	}
	for _, storage := range c.Storage {
		if err := c.throughHub(ctx, storage, each); err != nil {
			return err
		}
	}
	return nil
}

// framing reads, decodes and checks a tool/call/req of 300 bytes.
func (c *Config) framing(ctx context.Context) (A2ERow, error) {
	line := []byte(`{"type":"tool/call/req","id":"44444444444444444444444444444444","version":"1.0","ts":1716123457.1,` +
		`"session_id":"33333333333333333333333333333333","tool_name":"echo","arguments":{"text":"`)
	tail := []byte(`"},"correlation_id":"5f5f5f5f","streaming":true,"timeout":60}` + "\n")
	line = append(append(line, bytes.Repeat([]byte("x"), 300-len(line)-len(tail))...), tail...)
	const lines = 1000
	block := bytes.Repeat(line, lines)
	reg := a2e.NewRegistry()
	var blocks tally
	err := blocks.add(ctx, 1, c.Duration, func() error {
		r := a2e.NewReader(bytes.NewReader(block))
		for range lines {
			m, err := r.ReadMessage(reg)
			if err != nil {
				return err
			}
			if err := m.Check(); err != nil {
				return err
			}
		}
		return nil
	})
	perSecond, each, cpu := blocks.figures(1)
	return A2ERow{What: "framing and validation", Parallel: 1, PerSecond: lines * perSecond, Each: each / lines,
		CPU: cpu / lines}, err
}

// attach connects a client to a host.
func attach(ctx context.Context, h *a2e.Host, kind string) (*a2e.Client, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	client := &a2e.Client{}
	stop := func() {
		_ = client.Close() // the measurement is over
		cancel()
		serving.Wait()
	}
	if kind == "pipes" {
		client.Dial = func(context.Context) (io.ReadWriteCloser, error) {
			near, far, err := floor.Pipes()
			if err == nil {
				serving.Go(func() { _ = h.ServeStdio(ctx, far, far) })
			}
			return near, err
		}
		return client, stop, client.Connect(ctx)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, nil, err
	}
	if kind == "tcp" {
		client.URL = "tcp://" + l.Addr().String()
		serving.Go(func() { _ = h.Serve(ctx, l) })
		return client, stop, client.Connect(ctx)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	serving.Go(func() { _ = s.Serve(l) })
	serving.Go(func() {
		<-ctx.Done()
		_ = s.Close() // ends the stream too
	})
	client.URL, client.HTTP = "http://"+l.Addr().String(), webClient()
	return client, stop, client.Connect(ctx)
}

func webClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

// toolCalls calls a tool from several callers of one session, alternating with the
// floor where the transport has one.
func (c *Config) toolCalls(ctx context.Context, kind string, parallel int) (A2ERow, error) {
	row := A2ERow{What: "host over " + kind, Parallel: parallel}
	arguments := json.RawMessage(`{"text":"` + string(bytes.Repeat([]byte("x"), 64)) + `"}`)
	box := &a2e.Toolbox{}
	box.Add(a2e.ToolDefinition{Name: "echo"},
		func(_ context.Context, t *a2e.ToolCall) (any, error) { return t.Arguments, nil })
	host := &a2e.Host{Auth: a2e.Anonymous("bench"), Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(box)}}
	client, stop, err := attach(ctx, host, kind)
	if err != nil {
		return row, err
	}
	defer stop()
	call := func() error {
		r, err := client.CallTool(ctx, "echo", arguments, nil)
		if data, _ := r.Data.(json.RawMessage); err == nil && !bytes.Equal(data, arguments) {
			err = fmt.Errorf("%s came back as %s", arguments, data)
		}
		return err
	}
	var ours, bare tally
	if c.NoFloor || kind == "http" {
		err = ours.add(ctx, parallel, c.Duration, call)
	} else {
		var echo *floor.Echo
		if echo, err = floor.NewEcho(ctx, kind, arguments); err != nil {
			return row, fmt.Errorf("floor: %w", err)
		}
		defer func() { _ = echo.Close() }() // the measurement is over
		for range rounds {
			if err = bare.add(ctx, parallel, c.Duration/rounds, echo.Call); err != nil {
				return row, fmt.Errorf("floor: %w", err)
			}
			if err = ours.add(ctx, parallel, c.Duration/rounds, call); err != nil {
				break
			}
		}
	}
	if err != nil {
		return row, err
	}
	row.PerSecond, row.Each, row.CPU = ours.figures(parallel)
	if bare.calls > 0 {
		row.Floor, _, row.FloorCPU = bare.figures(parallel)
		row.Ratio = row.PerSecond / row.Floor
		row.CPURatio = float64(row.FloorCPU) / float64(max(row.CPU, 1))
	}
	return row, nil
}

// tally sums up the rounds of one path.
type tally struct {
	calls     int
	took, cpu time.Duration
}

func (t *tally) add(ctx context.Context, parallel int, d time.Duration, call func() error) error {
	r := load.Do(ctx, parallel, d/20, d, func(context.Context, int, int) error { return call() })
	if r.FirstError != nil {
		return r.FirstError
	}
	t.calls += r.Requests
	t.took += r.Elapsed
	t.cpu += r.CPU
	return ctx.Err()
}

func (t *tally) figures(parallel int) (perSecond float64, each, cpu time.Duration) {
	n := time.Duration(max(t.calls, 1))
	return float64(t.calls) / t.took.Seconds(), t.took * time.Duration(parallel) / n, t.cpu / n
}

// throughHub measures tool calls to a Go handler through a whole hub.
func (c *Config) throughHub(ctx context.Context, storage floor.Storage, each func(A2ERow)) error {
	hub := node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0"}, A2E: node.A2E{Listen: "127.0.0.1:0"}}
	return c.withHub(ctx, storage, hub, func(_ string, n *node.Node) error {
		if err := c.addEcho(n, nil); err != nil {
			return err
		}
		token, err := bridge.NewToken()
		if err != nil {
			return err
		}
		agent := parley.Agent{Name: "bench", Identities: []parley.Identity{{Protocol: bridge.Protocol,
			ID: bridge.TokenID(token)}}}
		if _, err := n.Hub().Directory().Put(ctx, agent, directory.FromOperator); err != nil {
			return err
		}
		if err := n.Start(ctx); err != nil {
			return err
		}
		for _, kind := range []string{"tcp", "http"} {
			for _, sessions := range []int{1, 4, 16} {
				row := A2ERow{What: fmt.Sprintf("hub, %s, over %s, %d sessions", storage, kind, sessions), Parallel: 16}
				calls, err := c.callHub(ctx, n, kind, token, sessions)
				if err != nil {
					return err
				}
				row.PerSecond, row.Each, row.CPU = calls.figures(16)
				each(row)
			}
		}
		return nil
	})
}

// callHub calls a tool from 16 callers that share some sessions.
func (c *Config) callHub(ctx context.Context, n *node.Node, kind, token string, sessions int) (calls tally, err error) {
	clients := make([]*a2e.Client, sessions)
	for i := range clients {
		clients[i] = &a2e.Client{URL: n.Addresses().A2E, Token: token}
		if kind == "http" {
			clients[i].URL, clients[i].HTTP = n.A2E().Base(), webClient()
		}
		if err := clients[i].Connect(ctx); err != nil {
			return calls, err
		}
		defer clients[i].Close()
	}
	var turn atomic.Int64
	err = calls.add(ctx, 16, c.Duration, func() error {
		_, err := clients[int(turn.Add(1))%sessions].CallTool(ctx, "echo__echo", json.RawMessage(`{"text":"x"}`), nil)
		return err
	})
	return calls, err
}
