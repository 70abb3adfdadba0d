package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// Each page of the documentation is a story: its shell blocks run in order, in one
// directory, beside one hub with the agents "weather" (Go) and a SAMVAD agent at $MUSEUM.
// Directives for a block stand before it, in comments that a reader of the page does not
// see:
//
//	<!-- docs: hub -->          its last line starts a hub that keeps running: the page's, unless --data names another
//	<!-- docs: check -->        its commands and flags must exist, but are not run: the test lacks what they need
//	<!-- docs: code N -->       its last command ends with exit code N
//	<!-- docs: want TEXT -->    TEXT is in its output
//	<!-- docs: let NAME CMD --> NAME stands for the output of CMD, from here to the end of the page
//	<!-- docs: foreign FILE --> it needs a foreign program: FILE, an interop test, covers it
//	<!-- docs: with PARAMS -->  a piece of Go has these parameters, as of a function
//	<!-- docs: plain -->        it is not code
//
// A block without a language, or with an unknown one, fails.
var docsComment = regexp.MustCompile(`^\s*<!-- docs: (\w+) ?(.*?) ?-->\s*$`)

// docsBlock is a fenced block with its comments.
type docsBlock struct {
	page, lang string
	line       int
	text       string
	is         map[string][]string
}

func (b *docsBlock) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// docsPages are the pages that are tested.
func docsPages(t testing.TB) []string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	decisions, err := filepath.Glob("../../docs/architecture/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, decisions...)
	pages = append(pages, "../../README.md", "../../SECURITY.md", "../../CONTRIBUTING.md")
	// A program makes the list of rules; it has no code.
	return slices.DeleteFunc(pages, func(p string) bool { return filepath.Base(p) == "conformance.md" })
}

// docsBlocks parses a page: its blocks, and the pieces of code in its text.
func docsBlocks(t testing.TB, page string) (blocks []*docsBlock, spans map[int][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	spans = map[int][]string{}
	var in *docsBlock
	is := map[string][]string{}
	code := regexp.MustCompile("`([^`]+)`")
	for i, line := range strings.Split(string(text), "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case in != nil && isFence:
			blocks, in = append(blocks, in), nil
		case in != nil:
			in.text += line + "\n"
		case isFence:
			in = &docsBlock{page: filepath.Base(page), lang: fence, line: i + 1, is: is}
			is = map[string][]string{}
		default:
			if m := docsComment.FindStringSubmatch(line); m != nil {
				is[m[1]] = append(is[m[1]], m[2])
				continue
			}
			if strings.TrimSpace(line) != "" && len(is) > 0 {
				t.Errorf("%s:%d: a comment for a block has none behind it", page, i+1)
				is = map[string][]string{}
			}
			if command, ok := strings.CutPrefix(line, "    "); ok && strings.HasPrefix(command, "parley ") {
				spans[i+1] = append(spans[i+1], command)
			}
			for _, m := range code.FindAllStringSubmatch(line, -1) {
				spans[i+1] = append(spans[i+1], m[1])
			}
		}
	}
	if in != nil {
		t.Errorf("%s: the block has no end", in)
	}
	return blocks, spans
}

// TestDocsCommands: every command that a page names exists, with its flags.
func TestDocsCommands(t *testing.T) {
	t.Parallel()
	for _, page := range docsPages(t) {
		blocks, spans := docsBlocks(t, page)
		for line, list := range spans {
			for _, span := range list {
				if err := checkCommand(span); err != nil {
					t.Errorf("%s:%d: `%s`: %v", page, line, span, err)
				}
			}
		}
		for _, b := range blocks {
			if b.lang != "sh" {
				continue
			}
			for _, command := range shellCommands(b.text) {
				if err := checkCommand(command); err != nil {
					t.Errorf("%s: %s: %v", b, command, err)
				}
			}
		}
	}
}

// shellCommands gives the simple commands of a block.
func shellCommands(text string) (out []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		for _, c := range regexp.MustCompile(`\$\(|\|\||&&|[|;()]`).Split(quoted.ReplaceAllString(line, "X"), -1) {
			out = append(out, strings.TrimSpace(c))
		}
	}
	return out
}

// quoted matches quoted text of a shell.
var quoted = regexp.MustCompile(`'[^']*'|"[^"]*"`)

