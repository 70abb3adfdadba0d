//go:build linux

package faults

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// TestAcknowledgedIsSynced watches the system calls of a hub: between the
// write of a request's record and the write of its acknowledgement to the
// socket lies a sync of the file that holds the record. Killing a process
// cannot show this, for what it wrote is in the page cache.
func TestAcknowledgedIsSynced(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		lacking(t, "strace is needed to see when a hub syncs its files, and is not installed")
	}
	dir := t.TempDir()
	sender := newIdentity(t, "agent://sender.test")
	config := writeConfig(t, dir, node.Config{
		Data: filepath.Join(dir, "data"), Listen: node.Listen{HTTP: "127.0.0.1:0"}, Limits: node.Limits{SenderRate: -1}, Agents: enrolled(sender),
	})
	out := filepath.Join(dir, "calls")
	p := launch(t, strace, "-f", "-yy", "-s", "65536", "-o", out,
		"-e", "trace=openat,write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,fsync,fdatasync,sync_file_range,msync",
		program(t, "internal/testhub"), "-config", config)
	client := newClient(t)
	base := p.at.HTTP + "/agents/worker"
	to := cardID(t, client, base)

	var mu sync.Mutex
	var acks []acknowledged
	send := func(marker string, mode samvad.Mode) {
		s, err := sign(sender, base, mode, samvad.Call{To: to, Skill: "echo", Payload: []byte(`{"marker":"` + marker + `"}`), TraceID: "trace" + marker})
		if err != nil {
			t.Error(err)
			return
		}
		a, err := s.post(t.Context(), client)
		if err != nil {
			t.Error(err)
			return
		}
		k := acknowledged{marker: marker, mode: mode, sign: "trace" + marker}
		switch {
		case mode == samvad.ModeAsync && a.status == http.StatusAccepted:
			k.sign = a.task()
		case mode == samvad.ModeSync && a.status == http.StatusOK:
		default:
			t.Errorf("%s %s: %s", mode, marker, a)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		acks = append(acks, k)
	}
	for i := range 5 {
		send(fmt.Sprintf("alone%03ds", i), samvad.ModeSync)
		send(fmt.Sprintf("alone%03da", i), samvad.ModeAsync)
	}
	// Enough at once that the journal commits in groups.
	var crowd sync.WaitGroup
	for i := range 48 {
		crowd.Go(func() {
			send(fmt.Sprintf("crowd%03ds", i), samvad.ModeSync)
			if i%4 == 0 {
				send(fmt.Sprintf("crowd%03da", i), samvad.ModeAsync)
			}
		})
	}
	crowd.Wait()
	// strace passes no signal on: its child has to get it.
	stopTraced(t, p)
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	calls, err := parseTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	if want := 10 + 48 + 12; len(acks) != want {
		t.Errorf("%d of %d requests were acknowledged", len(acks), want)
	}
	for _, k := range acks {
		records, err := k.check(calls)
		if err != nil {
			t.Errorf("%s (%s): %v", k.marker, k.mode, err)
		}
		if want := 2; records < want {
			t.Errorf("%s (%s): %d records before the acknowledgement, want the request's and that of its reply or task", k.marker, k.mode, records)
		}
	}
	t.Logf("%d acknowledgements, %d system calls", len(acks), len(calls))
}

