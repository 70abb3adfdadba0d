package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/samvad"
	"github.com/parley-hub/parley/uagents"
)

var base64Runs = regexp.MustCompile(`[A-Za-z0-9+/_-]{8,}`)

// mentions finds a text in data: in clear, or in nested base64, like that of envelopes in
// values.
func mentions(data []byte, text string, depth int) bool {
	if bytes.Contains(data, []byte(text)) {
		return true
	}
	if depth == 0 {
		return false
	}
	for _, run := range base64Runs.FindAll(data, -1) {
		for shift := range 4 { // the offset of the base64 is unknown
			s := strings.NewReplacer("-", "+", "_", "/").Replace(string(run[shift:]))
			if len(s)%4 == 1 {
				s = s[:len(s)-1]
			}
			b, err := base64.RawStdEncoding.DecodeString(s)
			if err == nil && mentions(b, text, depth-1) {
				return true
			}
		}
	}
	return false
}

// mentioned names the files below a directory that mention a text.
func mentioned(t *testing.T, dir, text string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir() {
			return nil // a file removed meanwhile mentions nothing
		}
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if mentions(b, text, 2) {
			out = append(out, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kept names the buckets of the state that mention a text.
func (f *five) kept(text string) (out []string) {
	f.t.Helper()
	for _, bucket := range []string{"a2e.inbox", "a2e.memory", "a2e.sessions", "a2e.subagents", "agh.containers",
		"agh.handoffs", "agh.members", "agh.works",
		"asp-agents", "asp-erased", "asp-opened", "asp-pages", "asp-sessions", "samvad-outgoing", "samvad-tasks",
		"uagents-almanac", "uagents-mailbox", "uagents-sessions",
		"agents", "audit", "erasures", "hub", "retention"} {
		for v, err := range f.journal.State(bucket).Range(f.t.Context(), "") {
			if err != nil {
				f.t.Fatal(err)
			}
			if mentions(v.Data, text, 3) {
				out = append(out, bucket)
				break
			}
		}
	}
	return out
}

// TestForgetInFiveProtocols sends a word in each protocol, wherever a binding keeps
// state, and forgets its senders and recipients.
func TestForgetInFiveProtocols(t *testing.T) {
	t.Parallel()
	const word = "quincunx"
	var ahead atomic.Int64 // of the hub's clock
	c := fiveConfig()
	c.Durability, c.Data = "disk", t.TempDir()
	c.Delivery.Tries = 1
	c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	f := newFive(t, c)
	ctx := t.Context()
	said := map[string]any{"text": word}
	payload := []byte(`{"text":"` + word + `"}`)
	settled := func() {
		t.Helper()
		f.until("all is settled", func() bool {
			return !slices.ContainsFunc(f.journal.Deliveries(journal.Filter{}),
				func(d journal.Delivery) bool { return d.State != parley.Dead })
		})
	}

	// SAMVAD: a task, whose result is kept for two hours.
	id, err := f.samvad.Send(ctx, samvad.Call{URL: f.at("echo", "samvad"), Skill: "say", Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	if task, err := f.samvad.Wait(ctx, f.at("echo", "samvad"), id); err != nil ||
		!strings.Contains(string(task.Result), word) {
		t.Fatalf("%+v %v", task, err)
	}

	// uAgents: a question, and a message that stays in the mailbox.
	if _, err := f.uagents.Ask(ctx, f.at("echo", "uagents"),
		uagents.ModelOf[question]().Message(question{word})); err != nil {
		t.Fatal(err)
	}
	dora, err := uagents.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	f.put("dora", parley.Identity{Protocol: "uagents", ID: dora.Address()})
	r := uagents.NewRegistration(dora, false, []uagents.Endpoint{{URL: f.Addresses().Local +
		"/v2/agents/mailbox/submit", Weight: 1}}, []string{uagents.ChatProtocolDigest})
	if err := r.Sign(dora, time.Now()); err != nil {
		t.Fatal(err)
	}
	body, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.web.Post(f.Addresses().Local+"/v1/almanac/agents", "application/json", bytes.NewReader(body))
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	notice(t, f.Node, "dora", word)

	// A2E: a call, memories, and delegated work.
	if _, err := f.a2e.CallTool(ctx, "echo__say", said, nil); err != nil {
		t.Fatal(err)
	}
	a2eAsk := func(kind string, body map[string]any) *a2e.Envelope {
		t.Helper()
		m, err := f.a2e.Ask(ctx, a2e.Message{Type: kind, Body: body})
		if err != nil {
			t.Fatal(kind, err)
		}
		return m
	}
	memory := a2eAsk("memory/init/req", map[string]any{"namespace": word,
		"scope": map[string]string{"p": "1"}}).Str("memory_id")
	a2eAsk("memory/store/req", map[string]any{"memory_id": memory, "entries": []map[string]any{
		{"key": map[string]any{"k": 1}, "content": word, "tier": "episodic"},
		{"key": map[string]any{"k": 2}, "content": word, "tier": "semantic"}}})
	sub := a2eAsk("multi_agent/spawn", map[string]any{"name": "echo__say", "role": "say"}).Str("subagent_id")
	a2eAsk("multi_agent/delegate", map[string]any{"subagent_id": sub, "task_name": word,
		"instruction": string(payload)})
	if m := a2eAsk("multi_agent/await", map[string]any{"subagent_id": sub}); !strings.Contains(string(m.Raw()), word) {
		t.Fatalf("%s", m.Raw())
	}

	// AGH: work for an agent of the hub, and for a peer that says the word and ends the
	// work without a result.
	for _, err := range f.agh.Whois(ctx, "echo", "", false) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, err := f.agh.Ask(ctx, "echo", &agh.Say{Text: string(payload)}); err != nil {
		t.Fatal(err)
	}
	f.peer("bob", func(ctx context.Context, r *agh.Request) {
		if r.Envelope.WorkID == "" || r.Envelope.Kind != agh.KindSay {
			return
		}
		if err := errors.Join(r.Say(ctx, &agh.Say{Text: word}),
			r.Trace(ctx, &agh.Trace{State: agh.StateCompleted})); err != nil {
			t.Error(err)
		}
	})
	guest, ok := f.Hub().Directory().Lookup("agh", "acme/bob")
	if !ok {
		t.Fatal("bob is not there")
	}
	text := "say it"
	if got, err := f.Admin().Ask(ctx, everything, admin.Send{To: guest.Name, Text: &text}); err != nil ||
		!strings.Contains(fmt.Sprint(*got.Reply.Parts[0].Text), word) {
		t.Fatalf("%+v %v", got, err)
	}

	// ASP: a session with an object in its context.
	s, err := f.asp.Open(ctx, asp.Invitation{To: []string{f.at("echo", "asp")}, Purpose: word})
	if err != nil {
		t.Fatal(err)
	}
	introduced(ctx, t, s)
	object := asp.ContextObject{Type: "custom", ID: "n1", Version: 1, Data: []byte(`{"note":"` + word + `"}`),
		Visibility: asp.VisiblePersistent}
	if _, err := s.Ask(ctx, asp.Question{QueryType: "say", Parameters: said}, asp.WithContext(object)); err != nil {
		t.Fatal(err)
	}

	// A dead letter: its reason quotes the word.
	err = f.Handle(parley.Agent{Name: "brittle", Exposed: parley.Everywhere},
		parley.Skill("say", func(context.Context, *parley.Message, map[string]any) (map[string]any, error) {
			return nil, parley.Refuse(parley.Rejected, "it said %s", word)
		}))
	if err != nil {
		t.Fatal(err)
	}
	lost := notice(t, f.Node, "brittle", `{"text":"hello"}`)
	f.until("the letter is dead", func() bool {
		d, ok := f.journal.Delivery(lost.ID, "brittle")
		return ok && d.State == parley.Dead
	})

	visitor, ok := f.Hub().Directory().Lookup("asp", "agent://alice.example/test/alice")
	if !ok {
		t.Fatal("the ASP agent is not in the directory")
	}
	settled()
	for _, bucket := range []string{"a2e.memory", "a2e.subagents", "samvad-tasks", "uagents-mailbox"} {
		f.until("the word is in "+bucket, func() bool { return slices.Contains(f.kept(word), bucket) })
	}
	f.until("the word is in the index too, which follows the journal", func() bool {
		files := strings.Join(mentioned(t, c.Data, word), " ")
		return strings.Contains(files, "journal.db") && strings.Contains(files, "index.db")
	})
	forget := func() (kept uint64) {
		t.Helper()
		for _, name := range []string{"echo", "dora", "brittle", guest.Name,
			"alice-samvad", "alice-uagents", "alice-a2e", visitor.Name} {
			got, err := f.Admin().Forget(ctx, everything, admin.Forget{Agent: name})
			if err != nil {
				t.Fatal(name, err)
			}
			kept += got.Kept()
		}
		return kept
	}
	if kept := forget(); kept == 0 {
		t.Error("a session that goes on and a dead letter should have been left")
	}
	if left := f.kept(word); slices.ContainsFunc(left, func(b string) bool { return !strings.HasPrefix(b, "asp-") }) {
		t.Errorf("the word is still in %v", left)
	}
	if _, err := f.samvad.Task(ctx, f.at("echo", "samvad"), id); !errors.Is(err, samvad.ErrNotFound) {
		t.Error("the task is still there:", err)
	}
	if m := a2eAsk("multi_agent/list", nil); len(m.Values("subagents")) != 0 {
		t.Errorf("%s", m.Raw())
	}

	// The session has ended, and the letter is dropped.
	if err := s.Close(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	if left := f.kept(word); !slices.Equal(left, []string{"asp-sessions"}) {
		t.Errorf("the word is in %v, and should be in the session's checkpoint", left)
	}
	if _, err := f.Admin().Drop(ctx, everything, lost.ID.String(), "brittle", ""); err != nil {
		t.Fatal(err)
	}
	settled()
	ahead.Store(int64(61 * time.Minute))
	if kept := forget(); kept != 0 {
		t.Errorf("%d messages were left", kept)
	}
	if left := f.kept(word); len(left) > 0 {
		t.Errorf("the word is still in %v", left)
	}
	// The engine must have written its files, and the index.
	if files := mentioned(t, c.Data, word); len(files) > 0 {
		t.Errorf("the word is still in %v", files)
	}
	// Erased, the session can be read, and its transcript says so.
	var transcript bytes.Buffer
	if err := f.aspServer().WriteTranscript(ctx, s.ID(), &transcript); err != nil {
		t.Fatal(err)
	}
	report, err := asp.VerifyTranscript(bytes.NewReader(transcript.Bytes()))
	if err != nil || report.Erased == 0 || report.State != asp.Closed {
		t.Errorf("%+v %v", report, err)
	}
	if strings.Contains(transcript.String(), word) {
		t.Error(transcript.String())
	}
	if err := f.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if files := mentioned(t, c.Data, word); len(files) > 0 {
		t.Errorf("after the end the word is in %v", files)
	}
}

func (f *five) aspServer() *asp.Server { return f.Node.ASP().Server() }