// checkCommand checks that the command and the flags of a parley command line exist.
// Other commands pass.
func checkCommand(line string) error {
	args := strings.Fields(strings.NewReplacer("…", "X", "<", " ", ">",
		" ").Replace(quoted.ReplaceAllString(line, "X")))
	for len(args) > 0 && strings.Contains(args[0], "=") {
		args = args[1:]
	}
	if len(args) > 2 && args[0] == "go" && args[1] == "run" && args[2] == "./cmd/parley" {
		args = args[2:]
	}
	if len(args) == 0 || !slices.Contains([]string{"parley", "./parley", "./cmd/parley"}, args[0]) {
		return nil
	}
	a := &app{in: strings.NewReader(""), out: io.Discard, errs: io.Discard}
	c, rest, err := a.root().Find(args[1:])
	if err != nil {
		return err
	}
	if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") &&
		regexp.MustCompile(`^[a-z]+$`).MatchString(rest[0]) && c.RunE == nil {
		return fmt.Errorf("%s has no command %q", c.CommandPath(), rest[0])
	}
	for _, w := range rest {
		name, isFlag := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && name != "" && !hasFlag(c, name) {
			return fmt.Errorf("%s has no flag --%s", c.CommandPath(), name)
		}
	}
	return nil
}

func hasFlag(c *cobra.Command, name string) bool {
	return name == "help" || c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil
}

// TestDocsRun runs the shell blocks of every page, and checks all other blocks.
func TestDocsRun(t *testing.T) {
	t.Parallel()
	for _, page := range docsPages(t) {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			blocks, _ := docsBlocks(t, page)
			s := &docsStory{t: t, let: map[string]string{}}
			for _, b := range blocks {
				s.block(b)
			}
		})
	}
}

// docsStory is the run of one page.
type docsStory struct {
	t    *testing.T
	dir  string
	bin  string
	env  []string
	http string
	let  map[string]string
	stop func() // ends the hub
}

func (s *docsStory) block(b *docsBlock) {
	switch {
	case s.t.Failed():
	case b.is["plain"] != nil:
	case b.is["foreign"] != nil:
		file := b.is["foreign"][0]
		if i, err := os.Stat(filepath.Join("../..", file)); err != nil || i.IsDir() ||
			!strings.HasPrefix(file, "interop/") && !strings.HasSuffix(file, "_test.go") {
			s.t.Errorf("%s: %s is no file of the interop suite and no test: %v", b, file, err)
		}
	case b.lang == "sh":
		if b.is["check"] == nil {
			s.run(b)
		}
	case b.lang == "go": // TestDocsGo
	case b.lang == "toml":
		s.begin()
		path := filepath.Join(s.dir, fmt.Sprintf("line-%d.toml", b.line))
		s.check(os.WriteFile(path, []byte(b.text), 0o600))
		if _, err := node.Load(path); err != nil {
			s.t.Errorf("%s: %v", b, err)
		}
	case b.lang == "json":
		if !json.Valid([]byte(b.text)) {
			s.t.Errorf("%s: that is not JSON", b)
		}
	default:
		s.t.Errorf("%s: a block of unknown language %q: add a docs comment", b, b.lang)
	}
}

func (s *docsStory) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// begin makes the page's directory with parley in it.
func (s *docsStory) begin() {
	if s.dir != "" {
		return
	}
	s.dir = s.t.TempDir()
	s.bin = filepath.Join(s.dir, "bin")
	s.check(os.Mkdir(s.bin, 0o755))
	self, err := os.Executable()
	s.check(err)
	for _, at := range []string{filepath.Join(s.bin, "parley"), filepath.Join(s.dir, "parley")} {
		s.check(os.Symlink(self, at))
	}
	s.check(os.MkdirAll(filepath.Join(s.dir, "etc", "bash_completion.d"), 0o755))
	s.env = []string{"PATH=" + s.bin + ":" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + s.dir}
}

