package journal

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parley-hub/parley"
)

// What each format looked like is in testdata, as the release wrote it that
// made the format. It is written once, with -write-format, and never again.
var writeFormat = flag.Bool("write-format", false, "write testdata/formatN*.tar.gz anew: only for a format that no release has written yet")

// formatKey is the key of the encrypted directories in testdata.
var formatKey = []byte("the key of the format tests")

// formatTime is the time at which they were written.
var formatTime = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// writtenRecord is what the test knows of a record of testdata.
type writtenRecord struct {
	Position string   `json:"position"`
	Time     string   `json:"time"`
	Scope    string   `json:"scope,omitempty"`
	Message  string   `json:"message,omitempty"`
	Kind     string   `json:"kind,omitempty"`
	From     string   `json:"from,omitempty"`
	To       string   `json:"to,omitempty"`
	Raw      string   `json:"raw,omitempty"`
	Parts    []string `json:"parts,omitempty"`
	Checks   int      `json:"checks,omitempty"`
	Open     []string `json:"open,omitempty"`
	Steps    []string `json:"steps,omitempty"`
	Refused  string   `json:"refused,omitempty"`
	Chain    string   `json:"chain,omitempty"`
	Keyed    bool     `json:"keyed,omitempty"`
	Until    string   `json:"until,omitempty"`
	Erased   uint64   `json:"erased,omitempty"`
}

// written is what testdata says must be found in a directory.
type written struct {
	Records    []writtenRecord   `json:"records"`
	State      map[string]string `json:"state"`
	Deliveries []string          `json:"deliveries"`
	Head       uint64            `json:"head"`
}

func describeJournal(t *testing.T, j *Journal) written {
	t.Helper()
	out := written{State: stateOf(t, j, "b")}
	for p := range j.Partitions() {
		for r, err := range j.Records(t.Context(), p, From{}) {
			if err != nil {
				t.Fatal(err)
			}
			w := writtenRecord{Position: r.Position.String(), Time: r.Time.Format(time.RFC3339Nano), Scope: r.Scope, Keyed: r.Keyed}
			if m := r.Message; m != nil {
				w.Message, w.Kind, w.From, w.To, w.Raw, w.Checks = m.ID.String(), m.Kind.String(), m.From, m.To, string(m.Origin.Raw), len(m.Origin.Verdict.Checks)
				for _, p := range m.Parts {
					w.Parts = append(w.Parts, p.MediaType+": "+string(p.Data))
				}
			}
			for _, o := range r.Open {
				w.Open = append(w.Open, fmt.Sprint(o.To, " ", o.Attempt, " ", o.Sync))
			}
			for _, s := range r.Steps {
				w.Steps = append(w.Steps, s.String())
			}
			if r.Refused != nil {
				w.Refused = string(r.Refused.Code)
			}
			if r.Chain != nil {
				w.Chain = fmt.Sprint(r.Chain.Name, " after ", r.Chain.After)
			}
			if !r.Until.IsZero() {
				w.Until = r.Until.Format(time.RFC3339Nano)
			}
			if r.Erased != nil {
				w.Erased = r.Erased.Number
			}
			out.Records = append(out.Records, w)
		}
	}
	for _, d := range j.Deliveries(Filter{}) {
		out.Deliveries = append(out.Deliveries, fmt.Sprint(d.Message, " to ", d.To, ": ", d.State, " ", d.Attempt))
	}
	head, err := j.Head(t.Context(), "session", "c")
	if err != nil {
		t.Fatal(err)
	}
	out.Head = head
	return out
}

