// Package bench measures Parley's paths, each next to its floor (package
// floor) in the same run, on the same cores, with the same load. The ratio is
// Parley's overhead above the price of its promises; absolute figures depend more on
// the machine.
package bench

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// Config configures a measurement.
type Config struct {
	Connections []int           // each is measured; default 1, 64, 256
	Storage     []floor.Storage // default memory and disk
	Duration    time.Duration   // of each measurement; default 3 s
	Payload     int             // bytes of the request body; default 1 KiB
	Agents      int             // registered besides the called one
	Replays     int             // percent of the load that are captured replays
	Dir         string          // of the disk runs; default the system's temporary directory, which may be in memory
	NoFloor     bool            // measure only Parley
	Log         *slog.Logger
	Profile     func(name string) (stop func()) // called around Parley's own measurements
}

// Row is one measurement.
type Row struct {
	Storage     floor.Storage `json:"storage"`
	Connections int           `json:"connections"`
	RecordBytes int           `json:"recordBytes,omitempty"` // of the journal; the floor writes as many per append
	Parley      Figures       `json:"parley"`
	Floor       *Figures      `json:"floor,omitempty"`
	Ratio       float64       `json:"ratio,omitempty"`       // of throughputs; above 1 is faster than the floor
	MedianRatio float64       `json:"medianRatio,omitempty"` // of medians; below 1 is faster than the floor
	CPURatio    float64       `json:"cpuRatio,omitempty"`    // floor's CPU time per message by Parley's
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

// Figures are the measured values of one side.
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
	c.Duration = cmp.Or(c.Duration, 3*time.Second)
	c.Payload = cmp.Or(c.Payload, 1<<10)
	c.Dir = cmp.Or(c.Dir, os.TempDir())
}

// Samvad measures signed synchronous SAMVAD requests over HTTP to a Go handler, each
// recorded with its reply, next to a floor with two appends. It passes each row to each
// as soon as it is measured.
func Samvad(ctx context.Context, c Config, each func(Row)) error {
	return c.compare(ctx, floor.Samvad, c.samvad, each)
}

// compare measures a path next to its floor, row by row. The two alternate, so
// that other work on the machine disturbs both.
func (c *Config) compare(ctx context.Context, bare func(context.Context, floor.Config) (load.Result, error),
	path func(context.Context, floor.Storage, int) (Figures, error), each func(Row)) error {
	c.defaults()
	for _, storage := range c.Storage {
		for _, n := range c.Connections {
			row := Row{Storage: storage, Connections: n}
			if !c.NoFloor {
				f, err := bare(ctx, floor.Config{Connections: n, Payload: c.Payload, Storage: storage,
					Duration: c.Duration, Dir: c.Dir})
				if err == nil {
					row.Floor = new(Figures)
					*row.Floor, err = figures(f)
				}
				if err != nil {
					return fmt.Errorf("floor: %w", err)
				}
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

func (c *Config) samvad(ctx context.Context, storage floor.Storage, connections int) (Figures, error) {
	return c.overHTTP(ctx, storage, connections, overHTTP{
		name: string(storage), perSecond: 25_000, most: 400_000,
		// the hub has an admin API
		hub: node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		replayed: func(status int, body string) bool {
			return status == http.StatusUnauthorized && strings.Contains(body, "REPLAY_DETECTED")
		},
		prepare: func(n *node.Node, host string) (func(int) ([]byte, error), error) {
			var ids []*samvad.Identity
			for i := range senders {
				id, err := samvad.NewIdentity(fmt.Sprintf("agent://sender%d.example", i), "key-current")
				if err != nil {
					return nil, err
				}
				ids = append(ids, id)
				if err := enrol(ctx, n, fmt.Sprintf("sender-%d", i), id.ID(), id.Public()); err != nil {
					return nil, err
				}
			}
			card, err := (&samvad.Client{HTTP: http.DefaultClient}).Card(ctx, "http://"+host+"/agents/echo")
			payload := []byte(`{"text":"` + filler(c.Payload, 420) + `"}`)
			return func(i int) ([]byte, error) {
				client := samvad.Client{Identity: ids[i%len(ids)]}
				_, body, err := client.Envelope(samvad.Call{To: card.ID, Skill: "echo", Payload: payload},
					samvad.ModeSync)
				if err != nil {
					return nil, err
				}
				const path = "/agents/echo/agent/message"
				sig, err := samvad.Sign(client.Identity, http.MethodPost, path, body, time.Now())
				if err != nil {
					return nil, err
				}
				h := http.Header{"Content-Type": {"application/json"}}
				sig.Set(h)
				return load.NewRequest(http.MethodPost, host, path, h, body), nil
			}, err
		}})
}

func enrol(ctx context.Context, n *node.Node, name, id string, key ed25519.PublicKey) error {
	identity, err := n.SAMVAD().Identity(id, "")
	if err != nil {
		return err
	}
	if _, err := n.Hub().Directory().Put(ctx, parley.Agent{Name: name, Identities: []parley.Identity{identity}},
		directory.FromOperator); err != nil {
		return err
	}
	return n.SAMVAD().Enroll(name, id, "", key, "bench")
}
