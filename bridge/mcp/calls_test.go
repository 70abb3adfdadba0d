package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// wantText checks whether a result is an error, and which words its text has.
func wantText(t *testing.T, r *mcp.CallToolResult, err error, isError bool, words ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	got := texts(r)
	for _, w := range words {
		if r.IsError != isError || !strings.Contains(got, w) {
			t.Errorf("isError %v: %q, want %q", r.IsError, got, w)
		}
	}
}

const cityIn = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}`

func TestCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("free", echo)
	w.handleAt(w.node, "weather", schemas(parley.RawSkill("forecast", echo), cityIn, ""))
	w.handleAt(w.node, "list", schemas(parley.RawSkill("sum", echo), `{"type":"array","items":{"type":"number"}}`, ""))
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			c := w.connect("alice", revision)
			for _, x := range []struct {
				name, tool, arguments string
				isError               bool
				words                 []string
			}{
				{"a text is talk", "free__do", `{"text":"hi"}`, false, []string{"hi"}},
				{"a text with more is JSON", "free__do", `{"text":"hi","n":1}`, false, []string{`{"text":"hi","n":1}`}},
				{"numbers keep their literals", "weather__forecast", `{"city":"Bern","days":12345678901234567890}`, false,
					[]string{`12345678901234567890`}},
				{"content that is no object is unwrapped", "list__sum", `{"content":[1,2.50]}`, false,
					[]string{"[1,2.50]"}},
				{"MCP-025 a missing member is named", "weather__forecast", `{"days":1}`, true, []string{"city", "arguments"}},
				{"MCP-025 a wrong member is named", "weather__forecast", `{"city":1}`, true, []string{"/city", "string"}},
				{"MCP-025 arguments are an object", "weather__forecast", `[1]`, true, []string{"object"}},
				{"MCP-025 no arguments", "weather__forecast", ``, true, []string{"city"}},
				{"MCP-025 ask: an unknown member", "parley_ask", `{"agent":"free","tool":"x"}`, true,
					[]string{"tool: unknown member"}},
				{"MCP-025 ask: a wrong member", "parley_ask", `{"agent":1}`, true, []string{"agent: wrong type"}},
				{"MCP-025 ask: a duplicate member", "parley_ask", `{"agent":"free","agent":"free"}`, true,
					[]string{"agent: duplicate"}},
				{"ask: text", "parley_ask", `{"agent":"free","content":"hi"}`, false, []string{"hi"}},
				{"ask: JSON", "parley_ask", `{"agent":"weather","skill":"forecast","content":{"city":"Bern"}}`, false,
					[]string{"Bern"}},
				{"ask: text for the one member", "parley_ask", `{"agent":"weather","content":"Bern"}`, false,
					[]string{`{"city":"Bern"}`}},
				{"ask: content that does not fit", "parley_ask", `{"agent":"weather","content":{"city":1}}`, true,
					[]string{"city"}},
				{"ask: an unknown agent", "parley_ask", `{"agent":"nobody"}`, true, []string{"agent: no agent"}},
				{"ask: itself", "parley_ask", `{"agent":"alice"}`, true, []string{"agent: no agent"}},
				{"ask: an unknown skill", "parley_ask", `{"agent":"weather","skill":"x"}`, true, []string{"skill: "}},
				{"result: no id", "parley_result", `{"id":"x"}`, true, []string{"id: "}},
				{"result: an unknown id", "parley_result", `{"id":"00000000-0000-7000-8000-000000000001"}`, true, []string{"id: "}},
				{"result: a wait that is none", "parley_result", `{"id":"00000000-0000-7000-8000-000000000001","wait":-1}`, true,
					[]string{"wait: "}},
			} {
				t.Run(x.name, func(t *testing.T) {
					p := &mcp.CallToolParams{Name: x.tool}
					if x.arguments != "" {
						p.Arguments = json.RawMessage(x.arguments)
					}
					r, err := c.CallTool(t.Context(), p)
					wantText(t, r, err, x.isError, x.words...)
				})
			}
		})
	}
}

func TestRequestOfACall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("free", echo)
	c := w.connect("alice", modern)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r, err := c.tool(t.Context(), "free__do", `{"n":1.50}`, withMeta(metaTraceParent, parent, metaTraceState, "a=b",
		metaBaggage, "user=1", metaKey, "k1", "secret", "hunter2", metaHops, []string{"other"}))
	wantText(t, r, err, false, `{"n":1.50}`)
	m := w.messages(parley.Request)[0]
	if m.From != "alice" || m.To != "free" || m.Skill != "do" || m.Origin.Peer != "token alice" ||
		m.Origin.Protocol != Protocol || m.Origin.Verdict.Assurance != parley.Session || m.Origin.Address != "192.0.2.1" {
		t.Errorf("%+v", m)
	}
	t.Run("MCP-091 the trace goes on", func(t *testing.T) {
		if m.Trace.Parent != parent || m.Trace.State != "a=b" || m.Trace.Foreign[foreignBaggage] != "user=1" {
			t.Errorf("%+v", m.Trace)
		}
		if got, _ := r.Meta[metaTraceParent].(string); len(got) != 55 || got[3:35] != parent[3:35] {
			t.Errorf("the answer has %q", got)
		}
	})
	t.Run("the record has the arguments as they were written, and no secret", func(t *testing.T) {
		raw := string(m.Origin.Raw)
		if !strings.HasPrefix(raw, `{"name":"free__do","arguments":{"n":1.50},`) || strings.Contains(raw, "hunter2") ||
			!json.Valid(m.Origin.Raw) {
			t.Error(raw)
		}
	})
	t.Run("the result says whose it is", func(t *testing.T) {
		p := encoded(t, r.Meta[metaProvenance])
		for _, want := range []string{`"sender":"free"`, `"hub":"here"`, `"protocol":"go"`} {
			if !strings.Contains(p, want) {
				t.Errorf("%s has no %s", p, want)
			}
		}
		if r.Meta[metaHandle] != m.ID.String() || r.Meta[metaConversation] != m.Conversation.String() {
			t.Errorf("%v", r.Meta)
		}
	})
	t.Run("MCP-090 hops are read, and a loop is refused", func(t *testing.T) {
		if !slices.Equal(m.Hops, []string{"other", "here"}) {
			t.Errorf("hops %q", m.Hops)
		}
		for _, hops := range [][]string{{"here"}, strings.Fields(strings.Repeat("x ", parley.MaxHops+3))} {
			r, err := c.tool(t.Context(), "free__do", `{"text":"hi"}`, withMeta(metaHops, hops))
			wantText(t, r, err, true, "")
			if !strings.Contains(encoded(t, r.Meta[metaError]), `"code":"loop"`) {
				t.Errorf("%v: %v", hops, r.Meta)
			}
		}
	})
	t.Run("MCP-091 what is no trace is left out", func(t *testing.T) {
		for _, x := range [][2]string{{metaTraceParent, "00-1-2-3"}, {metaBaggage, "a\nb"},
			{metaBaggage, strings.Repeat("x", maxBaggage+1)}} {
			r, err := c.tool(t.Context(), "free__do", `{"text":"hi"}`, withMeta(x[0], x[1], metaTraceState, "x=y"))
			wantText(t, r, err, false, "hi")
			all := w.messages(parley.Request)
			if tr := all[len(all)-1].Trace; tr.Parent == x[1] || tr.State != "" || tr.Foreign[foreignBaggage] != "" {
				t.Errorf("%+v", tr)
			}
		}
	})
}

func TestConversation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("free", echo)
	alice, bob := w.connect("alice", modern), w.connect("bob", modern)
	r, err := alice.tool(t.Context(), "parley_ask", `{"agent":"free","content":"hi"}`)
	wantText(t, r, err, false, "hi")
	id, _ := r.Meta[metaConversation].(string)
	again := fmt.Sprintf(`{"agent":"free","content":"hi","conversation":%q}`, id)
	r, err = alice.tool(t.Context(), "parley_ask", again)
	wantText(t, r, err, false, "hi")
	if r.Meta[metaConversation] != id {
		t.Errorf("conversation %v, want %s", r.Meta[metaConversation], id)
	}
	r, err = bob.tool(t.Context(), "parley_ask", again)
	wantText(t, r, err, true, "conversation: ")
	foreign := texts(r)
	r, err = bob.tool(t.Context(), "parley_ask",
		`{"agent":"free","content":"hi","conversation":"00000000-0000-7000-8000-000000000001"}`)
	wantText(t, r, err, true, foreign)
	if n := len(w.messages(parley.Request)); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// MCP-061: one key of one caller is one request.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("free", echo)
	alice, bob := w.connect("alice", modern), w.connect("bob", legacy)
	first, err := alice.tool(t.Context(), "free__do", `{"a":1,"b":2}`, withMeta(metaKey, "k"))
	wantText(t, first, err, false, `{"a":1,"b":2}`)
	r, err := alice.tool(t.Context(), "free__do", `{"b":2, "a":1}`, withMeta(metaKey, "k"))
	wantText(t, r, err, false, `{"a":1,"b":2}`)
	if r.Meta[metaHandle] != first.Meta[metaHandle] {
		t.Error("the second call has another request")
	}
	r, err = alice.tool(t.Context(), "free__do", `{"a":1.0,"b":2}`, withMeta(metaKey, "k"))
	wantText(t, r, err, true, metaKey)
	if !strings.Contains(encoded(t, r.Meta[metaError]), `"conflict"`) {
		t.Errorf("%v", r.Meta)
	}
	for _, key := range []any{"", 7, strings.Repeat("x", 257)} {
		r, err = alice.tool(t.Context(), "free__do", `{}`, withMeta(metaKey, key))
		wantText(t, r, err, true, metaKey)
	}
	r, err = bob.tool(t.Context(), "free__do", `{"c":1}`, withMeta(metaKey, "k"))
	wantText(t, r, err, false, `{"c":1}`)
	if n := len(w.messages(parley.Request)); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// MCP-030: progress goes to a client that gave a token, each value above the one before, at most ten a second, and none
// after the result.
func TestCallProgress(t *testing.T) {
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g := make(gate)
				w.handle("slow", g.handler)
				c, quiet := w.connect("alice", revision), w.connect("bob", revision)
				call := func(c *client, edit ...func(*mcp.CallToolParams)) chan *mcp.CallToolResult {
					done := make(chan *mcp.CallToolResult, 1)
					go func() {
						r, err := c.tool(t.Context(), "slow__do", `{"text":"go"}`, edit...)
						if err != nil {
							t.Error(err)
						}
						done <- r
					}()
					return done
				}
				done := call(quiet)
				g <- "progress three"
				g <- "done"
				<-done
				done = call(c, withMeta("progressToken", "p"))
				for _, step := range []string{"progress one", "progress two", "piece a", "piece b"} {
					g <- step
					synctest.Wait()
				}
				if got := c.told(); !slices.Equal(got, []string{"one"}) {
					t.Errorf("at once %q", got)
				}
				time.Sleep(progressPause)
				synctest.Wait()
				g <- "piece c"
				synctest.Wait()
				g <- "done"
				r := <-done
				synctest.Wait() // the client handles notices apart from answers
				wantText(t, r, nil, false, "done")
				if got := c.told(); !slices.Equal(got, []string{"one", "ab", "c"}) {
					t.Errorf("in all %q", got)
				}
				last := 0.0
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, p := range c.progress {
					if p.Progress <= last || p.ProgressToken != "p" {
						t.Errorf("%v after %v, for %v", p.Progress, last, p.ProgressToken)
					}
					last = p.Progress
				}
				if end := c.answers[len(c.answers)-1]; !strings.Contains(end, `"result"`) {
					t.Errorf("after the result: %s", end)
				}
				if len(quiet.wrote("notifications/progress")) > 0 {
					t.Error("progress without a token")
				}
			})
		})
	}
}

// MCP-060: a call that waits too long gets a handle, by which its caller finds the answer, and no other.
func TestHandle(t *testing.T) {
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g := make(gate)
				w.handle("slow", g.handler)
				w.handleAt(w.node, "typed", schemas(parley.RawSkill("do", g.handler), "", `{"type":"object"}`))
				c, other := w.connect("alice", revision), w.connect("bob", revision)
				began := time.Now()
				r, err := c.tool(t.Context(), "slow__do", `{"text":"go"}`)
				if took := time.Since(began); took != 50*time.Second {
					t.Errorf("the handle came after %s", took)
				}
				id, _ := r.Meta[metaHandle].(string)
				wantText(t, r, err, false, "parley_result", id)
				if s := encoded(t, r.StructuredContent); !strings.Contains(s, id) || !strings.Contains(s, toolResult) {
					t.Error(s)
				}
				fetch := fmt.Sprintf(`{"id":%q}`, id)
				began = time.Now()
				r, err = c.tool(t.Context(), "parley_result", fmt.Sprintf(`{"id":%q,"wait":3}`, id))
				wantText(t, r, err, false, "parley_result", id)
				if took := time.Since(began); took != 3*time.Second {
					t.Errorf("parley_result waited %s", took)
				}
				r, err = c.tool(t.Context(), "parley_result", fmt.Sprintf(`{"id":%q,"wait":0}`, id))
				wantText(t, r, err, false, "parley_result")
				r, err = other.tool(t.Context(), "parley_result", fetch)
				wantText(t, r, err, true, "id: ")
				began = time.Now()
				r, err = c.tool(t.Context(), "parley_result", fetch, withMeta("progressToken", 1))
				wantText(t, r, err, false, "parley_result")
				if took := time.Since(began); took != 10*time.Minute {
					t.Errorf("with a token it waited %s", took)
				}
				g <- "done"
				r, err = c.tool(t.Context(), "parley_result", fetch)
				wantText(t, r, err, false, "done")
				if r.StructuredContent != nil {
					t.Errorf("%v", r.StructuredContent)
				}

				r, err = c.tool(t.Context(), "typed__do", `{"text":"go"}`) // MCP-026: clients hold a success to the schema
				wantText(t, r, err, true, "parley_result")
				if r.StructuredContent != nil {
					t.Errorf("%v", r.StructuredContent)
				}
				g <- "done"
			})
		})
	}
}

// MCP-060: the answer can be fetched after a restart, and also what was asked before it.
func TestResultAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Wait = time.Nanosecond })
	w.far("distant", parley.SkillSpec{ID: "do"})
	r, err := w.connect("alice", modern).tool(t.Context(), "distant__do", `{"text":"go"}`)
	id, _ := r.Meta[metaHandle].(string)
	wantText(t, r, err, false, id)
	w.c.Wait = time.Minute
	w.restart(nil)
	w.reply(parley.Message{Kind: parley.Response, Parts: []parley.Part{parley.Text("here it is")}})
	r, err = w.connect("alice", legacy).tool(t.Context(), "parley_result", fmt.Sprintf(`{"id":%q}`, id))
	wantText(t, r, err, false, "here it is")
	w.restart(nil)
	r, err = w.connect("alice", modern).tool(t.Context(), "parley_result", fmt.Sprintf(`{"id":%q}`, id))
	wantText(t, r, err, false, "here it is")
}

// reply makes the agent elsewhere of the last request say something about it.
func (w *world) reply(m parley.Message) *parley.Message {
	w.t.Helper()
	var last *parley.Message
	w.eventually("no request is delivered", func() bool {
		if all := w.messages(parley.Request); len(all) > 0 {
			last = all[len(all)-1]
		}
		v, ok := w.j.Delivery(last.ID, last.To)
		return ok && v.State == parley.Delivered
	})
	m.From, m.InReplyTo, m.Origin.Protocol = last.To, last.ID, "far"
	out, err := w.node.hub.Accept(w.t.Context(), hub.Submission{Message: &m, Scope: "far"})
	w.must(err)
	return out
}

// A hub that stops gives calls that wait their handle at once.
func TestEndStreams(t *testing.T) {
	for _, http := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			g := make(gate)
			w.handle("slow", g.handler)
			c := w.connect("alice", modern, func(_ *mcp.ClientOptions, who *caller) { who.modern = http })
			done := make(chan *mcp.CallToolResult, 1)
			began := time.Now()
			go func() {
				r, _ := c.tool(t.Context(), "slow__do", `{"text":"go"}`)
				done <- r
			}()
			synctest.Wait()
			w.node.EndStreams()
			wantText(t, <-done, nil, false, "parley_result")
			if took := time.Since(began); took != 0 {
				t.Errorf("after %s", took)
			}
			if n := len(w.messages(parley.Cancel)); n > 0 {
				t.Error("the request was cancelled")
			}
			g <- "done"
		})
	}
}

// MCP-032: only a client ends its request.
func TestCancel(t *testing.T) {
	for _, x := range []struct {
		name, revision string
		http           bool // modern HTTP: the end of the context is a cancel
		leave          func(c *client, cancel context.CancelFunc)
		want           int
	}{
		{"notification, handshake revision", legacy, false, func(_ *client, cancel context.CancelFunc) { cancel() }, 1},
		{"notification, over a tunnel", modern, false, func(_ *client, cancel context.CancelFunc) { cancel() }, 1},
		{"a closed stream", modern, true, nil, 1},
		{"a lost connection", legacy, false, nil, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				stopped := make(chan error, 1)
				w.handle("slow", func(ctx context.Context, _ *parley.Message, r parley.Replier) error {
					select {
					case <-ctx.Done():
						stopped <- ctx.Err()
						return ctx.Err()
					case <-time.After(30 * time.Second):
						return r.Reply(parley.Text("done"))
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if x.leave == nil { // without the SDK's own notice
					who := w.caller("alice")
					who.modern = x.http
					call := w.toolCall(who, "slow__do", `{"text":"go"}`)
					call.params.Meta[mcp.MetaKeyProtocolVersion] = modern
					done := make(chan bool)
					go func() {
						defer close(done)
						_, _ = w.node.calls.call(ctx, call)
					}()
					synctest.Wait()
					cancel()
					<-done
				} else {
					c := w.connect("alice", x.revision)
					go func() { _, _ = c.tool(ctx, "slow__do", `{"text":"go"}`) }()
					synctest.Wait()
					x.leave(c, cancel)
				}
				synctest.Wait()
				if n := len(w.messages(parley.Cancel)); n != x.want {
					t.Errorf("%d cancels, want %d", n, x.want)
				}
				if got := len(stopped); got != x.want {
					t.Errorf("the work was stopped %d times", got)
				}
				if x.want == 0 {
					id := w.messages(parley.Request)[0].ID
					r, err := w.connect("alice", x.revision).tool(t.Context(), toolResult, fmt.Sprintf(`{"id":%q}`, id))
					wantText(t, r, err, false, "done")
				}
			})
		})
	}
}

// A cancel that overtakes its call stops the call before it is recorded; one of another session does not.
func TestEarlyCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("free", echo)
	call := func(session, id string) *mcp.CallToolResult {
		who := w.caller("alice")
		who.session, who.id = session, id
		c := w.toolCall(who, "free__do", `{"text":"hi"}`)
		c.params.Meta[mcp.MetaKeyProtocolVersion] = modern
		r, err := w.node.calls.call(t.Context(), c)
		w.must(err)
		return r
	}
	w.node.calls.cancelled("s1", "7")
	w.node.calls.cancelled("", "9")
	for _, x := range []struct {
		session, id string
		stopped     bool
	}{{"s2", "7", false}, {"s1", `"7"`, false}, {"s1", "7", true}, {"s1", "7", false}, {"", "9", false}} {
		if r := call(x.session, x.id); r.IsError != x.stopped {
			t.Errorf("%q %s: %s", x.session, x.id, texts(r))
		}
	}
	if n := len(w.messages(parley.Request)); n != 4 {
		t.Errorf("%d requests", n)
	}
	for i := range 2 * maxEarly {
		w.node.calls.cancelled("s1", fmt.Sprint(i))
	}
	if c := w.node.calls; len(c.early) != maxEarly || len(c.open) != 0 {
		t.Errorf("%d and %d are kept", len(c.early), len(c.open))
	}
}

// MCP-032: a call that repeats an earlier one, by its key or by parley_result, is about the same request. So its cancel
// withdraws that request, also if it comes before the call has begun; a lost connection does not.
func TestMCP032CancelOfARepeat(t *testing.T) {
	const same = `{"text":"go"}`
	closed, closes := context.WithCancel(context.Background())
	closes()
	for _, x := range []struct {
		name           string
		asks           bool            // the agent waits for input
		tool           string          // "": by the key
		key, arguments string          // of the repeat
		notified       bool            // notifications/cancelled came first
		modern         bool            // over HTTP: the end of the context is a cancel
		ctx            context.Context // of the repeat; nil: open
		cancels        int
		result         string
	}{
		{"a key, notified", false, "", "k", same, true, false, nil, 1, "cancelled"},
		{"a key, notified, and the session has ended the call", false, "", "k", same, true, false, closed, 1, "cancelled"},
		{"a key, its stream closed", false, "", "k", same, false, true, closed, 1, "cancelled"},
		{"a key, an open question", true, "", "k", same, true, false, nil, 1, "cancelled"},
		{"a key, a lost connection", false, "", "k", same, false, false, closed, 0, "Still working"},
		{"parley_result, notified", false, toolResult, "", "", true, false, nil, 1, "cancelled"},
		{"parley_result, its stream closed", false, toolResult, "", "", false, true, closed, 1, "cancelled"},
		{"parley_result, an open question", true, toolResult, "", "", false, true, closed, 1, "cancelled"},
		{"parley_result, a lost connection", false, toolResult, "", "", false, false, closed, 0, "Still working"},
		{"another key", false, "", "other", same, true, false, nil, 0, "cancelled"},
		{"no key", false, "", "", same, false, true, closed, 0, "cancelled"},
		{"the key of another call", false, "", "k", `{"text":"no"}`, true, false, nil, 0, "another call was made"},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g := make(gate)
				w.handle("slow", g.handler)
				call := func(ctx context.Context, id, tool, arguments, key string) (*mcp.CallToolResult, error) {
					who := w.caller("alice")
					who.session, who.id, who.modern = "s", id, x.modern
					c := w.toolCall(who, tool, arguments)
					c.params.Meta[mcp.MetaKeyProtocolVersion] = modern
					if key != "" {
						c.params.Meta[metaKey] = key
					}
					return w.node.calls.call(ctx, c)
				}
				first := make(chan *mcp.CallToolResult, 1)
				go func() {
					r, err := call(t.Context(), "1", "slow__do", same, "k")
					if err != nil {
						t.Error(err)
					}
					first <- r
				}()
				synctest.Wait()
				if x.asks {
					g <- "ask where to?"
					synctest.Wait()
				}
				request := w.messages(parley.Request)[0].ID
				tool, arguments, ctx := "slow__do", x.arguments, t.Context()
				if x.tool != "" {
					tool, arguments = x.tool, fmt.Sprintf(`{"id":%q}`, request)
				}
				if x.ctx != nil {
					ctx = x.ctx
				}
				if x.notified {
					w.node.calls.cancelled("s", "2")
				}
				r, err := call(ctx, "2", tool, arguments, x.key)
				wantText(t, r, err, x.result != "Still working", x.result)
				synctest.Wait()
				if all := w.messages(parley.Cancel); len(all) != x.cancels || x.cancels > 0 && all[0].InReplyTo != request {
					t.Errorf("%d cancels: %+v", len(all), all)
				}
				if n := len(w.messages(parley.Request)); n != 1 {
					t.Errorf("%d requests", n)
				}
				if x.asks {
					return // the first call has ended with the question
				}
				if x.cancels == 0 {
					g <- "done"
				}
				if r := <-first; r.IsError != (x.cancels > 0) {
					t.Errorf("the first call: %s", texts(r))
				}
			})
		})
	}
}

// What the hub refuses is told by its code, with a reference, and nothing of the inside.
func TestRefusedCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handleAt(w.node, "free", parley.RawSkill("do", echo))
	who := w.caller("alice")
	who.Verdict = parley.Verdict{Assurance: parley.Unsigned}
	c := w.toolCall(who, "free__do", `{"text":"hi"}`)
	c.params.Meta[mcp.MetaKeyProtocolVersion] = modern
	r, err := w.node.calls.call(t.Context(), c)
	wantText(t, r, err, true, "")
	if got := encoded(t, r.Meta[metaError]); !strings.Contains(got, `"code":"unauthenticated"`) ||
		!strings.Contains(got, `"ref":`) {
		t.Error(got)
	}
	if n := len(w.node.hub.Refused(0)); n != 1 {
		t.Errorf("%d refusals are kept", n)
	}
}
