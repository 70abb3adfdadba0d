package jsonx

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestStrict(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"object", `{"a":1}`, nil},
		{"scalar", ` 7 `, nil},
		{"empty", "", ErrEmpty},
		{"blank", " \n", ErrEmpty},
		{"bom", "\xef\xbb\xbf{}", ErrBOM},
		{"trailing", `{} {}`, ErrTrailing},
		{"duplicate", `{"a":1,"a":2}`, ErrDuplicate},
		{"duplicate escaped", `{"a":1,"\u0061":2}`, ErrDuplicate},
		{"duplicate nested", `{"b":[{"a":1,"a":2}]}`, ErrDuplicate},
		{"utf8", "\"\xff\"", ErrUTF8},
		{"lone surrogate", `"\ud800"`, ErrSyntax},
		{"depth", strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1), ErrDepth},
		{"depth ok", strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), nil},
		{"NaN", `NaN`, ErrSyntax},
		{"leading zero", `{"a":01}`, ErrSyntax},
		{"comment", `{}//`, ErrTrailing},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Valid([]byte(c.in), 0); !errors.Is(err, c.want) {
				t.Errorf("Valid(%.40q) = %v, want %v", c.in, err, c.want)
			}
		})
	}
}

func TestDecodeNamesAreExact(t *testing.T) {
	var v struct {
		From string `json:"from"`
	}
	if err := Decode([]byte(`{"from":"a","From":"b"}`), &v); err != nil || v.From != "a" {
		t.Fatalf("got %q, %v", v.From, err)
	}
	if err := DecodeKnown([]byte(`{"from":"a","From":"b"}`), &v); !errors.Is(err, ErrUnknown) {
		t.Fatalf("unknown member: %v", err)
	}
	if err := Decode([]byte(`{"from":1}`), &v); !errors.Is(err, ErrType) {
		t.Fatalf("wrong type: %v", err)
	}
}

// The example of RFC 8785 §3.2.2, and the number samples of its appendix B.
func TestCanonicalize(t *testing.T) {
	in := `{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
	 "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}`
	want := `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`
	got, err := Canonicalize([]byte(in))
	if err != nil || string(got) != want {
		t.Fatalf("got %s, %v", got, err)
	}
	for in, want := range map[string]string{"-0": "0", "9007199254740993": "9007199254740992", "1e21": "1e+21",
		"5e-324": "5e-324"} {
		if got, err := Canonicalize([]byte(in)); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"1e400", `{"a":[-1e309]}`} {
		if got, err := Canonicalize([]byte(in)); !errors.Is(err, ErrSyntax) {
			t.Errorf("%s: got %s, %v; want it refused", in, got, err)
		}
	}
	if got, err := Canonicalize([]byte("1.7976931348623157e308")); err != nil {
		t.Errorf("the largest double: %s, %v", got, err)
	}
	// UTF-16 order, not UTF-8 order.
	got, err = Canonicalize([]byte(`{"\ufb33":1,"\ud83d\ude00":2}`))
	if err != nil || string(got) != "{\"😀\":2,\"\ufb33\":1}" {
		t.Fatalf("got %s, %v", got, err)
	}
}

func FuzzCanonicalize(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1e2,"\u00e9"]}`, `[]`, `"x"`, `{"a":{"a":{}}}`, `1e400`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Canonicalize(b)
		if err != nil {
			return
		}
		if err := Valid(c, 0); err != nil {
			t.Fatalf("canonical form is not valid: %v", err)
		}
		again, err := Canonicalize(c)
		if err != nil || !bytes.Equal(c, again) {
			t.Fatalf("not idempotent: %q then %q, %v", c, again, err)
		}
	})
}

func TestEncodeTreeKeepsNumbers(t *testing.T) {
	t.Parallel()
	const in = `{"a":{"y":{},"z":-0.0},"b":[1.00,12345678901234567890,1e400,null,true,"é<\"\\>"],"c":[]}`
	d := json.NewDecoder(strings.NewReader(in))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	if out, err := EncodeTree(tree); err != nil || string(out) != in {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := EncodeTree([]any{json.Number("one")}); err == nil {
		t.Error("a number that is none was written")
	}
}
