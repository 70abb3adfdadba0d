package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"
)

// TestSealed: a sealed block opens only at its own place, and not after any single bit
// is flipped. Text is compressed.
func TestSealed(t *testing.T) {
	aead, err := chacha20poly1305.NewX(make([]byte, chacha20poly1305.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 600)
	rand.Read(noise)
	text := []byte(strings.Repeat("one word and another ", 50))
	here, there := recordAAD(1, 7), recordAAD(1, 8)
	for name, s := range map[string]*sealer{"clear": {}, "encrypted": {aead: aead}} {
		for kind, data := range map[string][]byte{"none": {}, "short": []byte("x"), "noise": noise, "text": text} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				b := s.seal(here, compress(bytes.Clone(data)))
				if got, err := s.open(here, bytes.Clone(b)); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%d bytes, %v; want %d", len(got), err, len(data))
				}
				if kind == "text" && len(b) > len(data)/2 || len(b) > len(data)+sealOverhead {
					t.Errorf("%d bytes of %d", len(b), len(data))
				}
				if _, err := s.open(there, bytes.Clone(b)); !errors.Is(err, errDamaged) {
					t.Errorf("at another place: %v", err)
				}
				for bit := range 8 * len(b) {
					c := bytes.Clone(b)
					c[bit/8] ^= 1 << (bit % 8)
					if _, err := s.open(here, c); !errors.Is(err, errDamaged) {
						t.Fatalf("bit %d changed: %v", bit, err)
					}
				}
			})
		}
	}
}

// TestTooMuchUnpacked: a block with a huge stated size is refused before memory is
// allocated for it.
func TestTooMuchUnpacked(t *testing.T) {
	s := &sealer{}
	place := recordAAD(0, 1)
	b := s.seal(place, payload{binary.AppendUvarint(nil, maxContent+1), trailerCompressed})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := s.open(place, b)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errDamaged) || grown > maxContent/2 {
		t.Errorf("%v, %d bytes allocated", err, grown)
	}
}
