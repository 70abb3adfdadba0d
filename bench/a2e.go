package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bench/floor"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
)

// A2ERow is one measurement of A2E.
type A2ERow struct {
	What      string        `json:"what"`
	Parallel  int           `json:"parallel"`
	PerSecond float64       `json:"perSecond"`
	Each      time.Duration `json:"each"` // time of one call of one caller
	Floor     float64       `json:"floorPerSecond,omitempty"`
	Ratio     float64       `json:"ratio,omitempty"`
}

// A2E measures framing and validation on one core, tool calls at a host of
// package a2e over TCP, pipes and HTTP with SSE, next to a floor of bare JSON
// echo on the same transport, and tool calls through a hub, each recorded with
// its answer. Its client shares the cores.
func A2E(ctx context.Context, c Config, each func(A2ERow)) error {
	c.defaults()
	each(c.framing())
	box := &a2e.Toolbox{}
	box.Add(a2e.ToolDefinition{Name: "echo"}, func(_ context.Context, t *a2e.ToolCall) (any, error) { return t.Arguments, nil })
	for _, parallel := range []int{1, 16} {
		for _, kind := range []string{"pipes", "tcp", "http"} {
			row := A2ERow{What: "host over " + kind, Parallel: parallel}
			if !c.NoFloor && kind != "http" {
				f, err := c.echo(ctx, kind, parallel)
				if err != nil {
					return fmt.Errorf("floor: %w", err)
				}
				row.Floor = f
			}
			host := &a2e.Host{Auth: a2e.Anonymous("bench"), Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(box)}}
			client, stop, err := attach(ctx, host, kind)
			if err != nil {
				return err
			}
			row.PerSecond, row.Each, err = c.toolCalls(ctx, client, "echo", parallel)
			stop()
			if err != nil {
				return err
			}
			if row.Floor > 0 {
				row.Ratio = row.PerSecond / row.Floor
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
func (c *Config) framing() A2ERow {
	line := []byte(`{"type":"tool/call/req","id":"44444444444444444444444444444444","version":"1.0","ts":1716123457.1,"session_id":"33333333333333333333333333333333","tool_name":"echo","arguments":{"text":"`)
	tail := []byte(`"},"correlation_id":"5f5f5f5f","streaming":true,"timeout":60}` + "\n")
	line = append(append(line, bytes.Repeat([]byte("x"), 300-len(line)-len(tail))...), tail...)
	block := bytes.Repeat(line, 1000)
	reg := a2e.NewRegistry()
	start, n := time.Now(), 0
	for time.Since(start) < c.Duration {
		r := a2e.NewReader(bytes.NewReader(block))
		for {
			m, err := r.ReadMessage(reg)
			if err != nil || m.Check() != nil {
				break
			}
			n++
		}
	}
	took := time.Since(start)
	return A2ERow{What: "framing and validation", Parallel: 1, PerSecond: float64(n) / took.Seconds(), Each: took / time.Duration(max(n, 1))}
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
			near, far, err := pipes()
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
	client.URL, client.HTTP = "http://"+l.Addr().String(), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return client, stop, client.Connect(ctx)
}

// duplex is one end of two pipes.
type duplex struct{ in, out *os.File }

func (d *duplex) Read(p []byte) (int, error)  { return d.in.Read(p) }
func (d *duplex) Write(p []byte) (int, error) { return d.out.Write(p) }
func (d *duplex) Close() error                { return errors.Join(d.in.Close(), d.out.Close()) }

// pipes are what a child process has as its standard input and output.
func pipes() (near, far *duplex, err error) {
	r1, w1, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, r1.Close(), w1.Close())
	}
	return &duplex{r1, w2}, &duplex{r2, w1}, nil
}

// toolCalls calls a tool from several callers of one session.
func (c *Config) toolCalls(ctx context.Context, client *a2e.Client, tool string, parallel int) (perSecond float64, each time.Duration, err error) {
	arguments := json.RawMessage(`{"text":"` + string(bytes.Repeat([]byte("x"), 64)) + `"}`)
	if _, err := client.CallTool(ctx, tool, arguments, nil); err != nil {
		return 0, 0, err
	}
	return c.callers(parallel, func() error {
		_, err := client.CallTool(ctx, tool, arguments, nil)
		return err
	})
}

func (c *Config) callers(parallel int, call func() error) (float64, time.Duration, error) {
	var n atomic.Int64
	var callers sync.WaitGroup
	failed := make(chan error, parallel)
	start := time.Now()
	for range parallel {
		callers.Go(func() {
			for time.Since(start) < c.Duration {
				if err := call(); err != nil {
					failed <- err
					return
				}
				n.Add(1)
			}
		})
	}
	callers.Wait()
	took := time.Since(start)
	select {
	case err := <-failed:
		return 0, 0, err
	default:
	}
	return float64(n.Load()) / took.Seconds(), took * time.Duration(parallel) / time.Duration(max(n.Load(), 1)), nil
}

// echo is the floor: a line of JSON is decoded, its id and arguments are put
// into another one, which goes back, and is decoded there.
func (c *Config) echo(ctx context.Context, kind string, parallel int) (float64, error) {
	var near, far io.ReadWriteCloser
	if kind == "pipes" {
		a, b, err := pipes()
		if err != nil {
			return 0, err
		}
		near, far = a, b
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		defer l.Close()
		accepted := make(chan net.Conn, 1)
		go func() {
			if conn, err := l.Accept(); err == nil {
				accepted <- conn
			}
		}()
		if near, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String()); err != nil {
			return 0, err
		}
		far = <-accepted
	}
	type request struct {
		ID        string          `json:"id"`
		Arguments json.RawMessage `json:"arguments"`
	}
	type response struct {
		ReqID string          `json:"req_id"`
		Data  json.RawMessage `json:"data"`
	}
	var ends sync.WaitGroup
	ends.Go(func() {
		in := bufio.NewScanner(far)
		for in.Scan() {
			var r request
			if json.Unmarshal(in.Bytes(), &r) != nil {
				return
			}
			b, err := json.Marshal(response{r.ID, r.Arguments})
			if err != nil {
				return
			}
			if _, err := far.Write(append(b, '\n')); err != nil {
				return
			}
		}
	})
	var mu sync.Mutex
	waiting := map[string]chan struct{}{}
	ends.Go(func() {
		in := bufio.NewScanner(near)
		for in.Scan() {
			var r response
			if json.Unmarshal(in.Bytes(), &r) != nil {
				return
			}
			mu.Lock()
			done := waiting[r.ReqID]
			delete(waiting, r.ReqID)
			mu.Unlock()
			close(done)
		}
	})
	var next atomic.Int64
	arguments := json.RawMessage(`{"text":"` + string(bytes.Repeat([]byte("x"), 64)) + `"}`)
	perSecond, _, err := c.callers(parallel, func() error {
		id := fmt.Sprintf("%032d", next.Add(1))
		b, err := json.Marshal(request{id, arguments})
		if err != nil {
			return err
		}
		done := make(chan struct{})
		mu.Lock()
		waiting[id] = done
		_, err = near.Write(append(b, '\n'))
		mu.Unlock()
		if err != nil {
			return err
		}
		<-done
		return nil
	})
	err = errors.Join(err, near.Close(), far.Close())
	ends.Wait()
	return perSecond, err
}

