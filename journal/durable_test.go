package journal

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parley-hub/parley"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Each check opens engines; a few say as much as many.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		flag.Set("rapid.checks", "12")
	}
	goleak.VerifyTestMain(m)
}

// crash copies a directory while its journal is open: what a new process would
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
	cfg := Config{Dir: t.TempDir(), Now: c.now, Node: "n"}
	j, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var ids []parley.ID
	for i := range 50 {
		m := request(t, "alice", "bob")
		ids = append(ids, m.ID)
		if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}, Key: Key{ID: fmt.Sprint(i), Until: c.now().Add(time.Duration(i) * time.Minute)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.State("b").Put(t.Context(), "k", []byte("v"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	reply := &parley.Message{ID: newID(t, c.now()), Kind: parley.Response, InReplyTo: ids[3], From: "bob", To: "alice"}
	at, err := j.Append(t.Context(), Entry{Scope: "s", Message: reply, Steps: []Step{{Message: ids[3], To: "bob", State: parley.Answered}}})
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
		t.Errorf("%d records were read though there is a checkpoint", read)
	}
	if d := cmp.Diff(want, j.Deliveries(Filter{}), deliveryOptions); d != "" {
		t.Fatal(d)
	}
	for i := range 50 {
		p, ok := j.Seen("s", fmt.Sprint(i))
		if ok != (i > 20) {
			t.Errorf("key %d: seen is %v after its time", i, ok)
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
	j := open(t, Config{Dir: dir})
	m := request(t, "alice", "bob")
	e := Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}, Key: Key{ID: "k"}}
	if _, _, err := j.Accept(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	reply := &parley.Message{ID: newID(t, time.Now()), Kind: parley.Failure, InReplyTo: m.ID, From: "bob", To: "alice"}
	at, err := j.Append(t.Context(), Entry{Scope: "s", Message: reply, Steps: []Step{{Message: m.ID, To: "bob", State: parley.Answered}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range []*Journal{j, open(t, Config{Dir: crash(t, dir)})} {
		_, prior, err := j.Accept(t.Context(), e)
		if err != nil || prior == nil || prior.Reply != at {
			t.Fatal(prior, err)
		}
	}
}

// TestCrashProperty makes random entries, and compares what a process that
// starts after a crash rebuilds with what the crashed one knew.
func TestCrashProperty(t *testing.T) {
	states := []parley.DeliveryState{parley.Waiting, parley.Delivering, parley.Delivered, parley.Answered, parley.Dead, parley.Dropped, parley.Expired, parley.Abandoned}
	rapid.Check(t, func(rt *rapid.T) {
		c := newClock()
		dir := t.TempDir()
		cfg := Config{Dir: dir, Now: c.now, Node: "n", Partitions: rapid.IntRange(1, 3).Draw(rt, "partitions"), checkpointEvery: 5}
		if rapid.Bool().Draw(rt, "encrypted") {
			cfg.Key = []byte("0123456789abcdef")
		}
		j, err := Open(t.Context(), cfg)
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
				e := Entry{Scope: scope, Message: m, Open: []Opening{{To: "bob", Attempt: rapid.IntRange(0, 1).Draw(rt, "first")}, {To: "carol"}}, Key: Key{ID: key, Sender: "alice", Until: until}}
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
						if err := j.checkpoint(t.Context(), j.link.Load(), p); err != nil {
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
				if j, err = Open(t.Context(), cfg); err != nil {
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
				s := Step{Message: d.Message, To: d.To, State: rapid.SampledFrom(states).Draw(rt, "state"), Attempt: d.Attempt + rapid.IntRange(0, 1).Draw(rt, "attempt"),
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
	j := open(t, Config{Dir: dir, Node: "n"})
	m := request(t, "alice", "bob")
	_, err := j.Append(t.Context(), Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob", Attempt: 1, Sync: true}, {To: "carol", Attempt: 1}, {To: "dave", Sync: true}}})
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, Config{Dir: crash(t, dir), Node: "n"})
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
		t.Fatalf("%d steps to Abandoned are recorded, want 2", found)
	}
}

// filled makes a closed journal with some records, and gives its directory.
func filled(t testing.TB, cfg Config) string {
	t.Helper()
	j, err := Open(t.Context(), cfg)
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

// digest tells whether anything in a directory has changed.
func digest(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == lockName {
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

func TestDamageIsRefused(t *testing.T) {
	flip := func(name string, at func(size int) int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, filepath.FromSlash(name))
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[at(len(b))] ^= 0x10
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	middle := func(n int) int { return n / 2 }
	end := func(n int) int { return n - 12 }
	log, state := "engine/log/jetstream/$G/streams/PARLEY_LOG_0/", "engine/state/jetstream/$G/streams/PARLEY_STATE/"
	cases := map[string]struct {
		crashed bool // no inventory
		damage  func(t *testing.T, dir string)
	}{
		"description":              {false, flip(log+"meta.inf", middle)},
		"description after crash":  {true, flip(log+"meta.inf", middle)},
		"checksum":                 {true, flip(state+"meta.sum", middle)},
		"block":                    {false, flip(log+"msgs/1.blk", middle)},
		"block after crash":        {true, flip(log+"msgs/1.blk", middle)},
		"first byte of a block":    {true, flip(log+"msgs/1.blk", func(int) int { return 1 })},
		"end of a block":           {false, flip(log+"msgs/1.blk", end)},
		"state":                    {false, flip(state+"msgs/1.blk", middle)},
		"state after crash":        {true, flip(state+"msgs/1.blk", middle)},
		"index":                    {false, flip(log+"msgs/index.db", middle)},
		"cut block":                {false, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, log, "msgs/1.blk"), 100) }},
		"lost block":               {false, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, log, "msgs/1.blk")) }},
		"lost block after crash":   {true, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, log, "msgs/1.blk")) }},
		"lost stream":              {false, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, log)) }},
		"lost stream after crash":  {true, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, state)) }},
		"lost engine after crash":  {true, func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "engine")) }},
		"empty description, crash": {true, func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, log, "meta.inf"), 0) }},
	}
	for _, key := range [][]byte{nil, []byte("0123456789abcdef")} {
		dir := filled(t, Config{Dir: t.TempDir(), Key: key})
		for name, c := range cases {
			t.Run(fmt.Sprintf("%s/encrypted=%v", name, key != nil), func(t *testing.T) {
				dir := crash(t, dir)
				if c.crashed {
					remove(t, filepath.Join(dir, inventoryName))
				}
				c.damage(t, dir)
				before := digest(t, dir)
				_, err := Open(t.Context(), Config{Dir: dir, Key: key})
				if !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				t.Log(err)
				if d := cmp.Diff(before, digest(t, dir)); d != "" {
					t.Fatal("something was changed")
				}
			})
		}
	}
}

