package connect

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	a2ebridge "github.com/parley-hub/parley/bridge/a2e"
	aghbridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/uagents"
)

// This file has the protocols whose agents connect to the hub, or register with it: nothing is read of them.

var uagentsProtocol = Protocol{
	Name: "uagents",
	Ways: []Way{{Title: "by its address", Identity: uagentsIdentity,
		Fields: []Field{{Flag: "uagents", Label: "Its address", Text: "address of a uAgent, agent1q…", Must: true,
			Example: "agent1q…"}, {Flag: "endpoint", Label: "Its endpoint", Type: "url", Example: "http://HOST:PORT/submit",
			Text: "with --uagents: where it takes envelopes (default: as it registers itself with the hub)"}},
		Command: func(v Values) string { return flags(v, "uagents", "endpoint") }}},
	Paste: func(h *Hub, _ string, _ admin.Identity) []admin.Paste {
		hub := strings.TrimRight(h.Info.PublicURL, "/")
		return []admin.Paste{
			{Why: "so that it registers with the hub and finds agents there", SDK: "Python",
				Line: fmt.Sprintf("agent = Agent(…, endpoint=\"http://HOST:PORT/submit\", agentverse=%q)", hub)},
			{Why: "or, when it cannot listen, so that its messages wait at the hub", SDK: "Python",
				Line: fmt.Sprintf("agent = Agent(…, mailbox=True, agentverse=%q)", hub)},
		}
	},
}

// uagentsIdentity makes the identity of a uAgent: its address is its key.
func uagentsIdentity(_ string, v Values) (admin.NewIdentity, error) {
	id := admin.NewIdentity{Protocol: "uagents", ID: uagents.ParseIdentifier(v["uagents"]).Address, URL: v["endpoint"]}
	if _, err := uagents.ParseAddress(id.ID); err != nil {
		return id, malformed("--uagents %q: want agent1q…, 65 characters", v["uagents"])
	}
	if _, ok := webURL(id.URL); !ok && id.URL != "" {
		return id, malformed("--endpoint %q: want http(s)://HOST[:PORT]/submit", id.URL)
	}
	return id, nil
}

var a2eProtocol = Protocol{
	Name:     a2ebridge.Protocol,
	NewToken: NewA2EToken,
	Ways: []Way{
		{Title: "it connects to the hub", Token: true,
			Identity: func(_ string, v Values) (admin.NewIdentity, error) {
				if !strings.HasPrefix(v["token-id"], "sha-256:") {
					return admin.NewIdentity{}, malformed("the agent has no token: reload the form")
				}
				return admin.NewIdentity{Protocol: a2ebridge.Protocol, ID: v["token-id"]}, nil
			},
			Command: func(Values) string { return "--a2e new" }},
		{Name: "host", Title: "a host that the hub calls", Identity: a2eHost,
			Fields: []Field{{Flag: "a2e", Label: "Its URL", Must: true, Example: "https://lab.corp/a2e",
				Text: "new: an A2E agent that connects to the hub with a token; or the URL of an A2E host, whose tools " +
					"become its skills"}},
			Command: func(v Values) string { return flags(v, "a2e") }},
	},
	Paste: pasteA2E,
}

// NewA2EToken makes a token for an A2E agent, and the id by which alone the hub knows it.
func NewA2EToken() (token, id string, err error) {
	token, err = a2ebridge.NewToken()
	return token, a2ebridge.TokenID(token), err
}

func a2eHost(_ string, v Values) (admin.NewIdentity, error) {
	at := v["a2e"]
	u, err := url.Parse(at)
	if err != nil || u.Host == "" && u.Scheme != "unix" ||
		!slices.Contains([]string{"http", "https", "tcp", "tls", "unix"}, u.Scheme) {
		return admin.NewIdentity{}, malformed("--a2e %q: want new, for an agent that connects to the hub, or the URL of a "+
			"host (http(s)://, tcp://, tls://, unix://)", at)
	}
	return admin.NewIdentity{Protocol: a2ebridge.Protocol, ID: at, URL: at}, nil
}

