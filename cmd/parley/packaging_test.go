package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/node"
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

// TestUnit: the steps in the comment of the systemd unit make what its ExecStart needs. They
// run in a directory of the test, as far as they need no other user.
func TestUnit(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../packaging/parley.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unit := regexp.MustCompile(`/(etc|var/lib)/parley`).ReplaceAllString(string(file), dir+"$0")
	made := map[string]bool{} // directories of the steps so far
	var serves []string
	for _, line := range strings.Split(unit, "\n") {
		words := strings.Fields(line)
		if step, ok := strings.CutPrefix(line, "#   install -d "); ok {
			words := strings.Fields(step)
			path := words[len(words)-1]
			if !strings.HasPrefix(step, "-o parley -g parley ") {
				t.Errorf("%q: the hub does not own the directory", line)
			}
			made[path] = true
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		at := slices.IndexFunc(words, func(w string) bool { return strings.HasSuffix(w, "/usr/local/bin/parley") })
		if at < 0 {
			continue
		}
		args := words[at+1:]
		c, flags, err := (&app{}).root().Find(args)
		if err == nil {
			err = c.ParseFlags(flags)
		}
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		switch args[0] {
		case "init":
			var out, errs bytes.Buffer
			if code := run(args, nil, &out, &errs); code != exitOK || !strings.Contains(out.String(), "admin token  parley_") {
				t.Fatalf("%q: %d %s%s", line, code, out.String(), errs.String())
			}
		case "serve":
			serves = append(serves, c.Flag("config").Value.String())
		}
	}
	if len(serves) != 1 || !made[dir+"/etc/parley"] || !made[dir+"/var/lib/parley"] {
		t.Fatalf("the unit serves %q; its steps make %v", serves, made)
	}
	c, err := node.Load(serves[0])
	if err != nil || c.Data != dir+"/var/lib/parley" {
		t.Errorf("the configuration has the data directory %q, %v", c.Data, err)
	}
	for _, want := range []string{"User=parley", "StateDirectory=parley", "StateDirectoryMode=0700",
		"ConfigurationDirectoryMode=0750", "#   useradd --system ", "#   systemctl daemon-reload"} {
		if !strings.Contains(unit, "\n"+want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return // the checks above are those that need no systemd
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(file), "ExecStart=/usr/local/bin/parley", "ExecStart="+self)
	text = regexp.MustCompile(`(?m)^Documentation=.*\n`).ReplaceAllString(text, "") // the page may not be installed
	path := filepath.Join(dir, "parley.service")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
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
