package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/journal/store"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

// outWorld is a hub with the agent files, an attached server that is a function of the test.
type outWorld struct {
	t   *testing.T
	hub *hub.Hub
	j   *journal.Journal
	dir *directory.Directory
	*Binding
	serve func(ctx context.Context, c serverCall) (*serverAnswer, error)
	once  sync.Once

	mu      sync.Mutex
	calls   []serverCall
	records []*parley.Message
}

// filesTools are the tools of the agent files.
var filesTools = []ToolText{
	{Name: "read", Input: json.RawMessage(
		`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)},
	{Name: "any", Input: json.RawMessage(`{"type":"object"}`)},
}

type outConfig struct {
	store    store.Store // nil: memory
	node     string
	settings AgentSettings
	edit     func(*Config)
}

func newOutWorld(t *testing.T, oc outConfig, serve func(context.Context, serverCall) (*serverAnswer, error)) *outWorld {
	t.Helper()
	w := &outWorld{t: t, serve: serve}
	if oc.store == nil {
		oc.store = testjournal.Memory(t)
	}
	ctx := context.Background()
	var err error
	w.j, err = journal.Open(ctx, journal.Config{Store: oc.store, Node: oc.node})
	w.must(err)
	w.dir, err = directory.Open(ctx, directory.Options{State: w.j.State("agents")})
	w.must(err)
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Unsigned}})
	w.must(err)
	keys, err := keyring.Open(keyring.Options{})
	w.must(err)
	w.hub, err = hub.New(hub.Config{ID: "here", Secret: make([]byte, 32), Journal: w.j, Directory: w.dir, Policy: p,
		Delivery: delivery.Config{Retry: delivery.Retry{First: time.Second, Longest: time.Second, Tries: 3}}})
	w.must(err)
	x, err := index.Open(ctx, index.Config{Journal: w.j})
	w.must(err)
	c := Config{Hub: w.hub, Keys: keys, Journal: w.j, Index: x, PublicURL: "https://hub.test",
		Transport: func(http.RoundTripper) http.RoundTripper { return noNetwork{} }}
	if oc.edit != nil {
		oc.edit(&c)
	}
	w.Binding, err = New(c)
	w.must(err)
	w.outgoing.call = w.call
	id, err := IdentityAt("https://files.test/mcp")
	w.must(err)
	w.outgoing.tools = func(agent string, of parley.Identity) []ToolText {
		if agent != "files" || of.ID != id.ID {
			return nil
		}
		return filesTools
	}
	w.SetAgent("files", oc.settings)
	w.must(w.hub.Bind(w.Binding))
	w.j.Watch(func(r *journal.Record) {
		if r.Message != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.records = append(w.records, r.Message)
		}
	})
	var skills []parley.SkillSpec
	for _, tool := range filesTools {
		skills = append(skills, parley.SkillSpec{ID: tool.Name, Input: tool.Input})
	}
	if _, known := w.dir.Agent("files"); !known {
		_, err = w.dir.Put(ctx, parley.Agent{Name: "files", Identities: []parley.Identity{id}, Exposed: parley.Everywhere,
			Skills: skills}, directory.FromOperator)
		w.must(err)
	}
	w.must(w.Start(ctx))
	w.hub.Start()
	t.Cleanup(func() { w.close(); w.must(x.Close()) })
	return w
}

// noNetwork is a network without servers.
type noNetwork struct{}

func (noNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("there is no network")
}

func (w *outWorld) close() {
	w.once.Do(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		w.must(errors.Join(w.hub.Close(ctx), w.Binding.Close()))
		w.dir.Close()
		w.must(w.j.Close())
	})
}

func (w *outWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// call is the server.
func (w *outWorld) call(ctx context.Context, c serverCall) (*serverAnswer, error) {
	w.mu.Lock()
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	return w.serve(ctx, c)
}

func (w *outWorld) made() []serverCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

func asks(skill string, parts ...parley.Part) hub.Submission {
	return hub.Submission{Scope: "scope", Foreign: "thread", Message: &parley.Message{Kind: parley.Request, From: "alice",
		To: "files", Skill: skill, Parts: parts, Origin: parley.Origin{Protocol: "quiet", Peer: "alice"}}}
}

// send records a request.
func (w *outWorld) send(s hub.Submission) *parley.Message {
	w.t.Helper()
	m, err := w.hub.Accept(w.t.Context(), s)
	w.must(err)
	return m
}

// about records an input or a cancel.
func (w *outWorld) about(kind parley.Kind, request *parley.Message, parts ...parley.Part) {
	w.t.Helper()
	w.send(hub.Submission{Scope: "scope", Message: &parley.Message{Kind: kind, From: "alice", To: "files",
		InReplyTo: request.ID, Parts: parts, Origin: parley.Origin{Protocol: "quiet", Peer: "alice"}}})
}

// said gives what is recorded from the server about a request, shortly.
func (w *outWorld) said(request parley.ID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, m := range w.records {
		if m.InReplyTo != request || m.From != "files" {
			continue
		}
		s := m.Kind.String()
		if m.Kind == parley.Event {
			s = m.State.String()
		}
		for _, p := range m.Parts {
			s += " " + string(p.Data) + p.URI
		}
		if m.Error != nil {
			s += " " + string(m.Error.Code)
		}
		out = append(out, s)
	}
	return strings.Join(out, " | ")
}

func (w *outWorld) rows() int {
	w.t.Helper()
	rows, err := w.outgoing.sent.List(context.Background(), "")
	w.must(err)
	return len(rows)
}

func (w *outWorld) state(m *parley.Message) string {
	d, open := w.j.Delivery(m.ID, "files")
	if !open {
		return "settled"
	}
	return d.State.String()
}

func says(text string) *serverAnswer {
	return &serverAnswer{CallToolResult: &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}}
}

// after answers some time after the call has left.
func after(d time.Duration, a *serverAnswer, err error) func(context.Context, serverCall) (*serverAnswer, error) {
	return func(ctx context.Context, c serverCall) (*serverAnswer, error) {
		c.sent()
		select {
		case <-time.After(d):
			return a, err
		case <-ctx.Done():
			return nil, &callError{true, context.Cause(ctx)}
		}
	}
}

func file(p string) parley.Part {
	return parley.Part{MediaType: "application/json", Data: []byte(`{"path":"` + p + `"}`)}
}

// An answer that comes at once is the outcome of the attempt; a longer call goes on, and Deliver does not wait for it.
func TestServerAnswers(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"at once": 0, "later": time.Hour / 2} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, waits %v", name, waits), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					a := says(`{"n": 0.10000000000000000001}`)
					a.structured = json.RawMessage(`{"n":0.10000000000000000001}`)
					w := newOutWorld(t, outConfig{}, after(d, a, nil))
					want := `response {"n":0.10000000000000000001}`
					s := asks("read", file("a"))
					s.Message.Deadline = time.Now().Add(time.Hour)
					var m *parley.Message
					if waits {
						reply, err := w.hub.Ask(t.Context(), s)
						w.must(err)
						m = &parley.Message{ID: reply.InReplyTo}
					} else {
						m = w.send(s)
						time.Sleep(time.Second)
						if got := w.state(m); d > 0 && (got != "delivered" || w.rows() != 1) {
							t.Errorf("%s, with %d rows", got, w.rows())
						}
						time.Sleep(d)
					}
					synctest.Wait()
					if got := w.said(m.ID); got != want {
						t.Errorf("%s, want %s", got, want)
					}
					if calls := w.made(); len(calls) != 1 || w.rows() != 0 || w.state(m) != "settled" {
						t.Errorf("%d calls, %d rows, %s", len(calls), w.rows(), w.state(m))
					}
				})
			})
		}
	}
}

// What the requester gets for each end of a call, in the attempt and after it, and how often the tool is called.
func TestServerFails(t *testing.T) {
	t.Parallel()
	failed := says("no such file")
	failed.IsError = true
	for _, c := range []struct {
		name         string
		answer       *serverAnswer
		err          error
		once, repeat string // the code; "3x" before it: after three calls
	}{
		{"isError", failed, nil, "handler_failed", "handler_failed"},
		{"unknown tool", nil, &jsonrpc.Error{Code: -32602, Message: `Unknown tool: "read"`}, "unknown_skill",
			"unknown_skill"},
		{"bad arguments", nil, &jsonrpc.Error{Code: -32602, Message: "path is missing"}, "invalid_content",
			"invalid_content"},
		{"no such method", nil, &jsonrpc.Error{Code: -32601, Message: "no"}, "unsupported", "unsupported"},
		{"another error", nil, &jsonrpc.Error{Code: -32603, Message: "oops"}, "handler_failed", "handler_failed"},
		{"not sent", nil, &callError{false, errors.New("no route")}, "3x unavailable", "3x unavailable"},
		{"sent", nil, &callError{true, errors.New("reset")}, "outcome_unknown", "3x unavailable"},
		{"401", nil, &callError{false, &serverStatus{status: 401}}, "unauthenticated", "unauthenticated"},
		{"500", nil, &callError{true, &serverStatus{status: 500}}, "outcome_unknown", "3x unavailable"},
		{"MCP-077 malformed", nil, &callError{true, errMalformed}, "handler_failed", "handler_failed"},
		{"refused by the hub", nil, &callError{false, parley.Refuse(parley.Loop, "loop")}, "loop", "loop"},
	} {
		for _, d := range []time.Duration{0, time.Minute} {
			for _, repeatable := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s after %s, repeatable %v", c.name, d, repeatable), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						want := c.once
						settings := AgentSettings{}
						if repeatable {
							settings.Repeatable, want = []string{"read"}, c.repeat
						}
						w := newOutWorld(t, outConfig{settings: settings}, after(d, c.answer, c.err))
						m := w.send(asks("read", file("a")))
						time.Sleep(5 * time.Minute)
						synctest.Wait()
						code, calls := want, 1
						if rest, ok := strings.CutPrefix(want, "3x "); ok {
							code, calls = rest, 3
						}
						if got := w.said(m.ID); got != "error "+code {
							t.Errorf("%s, want %s", got, code)
						}
						if got := len(w.made()); got != calls || w.rows() != 0 {
							t.Errorf("%d calls, want %d; %d rows", got, calls, w.rows())
						}
					})
				})
			}
		}
	}
}

// held is a server that answers when the test says so.
func held(answer <-chan *serverAnswer, ended chan<- error) func(context.Context, serverCall) (*serverAnswer, error) {
	return func(ctx context.Context, c serverCall) (*serverAnswer, error) {
		c.sent()
		select {
		case a := <-answer:
			return a, nil
		case <-ctx.Done():
			ended <- context.Cause(ctx)
			return nil, &callError{true, context.Cause(ctx)}
		}
	}
}

// A cancel ends the call, and the requester gets one answer: cancelled.
func TestCancelEndsCall(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"in the attempt": 0, "after it": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				w := newOutWorld(t, outConfig{}, held(nil, ended))
				m := w.send(asks("read", file("a")))
				time.Sleep(d)
				synctest.Wait()
				w.about(parley.Cancel, m)
				time.Sleep(time.Second)
				synctest.Wait()
				if err := <-ended; err == nil {
					t.Error("the call has no cause to end")
				}
				if got := w.said(m.ID); got != "error cancelled" || w.rows() != 0 || w.state(m) != "settled" {
					t.Errorf("%s, %d rows, %s", got, w.rows(), w.state(m))
				}
			})
		})
	}
}

// A call ends with its request's deadline, and at the latest at the ceiling.
func TestCeiling(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deadline time.Duration
		cause    error
		at       time.Duration
	}{
		"MCP-076 a ceiling on every call": {5 * time.Hour, errCeiling, time.Hour},
		"the deadline of the request":     {10 * time.Minute, nil, 10 * time.Minute}, // the hub may end it first
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				w := newOutWorld(t, outConfig{}, func(ctx context.Context, c serverCall) (*serverAnswer, error) {
					stop := make(chan struct{})
					defer close(stop)
					go func() { // progress is no reason to wait on
						for {
							select {
							case <-time.After(time.Minute):
								c.progress(&mcp.ProgressNotificationParams{Message: time.Now().String()})
							case <-stop:
								return
							}
						}
					}()
					return held(nil, ended)(ctx, c)
				})
				began := time.Now()
				s := asks("read", file("a"))
				s.Message.Deadline = began.Add(c.deadline)
				m := w.send(s)
				err := <-ended
				if d := time.Since(began).Round(time.Second); d != c.at || c.cause != nil && !errors.Is(err, c.cause) {
					t.Errorf("ended by %v after %s", err, d)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				got := w.said(m.ID)
				if got = got[strings.LastIndex(got, "|")+1:]; strings.TrimSpace(got) != "error timed_out" || w.rows() != 0 {
					t.Errorf("%s, %d rows", got, w.rows())
				}
			})
		})
	}
}

// After a crash the requester gets one answer: that the outcome is unknown, or that of a second call if the operator
// allows one.
func TestCrash(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]time.Duration{"in the attempt": 100 * time.Millisecond, "after it": time.Minute} {
		for _, repeatable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, repeatable %v", name, repeatable), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					dir, copied := t.TempDir(), t.TempDir()
					settings := AgentSettings{}
					if repeatable {
						settings.Repeatable = []string{"*"}
					}
					ended := make(chan error, 1)
					w := newOutWorld(t, outConfig{store: testjournal.Disk(t, dir), settings: settings}, held(nil, ended))
					s := asks("read", file("a"))
					s.Message.Deadline = time.Now().Add(time.Hour)
					m := w.send(s)
					time.Sleep(before)
					synctest.Wait()
					testjournal.Copy(t, dir, copied)
					w.close()
					again := newOutWorld(t, outConfig{store: testjournal.Disk(t, copied), settings: settings},
						after(time.Minute, says("second"), nil))
					time.Sleep(10 * time.Minute)
					synctest.Wait()
					want, calls := "error outcome_unknown", 0
					if repeatable {
						want, calls = "response second", 1
					}
					if got := again.said(m.ID); got != want || len(again.made()) != calls || again.rows() != 0 {
						t.Errorf("%s, want %s; %d calls, want %d; %d rows", got, want, len(again.made()), calls, again.rows())
					}
					if calls == 1 && string(again.made()[0].params.Arguments.(json.RawMessage)) != `{"path":"a"}` {
						t.Errorf("the second call has the arguments %s", again.made()[0].params.Arguments)
					}
				})
			})
		}
	}
}

// A hub that stops in good order leaves the same as one that crashes.
func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ended := make(chan error, 1)
		w := newOutWorld(t, outConfig{store: testjournal.Disk(t, dir)}, held(nil, ended))
		s := asks("read", file("a"))
		s.Message.Deadline = time.Now().Add(time.Hour)
		m := w.send(s)
		time.Sleep(time.Minute)
		w.close()
		again := newOutWorld(t, outConfig{store: testjournal.Disk(t, dir)}, held(nil, ended))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := again.said(m.ID); got != "error outcome_unknown" || again.rows() != 0 || len(again.made()) != 0 {
			t.Errorf("%q, %d rows, %d calls", got, again.rows(), len(again.made()))
		}
	})
}

// A notice is a call whose result nobody reads. One that surely did not arrive is sent again.
func TestNoticeIsCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(context.Context, serverCall) (*serverAnswer, error)
		parts []parley.Part
		calls int
		state string
	}{
		"answered":  {after(time.Minute, says("x"), nil), []parley.Part{file("a")}, 1, "settled"},
		"not sent":  {after(0, nil, &callError{false, errors.New("no route")}), []parley.Part{file("a")}, 3, "dead"},
		"sent":      {after(0, nil, &callError{true, errors.New("reset")}), []parley.Part{file("a")}, 1, "dead"},
		"lost":      {after(time.Minute, nil, &callError{true, errors.New("reset")}), []parley.Part{file("a")}, 1, "settled"},
		"no place":  {after(0, says("x"), nil), []parley.Part{{MediaType: "image/png", Data: []byte("x")}}, 0, "settled"},
		"too large": {after(0, nil, &callError{false, &serverStatus{status: 413}}), []parley.Part{file("a")}, 1, "dead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newOutWorld(t, outConfig{}, c.serve)
				s := asks("read", c.parts...)
				s.Message.Kind = parley.Notice
				m := w.send(s)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if got := w.said(m.ID); got != "" || len(w.made()) != c.calls || w.state(m) != c.state || w.rows() != 0 {
					t.Errorf("%q, %d calls, %s, %d rows", got, len(w.made()), w.state(m), w.rows())
				}
				for _, call := range w.made() {
					if call.progress != nil || call.elicit != nil {
						t.Error("there is nobody to tell")
					}
				}
			})
		})
	}
}

// A server works on a bounded number of calls; further ones wait for their turn.
func TestManyCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers, ended := make(chan *serverAnswer), make(chan error, 2*maxCalls)
		w := newOutWorld(t, outConfig{}, held(answers, ended))
		var sent []*parley.Message
		for i := range maxCalls + 10 {
			s := asks("read", file("a"))
			s.Foreign = fmt.Sprint("thread ", i)
			s.Message.Deadline = time.Now().Add(time.Hour)
			sent = append(sent, w.send(s))
		}
		time.Sleep(3 * time.Second)
		if got := len(w.made()); got != maxCalls {
			t.Errorf("%d calls at once", got)
		}
		for range sent {
			answers <- says("x") // the last ones wait for an attempt
		}
		synctest.Wait()
		for i, m := range sent {
			if got := w.said(m.ID); got != "response x" {
				t.Errorf("request %d: %q", i, got)
			}
		}
		w.outgoing.mu.Lock()
		defer w.outgoing.mu.Unlock()
		if o := w.outgoing; len(o.calls)+len(o.open)+len(o.rows)+len(o.elsewhere) != 0 {
			t.Errorf("%d calls, %v, %d rows, %d elsewhere stay", len(o.calls), o.open, len(o.rows), len(o.elsewhere))
		}
	})
}

// A request for a server whose tools are not known yet is tried again.
func TestToolsNotKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newOutWorld(t, outConfig{}, after(0, says("x"), nil))
		id, err := IdentityAt("https://new.test/mcp")
		w.must(err)
		_, err = w.dir.Put(t.Context(), parley.Agent{Name: "new", Identities: []parley.Identity{id},
			Exposed: parley.Everywhere}, directory.FromOperator)
		w.must(err)
		s := asks("", parley.Text("hi"))
		s.Message.To = "new"
		m := w.send(s)
		synctest.Wait()
		if d, open := w.j.Delivery(m.ID, "new"); !open || d.State != parley.Waiting || d.Error.Code != parley.Unavailable {
			t.Errorf("%v %+v", open, d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.made()) != 0 || w.rows() != 0 {
			t.Errorf("%d calls, %d rows", len(w.made()), w.rows())
		}
	})
}

// A server whose tools were never read is reached for its first request, not at the next try in the background.
func TestToolsReadForARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newOutWorld(t, outConfig{}, after(0, says("x"), nil))
		var known atomic.Pointer[[]ToolText]
		w.outgoing.tools = func(string, parley.Identity) []ToolText {
			if tools := known.Load(); tools != nil {
				return *tools
			}
			return nil
		}
		w.outgoing.meet = func(context.Context, string, parley.Identity) error {
			known.Store(&[]ToolText{{Name: "talk"}})
			return nil
		}
		id, err := IdentityAt("https://new.test/mcp")
		w.must(err)
		_, err = w.dir.Put(t.Context(), parley.Agent{Name: "new", Identities: []parley.Identity{id},
			Skills: []parley.SkillSpec{{ID: "talk"}}, Exposed: parley.Everywhere}, directory.FromOperator)
		w.must(err)
		s := asks("talk", parley.Part{MediaType: "application/json", Data: []byte("{}")})
		s.Message.To = "new"
		w.send(s)
		synctest.Wait()
		if len(w.made()) != 1 {
			t.Errorf("%d calls", len(w.made()))
		}
	})
}

// A server whose tools were never read, and which cannot be reached, is at fault as it is for any call: the requester
// hears why. A hub that would call itself does not try again.
func TestToolsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newOutWorld(t, outConfig{}, after(0, says("x"), nil))
	id, err := IdentityAt("https://new.test/mcp")
	w.must(err)
	e, err := w.dir.Put(t.Context(), parley.Agent{Name: "new", Identities: []parley.Identity{id}}, directory.FromOperator)
	w.must(err)
	m := asks("", parley.Part{MediaType: "application/json", Data: []byte("{}")}).Message
	meets := func(err error) hub.Outcome {
		w.outgoing.meet = func(context.Context, string, parley.Identity) error { return err }
		return w.outgoing.deliver(t.Context(), hub.Outbound{Message: m, Recipient: e, Identity: id})
	}
	if out := meets(syscall.ECONNREFUSED); out.Err == nil || out.Err.Reason != parley.ConnectionRefused || out.Unknown {
		t.Errorf("%+v", out)
	}
	if out := meets(errLoop("new")); !out.Answered || out.Failure.Code != parley.Loop {
		t.Errorf("%+v", out)
	}
}

// Content that a tool cannot take is refused before any call.
func TestNoPlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		skill string
		parts []parley.Part
		want  string
	}{
		"several parts": {"read", []parley.Part{file("a"), parley.Text("b")}, "error invalid_content"},
		"no such tool":  {"write", []parley.Part{file("a")}, "error unknown_skill"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newOutWorld(t, outConfig{}, after(0, says("x"), nil))
				s := asks(c.skill, c.parts...)
				s.Fits = true // the hub did not look at it
				m := w.send(s)
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := w.said(m.ID); got != c.want || len(w.made()) != 0 {
					t.Errorf("%s, %d calls", got, len(w.made()))
				}
			})
		})
	}
}

// Requests for a real server, over HTTP in both eras and by a tunnel.
func TestRequestsForServer(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, w *attachedWorld, s *mcp.Server, attach func()) {
		w.b.SetAgent("tools", AgentSettings{Elicitation: true})
		addServerTool(s, "echo", "", echoTool)
		addServerTool(s, "fail", "", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "no such city"}}}, nil
		})
		cancelled := make(chan struct{}, 1)
		addServerTool(s, "wait", "", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			<-ctx.Done()
			cancelled <- struct{}{}
			return nil, ctx.Err()
		})
		addServerTool(s, "ask", "", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if a, ok := r.Params.InputResponses["q"].(*mcp.ElicitResult); ok {
				return says(fmt.Sprint(a.Action, " ", a.Content["city"])).CallToolResult, nil
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": &mcp.ElicitParams{Mode: "form",
				Message: "where to?", RequestedSchema: json.RawMessage(
					`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)}}}, nil
		})
		attach()
		var mu sync.Mutex
		said := map[parley.ID][]*parley.Message{}
		defer w.j.Watch(func(r *journal.Record) {
			if m := r.Message; m != nil && m.From == "tools" {
				mu.Lock()
				defer mu.Unlock()
				said[m.InReplyTo] = append(said[m.InReplyTo], m)
			}
		})()
		send := func(kind parley.Kind, about parley.ID, skill string, part parley.Part) *parley.Message {
			m, err := w.hub.Accept(t.Context(), hub.Submission{Scope: "scope", Foreign: skill, Message: &parley.Message{
				Kind: kind, From: "alice", To: "tools", Skill: skill, InReplyTo: about, Parts: []parley.Part{part},
				Origin: parley.Origin{Protocol: "api", Peer: "alice", Verdict: parley.Verdict{Assurance: parley.Session}}}})
			w.must(err)
			time.Sleep(time.Second)
			synctest.Wait()
			return m
		}
		object := func(s string) parley.Part { return parley.Part{MediaType: "application/json", Data: []byte(s)} }
		last := func(m *parley.Message) *parley.Message {
			mu.Lock()
			defer mu.Unlock()
			if all := said[m.ID]; len(all) > 0 {
				return all[len(all)-1]
			}
			return &parley.Message{}
		}
		const exact = `{"n":0.10000000000000000001}`
		if m := last(send(parley.Request, parley.ID{}, "echo", object(exact))); m.Kind != parley.Response ||
			len(m.Parts) != 1 || string(m.Parts[0].Data) != exact {
			t.Errorf("%s %s", m.Kind, m.Parts)
		}
		if m := last(send(parley.Request, parley.ID{}, "fail", object("{}"))); m.Error == nil ||
			m.Error.Code != parley.HandlerFailed || m.Error.Text != "no such city" {
			t.Errorf("%s %v", m.Kind, m.Error)
		}
		ask := send(parley.Request, parley.ID{}, "ask", object("{}"))
		if m := last(ask); m.State != parley.NeedsInput || m.Text() != "where to?" {
			t.Errorf("%s %s", m.Kind, m.Parts)
		}
		send(parley.Input, ask.ID, "", parley.Text("Bern"))
		if m := last(ask); m.Kind != parley.Response || m.Text() != "accept Bern" {
			t.Errorf("%s %v %s", m.Kind, m.Error, m.Parts)
		}
		wait := send(parley.Request, parley.ID{}, "wait", object("{}"))
		if m := last(wait); m.Kind != 0 {
			t.Errorf("%s %v", m.Kind, m.Error)
		}
		send(parley.Cancel, wait.ID, "", parley.Text("enough"))
		<-cancelled
		if m := last(wait); m.Error == nil || m.Error.Code != parley.Cancelled {
			t.Errorf("%s %v", m.Kind, m.Error)
		}
	})
}

