package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestEveryFlagHasACompletion: the value of each flag and the arguments of each command have a completion, or are known
// to have none.
func TestEveryFlagHasACompletion(t *testing.T) {
	t.Parallel()
	a := &app{in: strings.NewReader(""), out: io.Discard, errs: io.Discard}
	arguments, flags := a.completions()
	used := map[string]bool{}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "parley ")
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			own := name + " --" + f.Name
			used[own], used[f.Name] = true, true
			if f.Value.Type() != "bool" && flags[own] == nil && flags[f.Name] == nil {
				t.Errorf("%s: say in completion.go how its value is completed", own)
			}
		})
		_, places, _ := strings.Cut(c.Use, " ")
		made := name == "agents add" || name == "tokens add" // NAME is a new one
		if places != "" && !strings.HasPrefix(places, "--") && !made && arguments[name] == nil {
			t.Errorf("%q: say in completion.go how its arguments are completed", c.Use)
		}
		used[name] = true
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(a.root())
	for name := range flags {
		if !used[name] {
			t.Errorf("there is a completion for the flag %q, which no command has", name)
		}
	}
	for name := range arguments {
		if !used[name] {
			t.Errorf("there is a completion for the command %q, which is not there", name)
		}
	}
}

// TestSuggestions: what is misspelt on the command line is answered with what was meant.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"agnets":                            `unknown command "agnets" for "parley"; did you mean "agents"?`,
		"agents ad":                         `unknown command "ad" for "parley agents"; did you mean "add"?`,
		"agents shwo weather":               `unknown command "shwo" for "parley agents"; did you mean "show"?`,
		"conversation verfy":                `did you mean "verify"?`,
		"send --conversaton x":              `unknown flag: --conversaton; did you mean --conversation?`,
		"agents --jsn":                      `unknown flag: --jsn; did you mean --json?`,
		"config describe durabilty":         `there is no key "durabilty"; did you mean "durability"?`,
		"config describe guests.mailboxess": `did you mean "guests.mailboxes"?`,
	} {
		var errs bytes.Buffer
		if code := run(strings.Fields(line), strings.NewReader(""), io.Discard, &errs); code != exitUsage ||
			!strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d: %s", line, code, &errs)
		}
	}
	var errs bytes.Buffer
	if run([]string{"agents", "frobnicate"}, strings.NewReader(""), io.Discard, &errs); strings.Contains(errs.String(),
		"did you mean") {
		t.Error(errs.String())
	}
}

// TestVersion: both forms say the same.
func TestVersion(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		if code := run([]string{arg}, strings.NewReader(""), &out, io.Discard); code != exitOK {
			t.Fatalf("%s: exit code %d", arg, code)
		}
		texts[i] = out.String()
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[0], "parley "+version+" (go") {
		t.Errorf("%q", texts)
	}
}