// TokenPlace stands for the token of an A2E agent, which the hub does not know.
const TokenPlace = "TOKEN"

// pasteA2E are the lines that connect an agent of the Python SDK to the hub.
func pasteA2E(h *Hub, _ string, id admin.Identity) []admin.Paste {
	if id.URL != "" {
		return nil
	}
	hub := strings.TrimRight(h.Info.PublicURL, "/")
	return []admin.Paste{
		{Why: "so that it connects over HTTP; the token was shown once", SDK: "Python",
			Line: fmt.Sprintf("client = A2EClient(transport=HTTPTransport(%q, logger), logger=logger, auth_token=%q)",
				hub+cmp.Or(h.A2EPath, a2ebridge.DefaultPath), TokenPlace)},
		{Why: "or, to start its host as a child process", SDK: "Python",
			Line: fmt.Sprintf("client = A2EClient(transport=SubprocessTransport([\"parley\", \"a2e\", \"stdio\", "+
				"\"--url\", %q], logger), logger=logger, auth_token=%q)", hub, TokenPlace)},
	}
}

var aghProtocol = Protocol{
	Name: aghbridge.Protocol,
	Ways: []Way{{Title: "a peer of a workspace", Identity: aghIdentity,
		Fields: []Field{{Flag: "agh", Label: "Workspace and peer", Text: "an AGH peer, WORKSPACE/PEER", Must: true,
			Example: "ws_alpha/patch-worker.s1"}},
		Command: func(v Values) string { return flags(v, "agh") }}},
	Paste: pasteAGH,
}

// aghIdentity makes the identity of an AGH peer: WORKSPACE/PEER.
func aghIdentity(_ string, v Values) (admin.NewIdentity, error) {
	workspace, peer, ok := strings.Cut(v["agh"], "/")
	_, _, handle := agh.SplitHandle(peer)
	if !ok || !agh.ValidWorkspaceID(workspace) || !agh.ValidPeerID(peer) && !handle {
		return admin.NewIdentity{}, malformed("--agh %q: want WORKSPACE/PEER, for example ws_alpha/patch-worker.s1; a "+
			"peer is lower-case letters, digits, dots, - and _, or a verified handle nickname@fingerprint", v["agh"])
	}
	id := aghbridge.Identity(workspace, peer)
	return admin.NewIdentity{Protocol: id.Protocol, ID: id.ID}, nil
}

// pasteAGH gives the configuration that permits the peer, unless a user of the configuration may already speak as it,
// and the settings with which it connects.
func pasteAGH(h *Hub, name string, id admin.Identity) (out []admin.Paste) {
	workspace, peer, _ := strings.Cut(id.ID, "/")
	user := ""
	for _, u := range h.AGH.Users {
		if matches(u.Workspaces, workspace) && matches(u.Peers, peer) && (user == "" || u.Name < user) {
			user = u.Name
		}
	}
	file := "TOKEN-FILE"
	if user == "" && h.AGH.URL == "" {
		user = strings.ReplaceAll(name, "/", "-")
		file = user + ".token"
		out = append(out,
			admin.Paste{Why: "in the hub's configuration, then `parley reload` or a restart", SDK: "TOML",
				Line: fmt.Sprintf("[agh.users.%q]\ntoken_file = %q\npeers = [%q]\nworkspaces = [%q]", user, file, peer,
					workspace)},
			admin.Paste{Why: "once, beside it; the peer gets a copy", SDK: "sh",
				Line: "umask 077; parley a2e token > " + file})
	}
	at := h.AGH.URL
	if at == "" {
		host, port, err := net.SplitHostPort(cmp.Or(h.Info.Addresses["agh"], h.AGH.Listen))
		if err != nil { // the hub serves no peers yet
			host, port = "", "4222"
			out = append(out, admin.Paste{Why: "in the hub's configuration, under [listen]", SDK: "TOML", Line: `agh = ":4222"`})
		}
		if u, err := url.Parse(h.Info.PublicURL); host == "" && err == nil && u.Hostname() != "" {
			host = u.Hostname()
		}
		at = "nats://" + net.JoinHostPort(host, port)
	}
	subject, err := agh.VerifiedPeerSubject(workspace, "channel", peer)
	if err != nil { // the id is of a kind that the binding refuses
		return out
	}
	subject = strings.Replace(subject, ".channel.", ".CHANNEL.", 1) // CHANNEL stands for any; the grammar wants lower case
	return append(out,
		admin.Paste{Why: strings.TrimSpace("so that it connects, as the user " + user), SDK: "Python",
			Line: fmt.Sprintf("nc = await nats.connect(%q, token=open(%q).read().strip())", at, file)},
		admin.Paste{Why: "to get the channel's messages, and its own", SDK: "Python",
			Line: fmt.Sprintf("await nc.subscribe(\"agh.network.v0.%s.CHANNEL.broadcast\", cb=heard); await "+
				"nc.subscribe(%q, cb=heard)", workspace, subject)})
}

