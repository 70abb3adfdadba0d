package inspect

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/httpsig"
)

func TestSplitShell(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		`curl a`:                           {"curl", "a"},
		"curl 'a b' \\\n  \"c \\\"d\\\"\"": {"curl", "a b", `c "d"`},
		`curl $'it\'s \u0041\x42\n'`:       {"curl", "it's AB\n"},
		`curl a'b'"c"`:                     {"curl", "abc"},
		`curl ''`:                          {"curl", ""},
		`curl a\ b`:                        {"curl", "a b"},
	} {
		got, err := splitShell(in)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`curl 'a`, `curl "a`, `curl $'a\`, `curl $'\xzz'`, `curl $'\u00'`} {
		if got, err := splitShell(in); err == nil {
			t.Errorf("%s gives %q", in, got)
		}
	}
}

func FuzzInspect(f *testing.F) {
	f.Add([]byte("POST /agent/message HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{}"))
	f.Add([]byte(`{"method":"POST","target":"/agent/message","headers":[["signature-input","sig1=(\"@method\" \"@path\" \"content-digest\");keyid=\"k\";created=1"],["signature","sig1=:AAAA:"],["content-digest","x"]],"body":"{}"}`))
	f.Add([]byte("curl -X POST 'http://x/agent/task' -H 'a: b' -d $'{\\u0041}'"))
	f.Add([]byte(`{"from":"agent://a","skill":"s","nonce":"n","mode":"sync","to":"agent://b","kid":"k","signature":"x"}`))
	o := Options{Now: time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC),
		Keys: []string{"0EqyMnQrtKs6E2i9RhXk5tAiSrcaAWuvhSCjMsl3hzc="}}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Read(b)
		if err != nil {
			return
		}
		for _, p := range Protocols {
			p.Recognises(s)
			v, err := p.Inspect(context.Background(), s, o)
			if err != nil {
				t.Fatal(err)
			}
			if v.Sentence == "" {
				t.Fatalf("no sentence for %q", b)
			}
			v.mask(s.secrets())
		}
	})
}

// TestInspectMarksTheDifference: a signature over another path, or a digest of another body, names what was signed and
// what was sent.
func TestInspectMarksTheDifference(t *testing.T) {
	t.Parallel()
	request, key, at := signedRequest(t)
	for _, c := range []struct {
		name, from, to string
		want           admin.Difference
	}{
		{"path", "POST /agents/weather/agent/message ", "POST /x/agents/weather/agent/message ",
			admin.Difference{Part: "@path", Signed: "/agents/weather/agent/message",
				Sent: "/x/agents/weather/agent/message"}},
		{"method", "POST ", "PUT ", admin.Difference{Part: "@method", Signed: "POST", Sent: "PUT"}},
	} {
		input := strings.Replace(request, c.from, c.to, 1)
		v, err := Inspect(t.Context(), []byte(input), "", Options{Now: at, Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		if v.Verified || !slices.Contains(v.Differs, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, v.Differs, c.want)
		}
	}
	v, err := Inspect(t.Context(), []byte(request), "", Options{Now: at, Known: func(protocol,
		sender string) ([]string, []byte) {
		if protocol != "samvad" || sender != "agent://alice.test" {
			t.Errorf("asked for the keys of %s in %s", sender, protocol)
		}
		return []string{key}, nil
	}})
	if err != nil || !v.Verified || len(v.Differs) > 0 || v.Version != "1.2" {
		t.Errorf("%+v, %v", v, err)
	}
}

// signedRequest is an HTTP request of SAMVAD by agent://alice.test, signed over its whole path.
func signedRequest(t *testing.T) (request, key string, at time.Time) {
	t.Helper()
	at = time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC)
	me := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	body := `{"from":"agent://alice.test","to":"agent://weather.test","skill":"s","mode":"sync","nonce":"nonce-01",` +
		`"timestamp":"2026-04-11T10:00:00Z","traceId":"t","spanId":"s","payload":{},` +
		`"auth":{"scheme":"bearer","token":"very-secret-token"}}`
	const path = "/agents/weather/agent/message"
	digest := httpsig.Digest([]byte(body))
	params := fmt.Sprintf(`("@method" "@path" "content-digest");keyid="k1";created=%d`, at.Unix())
	base := "\"@method\": POST\n\"@path\": " + path + "\n\"content-digest\": " + digest + "\n\"@signature-params\": " +
		params + "\n"
	return "POST " + path + " HTTP/1.1\r\nHost: hub.test\r\nContent-Type: application/json\r\nContent-Digest: " + digest +
			"\r\nSignature-Input: sig1=" + params + "\r\nSignature: sig1=:" +
			base64.StdEncoding.EncodeToString(ed25519.Sign(me, []byte(base))) + ":\r\n\r\n" + body,
		base64.StdEncoding.EncodeToString(me.Public().(ed25519.PublicKey)), at
}

// TestInspectMasksSecrets: tokens, keys and cookies of headers and members are nowhere in a report.
func TestInspectMasksSecrets(t *testing.T) {
	t.Parallel()
	samvad, key, at := signedRequest(t)
	for _, sample := range []string{
		samvad,
		`curl -H 'Authorization: Bearer very-secret-token' -H 'Cookie: id=very-secret-token' -d ` +
			`'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"token":"very-secret-token"},"x":` +
			`"Bearer very-secret-token"}' http://hub.test/a2a/w`,
		`{"type":"handshake/init","a2e":"1","id":"1","agent_id":"me","auth_token":"very-secret-token"}`,
		`{"type":"handshake/init","a2e":"1","id":"1","agent_id":"me","auth_token":"very-secret\u002dtoken"}`,
		"POST /mcp HTTP/1.1\nHost: h\nContent-Type: application/json\nMcp-Session-Id: very-secret-token\n\n" +
			`{"jsonrpc":"2.0","id":1,"method":"very-secret-token"}`,
	} {
		v, err := Inspect(t.Context(), []byte(sample), "", Options{Now: at, Keys: nil})
		if err != nil {
			t.Fatalf("%s: %v", sample, err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "very-secret") || !strings.Contains(string(b), "(secret)") {
			t.Errorf("%s\n%s", sample, b)
		}
	}
	// What was signed is judged before it is masked.
	v, err := Inspect(t.Context(), []byte(samvad), "", Options{Now: at, Keys: []string{key}})
	if err != nil || !v.Verified {
		t.Errorf("%+v, %v", v, err)
	}
}
