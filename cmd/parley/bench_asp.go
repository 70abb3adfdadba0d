package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchASPCommand() *cobra.Command {
	var config bench.ASPConfig
	var profile string
	c := &cobra.Command{
		Use:   "asp",
		Short: "The checks of an ASP message, and what a long session costs",
		Long: `Measure ASP on one core: the checks of a message, next to one Ed25519 and one P-256
verification and one SHA-256 of the same bytes; the cost of a message at the beginning
and at the end of a long session, recorded in memory; and the offline verification of
that session. The ratio compares CPU time, which other work on the machine disturbs
least.`,
		Example: `  parley bench asp
  parley bench asp --messages 10000 --payload 4096
  parley bench asp --transcript long.json && parley verify long.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config.Messages < 100 {
				return usage("--messages %d: want 100 or more", config.Messages)
			}
			if config.Payload < 1 || config.Payload > 512<<10 {
				return usage("--payload %d: want 1 to %d bytes", config.Payload, 512<<10)
			}
			if err := existing(config.Dir); err != nil {
				return err
			}
			if profile != "" {
				if err := os.MkdirAll(profile, 0o755); err != nil {
					return err
				}
				config.Profile = func(name string) func() { return cpuProfile(filepath.Join(profile, name+".pprof")) }
			}
			return bench.ASP(cmd.Context(), config, func(r bench.ASPRow) {
				us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
				text := fmt.Sprintf("%-38s %8.1f µs   cpu %8.1f µs", r.What, us(r.Each), us(r.CPU))
				if r.Floor > 0 {
					text += fmt.Sprintf("   floor %8.1f µs   ratio %.2f", us(r.Floor), r.Ratio)
				}
				_ = a.print(r, "%s\n", text)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&config.Messages, "messages", 100_000, "of the session")
	f.IntVar(&config.Payload, "payload", 1024, "bytes of the body")
	f.StringVar(&config.Dir, "dir", "", "directory for temporary data")
	f.StringVar(&config.Transcript, "transcript", "", "file that keeps the session's transcript")
	f.StringVar(&profile, "cpuprofile", "", "directory to write CPU profiles to")
	return c
}
