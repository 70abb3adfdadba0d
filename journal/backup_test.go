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
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

// backed makes a backup in memory.
func backed(t testing.TB, j *Journal, o BackupOptions) ([]byte, *BackupSummary) {
	t.Helper()
	var b bytes.Buffer
	s, err := j.Backup(t.Context(), &b, o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes != int64(b.Len()) {
		t.Fatalf("%d bytes are said, %d written", s.Bytes, b.Len())
	}
	return b.Bytes(), s
}

func TestBackupUnderLoad(t *testing.T) {
	for name, key := range map[string][]byte{"clear": nil, "encrypted": []byte("a key of sixteen or more bytes")} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), Partitions: 2, Key: key, Node: "n"}
			j := open(t, cfg)
			ctx := t.Context()
			for i := range 300 {
				if _, err := j.State("b").Put(ctx, fmt.Sprint("key/", i), []byte(fmt.Sprint("old ", i)), time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			waiting := request(t, "alice", "bob")
			if _, _, err := j.Accept(ctx, Entry{Scope: "s", Message: waiting, Open: []Opening{{To: "bob"}}, Key: Key{ID: "waits"}}); err != nil {
				t.Fatal(err)
			}
			session, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "alice", "bob"), Chain: &ChainLink{Name: "c"}})
			if err != nil {
				t.Fatal(err)
			}
			second, err := j.Append(ctx, Entry{Scope: "s", Message: request(t, "bob", "alice"), Chain: &ChainLink{Name: "c", After: session.Sequence}})
			if err != nil {
				t.Fatal(err)
			}
			l := startLoad(t, j, 8)
			eventually(t, "there is load", func() bool { n, _ := l.count(); return n > 200 })
			// A value that follows the log, as protocols keep them: what it names
			// must be in the log that is restored.
			tied := make(chan struct{})
			end := make(chan struct{})
			go func() {
				defer close(tied)
				for i := 0; ; i++ {
					select {
					case <-end:
						return
					default:
					}
					m := request(t, "carol", "dave")
					at, err := j.Append(context.Background(), Entry{Scope: "s", Message: m})
					if err == nil {
						_, err = j.State("tied").Put(context.Background(), fmt.Sprint("at/", i%50), []byte(at.String()), time.Time{})
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}()
			l.mu.Lock()
			acked := map[parley.ID]Position{waiting.ID: {}}
			for id, at := range l.acked {
				acked[id] = at
			}
			l.mu.Unlock()
			calls := 0
			b, s := backed(t, j, BackupOptions{Hub: "h", Progress: func(done, total uint64) { calls++ }, Files: func() ([]BackupFile, error) {
				return []BackupFile{{"keys/ring", []byte("secret")}}, nil
			}})
			close(end)
			<-tied
			l.check(t)
			if s.Records() < uint64(len(acked)) || calls == 0 {
				t.Fatalf("%d records, %d were acknowledged before, %d reports", s.Records(), len(acked), calls)
			}
			if enc := bytes.Contains(b, []byte("alice")); enc != (key == nil) {
				t.Errorf("the backup shows what it holds: %v", enc)
			}
			checked, err := CheckBackup(bytes.NewReader(b), key, true, nil)
			if err != nil || checked.Records() != s.Records() || checked.Header.Hub != "h" {
				t.Fatal(checked, err)
			}
			var files []BackupFile
			to := filepath.Join(t.TempDir(), "restored")
			r, err := Restore(ctx, bytes.NewReader(b), RestoreConfig{Dir: to, Key: key, File: func(f BackupFile) error { files = append(files, f); return nil }})
			if err != nil {
				t.Fatal(err)
			}
			if r.Records() != s.Records() || len(files) != 1 || string(files[0].Data) != "secret" {
				t.Fatal(r, files)
			}
			k := open(t, Config{Dir: to, Key: key, Node: "n"})
			have := map[parley.ID]Position{}
			for p := range k.Partitions() {
				for r, err := range k.Records(ctx, p, From{}) {
					if err != nil {
						t.Fatal(err)
					}
					if r.Message != nil {
						if _, twice := have[r.Message.ID]; twice {
							t.Errorf("%s is there twice", r.Message.ID)
						}
						have[r.Message.ID] = r.Position
					}
				}
			}
			for id, at := range acked {
				if got, ok := have[id]; !ok || !at.IsZero() && got != at {
					t.Errorf("%s was acknowledged at %s before the backup began, and is at %s (%v)", id, at, got, ok)
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
				if v, err := k.State("b").Get(ctx, fmt.Sprint("key/", i)); err != nil || string(v.Data) != fmt.Sprint("old ", i) {
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
					t.Errorf("the state names record %s: %v", at, err)
				}
			}
			// It goes on where it was.
			if _, err := k.Append(ctx, Entry{Scope: "s", Message: request(t, "x", "y"), Chain: &ChainLink{Name: "c", After: second.Sequence}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBackupOfValuesThatChange(t *testing.T) {
	c := newClock()
	j := open(t, Config{Dir: t.TempDir(), Now: c.now})
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
	if _, err := Restore(ctx, bytes.NewReader(b), RestoreConfig{Dir: dir, Now: c.now}); err != nil {
		t.Fatal(err)
	}
	k := open(t, Config{Dir: dir, Now: c.now})
	got := map[string]string{}
	for v, err := range k.State("b").Range(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		got[v.Key] = string(v.Data)
	}
	if len(got) != 2 || got["keep"] != "keep" || got["late"] != "later" {
		t.Error(got)
	}
	c.add(2 * time.Hour)
	if _, err := k.State("b").Get(ctx, "late"); !errors.Is(err, ErrNotFound) {
		t.Error("the end of a value is lost", err)
	}
	// An empty journal is one too.
	if _, err := k.Append(ctx, Entry{Scope: "s", Message: request(t, "a", "b")}); err != nil {
		t.Error(err)
	}
}

func TestDamagedBackupIsRefused(t *testing.T) {
	key := []byte("a key of sixteen or more bytes")
	for name, k := range map[string][]byte{"clear": nil, "encrypted": key} {
		j := open(t, Config{Dir: t.TempDir(), Key: k})
		for i := range 30 {
			if _, _, err := j.Accept(t.Context(), Entry{Scope: "s", Message: request(t, "alice", "bob"), Key: Key{ID: fmt.Sprint(i)}}); err != nil {
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
				t.Errorf("%s, %s: checked with %v, want %v", name, what, err, want)
			}
			dir := filepath.Join(t.TempDir(), "d")
			if _, err := Restore(t.Context(), bytes.NewReader(b), RestoreConfig{Dir: dir, Key: key}); err == nil {
				t.Errorf("%s, %s: restored", name, what)
			} else if j, err := Open(t.Context(), Config{Dir: dir, Key: key}); err == nil && j.Stats().Partitions[0].Records > 0 {
				t.Errorf("%s, %s: what was left opens as a journal with records", name, what)
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
			if at > len(backupMagic) { // the version is another error, the header may be
				_, err := CheckBackup(bytes.NewReader(c), k, true, nil)
				if err == nil {
					t.Errorf("%s: byte %d was changed and nobody noticed", name, at)
				}
				if !errors.Is(err, ErrBackup) && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrKey) && !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s: byte %d: %v", name, at, err)
				}
			}
		}
		refused("something behind it", append(bytes.Clone(b), 'x'), k, ErrBackup)
		refused("of a later release", func() []byte { c := bytes.Clone(b); c[len(backupMagic)] = 9; return c }(), k, ErrFormat)
		if k != nil {
			refused("without a key", b, nil, ErrKey)
			refused("another key", b, []byte("another key of sixteen bytes"), ErrKey)
			if _, err := CheckBackup(bytes.NewReader(b), nil, false, nil); err != nil {
				t.Error("the form can be checked without the key:", err)
			}
		}
	}
}

func TestRestoreRefusesWhatIsThere(t *testing.T) {
	j := open(t, Config{Dir: t.TempDir()})
	b, _ := backed(t, j, BackupOptions{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letter"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := digest(t, dir)
	if _, err := Restore(t.Context(), bytes.NewReader(b), RestoreConfig{Dir: dir}); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(b), RestoreConfig{Dir: filled(t, Config{Dir: t.TempDir()})}); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	if after := digest(t, dir); len(after) != len(before) {
		t.Error(after)
	}
}

// slowly reads the journal's backup one byte at a time at first.
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

// TestBackupStopsNobody takes a backup away slowly: appends go on.
func TestBackupStopsNobody(t *testing.T) {
	j := open(t, Config{Dir: t.TempDir()})
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

// TestExternalSaysWhatToDo: what the cluster does itself is said.
func TestExternalSaysWhatToDo(t *testing.T) {
	j := open(t, Config{URL: natsServer(t, nil).ClientURL(), Partitions: 1, Node: "n"})
	if _, err := j.Backup(t.Context(), io.Discard, BackupOptions{}); !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "nats stream backup") {
		t.Error(err)
	}
	if _, err := j.NewErasure(t.Context(), Erasure{What: "agent"}); !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "nats stream rmm") {
		t.Error(err)
	}
	if _, err := j.Erase(t.Context(), 1, nil); !errors.Is(err, ErrServer) {
		t.Error(err)
	}
	if _, err := j.Trim(t.Context(), 0, time.Time{}); !errors.Is(err, ErrServer) {
		t.Error(err)
	}
}
