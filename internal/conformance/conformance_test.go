// Package conformance ties every number of the protocols' checklists to the
// tests that prove it, and writes docs/conformance.md.
package conformance

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/conformance.md anew")

const root = "../.."

var (
	number = regexp.MustCompile(`\b(?:SAM|UAG|A2E|AGH|ASP)-\d{3}[a-z]?\b`)
	runs   = regexp.MustCompile(`^(?:Test|Fuzz|Example)`) // what go test runs by itself
)

type rule struct{ id, text string }

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
	return out
}

// A decl is a declaration of a package's tests: the numbers in its text and in
// the comments before it, and the names that it uses.
type decl struct {
	test    string // of a function that go test runs: its name
	numbers []string
	uses    []string
}

// proofs finds the tests that bear each number, by "package.Test": in their own
// text, or in that of a helper or table of the package's tests that they use,
// directly or by way of others.
func proofs(t *testing.T) map[string][]string {
	t.Helper()
	packages := map[string]map[string][]*decl{} // by directory and package name, then by what is declared
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || path == filepath.Join(root, "internal/conformance")) {
			if d != nil && d.IsDir() {
				return filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		return declarations(path, packages)
	})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for key, names := range packages {
		dir, _, _ := strings.Cut(key, " ")
		pkg, _ := filepath.Rel(root, dir)
		for _, list := range names {
			for _, d := range list {
				if d.test == "" {
					continue
				}
				for _, id := range borne(d, names) {
					out[id] = append(out[id], pkg+"."+d.test)
				}
			}
		}
	}
	for id := range out {
		slices.Sort(out[id])
		out[id] = slices.Compact(out[id])
	}
	return out
}

// declarations adds those of a file.
func declarations(path string, packages map[string]map[string][]*decl) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, src, parser.ParseComments)
	if err != nil {
		return err
	}
	key := filepath.Dir(path) + " " + f.Name.Name
	if packages[key] == nil {
		packages[key] = map[string][]*decl{}
	}
	from := set.Position(f.Name.End()).Offset
	for _, one := range f.Decls {
		to := set.Position(one.End()).Offset
		d := &decl{numbers: number.FindAllString(string(src[from:to]), -1)}
		from = to
		ast.Inspect(one, func(n ast.Node) bool {
			if i, ok := n.(*ast.Ident); ok {
				d.uses = append(d.uses, i.Name)
			}
			return true
		})
		var names []string
		switch one := one.(type) {
		case *ast.FuncDecl:
			names = []string{one.Name.Name}
			if one.Recv == nil && runs.MatchString(one.Name.Name) {
				d.test = one.Name.Name
			}
		case *ast.GenDecl:
			for _, spec := range one.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						names = append(names, n.Name)
					}
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				}
			}
		}
		for _, name := range names {
			packages[key][name] = append(packages[key][name], d)
		}
	}
	return nil
}

// borne gives the numbers of a test and of all that it uses, other tests
// excepted.
func borne(test *decl, names map[string][]*decl) []string {
	seen, open, out := map[*decl]bool{test: true}, []*decl{test}, []string{}
	for len(open) > 0 {
		d := open[0]
		open = open[1:]
		out = append(out, d.numbers...)
		for _, name := range d.uses {
			for _, used := range names[name] {
				if !seen[used] && used.test == "" {
					seen[used] = true
					open = append(open, used)
				}
			}
		}
	}
	return out
}

func TestEveryRuleHasAProof(t *testing.T) {
	found := proofs(t)
	var b strings.Builder
	b.WriteString("# Conformance\n\nEach number of the protocols' checklists, and the tests that bear it: in their own text, or in a helper or table that they\nuse. `go test ./internal/conformance -update` writes this list from the tests' source, and a number without a test fails\nthe build; that they pass is what `go test ./...` shows. The tests of `interop` need the reference implementations\n(`interop/setup.sh`), and only say so where there are none.\n")
	known := map[string]bool{}
	for _, p := range []string{"samvad", "uagents", "a2e", "agh", "asp"} {
		list := rules(t, p)
		fmt.Fprintf(&b, "\n## %s\n\n| Number | Rule | Tests |\n|---|---|---|\n", p)
		missing := []string{}
		for _, r := range list {
			known[r.id] = true
			if len(found[r.id]) == 0 {
				missing = append(missing, r.id)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, strings.ReplaceAll(r.text, "|", "\\|"), strings.Join(found[r.id], ", "))
		}
		if len(missing) > 0 {
			t.Errorf("%s: no test bears %s", p, strings.Join(missing, " "))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if !known[id] {
			t.Errorf("%s bears %s, which is no number of the checklists", strings.Join(found[id], ", "), id)
		}
	}
	const path = root + "/docs/conformance.md"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile(path)
	if err != nil || string(old) != b.String() {
		t.Errorf("docs/conformance.md is not what the tests say (%v): run go test ./internal/conformance -update", err)
	}
}
