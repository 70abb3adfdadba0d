package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
)

// inboxTool calls a tool of the inbox at the world's hub.
func (w *world) inboxTool(by, tool, arguments string, edit ...func(*toolCall)) *mcp.CallToolResult {
	w.t.Helper()
	return w.inboxToolIn(w.t.Context(), by, tool, arguments, edit...)
}

func (w *world) inboxToolIn(ctx context.Context, by, tool, arguments string,
	edit ...func(*toolCall)) *mcp.CallToolResult {
	w.t.Helper()
	t := w.toolCall(w.caller(by), tool, arguments)
	for _, f := range edit {
		f(t)
	}
	return w.node.inbox.call(ctx, t)
}

// readBatch is what a reader has of a result.
type readBatch struct {
	Messages []bridge.Arrival
	Cursor   string
	More     bool
}

func (b *readBatch) contents() (out []string) {
	for _, m := range b.Messages {
		out = append(out, string(m.Content))
	}
	return out
}

// structured decodes the text of a result that must be a success. It is the structured content too, which a client of
// the SDK has decoded.
func structured[T any](t testing.TB, r *mcp.CallToolResult) (v T) {
	t.Helper()
	raw, ok := r.StructuredContent.(json.RawMessage)
	if err := json.Unmarshal([]byte(texts(r)), &v); r.IsError || r.StructuredContent == nil || err != nil ||
		ok && string(raw) != texts(r) {
		t.Fatalf("%s, %v", encoded(t, r), err)
	}
	return v
}

func (w *world) inbox(by, arguments string) *readBatch {
	w.t.Helper()
	b := structured[readBatch](w.t, w.inboxTool(by, toolInbox, arguments))
	return &b
}

// send sends a message by parley_send, and gives its id.
func (w *world) send(by, arguments string) string {
	w.t.Helper()
	return structured[sentMessage](w.t, w.inboxTool(by, toolSend, arguments)).ID.String()
}

// arrived waits until the inbox of an agent has so many messages, and reads them.
func (w *world) arrived(agent string, n int) (b *readBatch) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d messages for %s", n, agent), func() bool {
		b = w.inbox(agent, `{"wait":0,"max":100}`)
		return len(b.Messages) >= n
	})
	return b
}

// ask sends a request of the hub's API from an agent to another.
func (w *world) ask(from, to, text string) *parley.Message { return w.askSkill(from, to, "", text) }

func (w *world) askSkill(from, to, skill, text string) *parley.Message {
	w.t.Helper()
	m, err := w.node.hub.Accept(w.t.Context(), hub.Submission{Scope: "test " + to, Message: &parley.Message{
		Kind: parley.Request, From: from, To: to, Skill: skill, Parts: []parley.Part{parley.Text(text)},
		Origin: parley.Origin{Protocol: Protocol, Verdict: parley.Verdict{Assurance: parley.Session}}}})
	w.must(err)
	return m
}

// deliver gives the inbox a message as the hub does.
func (w *world) deliver(to string, m *parley.Message) hub.Outcome {
	w.t.Helper()
	e, ok := w.dir.Agent(to)
	if !ok {
		w.t.Fatal(to)
	}
	return w.node.Deliver(w.t.Context(), hub.Outbound{Message: m, Recipient: e, Identity: IdentityOfCaller(to),
		Attempt: 1})
}

// note is a notice to bob.
func note(parts ...parley.Part) *parley.Message {
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return &parley.Message{ID: id, Kind: parley.Notice, From: "alice", To: "bob", Conversation: id, Parts: parts}
}

