package connect

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/samvad"
)

var samvadKeyFields = []Field{
	{Flag: "key", Label: "Its public key", Text: "its public key, base64 (default: that of its card)"},
	{Flag: "key-id", Label: "Id of that key", Text: "id of that key (default: it answers to any)"},
}

var samvadProtocol = Protocol{
	Name: "samvad",
	Ways: []Way{
		{Title: "the hub calls it", Reads: true, Identity: samvadIdentity,
			Fields: append([]Field{
				{Flag: "samvad", Label: "Its address", Text: "base URL of an agent that speaks SAMVAD", Type: "url", Must: true,
					Example: "https://museum.corp"},
				{Flag: "id", Label: "Its identity", Text: "its identity, agent://HOST (default: that of its card)"},
			}, samvadKeyFields...),
			Command: func(v Values) string { return flags(v, "samvad", "id", "key", "key-id") }},
		{Name: "calls", Title: "it only calls", Identity: samvadIdentity,
			Fields: []Field{{Flag: "id", Label: "Its identity", Text: "its identity, agent://HOST", Must: true,
				Example: "agent://caller.example"}, {Flag: "key", Label: "Its public key", Must: true,
				Text: "its public key, base64: what it signs is proved by it"}, samvadKeyFields[1]},
			Command: func(v Values) string { return flags(v, "id", "key", "key-id") }},
	},
	Paste: func(h *Hub, _ string, id admin.Identity) []admin.Paste { return pasteSAMVAD(h.Info.SAMVAD, id) },
	Read:  readSAMVAD,
}

// samvadIdentity makes an identity of the fields. Without an id the card says it.
func samvadIdentity(_ string, v Values) (admin.NewIdentity, error) {
	id := admin.NewIdentity{Protocol: "samvad", ID: v["id"], URL: strings.TrimRight(v["samvad"], "/"), PublicKey: v["key"],
		KeyID: v["key-id"]}
	if id.PublicKey != "" {
		if _, err := samvad.ParseKey(id.PublicKey); err != nil {
			return id, malformed("--key: want the base64 of an Ed25519 public key, 32 bytes: %s", err)
		}
	}
	if id.ID != "" {
		if _, err := samvad.AgentOrigin(id.ID); err != nil {
			return id, malformed("--id %q: want agent://HOST or agent://HOST:PORT", id.ID)
		}
	}
	if id.URL == "" {
		if id.ID == "" {
			return id, malformed("give the agent's base URL, or its identity and key if it only calls")
		}
		return id, nil
	}
	if _, ok := webURL(id.URL); !ok {
		return id, malformed("--samvad %q: want http(s)://HOST[:PORT][/PATH]", id.URL)
	}
	return id, nil
}

// readSAMVAD reads the agent's card, which has its identity, skills and key.
func readSAMVAD(ctx context.Context, r *Reader, n *admin.NewAgent, id *admin.NewIdentity, note Note) error {
	if id.URL == "" {
		if id.PublicKey == "" {
			note("without --key no message from it is proved, unless its card at the https origin of %s has a key", id.ID)
		}
		return nil
	}
	u, ok := webURL(id.URL)
	if !ok {
		return malformed("%.200q is no address of an agent: want http(s)://HOST[:PORT][/PATH]", id.URL)
	}
	card, err := (&samvad.Client{HTTP: r.Client, Guard: r.Guard}).Card(ctx, id.URL)
	if err != nil {
		note("its card could not be read (%s): its skills are not known", unread(err))
		if id.ID == "" {
			id.ID = "agent://" + u.Hostname()
			note("the hub assumes its identity %s, as the SDKs make it; set another one with --id", id.ID)
		}
		if id.PublicKey == "" {
			note("no key is enrolled: run this again with --key, or when the agent runs")
		}
		return nil
	}
	if id.ID != "" && id.ID != card.ID {
		return malformed("--id %s: the agent's card says %s", id.ID, clean(card.ID))
	}
	id.ID = card.ID
	n.Title, n.Description = cmp.Or(n.Title, card.Name), cmp.Or(n.Description, card.Description)
	for _, k := range card.Skills {
		v := admin.Skill{ID: k.ID, Name: k.Name, Description: k.Description, Access: parley.Access(k.Trust),
			Peers: k.AllowedPeers, Input: json.RawMessage(k.InputSchema), Output: json.RawMessage(k.OutputSchema)}
		for _, m := range k.Modes {
			v.Modes = append(v.Modes, parley.Mode(m))
		}
		n.Skills = append(n.Skills, v)
	}
	if id.PublicKey == "" {
		samvadKey(card, u.Scheme == "http" && !netguard.OnThisMachine(u.Hostname()), id, note)
	}
	return nil
}

// samvadKey takes the key of a card, unless the card may be forged.
func samvadKey(card *samvad.Card, forged bool, id *admin.NewIdentity, note Note) {
	active := slices.DeleteFunc(slices.Clone(card.PublicKeys), func(k samvad.CardKey) bool { return !k.Active })
	switch {
	case len(active) == 0:
		note("its card has no active key: run this again with --key")
	case forged:
		note("its card came over plain http and may be forged, so its key was not enrolled; if the key is right, "+
			"run this again with --key %s", clean(active[0].Key))
	default:
		id.PublicKey = active[0].Key
		if b, err := base64.StdEncoding.DecodeString(id.PublicKey); err == nil {
			note("key %s was taken from its card; compare it with the agent's operator",
				keyring.Fingerprint(keyring.Ed25519, b))
		}
		if len(active) > 1 {
			note("its card has %d active keys; the first was enrolled, add the others with `parley keys enroll`",
				len(active))
		}
	}
}

// pasteSAMVAD gives the lines with which an SDK's agent trusts the hub, and calls through it.
func pasteSAMVAD(hub admin.Hosting, i admin.Identity) (out []admin.Paste) {
	if hub.Identity == "" {
		return nil
	}
	if i.URL != "" {
		why := "so that the agent accepts what the hub sends (before it is served)"
		out = append(out,
			admin.Paste{Why: why, SDK: "TypeScript", Line: fmt.Sprintf("agent.trustPeer('%s', Buffer.from('%s', 'base64'))",
				hub.Identity, hub.Key)},
			admin.Paste{Why: why, SDK: "Python", Line: fmt.Sprintf("agent.trust_peer(%q, %q)", hub.Identity, hub.Key)})
	}
	why := "so that it calls the agent NAME through the hub"
	return append(out,
		admin.Paste{Why: why, SDK: "TypeScript", Line: fmt.Sprintf("const client = await AgentClient.from('%s/agents/NAME', "+
			"{ agentId: '%s' })", hub.Base, i.ID)},
		admin.Paste{Why: why, SDK: "Python", Line: fmt.Sprintf("client = await AgentClient.from_url(\"%s/agents/NAME\")",
			hub.Base)},
		admin.Paste{Why: why, SDK: "Go", Line: fmt.Sprintf("client := &samvad.Client{Identity: me}; "+
			"r, err := client.Ask(ctx, samvad.Call{URL: %q, Skill: \"SKILL\", Payload: payload})", hub.Base+"/agents/NAME")})
}
