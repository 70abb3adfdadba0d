package conformance

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	number   = regexp.MustCompile(`\b(?:SAM|UAG|A2E|AGH|ASP|A2A|MCP)-\d{3}[a-z]?\b`)
	testFunc = regexp.MustCompile(`^(?:Test|Fuzz|Example)`) // go test runs these by itself
)

// A proof is a test, or a subtest of it that runs one file of vectors:
// "TestVectors/sign.json".
type proof struct{ pkg, test string }

func (p proof) String() string { return p.pkg + "." + p.test }

// A claim says that a test bears a rule's number. It counts when the test ran.
type claim struct {
	rule string
	proof
}

// A text is a piece of a package's tests: the numbers in it and in the comments before
// it, and the names that it uses.
type text struct{ numbers, uses []string }

// A decl is a declaration of a package's tests. A part is an element of a table, or a
// case of a switch, for one file of vectors.
type decl struct {
	test  string // the function's name, if go test runs it
	text         // without the parts
	parts map[string]*text
}

// claims finds the tests below dir that bear a number: in their own text, or in that of
// a helper or table that they use, directly or not.
func claims(dir string) (map[claim]bool, error) {
	packages := map[string]map[string][]*decl{} // by directory, package name and declared name
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (d.Name()[0] == '.' || strings.HasSuffix(path, "internal/conformance")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		return declarations(dir, path, packages)
	})
	if err != nil {
		return nil, err
	}
	out := map[claim]bool{}
	for key, names := range packages {
		folder, _, _ := strings.Cut(key, " ")
		pkg, err := filepath.Rel(dir, folder)
		if err != nil {
			return nil, err
		}
		for _, list := range names {
			for _, d := range list {
				if d.test != "" {
					borne(d, names, func(part, number string) {
						out[claim{number, proof{filepath.ToSlash(pkg), d.test + part}}] = true
					})
				}
			}
		}
	}
	return out, nil
}

// declarations adds the declarations of a file.
func declarations(dir, path string, packages map[string]map[string][]*decl) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, src, parser.ParseComments)
	if err != nil {
		return err
	}
	vectors := vectorFiles(dir, filepath.Base(filepath.Dir(path)))
	key := filepath.Dir(path) + " " + f.Name.Name
	if packages[key] == nil {
		packages[key] = map[string][]*decl{}
	}
	from := set.Position(f.Name.End()).Offset
	for _, one := range f.Decls {
		to := set.Position(one.End()).Offset
		d := read(set.File(f.Pos()), src, one, from, to, vectors)
		from = to
		var names []string
		switch one := one.(type) {
		case *ast.FuncDecl:
			names = []string{one.Name.Name}
			if one.Recv == nil && testFunc.MatchString(one.Name.Name) {
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

// vectorFiles gives the vector files of a protocol by the names in test tables: with
// and without ".json".
func vectorFiles(dir, protocol string) map[string]bool {
	out := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(dir, "testdata/vectors", protocol, "*.json"))
	for _, f := range files {
		out[filepath.Base(f)] = true
		out[strings.TrimSuffix(filepath.Base(f), ".json")] = true
	}
	return out
}

// read splits a declaration, which with the comments before it is src[from:to], into
// the parts for single vector files and the rest.
func read(file *token.File, src []byte, one ast.Decl, from, to int, vectors map[string]bool) *decl {
	type span struct {
		from, to int // in src: whole lines
		name     string
	}
	var parts []span
	lineEnd := func(p token.Pos) int { // where the line of p ends, a comment after it included
		at := file.Offset(p)
		for at < len(src) && src[at] != '\n' {
			at++
		}
		return min(at, to)
	}
	ast.Inspect(one, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			begin := lineEnd(n.Lbrace)
			for _, e := range n.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				end := lineEnd(kv.End())
				if name := literal(kv.Key); vectors[name] {
					parts = append(parts, span{min(begin, file.Offset(kv.Pos())), end, name})
				}
				begin = end
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				if name := literal(e); vectors[name] {
					parts = append(parts, span{file.Offset(n.Pos()), lineEnd(n.End()), name})
				}
			}
		case *ast.IfStmt:
			if b, ok := n.Cond.(*ast.BinaryExpr); ok && b.Op == token.EQL && vectors[literal(b.Y)] {
				parts = append(parts, span{file.Offset(n.Body.Pos()), file.Offset(n.Body.End()), literal(b.Y)})
			}
		}
		return true
	})
	d := &decl{parts: map[string]*text{}}
	at := func(offset int) []*text {
		var out []*text
		for _, p := range parts {
			if p.from <= offset && offset < p.to {
				if d.parts[p.name] == nil {
					d.parts[p.name] = &text{}
				}
				out = append(out, d.parts[p.name])
			}
		}
		if out == nil {
			out = []*text{&d.text}
		}
		return out
	}
	for _, found := range number.FindAllIndex(src[from:to], -1) {
		for _, t := range at(from + found[0]) {
			t.numbers = append(t.numbers, string(src[from+found[0]:from+found[1]]))
		}
	}
	ast.Inspect(one, func(n ast.Node) bool {
		if i, ok := n.(*ast.Ident); ok {
			for _, t := range at(file.Offset(i.Pos())) {
				t.uses = append(t.uses, i.Name)
			}
		}
		return true
	})
	return d
}

// literal gives the text of a string literal.
func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		if s, err := strconv.Unquote(l.Value); err == nil {
			return s
		}
	}
	return ""
}

// borne passes to add the numbers of a test and of all that it uses, except other
// tests, with the part of the test that bears them: "/sign.json", or "".
func borne(test *decl, names map[string][]*decl, add func(part, number string)) {
	type step struct {
		*decl
		part string
	}
	seen := map[step]bool{{test, ""}: true}
	open := []step{{test, ""}}
	for len(open) > 0 {
		at := open[0]
		open = open[1:]
		take := func(t *text, part string) {
			for _, n := range t.numbers {
				add(part, n)
			}
			for _, name := range t.uses {
				for _, used := range names[name] {
					if next := (step{used, part}); used.test == "" && !seen[next] {
						seen[next] = true
						open = append(open, next)
					}
				}
			}
		}
		take(&at.text, at.part)
		for _, name := range slices.Sorted(maps.Keys(at.parts)) {
			part := at.part
			if part == "" && strings.HasPrefix(test.test, "TestVectors") {
				part = "/" + name
			}
			take(at.parts[name], part)
		}
	}
}
