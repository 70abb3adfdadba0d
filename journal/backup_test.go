package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal/store"
)

// backed returns a backup in memory and its summary.
func backed(t testing.TB, j *Journal, o BackupOptions) ([]byte, *BackupSummary) {
	t.Helper()
	var b bytes.Buffer
	s, err := j.Backup(t.Context(), &b, o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes != int64(b.Len()) {
		t.Fatalf("the summary counts %d bytes, %d were written", s.Bytes, b.Len())
	}
	return b.Bytes(), s
}

func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	for name, key := range map[string][]byte{"clear": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			cfg := setup{Dir: t.TempDir(), Partitions: 2, Key: key, Node: "n"}
			j := open(t, cfg)
			ctx := t.Context()
			for i := range 300 {
				if _, err := j.State("b").Put(ctx, fmt.Sprint("key/", i), []byte(fmt.Sprint("old ", i)),
					time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			waiting := request(t, "alice", "bob")
			if _, _, err := j.Accept(ctx, Entry{Scope: "s", Message: waiting, Open: []Opening{{To: "bob"}},
				Key: Key{ID: "waits"}}); err != nil {
				t.Fatal(err)
			}
			session, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "alice", "bob"),
				Chain: &ChainLink{Name: "c"}})
			if err != nil {
				t.Fatal(err)
			}
			second, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "bob", "alice"),
				Chain: &ChainLink{Name: "c", After: session.Sequence}})
			if err != nil {
				t.Fatal(err)
			}
			l := startLoad(t, j, 8)
			eventually(t, "the load has appended", func() bool { n, _ := l.count(); return n > 200 })
			stop := tie(t, j)
			l.mu.Lock()
			acked := map[parley.ID]Position{waiting.ID: {}}
			for id, at := range l.acked {
				acked[id] = at
			}
			l.mu.Unlock()
			calls := 0
			b, s := backed(t, j, BackupOptions{Hub: "h", Progress: func(done, total uint64) { calls++ },
				Files: func() ([]BackupFile, error) {
					return []BackupFile{{"keys/ring", []byte("secret")}}, nil
				}})
			stop()
			l.check(t)
			if s.Records() < uint64(len(acked)) || calls == 0 {
				t.Fatalf("%d records, want the %d acknowledged before; %d progress reports", s.Records(), len(acked),
					calls)
			}
			if enc := bytes.Contains(b, []byte("alice")); enc != (key == nil) {
				t.Errorf("plain text in the backup: %v", enc)
			}
			checked, err := CheckBackup(bytes.NewReader(b), key, true, nil)
			if err != nil || checked.Records() != s.Records() || checked.Header.Hub != "h" {
				t.Fatal(checked, err)
			}
			var files []BackupFile
			to := filepath.Join(t.TempDir(), "restored")
			r, err := tryRestore(ctx, bytes.NewReader(b),
				restoring{Dir: to, Key: key, File: func(f BackupFile) error { files = append(files, f); return nil }})
			if err != nil {
				t.Fatal(err)
			}
			if r.Records() != s.Records() || len(files) != 1 || string(files[0].Data) != "secret" {
				t.Fatal(r, files)
			}
			k := open(t, setup{Dir: to, Key: key, Node: "n"})
			have := map[parley.ID]Position{}
			for p := range k.Partitions() {
				for r, err := range k.Records(ctx, p, From{}) {
					if err != nil {
						t.Fatal(err)
					}
					if r.Message != nil {
						if _, twice := have[r.Message.ID]; twice {
							t.Errorf("%s is in the restored log twice", r.Message.ID)
						}
						have[r.Message.ID] = r.Position
					}
				}
			}
			for id, at := range acked {
				if got, ok := have[id]; !ok || !at.IsZero() && got != at {
					t.Errorf("%s was acknowledged at %s before the backup, restored at %s (%v)", id, at, got, ok)
				}
			}
			if p, ok := k.Seen("s", "waits"); !ok || p.Message != waiting.ID {
				t.Error("a replay would be accepted")
			}
			if d := k.Deliveries(Filter{}); len(d) != 1 || d[0].Message != waiting.ID {
				t.Errorf("%+v", d)
			}
			if head, err := k.Head(ctx, "s", "c"); err != nil || head != second.Sequence {
				t.Errorf("the chain ends at %d: %v", head, err)
			}
			for i := range 300 {
				if v, err := k.State("b").Get(ctx, fmt.Sprint("key/", i)); err != nil ||
					string(v.Data) != fmt.Sprint("old ", i) {
					t.Errorf("key %d: %s %v", i, v.Data, err)
				}
			}
			for v, err := range k.State("tied").Range(ctx, "at/") {
				if err != nil {
					t.Fatal(err)
				}
				at, err := ParsePosition(string(v.Data))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := k.Read(ctx, at); err != nil {
					t.Errorf("the state refers to record %s, which cannot be read: %v", at, err)
				}
			}
			// The restored journal accepts appends, and its chain goes on.
			if _, err := k.Append(ctx, Entry{Scope: "s", Message: request(t, "x", "y"),
				Chain: &ChainLink{Name: "c", After: second.Sequence}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBackupOfValuesThatChange(t *testing.T) {
	c := newClock()
	j := open(t, setup{Dir: t.TempDir(), Now: c.now})
	ctx := t.Context()
	s := j.State("b")
	for _, k := range []string{"keep", "gone", "late"} {
		if _, err := s.Put(ctx, k, []byte(k), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, "gone", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "late", []byte("later"), c.now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	b, _ := backed(t, j, BackupOptions{})
	dir := t.TempDir()
	if _, err := tryRestore(ctx, bytes.NewReader(b), restoring{Dir: dir, Now: c.now}); err != nil {
		t.Fatal(err)
	}
	k := open(t, setup{Dir: dir, Now: c.now})
	got := stateOf(t, k, "b")
	if len(got) != 2 || got["keep"] != "keep" || got["late"] != "later" {
		t.Error(got)
	}
	c.add(2 * time.Hour)
	if _, err := k.State("b").Get(ctx, "late"); !errors.Is(err, ErrNotFound) {
		t.Error("the end of a value is lost", err)
	}
	// A restored empty journal accepts appends.
	if _, err := k.Append(ctx, Entry{Scope: "s", Message: request(t, "a", "b")}); err != nil {
		t.Error(err)
	}
}

func TestDamagedBackupIsRefused(t *testing.T) {
	t.Parallel()
	key := []byte("a key of sixteen or more bytes")
	for name, k := range map[string][]byte{"clear": nil, "encrypted": key} {
		j := open(t, setup{Dir: t.TempDir(), Key: k})
		for i := range 30 {
			if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "alice", "bob"),
				Key: Key{ID: fmt.Sprint(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := j.State("b").Put(t.Context(), "k", []byte("v"), time.Time{}); err != nil {
			t.Fatal(err)
		}
		b, _ := backed(t, j, BackupOptions{})
		refused := func(what string, b []byte, key []byte, want error) {
			t.Helper()
			_, err := CheckBackup(bytes.NewReader(b), key, true, nil)
			if !errors.Is(err, want) {
				t.Errorf("%s, %s: CheckBackup returns %v, want %v", name, what, err, want)
			}
			dir := filepath.Join(t.TempDir(), "d")
			if _, err := tryRestore(t.Context(), bytes.NewReader(b), restoring{Dir: dir, Key: key}); err == nil {
				t.Errorf("%s, %s: Restore accepts it", name, what)
			} else if j, err := tryOpen(t.Context(), setup{Dir: dir, Key: key}); err == nil &&
				j.Stats().Partitions[0].Records > 0 {
				t.Errorf("%s, %s: the failed restore left a journal with records", name, what)
				j.Close()
			} else if err == nil {
				j.Close()
			}
		}
		step := max(1, len(b)/8)
		if testing.Short() {
			step = len(b) / 3
		}
		for at := 0; at < len(b); at += step {
			refused(fmt.Sprintf("cut at %d", at), b[:at], k, ErrBackup)
			c := bytes.Clone(b)
			c[at] ^= 1
			if at > len(backupMagic) { // damage to the version is another error, to the header perhaps too
				_, err := CheckBackup(bytes.NewReader(c), k, true, nil)
				if err == nil {
					t.Errorf("%s: CheckBackup accepts a change of byte %d", name, at)
				}
				if !errors.Is(err, ErrBackup) && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrKey) &&
					!errors.Is(err, ErrCorrupt) {
					t.Errorf("%s: byte %d: %v", name, at, err)
				}
			}
		}
		refused("data after its end", append(bytes.Clone(b), 'x'), k, ErrBackup)
		refused("a later release", func() []byte { c := bytes.Clone(b); c[len(backupMagic)] = 9; return c }(), k,
			ErrFormat)
		if k != nil {
			refused("without a key", b, nil, ErrKey)
			refused("another key", b, []byte("another key of sixteen bytes"), ErrKey)
			if _, err := CheckBackup(bytes.NewReader(b), nil, false, nil); err != nil {
				t.Error("CheckBackup of the structure fails without the key:", err)
			}
		}
	}
}

func TestRestoreRefusesWhatIsThere(t *testing.T) {
	j := open(t, setup{Dir: t.TempDir()})
	b, _ := backed(t, j, BackupOptions{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letter"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := digest(t, dir)
	if _, err := tryRestore(t.Context(), bytes.NewReader(b), restoring{Dir: dir}); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	if _, err := tryRestore(t.Context(), bytes.NewReader(b),
		restoring{Dir: filled(t, setup{Dir: t.TempDir()})}); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	if after := digest(t, dir); len(after) != len(before) {
		t.Error(after)
	}
}

// slowly is a writer that blocks its first Write until wait is closed.
type slowly struct {
	w    io.Writer
	wait chan struct{}
	n    int
}

func (s *slowly) Write(b []byte) (int, error) {
	if s.n++; s.n == 1 {
		<-s.wait
	}
	return s.w.Write(b)
}

// TestBackupStopsNobody: appends go on while a backup is written to a slow writer.
func TestBackupStopsNobody(t *testing.T) {
	j := open(t, setup{Dir: t.TempDir()})
	text := bytes.Repeat([]byte("x"), 4096)
	for range 40 {
		m := request(t, "alice", "bob")
		m.Parts = []parley.Part{{MediaType: "text/plain", Data: text}}
		if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	w := &slowly{w: io.Discard, wait: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := j.Backup(context.Background(), w, BackupOptions{})
		done <- err
	}()
	for i := range 50 {
		if _, err := j.Append(t.Context(), Entry{Scope: "s", Message: request(t, "alice", "bob")}); err != nil {
			t.Fatal(err)
		}
		if _, err := j.State("b").Put(t.Context(), fmt.Sprint(i), []byte("v"), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	close(w.wait)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// lived is the expected content of a journal that has everything a backup must restore.
type lived struct {
	messages      map[parley.ID]Position
	waiting, dead parley.ID
	chain         Position
	partitions    int
}

func live(t *testing.T, j *Journal) *lived {
	t.Helper()
	ctx := t.Context()
	x := &lived{messages: map[parley.ID]Position{}, partitions: j.Partitions()}
	accept := func(e Entry) Position {
		t.Helper()
		at, _, err := j.Accept(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		x.messages[e.Message.ID] = at
		return at
	}
	for i := range 40 {
		m := request(t, "alice", "bob")
		k := Key{ID: fmt.Sprint("key ", i)}
		if i%2 == 0 { // outlives the window
			k.Sender, k.Until = "alice", j.cfg.Now().Add(48*time.Hour)
		}
		accept(Entry{Scope: fmt.Sprint("s", i%4), Message: m, Key: k, Open: []Opening{{To: "bob"}}})
		switch {
		case i == 7:
			x.waiting = m.ID
			continue
		case i == 9:
			x.dead = m.ID
			if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Dead,
				Error: parley.Refuse(parley.Rejected, "no")}}}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob",
			State: parley.Dropped}}}); err != nil && !errors.Is(err, ErrConflict) {
			t.Fatal(err)
		}
		if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: m.ID, To: "bob", State: parley.Abandoned,
			Error: parley.Refuse(parley.Cancelled, "over")}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		m := request(t, "alice", "bob")
		at, err := j.Append(ctx, Entry{Scope: "session", Message: m,
			Chain: &ChainLink{Name: "c", After: x.chain.Sequence}})
		if err != nil {
			t.Fatal(err)
		}
		x.messages[m.ID], x.chain = at, at
	}
	for i := range 50 {
		if _, err := j.State("b").Put(ctx, fmt.Sprint("k/", i%20), []byte(fmt.Sprint("v", i)),
			time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.State("b").Delete(ctx, "k/3", 0); err != nil {
		t.Fatal(err)
	}
	return x
}

// check compares a restored journal with the expected content, and appends to it.
func (x *lived) check(t *testing.T, j *Journal) {
	t.Helper()
	ctx := t.Context()
	if j.Partitions() != x.partitions {
		t.Fatalf("%d partitions", j.Partitions())
	}
	have := map[parley.ID]Position{}
	for p := range j.Partitions() {
		for r, err := range j.Records(ctx, p, From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Message != nil {
				have[r.Message.ID] = r.Position
			}
		}
	}
	for id, at := range x.messages {
		if have[id] != at {
			t.Errorf("%s is restored at %s, want %s", id, have[id], at)
		}
	}
	for i := range 40 {
		if _, ok := j.Seen(fmt.Sprint("s", i%4), fmt.Sprint("key ", i)); !ok {
			t.Errorf("key %d was not restored: a replay would be accepted", i)
		}
	}
	open := j.Deliveries(Filter{})
	if len(open) != 2 {
		t.Errorf("%d unsettled deliveries, want 2: %+v", len(open), open)
	}
	if d, ok := j.Delivery(x.dead, "bob"); !ok || d.State != parley.Dead || d.Error == nil || d.Error.Text != "no" {
		t.Errorf("%+v %v", d, ok)
	}
	values := stateOf(t, j, "b")
	if len(values) != 19 || values["k/0"] != "v40" || values["k/19"] != "v39" {
		t.Errorf("%v", values)
	}
	// The chain, a delivery, a replay key and a value can be used as before the backup.
	if head, err := j.Head(ctx, "session", "c"); err != nil || head != x.chain.Sequence {
		t.Errorf("the chain ends at %d: %v", head, err)
	}
	var conflict *ConflictError
	if _, err := j.Append(ctx, Entry{Scope: "session", Message: request(t, "a", "b"),
		Chain: &ChainLink{Name: "c", After: x.chain.Sequence - 1}}); !errors.As(err, &conflict) {
		t.Errorf("a second record after the same predecessor: %v, want a conflict", err)
	}
	if _, err := j.Append(ctx, Entry{Scope: "session", Message: request(t, "a", "b"),
		Chain: &ChainLink{Name: "c", After: x.chain.Sequence}}); err != nil {
		t.Error(err)
	}
	if _, err := j.Append(ctx, Entry{Steps: []Step{{Message: x.waiting, To: "bob", State: parley.Delivering,
		Attempt: 1}}}); err != nil {
		t.Error(err)
	}
	if _, prior, err := j.Accept(ctx, Entry{Scope: "s0", Message: request(t, "x", "y"),
		Key: Key{ID: "key 0", Sender: "alice", Until: j.cfg.Now().Add(48 * time.Hour)}}); err != nil || prior == nil {
		t.Errorf("a replay was accepted: %+v %v", prior, err)
	}
	if _, err := j.State("b").Put(ctx, "k/0", []byte("new"), time.Time{}); err != nil {
		t.Error(err)
	}
}

// tie writes records, and values that refer to them as protocols do, until stop: a
// restored log must have every record that a restored value refers to.
func tie(t *testing.T, j *Journal) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			default:
			}
			at, err := j.Append(context.Background(),
				Entry{Scope: fmt.Sprint("t", i%3), Message: request(t, "carol", "dave")})
			if err == nil {
				_, err = j.State("tied").Put(context.Background(), fmt.Sprint("at/", i%50), []byte(at.String()),
					time.Time{})
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// TestBackupOfACluster: a backup from the embedded engine can be restored into an
// external one and back, with the same content.
func TestBackupOfACluster(t *testing.T) {
	t.Parallel()
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 2})
	b := open(t, setup{URL: s.ClientURL(), Node: "b"})
	x := live(t, a)
	// The other node writes during the backup.
	stop := tie(t, b)
	eventually(t, "the other node writes", func() bool {
		n := 0
		for range b.State("tied").Range(t.Context(), "") {
			n++
		}
		return n > 20
	})
	out, sum := backed(t, a, BackupOptions{Hub: "h",
		Files: func() ([]BackupFile, error) { return []BackupFile{{"keys/k", []byte("secret")}}, nil }})
	stop()
	if got, err := CheckBackup(bytes.NewReader(out), nil, true, nil); err != nil || got.Records() != sum.Records() {
		t.Fatal(got, err)
	}
	tied := func(j *Journal) {
		t.Helper()
		for v, err := range j.State("tied").Range(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			at, err := ParsePosition(string(v.Data))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := j.Read(t.Context(), at); err != nil {
				t.Errorf("the state refers to record %s, which cannot be read: %v", at, err)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := tryRestore(t.Context(), bytes.NewReader(out), restoring{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	embedded := open(t, setup{Dir: dir, Node: "e"})
	tied(embedded)
	// A backup of the restored journal is restored into a cluster, under another prefix.
	again, _ := backed(t, embedded, BackupOptions{})
	x.check(t, embedded)
	to := restoring{URL: s.ClientURL(), Prefix: "AGAIN"}
	if _, err := tryRestore(t.Context(), bytes.NewReader(again), to); err != nil {
		t.Fatal(err)
	}
	c := open(t, setup{URL: s.ClientURL(), Prefix: "AGAIN", Node: "a"})
	tied(c)
	third, sum3 := backed(t, c, BackupOptions{})
	x.check(t, c)
	if _, err := CheckBackup(bytes.NewReader(third), nil, true, nil); err != nil {
		t.Error(err)
	}
	for i := range sum.Partitions {
		if sum3.Partitions[i].Records < sum.Partitions[i].Records || sum3.Partitions[i].Last < sum.Partitions[i].Last {
			t.Errorf("partition %d: %+v became %+v", i, sum.Partitions[i], sum3.Partitions[i])
		}
	}
	// Restore refuses a prefix with a journal and leaves that journal unchanged. A
	// truncated backup leaves no journal that can be opened.
	if _, err := tryRestore(t.Context(), bytes.NewReader(again), to); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	x.check2(t, c)
	to.Prefix = "CUT"
	if _, err := tryRestore(t.Context(), bytes.NewReader(again[:len(again)-20]), to); !errors.Is(err, ErrBackup) {
		t.Error(err)
	}
	if _, err := tryOpen(t.Context(), setup{URL: s.ClientURL(), Prefix: "CUT", Node: "a"}); !errors.Is(err,
		ErrCorrupt) || !strings.Contains(err.Error(), "restore") {
		t.Error(err)
	}
}

// check2 compares the value that check has written.
func (x *lived) check2(t *testing.T, j *Journal) {
	t.Helper()
	if v, err := j.State("b").Get(t.Context(), "k/0"); err != nil || string(v.Data) != "new" {
		t.Error(v, err)
	}
}

// TestBackupOfThreeServers restores a backup into a cluster with replicas, and a backup
// of that cluster into a directory.
func TestBackupOfThreeServers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Log("skipped with -short: needs a cluster of three servers")
		return
	}
	j := open(t, setup{Dir: t.TempDir(), Partitions: 2, Node: "e"})
	x := live(t, j)
	out, _ := backed(t, j, BackupOptions{})
	servers := testcluster.Start(t, 3)
	if _, err := tryRestore(t.Context(), bytes.NewReader(out), restoring{URL: servers.URLs[0]}); err != nil {
		t.Fatal(err)
	}
	c := open(t, setup{URL: servers.URLs[1], Node: "a"})
	if !strings.Contains(c.Promise(), "majority of 3") {
		t.Error(c.Promise())
	}
	again, _ := backed(t, c, BackupOptions{})
	x.check(t, c)
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := tryRestore(t.Context(), bytes.NewReader(again), restoring{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	x.check(t, open(t, setup{Dir: dir, Node: "e"}))
}

// patient is a store that acknowledges a value only when several are waiting, like a
// store with a slow fsync.
type patient struct {
	store.Store
	want int

	mu      sync.Mutex
	waiting int
	most    int
	all     chan struct{}
	once    sync.Once
}

func (s *patient) Put(ctx context.Context, bucket string, v store.Value, expect *uint64) (uint64, error) {
	s.mu.Lock()
	s.waiting++
	s.most = max(s.most, s.waiting)
	if s.waiting >= s.want {
		s.once.Do(func() { close(s.all) })
	}
	s.mu.Unlock()
	select {
	case <-s.all:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	rev, err := s.Store.Put(ctx, bucket, v, expect)
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
	return rev, err
}

// TestRestoreDoesNotWaitForEachValue: Restore writes a bounded number of values to the
// store concurrently. If a key occurs several times, its last value is kept.
func TestRestoreDoesNotWaitForEachValue(t *testing.T) {
	ctx := t.Context()
	var out bytes.Buffer
	w, err := newBackupWriter(&out, BackupHeader{Prefix: defaultPrefix, Partitions: 1}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	const keys, times = 2000, 3
	for i := range times {
		for k := range keys {
			v := Value{Key: fmt.Sprint("k", k), Data: fmt.Append(nil, i), Deleted: i == times-1 && k%2 == 1}
			if err := w.value("b", &v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	inner, err := setup{Dir: dir}.store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &patient{Store: inner, want: 16, all: make(chan struct{})}
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := Restore(within, &out, RestoreConfig{Store: s}); err != nil {
		t.Fatal(err)
	}
	if s.most < s.want || s.most > putsAtOnce {
		t.Errorf("%d concurrent Puts, want %d to %d", s.most, s.want, putsAtOnce)
	}
	values := stateOf(t, open(t, setup{Dir: dir}), "b")
	if len(values) != keys/2 {
		t.Errorf("%d values", len(values))
	}
	for k, v := range values {
		if v != fmt.Sprint(times-1) {
			t.Errorf("%s: %s", k, v)
		}
	}
}
