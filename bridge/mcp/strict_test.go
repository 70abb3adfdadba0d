package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// MCP-011: the SDK gets each message in one form.
func TestMCP011OneForm(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"id":"a\u0062","more":1,"jsonrpc":"2.0", "method":"tools\u002flist" }`: `` +
			`{"jsonrpc":"2.0","id":"ab","method":"tools/list"}`,
		`{"jsonrpc":"2.0","method":"ping","params":null}`: `{"jsonrpc":"2.0","method":"ping"}`,
		`{"jsonrpc":"2.0","id":-0,"method":"x","params":{"n":12345678901234567890.10}}`: `{"jsonrpc":"2.0","id":0,` +
			`"method":"x","params":{"n":12345678901234567890.10}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"a":1e2}}`: `{"jsonrpc":"2.0","id":1,"result":{"a":1e2}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"message":"m","code":-5,"x":1,"data":[1]}}`: `{"jsonrpc":"2.0","id":1,` +
			`"error":{"code":-5,"message":"m","data":[1]}}`,
	} {
		m, err := readWire([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if string(m.body) != want {
			t.Errorf("%s: %s, want %s", in, m.body, want)
		}
	}
}

// MCP-032: the notice names the call that it cancels.
func TestMCP032CancelledID(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`:        "7",
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061"}}`: `"a"`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`:       "",
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`:                                 "",
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"requestId":7}}`:         "",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"requestId":7,"name":"x"}}`:   "",
	} {
		m, err := readWire([]byte(in))
		if err != nil || m.cancels() != want {
			t.Errorf("%s: %q %v, want %q", in, m.cancels(), err, want)
		}
	}
}

// MCP-011: what reaches the SDK is read by it as the door read it, and no input makes the door fail.
func FuzzDoor(f *testing.F) {
	w := newDoorWorld(f)
	session := w.begin("alice")
	for _, body := range []string{initialize, modernAsk("tools/call", `"name":"echo","arguments":{"a":[1,2.50,"x"]}`).body,
		`{"jsonrpc":"2.0","id":"\u2028<","method":"tools/list","params":{"a":"\ud83d\ude00"},"z":0}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":null}}`, `[]`, `{"id":1,"Id":2}`} {
		for era := range byte(4) {
			f.Add([]byte(body), era)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, era byte) {
		if m, err := readWire(body); err == nil {
			sdk, err := jsonrpc.DecodeMessage(m.body)
			if err != nil {
				t.Fatalf("the SDK refuses %s: %v", m.body, err)
			}
			again, err := jsonrpc.EncodeMessage(sdk)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := tree(t, m.body), tree(t, again); !reflect.DeepEqual(a, b) {
				t.Fatalf("the door has %s, the SDK %s", m.body, again)
			}
			if bytes.Contains(m.body, []byte(`"slow"`)) {
				return // it waits
			}
			if m.method == "subscriptions/listen" || m.method == "initialize" {
				return // one waits, the other is bounded
			}
		}
		a := ask{token: "alice", body: string(body), header: map[string]string{}}
		if era&1 != 0 {
			a.header["Mcp-Protocol-Version"] = statelessRevision
			if m, err := readWire(body); err == nil && strings.Trim(m.method, printable) == "" {
				a.header["Mcp-Method"] = m.method
			}
		}
		if era&2 != 0 {
			a.header["Mcp-Session-Id"] = session
		}
		if r := w.do(a); r.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%d for %q", r.StatusCode, body)
		}
	})
}

const printable = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/_"

func tree(t *testing.T, b []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}
