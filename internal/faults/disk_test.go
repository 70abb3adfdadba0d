package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// TestDiskFillsToTheWatermark takes the space that the journal keeps free: senders get
// an error, and the hub recovers by itself when there is space again.
func TestDiskFillsToTheWatermark(t *testing.T) {
	d := newDisk(t, "") // the default watermark: a tenth of a small file system
	d.expect(t, "before", http.StatusOK)
	filler := d.fill(t, 2<<20)
	for range 3 {
		d.expect(t, "full", http.StatusInternalServerError)
	}
	d.expectTask(t, "full", http.StatusInternalServerError)
	d.wantNotReady(t, "no space left")
	if d.status(t) != http.StatusOK {
		t.Error("the card is not served while the disk is full")
	}
	d.empty(t, filler)
	d.recovers(t)
	d.wantReady(t)
	d.verify(t)
}

// TestDiskFillsUnderTheStore makes the store's own writes fail: none of them is
// recorded, and the hub recovers by itself when there is space.
func TestDiskFillsUnderTheStore(t *testing.T) {
	d := newDisk(t, "1")
	d.expect(t, "before", http.StatusOK)
	filler := d.fill(t, 300<<10)
	refused := 0
	for i := range 10 {
		// One record fits, the next only in part.
		if a := d.send(t, d.shot(t, fmt.Sprintf("full-%d", i), samvad.ModeSync, 200<<10)); a.status != http.StatusOK {
			refused++
			if a.status != http.StatusInternalServerError || a.code() != samvad.CodeAgentUnavailable {
				t.Fatalf("on a full disk: %s", a)
			}
			if refused == 3 {
				break
			}
		}
	}
	if refused < 3 {
		t.Errorf("a disk without any space left refused %d requests", refused)
	}
	if !strings.Contains(d.process.errs.String(), "database or disk is full") {
		t.Errorf("no write failed; the hub said:\n%s", d.process.errs)
	}
	d.empty(t, filler)
	d.recovers(t)
	d.verify(t)
}

// TestDiskFillsUnderLoad lets several senders at once fill the disk.
func TestDiskFillsUnderLoad(t *testing.T) {
	d := newDisk(t, "")
	filler := d.fill(t, 12<<20)
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			for k := range 400 {
				s := d.shot(t, fmt.Sprintf("load-%d-%d", i, k), samvad.ModeSync, 24<<10)
				a, err := s.post(t.Context(), d.client)
				switch {
				case err != nil:
					t.Errorf("the hub went away: %v", err)
					return
				case a.status == http.StatusOK:
					d.note(s)
				case a.code() == samvad.CodeAgentUnavailable && a.status == http.StatusInternalServerError:
					return // the disk is full
				default:
					t.Errorf("on a disk that fills: %s", a)
					return
				}
			}
			t.Error("the disk did not fill")
		})
	}
	workers.Wait()
	d.empty(t, filler)
	d.recovers(t)
	d.verify(t)
}

// TestDiskFillsDuringAnAttempt takes the space while an agent elsewhere, which does not
// deduplicate, works on a task: its answer cannot be recorded. Once there is space, the
// task must end without a restart and without a second call.
func TestDiskFillsDuringAnAttempt(t *testing.T) {
	// Half of the space kept free is for records that end open work.
	t.Run("to the end", func(t *testing.T) { fillsDuringAnAttempt(t, 0) })
	t.Run("into the reserve", func(t *testing.T) { fillsDuringAnAttempt(t, 5000<<10) })
}

