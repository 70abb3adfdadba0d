package uagents

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// readAlike: what the reader takes, the library takes for the same, and what the
// reader leaves is either wrong or rare.
func readAlike(t *testing.T, text string) (fast bool) {
	t.Helper()
	var r reader
	got := r.read([]byte(text))
	want, err := slowly([]byte(text))
	switch {
	case got == nil:
		return false
	case err != nil:
		t.Errorf("%q is read, which is wrong: %v", text, err)
	case !reflect.DeepEqual(got, want):
		t.Errorf("%q is read as something else", text)
	}
	return true
}

var jsonTexts = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-0`, `12`, `-1.5e+10`, `1E-2`, `1e5`, `""`, `"a"`, "\"\u00e9\U0001f600\"", ` [ 1 , "b" , { "c" : null } ] `,
	"\t{\r\n\"a\":[[],{}]}\n", `{"a":1,"b":{"a":2}}`, `"\n\u00e9\ud83d\ude00\\\/\""`, `{"\u0061":1}`, `[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18]`,
	strings.Repeat("[", 64) + strings.Repeat("]", 64), "\"\x7f\u2028\"",
}

var badTexts = []string{
	``, ` `, `{`, `[`, `"`, `"a`, `{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `01`, `1.`, `.5`, `-`, `1e`, `1e+`, `+1`, `tru`, `nul`, `True`, `NaN`, `[1 2]`,
	`{"a":1 "b":2}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{a:1}`, `{1:2}`, "\"\x01\"", "\"\n\"", `"\x"`, `"\u12"`, `"\ud800"`, `"\udc00\ud800"`, "\"\xff\"", "\xef\xbb\xbf{}", `{} {}`, `[]]`,
	`"a"b`, "\x00", "1\x00", strings.Repeat("[", 65) + strings.Repeat("]", 65), `'a'`, `/**/1`, `"\`, `"\"`, `-a`, `--1`, `1-`, `0x1`, "\u00a01",
}

func TestReader(t *testing.T) {
	t.Parallel()
	for _, text := range jsonTexts {
		if !readAlike(t, text) {
			t.Errorf("%q is left, which is neither wrong nor rare", text)
		}
	}
	for _, text := range badTexts {
		if readAlike(t, text) {
			t.Errorf("%q is read", text)
		}
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	var many []string
	for i := range manyMembers + 1 {
		many = append(many, fmt.Sprintf(`"m%d":%d`, i, i))
	}
	if text := "{" + strings.Join(many[1:], ",") + "}"; !readAlike(t, text) {
		t.Errorf("%d members are left", manyMembers)
	}
	n, err := parse([]byte("{" + strings.Join(many, ",") + "}"))
	if err != nil || len(n.keys) != manyMembers+1 || n.get("m32").text != "32" {
		t.Errorf("%+v, %v", n, err)
	}
}

func FuzzReader(f *testing.F) {
	for _, text := range append(jsonTexts, badTexts...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { readAlike(t, text) })
}
