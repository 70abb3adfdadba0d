package node

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/samvad"
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

// museum is a SAMVAD agent on a socket of its own. It trusts the hub only if trusting.
func museum(t *testing.T, n *Node, trusting bool) (id, url string) {
	t.Helper()
	me, err := samvad.NewIdentity("agent://museum.test", "key-current")
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := samvad.ParseKey(n.SAMVAD().Hosting().Key)
	if !trusting {
		trusted, err = samvad.ParseKey("O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=")
	}
	if err != nil {
		t.Fatal(err)
	}
	card := &samvad.Card{ID: me.ID(), Name: "Museum", Version: "1", Description: "x", URL: "http://museum.test",
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(me, true)}, Skills: []samvad.Skill{{ID: "ask", Name: "Ask",
			Description: "x", InputSchema: []byte(`{"type":"object"}`), OutputSchema: []byte(`{"type":"object"}`),
			Modes: []samvad.Mode{samvad.ModeSync}, Trust: samvad.TrustPublic}}}
	s := httptest.NewServer(&samvad.Server{
		Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{n.SAMVAD().Hosting().Identity: {trusted}}},
		Agent: &samvad.Agent{Card: card.Complete(), Limit: &samvad.RateLimit{},
			Handler: func(context.Context, *samvad.Request) (samvad.Response, error) {
				return samvad.Response{Result: []byte(`{"show":"angels"}`)}, nil
			}}})
	t.Cleanup(s.Close)
	return me.ID(), s.URL
}

// workbenchNode is a running hub that may call this machine.
func workbenchNode(t *testing.T, allow ...string) *Node {
	t.Helper()
	c := Config{Data: t.TempDir(), Durability: "memory", AdminAPI: true, Listen: Listen{HTTP: "127.0.0.1:0"}}
	c.Network.Allow = allow
	n, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDoctorInTheHub: the hub checks the way to an agent with its own key, and its steps say what mends a fault.
func TestDoctorInTheHub(t *testing.T) {
	for _, c := range []struct {
		name, check, fix string
		trusting         bool
		allow            []string
		state            hub.FindingState
	}{
		{"accepted", "signed round trip", "", true, []string{"loopback"}, hub.FindingOK},
		{"wrong key", "signed round trip", "agent.trust_peer(", false, []string{"loopback"}, hub.FindingFailed},
		{"not allowed", "address", `[network] allow = ["loopback"]`, true, nil, hub.FindingFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := workbenchNode(t, c.allow...)
			id, url := museum(t, n, c.trusting)
			if _, err := n.Hub().Directory().Put(t.Context(), parley.Agent{Name: "museum", Identities: []parley.Identity{
				{Protocol: "samvad", ID: id, URL: url}}}, directory.FromOperator); err != nil {
				t.Fatal(err)
			}
			steps, err := n.Admin().Doctor(t.Context(), everything, "museum")
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(steps, func(s admin.DoctorStep) bool { return s.Check == c.check })
			if at < 0 || steps[at].State != c.state || !strings.Contains(steps[at].Fix, c.fix) {
				t.Errorf("%+v", steps)
			}
			_, err = n.Admin().Doctor(t.Context(), admin.Actor{Name: "viewer", Role: admin.Read}, "museum")
			if parley.CodeOf(err) != parley.Forbidden {
				t.Errorf("a viewer: %v", err)
			}
		})
	}
}
