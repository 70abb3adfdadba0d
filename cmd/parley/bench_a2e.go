package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchA2ECommand() *cobra.Command {
	var config bench.Config
	var storage []string
	c := &cobra.Command{
		Use:   "a2e",
		Short: "A2E framing, and tool calls over pipes, TCP and HTTP",
		Long: `Measure A2E in three ways: framing and validation on one core; tool calls at a host,
over pipes and TCP next to a bare JSON echo and over HTTP with SSE; and tool calls
through a whole hub, which records each call and its answer.`,
		Example: `  parley bench a2e
  parley bench a2e --duration 10s --storage memory --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := measurable(&config, storage); err != nil {
				return err
			}
			if !a.json {
				fmt.Fprintf(a.out, "%-36s %8s   %10s %9s %9s   %10s %9s %6s %6s\n", "what", "parallel", "a second",
					"each", "cpu", "floor", "cpu", "ratio", "by cpu")
			}
			return bench.A2E(cmd.Context(), config, func(r bench.A2ERow) {
				text := fmt.Sprintf("%-36s %8d   %10.0f %9s %9s", r.What, r.Parallel, r.PerSecond,
					r.Each.Round(100*time.Nanosecond), r.CPU.Round(100*time.Nanosecond))
				if r.Floor > 0 {
					text += fmt.Sprintf("   %10.0f %9s %6.2f %6.2f", r.Floor, r.FloorCPU.Round(100*time.Nanosecond),
						r.Ratio, r.CPURatio)
				}
				_ = a.print(r, "%s\n", text)
			})
		},
	}
	f := c.Flags()
	f.StringSliceVar(&storage, "storage", nil, "of the hub: memory, disk (default both)")
	f.DurationVar(&config.Duration, "duration", 2*time.Second, "of each measurement")
	f.StringVar(&config.Dir, "dir", "", "directory for records on disk: choose a real disk (default: the temporary "+
		"directory)")
	f.BoolVar(&config.NoFloor, "no-floor", false, "measure only Parley")
	return c
}
