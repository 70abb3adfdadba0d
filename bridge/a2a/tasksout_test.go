package a2a

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// An agent may answer with a message, without a task.
func TestMessageIsAnAnswer(t *testing.T) {
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			a := serveAgent(t, wire.version, wire.binding, func(_ context.Context, x *a2asrv.ExecutorContext,
				yield func(protocol.Event) bool) {
				m := protocol.NewMessage(protocol.MessageRoleAgent, protocol.NewTextPart("hello"))
				m.ContextID = x.ContextID
				yield(m)
			}, nil)
			c := newCaller(t, callerConfig{})
			c.add("elsewhere", a.URL)
			if m := c.ask("elsewhere", parley.Text("hi")); m.Kind != parley.Response || m.Text() != "hello" {
				t.Errorf("%s", said([]*parley.Message{m}))
			}
			for _, by := range []string{"quiet", "reader"} {
				if got := said(c.answered(c.send(by, "elsewhere", parley.Text("hi")).ID)); got != "response hello" {
					t.Errorf("%s: %s", by, got)
				}
			}
		})
	}
}

// The ends of a task that are no answer, and the message of a task without artifacts.
func TestEndsOfTasks(t *testing.T) {
	for state, want := range map[protocol.TaskState]string{
		protocol.TaskStateRejected:  "error rejected because",
		protocol.TaskStateFailed:    "error handler_failed because",
		protocol.TaskStateCanceled:  "error cancelled because",
		protocol.TaskStateCompleted: "response because",
	} {
		t.Run(string(state), func(t *testing.T) {
			a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(_ context.Context, x *a2asrv.ExecutorContext,
				yield func(protocol.Event) bool) {
				_ = yield(protocol.NewSubmittedTask(x, x.Message)) &&
					yield(protocol.NewStatusUpdateEvent(x, state, agentText(x, "because")))
			}, nil)
			c := newCaller(t, callerConfig{})
			c.add("elsewhere", a.URL)
			for _, m := range []*parley.Message{c.ask("elsewhere", parley.Text("hi")),
				c.answered(c.send("quiet", "elsewhere", parley.Text("hi")).ID)[0],
				c.answered(c.send("reader", "elsewhere", parley.Text("hi")).ID)[0]} {
				if got := said([]*parley.Message{m}); got != want {
					t.Errorf("%s, want %s", got, want)
				}
				if m.Error != nil && m.Error.Source != parley.ByPeer {
					t.Errorf("%+v", m.Error)
				}
			}
		})
	}
}

// asking is an agent that asks for input once, and answers with it.
func asking(state protocol.TaskState) work {
	return func(ctx context.Context, x *a2asrv.ExecutorContext, yield func(protocol.Event) bool) {
		if x.StoredTask == nil {
			_ = yield(protocol.NewSubmittedTask(x, x.Message)) &&
				yield(protocol.NewStatusUpdateEvent(x, state, agentText(x, "where to?")))
			if state == protocol.TaskStateAuthRequired { // the SDK's server goes on in this state
				<-ctx.Done()
			}
			return
		}
		_ = yield(protocol.NewArtifactEvent(x, protocol.NewTextPart("to "+x.Message.Parts[0].Text()))) &&
			yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateCompleted, nil))
	}
}

// A2A-091: Deliver returns when the agent asks for input, and the request stays open. The
// input goes to the agent's task, and its answer is the answer of the request.
func TestInput(t *testing.T) {
	for _, wire := range wires {
		for _, by := range []string{"quiet", "reader"} {
			t.Run(wire.name+" "+by, func(t *testing.T) {
				a := serveAgent(t, wire.version, wire.binding, asking(protocol.TaskStateInputRequired), nil)
				c := newCaller(t, callerConfig{})
				c.add("elsewhere", a.URL)
				request := c.send(by, "elsewhere", parley.Text("go"))
				c.until(request.ID, "the agent does not ask", func(m []*parley.Message) bool {
					return said(m) == "needs-input where to?"
				})
				eventually(t, c.j, "the request is not delivered", func() bool {
					d, ok := c.j.Delivery(request.ID, "elsewhere")
					return ok && d.State == parley.Delivered
				})
				c.about(parley.Input, request, parley.Text("Bern"))
				all := c.answered(request.ID)
				if got := said(all); got != "needs-input where to? | response to Bern" &&
					got != "needs-input where to? | none to Bern | response to Bern" {
					t.Error(got)
				}
			})
		}
	}
}

