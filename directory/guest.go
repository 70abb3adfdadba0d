package directory

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// GuestName names a proved sender that is not in the directory:
// "guest/<protocol>/<id>", with the id made to fit a name, and eight digits of a hash
// of id and key fingerprint, so that two senders with one id and different keys have
// two names.
func GuestName(protocol, id, fingerprint string) string {
	sum := sha256.Sum256([]byte(protocol + "\x00" + id + "\x00" + fingerprint))
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimPrefix(id, "agent://")) {
		if b.Len() >= 64 {
			break
		}
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || b.Len() > 0 && r == '.' {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && s[len(s)-1] != '-' {
			b.WriteByte('-')
		}
	}
	if b.Len() > 0 {
		b.WriteByte('-')
	}
	return "guest/" + protocol + "/" + b.String() + hex.EncodeToString(sum[:4])
}
