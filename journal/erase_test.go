package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
)

const marzipan = "the secret word is marzipan"

// holds tells which files of a directory hold a text.
func holds(t testing.TB, dir, text string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// told makes a message as a protocol brings it: content in the envelope, beside
// it, in headers and extensions.
func told(t testing.TB, from, to, text string) *parley.Message {
	m := request(t, from, to)
	raw := []byte(`{"envelope":"` + strings.Repeat("e", 80) + text + `"}`)
	at := bytes.Index(raw, []byte(text))
	m.Parts = []parley.Part{{MediaType: "text/plain", Data: raw[at : at+len(text)]}, {MediaType: "text/plain", Name: text + ".txt", Data: []byte(strings.Repeat(text+" ", 5))}}
	m.Extensions = map[string]json.RawMessage{"x": json.RawMessage(`"` + text + `"`)}
	m.Origin = parley.Origin{Protocol: "samvad", Peer: "agent://a", Address: "192.0.2.1", Raw: raw, Header: map[string]string{"X-Note": text},
		Verdict: parley.Verdict{Checks: []parley.Check{{Name: "signature", OK: true}}, KeyID: "k", Assurance: parley.Signed}}
	return m
}

func TestErase(t *testing.T) {
	for name, key := range map[string][]byte{"clear": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), Key: key, Node: "n"}
			j := open(t, cfg)
			ctx := t.Context()
			var at []Position
			var ids []parley.ID
			var chain uint64
			for i := range 60 {
				m := told(t, "alice", "bob", marzipan)
				e := Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}, Key: Key{ID: fmt.Sprint(i)}}
				if i%10 == 9 {
					e.Chain = &ChainLink{Name: "c", After: chain}
				}
				pos, _, err := j.Accept(ctx, e)
				if err != nil {
					t.Fatal(err)
				}
				if e.Chain != nil {
					chain = pos.Sequence
				}
				at, ids = append(at, pos), append(ids, m.ID)
			}
			tiny := request(t, "a", "b")
			tiny.Parts = []parley.Part{parley.Text("x")}
			tinyAt, err := j.Append(ctx, Entry{Scope: "s", Message: tiny})
			if err != nil {
				t.Fatal(err)
			}
			reply := told(t, "bob", "alice", marzipan)
			reply.Kind, reply.InReplyTo = parley.Response, ids[3]
			replyAt, err := j.Append(ctx, Entry{Scope: "s", Message: reply, Steps: []Step{{Message: ids[3], To: "bob", State: parley.Answered}}})
			if err != nil {
				t.Fatal(err)
			}
			before, err := j.Read(ctx, at[5])
			if err != nil {
				t.Fatal(err)
			}
			if why := j.Held(before); why != "not delivered" {
				t.Errorf("held: %q", why)
			}
			if r, err := j.Read(ctx, at[3]); err != nil || j.Held(r) != "" {
				t.Error("a settled one is held", err)
			}
			x, err := j.NewErasure(ctx, Erasure{What: "agent", Name: "alice", By: "op"})
			if err != nil || x.Number != 1 {
				t.Fatal(x, err)
			}
			// All but one, the newest record of the log among them.
			spared := at[7]
			list := append(slices.Delete(slices.Clone(at), 7, 8), replyAt, tinyAt, at[1])
			n, err := j.Erase(ctx, x.Number, list)
			if err != nil || n != 61 {
				t.Fatal(n, err)
			}
			if n, err := j.Erase(ctx, x.Number, list); err != nil || n != 0 {
				t.Fatal("again:", n, err)
			}
			check := func(j *Journal) {
				t.Helper()
				for i, pos := range at {
					r, err := j.Read(ctx, pos)
					if err != nil {
						t.Fatal(err)
					}
					if pos == spared {
						if r.Erased != nil || string(r.Message.Parts[0].Data) != marzipan {
							t.Errorf("%+v", r)
						}
						continue
					}
					m := r.Message
					if r.Erased == nil || r.Erased.Number != 1 || len(r.Erased.Digest) != 32 || r.Erased.Size == 0 {
						t.Fatalf("record %s: %+v", pos, r.Erased)
					}
					if m.ID != ids[i] || m.From != "alice" || m.To != "bob" || m.Conversation != before.Message.Conversation || !r.Keyed || len(r.Open) != 1 || m.Origin.Verdict.Assurance != parley.Signed {
						t.Errorf("what was to stay is gone: %+v", r)
					}
					if HasContent(r) || m.Origin.Raw != nil || m.Origin.Header != nil || m.Origin.Address != "" || m.Parts[0].Data != nil || m.Parts[1].Name != "" || m.Extensions != nil {
						t.Errorf("content is left: %+v", m)
					}
					if m.Parts[1].Digest == "" || m.Parts[0].Digest != "" {
						t.Errorf("digests %q and %q: that of what can be guessed must not be there, the other must", m.Parts[0].Digest, m.Parts[1].Digest)
					}
					if p, ok := j.Seen("s", fmt.Sprint(i)); !ok || p.Message != ids[i] {
						t.Errorf("replay %d would be accepted", i)
					}
				}
				if r, err := j.Read(ctx, tinyAt); err != nil || r.Erased == nil || len(r.Message.Parts[0].Data) != 0 {
					t.Error(r, err)
				}
				if head, err := j.Head(ctx, "s", "c"); err != nil || head != chain {
					t.Error("the chain's head moved:", head, err)
				}
				if r, err := j.Read(ctx, replyAt); err != nil || len(r.Steps) != 1 || r.Message.InReplyTo != ids[3] || r.Erased == nil {
					t.Error(r, err)
				}
				if d := j.Deliveries(Filter{}); len(d) != 59 {
					t.Errorf("%d deliveries", len(d))
				}
				if e, err := j.Erasure(ctx, 1); err != nil || e.By != "op" || e.Name != "alice" {
					t.Error(e, err)
				}
			}
			check(j)
			if _, err := j.Erase(ctx, 1, []Position{spared}); err != nil {
				t.Fatal(err)
			}
			if files := holds(t, cfg.Dir, "marzipan"); len(files) > 0 {
				t.Errorf("the content is still in %v", files)
			}
			spared = Position{}
			check(j)
			// The chain goes on, and nothing of this changes by a crash or an
			// orderly end.
			next, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "alice", "bob"), Chain: &ChainLink{Name: "c", After: chain}})
			if err != nil {
				t.Fatal(err)
			}
			chain = next.Sequence
			check(open(t, Config{Dir: crash(t, cfg.Dir), Key: key, Node: "n"}))
			b, _ := backed(t, j, BackupOptions{})
			if bytes.Contains(b, []byte("marzipan")) {
				t.Error("a backup has what was erased")
			}
			to := filepath.Join(t.TempDir(), "r")
			if _, err := Restore(ctx, bytes.NewReader(b), RestoreConfig{Dir: to, Key: key}); err != nil {
				t.Fatal(err)
			}
			check(open(t, Config{Dir: to, Key: key, Node: "n"}))
			k := reopened(t, j, cfg)
			defer k.Close()
			check(k)
		})
	}
}

