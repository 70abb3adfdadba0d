package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// TestPruned: whatever goes, the index says of the rest what a plain reading of
// a journal without it says.
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
		x, err := Open(t.Context(), Config{Journal: j, Gather: time.Millisecond, Batch: 1 + rnd.IntN(32)})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := x.Prune(t.Context()); n != 0 || err != nil {
			t.Errorf("of a whole journal %d messages are pruned: %v", n, err)
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
				t.Errorf("seed %d: %d were removed, want %d: %v", seed, n, had-len(v.messages), err)
			}
			compareWith(t, x, v)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestErased: neither words nor the beginning of an erased message are left in
// the file; the message stays, and so do others.
func TestErased(t *testing.T) {
	j := memoryJournal(t, 1)
	path := filepath.Join(t.TempDir(), "index.db")
	x, err := Open(t.Context(), Config{Journal: j, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"rosenkrantz", "guildenstern"} {
		m := &parley.Message{ID: testID(uint64(i), 1), Kind: parley.Notice, From: "ophelia", To: "hamlet", Conversation: testID(1, 2),
			Parts: []parley.Part{parley.Text("secretof" + name + " is told")}}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "hamlet", Message: m, Open: []journal.Opening{{To: "hamlet"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Erase(t.Context(), true, testID(0, 1), testID(9, 1)); err != nil {
		t.Fatal(err)
	}
	if list := all(t, x, Filter{Text: "secretofrosenkrantz"}); len(list) != 0 {
		t.Errorf("found %+v", list)
	}
	if list := all(t, x, Filter{Text: "secretofguildenstern"}); len(list) != 1 || list[0].ID != testID(1, 1) {
		t.Errorf("the other one is %+v", list)
	}
	if list := all(t, x, Filter{From: "ophelia", Oldest: true}); len(list) != 2 || list[0].Preview != "" || list[1].Preview == "" {
		t.Errorf("the messages are %+v", list)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	var file []byte
	for _, suffix := range []string{"", "-wal", "-search", "-search-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		file = append(file, b...)
	}
	if bytes.Contains(file, []byte("secretofrosen")) || bytes.Contains(file, []byte("rosenkrantz")) {
		t.Error("the word is still in the file")
	}
	if !bytes.Contains(file, []byte("secretofguildenstern")) {
		t.Error("the other word is gone too")
	}
}

// TestOneFileGone: each file follows the journal by itself. Without one, or with
// one that is behind, only that one is made up for.
func TestOneFileGone(t *testing.T) {
	for _, gone := range []string{"", searchSuffix} {
		j, a := filled(t, 40)
		path := filepath.Join(t.TempDir(), "index.db")
		c := Config{Journal: j, Path: path}
		x, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(x.Wait(t.Context()), x.Close(), os.Remove(path+gone)); err != nil {
			t.Fatal(err)
		}
		other := path + searchSuffix
		if gone != "" {
			other = path
		}
		before, err := os.ReadFile(other)
		if err != nil {
			t.Fatal(err)
		}
		x = openIndex(t, c)
		compare(t, x, j)
		if err := x.do(t.Context(), func(s *store) error {
			for _, f := range s.files() {
				if _, err := f.checkpoint(); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if after, err := os.ReadFile(other); err != nil || !bytes.Equal(before, after) {
			t.Errorf("without index.db%s the other file was written: %v", gone, err)
		}
		for range 10 {
			a.append(t)
		}
		compare(t, x, j)
		if n := x.Stats().Rebuilds; n != 0 {
			t.Errorf("the index was thrown away %d times", n)
		}
	}
}

// TestManyMembers: a conversation lists as many agents as it can, all find it, and
// nothing of it stays when it goes.
func TestManyMembers(t *testing.T) {
	j := memoryJournal(t, 1)
	const agents = maxListed + 20
	for i := range agents {
		m := &parley.Message{ID: testID(uint64(i+1), 1), Kind: parley.Notice, From: fmt.Sprintf("agent-%03d", i), To: "all", Conversation: testID(1, 2)}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "all", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	x := openIndex(t, Config{Journal: j, Batch: 7})
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
	for _, name := range []string{"all", "agent-000", fmt.Sprintf("agent-%03d", agents-1)} {
		if list := find(name); len(list) != 1 || list[0].Messages != agents || len(list[0].Agents) != maxMembers {
			t.Errorf("%s finds %+v", name, list)
		}
	}
	if n, err := x.before(t.Context(), 0, 1<<40); n != agents || err != nil {
		t.Fatal(n, err)
	}
	if err := x.do(t.Context(), func(s *store) error {
		for table, f := range map[string]*file{"members": s.file, "joined": s.file, "conversations": s.file, "party": s.search.file, "texts": s.search.file} {
			if n, err := f.number("SELECT count(*) FROM " + table); n != 0 || err != nil {
				t.Errorf("%d rows are left in %s: %v", n, table, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// rebuilding opens an index on a journal of many records, for whose making it
// does not wait for the disk, and tells what the progress was.
func rebuilding(t *testing.T, exchanges int) (j *journal.Journal, c Config, steps func() [][2]uint64) {
	j = memoryJournal(t, 2)
	fill(t, j, exchanges)
	var mu sync.Mutex
	var list [][2]uint64
	c = Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"), Batch: 8, Progress: func(done, total uint64) {
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

// TestProgress: a rebuild tells how far it is over all partitions, never goes
// back, and ends with everything done.
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
		t.Fatalf("the progress was told only so often: %v", list)
	}
	for i, s := range list {
		if s[1] != total || i > 0 && s[0] < list[i-1][0] {
			t.Errorf("step %d is %v after %v", i, s, list[max(0, i-1)])
		}
	}
	if last := list[len(list)-1]; last[0] != last[1] {
		t.Errorf("it ended at %v", last)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHaste: a file for which the disk was not waited for is thrown away when
// the machine stopped meanwhile, goes on when only the process did, and is like
// any other once it is done.
func TestHaste(t *testing.T) {
	_, c, _ := rebuilding(t, 300)
	var marked atomic.Int64
	c.Progress = func(uint64, uint64) {
		k, err := openConn("file:" + c.Path)
		if err != nil {
			t.Error(err)
			return
		}
		defer k.close()
		q, err := k.prepare("SELECT 1 FROM meta WHERE key='" + hastyKey + "'")
		if err != nil {
			t.Error(err)
			return
		}
		if found, _ := q.row(); found {
			marked.Add(1)
		}
	}
	open := func() *Index {
		t.Helper()
		x, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.do(t.Context(), func(s *store) error {
			if s.hasty {
				t.Error("the haste has not ended")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return x
	}
	mark := func(boot string) {
		t.Helper()
		k, err := openConn("file:" + c.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer k.close()
		if err := k.exec("INSERT INTO meta VALUES ('" + hastyKey + "','" + boot + "')"); err != nil {
			t.Fatal(err)
		}
	}
	x := open()
	if n := x.Stats().Indexed; n != 600 || marked.Load() == 0 {
		t.Fatalf("%d records were indexed, marked %d times meanwhile", n, marked.Load())
	}
	now, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, boot := range []string{now, "another"} {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		mark(boot)
		x = open()
		if again := x.Stats().Indexed > 0; again != (boot != now) {
			t.Errorf("marked by boot %q: made anew: %v", boot, again)
		}
	}
	if n := len(all(t, x, Filter{From: "client-7"})); n != 6 {
		t.Errorf("%d messages of client-7", n)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestJobsEnd: what the writer is asked for ends with the index, and with the
// asker's context.
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
