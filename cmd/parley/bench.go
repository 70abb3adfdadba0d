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
	c := group("bench", "Measure a path next to its floor",
		"  parley bench samvad --storage memory\n  parley bench pairs --only 'samvad->agh'\n  parley bench journal --dir .", helps,
		a.benchSamvadCommand(), a.benchUAgentsCommand(), a.benchA2ECommand(), a.benchAGHCommand(), a.benchASPCommand(),
		a.benchPairsCommand(), a.benchJournalCommand(), a.benchGuestsCommand(), a.benchFloorCommand())
	c.Long = `Measure how fast messages pass, next to a floor: a bare program that does the same
HTTP, digest, verification and decoding with nothing else around them, and records
on disk by writing what waits to a file at once and syncing it. Load, floor and hub
share this machine's cores, and collect garbage as "parley serve" does; compare
ratios, not machines.`
	for _, one := range c.Commands() {
		measure := one.RunE
		one.RunE = func(cmd *cobra.Command, args []string) error {
			err := measure(cmd, args)
			if err != nil && cmd.Context().Err() != nil {
				return errors.New("interrupted: what is written above was measured to its end")
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

// compareCommand makes a command that measures a path next to its floor. Before
// is called first, when it is not nil.
func (a *app) compareCommand(c *cobra.Command, measure func(context.Context, bench.Config, func(bench.Row)) error, before func(bench.Config) error) *cobra.Command {
	var config bench.Config
	var storage []string
	var profile string
	c.Args = cobra.NoArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		steadyHeap()
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
	f.IntSliceVar(&config.Connections, "connections", nil, "requests under way, or peers with one piece of work each (default 1,64,256)")
	f.StringSliceVar(&storage, "storage", nil, "memory, disk (default both)")
	f.DurationVar(&config.Duration, "duration", 3*time.Second, "of each measurement")
	f.IntVar(&config.Payload, "payload", 1024, "bytes of a message")
	f.IntVar(&config.Agents, "agents", 0, "agents registered besides the one that is called (SAMVAD, uAgents)")
	f.IntVar(&config.Replays, "replays", 0, "percent of the load that are captured replays (SAMVAD, uAgents)")
	f.StringVar(&config.Dir, "dir", "", "where the disk runs keep their records: choose a real disk (default: the temporary directory)")
	f.BoolVar(&config.NoFloor, "no-floor", false, "measure Parley alone")
	f.StringVar(&profile, "profile", "", "directory for CPU profiles of Parley's side")
	return c
}

// measurable checks what the flags ask for, and sets where records are kept.
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
	if c.Payload != 0 && (c.Payload < 400 || c.Payload > 512<<10) { // 0: it has none, or the default
		return usage("--payload %d: want 400 to %d bytes", c.Payload, 512<<10)
	}
	if c.Duration <= 0 {
		return usage("--duration %s: want more than nothing", c.Duration)
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
	if a.json {
		_ = a.print(r, "") // a broken pipe ends the next one, too
		return
	}
	fmt.Fprintf(a.out, "%-7s %5d   %10.0f %9s %9s %9s", r.Storage, r.Connections, r.Parley.Throughput, round(r.Parley.P50), round(r.Parley.P99), round(r.Parley.CPU))
	if r.Floor != nil {
		fmt.Fprintf(a.out, "   %10.0f %9s %9s %9s   %6.2f %7.2f %6.2f", r.Floor.Throughput,
			round(r.Floor.P50), round(r.Floor.P99), round(r.Floor.CPU), r.Ratio, r.MedianRatio, r.CPURatio)
	}
	if r.RecordBytes > 0 {
		fmt.Fprintf(a.out, "   %d B/record", r.RecordBytes)
	}
	if r.Parley.Replayed > 0 {
		fmt.Fprintf(a.out, "   %d replays refused", r.Parley.Replayed)
	}
	fmt.Fprintln(a.out)
}

// cpuProfile profiles until the returned function is called; a profile that
// cannot be written is no reason not to measure.
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
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2fms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.1fms", float64(d)/1e6)
	}
}
