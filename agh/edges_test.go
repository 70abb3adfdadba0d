package agh

import (
	"strings"
	"testing"
)

// AGH-022: a message in a thread has no direct_id, not even a well-formed one.
func TestThreadHasNoDirectID(t *testing.T) {
	t.Parallel()
	refuses(t, "thread with direct_id", with(sayText, "direct_id", "direct_"+strings.Repeat("0a", 16)), ReasonMalformed)
	accepts(t, "thread alone", sayText)
}
