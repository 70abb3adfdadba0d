package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/directory"
)

// write puts a file into a directory.
func write(t *testing.T, dir, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return path
}

// clientPair writes a client certificate and its key.
func clientPair(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hub"},
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "client.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o644)
	write(t, dir, "client.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), 0o600)
}

const a2aFile = `[listen]
http = "127.0.0.1:0"
admin = "127.0.0.1:0"
[a2a]
root = "weather"
domain = "agents.example"
card = "hybrid"
wait = "5s"
max_answer = "64KiB"
[agents.lab.a2a]
url = "https://Lab.example/one/"
token_file = "lab.token"
api_key_file = "lab.key"
api_key_header = "X-Lab"
cert = "client.pem"
key = "client.key"
accept_unsigned_card = true
[agents.shop.a2a]
url = "https://shop.example"
oauth = { token_url = "https://id.example/token", client_id = "hub", client_secret_file = "shop.secret", scopes = ["a"] }
[agents.caller.a2a]
calls = true
[agents.museum]
samvad = { url = "https://museum.example" }
a2a = { guests = true, reply = "message" }
`

// TestA2AInTheFile: the tables of A2A are read, with the files that they name; the identity of
// an agent elsewhere is its URL, that of an agent that only calls its name, and a table with
// settings alone makes no identity.
func TestA2AInTheFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "lab.token", "lab-token\n", 0o600)
	write(t, dir, "lab.key", "lab-key", 0o600)
	write(t, dir, "shop.secret", "shop-secret", 0o600)
	clientPair(t, dir)
	c, err := Load(write(t, dir, "parley.toml", a2aFile, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	lab, err := c.Agents["lab"].A2A.settings()
	if err != nil {
		t.Fatal(err)
	}
	if got := lab.Credentials; got.Token != "lab-token" || got.APIKey != "lab-key" || got.Header != "X-Lab" ||
		got.Certificate == nil || !lab.Unsigned || lab.Guests || lab.Message {
		t.Errorf("lab: %+v", lab)
	}
	shop, err := c.Agents["shop"].A2A.settings()
	if got := shop.Credentials; err != nil || got.TokenURL != "https://id.example/token" || got.ClientID != "hub" ||
		got.ClientSecret != "shop-secret" || len(got.Scopes) != 1 {
		t.Errorf("shop: %+v, %v", shop, err)
	}
	museum, err := c.Agents["museum"].A2A.settings()
	if err != nil || !museum.Guests || !museum.Message {
		t.Errorf("museum: %+v, %v", museum, err)
	}
	lots := c.Agents["lab"]
	if id := a2aProtocol.AgentID(&lots); id != "https://lab.example/one" {
		t.Errorf("the id of lab is %q", id)
	}

	c.Data, c.Durability = t.TempDir(), "disk"
	n := running(t, c)
	for name, id := range map[string]string{"lab": "https://lab.example/one", "shop": "https://shop.example",
		"caller": bridge.IdentityOfCaller("caller").ID} {
		if e, ok := n.directory.Lookup(bridge.Protocol, id); !ok || e.Name != name {
			t.Errorf("%s is not known as %q in A2A", name, id)
		}
	}
	if e, ok := n.directory.Agent("museum"); !ok || len(e.Native()) != 1 {
		t.Errorf("settings made an identity: %v", e.Identities)
	}
	if n.A2A() == nil || !n.ownHost("weather.agents.example") {
		t.Error("the binding is not open, or its sub-domains are foreign")
	}
}

// TestA2AMistakes: a table of A2A that cannot work is refused, and the text names the key.
func TestA2AMistakes(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "open.token", "x", 0o644)
	write(t, dir, "two.token", "x y", 0o600)
	write(t, dir, "good.token", "x", 0o600)
	at := "url = \"https://lab.example\"\n"
	for text, want := range map[string]string{
		"[a2a]\ncard = \"0.3\"\n":                                             `a2a.card = "0.3": want one of`,
		"[a2a]\nroot = \"a b\"\n":                                             "a2a.root",
		"[a2a]\nmax_answer = \"much\"\n":                                      "a2a.max_answer",
		"[a2a]\ngrpc = \"localhost\"\n":                                       `a2a.grpc = "localhost": want host:port`,
		"[a2a]\ngrpc_address = \"hub:1\"\n":                                   "a2a.grpc_address",
		"[a2a]\nstreams = -1\n":                                               "a2a: want",
		"[agents.x.a2a]\nurl = \"lab\"\n":                                     `agents.x.a2a.url = "lab"`,
		"[agents.x.a2a]\nurl = \"https://u:p@lab.example\"\n":                 "settings of their own",
		"[agents.x.a2a]\n" + at + "calls = true\n":                            "agents.x.a2a.calls",
		"[agents.x.a2a]\n" + at + "guests = true\n":                           "agents.x.a2a.url: guests and reply",
		"[agents.x.a2a]\ntoken_file = \"good.token\"\n":                       "agents.x.a2a.url: credentials",
		"[agents.x.a2a]\nreply = \"letter\"\n":                                "agents.x.a2a.reply",
		"[agents.x.a2a]\n" + at + "cert = \"c\"\n":                            "cert and key go together",
		"[agents.x.a2a]\n" + at + "oauth = { client_id = \"a\" }\n":           "go together",
		"[agents.x.a2a]\n" + at + "tokenfile = \"t\"\n":                       `"agents.x.a2a.token_file"`,
		"[agents.x.a2a]\n" + at + "token_file = \"none.token\"\n":             "agents.x.a2a.token_file",
		"[agents.x.a2a]\n" + at + "token_file = \"open.token\"\n":             "chmod 600",
		"[agents.x.a2a]\n" + at + "token_file = \"two.token\"\n":              "must hold one secret",
		"[a2a]\noff = true\n[agents.x.a2a]\ncalls = true\n":                   "a2a.off is set",
		"[a2a]\ngrpc = \"127.0.0.1:0\"\ntls = true\n[agents.x]\ninbox=true\n": "a2a.",
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

// TestA2AExport: an agent that came by command is written with its URL, or as one that calls.
func TestA2AExport(t *testing.T) {
	text := string(ExportAgents([]admin.Agent{
		{Name: "lab", Source: directory.FromOperator, Identities: []admin.Identity{{Protocol: bridge.Protocol,
			ID: "https://lab.example", URL: "https://lab.example"}}},
		{Name: "scout", Source: directory.FromOperator, Identities: []admin.Identity{{Protocol: bridge.Protocol,
			ID: bridge.IdentityOfCaller("scout").ID}}}}, nil, false))
	path := write(t, t.TempDir(), "parley.toml", text, 0o600)
	c, err := Load(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if c.Agents["lab"].A2A.URL != "https://lab.example" || !c.Agents["scout"].A2A.Calls {
		t.Error(text)
	}
}

// An agent whose name holds the ends of SAMVAD's paths is reached in both protocols.
func TestA2APathsLikeSamvads(t *testing.T) {
	t.Parallel()
	n, err := Open(t.Context(), Config{Data: t.TempDir(), Durability: "memory", Listen: Listen{HTTP: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Handle(parley.Agent{Name: "x/agent/y", Exposed: parley.Everywhere}, parley.RawSkill("echo",
		func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			return r.Reply(parley.Text("hi"))
		})); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/a2a/x/agent/y/.well-known/agent-card.json": `"supportedInterfaces"`,
		"/agents/x/agent/y/.well-known/agent.json":   `"publicKeys"`,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.Addresses().HTTP+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: HTTP %d %s, %v", path, resp.StatusCode, b, err)
		}
	}
}
