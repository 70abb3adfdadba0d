package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
	"github.com/parley-hub/parley/internal/bench/floor"
)

func (a *app) benchCommand() *cobra.Command {
	c := group("bench", "Measure Parley's speed next to that of a bare program",
		`  parley bench samvad --storage memory
  parley bench pairs --only 'samvad->agh'
  parley bench journal --dir .`, helps,
		append(a.ofProtocols(func(p *protocol) func(*app) *cobra.Command { return p.bench }),
			a.benchPairsCommand(), a.benchJournalCommand(), a.benchGuestsCommand(), a.benchFloorCommand())...)
	c.Long = `Measure how many messages Parley handles in a second, next to a floor: a bare program
that does the same HTTP, digests, signature checks and decoding and nothing else, and
that records on disk by writing all waiting records to a file at once and syncing it.
Load, floor and hub share this machine's cores, and collect garbage as "parley serve"
does. Compare the ratios: the figures themselves depend on the machine.`
	for _, one := range c.Commands() {
		measure := one.RunE
		one.RunE = func(cmd *cobra.Command, args []string) error {
			steadyHeap()
			err := measure(cmd, args)
			if err != nil && cmd.Context().Err() != nil {
				return errors.New("interrupted: the rows above are complete")
			}
			return err
		}
	}
	return c
}

func (a *app) benchSamvadCommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "samvad",
		Short: "Signed synchronous SAMVAD requests to a Go handler",
		Example: `  parley bench samvad
  parley bench samvad --connections 64 --storage disk --dir . --duration 10s
  parley bench samvad --replays 10 --json`,
	}, bench.Samvad, nil)
}

func (a *app) benchUAgentsCommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "uagents",
		Short: "Signed synchronous uAgents envelopes to a Go handler",
		Long: `Measure signed synchronous uAgents envelopes to a Go handler, whose answers the
hub signs, next to a floor with one secp256k1 verification, two appends and no
signature.`,
		Example: `  parley bench uagents
  parley bench uagents --connections 64 --storage disk --dir . --duration 10s`,
	}, bench.UAgents, nil)
}

func (a *app) benchAGHCommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "agh",
		Short: "Work that AGH peers give to a Go handler over NATS",
		Long: `Measure reading and checking one say on one core, then work from the directed
say of a peer to the trace that completes it, next to a bare NATS request and
reply with two appends.`,
		Example: `  parley bench agh
  parley bench agh --connections 64 --storage disk --dir .`,
	}, bench.AGH, func(c bench.Config) error {
		took, err := bench.AGHDecode(c)
		if err != nil {
			return err
		}
		return a.print(map[string]any{"decode": took}, "decode and check a say: %.1f µs\n",
			float64(took.Nanoseconds())/1e3)
	})
}

func (a *app) benchA2ACommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "a2a",
		Short: "Blocking A2A calls to a Go handler",
		Long: `Measure blocking calls of A2A 1.0 over JSON-RPC to a Go handler, whose caller shows
a token, next to a bare server of the official SDK with two appends.`,
		Example: `  parley bench a2a
  parley bench a2a --connections 64 --storage disk --dir . --duration 10s`,
	}, bench.A2A, nil)
}

func (a *app) benchMCPCommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "mcp",
		Short: "Tool calls of MCP clients to a Go handler",
		Long: `Measure tool calls of MCP, revision 2026-07-28, to a Go handler, whose caller shows
a token, next to a bare server of the official SDK with two appends.`,
		Example: `  parley bench mcp
  parley bench mcp --connections 64 --storage disk --dir . --duration 10s`,
	}, bench.MCP, nil)
}