// Two agents that call the hub ask each other, by clients of both eras.
func TestCallersTalk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	heard := make(chan string, 1)
	w.handle("weather", func(_ context.Context, m *parley.Message, r parley.Replier) error {
		heard <- m.From + ": " + string(m.Parts[0].Data)
		return r.Reply(m.Parts...)
	})
	alice, bob := w.connect("alice", modern), w.connect("bob", legacy)
	answers := make(chan *mcp.CallToolResult, 1)
	go func() {
		r, err := alice.tool(t.Context(), toolAsk, `{"agent":"bob","content":{"n":1.10}}`, withMeta("progressToken", "p"))
		if err != nil {
			t.Error(err)
		}
		answers <- r
	}()
	r, err := bob.tool(t.Context(), toolInbox, `{}`)
	w.must(err)
	list := structured[readBatch](t, r)
	if len(list.Messages) != 1 {
		t.Fatal(encoded(t, r))
	}
	m := list.Messages[0]
	if m.Kind != parley.Request || m.From != "alice" || string(m.Content) != `{"n":1.10}` || m.Deadline == 0 ||
		m.Conversation.IsZero() || list.Cursor != m.ID.String() || list.More ||
		!strings.Contains(string(m.Metadata), `"parley":{`) || !strings.Contains(string(m.Metadata), `"proved":["token"]`) {
		t.Error(encoded(t, m))
	}
	for _, arguments := range []string{`"state":"working","content":"soon"`, `"content":{"sum":2.50}`} {
		r, err = bob.tool(t.Context(), toolReply, fmt.Sprintf(`{"id":%q,%s}`, m.ID, arguments))
		w.must(err)
		if s := structured[sentMessage](t, r); s.To != "alice" || s.InReplyTo != m.ID || s.Conversation != m.Conversation {
			t.Error(encoded(t, r))
		}
	}
	if r := <-answers; r.IsError || texts(r) != `{"sum":2.50}` ||
		len(alice.wrote(`"structuredContent":{"sum":2.50}`)) != 1 {
		t.Error(encoded(t, r))
	}
	w.eventually("progress", func() bool { return slices.Equal(alice.told(), []string{"soon"}) })

	_, err = bob.tool(t.Context(), toolSend, `{"agent":"weather","content":"storm"}`)
	w.must(err)
	if got := <-heard; got != "bob: storm" {
		t.Error(got)
	}
	_, err = bob.tool(t.Context(), toolSend, fmt.Sprintf(`{"agent":"alice","content":"thanks","conversation":%q}`,
		m.Conversation))
	w.must(err)
	r, err = alice.tool(t.Context(), toolInbox, `{}`)
	w.must(err)
	if list := structured[readBatch](t, r); len(list.Messages) != 1 || list.Messages[0].Kind != parley.Notice ||
		string(list.Messages[0].Content) != `"thanks"` || list.Messages[0].Conversation != m.Conversation {
		t.Error(encoded(t, r))
	}
}

// Messages come in order, and again until the reader names the last one that it has. An old cursor removes nothing.
func TestInboxCursor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n := range 5 {
		if out := w.deliver("bob", note(parley.Text(fmt.Sprint(n)))); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	again := note(parley.Text("5"))
	for range 2 { // an attempt that is repeated
		if out := w.deliver("bob", again); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	steps := []struct {
		after string
		want  []string
		more  bool
	}{
		{"", []string{`"0"`, `"1"`}, true},
		{"", []string{`"0"`, `"1"`}, true},
		{"last", []string{`"2"`, `"3"`}, true},
		{"first", []string{`"2"`, `"3"`}, true},
		{"other", []string{`"2"`, `"3"`}, true},
		{"last", []string{`"4"`, `"5"`}, false},
		{"last", nil, false},
		{"last", nil, false},
	}
	named := map[string]string{"other": w.ask("bob", "alice", "x").ID.String()}
	for n, s := range steps {
		arguments := `{"wait":0,"max":2}`
		if s.after != "" {
			arguments = fmt.Sprintf(`{"wait":0,"max":2,"after":%q}`, named[s.after])
		}
		b := w.inbox("bob", arguments)
		if !slices.Equal(b.contents(), s.want) || b.More != s.more || len(s.want) == 0 && b.Cursor != "" {
			t.Errorf("%d: %s", n, encoded(t, b))
		}
		if b.Cursor != "" {
			named["last"] = b.Cursor
		}
		if n == 0 {
			named["first"] = b.Cursor
		}
	}
	if b := w.arrived("alice", 1); len(b.Messages) != 1 {
		t.Error("a cursor of bob removed a message of alice")
	}
}

// An agent whose name begins another's has an inbox of its own.
func TestInboxNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(parley.Agent{Name: "bob/two", Identities: []parley.Identity{IdentityOfCaller("bob/two")}})
	w.send("alice", `{"agent":"bob/two","content":"x"}`)
	w.arrived("bob/two", 1)
	if b := w.inbox("bob", `{"wait":0}`); len(b.Messages) != 0 {
		t.Error(encoded(t, b))
	}
}

