package asp

import "testing"

func TestTokens(t *testing.T) {
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
		t.Errorf("a token with trailing bytes: %v", err)
	}
	if _, err := s.readToken(token, now.Add(life)); !isCode(err, "token_expired") {
		t.Errorf("an expired token: %v", err)
	}
}
