package mcp

import "testing"

func TestWithRaw(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"numbers are kept",
			`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":12345678901234567890}}}`,
			`{"id":1,"jsonrpc":"2.0","result":{"_meta":{"hub.parley/raw":"{\"n\":12345678901234567890}"},"content":[],` +
				`"structuredContent":{"n":12345678901234567890}}}`},
		{"no structured content", `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`},
		{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`},
		{"a server cannot write the member itself",
			`{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1,"hub.parley/raw":"{}"}}}`,
			`{"id":1,"jsonrpc":"2.0","result":{"_meta":{"a":1}}}`},
	} {
		got, err := withRaw([]byte(c.in))
		if string(got) != c.want || err != nil {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
	if _, err := withRaw([]byte(`{"result":{"a":1,"a":2}}`)); err == nil {
		t.Error("a duplicate member passed")
	}
}
