package inspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// caseOf reads the one case of a saved vector, in the form that its test expects.
func caseOf(t *testing.T, b []byte) (c struct {
	Input, Expect, Hub map[string]any
	Note               string
}, about string) {
	t.Helper()
	f := struct {
		Description, Source string
		Cases               []json.RawMessage
	}{}
	if err := json.Unmarshal(b, &f); err != nil || len(f.Cases) != 1 || f.Source == "" {
		t.Fatalf("%v in %s", err, b)
	}
	if err := json.Unmarshal(f.Cases[0], &c); err != nil {
		t.Fatal(err)
	}
	return c, f.Description
}

// TestVectorRepeatsVectors: a message of testdata/vectors that is saved again expects what the file expects.
func TestVectorRepeatsVectors(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		file    string
		input   string   // the member of input with the message
		binding []string // the members of expect that are compared
		least   int      // cases that are compared
	}{
		{"samvad/verify.json", "", []string{"valid"}, 40},
		{"uagents/envelope_verify.json", "envelope", []string{"valid", "digest_hex"}, 50},
		{"a2e/messages_valid.json", "message", []string{"valid"}, 80},
		{"a2e/messages_invalid.json", "message", []string{"valid", "parley_code"}, 240},
		{"agh/envelope-parse.json", "raw", nil, 50},
		{"agh/trust-verify.json", "raw", []string{"trust"}, 30},
		{"asp/envelope.json", "message", []string{"accept", "error", "path"}, 30},
	} {
		t.Run(f.file, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("../../testdata/vectors", f.file))
			if err != nil {
				t.Fatal(err)
			}
			var file struct {
				Cases []struct {
					Name   string
					Input  map[string]json.RawMessage
					Expect map[string]any
					Hub    map[string]any
				}
			}
			if err := json.Unmarshal(b, &file); err != nil {
				t.Fatal(err)
			}
			compared := 0
			for _, k := range file.Cases {
				o := Options{Now: time.Unix(1767225590, 0)}
				var now int64
				if json.Unmarshal(k.Input["now"], &now) == nil && now > 0 {
					o.Now = time.Unix(now, 0)
				}
				raw := k.Input[f.input]
				var s string
				if json.Unmarshal(raw, &s) == nil {
					raw = []byte(s)
				}
				if strings.Contains(string(k.Input["path"]), "?") {
					continue // its path has a query, which the path of a request has not
				}
				if f.input == "" {
					raw, o.Keys = requestIn(t, k.Input)
				}
				protocol, _, _ := strings.Cut(f.file, "/")
				saved, err := Vector(t.Context(), raw, protocol, o)
				if err != nil {
					continue // broken beyond the form, such as a key that is none
				}
				got, about := caseOf(t, saved)
				switch age := k.Input["max_replay_age"]; {
				case !strings.Contains(about, f.file) || got.Note != "":
					continue // another form fits it, or it has what looks like a secret
				case age != nil && string(age) != "300", k.Expect["any_of"] != nil,
					k.Expect["hub_policy"] == "reject_noncanonical_address":
					continue // another setting, or a verdict that a hub does not repeat
				}
				compared++
				for _, name := range f.binding {
					if !reflect.DeepEqual(got.Expect[name], k.Expect[name]) {
						t.Errorf("%s: %s is %v, want %v", k.Name, name, got.Expect[name], k.Expect[name])
					}
				}
				if k.Hub != nil && got.Hub["ok"] != k.Hub["ok"] {
					t.Errorf("%s: hub %v, want %v", k.Name, got.Hub, k.Hub)
				}
			}
			if compared < f.least {
				t.Errorf("only %d of %d are compared", compared, len(file.Cases))
			}
		})
	}
}

// requestIn makes the HTTP request and the key of a case of samvad/verify.json.
func requestIn(t *testing.T, in map[string]json.RawMessage) (raw []byte, keys []string) {
	t.Helper()
	var key string
	if err := json.Unmarshal(in["public_key_base64"], &key); err != nil {
		t.Fatal(err)
	}
	raw = fmt.Appendf(nil, `{"method":%s,"target":%s,"headers":%s,"body":%s}`, in["method"], in["path"], in["headers"],
		or(in["body"], `""`))
	return raw, []string{key}
}

func or(v json.RawMessage, other string) json.RawMessage {
	if v == nil {
		return json.RawMessage(other)
	}
	return v
}

// TestVectorMasksSecrets: no token is saved, and the verdict is on what is saved.
func TestVectorMasksSecrets(t *testing.T) {
	t.Parallel()
	const secret = "tok-7f3a91c2"
	o := Options{Now: time.Unix(1767225590, 0)}
	for name, raw := range map[string]string{
		"a2e": `{"type":"handshake/req","id":"1","ts":1,"auth_token":"` + secret + `"}`,
		"mcp": "POST /mcp HTTP/1.1\nContent-Type: application/json\nAuthorization: Bearer " + secret +
			"\nMCP-Protocol-Version: 2025-11-25\n\n" +
			`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a__b","arguments":{}}}`,
		"a2a": "POST /a2a/a HTTP/1.1\nContent-Type: application/json\nAuthorization: Bearer " + secret +
			"\nA2A-Version: 1.0\n\n" + `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}`,
	} {
		b, err := Vector(t.Context(), []byte(raw), "", o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c, _ := caseOf(t, b)
		if strings.Contains(string(b), secret) || !strings.Contains(string(b), "(secret)") || c.Note == "" {
			t.Errorf("%s: %s", name, b)
		}
	}
	// The secret is also a number of the message: it would not be JSON any more.
	_, err := Vector(t.Context(), []byte(`{"type":"handshake/req","id":"1","ts":1234567,"auth_token":"1234567"}`), "", o)
	if err == nil || !strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

// TestVectorOfAProtocolWithoutVectors is a request that inspect reads again, with the check that fails.
func TestVectorOfAProtocolWithoutVectors(t *testing.T) {
	t.Parallel()
	raw := "POST /mcp HTTP/1.1\nContent-Type: application/json\nMCP-Protocol-Version: 2025-11-26\n\n" +
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a__b","arguments":{}}}`
	o := Options{Now: time.Unix(1767225590, 0)}
	b, err := Vector(t.Context(), []byte(raw), "", o)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := caseOf(t, b)
	again, err := json.Marshal(c.Input)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Inspect(t.Context(), again, "", o)
	if err != nil {
		t.Fatal(err)
	}
	failing := ""
	for _, check := range v.Checks {
		if check.State == "failed" && failing == "" {
			failing = check.Name
		}
	}
	if c.Expect["ok"] != false || failing == "" || c.Expect["failing"] != failing {
		t.Errorf("saved %v, inspected again %q", c.Expect, failing)
	}
	if c.Input["method"] != http.MethodPost {
		t.Errorf("%v", c.Input)
	}
}
