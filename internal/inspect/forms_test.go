package inspect

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
)

// vector reads a message of a file of vectors.
func vector(t *testing.T, file, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../testdata/vectors/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Cases []vectorCase }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	for _, c := range f.Cases {
		if c.Name == name {
			return c.Input.Raw + string(c.Input.Message) + string(c.Input.Envelope)
		}
	}
	t.Fatalf("%s has no case %s", file, name)
	return ""
}

// forms are the ways in which one request is pasted.
func forms(t *testing.T, path string, header [][2]string, body string) map[string]string {
	t.Helper()
	text := "POST " + path + " HTTP/1.1\nHost: hub.test\n"
	var har []map[string]string
	for _, h := range header {
		text += h[0] + ": " + h[1] + "\n"
		har = append(har, map[string]string{"name": h[0], "value": h[1]})
	}
	entry, err := json.Marshal(map[string]any{"request": map[string]any{"method": "POST", "url": "https://hub.test" + path,
		"headers": har, "postData": map[string]string{"text": body}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Read([]byte(text + "\n" + body))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"HTTP request": text + "\n" + body, "curl command": s.curl(masking(nil)),
		"entry of a HAR file": string(entry), "HAR file, first of 1 entry": `{"log":{"entries":[` + string(entry) + `]}}`}
}

// TestEveryFormOfEveryProtocol: an envelope and each form of the request with it is explained the same for all seven
// protocols, with the signed bytes where something is signed.
func TestEveryFormOfEveryProtocol(t *testing.T) {
	t.Parallel()
	request, key, at := signedRequest(t)
	head, body, _ := strings.Cut(request, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	json := [][2]string{{"Content-Type", "application/json"}}
	var signed [][2]string
	for _, line := range lines[2:] {
		name, value, _ := strings.Cut(line, ": ")
		signed = append(signed, [2]string{name, value})
	}
	for _, c := range []struct {
		protocol, path, body string
		header               [][2]string
		now                  time.Time
		signs                bool // the body alone
	}{
		{"samvad", "/agents/weather/agent/message", body, signed, at, false},
		{"uagents", "/submit", vector(t, "uagents/envelope_verify.json", "good"), json, time.Unix(1767225500, 0), true},
		{"a2e", "/a2e", vector(t, "a2e/messages_valid.json", "handshake/req full"), json, at, false},
		{"agh", "/agh", vector(t, "agh/trust-verify.json", "valid-say"), json, time.Unix(1776366000, 0), true},
		{"asp", "/asp/messages", vector(t, "asp/envelope.json", "valid"), json, at, true},
		{"a2a", "/a2a/weather", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m1",` +
			`"role":"ROLE_USER","parts":[{"text":"hi"}]}}}`, append(slices.Clone(json), [2]string{"A2A-Version", "1.0"}), at, false},
		{"mcp", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"forecast","arguments":{}}}`,
			append(slices.Clone(json), [2]string{"Mcp-Protocol-Version", "2025-06-18"}), at, false},
	} {
		inputs := forms(t, c.path, c.header, c.body)
		inputs["bare envelope"] = c.body
		for form, input := range inputs {
			o := Options{Now: c.now}
			if c.protocol == "samvad" {
				o.Keys = []string{key}
			}
			v, err := Inspect(t.Context(), []byte(input), "", o)
			if err != nil {
				t.Errorf("%s as %s: %v", c.protocol, form, err)
				continue
			}
			if v.Protocol != c.protocol || v.Form != form || v.Sentence == "" || len(v.Checks) == 0 || len(v.Fields) == 0 {
				t.Errorf("%s as %s: %+v", c.protocol, form, v)
			}
			if bytes := len(v.Signed) > 0; bytes != (c.signs || c.protocol == "samvad" && form != "bare envelope") {
				t.Errorf("%s as %s: signed bytes %t", c.protocol, form, bytes)
			}
			if (v.Curl == "") != (form == "bare envelope") {
				t.Errorf("%s as %s: %s", c.protocol, form, v.Curl)
			}
		}
	}
}

// TestDifferenceInEveryForm: in each form of a request the part of the signed bytes that is not what was sent is named.
func TestDifferenceInEveryForm(t *testing.T) {
	t.Parallel()
	request, key, at := signedRequest(t)
	head, body, _ := strings.Cut(request, "\r\n\r\n")
	var header [][2]string
	for _, line := range strings.Split(head, "\r\n")[2:] {
		name, value, _ := strings.Cut(line, ": ")
		header = append(header, [2]string{name, value})
	}
	const path = "/agents/weather/agent/message"
	for form, input := range forms(t, "/proxy"+path, header, body) {
		v, err := Inspect(t.Context(), []byte(input), "", Options{Now: at, Keys: []string{key}})
		want := admin.Difference{Part: "@path", Signed: path, Sent: "/proxy" + path}
		if err != nil || v.Verified || !slices.Contains(v.Differs, want) {
			t.Errorf("%s: %s %v", form, fmt.Sprint(v), err)
		}
	}
}
