package a2a

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
)

// A2A-020, A2A-022: a blocking message gives the ended task; GetTask gives the same.
func TestSendMessage(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	got := w.task("alice", "echo", say("m1", "hi",
		`,"contextId":"mine","referenceTaskIds":["old"],"metadata":{"a":12345678901234567890}`))
	if got.Status.State != protocol.TaskStateCompleted || got.ContextID != "mine" || len(got.Artifacts) != 1 ||
		got.Artifacts[0].ID != resultID || got.Artifacts[0].Parts[0].Text() != "hi" || got.Status.Timestamp == nil {
		t.Errorf("%+v", got)
	}
	h := got.History
	if len(h) != 1 || h[0].ID != "m1" || h[0].Role != protocol.MessageRoleUser || h[0].Parts[0].Text() != "hi" ||
		h[0].ReferenceTasks[0] != "old" || h[0].TaskID != got.ID || h[0].ContextID != "mine" {
		t.Errorf("history %+v", h[0])
	}
	x, _ := got.Artifacts[0].Metadata[ExtensionURI].(map[string]any)
	if x["sender"] != "echo" || x["protocol"] != "go" || x["message"] == "" {
		t.Errorf("provenance %v", x)
	}
	again, err := w.get("alice", "echo", got.ID)
	w.must(err)
	if a, b := encoded(t, again), encoded(t, got); a != b {
		t.Errorf("GetTask gives %s, not %s", a, b)
	}
	m, err := w.node.index.Message(t.Context(), string(got.ID))
	w.must(err)
	record, err := w.j.Read(t.Context(), m.Position)
	w.must(err)
	if k := keptOf(record.Message); string(k.Metadata["a"]) != `12345678901234567890` || len(k.References) != 1 {
		t.Errorf("kept %s", record.Message.Extensions[Protocol])
	}
	if o := record.Message.Origin; o.Address != "192.0.2.1" || o.Peer != "token alice" || len(o.Verdict.Checks) != 1 ||
		len(o.Raw) == 0 || record.Scope != scope("echo", "alice") {
		t.Errorf("origin %+v in %s", o, record.Scope)
	}
	minted := w.task("alice", "echo", say("m2", "hi", ""))
	if _, err := parley.ParseID(minted.ContextID); err != nil || minted.ContextID == minted.History[0].ID {
		t.Errorf("minted context %q", minted.ContextID)
	}
	if again, err := w.get("alice", "echo", minted.ID); err != nil || again.ContextID != minted.ContextID {
		t.Errorf("the context of the record is %q, not %q: %v", again.ContextID, minted.ContextID, err)
	}
}

// Section 8: what is refused before anything is recorded, with the field that is wrong.
func TestSendMessageRefuses(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	const parts = `"parts":[{"text":"x"}]`
	user := func(members string) string { return `{"message":{"messageId":"m","role":"ROLE_USER",` + members + `}}` }
	for _, c := range []struct{ params, field string }{
		{`{}`, "message"},
		{`{"message":{"role":"ROLE_USER",` + parts + `}}`, "message.messageId"},
		{`{"message":{"messageId":"m","role":"ROLE_AGENT",` + parts + `}}`, "message.role"},
		{`{"message":{"messageId":"m","role":"boss",` + parts + `}}`, "message.role"},
		{`{"message":{"messageId":"m",` + parts + `}}`, "message.role"},
		{`{"message":{"messageId":"m\u0007","role":"ROLE_USER",` + parts + `}}`, "message.messageId"},
		{`{"message":{"messageId":"m","role":"ROLE_USER"}}`, "message.parts"},
		{user(`"parts":[]`), "message.parts"},
		{user(`"parts":[null]`), "message.parts[0]"},
		{user(`"parts":[{"text":"x","mediaType":"/"}]`), "message.parts[0].mediaType"},
		{user(`"parts":[{"text":"{","mediaType":"application/json"}]`), "message.parts[0].text"},
		{user(`"parts":[{"data":1,"mediaType":"text/plain"}]`), "message.parts[0].mediaType"},
		{user(`"referenceTaskIds":[""],` + parts), "message.referenceTaskIds[0]"},
		{configured(user(parts), `"historyLength":-1`), "configuration.historyLength"},
		{configured(user(parts), `"taskPushNotificationConfig":{"url":"http://example.com"}`),
			"taskPushNotificationConfig.url"},
	} {
		_, err := w.send("alice", "echo", c.params)
		if err == nil {
			t.Errorf("%s is accepted", c.params)
			continue
		}
		wantError(t, err, protocol.ErrInvalidParams, c.field)
	}
	for params, sentinel := range map[string]error{
		say("m", "x", `,"taskId":"t"`):                                    protocol.ErrTaskNotFound,
		say("m", "x", `,"taskId":"018f0000-0000-7000-8000-000000000001"`): protocol.ErrTaskNotFound,
	} {
		_, err := w.send("alice", "echo", params)
		wantError(t, err, sentinel, "")
	}
	if s := w.j.Stats(); s.Partitions[0].Records != 0 || w.node.hooks.Len() != 0 {
		t.Errorf("%d records, %d webhooks of refused messages", s.Partitions[0].Records, w.node.hooks.Len())
	}
}

