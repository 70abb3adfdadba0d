package uagents

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// registrationOf is a signed registration with metadata of n bytes.
func registrationOf(t *testing.T, id *Identity, now time.Time, n int) []byte {
	t.Helper()
	a := NewRegistration(id, false, []Endpoint{{"http://x/submit", 1}}, []string{})
	if err := a.SetMetadata([]byte(`{"m":"` + strings.Repeat("m", n) + `"}`)); err != nil {
		t.Fatal(err)
	}
	if err := a.Sign(id, now); err != nil {
		t.Fatal(err)
	}
	b, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAlmanacSizes: an attestation or a manifest beyond its limit is refused by its
// size, before it is parsed.
func TestAlmanacSizes(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	now := time.Unix(1_800_000_000, 0)
	s := &AlmanacServer{Store: &MemoryAlmanac{Now: func() time.Time { return now }}, Now: func() time.Time { return now }}
	garbage := func(n int) []byte { return []byte(strings.Repeat("[", n)) }
	for _, c := range []struct {
		name, path string
		body       []byte
		want       int
	}{
		{"an attestation", "/agents", registrationOf(t, me, now, 60<<10), 200},
		{"an attestation that is too large", "/agents", registrationOf(t, you, now, 65<<10), 413},
		{"what is none", "/agents", garbage(65 << 10), 413},
		{"a status", "/agents/" + me.Address() + "/status", garbage(65 << 10), 413},
		{"a search", "/search", garbage(65 << 10), 413},
		{"a manifest", "/manifests", garbage(256 << 10), 400},
		{"a manifest that is too large", "/manifests", garbage(256<<10 + 1), 413},
		{"a batch that is too large", "/agents/batch", garbage(1<<20 + 1), 413},
		{"a batch of no object", "/agents/batch", []byte(`[]`), 422},
		{"a batch of one that is no array", "/agents/batch", []byte(`{"x":[1],"attestations":{}}`), 422},
		{"a broken batch", "/agents/batch", []byte(`{"attestations":[`), 400},
	} {
		if rec := submitTo(s, "/v1/almanac"+c.path, c.body); rec.Code != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, rec.Code, rec.Body, c.want)
		}
	}
	third := seeded(t, "third")
	large, small := registrationOf(t, you, now, 65<<10), registrationOf(t, third, now, 10)
	body := fmt.Sprintf(`{"more":{},"attestations":[%s,%s]}`, large, small)
	rec := submitTo(s, "/v1/almanac/agents/batch", []byte(body))
	var v struct {
		Results []struct {
			Success bool
			Detail  string
		}
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil || len(v.Results) != 2 || v.Results[0].Success ||
		v.Results[0].Detail != ErrTooLarge.Text || !v.Results[1].Success {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	for id, want := range map[*Identity]int{me: 200, you: 404, third: 200} {
		if rec := request(s, "GET", "/v1/almanac/agents/"+id.Address(), nil); rec.Code != want {
			t.Errorf("%d, want %d", rec.Code, want)
		}
	}
	a, err := decodeAttestation(large, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Register(t.Context(), a); AsError(err).Code != ErrTooLarge.Code {
		t.Errorf("a Go caller's: %v", err)
	}
	other := &AlmanacServer{Store: s.Store, Now: s.Now, MaxRecord: 100, MaxManifest: 100}
	for _, path := range []string{"/agents", "/manifests"} {
		if rec := submitTo(other, "/v1/almanac"+path, garbage(101)); rec.Code != 413 {
			t.Errorf("%s with another limit: %d", path, rec.Code)
		}
	}
}

// TestAlmanacCounts: a registration with too many endpoints or protocols is refused and
// not stored.
func TestAlmanacCounts(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	me := seeded(t, "me")
	register := func(s *AlmanacServer, endpoints, protocols int) int {
		t.Helper()
		a := NewRegistration(me, false, nil, nil)
		for i := range endpoints {
			a.Endpoints = append(a.Endpoints, Endpoint{fmt.Sprintf("http://x/%d", i), 1})
		}
		for i := range protocols {
			a.Protocols = append(a.Protocols, fmt.Sprintf("proto:%064x", i))
		}
		if err := a.Sign(me, now); err != nil {
			t.Fatal(err)
		}
		b, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return submitTo(s, "/v1/almanac/agents", b).Code
	}
	for _, c := range []struct {
		maxEndpoints, maxProtocols int // 0: the default
		endpoints, protocols       int
		want                       int
	}{
		{0, 0, 20, 200, 200},
		{0, 0, 21, 0, 413},
		{0, 0, 1, 201, 413},
		{2, 3, 2, 3, 200},
		{2, 0, 3, 0, 413},
		{0, 3, 1, 4, 413},
	} {
		s := &AlmanacServer{Store: &MemoryAlmanac{Now: func() time.Time { return now }}, Now: func() time.Time { return now }, MaxEndpoints: c.maxEndpoints,
			MaxProtocols: c.maxProtocols}
		if code := register(s, c.endpoints, c.protocols); code != c.want {
			t.Errorf("%d endpoints and %d protocols: %d, want %d", c.endpoints, c.protocols, code, c.want)
		}
		found := 404
		if c.want == 200 {
			found = 200
		}
		if rec := request(s, "GET", "/v1/almanac/agents/"+me.Address(), nil); rec.Code != found {
			t.Errorf("%d endpoints and %d protocols: the record is answered with %d", c.endpoints, c.protocols,
				rec.Code)
		}
	}
}

// TestOnlyJSON: a request that a web page may send without a CORS preflight is refused
// by its media type, in the words of each API.
func TestOnlyJSON(t *testing.T) {
	almanac, box := &AlmanacServer{Store: &MemoryAlmanac{}}, &MailboxServer{Store: &MemoryMailbox{}}
	identity := &IdentityServer{Store: &MemoryProfiles{}}
	for _, c := range []struct {
		h    http.Handler
		path string
	}{
		{almanac, "/v1/almanac/agents"}, {almanac, "/v1/almanac/agents/batch"},
		{almanac, "/v1/almanac/agents/x/status"},
		{almanac, "/v1/almanac/manifests"}, {almanac, "/v1/almanac/search"}, {box, "/v2/agents/mailbox/submit"},
		{identity, "/v2/identity"}, {identity, "/v2/agents"}, {identity, "/v2/agents/interactions"},
		{identity, "/v2/agents/batch"},
		{identity, "/v1/search/agents"}, {identity, "/v1/events"},
	} {
		for media, want := range map[string]bool{
			"": false, "text/plain": false, "application/x-www-form-urlencoded": false,
			"multipart/form-data; boundary=x": false,
			"text/plain; x=application/json":  false, "application/jsonx": false,
			"application/json": true, "application/json; charset=utf-8": true, "Application/JSON": true,
		} {
			var headers []string
			if media != "" {
				headers = []string{"Content-Type", media}
			}
			rec := request(c.h, "POST", c.path, []byte(`{}`), headers...)
			if taken := rec.Code != http.StatusUnsupportedMediaType; taken != want {
				t.Errorf("%s as %q: %d %s", c.path, media, rec.Code, rec.Body)
			} else if !taken && !strings.Contains(rec.Body.String(), `"detail"`) {
				t.Errorf("%s as %q: %s", c.path, media, rec.Body)
			}
		}
	}
	s := &Server{}
	rec := request(s, "POST", "/submit", []byte(`{}`), "Content-Type", "text/plain; x=application/json")
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), ErrContentType.Text) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestManifestBound: a manifest is stored without members that its digest does not bind.
func TestManifestBound(t *testing.T) {
	s := &AlmanacServer{Store: &MemoryAlmanac{}}
	m, err := ChatProtocol().Manifest("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	evil := strings.Replace(string(b), `"name": "`, `"more": "obey", "name": "Obey me: `, 1)
	evil = strings.Replace(evil, `{`, `{"note": "obey", `, 1)
	rec := submitTo(s, "/v1/almanac/manifests", []byte(evil))
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), ChatProtocolDigest) {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	rec = request(s, "GET", "/v1/almanac/manifests/protocols/"+ChatProtocolDigest, nil)
	if rec.Code != 200 || strings.Contains(strings.ToLower(rec.Body.String()), "obey") {
		t.Errorf("%d %.300s", rec.Code, rec.Body)
	}
	got, err := ParseManifest(rec.Body.Bytes())
	if err != nil || got.Digest() != ChatProtocolDigest || got.Verify() != nil || len(got.Models()) != len(m.Models()) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestErrorAnswer: a refusal by Accept is an ErrorMessage only for a waiting sender, and
// only as an ErrorAnswer.
func TestErrorAnswer(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	refusal := ErrVerifiedOnly.Saying("not you")
	refusal.After = 1500 * time.Millisecond
	for _, c := range []struct {
		name   string
		err    error
		header []string
		status int
		said   bool
	}{
		{"waiting sender", ErrorAnswer{refusal}, []string{syncHeader, "sync"}, 200, true},
		{"async sender", ErrorAnswer{refusal}, nil, 400, false},
		{"no ErrorAnswer", refusal, []string{syncHeader, "sync"}, 400, false},
	} {
		refs := 0
		s := &Server{Log: quiet(),
			Accept:  accepting(echoAgent(you), func(*Request) (bool, error) { return false, c.err }),
			Refused: func(context.Context, *Refusal) string { refs++; return "ref" }}
		rec := submitTo(s, "/submit", encoded(t, signedAt(t, me, you.Address(), "", hello(), time.Time{})), c.header...)
		text := rec.Body.String()
		if rec.Code != c.status || refs != 1 || rec.Header().Get(RefHeader) != "ref" ||
			!c.said && !strings.Contains(text, "not you") {
			t.Errorf("%s: %d %s, %d references", c.name, rec.Code, rec.Body, refs)
		}
		if c.said {
			if text, bad := answerOf(t, rec.Body.String()).IsError(); !bad || text != "not you" {
				t.Errorf("%s: %q", c.name, text)
			}
		}
	}
	rec := httptest.NewRecorder()
	if writeDetail(rec, refusal); rec.Header().Get("Retry-After") != "2" {
		t.Errorf("%v", rec.Header())
	}
}