// eventually waits for a state that the journal's records bring about.
func eventually(t *testing.T, j *journal.Journal, what string, ok func() bool) {
	t.Helper()
	changed := make(chan struct{}, 1)
	stop := j.Watch(func(*journal.Record) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	for late := time.After(time.Minute); !ok(); {
		select {
		case <-changed:
		case <-late:
			t.Fatal(what)
		}
	}
}

// A caller that waits on a connection gets the question, and the answer after its input.
func TestInputOfAWaitingCaller(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, asking(protocol.TaskStateInputRequired), nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	call, err := c.hub.Begin(t.Context(), submission("quiet", "elsewhere", parley.Text("go")))
	if err != nil {
		t.Fatal(err)
	}
	var got []*parley.Message
	for m, err := range call.Stream(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m)
		if m.State == parley.NeedsInput {
			c.about(parley.Input, call.Message(), parley.Text("Bern"))
		}
	}
	if s := said(got); !strings.HasPrefix(s, "needs-input where to? | ") || !strings.HasSuffix(s, "response to Bern") {
		t.Error(s)
	}
}

// A2A-090: auth-required is passed on with its mark.
func TestAuthRequired(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, asking(protocol.TaskStateAuthRequired), nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	request := c.send("quiet", "elsewhere", parley.Text("go"))
	all := c.until(request.ID, "the agent does not ask", func(m []*parley.Message) bool { return len(m) == 1 })
	if all[0].State != parley.NeedsInput || all[0].Act != "auth-required" {
		t.Errorf("%s, act %q", said(all), all[0].Act)
	}
}

// held is an agent that says that it works, and waits.
func held(hold <-chan struct{}, parts int) work {
	return func(ctx context.Context, x *a2asrv.ExecutorContext, yield func(protocol.Event) bool) {
		if !yield(protocol.NewSubmittedTask(x, x.Message)) ||
			!yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateWorking, agentText(x, "begun"))) {
			return
		}
		e := protocol.NewArtifactEvent(x, protocol.NewTextPart("0"))
		for i := range parts {
			if i > 0 {
				e = protocol.NewArtifactUpdateEvent(x, e.Artifact.ID, protocol.NewTextPart(string(rune('0'+i))))
			}
			if !yield(e) {
				return
			}
		}
		select {
		case <-hold:
		case <-ctx.Done():
			return
		}
		_ = yield(protocol.NewArtifactUpdateEvent(x, e.Artifact.ID, protocol.NewTextPart("last"))) &&
			yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateCompleted, nil))
	}
}

// A stream that outlives a short while goes on in the background: the request counts as
// delivered, its row has the task, and its chunks come in order.
func TestStreamGoesOnWithoutTheLane(t *testing.T) {
	hold := make(chan struct{})
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, held(hold, 3), nil)
	c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Millisecond }})
	c.add("elsewhere", a.URL)
	request := c.send("reader", "elsewhere", parley.Text("go"))
	eventually(t, c.j, "the request is not delivered", func() bool {
		d, ok := c.j.Delivery(request.ID, "elsewhere")
		return ok && d.State == parley.Delivered
	})
	row, err := c.sent.Get(t.Context(), request.ID.String())
	if err != nil || row.Value.Task == "" || row.Value.Context == "" {
		t.Fatalf("%+v, %v", row, err)
	}
	c.until(request.ID, "the chunks do not come", func(m []*parley.Message) bool {
		return said(m) == "working begun | none 0 | none 1 | none 2"
	})
	close(hold)
	if got := said(c.answered(request.ID)); got !=
		"working begun | none 0 | none 1 | none 2 | none last | response 0 1 2 last" {
		t.Error(got)
	}
	eventuallyRow(t, c, request.ID, false)
	if n := a.count(); n != 1 {
		t.Errorf("the agent was called %d times", n)
	}
}