// A2A-021: a messageId is a caller's own; the same content gives the same task and the same refusal.
func TestRepeatedMessage(t *testing.T) {
	w := newWorld(t)
	calls := 0
	w.handle("echo", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
		calls++
		return echo(ctx, m, r)
	})
	first := w.task("alice", "echo", say("m1", "hi", ""))
	again := w.task("alice", "echo", ` { "message" : {"role":"ROLE_USER","messageId":"m1","parts":[{"text":"hi"}]}}`)
	if again.ID != first.ID || again.Status.State != protocol.TaskStateCompleted || again.ContextID != first.ContextID {
		t.Errorf("the repeat gives %+v, not %+v", again, first)
	}
	r := w.stream("alice", "echo", say("m1", "hi", ""))
	<-r.done
	if got := r.seen(); r.err != nil || !slices.Equal(got, []string{"task COMPLETED [hi]"}) {
		t.Errorf("the repeat as a stream: %v, %v", got, r.err)
	}
	_, err := w.send("alice", "echo", say("m1", "ho", ""))
	wantError(t, err, protocol.ErrInvalidParams, "message.messageId")
	if other := w.task("bob", "echo", say("m1", "hi", "")); other.ID == first.ID {
		t.Error("another caller's message gives the same task")
	}
	if calls != 2 {
		t.Errorf("%d calls", calls)
	}
	refused := say("m2", "x", `,"metadata":{"`+ExtensionURI+`":{"skill":"none"}}`)
	for range 2 {
		if _, err := w.send("alice", "echo", refused); parley.CodeOf(err) != parley.UnknownSkill {
			t.Errorf("refusal %v", err)
		}
	}
	if _, err := w.send("alice", "echo", say("m2", "y", "")); !errors.Is(err, protocol.ErrInvalidParams) {
		t.Errorf("other content with the id of a refused message: %v", err)
	}
}

// The extension names the skill; else the one that the data fits; else the default.
func TestSkillOfAMessage(t *testing.T) {
	w := newWorld(t)
	skill := func(id, input string, options ...parley.SkillOption) parley.SkillSpec {
		s := parley.RawSkill(id, func(_ context.Context, m *parley.Message, r parley.Replier) error {
			return r.Reply(parley.Text(m.Skill))
		}, options...)
		if input != "" {
			s.Input = []byte(input)
		}
		return s
	}
	w.must(w.node.hub.Handle(parley.Agent{Name: "many", Exposed: parley.Everywhere, Skills: []parley.SkillSpec{
		skill("usual", "", parley.AsDefault()), skill("a", `{"type":"object","required":["a"]}`),
		skill("b", `{"type":"object","required":["b"]}`)}}))
	for i, c := range []struct{ part, metadata, want string }{
		{`{"text":"x"}`, `{}`, ""},
		{`{"data":{"a":1}}`, `{}`, "a"},
		{`{"data":{"a":1,"b":1}}`, `{}`, ""},
		{`{"data":{"a":1}}`, `{"` + ExtensionURI + `":{"skill":"usual"}}`, "usual"},
	} {
		got := w.task("alice", "many", fmt.Sprintf(
			`{"message":{"messageId":"m%d","role":"ROLE_USER","parts":[%s],"metadata":%s}}`, i, c.part, c.metadata))
		if text := got.Artifacts[0].Parts[0].Text(); text != c.want {
			t.Errorf("%s with %s goes to %q, want %q", c.part, c.metadata, text, c.want)
		}
	}
}

