package spelling

import (
	"strings"
	"testing"
)

// TestNearest: a slip of the fingers or the beginning of a name finds it; another word finds nothing.
func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"weather", "museum", "crew/scout", "add", "show", "web"}
	for name, want := range map[string]string{"wether": "weather", "waether": "weather", "WEATHER": "weather",
		"weath": "weather", "musuem": "museum", "crew/scoot": "crew/scout", "ad": "add", "shwo": "show",
		"train": "", "x": "", "": "", "operator": "", "weather": "", strings.Repeat("a", 1<<20): ""} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%.20q: %q, want %q", name, got, want)
		}
	}
	if got := DidYouMean("wether", known); got != `; did you mean "weather"?` {
		t.Error(got)
	}
	if got := DidYouMean("train", known); got != "" {
		t.Error(got)
	}
}