// fill writes one of everything that a journal can hold.
func fill(t *testing.T, j *Journal) {
	t.Helper()
	ctx := t.Context()
	must := func(_ Position, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	accept := func(e Entry) Position {
		t.Helper()
		at, _, err := j.Accept(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	asked := told(t, "alice", "bob", "what is on show?")
	accept(Entry{Scope: "bob", Message: asked, Open: []Opening{{To: "bob", Attempt: 1, Sync: false}}, Key: Key{ID: "nonce 1", Sender: "alice", Until: formatTime.Add(10 * time.Hour)}})
	reply := told(t, "bob", "alice", "angels")
	reply.Kind, reply.InReplyTo = parley.Response, asked.ID
	must(j.Append(ctx, Entry{Scope: "bob", Message: reply, Steps: []Step{{Message: asked.ID, To: "bob", State: parley.Answered, Attempt: 1, Losses: []parley.Loss{{Field: "x", Reason: "y"}}}}}))
	waits := request(t, "alice", "carol")
	accept(Entry{Scope: "carol", Message: waits, Open: []Opening{{To: "carol", NotBefore: formatTime.Add(time.Hour)}}, Key: Key{ID: "nonce 2"}})
	dead := request(t, "alice", "dave")
	must(j.Append(ctx, Entry{Scope: "dave", Message: dead, Open: []Opening{{To: "dave", Attempt: 1}}}))
	must(j.Append(ctx, Entry{Steps: []Step{{Message: dead.ID, To: "dave", State: parley.Dead, Attempt: 1, Error: parley.Refuse(parley.TimedOut, "no answer")}}}))
	accept(Entry{Scope: "bob", Message: told(t, "mallory", "bob", "let me in"), Refused: parley.Refuse(parley.Forbidden, "not allowed"), Key: Key{ID: "nonce 3"}})
	first, err := j.Append(ctx, Entry{Scope: "session", Message: request(t, "alice", "bob"), Chain: &ChainLink{Name: "c"}})
	must(first, err)
	must(j.Append(ctx, Entry{Scope: "session", Message: request(t, "bob", "alice"), Chain: &ChainLink{Name: "c", After: first.Sequence}}))
	gone := accept(Entry{Scope: "bob", Message: told(t, "eve", "bob", "a secret"), Key: Key{ID: "nonce 4"}})
	if _, err := j.Erase(ctx, 1, []Position{gone}); err != nil {
		t.Fatal(err)
	}
	s := j.State("b")
	for _, k := range []string{"one", "a/b c", "two"} {
		if _, err := s.Put(ctx, k, []byte("value of "+k), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, "two", 0); err != nil {
		t.Fatal(err)
	}
}

func pack(t *testing.T, dir, file string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() == lockName {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o700, Typeflag: tar.TypeDir, ModTime: formatTime}
		var data []byte
		if !e.IsDir() {
			if data, err = os.ReadFile(path); err != nil {
				return err
			}
			h.Typeflag, h.Mode, h.Size = tar.TypeReg, 0o600, int64(len(data))
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unpacked gives a directory with what a file of testdata holds.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(h.Name) {
			t.Fatal(h.Name)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o700)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func formatConfig(dir string, key []byte) Config {
	c := &clock{t: formatTime}
	return Config{Dir: dir, Key: key, Now: c.now, Node: "writer"}
}

// TestFormats opens a directory of every format there ever was, as the release
// left it that made the format, after an orderly end and after a crash.
func TestFormats(t *testing.T) {
	for format := 1; format <= manifestFormat; format++ {
		for _, kind := range []string{"", "-encrypted", "-crashed"} {
			name := fmt.Sprintf("format%d%s", format, kind)
			t.Run(name, func(t *testing.T) {
				var key []byte
				if kind == "-encrypted" {
					key = formatKey
				}
				if *writeFormat && format == manifestFormat {
					dir := t.TempDir()
					j, err := Open(t.Context(), formatConfig(dir, key))
					if err != nil {
						t.Fatal(err)
					}
					fill(t, j)
					b, err := json.MarshalIndent(describeJournal(t, j), "", "\t")
					if err != nil {
						t.Fatal(err)
					}
					if kind == "-crashed" {
						dir = crash(t, dir)
					}
					if err := j.Close(); err != nil {
						t.Fatal(err)
					}
					pack(t, dir, filepath.Join("testdata", name+".tar.gz"))
					if err := os.WriteFile(filepath.Join("testdata", name+".json"), append(b, '\n'), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
				if err != nil {
					t.Fatal(err)
				}
				var want written
				if err := json.Unmarshal(b, &want); err != nil {
					t.Fatal(err)
				}
				dir := unpacked(t, name+".tar.gz")
				cfg := formatConfig(dir, key)
				for round := range 2 { // the second time it is of today's format
					j, err := Open(t.Context(), cfg)
					if err != nil {
						t.Fatal(err)
					}
					if d := cmp.Diff(want, describeJournal(t, j)); d != "" {
						t.Errorf("round %d: %s", round, d)
					}
					if len(want.Records) < 9 || len(want.State) != 2 || len(want.Deliveries) != 2 {
						t.Errorf("testdata holds too little: %+v", want)
					}
					for scope, id := range map[string]string{"bob": "nonce 1", "carol": "nonce 2"} {
						if _, ok := j.Seen(scope, id); !ok {
							t.Errorf("a replay of %q would be accepted", id)
						}
					}
					if j.dir.manifest.Format != manifestFormat {
						t.Errorf("format %d after opening", j.dir.manifest.Format)
					}
					if err := j.Close(); err != nil {
						t.Fatal(err)
					}
				}
				j := open(t, cfg)
				if _, err := j.Append(t.Context(), Entry{Scope: "session", Message: request(t, "x", "y"), Chain: &ChainLink{Name: "c", After: want.Head}}); err != nil {
					t.Error(err)
				}
				out, _ := backed(t, j, BackupOptions{})
				if _, err := CheckBackup(bytes.NewReader(out), key, true, nil); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// setFormat changes the number in a manifest.
func setFormat(t *testing.T, dir string, to int) {
	t.Helper()
	path := filepath.Join(dir, manifestName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := strings.Replace(string(b), `"format": 1`, fmt.Sprintf(`"format": %d`, to), 1)
	if s == string(b) && to != 1 {
		t.Fatal("the manifest has no format 1")
	}
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLaterFormatIsRefused(t *testing.T) {
	dir := unpacked(t, "format1.tar.gz")
	setFormat(t, dir, manifestFormat+1)
	before := digest(t, dir)
	_, err := Open(t.Context(), formatConfig(dir, nil))
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "use the release that wrote it, or a later one") {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, digest(t, dir)); d != "" {
		t.Error("it was touched:", d)
	}
}

// TestUpgrade takes a directory of format 1 to formats 2 and 3 of a release to
// come.
func TestUpgrade(t *testing.T) {
	ran := ""
	fails := false
	note := func(d *directory, name string) error { return d.replace(name, []byte(name)) }
	later := &formats{latest: 3, upgrades: []upgrade{
		{2, "the second step", func(d *directory, _ *Config) error {
			ran += "2"
			if err := note(d, "second"); err != nil {
				return err
			}
			if fails {
				return errors.New("the power failed")
			}
			return nil
		}},
		{1, "the first step", func(d *directory, cfg *Config) error {
			ran += "1"
			if d.manifest.Format != 1 {
				t.Errorf("the first step runs at format %d", d.manifest.Format)
			}
			return note(d, "first")
		}},
	}}
	dir := unpacked(t, "format1.tar.gz")
	cfg := formatConfig(dir, nil)
	cfg.formats = &formats{latest: 3, upgrades: later.upgrades[:1]}
	before := digest(t, dir)
	if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "a release in between") {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, digest(t, dir)); d != "" || ran != "" {
		t.Error("it was touched though there is no way:", d, ran)
	}
	cfg.formats = later
	// A wrong key and damage are noticed before anything is changed.
	wrong := cfg
	wrong.Key = formatKey
	if _, err := Open(t.Context(), wrong); !errors.Is(err, ErrKey) || ran != "" {
		t.Fatal(err, ran)
	}
	fails = true
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "from format 2 to 3: the power failed") {
		t.Fatal(err)
	}
	// The first step is done and is not repeated, the second is.
	fails = false
	j, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if ran != "122" || j.dir.manifest.Format != 3 {
		t.Errorf("steps %q, format %d", ran, j.dir.manifest.Format)
	}
	if n := len(describeJournal(t, j).Records); n < 9 {
		t.Errorf("%d records are left", n)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil || ran != "122" {
		t.Error(err, ran)
	}
	// The release before does not touch it any more.
	if _, err := Open(context.Background(), formatConfig(dir, nil)); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
}