// hub runs the page's hub in this process, unless a block has started one.
func (s *docsStory) hub() {
	if s.stop != nil {
		return
	}
	ctx := context.Background()
	config := node.Config{Data: filepath.Join(s.dir, "parley-data"),
		Listen:  node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Network: node.Network{Allow: []string{"loopback"}}, ASP: node.ASP{Registration: "open", Domain: "hub.corp"},
		Delivery: node.Delivery{Tries: 1}}
	config.Read = func() (node.Config, error) { return config, nil }
	n, err := node.Open(ctx, config)
	s.check(err)
	s.stop = func() {
		if err := n.Close(ctx); err != nil {
			s.t.Error(err)
		}
	}
	s.stop = sync.OnceFunc(s.stop)
	s.t.Cleanup(s.stop)
	type query struct {
		City string `json:"city"`
	}
	s.check(n.Handle(parley.Agent{Name: "weather", Exposed: parley.Everywhere},
		parley.Skill("forecast", func(context.Context, *parley.Message, query) (map[string]any, error) {
			return map[string]any{"celsius": 21}, nil
		})))
	museum, err := startAgent(n.SAMVAD().Hosting().Identity, n.SAMVAD().Hosting().Key)
	s.check(err)
	s.t.Cleanup(museum.Close)
	s.check(n.Start(ctx))
	s.http = n.Addresses().HTTP
	s.let["https://museum.example"] = museum.URL
	// A request is refused before the page begins, for pages that show refusals.
	s.refuse()
}

func (s *docsStory) refuse() {
	c := s.command("parley keys new --protocol samvad --id agent://stranger.example --out stranger.json; " +
		"parley send --protocol samvad --url " + s.http + "/agents/weather --key stranger.json " +
		"--as agent://stranger.example --skill forecast '{}'")
	if out, err := c.CombinedOutput(); err == nil {
		s.t.Fatalf("a stranger was let in: %s", out)
	}
}

func (s *docsStory) command(text string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, "sh", "-e", "-c", text)
	c.Dir, c.Env, c.WaitDelay = s.dir, s.env, 10*time.Second
	// Processes that a block starts end with it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	return c
}

