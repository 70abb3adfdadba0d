package store

import (
	"strings"
	"testing"
)

// TestToken: tokens have the form used in backups, which must not change.
func TestToken(t *testing.T) {
	for name, token := range map[string]string{
		"": "_", "a-Z9": "a-Z9", "_": "_5f", "a.b": "a_2eb", "/": "_2f", "\xff\x00": "_ff_00", "ä": "_c3_a4",
	} {
		if got := Token(name); got != token {
			t.Errorf("the token of %q is %q, want %q", name, got, token)
		}
		if got, ok := untoken(token); !ok || got != name {
			t.Errorf("token %q is parsed as %q, %v, want %q", token, got, ok, name)
		}
	}
	for _, bad := range []string{"__", "_5", "a_", "_5g", "_2e_", "__2e"} {
		if got, ok := untoken(bad); ok {
			t.Errorf("the invalid token %q is parsed as %q", bad, got)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add("a/b_c")
	f.Fuzz(func(t *testing.T, name string) {
		token := Token(name)
		if got, ok := untoken(token); !ok || got != name || strings.ContainsAny(token, ".*> ") {
			t.Errorf("the token of %q is %q, which is parsed as %q, %v", name, token, got, ok)
		}
	})
}
