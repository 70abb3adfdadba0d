package readable

import "testing"

// TestShellWord: what needs no quotes has none.
func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"crew/scout": "crew/scout", "": "''", "a b": "'a b'", "it's": `'it'\''s'`,
		"$(x)": "'$(x)'", "agent://a.example:80": "agent://a.example:80", "~": "'~'",
		"a+b/c==": "a+b/c==", "=ls": "'=ls'", "é": "'é'", "\x1b": `$'\x1b'`} {
		if got := ShellWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