// A hub that is restarted, or killed, keeps the messages that were not read.
func TestInboxRestart(t *testing.T) {
	t.Parallel()
	disk, left := t.TempDir(), t.TempDir()+"/left"
	w := newWorldOn(t, journal.Config{Store: testjournal.Disk(t, disk)})
	for n := range 3 {
		w.send("alice", fmt.Sprintf(`{"agent":"bob","content":%q}`, fmt.Sprint(n)))
		w.arrived("bob", n+1)
	}
	first := w.inbox("bob", `{"max":1}`)
	w.inbox("bob", fmt.Sprintf(`{"after":%q}`, first.Cursor))
	request := w.ask("alice", "bob", "q")
	w.arrived("bob", 3)
	w.eventually("the delivery is recorded", func() bool {
		d, ok := w.j.Delivery(request.ID, "bob")
		return ok && d.State == parley.Delivered
	})
	testjournal.Copy(t, disk, left)
	w.restart(nil)
	want := []string{`"1"`, `"2"`, `"q"`}
	killed := newWorldOn(t, journal.Config{Store: testjournal.Disk(t, left)})
	for _, w := range []*world{w, killed} {
		b := w.inbox("bob", `{"wait":0}`)
		if !slices.Equal(b.contents(), want) {
			t.Error(encoded(t, b))
		}
		structured[sentMessage](t, w.inboxTool("bob", toolReply, fmt.Sprintf(`{"id":%q,"content":"a"}`, b.Messages[2].ID)))
		if got := w.messages(parley.Response); len(got) != 1 || got[0].InReplyTo != request.ID {
			t.Errorf("%v", got)
		}
		if b := w.inbox("bob", fmt.Sprintf(`{"wait":0,"after":%q}`, b.Cursor)); len(b.Messages) != 0 {
			t.Error(encoded(t, b))
		}
	}
}

func TestInboxBounds(t *testing.T) {
	t.Parallel()
	big := func(size int) *parley.Message { return note(parley.Text(strings.Repeat("x", size))) }
	full := func(t *testing.T, out hub.Outcome) {
		t.Helper()
		if e := out.Err; e == nil || e.Code != parley.Unavailable || !e.Retryable || e.Reason != parley.MailboxFull ||
			!strings.Contains(e.Text, `the inbox of agent "bob" is full`) {
			t.Errorf("%+v", out)
		}
	}
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.node.inbox.bytes = 100_000
		for range 4 {
			if out := w.deliver("bob", big(23_000)); out.Err != nil {
				t.Fatal(out.Err)
			}
		}
		full(t, w.deliver("bob", big(10_000)))
		b := w.inbox("bob", `{"max":1}`)
		w.inbox("bob", fmt.Sprintf(`{"max":1,"after":%q}`, b.Cursor))
		w.eventually("room", func() bool { return w.deliver("bob", big(10_000)).Err == nil })
	})
	t.Run("one message", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(c *Config) { c.MaxAnswer = 10_000 })
		if e := w.deliver("bob", big(10_000)).Err; e == nil || e.Code != parley.TooLarge || e.Reason != parley.BodySize {
			t.Errorf("%+v", e)
		}
		if n := len(w.node.inbox.boxes); n != 0 {
			t.Error(n)
		}
	})
	t.Run("an answer", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		for _, size := range []int{100 << 10, 100 << 10, 100 << 10, 300 << 10, 10} {
			if out := w.deliver("bob", big(size)); out.Err != nil {
				t.Fatal(out.Err)
			}
		}
		after := ""
		for _, want := range []int{2, 1, 1, 1} {
			b := w.inbox("bob", fmt.Sprintf(`{"wait":0,"after":%q}`, after))
			if after = b.Cursor; len(b.Messages) != want {
				t.Error(len(b.Messages), want)
			}
		}
	})
	t.Run("messages, until they expire", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.node.inbox.messages = 2 * maxBatch
			var all sync.WaitGroup
			for range 2 * maxBatch {
				all.Go(func() {
					if out := w.deliver("bob", big(1)); out.Err != nil {
						t.Error(out.Err)
					}
				})
			}
			all.Wait()
			full(t, w.deliver("bob", big(1)))
			if b := w.inbox("bob", `{"max":1e6}`); len(b.Messages) != maxBatch || !b.More {
				t.Error(len(b.Messages), b.More)
			}
			time.Sleep(inboxTTL)
			if out := w.deliver("bob", big(1)); out.Err != nil {
				t.Error(out.Err)
			}
			if b := w.inbox("bob", `{}`); len(b.Messages) != 1 || b.More {
				t.Error(len(b.Messages), b.More)
			}
		})
	})
	t.Run("kinds", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		for _, k := range []parley.Kind{parley.Event, parley.Response, parley.Failure} {
			m := note()
			if m.Kind = k; parley.CodeOf(w.deliver("bob", m).Err) != parley.Unsupported {
				t.Error(k)
			}
		}
	})
}

