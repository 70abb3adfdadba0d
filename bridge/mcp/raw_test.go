package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/parley-hub/parley/internal/jsonx"
)

func TestWithRaw(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"an answer", `{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":1.10,"m":1e400}}}`,
			`{"id":1,"jsonrpc":"2.0","result":{"_meta":{"hub.parley/raw":"{\"n\":1.10,\"m\":1e400}"},` +
				`"content":[],"structuredContent":{"n":1.10,"m":1e400}}}`},
		{"with _meta", `{"id":1,"result":{"_meta":{"a":12345678901234567890},"structuredContent":"x"}}`,
			`{"id":1,"result":{"_meta":{"a":12345678901234567890,"hub.parley/raw":"\"x\""},"structuredContent":"x"}}`},
		{"forged", `{"result":{"_meta":{"hub.parley/raw":"1","hub.parley/resultType":"task"},"content":[]}}`,
			`{"result":{"_meta":{},"content":[]}}`},
		{"another type", `{"result":{"resultType":"task","taskId":"1"}}`,
			`{"result":{"_meta":{"hub.parley/resultType":"task"},"resultType":"task","taskId":"1"}}`},
		{"complete", `{"result":{"resultType":"complete"}}`, `{"result":{"resultType":"complete"}}`},
		{"no result", `{"method":"x","params":{"structuredContent":1}}`,
			`{"method":"x","params":{"structuredContent":1}}`},
		{"half a surrogate pair", `{"result":{"content":"\ud83d"}}`, "{\"result\":{\"content\":\"\ufffd\"}}"},
		{"a duplicate", `{"result":{"structuredContent":1,"structuredContent":2}}`, ""},
		{"a duplicate result", `{"result":{},"result":{}}`, ""},
		{"a duplicate, escaped", `{"result":{"structuredContent":1,"structured\u0043ontent":2}}`, ""},
		{"a batch", `[{"result":{}}]`, ""},
		{"_meta of another type", `{"result":{"_meta":[],"structuredContent":1}}`, ""},
		{"a type that is no text", `{"result":{"resultType":1}}`, ""},
		{"something after it", `{"result":{}}{}`, ""},
		{"too deep", `{"result":` + strings.Repeat(`{"a":`, 200) + `1` + strings.Repeat(`}`, 200) + `}`, ""},
		{"nothing", ``, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := withRaw([]byte(c.in))
			if (err == nil) != (c.want != "") || err == nil && string(got) != c.want {
				t.Errorf("%s, %v", got, err)
			}
			if again, err := withRaw(got); c.want != "" && (err != nil || string(again) != c.want) {
				t.Errorf("again: %s, %v", again, err)
			}
		})
	}
}

// What passes keeps the server's structuredContent, and has no other.
func FuzzWithRaw(f *testing.F) {
	for _, s := range []string{`{"result":{"structuredContent":{"n":1.10}}}`,
		`{"result":{"_meta":{"hub.parley/raw":"1"}}}`,
		`{"result":{"structuredContent":1,"structuredContent":2}}`, `{"result":{"structured\u0043ontent":"\ud83d"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := withRaw(in)
		if err != nil {
			return
		}
		whole, _ := jsonx.ReplaceHalves(in)
		want := jsonx.Member(jsonx.Member(whole, "result"), "structuredContent")
		raw := jsonx.Member(jsonx.Member(jsonx.Member(out, "result"), "_meta"), rawMeta)
		if jsonx.IsNull(want) {
			want = nil
		}
		var got string
		if raw != nil {
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
		}
		if got != string(want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
