package asp

import (
	"fmt"
	"testing"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Bodies that are written member by member are those of the encoder.
func TestEncodeBody(t *testing.T) {
	for _, data := range []any{nil, jsonx.Value(nil), jsonx.Value("null"), jsonx.Value("{}"), jsonx.Value(" { } "), jsonx.Value(`{"a": [1, "é\n", {"b":null}]}`),
		jsonx.Value(`{"a":1,"a":2}`), jsonx.Value(`{"a"`), map[string]any{"a": 1}, map[string]any{}, jsonx.Value(`"text"`), jsonx.Value(`""`)} {
		for _, s := range []string{"", "plain", "é \"<&>\\\n", "\xff"} {
			for _, body := range []any{Information{InformType: s, Topic: s, Data: data, Code: s, ReferenceID: s}, Question{QueryID: s, QueryType: s, Subject: s, Parameters: data},
				Promise{CommitmentID: s}, data} {
				got, err := encodeBody(body)
				want, wrong := jsonx.Encode(body)
				if (err == nil) != (wrong == nil) || err == nil && string(got) != string(want) {
					t.Errorf("%s: %s, %v; want %s, %v", fmt.Sprintf("%+v", body), got, err, want, wrong)
				}
			}
		}
	}
}

// A token that was read before ends all the same, and one that differs from it is
// read anew; the memory of them is bounded.
func TestKnownTokens(t *testing.T) {
	w := newWorld(t)
	s := w.Server
	s.init()
	now := s.now()
	token, life, err := s.issueToken(aliceID, "thumb", now)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if c, err := s.readToken(token, now); err != nil || c.Agent != aliceID || c.Thumbprint != "thumb" {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	if _, err := s.readToken(token+"A", now); !isCode(err, "token_invalid") {
		t.Errorf("a token with more behind it: %v", err)
	}
	if _, err := s.readToken(token, now.Add(life)); !isCode(err, "token_expired") {
		t.Errorf("a token that is over: %v", err)
	}
	for i := range maxKnownTokens {
		s.tokens.note(fmt.Sprint(i), &tokenClaims{})
	}
	if n := len(s.tokens.m); n > maxKnownTokens {
		t.Errorf("%d tokens are known", n)
	}
	if _, err := s.readToken(token, now); err != nil {
		t.Errorf("a token that is not known any more: %v", err)
	}
}
