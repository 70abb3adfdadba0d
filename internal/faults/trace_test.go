//go:build linux

package faults

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-hub/parley/node"
)

// launchTraced starts a hub whose system calls on files and sockets go to a
// file.
func launchTraced(t *testing.T, dir string, config node.Config) (p *process, trace string) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		lacking(t, "strace is needed to see when a hub syncs its files, and is not installed")
	}
	trace = filepath.Join(dir, "calls")
	return launch(t, strace, "-f", "-yy", "-s", "65536", "-o", trace,
		"-e", "trace=open,openat,write,pwrite64,sendto,sendmsg,"+
			"fsync,fdatasync,ftruncate,fallocate,pwritev,pwritev2,rename,renameat,renameat2,unlink,unlinkat",
		program(t, "internal/testhub"), "-config", writeConfig(t, dir, config)), trace
}

// stopTraced ends the hub under strace, in order. strace passes no signal on, so its
// child gets it.
func stopTraced(t *testing.T, p *process) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.cmd.Process.Pid, p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		t.Fatalf("children of strace %q: %v", b, err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if p.err != nil {
		t.Fatalf("the hub ended with %v\n%s", p.err, p.errs)
	}
}

// readTrace reads the trace of a hub that has ended.
func readTrace(t *testing.T, path string) []*call {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	calls, err := parseTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// A call is one system call. Start and end are its lines in the trace: two calls that
// overlap have no order.
type call struct {
	name       string
	path       string   // of the descriptor
	opened     string   // path of the descriptor that it returned
	names      []string // its strings: paths, or the data
	args       string
	at         int64 // offset of a write, or new size of a truncated file
	failed     bool
	start, end int
}

var (
	lineForm   = regexp.MustCompile(`^(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))$`)
	fileForm   = regexp.MustCompile(`^(\d+)<([^>]*(?:->[^>]*)?)>`)
	failForm   = regexp.MustCompile(`\) += -1 [A-Z]+ `)
	openForm   = regexp.MustCompile(`= \d+<([^>]*)>$`)
	stringForm = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	lastForm   = regexp.MustCompile(`, (\d+)\) += -?\d+`)
)

// parseTrace reads the output of strace -f -yy.
func parseTrace(r io.Reader) ([]*call, error) {
	var out []*call
	open := map[string]*call{} // by thread
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 0; lines.Scan(); n++ {
		m := lineForm.FindStringSubmatch(lines.Text())
		if m == nil {
			continue // signals and ends of threads
		}
		thread, text := m[1], m[3]
		c := open[thread]
		if m[4] != "" {
			if c == nil || c.name != m[4] {
				return nil, fmt.Errorf("line %d resumes a %s that was not begun", n+1, m[4])
			}
			c.args = strings.TrimSuffix(c.args, " <unfinished ...>") + m[5]
			delete(open, thread)
		} else {
			c = &call{name: m[2], args: text, start: n}
			if f := fileForm.FindStringSubmatch(text); f != nil {
				c.path = f[2]
			}
			out = append(out, c)
			if strings.HasSuffix(text, "<unfinished ...>") {
				c.end = 1 << 62
				open[thread] = c
				continue
			}
		}
		c.end = n
		if err := c.parse(); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return out, lines.Err()
}

// parse reads the arguments of a call that has ended.
func (c *call) parse() error {
	if c.failed = failForm.MatchString(c.args); c.failed || c.socket() {
		return nil
	}
	switch c.name {
	case "open", "openat":
		if f := openForm.FindStringSubmatch(c.args); f != nil {
			c.opened = f[1]
		}
	case "pwrite64", "ftruncate":
		f := lastForm.FindStringSubmatch(c.args)
		if f == nil {
			return fmt.Errorf("%s without an offset or size", c.name)
		}
		c.at, _ = strconv.ParseInt(f[1], 10, 64) // the pattern matched digits
	}
	for _, s := range stringForm.FindAllStringSubmatch(c.args, -1) {
		c.names = append(c.names, unescape(s[1]))
	}
	if strings.Contains(c.path, "/journal/") {
		switch c.name {
		case "fallocate", "pwritev", "pwritev2":
			return fmt.Errorf("%s of %s, which powerLoss does not know", c.name, c.path)
		case "pwrite64":
			if len(c.names) != 1 || !strings.HasSuffix(c.args, fmt.Sprintf(" = %d", len(c.names[0]))) {
				return fmt.Errorf("a write to %s is not in the trace as a whole", c.path)
			}
		}
	}
	return nil
}

// unescape undoes strace's escapes.
func unescape(s string) string {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if n := strings.IndexByte("tnvfr", s[i]); n >= 0 {
			out = append(out, "\t\n\v\f\r"[n])
		} else if s[i] < '0' || s[i] > '7' {
			out = append(out, s[i])
		} else {
			b := s[i] - '0'
			for d := 0; d < 2 && i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '7'; d++ {
				i++
				b = b<<3 + (s[i] - '0')
			}
			out = append(out, b)
		}
	}
	return string(out)
}

// change applies a write or ftruncate to a file's bytes.
func (c *call) change(b []byte) []byte {
	need := c.at
	if c.name == "pwrite64" {
		need = max(int64(len(b)), c.at+int64(len(c.names[0])))
	}
	if grow := int(need) - len(b); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	b = b[:need]
	if c.name == "pwrite64" {
		copy(b[c.at:], c.names[0])
	}
	return b
}

func (c *call) syncs() bool { return c.name == "fsync" || c.name == "fdatasync" }

func (c *call) socket() bool {
	return strings.HasPrefix(c.path, "TCP:") || strings.HasPrefix(c.path, "TCPv6:") ||
		strings.HasPrefix(c.path, "socket:")
}

// answerWith finds the call that gives an HTTP answer with a text to a socket.
func answerWith(calls []*call, text string) *call {
	for _, c := range calls {
		if c.socket() && strings.Contains(c.args, "HTTP/1.1 20") && strings.Contains(c.args, text) {
			return c
		}
	}
	return nil
}
