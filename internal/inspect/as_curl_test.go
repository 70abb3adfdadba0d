package inspect

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/internal/readable"
)

// TestShellWordIsOneWord: a shell reads a text as it was, whatever it has, and a terminal shows nothing else.
func TestShellWordIsOneWord(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a", "a b", "it's", "$(x) `y` \"z\" \\", "two\nlines\ttab", "\x1b[31mred", "\u202egnp.exe",
		"\xff\xfe", "back\\slash\u200b'quote'", "é ü 🦊", "-x", "@file", "\r\n"} {
		word := readable.ShellWord(s)
		got, err := splitShell("curl " + word)
		if err != nil || !slices.Equal(got, []string{"curl", s}) {
			t.Errorf("%q is written %s, and read as %q, %v", s, word, got, err)
		}
		if clean := readable.Clean(word); clean != word {
			t.Errorf("%q is written %q", s, word)
		}
	}
}

// TestCurlAndBack: a request that is written as a curl command reads as the same request.
func TestCurlAndBack(t *testing.T) {
	t.Parallel()
	signed, _, _ := signedRequest(t)
	signed = strings.Replace(signed, "very-secret-token", "x", 1) // shorter ones are no secrets
	for name, input := range map[string]string{
		"signed": signed,
		"plain":  "GET /agent/card HTTP/1.1\nHost: hub.example\n\n",
		"odd": "POST /a/../b/./c[1]?q={x}&y='z' HTTP/1.1\nHost: 127.0.0.1:8080\nX-Empty:\nX-Twice: a\nX-Twice: b\n" +
			"Content-Type: application/json\n\n@it's \u202e$HOME `x`\n\\\x1b\xff\n",
		"no type": "POST /agent/message HTTP/1.1\nHost: hub.example\n\n{\"from\":\"a\"}",
		"url":     `curl -X PUT https://a.example:8443/x -H 'Host: other.example' -d 'a=b'`,
		"har": `{"request":{"method":"POST","url":"http://[::1]:8080/x?y","headers":[{"name":"A","value":"b c"}],` +
			`"postData":{"text":"{}"}}}`,
	} {
		first, err := Read([]byte(input))
		if err != nil {
			t.Fatal(name, err)
		}
		command := first.curl(masking(nil))
		again, err := Read([]byte(command))
		if err != nil {
			t.Fatalf("%s: %s: %v", name, command, err)
		}
		for _, n := range computed {
			first.header.Del(n)
			again.header.Del(n)
		}
		if first.method != again.method || first.target != again.target || first.host != again.host ||
			string(first.Body) != string(again.Body) || !maps.EqualFunc(first.header, again.header, slices.Equal) {
			t.Errorf("%s: %s\nfirst %+v\nagain %+v", name, command, first, again)
		}
	}
}

// TestCurlIsMasked: no secret stands in the command, and what is no request has none.
func TestCurlIsMasked(t *testing.T) {
	t.Parallel()
	signed, _, at := signedRequest(t)
	signed = strings.Replace(signed, "Content-Type:", "Authorization: Bearer another-secret\r\nContent-Type:", 1)
	v, err := Inspect(t.Context(), []byte(signed), "", Options{Now: at})
	if err != nil || !strings.HasPrefix(v.Curl, "curl -X POST https://hub.test/agents/weather/agent/message \\\n") ||
		!strings.Contains(v.Curl, "'Authorization: Bearer (secret)'") || strings.Contains(v.Curl, "another-secret") ||
		strings.Contains(v.Curl, "very-secret") || !strings.Contains(v.Curl, `"token":"(secret)"`) {
		t.Errorf("%s, %v", v.Curl, err)
	}
	for _, input := range []string{`{"from":"agent://a","skill":"s","nonce":"n","mode":"sync","to":"agent://b"}`,
		"POST /agent/message HTTP/1.1\n\n" + `{"from":"agent://a","skill":"s","nonce":"n","mode":"sync","to":"agent://b"}`,
		"POST /agent/message HTTP/1.1\nHost: h\n@x: y\n\n" +
			`{"from":"agent://a","skill":"s","nonce":"n","mode":"sync","to":"agent://b"}`} {
		if v, err := Inspect(t.Context(), []byte(input), "", Options{Now: at}); err != nil || v.Curl != "" {
			t.Errorf("%s: %s, %v", input, v.Curl, err)
		}
	}
}
