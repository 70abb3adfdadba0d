package bridge

import "strings"

// IsTraceID reports whether a text is a trace id of W3C trace context: 32
// digits of lower-case hexadecimal, not all zero.
func IsTraceID(s string) bool { return lowerHex(s, 32) }

// IsTraceParent reports whether a text is a traceparent of W3C trace context,
// version 00.
func IsTraceParent(s string) bool {
	p := strings.Split(s, "-")
	return len(s) == 55 && len(p) == 4 && p[0] == "00" && lowerHex(p[1], 32) && lowerHex(p[2], 16) && len(p[3]) == 2 &&
		strings.Trim(p[3], "0123456789abcdef") == ""
}

func lowerHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}
