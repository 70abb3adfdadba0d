package doors

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPublicNames: no exported name of a public package mentions a type of
// internal/… or of an experimental module. Programs elsewhere could not use it.
func TestPublicNames(t *testing.T) {
	for pkg, files := range publicFiles(t) {
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range hidden(parsed) {
				t.Errorf("package %s: %s", pkg, name)
			}
		}
	}
}

// TestExamples: each public package shows in a program what it is for. Packages that only
// this module's tests call show it in their documentation.
func TestExamples(t *testing.T) {
	for pkg, files := range publicFiles(t) {
		switch short(pkg) {
		case "bridge/bridgetest", "journal/store/storetest", "journal/store": // the last is an interface
			continue
		}
		tests, err := filepath.Glob(filepath.Join(filepath.Dir(files[0]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(tests, func(file string) bool {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Contains(b, []byte("\nfunc Example"))
		}) {
			t.Errorf("package %s has no example", pkg)
		}
	}
}

// publicFiles gives the source files of each public package, without tests.
func publicFiles(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}:{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}};{{end}}`,
		module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		pkg, list, _ := strings.Cut(strings.TrimSpace(line), ":")
		if p := short(pkg); strings.HasPrefix(p, "internal/") || strings.HasPrefix(p, "cmd/") ||
			p == "examples" || strings.HasPrefix(p, "examples/") {
			continue
		}
		files[pkg] = strings.FieldsFunc(list, func(r rune) bool { return r == ';' })
	}
	if len(files) < 20 {
		t.Fatalf("only %d public packages found", len(files))
	}
	return files
}

// hidden lists the exported names of a file whose types programs elsewhere
// cannot name.
func hidden(f *ast.File) (names []string) {
	foreign := map[string]string{} // by the name in this file
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil || !strings.HasPrefix(p, module+"/internal/") && !strings.Contains(p, "experiment") {
			continue
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		foreign[name] = p
	}
	check := func(name string, typ ast.Node) {
		visible(typ, func(s *ast.SelectorExpr) {
			if x, ok := s.X.(*ast.Ident); ok && foreign[x.Name] != "" {
				names = append(names, fmt.Sprintf("%s mentions %s.%s", name, foreign[x.Name], s.Sel.Name))
			}
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || receiver(d).IsExported()) {
				check(d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						check(s.Name.Name, s.Type)
					}
				case *ast.ValueSpec:
					if s.Type != nil && s.Names[0].IsExported() {
						check(s.Names[0].Name, s.Type)
					}
				}
			}
		}
	}
	return names
}

// visible calls found for each qualified type in a type, but for those of
// unexported fields and methods.
func visible(typ ast.Node, found func(*ast.SelectorExpr)) {
	ast.Inspect(typ, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			found(n)
		case *ast.StructType:
			visibleFields(n.Fields, found)
			return false
		case *ast.InterfaceType:
			visibleFields(n.Methods, found)
			return false
		}
		return true
	})
}

func visibleFields(fields *ast.FieldList, found func(*ast.SelectorExpr)) {
	for _, f := range fields.List {
		if len(f.Names) == 0 || f.Names[0].IsExported() {
			visible(f.Type, found)
		}
	}
}

// receiver gives the name of a method's type.
func receiver(d *ast.FuncDecl) (name *ast.Ident) {
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == nil {
			name = id
		}
		return name == nil
	})
	return name
}
