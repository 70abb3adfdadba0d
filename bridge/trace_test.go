package bridge

import (
	"strings"
	"testing"
)

func TestTraceForms(t *testing.T) {
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for s, want := range map[string]bool{
		trace: true, trace[:31]: false, trace + "0": false, strings.ToUpper(trace): false,
		strings.Repeat("0", 32): false, "": false,
		"0af76519-16cd-43dd-8448-eb211c80319c": false, "0af7651916cd43dd8448eb211c80319g": false,
		"0af7651916cd43d\nd8448eb211c80319": false,
	} {
		if IsTraceID(s) != want {
			t.Errorf("IsTraceID(%q) = %v", s, !want)
		}
	}
	for s, want := range map[string]bool{
		"00-" + trace + "-" + span + "-01": true, "00-" + trace + "-" + span + "-00": true,
		"01-" + trace + "-" + span + "-01": false, "00-" + trace + "-" + span: false, "00-" + trace + "-" +
			strings.Repeat("0", 16) + "-01": false,
		"00-" + trace + "-" + span + "-0g": false, "00-" + trace + "-" + span + "-01-x": false, trace: false, "": false,
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01": false,
	} {
		if IsTraceParent(s) != want {
			t.Errorf("IsTraceParent(%q) = %v", s, !want)
		}
	}
}
