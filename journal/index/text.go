package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/parley-hub/parley"
)

// maxPreview bounds the characters of a preview.
const maxPreview = 120

// textOf is the searchable text of a message, at most limit bytes: its error's text
// and its parts of text.
func textOf(m *parley.Message, limit int) string {
	var b []byte
	add := func(s []byte) {
		if len(b) > 0 && len(b) < limit {
			b = append(b, '\n')
		}
		b = append(b, s[:min(len(s), limit-len(b))]...)
	}
	if m.Error != nil && m.Error.Text != "" {
		add([]byte(m.Error.Text))
	}
	for _, p := range m.Parts {
		if len(p.Data) > 0 && isText(p) {
			add(p.Data)
		}
	}
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "\ufffd"), "\x00", " ")
}

func isText(p parley.Part) bool {
	return p.IsJSON() || strings.HasPrefix(p.MediaType, "text/") || p.MediaType == ""
}

// previewOf is the beginning of a message's content, on one line.
func previewOf(m *parley.Message, text string) string {
	if m.Error == nil {
		for _, p := range m.Parts {
			if p.IsJSON() && len(p.Data) > 0 && p.Data[0] == '{' && !bytes.Contains(p.Data, []byte(`"text"`)) &&
				!bytes.Contains(p.Data, []byte(`"message"`)) {
				continue // saves the decoding
			}
			if s, ok := parley.OnlyText(p); ok {
				text = s
				break
			}
		}
	}
	return line(text, maxPreview)
}

// line puts a text on one line of at most n characters.
func line(s string, n int) string {
	// Most texts begin with bytes that stay as they are.
	plain := 0
	for plain < min(len(s), n-1) && s[plain] < 0x7f &&
		(s[plain] > ' ' || s[plain] == ' ' && plain > 0 && s[plain-1] != ' ') {
		plain++
	}
	if plain > 0 && s[plain-1] == ' ' {
		plain--
	}
	if plain == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(min(len(s), n+4))
	b.WriteString(s[:plain])
	space, count := false, plain
	for _, r := range s[plain:] {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			space = b.Len() > 0
			continue
		}
		if count >= n-1 && n > 1 {
			b.WriteString("…")
			break
		}
		if space {
			b.WriteByte(' ')
			count++
			space = false
		}
		b.WriteRune(r)
		count++
	}
	return b.String()
}

// traceID is the trace id of a W3C traceparent; nil: there is none.
func traceID(parent string) []byte {
	if len(parent) < 55 || parent[2] != '-' || parent[35] != '-' {
		return nil
	}
	b, err := hex.DecodeString(parent[3:35])
	if err != nil {
		return nil
	}
	return b
}

// traceKey parses a trace id from a user: 32 hexadecimal digits, with or without
// dashes; any other id is hashed, as the hub does.
func traceKey(s string) []byte {
	if t := traceID(s); t != nil {
		return t
	}
	if b, err := hex.DecodeString(strings.ToLower(strings.ReplaceAll(s, "-", ""))); err == nil && len(b) == 16 {
		return b
	}
	sum := sha256.Sum256([]byte(s))
	return sum[:16]
}

// words splits a search as the index does: runs of letters and digits.
func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.Co, r) && !unicode.IsMark(r)
	})
}

// term is a part of a search: words that follow each other, separated by one space;
// with star the last may have any ending.
type term struct {
	words string
	star  bool
}

// terms parses a search. All words must occur; words in quotes must follow each
// other; a star after a word stands for any ending. No other character has a meaning,
// so there are no syntax errors.
func terms(q string) (out []term) {
	phrase := false
	for part := range strings.SplitSeq(q, `"`) {
		pieces := []string{part}
		if !phrase {
			pieces = strings.Fields(part)
		}
		for _, p := range pieces {
			if w := words(p); len(w) > 0 {
				out = append(out, term{strings.Join(w, " "), !phrase && strings.HasSuffix(p, "*")})
			}
		}
		phrase = !phrase
	}
	return out
}

// match makes the FTS5 query of a search.
func match(q string) string {
	var b strings.Builder
	for _, t := range terms(q) {
		b.WriteString(` "` + t.words + `"`)
		if t.star {
			b.WriteByte('*')
		}
	}
	return b.String()
}

// contains searches a text as the index would.
func contains(text, q string) bool {
	have := " " + strings.Join(words(strings.ToLower(text)), " ") + " "
	for _, t := range terms(strings.ToLower(q)) {
		want := " " + t.words
		if !t.star {
			want += " "
		}
		if !strings.Contains(have, want) {
			return false
		}
	}
	return true
}

// snippet is the part of a text around the first word of a search, with found words
// between « and ».
func snippet(text, q string) string {
	terms := words(strings.ToLower(q))
	text = line(text, len(text)+2)
	lower := strings.ToLower(text)
	if len(lower) != len(text) {
		lower = text // lower case is of another length in some languages; then only the same case is marked
	}
	at := -1
	for _, t := range terms {
		if i := strings.Index(lower, t); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at < 0 {
		return line(text, maxPreview)
	}
	from := max(0, at-40)
	for from > 0 && !utf8.RuneStart(text[from]) {
		from--
	}
	to := min(len(text), at+80)
	for to < len(text) && !utf8.RuneStart(text[to]) {
		to++
	}
	var b strings.Builder
	if from > 0 {
		b.WriteString("…")
	}
	for i := from; i < to; {
		n := 0
		for _, t := range terms {
			if strings.HasPrefix(lower[i:], t) {
				n = max(n, len(t))
			}
		}
		if n == 0 {
			_, n = utf8.DecodeRuneInString(text[i:])
			b.WriteString(text[i : i+n])
		} else {
			b.WriteString("«" + text[i:i+n] + "»")
		}
		i += n
	}
	if to < len(text) {
		b.WriteString("…")
	}
	return b.String()
}
