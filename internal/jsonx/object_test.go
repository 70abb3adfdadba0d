package jsonx

import (
	"bytes"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// record has a member for each method of an Object.
type record struct {
	Name     string    `json:"name"`
	Given    string    `json:"given,omitzero"`
	List     []string  `json:"list"`
	Whole    int64     `json:"whole"`
	Fraction float64   `json:"fraction"`
	Yes      bool      `json:"yes"`
	At       time.Time `json:"at"`
	Bytes    []byte    `json:"bytes"`
	Any      Value     `json:"any"`
	Inner    struct {
		Empty struct{} `json:"empty"`
		Deep  string   `json:"deep"`
		List  []int64  `json:"list"`
	} `json:"inner"`
}

// write is what Encode does with a record.
func (r *record) write(b []byte) ([]byte, error) {
	o := AppendObject(b)
	o.String("name", r.Name)
	o.Optional("given", r.Given)
	o.Strings("list", r.List)
	o.Int("whole", r.Whole)
	o.Float("fraction", r.Fraction)
	o.Bool("yes", r.Yes)
	o.Time("at", r.At)
	o.Base64("bytes", r.Bytes)
	o.Raw("any", r.Any)
	o.Open("inner")
	o.Open("empty")
	o.Close()
	o.String("deep", r.Inner.Deep)
	o.Append("list", func(b []byte) ([]byte, error) {
		v, err := Encode(r.Inner.List)
		return append(b, v...), err
	})
	o.Close()
	return o.End()
}

func (r *record) likeEncode(t interface {
	Helper()
	Errorf(string, ...any)
}) {
	t.Helper()
	want, wantErr := Encode(r)
	got, err := r.write([]byte("before"))
	switch {
	case (err != nil) != (wantErr != nil):
		t.Errorf("%+v: %v, want %v", r, err, wantErr)
	case err == nil && string(got) != "before"+string(want):
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestObjectIsLikeEncode(t *testing.T) {
	any := rapid.SampledFrom([]string{"", "null", "{}", "[]", "{ }", `[ 1, 2.50 ,"\u00e9\/"]`, `{"a" : {"b":[true ]} }`,
		"1e2", `"{"`, "{", `{"a":1,"a":2}`, "\"\xff\""})
	texts := rapid.OneOf(rapid.String(), rapid.StringN(0, 20, -1),
		rapid.SampledFrom([]string{"", "<&>", "\u2028\x7f\ufffd", "\xff", "a\xed\xa0\x80"}))
	rapid.Check(t, func(t *rapid.T) {
		r := record{Name: texts.Draw(t, "name"), Given: texts.Draw(t, "given"),
			List:  rapid.SliceOfN(texts, 0, 3).Draw(t, "list"),
			Whole: rapid.Int64().Draw(t, "whole"), Fraction: rapid.Float64().Draw(t, "fraction"),
			Yes: rapid.Bool().Draw(t, "yes"),
			At: time.Unix(rapid.Int64Range(-1<<36, 1<<39).Draw(t, "seconds"),
				rapid.Int64Range(0, 999999999).Draw(t, "nanos")).UTC(),
			Bytes: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"), Any: Value(any.Draw(t, "any"))}
		if len(r.Any) == 0 {
			r.Any = nil
		}
		r.Inner.Deep, r.Inner.List = texts.Draw(t, "deep"), rapid.SliceOfN(rapid.Int64(), 0, 3).Draw(t, "inner")
		r.likeEncode(t)
	})
	at := time.Unix(1776366000, 120000000)
	for _, r := range []record{
		{}, {List: []string{}}, {At: at.UTC()}, {At: at.In(time.FixedZone("", 5400))},
		{At: at.In(time.FixedZone("", -24*3600))}, {At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{Fraction: math.NaN()}, {Fraction: math.Inf(-1)}, {Fraction: 1e21}, {Fraction: math.Copysign(0, -1)},
		{Any: Value("{}"), Name: "{"}, {Any: Value("nul")},
	} {
		r.likeEncode(t)
	}
}

func TestObjectEscapesNames(t *testing.T) {
	for _, name := range []string{"", "a \"name\"\n", "é", "\xff"} {
		want, wantErr := Encode(map[string]string{name: "v"})
		o := AppendObject(nil)
		o.String(name, "v")
		if got, err := o.End(); (err != nil) != (wantErr != nil) || err == nil && string(got) != string(want) {
			t.Errorf("%s, %v; want %s, %v", got, err, want, wantErr)
		}
	}
}

func TestObjectTellsTheFirstError(t *testing.T) {
	o := AppendObject(nil)
	o.String("a", "sound")
	o.Append("b", func(b []byte) ([]byte, error) { return nil, nil })
	o.String("c", "\xff")
	if b, err := o.End(); err == nil || err.Error() != "a member has no value" {
		t.Errorf("%s, %v", b, err)
	}
}

func BenchmarkObject(b *testing.B) {
	buf := make([]byte, 0, 512)
	at := time.Unix(1776366000, 120000000).UTC()
	b.ReportAllocs()
	for b.Loop() {
		o := AppendObject(buf)
		o.String("message", "019cc8aa-0001-7def-8a12-000000000001")
		o.String("from", "crew/weather")
		o.Optional("skill", "")
		o.Time("sent", at)
		o.Strings("proved", []string{"envelope", "freshness"})
		o.Int("position", 17)
		if v, err := o.End(); err != nil || !bytes.HasSuffix(v, []byte("17}")) {
			b.Fatal(err)
		}
	}
}
