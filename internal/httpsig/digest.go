package httpsig

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"
)

// Digest gives the Content-Digest value of body: one member, sha-256.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// CheckDigest compares a Content-Digest value with body. The sha-256 member
// must be there ([ErrNoDigest]), and every member whose algorithm is known
// (sha-256, sha-512) must match ([ErrDigest]); others are ignored, as RFC 9530
// §2 asks.
func CheckDigest(value string, body []byte) error {
	sum := sha256.Sum256(body)
	if b64, ok := strings.CutPrefix(value, "sha-256=:"); ok && len(b64) == 45 && b64[44] == ':' {
		var want [44]byte
		base64.StdEncoding.Encode(want[:], sum[:])
		if b64[:44] == string(want[:]) {
			return nil
		}
	}
	d, err := httpsfv.UnmarshalDictionary([]string{pad(value)})
	if err != nil {
		return fmt.Errorf("%w: Content-Digest: %w", ErrSyntax, err)
	}
	if _, ok := d.Get("sha-256"); !ok {
		return ErrNoDigest
	}
	for _, name := range d.Names() {
		var want []byte
		switch name {
		case "sha-256":
			want = sum[:]
		case "sha-512":
			long := sha512.Sum512(body)
			want = long[:]
		default:
			continue
		}
		m, _ := d.Get(name)
		item, ok := m.(httpsfv.Item)
		if !ok {
			return fmt.Errorf("%w: Content-Digest: %q is no item", ErrSyntax, name)
		}
		got, ok := item.Value.([]byte)
		if !ok {
			return fmt.Errorf("%w: Content-Digest: %q is no byte sequence", ErrSyntax, name)
		}
		if subtle.ConstantTimeCompare(got, want) != 1 {
			return fmt.Errorf("%w: %s", ErrDigest, name)
		}
	}
	return nil
}
