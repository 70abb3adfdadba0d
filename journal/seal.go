package journal

import (
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/s2"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/parley-hub/parley/journal/store"
)

// In the store, records and values have a trailer. It detects damage that the store
// does not detect itself:
//
//	data  CRC-32C of AAD and data (4 bytes, little-endian)  1
//	ciphertext and tag  nonce (24)  2
//
// 4 is added to the last byte if the data is compressed, as an S2 block. The AAD
// (associated data) is the partition and sequence of a record, or the bucket and
// key of a value, and that byte. So no record or value can take another's place.
const (
	trailerPlain      = 1
	trailerSealed     = 2
	trailerCompressed = 4
	trailerSize       = 5 // of plain data
	sealOverhead      = chacha20poly1305.Overhead + chacha20poly1305.NonceSizeX + 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealer encrypts records and values for the store. Without a key it only adds
// checksums.
type sealer struct {
	aead cipher.AEAD // nil: not encrypted
}

var errDamaged = errors.New("it does not match its checksum")

func recordAAD(partition int, seq uint64) []byte {
	b := binary.LittleEndian.AppendUint32([]byte("record"), uint32(partition))
	return binary.LittleEndian.AppendUint64(b, seq)
}

func valueAAD(bucket, key string) []byte {
	b := binary.AppendUvarint([]byte("value"), uint64(len(bucket)))
	return append(append(b, bucket...), key...)
}

// payload is data to be sealed, compressed if that helps.
type payload struct {
	data []byte
	kind byte // 0, or trailerPacked
}

const (
	compressFrom = 256 // bytes
	maxContent   = 128 << 20
)

var scratchPool = sync.Pool{New: func() any { return new([]byte) }}

// compress compresses data if that saves an eighth, into memory of its own with
// room for the trailer.
func compress(data []byte) payload {
	if len(data) < compressFrom || len(data) > maxContent {
		return payload{data: data}
	}
	scratch := scratchPool.Get().(*[]byte)
	defer scratchPool.Put(scratch)
	if n := s2.MaxEncodedLen(len(data)); cap(*scratch) < n {
		*scratch = make([]byte, n)
	}
	block := s2.Encode((*scratch)[:cap(*scratch)], data)
	if len(block) > len(data)-len(data)/8 {
		return payload{data: data}
	}
	return payload{append(make([]byte, 0, len(block)+trailerSize), block...), trailerCompressed}
}

func decompress(kind byte, data []byte) ([]byte, error) {
	if kind&trailerCompressed == 0 {
		return data, nil
	}
	if n, err := s2.DecodedLen(data); err != nil || n > maxContent {
		return nil, errDamaged
	}
	data, err := s2.Decode(nil, data)
	if err != nil {
		return nil, errDamaged
	}
	return data, nil
}

// seal adds the trailer. It may overwrite the memory behind the payload's data.
func (s *sealer) seal(aad []byte, p payload) []byte {
	if s.aead == nil {
		kind := trailerPlain | p.kind
		sum := crc32.Update(crc32.Checksum(append(aad, kind), castagnoli), castagnoli, p.data)
		return append(binary.LittleEndian.AppendUint32(p.data, sum), kind)
	}
	var nonce [chacha20poly1305.NonceSizeX]byte
	rand.Read(nonce[:]) // never fails
	kind := trailerSealed | p.kind
	out := s.aead.Seal(make([]byte, 0, len(p.data)+sealOverhead), nonce[:], p.data, append(aad, kind))
	return append(append(out, nonce[:]...), kind)
}

// open verifies, decrypts and decompresses; the result may share the memory of b.
func (s *sealer) open(aad, b []byte) ([]byte, error) {
	n := len(b) - 1
	if n < 0 {
		return nil, errDamaged
	}
	kind := b[n]
	aad = append(aad, kind)
	switch at := n - chacha20poly1305.NonceSizeX; {
	case n >= 4 && kind&^trailerCompressed == trailerPlain && s.aead == nil:
		data := b[: n-4 : n-4]
		if crc32.Update(crc32.Checksum(aad, castagnoli), castagnoli, data) != binary.LittleEndian.Uint32(b[n-4:]) {
			return nil, errDamaged
		}
		return decompress(kind, data)
	case at >= 0 && kind&^trailerCompressed == trailerSealed && s.aead != nil:
		data, err := s.aead.Open(nil, b[at:n], b[:at], aad)
		if err != nil {
			return nil, errDamaged
		}
		return decompress(kind, data)
	}
	return nil, errDamaged
}

// deriveKey derives a key for one use.
func deriveKey(key []byte, salt, use string) []byte {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, "parley journal "+use+"\x00"+salt)
	return h.Sum(nil)
}

// checkKey compares a key with the one of an existing journal or backup.
func checkKey(what string, key []byte, salt, check, use string) error {
	switch {
	case len(key) == 0:
		return fail(ErrKey, "the %s is encrypted; give the key of the journal", what)
	case !hmac.Equal([]byte(check), []byte(hex.EncodeToString(deriveKey(key, salt, use)))):
		return fail(ErrKey, "the %s was made with another key", what)
	}
	return nil
}

// newSalt draws a salt if there is a key.
func newSalt(key []byte, use string) (salt, check string) {
	if len(key) == 0 {
		return "", ""
	}
	b := make([]byte, 16)
	rand.Read(b) // never fails
	salt = hex.EncodeToString(b)
	return salt, hex.EncodeToString(deriveKey(key, salt, use))
}

// newSealer makes the sealer of a journal. Errors: ErrKey.
func newSealer(m *store.Meta, key []byte) (*sealer, error) {
	s := &sealer{}
	if m.Check == "" {
		if len(key) > 0 {
			return nil, fail(ErrKey, "the journal is not encrypted, but a key was given; "+
				"to encrypt it, back it up and restore it with a key")
		}
		return s, nil
	}
	err := checkKey("journal", key, m.Salt, m.Check, "check")
	if err == nil {
		s.aead, err = chacha20poly1305.NewX(deriveKey(key, m.Salt, "records"))
	}
	return s, err
}

// storeRecord makes the store's record of an op.
func (p *partition) storeRecord(o *op, seq uint64) store.Record {
	data := p.j.sealer.seal(recordAAD(p.index, seq), o.data)
	return store.Record{Sequence: seq, Tag: o.tag, Data: data, About: o.about}
}

func about(r *Record) store.About {
	a := store.About{Time: r.Time, Kind: "step"}
	if m := r.Message; m != nil {
		a.Kind, a.Message, a.From, a.To = m.Kind.String(), m.ID.String(), m.From, m.To
	} else if len(r.Steps) > 0 {
		a.Message, a.To = r.Steps[0].Message.String(), r.Steps[0].To
	}
	return a
}

// damaged is the error for damage, with the commands that help.
func damaged(cause error, format string, args ...any) error {
	return failBy(ErrCorrupt, cause,
		"%s; \"parley journal check\" shows what is damaged, \"parley journal salvage\" saves what is not",
		fmt.Sprintf(format, args...))
}