func truncate(t testing.TB, path string, by int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	to := info.Size() - by
	if by == 0 {
		to = 0
	}
	if err := os.Truncate(path, to); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestTornEndIsRecovered(t *testing.T) {
	for _, key := range [][]byte{nil, []byte("0123456789abcdef")} {
		for _, how := range []string{"cut", "garbage", "hole"} {
			t.Run(fmt.Sprintf("%s/encrypted=%v", how, key != nil), func(t *testing.T) {
				dir := t.TempDir()
				j := open(t, Config{Dir: dir, Key: key})
				var last Position
				for i := range 20 {
					var err error
					if last, _, err = j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"), Key: Key{ID: fmt.Sprint(i)}}); err != nil {
						t.Fatal(err)
					}
				}
				dir = crash(t, dir)
				block := filepath.Join(dir, "engine/log/jetstream/$G/streams/PARLEY_LOG_0/msgs/1.blk")
				info, err := os.Stat(block)
				if err != nil {
					t.Fatal(err)
				}
				// One more record that was not acknowledged, half there.
				if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: &parley.Message{ID: sampleID(5), Parts: []parley.Part{{Data: bytes.Repeat([]byte("x"), 20_000)}}}}); err != nil {
					t.Fatal(err)
				}
				if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b")}); err != nil {
					t.Fatal(err)
				}
				whole, err := os.ReadFile(filepath.Join(crash(t, j.dir.path), "engine/log/jetstream/$G/streams/PARLEY_LOG_0/msgs/1.blk"))
				if err != nil {
					t.Fatal(err)
				}
				switch how {
				case "cut":
					whole = whole[:info.Size()+10_000]
				case "garbage":
					whole = append(whole[:info.Size()], bytes.Repeat([]byte{0xa5}, 3000)...)
				case "hole":
					clear(whole[(info.Size()/4096+1)*4096:][:8192])
				}
				if err := os.WriteFile(block, whole, 0o600); err != nil {
					t.Fatal(err)
				}
				again := open(t, Config{Dir: dir, Key: key})
				for i := range 20 {
					if _, ok := again.Seen("s", fmt.Sprint(i)); !ok {
						t.Errorf("key %d is lost", i)
					}
				}
				n := 0
				for r, err := range again.Records(t.Context(), 0, From{}) {
					if err != nil {
						t.Fatal(err)
					}
					n++
					if n == 20 && r.Position != last {
						t.Errorf("the last one stands at %s, it was at %s", r.Position, last)
					}
				}
				if n != 20 {
					t.Errorf("%d records, 20 were acknowledged", n)
				}
				if _, err := again.Append(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b")}); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestTornBlocks tears a group that reaches over two blocks.
func TestTornBlocks(t *testing.T) {
	key := []byte("0123456789abcdef") // encrypted blocks have 2 MiB
	dir := t.TempDir()
	j := open(t, Config{Dir: dir, Key: key})
	big := func() Entry {
		m := request(t, "a", "b")
		m.Parts = []parley.Part{{Data: bytes.Repeat([]byte("abcdefg"), 15_000)}}
		return Entry{Scope: "s", Message: m}
	}
	for i := range 45 {
		at, err := j.Append(t.Context(), big())
		if err != nil {
			t.Fatal(err)
		}
		if last, err := blockNumbers(j.parts[0].writer.syncer.dir); err != nil || j.parts[0].writer.syncer.last != last[len(last)-1] {
			t.Fatalf("after %d records, %s: synced up to block %d of %v", i, at, j.parts[0].writer.syncer.last, last)
		}
	}
	block := func(dir string, n int) string {
		return filepath.Join(dir, "engine/log/jetstream/$G/streams/PARLEY_LOG_0/msgs", fmt.Sprint(n, ".blk"))
	}
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		want   error
	}{
		"hole": {func(b []byte) []byte { clear(b[len(b)-50_000:][:20_000]); return b }, nil},
		"cut":  {func(b []byte) []byte { return b[:len(b)-30_000] }, nil},
		"flip": {func(b []byte) []byte { b[len(b)-30_000] ^= 1; return b }, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			dir := crash(t, dir)
			b, err := os.ReadFile(block(dir, 2))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(block(dir, 2), c.damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			j, err := Open(t.Context(), Config{Dir: dir, Key: key})
			if !errors.Is(err, c.want) {
				t.Fatal(err)
			}
			if err == nil {
				if _, err := j.Append(t.Context(), big()); err != nil {
					t.Error(err)
				}
				if err := j.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestEncryption(t *testing.T) {
	key := []byte("0123456789abcdef")
	dir := filled(t, Config{Dir: t.TempDir(), Key: key})
	for name, content := range digest(t, dir) {
		if strings.Contains(content, "marzipan") || strings.Contains(content, "0123456789abcdef") {
			t.Errorf("%s holds plain text", name)
		}
	}
	plain := filled(t, Config{Dir: t.TempDir()})
	for name, cfg := range map[string]Config{
		"wrong":      {Dir: dir, Key: []byte("0123456789abcdeX")},
		"missing":    {Dir: dir},
		"unexpected": {Dir: plain, Key: key},
		"short":      {Dir: t.TempDir(), Key: []byte("short")},
	} {
		t.Run(name, func(t *testing.T) {
			before := digest(t, cfg.Dir)
			if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrKey) {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, digest(t, cfg.Dir)); d != "" {
				t.Fatal("something was changed")
			}
		})
	}
	j := open(t, Config{Dir: dir, Key: key})
	if _, ok := j.Seen("s", "7"); !ok {
		t.Fatal("not opened with the right key")
	}
}

func TestDirectory(t *testing.T) {
	t.Run("locked", func(t *testing.T) {
		dir := t.TempDir()
		open(t, Config{Dir: dir})
		_, err := Open(t.Context(), Config{Dir: dir})
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
		if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrForeign) {
			t.Fatal(err)
		}
		if list, _ := os.ReadDir(dir); len(list) != 1 || cmp.Diff(before, digest(t, dir)) != "" {
			t.Fatal("something was changed")
		}
	})
	edit := func(t *testing.T, old, new string) string {
		dir := filled(t, Config{Dir: t.TempDir()})
		path := filepath.Join(dir, manifestName)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(b, []byte(old), []byte(new), 1)
		if bytes.Equal(changed, b) {
			t.Fatal("nothing to replace")
		}
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, c := range map[string]struct {
		old, new string
		want     error
	}{
		"damaged manifest": {`"what"`, `"`, ErrForeign},
		"another program":  {manifestWhat, "somebody's diary", ErrForeign},
		"later format":     {`"format": 1`, `"format": 2`, ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			dir := edit(t, c.old, c.new)
			before := digest(t, dir)
			if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, c.want) {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, digest(t, dir)); d != "" {
				t.Fatal("something was changed")
			}
		})
	}
	t.Run("other settings", func(t *testing.T) {
		dir := filled(t, Config{Dir: t.TempDir(), Partitions: 2, Prefix: "P"})
		for _, cfg := range []Config{{Dir: dir, Partitions: 3}, {Dir: dir, Prefix: "Q"}, {Dir: dir, Durability: Memory}, {Dir: dir, Durability: "fine"}, {Dir: dir, URL: "nats://x"}} {
			if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		}
		if j := open(t, Config{Dir: dir}); j.Partitions() != 2 {
			t.Fatal(j.Partitions())
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Fatal(info.Mode(), err)
		}
	})
	t.Run("interrupted making", func(t *testing.T) {
		dir := t.TempDir()
		j := open(t, Config{Dir: dir})
		copied := crash(t, dir)
		m := j.dir.manifest
		m.Streams = nil
		d := directory{path: copied, manifest: m}
		if err := d.save(); err != nil {
			t.Fatal(err)
		}
		open(t, Config{Dir: copied})
	})
}

func TestWatermark(t *testing.T) {
	var free atomic.Uint64
	free.Store(1000)
	j := open(t, Config{Dir: t.TempDir(), MinFree: 500, FreeSpace: func(string) (uint64, error) { return free.Load(), nil }})
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
		t.Fatal("a refused entry used its key up")
	}
	if err := j.Healthy(); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	// What was begun may be finished from the reserve.
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "b", State: parley.Delivering, Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	free.Store(200)
	if _, err := j.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "b", State: parley.Delivered}}}); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	free.Store(600)
	if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"), Key: Key{ID: "k"}}); err != nil {
		t.Fatal(err)
	}
	if err := j.Healthy(); err != nil {
		t.Fatal(err)
	}
}

