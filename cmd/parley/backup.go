package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

func (a *app) backupCommand() *cobra.Command {
	var verify bool
	var keyFile string
	c := &cobra.Command{
		Use:   "backup FILE|-",
		Short: "Back up a running hub",
		Long: `Back up a running hub: its journal as of one moment, its keys and its tokens. The hub keeps
working meanwhile. FILE appears when it is complete; - writes to the standard output.

--verify restores the backup into a temporary directory beside it, and compares records, values and
the hash of each partition. The backup of an encrypted journal is encrypted with the same key, which it
does not contain: without engine.key_file it cannot be restored, and only its form can be verified.

The backup contains the hub's keys, in clear text unless the keyring is encrypted: protect it as you
protect the keys.`,
		Example: `  parley backup hub.backup --verify
  parley backup - | zstd > hub.backup.zst
  parley backup /mnt/nightly/hub-$(date +%F).backup --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if verify && args[0] == "-" {
				return usage("--verify needs a file, not -")
			}
			return a.backup(cmd.Context(), args[0], verify, keyFile)
		},
	}
	c.Flags().BoolVar(&verify, "verify", false, "restore the backup into a temporary directory, and compare")
	c.Flags().StringVar(&keyFile, "key-file", "", "file with the key of an encrypted journal, for --verify "+
		"(default: engine.key_file)")
	return c
}

// backupResult is a backup in the form of --json.
type backupResult struct {
	File       string                    `json:"file,omitzero"`
	Bytes      int64                     `json:"bytes"`
	Hub        string                    `json:"hub,omitzero"`
	Created    string                    `json:"created"`
	Encrypted  bool                      `json:"encrypted"`
	Records    uint64                    `json:"records,omitzero"`
	Values     uint64                    `json:"values,omitzero"`
	Files      []string                  `json:"files,omitzero"`
	Partitions []journal.BackupPartition `json:"partitions,omitzero"`
	Verified   string                    `json:"verified"` // "form", or "restored"
	Data       string                    `json:"data,omitzero"`
}

func viewBackup(s *journal.BackupSummary, file, verified string) backupResult {
	h := &s.Header
	return backupResult{File: file, Bytes: s.Bytes, Hub: h.Hub, Created: stamp(h.Created), Encrypted: h.Encrypted(),
		Records: s.Records(), Values: s.Values,
		Files: s.Files, Partitions: s.Partitions, Verified: verified}
}

// contents lists the contents of a backup.
func (r *backupResult) contents() string {
	out := fmt.Sprintf("%d bytes", r.Bytes)
	if r.Partitions != nil {
		out += fmt.Sprintf(", %d records, %d values, %s", r.Records, r.Values, plural(len(r.Files), "file", "files"))
	}
	if r.Encrypted {
		out += ", encrypted"
	}
	return out
}

func (a *app) backup(ctx context.Context, file string, verify bool, keyFile string) error {
	if file == "-" {
		if f, ok := a.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return usage("a backup is binary and cannot be written to a terminal: name a file, or pipe the output")
		}
	} else if _, err := os.Lstat(file); err == nil {
		return usage("%s is there already and is not overwritten; choose another name", file)
	} else if i, err := os.Stat(filepath.Dir(file)); err != nil || !i.IsDir() {
		return usage("%s is no directory that is there; make it, or name a file in another directory",
			filepath.Dir(file))
	}
	c, err := a.load()
	if err != nil && keyFile == "" {
		return err
	}
	key := cmp.Or(keyFile, c.Engine.KeyFile)
	hub, err := a.hub()
	if err != nil {
		return err
	}
	in, err := hub.Backup(ctx)
	if err != nil {
		return a.hubError(err)
	}
	defer in.Close()
	report := a.progress()
	progress := func(done, total uint64) {
		if report != nil {
			report("backing up", done, total)
		}
	}
	if file == "-" {
		_, err := journal.CheckBackup(io.TeeReader(in, a.out), nil, false, progress)
		return backupError(err)
	}
	var s *journal.BackupSummary
	err = writeWhole(file, func(part io.Writer) error {
		s, err = journal.CheckBackup(io.TeeReader(in, part), nil, false, progress)
		return err
	})
	if err != nil {
		return backupError(err)
	}
	r, restored := viewBackup(s, file, "form"), ""
	if verify {
		v, err := node.VerifyBackup(ctx, node.Restore{File: file, KeyFile: key, Progress: report})
		if err != nil {
			return fmt.Errorf("%s was written, but it cannot be restored: %w\n        keep it for examination, and "+
				"take another backup", file, err)
		}
		if v.Partitions == nil {
			return fmt.Errorf("%s was written and is complete, but without the key it could not be restored\n"+
				"        name the key's file (engine.key_file) with --key-file", file)
		}
		r, restored = viewBackup(v, file, "restored"), "restored into a temporary directory: all is there\n"
	}
	return a.print(r, "%s: %s\n%s", file, r.contents(), restored)
}

// writeWhole writes a new file of mode 0600, which gets its name once it is complete and
// synced.
func writeWhole(file string, write func(part io.Writer) error) (err error) {
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".part-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(part.Name())) }()
	if err := errors.Join(write(part), part.Sync(), part.Close()); err != nil {
		return err
	}
	// Not a rename: that would replace a file created meanwhile.
	if err := os.Link(part.Name(), file); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(file))
}

// backupError adds advice.
func backupError(err error) error {
	if errors.Is(err, journal.ErrBackup) {
		return fmt.Errorf("the backup broke off at the hub or on the way: %w\n        nothing was kept; the hub's "+
			"log has the cause", err)
	}
	return err
}

// keyFileUsage describes the flag --key-file.
const keyFileUsage = "file with the key of an encrypted journal (default: engine.key_file)"

func (a *app) restoreCommand() *cobra.Command {
	var keyFile, nats string
	var dry bool
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a data directory from a backup",
		Long: `Make a data directory from a backup of parley backup. The directory must be absent or empty; it
appears when everything in it has been read back and synced. A truncated or altered backup, one of a
later format, and one that needs another key are refused before anything is written.

With --nats, or engine.url in the configuration, the journal goes into that cluster, which must not have a
journal under engine.prefix yet; the directory gets the keys and tokens. The backup of a cluster can be
restored into a directory, and the other way round.

Start only one hub on it, and none beside the hub that was backed up: both would deliver the messages
that were pending at the time of the backup.`,
		Example: `  parley restore hub.backup --data ./restored
  parley restore hub.backup --data ./restored --key-file journal.key
  parley restore hub.backup --data ./restored --nats nats://n1:4222,nats://n2:4222
  parley restore hub.backup --dry-run`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			r := node.Restore{File: args[0], Data: c.Data, KeyFile: cmp.Or(keyFile, c.Engine.KeyFile), Engine: c.Engine,
				Progress: a.progress()}
			r.Engine.URL = cmp.Or(nats, r.Engine.URL)
			restore := node.RestoreBackup
			if dry {
				restore = node.VerifyBackup
			}
			s, err := restore(cmd.Context(), r)
			if err != nil {
				return restoreError(args[0], err)
			}
			v := viewBackup(s, args[0], "restored")
			text := "\nrestored into a temporary directory: all is there\n"
			switch {
			case dry && s.Partitions == nil:
				v.Verified = "form"
				text = "\nits form and checksum are good; name the key with --key-file to restore it\n"
			case !dry:
				into, with := "into ", ""
				if r.Engine.URL != "" {
					into, with = "into the NATS cluster; keys and tokens into ", ", with the same engine.url or --nats"
				}
				v.Data = c.Data
				text = fmt.Sprintf(", of hub %s at %s\nrestored %s%s\n\nnext: parley serve --data %[4]s%[5]s\n",
					clean(v.Hub), v.Created, into, c.Data, with)
			}
			return a.print(v, "%s: %s%s", args[0], v.contents(), text)
		},
	}
	c.Flags().StringVar(&keyFile, "key-file", "", keyFileUsage)
	c.Flags().StringVar(&nats, "nats", "", "URLs of the NATS cluster that gets the journal (default: engine.url)")
	c.Flags().BoolVar(&dry, "dry-run", false, "restore into a temporary directory beside the file, compare, and "+
		"remove it")
	return c
}

// restoreError adds advice.
func restoreError(file string, err error) error {
	switch {
	case errors.Is(err, journal.ErrBackup):
		err = fmt.Errorf("%s: %w\n        nothing was written; restore another backup", file, err)
	case errors.Is(err, journal.ErrKey):
		err = fmt.Errorf("%s: %w\n        nothing was written; name the key's file (engine.key_file) with --key-file",
			file, err)
	case errors.Is(err, os.ErrNotExist):
		return &exitError{exitUsage, err}
	}
	return err
}
