// Package edkeys decides which Ed25519 public keys and signatures Parley
// accepts.
//
// The standard library follows RFC 8032 but takes any 32 bytes as a key. With a key
// of small order, R = identity and S = 0 verify for every message (SAMVAD digest
// §4.3, ASP and AGH alike), so that such a key in a card or an enrolment would let
// any sender speak for its owner. [Check] refuses them once, when a key is loaded;
// [Verify] refuses them again, for the price of a few comparisons, so that no path
// can forget it.
package edkeys

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"math/big"
)

// Errors of a public key.
var (
	ErrLength       = errors.New("edkeys: public key is not 32 bytes")
	ErrNonCanonical = errors.New("edkeys: public key is not in canonical form")
	ErrSmallOrder   = errors.New("edkeys: public key has small order")
	ErrNotOnCurve   = errors.New("edkeys: public key is not a point of the curve")
)

// Check reports whether pub may be used as an Ed25519 public key: 32 bytes, y
// below 2²⁵⁵−19, a point of the curve, and not of small order.
func Check(pub []byte) error {
	if err := checkForm(pub); err != nil {
		return err
	}
	if !onCurve(pub) {
		return ErrNotOnCurve
	}
	return nil
}

// Verify reports whether sig is pub's signature of msg (RFC 8032 §5.1.7,
// without the cofactor). Keys that [Check] refuses never verify; a signature
// must be 64 bytes with S below the group order.
func Verify(pub, msg, sig []byte) bool {
	return checkForm(pub) == nil && ed25519.Verify(ed25519.PublicKey(pub), msg, sig)
}

// prime is 2²⁵⁵−19, little endian.
const prime = "\xed\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"

// The y coordinates of the eight points whose order divides 8. Each stands
// for both signs of x.
const (
	y0  = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	y1  = "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	ym1 = "\xec\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
	y8a = "\x26\xe8\x95\x8f\xc2\xb2\x27\xb0\x45\xc3\xf4\x89\xf2\xef\x98\xf0\xd5\xdf\xac\x05\xd3\xc6\x33\x39\xb1\x38\x02\x88\x6d\x53\xfc\x05"
	y8b = "\xc7\x17\x6a\x70\x3d\x4d\xd8\x4f\xba\x3c\x0b\x76\x0d\x10\x67\x0f\x2a\x20\x53\xfa\x2c\x39\xcc\xc6\x4e\xc7\xfd\x77\x92\xac\x03\x7a"
)

// checkForm is [Check] without the curve equation: a key that is no point fails
// in ed25519.Verify anyway.
func checkForm(pub []byte) error {
	if len(pub) != ed25519.PublicKeySize {
		return ErrLength
	}
	y := [32]byte(pub)
	y[31] &= 0x7f
	if !below(&y, prime) {
		return ErrNonCanonical
	}
	switch string(y[:]) {
	case y0, y1, ym1, y8a, y8b:
		return ErrSmallOrder
	}
	return nil
}

// below compares little-endian numbers. Keys are public: constant time is not
// needed.
func below(n *[32]byte, limit string) bool {
	for i := 31; i >= 0; i-- {
		if n[i] != limit[i] {
			return n[i] < limit[i]
		}
	}
	return false
}

// onCurve reports whether (y²−1)/(dy²+1) is a square, RFC 8032 §5.1.3.
func onCurve(pub []byte) bool {
	le := bytes.Clone(pub)
	le[31] &= 0x7f
	p, y, d := fromLE([]byte(prime)), fromLE(le), new(big.Int)
	db, _ := hex.DecodeString("52036cee2b6ffe738cc740797779e89800700a4d4141d8ab75eb4dca135978a3")
	d.SetBytes(db)
	yy := new(big.Int).Mul(y, y)
	u := new(big.Int).Sub(yy, big.NewInt(1))
	v := new(big.Int).Mul(d, yy)
	v.Add(v, big.NewInt(1))
	u.Mul(u, v).Mod(u, p)
	return big.Jacobi(u, p) >= 0
}

func fromLE(b []byte) *big.Int {
	r := make([]byte, len(b))
	for i := range b {
		r[len(b)-1-i] = b[i]
	}
	return new(big.Int).SetBytes(r)
}
