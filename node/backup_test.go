package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal"
)

// TestBackupOfAHub takes a backup in the middle of load and starts a hub on it: a message
// acknowledged before the backup is recorded once and delivered once.
func TestBackupOfAHub(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprint("encrypted=", encrypted), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			root := t.TempDir()
			c := Config{Data: filepath.Join(root, "data"), Durability: "disk", Policy: Policy{Assurance: "session"},
				Limits: Limits{SenderRate: -1}}
			keyFile := ""
			if encrypted {
				keyFile = filepath.Join(root, "journal.key")
				if err := os.WriteFile(keyFile, []byte("a key of sixteen or more bytes\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				c.Engine.KeyFile = keyFile
				c.Passphrase, c.PassphraseWork = []byte("a passphrase"), 4
			}
			first := ""
			c.FirstToken = func(secret string) { first = secret }
			n := running(t, c)
			c.FirstToken = func(string) { t.Error("the restored hub made a token of its own") }
			if _, err := n.Admin().AddAgent(ctx, everything, admin.NewAgent{Name: "box", Inbox: true}); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			acked := map[parley.ID]string{}
			var stop atomic.Bool
			var load sync.WaitGroup
			begun := make(chan struct{}, 1024)
			for i := range 4 {
				load.Go(func() {
					for k := 0; !stop.Load(); k++ {
						text := fmt.Sprintf("message %d of %d", k, i)
						s := admin.Send{To: "box", Kind: parley.Notice, Text: &text, IdempotencyKey: text}
						r, err := n.Admin().Send(context.Background(), everything, s)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						acked[r.ID] = text
						mu.Unlock()
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				})
			}
			for range 100 {
				<-begun
			}
			mu.Lock()
			before := make(map[parley.ID]string, len(acked))
			for id, text := range acked {
				before[id] = text
			}
			mu.Unlock()
			client := &admin.Client{Base: n.Addresses().Admin, Token: first}
			in, err := client.Backup(ctx)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(root, "hub.backup")
			out, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.ReadFrom(in); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(in.Close(), out.Close()); err != nil {
				t.Fatal(err)
			}
			stop.Store(true)
			load.Wait()
			if b, err := os.ReadFile(file); err != nil || bytes.Contains(b, []byte("message 1 of")) == encrypted {
				t.Errorf("the backup is wrongly readable or unreadable, encrypted=%v: %v", encrypted, err)
			}
			if s, err := VerifyBackup(ctx, Restore{File: file, KeyFile: keyFile}); err != nil ||
				s.Records() < uint64(len(before)) {
				t.Fatal(s, err)
			}
			to := filepath.Join(root, "restored")
			if encrypted {
				if s, err := VerifyBackup(ctx, Restore{File: file}); err != nil || s.Partitions != nil {
					t.Error("without the key only the form can be verified:", s, err)
				}
				if _, err := RestoreBackup(ctx, Restore{File: file, Data: to}); !errors.Is(err, journal.ErrKey) {
					t.Error(err)
				}
				if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
					t.Error("something was written without the key")
				}
			}
			if _, err := RestoreBackup(ctx, Restore{File: file, Data: to, KeyFile: keyFile}); err != nil {
				t.Fatal(err)
			}
			if left, err := filepath.Glob(filepath.Join(root, "*restoring*")); err != nil || len(left) > 0 {
				t.Error(left, err)
			}
			r := c
			r.Data = to
			k := running(t, r)
			client.Base = k.Addresses().Admin
			if i, err := client.Info(ctx); err != nil || i.Hub != n.Hub().ID() {
				t.Errorf("the restored hub is another one, or does not know the tokens: %+v %v", i, err)
			}
			// Replays first: no acknowledged message is accepted again.
			for id, text := range before {
				again, err := k.Admin().Send(ctx, everything,
					admin.Send{To: "box", Kind: parley.Notice, Text: &text, IdempotencyKey: text})
				if err != nil || again.ID != id {
					t.Fatalf("%q was taken again: %+v %v", text, again, err)
				}
			}
			got := map[parley.ID]int{}
			left := len(before)
			for m, err := range k.Admin().Inbox(ctx, everything, "box") {
				if err != nil {
					t.Fatal(err)
				}
				got[m.ID]++
				if _, ok := before[m.ID]; ok {
					left--
				}
				if left == 0 {
					break
				}
			}
			for id := range before {
				if got[id] != 1 {
					t.Errorf("%s was delivered %d times", id, got[id])
				}
			}
			if _, err := ask(t, k, `{"text":"hello"}`); err != nil {
				t.Error("the restored hub does not work:", err)
			}
		})
	}
}

