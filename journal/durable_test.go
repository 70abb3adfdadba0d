package journal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testcluster"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Each check opens journals on disk, which is slow: a few checks find as much as
	// rapid's default number.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		flag.Set("rapid.checks", "12")
	}
	goleak.VerifyTestMain(m, testcluster.Leaks()...)
}

// crash copies a directory while its journal is open: the files that a new process would
// find if this one were killed now.
func crash(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

var deliveryOptions = cmp.Options{cmpopts.IgnoreUnexported(parley.Error{}), cmpopts.EquateEmpty()}

func TestReopen(t *testing.T) {
	c := newClock()
	cfg := setup{Dir: t.TempDir(), Now: c.now, Node: "n"}
	j, err := tryOpen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var ids []parley.ID
	for i := range 50 {
		m := request(t, "alice", "bob")
		ids = append(ids, m.ID)
		if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}},
			Key: Key{ID: fmt.Sprint(i), Until: c.now().Add(time.Duration(i) * time.Minute)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.State("b").Put(t.Context(), "k", []byte("v"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	reply := &parley.Message{ID: newID(t, c.now()), Kind: parley.Response, InReplyTo: ids[3], From: "bob", To: "alice"}
	at, err := j.Append(t.Context(), Entry{Scope: "s", Message: reply,
		Steps: []Step{{Message: ids[3], To: "bob", State: parley.Answered}}})
	if err != nil {
		t.Fatal(err)
	}
	want := j.Deliveries(Filter{})
	if len(want) != 49 {
		t.Fatal(len(want))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b")}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	var read uint64
	cfg.Progress = func(done, total uint64) { read = total }
	c.add(20 * time.Minute)
	j = open(t, cfg)
	if read != 0 {
		t.Errorf("%d records were read in spite of a checkpoint", read)
	}
	if d := cmp.Diff(want, j.Deliveries(Filter{}), deliveryOptions); d != "" {
		t.Fatal(d)
	}
	for i := range 50 {
		p, ok := j.Seen("s", fmt.Sprint(i))
		if ok != (i > 20) {
			t.Errorf("key %d: seen is %v, 20 minutes later", i, ok)
		}
		if ok && p.Message != ids[i] {
			t.Errorf("key %d: %+v", i, p)
		}
	}
	if v, err := j.State("b").Get(t.Context(), "k"); err != nil || string(v.Data) != "v" {
		t.Fatal(v, err)
	}
	r, err := j.Read(t.Context(), at)
	if err != nil || r.Message.InReplyTo != ids[3] || r.Steps[0].Reply != reply.ID {
		t.Fatalf("%+v %v", r, err)
	}
}

func TestReplyIsKnownToReplay(t *testing.T) {
	dir := t.TempDir()
	j := open(t, setup{Dir: dir})
	m := request(t, "alice", "bob")
	e := Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}, Key: Key{ID: "k"}}
	if _, _, err := j.Accept(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	reply := &parley.Message{ID: newID(t, time.Now()), Kind: parley.Failure, InReplyTo: m.ID, From: "bob", To: "alice"}
	at, err := j.Append(t.Context(), Entry{Scope: "s", Message: reply,
		Steps: []Step{{Message: m.ID, To: "bob", State: parley.Answered}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range []*Journal{j, open(t, setup{Dir: crash(t, dir)})} {
		_, prior, err := j.Accept(t.Context(), e)
		if err != nil || prior == nil || prior.Reply != at {
			t.Fatal(prior, err)
		}
	}
}

// TestReplyIsKnownAfterATakeOver: after a take-over, a new owner's checkpoint contains
// the facts that the owner before wrote. The reply to a request recorded before the last
// checkpoint is known for as long as the request's key.
func TestReplyIsKnownAfterATakeOver(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	j := open(t, setup{Dir: dir, Now: c.now})
	m := request(t, "alice", "bob")
	e := Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}, Key: Key{ID: "k"}}
	if _, _, err := j.Accept(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	p := j.parts[0]
	if err := p.checkpoint(t.Context()); err != nil { // the other hub's
		t.Fatal(err)
	}
	reply := &parley.Message{ID: newID(t, time.Now()), Kind: parley.Failure, InReplyTo: m.ID, From: "bob", To: "alice"}
	at, err := j.Append(t.Context(), Entry{
		Scope: "s", Message: reply, Steps: []Step{{Message: m.ID, To: "bob", State: parley.Answered}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.dropWrittenFacts(t.Context()); err != nil || len(p.facts) != 1 {
		t.Fatalf("%+v %v", p.facts, err)
	}
	if err := p.checkpoint(t.Context()); err != nil { // after the take-over
		t.Fatal(err)
	}
	c.add(10 * time.Minute)
	for _, j := range []*Journal{j, open(t, setup{Dir: crash(t, dir), Now: c.now})} {
		_, prior, err := j.Accept(t.Context(), e)
		if err != nil || prior == nil || prior.Reply != at {
			t.Error(prior, err)
		}
	}
}

// TestCrashProperty appends random entries, and compares the state that a process
// rebuilds after a crash with the state before it.
func TestCrashProperty(t *testing.T) {
	t.Parallel()
	states := []parley.DeliveryState{parley.Waiting, parley.Delivering, parley.Delivered, parley.Answered, parley.Dead,
		parley.Dropped, parley.Expired, parley.Abandoned}
	rapid.Check(t, func(rt *rapid.T) {
		c := newClock()
		dir := t.TempDir()
		cfg := setup{Dir: dir, Now: c.now, Node: "n", Partitions: rapid.IntRange(1, 3).Draw(rt, "partitions"),
			checkpointEvery: 5}
		if rapid.Bool().Draw(rt, "encrypted") {
			cfg.Key = []byte("0123456789abcdef")
		}
		j, err := tryOpen(t.Context(), cfg)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { j.Close() }()
		attempts := map[string]int{}
		keys := map[string]bool{}
		for range rapid.IntRange(1, 60).Draw(rt, "operations") {
			scope := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "scope")
			c.add(time.Second)
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0, 1, 2:
				m := request(t, "alice", "bob")
				m.Kind = rapid.SampledFrom([]parley.Kind{parley.Request, parley.Notice}).Draw(rt, "kind")
				key := rapid.StringMatching("[a-f]").Draw(rt, "key")
				until := time.Time{}
				if rapid.Bool().Draw(rt, "long") {
					until = c.now().Add(time.Hour)
				}
				e := Entry{Scope: scope, Message: m,
					Open: []Opening{{To: "bob", Attempt: rapid.IntRange(0, 1).Draw(rt, "first")}, {To: "carol"}},
					Key:  Key{ID: key, Sender: "alice", Until: until}}
				_, prior, err := j.Accept(t.Context(), e)
				if err != nil {
					rt.Fatal(err)
				}
				if (prior != nil) != keys[scope+key] {
					rt.Fatalf("key %s in %s: prior %+v, recorded before: %v", key, scope, prior, keys[scope+key])
				}
				keys[scope+key] = true
			case 3:
				for _, p := range j.parts {
					if rapid.Bool().Draw(rt, "checkpoint") {
						if err := p.checkpoint(t.Context()); err != nil {
							rt.Fatal(err)
						}
					}
				}
			case 4:
				crashed := crash(t, cfg.Dir)
				before := j.Deliveries(Filter{})
				seen := map[string]*Prior{}
				for k := range keys {
					seen[k], _ = j.Seen(k[:1], k[1:])
				}
				if err := j.Close(); err != nil {
					rt.Fatal(err)
				}
				cfg.Dir = crashed
				if j, err = tryOpen(t.Context(), cfg); err != nil {
					rt.Fatal(err)
				}
				if d := cmp.Diff(before, j.Deliveries(Filter{}), deliveryOptions); d != "" {
					rt.Fatal(d)
				}
				for k := range keys {
					now, _ := j.Seen(k[:1], k[1:])
					if d := cmp.Diff(seen[k], now); d != "" {
						rt.Fatalf("key %s: %s", k, d)
					}
				}
			default:
				all := j.Deliveries(Filter{})
				if len(all) == 0 {
					continue
				}
				d := all[rapid.IntRange(0, len(all)-1).Draw(rt, "delivery")]
				s := Step{Message: d.Message, To: d.To, State: rapid.SampledFrom(states).Draw(rt, "state"),
					Attempt:   d.Attempt + rapid.IntRange(0, 1).Draw(rt, "attempt"),
					Postponed: rapid.Bool().Draw(rt, "postponed"), Reply: sampleID(3)}
				if s.State == parley.Dead {
					s.Error = parley.Refuse(parley.OutcomeUnknown, "x")
					s.Losses = []parley.Loss{{Field: "f", Reason: "r"}}
				}
				_, err := j.Append(t.Context(), Entry{Steps: []Step{s}})
				if err != nil && !errors.Is(err, ErrConflict) {
					rt.Fatal(err)
				}
				if err == nil && s.State == parley.Delivering {
					k := d.Message.String() + d.To
					if s.Attempt <= attempts[k] {
						rt.Fatalf("attempt %d recorded after %d", s.Attempt, attempts[k])
					}
					attempts[k] = s.Attempt
				}
			}
		}
	})
}

func TestSyncIsAbandoned(t *testing.T) {
	dir := t.TempDir()
	j := open(t, setup{Dir: dir, Node: "n"})
	m := request(t, "alice", "bob")
	_, err := j.Append(t.Context(), Entry{Scope: "s", Message: m,
		Open: []Opening{{To: "bob", Attempt: 1, Sync: true}, {To: "carol", Attempt: 1}, {To: "dave", Sync: true}}})
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, setup{Dir: crash(t, dir), Node: "n"})
	list := again.Deliveries(Filter{})
	if len(list) != 1 || list[0].To != "carol" {
		t.Fatalf("%+v", list)
	}
	found := 0
	for r, err := range again.Records(t.Context(), 0, From{}) {
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range r.Steps {
			if s.State == parley.Abandoned {
				found++
			}
		}
	}
	if found != 2 {
		t.Fatalf("%d steps to Abandoned recorded, want 2", found)
	}
}

// filled makes a closed journal with some records, and returns its directory.
func filled(t testing.TB, cfg setup) string {
	t.Helper()
	j, err := tryOpen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		m := request(t, "alice", "bob")
		m.Parts = []parley.Part{parley.Text("the secret word is marzipan")}
		if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: m, Key: Key{ID: fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := j.State("b").Put(t.Context(), fmt.Sprint(i), []byte("marzipan"), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return cfg.Dir
}

// digest returns the content of every file of a directory, to compare it later.
func digest(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "lock" {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEncryption(t *testing.T) {
	key := []byte("0123456789abcdef")
	dir := filled(t, setup{Dir: t.TempDir(), Key: key})
	for name, content := range digest(t, dir) {
		if strings.Contains(content, "marzipan") || strings.Contains(content, "0123456789abcdef") {
			t.Errorf("%s contains plain text", name)
		}
	}
	plain := filled(t, setup{Dir: t.TempDir()})
	for name, cfg := range map[string]setup{
		"wrong":      {Dir: dir, Key: []byte("0123456789abcdeX")},
		"missing":    {Dir: dir},
		"unexpected": {Dir: plain, Key: key},
		"short":      {Dir: t.TempDir(), Key: []byte("short")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tryOpen(t.Context(), cfg); !errors.Is(err, ErrKey) {
				t.Fatal(err)
			}
		})
	}
	j := open(t, setup{Dir: dir, Key: key})
	if _, ok := j.Seen("s", "7"); !ok {
		t.Fatal("opened with the right key, the journal does not know its records")
	}
}

func TestDirectory(t *testing.T) {
	t.Run("locked", func(t *testing.T) {
		dir := t.TempDir()
		open(t, setup{Dir: dir})
		_, err := tryOpen(t.Context(), setup{Dir: dir})
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
			t.Fatal(err)
		}
	})
	t.Run("foreign", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := digest(t, dir)
		if _, err := tryOpen(t.Context(), setup{Dir: dir}); !errors.Is(err, ErrForeign) {
			t.Fatal(err)
		}
		if list, _ := os.ReadDir(dir); len(list) != 1 || cmp.Diff(before, digest(t, dir)) != "" {
			t.Fatal("the refused directory was changed")
		}
	})
	t.Run("other settings", func(t *testing.T) {
		dir := filled(t, setup{Dir: t.TempDir(), Partitions: 2})
		if _, err := tryOpen(t.Context(), setup{Dir: dir, Partitions: 3}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if j := open(t, setup{Dir: dir}); j.Partitions() != 2 {
			t.Fatal(j.Partitions())
		}
	})
	t.Run("an earlier engine", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "journal.json"), []byte(`{"what": "parley journal", "format": 1}`),
			0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := tryOpen(t.Context(), setup{Dir: dir}); !errors.Is(err, ErrFormat) ||
			!strings.Contains(err.Error(), "restore") {
			t.Fatal(err)
		}
	})
}

func TestWatermark(t *testing.T) {
	var free atomic.Uint64
	free.Store(1000)
	j := open(t, setup{Dir: t.TempDir(), MinFree: 500, FreeSpace: func() (uint64, error) { return free.Load(), nil }})
	m := request(t, "a", "b")
	if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "b"}}}); err != nil {
		t.Fatal(err)
	}
	free.Store(400)
	_, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"), Key: Key{ID: "k"}})
	if !errors.Is(err, ErrNoSpace) || !parley.AsError(err).Retryable || parley.CodeOf(err) != parley.NoSpace {
		t.Fatal(err)
	}
	if _, ok := j.Seen("s", "k"); ok {
		t.Fatal("the key of a refused entry is seen")
	}
	if err := j.Healthy(); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	// A delivery begun before is finished with the reserved space.
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "b", State: parley.Delivering,
		Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	free.Store(200)
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "b",
		State: parley.Delivered}}}); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	free.Store(600)
	if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"),
		Key: Key{ID: "k"}}); err != nil {
		t.Fatal(err)
	}
	if err := j.Healthy(); err != nil {
		t.Fatal(err)
	}
}