// matches reports whether an entry of list is s, or a prefix of it with *.
func matches(list []string, s string) bool {
	for _, l := range list {
		if prefix, wild := strings.CutSuffix(l, "*"); l == s || wild && strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

var aspProtocol = Protocol{
	Name: "asp",
	Ways: []Way{{Title: "by its card", Identity: func(_ string, v Values) (admin.NewIdentity, error) {
		return ASPIdentity([]byte(v["asp"]))
	},
		Fields: []Field{{Flag: "asp", Label: "Its card", Type: "area", Must: true,
			Text: "the card of an ASP agent (parley keys asp makes one)"}},
		Command: func(Values) string { return "--asp card.json" }}},
	Paste: func(h *Hub, _ string, id admin.Identity) []admin.Paste { return pasteASP(h.Info.PublicURL, id.ID) },
	Read:  readASP,
}

// ASPIdentity makes an identity of the card of an ASP agent: it holds the identity and both keys.
func ASPIdentity(raw []byte) (admin.NewIdentity, error) {
	raw = bytes.TrimSpace(raw)
	card, err := asp.ParseCard(raw)
	if err != nil {
		return admin.NewIdentity{}, malformed("this is no card of an ASP agent: %s; a file of private keys is none: the "+
			"card is what `parley keys asp --key FILE` prints", short(err.Error(), 300))
	}
	return admin.NewIdentity{Protocol: "asp", ID: card.AgentID, Card: raw}, nil
}

// pasteASP gives the lines with which an agent holds its sessions at the hub.
func pasteASP(hub, id string) []admin.Paste {
	hub = strings.TrimRight(hub, "/")
	why := "so that it holds its sessions at the hub; KEY is the file with its private keys"
	return []admin.Paste{
		{Why: why, SDK: "Go", Line: fmt.Sprintf("client := &asp.Client{Server: %q, Identity: me, Store: asp.Dir(\"state\")}",
			hub)},
		{Why: why, SDK: "shell", Line: fmt.Sprintf("parley send --protocol asp --url %s --key KEY --to agent://… 'hello'   "+
			"# as %s", hub, id)},
		{Why: "or, for a client of your own, where it gets tokens and opens sessions", SDK: "HTTP",
			Line: fmt.Sprintf("POST %s/oauth/token, then POST %[1]s/v1/asp/sessions", hub)},
	}
}

// readASP takes the name and the description from the card.
func readASP(_ context.Context, _ *Reader, n *admin.NewAgent, id *admin.NewIdentity, note Note) error {
	card, err := asp.ParseCard(id.Card)
	if err != nil {
		return malformed("the card of %.200s: %s", id.ID, short(err.Error(), 300))
	}
	if card.Name != card.AgentID {
		n.Title = cmp.Or(n.Title, card.Name)
	}
	n.Description = cmp.Or(n.Description, card.Description)
	note("its card: %s, with both keys", clean(card.AgentID))
	return nil
}
