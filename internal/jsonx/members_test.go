package jsonx

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// foundAlike compares members and elements with those that the library decodes.
func foundAlike(t *testing.T, text string) {
	t.Helper()
	b := []byte(text)
	valid := Valid(b, 0) == nil
	members := map[string]Value{}
	isObject := Members(b, func(name string, v Value) bool { members[name] = v; return true })
	var elements []Value
	isArray := Elements(b, func(v Value) bool { elements = append(elements, v); return true })
	if !valid {
		return // it must only not panic
	}
	var object map[string]Value
	var array []Value
	if kind := Value(b).Kind(); isObject != (kind == '{') || isArray != (kind == '[') {
		t.Fatalf("%q: object %t, array %t", text, isObject, isArray)
	}
	if isObject && (Decode(b, &object) != nil || !maps.EqualFunc(members, object, sameValue)) {
		t.Fatalf("%q has the members %s, want %s", text, members, object)
	}
	if isArray && (Decode(b, &array) != nil || !slices.EqualFunc(elements, array, sameValue)) {
		t.Fatalf("%q has the elements %s, want %s", text, elements, array)
	}
}

func sameValue(a, b Value) bool { return string(a) == string(b) }

var jsonTexts = []string{
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

func TestMembersAndElements(t *testing.T) {
	for _, text := range append(jsonTexts, quotedTexts...) {
		foundAlike(t, text)
	}
	var members strings.Builder
	for i := range 70 { // more than are looked at in one pass
		fmt.Fprintf(&members, `"m%d":{"a":%d},`, i, i)
		foundAlike(t, "{"+members.String()+`"n":1}`)
		foundAlike(t, "{"+members.String()+`"m0":1}`)
		foundAlike(t, "{"+members.String()+`"m\u0030":1}`)
	}
	for _, text := range []string{`{"a":{"b":1,"c":{"b":2}},"b":3,"c":[{"a":1},{"a":2}]}`, `{"a":{"b":1,"b":2}}`,
		`[{"a":1},{"a":1,"a":1}]`, `{"b":{"a":1},"b":2}`} {
		foundAlike(t, text)
	}
	foundAlike(t, strings.Repeat("[", 50)+strings.Repeat("]", 50))
	foundAlike(t, strings.Repeat("[", 51)+strings.Repeat("]", 51))
}

// The end of a value that is not JSON is found too late, but never behind the text.
func TestElementsOfNoJSON(t *testing.T) {
	for text, want := range map[string]string{
		`[{"a":[}},1]`: `{"a":[}}`, `[[1,,{]] ,]`: `[1,,{]]`, `[1.5x]`: "1.5x", `[nul]`: "nul", `[{"\"}"}]`: `{"\"}"}`,
		`[[`: "", `[{"a}]`: "", "[{\"\n\"}]": "", `[,1]`: "", `[`: "", ``: "", `{"a":1}`: "",
	} {
		got := ""
		Elements([]byte(text), func(v Value) bool { got = string(v); return false })
		if got != want {
			t.Errorf("of %q it took %q, want %q", text, got, want)
		}
	}
}

func TestMembers(t *testing.T) {
	for _, text := range append(jsonTexts, ` {"a" : [ 1 ,{"b":2}], "\u0062":"x", "":null } `, `{"a":1}x`, `{"a":1`) {
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

func TestPlacesAllocatesNothing(t *testing.T) {
	b := []byte(`{"name": "a text without escapes", "n": -12.5e3, "list": [true, null]}`)
	if n := testing.AllocsPerRun(100, func() {
		last := Place{}
		if !Places(b, func(_, v Place) bool { last = v; return true }) || string(last.Of(b)) != "[true, null]" {
			t.Error("the last member is not found")
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

func FuzzMembers(f *testing.F) {
	for _, text := range append(jsonTexts, quotedTexts...) {
		f.Add(text)
	}
	f.Fuzz(foundAlike)
}

func BenchmarkValid(b *testing.B) {
	text := []byte(`{"text":"` + strings.Repeat("Run the test. ", 40) +
		`","intent":"request","artifacts":[{"type":"git-ref","repo":"github.com/acme/app","n":[1,-2.5,true,null]}]}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Valid(text, MaxDepth); err != nil {
			b.Fatal(err)
		}
	}
}

func TestElementPlaces(t *testing.T) {
	t.Parallel()
	const text = ` [1, {"a":[2]} ,"]"]`
	var got []string
	if !ElementPlaces([]byte(text), func(p Place) bool { got = append(got, text[p.From:p.To]); return true }) {
		t.Error("no array")
	}
	if want := []string{"1", `{"a":[2]}`, `"]"`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
