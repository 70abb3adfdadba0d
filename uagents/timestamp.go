package uagents

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// A Timestamp is a point in time as the reference writes it: ISO 8601 with
// microseconds (left out when zero) and a numeric offset, never Z; without an
// offset when Naive.
type Timestamp struct {
	time.Time
	Naive bool
}

// String is the wire text.
func (t Timestamp) String() string {
	layout := "2006-01-02T15:04:05"
	if t.Nanosecond()/1000 != 0 {
		layout += ".000000"
	}
	if !t.Naive {
		layout += "-07:00"
	}
	return t.Truncate(time.Microsecond).Format(layout)
}

// MarshalJSON writes the wire text.
func (t Timestamp) MarshalJSON() ([]byte, error) { return pyString(nil, t.String()), nil }

// UnmarshalJSON is [ParseTimestamp].
func (t *Timestamp) UnmarshalJSON(b []byte) (err error) {
	*t, err = ParseTimestamp(b)
	return err
}

// ParseTimestamp reads a JSON value as the reference's data model does: ISO
// 8601 with T or a space, with or without an offset, or Unix seconds (above
// 2·10^10: milliseconds) as a number or a numeric string. Fractions are cut
// to microseconds. The error is ErrContent.
func ParseTimestamp(v json.RawMessage) (Timestamp, error) {
	n, err := parse(v)
	if err != nil {
		return Timestamp{}, ErrContent.Because(err)
	}
	t, err := timestampOf(n)
	if err != nil {
		return Timestamp{}, ErrContent.Because(err)
	}
	return t, nil
}

var (
	isoDateTime = regexp.MustCompile(
		`^(\d{4})-(\d{1,2})-(\d{1,2})[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6})\d{0,6})?)?(Z|[+-]\d{2}(?::?\d{2})?)?$`,
	)
	isoDate = regexp.MustCompile(`^(\d{4})-(\d{1,2})-(\d{1,2})$`)
	errTime = errors.New("not a point in time")
)

// timestampOf is [ParseTimestamp] of a node, which may be nil.
func timestampOf(n *node) (Timestamp, error) {
	if f, ok := asFloat(n); ok {
		return fromUnix(f)
	}
	m := isoDateTime.FindStringSubmatch(n.str())
	if m == nil {
		return Timestamp{}, errTime
	}
	num := func(i int) int { v, _ := strconv.Atoi(m[i]); return v }
	micro, _ := strconv.Atoi((m[7] + "000000")[:6])
	zone, naive := time.UTC, m[8] == ""
	if !naive && m[8] != "Z" {
		hours, _ := strconv.Atoi(m[8][1:3])
		minutes := 0
		if len(m[8]) > 3 {
			minutes, _ = strconv.Atoi(m[8][len(m[8])-2:])
		}
		offset := 60 * (60*hours + minutes)
		if offset >= 24*60*60 {
			return Timestamp{}, errTime
		}
		if m[8][0] == '-' {
			offset = -offset
		}
		if offset != 0 {
			zone = time.FixedZone("", offset)
		}
	}
	year, month, day, hour, minute, second := num(1), num(2), num(3), num(4), num(5), num(6)
	t := time.Date(year, time.Month(month), day, hour, minute, second, micro*1000, zone)
	// time.Date would turn the 30th of February into a day in March.
	if year < 1 || t.Month() != time.Month(month) || t.Day() != day || hour > 23 || minute > 59 || second > 59 {
		return Timestamp{}, errTime
	}
	return Timestamp{t, naive}, nil
}

// fromUnix reads seconds since 1970, or milliseconds (and further powers of a
// thousand) when the number is too large for seconds.
func fromUnix(f float64) (Timestamp, error) {
	if math.IsNaN(f) || math.Abs(f) > 3e20 {
		return Timestamp{}, errTime
	}
	for math.Abs(f) > 2e10 {
		f /= 1000
	}
	micros := int64(math.RoundToEven(f * 1e6))
	t := time.UnixMicro(micros).UTC()
	if t.Year() < 1 || t.Year() > 9999 {
		return Timestamp{}, errTime
	}
	return Timestamp{t, false}, nil
}

// isDate is pydantic v1's date: a date, or a number that fromUnix takes.
func isDate(n *node) bool {
	if f, ok := asFloat(n); ok {
		_, err := fromUnix(f)
		return err == nil
	}
	m := isoDate.FindStringSubmatch(n.str())
	if m == nil {
		return false
	}
	_, err := time.Parse("2006-1-2", m[0])
	return err == nil
}

// pyUUID reads a UUID like Python's uuid.UUID(text): 32 hexadecimal digits with hyphens
// anywhere, braces around and urn:, uuid: before. n may be nil.
func pyUUID(n *node) ([16]byte, bool) {
	s := strings.ReplaceAll(strings.ReplaceAll(n.str(), "urn:", ""), "uuid:", "")
	s = strings.ReplaceAll(strings.Trim(s, "{}"), "-", "")
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 16 {
		return [16]byte{}, false
	}
	return [16]byte(b), true
}

// pyUUIDVersion is the version of an RFC 4122 UUID, or 0.
func pyUUIDVersion(u [16]byte) int {
	if u[8]&0xc0 != 0x80 {
		return 0
	}
	return int(u[6] >> 4)
}

func uuidText(u [16]byte) string {
	return uuid.UUID(u).String()
}