// A2A-025, A2A-026: a blocking message gives the task as it is when its time is up; one that does not
// block at once; one that waits for its client at once.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Wait = 10 * time.Second })
		g := make(gate, 9)
		w.handle("slow", g.handler)
		began := time.Now()
		if got := w.task("alice", "slow", immediately(say("m1", "x", ""))); got.Status.State != protocol.TaskStateSubmitted ||
			time.Since(began) != 0 {
			t.Errorf("%s after %s", shortly(got), time.Since(began))
		}
		g <- "progress half"
		got := w.task("alice", "slow", say("m1", "x", ""))
		if shortly(got) != "task WORKING half" || time.Since(began) != 10*time.Second {
			t.Errorf("%s after %s", shortly(got), time.Since(began))
		}
		g <- "ask where to?"
		got = w.task("alice", "slow", say("m1", "x", ""))
		if shortly(got) != "task INPUT_REQUIRED where to?" || time.Since(began) != 10*time.Second {
			t.Errorf("%s after %s", shortly(got), time.Since(began))
		}
		if h := got.History; len(h) != 2 || h[1].Parts[0].Text() != "half" || h[1].Role != protocol.MessageRoleAgent {
			t.Errorf("history %v", h)
		}
		// The answer, with a context that differs, then as it must be.
		id := `,"taskId":"` + string(got.ID) + `"`
		_, err := w.send("alice", "slow", say("m2", "Bern", id+`,"contextId":"other"`))
		wantError(t, err, protocol.ErrInvalidParams, "message.contextId") // A2A-023
		_, err = w.send("bob", "slow", say("m2", "Bern", id))
		wantError(t, err, protocol.ErrTaskNotFound, "") // A2A-040
		if got := w.task("alice", "slow", immediately(say("m2", "Bern", id))); shortly(got) != "task WORKING" ||
			len(got.History) != 4 || got.History[3].Parts[0].Text() != "Bern" || got.History[3].ID != "m2" {
			t.Errorf("%s, %v", shortly(got), got.History)
		}
		g <- "reply done"
		again := w.task("alice", "slow", say("m2", "Bern", id)) // a repeat waits as the first would
		if shortly(again) != "task COMPLETED [done]" || again.ID != got.ID || len(again.History) != 4 {
			t.Errorf("%s, %v", shortly(again), again.History)
		}
		_, err = w.send("alice", "slow", say("m3", "Bern", id))
		wantError(t, err, protocol.ErrUnsupportedOperation, "")                          // A2A-024
		if again := w.task("alice", "slow", say("m2", "Bern", id)); again.ID != got.ID { // A2A-021
			t.Errorf("the repeat after the end gives %+v", again)
		}
	})
}

// An agent may answer by a message; its context is filled in.
func TestAnswerByMessage(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	w.node.SetAgent("echo", AgentSettings{Message: true})
	result, err := w.send("alice", "echo", say("m1", "hi", ""))
	w.must(err)
	m, ok := result.(*protocol.Message)
	if !ok || m.ContextID == "" || m.Parts[0].Text() != "hi" || m.Role != protocol.MessageRoleAgent || m.TaskID != "" {
		t.Errorf("%T %+v", result, m)
	}
	if got := w.task("alice", "echo", immediately(say("m2", "hi", ""))); got.ID == "" {
		t.Errorf("%+v", got)
	}
}

// A failure is a state of the task, with code and reference in the metadata of its text.
func TestFailureIsAState(t *testing.T) {
	w := newWorld(t)
	g := make(gate, 1)
	w.handle("slow", g.handler)
	g <- "fail not today"
	got := w.task("alice", "slow", say("m1", "x", ""))
	x, _ := got.Status.Message.Metadata[ExtensionURI].(map[string]any)
	if shortly(got) != "task REJECTED not today" || x["code"] != "rejected" || x["ref"] == nil {
		t.Errorf("%s, %v", shortly(got), x)
	}
}

// A caller that sends more messages than the journal keeps long replay keys for is not refused; its
// further ids are remembered for the journal's window.
func TestManyMessagesOfACaller(t *testing.T) {
	w := newWorldOn(t, journal.Config{Store: testjournal.Memory(t), MaxLongKeys: 2})
	w.handle("echo", echo)
	var first []protocol.TaskID
	for i := range 5 {
		first = append(first, w.task("alice", "echo", say(fmt.Sprint(i), "hi", "")).ID)
	}
	for i, id := range first {
		if again := w.task("alice", "echo", say(fmt.Sprint(i), "hi", "")); again.ID != id {
			t.Errorf("message %d gives another task", i)
		}
	}
}

// A2A-020, A2A-025: a client gets its message's task and the end of that task even if the queue of records
// overflows.
func TestMoreThanAQueueHolds(t *testing.T) {
	w := newWorld(t)
	w.node.requests.Close()
	w.node.requests = follow.New(follow.Config{Journal: w.j, Index: w.node.index, Queue: -1}) // each record overflows
	w.node.requests.Start()
	inputs := make(chan struct{})
	w.handle("fast", func(ctx context.Context, m *parley.Message, r parley.Replier) error {
		if string(m.Parts[0].Data) == "ask" {
			if _, err := r.(parley.Prompter).NeedInput(parley.Text("more?")); err != nil {
				return err
			}
			<-inputs
			return r.Reply(parley.Text("done"))
		}
		return r.Reply(parley.Text("done"))
	})
	if got := w.task("alice", "fast", say("m1", "x", "")); shortly(got) != "task COMPLETED [done]" {
		t.Errorf("a message that waits: %s", shortly(got))
	}
	asked := w.task("alice", "fast", say("m2", "ask", ""))
	if got := w.task("alice", "fast", immediately(say("m3", "x", ""))); got.History[0].ID != "m3" {
		t.Errorf("a message: %+v", got)
	}
	got := w.task("alice", "fast", immediately(say("m4", "y", `,"taskId":"`+string(asked.ID)+`"`)))
	if shortly(got) != "task WORKING" || len(got.History) != 3 {
		t.Errorf("an input: %s, %v", shortly(got), got.History)
	}
	close(inputs)
	w.eventually("the task does not end", func() bool {
		got, err := w.get("alice", "fast", asked.ID)
		return err == nil && got.Status.State.Terminal()
	})
}
