package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A syncer makes durable what the embedded engine has acknowledged for one
// stream. The engine writes each record to the stream's last block before it
// answers; asked to sync always, it would do so for each record by itself
// (0.3 ms each on the machine this was measured on), or for an atomic batch at
// the price of a staging store (3 ms and more). One sync of the block for the
// whole group costs the same 0.3 ms however many it holds, and the group's
// callers hear nothing before it is done.
//
// It relies on two things of the engine, which tests watch: that a stream with
// one replica writes through (no asynchronous flush), and that the blocks of a
// stream are msgs/N.blk with growing N. The log's blocks are only appended to;
// for streams in which the engine rewrites blocks (the state), it syncs itself.
type syncer struct {
	dir       string // of the stream
	encrypted bool
	last      int      // the block that was the last one
	file      *os.File // it, held open: to sync it must not depend on a free descriptor
}

// newSyncer makes durable whatever the last blocks hold, also what the last
// process wrote and did not get to sync.
func newSyncer(dir string, encrypted bool) (*syncer, error) {
	s := &syncer{dir: dir, encrypted: encrypted}
	blocks, err := blockNumbers(dir)
	if err != nil {
		return nil, err
	}
	if len(blocks) == 0 {
		return nil, fail(ErrCorrupt, "the engine keeps no blocks in %s; it lays out its files in a way this release does not know", dir)
	}
	// A group may reach over some blocks, encrypted ones have 2 MB.
	s.last = blocks[max(0, len(blocks)-16)]
	if err := s.sync(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *syncer) block(n int, suffix string) string {
	return filepath.Join(s.dir, "msgs", fmt.Sprintf("%d.%s", n, suffix))
}

// sync returns when all that was written is on the disk. After an error the next
// one begins where this one did.
func (s *syncer) sync() error {
	n, newest, grown := s.last, s.last, false
	for {
		err := s.syncBlock(n)
		if errors.Is(err, fs.ErrNotExist) {
			if n > newest {
				break
			}
			// The block was removed; go on with those behind it.
			blocks, err := blockNumbers(s.dir)
			if err != nil {
				return err
			}
			next := 0
			for _, b := range blocks {
				if b > n {
					next = b
					break
				}
			}
			if next == 0 {
				return fmt.Errorf("no block behind %s", s.block(n, "blk"))
			}
			n, newest = next, next-1
			continue
		}
		if err != nil {
			return err
		}
		if n > newest {
			newest, grown = n, true
			if s.encrypted {
				if err := syncFile(s.block(n, "key")); err != nil {
					return err
				}
			}
		}
		n++
	}
	if grown {
		if err := syncDir(filepath.Join(s.dir, "msgs")); err != nil {
			return err
		}
	}
	s.last = newest
	return nil
}

// syncBlock syncs a block, and holds it open until another one is synced. A
// block that is not there, or has just been made, takes no descriptor.
func (s *syncer) syncBlock(n int) error {
	path := s.block(n, "blk")
	there, err := os.Stat(path)
	if err != nil {
		return err
	}
	if there.Size() == 0 && n > s.last {
		return fs.ErrNotExist // it may have no key
	}
	if s.file != nil {
		held, err := s.file.Stat()
		if err != nil {
			return err
		}
		if os.SameFile(there, held) {
			return s.file.Sync()
		}
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = errors.Join(file.Sync(), s.close())
	s.file = file
	return err
}

func (s *syncer) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncTree makes a new tree of files durable.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return syncDir(path)
		case e.Type().IsRegular():
			return syncFile(path)
		}
		return nil
	})
}