// throughHub measures tool calls to a Go handler through a whole hub.
func (c *Config) throughHub(ctx context.Context, storage floor.Storage, each func(A2ERow)) (err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := node.Open(ctx, node.Config{Data: filepath.Join(dir, "data"), Durability: string(storage), Log: c.Log,
		Listen: node.Listen{HTTP: "127.0.0.1:0"}, A2E: node.A2E{Listen: "127.0.0.1:0"}, Limits: node.Limits{SenderRate: -1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close(context.WithoutCancel(ctx))) }()
	answer := parley.Part{MediaType: "application/json", Data: []byte(`{"ok":true}`)}
	err = n.Handle(parley.Agent{Name: "echo", Exposed: parley.Everywhere},
		parley.RawSkill("echo", func(_ context.Context, _ *parley.Message, r parley.Replier) error { return r.Reply(answer) }))
	if err != nil {
		return err
	}
	token, err := bridge.NewToken()
	if err != nil {
		return err
	}
	if _, err := n.Hub().Directory().Put(ctx, parley.Agent{Name: "bench", Identities: []parley.Identity{{Protocol: bridge.Protocol, ID: bridge.TokenID(token)}}}, directory.FromOperator); err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	for _, kind := range []string{"tcp", "http"} {
		for _, sessions := range []int{1, 4, 16} {
			clients := make([]*a2e.Client, sessions)
			for i := range clients {
				clients[i] = &a2e.Client{URL: n.Addresses().A2E, Token: token}
				if kind == "http" {
					clients[i].URL, clients[i].HTTP = n.A2E().Base(), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
				}
				if err := clients[i].Connect(ctx); err != nil {
					return err
				}
			}
			var turn atomic.Int64
			perSecond, took, err := c.callers(16, func() error {
				_, err := clients[int(turn.Add(1))%sessions].CallTool(ctx, "echo__echo", json.RawMessage(`{"text":"x"}`), nil)
				return err
			})
			for _, client := range clients {
				_ = client.Close() // the measurement is over
			}
			if err != nil {
				return err
			}
			each(A2ERow{What: fmt.Sprintf("hub, %s, over %s, %d sessions", storage, kind, sessions), Parallel: 16, PerSecond: perSecond, Each: took})
		}
	}
	return nil
}