func TestInboxWaits(t *testing.T) {
	t.Parallel()
	token := func(c *toolCall) { c.params.Meta["progressToken"] = "p" }
	for _, c := range []struct {
		name, arguments string
		edit            []func(*toolCall)
		want            time.Duration
	}{
		{"as long as a call may", `{}`, nil, 50 * time.Second},
		{"with progress", `{}`, []func(*toolCall){token}, 10 * time.Minute},
		{"not longer", `{"wait":1e300}`, nil, 50 * time.Second},
		{"as long as it says", `{"wait":0.5}`, nil, 500 * time.Millisecond},
		{"not at all", `{"wait":0}`, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				begun := time.Now()
				r := w.inboxTool("bob", toolInbox, c.arguments, c.edit...)
				if b := structured[readBatch](t, r); len(b.Messages) != 0 || texts(r) != `{"messages":[],"more":false}` {
					t.Error(encoded(t, r))
				}
				if got := time.Since(begun); got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
				if n := len(w.node.inbox.boxes); n != 0 {
					t.Error("a box remains")
				}
			})
		})
	}
	// waits begins a call, and gives its result.
	waits := func(w *world, ctx context.Context, edit ...func(*toolCall)) <-chan *mcp.CallToolResult {
		done := make(chan *mcp.CallToolResult, 1)
		go func() { done <- w.inboxToolIn(ctx, "bob", toolInbox, `{}`, edit...) }()
		synctest.Wait()
		return done
	}
	none := func(t *testing.T, r *mcp.CallToolResult) {
		t.Helper()
		if b := structured[readBatch](t, r); len(b.Messages) != 0 {
			t.Error(encoded(t, r))
		}
	}
	t.Run("a message ends all waits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			var all []<-chan *mcp.CallToolResult
			for range inboxWaits {
				all = append(all, waits(w, t.Context()))
			}
			none(t, <-waits(w, t.Context())) // one too many
			begun := time.Now()
			w.send("alice", `{"agent":"bob","content":"x"}`)
			for _, c := range all {
				if b := structured[readBatch](t, <-c); !slices.Equal(b.contents(), []string{`"x"`}) {
					t.Error(encoded(t, b))
				}
			}
			if waited := time.Since(begun); waited >= time.Second {
				t.Error(waited)
			}
		})
	})
	t.Run("a hub that stops, a client that goes", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			gone, leave := context.WithCancel(t.Context())
			mine := func(c *toolCall) { c.caller.session, c.caller.id = "s", "7" }
			a, b, c := waits(w, t.Context()), waits(w, gone), waits(w, t.Context(), mine)
			begun := time.Now()
			w.node.calls.cancelled("s", "7")
			none(t, <-c)
			leave()
			none(t, <-b)
			w.node.EndStreams()
			none(t, <-a)
			if time.Since(begun) != 0 {
				t.Error("a call went on")
			}
		})
	})
}