// eventuallyRow waits until the row of a request is there, or gone.
func eventuallyRow(t *testing.T, c *caller, id parley.ID, there bool) {
	t.Helper()
	seen := make(chan bool, 64)
	stop, err := c.sent.Watch(t.Context(), id.String(), func(r journal.Row[sentRequest]) { seen <- r.Revision != 0 })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	row, err := c.sent.Get(t.Context(), id.String())
	if err != nil {
		t.Fatal(err)
	}
	if (row.Revision != 0) == there {
		return
	}
	for late := time.After(time.Minute); ; {
		select {
		case now := <-seen:
			if now == there {
				return
			}
		case <-late:
			t.Fatalf("the row of the request: there is %t", !there)
		}
	}
}

// A2A-072: a hub is killed while an agent works. The next process, on a copy of its disk
// from that moment, subscribes again: it gets the rest, tells each event once, and sends
// the request to nobody.
func TestRestartInTheMiddleOfATask(t *testing.T) {
	for _, wire := range wires {
		for _, by := range []string{"reader", "quiet"} {
			t.Run(wire.name+" "+by, func(t *testing.T) {
				dir, hold := t.TempDir(), make(chan struct{})
				var done atomic.Int64
				inner := held(hold, 3)
				a := serveAgent(t, wire.version, wire.binding, func(ctx context.Context, x *a2asrv.ExecutorContext,
					yield func(protocol.Event) bool) {
					done.Add(1)
					inner(ctx, x, yield)
				}, nil)
				ring, err := keyring.Open(keyring.Options{})
				if err != nil {
					t.Fatal(err)
				}
				cc := callerConfig{disk: filepath.Join(dir, "data"), ring: ring,
					edit: func(b *Binding) { b.patience = time.Millisecond }}
				c := newCaller(t, cc)
				c.add("elsewhere", a.URL)
				request := c.send(by, "elsewhere", parley.Text("go"))
				before := "working begun | none 0 | none 1 | none 2"
				if by == "quiet" {
					before = "working begun"
				}
				c.until(request.ID, "the agent does not begin", func(m []*parley.Message) bool { return said(m) == before })
				eventually(t, c.j, "the request is not delivered", func() bool {
					d, ok := c.j.Delivery(request.ID, "elsewhere")
					return ok && d.State == parley.Delivered
				})
				left := filepath.Join(dir, "left")
				testjournal.Copy(t, cc.disk, left)
				c.close()
				cc.disk = left
				again := newCaller(t, cc)
				again.add("elsewhere", a.URL)
				close(hold)
				got := said(again.answered(request.ID))
				if !strings.HasSuffix(got, "response 0 1 2 last") || strings.Contains(got, "begun") ||
					strings.Contains(got, "none 0") || strings.Contains(got, "none 2") {
					t.Error(got)
				}
				if done.Load() != 1 {
					t.Errorf("the agent worked %d times", done.Load())
				}
			})
		}
	}
}

// A stream that breaks is taken up again by subscription or by asking, without a second
// message and without a second telling.
func TestStreamBreaks(t *testing.T) {
	hold, cut := make(chan struct{}), make(chan struct{})
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, held(hold, 3), func(a *agentElsewhere) {
		var first sync.Once
		a.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mine := false
				first.Do(func() { mine = true })
				if !mine {
					h.ServeHTTP(w, r)
					return
				}
				ctx, stop := context.WithCancel(r.Context())
				go func() { <-cut; stop() }()
				h.ServeHTTP(w, r.WithContext(ctx))
				panic(http.ErrAbortHandler)
			})
		}
	})
	c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Millisecond }})
	c.add("elsewhere", a.URL)
	request := c.send("reader", "elsewhere", parley.Text("go"))
	c.until(request.ID, "the chunks do not come", func(m []*parley.Message) bool {
		return said(m) == "working begun | none 0 | none 1 | none 2"
	})
	close(cut)
	eventuallyCalls(t, a, 2)
	close(hold)
	got := said(c.answered(request.ID))
	if got != "working begun | none 0 | none 1 | none 2 | response 0 1 2 last" &&
		got != "working begun | none 0 | none 1 | none 2 | none last | response 0 1 2 last" {
		t.Error(got)
	}
}

func eventuallyCalls(t *testing.T, a *agentElsewhere, n int) {
	t.Helper()
	late := time.After(time.Minute)
	for a.count() < n {
		select {
		case <-late:
			t.Fatalf("%d calls, want %d", a.count(), n)
		case <-time.After(time.Millisecond):
		}
	}
}

