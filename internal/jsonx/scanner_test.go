package jsonx

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// strict is a whole reader of JSON made of the Scanner's pieces: what it takes,
// and why not.
func strict[T string | []byte](s *Scanner[T], depth int) error {
	bad := func(ok bool) error {
		if ok {
			return nil
		}
		return ErrSyntax
	}
	switch c := s.Next(); c {
	case '{', '[':
		if s.Take(c); depth == 0 {
			return ErrDepth
		}
		end := c + 2
		if s.Take(end) {
			return nil
		}
		names := map[string]bool{}
		for {
			if c == '{' {
				name, ok := s.Text()
				if !ok || !s.Take(':') {
					return ErrSyntax
				}
				if names[name] {
					return ErrDuplicate
				}
				names[name] = true
			}
			if err := strict(s, depth-1); err != nil {
				return err
			}
			if !s.Take(',') {
				return bad(s.Take(end))
			}
		}
	case '"':
		_, ok := s.Text()
		return bad(ok)
	case 't':
		return bad(s.Literal("true"))
	case 'f':
		return bad(s.Literal("false"))
	case 'n':
		return bad(s.Literal("null"))
	}
	literal, ok := s.Number()
	if _, err := strconv.ParseFloat(string(literal), 64); ok && errors.Is(err, strconv.ErrSyntax) {
		return errors.New("no number: " + string(literal))
	}
	return bad(ok)
}

// scannedAlike compares it, and Valid, with the library.
func scannedAlike(t *testing.T, text string) {
	t.Helper()
	want := Valid([]byte(text), 50)
	s, b := Scan(text), Scan([]byte(text))
	got, again := strict(&s, 50), strict(&b, 50)
	if got != again || s.Offset() != b.Offset() {
		t.Fatalf("%q: %v at %d of a string, %v at %d of bytes", text, got, s.Offset(), again, b.Offset())
	}
	if skim := Scan(text); got == nil { // what is JSON it takes whole
		if value, ok := skim.Skim(); !ok || skim.Offset() != s.Offset() ||
			value != strings.TrimLeft(text[:s.Offset()], " \t\r\n") {
			t.Fatalf("of %q it took %q, %v", text, value, ok)
		}
	}
	if got == nil && (!s.End() || !utf8.ValidString(text)) {
		got = ErrTrailing
	}
	if (got == nil) != (want == nil) {
		t.Fatalf("%q: %v, want %v", text, got, want)
	}
}

var scannedTexts = []string{
	``, ` `, `{}`, `[]`, "\t{ \r\n} ", `null`, `true`, `false`, `nul`, `nulll`, `True`, `0`, `-0`, `00`, `01`, `-`,
	`-a`, `1.`, `.1`, `1.5`, `1e`, `1e+`, `1E-07`, `1e5.`, `+1`, `--1`, `0x1`, `NaN`,
	`""`, `"a`, `"`, `"a\"`, `"\u00e9"`, `"\ud800"`, "\"\n\"", "\"\x7f\u2028\"", "\"\xff\"", "\xef\xbb\xbf{}",
	`{"a":1}`, `{"a" : [ 1 , {"b":null} ] }`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `[1 2]`, `{"a"}`, `{"a":}`,
	`{a:1}`, `{1:2}`,
	`"\u0001\b\t\n\f\r\u001f\"\\"`, `"\u001F"`, `"\u0008"`, `"\u0009"`, `"\u0022"`, `"\u0041"`, `"\/"`,
	`"\ud83d\ude00"`, `{"\n":1}`, `{"a":1,"b":[1,"x\"y"],"c":-1.50E+3}`, `{"a":1} `, ` 1`, `[1, 2]`, `{"a" :1}`,
	`{"a": 1}`, `[ ]`,
	`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{} {}`, `[]]`, `[}`, `{]`, `1 `, "1\x00", "\x00", "\u00a01", `"a"b`,
	`{"a":{"a":1}}`, `[[[[[[]]]]]]`, `// x`, `'a'`, "\v1", "[1,\f2]",
}

func TestScanner(t *testing.T) {
	for _, text := range append(scannedTexts, quotedTexts...) {
		scannedAlike(t, text)
	}
	var members strings.Builder
	for i := range 70 { // more than are looked at in one pass
		fmt.Fprintf(&members, `"m%d":{"a":%d},`, i, i)
		scannedAlike(t, "{"+members.String()+`"n":1}`)
		scannedAlike(t, "{"+members.String()+`"m0":1}`)
		scannedAlike(t, "{"+members.String()+`"m\u0030":1}`)
	}
	for _, text := range []string{`{"a":{"b":1,"c":{"b":2}},"b":3,"c":[{"a":1},{"a":2}]}`, `{"a":{"b":1,"b":2}}`,
		`[{"a":1},{"a":1,"a":1}]`, `{"b":{"a":1},"b":2}`} {
		scannedAlike(t, text)
	}
	scannedAlike(t, strings.Repeat("[", 50)+strings.Repeat("]", 50))
	scannedAlike(t, strings.Repeat("[", 51)+strings.Repeat("]", 51))
}

// Skim takes too much, but nothing that is not there.
func TestSkim(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":[}}]`: `{"a":[}}`, ` [1,,{]]]`: `[1,,{]]`, `{x"}"} `: `{x"}"}`, `"a"b`: `"a"`, "1.5x": "1.5", `[`: "",
		`{"a}`: "", "{\"\n\"}": "", `]`: "", `nul`: "", ``: "", `{"\"}"}1`: `{"\"}"}`,
	} {
		s := Scan(text)
		if value, ok := s.Skim(); value != want || ok != (want != "") {
			t.Errorf("of %q it took %q, %v", text, value, ok)
		}
	}
}

