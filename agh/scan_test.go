package agh

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// likeRead checks that what quick takes, read takes as well, and finds the same
// in it.
func likeRead(t *testing.T, d *Decoder, b []byte) (taken bool) {
	t.Helper()
	got := d.quick(b)
	if got == nil {
		return false
	}
	want, err := d.read(b)
	if err != nil {
		t.Fatalf("taken though %v: %s", err, b)
	}
	all := func(p *parsed) (*Say, error) {
		err := d.body(p)
		s, _ := p.content.(*Say)
		p.said, p.content = nil, nil
		return s, err
	}
	gotSay, gotErr := all(got)
	wantSay, wantErr := all(want)
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotSay, wantSay) || (gotErr == nil) != (wantErr == nil) {
		t.Fatalf("%s\nquick %+v %+v %+v %v\nread  %+v %+v %+v %v", b, got, got.Envelope, gotSay, gotErr, want, want.Envelope, wantSay, wantErr)
	}
	return true
}

// What most peers send is read quickly, compact or not; what is damaged in any
// way is judged as by the decoder.
func TestQuickIsLikeRead(t *testing.T) {
	var corpus [][]byte
	for _, s := range []string{sayText, greetText, workText, traceText("bob", "alice", "working", "t"), receiptText("bob", "alice", "rejected", "r"),
		with(sayText, "ext", js(`{"a":[1.0,{"b":"\u00e4"}]}`), "to", nil, "reply_to", nil, "expires_at", 1776366300, "proof", js(`{"x":{}}`)),
		with(sayText, "expires_at", 0), with(sayText, "body", js(`{"text":"Zürich\n","intent":"x"}`)), with(sayText, "body", js(`{"text":"Zürich","intent":"x"}`))} {
		corpus = append(corpus, []byte(s))
		var pretty any
		if err := json.Unmarshal([]byte(s), &pretty); err != nil {
			t.Fatal(err)
		}
		b, err := json.MarshalIndent(pretty, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		corpus = append(corpus, append(b, '\n'))
	}
	decoders := []*Decoder{{}, {Lenient: true, Handles: true}}
	for _, b := range corpus {
		for _, d := range decoders {
			if !likeRead(t, d, b) {
				t.Errorf("not read quickly: %s", b)
			}
		}
	}
	instead := func(old, new string) string {
		if !strings.Contains(sayText, old) {
			t.Fatal(old)
		}
		return strings.Replace(sayText, old, new, 1)
	}
	const ts, body, end = `"ts":1776366000`, `{"text":"hello"}`, `"proof":null`
	for _, s := range []string{"", "{}", "{", `{"id":1}`, "[]", "null", `{"ts":01}`, sayText + "x", "\ufeff" + sayText, `{"id":"a","id":"b"}`,
		instead(ts, `"ts":1.0`), instead(ts, `"ts":-1`), instead(ts, `"ts":01`), instead(ts, `"ts":1e9`), instead(ts, `"ts":99999999999999999999`), instead(ts, `"ts":null`),
		instead(body, `{"text":"a","text":"b"}`), instead(body, `{"text":"a",}`), instead(body, `{"text":"a" "b"}`), instead(body, `{]}`), instead(body, `null`), instead(body, `[]`),
		instead(body, `{"intent":"a"}`), instead(body, `{"text":" "}`), instead(body, `{"text":"a","intent":null}`), instead(body, `{"text":1}`),
		instead(end, `"ext":{"a":1,"a":2}`), instead(end, `"ext":{"a":{]}`), instead(end, `"more":1`), instead(end, `"reply_to":""`), instead(end, `"proof":[]`), instead(end, `"id":"m1"`),
		instead(`"m1"`, "null"), instead(`"m1"`, "\"m\xff\""), instead(`"m1"`, "\"m\t\""), instead(`"m1"`, `"m\u0031"`), instead(`"hello"`, "\"\xff\""),
		instead(end, `"ext":{"d":`+strings.Repeat("[", 1200)+strings.Repeat("]", 1200)+`}`)} {
		corpus = append(corpus, []byte(s))
		for _, d := range decoders {
			likeRead(t, d, []byte(s))
		}
	}
	files, err := filepath.Glob("../testdata/vectors/agh/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var any any
		if err := json.Unmarshal(b, &any); err != nil {
			t.Fatal(err)
		}
		collect(any, &corpus)
	}
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 60
	if testing.Short() {
		rounds = 6
	}
	taken := 0
	for _, whole := range corpus {
		for range rounds {
			b := append([]byte(nil), whole...)
			for range random.IntN(3) {
				if len(b) == 0 {
					break
				}
				i := random.IntN(len(b))
				switch random.IntN(3) {
				case 0:
					b[i] = "{}[]\",:0 \\n\xff"[random.IntN(12)]
				case 1:
					b = append(b[:i], b[i+1:]...)
				default:
					j := min(len(b), i+random.IntN(12))
					b = append(b[:j], append(append([]byte(nil), b[i:j]...), b[j:]...)...)
				}
			}
			for _, d := range decoders {
				if likeRead(t, d, b) {
					taken++
				}
			}
		}
	}
	if taken < rounds*10 {
		t.Errorf("only %d were taken", taken)
	}
}

// collect finds what may be envelopes in a file of vectors.
func collect(v any, into *[][]byte) {
	switch v := v.(type) {
	case map[string]any:
		if v["protocol"] != nil {
			if b, err := json.Marshal(v); err == nil {
				*into = append(*into, b)
			}
		}
		for _, m := range v {
			collect(m, into)
		}
	case []any:
		for _, m := range v {
			collect(m, into)
		}
	case string:
		if strings.HasPrefix(strings.TrimSpace(v), "{") {
			*into = append(*into, []byte(v))
		}
	}
}