// load appends from several callers until it is stopped, and keeps the acknowledged
// messages.
type load struct {
	j      *Journal
	stop   atomic.Bool
	wg     sync.WaitGroup
	mu     sync.Mutex
	acked  map[parley.ID]Position
	failed []error
}

func startLoad(t testing.TB, j *Journal, callers int) *load { return startLoadOf(t, j, callers, 0) }

// startLoadOf appends messages of size bytes of content.
func startLoadOf(t testing.TB, j *Journal, callers, size int) *load {
	l := &load{j: j, acked: make(map[parley.ID]Position)}
	content := make([]byte, size)
	for c := range callers {
		l.wg.Go(func() {
			for i := 0; !l.stop.Load(); i++ {
				m := request(t, "alice", "bob")
				if size > 0 {
					m.Parts = []parley.Part{{Data: content}}
				}
				at, prior, err := j.Accept(context.Background(),
					Entry{Scope: "s", Message: m, Key: Key{ID: fmt.Sprint(c, " ", i)}})
				l.mu.Lock()
				if err != nil {
					l.failed = append(l.failed, err)
				} else if prior == nil {
					l.acked[m.ID] = at
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) count() (acked, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked), len(l.failed)
}

// settle stops the load, and waits until a followed log has read every acknowledged
// record.
func (l *load) settle(t testing.TB) {
	l.stop.Store(true)
	l.wg.Wait()
	var last uint64
	for _, at := range l.acked {
		last = max(last, at.Sequence)
	}
	eventually(t, "all records are read", func() bool { return l.j.parts[0].position() >= last })
}

// check stops the load, compares the log with the acknowledged messages, and wants every
// error to be retryable.
func (l *load) check(t testing.TB) {
	t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	l.compare(t, l.j)
	for _, err := range l.failed {
		if e := parley.AsError(err); !e.Retryable {
			t.Errorf("an error that is not retryable: %v", err)
		}
	}
}

// compare checks that a journal has each acknowledged message once, at its position.
func (l *load) compare(t testing.TB, j *Journal) {
	t.Helper()
	found := map[parley.ID]Position{}
	for r, err := range j.Records(t.Context(), 0, From{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Message == nil {
			continue
		}
		if at, ok := found[r.Message.ID]; ok {
			t.Errorf("%s is recorded twice, at %s and %s", r.Message.ID, at, r.Position)
		}
		found[r.Message.ID] = r.Position
	}
	for id, at := range l.acked {
		if found[id] != at {
			t.Errorf("%s was acknowledged at %s, and is recorded at %s", id, at, found[id])
		}
	}
}

// TestSmallFileSystem fills a real file system: an empty one of at most 64 MiB, mounted
// at the path in PARLEY_SMALLFS.
func TestSmallFileSystem(t *testing.T) {
	root := os.Getenv("PARLEY_SMALLFS")
	if root == "" {
		t.Log("skipped without PARLEY_SMALLFS; TestWatermark tests the same with a simulated size")
		return
	}
	for _, minFree := range []uint64{0, 1} {
		t.Run(fmt.Sprint("watermark ", minFree), func(t *testing.T) {
			dir := filepath.Join(root, fmt.Sprint("j", minFree))
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			ballast := filepath.Join(root, "ballast")
			if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			// With a watermark of one byte the engine itself gets the disk-full error.
			j := open(t, setup{Dir: dir, MinFree: minFree, Timeout: time.Second,
				Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			l := startLoad(t, j, 8)
			m := func() *parley.Message {
				m := request(t, "a", "b")
				m.Parts = []parley.Part{{Data: make([]byte, 256<<10)}}
				return m
			}
			for full := 0; full < 20; {
				_, err := j.Append(t.Context(), Entry{Scope: "s", Message: m()})
				if err != nil {
					full++
					if !parley.AsError(err).Retryable {
						t.Fatal(err)
					}
				}
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			eventually(t, "appends go on", func() bool {
				_, err := j.Append(t.Context(), Entry{Scope: "s", Message: m()})
				return err == nil
			})
			l.check(t)
		})
	}
}