func fillsDuringAnAttempt(t *testing.T, left uint64) {
	r := startRemote(t, nil)
	d := newDisk(t, "", r)
	base := d.process.at.HTTP + "/agents/remote"
	to := cardID(t, d.client, base)
	r.trust(t, d.client, "agent://"+strings.TrimPrefix(d.process.at.HTTP, "http://"), base)
	filler := make(chan string, 1)
	r.before.Store(func() { filler <- d.fill(t, left) })
	s, err := sign(d.sender, base, samvad.ModeAsync, samvad.Call{To: to, Skill: "echo", Payload: []byte(`{"n":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.post(t.Context(), d.client)
	if err != nil || a.status != http.StatusAccepted {
		t.Fatal(a, err)
	}
	d.note(s)
	full := <-filler
	r.before.Store(func() {})
	d.expect(t, "full", http.StatusInternalServerError)
	d.empty(t, full)
	d.recovers(t)
	var status string
	err = eventually(t.Context(), 30*time.Second, func() (ok bool, err error) {
		status, _, err = taskState(t.Context(), d.client, base, a.task())
		return status == "done" || status == "failed", err
	})
	if err != nil {
		t.Errorf("the task is %q: %v; the hub said:\n%s", status, err, d.process.errs)
	}
	for id, n := range r.seen() {
		if n != 1 {
			t.Errorf("the agent got message %s %d times", id, n)
		}
	}
	d.verify(t)
}

// TestTaskStateIsKeptLater takes the space between the record of a task's answer and
// the state that its sender polls.
func TestTaskStateIsKeptLater(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	var told tail
	sender := newIdentity(t, "agent://sender.test")
	n, err := node.Open(t.Context(), node.Config{Data: filepath.Join(t.TempDir(), "data"),
		Listen: node.Listen{HTTP: "127.0.0.1:0"},
		Log:    slog.New(slog.NewTextHandler(&told, nil)), Agents: enrolled(sender),
		FreeSpace: func(string) (uint64, error) { return free.Load(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	accepted := make(chan struct{})
	err = n.Handle(parley.Agent{Name: "worker", Exposed: parley.Everywhere},
		parley.RawSkill("echo", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			<-accepted
			return r.Reply(m.Parts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Hub().Journal().Watch(func(r *journal.Record) {
		if r.Message != nil && r.Message.Kind == parley.Response {
			free.Store(0)
		}
	})()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := newClient(t)
	base := n.Addresses().HTTP + "/agents/worker"
	s, err := sign(sender, base, samvad.ModeAsync, samvad.Call{To: cardID(t, c, base),
		Skill: "echo", Payload: []byte(`{"n":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.post(t.Context(), c)
	close(accepted)
	if err != nil || a.status != http.StatusAccepted {
		t.Fatal(a, err)
	}
	err = eventually(t.Context(), 20*time.Second, func() (bool, error) {
		return strings.Contains(told.String(), "cannot keep the outcome of a task"), nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &told)
	}
	free.Store(1 << 40)
	var status string
	err = eventually(t.Context(), 20*time.Second, func() (ok bool, err error) {
		status, _, err = taskState(t.Context(), c, base, a.task())
		return status == "done", err
	})
	if err != nil {
		t.Errorf("the task is %q: %v", status, err)
	}
}

// disk is a hub on a small file system of its own.
type disk struct {
	dir, data, config string
	process           *process
	client            *http.Client
	sender            *samvad.Identity
	base, to          string

	mu    sync.Mutex
	acked map[string]bool // nonces
}

func newDisk(t *testing.T, minFree string, remotes ...*remote) *disk {
	t.Helper()
	return newDiskIn(t, smallFS(t), minFree, remotes...)
}

func newDiskIn(t *testing.T, dir, minFree string, remotes ...*remote) *disk {
	t.Helper()
	d := &disk{dir: dir, client: newClient(t), sender: newIdentity(t, "agent://sender.test"), acked: map[string]bool{}}
	d.data = filepath.Join(d.dir, "data")
	c := node.Config{Data: d.data, Name: "hub-under-test", Listen: node.Listen{HTTP: fmt.Sprintf("127.0.0.1:%d",
		fixedPort(t)), Admin: "127.0.0.1:0"},
		Limits: node.Limits{SenderRate: -1}, Network: node.Network{Allow: []string{"loopback"}},
		Agents: enrolled(d.sender)}
	c.Engine.MinFree = minFree
	for _, r := range remotes {
		c.Agents["remote"] = r.agent()
	}
	d.config = writeConfig(t, t.TempDir(), c)
	d.start(t)
	return d
}

func (d *disk) start(t *testing.T) {
	t.Helper()
	// With GOGC, its size shows what it holds, not the garbage.
	d.process = launch(t, "env", "GOGC=20", program(t, "internal/testhub"), "-config", d.config)
	d.base = d.process.at.HTTP + "/agents/worker"
	d.to = cardID(t, d.client, d.base)
}

// ready returns nil if the hub says that it accepts messages, else its error.
func (d *disk) ready(t *testing.T) error {
	t.Helper()
	at, err := node.ReadAnnouncement(d.data)
	if err != nil {
		t.Fatal(err)
	}
	return (&admin.Client{Base: d.process.at.Admin, Token: at.Token, HTTP: d.client}).Ready(t.Context())
}

func (d *disk) wantReady(t *testing.T) {
	t.Helper()
	if err := d.ready(t); err != nil {
		t.Error(err)
	}
}

func (d *disk) wantNotReady(t *testing.T, why string) {
	t.Helper()
	if err := d.ready(t); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("is it ready? %v; want the reason %q", err, why)
	}
}

func (d *disk) shot(t *testing.T, n string, mode samvad.Mode, size int) *shot {
	t.Helper()
	s, err := sign(d.sender, d.base, mode, samvad.Call{To: d.to,
		Skill: "echo", Payload: []byte(`{"n":"` + n + `","fill":"` + noise(size) + `"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (d *disk) note(s *shot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.acked[s.nonce] = true
}

func (d *disk) ask(t *testing.T, n string, mode samvad.Mode) answer {
	t.Helper()
	return d.send(t, d.shot(t, n, mode, 4<<10))
}

func (d *disk) send(t *testing.T, s *shot) answer {
	t.Helper()
	a, err := s.post(t.Context(), d.client)
	if err != nil {
		t.Fatalf("%v; the hub said:\n%s", err, d.process.errs)
	}
	if a.status == http.StatusOK || a.status == http.StatusAccepted {
		d.note(s)
	}
	return a
}

// expect sends a request and wants a status; a refusal must ask the sender to come
// back, with its envelope and reference.
func (d *disk) expect(t *testing.T, n string, status int) {
	t.Helper()
	d.want(t, d.ask(t, n, samvad.ModeSync), status)
}

func (d *disk) expectTask(t *testing.T, n string, status int) {
	t.Helper()
	d.want(t, d.ask(t, n, samvad.ModeAsync), status)
}

func (d *disk) want(t *testing.T, a answer, status int) {
	t.Helper()
	switch {
	case a.status != status:
		t.Errorf("want HTTP %d: %s", status, a)
	case status >= 400 && (a.code() != samvad.CodeAgentUnavailable || a.header.Get("Parley-Ref") == "" ||
		!strings.Contains(string(a.body), "no space left")):
		t.Errorf("the sender is not told that there is no space: %s, Parley-Ref %q", a, a.header.Get("Parley-Ref"))
	}
}

func (d *disk) status(t *testing.T) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.base+"/.well-known/agent.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := do(d.client, r)
	if err != nil {
		t.Fatal(err)
	}
	return a.status
}

// fill writes until no more than left bytes are free.
func (d *disk) fill(t *testing.T, left uint64) (path string) {
	t.Helper()
	path = filepath.Join(d.dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for {
		free, err := freeBytes(d.dir)
		if err != nil {
			t.Fatal(err)
		}
		if free <= left {
			return path
		}
		if _, err := f.Write(block[:min(uint64(len(block)), free-left)]); err != nil {
			if left == 0 {
				return path
			}
			t.Fatal(err)
		}
	}
}

func (d *disk) empty(t *testing.T, filler string) {
	t.Helper()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
}

// recovers waits until the same process answers again.
func (d *disk) recovers(t *testing.T) {
	t.Helper()
	start := time.Now()
	n := 0
	err := eventually(t.Context(), 30*time.Second, func() (bool, error) {
		n++
		a := d.ask(t, fmt.Sprintf("again-%d", n), samvad.ModeSync)
		if a.status != http.StatusOK {
			return false, errors.New(a.String())
		}
		return true, nil
	})
	if err != nil {
		t.Fatalf("the hub does not go on after there was space again: %v; it said:\n%s", err, d.process.errs)
	}
	if !d.process.alive() {
		t.Fatal("the process ended")
	}
	d.expectTask(t, "again", http.StatusAccepted)
	t.Logf("going on after %s", time.Since(start).Round(10*time.Millisecond))
}

// verify kills the hub and looks for the acknowledged requests.
func (d *disk) verify(t *testing.T) {
	t.Helper()
	d.process.kill()
	j, err := journal.Open(t.Context(), journal.Config{Store: testjournal.Disk(t, filepath.Join(d.data, "journal")),
		Node: "hub-under-test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	found := map[string]int{}
	for r, err := range j.Records(t.Context(), 0, journal.From{}) {
		if err != nil {
			t.Fatal(err)
		}
		if m := r.Message; m != nil && m.Kind == parley.Request {
			e, err := samvad.Decode(m.Origin.Raw)
			if err != nil {
				t.Fatal(err)
			}
			found[e.Nonce]++
		}
	}
	for nonce := range d.acked {
		if found[nonce] != 1 {
			t.Errorf("%s was acknowledged and is recorded %d times", nonce, found[nonce])
		}
	}
	t.Logf("%d acknowledged, %d recorded", len(d.acked), len(found))
}

// TestRefusesToOpen opens directories that the hub must not open: each is refused with
// an error that says why, and left unchanged.
func TestRefusesToOpen(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(other, []byte("fedcba9876543210fedcba9876543210"), 0o600); err != nil {
		t.Fatal(err)
	}
	edit := func(t *testing.T, path string, change func([]byte) []byte) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, change(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		key    string // of the hub that made the directory
		damage func(t *testing.T, data string)
		open   func(c *node.Config)
		want   error
		text   string
	}{
		{name: "the end cut off", want: journal.ErrCorrupt, text: "parley journal salvage",
			damage: func(t *testing.T, data string) {
				edit(t, journalFile(data), func(b []byte) []byte { return b[:len(b)/2] })
			}},
		{name: "the header damaged", want: journal.ErrCorrupt,
			text: "parley journal salvage", damage: func(t *testing.T, data string) {
				edit(t, journalFile(data), func(b []byte) []byte { b[3] ^= 4; return b })
			}},
		{name: "a later format", want: journal.ErrFormat, text: "it is 99", damage: func(t *testing.T, data string) {
			edit(t, journalFile(data), func(b []byte) []byte { b[63] = 99; return b })
		}},
		{name: "an older release", want: journal.ErrFormat, text: "parley restore",
			damage: func(t *testing.T, data string) {
				if err := os.WriteFile(filepath.Join(data, "journal", "journal.json"), []byte(`{"format": 1}`),
					0o600); err != nil {
					t.Fatal(err)
				}
			}},
		{name: "a foreign directory", want: journal.ErrForeign,
			text: "figures", damage: func(t *testing.T, data string) {
				if err := os.RemoveAll(data); err != nil {
					t.Fatal(err)
				}
				if err := os.MkdirAll(filepath.Join(data, "figures"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(data, "thesis.tex"), []byte("irreplaceable"), 0o644); err != nil {
					t.Fatal(err)
				}
			}},
		{name: "a foreign directory under journal", want: journal.ErrForeign,
			text: "holds", damage: func(t *testing.T, data string) {
				if err := os.RemoveAll(filepath.Join(data, "journal")); err != nil {
					t.Fatal(err)
				}
				if err := os.MkdirAll(filepath.Join(data, "journal"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(data, "journal", "diary.txt"), []byte("dear diary"),
					0o644); err != nil {
					t.Fatal(err)
				}
			}},
		{name: "another key", key: key, want: journal.ErrKey,
			text: "another key", open: func(c *node.Config) { c.Engine.KeyFile = other }},
		{name: "no key", key: key, want: journal.ErrKey, text: "encrypted",
			open: func(c *node.Config) { c.Engine.KeyFile = "" }},
		{name: "a key for what is not encrypted", want: journal.ErrKey,
			text: "not encrypted", open: func(c *node.Config) { c.Engine.KeyFile = key }},
		{name: "another number of partitions", want: journal.ErrInvalid,
			text: "partitions", open: func(c *node.Config) { c.Engine.Partitions = 4 }},
		{name: "a key file that others can read", key: key, text: "chmod 600", open: func(c *node.Config) {
			open := filepath.Join(filepath.Dir(key), "open")
			if err := os.WriteFile(open, []byte("0123456789abcdef0123456789abcdef"), 0o644); err != nil {
				t.Fatal(err)
			}
			c.Engine.KeyFile = open
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := node.Config{Data: filepath.Join(t.TempDir(), "data")}
			config.Engine.KeyFile = c.key
			useHub(t, config, 20)
			if c.damage != nil {
				c.damage(t, config.Data)
			}
			if c.open != nil {
				c.open(&config)
			}
			before := treeSum(t, config.Data)
			n, err := node.Open(t.Context(), config)
			if err == nil {
				n.Close(t.Context())
				t.Fatal("it was opened")
			}
			if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("want %v and %q: %v", c.want, c.text, err)
			}
			if after := treeSum(t, config.Data); after != before {
				t.Errorf("the directory was changed:\n%s", difference(before, after))
			}
		})
	}
}

// TestSecondHub starts a second hub on a directory that is in use.
func TestSecondHub(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	config := writeConfig(t, dir, node.Config{Data: data, Listen: node.Listen{HTTP: "127.0.0.1:0"}})
	first := launch(t, program(t, "internal/testhub"), "-config", config)
	before := treeSum(t, data)
	if n, err := node.Open(t.Context(), node.Config{Data: data}); err == nil {
		n.Close(t.Context())
		t.Error("a second hub was opened in another process")
	} else if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(first.cmd.Process.Pid)) {
		t.Errorf("want %v and the other's process id: %v", journal.ErrLocked, err)
	}
	second, err := tryLaunch(t, program(t, "internal/testhub"), "-config", config)
	if err == nil {
		second.kill()
		t.Fatal("a second process was started")
	}
	if !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
	if after := treeSum(t, data); after != before {
		t.Errorf("the directory was changed:\n%s", difference(before, after))
	}
	if !first.alive() {
		t.Fatal("the first hub ended")
	}
	first.stop(t)
	// Now the directory is free.
	n, err := node.Open(t.Context(), node.Config{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDamagedKeyring opens a hub whose keys are damaged or sealed: it refuses, makes no
// new keys, and leaves the journal intact.
func TestDamagedKeyring(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		made   []byte // the passphrase with which the keyring was made
		opened []byte
		damage func([]byte) []byte
		want   error
	}{
		{"damaged", nil, nil, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, keyring.ErrCorrupt},
		{"cut off", nil, nil, func(b []byte) []byte { return b[:len(b)/2] }, keyring.ErrCorrupt},
		{"another passphrase", []byte("correct horse"), []byte("battery staple"), nil, keyring.ErrWrongKey},
		{"no passphrase", []byte("correct horse"), nil, nil, keyring.ErrEncrypted},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := node.Config{Data: filepath.Join(t.TempDir(), "data"), Passphrase: c.made, PassphraseWork: 4}
			useHub(t, config, 3)
			keys := filepath.Join(config.Data, "keys")
			saved := map[string][]byte{}
			list, err := os.ReadDir(keys)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				b, err := os.ReadFile(filepath.Join(keys, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				saved[e.Name()] = append([]byte(nil), b...)
				if c.damage != nil && len(b) > 64 {
					if err := os.WriteFile(filepath.Join(keys, e.Name()), c.damage(b), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			before := treeSum(t, keys)
			config.Passphrase = c.opened
			n, err := node.Open(t.Context(), config)
			if err == nil {
				n.Close(t.Context())
				t.Fatal("it was opened")
			}
			if !errors.Is(err, c.want) {
				t.Errorf("want %v: %v", c.want, err)
			}
			if after := treeSum(t, keys); after != before {
				t.Errorf("the keys were changed:\n%s", difference(before, after))
			}
			for name, b := range saved {
				if err := os.WriteFile(filepath.Join(keys, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config.Passphrase = c.made
			useHub(t, config, 3)
		})
	}
}

// useHub opens a hub, records n messages, and closes it in order.
func useHub(t *testing.T, config node.Config, n int) {
	t.Helper()
	h, err := node.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		id, err := parley.NewID(time.Now(), strings.NewReader(fmt.Sprintf("%032d", i)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.Hub().Journal().Append(t.Context(), journal.Entry{Scope: "test", Message: &parley.Message{
			ID: id, Kind: parley.Notice, From: "a", To: "b", Conversation: id,
			Parts: []parley.Part{parley.Text(strings.Repeat("text ", 20))}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func journalFile(data string) string { return filepath.Join(data, "journal", "journal.db") }

// TestFlippedBits flips one bit of a journal in random places: each time the hub
// starts, or refuses with an error that names the commands that help.
func TestFlippedBits(t *testing.T) {
	const places = 20
	config := node.Config{Data: filepath.Join(t.TempDir(), "data")}
	useHub(t, config, 200)
	whole, err := os.ReadFile(journalFile(config.Data))
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	if s := os.Getenv("PARLEY_CRASH_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	started := 0
	for range places {
		at, bit := rnd.IntN(len(whole)), rnd.IntN(8)
		b := slices.Clone(whole)
		b[at] ^= 1 << bit
		if err := os.WriteFile(journalFile(config.Data), b, 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := node.Open(t.Context(), config)
		if err == nil {
			if err = n.Start(t.Context()); err == nil {
				started++
			}
			// Damage may show only in a write.
			if end := n.Close(context.WithoutCancel(t.Context())); err == nil {
				err = end
			}
		}
		if err != nil && (!strings.Contains(err.Error(), "parley journal check") ||
			!strings.Contains(err.Error(), "parley journal salvage")) {
			t.Errorf("bit %d of byte %d: the error does not name the commands that help: %v", bit, at, err)
		}
	}
	t.Logf("PARLEY_CRASH_SEED=%d: the hub started after %d of %d", seed, started, places)
}

// difference lists the lines that only one of the two texts has.
func difference(a, b string) string {
	in := func(s string) map[string]bool {
		m := map[string]bool{}
		for l := range strings.SplitSeq(s, "\n") {
			m[l] = true
		}
		return m
	}
	was, is := in(a), in(b)
	var out []string
	for l := range was {
		if !is[l] {
			out = append(out, "- "+l)
		}
	}
	for l := range is {
		if !was[l] {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "\n")
}