// A call stays with the hub that makes it when its partition moves to another hub of the cluster: that one neither
// calls the tool nor ends the request, and a cancel that it delivers ends the call.
func TestCallsOfMovedPartitions(t *testing.T) {
	t.Parallel()
	url := testcluster.Start(t, 1).URLs[0]
	answers, ended := make(chan *serverAnswer), make(chan error, 16)
	open := func(name string) *outWorld {
		return newOutWorld(t, outConfig{store: testjournal.Cluster(t, jetstream.Config{URL: url}), node: name},
			held(answers, ended))
	}
	a := open("a")
	eventually := (&world{t: t}).eventually
	var sent []*parley.Message
	for i := range 8 {
		s := asks("read", file("a"))
		s.Scope, s.Foreign = fmt.Sprint("scope ", i), fmt.Sprint("thread ", i)
		sent = append(sent, a.send(s))
	}
	eventually("the calls", func() bool { return len(a.made()) == len(sent) })
	b := open("b")
	moved := -1
	eventually("a call of a moved partition", func() bool {
		b.outgoing.mu.Lock()
		defer b.outgoing.mu.Unlock()
		moved = slices.IndexFunc(sent, func(m *parley.Message) bool { return b.outgoing.elsewhere[m.ID].To != "" })
		return moved >= 0
	})
	e, _ := a.dir.Agent("files")
	if all := lines(a.way(t.Context(), e, IdentityOfTunnel("files"))); !strings.Contains(all, "other hubs skipped") {
		t.Errorf("the doctor does not say that each hub needs an attach:\n%s", all)
	}
	b.about(parley.Cancel, sent[moved])
	if err := <-ended; !errors.Is(err, errGivenUp) {
		t.Errorf("the call ended by %v", err)
	}
	for range len(sent) - 1 {
		answers <- says("x")
	}
	for i, m := range sent {
		want := "response x"
		if i == moved {
			want = "error cancelled"
		}
		eventually(fmt.Sprint("the end of request ", i), func() bool { return a.said(m.ID) != "" })
		if got := a.said(m.ID); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	if len(a.made()) != len(sent) || len(b.made()) != 0 {
		t.Errorf("%d and %d calls", len(a.made()), len(b.made()))
	}
}
