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
		Long: `Measure how many messages the journal records in a second, and how long each append
takes, at 1, 8, 64 and 256 callers. The floor is a bare file, to which all waiting
messages are written at once and synced, without a timer. Journal and file take turns.
On disk an append returns after the sync.`,
		Example: `  parley bench journal --dir .
  parley bench journal --connections 64 --storage disk --dir . --duration 30s --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := measurable(&c, storage); err != nil {
				return err
			}
			a.benchHeader()
			return bench.Journal(cmd.Context(), c, a.benchRow)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Connections, "connections", nil, "callers, each with one append at a time (default 1,8,64,256)")
	f.StringSliceVar(&storage, "storage", []string{"disk"}, "memory, disk")
	f.DurationVar(&c.Duration, "duration", 3*time.Second, "of each measurement, for journal and file each")
	f.IntVar(&c.Payload, "payload", 1024, "bytes of a message; its record is larger")
	f.StringVar(&c.Dir, "dir", "", "directory for records on disk: choose a real disk (default: the temporary "+
		"directory)")
	f.BoolVar(&c.NoFloor, "no-floor", false, "measure only the journal")
	return cmd
}
