// Package conformance ties every number of the protocols' checklists to the tests that
// prove it, and keeps docs/conformance.md true. The tests' source says which test bears
// which number. The events of a run ("go test -json") say whether it counts: a test
// that is skipped or not compiled in does not.
package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "write docs/conformance.md anew")
	events = flag.String("ran", "", "absolute paths, separated by commas, of what go test -json wrote")
)

const (
	root = "../.."
	page = root + "/docs/conformance.md"
	peer = "internal/interop" // the package whose tests need external programs

	// notOffered is in the text of a rule about what Parley does not offer, before the reason. No test proves the rule.
	notOffered = " Not offered: "
)

var (
	protocols = []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"}
	hubs      = []string{"bench", "faults", "pairs"} // below internal: their tests run a whole hub
)

const introduction = `# Conformance

Each rule of the protocols' checklists, and the tests that prove it: with the protocol's library alone, at the hub, or
with a real peer. A test stands here if its text, or a helper or table that it uses, bears the rule's number, **and** it
ran and passed; a file of vectors counts if the tests run it. A rule without a test that ran fails the build, unless it
says why Parley does not offer what the rule is about.

The real peers are the published SDKs of SAMVAD (Python, TypeScript), uAgents, A2E, A2A (Python, JavaScript, Go, and
its compatibility kit, which runs from a checkout) and MCP (Python, TypeScript, Go, the inspector and the conformance
suite), without changes. AGH and ASP have none to install: their peers are programs in Python that share no code with
Parley. Where a peer is not installed (` + "`internal/interop/setup.sh`" + `), the gate says so and takes the column as
it is.

This page is written from a run of the tests; packages that the run does not hold stay as they are:

    go test -json ./... > /tmp/tests.json
    go test ./internal/conformance -update -ran /tmp/tests.json
`

type rule struct{ id, text string }

// waits reports whether the rule is about what Parley does not offer.
func (r rule) waits() bool { return strings.Contains(r.text, notOffered) }

func rules(t *testing.T, protocol string) []rule {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "testdata/conformance", protocol+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []rule
	s := bufio.NewScanner(f)
	for s.Scan() {
		id, text, ok := strings.Cut(s.Text(), " ")
		if !ok || !number.MatchString(id) {
			t.Fatalf("%s: not a rule: %q", protocol, s.Text())
		}
		out = append(out, rule{id, text})
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// column gives the column of a package's tests on the page.
func column(pkg string) int {
	top, rest, _ := strings.Cut(pkg, "/")
	under, _, _ := strings.Cut(rest, "/")
	switch {
	case pkg == peer:
		return 2
	case top == "internal" && slices.Contains(hubs, under):
		return 1
	case slices.Contains(protocols, top), top == "internal":
		return 0
	}
	return 1
}

func cells(row string) []string {
	const bar = "\x00"
	row = strings.Trim(strings.ReplaceAll(row, `\|`, bar), "| ")
	var out []string
	for _, c := range strings.Split(row, " |") {
		out = append(out, strings.TrimSpace(strings.ReplaceAll(c, bar, "|")))
	}
	return out
}

// counted reads the claims that a page counts.
func counted(page []byte) map[claim]bool {
	out := map[claim]bool{}
	for line := range strings.Lines(string(page)) {
		row := cells(strings.TrimSpace(line))
		if len(row) < 3 || number.FindString(row[0]) != row[0] {
			continue
		}
		for _, tests := range row[2:] {
			for test := range strings.SplitSeq(tests, ", ") {
				if pkg, name, ok := strings.Cut(test, "."); ok {
					out[claim{row[0], proof{pkg, name}}] = true
				}
			}
		}
	}
	return out
}

func byName(a, b proof) int { return cmp.Compare(a.String(), b.String()) }

func list(proofs []proof) string {
	slices.SortFunc(proofs, byName)
	var out []string
	for _, p := range proofs {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}

// render writes the page, and gives the rules that no test proves.
func render(checklists map[string][]rule, all map[claim]bool, counts func(claim) bool) ([]byte, []string) {
	var missing []string
	byRule := map[string][3][]proof{}
	not := map[proof][]string{}
	for c := range all {
		if !counts(c) {
			not[c.proof] = append(not[c.proof], c.rule)
			continue
		}
		columns := byRule[c.rule]
		columns[column(c.pkg)] = append(columns[column(c.pkg)], c.proof)
		byRule[c.rule] = columns
	}
	var b bytes.Buffer
	b.WriteString(introduction)
	for _, p := range protocols {
		fmt.Fprintf(&b, "\n## %s\n\n| Rule | What it says | Library | Hub | Real peer |\n|---|---|---|---|---|\n", p)
		for _, r := range checklists[p] {
			columns, ok := byRule[r.id]
			if !ok && !r.waits() {
				missing = append(missing, r.id)
			}
			fmt.Fprintf(&b, "| %s | %s |", r.id, strings.ReplaceAll(r.text, "|", `\|`))
			for _, proofs := range columns {
				fmt.Fprintf(&b, " %s |", list(proofs))
			}
			b.WriteString("\n")
		}
	}
	if len(not) > 0 {
		b.WriteString("\n## Not counted\n\nThese tests bear a rule's number, and did not run or did not pass.\n\n")
		b.WriteString("| Test | Rules |\n|---|---|\n")
		for _, p := range slices.SortedFunc(maps.Keys(not), byName) {
			slices.Sort(not[p])
			fmt.Fprintf(&b, "| %s | %s |\n", p, strings.Join(not[p], ", "))
		}
	}
	return b.Bytes(), missing
}

func TestEveryRuleHasAProof(t *testing.T) {
	all, err := claims(root)
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	ran := outcomes{}
	for file := range strings.SplitSeq(*events, ",") {
		if file == "" {
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := ran.read(f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		f.Close()
	}
	before := counted(old)
	counts := func(c claim) bool {
		if ran[c.pkg] == nil {
			return before[c]
		}
		if c.pkg == peer && !*update { // which peers are installed differs between machines
			if here := ran.ran(c); here != before[c] {
				t.Logf("%s: %s counts: %v; it ran here: %v", c.rule, c.proof, before[c], here)
			}
			return before[c]
		}
		return ran.ran(c)
	}
	checklists, known := map[string][]rule{}, map[string]rule{}
	for _, p := range protocols {
		checklists[p] = rules(t, p)
		for _, r := range checklists[p] {
			known[r.id] = r
		}
	}
	for c := range all {
		switch r, ok := known[c.rule]; {
		case !ok:
			t.Errorf("%s bears %s, which is no number of the checklists", c.proof, c.rule)
		case r.waits():
			t.Errorf("%s bears %s, which its checklist calls not offered", c.proof, c.rule)
		}
	}
	text, missing := render(checklists, all, counts)
	if len(missing) > 0 {
		t.Errorf("no test that ran proves %s", strings.Join(missing, " "))
	}
	if *update {
		if err := os.WriteFile(page, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(old, text) {
		t.Errorf("docs/conformance.md differs from the tests; its first lines tell how to write it:\n%s",
			difference(old, text))
	}
}

func difference(old, text []byte) string {
	a, b := strings.Split(string(old), "\n"), strings.Split(string(text), "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n  is   %s\n  want %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}
