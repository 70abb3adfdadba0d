package readable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxArgument bounds one argument of a command: Linux takes at most 128 KiB.
const maxArgument = 100 << 10

// ShellWords writes texts as the words of a command.
func ShellWords(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = ShellWord(w)
	}
	return strings.Join(out, " ")
}

// ShellWord writes a text as one word of a shell. Characters that a terminal would not show as they are stand as escapes.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:+,=", r)
	}
	switch {
	case s != "" && s[0] != '=' && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }):
		return s
	case utf8.ValidString(s) && !strings.ContainsFunc(s, unseen):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1 || unseen(r):
			for _, c := range []byte(s[:n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		case r == '\'' || r == '\\':
			b.WriteString(`\` + s[:n])
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String() + "'"
}

// unseen reports whether a character controls a terminal, or changes how others look.
func unseen(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf))
}

// CurlCommand writes a curl command of several lines. Headers are words of a shell: see [ShellWord]. A body that is too
// large for an argument is read from a file of that name.
func CurlCommand(method, url string, headers []string, body []byte, file string) string {
	out := "curl -X " + ShellWord(method) + " " + ShellWord(url)
	if strings.ContainsAny(url, "[]{}") {
		out += " --globoff"
	}
	if strings.Contains(url, "/.") { // curl would resolve . and .. in the path, which may be signed
		out += " --path-as-is"
	}
	for _, h := range headers {
		out += " \\\n  -H " + h
	}
	switch {
	case len(body) > maxArgument:
		out += " \\\n  --data-binary @" + ShellWord(file)
	case len(body) > 0:
		out += " \\\n  --data-raw " + ShellWord(string(body))
	}
	return out
}
