package uagents

import (
	"strings"
	"testing"
)

var jsonTexts = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-0`, `12`, `-1.5e+10`, `1E-2`, `1e5`, `""`, `"a"`,
	"\"\u00e9\U0001f600\"", ` [ 1 , "b" , { "c" : null } ] `,
	"\t{\r\n\"a\":[[],{}]}\n", `{"a":1,"b":{"a":2}}`, `"\n\u00e9\ud83d\ude00\\\/\""`, `{"\u0061":1}`,
	`[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18]`,
	strings.Repeat("[", 64) + strings.Repeat("]", 64), "\"\x7f\u2028\"",
}

var badTexts = []string{
	``, ` `, `{`, `[`, `"`, `"a`, `{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `01`, `1.`, `.5`, `-`, `1e`,
	`1e+`, `+1`, `tru`, `nul`, `True`, `NaN`, `[1 2]`,
	`{"a":1 "b":2}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{a:1}`, `{1:2}`, "\"\x01\"", "\"\n\"", `"\x"`, `"\u12"`,
	`"\ud800"`, `"\udc00\ud800"`, "\"\xff\"", "\xef\xbb\xbf{}", `{} {}`, `[]]`,
	`"a"b`, "\x00", "1\x00", strings.Repeat("[", 65) + strings.Repeat("]", 65),
	`'a'`, `/**/1`, `"\`, `"\"`, `-a`, `--1`, `1-`, `0x1`, "\u00a01",
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, text := range jsonTexts {
		if _, err := parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range badTexts {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
