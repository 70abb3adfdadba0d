// Package bench measures Parley's paths, each next to its floor (package
// floor) in the same run, on the same cores, with the same load. A ratio says
// what Parley costs beyond the price of its promises; absolute figures say
// more about the machine.
package bench

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// Config says what to measure.
type Config struct {
	Connections []int           // each is measured; default 1, 64, 256
	Storage     []floor.Storage // default memory and disk
	Duration    time.Duration   // of each measurement; default 3 s
	Payload     int             // bytes of the request body; default 1 KiB
	Agents      int             // registered besides the one that is called
	Replays     int             // percent of the load that are captured replays
	Dir         string          // of the disk runs; default the temporary directory of the system, which may be memory
	NoFloor     bool            // measure only Parley
	Log         *slog.Logger
	Profile     func(name string) (stop func()) // called around Parley's own measurements
}

// Row is one measurement.
type Row struct {
	Storage     floor.Storage `json:"storage"`
	Connections int           `json:"connections"`
	RecordBytes int           `json:"recordBytes,omitempty"` // of the journal's: written by both sides for each append
	Parley      Figures       `json:"parley"`
	Floor       *Figures      `json:"floor,omitempty"`
	Ratio       float64       `json:"ratio,omitempty"`       // of throughputs; above 1 is faster than the floor
	MedianRatio float64       `json:"medianRatio,omitempty"` // of medians; below 1 is faster than the floor
	CPURatio    float64       `json:"cpuRatio,omitempty"`    // floor's CPU time per message by Parley's; what a busy machine disturbs least
}

// rate sets the ratios where there is a floor.
func (r *Row) rate() {
	if r.Floor == nil || r.Floor.Throughput == 0 {
		return
	}
	r.Ratio = r.Parley.Throughput / r.Floor.Throughput
	r.MedianRatio = float64(r.Parley.P50) / float64(r.Floor.P50)
	r.CPURatio = float64(r.Floor.CPU) / float64(max(r.Parley.CPU, 1))
}

// Figures of one side.
type Figures struct {
	Throughput float64       `json:"throughput"` // a second
	P50        time.Duration `json:"p50"`
	P99        time.Duration `json:"p99"`
	CPU        time.Duration `json:"cpuPerMessage"`
	Failed     int           `json:"failed,omitempty"`
	Replayed   int           `json:"replayed,omitempty"`
}

func (c *Config) defaults() {
	if len(c.Connections) == 0 {
		c.Connections = []int{1, 64, 256}
	}
	if len(c.Storage) == 0 {
		c.Storage = []floor.Storage{floor.Memory, floor.Disk}
	}
	if c.Duration == 0 {
		c.Duration = 3 * time.Second
	}
	if c.Payload == 0 {
		c.Payload = 1 << 10
	}
	if c.Dir == "" {
		c.Dir = os.TempDir()
	}
}

// Samvad measures signed synchronous SAMVAD requests over HTTP to a Go
// handler, each recorded and its reply recorded, next to a floor with two
// appends. It calls each with every row as soon as it is known.
func Samvad(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.Samvad, c.samvad, each)
}

// compare measures a path next to its floor, row by row. The two alternate, so
// that what the machine does besides meets both.
func (c *Config) compare(ctx context.Context, bare func(context.Context, floor.Config) (floor.Result, error),
	path func(context.Context, floor.Storage, int) (Figures, error), each func(Row)) error {
	c.defaults()
	for _, storage := range c.Storage {
		for _, n := range c.Connections {
			row := Row{Storage: storage, Connections: n}
			if !c.NoFloor {
				f, err := bare(ctx, floor.Config{Connections: n, Payload: c.Payload, Storage: storage, Appends: 2, Duration: c.Duration, Dir: c.Dir})
				if err != nil {
					return fmt.Errorf("floor: %w", err)
				}
				row.Floor = &Figures{Throughput: f.Throughput, P50: f.P50, P99: f.P99, CPU: f.CPUPerMessage}
			}
			debug.FreeOSMemory()
			p, err := path(ctx, storage, n)
			if err != nil {
				return err
			}
			row.Parley = p
			row.rate()
			each(row)
			debug.FreeOSMemory()
		}
	}
	return nil
}

// senders is how many identities sign the load.
const senders = 16

