package index

import (
	"bytes"
	"context"
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

// TestRemoved: whatever goes, the index says of the rest what a plain reading
// of a journal without it says.
func TestRemoved(t *testing.T) {
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
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		v := scan(t, j)
		check := func(n int, err error, gone func(*naiveMessage) bool) {
			t.Helper()
			before := len(v.messages)
			maps.DeleteFunc(v.messages, func(_ parley.ID, m *naiveMessage) bool { return gone(m) })
			v.count()
			if err != nil || n != before-len(v.messages) {
				t.Errorf("seed %d: %d were removed, want %d: %v", seed, n, before-len(v.messages), err)
			}
			compareWith(t, x, v)
		}
		partition, first := rnd.IntN(j.Partitions()), rnd.Uint64N(200)
		n, err := x.before(t.Context(), partition, first)
		check(n, err, func(m *naiveMessage) bool {
			return m.r.Position.Partition == partition && m.r.Position.Sequence < first
		})
		var ids []parley.ID
		for i := range a.n {
			if rnd.IntN(4) == 0 {
				ids = append(ids, testID(i+1, 1))
			}
		}
		n, err = x.Remove(t.Context(), ids...)
		check(n, err, func(m *naiveMessage) bool { return slices.Contains(ids, m.r.Message.ID) })
		n, err = x.Forget(t.Context(), "a1")
		check(n, err, func(m *naiveMessage) bool { return m.party("a1") })
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForgetLeavesNothing: neither words nor names of a forgotten agent are
// left in the file, and those of others are.
func TestForgetLeavesNothing(t *testing.T) {
	j := memoryJournal(t, 1)
	path := filepath.Join(t.TempDir(), "index.db")
	x, err := Open(t.Context(), Config{Journal: j, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"rosenkrantz", "guildenstern"} {
		m := &parley.Message{ID: testID(uint64(i), 1), Kind: parley.Notice, From: name, To: "hamlet", Conversation: testID(1, 2), Skill: "skill" + name,
			Parts: []parley.Part{parley.Text("secretof" + name + " is told")}, Trace: parley.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
		if _, err := j.Append(t.Context(), journal.Entry{Scope: "hamlet", Message: m, Open: []journal.Opening{{To: "hamlet"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := x.Forget(t.Context(), "rosenkrantz"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := x.Forget(t.Context(), "nobody"); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if list := all(t, x, Filter{Text: "secretofrosenkrantz"}); len(list) != 0 {
		t.Errorf("found %+v", list)
	}
	if list := all(t, x, Filter{Text: "secretofguildenstern"}); len(list) != 1 || list[0].From != "guildenstern" {
		t.Errorf("the other one is %+v", list)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	var file []byte
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		file = append(file, b...)
	}
	for _, word := range []string{"rosenkrantz", "secretofrosen"} {
		if bytes.Contains(file, []byte(word)) {
			t.Errorf("%q is still in the file", word)
		}
	}
	if !bytes.Contains(file, []byte("guildenstern")) {
		t.Error("the other agent is gone too")
	}
}

// rebuilding opens an index on a journal of many records, for whose making it
// does not wait for the disk, and tells what the progress was.
func rebuilding(t *testing.T, exchanges int) (j *journal.Journal, c Config, steps func() [][2]uint64) {
	j = memoryJournal(t, 2)
	fill(t, j, exchanges)
	var mu sync.Mutex
	var list [][2]uint64
	c = Config{Journal: j, Path: filepath.Join(t.TempDir(), "index.db"), Batch: 32, Progress: func(done, total uint64) {
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
	j, c, steps := rebuilding(t, 1000)
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
	_, c, _ := rebuilding(t, 1000)
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
	if n := x.Stats().Indexed; n != 2000 || marked.Load() == 0 {
		t.Fatalf("%d records were indexed, marked %d times meanwhile", n, marked.Load())
	}
	for _, boot := range []string{bootID(), "another"} {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		mark(boot)
		x = open()
		if again := x.Stats().Indexed > 0; again != (boot != bootID()) {
			t.Errorf("marked by boot %q: made anew: %v", boot, again)
		}
	}
	if n := len(all(t, x, Filter{From: "client-7"})); n != 20 {
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
	if _, err := x.Forget(second, "a"); err != context.Canceled {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Prune(t.Context()); err == nil {
		// Nothing lies before the first record: nobody is asked.
	} else {
		t.Error(err)
	}
	if _, err := x.Forget(t.Context(), "a"); err != errClosed {
		t.Error(err)
	}
}