func TestMembers(t *testing.T) {
	for _, text := range append(scannedTexts, ` {"a" : [ 1 ,{"b":2}], "\u0062":"x", "":null } `, `{"a":1}x`, `{"a":1`) {
		var want map[string]Value
		err := Decode([]byte(text), &want)
		got := map[string]Value{}
		ok := Members([]byte(text), func(name string, v Value) bool {
			got[name] = v
			return true
		})
		if err == nil && (want != nil) != ok || err == nil && ok &&
			!maps.EqualFunc(got, want, func(a, b Value) bool { return string(a) == string(b) }) {
			t.Errorf("%q has %v, %t; want %v, %v", text, got, ok, want, err)
		}
		for _, name := range []string{"a", "b", ""} {
			if v := Member([]byte(text), name); string(v) != string(want[name]) && err == nil ||
				err != nil && v != nil {
				t.Errorf("%q in %q is %q; want %q", name, text, v, want[name])
			}
		}
	}
	n := 0
	if ok := Members([]byte(`{"a":1,"b":2,nonsense`), func(string, Value) bool { n++; return n < 2 }); !ok || n != 2 {
		t.Errorf("%t after %d", ok, n)
	}
}

func TestScannerAllocatesNothing(t *testing.T) {
	text := `{"name": "a text without escapes", "n": -12.5e3, "list": [true, null]}`
	if n := testing.AllocsPerRun(100, func() {
		s := Scan(text)
		if !s.Take('{') {
			t.Error("no object")
		}
		if name, escaped, ok := s.String(); !ok || escaped || name != "name" || !s.Take(':') {
			t.Error("no name")
		}
		if value, ok := s.Text(); !ok || value != "a text without escapes" || !s.Take(',') {
			t.Error("no text")
		}
		if name, _, ok := s.String(); !ok || name != "n" || !s.Take(':') {
			t.Error("no second name")
		}
		if n, ok := s.Number(); !ok || n != "-12.5e3" || !s.Take(',') {
			t.Error("no number")
		}
		if name, _, ok := s.String(); !ok || name != "list" || !s.Take(':') || !s.Take('[') || !s.Literal("true") ||
			!s.Take(',') || !s.Literal("null") || !s.Take(']') || !s.Take('}') || !s.End() {
			t.Error("no list")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestReplace: only the string at the path changes, as often as its name stands there.
func TestReplace(t *testing.T) {
	by := func(text string) string {
		if text != "se\"cret" {
			t.Errorf("the text is %q", text)
		}
		return "digest"
	}
	for _, c := range []struct{ in, want string }{
		{`{"auth":{"token":"se\"cret"}}`, `{"auth":{"token":"digest"}}`},
		{" {\t\"p\" : {\"auth\":{\"token\":\"se\\\"cret\"}} , \"auth\" : {\"x\":[{}], \"token\" : \"\\u0073e\\u0022cret\" }\n}\n",
			" {\t\"p\" : {\"auth\":{\"token\":\"se\\\"cret\"}} , \"auth\" : {\"x\":[{}], \"token\" : \"digest\" }\n}\n"},
		{`{"\u0061uth":{"tok\u0065n":"se\"cret"},"z":1}`, `{"\u0061uth":{"tok\u0065n":"digest"},"z":1}`},
		{`{"text":"\"auth\":{\"token\":\"x\"}","auth":{"token":"se\"cret"}}`,
			`{"text":"\"auth\":{\"token\":\"x\"}","auth":{"token":"digest"}}`},
		{`{"auth":{"token":""}}`, ""},
		{`{"auth":{"token":null}}`, ""},
		{`{"auth":{"Token":"x"}}`, ""},
		{`{"auth":{}}`, ""},
		{`{"auth":"token"}`, ""},
		{`{}`, ""},
		{`["auth"]`, ""},
		{``, ""},
		{`{"auth":{"token":"se\"cret"},"auth":{"token":1,"token":"se\"cret"}}`,
			`{"auth":{"token":"digest"},"auth":{"token":1,"token":"digest"}}`},
		{`{"\ud800":{},"auth":{"token":"se\"cret"}}`, `{"\ud800":{},"auth":{"token":"digest"}}`},
	} {
		got, ok := Replace([]byte(c.in), by, "auth", "token")
		if ok != (c.want != "") || ok && string(got) != c.want || !ok && string(got) != c.in {
			t.Errorf("%s became %s, %v", c.in, got, ok)
		}
	}
}

// What is checked most costs no allocation.
func TestValidAllocatesNothing(t *testing.T) {
	text := []byte(`{"text": "a \"text\"\n", "intent": "request", "artifacts": [{"type": "git-ref", "n": [1, -2.5, true, null, {}]}]}`)
	if n := testing.AllocsPerRun(100, func() {
		if err := Valid(text, 0); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzScanner(f *testing.F) {
	for _, text := range append(scannedTexts, quotedTexts...) {
		f.Add(text)
	}
	f.Fuzz(scannedAlike)
}

func BenchmarkValid(b *testing.B) {
	text := []byte(`{"text":"` + strings.Repeat("Run the test. ", 40) +
		`","intent":"request","artifacts":[{"type":"git-ref","repo":"github.com/acme/app","n":[1,-2.5,true,null]}]}`)
	buf := make([]byte, 0, 4096)
	for name, f := range map[string]func([]byte, int) error{
		"valid":   Valid,
		"compact": func(b []byte, _ int) error { _, err := AppendCompact(buf, b); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := f(text, MaxDepth); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
