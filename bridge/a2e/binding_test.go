package a2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	bridge "github.com/parley-hub/parley/bridge/a2e"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type world struct {
	*node.Node
	t     testing.TB
	web   *http.Client
	calls atomic.Int64
}

const (
	tokenAlice = "token-of-alice-0123456789abcdef"
	tokenBob   = "token-of-bob-0123456789abcdef00"
)

func newWorld(t testing.TB, c node.Config) *world {
	t.Helper()
	w := &world{t: t}
	w.open(c)
	t.Cleanup(w.close)
	return w
}

func (w *world) open(c node.Config) {
	w.t.Helper()
	if c.Durability == "" {
		c.Durability = "memory"
	}
	c.Listen.HTTP = "127.0.0.1:0"
	c.A2E.Listen = "127.0.0.1:0"
	c.Network.Allow = []string{"loopback"}
	c.Limits.SenderRate = -1
	n, err := node.Open(w.t.Context(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Node = n
	w.web = &http.Client{Transport: &http.Transport{}}
	type text struct {
		Text string `json:"text" doc:"what to say"`
	}
	err = n.Handle(parley.Agent{Name: "crew/echo", Title: "Echo", Exposed: parley.Everywhere},
		parley.Skill("echo", func(_ context.Context, _ *parley.Message, q text) (text,
			error) {
			w.calls.Add(1)
			return q, nil
		},
			parley.Describe("Echo", "Says it again."), parley.AsDefault()),
		parley.RawSkill("raw", func(_ context.Context, m *parley.Message,
			r parley.Replier) error {
			return r.Reply(m.Parts...)
		}),
		parley.RawSkill("fail", func(context.Context, *parley.Message,
			parley.Replier) error {
			return errors.New("secret: /etc/passwd")
		}),
		parley.RawSkill("no", func(context.Context, *parley.Message, parley.Replier) error {
			return parley.Refuse(parley.Forbidden, "not for you")
		}),
		parley.RawSkill("pieces", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 3 {
				if err := r.Chunk(parley.Part{MediaType: "application/json",
					Data: fmt.Appendf(nil, `{"piece":%d}`, i)}); err != nil {
					return err
				}
			}
			if err := r.Progress("nearly"); err != nil {
				return err
			}
			return r.Reply(parley.Text("done"))
		}),
		parley.RawSkill("slow", func(ctx context.Context, _ *parley.Message, _ parley.Replier) error {
			<-ctx.Done()
			return ctx.Err()
		}),
	)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.Handle(parley.Agent{Name: "hidden"}, parley.RawSkill("x",
		func(context.Context, *parley.Message, parley.Replier) error { return nil })); err != nil {
		w.t.Fatal(err)
	}
	w.add("alice", tokenAlice)
	w.add("bob", tokenBob)
	if err := n.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) add(name, token string) {
	w.t.Helper()
	a := parley.Agent{Name: name, Identities: []parley.Identity{{Protocol: bridge.Protocol, ID: bridge.TokenID(token)}}}
	if _, err := w.Hub().Directory().Put(w.t.Context(), a, directory.FromOperator); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := w.Close(ctx); err != nil {
		w.t.Error(err)
	}
	w.web.CloseIdleConnections()
}

// http and tcp give clients that are closed with the test.
func (w *world) http(token string) *protocol.Client {
	return w.client(&protocol.Client{URL: w.Addresses().Local + "/a2e", Token: token, HTTP: w.web})
}

func (w *world) tcp(token string) *protocol.Client {
	return w.client(&protocol.Client{URL: w.Addresses().A2E, Token: token})
}

func (w *world) client(c *protocol.Client) *protocol.Client {
	w.t.Cleanup(func() { c.Close() })
	return c
}

func (w *world) each(name string, f func(t *testing.T, c *protocol.Client)) {
	t := w.t.(*testing.T)
	t.Run(name+" over HTTP", func(t *testing.T) { f(t, w.http(tokenAlice)) })
	t.Run(name+" over TCP", func(t *testing.T) { f(t, w.tcp(tokenAlice)) })
}

func data(t *testing.T, r protocol.ToolResult) string {
	t.Helper()
	b, err := json.Marshal(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func codeOf(err error) (protocol.Code, string) {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return "", ""
	}
	var d struct{ Ref string }
	_ = json.Unmarshal(e.Detail, &d)
	return e.Code, d.Ref
}

// ask is a Go agent that asks an A2E agent.
func (w *world) ask(ctx context.Context, to string, parts ...parley.Part) (*parley.Message, error) {
	return w.Hub().Ask(ctx, hub.Submission{Scope: "go test",
		Message: &parley.Message{Kind: parley.Request, From: "crew/echo", To: to, Parts: parts,
			Deadline: time.Now().Add(time.Minute), Origin: parley.Origin{Protocol: "go", Peer: "crew/echo",
				Raw: []byte("original"), Verdict: parley.Verdict{Assurance: parley.Signed}}}})
}

func (w *world) tell(ctx context.Context, to, text string) error {
	_, err := w.Hub().Accept(ctx, hub.Submission{Scope: "go test",
		Message: &parley.Message{Kind: parley.Notice, From: "crew/echo", To: to,
			Parts: []parley.Part{parley.Text(text)}, Conversation: parley.HashID(make([]byte, 16)),
			Origin: parley.Origin{Protocol: "go", Peer: "crew/echo"}}})
	return err
}

func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, node.Config{})
	w.each("A2E-120 list", func(t *testing.T, c *protocol.Client) {
		list, err := c.Tools(t.Context(), protocol.ToolQuery{})
		if err != nil {
			t.Fatal(err)
		}
		names := make([]string, len(list))
		for i, d := range list {
			names[i] = d.Name
		}
		for _, name := range []string{"parley_inbox", "parley_reply", "crew-echo__echo", "crew-echo__pieces",
			"bob__talk"} {
			if !slices.Contains(names, name) {
				t.Errorf("%s is not in %v", name, names)
			}
		}
		for _, name := range []string{"hidden__x", "alice__talk"} {
			if slices.Contains(names, name) {
				t.Errorf("%s is listed", name)
			}
		}
		found, err := c.Tools(t.Context(), protocol.ToolQuery{Query: "says it again"})
		if err != nil || len(found) != 1 || found[0].InputParameters[0].Name != "text" ||
			!found[0].InputParameters[0].Required {
			t.Errorf("%+v, %v", found, err)
		}
	})
	w.each("names", func(t *testing.T, c *protocol.Client) {
		for _, name := range []string{"crew-echo__echo", "crew/echo__echo", "crew/echo.echo", "crew/echo"} {
			r, err := c.CallTool(t.Context(), name, map[string]string{"text": "hi"}, nil)
			if err != nil || !r.Success || data(t, r) != `{"text":"hi"}` {
				t.Errorf("%s: %s, %v", name, data(t, r), err)
			}
		}
	})
	w.each("A2E-051 A2E-052 events before the answer", func(t *testing.T, c *protocol.Client) {
		var got []string
		r, err := c.CallTool(t.Context(), "crew-echo__pieces", map[string]any{}, func(e protocol.Event) {
			got = append(got, fmt.Sprint(e.Seq, " ", string(e.Data)))
		})
		if err != nil || data(t, r) != `{"text":"done"}` {
			t.Errorf("%s, %v", data(t, r), err)
		}
		want := []string{`0 {"piece":0}`, `1 {"piece":1}`, `2 {"piece":2}`, `3 {"message":"nearly","state":"working"}`}
		if !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
	w.each("A2E-121 numbers keep their literals", func(t *testing.T, c *protocol.Client) {
		const in = `{"a":123456789012345678901234567890,"b":1.0,"c":1e-7}`
		r, err := c.CallTool(t.Context(), "crew-echo__raw", json.RawMessage(in), nil)
		if err != nil || data(t, r) != in {
			t.Errorf("%s, %v", data(t, r), err)
		}
	})
	w.each("A2E-073 errors", func(t *testing.T, c *protocol.Client) {
		for name, want := range map[string]protocol.Code{
			"nobody__x": protocol.UnknownTool, "hidden__x": protocol.UnknownTool, "crew-echo__no": protocol.ToolDenied,
			"crew-echo__fail": protocol.ToolError, "crew-echo__echo": protocol.SchemaViolation,
		} {
			_, err := c.CallTool(t.Context(), name, map[string]any{"other": 1}, nil)
			code, _ := codeOf(err)
			if code != want || strings.Contains(fmt.Sprint(err), "passwd") {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		}
	})
	w.each("a refusal has a reference", func(t *testing.T, c *protocol.Client) {
		_, err := c.CallTool(t.Context(), "hidden__x", map[string]any{}, nil)
		_, ref := codeOf(err)
		if f, ok := w.Hub().Explain(ref); !ok || f.Claim != "alice" || f.Code != parley.UnknownAgent {
			t.Errorf("%q: %+v, %v", ref, f, err)
		}
	})
	w.each("A2E-075 deadline", func(t *testing.T, c *protocol.Client) {
		_, err := c.Ask(t.Context(), protocol.Message{Type: "tool/call/req",
			Body: map[string]any{"tool_name": "crew-echo__slow", "arguments": map[string]any{}, "timeout": 1}})
		if code, _ := codeOf(err); code != protocol.Timeout {
			t.Error(err)
		}
	})
	w.each("A2E-125 skills", func(t *testing.T, c *protocol.Client) {
		m, err := c.Ask(t.Context(), protocol.Message{Type: "skill/discover/req",
			Body: map[string]any{"filter_categories": []string{"crew/echo"}}})
		if err != nil || m.Check() != nil || len(m.Values("skills")) != 6 {
			t.Fatalf("%v, %v", m, err)
		}
		m, err = c.Ask(t.Context(), protocol.Message{Type: "skill/call/req",
			Body: map[string]any{"name": "crew-echo__echo", "arguments": map[string]string{"text": "hi"}}})
		if err != nil || !strings.Contains(string(m.Get("data")), `"data":{"text":"hi"}`) ||
			!strings.Contains(string(m.Get("data")), `"sender":"crew/echo"`) {
			t.Fatalf("%v, %v", string(m.Get("data")), err)
		}
		_, err = c.Ask(t.Context(), protocol.Message{Type: "skill/call/req", Body: map[string]any{"name": "nobody"}})
		if code, _ := codeOf(err); code != protocol.UnknownSkill {
			t.Error(err)
		}
	})
	t.Run("A2E-041 a wrong token", func(t *testing.T) {
		for _, token := range []string{"", "token-of-mallory", bridge.TokenID(tokenAlice)} {
			err := w.tcp(token).Connect(t.Context())
			if !errors.Is(err, protocol.ErrUnauthorized) {
				t.Errorf("%q: %v", token, err)
			}
		}
		refused := w.Hub().Refused(1)
		if len(refused) != 1 || refused[0].Code != parley.Unauthenticated ||
			strings.Contains(fmt.Sprint(refused), tokenAlice) {
			t.Errorf("%+v", refused)
		}
	})
	t.Run("an agent_id that is another agent's name", func(t *testing.T) {
		c := w.client(&protocol.Client{URL: w.Addresses().A2E, Token: tokenAlice, AgentID: "bob"})
		if err := c.Connect(t.Context()); !errors.Is(err, protocol.ErrUnauthorized) {
			t.Error(err)
		}
	})
	t.Run("A2E-055 the same request again on its connection", func(t *testing.T) {
		before := w.calls.Load()
		c := w.dialTCP(t)
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		c.write(t, `{"type":"handshake/req","id":"h","auth_token":"`+tokenAlice+`"}`)
		c.until(t, "handshake/resp")
		var answers [2]string
		lines := bufio.NewReader(c)
		for i := range answers {
			c.write(t, `{"type":"tool/call/req","id":"c1","tool_name":"crew-echo__echo","arguments":{"text":"x"}}`)
			var err error
			if answers[i], err = lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		if answers[0] != answers[1] || !strings.Contains(answers[0], `"req_id":"c1"`) || w.calls.Load() != before+1 {
			t.Errorf("%q, %d calls", answers, w.calls.Load()-before)
		}
	})
	t.Run("A2E-055 the same request again", func(t *testing.T) {
		before := w.calls.Load()
		c := w.tcp(tokenAlice)
		m := protocol.Message{Type: "tool/call/req", ID: protocol.NewID(),
			Body: map[string]any{"tool_name": "crew-echo__echo", "arguments": map[string]string{"text": "x"}}}
		if _, err := c.Ask(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.calls.Load() - before; n != 1 {
			t.Errorf("executed %d times", n)
		}
	})
	t.Run("A2E-070 capabilities without a provider", func(t *testing.T) {
		_, err := w.tcp(tokenAlice).Ask(t.Context(), protocol.Message{Type: "proc/spawn/req",
			Body: map[string]any{"cmd": []string{"/bin/true"}}})
		if !errors.Is(err, protocol.ErrUnknownType) {
			t.Error(err)
		}
	})
}

func TestManyTools(t *testing.T) {
	w := newWorld(t, node.Config{})
	for i := range 30 {
		err := w.Handle(parley.Agent{Name: fmt.Sprintf("many/a%d", i), Description: fmt.Sprintf("number %d of many", i),
			Exposed: parley.Everywhere},
			parley.RawSkill("do", func(_ context.Context, m *parley.Message,
				r parley.Replier) error {
				return r.Reply(parley.Text(m.To))
			}))
		if err != nil {
			t.Fatal(err)
		}
	}
	c := w.tcp(tokenAlice)
	list, err := c.Tools(t.Context(), protocol.ToolQuery{})
	if err != nil || len(list) != 5 {
		t.Fatalf("%d tools, %v", len(list), err)
	}
	all, err := c.Tools(t.Context(), protocol.ToolQuery{IncludeDeferred: true})
	if err != nil || len(all) != 5+30+6+1 {
		t.Fatalf("%d tools, %v", len(all), err)
	}
	r, err := c.CallTool(t.Context(), "parley_find", map[string]any{"query": "MANY 17"}, nil)
	if err != nil || !strings.Contains(data(t, r), `"agent":"many/a17"`) || !strings.Contains(data(t, r), `"total":1`) {
		t.Fatalf("%s, %v", data(t, r), err)
	}
	r, err = c.CallTool(t.Context(), "parley_ask", map[string]any{"agent": "many/a17", "content": "do it"}, nil)
	if err != nil || data(t, r) != `{"text":"many/a17"}` {
		t.Fatalf("%s, %v", data(t, r), err)
	}
}

// A call whose correlation id is a trace of W3C form belongs to that trace.
func TestCorrelationIsTrace(t *testing.T) {
	w := newWorld(t, node.Config{})
	traces := make(chan string, 1)
	if err := w.Handle(parley.Agent{Name: "seer", Exposed: parley.Everywhere},
		parley.RawSkill("see", func(_ context.Context, m *parley.Message, r parley.Replier) error {
			traces <- m.Trace.Parent
			return r.Reply()
		})); err != nil {
		t.Fatal(err)
	}
	c := w.tcp(tokenAlice)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for correlation, want := range map[string]string{trace: trace, "turn 7": "", trace[:54]: ""} {
		_, err := c.Ask(t.Context(), protocol.Message{Type: "tool/call/req",
			Body: map[string]any{"tool_name": "seer__see", "arguments": map[string]any{},
				"correlation_id": correlation}})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-traces; got != want {
			t.Errorf("%q: trace %q", correlation, got)
		}
	}
}

// A caller waits while the inbox call of its agent is full or ending: the next call has
// its request. The caller once got an error that the agent is unavailable.
func TestRequestBetweenInboxCalls(t *testing.T) {
	w := newWorld(t, node.Config{Limits: node.Limits{Body: "8MiB"}})
	bob := w.http(tokenBob)
	large := strings.Repeat("x", 2_200_000) // an answer has room for one of them
	answered := make(chan error, 2)
	ask := func() {
		m, err := w.ask(t.Context(), "bob", parley.Text(large))
		if err == nil && m.Kind != parley.Response {
			err = m.Error
		}
		answered <- err
	}
	go ask()
	for _, most := range []int{100, 1} {
		r, err := bob.CallTool(t.Context(), "parley_inbox", map[string]any{"max": most}, func(protocol.Event) {
			if most > 1 { // the call is open, and has no room for another
				go ask()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		var d struct{ Messages []struct{ ID string } }
		if err := json.Unmarshal([]byte(data(t, r)), &d); err != nil || len(d.Messages) != 1 {
			t.Fatalf("%d messages, %v", len(d.Messages), err)
		}
		if _, err := bob.CallTool(t.Context(), "parley_reply",
			map[string]any{"id": d.Messages[0].ID, "content": "here"}, nil); err != nil {
			t.Error(err)
		}
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
}

func TestInbox(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := t.Context()
	t.Run("a request by event, answered", func(t *testing.T) {
		bob := w.http(tokenBob)
		var seen string
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 1}, func(e protocol.Event) {
				seen = string(e.Data)
			})
			if err != nil {
				t.Error(err)
				return
			}
			var a struct{ ID string }
			if err := json.Unmarshal([]byte(seen), &a); err != nil {
				t.Error(err)
				return
			}
			if _, err := bob.CallTool(ctx, "parley_reply", map[string]any{"id": a.ID,
				"state": "working", "content": "a moment"}, nil); err != nil {
				t.Error(err)
			}
			if _, err := bob.CallTool(ctx, "parley_reply", map[string]any{"id": a.ID,
				"content": map[string]int{"n": 7}}, nil); err != nil {
				t.Error(err)
			}
			_, err = bob.CallTool(ctx, "parley_reply", map[string]any{"id": a.ID, "content": "again"}, nil)
			if code, _ := codeOf(err); code != protocol.ToolError {
				t.Errorf("a second answer: %v", err)
			}
		}()
		reply, err := w.ask(ctx, "bob", parley.Text("how many?"))
		if err != nil || reply.Kind != parley.Response || string(reply.Parts[0].Data) != `{"n":7}` ||
			reply.From != "bob" {
			t.Errorf("%+v, %v", reply, err)
		}
		<-done
		for _, part := range []string{`"content":"how many?"`, `"from":"crew/echo"`, `"kind":"request"`,
			`"assurance":"signed"`, `"digest":"sha-256=:`} {
			if !strings.Contains(seen, part) {
				t.Errorf("%s is not in %s", part, seen)
			}
		}
	})
	t.Run("what waits comes in order, without streaming too", func(t *testing.T) {
		for i := range 5 {
			if err := w.tell(ctx, "bob", fmt.Sprint("note ", i)); err != nil {
				t.Fatal(err)
			}
		}
		bob := w.tcp(tokenBob)
		var got []string
		for len(got) < 5 {
			m, err := bob.Ask(ctx, protocol.Message{Type: "tool/call/req",
				Body: map[string]any{"tool_name": "parley_inbox", "arguments": map[string]any{"wait": 60},
					"streaming": false}})
			if err != nil {
				t.Fatal(err)
			}
			var d struct {
				Data struct {
					Messages []struct{ Content string }
				}
			}
			if err := json.Unmarshal(m.Get("data"), &d); err != nil {
				t.Fatal(err)
			}
			for _, v := range d.Data.Messages {
				got = append(got, v.Content)
			}
		}
		if want := []string{"note 0", "note 1", "note 2", "note 3", "note 4"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
	t.Run("an empty inbox answers in time", func(t *testing.T) {
		r, err := w.tcp(tokenBob).CallTool(ctx, "parley_inbox", map[string]any{"wait": 0.05}, nil)
		if err != nil || data(t, r) != `{"messages":[],"more":false}` {
			t.Errorf("%s, %v", data(t, r), err)
		}
	})
	t.Run("a failure", func(t *testing.T) {
		bob := w.tcp(tokenBob)
		go func() {
			r, err := bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 1}, nil)
			if err != nil {
				return
			}
			b, _ := json.Marshal(r.Data)
			var d struct{ Messages []struct{ ID string } }
			if json.Unmarshal(b, &d) == nil && len(d.Messages) == 1 {
				_, _ = bob.CallTool(ctx, "parley_reply", map[string]any{"id": d.Messages[0].ID, "error": "no idea"},
					nil)
			}
		}()
		reply, err := w.ask(ctx, "bob", parley.Text("why?"))
		if err != nil || reply.Kind != parley.Failure || reply.Error.Code != parley.HandlerFailed ||
			reply.Error.Text != "no idea" {
			t.Errorf("%+v, %v", reply, err)
		}
	})
	t.Run("nobody answers for another", func(t *testing.T) {
		alice, bob := w.tcp(tokenAlice), w.tcp(tokenBob)
		got := make(chan string, 1)
		go func() {
			_, _ = bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 1}, func(e protocol.Event) {
				var a struct{ ID string }
				if json.Unmarshal(e.Data, &a) == nil {
					got <- a.ID
				}
			})
		}()
		answered := make(chan error, 1)
		go func() {
			_, err := w.ask(ctx, "bob", parley.Text("secret?"))
			answered <- err
		}()
		id := <-got
		if _, err := alice.CallTool(ctx, "parley_reply", map[string]any{"id": id, "content": "mine"}, nil); err == nil {
			t.Error("alice answered for bob")
		}
		if _, err := bob.CallTool(ctx, "parley_reply", map[string]any{"id": id, "content": "yes"}, nil); err != nil {
			t.Error(err)
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
	})
	t.Run("one A2E agent asks another", func(t *testing.T) {
		alice, bob := w.http(tokenAlice), w.tcp(tokenBob)
		go func() {
			r, err := bob.CallTool(ctx, "parley_inbox", map[string]any{"max": 1}, nil)
			if err != nil {
				return
			}
			b, _ := json.Marshal(r.Data)
			var d struct{ Messages []struct{ ID string } }
			if json.Unmarshal(b, &d) == nil && len(d.Messages) == 1 {
				_, _ = bob.CallTool(ctx, "parley_reply", map[string]any{"id": d.Messages[0].ID,
					"content": "hello alice"}, nil)
			}
		}()
		r, err := alice.CallTool(ctx, "bob", map[string]string{"text": "hello bob"}, nil)
		if err != nil || data(t, r) != `{"text":"hello alice"}` {
			t.Errorf("%s, %v", data(t, r), err)
		}
	})
}

func TestMultiAgent(t *testing.T) {
	w := newWorld(t, node.Config{})
	ctx := t.Context()
	c := w.http(tokenAlice)
	ask := func(t *testing.T, typ string, body map[string]any) *protocol.Envelope {
		t.Helper()
		m, err := c.Ask(ctx, protocol.Message{Type: typ, Body: body})
		if err != nil {
			t.Fatal(typ, err)
		}
		return m
	}
	t.Run("A2E-124 delegate, await, terminate", func(t *testing.T) {
		m := ask(t, "multi_agent/spawn", map[string]any{"name": "crew-echo__echo", "role": "echo"})
		id := m.Str("subagent_id")
		if m.Str("status") != protocol.StatusReady || len(id) != 32 {
			t.Fatal(string(m.Raw()))
		}
		for i := range 2 {
			m = ask(t, "multi_agent/delegate", map[string]any{"subagent_id": id,
				"task_name": "t", "instruction": fmt.Sprint("say ", i)})
			if !m.Bool("accepted") || m.Str("status") != protocol.StatusRunning {
				t.Fatal(string(m.Raw()))
			}
			m = ask(t, "multi_agent/await", map[string]any{"subagent_id": id})
			if m.Str("status") != protocol.StatusCompleted ||
				string(m.Get("result")) != fmt.Sprintf(`{"text":"say %d"}`, i) {
				t.Fatal(string(m.Raw()))
			}
		}
		if m = ask(t, "multi_agent/list", nil); len(m.Values("subagents")) != 1 {
			t.Error(string(m.Raw()))
		}
		other := w.tcp(tokenBob)
		if _, err := other.Ask(ctx, protocol.Message{Type: "multi_agent/await",
			Body: map[string]any{"subagent_id": id}}); err == nil {
			t.Error("bob sees alice's subagent")
		}
		if m = ask(t, "multi_agent/terminate", map[string]any{"subagent_id": id}); !m.Bool("success") {
			t.Error(string(m.Raw()))
		}
		if m = ask(t, "multi_agent/list", nil); len(m.Values("subagents")) != 0 {
			t.Error(string(m.Raw()))
		}
	})
	t.Run("a failure", func(t *testing.T) {
		id := ask(t, "multi_agent/spawn", map[string]any{"name": "crew/echo.fail"}).Str("subagent_id")
		ask(t, "multi_agent/delegate", map[string]any{"subagent_id": id, "task_name": "t", "instruction": "x"})
		m := ask(t, "multi_agent/await", map[string]any{"subagent_id": id})
		if m.Str("status") != protocol.StatusFailed || !strings.Contains(m.Str("error"), "handler_failed") {
			t.Error(string(m.Raw()))
		}
	})
	t.Run("somebody who is not there", func(t *testing.T) {
		if _, err := c.Ask(ctx, protocol.Message{Type: "multi_agent/spawn",
			Body: map[string]any{"name": "hidden"}}); err == nil {
			t.Error("spawned")
		}
	})
}

func TestMemory(t *testing.T) {
	dir := t.TempDir()
	config := node.Config{Data: filepath.Join(dir, "data"), Durability: "disk"}
	w := newWorld(t, config)
	ctx := t.Context()
	ask := func(c *protocol.Client, typ string, body map[string]any) (*protocol.Envelope, error) {
		return c.Ask(ctx, protocol.Message{Type: typ, Body: body})
	}
	initialise := func(c *protocol.Client) string {
		t.Helper()
		m, err := ask(c, "memory/init/req", map[string]any{"namespace": "ns", "scope": map[string]string{"p": "1"}})
		if err != nil {
			t.Fatal(err)
		}
		return m.Str("memory_id")
	}
	count := func(c *protocol.Client, id string, body map[string]any) int {
		t.Helper()
		body["memory_id"] = id
		m, err := ask(c, "memory/retrieve/req", body)
		if err != nil {
			t.Fatal(err)
		}
		return len(m.Values("entries"))
	}
	alice, bob := w.tcp(tokenAlice), w.tcp(tokenBob)
	id, bobs := initialise(alice), initialise(bob)
	entries := []map[string]any{
		{"key": map[string]any{"k": 1, "l": "x"}, "content": "episode", "tier": "episodic", "tags": []string{"a"}},
		{"key": map[string]any{"k": 2}, "content": "fact", "tier": "semantic", "tags": []string{"b"}},
		{"key": map[string]any{"k": 3}, "content": "now", "tier": "working"},
		{"key": "no object", "content": 1, "tier": "working"},
		{"key": map[string]any{}, "content": 1, "tier": ""},
	}
	m, err := ask(alice, "memory/store/req", map[string]any{"memory_id": id, "entries": entries})
	if err != nil || len(m.Values("stored")) != 3 || len(m.Strings("errors")) != 2 {
		t.Fatalf("%s, %v", m.Raw(), err)
	}
	t.Run("A2E-122 unknown memory", func(t *testing.T) {
		for _, other := range []string{strings.Repeat("0", 32), "x", id} {
			_, err := ask(bob, "memory/retrieve/req", map[string]any{"memory_id": other})
			if !errors.Is(err, protocol.ErrMemoryNotFound) {
				t.Error(other, err)
			}
		}
	})
	t.Run("an entry of another tier is the agent's own, and found by that tier", func(t *testing.T) {
		entry := []map[string]any{{"key": map[string]any{"k": 1, "l": "y"},
			"content": "note", "tier": "notes", "tags": []string{"n"}}}
		for _, tier := range []string{"notes", "episodic"} { // the tier to forget
			m, err := ask(alice, "memory/store/req", map[string]any{"memory_id": id, "entries": entry})
			if err != nil || len(m.Values("stored")) != 1 {
				t.Fatalf("%s, %v", m.Raw(), err)
			}
			for asked, want := range map[string]int{"notes": 1, "other": 0, "working": 1, "episodic": 1, "": 4} {
				if n := count(alice, id, map[string]any{"tier": asked}); n != want {
					t.Errorf("tier %q: %d, want %d", asked, n, want)
				}
			}
			if n := count(bob, bobs, map[string]any{}); n != 1 {
				t.Errorf("bob sees %d", n)
			}
			m, err = ask(alice, "memory/forget/req", map[string]any{"memory_id": id, "tags": []string{"n"},
				"tier": tier})
			if err != nil || m.Int("deleted") != 1 {
				t.Errorf("forget in %q: %s, %v", tier, m.Raw(), err)
			}
		}
	})
	t.Run("A2E-123 who sees what", func(t *testing.T) {
		if n := count(alice, id, map[string]any{}); n != 3 {
			t.Errorf("alice sees %d", n)
		}
		if n := count(bob, bobs, map[string]any{}); n != 1 {
			t.Errorf("bob sees %d", n)
		}
		if n := count(alice, id, map[string]any{"keys": []any{map[string]any{"l": "x", "k": 1.0}}}); n != 1 {
			t.Errorf("by key: %d", n)
		}
		if n := count(alice, id, map[string]any{"tags": []string{"b", "z"}}); n != 1 {
			t.Errorf("by tag: %d", n)
		}
		second := w.http(tokenAlice)
		if n := count(second, initialise(second), map[string]any{}); n != 2 {
			t.Errorf("another session of alice sees %d", n)
		}
	})
	w.close()
	w.open(config)
	alice = w.http(tokenAlice)
	t.Run("after a restart", func(t *testing.T) {
		if n := count(alice, initialise(alice), map[string]any{}); n != 2 {
			t.Errorf("%d", n)
		}
		m, err := ask(alice, "memory/forget/req", map[string]any{"memory_id": id, "tags": []string{"a", "b"},
			"tier": ""})
		if err != nil || m.Int("deleted") != 2 {
			t.Fatalf("%s, %v", m.Raw(), err)
		}
		if n := count(alice, id, map[string]any{}); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

func TestHosts(t *testing.T) {
	box := &protocol.Toolbox{}
	box.Add(protocol.ToolDefinition{Name: "add", Description: "adds",
		InputParameters: []protocol.ToolParameter{{Name: "a", Type: "integer", Required: true},
			{Name: "b", Type: "integer", Required: true}}},
		func(ctx context.Context, c *protocol.ToolCall) (any, error) {
			var q struct{ A, B int }
			if err := json.Unmarshal(c.Arguments, &q); err != nil {
				return nil, err
			}
			if err := c.Status(ctx, "adding"); err != nil {
				return nil, err
			}
			if q.A < 0 {
				return protocol.ToolResult{Success: false, Error: "too small", ErrorCode: "range"}, nil
			}
			meta, _ := json.Marshal(string(c.Get("metadata")))
			return json.RawMessage(fmt.Sprintf(`{"sum":%d,"id":%q,"metadata":%s}`, q.A+q.B, c.ID, meta)), nil
		})
	host := &protocol.Host{Auth: protocol.StaticTokens{"hub": "token-for-the-hub"},
		Capabilities: map[string]protocol.Provider{
			"tools": protocol.ServeTools(box),
			"env": protocol.Handler(func(ctx context.Context, r *protocol.Request) (protocol.Response, error) {
				if r.Type != "env/reset/req" {
					return protocol.Response{}, protocol.ErrUnknownType
				}
				state := map[string]any{"seed": r.Get("seed"), "session": r.Str("session_id"),
					"trace": r.Get("x_trace")}
				return protocol.Response{Body: map[string]any{"obs": map[string]any{"episode_id": r.Str("env_name"),
					"step_num": 0, "state": state}}}, nil
			}),
		}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = host.Serve(ctx, l) })
	defer serving.Wait()
	defer stop()

	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := writeSecret(file, "token-for-the-hub"); err != nil {
		t.Fatal(err)
	}
	aliceFile := filepath.Join(dir, "carol")
	if err := writeSecret(aliceFile, "token-of-carol-0123456789"); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, node.Config{A2E: node.A2E{Providers: []string{"env=lab"}}, Agents: map[string]node.Agent{
		"lab":   {A2E: &node.A2EAgent{URL: "tcp://" + l.Addr().String(), TokenFile: file}, Expose: parley.Everywhere},
		"carol": {A2E: &node.A2EAgent{TokenFile: aliceFile}},
	}})
	learnt := make(chan struct{})
	var once sync.Once
	look := func() {
		if e, ok := w.Hub().Directory().Agent("lab"); ok && len(e.Skills) == 1 {
			once.Do(func() { close(learnt) })
		}
	}
	defer w.Hub().Directory().Watch(func(directory.Change) { look() })()
	look()
	select {
	case <-learnt:
	case <-time.After(time.Minute):
		t.Fatal("the host's tools were not learnt")
	}
	t.Run("a tool is a skill", func(t *testing.T) {
		reply, err := w.ask(t.Context(), "lab", parley.Part{MediaType: "application/json",
			Data: []byte(`{"a":2,"b":3}`)})
		if err != nil || reply.Kind != parley.Response || !strings.Contains(string(reply.Parts[0].Data), `"sum":5`) ||
			!strings.Contains(string(reply.Parts[0].Data), `\"sender\":\"crew/echo\"`) {
			t.Errorf("%+v, %v", reply, err)
		}
	})
	t.Run("a failed result is a failure", func(t *testing.T) {
		reply, err := w.ask(t.Context(), "lab", parley.Part{MediaType: "application/json",
			Data: []byte(`{"a":-2,"b":3}`)})
		if err != nil || reply.Kind != parley.Failure || reply.Error.Text != "range: too small" {
			t.Errorf("%+v, %v", reply, err)
		}
	})
	t.Run("content that does not fit", func(t *testing.T) {
		_, err := w.ask(t.Context(), "lab", parley.Text("two and three"))
		if parley.CodeOf(err) != parley.InvalidContent {
			t.Error(err)
		}
	})
	carol := w.http("token-of-carol-0123456789")
	t.Run("through the hub, with its events", func(t *testing.T) {
		var events []string
		r, err := carol.CallTool(t.Context(), "lab__add", map[string]int{"a": 1, "b": 1},
			func(e protocol.Event) { events = append(events, string(e.Data)) })
		if err != nil || !strings.Contains(data(t, r), `"sum":2`) || len(events) != 1 ||
			!strings.Contains(events[0], "adding") {
			t.Errorf("%s, %v, %v", data(t, r), events, err)
		}
	})
	t.Run("A2E-030 a capability is passed on, with members that nobody knows", func(t *testing.T) {
		// Except the session's id, which is a secret between the agent and the hub.
		m, err := carol.Ask(t.Context(), protocol.Message{Type: "env/reset/req", Body: json.RawMessage(
			`{"env_name":"maze","session_id":"` + carol.SessionID() +
				`","seed":12345678901234567890,"x_trace":{"b":1.50,"a":[1e400]}}`)})
		want := `"seed":12345678901234567890,"session":"","trace":{"b":1.50,"a":[1e400]}`
		if err != nil || m.Type != "env/reset/resp" || !strings.Contains(string(m.Get("obs")), want) {
			t.Errorf("%v, %v", m, err)
		}
		_, err = carol.Ask(t.Context(), protocol.Message{Type: "env/space/req",
			Body: map[string]any{"env_name": "maze"}})
		if err == nil {
			t.Error("the host does not serve it")
		}
	})
}

// TestAssurance: A2E agents have session assurance; recipients that require signatures
// do not get their messages.
func TestAssurance(t *testing.T) {
	for set, want := range map[string]protocol.Code{"": "", "session": "", "signed": protocol.ToolDenied} {
		t.Run("policy.assurance = "+set, func(t *testing.T) {
			w := newWorld(t, node.Config{Policy: node.Policy{Assurance: set}})
			_, err := w.tcp(tokenAlice).CallTool(t.Context(), "crew-echo__echo", map[string]string{"text": "x"}, nil)
			if code, _ := codeOf(err); code != want {
				t.Error(err)
			}
		})
	}
}

// TestRules: skills that an agent may not call are not listed and are refused.
func TestRules(t *testing.T) {
	w := newWorld(t, node.Config{Allow: []node.Allow{{From: "alice", To: []string{"crew/echo.raw"}}}})
	c := w.tcp(tokenAlice)
	list, err := c.Tools(t.Context(), protocol.ToolQuery{Query: "crew"})
	if err != nil || len(list) != 1 || list[0].Name != "crew-echo__raw" {
		t.Errorf("%+v, %v", list, err)
	}
	_, err = c.CallTool(t.Context(), "crew-echo__echo", map[string]string{"text": "x"}, nil)
	if code, ref := codeOf(err); code != protocol.ToolDenied || ref == "" {
		t.Error(err)
	}
	if _, err := c.CallTool(t.Context(), "crew-echo__raw", map[string]string{"text": "x"}, nil); err != nil {
		t.Error(err)
	}
}