// reopened closes a journal and opens it again, after an orderly end.
func reopened(t *testing.T, j *Journal, c Config) *Journal {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	k, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !k.dir.clean {
		t.Error("the files are not those of an orderly end")
	}
	return k
}

// TestEraseOverBlocks erases in many blocks while appends go on.
func TestEraseOverBlocks(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Key: []byte("a key of sixteen or more bytes")} // blocks of 2 MB
	j := open(t, cfg)
	ctx := t.Context()
	big := strings.Repeat("marzipan ", 7000)
	var at []Position
	messages, least := 80, 3
	if testing.Short() {
		messages, least = 45, 2
	}
	for range messages {
		m := request(t, "alice", "bob")
		m.Parts = []parley.Part{parley.Text(big)}
		pos, err := j.Append(ctx, Entry{Scope: "s", Message: m})
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, pos)
	}
	blocks, err := blockNumbers(j.dir.stream(partLog + "/" + j.logStream(0)))
	if err != nil || len(blocks) < least {
		t.Fatal(blocks, err)
	}
	l := startLoad(t, j, 4)
	eventually(t, "there is load", func() bool { n, _ := l.count(); return n > 50 })
	want := 0
	var list []Position
	for i, pos := range at {
		if i%2 == 0 {
			list = append(list, pos)
			want++
		}
	}
	if n, err := j.Erase(ctx, 1, list); err != nil || n != want {
		t.Fatal(n, err)
	}
	l.check(t)
	k := open(t, Config{Dir: crash(t, cfg.Dir), Key: cfg.Key})
	for i, pos := range at {
		for _, x := range []*Journal{j, k} {
			r, err := x.Read(ctx, pos)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 && (r.Erased == nil || len(r.Message.Parts[0].Data) > 0) || i%2 == 1 && string(r.Message.Parts[0].Data) != big {
				t.Errorf("record %s", pos)
			}
		}
	}
	// What the engine has read anew needs no attention any more.
	p := k.parts[0]
	if _, err := k.Erase(ctx, 2, []Position{at[1]}); err != nil {
		t.Fatal(err)
	}
	live, err := k.live()
	if err != nil {
		t.Fatal(err)
	}
	p.refresh(ctx, live)
}

