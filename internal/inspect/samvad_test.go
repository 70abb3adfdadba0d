package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/samvad"
)

// vectorFile reads one file of the SAMVAD vectors.
func vectorFile(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../testdata/vectors/samvad", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

// The inspector judges each request of the vectors as the verifier does.
func TestInspectAgreesWithVerifier(t *testing.T) {
	t.Parallel()
	var fixture struct {
		Cases []struct {
			Name   string
			Input  json.RawMessage
			Expect json.RawMessage
		}
	}
	vectorFile(t, "fixture.json", &fixture)
	keys := map[string]struct {
		Public string `json:"public_key_base64"`
	}{}
	var receiver struct {
		Agent string            `json:"agent_id"`
		Peers map[string]string `json:"enrolled_peers"`
	}
	for _, c := range fixture.Cases {
		switch c.Name {
		case "keys":
			if err := json.Unmarshal(c.Expect, &keys); err != nil {
				t.Fatal(err)
			}
		case "receiver":
			if err := json.Unmarshal(c.Input, &receiver); err != nil {
				t.Fatal(err)
			}
		}
	}
	var requests struct {
		Cases []struct {
			Name  string
			Input struct {
				Now      time.Time
				Fixture  string
				Requests []json.RawMessage
			}
		}
	}
	vectorFile(t, "requests.json", &requests)
	seen := 0
	for _, c := range requests.Cases {
		for i, raw := range c.Input.Requests {
			var at struct {
				Millis int64 `json:"at_ms"`
			}
			if err := json.Unmarshal(raw, &at); err != nil {
				t.Fatal(err)
			}
			now := c.Input.Now.Add(time.Duration(at.Millis) * time.Millisecond)
			s, err := requestSample("vector", raw)
			if err != nil {
				continue // not a request by its method and target
			}
			o := Options{Self: receiver.Agent, Now: now}
			known := samvad.StaticKeys{}
			var claim struct{ From string }
			_ = jsonx.Decode(s.Body, &claim) // a broken body has no claims
			if name := receiver.Peers[claim.From]; name != "" {
				o.Keys = []string{keys[name].Public}
				k, err := samvad.ParseKey(keys[name].Public)
				if err != nil {
					t.Fatal(err)
				}
				known[claim.From] = []samvad.Key{k}
			}
			v, err := inspectSAMVAD(context.Background(), s, o)
			if err != nil {
				t.Fatalf("%s %d: %v", c.Name, i, err)
			}
			if v.Sentence == "" {
				t.Errorf("%s %d: no sentence", c.Name, i)
			}
			if slices.ContainsFunc(v.Checks, func(c admin.InspectedCheck) bool {
				return c.Name == "transport" &&
					c.State == admin.CheckFailed
			}) {
				if v.Verified {
					t.Errorf("%s %d is verified although its transport is wrong", c.Name, i)
				}
				continue // the verifier gets messages from the transport only
			}
			paths := []string{s.path()}
			for _, p := range SAMVADPaths {
				if strings.HasSuffix(s.path(), p) {
					paths = append(paths, p)
				}
			}
			verifier := &samvad.Verifier{Self: receiver.Agent, Keys: known, Now: func() time.Time { return now }}
			_, err = verifier.CheckMessage(context.Background(),
				&samvad.Incoming{Method: s.method, Paths: paths, RawQuery: s.query(), Authority: s.host,
					Header: s.header, Body: s.Body})
			if v.Verified != (err == nil) {
				t.Errorf("%s %d: inspect says verified=%v (%s), the verifier says %v", c.Name, i, v.Verified,
					v.Sentence, err)
			}
			seen++
		}
	}
	if seen < 20 {
		t.Fatalf("only %d requests were compared", seen)
	}
}

func TestInspectLegacy(t *testing.T) {
	t.Parallel()
	// Signed by the key whose seed is 32 bytes of zero.
	signed := []byte(`{"from":"agent://me.test","to":"agent://you.test","skill":"s","mode":"sync","nonce":"nonce-01","timestamp":"2026-04-11T10:00:00Z","traceId":"t","spanId":"s","payload":{},"kid":"k1","signature":"wwqBJXqZIEHJdJGnVX/F7y8F/3cIlc64bBAtjFjlyjNF3nIdyLt9K5yEdQc7oCZSbmDgFIBjV/gINwW4wM4HAg=="}`)
	now := time.Date(2026, 4, 11, 10, 0, 1, 0, time.UTC)
	card := []byte(`{"id":"agent://me.test","protocolVersion":"1.1","publicKeys":[{"kid":"k1","key":"O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=","active":true}]}`)
	for name, c := range map[string]struct {
		body []byte
		want bool
	}{"signed": {signed, true}, "changed": {bytes.Replace(signed, []byte(`"skill":"s"`), []byte(`"skill":"t"`), 1),
		false}} {
		s, err := Read(c.body)
		if err != nil {
			t.Fatal(err)
		}
		v, err := inspectSAMVAD(context.Background(), s, Options{Card: card, Now: now})
		if err != nil || v.Verified != c.want {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}
