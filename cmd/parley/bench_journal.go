package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchJournalCommand() *cobra.Command {
	var c bench.Config
	var storage []string
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "Appends to the journal, next to a bare file",
		Long: `Measure how many messages the journal records in a second, and how long one waits,
at 1, 8, 64 and 256 callers, next to a bare file that takes each message as it is:
all that wait are written at once and synced, and no timer gathers them. Both take
turns in one run. On disk each append is answered after it is synced.`,
		Example: `  parley bench journal --dir .
  parley bench journal --connections 64 --storage disk --dir . --duration 30s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			steadyHeap()
			if err := measurable(&c, storage); err != nil {
				return err
			}
			a.benchHeader()
			return bench.Journal(cmd.Context(), c, a.benchRow)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Connections, "connections", nil, "callers, each with one append under way (default 1,8,64,256)")
	f.StringSliceVar(&storage, "storage", []string{"disk"}, "memory, disk")
	f.DurationVar(&c.Duration, "duration", 3*time.Second, "of each measurement, on either side")
	f.IntVar(&c.Payload, "payload", 1024, "bytes of a message; its record has more")
	f.StringVar(&c.Dir, "dir", "", "where the records are kept: choose a real disk (default: the temporary directory)")
	f.BoolVar(&c.NoFloor, "no-floor", false, "measure the journal alone")
	return cmd
}
