package samvad

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// ws is JavaScript's \s, which matches more than RE2's.
const ws = `[\t\n\v\f\r \x{00a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}]`

// The rules of SAMVAD's injection scan (§11), for text in ASCII lower case.
// The third, which needs a look-ahead, is [youAreNow].
var injectionRules = regexp.MustCompile(strings.ReplaceAll(
	`ignore\s+(?:all\s+)?(?:previous|prior|above)\s+(?:instruction|prompt|context)`+
		`|disregard\s+(?:your\s+)?(?:system\s+prompt|instruction|context)`+
		`|forget\s+(?:everything|all|your\s+instructions)`+
		`|new\s+instructions?:`+
		`|\[system\]`+
		`|override\s+(?:your\s+)?(?:previous\s+)?(?:instruction|behavior|directive)`+
		`|act\s+as\s+if\s+you\s+(?:have\s+no|are\s+not)`+
		`|jailbreak`+
		`|do\s+anything\s+now`, `\s`, ws))

var youAre = regexp.MustCompile(strings.ReplaceAll(`you\s+are\s+now\s(\s?)`, `\s`, ws))

// hints are words without which no rule can match.
var hints = [...]string{"ignore", "disregard", "you", "forget", "instruction", "[system]", "override", "jailbreak",
	"anything"}

func hinted(low string) bool {
	return slices.ContainsFunc(hints[:], func(h string) bool { return strings.Contains(low, h) })
}

// Suspicious reports whether a text matches one of the ten patterns that the SDKs
// scan for. They catch clumsy attacks and many honest texts: a filter that an
// operator may want, not a protection.
func Suspicious(text string) bool {
	low := asciiLower(text)
	return hinted(low) && (injectionRules.MatchString(low) || youAreNow(low))
}

// youAreNow is "you are now (a )?" not followed by one of three words. The
// SDKs' expression backtracks over its optional parts, so that those words
// save a text only when they follow a single white-space character.
func youAreNow(low string) bool {
	for at := 0; ; {
		m := youAre.FindStringSubmatchIndex(low[at:])
		if m == nil {
			return false
		}
		rest := low[at+m[1]:]
		if m[3] > m[2] { // a second white-space character
			return true
		}
		if !strings.HasPrefix(rest, "processing") && !strings.HasPrefix(rest, "analyzing") &&
			!strings.HasPrefix(rest, "reviewing") {
			return true
		}
		at += m[1]
	}
}

// scanPayload reports whether any string value in a JSON value, at any depth,
// is [Suspicious]. Member names are not looked at.
func scanPayload(v json.RawMessage) bool {
	if bytes.IndexByte(v, '\\') < 0 && !hinted(asciiLower(string(v))) {
		return false
	}
	tree, err := parseTree(v)
	if err != nil && tree == nil {
		return false
	}
	return scanTree(tree)
}

func scanTree(v any) bool {
	switch v := v.(type) {
	case string:
		return Suspicious(v)
	case []any:
		return slices.ContainsFunc(v, scanTree)
	case map[string]any:
		for _, m := range v {
			if scanTree(m) {
				return true
			}
		}
	}
	return false
}

// asciiLower folds A to Z only, as the SDKs' expressions do.
func asciiLower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
