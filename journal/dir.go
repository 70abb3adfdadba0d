package journal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The data directory:
//
//	journal.json   the manifest: what this is, written before anything else
//	lock           held while a process has the journal open; holds its pid
//	closed.json    inventory of an orderly Close; absent while open and after a crash
//	erasing        what an erasure is about to overwrite; absent when none is under way
//	engine/        the files of NATS JetStream
//	engine.kept/   links to them, only while the engine is started
const (
	manifestName  = "journal.json"
	lockName      = "lock"
	inventoryName = "closed.json"
	engineName    = "engine"
	keptName      = "engine.kept"

	manifestFormat = 1
	manifestWhat   = "parley journal"
)

// manifest fixes what must not change while a journal lives.
type manifest struct {
	What       string     `json:"what"`
	Format     int        `json:"format"`
	Created    time.Time  `json:"created"`
	Prefix     string     `json:"prefix"`
	Partitions int        `json:"partitions"`
	Durability Durability `json:"durability"`
	Encrypted  bool       `json:"encrypted"`
	Salt       string     `json:"salt,omitempty"`  // hex
	Check      string     `json:"check,omitempty"` // hex; tells whether a key is the right one
	Streams    []string   `json:"streams"`         // those that must be there; empty until they were made
}

// derive makes a key for one use.
func (m *manifest) derive(key []byte, use string) []byte {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, "parley journal "+use+"\x00"+m.Salt)
	return h.Sum(nil)
}

// directory is a locked data directory.
type directory struct {
	path     string
	lock     *os.File
	manifest manifest
	fresh    bool         // made by this Open
	clean    bool         // closed in order the last time
	temp     bool         // removed at Close
	onStep   func(string) // tests: told how an erasure goes on
}

// openDirectory checks and locks the data directory. Until it has returned
// without error nothing in the directory was changed, but for the lock's file.
func openDirectory(cfg *Config, randomness io.Reader) (d *directory, err error) {
	d = &directory{path: cfg.Dir}
	if d.path == "" {
		if cfg.Durability != Memory {
			return nil, fail(ErrInvalid, "a journal on disk needs Dir")
		}
		if d.path, err = os.MkdirTemp("", "parley-journal-"); err != nil {
			return nil, err
		}
		d.temp = true
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, err
	}
	known, err := d.look()
	if err != nil {
		return nil, err
	}
	if err := d.take(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	if known {
		return d, d.check(cfg)
	}
	return d, d.create(cfg, randomness)
}

// look tells whether the directory is a journal; one that is neither that nor
// empty is foreign.
func (d *directory) look() (known bool, err error) {
	list, err := os.ReadDir(d.path)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == manifestName }) {
		return true, nil
	}
	for _, e := range list {
		switch e.Name() {
		case lockName, "lost+found", manifestName + ".new":
		default:
			return false, fail(ErrForeign, "%s holds %q and no %s; give an empty directory, or the one that a journal was made in", d.path, e.Name(), manifestName)
		}
	}
	return false, nil
}

