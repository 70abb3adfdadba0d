package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
)

var a2aProtocol = Protocol{
	Name: bridge.Protocol,
	Ways: []Way{
		{Title: "the hub calls it", Reads: true, Shows: true,
			Fields: []Field{{Flag: "a2a", Label: "Its URL", Type: "url", Must: true, Example: "https://lab.example/agents/one",
				Text: "URL below which the card of an A2A agent is; or new: an agent that calls the hub and has no URL"}},
			Identity: func(_ string, v Values) (admin.NewIdentity, error) {
				i, err := bridge.IdentityAt(v["a2a"])
				if err != nil {
					return admin.NewIdentity{}, malformed("--a2a %q: want new, for an agent that calls the hub, or "+
						"http(s)://HOST[:PORT][/PATH], the URL below which the agent's card is", v["a2a"])
				}
				return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID, URL: i.URL}, nil
			},
			Command: func(v Values) string { return flags(v, "a2a") }},
		{Name: "calls", Title: "it only calls",
			Identity: func(name string, _ Values) (admin.NewIdentity, error) {
				i := bridge.IdentityOfCaller(name)
				return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID}, nil
			},
			Command: func(Values) string { return "--a2a new" }},
	},
	Paste: func(h *Hub, name string, id admin.Identity) []admin.Paste {
		return pasteA2A(h.Info.PublicURL, name, id)
	},
	Read: readA2A,
}

// readA2A reads the card of an agent elsewhere.
func readA2A(ctx context.Context, r *Reader, n *admin.NewAgent, id *admin.NewIdentity, note Note) error {
	if id.URL == "" {
		return nil
	}
	shows := id.Credentials != nil
	card, raw, err := ReadA2ACard(ctx, r.Client.Transport, id.URL, "")
	if refused, ok := errors.AsType[*NotACard](err); ok && (!refused.Guarded || !shows) {
		return refuse(parley.Unsupported, "%s", strings.ReplaceAll(refused.text, "\n        ", "; "))
	} else if ok {
		note("its card wants credentials too: its skills are not known yet; the hub reads it before its first call")
		return nil
	}
	if err != nil {
		note("its card could not be read (%s): its skills are not known yet; the hub reads it before its first call",
			unread(err))
		return nil
	}
	n.Title, n.Description = cmp.Or(n.Title, short(card.Name, 200)), cmp.Or(n.Description, short(card.Description, 2000))
	note("its card: %s, version %s, A2A %s; %s", clean(card.Name), clean(card.Version),
		strings.Join(A2AVersions(card), " and "), A2ASigned(ctx, r.Client.Transport, id.URL, raw))
	for _, k := range card.Skills[:min(len(card.Skills), 20)] {
		note("skill %s: %s", clean(k.ID), short(clean(cmp.Or(k.Description, k.Name)), 100))
	}
	if len(card.Skills) > 20 {
		note("and %d more skills", len(card.Skills)-20)
	}
	if len(card.SecurityRequirements) > 0 && !shows {
		note("it wants credentials: add it again with --a2a-token-file, --a2a-api-key-file, --a2a-client-id or "+
			"--a2a-cert, or put it into the configuration, with agents.%s.a2a.token_file, api_key_file, "+
			"oauth or cert", n.Name)
	}
	return nil
}

// pasteA2A are the lines with which an A2A client calls through the hub.
func pasteA2A(public, name string, id admin.Identity) []admin.Paste {
	if id.URL != "" {
		return nil
	}
	agent := strings.TrimRight(public, "/") + bridge.Base + "NAME"
	why := "so that it calls the agent NAME through the hub; `parley agents` lists those that are exposed in a2a"
	return []admin.Paste{
		{Why: "for its token, at the hub", SDK: "shell", Line: "parley tokens add " + strings.ReplaceAll(name, "/", "-") +
			"-a2a --agent " + name},
		{Why: why, SDK: "header", Line: "Authorization: Bearer TOKEN"},
		{Why: why, SDK: "card", Line: agent + bridge.CardPath},
		{Why: why, SDK: "Python", Line: fmt.Sprintf("client = await create_client(%q, client_config=ClientConfig("+
			"httpx_client=httpx.AsyncClient(headers={\"Authorization\": \"Bearer TOKEN\"})))", agent)},
		{Why: why, SDK: "shell", Line: "parley send --protocol a2a --url " + agent + " --token-file FILE 'Hello'"},
	}
}
