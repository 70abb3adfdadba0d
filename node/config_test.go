package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testcluster.Leaks()...) }

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parley.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	path := file(t, `
data = "data"
public_url = "https://parley.corp/base"
durability = "disk"
[listen]
http = ":8080"
[network]
allow = ["10.0.0.0/8", "loopback"]
[delivery]
for = "2h"
[limits]
body = "2MiB"
[[allow]]
from = "crew/*"
to = ["weather"]
[agents.weather]
samvad = { url = "https://weather.corp" }
`)
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Data != filepath.Join(filepath.Dir(path), "data") || c.Listen.HTTP != ":8080" ||
		c.Delivery.For.Duration != 2*time.Hour ||
		c.Agents["weather"].SAMVAD.URL != "https://weather.corp" {
		t.Errorf("%+v", c)
	}
	k, err := c.check()
	if err != nil || k.body != 2<<20 || len(k.allow) < 2 || k.assurance != parley.Signed || len(k.rules) != 1 {
		t.Errorf("%+v, %v", k, err)
	}
}

func TestMistakesInTheFile(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"\n[listen]\nhtpp = \":8080\"\n", `line 3: unknown key "listen.htpp"; did you mean "listen.http"?`},
		{"[netwrok]\nallow = []\n", `line 1: unknown key "netwrok"; did you mean "network"?`},
		{"[[alow]]\nfrom = \"x\"\n", `line 1: unknown key "alow"; did you mean "allow"?`},
		{"[agents.x]\nsamvd = { url = \"https://x\" }\n",
			`line 2: unknown key "agents.x.samvd"; did you mean "agents.x.samvad"?`},
		{"[agents.x]\nsamvad = { ulr = \"https://x\" }\n",
			`line 2: unknown key "agents.x.ulr"; did you mean "agents.x.samvad.url"?`},
		{"[agents.x]\nurl = \"https://x\"\n",
			`line 2: unknown key "agents.x.url"; did you mean "agents.x.samvad.url"?`},
		{"[nothing]\nlike = \"it\"\n", `line 1: unknown key "nothing"`},
		{"listen = \"x\"\n", `line 1, column 10: "listen" wants a table, not string`},
		{"[delivery]\ntries = \"x\"\n", `line 2, column 9: "delivery.tries" wants int, not string`},
		{"durabilty = \"disk\"\n", `did you mean "durability"?`},
		{"[agents.bob]\nexpse = [\"all\"]\n", `did you mean "agents.bob.expose"?`},
		{"durability = \"rock\"\n", `durability = "rock": want one of disk, replicated, memory`},
		{"data = 7\n", "line 1"},
		{"data = \n", "line 1"},
		{"public_url = \"parley.corp\"\n", "public_url"},
		{"[network]\nallow = [\"10.0.0.0/99\"]\n", "network.allow"},
		{"[engine]\nmin_free = \"lots\"\n", "engine.min_free"},
		{"[limits]\nbody = \"1XB\"\n", "limits.body"},
		{"[tls]\ncert = \"x\"\n", "tls.cert and tls.key go together"},
		{"[agents.Bob]\ntitle = \"x\"\n", "agents"},
		{"[policy]\nassurance = \"strong\"\n", "policy.assurance"},
		{"[listen]\nhttp = \"8080\"\n", `listen.http = "8080": want host:port`},
		{"[a2e]\nlisten = \"localhost\"\n", `a2e.listen = "localhost"`},
		{"[engine]\npartitions = 1000\n", "engine.partitions = 1000: want 1 to 256"},
		{"[agents.bob]\ndelivery = { tries = -1 }\n", `agents.bob.delivery: tries = -1: want 1 to 1000`},
		{"[agents.bob]\ndelivery = { patience = \"-1h\" }\n", `agents.bob.delivery: patience = -1h0m0s: want`},
		{"[agents.bob]\ndelivery = { patience = \"long\" }\n", `line 2, column 25`},
		{"[agents.bob]\ndelivery = { orderd = true }\n", `did you mean "agents.bob.delivery.ordered"?`},
		{"[agents.bob]\nsamvad = { url = \"bob.corp\" }\n", `agents.bob.samvad.url = "bob.corp": want http(s)`},
	} {
		_, err := Load(file(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestEveryKeyIsDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Keys() {
		if k.Doc == "" || k.Type == "" || seen[k.Name] {
			t.Errorf("%+v", k)
		}
		seen[k.Name] = true
	}
	for _, want := range []string{"data", "listen.http", "allow[].from", "agents.<name>.samvad.url", "delivery.for"} {
		if !seen[want] {
			t.Errorf("%s is not described", want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{"": 0, "0": 0, "512": 512, "1KB": 1000, "1KiB": 1024, "1.5MiB": 3 << 19,
		"2GiB": 2 << 30} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"x", "-1", "1 MiB x", "MiB", "1QB"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q is taken as %d", s, got)
		}
	}
}

// tree lists a directory's files with the times of their last change, to prove that no
// file was touched. The lock file is left out: it names the process that has the
// directory open.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			b.WriteString(path + " " + i.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWhatIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	open := func(c Config) error {
		n, err := Open(t.Context(), c)
		if err == nil {
			n.Close(context.Background())
		}
		return err
	}
	t.Run("foreign directory", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "thesis.doc"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		before := tree(t, dir)
		if err := open(Config{Data: dir}); !errors.Is(err, journal.ErrForeign) {
			t.Error(err)
		}
		if tree(t, dir) != before {
			t.Error("it was touched")
		}
	})
	t.Run("second instance, port in use, wrong passphrase", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		n, err := Open(t.Context(), Config{Data: dir, Passphrase: []byte("right"), PassphraseWork: 4,
			Listen: Listen{HTTP: "127.0.0.1:0"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := open(Config{Data: dir, Passphrase: []byte("right")}); !errors.Is(err, journal.ErrLocked) {
			t.Error(err)
		}
		if err := open(Config{Durability: "memory", Listen: Listen{HTTP: n.httpListen.Addr().String()}}); err == nil ||
			!strings.Contains(err.Error(), "choose another address") {
			t.Error(err)
		}
		if err := n.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := open(Config{Data: dir, Passphrase: []byte("wrong")}); !errors.Is(err, keyring.ErrWrongKey) {
			t.Error(err)
		}
		if err := open(Config{Data: dir}); !errors.Is(err, keyring.ErrEncrypted) {
			t.Error(err)
		}
		if err := open(Config{Data: dir, Passphrase: []byte("right")}); err != nil {
			t.Error(err)
		}
	})
	t.Run("wrong encryption key", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		key := func(text string, mode fs.FileMode) string {
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
			return path
		}
		right := key("0123456789abcdef0123456789abcdef", 0o600)
		if err := open(Config{Data: dir, Engine: Engine{KeyFile: right}}); err != nil {
			t.Fatal(err)
		}
		before := tree(t, filepath.Join(dir, "journal"))
		for _, path := range []string{"", key("another key of sixteen bytes or more", 0o600)} {
			if err := open(Config{Data: dir, Engine: Engine{KeyFile: path}}); !errors.Is(err, journal.ErrKey) {
				t.Errorf("%q: %v", path, err)
			}
		}
		if after := tree(t, filepath.Join(dir, "journal")); after != before {
			t.Errorf("the journal was touched\nbefore\n%s\nafter\n%s", before, after)
		}
		if err := open(Config{Data: dir, Engine: Engine{KeyFile: key("0123456789abcdef0123456789abcdef",
			0o644)}}); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Error(err)
		}
		if err := open(Config{Data: dir, Engine: Engine{KeyFile: right}}); err != nil {
			t.Error(err)
		}
	})
}
