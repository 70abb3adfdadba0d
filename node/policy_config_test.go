package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/policy"
)

func TestRequireAndLimitInTheFile(t *testing.T) {
	load := func(text string) (Config, error) {
		path := filepath.Join(t.TempDir(), "parley.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(path)
	}
	c, err := load("[[require]]\nto = [\"vault/*\"]\nassurance = \"signed\"\n[[limit]]\nfrom = \"crew/**\"\nto = [\"weather.forecast\"]\nrate = 0.25\n[samvad]\ntokens_file = \"tokens\"\n")
	if err != nil {
		t.Fatal(err)
	}
	k, err := c.check()
	if err != nil || len(k.least) != 1 || k.least[0].Assurance != parley.Signed || len(k.limits) != 1 ||
		k.limits[0].Rate != (policy.Rate{PerSecond: 0.25, Burst: 1}) || !filepath.IsAbs(c.SAMVAD.TokensFile) {
		t.Errorf("%+v %+v %q, %v", k.least, k.limits, c.SAMVAD.TokensFile, err)
	}
	for text, want := range map[string]string{
		"[[require]]\nto = [\"x\"]\nassurance = \"sealed\"\n":          "want one of signed, session, unsigned",
		"[[require]]\nassurance = \"signed\"\n":                        "names no recipient",
		"[[limit]]\nfrom = \"*\"\nto = [\"*\"]\n":                      "want a rate above zero",
		"[[limit]]\nfrom = \"*\"\nrate = 1\n":                          "names no recipient",
		"[[limit]]\nfrom = \"[\"\nto = [\"*\"]\nrate = 1\n":            "pattern",
		"[[allow]]\nfrom = \"*\"\n":                                    "names no recipient",
		"[[limit]]\nfrom = \"*\"\nto = [\"*\"]\nrate = 1\nburts = 2\n": "burst",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	// Other users must not be able to read the file with tokens.
	open := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(open, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (SAMVAD{TokensFile: open}).tokens(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
}