func TestReplies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reply := func(by, format string, args ...any) *mcp.CallToolResult {
		return w.inboxTool(by, toolReply, fmt.Sprintf(format, args...))
	}
	failed := func(r *mcp.CallToolResult, code parley.Code, words string) {
		t.Helper()
		if e, ok := r.Meta[metaError].(errorMeta); !r.IsError || !ok || e.Code != code || !strings.Contains(texts(r), words) {
			t.Error(encoded(t, r))
		}
	}
	w.agent(parley.Agent{Name: "carol", Identities: []parley.Identity{IdentityOfCaller("carol")}})
	m := w.ask("alice", "bob", "q")
	w.arrived("bob", 1)
	other := note().ID

	for _, c := range []struct{ by, id string }{{"carol", m.ID.String()}, {"alice", m.ID.String()},
		{"bob", other.String()}} {
		failed(reply(c.by, `{"id":%q,"content":"mine"}`, c.id), parley.InvalidContent, "id: no request with this id")
	}
	asked := structured[sentMessage](t, reply("bob", `{"id":%q,"state":"needs-input","content":"which?"}`, m.ID))
	if got := w.messages(parley.Event); len(got) != 1 || got[0].ID != asked.ID || got[0].State != parley.NeedsInput ||
		got[0].Text() != "which?" {
		t.Errorf("%v", got)
	}
	first := structured[sentMessage](t, reply("bob", `{"id":%q,"content":"a"}`, m.ID))
	if again := structured[sentMessage](t, reply("bob", `{ "content":"a", "id":%q }`, m.ID)); again != first {
		t.Errorf("%v, not %v", again, first)
	}
	failed(reply("bob", `{"id":%q,"content":"b"}`, m.ID), parley.Conflict,
		"your first answer, message "+first.ID.String()+", stands, and this one was not sent")
	failed(reply("bob", `{"id":%q,"state":"working"}`, m.ID), parley.Conflict, "stands")
	failed(reply("carol", `{"id":%q,"content":"b"}`, m.ID), parley.InvalidContent, "id: no request")
	if got := w.messages(parley.Response); len(got) != 1 || got[0].Text() != "a" || got[0].From != "bob" {
		t.Errorf("%v", got)
	}

	m = w.ask("alice", "bob", "q2")
	w.arrived("bob", 2)
	structured[sentMessage](t, reply("bob", `{"id":%q,"error":"no bread"}`, m.ID))
	if got := w.messages(parley.Failure); len(got) != 1 || got[0].Error.Text != "no bread" ||
		got[0].Error.Code != parley.HandlerFailed {
		t.Errorf("%v", got)
	}
}

// A request that ended without the agent takes no answer any more, and the inbox has its cancel.
func TestReplyTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.ask("alice", "bob", "q")
		w.arrived("bob", 1)
		time.Sleep(time.Until(m.Deadline) + time.Minute)
		r := w.inboxTool("bob", toolReply, fmt.Sprintf(`{"id":%q,"content":"a"}`, m.ID))
		if !r.IsError || !strings.Contains(texts(r), "the request has ended without an answer of yours") {
			t.Error(encoded(t, r))
		}
		b := w.arrived("bob", 2)
		if c := b.Messages[1]; c.Kind != parley.Cancel || c.InReplyTo != m.ID {
			t.Error(encoded(t, b))
		}
	})
}