// words replaces a page's texts by those of the test: the hub's address, the system's
// directories, the program's name, and the names of let. It removes waits for an agent
// that the test does not have.
func (s *docsStory) words(text string) string {
	pairs := []string{"go run ./cmd/parley demo ", "parley demo --once ", "go run ./cmd/parley", "parley",
		"go build -o parley ./cmd/parley", ":",
		"go test ./...", ": this is one of them", " --wait 2m", "", "go run ./examples/first",
		": a hub with this agent runs", " /etc/", " " + s.dir + "/etc/", " /usr/local/", " " + s.dir + "/usr/local/"}
	if s.http != "" {
		pairs = append(pairs, "http://127.0.0.1:8080", s.http, "http://hub.corp:8080", s.http)
	}
	for name, v := range s.let {
		pairs = append(pairs, name, v)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func (s *docsStory) run(b *docsBlock) {
	s.begin()
	if b.is["hub"] != nil {
		s.serve(b)
		return
	}
	s.hub()
	for _, l := range b.is["let"] {
		name, command, _ := strings.Cut(l, " ")
		out, err := s.command(s.words(command)).Output()
		if err != nil || len(bytes.TrimSpace(out)) == 0 {
			s.t.Fatalf("%s: %s: %v: %q", b, command, err, out)
		}
		s.let[name] = string(bytes.TrimSpace(out))
	}
	want := 0
	if b.is["code"] != nil {
		n, err := strconv.Atoi(b.is["code"][0])
		s.check(err)
		want = n
	}
	text := s.words(b.text)
	out, err := s.command(text).CombinedOutput()
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		s.t.Fatalf("%s: %v", b, err)
	}
	if code != want {
		s.t.Fatalf("%s: exit code %d, want %d\n%s\n%s", b, code, want, text, out)
	}
	for _, w := range b.is["want"] {
		if !strings.Contains(string(out), s.words(w)) {
			s.t.Errorf("%s: %q is not in\n%s", b, w, out)
		}
	}
}

// serve runs a block that starts a hub, which replaces the hub before.
func (s *docsStory) serve(b *docsBlock) {
	lines := strings.Split(strings.TrimSpace(s.words(b.text)), "\n")
	last := &lines[len(lines)-1]
	command, _, _ := strings.Cut(*last, " #")
	// The ports of the page may be in use here.
	*last = "exec " + command + " --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0"
	own := !strings.Contains(command, "--data") || strings.Contains(command, "--data parley-data")
	if own && s.stop != nil {
		s.stop()
	} else if !own {
		s.hub()
	}
	var mu sync.Mutex
	var out bytes.Buffer
	c := s.command(strings.Join(lines, "\n"))
	ready := make(chan struct{})
	w := writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		was := bytes.Contains(out.Bytes(), []byte("\n  data "))
		out.Write(p)
		if !was && bytes.Contains(out.Bytes(), []byte("\n  data ")) {
			close(ready)
		}
		return len(p), nil
	})
	c.Stdout, c.Stderr = w, w
	s.check(c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	stop := sync.OnceFunc(func() {
		s.check(c.Process.Signal(os.Interrupt))
		if err := <-ended; err != nil {
			s.t.Errorf("%s: the hub ended with %v", b, err)
		}
	})
	if own {
		s.stop = stop
	}
	select {
	case <-ready:
		s.t.Cleanup(stop)
	case err := <-ended:
		ended <- err
		s.t.Fatalf("%s: %v\n%s", b, err, out.String())
	}
	mu.Lock()
	defer mu.Unlock()
	m := regexp.MustCompile(`protocols  (http://\S+)`).FindStringSubmatch(out.String())
	if m == nil {
		s.t.Fatalf("%s: no address in\n%s", b, out.String())
	}
	if own {
		s.http = m[1]
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestDocsGo compiles the Go of every page: whole programs as they are, pieces
// as the body of a function with the parameters that a comment names.
func TestDocsGo(t *testing.T) {
	t.Parallel()
	type source struct {
		b    *docsBlock
		text string
	}
	var list []source
	imports := map[string]bool{}
	// Packages that pieces may use without an import.
	known := map[string]string{}
	for _, p := range []string{"context", "crypto/ed25519", "encoding/json", "errors", "fmt", "io", "log", "log/slog",
		"net/http", "net/http/httptest", "os", "strings", "testing", "testing/synctest", "time"} {
		known[filepath.Base(p)] = p
	}
	for _, p := range []string{"", "samvad", "uagents", "a2e", "agh", "agh/aghnats", "asp", "node", "hub", "journal",
		"journal/sqlite", "admin", "keyring", "parleytest", "samvad/samvadtest"} {
		p = strings.TrimSuffix("github.com/parley-hub/parley/"+p, "/")
		known[filepath.Base(p)] = p
	}
	for _, page := range docsPages(t) {
		blocks, _ := docsBlocks(t, page)
		for _, b := range blocks {
			if b.lang != "go" || b.is["foreign"] != nil {
				continue
			}
			text := b.text
			if !strings.HasPrefix(text, "package ") {
				var head strings.Builder
				head.WriteString("package piece\n")
				params := strings.Join(b.is["with"], ", ")
				for name, path := range known {
					if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(text + params) {
						fmt.Fprintf(&head, "import %q\n", path)
					}
				}
				text = head.String() + "func _(" + params + ") {\n//line " + b.page + ":" + strconv.Itoa(b.line+1) +
					"\n" + text + "}\n"
				if regexp.MustCompile(`(?m)^func `).MatchString(b.text) {
					text = head.String() + "//line " + b.page + ":" + strconv.Itoa(b.line+1) + "\n" + b.text
				}
			}
			list = append(list, source{b, text})
		}
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, s := range list {
		f, err := parser.ParseFile(fset, s.b.String(), s.text, 0)
		if err != nil {
			t.Errorf("%s: %v", s.b, err)
			continue
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			imports[path] = true
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Fatal("no page has Go")
	}
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for p := range imports {
		args = append(args, p)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exported := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exported[path] = file
	}
	imp := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exported[path]) })
	for _, f := range files {
		c := types.Config{Importer: imp, Error: func(err error) {
			// A piece may declare variables that it does not use.
			if e := (types.Error{}); !errors.As(err, &e) || !e.Soft || f.Name.Name == "main" {
				t.Error(err)
			}
		}}
		_, _ = c.Check("docs", fset, []*ast.File{f}, nil)
	}
}

// TestFirstAgentIsTheOneShown: the program in the README is the one in examples/first.
func TestFirstAgentIsTheOneShown(t *testing.T) {
	t.Parallel()
	blocks, _ := docsBlocks(t, "../../README.md")
	i := slices.IndexFunc(blocks, func(b *docsBlock) bool { return b.lang == "go" })
	example, err := os.ReadFile("../../examples/first/main.go")
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(s string) string {
		s = s[strings.Index(s, "package main"):]
		return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\n;", r) }), "")
	}
	if squeeze(blocks[i].text) != squeeze(string(example)) {
		t.Error("README.md shows another program than examples/first/main.go")
	}
}