// TestEraseSurvivesACrash ends the process, and the power, at each step.
func TestEraseSurvivesACrash(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Node: "n"}
	j := open(t, cfg)
	ctx := t.Context()
	var at []Position
	for i := range 4 {
		pos, _, err := j.Accept(ctx, Entry{Scope: "s", Message: told(t, "alice", "bob", marzipan), Key: Key{ID: fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, pos)
	}
	if _, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "a", "b")}); err != nil {
		t.Fatal(err)
	}
	log := j.dir.stream(partLog + "/" + j.logStream(0))
	block := filepath.Join(log, "msgs", "1.blk")
	rel, err := filepath.Rel(cfg.Dir, block)
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(block)
	if err != nil {
		t.Fatal(err)
	}
	type moment struct{ step, dir string }
	var moments []moment
	j.dir.onStep = func(step string) { moments = append(moments, moment{step, crash(t, cfg.Dir)}) }
	if n, err := j.Erase(ctx, 1, at); err != nil || n != 4 {
		t.Fatal(n, err)
	}
	j.dir.onStep = nil
	fresh, err := os.ReadFile(block)
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh) != len(old) {
		t.Fatal("the block has another length")
	}
	var names []string
	for _, m := range moments {
		names = append(names, m.step)
	}
	if want := []string{"noted", "overwriting", "overwriting", "overwriting", "overwriting", "written", "synced"}; !slices.Equal(names, want) {
		t.Fatalf("steps %v, want %v", names, want)
	}
	afterwards := func(what, dir string, content bool) {
		t.Helper()
		k, err := Open(ctx, Config{Dir: dir, Node: "n"})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		defer k.Close()
		for i, pos := range at {
			r, err := k.Read(ctx, pos)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			if HasContent(r) != content {
				t.Errorf("%s: record %s has content: %v", what, pos, HasContent(r))
			}
			if _, ok := k.Seen("s", fmt.Sprint(i)); !ok {
				t.Errorf("%s: a replay would be accepted", what)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, redoName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is left", what, redoName)
		}
	}
	copyOf := func(dir string) string { return crash(t, dir) }
	for i, m := range moments {
		afterwards(fmt.Sprintf("killed at %d (%s)", i, m.step), copyOf(m.dir), false)
		if m.step == "synced" {
			continue
		}
		// Without a sync any part of what was written may be on the disk: what
		// the file had, and of each page the old or the new.
		sizes := []int{512, 100, 33}
		if testing.Short() {
			sizes = sizes[1:2]
		}
		for _, size := range sizes {
			dir := copyOf(m.dir)
			mixed := slices.Clone(old)
			for k := 0; k < len(mixed); k += 2 * size {
				copy(mixed[k:min(len(mixed), k+size)], fresh[k:])
			}
			if err := os.WriteFile(filepath.Join(dir, rel), mixed, 0o600); err != nil {
				t.Fatal(err)
			}
			afterwards(fmt.Sprintf("power lost at %d (%s), every %d bytes written", i, m.step, size), dir, false)
		}
	}
	// A note that is not whole was not begun to be carried out.
	dir := copyOf(moments[0].dir)
	b, err := os.ReadFile(filepath.Join(dir, redoName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, redoName), b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	afterwards("a note that is cut", dir, true)
}

// TestEraseSteps proves that nothing is overwritten before the note of it is
// on the disk, and that the note stays until what was written is.
func TestEraseSteps(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &directory{path: dir}
	seen := map[string]string{}
	d.onStep = func(step string) {
		b, err := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat(filepath.Join(dir, redoName))
		seen[step] = fmt.Sprint(string(b), " ", err == nil)
	}
	if err := d.overwrite([]patch{{File: "f", Offset: 3, Data: []byte("xyz")}}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"noted": "0123456789 true", "overwriting": "0123456789 true", "written": "012xyz6789 true", "synced": "012xyz6789 true"}
	if d := cmp.Diff(want, maps.Clone(seen)); d != "" {
		t.Error(d)
	}
	if err := d.overwrite([]patch{{File: "../f", Data: []byte("x")}}); err == nil {
		t.Error("it writes outside of its directory")
	}
}

func TestErasures(t *testing.T) {
	c := newClock()
	j := open(t, Config{Dir: t.TempDir(), Now: c.now})
	ctx := t.Context()
	for i := range 3 {
		e, err := j.NewErasure(ctx, Erasure{What: "conversation", Name: fmt.Sprint(i), By: "op"})
		if err != nil || e.Number != uint64(i+1) || e.Begun != c.now() {
			t.Fatal(e, err)
		}
		e.Ended, e.Records = c.now().Add(time.Second), 7
		if err := j.PutErasure(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	list, err := j.Erasures(ctx)
	if err != nil || len(list) != 3 || list[2].Name != "2" || list[2].Records != 7 || list[2].Ended.IsZero() {
		t.Fatal(list, err)
	}
	if _, err := j.Erase(ctx, 0, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := j.Erase(ctx, 1, []Position{{9, 1}}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if n, err := j.Erase(ctx, 1, []Position{{0, 12345}}); err != nil || n != 0 {
		t.Error(n, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := j.Append(ctx, Entry{Scope: "s", Message: told(t, "a", "b", "c")}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Erase(ended, 1, []Position{{0, 1}}); err == nil {
		t.Error("it went on without its caller")
	}
}

// TestScrub: what was replaced in the state is in no file any more, and what is
// in force stays, through a crash and an orderly end, while others write.
func TestScrub(t *testing.T) {
	for name, key := range map[string][]byte{"clear": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), Key: key, Node: "n"}
			j := open(t, cfg)
			ctx := t.Context()
			s := j.State("b")
			keys := 300
			if testing.Short() {
				keys = 60
			}
			big := strings.Repeat("x", 20_000) // so that there are some blocks
			for i := range keys {
				if _, err := s.Put(ctx, fmt.Sprint("k", i), []byte(marzipan+big), time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			want := map[string]string{}
			for i := range keys {
				k := fmt.Sprint("k", i)
				switch i % 3 {
				case 0:
					if err := s.Delete(ctx, k, 0); err != nil {
						t.Fatal(err)
					}
				case 1:
					if _, err := s.Put(ctx, k, []byte("nougat"), time.Time{}); err != nil {
						t.Fatal(err)
					}
					want[k] = "nougat"
				default:
					if _, err := s.Put(ctx, k, []byte(big+k), j.cfg.Now().Add(time.Hour)); err != nil {
						t.Fatal(err)
					}
					want[k] = big + k
				}
			}
			if key == nil && len(holds(t, cfg.Dir, "marzipan")) == 0 {
				t.Fatal("the engine has overwritten it by itself: nothing is tested")
			}
			// A dead letter says why in the checkpoints, until it is dropped.
			m := request(t, "alice", "bob")
			if _, err := j.Append(ctx, Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Dead, Error: parley.Refuse(parley.Rejected, marzipan)}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Scrub(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Dropped}}}); err != nil {
				t.Fatal(err)
			}
			if n, err := j.Erase(ctx, 1, []Position{{0, 2}}); err != nil || n != 1 {
				t.Fatal(n, err)
			}
			l := startLoad(t, j, 2)
			if n, err := j.Scrub(ctx); err != nil || n == 0 {
				t.Fatal(n, err)
			}
			l.check(t)
			if files := holds(t, cfg.Dir, "marzipan"); len(files) > 0 {
				t.Errorf("it is still in %v", files)
			}
			check := func(what string, j *Journal) {
				t.Helper()
				if got := stateOf(t, j, "b"); !maps.Equal(got, want) {
					t.Errorf("%s: %d values, want %d", what, len(got), len(want))
				}
			}
			check("at once", j)
			check("after a crash", open(t, Config{Dir: crash(t, cfg.Dir), Key: key, Node: "n"}))
			k := reopened(t, j, cfg)
			defer k.Close()
			check("after a restart", k)
		})
	}
}

// TestScrubOfWhatWasWrittenAnew: a note of what is to be overwritten does nothing
// to a file that has something else there by now.
func TestScrubOfWhatWasWrittenAnew(t *testing.T) {
	dir := t.TempDir()
	d := &directory{path: dir}
	for have, want := range map[string]string{"head old tail": "head new tail", "heaD old tail": "heaD old tail", "head o": "head o"} {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(have), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.overwrite([]patch{{File: "f", Offset: 5, Data: []byte("new"), Before: []byte("head ")}}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != want {
			t.Errorf("%q became %q, %v", have, got, err)
		}
	}
}
