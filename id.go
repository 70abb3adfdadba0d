package parley

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// An ID is a UUID (RFC 9562). The hub makes IDs of version 7, which sort by time. The
// zero ID means "none".
type ID [16]byte

// NewID makes a version 7 ID from the time and ten bytes of rnd.
func NewID(now time.Time, rnd io.Reader) (ID, error) {
	var id ID
	if _, err := io.ReadFull(rnd, id[6:]); err != nil {
		return ID{}, fmt.Errorf("mint an id: %w", err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id, nil
}

// HashID makes a version 8 ID (RFC 9562 §5.8) of the first sixteen bytes of a
// digest. The hub derives conversations from foreign ids with it.
func HashID(digest []byte) ID {
	var id ID
	copy(id[:], digest)
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

var errID = errors.New("not an id: want 8-4-4-4-12 lower-case hexadecimal digits")

// ParseID reads the form that [ID.String] writes, and no other.
func ParseID(s string) (ID, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(ID{}) || ID(b).canonical() != s {
		return ID{}, errID
	}
	return ID(b), nil
}

// IsZero reports whether id is absent.
func (id ID) IsZero() bool { return id == ID{} }

// Time is the moment at which a version 7 ID was made, to the millisecond; the zero
// time for others.
func (id ID) Time() time.Time {
	if id[6]>>4 != 7 {
		return time.Time{}
	}
	var ms [8]byte
	copy(ms[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:])))
}

// String is the canonical text, "" for the zero ID.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return id.canonical()
}

func (id ID) canonical() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalText writes the canonical text, "" for the zero ID.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (id *ID) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*id = ID{}
		return nil
	}
	v, err := ParseID(string(b))
	if err == nil {
		*id = v
	}
	return err
}
