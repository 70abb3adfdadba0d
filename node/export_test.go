package node

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
)

// TestExportAgents: agents that came by command, the API or their own registration are
// written as a configuration file; an empty hub that loads it has the same agents and keys.
func TestExportAgents(t *testing.T) {
	ctx := t.Context()
	old := running(t, Config{Durability: "disk", Data: t.TempDir(),
		Agents: map[string]Agent{"configured": {Inbox: true}}})
	key := base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey))
	address := "agent1qvg94auggu6jhg3ccfwpjvlkp0n9zglupzqjcnlup6qj09u96lwvvnvhwr4"
	for _, n := range []admin.NewAgent{
		{Name: "weather", Title: `The "weather"`, Description: "Two\nlines.", Expose: []string{"agh", "samvad"},
			Record: parley.RecordDigest, Delivery: &admin.DeliveryChange{Tries: new(3), Patience: new("24h"), Ordered: new(false)},
			Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://weather.corp",
				URL: "https://weather.corp/base", PublicKey: key, KeyID: "k1"}},
			Skills: []admin.Skill{{ID: "forecast", Name: "Forecast", Input: json.RawMessage(`{"type":"object","title":"it's"}`),
				Modes: []parley.Mode{parley.Sync}, Access: parley.TrustedPeers, Peers: []string{"agent://a.corp"},
				Default: true}, {ID: "now"}}},
		{Name: "caller", Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://caller.local", PublicKey: key}}},
		{Name: "crew/planner.2", Identities: []admin.NewIdentity{{Protocol: "samvad", ID: "agent://planner.corp"},
			{Protocol: "uagents", ID: address, URL: "https://planner.corp/submit"},
			{Protocol: "asp", ID: "agent://corp/crew/planner"}, {Protocol: "agh", ID: "space/planner"},
			{Protocol: "a2e", ID: "https://planner.corp/a2e", URL: "https://planner.corp/a2e"}}},
		{Name: "me", Inbox: true},
	} {
		if _, err := old.Admin().AddAgent(ctx, everything, n); err != nil {
			t.Fatal(n.Name, err)
		}
	}
	if _, err := old.directory.Register(ctx, parley.Agent{Name: "registered", Identities: []parley.Identity{{
		Protocol: "agh", ID: "space/registered"}}, Skills: []parley.SkillSpec{{ID: "learned"}}}, directory.FromAgent,
		"agh"); err != nil {
		t.Fatal(err)
	}
	guest := parley.Agent{Name: directory.GuestName("agh", "space/guest", ""), Identities: []parley.Identity{{
		Protocol: "agh", ID: "space/guest"}}}
	if _, err := old.directory.Put(ctx, guest, directory.FromGuest); err != nil {
		t.Fatal(err)
	}
	list, err := old.Admin().Agents(ctx, everything, admin.AgentFilter{})
	if err != nil {
		t.Fatal(err)
	}
	enrolled := old.keys.AllEnrolled()
	text := ExportAgents(list.Agents, enrolled, true)
	path := filepath.Join(t.TempDir(), "parley.toml")
	if err := os.WriteFile(path, append([]byte("[listen]\nadmin = \"127.0.0.1:0\"\n"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	c.Durability = "disk"
	fresh := running(t, c)
	got, err := fresh.Admin().Agents(ctx, everything, admin.AgentFilter{})
	if err != nil {
		t.Fatal(err)
	}
	same := func(list []admin.Agent) map[string]admin.Agent {
		out := map[string]admin.Agent{}
		for _, a := range list {
			if a.Source == directory.FromCode || a.Name == "configured" {
				continue
			}
			if a.Learned != "" {
				a.Skills, a.Learned = []admin.Skill{}, "" // the agent declares them again
			}
			a.Source, a.Added, a.Native, a.Origin = "", time.Time{}, nil, admin.AgentOrigin{}
			a.Bindings, a.Since = nil, time.Time{} // of the same identities in the order of the file; of each start
			a.Identities = append([]admin.Identity{}, a.Identities...)
			out[a.Name] = a
		}
		return out
	}
	byProtocol := cmp.Transformer("byProtocol", func(list []admin.Identity) map[string]admin.Identity {
		out := map[string]admin.Identity{}
		for _, i := range list {
			if !i.StandIn {
				out[i.Protocol] = i
			}
		}
		return out
	})
	if d := cmp.Diff(same(list.Agents), same(got.Agents), byProtocol); d != "" {
		t.Errorf("%s\n%s", d, text)
	}
	keysOf := func(list []keyring.Enrolled) map[string]string {
		out := map[string]string{}
		for _, k := range list {
			out[k.Agent+" "+k.Purpose+" "+k.KeyID] = string(k.Public)
		}
		return out
	}
	if d := cmp.Diff(keysOf(enrolled), keysOf(fresh.keys.AllEnrolled())); d != "" || len(enrolled) != 2 {
		t.Errorf("%d keys: %s", len(enrolled), d)
	}

	// A guest is a comment, unless the operator asks for more.
	careful := string(ExportAgents(list.Agents, nil, false))
	if !strings.Contains(careful, "\n# [agents.\"guest/") || strings.Contains(careful, "\n[agents.\"guest/") ||
		strings.Contains(careful, "configured") {
		t.Error(careful)
	}
}

// TestExportNamesFiles: where a file with a secret or a card is needed, the text says so.
func TestExportNamesFiles(t *testing.T) {
	text := string(ExportAgents([]admin.Agent{{Name: "crew/scout", Paused: true, Source: directory.FromOperator,
		Identities: []admin.Identity{{Protocol: "a2e", ID: "hmac-sha-256:0123"}, {Protocol: "asp", ID: "agent://a/b/c"},
			{Protocol: "samvad", ID: "agent://one"}, {Protocol: "samvad", ID: "agent://two"},
			{Protocol: "uagents", ID: "agent1q", StandIn: true}}}}, nil, false))
	for _, want := range []string{"[agents.\"crew/scout\"]\n", "a2e.token_file = 'crew-scout.token'\n",
		"# Put the token that the agent shows into this file", "asp.id = 'agent://a/b/c'\n", "asp.card = \"crew-scout.card.json\"",
		"# It is paused: parley agents pause crew/scout\n", "samvad.id = 'agent://one'\n", "agents link crew/scout --protocol samvad"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "hmac") || strings.Contains(text, "uagents") {
		t.Error(text)
	}
}
