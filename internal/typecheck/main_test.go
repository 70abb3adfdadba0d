package main

import (
	"os"
	"path/filepath"
	"testing"
)

// An error in a file of another system is found there, and there alone.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":       "module example.com/x\n\ngo 1.26\n",
		"x.go":         "package x\n\nvar _ = f()\n",
		"x_windows.go": "package x\n\nfunc f() int { return 1 + \"\" }\n",
		"x_unix.go":    "//go:build unix\n\npackage x\n\nfunc f() int { return 1 }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		system string
		ok     bool
	}{
		{"freebsd/amd64", true}, {"windows/amd64", false}, {"plan9/amd64", false}, {"windows", false},
		{"nosuch/amd64", false},
	} {
		if n, err := check(dir, x.system); (err == nil) != x.ok || x.ok && n != 1 {
			t.Errorf("%s: %d packages, %v", x.system, n, err)
		}
	}
}
