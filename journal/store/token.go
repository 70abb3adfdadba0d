package store

import (
	"encoding/hex"
	"strings"
)

// Token writes a name as one token of a subject: letters, digits and - as they are,
// other bytes as _ and two hexadecimal digits; "_" alone for nothing.
func Token(s string) string {
	if s == "" {
		return "_"
	}
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('_')
		b.WriteString(hex.EncodeToString([]byte{c}))
	}
	return b.String()
}

// Untoken reads what Token wrote.
func Untoken(s string) (name string, ok bool) {
	if s == "_" {
		return "", true
	}
	name, rest, coded := strings.Cut(s, "_")
	for coded {
		if len(rest) < 2 {
			return "", false
		}
		c, err := hex.DecodeString(rest[:2])
		if err != nil {
			return "", false
		}
		var plain string
		plain, rest, coded = strings.Cut(rest[2:], "_")
		name += string(c) + plain
	}
	return name, true
}
