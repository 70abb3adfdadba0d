package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testdata has backups by earlier releases. Those of the first engine: of a directory
// (also encrypted, and after a crash), and of a cluster.

// formatKey is the key of the encrypted directories in testdata.
var formatKey = []byte("the key of the format tests")

// formatTime is the time at which the backups were written.
var formatTime = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// writtenRecord is the expected content of one record of a backup.
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

// written is the expected content of a backup, read from testdata.
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
			w := writtenRecord{Position: r.Position.String(), Time: r.Time.Format(time.RFC3339Nano), Scope: r.Scope,
				Keyed: r.Keyed}
			if m := r.Message; m != nil {
				w.Message, w.Kind, w.From, w.To, w.Raw, w.Checks = m.ID.String(), m.Kind.String(), m.From, m.To,
					string(m.Origin.Raw), len(m.Origin.Verdict.Checks)
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

// TestFormats restores a backup by every earlier release, and compares the restored
// journal with its expected content.
func TestFormats(t *testing.T) {
	for _, kind := range []string{"", "-encrypted", "-crashed", "-cluster"} {
		t.Run("format1"+kind, func(t *testing.T) {
			var key []byte
			if kind == "-encrypted" {
				key = formatKey
			}
			b, err := os.ReadFile(filepath.Join("testdata", "format1"+kind+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var want written
			if err := json.Unmarshal(b, &want); err != nil {
				t.Fatal(err)
			}
			backup, err := os.ReadFile(filepath.Join("testdata", "format1"+kind+".backup"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := CheckBackup(bytes.NewReader(backup), key, true, nil); err != nil {
				t.Fatal(err)
			}
			c := &clock{t: formatTime}
			cfg := setup{Dir: t.TempDir(), Key: key, Now: c.now, Node: "writer"}
			if _, err := tryRestore(t.Context(), bytes.NewReader(backup),
				restoring{Dir: cfg.Dir, Key: key, Now: c.now}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				j, err := tryOpen(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, describeJournal(t, j)); d != "" {
					t.Error(d)
				}
				if len(want.Records) < 9 || len(want.State) != 2 || len(want.Deliveries) != 2 {
					t.Errorf("the expected content in testdata is incomplete: %+v", want)
				}
				for scope, id := range map[string]string{"bob": "nonce 1", "carol": "nonce 2"} {
					if _, ok := j.Seen(scope, id); !ok {
						t.Errorf("key %q was not restored: a replay would be accepted", id)
					}
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
			j := open(t, cfg)
			if _, err := j.Append(t.Context(), Entry{Scope: "session", Message: request(t, "x", "y"),
				Chain: &ChainLink{Name: "c", After: want.Head}}); err != nil {
				t.Error(err)
			}
			out, _ := backed(t, j, BackupOptions{})
			if _, err := CheckBackup(bytes.NewReader(out), key, true, nil); err != nil {
				t.Error(err)
			}
		})
	}
}
