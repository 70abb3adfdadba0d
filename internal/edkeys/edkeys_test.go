package edkeys

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"math/big"
	"testing"
)

func key(t testing.TB, b byte) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	priv := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, 32))
	return priv.Public().(ed25519.PublicKey), priv
}

func TestCheck(t *testing.T) {
	good, _ := key(t, 1)
	sign := func(y string) []byte { b := []byte(y); b[31] |= 0x80; return b }
	for _, c := range []struct {
		name string
		pub  []byte
		want error
	}{
		{"good", good, nil},
		{"nil", nil, ErrLength},
		{"31 bytes", good[:31], ErrLength},
		{"33 bytes", append(bytes.Clone(good), 0), ErrLength},
		{"y = 0", []byte(y0), ErrSmallOrder},
		{"y = 0, x negative", sign(y0), ErrSmallOrder},
		{"identity", []byte(y1), ErrSmallOrder},
		{"identity with sign", sign(y1), ErrSmallOrder},
		{"order 2", []byte(ym1), ErrSmallOrder},
		{"order 2 with sign", sign(ym1), ErrSmallOrder},
		{"order 8 a", []byte(y8a), ErrSmallOrder},
		{"order 8 a, negative", sign(y8a), ErrSmallOrder},
		{"order 8 b", []byte(y8b), ErrSmallOrder},
		{"order 8 b, negative", sign(y8b), ErrSmallOrder},
		{"p", []byte(prime), ErrNonCanonical},
		{"p + 1", append([]byte("\xee"), prime[1:]...), ErrNonCanonical},
		{"all ones", bytes.Repeat([]byte{0xff}, 32), ErrNonCanonical},
		{"no point", append([]byte{2}, make([]byte, 31)...), ErrNotOnCurve},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Check(c.pub); !errors.Is(err, c.want) {
				t.Errorf("Check = %v, want %v", err, c.want)
			}
		})
	}
}

// Every real key is a point; about half of all y are not.
func TestCheckAgreesWithTheCurve(t *testing.T) {
	for i := range 64 {
		pub, _ := key(t, byte(i))
		if err := Check(pub); err != nil {
			t.Fatalf("seed %d: %v", i, err)
		}
	}
	refused := 0
	for i := range 64 {
		b := bytes.Repeat([]byte{byte(i), 7}, 16)
		if Check(b) != nil {
			refused++
		}
	}
	if refused < 16 || refused > 48 {
		t.Errorf("%d of 64 arbitrary strings refused", refused)
	}
}

func TestVerify(t *testing.T) {
	pub, priv := key(t, 1)
	msg := []byte("message")
	sig := ed25519.Sign(priv, msg)
	if !Verify(pub, msg, sig) {
		t.Fatal("good signature refused")
	}
	if Verify(pub, []byte("other"), sig) || Verify(pub, msg, sig[:63]) ||
		Verify(pub, msg, append(bytes.Clone(sig), 0)) || Verify(pub[:31], msg, sig) || Verify(nil, msg, nil) {
		t.Fatal("bad input accepted")
	}
	// S + L is the same scalar modulo L, the group order: malleable.
	const order = "\xed\xd3\xf5\x5c\x1a\x63\x12\x58\xd6\x9c\xf7\xa2\xde\xf9\xde\x14" +
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10"
	s := new(big.Int).Add(fromLE(sig[32:]), fromLE([]byte(order)))
	if s.BitLen() <= 256 {
		bad := bytes.Clone(sig)
		be := s.FillBytes(make([]byte, 32))
		for i := range be {
			bad[32+i] = be[31-i]
		}
		if Verify(pub, msg, bad) {
			t.Fatal("S + L accepted")
		}
	}
	// The universal forgery under a key of small order: R = identity, S = 0.
	forged := append([]byte(y1), make([]byte, 32)...)
	if !ed25519.Verify([]byte(y1), msg, forged) {
		t.Log("the standard library refuses small order by itself")
	}
	for _, y := range []string{y0, y1, ym1, y8a, y8b} {
		if Verify([]byte(y), msg, forged) {
			t.Fatalf("forgery under %x accepted", y)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	pub, priv := key(b, 1)
	msg := make([]byte, 250)
	sig := ed25519.Sign(priv, msg)
	for b.Loop() {
		Verify(pub, msg, sig)
	}
}
