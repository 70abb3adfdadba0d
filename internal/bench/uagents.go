package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/uagents"
)

// UAgents measures signed synchronous uAgents envelopes over HTTP to a Go
// handler: each and its reply are recorded, and the reply is signed. The floor
// makes two appends and signs nothing. It calls each with every row as soon as
// it is known.
func UAgents(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.UAgents, c.uagents, each)
}

func (c *Config) uagents(ctx context.Context, storage floor.Storage, connections int) (_ Figures, err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return Figures{}, err
	}
	defer os.RemoveAll(dir)
	n, err := node.Open(ctx, node.Config{Data: filepath.Join(dir, "data"), Durability: string(storage), Log: c.Log,
		Listen: node.Listen{HTTP: "127.0.0.1:0"}, Limits: node.Limits{SenderRate: -1}})
	if err != nil {
		return Figures{}, err
	}
	defer func() {
		if cerr := n.Close(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
	}()
	answer := parley.Part{MediaType: "application/json", Data: []byte(`{"ok":true}`)}
	handler := func(_ context.Context, _ *parley.Message, r parley.Replier) error { return r.Reply(answer) }
	echo := parley.RawSkill("echo", handler)
	echo.Output = []byte(`{"title":"Done","type":"object","properties":{"ok":{"title":"Ok","type":"boolean"}},"required":["ok"]}`)
	if err := n.Handle(parley.Agent{Name: "echo", Exposed: parley.Everywhere}, echo); err != nil {
		return Figures{}, err
	}
	for i := range c.Agents {
		if err := n.Handle(parley.Agent{Name: fmt.Sprintf("agent-%d", i), Exposed: parley.Everywhere}, echo); err != nil {
			return Figures{}, err
		}
	}
	if err := n.Start(ctx); err != nil {
		return Figures{}, err
	}
	e, ok := n.Hub().Directory().Agent("echo")
	if !ok {
		return Figures{}, fmt.Errorf("the agent is not there")
	}
	target := n.UAgents().Address(e)
	base := n.Addresses().HTTP
	u, err := url.Parse(base)
	if err != nil {
		return Figures{}, err
	}
	var ids []*uagents.Identity
	for i := range senders { // enrolled: the hub lets guests have 100 requests a second
		id, err := uagents.NewIdentity()
		if err != nil {
			return Figures{}, err
		}
		a := parley.Agent{Name: fmt.Sprintf("sender-%d", i),
			Identities: []parley.Identity{{Protocol: "uagents", ID: id.Address()}}}
		if _, err := n.Hub().Directory().Put(ctx, a, directory.FromOperator); err != nil {
			return Figures{}, err
		}
		ids = append(ids, id)
	}
	type question struct {
		Text string `json:"text"`
	}
	message := uagents.ModelOf[question]().Message(question{strings.Repeat("x", max(1, (c.Payload-640)*3/4))})
	count := min(int(c.Duration.Seconds()*12_000)+2000, 200_000)
	requests := make([]*load.Request, count)
	expires := time.Now().Add(10 * time.Minute)
	for i := range requests {
		if c.Replays > 0 && i > 1000 && i%100 < c.Replays {
			requests[i] = requests[i-997]
			continue
		}
		id := ids[i%len(ids)]
		e, err := uagents.NewEnvelope(id.Address(), target, "", message, expires)
		if err == nil {
			err = e.Sign(id)
		}
		if err != nil {
			return Figures{}, err
		}
		b, err := e.Encode()
		if err != nil {
			return Figures{}, err
		}
		requests[i] = load.NewRequest(http.MethodPost, u.Host, "/submit", http.Header{"Content-Type": {"application/json"}, "X-Uagents-Connection": {"sync"}}, b)
	}
	stop := func() {}
	if c.Profile != nil {
		stop = c.Profile(fmt.Sprintf("uagents-%s-%d", storage, connections))
	}
	var replayed atomic.Int64
	r, err := load.Run(ctx, load.Config{URL: base, Connections: connections, Warmup: min(count/10, 20*connections), Duration: c.Duration,
		Requests: func(i int) *load.Request {
			if i >= len(requests) {
				return nil
			}
			return requests[i]
		},
		Check: func(status int, body []byte) error {
			failed := strings.Contains(string(body), uagents.ErrorMessageDigest)
			switch {
			case status == http.StatusOK && !failed:
				return nil
			case status == http.StatusOK && c.Replays > 0:
				replayed.Add(1) // a repeat has no second effect
				return nil
			}
			return fmt.Errorf("HTTP %d: %.300s", status, body)
		}})
	stop()
	if err != nil {
		return Figures{}, err
	}
	if r.Failed > r.Requests/100 {
		return Figures{}, fmt.Errorf("%d of %d requests failed: %w", r.Failed, r.Failed+r.Requests, r.FirstError)
	}
	return Figures{Throughput: r.Throughput, P50: r.P50, P99: r.P99, CPU: r.CPUPerRequest, Failed: r.Failed, Replayed: int(replayed.Load())}, nil
}
