package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestContainerBuild: the build of the container file needs no C and makes a static
// program. The test reads the file; only the image's build runs it.
func TestContainerBuild(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../packaging/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	build := regexp.MustCompile(`RUN go build (.*) -o /out/parley \./cmd/parley`).FindSubmatch(file)
	if build == nil || !bytes.Contains(build[1], []byte("-trimpath")) ||
		!bytes.Contains(file, []byte("ENV CGO_ENABLED=0")) {
		t.Fatalf("the container file builds with %q", build)
	}
	if m := regexp.MustCompile(`-X (\S+)=`).FindSubmatch(build[1]); m == nil || string(m[1]) != "main.version" {
		t.Errorf("the version goes to %q", m)
	}
	c := exec.Command("go", "list", "-deps", "-f",
		"{{if or .CgoFiles .CFiles}}{{.ImportPath}} needs C\n{{end}}{{with .Error}}{{.}}\n{{end}}", ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=-mod=readonly")
	out, err := c.CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestEmptyHome: the program runs with only a directory for temporary files, as in the
// image, and leaves no file there.
func TestEmptyHome(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	tmp := t.TempDir()
	for _, args := range [][]string{{"version"}, {"demo", "--once"}} {
		c := p.command(args...)
		c.Env, c.Dir = []string{"HOME=/nonexistent", "TMPDIR=" + tmp}, tmp
		if out, err := c.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("parley %v: %v\n%s", args, err, out)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestEveryCommandIsDescribed: man pages cover all commands, and each command has a short
// description and, if it runs by itself, an example.
func TestEveryCommandIsDescribed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out, errs bytes.Buffer
	if code := run([]string{"man", "--dir", dir}, nil, &out, &errs); code != exitOK {
		t.Fatal(errs.String())
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		page := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !bytes.Contains(text, []byte(".TH")) {
			t.Errorf("%s: %v", page, err)
		}
		if c.Short == "" || c.RunE != nil && c.Example == "" {
			t.Errorf("%s lacks a line about itself or an example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			if sub.Name() != "help" && !sub.Hidden {
				walk(sub)
			}
		}
	}
	walk((&app{}).root())
}
