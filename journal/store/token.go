package store

import (
	"encoding/hex"
	"strings"
)

// Token encodes a name as one token of a NATS subject. Letters, digits and "-"
// stay; other bytes become "_" and two hexadecimal digits; the empty name becomes
// "_". Keys in backups and subjects of package jetstream are encoded so.
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

// KeyTokens encodes a bucket and a key, separated by dots. Each part of the key
// between slashes is a token, so that a prefix that ends in "/" is one of tokens.
func KeyTokens(bucket, key string) string {
	out := Token(bucket)
	for part := range strings.SplitSeq(key, "/") {
		out += "." + Token(part)
	}
	return out
}

// ParseKeyTokens decodes the result of KeyTokens; ok is false if s is not one.
func ParseKeyTokens(s string) (bucket, key string, ok bool) {
	names := strings.Split(s, ".")
	ok = len(names) > 1
	for i := range names {
		var is bool
		names[i], is = untoken(names[i])
		ok = ok && is
	}
	return names[0], strings.Join(names[1:], "/"), ok
}

// untoken decodes a Token; false: s is not a token.
func untoken(s string) (string, bool) {
	if s == "_" {
		return "", true
	}
	first, rest, escaped := strings.Cut(s, "_")
	if !escaped {
		return s, true
	}
	out := []byte(first)
	for part := range strings.SplitSeq(rest, "_") {
		if len(part) < 2 {
			return "", false
		}
		c, err := hex.DecodeString(part[:2])
		if err != nil {
			return "", false
		}
		out = append(append(out, c...), part[2:]...)
	}
	return string(out), true
}
