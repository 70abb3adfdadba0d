package keyring

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/atomicfile"
	"github.com/parley-hub/parley/internal/disk"
)

// FileName is the ring's file in its directory.
const FileName = "keyring.json"

// maxFile bounds the size of a ring's file.
const maxFile = 256 << 20

// unfinished ends the name of a file that a crash left half written; see [atomicfile.Replace].
const unfinished = ".new"

// ringFile is the [place] of a ring in a file.
type ringFile struct {
	dir, path  string
	sealer     *sealer
	sum        [sha256.Size]byte // of the file as last read or written
	now        func() time.Time
	workFactor int
	fault      func(step string) error
}

// openDisk opens the ring of o.Dir. If there is none it calls absent, or fails with
// [fs.ErrNotExist] if absent is nil.
func openDisk(o Options, absent func(*ringFile, Protection) error) (*ringFile, *contents, error) {
	d := &ringFile{
		dir: o.Dir, path: filepath.Join(o.Dir, FileName),
		now: o.Now, workFactor: o.WorkFactor, fault: o.fault,
	}
	p := Protection{o.Passphrase, o.IdentityFile}
	if _, err := p.kind(); err != nil {
		return nil, nil, err
	}
	if absent != nil {
		if err := makeDir(d.dir); err != nil {
			return nil, nil, err
		}
	}
	var c *contents
	err := d.locked(func() error {
		b, err := readPrivate(d.path, maxFile)
		if errors.Is(err, fs.ErrNotExist) && absent != nil {
			c = &contents{}
			return absent(d, p)
		}
		if err != nil {
			return err
		}
		f, err := parseFile(b, d.path)
		if err != nil {
			return err
		}
		if d.sealer, err = sealerFor(p, f, d.path); err != nil {
			return err
		}
		if c, err = d.sealer.open(f, d.path); err != nil {
			return err
		}
		d.sum = sha256.Sum256(b)
		if err := os.Remove(d.path + unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keyring: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return d, c, nil
}

// begin makes a ring in a directory that never had one.
func (d *ringFile) begin(p Protection) error {
	backups, err := filepath.Glob(filepath.Join(globEscape(d.dir), FileName+".*"))
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	backups = slices.DeleteFunc(backups, func(name string) bool { return strings.HasSuffix(name, unfinished) })
	if len(backups) > 0 {
		return fmt.Errorf("%w: there is no %s, but there is %s. "+
			"Put the ring back, or move that away to begin a new one",
			ErrMissing, d.path, backups[0])
	}
	return d.create(p)
}

// create writes an empty ring, which fixes its protection.
func (d *ringFile) create(p Protection) (err error) {
	if d.sealer, err = newSealer(p, d.workFactor); err != nil {
		return err
	}
	return d.write(&contents{})
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return checkMode(dir, info, 0o700)
}

// checkMode refuses a mode with which other users could read or change the file.
func checkMode(path string, info fs.FileInfo, want fs.FileMode) error {
	if !disk.OthersMay(info) {
		return nil
	}
	return fmt.Errorf("%w: %s has mode %#o; run: chmod %o %s", ErrPermissions, path, info.Mode().Perm(), want,
		shellQuote(path))
}

func shellQuote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@:,=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// readPrivate reads a file that only its owner can read.
func readPrivate(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrCorrupt, path)
	}
	if err := checkMode(path, info, 0o600); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrCorrupt, path, limit)
	}
	return b, nil
}

// update implements [place].
func (d *ringFile) update(r *Ring, change func(*contents) error, _ bool) error {
	return d.locked(func() error {
		if _, err := d.catchUp(r); err != nil {
			return err
		}
		c := r.copyContents()
		if err := change(c); err != nil {
			return err
		}
		if err := d.write(c); err != nil {
			return err
		}
		return r.publish(c)
	})
}

func (d *ringFile) stop() {}

func (d *ringFile) String() string { return d.path }