// Cancel becomes CancelTask, if the task is known, and its end is the request's.
func TestCancelOfATaskElsewhere(t *testing.T) {
	for _, wire := range wires {
		for _, by := range []string{"quiet", "reader"} {
			t.Run(wire.name+" "+by, func(t *testing.T) {
				a := serveAgent(t, wire.version, wire.binding, held(nil, 1), nil)
				c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Millisecond }})
				c.add("elsewhere", a.URL)
				request := c.send(by, "elsewhere", parley.Text("go"))
				eventually(t, c.j, "the request is not delivered", func() bool {
					d, ok := c.j.Delivery(request.ID, "elsewhere")
					return ok && d.State == parley.Delivered
				})
				c.about(parley.Cancel, request)
				all := c.answered(request.ID)
				if e := all[len(all)-1].Error; e == nil || e.Code != parley.Cancelled {
					t.Error(said(all))
				}
			})
		}
	}
}

// A caller that leaves has the task cancelled at the agent, and its row removed.
func TestCallerLeaves(t *testing.T) {
	cancelled := make(chan struct{})
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(ctx context.Context, x *a2asrv.ExecutorContext,
		yield func(protocol.Event) bool) {
		held(nil, 1)(ctx, x, yield)
		close(cancelled)
	}, nil)
	c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Hour }})
	c.add("elsewhere", a.URL)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	call, err := c.hub.Begin(ctx, submission("quiet", "elsewhere", parley.Text("go")))
	if err != nil {
		t.Fatal(err)
	}
	for m, err := range call.Stream(ctx) {
		if err == nil && m.Kind == parley.Event && m.State == parley.NoState {
			leave()
		}
	}
	select {
	case <-cancelled:
	case <-time.After(time.Minute):
		t.Fatal("the agent works on")
	}
	eventuallyRow(t, c, call.Message().ID, false)
}

// A notice is a message whose result is not read.
func TestNoticeElsewhere(t *testing.T) {
	got := make(chan string, 1)
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(_ context.Context, x *a2asrv.ExecutorContext,
		yield func(protocol.Event) bool) {
		got <- x.Message.Parts[0].Text()
		yield(protocol.NewSubmittedTask(x, x.Message))
		yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateCompleted, nil))
	}, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	s := submission("quiet", "elsewhere", parley.Text("note"))
	s.Message.Kind = parley.Notice
	m, err := c.hub.Accept(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if text := <-got; text != "note" {
		t.Error(text)
	}
	eventually(t, c.j, "the notice is not settled", func() bool {
		_, open := c.j.Delivery(m.ID, "elsewhere")
		return !open
	})
}

