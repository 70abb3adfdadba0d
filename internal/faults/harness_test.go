package faults

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

const module = "github.com/parley-hub/parley"

// binaries is where the programs under test are built.
var binaries string

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		if err := serveStdio(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(fillEnv); dir != "" {
		fmt.Fprintln(os.Stderr, fill(dir))
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "parley-faults-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	// Parallel tests wait for other processes most of their time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// program builds one of the module's commands, once.
func program(t *testing.T, pkg string) string {
	t.Helper()
	build := buildHub
	if pkg == "cmd/parley" {
		build = buildParley
	}
	path, err := build()
	if err != nil {
		t.Fatalf("build %s: %v", pkg, err)
	}
	return path
}

var (
	buildParley = sync.OnceValues(func() (string, error) { return build("cmd/parley") })
	buildHub    = sync.OnceValues(func() (string, error) { return build("internal/testhub") })
)

func build(pkg string) (string, error) {
	path := filepath.Join(binaries, filepath.Base(pkg))
	out, err := exec.Command("go", "build", "-o", path, module+"/"+pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
}

// writeConfig writes a configuration file beside the data directory.
func writeConfig(t *testing.T, dir string, c node.Config) string {
	t.Helper()
	b, err := toml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "parley.toml")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fixedPort finds a port for a process that is started again and again.
func fixedPort(t *testing.T) int {
	t.Helper()
	port, err := fixedport.Take()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A process is a hub that the test started.
type process struct {
	cmd    *exec.Cmd
	at     node.Addresses
	errs   *tail
	exited chan struct{}
	err    error // of Wait, once exited is closed
}

// readyWithin is how long a hub may take to start on a busy machine.
const readyWithin = 60 * time.Second

// launch starts a hub and waits for its line of JSON.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	p, err := tryLaunch(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tryLaunch(t *testing.T, args ...string) (*process, error) {
	t.Helper()
	p := &process{cmd: exec.Command(args[0], args[1:]...), errs: &tail{}, exited: make(chan struct{})}
	p.cmd.Stderr = p.errs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(p.kill)
	line := make(chan []byte, 1)
	go func() {
		r := bufio.NewReader(out)
		b, _ := r.ReadBytes('\n') // a cut line fails to decode below
		line <- b
		_, _ = io.Copy(io.Discard, r)
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	timer := time.NewTimer(readyWithin)
	defer timer.Stop()
	select {
	case b := <-line:
		if err := json.Unmarshal(b, &p.at); err != nil {
			p.kill()
			return nil, fmt.Errorf("%s did not get ready: %v\n%s", filepath.Base(args[0]), p.err, p.errs)
		}
		return p, nil
	case <-timer.C:
		p.kill()
		return nil, fmt.Errorf("%s was not ready within %s\n%s", filepath.Base(args[0]), readyWithin, p.errs)
	}
}

// kill ends the process as a loss of power would, but for the page cache.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended already
	<-p.exited
}

// stop asks the process to end in order.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("the hub had ended: %v\n%s", err, p.errs)
	}
	timer := time.NewTimer(readyWithin)
	defer timer.Stop()
	select {
	case <-p.exited:
		if p.err != nil {
			t.Fatalf("the hub ended with %v\n%s", p.err, p.errs)
		}
	case <-timer.C:
		t.Fatalf("the hub did not end\n%s", p.errs)
	}
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// status reads a line of the process's status; 0 where the system has none.
func (p *process) status(t *testing.T, line string) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if errors.Is(err, fs.ErrNotExist) {
		t.Log("this system does not tell the memory of a process")
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(text, line)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n << 10
	}
	t.Fatalf("no %s in %s", line, b)
	return 0
}

// tail keeps the end of what a process writes.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.b = append(w.b, p...); len(w.b) > 64<<10 {
		w.b = append([]byte(nil), w.b[len(w.b)-32<<10:]...)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}