// take locks the directory.
func (d *directory) take() error {
	f, err := os.OpenFile(filepath.Join(d.path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", d.path, err)
		}
		var b [32]byte
		n, _ := f.ReadAt(b[:], 0)
		pid := strings.TrimSpace(string(b[:n]))
		if pid == "" {
			pid = "unknown"
		}
		return fail(ErrLocked, "%s is open in process %s; stop that one first", d.path, pid)
	}
	d.lock = f
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func (d *directory) release() {
	if d.lock != nil {
		d.lock.Close()
		d.lock = nil
	}
	if d.temp {
		os.RemoveAll(d.path)
	}
}

func (d *directory) engine() string { return filepath.Join(d.path, engineName) }

// check compares the manifest with what is asked for.
func (d *directory) check(cfg *Config) error {
	b, err := os.ReadFile(filepath.Join(d.path, manifestName))
	if err != nil {
		return err
	}
	m := &d.manifest
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(m); err != nil || m.What != manifestWhat {
		return fail(ErrForeign, "%s in %s is not a journal's, or is damaged; restore it from a backup", manifestName, d.path)
	}
	known := cfg.formats
	if known == nil {
		known = &released
	}
	if err := known.can(d.path, m.Format); err != nil {
		return err
	}
	if m.Partitions < 1 || m.Partitions > maxPartitions || !validPrefix(m.Prefix) {
		return fail(ErrForeign, "%s in %s is damaged; restore it from a backup", manifestName, d.path)
	}
	switch {
	case m.Encrypted && len(cfg.Key) == 0:
		return fail(ErrKey, "%s is encrypted; give its key", d.path)
	case !m.Encrypted && len(cfg.Key) > 0:
		return fail(ErrKey, "%s was made without encryption; open it without a key", d.path)
	case m.Encrypted && !hmac.Equal([]byte(hex.EncodeToString(m.derive(cfg.Key, "check"))), []byte(m.Check)):
		return fail(ErrKey, "%s was made with another key", d.path)
	}
	switch {
	case cfg.Prefix != "" && cfg.Prefix != m.Prefix:
		return fail(ErrInvalid, "%s was made with prefix %q, not %q", d.path, m.Prefix, cfg.Prefix)
	case cfg.Partitions != 0 && cfg.Partitions != m.Partitions:
		return fail(ErrInvalid, "%s was made with %d partitions, not %d; the number is fixed when a journal is made", d.path, m.Partitions, cfg.Partitions)
	case cfg.Durability != m.Durability:
		return fail(ErrInvalid, "%s was made with durability %q, not %q", d.path, m.Durability, cfg.Durability)
	}
	if m.Durability == Memory {
		// Nothing outlived the process that held it.
		m.Streams = nil
		return os.RemoveAll(d.engine())
	}
	if err := d.putBack(); err != nil {
		return err
	}
	if err := d.redo(); err != nil {
		return err
	}
	if d.clean, err = d.inspect(cfg); err != nil {
		return err
	}
	return d.upgrade(cfg, known)
}

// create writes the manifest of a new journal.
func (d *directory) create(cfg *Config, randomness io.Reader) error {
	d.fresh = true
	m := &d.manifest
	*m = manifest{
		What: manifestWhat, Format: manifestFormat, Created: cfg.Now().UTC(), Prefix: cfg.Prefix,
		Partitions: cfg.Partitions, Durability: cfg.Durability, Encrypted: len(cfg.Key) > 0,
	}
	if m.Prefix == "" {
		m.Prefix = defaultPrefix
	}
	if m.Partitions == 0 {
		m.Partitions = 1
	}
	if m.Encrypted {
		var salt [16]byte
		if _, err := io.ReadFull(randomness, salt[:]); err != nil {
			return err
		}
		m.Salt = hex.EncodeToString(salt[:])
		m.Check = hex.EncodeToString(m.derive(cfg.Key, "check"))
	}
	if err := os.Chmod(d.path, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(d.engine(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.save()
}

// save writes the manifest so that a crash leaves the old one or the new one.
func (d *directory) save() error {
	b, err := json.MarshalIndent(&d.manifest, "", "\t")
	if err != nil {
		return err
	}
	return d.replace(manifestName, append(b, '\n'))
}

func (d *directory) replace(name string, b []byte) error {
	path := filepath.Join(d.path, name)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(d.path)
	}
	return err
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// inventory tells what the engine's files were when it was shut down.
type inventory struct {
	Files map[string]int64 `json:"files"` // sizes by path
	Sum   string           `json:"sum"`   // over the rest, hex
}

func (v *inventory) sum() string {
	h := sha256.New()
	names := make([]string, 0, len(v.Files))
	for n := range v.Files {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(h, "%s %d\n", n, v.Files[n])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (d *directory) list() (*inventory, error) {
	v := &inventory{Files: make(map[string]int64)}
	err := filepath.WalkDir(d.engine(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(d.path, path)
		v.Files[name] = info.Size()
		return err
	})
	v.Sum = v.sum()
	return v, err
}

// closed records an orderly end. It is the last thing that Close writes.
func (d *directory) closed() error {
	if d.temp || d.manifest.Durability == Memory {
		return nil
	}
	v, err := d.list()
	if err != nil {
		return err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return d.replace(inventoryName, b)
}

// begin forgets the inventory: from now on a crash leaves files that no
// inventory tells of.
func (d *directory) begin() error {
	err := os.Remove(filepath.Join(d.path, inventoryName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDir(d.path)
	}
	return err
}

// The engine removes a stream that it cannot open at its start, whatever the
// cause, and makes a new key for a block whose key it cannot read: to run out of
// descriptors just then would cost the log. So all its files get a second name
// before it starts, which is removed when it has started, before anything is
// recorded. After a start that failed, or was cut off, they are put back. A second
// name does not help a block that is cut off because it cannot be read with a new
// key: so a directory stands where the engine would write that key.

// keyInTheWay is behind the name of a key file, as the engine writes them.
const keyInTheWay = ".key.tmp"

// keep links the engine's files. Where the file system has no links it does
// nothing. All links are in one directory, for each must be synced.
func (d *directory) keep() error {
	if err := d.putBack(); err != nil {
		return err
	}
	kept := filepath.Join(d.path, keptName)
	half := kept + ".new"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if err := os.Mkdir(half, 0o700); err != nil {
		return err
	}
	err := filepath.WalkDir(d.engine(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(d.engine(), path)
		if err == nil {
			err = os.Link(path, filepath.Join(half, url.PathEscape(name)))
		}
		if key, ok := strings.CutSuffix(path, ".key"); ok && err == nil {
			if err = os.Mkdir(key+keyInTheWay, 0o700); errors.Is(err, fs.ErrExist) {
				err = nil
			}
		}
		return err
	})
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EPERM) {
		return os.RemoveAll(half)
	}
	if err == nil {
		err = syncDir(half)
	}
	if err == nil {
		err = os.Rename(half, kept)
	}
	if err == nil {
		err = syncDir(d.path)
	}
	return err
}

// kept reports whether there are second names.
func (d *directory) kept() bool {
	_, err := os.Lstat(filepath.Join(d.path, keptName))
	return err == nil
}

// unkeep removes the second names. From then on the engine's files are its own,
// also after a power cut.
func (d *directory) unkeep() error {
	if !d.kept() {
		return nil // see keep
	}
	err := filepath.WalkDir(d.engine(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || !strings.HasSuffix(path, keyInTheWay) {
			return err
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		return fs.SkipDir
	})
	kept := filepath.Join(d.path, keptName)
	if err == nil {
		err = os.Rename(kept, kept+".new")
	}
	if err == nil {
		err = syncDir(d.path)
	}
	if err == nil {
		err = os.RemoveAll(kept + ".new")
	}
	return err
}

// putBack gives the engine's files their names again that a start took from them.
func (d *directory) putBack() error {
	if !d.kept() {
		return nil
	}
	if err := os.RemoveAll(d.engine()); err != nil {
		return err
	}
	kept := filepath.Join(d.path, keptName)
	list, err := os.ReadDir(kept)
	if err != nil {
		return err
	}
	for _, e := range list {
		name, err := url.PathUnescape(e.Name())
		if err != nil {
			return err
		}
		path := filepath.Join(d.engine(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.Link(filepath.Join(kept, e.Name()), path); err != nil {
			return err
		}
	}
	err = filepath.WalkDir(d.engine(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return syncDir(path)
	})
	if err != nil {
		return err
	}
	return d.unkeep()
}

// removeKeyless removes the blocks that the engine could make and could make no
// key for. They are empty, and with one it cannot open its stream.
func (d *directory) removeKeyless() error {
	if !d.manifest.Encrypted {
		return nil
	}
	for _, name := range d.manifest.Streams {
		blocks, err := blockNumbers(d.stream(name))
		if err != nil {
			return err
		}
		for _, n := range blocks {
			path := filepath.Join(d.stream(name), "msgs", strconv.Itoa(n))
			if _, err := os.Lstat(path + ".key"); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if info, err := os.Lstat(path + ".blk"); err != nil || info.Size() > 0 {
				continue
			}
			if err := os.Remove(path + ".blk"); err != nil {
				return err
			}
		}
	}
	return nil
}

// freeSpace asks the file system.
func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// totalSpace is the size of the file system, 0 where it is not known.
func totalSpace(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Blocks * uint64(st.Bsize)
}