func (c *Config) samvad(ctx context.Context, storage floor.Storage, connections int) (_ Figures, err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return Figures{}, err
	}
	defer os.RemoveAll(dir)
	n, err := node.Open(ctx, node.Config{Data: filepath.Join(dir, "data"), Durability: string(storage), Log: c.Log,
		Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, // with an admin API it makes the index
		Limits: node.Limits{SenderRate: -1}})
	if err != nil {
		return Figures{}, err
	}
	defer func() {
		if cerr := n.Close(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
	}()
	answer := parley.Part{MediaType: "application/json", Data: []byte(`{"ok":true}`)}
	err = n.Handle(parley.Agent{Name: "echo", Exposed: parley.Everywhere},
		parley.RawSkill("echo", func(_ context.Context, m *parley.Message, r parley.Replier) error { return r.Reply(answer) }))
	if err != nil {
		return Figures{}, err
	}
	for i := range c.Agents {
		a := parley.Agent{Name: fmt.Sprintf("agent-%d", i), Exposed: parley.Everywhere}
		if err := n.Handle(a, parley.RawSkill("echo", func(_ context.Context, m *parley.Message, r parley.Replier) error { return r.Reply(answer) })); err != nil {
			return Figures{}, err
		}
	}
	var ids []*samvad.Identity
	for i := range senders {
		id, err := samvad.NewIdentity(fmt.Sprintf("agent://sender%d.example", i), "key-current")
		if err != nil {
			return Figures{}, err
		}
		ids = append(ids, id)
		if err := enrol(ctx, n, fmt.Sprintf("sender-%d", i), id.ID(), id.Public()); err != nil {
			return Figures{}, err
		}
	}
	if err := n.Start(ctx); err != nil {
		return Figures{}, err
	}
	base := n.Addresses().HTTP
	u, err := url.Parse(base)
	if err != nil {
		return Figures{}, err
	}
	card, err := (&samvad.Client{HTTP: http.DefaultClient}).Card(ctx, base+"/agents/echo")
	if err != nil {
		return Figures{}, err
	}
	// Signed before the clock starts, in the time window of the run.
	count := min(int(c.Duration.Seconds()*25_000)+2000, 400_000)
	requests := make([]*load.Request, count)
	payload := []byte(`{"text":"` + strings.Repeat("x", max(0, c.Payload-420)) + `"}`)
	for i := range requests {
		if c.Replays > 0 && i > 1000 && i%100 < c.Replays {
			requests[i] = requests[i-997] // one that was answered a while ago
			continue
		}
		client := samvad.Client{Identity: ids[i%len(ids)]}
		_, body, err := client.Envelope(samvad.Call{To: card.ID, Skill: "echo", Payload: payload}, samvad.ModeSync)
		if err != nil {
			return Figures{}, err
		}
		const path = "/agents/echo/agent/message"
		sig, err := samvad.Sign(client.Identity, http.MethodPost, path, body, time.Now())
		if err != nil {
			return Figures{}, err
		}
		h := http.Header{"Content-Type": {"application/json"}}
		sig.Set(h)
		requests[i] = load.NewRequest(http.MethodPost, u.Host, path, h, body)
	}
	var replayed atomic.Int64
	stop := func() {}
	if c.Profile != nil {
		stop = c.Profile(fmt.Sprintf("%s-%d", storage, connections))
	}
	r, err := load.Run(ctx, load.Config{URL: base, Connections: connections, Warmup: min(count/10, 20*connections), Duration: c.Duration,
		Requests: func(i int) *load.Request {
			if i >= len(requests) {
				return nil
			}
			return requests[i]
		},
		Check: func(status int, body []byte) error {
			switch {
			case status == http.StatusOK:
				return nil
			case c.Replays > 0 && status == http.StatusUnauthorized && strings.Contains(string(body), "REPLAY_DETECTED"):
				replayed.Add(1)
				return nil
			}
			return fmt.Errorf("HTTP %d: %.200s", status, body)
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

func enrol(ctx context.Context, n *node.Node, name, id string, key ed25519.PublicKey) error {
	identity, err := n.SAMVAD().Identity(id, "")
	if err != nil {
		return err
	}
	if _, err := n.Hub().Directory().Put(ctx, parley.Agent{Name: name, Identities: []parley.Identity{identity}}, directory.FromOperator); err != nil {
		return err
	}
	return n.SAMVAD().Enroll(name, id, "", key, "bench")
}
