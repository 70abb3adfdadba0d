package doors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The packages that help to test: one beside each protocol package, and parleytest.

// checkedBy names the function that checks an interface, if it is not Test and the name
// of the interface. "" means that there is nothing to check when a program runs.
var checkedBy = map[string]string{
	"samvad.RollingSigner": "TestSigner",
	"samvad.Refresher":     "TestKeys",
	"samvad.Guard":         "", // a list that a program chooses: every one is right
	"uagents.Documented":   "", // this and the following describe a Go type to ModelOf
	"uagents.Enumerated":   "",
	"uagents.Union":        "",
	"a2e.Describer":        "TestProvider",
	"agh.Reconnecter":      "TestTransport",
}

// TestImplementations: what a program can implement for a protocol package, it can check.
func TestImplementations(t *testing.T) {
	used := map[string]bool{}
	for _, p := range protocols {
		checks := names(t, p+"/"+p+"test", func(d ast.Decl) (string, bool) {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil {
				return "", false
			}
			return f.Name.Name, true
		})
		interfaces := 0
		for _, name := range names(t, p, interfaceOf) {
			interfaces++
			want, other := checkedBy[p+"."+name]
			if !other {
				want = "Test" + name
			}
			used[p+"."+name] = true
			if want != "" && !slices.Contains(checks, want) {
				t.Errorf("%s.%s can be implemented by programs, and %stest has no %s to check them", p, name, p, want)
			}
		}
		if interfaces < 3 {
			t.Errorf("package %s has only %d interfaces", p, interfaces)
		}
	}
	for name := range checkedBy {
		if !used[name] {
			t.Errorf("there is no interface %s", name)
		}
	}
}

// interfaceOf gives the name of an exported interface with methods.
func interfaceOf(d ast.Decl) (string, bool) {
	g, ok := d.(*ast.GenDecl)
	if !ok || len(g.Specs) != 1 {
		return "", false
	}
	s, ok := g.Specs[0].(*ast.TypeSpec)
	if !ok || !s.Name.IsExported() {
		return "", false
	}
	i, ok := s.Type.(*ast.InterfaceType)
	return s.Name.Name, ok && len(i.Methods.List) > 0
}

// names gives the names that pick finds among the declarations of a package.
func names(t *testing.T, pkg string, pick func(ast.Decl) (string, bool)) (out []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if name, ok := pick(d); ok {
				out = append(out, name)
			}
		}
	}
	return out
}

// mostLines is how long an example of a package that helps to test may be.
const mostLines = 10

// TestHelperExamples: each such package is used in ten lines.
func TestHelperExamples(t *testing.T) {
	packages := []string{"parleytest"}
	for _, p := range protocols {
		packages = append(packages, p+"/"+p+"test")
	}
	for _, pkg := range packages {
		path := filepath.Join("..", "..", pkg, "example_test.go")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("package %s has no example: %v", pkg, err)
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		examples := 0
		for _, d := range f.Decls {
			e, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(e.Name.Name, "Example") {
				continue
			}
			examples++
			if n := set.Position(e.Body.Rbrace).Line - set.Position(e.Body.Lbrace).Line - 1; n > mostLines {
				t.Errorf("package %s: %s has %d lines, more than %d", pkg, e.Name.Name, n, mostLines)
			}
		}
		if examples < 2 {
			t.Errorf("package %s has %d examples", pkg, examples)
		}
	}
}