// load appends from several callers until stopped, and remembers what was
// acknowledged.
type load struct {
	j      *Journal
	stop   atomic.Bool
	wg     sync.WaitGroup
	mu     sync.Mutex
	acked  map[parley.ID]Position
	failed []error
}

func startLoad(t testing.TB, j *Journal, callers int) *load { return startLoadOf(t, j, callers, 0) }

// startLoadOf appends messages with so many bytes of content.
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
				at, prior, err := j.Accept(context.Background(), Entry{Scope: "s", Message: m, Key: Key{ID: fmt.Sprint(c, " ", i)}})
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

// settle waits, for a log that is followed, until all that was acknowledged has
// been read.
func (l *load) settle(t testing.TB) {
	l.stop.Store(true)
	l.wg.Wait()
	var last uint64
	for _, at := range l.acked {
		last = max(last, at.Sequence)
	}
	eventually(t, "all is read", func() bool { return l.j.parts[0].position() >= last })
}

// check stops the load and compares the log with what was acknowledged.
func (l *load) check(t testing.TB) {
	t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	l.compare(t, l.j)
	for _, err := range l.failed {
		if e := parley.AsError(err); !e.Retryable {
			t.Errorf("an error that a repeat does not mend: %v", err)
		}
	}
}

// compare finds in a journal what was acknowledged, each message once.
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
			t.Errorf("%s was acknowledged at %s and is at %s", id, at, found[id])
		}
	}
}

