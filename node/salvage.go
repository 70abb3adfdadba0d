package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/journal/store"
)

// A Journal checks or salvages the journal file in the data directory of a hub that does
// not run.
type Journal struct {
	Data     string // the data directory
	KeyFile  string // engine.key_file; "": it is not encrypted
	Progress func(what string, done, total uint64)
}

func (c *Journal) dir() string { return filepath.Join(c.Data, "journal") }

// Check reads the whole journal, and names the damage.
func (c *Journal) Check(ctx context.Context) (damage []string, records uint64, err error) {
	key, err := optionalKey(c.KeyFile)
	if err != nil {
		return nil, 0, err
	}
	if _, err := os.Stat(filepath.Join(c.dir(), sqlite.FileName)); err != nil {
		return nil, 0, err // Open would make a new journal
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: c.dir()})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = cmp.Or(err, s.Close()) }()
	m, err := s.Meta(ctx)
	if err != nil {
		return nil, 0, err
	}
	check, err := journal.NewChecker(m, key)
	if err != nil {
		return nil, 0, err
	}
	progress := progressOf(c.Progress, "checking")
	found, err := s.Check(ctx, progress, func(partition int, r store.Record) error {
		records++
		return check.Record(partition, r)
	})
	for _, d := range found {
		damage = append(damage, damageText(d))
	}
	return damage, records, err
}

// Salvaged is the result of a salvage.
type Salvaged struct {
	Backup *journal.BackupSummary
	Lost   []string // unreadable parts
}

// Salvage writes all readable records of a damaged journal, and the hub's other files,
// into a backup. The journal stays as it is.
func (c *Journal) Salvage(ctx context.Context, w io.Writer, now time.Time) (*Salvaged, error) {
	key, err := optionalKey(c.KeyFile)
	if err != nil {
		return nil, err
	}
	to := journal.NewSalvage(w, key, now)
	out := &Salvaged{}
	done := uint64(0)
	tell := func() {
		done++
		if c.Progress != nil {
			c.Progress("saving", done, done)
		}
	}
	err = sqlite.Salvage(ctx, filepath.Join(c.dir(), sqlite.FileName), c.Data, sqlite.Rescue{
		Meta: to.Meta,
		Value: func(bucket string, v store.Value) error {
			tell()
			return to.Value(bucket, v)
		},
		Record: func(partition int, r store.Record) error {
			tell()
			return to.Record(partition, r)
		},
		Lost: func(d sqlite.Damage) error {
			out.Lost = append(out.Lost, damageText(d))
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	out.Lost = append(out.Lost, to.Damaged...)
	files, err := backupFiles(c.Data)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := to.File(f); err != nil {
			return nil, err
		}
	}
	out.Backup, err = to.End()
	return out, err
}

// damageText describes a damage in one line.
func damageText(d sqlite.Damage) string {
	switch {
	case d.Partition >= 0 && d.Sequence > 0:
		return fmt.Sprintf("record %d-%d: %s", d.Partition, d.Sequence, d.What)
	case d.Partition >= 0:
		return fmt.Sprintf("partition %d: %s", d.Partition, d.What)
	}
	return d.What
}
