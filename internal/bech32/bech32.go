// Package bech32 is the checksummed base-32 text of BIP-173, with the BIP-173
// checksum constant only (never bech32m) and without its 90-character limit:
// the signatures of the uAgents protocol are longer.
//
// [DecodeNoLimit] takes one text for each value, in lower or upper case: it refuses mixed
// case, padding bits that are not zero, and left-over groups. A caller that needs one
// spelling compares with [Encode].
package bech32

import (
	"errors"
	"strings"
)

const charset = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// MaxLen bounds the texts that [DecodeNoLimit] reads, in bytes.
const MaxLen = 64 << 10

// Errors of a text.
var (
	// ErrText is a text that is not bech32: bad character, mixed case, no
	// separator, no data, wrong checksum, too long.
	ErrText = errors.New("not a bech32 text")
	// ErrPadding is a correct checksum over groups that are not whole bytes.
	ErrPadding = errors.New("bech32 data is not whole bytes")
	// ErrHRP is a human-readable part that cannot be written.
	ErrHRP = errors.New("bad human-readable part")
	// ErrEmpty is data of no bytes, which has no text.
	ErrEmpty = errors.New("no data to encode")
)

// Encode writes data under a lower-case human-readable part.
func Encode(hrp string, data []byte) (string, error) {
	if hrp == "" {
		return "", ErrHRP
	}
	for i := 0; i < len(hrp); i++ {
		if hrp[i] < 33 || hrp[i] > 126 || hrp[i] >= 'A' && hrp[i] <= 'Z' {
			return "", ErrHRP
		}
	}
	if len(data) == 0 {
		return "", ErrEmpty
	}
	out := make([]byte, 0, len(hrp)+1+(len(data)*8+4)/5+6)
	out = append(out, hrp...)
	out = append(out, '1')
	chk := expand(hrp)
	var acc uint32
	bits := 0
	put := func(v byte) {
		chk = step(chk, v)
		out = append(out, charset[v])
	}
	for _, b := range data {
		acc = acc<<8 | uint32(b)
		for bits += 8; bits >= 5; bits -= 5 {
			put(byte(acc >> (bits - 5) & 31))
		}
	}
	if bits > 0 {
		put(byte(acc << (5 - bits) & 31))
	}
	for range 6 {
		chk = step(chk, 0)
	}
	chk ^= 1
	for i := range 6 {
		out = append(out, charset[chk>>(5*(5-i))&31])
	}
	return string(out), nil
}

// DecodeNoLimit reads a text of any length up to [MaxLen] and gives the
// human-readable part in lower case and the bytes. The error is [ErrText] or
// [ErrPadding].
func DecodeNoLimit(s string) (hrp string, data []byte, err error) {
	if len(s) > MaxLen {
		return "", nil, ErrText
	}
	lower, upper := false, false
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c < 33 || c > 126 {
			return "", nil, ErrText
		}
		lower = lower || c >= 'a' && c <= 'z'
		upper = upper || c >= 'A' && c <= 'Z'
	}
	if lower && upper {
		return "", nil, ErrText
	}
	if upper {
		s = strings.ToLower(s)
	}
	sep := strings.LastIndexByte(s, '1')
	// At least one character of data: the protocols on this package have no empty
	// values.
	if sep < 1 || len(s)-sep-1 < 7 {
		return "", nil, ErrText
	}
	hrp = s[:sep]
	chk := expand(hrp)
	body := s[sep+1:]
	data = make([]byte, 0, (len(body)-6)*5/8)
	var acc uint32
	bits := 0
	for i := 0; i < len(body); i++ {
		v := strings.IndexByte(charset, body[i])
		if v < 0 {
			return "", nil, ErrText
		}
		chk = step(chk, byte(v))
		if i >= len(body)-6 {
			continue
		}
		acc = acc<<5 | uint32(v)
		bits += 5
		if bits >= 8 {
			bits -= 8
			data = append(data, byte(acc>>bits))
		}
	}
	if chk != 1 {
		return "", nil, ErrText
	}
	if bits > 4 || acc&(1<<bits-1) != 0 {
		return "", nil, ErrPadding
	}
	return hrp, data, nil
}

// expand starts a checksum with the human-readable part.
func expand(hrp string) uint32 {
	chk := uint32(1)
	for i := 0; i < len(hrp); i++ {
		chk = step(chk, hrp[i]>>5)
	}
	chk = step(chk, 0)
	for i := 0; i < len(hrp); i++ {
		chk = step(chk, hrp[i]&31)
	}
	return chk
}

// step adds one group to the checksum: the BCH code of BIP-173.
func step(chk uint32, v byte) uint32 {
	top := chk >> 25
	chk = chk&0x1ffffff<<5 ^ uint32(v)
	for i, gen := range [5]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
		if top>>i&1 == 1 {
			chk ^= gen
		}
	}
	return chk
}
