package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal"
)

// Files of the data directory that are in a backup beside the journal. The index is
// built again, and missing certificates of ACME are fetched again.
const (
	backupFileMax  = 16 << 20
	backupFilesMax = 10_000
)

func inBackup(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return top == "keys" || top == "acme" || name == admin.TokenFile
}

// backup writes a backup of the journal and of the files that belong to it.
func (n *Node) backup(ctx context.Context, w io.Writer) (*journal.BackupSummary, error) {
	if n.k.durability == journal.Memory {
		return nil, parley.Refuse(parley.Unsupported,
			"this hub keeps everything in memory: there is nothing that a backup could restore")
	}
	files := func() ([]journal.BackupFile, error) { return backupFiles(n.c.Data) }
	return n.journal.Backup(ctx, w, journal.BackupOptions{Hub: n.hub.ID(), Files: files})
}

func backupFiles(data string) ([]journal.BackupFile, error) {
	var out []journal.BackupFile
	root, err := os.OpenRoot(data)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && !inBackup(name):
			return fs.SkipDir
		case !e.Type().IsRegular() || !inBackup(name) || strings.HasPrefix(e.Name(), "."):
			return nil
		case len(out) >= backupFilesMax:
			return fmt.Errorf("more than %d files of keys", backupFilesMax)
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, backupFileMax+1))
		if err == nil && len(b) > backupFileMax {
			err = fmt.Errorf("%s has more than %d bytes", name, backupFileMax)
		}
		out = append(out, journal.BackupFile{Name: name, Data: b})
		return err
	})
	return out, err
}

// Restore holds the parameters of [RestoreBackup].
type Restore struct {
	File     string // the backup
	Data     string // the data directory to make: absent or empty
	KeyFile  string // of the journal in the backup; "": it is not encrypted
	Engine   Engine // with a URL the journal is restored into that cluster, and Data gets the rest
	Now      func() time.Time
	Progress func(what string, done, total uint64)
}

// RestoreBackup makes a data directory of a backup. The whole backup is read first, so
// that an incomplete one writes nothing. The directory gets its name once its content has
// been read back. A cluster must not have a journal under the prefix; hubs see the new
// one once it has been read back.
func RestoreBackup(ctx context.Context, c Restore) (*journal.BackupSummary, error) {
	key, err := c.key()
	if err != nil {
		return nil, err
	}
	if err := empty(c.Data); err != nil {
		return nil, err
	}
	if _, err := c.check(key, true); err != nil {
		return nil, err
	}
	data := filepath.Clean(c.Data)
	if err := os.MkdirAll(filepath.Dir(data), 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(data), filepath.Base(data)+".restoring-")
	if err != nil {
		return nil, err
	}
	s, err := c.into(ctx, dir, key, &c.Engine)
	if err == nil {
		// An existing file is empty, see above; others stay.
		if rerr := os.Remove(data); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = rerr
		}
	}
	if err == nil {
		err = os.Rename(dir, data)
	}
	if err == nil {
		err = disk.SyncDir(filepath.Dir(data))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// VerifyBackup restores a backup into a temporary directory beside the file, compares the
// result with the backup, and removes it again. Without the key of an encrypted backup
// only the form and checksum are verified, and the summary has no partitions.
func VerifyBackup(ctx context.Context, c Restore) (*journal.BackupSummary, error) {
	key, err := c.key()
	if err != nil {
		return nil, err
	}
	s, err := c.check(key, key != nil)
	if err != nil || s.Header.Encrypted() && key == nil {
		return s, err
	}
	if s, err = c.check(key, true); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(c.File), ".parley-verify-")
	if err != nil {
		return nil, err
	}
	restored, err := c.into(ctx, dir, key, &Engine{})
	if err == nil && (restored.Records() != s.Records() || restored.Values != s.Values ||
		!slices.Equal(restored.Partitions, s.Partitions)) {
		err = fmt.Errorf("%w: the restored records differ from the file", journal.ErrCorrupt)
	}
	return restored, errors.Join(err, os.RemoveAll(dir))
}

func (c *Restore) key() ([]byte, error) {
	key, err := optionalKey(c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("engine.key_file: %w", err)
	}
	return key, nil
}

// check reads the whole file.
func (c *Restore) check(key []byte, open bool) (*journal.BackupSummary, error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return journal.CheckBackup(f, key, open, progressOf(c.Progress, "checking"))
}

// into restores into a directory that the restore has made, and into the cluster of e if
// it names one.
func (c *Restore) into(ctx context.Context, dir string, key []byte, e *Engine) (*journal.BackupSummary, error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	to := journal.RestoreConfig{Key: key, Now: c.Now, Progress: progressOf(c.Progress, "restoring")}
	if to.Store, err = e.open(ctx, filepath.Join(dir, "journal"), "restore", c.Now,
		slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	to.File = func(b journal.BackupFile) error {
		if !inBackup(b.Name) || !fs.ValidPath(b.Name) {
			return fmt.Errorf("%w: it holds a file %q, which is none of a hub's", journal.ErrBackup, b.Name)
		}
		if i := strings.LastIndexByte(b.Name, '/'); i > 0 {
			if err := root.MkdirAll(b.Name[:i], 0o700); err != nil {
				return err
			}
		}
		out, err := root.OpenFile(b.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = out.Write(b.Data)
		return errors.Join(err, out.Sync(), out.Close())
	}
	return journal.Restore(ctx, f, to)
}

// empty refuses a directory that holds a file.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s is not empty (%s is in it); restore into a new directory, with --data",
		journal.ErrForeign, dir, entries[0].Name())
}
