package a2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// TestManySessions: 1,000 agents at once, ten calls each, over TCP and HTTP; an agent
// that never reads delays none of them.
func TestManySessions(t *testing.T) {
	w := newWorld(t, node.Config{A2E: node.A2E{Sessions: 100_000}})
	w.web = w.httpPool()
	ctx := t.Context()
	sessions := 1000
	if testing.Short() {
		sessions = 200
	}
	// Two agents never read, one on each transport, though their frames far exceed the
	// buffers of their connections.
	const flood = 48
	w.stall(t, flood)
	var agents sync.WaitGroup
	faults := make(chan error, sessions)
	slots := make(chan struct{}, 200) // connections being made
	for i := range sessions {
		agents.Go(func() {
			c := &protocol.Client{URL: w.Addresses().A2E, Token: tokenAlice}
			if i%10 == 0 {
				c = &protocol.Client{URL: w.Addresses().Local + "/a2e", Token: tokenAlice, HTTP: w.web}
			}
			defer c.Close()
			slots <- struct{}{}
			err := c.Connect(ctx)
			<-slots
			if err != nil {
				faults <- err
				return
			}
			for n := range 10 {
				text := fmt.Sprint(i, " ", n)
				r, err := c.CallTool(ctx, "crew-echo__echo", map[string]string{"text": text}, nil)
				if err != nil {
					faults <- err
					return
				}
				if b, _ := json.Marshal(r.Data); string(b) != `{"text":"`+text+`"}` {
					faults <- fmt.Errorf("%s was answered %s", text, b)
					return
				}
			}
		})
	}
	agents.Wait()
	close(faults)
	for err := range faults {
		t.Error(err)
	}
	if n, want := int(w.calls.Load()), 10*sessions+2*flood; n != want {
		t.Errorf("%d calls, want %d", n, want)
	}
	// bob does not delay messages to bob either.
	for i := range 100 {
		if err := w.tell(ctx, "bob", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	stalled := 0
	for _, s := range w.A2E().Host().Sessions() {
		if s.Identity().Name == "bob" {
			// An agent that reads nothing for half a minute loses the connection, not
			// the session.
			if state, _ := s.State(); state != protocol.StateActive {
				t.Errorf("a session that does not read is %s", state)
			}
			stalled++
		}
	}
	if stalled != 2 {
		t.Errorf("%d sessions that do not read, want 2", stalled)
	}
}

// stall opens two sessions of bob, over TCP and HTTP, that read nothing after
// the handshake, and lets each make calls whose answers fill the buffers of the
// connection many times. It returns when all of them have been executed.
func (w *world) stall(t *testing.T, calls int) {
	t.Helper()
	const hello = `{"type":"handshake/req","id":"h","agent_caps":["tools"],"auth_token":"` + tokenBob + `"}`
	inbox := `{"type":"tool/call/req","id":"inbox","tool_name":"parley_inbox","arguments":{},"streaming":true,"timeout":600}`
	call := func(i int) string {
		return fmt.Sprintf(`{"type":"tool/call/req","id":"c%d","tool_name":"crew-echo__echo","arguments":{"text":"%s"},"timeout":600}`, i, strings.Repeat("x", 192<<10))
	}
	conn := w.dialTCP(t)
	conn.write(t, hello)
	conn.read(t, 1)
	conn.write(t, inbox)

	r := newRaw(t, w.Addresses().Local+"/a2e")
	stream := r.stream(t)
	t.Cleanup(stream.close)
	r.send(t, hello)
	stream.next(t, "handshake/resp")
	r.send(t, inbox)

	before := w.calls.Load()
	for i := range calls {
		conn.write(t, call(i))
		r.send(t, call(i))
	}
	eventually(t, func() bool { return w.calls.Load() == before+int64(2*calls) })
}

// TestIdleSessions: a session that does nothing costs the hub at most 40 KiB,
// with its connection.
func TestIdleSessions(t *testing.T) {
	sessions := 500 // on each transport
	limit := int64(40 << 10)
	if testing.Short() { // as under the race detector, whose stacks are larger
		sessions, limit = 100, 80<<10
	}
	w := newWorld(t, node.Config{Durability: "disk", Data: filepath.Join(t.TempDir(), "data"),
		A2E: node.A2E{Sessions: 100_000}})
	const hello = `{"type":"handshake/req","id":"h","agent_caps":["tools"],"auth_token":"` + tokenAlice + `"}`
	const list = `{"type":"tool/list/req","id":"l"}`
	pool := w.httpPool()
	defer pool.CloseIdleConnections()
	post := func(session, path, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Addresses().Local+"/a2e"+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Session-Id", session)
		resp, err := pool.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: HTTP %d %s, %v", path, resp.StatusCode, b, err)
		}
		return string(b)
	}
	for kind, open := range map[string]func(){
		"tcp": func() {
			c := w.dialTCP(t)
			c.write(t, hello)
			c.read(t, 1)
			c.write(t, list)
			c.read(t, 1)
		},
		"http": func() { // a bare connection for the stream, so that the agent's own memory does not count
			session := strings.Split(post("", "/session", ""), `"`)[3]
			c := w.dialHTTP(t)
			c.write(t, "GET /a2e/stream HTTP/1.1\r\nHost: hub\r\nX-Session-Id: "+session+"\r\n\r")
			c.read(t, len("HTTP/1.1 200 OK"))
			post(session, "/send", hello)
			c.until(t, "handshake/resp")
			post(session, "/send", list)
			c.until(t, "tool/list/resp")
		},
	} {
		t.Run(kind, func(t *testing.T) {
			open() // allocates the memory that all sessions share
			before := memoryInUse()
			for range sessions {
				open()
			}
			each := (memoryInUse() - before) / int64(sessions)
			t.Logf("%d bytes for each idle session over %s", each, kind)
			if each > limit {
				t.Errorf("%d bytes for each idle session, want at most %d", each, limit)
			}
		})
	}
}

func memoryInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // memory that the first cycle freed from pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestShutdownEndsTheInbox: a call that only waits for messages delays neither an agent
// that leaves nor the hub.
func TestShutdownEndsTheInbox(t *testing.T) {
	w := newWorld(t, node.Config{})
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	defer stream.close()
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
	stream.next(t, "handshake/resp")
	raw.send(t,
		`{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":600}`)
	if err := w.tell(t.Context(), "bob", "hello"); err != nil {
		t.Fatal(err)
	}
	stream.next(t, "tool/event") // the call waits for two more messages
	raw.send(t, `{"type":"shutdown","id":"s","timeout":30}`)
	// At the end of the grant the call would get an error.
	if m := stream.next(t, "tool/call/resp"); !strings.Contains(m.line, `"success":true`) ||
		!strings.Contains(m.line, "hello") {
		t.Errorf("%s", m.line)
	}
}

// TestSessionOverRestart: an agent that returns to a restarted hub gets its unread
// frames, in order and once.
func TestSessionOverRestart(t *testing.T) {
	config := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk"}
	w := newWorld(t, config)
	ctx := t.Context()
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
	stream.next(t, "handshake/resp") // A2E-083: sent while the stream is open, not at its end
	stream.close()
	// Answers and messages arrive while the agent is away.
	raw.send(t,
		`{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`)
	for i := range 3 {
		if err := w.tell(ctx, "bob", fmt.Sprint("note ", i)); err != nil {
			t.Fatal(err)
		}
	}
	raw.send(t, `{"type":"tool/call/req","id":"c1","tool_name":"crew-echo__echo","arguments":{"text":"late"}}`)
	eventually(t, func() bool { return w.calls.Load() == 1 && len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
	w.close()
	w.open(config)
	raw.base = w.Addresses().Local + "/a2e"
	stream = raw.stream(t)
	// The inbox call ends with an answer, and its messages move to the next call: the
	// agent may have given up on the first.
	answers := map[string]string{}
	for len(answers) < 2 {
		m := stream.next(t, "tool/call/resp")
		if answers[m.ReqID] != "" {
			t.Fatalf("%s", m.line)
		}
		answers[m.ReqID] = string(m.Data)
	}
	if !strings.Contains(answers["i1"], `"messages":[],"more":true`) || !strings.Contains(answers["c1"], "late") {
		t.Errorf("%v", answers)
	}
	raw.send(t,
		`{"type":"tool/call/req","id":"i2","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`)
	var notes []string
	for m := stream.next(t, ""); m.Type != "tool/call/resp"; m = stream.next(t, "") {
		if m.Type != "tool/event" || m.ReqID != "i2" {
			t.Fatalf("%s", m.line)
		}
		notes = append(notes, m.Content())
	}
	if want := []string{"note 0", "note 1", "note 2"}; !slices.Equal(notes, want) {
		t.Errorf("%q", notes)
	}
	// The session continues, without repeated frames.
	raw.send(t, `{"type":"ping","id":"p"}`)
	if m := stream.next(t, ""); m.Type != "pong" {
		t.Errorf("%s", m.line)
	}
	// A request that is sent again after the restart is answered with the
	// recorded answer and not executed again.
	raw.send(t, `{"type":"tool/call/req","id":"c1","tool_name":"crew-echo__echo","arguments":{"text":"late"}}`)
	if m := stream.next(t, "tool/call/resp"); m.ReqID != "c1" || !strings.Contains(m.line, `"text":"late"`) ||
		w.calls.Load() != 1 {
		t.Errorf("%s, %d calls", m.line, w.calls.Load())
	}
	stream.close()
}

// TestOwed: the messages that an ended session did not deliver are in the agent's next
// inbox call, in order and once.
func TestOwed(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := t.Context()
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`"}`)
	stream.next(t, "handshake/resp")
	w.leave(stream, raw.session)
	raw.send(t,
		`{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`)
	for i := range 3 {
		if err := w.tell(ctx, "bob", fmt.Sprint("note ", i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
	raw.send(t, `{"type":"shutdown","id":"s","timeout":0}`)
	eventually(t, func() bool { return len(w.A2E().Host().Sessions()) == 0 })
	bob := w.tcp(tokenBob)
	r, err := bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 3, "wait": 60}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := data(t, r)
	if strings.Index(got, "note 0") > strings.Index(got, "note 1") ||
		strings.Index(got, "note 1") > strings.Index(got, "note 2") || strings.Count(got, `"content":"note`) != 3 {
		t.Error(got)
	}
	r, err = bob.CallTool(ctx, "parley_inbox", map[string]any{"wait": 0.3}, nil)
	if err != nil || data(t, r) != `{"messages":[],"more":false}` {
		t.Errorf("%s, %v", data(t, r), err)
	}
}

// TestInboxOverABreak: messages that a call did not return because its connection broke
// are in the agent's next call. Messages that it may have returned come at most once
// more; those after which the agent continued do not come again.
func TestInboxOverABreak(t *testing.T) {
	for name, call := range map[string]string{
		"before the answer": `{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`,
		"after the answer":  `{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":1},"timeout":60}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, node.Config{})
			raw := newRaw(t, w.Addresses().Local+"/a2e")
			stream := raw.stream(t)
			raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
			stream.next(t, "handshake/resp")
			raw.send(t, call)
			if err := w.tell(t.Context(), "bob", "note"); err != nil {
				t.Fatal(err)
			}
			if m := stream.next(t, ""); !strings.Contains(m.line, "note") {
				t.Fatal(m.line)
			}
			eventually(t, func() bool { return len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
			w.leave(stream, raw.session)
			again := w.inboxOf(w.tcp(tokenBob), 1, 60)
			if !slices.Equal(again, []string{"note"}) {
				t.Errorf("the next call returned %q", again)
			}
			// Another session gets no message, although the first one's call is still
			// open.
			bob := w.tcp(tokenBob)
			if got := w.inboxOf(bob, 1, 0.3); len(got) != 0 {
				t.Errorf("a message came a third time: %q", got)
			}
			if err := w.tell(t.Context(), "bob", "later"); err != nil {
				t.Fatal(err)
			}
			if got := w.inboxOf(bob, 1, 60); !slices.Equal(got, []string{"later"}) {
				t.Errorf("a call whose agent is gone took %q", got)
			}
			if _, err := bob.Ping(t.Context()); err != nil { // so the agent has the answer
				t.Fatal(err)
			}
			bob.Close()
			if got := w.inboxOf(w.tcp(tokenBob), 1, 0.3); len(got) != 0 {
				t.Errorf("a returned message came again: %q", got)
			}
		})
	}
}

// inboxOf gives the texts that one call of an agent returns.
func (w *world) inboxOf(c *protocol.Client, most int, wait float64) (texts []string) {
	w.t.Helper()
	r, err := c.CallTool(w.t.Context(), "parley_inbox", map[string]any{"max": most, "wait": wait}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	var got struct{ Messages []struct{ Content string } }
	if err := json.Unmarshal([]byte(data(w.t.(*testing.T), r)), &got); err != nil {
		w.t.Fatal(err)
	}
	for _, m := range got.Messages {
		texts = append(texts, m.Content)
	}
	return texts
}

// TestOwedOverRestart: the same for an agent that was restarted with the hub and begins
// another session.
func TestOwedOverRestart(t *testing.T) {
	config := node.Config{Data: filepath.Join(t.TempDir(), "data"), Durability: "disk"}
	w := newWorld(t, config)
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
	stream.next(t, "handshake/resp")
	w.leave(stream, raw.session)
	raw.send(t,
		`{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":2},"streaming":true,"timeout":60}`)
	for i := range 2 {
		if err := w.tell(t.Context(), "bob", fmt.Sprint("note ", i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
	for range 2 { // the second time, unfetched messages are still there, once
		w.close()
		w.open(config)
	}
	bob := w.tcp(tokenBob)
	r, err := bob.CallTool(t.Context(), "parley_inbox", map[string]any{"max": 2, "wait": 60}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := data(t, r); !strings.Contains(got, "note 0") || !strings.Contains(got, "note 1") ||
		strings.Count(got, `"content":"note`) != 2 {
		t.Error(got)
	}
	r, err = bob.CallTool(t.Context(), "parley_inbox", map[string]any{"wait": 0.3}, nil)
	if err != nil || data(t, r) != `{"messages":[],"more":false}` {
		t.Errorf("%s, %v", data(t, r), err)
	}
}

// TestForget: unread messages to an absent agent go with the erased messages; other
// content stays, and the frames keep their numbers.
func TestForget(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := t.Context()
	raw := newRaw(t, w.Addresses().Local+"/a2e")
	stream := raw.stream(t)
	raw.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`","agent_caps":["tools"]}`)
	stream.next(t, "handshake/resp")
	w.leave(stream, raw.session)
	raw.send(t, `{"type":"tool/call/req","id":"c1","tool_name":"crew-echo__echo","arguments":{"text":"quincunx"}}`)
	raw.send(t, `{"type":"tool/list/req","id":"l1"}`)
	frames := w.Hub().Journal().State("a2e.sessions")
	kept := func(bucket journal.State, word string) (n int) {
		for v, err := range bucket.Range(ctx, "") {
			if err != nil {
				t.Fatal(err)
			}
			n += strings.Count(string(v.Data), word)
		}
		return n
	}
	eventually(t, func() bool { return kept(frames, "quincunx") > 0 && kept(frames, "l1") > 0 })
	before := kept(frames, `"seq"`)
	// Messages that another session left for the next inbox call.
	other := newRaw(t, w.Addresses().Local+"/a2e")
	stream = other.stream(t)
	other.send(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenBob+`"}`)
	stream.next(t, "handshake/resp")
	w.leave(stream, other.session)
	other.send(t,
		`{"type":"tool/call/req","id":"i1","tool_name":"parley_inbox","arguments":{"max":3},"streaming":true,"timeout":60}`)
	for _, note := range []string{"saxifrage", "gallimaufry"} {
		if err := w.tell(ctx, "bob", note); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return len(w.Hub().Journal().Deliveries(openTo("bob"))) == 0 })
	other.send(t, `{"type":"shutdown","id":"s","timeout":0}`)
	owed := w.Hub().Journal().State("a2e.inbox")
	eventually(t, func() bool {
		_, ok := w.A2E().Host().Session(other.session)
		return !ok && kept(owed, "saxifrage") > 0 && kept(owed, "gallimaufry") > 0
	})
	about := map[parley.ID]bool{}
	for p := range w.Hub().Journal().Partitions() {
		for r, err := range w.Hub().Journal().Records(ctx, p, journal.From{}) {
			if err != nil {
				t.Fatal(err)
			}
			if m := r.Message; m != nil && (strings.Contains(m.Text(), "saxifrage") || len(m.Parts) > 0 &&
				strings.Contains(string(m.Parts[0].Data), "quincunx")) {
				about[m.ID] = true
			}
		}
	}
	n, err := w.A2E().Forget(ctx, hub.Forgetting{Message: func(id parley.ID) bool { return about[id] }})
	if err != nil || n != 2 {
		t.Errorf("%d values, %v", n, err)
	}
	if kept(frames, "quincunx") != 0 || kept(frames, "l1") == 0 || kept(frames, `"seq"`) != before {
		t.Error("the frames are not those that should be left")
	}
	if kept(owed, "saxifrage") != 0 || kept(owed, "gallimaufry") == 0 {
		t.Error("wrong messages remain in the inbox")
	}
	// All content of the agent itself.
	if n, err = w.A2E().Forget(ctx, hub.Forgetting{Agent: "bob",
		Message: func(parley.ID) bool { return false }}); err != nil || n == 0 {
		t.Errorf("%d values, %v", n, err)
	}
	if kept(owed, "gallimaufry") != 0 {
		t.Error("the agent is still owed a message")
	}
}

// leave closes an event stream, and waits until the hub knows: frames written before
// would be lost.
func (w *world) leave(stream *frames, session string) {
	w.t.Helper()
	stream.close()
	eventually(w.t, func() bool {
		s, ok := w.A2E().Host().Session(session)
		if !ok {
			return false
		}
		_, attached := s.State()
		return !attached
	})
}

// eventually waits until ok returns true.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it did not settle")
		}
	}
}
