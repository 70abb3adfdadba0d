package uagents

import "testing"

// TestTimesOfUTC: the form that most write is read without the expression for
// all forms, and means what it says there.
func TestTimesOfUTC(t *testing.T) {
	for text, quick := range map[string]bool{
		"2026-01-02T03:04:05.678901+00:00":  true,
		"2026-01-02T03:04:05+00:00":         true,
		"2024-02-29T23:59:59.000001+00:00":  true,
		"2026-02-29T03:04:05+00:00":         false,
		"2026-01-02T24:04:05+00:00":         false,
		"2026-13-02T03:04:05+00:00":         false,
		"0000-01-02T03:04:05+00:00":         false,
		"2026-01-02T03:04:05.67890+00:00":   false,
		"2026-01-02 03:04:05+00:00":         false,
		"2026-01-02T03:04:05Z":              false,
		"2026-01-02T03:04:05.678901+05:30":  false,
		"2026-01-02T03:04:05,678901+00:00":  false,
		"2026-01-02T03:04:0a+00:00":         false,
		"2026-01-02T03:04:05.678901+00:00 ": false,
	} {
		got, ok := utcTime(text)
		if ok != quick {
			t.Errorf("%s: read at once: %v", text, ok)
		}
		if !ok {
			continue
		}
		// The same time, in a form that only the expression knows.
		slow, err := timestampOf(&node{kind: '"', text: text[:10] + " " + text[11:]})
		if err != nil || !got.Equal(slow.Time) || got.Naive != slow.Naive || got.String() != text {
			t.Errorf("%s: %s, and %s %v", text, got, slow, err)
		}
	}
}
