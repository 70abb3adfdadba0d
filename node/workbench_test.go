package node

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
)

// signedOfMe is signed by the key whose seed is 32 bytes of zero, as agent://me.test.
const signedOfMe = `{"from":"agent://me.test","to":"agent://you.test","skill":"s","mode":"sync","nonce":"nonce-01",` +
	`"timestamp":"2026-04-11T10:00:00Z","traceId":"t","spanId":"s","payload":{},"kid":"k1","signature":` +
	`"wwqBJXqZIEHJdJGnVX/F7y8F/3cIlc64bBAtjFjlyjNF3nIdyLt9K5yEdQc7oCZSbmDgFIBjV/gINwW4wM4HAg=="}`

// TestInspectKnowsKeys: the hub explains a pasted message with the keys that it has enrolled for the sender.
func TestInspectKnowsKeys(t *testing.T) {
	t.Parallel()
	n, err := Open(t.Context(), Config{Data: t.TempDir(), Durability: "memory", AdminAPI: true,
		Listen: Listen{HTTP: "127.0.0.1:0"}, Agents: map[string]Agent{"me": {SAMVAD: &SAMVADAgent{ID: "agent://me.test",
			Key: "O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=", KID: "k1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(t.Context())
	at := time.Date(2026, 4, 11, 10, 0, 1, 0, time.UTC)
	watcher := admin.Actor{Name: "watch", Role: admin.Observe}
	for _, c := range []struct {
		input, sentence string
		verified        bool
	}{
		{signedOfMe, "It is proved that agent://me.test signed this message", true},
		{strings.Replace(signedOfMe, `"skill":"s"`, `"skill":"t"`, 1), "The signature in the body is not one of this key", false},
		{strings.Replace(signedOfMe, "me.test", "other.test", 1), "Nothing that could be checked is wrong", false},
	} {
		v, err := n.Admin().Inspect(t.Context(), watcher, admin.Inspection{Input: []byte(c.input), At: at})
		if err != nil {
			t.Fatal(err)
		}
		if v.Verified != c.verified || !strings.HasPrefix(v.Sentence, c.sentence) || v.Protocol != "samvad" || v.Version != "1.1" {
			t.Errorf("%+v, want %s", v, c.sentence)
		}
	}
}
