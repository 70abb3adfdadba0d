package index

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// TestPruned: after records were removed, a pruned index agrees with a plain reading of
// the remaining records.
func TestPruned(t *testing.T) {
	rounds := uint64(24)
	if testing.Short() {
		rounds = 6
	}
	for seed := range rounds {
		rnd := rand.New(rand.NewPCG(seed, 1))
		j := memoryJournal(t, 1+rnd.IntN(3))
		a := &author{j: j, int: rnd.IntN}
		for range rnd.IntN(60) {
			a.append(t)
		}
		x, err := Open(t.Context(), Config{Journal: j, gather: time.Millisecond, batch: 1 + rnd.IntN(32)})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := x.Prune(t.Context()); n != 0 || err != nil {
			t.Errorf("%d messages were pruned although no record was removed: %v", n, err)
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		v := scan(t, j)
		for p := range j.Partitions() {
			first := rnd.Uint64N(100)
			n, err := x.before(t.Context(), p, first)
			had := len(v.messages)
			maps.DeleteFunc(v.messages, func(_ parley.ID, m *naiveMessage) bool {
				return m.r.Position.Partition == p && m.r.Position.Sequence < first
			})
			v.count()
			if err != nil || n != had-len(v.messages) {
				t.Errorf("seed %d: %d messages were pruned, want %d: %v", seed, n, had-len(v.messages), err)
			}
			compareWith(t, x, v)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestErased: after an erasure, no file contains the message's text, preview or errors,
// neither while the index is open nor afterwards. The message itself remains, and so do
// other messages.
func TestErased(t *testing.T) {
	j := memoryJournal(t, 1)
	path := filepath.Join(t.TempDir(), "index.db")
	x, err := Open(t.Context(), Config{Journal: j, Path: path, batch: 64, gather: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Few messages are erased: after many erasures, FTS5 merges the rest by itself. The
	// words differ from their first letters on, because the index stores only the part
	// of a word that differs from the word before.
	const messages, every = 600, 20
	word := func(i int, what string) string {
		sum := sha256.Sum256(fmt.Append(nil, i, what))
		return hex.EncodeToString(sum[:12])
	}
	contents := []string{"text", "error", "failure"}
	for i := range messages {
		id := testID(uint64(i+1), 1)
		m := &parley.Message{ID: id, Kind: parley.Notice, From: "ophelia", To: "hamlet", Conversation: testID(1, 2),
			Parts: []parley.Part{parley.Text(strings.Repeat("long ago ", i%50) + word(i, "text") + " is told")}}
		if i%3 == 0 {
			m.Kind, m.Error = parley.Failure, parley.Refuse(parley.Forbidden, "%s", word(i, "error"))
		}
		e := journal.Entry{Scope: "hamlet", Message: m, Open: []journal.Opening{{To: "hamlet", Attempt: 1}}}
		if _, err := j.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if err := x.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if i < 20 {
			continue
		}
		// The row of a delivery that is already in the file grows.
		s := journal.Step{Message: testID(uint64(i-19), 1), To: "hamlet", State: parley.Dead, Attempt: 1,
			Error: parley.Refuse(parley.TimedOut, "%s", word(i-20, "failure"))}
		if _, err := j.Append(t.Context(), journal.Entry{Steps: []journal.Step{s}}); err != nil {
			t.Fatal(err)
		}
	}
	var ids []parley.ID
	for i := 0; i < messages; i += every {
		ids = append(ids, testID(uint64(i+1), 1))
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	// left returns the words of a message that the files contain, whole or in part.
	left := func(i int) (out []string) {
		t.Helper()
		list, err := filepath.Glob(path + "*")
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		for _, name := range list {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, what := range contents {
				if w := word(i, what); bytes.Contains(b, []byte(w[8:])) || bytes.Contains(b, []byte(w[:16])) {
					out = append(out, what+" in "+filepath.Base(name))
				}
			}
		}
		return out
	}
	if len(left(0)) < 2 {
		t.Fatalf("before the erasure the files contain too few words of message 0: %v", left(0))
	}
	if err := x.Erase(t.Context(), false, append(ids, testID(9999, 1))...); err != nil {
		t.Fatal(err)
	}
	if err := x.Erase(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		for i := range messages {
			if found := left(i); i%every == 0 && len(found) > 0 {
				t.Errorf("the files contain words of the erased message %d: %v", i, found)
			} else if i%every == 1 && len(found) == 0 {
				t.Errorf("the files contain no word of message %d, which was not erased", i)
			}
		}
	}
	check()
	for i := range 4 {
		list := all(t, x, Filter{Text: word(i, "text")})
		if len(list) != min(i, 1) || i > 0 && list[0].ID != testID(uint64(i+1), 1) {
			t.Errorf("a search for the word of message %d returns %+v", i, list)
		}
	}
	if list := all(t, x, Filter{From: "ophelia", Oldest: true}); len(list) != messages || list[0].Preview != "" ||
		list[0].Deliveries[0].Error.Text != "" || list[1].Preview == "" || list[1].Deliveries[0].Error.Text == "" {
		t.Errorf("the messages are %+v", list[:2])
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	check()
}

// TestManyMembers: a conversation lists at most maxMembers agents, is found by each of
// its agents, and leaves no row when it is removed.
func TestManyMembers(t *testing.T) {
	j := memoryJournal(t, 1)
	const agents = 276
	for i := range agents {
		m := &parley.Message{ID: testID(uint64(i+1), 1), Kind: parley.Notice, From: fmt.Sprintf("agent-%03d", i),
			To: "all", Conversation: testID(1, 2)}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "all", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	x := openIndex(t, Config{Journal: j, batch: 7})
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	find := func(name string) []Conversation {
		t.Helper()
		page, err := x.Conversations(t.Context(), ConversationFilter{Agent: name})
		if err != nil {
			t.Fatal(err)
		}
		return page.Conversations
	}
	for _, x.few = range []int{fewMessages, 0} { // 0: the query reads all conversations
		for _, name := range []string{"all", "agent-000", fmt.Sprintf("agent-%03d", agents-1)} {
			if list := find(name); len(list) != 1 || list[0].Messages != agents || len(list[0].Agents) != maxMembers {
				t.Errorf("%s finds %+v", name, list)
			}
		}
	}
	if n, err := x.before(t.Context(), 0, 1<<40); n != agents || err != nil {
		t.Fatal(n, err)
	}
	if err := x.do(t.Context(), func(s *store) error {
		for _, table := range []string{"messages", "conversations", "lists", "texts"} {
			if n, err := number(s.c, "SELECT count(*) FROM "+table); n != 0 || err != nil {
				t.Errorf("%d rows are left in %s: %v", n, table, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// rebuilding makes a journal of many records and the configuration of its index; steps
// returns the reported progress.
func rebuilding(t *testing.T, exchanges int) (j *journal.Journal, c Config, steps func() [][2]uint64) {
	j = memoryJournal(t, 2)
	fill(t, j, exchanges)
	var mu sync.Mutex
	var list [][2]uint64
	c = Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"), batch: 8, Progress: func(done, total uint64) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, [2]uint64{done, total})
	}}
	return j, c, func() [][2]uint64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// TestProgress: a rebuild reports its progress over all partitions, which never
// decreases and ends at the total.
func TestProgress(t *testing.T) {
	j, c, steps := rebuilding(t, 300)
	x, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.do(t.Context(), func(*store) error { return nil }); err != nil {
		t.Fatal(err)
	}
	list := steps()
	var total uint64
	for _, p := range j.Stats().Partitions {
		total += p.Applied
	}
	if len(list) < 4 {
		t.Fatalf("too few progress reports: %v", list)
	}
	for i, s := range list {
		if s[1] != total || i > 0 && s[0] < list[i-1][0] {
			t.Errorf("report %d is %v after %v", i, s, list[max(0, i-1)])
		}
	}
	if last := list[len(list)-1]; last[0] != last[1] {
		t.Errorf("the last report is %v", last)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestJobsEnd: a job of the writer ends when the index is closed, and when the caller's
// context ends.
func TestJobsEnd(t *testing.T) {
	x, err := Open(t.Context(), Config{Journal: memoryJournal(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := x.do(t.Context(), func(*store) error { close(held); <-ctx.Done(); return nil }); err != nil {
			t.Error(err)
		}
	})
	<-held
	second, stop := context.WithCancel(t.Context())
	stop()
	if err := x.Erase(second, false, testID(1, 1)); err != context.Canceled {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.Erase(t.Context(), false, testID(1, 1)); err != errClosed {
		t.Error(err)
	}
}

// TestConversationsOfMany: both query plans, for agents with few and with many
// conversations, return the same conversations over several pages.
func TestConversationsOfMany(t *testing.T) {
	j, _ := filled(t, 300)
	x := openIndex(t, Config{Journal: j, batch: 16})
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
		x.few = fewMessages
		want := list(name)
		x.few = 0
		got := list(name)
		if !slices.EqualFunc(got, want, func(a, b Conversation) bool { return a.ID == b.ID && a.Last.Equal(b.Last) }) {
			t.Errorf("%s: the plans for many and for few differ: %d and %d conversations", name, len(got), len(want))
		}
		found += len(want)
	}
	if found < 10 {
		t.Errorf("only %d conversations were found", found)
	}
}

// TestRebuiltTexts: messages indexed by a rebuild can be searched, erased and removed.
// Later messages are found as well.
func TestRebuiltTexts(t *testing.T) {
	j := memoryJournal(t, 1)
	a := &author{j: j, int: rand.New(rand.NewPCG(1, 2)).IntN}
	for range 120 {
		a.append(t)
	}
	x, err := Open(t.Context(), Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"), batch: 8,
		gather: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if err := x.do(t.Context(), func(s *store) error {
			return execute(s.c, "INSERT INTO texts (texts) VALUES ('integrity-check')", nil)
		}); err != nil {
			t.Fatal(err)
		}
	}
	check()
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
		t.Fatalf("only %d messages were found", len(list))
	}
	if err := x.Erase(t.Context(), false, list[0].ID, list[1].ID); err != nil {
		t.Fatal(err)
	}
	if n := len(all(t, x, word)); n != len(list)-2 {
		t.Errorf("two of %d messages were erased; %d are found", len(list), n)
	}
	for p := range j.Partitions() {
		if _, err := x.before(t.Context(), p, 1<<40); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(all(t, x, word)); n != 0 {
		t.Errorf("after the removal of all messages %d are found", n)
	}
	check()
	if err := x.do(t.Context(), func(s *store) error {
		for _, table := range []string{"messages", "conversations", "lists"} {
			if n, err := number(s.c, "SELECT count(*) FROM "+table); n != 0 || err != nil {
				t.Errorf("%d rows are left in %s: %v", n, table, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
