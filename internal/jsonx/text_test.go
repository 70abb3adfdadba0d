package jsonx

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// quotedAlike compares AppendString with the library, and what the Scanner reads
// of it with what went in.
func quotedAlike(t *testing.T, s string) {
	t.Helper()
	want, wantErr := jsontext.AppendQuote([]byte("x"), s)
	got, err := AppendString([]byte("x"), s)
	if (err != nil) != (wantErr != nil) || string(got) != string(want) {
		t.Fatalf("%q is written %s, %v; want %s, %v", s, got, err, want, wantErr)
	}
	if err != nil {
		return
	}
	if got := AppendText([]byte("x"), s); string(got) != string(want) {
		t.Fatalf("%q is written %s; want %s", s, got, want)
	}
	c := Scan(string(want[1:]))
	if back, ok := c.Text(); !ok || back != s || !c.End() {
		t.Fatalf("%s is read as %q, %v", want, back, ok)
	}
}

func TestAppendString(t *testing.T) {
	for i := range 256 {
		for _, pad := range []int{0, 1, 3, 7, 8, 9, 15, 16} {
			for _, behind := range []string{"", "z", "zzzzzzzz", "\x1f", "\""} {
				quotedAlike(t, strings.Repeat("a", pad)+string([]byte{byte(i)})+behind)
			}
		}
		for j := range 256 { // what a byte has to do with the one before it
			quotedAlike(t, "aaa"+string([]byte{byte(i), byte(j)})+"aaa")
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "hello, world", "\"", "\\", "\n", "\x00", "\x1f", " ", "\x7f", "é", "\u2028", "\U0001f600",
		"\ufffd", "<&>", "\xff", "\xc3", "\xed\xa0\x80"}
	for range 20000 {
		var s strings.Builder
		for range random.IntN(12) {
			s.WriteString(pieces[random.IntN(len(pieces))])
		}
		quotedAlike(t, s.String())
	}
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain", "a \"quoted\" \\ text\n", "é\u2028\U0001f600", "\xff",
		"\x00\x1f\x20\x7f\x80"} {
		f.Add(s)
	}
	f.Fuzz(quotedAlike)
}

// unquotedAlike compares what the Scanner reads of a string with the library.
func unquotedAlike(t *testing.T, text string) {
	t.Helper()
	s := Scan(text)
	inside, escaped, ok := s.String()
	if !ok || s.Offset() != len(text) || !strings.HasPrefix(text, `"`) {
		return
	}
	if text != `"`+inside+`"` {
		t.Fatalf("%q has %q between its quotes", text, inside)
	}
	if escaped != strings.Contains(inside, `\`) {
		t.Fatalf("%q: escaped is %t", text, escaped)
	}
	want, err := jsontext.AppendUnquote(nil, text)
	if _, invalid := AppendString(nil, text); invalid != nil {
		return // not UTF-8, which is not looked at
	}
	s, b := Scan(text), Scan([]byte(text))
	got, ok := s.Text()
	again, okAgain := b.Text()
	if ok != (err == nil) || ok && got != string(want) || ok != okAgain || got != again {
		t.Fatalf("%q says %q, %v (%q, %v); want %q, %v", text, got, ok, again, okAgain, want, err)
	}
}

func TestText(t *testing.T) {
	for _, text := range quotedTexts {
		unquotedAlike(t, text)
	}
	random := rand.New(rand.NewPCG(3, 4))
	pieces := []string{`\`, `"`, `\u`, `d8`, `3d`, `\ude00`, `\ud83d`, `00e9`, `n`, `\n`, `\/`, `x`, `é`, `\udc00`,
		`+1`, `F`, `plain text`}
	for range 50000 {
		text := `"`
		for range random.IntN(8) {
			text += pieces[random.IntN(len(pieces))]
		}
		unquotedAlike(t, text+`"`)
	}
}

var quotedTexts = []string{`""`, `"a"`, `"\"\\\/\b\f\n\r\t"`, `"\u00e9\u00E9\ud83d\ude00"`, `"\ud800"`, `"\udc00"`,
	`"\ud800\ud800"`, `"\ud800\n"`, `"\u12"`, `"\u+123"`, `"\u00g0"`, `"\x"`, `"\`, `"\"`, `"\\"`, `"\\\"`,
	`"\ufffd"`, `"\ud83d\u00e9"`, "\"\x01\"", "\"a\\n\x01\"", "\"\\\x01\"", `"\u0000"`, "\"\\\xad\""}

func FuzzText(f *testing.F) {
	for _, text := range quotedTexts {
		f.Add(text)
	}
	f.Fuzz(unquotedAlike)
}

func BenchmarkAppendString(b *testing.B) {
	buf := make([]byte, 0, 4096)
	for name, s := range map[string]string{"short": "crew/weather", "text": strings.Repeat("Run the test. ", 50),
		"escaped": strings.Repeat(`{"a":"b"} `, 50), "umlauts": strings.Repeat("Prüfe es früh. ", 50)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				if _, err := AppendString(buf, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Only halves alone are replaced, at their place; what is then strict is whole.
func TestReplaceHalves(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"cut \ud83d"}`:               `{"a":"cut \ufffd"}`,
		`{"\uDE00":"\ud83d\ud83d\ude00"}`:  `{"\ufffd":"\ufffd\ud83d\ude00"}`,
		`["\\ud83d","\ud83d\\ude00"]`:      `["\\ud83d","\ufffd\\ude00"]`,
		`["\ud83d\n","\ud83d\u0041","\""]`: `["\ufffd\n","\ufffd\u0041","\""]`,
		`["\ud83d\ude00","\u00e9"]`:        "",
		`{}`:                               "",
		``:                                 "",
		`{"\ud83d":1,"\ud83e":2}`:          `{"\ufffd":1,"\ufffd":2}`,
		`["\ud83d`:                         `["\ufffd`,
		`\ud83d`:                           "",
	} {
		got, replaced := ReplaceHalves([]byte(in))
		if replaced != (want != "") || replaced && string(got) != want || !replaced && string(got) != in {
			t.Errorf("%s became %s, %t", in, got, replaced)
		}
		whole, was, err := Whole([]byte(in))
		if ok := Valid(got, 0) == nil; ok != (err == nil) || ok && (string(whole) != string(got) || was != replaced) {
			t.Errorf("%s is whole as %s, %t, %v", in, whole, was, err)
		}
	}
}