// catchUp loads the changes of other processes, and returns the file.
func (d *ringFile) catchUp(r *Ring) ([]byte, error) {
	b, err := readPrivate(d.path, maxFile)
	sum := sha256.Sum256(b)
	if err != nil || sum == d.sum {
		return b, err
	}
	f, err := parseFile(b, d.path)
	if err != nil {
		return nil, err
	}
	c, err := d.sealer.open(f, d.path)
	if err == nil {
		err = r.load(c)
	}
	if err == nil {
		d.sum = sum
	}
	return b, err
}

// write writes c. After an error the old file is there, except if only the sync of the
// directory failed: then the new file is there, and the next update reads it.
func (d *ringFile) write(c *contents) error {
	b, err := d.sealer.seal(c)
	if err != nil {
		return err
	}
	if int64(len(b)) > maxFile {
		return fmt.Errorf("%w: the file would have %d bytes", ErrFull, len(b))
	}
	if err := d.replace(b); err != nil {
		return fmt.Errorf("keyring: the change of %s failed: %w", d.path, err)
	}
	d.sum = sha256.Sum256(b)
	return nil
}

// replace replaces the ring's file; after an error the old one stays.
func (d *ringFile) replace(b []byte) error {
	if err := d.step("replace"); err != nil {
		return err
	}
	if err := atomicfile.Replace(d.path, b); err != nil {
		return err
	}
	return d.step("replaced")
}

func (d *ringFile) step(name string) error {
	if d.fault == nil {
		return nil
	}
	return d.fault(name)
}

// backup writes a copy b of the file and returns its path.
func (d *ringFile) backup(b []byte) (string, error) {
	base := d.path + "." + d.now().UTC().Format("20060102T150405Z")
	for i := range 100 {
		name := base + ".bak"
		if i > 0 {
			name = base + "-" + strconv.Itoa(i) + ".bak"
		}
		if err := d.step("backup"); err != nil {
			return "", err
		}
		switch _, err := os.Lstat(name); {
		case errors.Is(err, fs.ErrNotExist):
			if err := atomicfile.Replace(name, b); err != nil {
				return "", err
			}
			return name, nil
		case err != nil:
			return "", err
		}
	}
	return "", fmt.Errorf("there are too many backups named %s", base)
}

// putAside renames the file, whose keys are now kept elsewhere, and returns its new
// path.
func (d *ringFile) putAside() (to string, err error) {
	err = d.locked(func() error {
		b, err := readPrivate(d.path, maxFile)
		if err != nil {
			return err
		}
		if sha256.Sum256(b) != d.sum {
			return fmt.Errorf("keyring: another hub has just changed %s: "+
				"stop the hubs of earlier releases, then start this one again", d.path)
		}
		if to, err = d.backup(b); err != nil {
			return err
		}
		return errors.Join(os.Remove(d.path), disk.SyncDir(d.dir))
	})
	return to, err
}

// protect is [Ring.Protect] for a ring in a file.
func (d *ringFile) protect(r *Ring, current, p Protection) (backup string, err error) {
	if err := d.sealer.isOpenedBy(current, d.path); err != nil {
		return "", err
	}
	next, err := newSealer(p, d.workFactor)
	if err != nil {
		return "", err
	}
	next.changed = r.timestamp()
	err = d.locked(func() error {
		b, err := d.catchUp(r)
		if err != nil {
			return err
		}
		if backup, err = d.backup(b); err != nil {
			return fmt.Errorf("keyring: %s was not changed, for its backup failed: %w", d.path, err)
		}
		c, old := r.copyContents(), d.sealer
		d.sealer = next
		if err := d.write(c); err != nil {
			d.sealer = old
			return err
		}
		return r.publish(c)
	})
	return backup, err
}

// locked calls f while no other process can change the ring.
func (d *ringFile) locked(f func() error) error {
	if _, err := os.Stat(d.dir); err != nil {
		return fmt.Errorf("keyring: %w", err) // locking would make a file of that name
	}
	lock, err := disk.Wait(d.dir)
	if err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	return errors.Join(f(), lock.Close())
}

// Exists reports whether dir holds a ring, without opening or making one.
func Exists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
