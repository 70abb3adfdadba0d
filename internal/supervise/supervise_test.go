package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain makes the test binary the program that is run, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "program" {
		programs[os.Args[2]](os.Args[3:])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// programs are what a test runs, by name.
var programs = map[string]func(args []string){
	"environment": func([]string) {
		dir, err := os.Getwd()
		must(err)
		must(json.NewEncoder(os.Stdout).Encode(map[string]any{"env": os.Environ(), "dir": dir, "args": os.Args}))
	},
	"echo": func([]string) {
		_, err := io.Copy(os.Stdout, os.Stdin)
		must(err)
	},
	"junk": func([]string) {
		fmt.Print("hello\n\n[{}]\n{\"a\":}\n{\"a\":\"\xff\"}\n{\"a\":1} {}\n{\"ok\":1}\r\nbye\n{\"last\":1}")
	},
	"flood": func([]string) {
		for {
			_, err := os.Stdout.WriteString(strings.Repeat("x", 4096))
			must(err)
		}
	},
	"chatter": func([]string) {
		for n := range 1000 {
			fmt.Fprintln(os.Stderr, "note", n)
		}
		fmt.Fprint(os.Stderr, strings.Repeat("y", 3*maxNote), "\n")
	},
	"fails": func([]string) { os.Exit(3) },
	"silent": func([]string) {
		_, _ = io.Copy(io.Discard, os.Stdin)
	},
	"mute": func([]string) { // closes its output, and stays
		must(os.Stdout.Close())
		<-make(chan struct{})
	},
	"deaf": deaf,
	"fork": func(args []string) {
		leave(args)
		deaf(args)
	},
	"leave": func(args []string) {
		leave(args)
		fmt.Println(`{"left":1}`)
		// It must live when this one ends.
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		must(err)
	},
	// supervisor supervises another program until it is killed.
	"supervisor": func(args []string) {
		p, err := Start(Command{Args: []string{os.Args[0], "program", "deaf", args[0]}})
		must(err)
		_, err = p.Read()
		must(err)
	},
}

// deaf reads nothing, ignores SIGTERM, and shows the test by a connection that it lives.
func deaf(args []string) {
	signal.Ignore(syscall.SIGTERM)
	c, err := net.Dial("tcp", args[0])
	must(err)
	_, _ = io.Copy(io.Discard, c) // until the test ends
}

// leave starts a deaf process that holds the streams of this one.
func leave(args []string) {
	c := exec.Command(os.Args[0], "program", "deaf", args[0])
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	must(c.Start())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(t *testing.T, args ...string) Command {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Command{Args: append([]string{self, "program"}, args...)}
}

func start(t *testing.T, c Command) *Process {
	t.Helper()
	p, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// rest reads until the end.
func rest(p *Process) (lines []string, err error) {
	for {
		b, err := p.Read()
		if err != nil {
			return lines, err
		}
		lines = append(lines, string(b))
	}
}

// atOnce is a clock for waits that are over as soon as they begin.
func atOnce(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c
}

func never(time.Duration) <-chan time.Time { return nil }

// lives accepts the connections of deaf programs. gone waits for the end of n of them.
func lives(t *testing.T) (address string, accept func(n int) (gone func())) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String(), func(n int) func() {
		var all []net.Conn
		for range n {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			all = append(all, c)
		}
		return func() {
			for _, c := range all {
				_, _ = io.Copy(io.Discard, c) // ends with the process
			}
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("PARLEY_SECRET", "hunter2")
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"MCP-080 the environment is what is listed", []string{"A=1", "B=x y"}},
		{"MCP-080 nothing listed is nothing, not the environment of this process", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(t, "environment", "$HOME; echo *")
			cmd.Env, cmd.Dir = c.env, t.TempDir()
			lines, err := rest(start(t, cmd))
			if len(lines) != 1 || !strings.Contains(err.Error(), "exit status 0") {
				t.Fatalf("read %q, then %v", lines, err)
			}
			var got struct {
				Env, Args []string
				Dir       string
			}
			if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Env, c.env) {
				t.Errorf("environment %q, want %q", got.Env, c.env)
			}
			if got.Dir != cmd.Dir || !slices.Equal(got.Args, cmd.Args) {
				t.Errorf("directory %q, arguments %q; want %q, %q", got.Dir, got.Args, cmd.Dir, cmd.Args)
			}
		})
	}
}

