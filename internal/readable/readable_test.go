package readable

import "testing"

// Texts of agents must not control the terminal.
func TestCleanOutput(t *testing.T) {
	t.Parallel()
	if got := Clean("a\x1b[31mb\u202ec\xff\n"); got != "a\uFFFD[31mb\uFFFDc\uFFFD\n" {
		t.Errorf("%q", got)
	}
	if got := Short(" a\n b\tc ", 10); got != "a b c" {
		t.Errorf("%q", got)
	}
	if got := Short("äöüäöü", 4); got != "äöü…" {
		t.Errorf("%q", got)
	}
}
