package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

func (a *app) journalCommand() *cobra.Command {
	return group("journal", "Check the journal, or save the readable part of a damaged one",
		"  parley journal check\n  parley journal salvage saved.backup",
		nil, a.journalCheckCommand(), a.journalSalvageCommand())
}

// journalFile is the journal in the data directory of the configuration.
func (a *app) journalFile(keyFile string) (*node.Journal, error) {
	c, err := a.load()
	if err != nil {
		return nil, err
	}
	if c.Engine.URL != "" {
		return nil, usage("the journal is in the NATS cluster of engine.url, whose servers check their own files; " +
			"\"parley backup FILE --verify\" reads the whole journal")
	}
	return &node.Journal{Data: c.Data, KeyFile: cmp.Or(keyFile, c.Engine.KeyFile), Progress: a.progress()}, nil
}

// journalError adds advice.
func journalError(data string, err error) error {
	switch {
	case errors.Is(err, journal.ErrLocked):
		err = fmt.Errorf("%w\n        stop the hub first; \"parley backup FILE --verify\" reads the journal of a "+
			"running hub", err)
	case errors.Is(err, fs.ErrNotExist):
		return usage("there is no journal in %s; name the hub's data directory with --data", data)
	case errors.Is(err, journal.ErrKey):
		err = fmt.Errorf("%w\n        name the key's file (engine.key_file) with --key-file", err)
	}
	return err
}

func (a *app) journalCheckCommand() *cobra.Command {
	var keyFile string
	c := &cobra.Command{
		Use:   "check",
		Short: "Read the whole journal and list the damage",
		Long: `Read the whole journal of a stopped hub and list the damage. It checks the tables of the file, every
record and value against its checksum, the links of chains, and the steps of deliveries. It changes
nothing. The exit code is 1 if there is damage.`,
		Example: `  parley journal check
  parley journal check --data /var/lib/parley --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := a.journalFile(keyFile)
			if err != nil {
				return err
			}
			damage, records, err := j.Check(cmd.Context())
			if err != nil {
				return journalError(j.Data, err)
			}
			r := struct {
				Data    string   `json:"data"`
				Records uint64   `json:"records"`
				Damage  []string `json:"damage"`
			}{j.Data, records, append([]string{}, damage...)}
			if len(damage) == 0 {
				return a.print(r, "%s: %s, no damage\n", j.Data, plural(int(records), "record", "records"))
			}
			return a.verdict(false, r, func() error {
				return a.print(r, "%s: %s\n%s\n\nnext: `parley journal salvage FILE`, or restore a backup\n",
					j.Data, plural(len(damage), "damaged place", "damaged places"), lines(damage))
			})
		},
	}
	c.Flags().StringVar(&keyFile, "key-file", "", keyFileUsage)
	return c
}

func lines(list []string) string { return "  " + strings.Join(list, "\n  ") }

func (a *app) journalSalvageCommand() *cobra.Command {
	var keyFile string
	c := &cobra.Command{
		Use:   "salvage FILE",
		Short: "Save the readable part of a damaged journal to a backup",
		Long: `Save the readable part of a stopped hub's damaged journal, with the hub's keys and tokens, to a
backup, and list the lost rest. The journal stays as it is: the command works on a copy in the data
directory, which needs free space of three times the journal's size. "parley restore FILE" makes a data
directory from the backup. The backup of an encrypted journal is encrypted with the same key.`,
		Example: `  parley journal salvage saved.backup
  parley restore saved.backup --data ./saved`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			j, err := a.journalFile(keyFile)
			if err != nil {
				return err
			}
			file := args[0]
			if _, err := os.Lstat(file); err == nil {
				return usage("%s is there already and is not overwritten; choose another name", file)
			}
			var s *node.Salvaged
			err = writeWhole(file, func(part io.Writer) error {
				s, err = j.Salvage(cmd.Context(), part, time.Now())
				return err
			})
			if err != nil {
				return journalError(j.Data, err)
			}
			v := struct {
				backupResult
				Lost []string `json:"lost"`
			}{viewBackup(s.Backup, file, "form"), append([]string{}, s.Lost...)}
			lost := "nothing was lost"
			if len(s.Lost) > 0 {
				lost = "lost:\n" + lines(s.Lost)
			}
			return a.print(v, "%s: %s\n%s\n\nnext: parley restore %[1]s --data ./saved\n", file, v.contents(), lost)
		},
	}
	c.Flags().StringVar(&keyFile, "key-file", "", keyFileUsage)
	return c
}