func TestSend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(parley.Agent{Name: "hidden", Identities: []parley.Identity{{Protocol: "far", ID: "hidden"}}})
	w.far("remote", parley.RawSkill("do", nil))
	failed := func(arguments string, code parley.Code, words string, edit ...func(*toolCall)) {
		t.Helper()
		r := w.inboxTool("alice", toolSend, arguments, edit...)
		if e, ok := r.Meta[metaError].(errorMeta); !r.IsError || !ok || e.Code != code || !strings.Contains(texts(r), words) {
			t.Error(arguments, encoded(t, r))
		}
	}
	for _, name := range []string{"hidden", "nobody", "alice"} {
		failed(fmt.Sprintf(`{"agent":%q,"content":"x"}`, name), parley.InvalidContent,
			fmt.Sprintf("agent: no agent %q that you may ask", name))
	}
	foreign := w.ask("bob", "remote", "x")
	for _, id := range []string{foreign.Conversation.String(), note().ID.String()} {
		failed(fmt.Sprintf(`{"agent":"bob","content":"x","conversation":%q}`, id), parley.InvalidContent,
			"conversation: you take part in no conversation with this id")
	}

	// More about an open request, of its sender alone.
	open := w.ask("alice", "bob", "q")
	w.arrived("bob", 1)
	for _, c := range []struct{ to, id string }{{"bob", foreign.ID.String()}, {"remote", foreign.ID.String()},
		{"remote", open.ID.String()}, {"hidden", open.ID.String()}, {"bob", note().ID.String()}} {
		failed(fmt.Sprintf(`{"agent":%q,"in_reply_to":%q,"content":"x"}`, c.to, c.id), parley.Conflict,
			"no open request of yours")
	}
	w.send("alice", fmt.Sprintf(`{"agent":"bob","in_reply_to":%q,"content":{"more":1}}`, open.ID))
	if b := w.arrived("bob", 2); b.Messages[1].Kind != parley.Input || b.Messages[1].InReplyTo != open.ID ||
		string(b.Messages[1].Content) != `{"more":1}` {
		t.Error(encoded(t, b))
	}

	// Skill and conversation may be there if they are those of the request; others are refused by name.
	request := w.askSkill("alice", "remote", "do", "q")
	about := func(skill, conversation string) string {
		return fmt.Sprintf(`{"agent":"remote","in_reply_to":%q,"content":"x","skill":%q,"conversation":%q}`, request.ID,
			skill, conversation)
	}
	w.eventually("the agent has no request", func() bool {
		v, ok := w.j.Delivery(request.ID, "remote")
		return ok && v.State == parley.Delivered
	})
	failed(about("other", request.Conversation.String()), parley.InvalidContent, `skill: the request uses the skill "do"`)
	failed(about("do", open.Conversation.String()), parley.InvalidContent, "conversation: the request is in")
	failed(about("do", "x"), parley.InvalidContent, "conversation: the request is in")
	failed(strings.Replace(about("do", request.Conversation.String()), request.ID.String(), foreign.ID.String(), 1),
		parley.InvalidContent, "in_reply_to: ")
	if n := len(w.messages(parley.Input)); n != 1 {
		t.Errorf("%d inputs", n)
	}
	w.send("alice", about("do", request.Conversation.String()))
	if all := w.messages(parley.Input); len(all) != 2 || all[1].InReplyTo != request.ID {
		t.Errorf("%d inputs", len(all))
	}

	// MCP-061: an idempotency key.
	key := func(c *toolCall) { c.params.Meta[metaKey] = "k1" }
	var ids []parley.ID
	for range 2 {
		r := w.inboxTool("alice", toolSend, `{"agent":"bob","content":"once"}`, key)
		ids = append(ids, structured[sentMessage](t, r).ID)
	}
	if ids[0] != ids[1] {
		t.Error(ids)
	}
	failed(`{"agent":"bob","content":"twice"}`, parley.Conflict, metaKey, key)
	if b := w.arrived("bob", 3); len(b.Messages) != 3 || string(b.Messages[2].Content) != `"once"` {
		t.Error(encoded(t, b))
	}
}

