package journal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/parley-hub/parley"
)

// many appends records of which some are large, so that there are some blocks.
func many(t *testing.T, j *Journal, n, large int) {
	t.Helper()
	big := strings.Repeat("marzipan ", 170_000) // more than is read of a block at once
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				m := request(t, "alice", "bob")
				m.Parts = []parley.Part{parley.Text(fmt.Sprint("number ", i))}
				if i < large {
					m.Parts = []parley.Part{parley.Text(big)}
				}
				if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestBlocks: what is read from the engine's files is what the engine gives.
func TestBlocks(t *testing.T) {
	for name, key := range map[string][]byte{"plain": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			j := open(t, Config{Dir: t.TempDir(), Key: key})
			many(t, j, 200, 6)
			p := j.parts[0]
			if _, err := j.Erase(t.Context(), 1, []Position{{0, 5}, {0, 77}}); err != nil {
				t.Fatal(err)
			}
			f := blockFiles{d: j.dir, cfg: &j.cfg, stream: p.writer.stream}
			dir := j.dir.stream(partLog + "/" + f.stream)
			blocks, err := blockNumbers(dir)
			if err != nil || len(blocks) < 2 {
				t.Fatal(blocks, err)
			}
			l, err := j.live()
			if err != nil {
				t.Fatal(err)
			}
			last := p.position()
			for _, r := range [][2]uint64{{1, last}, {2, 2}, {100, last - 1}, {last, last}, {last + 1, last + 5}, {90, last + 100}, {150, 149}} {
				var want, got [][32]byte
				note := func(to *[][32]byte) func(*stored) bool {
					return func(s *stored) bool {
						// Erased ones are filled up with anything.
						r, err := p.read(s)
						if err != nil {
							t.Error(err)
							return false
						}
						form := fmt.Appendln(nil, s.seq, s.subject)
						if r != nil {
							form = append(form, encode(r)...)
						}
						*to = append(*to, sha256.Sum256(form))
						return true
					}
				}
				if err := l.pages(t.Context(), f.stream, r[0], r[1], note(&want)); err != nil {
					t.Fatal(err)
				}
				next, err := f.records(t.Context(), r[0], r[1], note(&got))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%v: %d records of the files, %d of the engine, or others", r, len(got), len(want))
				}
				if len(got) > 0 && next != min(r[1], last)+1 || len(got) == 0 && next != r[0] {
					t.Errorf("%v: it goes on at %d", r, next)
				}
			}
			n := 0
			if next, err := f.records(t.Context(), 10, last, func(*stored) bool { n++; return n < 7 }); n != 7 || next != 17 || err != nil {
				t.Errorf("ended after %d records, before %d: %v", n, next, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := f.records(ctx, 1, last, func(*stored) bool { return true }); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
}

// TestBlocksDamaged: at what is not as expected, the reading says where it ended,
// and the journal goes on through the engine.
func TestBlocksDamaged(t *testing.T) {
	j := open(t, Config{Dir: t.TempDir()})
	many(t, j, blocksFrom+100, 0)
	p := j.parts[0]
	f := blockFiles{d: j.dir, cfg: &j.cfg, stream: p.writer.stream}
	last := p.position()
	var at []uint64
	all := func() (n int, first uint64) {
		t.Helper()
		for r, err := range j.Records(t.Context(), 0, From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 1 {
				first = r.Position.Sequence
			}
		}
		return n, first
	}
	whole, first := all()
	if whole != blocksFrom+100 {
		t.Fatalf("%d records", whole)
	}
	// The engine holds the newest block in memory: it still gives what is spoilt here.
	blocks, err := blockNumbers(j.dir.stream(partLog + "/" + f.stream))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(j.dir.stream(partLog+"/"+f.stream), "msgs", strconv.Itoa(blocks[0])+".blk")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		at = at[:0]
		next, err := f.records(t.Context(), 1, last, func(s *stored) bool { at = append(at, s.seq); return true })
		if !errors.Is(err, errBlocks) && name != "cut" || len(at) >= whole || len(at) > 0 && next != at[len(at)-1]+1 {
			t.Errorf("%s: %d records, next %d: %v", name, len(at), next, err)
		}
		if n, from := all(); n != whole || from != first {
			t.Errorf("%s: %d records from %d, want %d from %d", name, n, from, whole, first)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flipped := slices.Clone(good)
	flipped[len(flipped)/2] ^= 1
	spoil("flipped", flipped)
	spoil("no length", make([]byte, 200))
	spoil("cut", good[:len(good)/2])
}
