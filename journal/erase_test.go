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

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

const marzipan = "the secret word is marzipan"

// holds returns the files of a directory that contain a text.
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

// told makes a message as a protocol does: with the text in the envelope, in a part
// outside it, in headers and in extensions.
func told(t testing.TB, from, to, text string) *parley.Message {
	m := request(t, from, to)
	raw := []byte(`{"envelope":"` + strings.Repeat("e", 80) + text + `"}`)
	at := bytes.Index(raw, []byte(text))
	m.Parts = []parley.Part{{MediaType: "text/plain", Data: raw[at : at+len(text)]},
		{MediaType: "text/plain", Name: text + ".txt", Data: []byte(strings.Repeat(text+" ", 5))}}
	m.Extensions = map[string]json.RawMessage{"x": json.RawMessage(`"` + text + `"`)}
	m.Origin = parley.Origin{Protocol: "samvad", Peer: "agent://a", Address: "192.0.2.1", Raw: raw,
		Header: map[string]string{"X-Note": text},
		Verdict: parley.Verdict{Checks: []parley.Check{{Name: "signature", OK: true}}, KeyID: "k",
			Assurance: parley.Signed}}
	return m
}

func TestErase(t *testing.T) {
	for name, key := range map[string][]byte{"clear": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			cfg := setup{Dir: t.TempDir(), Key: key, Node: "n"}
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
			replyAt, err := j.Append(ctx, Entry{Scope: "s", Message: reply,
				Steps: []Step{{Message: ids[3], To: "bob", State: parley.Answered}}})
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
				t.Error("the record of a settled delivery is held", err)
			}
			x, err := j.NewErasure(ctx, Erasure{What: "agent", Name: "alice", By: "op"})
			if err != nil || x.Number != 1 {
				t.Fatal(x, err)
			}
			// Every record but one is erased, the newest of the log too.
			spared := at[7]
			list := append(slices.Delete(slices.Clone(at), 7, 8), replyAt, tinyAt, at[1])
			n, err := j.Erase(ctx, x.Number, Digests, list)
			if err != nil || n != 61 {
				t.Fatal(n, err)
			}
			if n, err := j.Erase(ctx, x.Number, Digests, list); err != nil || n != 0 {
				t.Fatal("a second time:", n, err)
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
					if m.ID != ids[i] || m.From != "alice" || m.To != "bob" ||
						m.Conversation != before.Message.Conversation || !r.Keyed || len(r.Open) != 1 ||
						m.Origin.Verdict.Assurance != parley.Signed {
						t.Errorf("the erasure removed more than the content: %+v", r)
					}
					if HasContent(r, Digests) || m.Origin.Raw != nil || m.Origin.Header != nil || m.Origin.Address != "" ||
						m.Parts[0].Data != nil || m.Parts[1].Name != "" || m.Extensions != nil {
						t.Errorf("the erased record has content: %+v", m)
					}
					if m.Parts[1].Digest == "" || m.Parts[0].Digest != "" {
						t.Errorf("digests %q and %q: want none for short content, which can be guessed",
							m.Parts[0].Digest, m.Parts[1].Digest)
					}
					if p, ok := j.Seen("s", fmt.Sprint(i)); !ok || p.Message != ids[i] {
						t.Errorf("key %d is not seen: a replay would be accepted", i)
					}
				}
				if r, err := j.Read(ctx, tinyAt); err != nil || r.Erased == nil || len(r.Message.Parts[0].Data) != 0 {
					t.Error(r, err)
				}
				if head, err := j.Head(ctx, "s", "c"); err != nil || head != chain {
					t.Error("the chain's head moved:", head, err)
				}
				if r, err := j.Read(ctx, replyAt); err != nil || len(r.Steps) != 1 || r.Message.InReplyTo != ids[3] ||
					r.Erased == nil {
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
			if _, err := j.Erase(ctx, 1, Digests, []Position{spared}); err != nil {
				t.Fatal(err)
			}
			if files := holds(t, cfg.Dir, "marzipan"); len(files) > 0 {
				t.Errorf("the content is still in %v", files)
			}
			spared = Position{}
			check(j)
			// The chain goes on, and all of this holds after a crash and after a
			// restart.
			next, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "alice", "bob"),
				Chain: &ChainLink{Name: "c", After: chain}})
			if err != nil {
				t.Fatal(err)
			}
			chain = next.Sequence
			check(open(t, setup{Dir: crash(t, cfg.Dir), Key: key, Node: "n"}))
			b, _ := backed(t, j, BackupOptions{})
			if bytes.Contains(b, []byte("marzipan")) {
				t.Error("a backup contains erased content")
			}
			to := filepath.Join(t.TempDir(), "r")
			if _, err := tryRestore(ctx, bytes.NewReader(b), restoring{Dir: to, Key: key}); err != nil {
				t.Fatal(err)
			}
			check(open(t, setup{Dir: to, Key: key, Node: "n"}))
			k := reopened(t, j, cfg)
			defer k.Close()
			check(k)
		})
	}
}

