package index

import (
	"cmp"
	"database/sql"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestLists: keys are read as they were put in, from anywhere and in both
// directions, and are gone when they are taken out.
func TestLists(t *testing.T) {
	rounds, most := 20, 2000
	if testing.Short() {
		rounds, most = 4, 500
	}
	for seed := range uint64(rounds) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		low, parts := 3, 1+rnd.IntN(4)
		name := fmt.Sprintf("file:/parley-index-%d?vfs=memdb", memories.Add(1))
		f, err := openFile(name, fmt.Sprintf(listSchema, "keys"), version, "journal", 1, 1<<10)
		if err != nil {
			t.Fatal(err)
		}
		l, err := openLists(f, "keys", low)
		if err != nil {
			t.Fatal(err)
		}
		model, last := map[[2]int64]bool{}, make([]int64, parts)
		for range 1 + rnd.IntN(6) {
			var pairs [][2]int64
			for range rnd.IntN(most) {
				p := rnd.IntN(parts)
				last[p] += 1 + rnd.Int64N(1<<rnd.IntN(40))
				key := last[p]<<low | int64(p)
				for agent := range int64(3) {
					if rnd.IntN(3) > 0 {
						pairs = append(pairs, [2]int64{agent + 1, key})
						model[pairs[len(pairs)-1]] = true
					}
				}
			}
			if err := l.insert(pairs); err != nil {
				t.Fatal(err)
			}
			var gone [][2]int64
			for p := range model {
				if rnd.IntN(10) == 0 {
					delete(model, p)
					gone = append(gone, p)
				}
			}
			gone = append(gone, [2]int64{1, math.MaxInt64}, [2]int64{9, 1})
			if err := l.remove(gone); err != nil {
				t.Fatal(err)
			}
		}
		db, err := sql.Open("sqlite", name)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.SortedFunc(func(yield func([2]int64) bool) {
			for p := range model {
				if !yield(p) {
					return
				}
			}
		}, func(a, b [2]int64) int { return cmp.Compare(a[1], b[1]) })
		for range 10 {
			agent, oldest := 1+rnd.Int64N(4), rnd.IntN(2) == 0
			after, before := int64(0), int64(math.MaxInt64)
			for _, to := range []*int64{&after, &before} {
				if len(all) > 0 && rnd.IntN(2) == 0 {
					*to = all[rnd.IntN(len(all))][1] + rnd.Int64N(3) - 1
				}
			}
			var want, got []int64
			for _, p := range all {
				if p[0] == agent && p[1] > after && p[1] < before {
					want = append(want, p[1])
				}
			}
			if !oldest {
				slices.Reverse(want)
			}
			r, err := newListReader(t.Context(), tx, "keys", agent, low, parts, oldest, after, before)
			for err == nil {
				var some []int64
				if some, err = r.next(t.Context(), 1+rnd.IntN(700)); len(some) == 0 {
					break
				}
				got = append(got, some...)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d: agent %d, oldest %v, from %d to %d: %d keys, want %d: %v", seed, agent, oldest, after, before, len(got), len(want), err)
			}
		}
		var pairs [][2]int64
		for p := range model {
			pairs = append(pairs, p)
		}
		if err := cmp.Or(tx.Rollback(), db.Close(), l.remove(pairs)); err != nil {
			t.Fatal(err)
		}
		if n, err := f.number("SELECT count(*) FROM keys"); n != 0 || err != nil {
			t.Errorf("%d rows are left: %v", n, err)
		}
		if err := f.c.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConversationsOfMany: an agent with many conversations is given the same ones
// as one with few, a page at a time.
func TestConversationsOfMany(t *testing.T) {
	j, _ := filled(t, 300)
	x := openIndex(t, Config{Journal: j, Batch: 16})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	list := func(agent string) (out []Conversation) {
		t.Helper()
		f := ConversationFilter{Agent: agent, Limit: 7}
		for {
			page, err := x.Conversations(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, page.Conversations...)
			if f.Cursor = page.Next; f.Cursor == "" {
				return out
			}
		}
	}
	found := 0
	for agent := range 6 {
		name := fmt.Sprintf("a%d", agent)
		x.few = fewConversations
		want := list(name)
		x.few = 0
		got := list(name)
		if !slices.EqualFunc(got, want, func(a, b Conversation) bool { return a.ID == b.ID && a.Last.Equal(b.Last) }) {
			t.Errorf("%s is in %d conversations, or in %d", name, len(got), len(want))
		}
		found += len(want)
	}
	if found < 10 {
		t.Errorf("only %d were found", found)
	}
}

// TestRebuiltTexts: what a rebuild stored can be searched, erased and removed, and
// what comes later is found beside it.
func TestRebuiltTexts(t *testing.T) {
	j := memoryJournal(t, 1)
	a := &author{j: j, int: rand.New(rand.NewPCG(1, 2)).IntN}
	for range 120 {
		a.append(t)
	}
	x, err := Open(t.Context(), Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"), Batch: 8, Gather: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	levels := func() (out []int) {
		t.Helper()
		if err := x.do(t.Context(), func(s *store) error {
			b, err := s.search.bulk.read(structureRow)
			if err != nil {
				return err
			}
			st, err := readStructure(b)
			for _, l := range st.levels {
				out = append(out, len(l.segments))
			}
			return cmp.Or(err, s.search.c.exec("INSERT INTO texts (texts) VALUES ('integrity-check')"))
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if l := levels(); len(l) <= bulkLevel || l[0] != 0 {
		t.Errorf("the rebuild made segments on the levels %v", l)
	}
	for range 10 {
		a.append(t)
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, x, j)
	word := Filter{Text: "word3"}
	list := all(t, x, word)
	if len(list) < 5 {
		t.Fatalf("found %d", len(list))
	}
	if err := x.Erase(t.Context(), false, list[0].ID, list[1].ID); err != nil {
		t.Fatal(err)
	}
	if n := len(all(t, x, word)); n != len(list)-2 {
		t.Errorf("of %d two were erased; %d are found", len(list), n)
	}
	for p := range j.Partitions() {
		if _, err := x.before(t.Context(), p, 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(all(t, x, word)); n != 0 {
		t.Errorf("after all were removed %d are found", n)
	}
	levels()
}