func TestEngineIsReopened(t *testing.T) {
	for _, part := range []string{partLog, partState} {
		t.Run(part, func(t *testing.T) {
			j := open(t, Config{Dir: t.TempDir(), reopenEvery: 10 * time.Millisecond})
			got := make(chan Value, 100)
			stop, err := j.State("b").Watch(t.Context(), "", func(v Value) { got <- v })
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			lease, err := j.Lease(t.Context(), "s", "l", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			l := startLoad(t, j, 20)
			for n := range 3 {
				acked, _ := l.count()
				eventually(t, "appends go on", func() bool { now, _ := l.count(); return now > acked+50 })
				e := j.link.Load()
				if part == partState {
					e = e.side
				}
				e.srv.Shutdown()
				eventually(t, "it is reopened", func() bool { return j.Stats().Reopened == uint64(n+1) })
				if err := j.Healthy(); err != nil {
					t.Fatal(err)
				}
			}
			acked, _ := l.count()
			eventually(t, "appends go on", func() bool { now, _ := l.count(); return now > acked+50 })
			l.check(t)
			if _, err := j.State("b").Put(t.Context(), "k", nil, time.Time{}); err != nil {
				t.Fatal(err)
			}
			<-got
			if err := lease.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "a", "b"), Fence: lease}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// ownProcess runs a test again in a process that has its limits to itself, and
// reports whether this is that process.
func ownProcess(t *testing.T) bool {
	t.Helper()
	const child = "PARLEY_JOURNAL_LIMITED"
	if os.Getenv(child) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// TestWriteErrors makes the engine's own writes fail, by a limit on the size
// of files, and lifts it again.
func TestWriteErrors(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	limit := func(n uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	j := open(t, Config{Dir: t.TempDir(), reopenEvery: 10 * time.Millisecond, Timeout: 5 * time.Second})
	defer limit(was.Cur)
	l := startLoad(t, j, 20)
	eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > 100 })
	limit(300 << 10)
	eventually(t, "appends fail", func() bool { _, n := l.count(); return n > 20 })
	limit(was.Cur)
	acked, _ := l.count()
	eventually(t, "appends go on", func() bool { n, _ := l.count(); return n > acked+100 })
	l.check(t)
	if j.Stats().Reopened == 0 {
		t.Error("the engine was not reopened")
	}
}

// TestSmallFileSystem fills a real small file system, empty and of 64 MiB or
// less, mounted where PARLEY_SMALLFS says.
func TestSmallFileSystem(t *testing.T) {
	root := os.Getenv("PARLEY_SMALLFS")
	if root == "" {
		t.Log("left out without PARLEY_SMALLFS; TestWatermark and TestWriteErrors prove the same by other means")
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
			// With a watermark of one byte the engine itself runs into the end.
			j := open(t, Config{Dir: dir, MinFree: minFree, reopenEvery: 10 * time.Millisecond, Timeout: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
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
