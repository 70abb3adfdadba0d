package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// fakeClock is a clock that tests move.
type fakeClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func newFakeClock() *fakeClock { return &fakeClock{t: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)} }

// inFiles names the files below a directory that hold a text.
func inFiles(t *testing.T, dir, text string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func notice(t *testing.T, n *Node, to, text string) admin.Receipt {
	t.Helper()
	r, err := n.Admin().Send(t.Context(), everything, admin.Send{To: to, Kind: parley.Notice, Text: &text})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// erasable starts a hub on a disk with an agent "echo", and two inboxes, "box" and
// "cellar".
func erasable(t *testing.T, c Config) *Node {
	t.Helper()
	c.Durability = "disk"
	if c.Data == "" {
		c.Data = t.TempDir()
	}
	c.Policy.Assurance = "session"
	c.Delivery.Tries = 1
	n := running(t, c)
	for _, name := range []string{"box", "cellar"} {
		if _, ok := n.directory.Agent(name); ok {
			continue
		}
		if _, err := n.Admin().AddAgent(t.Context(), everything, admin.NewAgent{Name: name, Inbox: true}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func recorded(t *testing.T, n *Node, id parley.ID) *journal.Record {
	t.Helper()
	for p := range n.journal.Partitions() {
		for r, err := range n.journal.Records(t.Context(), p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Message != nil && r.Message.ID == id {
				return r
			}
		}
	}
	t.Fatalf("message %s is not in the journal", id)
	return nil
}

func TestForget(t *testing.T) {
	clock := newFakeClock()
	n := erasable(t, Config{Now: clock.now})
	ctx := t.Context()
	asked, err := ask(t, n, `{"text":"quincunx"}`)
	if err != nil {
		t.Fatal(err)
	}
	waits := notice(t, n, "box", "quincunx waits")
	other := notice(t, n, "cellar", "saxifrage")
	if _, err := n.Admin().Forget(ctx, admin.Actor{Name: "t", Role: admin.Operate},
		admin.Forget{Agent: "echo"}); parley.CodeOf(err) != parley.Forbidden {
		t.Fatal(err)
	}
	dry, err := n.Admin().Forget(ctx, everything, admin.Forget{Agent: "echo", DryRun: true})
	if err != nil || dry.Erased != 2 || !dry.DryRun {
		t.Fatalf("%+v %v", dry, err)
	}
	got, err := n.Admin().Forget(ctx, everything, admin.Forget{Agent: "echo", Reason: "asked for"})
	if err != nil || got.Erased != 2 || got.Kept() != 0 || got.Erasure != 1 || got.Ended.IsZero() {
		t.Fatalf("%+v %v", got, err)
	}
	again, err := n.Admin().Forget(ctx, everything, admin.Forget{Agent: "echo"})
	if err != nil || again.Erased != 0 {
		t.Fatalf("again: %+v %v", again, err)
	}
	m, err := n.Admin().Message(ctx, everything, asked.ID.String(), true)
	if err != nil || m.Erased == nil || m.Erased.Number != 1 || m.Erased.By != "test" ||
		m.Erased.Reason != "asked for" || m.Preview != "" || len(m.Raw) > 0 {
		t.Fatalf("%+v %v", m, err)
	}
	if page, err := n.Admin().Messages(ctx, everything, index.Filter{Text: "quincunx"}); err != nil ||
		len(page.Messages) != 1 || page.Messages[0].ID != waits.ID {
		t.Fatalf("%+v %v", page, err)
	}
	// The content of a pending message stays until the message is delivered.
	got, err = n.Admin().Forget(ctx, everything, admin.Forget{Agent: "box"})
	if err != nil || got.Erased != 0 || got.Undelivered != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	settled := make(chan struct{})
	stop := watchSettled(n, waits.ID, settled)
	defer stop()
	for m, err := range n.Admin().Inbox(ctx, everything, "box") {
		if err != nil || *m.Parts[0].Text != "quincunx waits" {
			t.Fatalf("%+v %v", m, err)
		}
		break
	}
	<-settled
	if got, err = n.Admin().Forget(ctx, everything, admin.Forget{Agent: "box"}); err != nil || got.Erased != 1 ||
		got.Kept() != 0 {
		t.Fatalf("%+v %v", got, err)
	}
	if files := inFiles(t, n.c.Data, "quincunx"); len(files) > 0 {
		t.Errorf("it is still in %v", files)
	}
	if files := inFiles(t, n.c.Data, "saxifrage"); len(files) == 0 {
		t.Error("the test does not find a text that is there")
	}
	// An export names the erasure, and verifies.
	var out bytes.Buffer
	if err := n.Admin().Export(ctx, everything, asked.Conversation.String(), true, &out); err != nil {
		t.Fatal(err)
	}
	marks := 0
	report, err := admin.VerifyExport(bytes.NewReader(out.Bytes()),
		func(_ *admin.ExportHeader, _ int, r *admin.ExportRecord) {
			if r.Erased != nil && r.Erased.By == "test" && r.Erased.Reason == "asked for" && !r.Erased.Time.IsZero() {
				marks++
				if err := r.Message.Check(); err != nil {
					t.Error(err)
				}
			}
		})
	if err != nil || !report.OK() || marks != 2 || strings.Contains(out.String(), "quincunx") {
		t.Errorf("%+v %v, %d marks: %s", report, err, marks, out.String())
	}
	list, err := n.Admin().Erasures(ctx, everything)
	if err != nil || len(list) != 4 || list[0].Name != "echo" || list[0].Erased != 2 || list[0].Ended.IsZero() {
		t.Errorf("%+v %v", list, err)
	}
	audit, err := n.Admin().Audit(everything, admin.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, a := range audit {
		found = found || a.Action == "forget.agent" && a.Target == "echo" && a.Detail == "asked for" &&
			a.Outcome == "done"
	}
	if !found {
		t.Errorf("the audit trail has nothing of it: %+v", audit)
	}
	// A conversation by the beginning of its id.
	if got, err = n.Admin().Forget(ctx, everything,
		admin.Forget{Conversation: other.Conversation.String()}); err != nil || got.What != "conversation" ||
		got.Undelivered != 1 {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := n.Admin().Forget(ctx, everything, admin.Forget{}); parley.CodeOf(err) != parley.Malformed {
		t.Error(err)
	}
}

// TestForgetIsFinished starts a hub on a data directory with an interrupted erasure.
func TestForgetIsFinished(t *testing.T) {
	dir := t.TempDir()
	n := erasable(t, Config{Data: dir})
	asked, err := ask(t, n, `{"text":"quincunx"}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.journal.NewErasure(t.Context(), journal.Erasure{What: "agent", Name: "echo", By: "op"}); err != nil {
		t.Fatal(err)
	}
	// The erasure erased half of the records, and nothing in the index.
	if _, err := n.journal.Erase(t.Context(), 1, journal.Digests,
		[]journal.Position{recorded(t, n, asked.ID).Position}); err != nil {
		t.Fatal(err)
	}
	later, err := ask(t, n, `{"text":"saxifrage"}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	k := erasable(t, Config{Data: dir})
	if err := k.eraser.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := k.Admin().Erasures(t.Context(), everything)
	if err != nil || len(list) != 1 || list[0].Ended.IsZero() {
		t.Fatalf("%+v %v", list, err)
	}
	if page, err := k.Admin().Messages(t.Context(), everything, index.Filter{Text: "quincunx"}); err != nil ||
		len(page.Messages) != 0 {
		t.Errorf("%+v %v", page, err)
	}
	if files := inFiles(t, dir, "quincunx"); len(files) > 0 {
		t.Errorf("it is still in %v", files)
	}
	if r := recorded(t, k, later.ID); r.Erased != nil {
		t.Error("a message sent after the command is erased too")
	}
}

func TestRetention(t *testing.T) {
	clock := newFakeClock()
	keep := func(d time.Duration) Duration { return Duration{d} }
	dir := t.TempDir()
	n := erasable(t, Config{Data: dir, Now: clock.now, Retention: Retention{Keep: keep(48 * time.Hour),
		Every: keep(1000 * time.Hour), Records: 3,
		Agents: []KeepAgent{{"echo", keep(2 * time.Hour)}, {"cellar", keep(0)}}}})
	ctx := t.Context()
	n.eraser.cancel() // the test alone makes passes
	n.eraser.work.Wait()
	pass := func(n *Node) {
		t.Helper()
		for range 12 { // a pass looks at three records
			if err := n.eraser.retain(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	var short []parley.ID
	for i := range 3 {
		r, err := ask(t, n, fmt.Sprintf(`{"text":"quincunx %d"}`, i))
		if err != nil {
			t.Fatal(err)
		}
		short = append(short, r.ID, r.Reply.ID)
	}
	box, cellar := notice(t, n, "box", "saxifrage"), notice(t, n, "cellar", "gallimaufry")
	pass(n)
	content := func(n *Node, id parley.ID) bool { return journal.HasContent(recorded(t, n, id), journal.Digests) }
	for _, id := range short {
		if !content(n, id) {
			t.Fatal("erased before its time")
		}
	}
	clock.add(3 * time.Hour)
	pass(n)
	for _, id := range short {
		r := recorded(t, n, id)
		if journal.HasContent(r, journal.Digests) {
			t.Fatalf("%s is kept longer than it should", id)
		}
		e, err := n.journal.Erasure(ctx, r.Erased.Number)
		if err != nil || e.What != "retention" || e.By != "retention" || !strings.Contains(e.Name, "echo 2h0m0s") {
			t.Fatalf("%+v %v", e, err)
		}
	}
	if page, err := n.Admin().Messages(ctx, everything, index.Filter{Text: "quincunx"}); err != nil ||
		len(page.Messages) != 0 {
		t.Errorf("%+v %v", page, err)
	}
	if !content(n, box.ID) || !content(n, cellar.ID) {
		t.Error("others went too")
	}
	// Due, but not delivered: box's message stays until then. cellar's has no end and
	// stays.
	clock.add(72 * time.Hour)
	pass(n)
	if !content(n, box.ID) || !content(n, cellar.ID) {
		t.Error("a pending message, or one that is kept for ever, is gone")
	}
	if v := value(t, n, "parley_retention_held"); v != 1 {
		t.Errorf("%v are held", v)
	}
	settled := make(chan struct{})
	stop := watchSettled(n, box.ID, settled)
	defer stop()
	for _, err := range n.Admin().Inbox(ctx, everything, "box") {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	<-settled
	pass(n)
	if content(n, box.ID) || !content(n, cellar.ID) {
		t.Error("it was delivered and stays, or the other went")
	}
	if v := value(t, n, "parley_erased_messages_total", "by", "retention"); v < 7 {
		t.Errorf("%v are counted", v)
	}
	// After a restart retention continues; after a change of the setting it starts again.
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	k := erasable(t, Config{Data: dir, Now: clock.now, Retention: Retention{Keep: keep(2 * time.Hour),
		Every: keep(1000 * time.Hour)}})
	settled = make(chan struct{})
	stop = watchSettled(k, cellar.ID, settled)
	defer stop()
	for m, err := range k.Admin().Inbox(ctx, everything, "cellar") {
		if err != nil || *m.Parts[0].Text != "gallimaufry" {
			t.Fatal(m, err)
		}
		break
	}
	<-settled
	pass(k)
	if content(k, cellar.ID) {
		t.Error("the new setting is not in force")
	}
	for _, word := range []string{"quincunx", "saxifrage", "gallimaufry"} {
		var p retained
		v, err := k.eraser.state.Get(ctx, "progress")
		if err != nil || json.Unmarshal(v.Data, &p) != nil {
			t.Fatal(err)
		}
		if files := inFiles(t, dir, word); len(files) > 0 {
			t.Errorf("%q is still in %v", word, files)
		}
	}
}

// TestRecord: an agent's word decides what the journal keeps of its messages once they are
// settled and an hour old, and no byte of the rest is in the data directory.
func TestRecord(t *testing.T) {
	clock := newFakeClock()
	n := erasable(t, Config{Now: clock.now, Retention: Retention{Keep: Duration{48 * time.Hour},
		Every: Duration{1000 * time.Hour}}})
	ctx := t.Context()
	n.eraser.cancel() // the test alone makes passes
	n.eraser.work.Wait()
	pass := func() {
		t.Helper()
		if err := n.eraser.retain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	caller := everything
	caller.Address = "192.0.2.1"
	texts := map[string]string{}
	for name, word := range map[string]parley.Recording{"full": parley.RecordFull, "headers": parley.RecordHeaders,
		"digest": parley.RecordDigest, "late": parley.RecordDigest} {
		if _, err := n.Admin().AddAgent(ctx, everything, admin.NewAgent{Name: name, Inbox: true,
			Record: word}); err != nil {
			t.Fatal(err)
		}
		texts[name] = "quincunx of " + name + strings.Repeat(", long enough for a digest", 4)
	}
	send := func(to string) admin.Receipt {
		t.Helper()
		text := texts[to]
		r, err := n.Admin().Send(ctx, caller, admin.Send{To: to, Kind: parley.Notice, Text: &text})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	take := func(from string, id parley.ID) {
		t.Helper()
		settled := make(chan struct{})
		stop := watchSettled(n, id, settled)
		defer stop()
		for _, err := range n.Admin().Inbox(ctx, everything, from) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		<-settled
	}
	sent := map[string]admin.Receipt{}
	for name := range texts {
		if sent[name] = send(name); name != "late" {
			take(name, sent[name].ID)
		}
	}
	state := func(name string) (erased, body, address bool) {
		t.Helper()
		r := recorded(t, n, sent[name].ID)
		if p := r.Message.Parts[0]; (r.Erased != nil) != (p.Digest != "") || r.Message.From == "" || r.Message.To != name {
			t.Errorf("%s: %+v %+v", name, r.Erased, r.Message)
		}
		return r.Erased != nil, len(r.Message.Parts[0].Data) > 0, r.Message.Origin.Address != ""
	}
	want := func(when string, is map[string][3]bool) {
		t.Helper()
		for name, w := range is {
			erased, body, address := state(name)
			if got := [3]bool{erased, body, address}; got != w {
				t.Errorf("%s: of %s the journal keeps (erased, body, address) %v, want %v", when, name, got, w)
			}
		}
	}
	all, headers, digests := [3]bool{false, true, true}, [3]bool{true, false, true}, [3]bool{true, false, false}
	clock.add(50 * time.Minute)
	pass()
	want("too early", map[string][3]bool{"full": all, "headers": all, "digest": all})
	clock.add(20 * time.Minute)
	pass()
	want("an hour later", map[string][3]bool{"full": all, "headers": headers, "digest": digests, "late": all})
	for name, gone := range map[string]bool{"full": false, "headers": true, "digest": true, "late": false} {
		if files := inFiles(t, n.c.Data, "quincunx of "+name); (len(files) == 0) != gone {
			t.Errorf("%s: in the files %v", name, files)
		}
	}
	take("late", sent["late"].ID)
	pass()
	if files := inFiles(t, n.c.Data, "quincunx of late"); len(files) > 0 {
		t.Errorf("it is still in %v", files)
	}
	for name := range texts {
		var out bytes.Buffer
		err := n.Admin().Export(ctx, everything, sent[name].Conversation.String(), true, &out)
		content := base64.StdEncoding.EncodeToString([]byte(texts[name]))
		if err != nil || strings.Contains(out.String(), content) != (name == "full") {
			t.Errorf("%s: %v %s", name, err, out.String())
		}
		if report, err := admin.VerifyExport(&out, nil); err != nil || !report.OK() {
			t.Errorf("the export of %s: %+v %v", name, report, err)
		}
	}
	// A changed word is in force for earlier messages, too.
	if _, err := n.Admin().Record(ctx, everything, "full", parley.RecordHeaders); err != nil {
		t.Fatal(err)
	}
	pass()
	want("after a change", map[string][3]bool{"full": headers})
	// What remains goes with retention.keep.
	clock.add(48 * time.Hour)
	pass()
	want("after retention.keep", map[string][3]bool{"full": digests, "headers": digests, "digest": digests})
	if _, err := n.Admin().Record(ctx, everything, "full", "nothing"); parley.CodeOf(err) != parley.Malformed {
		t.Error(err)
	}
	if _, err := n.Admin().Record(ctx, everything, "echo", parley.RecordDigest); parley.CodeOf(err) != parley.Forbidden {
		t.Error(err)
	}
}

func TestRetentionOfConversations(t *testing.T) {
	clock := newFakeClock()
	n := erasable(t, Config{Now: clock.now, Retention: Retention{Conversations: Duration{24 * time.Hour},
		Every: Duration{1000 * time.Hour}}})
	ctx := t.Context()
	n.eraser.cancel()
	n.eraser.work.Wait()
	say := func(conversation parley.ID) admin.Receipt {
		t.Helper()
		r, err := n.Admin().Ask(ctx, everything, admin.Send{To: "echo", Conversation: conversation.String(),
			JSON: []byte(`{"text":"quincunx"}`)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	old := say(parley.ID{})
	going := say(parley.ID{})
	clock.add(20 * time.Hour)
	say(going.Conversation)
	clock.add(20 * time.Hour)
	if err := n.eraser.retain(ctx); err != nil {
		t.Fatal(err)
	}
	if journal.HasContent(recorded(t, n, old.ID), journal.Digests) {
		t.Error("a conversation in which nothing was said is kept")
	}
	if !journal.HasContent(recorded(t, n, going.ID), journal.Digests) {
		t.Error("a conversation that goes on lost its beginning")
	}
	clock.add(20 * time.Hour)
	if err := n.eraser.retain(ctx); err != nil {
		t.Fatal(err)
	}
	if journal.HasContent(recorded(t, n, going.ID), journal.Digests) {
		t.Error("a conversation that is over is kept")
	}
	if page, err := n.index.Conversations(ctx, index.ConversationFilter{}); err != nil || len(page.Conversations) < 2 {
		t.Errorf("%+v %v", page, err)
	}
}

// TestRetentionDrops: retention frees the space of erased records.
func TestRetentionDrops(t *testing.T) {
	clock := newFakeClock()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a key of sixteen or more bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := erasable(t, Config{Now: clock.now, Engine: Engine{KeyFile: key}, Limits: Limits{SenderRate: -1},
		Retention: Retention{Keep: Duration{2 * time.Hour}, Drop: Duration{48 * time.Hour},
			Every: Duration{1000 * time.Hour}}})
	ctx := t.Context()
	n.eraser.cancel()
	n.eraser.work.Wait()
	var ids []parley.ID
	for range 10 {
		r, err := ask(t, n, `{"text":"`+strings.Repeat("quincunx", 40_000)+`"}`)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ID)
		clock.add(time.Minute)
	}
	before := n.journal.Stats().Partitions[0]
	for _, step := range []struct {
		after time.Duration
		drops bool
	}{{3 * time.Hour, false}, {72 * time.Hour, true}} {
		clock.add(step.after)
		if err := n.eraser.retain(ctx); err != nil {
			t.Fatal(err)
		}
		after := n.journal.Stats().Partitions[0]
		if (after.Records < before.Records) != step.drops ||
			(value(t, n, "parley_dropped_records_total") > 0) != step.drops {
			t.Fatalf("%d records of %d are left after %s", after.Records, before.Records, step.after)
		}
	}
	if page, err := n.Admin().Messages(ctx, everything, index.Filter{To: "echo"}); err != nil ||
		len(page.Messages) >= len(ids) {
		t.Errorf("the index still has %d messages: %v", len(page.Messages), err)
	}
	if _, err := ask(t, n, `{"text":"hello"}`); err != nil {
		t.Error(err)
	}
}

func TestRetentionIsChecked(t *testing.T) {
	for _, r := range []Retention{{Keep: Duration{time.Minute}}, {Conversations: Duration{-time.Hour}}, {Records: -1},
		{Agents: []KeepAgent{{"a", Duration{time.Second}}}}} {
		c := Config{Retention: r}
		if _, err := c.check(); err == nil {
			t.Errorf("%+v is taken", r)
		}
	}
}
