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

// roles says in which file of a protocol package a name is declared, if the package has
// it.
var roles = map[string]string{
	"Decode":          "envelope.go",
	"Envelope":        "envelope.go",
	"Identity":        "identity.go",
	"Keys":            "keys.go",
	"Verifier":        "verify.go",
	"Verified":        "verify.go",
	"Memory":          "memory.go",
	"NewMemory":       "memory.go",
	"Client":          "client.go",
	"Server":          "server.go",
	"Error":           "errors.go",
	"Limits":          "limits.go",
	"Canonical":       "canonical.go",
	"Sign":            "sign.go",
	"VerifyDigest":    "sign.go",
	"WriteError":      "errors.go",
	"ErrReplay":       "errors.go",
	"ErrStale":        "errors.go",
	"ErrSignature":    "errors.go",
	"VerifySignature": "verify.go",
}

// maxLines bounds a source file; a longer one does two jobs.
const maxLines = 710

// TestProtocolFiles: the same file has the same role in each protocol package.
func TestProtocolFiles(t *testing.T) {
	for _, pkg := range protocols {
		dir := filepath.Join("..", "..", pkg)
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(files, filepath.Join(dir, "doc.go")) {
			t.Errorf("%s has no doc.go", pkg)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			file := pkg + "/" + filepath.Base(path)
			if n := strings.Count(string(text), "\n"); n > maxLines {
				t.Errorf("%s has %d lines, more than %d", file, n, maxLines)
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range declared(parsed) {
				if want := roles[name]; want != "" && want != filepath.Base(path) {
					t.Errorf("%s declares %s, which belongs into %s", file, name, want)
				}
			}
		}
	}
}

// declared gives the package-level names of a file, without methods.
func declared(f *ast.File) []string {
	var names []string
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}