// compareCommand makes a command that measures a path next to its floor. Before
// is called first, when it is not nil.
func (a *app) compareCommand(c *cobra.Command, measure func(context.Context, bench.Config, func(bench.Row)) error,
	before func(bench.Config) error) *cobra.Command {
	var config bench.Config
	var storage []string
	var profile string
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := measurable(&config, storage); err != nil {
			return err
		}
		if config.Replays < 0 || config.Replays > 50 {
			return usage("--replays %d: want 0 to 50", config.Replays)
		}
		if profile != "" {
			if err := os.MkdirAll(profile, 0o755); err != nil {
				return err
			}
			config.Profile = func(name string) func() { return cpuProfile(filepath.Join(profile, name+".pprof")) }
		}
		if before != nil {
			if err := before(config); err != nil {
				return err
			}
		}
		a.benchHeader()
		return measure(cmd.Context(), config, a.benchRow)
	}
	f := c.Flags()
	f.IntSliceVar(&config.Connections, "connections", nil,
		"requests at once, or peers with one piece of work each (default 1,64,256)")
	f.StringSliceVar(&storage, "storage", nil, "memory, disk (default both)")
	f.DurationVar(&config.Duration, "duration", 3*time.Second, "of each measurement")
	f.IntVar(&config.Payload, "payload", 1024, "bytes of a message")
	f.IntVar(&config.Agents, "agents", 0, "further agents in the directory")
	f.IntVar(&config.Replays, "replays", 0, "percent of the requests that are replays (SAMVAD, uAgents)")
	f.StringVar(&config.Dir, "dir", "", "directory for records on disk: choose a real disk (default: the temporary "+
		"directory)")
	f.BoolVar(&config.NoFloor, "no-floor", false, "measure only Parley")
	f.StringVar(&profile, "profile", "", "directory for CPU profiles of Parley")
	return c
}

// measurable checks the flags and sets the storage from them.
func measurable(c *bench.Config, storage []string) error {
	for _, s := range storage {
		if s != string(floor.Memory) && s != string(floor.Disk) {
			return usage("--storage %q: want memory or disk", s)
		}
		c.Storage = append(c.Storage, floor.Storage(s))
	}
	for _, n := range c.Connections {
		if n < 1 || n > 10_000 {
			return usage("--connections %d: want 1 to 10000", n)
		}
	}
	if c.Payload != 0 && (c.Payload < 400 || c.Payload > 512<<10) { // 0: the command has no such flag, or the default
		return usage("--payload %d: want 400 to %d bytes", c.Payload, 512<<10)
	}
	if c.Duration <= 0 {
		return usage("--duration %s: want more than 0s", c.Duration)
	}
	if c.Agents < 0 {
		return usage("--agents %d: want 0 or more", c.Agents)
	}
	return existing(c.Dir)
}

func existing(dir string) error {
	if dir == "" {
		return nil
	}
	if i, err := os.Stat(dir); err != nil || !i.IsDir() {
		return usage("--dir %s: there is no such directory; make it first", dir)
	}
	return nil
}

func (a *app) benchHeader() {
	if !a.json {
		fmt.Fprintf(a.out, "%-7s %5s   %10s %9s %9s %9s   %10s %9s %9s %9s   %6s %7s %6s\n", "storage", "conns",
			"parley/s", "p50", "p99", "cpu/msg", "floor/s", "p50", "p99", "cpu/msg", "ratio", "median", "cpu")
	}
}

// benchRow writes one measurement.
func (a *app) benchRow(r bench.Row) {
	text := fmt.Sprintf("%-7s %5d   %10.0f %9s %9s %9s", r.Storage, r.Connections, r.Parley.Throughput,
		round(r.Parley.P50), round(r.Parley.P99), round(r.Parley.CPU))
	if r.Floor != nil {
		text += fmt.Sprintf("   %10.0f %9s %9s %9s   %6.2f %7.2f %6.2f", r.Floor.Throughput,
			round(r.Floor.P50), round(r.Floor.P99), round(r.Floor.CPU), r.Ratio, r.MedianRatio, r.CPURatio)
	}
	if r.RecordBytes > 0 {
		text += fmt.Sprintf("   %d B/record", r.RecordBytes)
	}
	if r.Parley.Replayed > 0 {
		text += fmt.Sprintf("   %d replays refused", r.Parley.Replayed)
	}
	_ = a.print(r, "%s\n", text) // the next write fails, too
}

// cpuProfile profiles until the returned function is called; without a profile the
// measurement still runs.
func cpuProfile(path string) (stop func()) {
	f, err := os.Create(path)
	if err != nil || pprof.StartCPUProfile(f) != nil {
		return func() {}
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}
}

func round(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.2fms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.1fms", float64(d)/1e6)
}
