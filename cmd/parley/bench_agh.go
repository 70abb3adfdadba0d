package main

import (
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchAGHCommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "agh",
		Short: "Work that AGH peers give to a Go handler over NATS",
		Long: `Measure reading and checking one say on one core, then work from the directed
say of a peer to the trace that completes it, next to a bare NATS request and
reply with two appends.`,
		Example: "  parley bench agh\n  parley bench agh --connections 64 --storage disk --dir .",
	}, bench.AGH, func(c bench.Config) error {
		took, err := bench.AGHDecode(c)
		if err != nil {
			return err
		}
		return a.print(map[string]any{"decode": took}, "decode and check a say: %.1f µs\n", float64(took.Nanoseconds())/1e3)
	})
}