// TestTraceReader proves that the test above would see a missing sync.
func TestTraceReader(t *testing.T) {
	const (
		open  = `10 openat(AT_FDCWD</>, "/d/journal/engine/1.blk", O_RDWR) = 7</d/journal/engine/1.blk>`
		write = `10 write(7</d/journal/engine/1.blk>, "\1\0MARK\"rest", 12) = 12`
		sync  = `10 fsync(7</d/journal/engine/1.blk>) = 0`
		other = `10 fsync(8</d/journal/engine/2.blk>) = 0`
		ack   = `11 write(9<TCP:[127.0.0.1:1->127.0.0.1:2]>, "HTTP/1.1 200 OK\r\n\r\nMARK", 30) = 30`
	)
	k := acknowledged{marker: "MARK", mode: samvad.ModeSync, sign: "MARK"}
	for _, c := range []struct {
		name  string
		lines []string
		ok    bool
	}{
		{"in order", []string{open, write, sync, ack}, true},
		{"never", []string{write, ack}, false},
		{"too late", []string{write, ack, sync}, false},
		{"before the write", []string{sync, write, ack}, false},
		{"another file", []string{write, other, ack}, false},
		{"failed", []string{write, `10 fsync(7</d/journal/engine/1.blk>) = -1 EIO (Input/output error)`, ack}, false},
		{"not ended", []string{write, `10 fsync(7</d/journal/engine/1.blk> <unfinished ...>`, ack, `10 <... fsync resumed>) = 0`}, false},
		{"ended", []string{write, `10 fsync(7</d/journal/engine/1.blk> <unfinished ...>`, `12 write(3</tmp/x>, "y", 1) = 1`, `10 <... fsync resumed>) = 0`, ack}, true},
		{"begun while the write went on", []string{`10 write(7</d/journal/engine/1.blk>, "\1\0MARK", 12 <unfinished ...>`, `12 fsync(7</d/journal/engine/1.blk>) = 0`, `10 <... write resumed>) = 12`, ack}, false},
		{"opened for synchronous writes", []string{`10 openat(AT_FDCWD</>, "/d/journal/engine/1.blk", O_RDWR|O_SYNC) = 7</d/journal/engine/1.blk>`, write, ack}, true},
		{"opened anew without", []string{`10 openat(AT_FDCWD</>, "/d/journal/engine/1.blk", O_RDWR|O_SYNC) = 7</d/journal/engine/1.blk>`, open, write, ack}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls, err := parseTrace(strings.NewReader(strings.Join(c.lines, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			_, err = k.check(calls)
			if (err == nil) != c.ok {
				t.Error(err)
			}
		})
	}
}

// stopTraced ends the hub that strace watches, in order.
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

// A call is one system call. Start and end are its places in the trace: of two
// calls that went on at once neither is before the other.
type call struct {
	name       string
	path       string // of the descriptor
	args       string
	synced     bool // the descriptor was opened with O_SYNC or O_DSYNC
	failed     bool
	start, end int
}

var (
	lineForm = regexp.MustCompile(`^(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))$`)
	fileForm = regexp.MustCompile(`^(\d+)<([^>]*(?:->[^>]*)?)>`)
	failForm = regexp.MustCompile(`\) += -1 [A-Z]+ `)
	openForm = regexp.MustCompile(`= (\d+)<`)
)

// parseTrace reads what strace -f -yy writes.
func parseTrace(r io.Reader) ([]*call, error) {
	var out []*call
	open := map[string]*call{}  // by thread
	synced := map[string]bool{} // by descriptor
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
			text = m[5]
			c.args += text
			delete(open, thread)
		} else {
			c = &call{name: m[2], args: text, start: n}
			if f := fileForm.FindStringSubmatch(text); f != nil {
				c.path = f[2]
				c.synced = synced[f[1]]
			}
			out = append(out, c)
			if strings.HasSuffix(text, "<unfinished ...>") {
				c.end = 1 << 62
				open[thread] = c
				continue
			}
		}
		c.end = n
		c.failed = failForm.MatchString(text)
		if c.name == "openat" && !c.failed {
			if f := openForm.FindStringSubmatch(c.args); f != nil {
				synced[f[1]] = strings.Contains(c.args, "O_SYNC") || strings.Contains(c.args, "O_DSYNC")
			}
		}
	}
	return out, lines.Err()
}

func (c *call) writes() bool {
	switch c.name {
	case "write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg":
		return true
	}
	return false
}

func (c *call) socket() bool {
	return strings.HasPrefix(c.path, "TCP:") || strings.HasPrefix(c.path, "TCPv6:") || strings.HasPrefix(c.path, "socket:")
}

// acknowledged is a request that the hub acknowledged.
type acknowledged struct {
	marker string // in everything that is recorded of it
	mode   samvad.Mode
	sign   string // what only its acknowledgement holds
}

// check looks for the records of a request in the trace, and for a sync of
// each before the acknowledgement. It gives how many there were.
//
// A handler may go on with a task while its acknowledgement is under way; so
// of a task only what is recorded first in each file counts.
func (k acknowledged) check(calls []*call) (records int, err error) {
	var ack *call
	for _, c := range calls {
		if c.writes() && c.socket() && strings.Contains(c.args, "HTTP/1.1 20") && strings.Contains(c.args, k.sign) {
			ack = c
			break
		}
	}
	if ack == nil {
		return 0, fmt.Errorf("the trace has no acknowledgement")
	}
	first := map[string]bool{}
	for _, w := range calls {
		if !w.writes() || w.socket() || w.start > ack.start || !strings.Contains(w.path, "/journal/") || !strings.Contains(w.args, k.marker) {
			continue
		}
		if k.mode == samvad.ModeAsync && first[w.path] {
			continue
		}
		first[w.path] = true
		records++
		if !w.failed && !w.durable(calls, ack) {
			return records, fmt.Errorf("line %d writes a record to %s; the acknowledgement on line %d is not preceded by a sync of it", w.start+1, filepath.Base(w.path), ack.start+1)
		}
	}
	if records == 0 {
		return 0, fmt.Errorf("the trace has no record of it before the acknowledgement")
	}
	return records, nil
}

// durable reports whether a write was synced before another call began.
func (c *call) durable(calls []*call, before *call) bool {
	if c.synced && c.end < before.start {
		return true
	}
	for _, s := range calls {
		if (s.name == "fsync" || s.name == "fdatasync") && s.path == c.path && !s.failed && s.start > c.end && s.end < before.start {
			return true
		}
	}
	return false
}
