package node

import (
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/directory"
)

const mcpFile = `[listen]
http = "127.0.0.1:0"
admin = "127.0.0.1:0"
[mcp]
wait = "5s"
tools = 3
hosts = ["hub.corp", "proxy:8080"]
max_answer = "64KiB"
[agents.lab.mcp]
url = "https://Lab.example/mcp"
token_file = "lab.token"
cert = "client.pem"
key = "client.key"
changes = "accept"
elicitation = true
repeatable = ["read"]
[agents.shop.mcp]
url = "https://shop.example/mcp"
oauth = { token_url = "https://id.example/token", client_id = "hub", client_secret_file = "shop.secret" }
[agents.files.mcp]
attached = true
[agents.editor.mcp]
calls = true
[agents.museum]
samvad = { url = "https://museum.example" }
mcp = { guests = true }
`

// TestMCPInTheFile: the tables of MCP are read, with the files that they name; the identity of an attached server is
// its URL or that of its tunnel, and a table with settings alone makes no identity.
func TestMCPInTheFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "lab.token", "lab-token\n", 0o600)
	write(t, dir, "shop.secret", "shop-secret", 0o600)
	clientPair(t, dir)
	c, err := Load(write(t, dir, "parley.toml", mcpFile, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	lab, err := c.Agents["lab"].MCP.settings()
	if err != nil || lab.Credentials.Token != "lab-token" || lab.Credentials.Certificate == nil || !lab.Accept ||
		!lab.Elicitation || lab.Guests || len(lab.Repeatable) != 1 {
		t.Errorf("lab: %+v, %v", lab, err)
	}
	shop, err := c.Agents["shop"].MCP.settings()
	if err != nil || shop.Credentials.ClientSecret != "shop-secret" || shop.Accept || shop.Elicitation {
		t.Errorf("shop: %+v, %v", shop, err)
	}
	if museum, err := c.Agents["museum"].MCP.settings(); err != nil || !museum.Guests {
		t.Errorf("museum: %+v, %v", museum, err)
	}
	far := c.Agents["lab"]
	if id := mcpProtocol.AgentID(&far); id != "https://lab.example/mcp" {
		t.Errorf("the id of lab is %q", id)
	}

	c.Data, c.Durability = t.TempDir(), "disk"
	n := running(t, c)
	for name, id := range map[string]string{"lab": "https://lab.example/mcp", "shop": "https://shop.example/mcp",
		"files": bridge.IdentityOfTunnel("files").ID, "editor": bridge.IdentityOfCaller("editor").ID} {
		if e, ok := n.directory.Lookup(bridge.Protocol, id); !ok || e.Name != name {
			t.Errorf("%s is not known as %q in MCP", name, id)
		}
	}
	if e, ok := n.directory.Agent("museum"); !ok || len(e.Native()) != 1 {
		t.Errorf("settings made an identity: %v", e.Identities)
	}
	if n.MCP() == nil || n.index == nil {
		t.Error("the binding is not open, or has no index")
	}
}

// TestMCPMistakes: a table of MCP that cannot work is refused, and the text names the key.
func TestMCPMistakes(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "good.token", "x", 0o600)
	at := "url = \"https://lab.example/mcp\"\n"
	for text, want := range map[string]string{
		"[mcp]\ntools = 501\n":                                         "mcp.tools = 501",
		"[mcp]\nsessions = -1\n":                                       "mcp: want",
		"[mcp]\nidle = \"-1s\"\n":                                      "mcp: want",
		"[mcp]\nmax_answer = \"much\"\n":                               "mcp.max_answer",
		"[mcp]\nhosts = [\"https://hub.corp\"]\n":                      "mcp.hosts",
		"[mcp]\nhosts = [\"hub.corp/x\"]\n":                            "mcp.hosts",
		"[agents.x.mcp]\nurl = \"lab\"\n":                              `agents.x.mcp.url = "lab"`,
		"[agents.x.mcp]\nurl = \"https://u:p@lab.example\"\n":          "settings of their own",
		"[agents.x.mcp]\n" + at + "attached = true\n":                  "agents.x.mcp.attached",
		"[agents.x.mcp]\n" + at + "calls = true\n":                     "agents.x.mcp.calls",
		"[agents.x.mcp]\nattached = true\ncalls = true\n":              "agents.x.mcp.calls",
		"[agents.x.mcp]\nattached = true\ntoken_file=\"good.token\"\n": "agents.x.mcp.url: credentials",
		"[agents.x.mcp]\ncalls = true\nelicitation = true\n":           "agents.x.mcp.url: changes, elicitation",
		"[agents.x.mcp]\nchanges = \"accept\"\n":                       "agents.x.mcp.url: changes, elicitation",
		"[agents.x.mcp]\n" + at + "changes = \"no\"\n":                 "agents.x.mcp.changes",
		"[agents.x.mcp]\n" + at + "repeatable = [\"\"]\n":              "agents.x.mcp.repeatable",
		"[agents.x.mcp]\n" + at + "cert = \"c\"\n":                     "cert and key go together",
		"[agents.x.mcp]\n" + at + "token_file = \"none.token\"\n":      "agents.x.mcp.token_file",
		"[mcp]\noff = true\n[agents.x.mcp]\ncalls = true\n":            "mcp.off is set",
	} {
		c, err := Load(write(t, dir, "parley.toml", text, 0o600))
		if err == nil {
			c.Durability = "memory"
			n, failed := Open(t.Context(), c)
			if err = failed; err == nil {
				err = n.Close(t.Context())
				t.Errorf("%q was accepted (%v)", text, err)
				continue
			}
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestMCPExport: an agent that came by command is written with its URL, as attached, or as one that calls.
func TestMCPExport(t *testing.T) {
	agent := func(name, id, url string) admin.Agent {
		return admin.Agent{Name: name, Source: directory.FromOperator,
			Identities: []admin.Identity{{Protocol: bridge.Protocol, ID: id, URL: url}}}
	}
	text := string(ExportAgents([]admin.Agent{agent("lab", "https://lab.example/mcp", "https://lab.example/mcp"),
		agent("files", bridge.IdentityOfTunnel("files").ID, ""), agent("editor", bridge.IdentityOfCaller("editor").ID, "")},
		nil, false))
	c, err := Load(write(t, t.TempDir(), "parley.toml", text, 0o600))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if c.Agents["lab"].MCP.URL != "https://lab.example/mcp" || !c.Agents["files"].MCP.Attached ||
		!c.Agents["editor"].MCP.Calls {
		t.Error(text)
	}
}
