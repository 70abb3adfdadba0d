package asp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// ASP-035: a jti has 1 to 256 characters, which bounds the memory for it.
func TestProofIDIsBounded(t *testing.T) {
	t.Parallel()
	id, err := GenerateIdentity("agent://a.example/b/c", "org_a")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		jti string
		ok  bool
	}{
		{"", false}, {"é", true}, {strings.Repeat("é", 256), true}, {strings.Repeat("é", 257), false},
	} {
		claims := fmt.Appendf(nil, `{"htm":"GET","htu":"https://h.example/x","iat":%d,"jti":`, now.Unix())
		claims = append(jsonx.AppendText(claims, c.jti), '}')
		signed := b64.AppendEncode(append([]byte(id.proofHeader), '.'), claims)
		signature, err := id.signES256(signed)
		if err != nil {
			t.Fatal(err)
		}
		proof := string(b64.AppendEncode(append(signed, '.'), signature[:]))
		_, err = checkProof(proof, proofClaims{Key: id.Public().Proof, Method: "GET", URL: "https://h.example/x",
			Window: window{time.Minute, time.Minute}, Now: now})
		if (err == nil) != c.ok {
			t.Errorf("a jti of %d bytes: %v, want accepted %v", len(c.jti), err, c.ok)
		}
	}
}

// ASP-060: the component of endorsements counts at most 50 endorsers whose own score is
// 30 or more, those with the highest scores.
func TestEndorsementsThatCount(t *testing.T) {
	t.Parallel()
	if got := Endorse("org", []Endorsement{{"a", "x", 30, 80}, {"b", "x", 29.99, 0}}); got != 80 {
		t.Errorf("scores of 30 and 29.99: %v, want 80 of the first alone", got)
	}
	list := []Endorsement{{"the 51st", "x", 31, 0}}
	for i := range 49 {
		list = append(list, Endorsement{fmt.Sprint(i), "x", 90, 100})
	}
	list = append(list, Endorsement{"the 50th", "x", 40, 0})
	if got := Endorse("org", list); got != 98 {
		t.Errorf("51 endorsers: %v, want 98 of the first 50", got)
	}
}

// ASP-079: a proof is remembered until it is too old, and no longer.
func TestProofUntil(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, w := range []window{{}, {Past: time.Minute}, {Past: 20 * time.Minute, Future: time.Minute}} {
		for _, ahead := range []time.Duration{0, time.Minute, -30 * time.Second, 250 * time.Millisecond} {
			until := w.until(now.Add(ahead))
			if !w.holds(now.Add(ahead), until.Add(-time.Nanosecond)) {
				t.Errorf("%+v, %s ahead: too old before it may be forgotten", w, ahead)
			}
			if w.holds(now.Add(ahead), until) {
				t.Errorf("%+v, %s ahead: in the window when it may be forgotten", w, ahead)
			}
		}
	}
}