// The context that the agent gave first is the conversation's in later requests; an agent
// that refuses it gets a message without one.
func TestContexts(t *testing.T) {
	var mu sync.Mutex
	var contexts []string
	refuse := false
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body := readAll(t, r)
				var q struct{ Params protocol.SendMessageRequest }
				if err := json.Unmarshal(body, &q); err != nil {
					t.Error(err)
				}
				mu.Lock()
				given := q.Params.Message.ContextID
				contexts = append(contexts, given)
				no := refuse && given != ""
				mu.Unlock()
				if no {
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"unknown context"}}`))
					return
				}
				h.ServeHTTP(w, r)
			})
		}
	})
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	c.ask("elsewhere", parley.Text("one"))
	c.ask("elsewhere", parley.Text("two"))
	mu.Lock()
	if len(contexts) != 2 || contexts[0] != "" || contexts[1] == "" {
		t.Errorf("%q", contexts)
	}
	refuse, contexts = true, nil
	mu.Unlock()
	if m := c.ask("elsewhere", parley.Text("three")); m.Kind != parley.Response {
		t.Error(said([]*parley.Message{m}))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(contexts) != 2 || contexts[0] == "" || contexts[1] != "" {
		t.Errorf("%q", contexts)
	}
}

// Each agent has a bounded number of requests; further ones wait.
func TestRequestsOfOneAgentAreBounded(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	e, _ := c.dir.Agent("elsewhere")
	id, _ := e.Identity(Protocol)
	p, err := c.peerOf("elsewhere", id.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.outMu.Lock()
	p.tasks = maxTasks
	c.outMu.Unlock()
	m := submission("quiet", "elsewhere", parley.Text("hi")).Message
	m.ID, m.Deadline = parley.ID{1}, time.Now().Add(time.Hour)
	o := c.Deliver(t.Context(), hub.Outbound{Message: m, Recipient: e, Identity: id, Attempt: 1})
	if o.Err == nil || o.Err.Reason != parley.OpenRequests || o.Wait == 0 || a.count() != 0 {
		t.Errorf("%+v, %d calls", o, a.count())
	}
	// With all streams in use a request goes without one.
	c.outMu.Lock()
	p.tasks = 0
	c.outMu.Unlock()
	for range maxStreams {
		p.streams <- struct{}{}
	}
	if got := said(c.answered(c.send("reader", "elsewhere", parley.Text("hi")).ID)); !strings.HasSuffix(got,
		"response hi second") {
		t.Error(got)
	}
}

// A2A-063: the message carries hops, sender and skill under the extension's URI, and the
// messageId is the message's.
func TestExtensionCarriesHops(t *testing.T) {
	var got *protocol.Message
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(ctx context.Context, x *a2asrv.ExecutorContext,
		yield func(protocol.Event) bool) {
		got = x.Message
		echoWork(ctx, x, yield)
	}, func(a *agentElsewhere) {
		a.card.Capabilities.Extensions = []protocol.AgentExtension{{URI: ExtensionURI}}
	})
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	s := submission("quiet", "elsewhere", parley.Text("hi"))
	s.Message.Hops, s.Message.Act = []string{"hub-one"}, "propose"
	m, err := c.hub.Ask(t.Context(), s)
	if err != nil || m.Kind != parley.Response {
		t.Fatal(m, err)
	}
	said := got.Metadata[ExtensionURI].(map[string]any)
	if got.ID != s.Message.ID.String() || said["sender"] != "alice" || said["act"] != "propose" ||
		fmt.Sprint(said["hops"]) != "[hub-one here]" {
		t.Errorf("%s %+v", got.ID, said)
	}
	if got := a.seen(protocol.SvcParamExtensions); !slices.Equal(got, []string{ExtensionURI}) {
		t.Errorf("A2A-Extensions %q", got)
	}
}

// An agent that declares the extension says with which code it failed, and when to come
// back; the word of others does not count.
func TestFailureOfAPeerThatDeclaresTheExtension(t *testing.T) {
	for _, declares := range []bool{true, false} {
		a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(_ context.Context, x *a2asrv.ExecutorContext,
			yield func(protocol.Event) bool) {
			m := agentText(x, "no room")
			m.SetMeta(ExtensionURI, map[string]any{"code": "no_space", "retryable": true, "retry_after": 7})
			_ = yield(protocol.NewSubmittedTask(x, x.Message)) &&
				yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateFailed, m))
		}, func(a *agentElsewhere) {
			if declares {
				a.card.Capabilities.Extensions = []protocol.AgentExtension{{URI: ExtensionURI}}
			}
		})
		c := newCaller(t, callerConfig{})
		c.add("elsewhere", a.URL)
		e := c.ask("elsewhere", parley.Text("hi")).Error
		if declares && (e.Code != parley.NoSpace || !e.Retryable || e.After != 7*time.Second) ||
			!declares && (e.Code != parley.HandlerFailed || e.Retryable) {
			t.Errorf("declares %t: %+v", declares, e)
		}
	}
}

// A2A-070: the tenant of the interface goes with every request, as the card lists it.
func TestTenant(t *testing.T) {
	for _, wire := range wires[:2] {
		t.Run(wire.name, func(t *testing.T) {
			hold := make(chan struct{})
			var mu sync.Mutex
			tenants := map[string]bool{}
			inner := serveAgent(t, wire.version, wire.binding, held(hold, 1), func(a *agentElsewhere) {
				a.card.SupportedInterfaces[0].Tenant = "acme"
				a.wrap = func(h http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						var q struct{ Params struct{ Tenant string } }
						mu.Lock()
						defer mu.Unlock()
						if wire.binding == protocol.TransportProtocolHTTPJSON {
							path, ok := strings.CutPrefix(r.URL.Path, "/acme/")
							tenants[map[bool]string{true: "acme"}[ok]] = true
							r.URL.Path = "/" + path
						} else if err := json.Unmarshal(readAll(t, r), &q); err == nil {
							tenants[q.Params.Tenant] = true
						}
						mu.Unlock()
						h.ServeHTTP(w, r)
						mu.Lock()
					})
				}
			})
			c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Millisecond }})
			c.add("elsewhere", inner.URL)
			request := c.send("quiet", "elsewhere", parley.Text("go")) // sent, subscribed or polled, cancelled
			eventually(t, c.j, "the request is not delivered", func() bool {
				d, ok := c.j.Delivery(request.ID, "elsewhere")
				return ok && d.State == parley.Delivered
			})
			c.about(parley.Cancel, request)
			c.answered(request.ID)
			mu.Lock()
			defer mu.Unlock()
			if len(tenants) != 1 || !tenants["acme"] {
				t.Errorf("%v", tenants)
			}
		})
	}
}

// What is remembered about a conversation goes with it.
func TestForgetConversation(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	m := c.ask("elsewhere", parley.Text("one"))
	if c.contextOf(t.Context(), "elsewhere", m.Conversation) == "" {
		t.Fatal("no context is kept")
	}
	n, err := c.Forget(t.Context(), hub.Forgetting{Conversation: m.Conversation,
		Message: func(parley.ID) bool { return false }})
	if err != nil || n != 1 || c.contextOf(t.Context(), "elsewhere", m.Conversation) != "" {
		t.Errorf("%d, %v", n, err)
	}
}

// Each request has its own pieces, although agents may name their artifacts alike.
func TestArtifactsOfTwoRequests(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(_ context.Context, x *a2asrv.ExecutorContext,
		yield func(protocol.Event) bool) {
		e := protocol.NewArtifactEvent(x, x.Message.Parts...)
		e.Artifact.ID = "result"
		_ = yield(protocol.NewSubmittedTask(x, x.Message)) && yield(e) &&
			yield(protocol.NewStatusUpdateEvent(x, protocol.TaskStateCompleted, nil))
	}, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	for _, text := range []string{"one", "two"} {
		got := said(c.answered(c.send("reader", "elsewhere", parley.Text(text)).ID))
		if want := "none " + text + " | response " + text; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A subscription may repeat what the task has already, and may stay open after the end: the
// task is read.
func TestSubscriptionIsAHint(t *testing.T) {
	const working = `{"id":"T","contextId":"C","status":{"state":"TASK_STATE_WORKING"},"artifacts":[{"artifactId":"A",` +
		`"parts":[{"text":"x"}]}]}`
	var polls atomic.Int64
	subscribed, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Millisecond }})
	c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, false, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":stream"):
			respond(200, "text/event-stream", `data: {"task":`+working+"}\n\n")(w, r)
		case strings.HasSuffix(r.URL.Path, ":subscribe"):
			respond(200, "text/event-stream", `data: {"task":`+working+"}\n\n"+`data: {"artifactUpdate":{"taskId":"T",`+
				`"contextId":"C","append":true,"artifact":{"artifactId":"A","parts":[{"text":"x"}]}}}`+"\n\n")(w, r)
			_ = http.NewResponseController(w).Flush()
			close(subscribed)
			<-release
		case polls.Add(1) == 1:
			respond(200, "application/json", working)(w, r)
		default:
			respond(200, "application/json", strings.Replace(working, "WORKING", "CANCELED", 1))(w, r)
		}
	}))
	request := c.send("reader", "elsewhere", parley.Text("hi"))
	<-subscribed
	eventually(t, c.j, "the request is not delivered", func() bool {
		d, ok := c.j.Delivery(request.ID, "elsewhere")
		return ok && d.State == parley.Delivered
	})
	c.about(parley.Cancel, request)
	const want = "none x | working | error cancelled the agent ended the task as canceled"
	if got := said(c.answered(request.ID)); got != want {
		t.Error(got)
	}
}

// A question is told once, although its status loses its message when the input comes.
func TestQuestionLosesItsMessage(t *testing.T) {
	const asks = `{"id":"T","contextId":"C","status":{"state":"TASK_STATE_INPUT_REQUIRED"%s}}`
	var polls atomic.Int64
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, false, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":send"):
			respond(200, "application/json", `{"task":`+fmt.Sprintf(asks,
				`,"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"where?"}]}`)+"}")(w, r)
		case polls.Add(1) < 4:
			respond(200, "application/json", fmt.Sprintf(asks, `,"timestamp":"2026-01-01T00:00:00Z"`))(w, r)
		default:
			respond(200, "application/json", strings.Replace(fmt.Sprintf(asks, ""), "INPUT_REQUIRED", "COMPLETED", 1))(w, r)
		}
	}))
	got := said(c.answered(c.send("quiet", "elsewhere", parley.Text("hi")).ID))
	if got != "needs-input where? | response" {
		t.Error(got)
	}
}

