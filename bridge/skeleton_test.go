package bridge

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The declarations that have a file of their own, in all packages of a kind. "T.M" is
// a method.
var (
	bindingFiles = map[string]string{
		"Config":          "binding.go",
		"Binding":         "binding.go",
		"New":             "binding.go",
		"Binding.Start":   "binding.go",
		"Binding.Close":   "binding.go",
		"Binding.Deliver": "outbound.go",
		"Binding.Forget":  "forget.go",
		"Binding.way":     "way.go",
	}
)

// required are the files and declarations that each binding has.
var required = []string{"binding.go", "inbound.go", "outbound.go", "translate.go", "state.go",
	"Config", "Binding", "New", "Binding.Close", "Binding.Deliver", "Binding.way"}

// impure are the imports, by their ends, that translate.go must not have. Of net/http
// it may name the status codes.
var impure = []string{"parley/journal", "parley/directory", "sync"}

// maxLines bounds each file of a binding.
const maxLines = 700

func TestSkeletonOfBindings(t *testing.T) {
	for _, protocol := range Protocols {
		t.Run(protocol, func(t *testing.T) {
			p := parsePackage(t, protocol)
			p.check(t, bindingFiles)
			for _, name := range required {
				if p.files[name] == nil && p.declared[name] == "" {
					t.Errorf("bridge/%s has no %s", protocol, name)
				}
			}
			for name, f := range p.files {
				if n := p.set.File(f.FileStart).LineCount(); n > maxLines {
					t.Errorf("bridge/%s/%s has %d lines, the limit is %d", protocol, name, n, maxLines)
				}
			}
			for _, problem := range impurities(p) {
				t.Errorf("bridge/%s/translate.go %s, and is not pure", protocol, problem)
			}
		})
	}
}

// A parsed package, without its tests.
type parsed struct {
	dir      string
	set      *token.FileSet
	files    map[string]*ast.File // by base name
	declared map[string]string    // file of each declaration at the top level
}

func parsePackage(t *testing.T, dir string) *parsed {
	t.Helper()
	p := &parsed{dir: dir, set: token.NewFileSet(), files: map[string]*ast.File{}, declared: map[string]string{}}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no Go files in %s: %v", dir, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(p.set, path, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files[filepath.Base(path)] = f
		for _, d := range f.Decls {
			for _, name := range names(d) {
				p.declared[name] = filepath.Base(path)
			}
		}
	}
	return p
}

// names gives the functions, methods and types of a declaration.
func names(d ast.Decl) (out []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if r := receiver(d); r != "" {
			return []string{r + "." + d.Name.Name}
		}
		return []string{d.Name.Name}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if s, ok := s.(*ast.TypeSpec); ok {
				out = append(out, s.Name.Name)
			}
		}
	}
	return out
}

// receiver gives the type of a method; "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.Name
		default:
			return ""
		}
	}
}

// check reports declarations in another file than the skeleton's.
func (p *parsed) check(t *testing.T, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got := p.declared[name]; got != "" && got != want[name] {
			t.Errorf("%s: %s is in %s, not in %s", p.dir, name, got, want[name])
		}
	}
}

// impurities lists imports and methods that the translation may not have.
func impurities(p *parsed) (out []string) {
	f := p.files["translate.go"]
	if f == nil {
		return nil
	}
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			path = i.Path.Value
		}
		for _, bad := range impure {
			if path == bad || strings.HasSuffix(path, "/"+bad) {
				out = append(out, "imports "+path)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "http" && !strings.HasPrefix(s.Sel.Name, "Status") {
				out = append(out, "uses http."+s.Sel.Name)
			}
		}
		return true
	})
	for _, d := range f.Decls {
		if m, ok := d.(*ast.FuncDecl); ok && receiver(m) == "Binding" {
			out = append(out, fmt.Sprintf("has the method %s of Binding", m.Name.Name))
		}
	}
	return out
}
