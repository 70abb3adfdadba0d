//go:build linux

package faults

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// TestPowerLoss watches the system calls of a hub. From the trace it builds the
// directory that a loss of power would have left at the moment of an acknowledgement:
// only synced bytes are there. The journal opens, and holds all that was acknowledged
// before. Killing a process cannot show this: its unsynced writes stay in the page
// cache.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	sender := newIdentity(t, "agent://sender.test")
	p, out := launchTraced(t, dir, node.Config{
		Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0"}, Limits: node.Limits{SenderRate: -1},
		Agents: enrolled(sender),
	})
	client := newClient(t)
	base := p.at.HTTP + "/agents/worker"
	to := cardID(t, client, base)

	var mu sync.Mutex
	var acks []*acknowledged
	send := func(marker string, mode samvad.Mode, fill int) {
		payload := `{"marker":"` + marker + `","fill":"` + noise(fill) + `"}`
		s, err := sign(sender, base, mode, samvad.Call{To: to, Skill: "echo", Payload: []byte(payload),
			TraceID: "trace" + marker})
		if err != nil {
			t.Error(err)
			return
		}
		a, err := s.post(t.Context(), client)
		if err != nil {
			t.Error(err)
			return
		}
		k := &acknowledged{nonce: s.nonce, mode: mode, sign: "trace" + marker}
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
		send(fmt.Sprintf("alone%03ds", i), samvad.ModeSync, 0)
		send(fmt.Sprintf("alone%03da", i), samvad.ModeAsync, 0)
	}
	// Enough at once that the journal commits in groups, and enough in each of three waves
	// that it copies its WAL into the file, also if it commits the wave as one group.
	for wave := range 3 {
		var crowd sync.WaitGroup
		for i := range 16 {
			crowd.Go(func() {
				send(fmt.Sprintf("crowd%d%02ds", wave, i), samvad.ModeSync, 0)
				send(fmt.Sprintf("crowd%d%02da", wave, i), samvad.ModeAsync, 160<<10)
			})
		}
		crowd.Wait()
	}
	stopTraced(t, p)
	calls := readTrace(t, out)
	if want := 10 + 96; len(acks) != want {
		t.Errorf("%d of %d requests were acknowledged", len(acks), want)
	}
	for _, k := range acks {
		if k.call = answerWith(calls, k.sign); k.call == nil {
			t.Fatalf("the trace has no acknowledgement of %s", k.sign)
		}
	}
	slices.SortFunc(acks, func(a, b *acknowledged) int { return a.call.start - b.call.start })
	checkpoints := 0
	for _, c := range calls {
		if c.syncs() && strings.HasSuffix(c.path, "/journal.db") {
			checkpoints++
		}
	}
	if checkpoints < 3 {
		t.Errorf("the journal's file was synced %d times only", checkpoints)
	}

	seed := rand.Uint64()
	t.Logf("%d acknowledgements, %d system calls, seed %d", len(acks), len(calls), seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	journalDir := filepath.Join(data, "journal")
	lost := newPowerLoss(calls)
	for n, k := range acks {
		if n%6 > 0 && n < len(acks)-1 {
			continue
		}
		lost.until(k.call.start)
		for _, c := range []struct {
			name string
			keep func() bool
		}{
			{"only synced bytes", nil},
			{"and some of the rest", func() bool { return rnd.IntN(2) == 0 }},
		} {
			for _, missing := range missingAfter(t, lost.files(t, journalDir, c.keep), acks[:n+1]) {
				t.Errorf("%s: line %d acknowledges a request; after a loss of power %s", c.name, k.call.start+1,
					missing)
			}
		}
	}

	// Without the WAL's syncs most are lost, so the test can see a loss.
	lost = newPowerLoss(calls)
	lost.leftOut = func(c *call) bool { return strings.HasSuffix(c.path, "-wal") }
	lost.until(acks[9].call.start)
	if missing := missingAfter(t, lost.files(t, journalDir, nil), acks[:10]); len(missing) == 0 {
		t.Error("nothing is missing where the WAL is never synced")
	}
}

// acknowledged is a request that the hub acknowledged.
type acknowledged struct {
	nonce string
	mode  samvad.Mode
	sign  string // text that only its acknowledgement holds
	call  *call  // the call that writes it to the socket
}

// missingAfter opens a journal and lists the acknowledged requests that it lacks.
func missingAfter(t *testing.T, dir string, acks []*acknowledged) (missing []string) {
	t.Helper()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Disk(t, dir), Node: "after"})
	if err != nil {
		return []string{fmt.Sprintf("the journal does not open: %v", err)}
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	requests := map[string]parley.ID{}
	answered := map[parley.ID]bool{}
	for r, err := range j.Records(t.Context(), 0, journal.From{}) {
		if err != nil {
			return []string{err.Error()}
		}
		switch m := r.Message; {
		case m == nil:
		case m.Kind == parley.Request:
			e, err := samvad.Decode(m.Origin.Raw)
			if err != nil {
				t.Fatal(err)
			}
			requests[e.Nonce] = m.ID
		case m.Kind.Terminal():
			answered[m.InReplyTo] = true
		}
	}
	for _, k := range acks {
		id, ok := requests[k.nonce]
		switch {
		case !ok:
			missing = append(missing, "the request "+k.sign+" is lost")
		case k.mode == samvad.ModeSync && !answered[id]:
			missing = append(missing, "the answer to "+k.sign+" is lost")
		}
	}
	return missing
}

// A powerLoss follows a trace and knows which parts of the files survive a loss of
// power: the synced bytes, under names whose directory was synced.
type powerLoss struct {
	leftOut func(*call) bool // syncs that are ignored; nil: none

	begin, end map[int]*call // by line
	line       int
	now, kept  map[string]*tracedFile // by path
	marks      map[*call]int
}