// MCP-025: the member is named.
func TestInboxArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := note().ID.String()
	for _, c := range []struct{ tool, arguments, member string }{
		{toolInbox, `{"after":"x"}`, "after"},
		{toolInbox, `{"after":7}`, "after"},
		{toolInbox, `{"wait":-1}`, "wait"},
		{toolInbox, `{"wait":"1"}`, "wait"},
		{toolInbox, `{"max":0}`, "max"},
		{toolInbox, `{"max":1.5}`, "max"},
		{toolInbox, `{"Max":1}`, "Max"},
		{toolInbox, `{"max":1,"max":2}`, "max"},
		{toolInbox, `[]`, "arguments"},
		{toolReply, ``, "id"},
		{toolReply, `{"id":"x","content":"a"}`, "id"},
		{toolReply, `{"id":"` + id + `"}`, "content"},
		{toolReply, `{"id":"` + id + `","content":null}`, "content"},
		{toolReply, `{"id":"` + id + `","error":""}`, "error"},
		{toolReply, `{"id":"` + id + `","error":"e","content":"a"}`, "error"},
		{toolReply, `{"id":"` + id + `","error":"e","state":"working"}`, "error"},
		{toolReply, `{"id":"` + id + `","state":"done"}`, "state"},
		{toolReply, `{"id":"` + id + `","state":""}`, "state"},
		{toolReply, `{"id":"` + id + `","answer":"a"}`, "answer"},
		{toolSend, ``, "agent"},
		{toolSend, `[1]`, "arguments"},
		{toolSend, `{"agent":"bob"`, "arguments"},
		{toolSend, `{"agent":"bob"}`, "content"},
		{toolSend, `{"agent":"bob","content":"x","conversation":"y"}`, "conversation"},
		{toolSend, `{"agent":"bob","content":"x","in_reply_to":"y"}`, "in_reply_to"},
		{toolSend, `{"agent":"bob","in_reply_to":"` + id + `"}`, "content"},
		{toolSend, `{"content":"x","in_reply_to":"` + id + `"}`, "agent"},
		{toolSend, `{"agent":"bob","content":"x","in_reply_to":"` + id + `","skill":"s"}`, "in_reply_to"},
		{toolSend, `{"agent":"bob","text":"x"}`, "text"},
	} {
		r := w.inboxTool("alice", c.tool, c.arguments)
		if e, ok := r.Meta[metaError].(errorMeta); !r.IsError || !ok || e.Code != parley.InvalidContent ||
			!strings.HasPrefix(texts(r), c.member+": ") {
			t.Errorf("%s %s: %s", c.tool, c.arguments, encoded(t, r))
		}
	}
	if n := len(w.messages(parley.Notice)); n != 0 {
		t.Error(n, "messages")
	}
}

// A message comes to a call at another hub, and a cursor of one hub removes it at both.
func TestInboxOfACluster(t *testing.T) {
	t.Parallel()
	url := testcluster.Start(t, 1).URLs[0]
	open := func(name string) *world {
		return newWorldOn(t, journal.Config{Store: testjournal.Cluster(t, jetstream.Config{URL: url}), Node: name})
	}
	a, b := open("a"), open("b")
	got := make(chan *mcp.CallToolResult, 1)
	go func() { got <- b.inboxTool("bob", toolInbox, `{}`) }()
	b.eventually("a call that waits", func() bool {
		b.node.inbox.mu.Lock()
		defer b.node.inbox.mu.Unlock()
		x := b.node.inbox.boxes[inboxPrefix("bob")]
		return x != nil && x.waits == 1
	})
	if out := a.deliver("bob", note(parley.Text("1"))); out.Err != nil {
		t.Fatal(out.Err)
	}
	list := structured[readBatch](t, <-got)
	if !slices.Equal(list.contents(), []string{`"1"`}) {
		t.Fatal(encoded(t, list))
	}
	if out := b.deliver("bob", note(parley.Text("2"))); out.Err != nil {
		t.Fatal(out.Err)
	}
	for _, w := range []*world{a, b} {
		if list := w.inbox("bob", fmt.Sprintf(`{"wait":0,"after":%q}`, list.Cursor)); !slices.Equal(list.contents(),
			[]string{`"2"`}) {
			t.Error(encoded(t, list))
		}
		w.eventually("the count", func() bool {
			w.node.inbox.mu.Lock()
			defer w.node.inbox.mu.Unlock()
			x := w.node.inbox.boxes[inboxPrefix("bob")]
			return x != nil && len(x.kept) == 1
		})
	}
}