// newIdentity makes the identity of an agent.
func newIdentity(t testing.TB, id string) *samvad.Identity {
	t.Helper()
	i, err := samvad.NewIdentity(id, "key-current")
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// enrolled is the configuration of agents that are known by key.
func enrolled(ids ...*samvad.Identity) map[string]node.Agent {
	out := map[string]node.Agent{}
	for n, id := range ids {
		out[fmt.Sprintf("sender-%d", n)] = node.Agent{SAMVAD: &node.SAMVADAgent{ID: id.ID(),
			Key: base64.StdEncoding.EncodeToString(id.Public())}}
	}
	return out
}

// A shot is one signed request, which can be sent any number of times.
type shot struct {
	from   samvad.Signer
	mode   samvad.Mode
	base   string // of the agent
	path   string
	header http.Header
	body   []byte
	nonce  string
	trace  string
}

var endpoints = map[samvad.Mode]string{samvad.ModeSync: "/agent/message", samvad.ModeAsync: "/agent/task",
	samvad.ModeStream: "/agent/stream"}

// sign makes a request. Base is the base URL of the hosted agent to.
func sign(from samvad.Signer, base string, mode samvad.Mode, call samvad.Call) (*shot, error) {
	e, body, err := (&samvad.Client{Identity: from}).Envelope(call, mode)
	if err != nil {
		return nil, err
	}
	s := &shot{from: from, mode: mode, base: base, body: body, nonce: e.Nonce, trace: e.TraceID,
		header: http.Header{"Content-Type": {"application/json"}}}
	return s, s.seal(time.Now())
}

// seal signs the body as it stands.
func (s *shot) seal(at time.Time) error {
	path, err := pathOf(s.base)
	if err != nil {
		return err
	}
	s.path = path + endpoints[s.mode]
	sig, err := samvad.Sign(s.from, http.MethodPost, s.path, s.body, at)
	if err != nil {
		return err
	}
	sig.Set(s.header)
	return nil
}

func pathOf(base string) (string, error) {
	r, err := http.NewRequest(http.MethodGet, base, nil)
	if err != nil {
		return "", err
	}
	return r.URL.Path, nil
}

// An answer to a shot.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// code is the error code in the answer's envelope, "" where it has none.
func (a answer) code() samvad.Code {
	var w struct {
		Error *struct{ Code samvad.Code }
	}
	if json.Unmarshal(a.body, &w) != nil || w.Error == nil {
		return ""
	}
	return w.Error.Code
}

func (a answer) task() string {
	var w struct{ TaskID string }
	if json.Unmarshal(a.body, &w) != nil {
		return ""
	}
	return w.TaskID
}

func (a answer) String() string { return fmt.Sprintf("HTTP %d %s", a.status, bytes.TrimSpace(a.body)) }

// post sends a shot and reads the whole answer.
func (s *shot) post(ctx context.Context, c *http.Client) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+endpoints[s.mode], bytes.NewReader(s.body))
	if err != nil {
		return answer{}, err
	}
	r.Header = s.header.Clone()
	return do(c, r)
}

func do(c *http.Client, r *http.Request) (answer, error) {
	resp, err := c.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return answer{resp.StatusCode, resp.Header, b}, err
}

// newClient makes an HTTP client of its own, closed with the test.
func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 40 * time.Second}
}

// cardID asks an agent for its identity.
func cardID(t testing.TB, c *http.Client, base string) string {
	t.Helper()
	card, err := (&samvad.Client{HTTP: c}).Card(t.Context(), base)
	if err != nil {
		t.Fatalf("the card of %s: %v", base, err)
	}
	return card.ID
}

// taskState looks at a task.
func taskState(ctx context.Context, c *http.Client, base, id string) (status string, code samvad.Code, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/agent/task/"+id, nil)
	if err != nil {
		return "", "", err
	}
	a, err := do(c, r)
	if err != nil {
		return "", "", err
	}
	var w struct {
		Status string
		Error  struct{ Code samvad.Code }
	}
	if err := json.Unmarshal(a.body, &w); err != nil || a.status != http.StatusOK {
		return "", "", fmt.Errorf("task %s: %s", id, a)
	}
	return w.Status, w.Error.Code, nil
}

// eventually repeats ask until it reports true.
func eventually(ctx context.Context, within time.Duration, ask func() (bool, error)) error {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := ask()
		if ok {
			return nil
		}
		select {
		case <-deadline.C:
			return errors.Join(fmt.Errorf("not within %s", within), err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// treeSum is a digest of a directory: names, kinds, modes and contents. Lock files are
// left out: a refused hub may have tried to lock one.
func treeSum(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if e.Name() == "lock" || strings.HasSuffix(e.Name(), ".lock") {
			return nil
		}
		line := fmt.Sprintf("%s %s", name, info.Mode())
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			line += " " + hex.EncodeToString(sum[:])
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// much is how much a test does. `go test ./...` does the least; with
// PARLEY_FAULTS=long, as .ci/run sets it, a test takes up to half a minute; with
// PARLEY_FAULTS=longest a single test, run by its name, may take many minutes.
func much(t *testing.T, quick, long, longest int) int {
	t.Helper()
	switch form := os.Getenv("PARLEY_FAULTS"); form {
	case "":
		return quick
	case "long":
		return long
	case "longest":
		return longest
	default:
		t.Fatalf("PARLEY_FAULTS=%q: want \"long\", \"longest\", or nothing for the quick form", form)
		return 0
	}
}

// inCI reports whether a missing tool is a failure.
func inCI() bool { return os.Getenv("CI") == "true" }

// lacking skips a test whose tools the machine lacks, or fails it in CI.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if inCI() {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// noise is text of a size that the journal cannot compress.
func noise(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return base64.StdEncoding.EncodeToString(b)[:size]
}