func TestRestoreRefusals(t *testing.T) {
	root := t.TempDir()
	n := running(t, Config{Data: filepath.Join(root, "data"), Durability: "disk", Policy: Policy{Assurance: "session"}})
	if _, err := ask(t, n, `{"text":"hello"}`); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := n.Admin().Backup(t.Context(), admin.Actor{Name: "r", Role: admin.Operate},
		&b); parley.CodeOf(err) != parley.Forbidden || b.Len() > 0 {
		t.Error(err)
	}
	if _, err := n.Admin().Backup(t.Context(), everything, &b); err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	changed := bytes.Clone(b.Bytes())
	changed[len(changed)/2] ^= 1
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := write("good", b.Bytes())
	for _, c := range []struct {
		name, file, data string
		want             error
	}{
		{"cut", write("cut", b.Bytes()[:b.Len()-40]), filepath.Join(root, "a"), journal.ErrBackup},
		{"altered", write("altered", changed), filepath.Join(root, "b"), journal.ErrBackup},
		{"something else", write("else", []byte("hello, this is a letter")), filepath.Join(root, "c"),
			journal.ErrBackup},
		{"a directory with something in it", good, full, journal.ErrForeign},
	} {
		_, err := RestoreBackup(t.Context(), Restore{File: c.file, Data: c.data})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.data != full {
			if _, err := os.Stat(c.data); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: something was written", c.name)
			}
		}
	}
	// A journal in memory cannot be restored.
	m := running(t, Config{})
	if _, err := m.Admin().Backup(t.Context(), everything, &b); parley.CodeOf(err) != parley.Unsupported {
		t.Error(err)
	}
}

// TestBackupOfAHubOnACluster: a hub moves from a directory to a NATS cluster and from
// there to another, with its pending deliveries.
func TestBackupOfAHubOnACluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	root := t.TempDir()
	c := Config{Data: filepath.Join(root, "data"), Durability: "disk", Policy: Policy{Assurance: "session"}}
	n := running(t, c)
	if _, err := n.Admin().AddAgent(ctx, everything, admin.NewAgent{Name: "box", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	waits := notice(t, n, "box", "quincunx")
	url := testcluster.Start(t, 1).URLs[0]
	for _, prefix := range []string{"ONE", "TWO"} {
		file := filepath.Join(root, prefix+".backup")
		out, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = n.Admin().Backup(ctx, everything, out)
		if err := errors.Join(err, out.Close()); err != nil {
			t.Fatal(err)
		}
		if s, err := VerifyBackup(ctx, Restore{File: file}); err != nil || s.Records() == 0 {
			t.Fatal(s, err)
		}
		id := n.Hub().ID()
		if err := n.Close(ctx); err != nil {
			t.Fatal(err)
		}
		e := Engine{URL: url, Prefix: prefix}
		to := Restore{File: file, Data: filepath.Join(root, prefix), Engine: e}
		if _, err := RestoreBackup(ctx, to); err != nil {
			t.Fatal(err)
		}
		to.Data = filepath.Join(root, prefix+" again")
		if _, err := RestoreBackup(ctx, to); !errors.Is(err, journal.ErrForeign) {
			t.Error(err)
		}
		if _, err := os.Stat(to.Data); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a directory was left")
		}
		r := c
		r.Data, r.Durability, r.Engine = filepath.Join(root, prefix), "replicated", e
		r.Passphrase, r.PassphraseWork = []byte("a passphrase"), 4
		n = running(t, r)
		if n.Hub().ID() != id {
			t.Error("it is another hub")
		}
		if d, ok := n.journal.Delivery(waits.ID, "box"); !ok || d.State != parley.Waiting {
			t.Errorf("%+v %v", d, ok)
		}
		if f, err := n.Admin().Forget(ctx, everything, admin.Forget{Agent: "nobody"}); err != nil || f.Erased != 0 {
			t.Error(f, err)
		}
	}
	for m, err := range n.Admin().Inbox(ctx, everything, "box") {
		if err != nil || m.ID != waits.ID || *m.Parts[0].Text != "quincunx" {
			t.Errorf("%+v %v", m, err)
		}
		break
	}
}
