package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every way to write a table gives its line: headers, dotted and quoted keys, inline tables, lists of them, comments and
// texts of several lines before.
func TestLinesOfAFile(t *testing.T) {
	text := `# a comment
name = "hub-1"
require = [ # in a list
  { to = ["x/**"], assurance = "session" },

  { to = ["y"],
    assurance = "unsigned" },
]

[listen]
http = "127.0.0.1:0"

[[allow]]
from = "acme/*"
to = ["weather", "store"]

[agents."crew/planner"]
inbox = true
description = """
[agents.decoy]
[[allow]]
"""

[[allow]]
to = ["**"]
from = "crew/**"

[agents]
scout.inbox = true
"billing.eu-central" = { inbox = true }

[agents.weather.samvad]
id = "agent://weather.example"
url = "https://weather.example"
[[callers.issuer]]
name = "corp"
url = "https://issuer.example"
audience = ["x"]
[[callers.issuer.agent]]
subject = "u1"
agent = "scout"
[[callers.issuer.agent]]
subject = "u2"
agent = "scout"
[[callers.issuer]]
name = "other"
url = "https://other.example"
audience = ["x"]
[[callers.issuer.agent]]
subject = "u3"
agent = "scout"
`
	path := filepath.Join(t.TempDir(), "parley.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	for key, want := range map[string]string{
		"name":                               `name = "hub-1"`,
		"require[0]":                         `  { to = ["x/**"]`,
		"require[1]":                         `  { to = ["y"]`,
		"require[1].assurance":               `    assurance = "unsigned"`,
		"listen":                             "[listen]",
		"listen.http":                        "http = ",
		"agents.crew/planner":                `[agents."crew/planner"]`,
		"agents.scout":                       "scout.inbox",
		"agents.billing.eu-central":          `"billing.eu-central"`,
		"agents.weather":                     "[agents.weather.samvad]",
		"callers.issuer[1]":                  "[[callers.issuer]]",
		"callers.issuer[0].agent[1]":         "[[callers.issuer.agent]]",
		"callers.issuer[1].agent[0]":         "[[callers.issuer.agent]]",
		"callers.issuer[1].agent[0].subject": `subject = "u3"`,
	} {
		file, line := c.lines.line(key)
		if file != path || line == 0 || !strings.HasPrefix(lines[line-1], want) {
			t.Errorf("%s: %s, line %d: want the line that begins with %q", key, file, line, want)
		}
	}
	for key, want := range map[string]int{"allow[0]": 13, "allow[1]": 24, "callers.issuer[1]": 45} {
		if _, line := c.lines.line(key); line != want {
			t.Errorf("%s: line %d, want %d", key, line, want)
		}
	}
	for _, key := range []string{"agents.decoy", "allow[2]", "agents.weather.samvad", "listen.admin", ""} {
		if file, line := c.lines.line(key); file != "" || line != 0 {
			t.Errorf("%s: %s, line %d: the file does not have it", key, file, line)
		}
	}
	k, err := c.check()
	if err != nil {
		t.Fatal(err)
	}
	if r := k.rules[1]; r.File != path || r.Line != 24 || k.least[0].Line != 4 {
		t.Errorf("the rules do not say where they stand: %+v, %+v", r, k.least)
	}
	if file, line := new(fileLines).line("name"); file != "" || line != 0 {
		t.Errorf("without a file: %s, line %d", file, line)
	}
}