// A2A-091: a question without an answer ends at the request's deadline, and the agent is told.
func TestQuestionEndsAtTheDeadline(t *testing.T) {
	cancelled := make(chan struct{})
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, asking(protocol.TaskStateInputRequired),
		func(a *agentElsewhere) {
			a.wrap = func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					var q struct{ Method string }
					if json.Unmarshal(readAll(t, r), &q) == nil && q.Method == "CancelTask" {
						defer close(cancelled)
					}
					h.ServeHTTP(w, r)
				})
			}
		})
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	s := submission("quiet", "elsewhere", parley.Text("go"))
	s.Message.Deadline = time.Now().Add(time.Second)
	m, err := c.hub.Accept(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	all := c.answered(m.ID)
	if e := all[len(all)-1].Error; all[0].State != parley.NeedsInput || e == nil || e.Code != parley.TimedOut {
		t.Error(said(all))
	}
	select {
	case <-cancelled:
	case <-time.After(time.Minute):
		t.Fatal("the agent is not told")
	}
	eventuallyRow(t, c, m.ID, false)
}

// A request that is cancelled while the agent takes it in: the task is cancelled as soon as
// it has a name.
func TestCancelBeforeTheTaskIsKnown(t *testing.T) {
	for _, by := range []string{"quiet", "reader"} {
		t.Run(by, func(t *testing.T) {
			heard, name, cancelled := make(chan struct{}), make(chan struct{}), make(chan struct{})
			a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, func(ctx context.Context, x *a2asrv.ExecutorContext,
				yield func(protocol.Event) bool) {
				close(heard)
				<-name
				held(nil, 1)(ctx, x, yield)
				close(cancelled)
			}, nil)
			c := newCaller(t, callerConfig{edit: func(b *Binding) { b.patience = time.Millisecond }})
			c.add("elsewhere", a.URL)
			request := c.send(by, "elsewhere", parley.Text("go"))
			<-heard
			c.about(parley.Cancel, request)
			all := c.answered(request.ID)
			if e := all[len(all)-1].Error; e == nil || e.Code != parley.Cancelled {
				t.Error(said(all))
			}
			close(name)
			select {
			case <-cancelled:
			case <-time.After(time.Minute):
				t.Fatal("the agent works on")
			}
		})
	}
}

// However the name of a task, the end of the attempt and the end of the request fall
// together, the row has the task: a cancel that comes then finds it.
func TestRowHasTheTask(t *testing.T) {
	c := newCaller(t, callerConfig{})
	p, err := c.peerOf("elsewhere", "http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		id, err := parley.NewID(time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		m := &parley.Message{ID: id, Conversation: id}
		f := c.newFollower(p, m, &sentRequest{To: "elsewhere", Until: time.Now().Add(time.Hour)})
		f.attend()
		var wait sync.WaitGroup
		wait.Go(func() {
			if err := f.learn(f.ctx, protocol.TaskInfo{TaskID: "task", ContextID: "context"}); err != nil {
				t.Error(err)
			}
		})
		wait.Go(func() {
			f.leave(t.Context())
			f.stop() // as the answer of the hub does
		})
		wait.Wait()
		row, err := c.sent.Get(t.Context(), m.ID.String())
		if err != nil {
			t.Fatal(err)
		}
		if row.Value.Task != "task" {
			t.Fatalf("%+v", row.Value)
		}
	}
}
