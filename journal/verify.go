package journal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"
	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
)

// The engine repairs what it finds damaged by leaving it out: a stream whose
// description does not match its checksum is not opened, a block is cut at its
// first bad record. So its files are checked before it is started, and a
// journal that lost what was acknowledged is reported and left alone.
//
// Not damage is what a crash leaves: a record half written at the end of the
// last block, which was never acknowledged.

// verifyUpTo is how much of the newest blocks is read after an orderly close,
// in which case the sizes of all files are known. After a crash the engine
// itself reads all of them, and so does the check.
const verifyUpTo = 256 << 20

const (
	engineAccount = "$G"

	// Sizes and bits of the engine's records.
	recordHeader  = 22
	recordSum     = 8
	recordHasHdr  = uint32(1) << 31
	recordMaxSize = 32 << 20 // what is larger the engine takes for damage
)

// inspect checks the engine's files and tells whether they were closed in
// order.
func (d *directory) inspect(cfg *Config) (clean bool, err error) {
	budget := int64(-1)
	b, err := os.ReadFile(filepath.Join(d.path, inventoryName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	default:
		var then inventory
		if json.Unmarshal(b, &then) == nil && then.Sum == then.sum() {
			if err := d.compare(&then); err != nil {
				return false, err
			}
			clean, budget = true, verifyUpTo
		}
	}
	for _, name := range d.manifest.Streams {
		s := streamFiles{
			dir: d.stream(name), name: path.Base(name), clean: clean,
		}
		if d.manifest.Encrypted {
			s.key = engineKey(&d.manifest, cfg.Key)
		}
		if err := s.check(&budget); err != nil {
			return clean, failBy(ErrCorrupt, err, "stream %s in %s; nothing was changed; restore a backup", name, d.path)
		}
	}
	return clean, nil
}

// stream is where the engine keeps a stream: name is the engine's part of the
// directory and the stream's name.
func (d *directory) stream(name string) string {
	part, name := path.Split(name)
	return filepath.Join(d.engine(), part, "jetstream", engineAccount, "streams", name)
}

func (d *directory) compare(then *inventory) error {
	now, err := d.list()
	if err != nil {
		return err
	}
	for name, size := range then.Files {
		got, ok := now.Files[name]
		switch {
		case !ok:
			return fail(ErrCorrupt, "%s is missing in %s; nothing was changed; restore a backup", name, d.path)
		case got != size:
			return fail(ErrCorrupt, "%s in %s has %d bytes and had %d when the journal was closed; nothing was changed; restore a backup", name, d.path, got, size)
		}
	}
	return nil
}

// engineKey is what the embedded engine is given as its key.
func engineKey(m *manifest, key []byte) string {
	return hex.EncodeToString(m.derive(key, "engine"))
}

// streamFiles are the files of one stream.
type streamFiles struct {
	dir   string
	name  string
	key   string // "" when not encrypted
	clean bool
}

func (s *streamFiles) check(budget *int64) error {
	meta, err := os.ReadFile(filepath.Join(s.dir, "meta.inf"))
	if err != nil {
		return fmt.Errorf("its description cannot be read: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(s.dir, "meta.sum"))
	if err != nil {
		return fmt.Errorf("its checksum cannot be read: %w", err)
	}
	if got, err := highway(s.name, meta); err != nil || hex.EncodeToString(got) != string(sum) {
		return errors.New("its description does not match its checksum")
	}
	if s.key != "" {
		sealed, err := os.ReadFile(filepath.Join(s.dir, "meta.key"))
		if err != nil {
			return fmt.Errorf("its key cannot be read: %w", err)
		}
		seed, err := s.unseal(s.name, sealed)
		if err != nil {
			return fmt.Errorf("its key: %w", err)
		}
		aead, err := chacha20poly1305.NewX(seed)
		if err != nil {
			return err
		}
		if n := aead.NonceSize(); len(meta) < n {
			return errors.New("its description is cut")
		} else if _, err := aead.Open(nil, meta[:n], meta[n:], nil); err != nil {
			return fmt.Errorf("its description: %w", err)
		}
	}
	if s.clean {
		if err := s.checkIndex(); err != nil {
			return err
		}
	}
	blocks, err := blockNumbers(s.dir)
	if err != nil {
		return err
	}
	if len(blocks) == 0 {
		return errors.New("it has no blocks")
	}
	var behind int64
	for i, n := range slices.Backward(blocks) {
		file := filepath.Join(s.dir, "msgs", strconv.Itoa(n)+".blk")
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if *budget >= 0 && i != len(blocks)-1 {
			if *budget < info.Size() {
				break
			}
		}
		if *budget >= 0 {
			*budget = max(0, *budget-info.Size())
		}
		if err := s.checkBlock(file, n, i == len(blocks)-1, behind); err != nil {
			return fmt.Errorf("block %d: %w", n, err)
		}
		behind += info.Size()
	}
	return nil
}

// checkIndex checks the engine's own index, which an orderly end has written.
func (s *streamFiles) checkIndex() error {
	b, err := os.ReadFile(filepath.Join(s.dir, "msgs", "index.db"))
	if err != nil {
		return fmt.Errorf("its index cannot be read: %w", err)
	}
	if len(b) < recordSum {
		return errors.New("its index is cut")
	}
	sum, err := highway(s.name, b[:len(b)-recordSum])
	if err != nil || !bytes.Equal(sum, b[len(b)-recordSum:]) {
		return errors.New("its index does not match its checksum")
	}
	return nil
}

// blockNumbers lists the blocks of a stream in their order.
func blockNumbers(dir string) (out []int, err error) {
	list, err := os.ReadDir(filepath.Join(dir, "msgs"))
	if err != nil {
		return nil, fmt.Errorf("its blocks cannot be read: %w", err)
	}
	for _, e := range list {
		if name, ok := strings.CutSuffix(e.Name(), ".blk"); ok {
			if n, err := strconv.Atoi(name); err == nil {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// checkBlock checks each record of a block, behind which others hold some
// bytes more. After a crash the end of what was written last may be torn: some
// record is bad and no good one stands behind it, or pages in between were never
// written. In a block that is not the last one it must show that it is cut or
// has such a page.
func (s *streamFiles) checkBlock(file string, n int, last bool, behind int64) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	written := b
	if s.key != "" && len(b) > 0 {
		sealed, err := os.ReadFile(filepath.Join(s.dir, "msgs", strconv.Itoa(n)+".key"))
		if err != nil {
			return fmt.Errorf("its key cannot be read: %w", err)
		}
		seed, err := s.unseal(fmt.Sprintf("%s:%d", s.name, n), sealed)
		if err != nil {
			return fmt.Errorf("its key: %w", err)
		}
		c, err := chacha20.NewUnauthenticatedCipher(seed, sealed[:chacha20poly1305.NonceSizeX])
		if err != nil {
			return err
		}
		b = make([]byte, len(written))
		c.XORKeyStream(b, written)
	}
	hash, err := highwayhash.NewDigest64(digestKey(fmt.Sprintf("%s-%d", s.name, n)))
	if err != nil {
		return err
	}
	var sum [recordSum]byte
	good := func(at int) (next int, ok bool) {
		if len(b)-at < recordHeader+recordSum {
			return at, false
		}
		h := b[at : at+recordHeader]
		length := binary.LittleEndian.Uint32(h)
		subject := int(binary.LittleEndian.Uint16(h[20:]))
		withHeader := length&recordHasHdr != 0
		length &^= recordHasHdr
		if length < recordHeader+recordSum || length > recordMaxSize || int(length) > len(b)-at {
			return at, false
		}
		body := b[at+recordHeader : at+int(length)]
		skip := subject
		if withHeader {
			skip += 4
		}
		if skip > len(body)-recordSum {
			return at, false
		}
		hash.Reset()
		hash.Write(h[4:20])
		hash.Write(body[:subject])
		hash.Write(body[skip : len(body)-recordSum])
		if !bytes.Equal(hash.Sum(sum[:0]), body[len(body)-recordSum:]) {
			return at, false
		}
		return at + int(length), true
	}
	at := 0
	for at < len(b) {
		next, ok := good(at)
		if !ok {
			break
		}
		at = next
	}
	if at == len(b) {
		return nil
	}
	bad := fmt.Errorf("the record at byte %d of %d does not match its checksum", at, len(b))
	if s.clean || int64(len(b)-at)+behind > tornUpTo {
		return bad
	}
	for i := at + 1; i+recordHeader+recordSum <= len(b); i++ {
		if _, ok := good(i); ok {
			if hole(written[at:i], at) {
				return nil
			}
			return fmt.Errorf("%w, and good ones stand behind it", bad)
		}
	}
	if last || hole(written[at:], at) || cut(b[at:]) {
		return nil
	}
	return bad
}

// cut reports whether a record ends behind the end of its block.
func cut(b []byte) bool {
	return len(b) < recordHeader || int64(binary.LittleEndian.Uint32(b)&^recordHasHdr) > int64(len(b))
}

// tornUpTo is how far from its end a stream may be torn: more than the largest
// group of appends writes before it is synced.
const tornUpTo = 32 << 20

// hole reports whether b, which stands at an offset of its file, holds a page
// that was never written: after a power cut some pages of what was not synced
// may be there and others not.
func hole(b []byte, at int) bool {
	const page = 4096
	for i := (page - at%page) % page; i+page <= len(b); i += page {
		if allZero(b[i : i+page]) {
			return true
		}
	}
	return false
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// unseal opens a key file of the engine: the seed of a block or a description
// under a key derived from the engine's and the context.
func (s *streamFiles) unseal(context string, sealed []byte) ([]byte, error) {
	h := hmac.New(sha256.New, []byte(s.key))
	h.Write([]byte(engineAccount))
	h.Write([]byte(context))
	aead, err := chacha20poly1305.NewX(h.Sum(nil))
	if err != nil {
		return nil, err
	}
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("is cut")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
}

func digestKey(name string) []byte {
	k := sha256.Sum256([]byte(name))
	return k[:]
}

func highway(name string, b []byte) ([]byte, error) {
	h, err := highwayhash.NewDigest64(digestKey(name))
	if err != nil {
		return nil, err
	}
	h.Write(b)
	return h.Sum(nil), nil
}
