// Command typecheck checks that the packages of a module compile on other systems, without compiling them: it parses
// them and their dependencies, and checks their types. A build of the same takes ten times as long.
//
//	go run ./internal/typecheck darwin/arm64 freebsd/amd64
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: typecheck GOOS/GOARCH ...")
		os.Exit(2)
	}
	for _, system := range os.Args[1:] {
		n, err := check(".", system)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, err)
			os.Exit(1)
		}
		fmt.Printf("%s: the types of %d packages are right\n", system, n)
	}
}

// check checks the packages below dir for a system, without cgo, and gives their number. Errors are printed.
func check(dir, system string) (int, error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return 0, fmt.Errorf("want GOOS/GOARCH")
	}
	found, err := packages.Load(&packages.Config{
		Dir: dir,
		// With syntax, dependencies are read from their source; of these the bodies of functions are skipped.
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax,
		Env:  append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch),
	}, "./...")
	if err != nil {
		return 0, err
	}
	if n := packages.PrintErrors(found); n > 0 {
		return 0, fmt.Errorf("%d errors", n)
	}
	return len(found), nil
}