type tracedFile struct {
	synced  []byte
	pending []*call // since, in order
	dropped int     // how many of pending are already in synced
}

func newPowerLoss(calls []*call) *powerLoss {
	p := &powerLoss{begin: map[int]*call{}, end: map[int]*call{}, now: map[string]*tracedFile{},
		kept: map[string]*tracedFile{}, marks: map[*call]int{}}
	for _, c := range calls {
		if !c.failed {
			p.begin[c.start], p.end[c.end] = c, c
		}
	}
	return p
}

// until follows the trace up to a line.
func (p *powerLoss) until(line int) {
	for ; p.line < line; p.line++ {
		if c := p.begin[p.line]; c != nil && c.syncs() {
			if f := p.now[c.path]; f != nil {
				p.marks[c] = f.dropped + len(f.pending)
			}
		}
		if c := p.end[p.line]; c != nil {
			p.apply(c)
		}
	}
}

func (p *powerLoss) apply(c *call) {
	switch {
	case c.syncs():
		if p.leftOut != nil && p.leftOut(c) {
			return
		}
		if f := p.now[c.path]; f != nil {
			for f.dropped < p.marks[c] {
				f.synced = f.pending[0].change(f.synced)
				f.pending = f.pending[1:]
				f.dropped++
			}
			return
		}
		in := func(path string, _ *tracedFile) bool { return filepath.Dir(path) == c.path }
		maps.DeleteFunc(p.kept, in)
		for path, f := range p.now {
			if in(path, f) {
				p.kept[path] = f
			}
		}
	case strings.HasPrefix(c.name, "open") && strings.Contains(c.args, "O_CREAT"):
		if p.now[c.opened] == nil {
			p.now[c.opened] = &tracedFile{}
		}
	case strings.HasPrefix(c.name, "unlink"):
		delete(p.now, c.names[0])
	case strings.HasPrefix(c.name, "rename"):
		p.now[c.names[1]] = p.now[c.names[0]]
		delete(p.now, c.names[0])
	case c.name == "pwrite64" || c.name == "ftruncate":
		if f := p.now[c.path]; f != nil {
			f.pending = append(f.pending, c)
		}
	}
}

// files writes the surviving files of a directory into another. keep chooses unsynced
// parts that survive too, nil for none.
func (p *powerLoss) files(t *testing.T, dir string, keep func() bool) string {
	t.Helper()
	to := t.TempDir()
	for path, f := range p.kept {
		if filepath.Dir(path) != dir || strings.HasSuffix(path, "-shm") || filepath.Base(path) == "lock" {
			continue
		}
		b := slices.Clone(f.synced)
		for _, c := range f.pending {
			if keep != nil && keep() {
				b = c.change(b)
			}
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// holding lists the files of a directory that hold a text.
func holding(t *testing.T, dir, text string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), text) {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestPowerLossReader proves that the tests of a loss of power would see a missing
// record.
func TestPowerLossReader(t *testing.T) {
	const (
		create = `10 openat(AT_FDCWD</>, "/d/a", O_RDWR|O_CREAT, 0600) = 7</d/a>`
		names  = `10 fsync(6</d>) = 0`
		write  = `10 pwrite64(7</d/a>, "M\0\"\18\377K", 7, 2) = 7`
		sync   = `10 fdatasync(7</d/a>) = 0`
		other  = `10 fsync(8</d/b>) = 0`
		cut    = `10 ftruncate(7</d/a>, 3) = 0`
		remove = `10 unlinkat(AT_FDCWD</>, "/d/a", 0) = 0`
		want   = "\x00\x00M\x00\"\x018\xffK"
	)
	for _, c := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"in order", []string{create, names, write, sync}, want},
		{"never", []string{create, names, write}, ""},
		{"before the write", []string{create, names, sync, write}, ""},
		{"another file", []string{create, names, write, other}, ""},
		{"failed", []string{create, names, write, `10 fsync(7</d/a>) = -1 EIO (Input/output error)`}, ""},
		{"not ended", []string{create, names, write, `10 fsync(7</d/a> <unfinished ...>`}, ""},
		{"ended", []string{create, names, write, `10 fsync(7</d/a> <unfinished ...>`, `12 write(3</tmp/x>, "y", 1) = 1`,
			`10 <... fsync resumed>) = 0`}, want},
		{"begun while the write went on", []string{create, names, `10 pwrite64(7</d/a>, "MARK", 4, 0 <unfinished ...>`,
			`12 fsync(7</d/a> <unfinished ...>`, `10 <... pwrite64 resumed>) = 4`, `12 <... fsync resumed>) = 0`}, ""},
		{"a name that was not synced", []string{create, write, sync}, "no file"},
		{"cut", []string{create, names, write, sync, cut, sync}, "\x00\x00M"},
		{"cut and not synced", []string{create, names, write, sync, cut}, want},
		{"removed", []string{create, names, write, sync, remove, names}, "no file"},
		{"removed and not synced", []string{create, names, write, sync, remove}, want},
		{"renamed", []string{`10 openat(AT_FDCWD</>, "/d/z", O_RDWR|O_CREAT, 0600) = 7</d/z>`, names,
			`10 pwrite64(7</d/z>, "MARK", 4, 0) = 4`, `10 fsync(7</d/z>) = 0`,
			`10 renameat(AT_FDCWD</>, "/d/z", AT_FDCWD</>, "/d/a") = 0`, names}, "MARK"},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls, err := parseTrace(strings.NewReader(strings.Join(c.lines, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			lost := newPowerLoss(calls)
			lost.until(len(c.lines))
			got := "no file"
			if f := lost.kept["/d/a"]; f != nil {
				got = string(f.synced)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
