package jsonx

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// quotedBack quotes a text and decodes it again.
func quotedBack(t *testing.T, s string) {
	t.Helper()
	quoted, err := AppendString(nil, s)
	if (err == nil) != utf8.ValidString(s) {
		t.Fatalf("%q is written %s, %v", s, quoted, err)
	}
	want := strings.ToValidUTF8(s, "\ufffd")
	if got, whole := Unquote(AppendText(nil, s)); err == nil && (got != want || !whole) {
		t.Fatalf("%q is read as %q, %t", s, got, whole)
	}
}

func TestUnquote(t *testing.T) {
	for quoted, want := range map[string]string{`""`: "", `"a"`: "a", `"\"\\\/\b\f\n\r\t"`: "\"\\/\b\f\n\r\t",
		`"\u00e9\u00E9\ud83d\ude00"`: "éé\U0001f600", `"\ufffd"`: "\ufffd"} {
		if got, whole := Unquote([]byte(quoted)); got != want || !whole {
			t.Errorf("%s is read as %q, %t", quoted, got, whole)
		}
	}
	for _, quoted := range []string{`"\ud800"`, `"\udc00"`, `"\ud800\n"`} {
		if got, whole := Unquote([]byte(quoted)); whole || !strings.HasPrefix(got, "\ufffd") {
			t.Errorf("%s is read as %q, %t", quoted, got, whole)
		}
	}
}

var quotedTexts = []string{`""`, `"a"`, `"\"\\\/\b\f\n\r\t"`, `"\u00e9\u00E9\ud83d\ude00"`, `"\ud800"`, `"\udc00"`,
	`"\ud800\ud800"`, `"\ud800\n"`, `"\u12"`, `"\u+123"`, `"\u00g0"`, `"\x"`, `"\`, `"\"`, `"\\"`, `"\\\"`,
	`"\ufffd"`, `"\ud83d\u00e9"`, "\"\x01\"", "\"a\\n\x01\"", "\"\\\x01\"", `"\u0000"`, "\"\\\xad\""}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "a \"quoted\" \\ text\n", "é\u2028\U0001f600", "\xff",
		"\x00\x1f\x20\x7f\x80"} {
		f.Add(s)
	}
	f.Fuzz(quotedBack)
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
