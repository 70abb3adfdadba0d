package journal

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

func TestTrim(t *testing.T) {
	kinds := map[string][]byte{"encrypted": []byte("a key of sixteen or more bytes"), "clear": nil}
	for name, key := range kinds {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			cfg := setup{Dir: t.TempDir(), Key: key, Now: c.now, Node: "n"}
			j := open(t, cfg)
			ctx := t.Context()
			size := 10_000
			var at []Position
			add := func(e Entry) Position {
				t.Helper()
				e.Scope = "s"
				if e.Message == nil {
					e.Message = request(t, "alice", "bob")
				}
				e.Message.Parts = []parley.Part{parley.Text(strings.Repeat("x", size))}
				pos, err := j.Append(ctx, e)
				if err != nil {
					t.Fatal(err)
				}
				at = append(at, pos)
				return pos
			}
			const some = 10
			for range 2 * some {
				add(Entry{})
			}
			held := add(Entry{Open: []Opening{{To: "bob"}}})
			for range some {
				add(Entry{})
			}
			c.add(time.Hour)
			trim := func(want bool) uint64 {
				t.Helper()
				before := j.Stats().Partitions[0]
				n, err := j.Trim(ctx, 0, c.now().Add(-time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				after := j.Stats().Partitions[0]
				if (n > 0) != want || after.Records != before.Records-n || (after.First > before.First) != want {
					t.Fatalf("%d removed; %+v, then %+v", n, before, after)
				}
				return after.First
			}
			trim(false) // no record is erased yet
			if _, err := j.Erase(ctx, 1, Digests, at); err != nil {
				t.Fatal(err)
			}
			first := trim(true)
			if first > held.Sequence {
				t.Fatalf("a pending delivery was removed: the log begins at %d", first)
			}
			trim(false)
			if _, err := j.Read(ctx, at[0]); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
			if r, err := j.Read(ctx, held); err != nil || r.Erased == nil {
				t.Error(r, err)
			}
			records := 0
			for _, err := range j.Records(ctx, 0, From{}) {
				if err != nil {
					t.Fatal(err)
				}
				records++
			}
			if want := j.Stats().Partitions[0].Records; uint64(records) > want || records == 0 {
				t.Errorf("%d records are read of %d", records, want)
			}
			// A copy from a crash opens, with the held record and its delivery.
			for _, dir := range []string{crash(t, cfg.Dir)} {
				k := open(t, setup{Dir: dir, Key: key, Now: c.now, Node: "n"})
				if r, err := k.Read(ctx, held); err != nil || r.Message == nil {
					t.Error(r, err)
				}
				if d := k.Deliveries(Filter{}); len(d) != 1 {
					t.Errorf("%+v", d)
				}
			}
			b, s := backed(t, j, BackupOptions{})
			if s.Partitions[0].First != first {
				t.Errorf("the backup begins at %d", s.Partitions[0].First)
			}
			to := filepath.Join(t.TempDir(), "r")
			if _, err := tryRestore(ctx, bytes.NewReader(b), restoring{Dir: to, Key: key, Now: c.now}); err != nil {
				t.Fatal(err)
			}
			k := open(t, setup{Dir: to, Key: key, Now: c.now, Node: "n"})
			if got := k.Stats().Partitions[0]; got.First != first {
				t.Errorf("the restored log begins at %d", got.First)
			}
			// A settled delivery no longer holds its record; the head of a chain is
			// kept.
			if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: mustRead(t, j, held).Message.ID, To: "bob",
				State: parley.Answered, Reply: sampleID(1)}}}); err != nil {
				t.Fatal(err)
			}
			chained := add(Entry{Chain: &ChainLink{Name: "c"}})
			for range 2 * some {
				add(Entry{})
			}
			c.add(time.Hour)
			if _, err := j.Erase(ctx, 2, Digests, at[1:]); err != nil {
				t.Fatal(err)
			}
			if first := trim(true); first > chained.Sequence {
				t.Errorf("the head of a chain was removed: the log begins at %d", first)
			}
			if head, err := j.Head(ctx, "s", "c"); err != nil || head != chained.Sequence {
				t.Error(head, err)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			j2, err := tryOpen(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := j2.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func mustRead(t *testing.T, j *Journal, at Position) *Record {
	t.Helper()
	r, err := j.Read(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTrimKeepsReplayKeys: Trim keeps the record of an unexpired replay key.
func TestTrimKeepsReplayKeys(t *testing.T) {
	c := newClock()
	j := open(t, setup{Dir: t.TempDir(), Key: []byte("a key of sixteen or more bytes"), Now: c.now})
	var at []Position
	for i := range 8 {
		m := request(t, "alice", "bob")
		m.Parts = []parley.Part{parley.Text(strings.Repeat("x", 9000))}
		e := Entry{Scope: "s", Message: m, Key: Key{ID: string(rune('a' + i)), Sender: "alice"}}
		if i == 0 {
			e.Key.Until = c.now().Add(10 * time.Hour)
		}
		pos, _, err := j.Accept(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, pos)
	}
	if _, err := j.Erase(t.Context(), 1, Digests, at); err != nil {
		t.Fatal(err)
	}
	c.add(9 * time.Hour)
	if n, err := j.Trim(t.Context(), 0, c.now()); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	if _, ok := j.Seen("s", "a"); !ok {
		t.Error("the key is not seen: a replay would be accepted")
	}
	c.add(2 * time.Hour)
	if n, err := j.Trim(t.Context(), 0, c.now()); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	if _, err := j.Trim(t.Context(), 7, c.now()); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