// reopened closes a journal and opens it again.
func reopened(t *testing.T, j *Journal, c setup) *Journal {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	k, err := tryOpen(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestEraseLeavesHeaders: an erasure may leave the headers of the transport and the network
// address, which a later one removes; the digests are those of the first.
func TestEraseLeavesHeaders(t *testing.T) {
	j := open(t, setup{Dir: t.TempDir(), Node: "n"})
	ctx := t.Context()
	at, err := j.Append(ctx, Entry{Scope: "s", Message: told(t, "alice", "bob", marzipan)})
	if err != nil {
		t.Fatal(err)
	}
	before, err := j.Read(ctx, at)
	if err != nil || before.Message.Origin.Header == nil || before.Message.Origin.Address == "" {
		t.Fatal(before, err)
	}
	erase := func(number uint64, left Remains, want int) *Record {
		t.Helper()
		if n, err := j.Erase(ctx, number, left, []Position{at}); err != nil || n != want {
			t.Fatal(n, err)
		}
		r, err := j.Read(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		if m := r.Message; m.Origin.Raw != nil || m.Extensions != nil || m.Parts[0].Data != nil || m.Parts[1].Name != "" ||
			HasContent(r, left) {
			t.Errorf("content is left: %+v", m)
		}
		return r
	}
	first := erase(1, Headers, 1)
	if o := first.Message.Origin; !maps.Equal(o.Header, before.Message.Origin.Header) || o.Address == "" ||
		first.Erased.Number != 1 || !HasContent(first, Digests) {
		t.Errorf("%+v %+v", o, first.Erased)
	}
	erase(2, Headers, 0)
	last := erase(3, Digests, 1)
	if o := last.Message.Origin; o.Header != nil || o.Address != "" || last.Erased.Number != 3 ||
		!bytes.Equal(last.Erased.Digest, first.Erased.Digest) || last.Erased.Size != first.Erased.Size ||
		last.Message.Parts[1].Digest == "" || last.Message.Parts[1].Digest != first.Message.Parts[1].Digest {
		t.Errorf("%+v %+v", last.Message, last.Erased)
	}
}

// TestEraseLarge erases large records while appends go on.
func TestEraseLarge(t *testing.T) {
	cfg := setup{Dir: t.TempDir(), Key: []byte("a key of sixteen or more bytes")}
	j := open(t, cfg)
	ctx := t.Context()
	big := strings.Repeat("marzipan ", 7000)
	var at []Position
	messages := 80
	if testing.Short() {
		messages = 45
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
	l := startLoad(t, j, 4)
	eventually(t, "the load has appended", func() bool { n, _ := l.count(); return n > 50 })
	want := 0
	var list []Position
	for i, pos := range at {
		if i%2 == 0 {
			list = append(list, pos)
			want++
		}
	}
	if n, err := j.Erase(ctx, 1, Digests, list); err != nil || n != want {
		t.Fatal(n, err)
	}
	l.check(t)
	k := open(t, setup{Dir: crash(t, cfg.Dir), Key: cfg.Key})
	for i, pos := range at {
		for _, x := range []*Journal{j, k} {
			r, err := x.Read(ctx, pos)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 && (r.Erased == nil || len(r.Message.Parts[0].Data) > 0) || i%2 == 1 &&
				string(r.Message.Parts[0].Data) != big {
				t.Errorf("record %s: want every second record erased, the others unchanged", pos)
			}
		}
	}
}

func TestErasures(t *testing.T) {
	c := newClock()
	j := open(t, setup{Dir: t.TempDir(), Now: c.now})
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
	if _, err := j.Erase(ctx, 0, Digests, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := j.Erase(ctx, 1, Digests, []Position{{9, 1}}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if n, err := j.Erase(ctx, 1, Digests, []Position{{0, 12345}}); err != nil || n != 0 {
		t.Error(n, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := j.Append(ctx, Entry{Scope: "s", Message: told(t, "a", "b", "c")}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Erase(ended, 1, Digests, []Position{{0, 1}}); err == nil {
		t.Error("Erase goes on after its context has ended")
	}
}

// changing is a store whose values change once while they are listed, and come again.
type changing struct {
	store.Store
	change func()
}

func (s *changing) Range(ctx context.Context, bucket, prefix string, fn func(store.Value) bool) error {
	var seen uint64
	each := func(v store.Value) bool {
		if v.Revision <= seen {
			return true
		}
		seen = v.Revision
		return fn(v)
	}
	err := s.Store.Range(ctx, bucket, prefix, each)
	if change := s.change; err == nil && change != nil {
		s.change = nil
		change()
		err = s.Store.Range(ctx, bucket, prefix, each)
	}
	return err
}

// An erasure that ends while erasures are listed is in the list once, as ended.
func TestErasuresThatChange(t *testing.T) {
	s := &changing{}
	j := open(t, setup{Dir: t.TempDir(), wrap: func(x store.Store) store.Store {
		s.Store = x
		return s
	}})
	e, err := j.NewErasure(t.Context(), Erasure{What: "agent", Name: "few"})
	if err != nil {
		t.Fatal(err)
	}
	s.change = func() {
		e.Ended = time.Now()
		if err := j.PutErasure(t.Context(), e); err != nil {
			t.Error(err)
		}
	}
	list, err := j.Erasures(t.Context())
	if err != nil || len(list) != 1 || list[0].Ended.IsZero() {
		t.Fatal(list, err)
	}
}

// TestScrub: after Scrub, no file contains a replaced or deleted value of the state.
// Current values remain, after a crash and after a restart, and appends go on meanwhile.
func TestScrub(t *testing.T) {
	t.Parallel()
	for name, key := range map[string][]byte{"clear": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			cfg := setup{Dir: t.TempDir(), Key: key, Node: "n"}
			j := open(t, cfg)
			ctx := t.Context()
			s := j.State("b")
			keys := 300
			if testing.Short() {
				keys = 60
			}
			big := strings.Repeat("x", 20_000) // more than a page
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
				t.Fatal("no file contains the replaced values: nothing is tested")
			}
			// The checkpoints contain a dead letter's error until the letter is dropped.
			m := request(t, "alice", "bob")
			if _, err := j.Append(ctx, Entry{Scope: "s", Message: m, Open: []Opening{{To: "bob"}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Dead,
				Error: parley.Refuse(parley.Rejected, marzipan)}}}); err != nil {
				t.Fatal(err)
			}
			if err := j.Scrub(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob",
				State: parley.Dropped}}}); err != nil {
				t.Fatal(err)
			}
			if n, err := j.Erase(ctx, 1, Digests, []Position{{0, 2}}); err != nil || n != 1 {
				t.Fatal(n, err)
			}
			l := startLoad(t, j, 2)
			if err := j.Scrub(ctx); err != nil {
				t.Fatal(err)
			}
			l.check(t)
			if files := holds(t, cfg.Dir, "marzipan"); len(files) > 0 {
				t.Errorf("replaced content is still in %v", files)
			}
			check := func(what string, j *Journal) {
				t.Helper()
				if got := stateOf(t, j, "b"); !maps.Equal(got, want) {
					t.Errorf("%s: %d values, want %d", what, len(got), len(want))
				}
			}
			check("at once", j)
			check("after a crash", open(t, setup{Dir: crash(t, cfg.Dir), Key: key, Node: "n"}))
			k := reopened(t, j, cfg)
			defer k.Close()
			check("after a restart", k)
		})
	}
}