// MCP-080: the hub starts no processes. Nothing that a hub is made of imports what could.
func TestHubStartsNoProcesses(t *testing.T) {
	t.Parallel()
	files := 0
	for _, dir := range []string{"admin", "bridge", "delivery", "directory", "hub", "journal", "keyring", "node",
		"policy"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			files++
			for _, i := range f.Imports {
				if slices.Contains([]string{`"os/exec"`, `"github.com/parley-hub/parley/internal/supervise"`}, i.Path.Value) {
					t.Errorf("%s imports %s", path, i.Path.Value)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 100 {
		t.Errorf("%d files were read", files)
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	for _, c := range []Command{{}, {Args: []string{"no-such-program-here"}}, {Args: []string{"./no-such-program"}},
		{Args: []string{os.Args[0]}, Dir: "/no/such/directory"}} {
		if p, err := Start(c); err == nil {
			p.Stop()
			t.Errorf("%q in %q started", c.Args, c.Dir)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	t.Run("messages go to the program and back", func(t *testing.T) {
		t.Parallel()
		p := start(t, command(t, "echo"))
		large := `{"b":"` + strings.Repeat("z", 200<<10) + `"}`
		for in, want := range map[string]string{`{"a":12345678901234567890}`: `{"a":12345678901234567890}`,
			"{\n \"a\":\r\n \"x\\n\"}": `{"a":"x\n"}`, large: large} {
			sent := make(chan error)
			go func() { sent <- p.Write([]byte(in)) }()
			if got, err := p.Read(); string(got) != want || err != nil {
				t.Errorf("%.40q came back as %.40q, %v", in, got, err)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
		p.Stop()
		if _, err := p.Read(); !errors.Is(err, ErrStop) {
			t.Errorf("read after Stop: %v", err)
		}
		if err := p.Write([]byte("{}")); !errors.Is(err, ErrStop) {
			t.Errorf("written after Stop: %v", err)
		}
	})
	t.Run("MCP-081 only JSON objects pass", func(t *testing.T) {
		t.Parallel()
		var log logged
		cmd := command(t, "junk")
		cmd.Log = log.logger()
		lines, err := rest(start(t, cmd))
		if want := []string{`{"ok":1}`, `{"last":1}`}; !slices.Equal(lines, want) || err == nil {
			t.Errorf("read %q, then %v; want %q", lines, err, want)
		}
		for _, dropped := range []string{"hello", "[{}]", `{"a":}`, `{"a":1} {}`, "bye"} {
			if n := log.count(dropped); n != 1 {
				t.Errorf("%q is in %d lines of the log", dropped, n)
			}
		}
	})
	t.Run("MCP-072 a line without an end ends the program", func(t *testing.T) {
		t.Parallel()
		cmd := command(t, "flood")
		cmd.MaxLine, cmd.After = 100_000, atOnce
		if lines, err := rest(start(t, cmd)); len(lines) > 0 || !errors.Is(err, ErrLine) {
			t.Errorf("read %q, then %v", lines, err)
		}
	})
	t.Run("MCP-081 standard error goes to the log, bounded", func(t *testing.T) {
		t.Parallel()
		var log logged
		cmd := command(t, "chatter")
		cmd.Log, cmd.Now = log.logger(), func() time.Time { return time.Unix(0, 0) }
		if lines, err := rest(start(t, cmd)); len(lines) > 0 || err == nil {
			t.Errorf("read %q, then %v", lines, err)
		}
		if n := log.count("note"); n != noteBurst {
			t.Errorf("%d lines, want %d", n, noteBurst)
		}
		if want := fmt.Sprintf("left_out=%d", 1001-noteBurst); log.count(want) != 1 {
			t.Errorf("the log does not say %s", want)
		}
	})
}

func TestEnd(t *testing.T) {
	t.Parallel()
	t.Run("a program that ends at once", func(t *testing.T) {
		t.Parallel()
		p := start(t, command(t, "fails"))
		if _, err := p.Read(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("read: %v", err)
		}
		if err := p.Write([]byte("{}")); err == nil || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("written: %v", err)
		}
		<-p.Done()
	})
	t.Run("a program that never answers ends with its input", func(t *testing.T) {
		t.Parallel()
		cmd := command(t, "silent")
		cmd.After = never
		p := start(t, cmd)
		if err := p.Write([]byte("{}")); err != nil {
			t.Error(err)
		}
		p.Stop()
	})
	t.Run("a program that closes its output", func(t *testing.T) {
		t.Parallel()
		cmd := command(t, "mute")
		cmd.After = atOnce
		if _, err := start(t, cmd).Read(); !errors.Is(err, ErrOutput) {
			t.Errorf("read: %v", err)
		}
	})
	t.Run("a program that does not read", func(t *testing.T) {
		t.Parallel()
		address, accept := lives(t)
		cmd := command(t, "deaf", address)
		cmd.After = atOnce
		p := start(t, cmd)
		gone := accept(1)
		// More than a pipe holds.
		if err := p.Write(bytes.Repeat([]byte("1"), 4<<20)); !errors.Is(err, ErrInput) {
			t.Errorf("written: %v", err)
		}
		gone()
	})
	t.Run("a group that ignores SIGTERM is killed", func(t *testing.T) {
		t.Parallel()
		address, accept := lives(t)
		cmd := command(t, "fork", address)
		cmd.After = atOnce
		p := start(t, cmd)
		gone := accept(2)
		p.Stop()
		gone()
	})
	t.Run("what a program leaves behind is killed", func(t *testing.T) {
		t.Parallel()
		address, accept := lives(t)
		cmd := command(t, "leave", address)
		cmd.After = never
		p := start(t, cmd)
		gone := accept(1)
		if err := p.Write([]byte("{}")); err != nil {
			t.Error(err)
		}
		if lines, err := rest(p); len(lines) != 1 || !strings.Contains(err.Error(), "exit status 0") {
			t.Errorf("read %q, then %v", lines, err)
		}
		gone()
	})
}

// logged is a log in memory.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count counts the lines that have a text, as a value is written in them.
func (l *logged) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	quoted := strings.Trim(fmt.Sprintf("%q", text), `"`)
	for line := range strings.Lines(l.b.String()) {
		if _, after, ok := strings.Cut(line, " line="); ok && text == "note" {
			line = after
		}
		if strings.Contains(line, quoted) {
			n++
		}
	}
	return n
}
