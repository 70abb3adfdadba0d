package asp

import (
	"fmt"
	"testing"
)

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
