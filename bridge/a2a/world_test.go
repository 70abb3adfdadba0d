package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/internal/testjournal"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testcluster.Leaks()...) }

// world is a hub with the binding, on a journal and an index in memory.
type world struct {
	t    testing.TB
	dir  *directory.Directory
	keys *keyring.Ring
	j    *journal.Journal
	c    Config // of the binding
	node *testNode
}

// testNode is one run of the hub.
type testNode struct {
	hub   *hub.Hub
	index *index.Index
	*Binding
	far *farBinding
}

// farBinding delivers to agents elsewhere as the test says.
type farBinding struct {
	deliver func(ctx context.Context, o hub.Outbound) hub.Outcome
	holds   bool
}

func (f *farBinding) Protocol() string { return "far" }
func (f *farBinding) Capabilities() hub.Capabilities {
	return hub.Capabilities{Deduplicates: true,
		Holds: func(*directory.Entry, parley.Identity) bool { return f.holds }}
}
func (f *farBinding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if f.deliver == nil {
		return hub.Outcome{}
	}
	return f.deliver(ctx, o)
}

func newWorld(t testing.TB, edit ...func(*Config)) *world {
	t.Helper()
	return newWorldOn(t, journal.Config{Store: testjournal.Memory(t)}, edit...)
}

func newWorldOn(t testing.TB, j journal.Config, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t}
	var err error
	w.j, err = journal.Open(context.Background(), j)
	w.must(err)
	w.dir, err = directory.Open(context.Background(), directory.Options{})
	w.must(err)
	w.keys, err = keyring.Open(keyring.Options{})
	w.must(err)
	w.c = Config{Keys: w.keys, Journal: w.j, PublicURL: "https://hub.test"}
	for _, f := range edit {
		f(&w.c)
	}
	for _, name := range []string{"alice", "bob"} {
		w.agent(parley.Agent{Name: name})
	}
	w.node = w.start(nil)
	t.Cleanup(func() {
		w.stop(w.node)
		w.must(w.j.Close())
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) agent(a parley.Agent) {
	w.t.Helper()
	_, err := w.dir.Put(context.Background(), a, directory.FromOperator)
	w.must(err)
}

// start opens a hub on the world's journal, with the agents here.
func (w *world) start(handlers map[string]parley.Handler) *testNode {
	w.t.Helper()
	p, err := policy.New(policy.Config{Hub: "here", Assurance: map[string]parley.Assurance{"": parley.Session}})
	w.must(err)
	n := &testNode{far: &farBinding{}}
	n.hub, err = hub.New(hub.Config{ID: "here", Secret: bytes.Repeat([]byte("s"), 32), Journal: w.j, Directory: w.dir,
		Policy: p, Delivery: delivery.Config{Retry: delivery.Retry{First: time.Second, Longest: time.Second, Tries: 3}}})
	w.must(err)
	n.index, err = index.Open(context.Background(), index.Config{Journal: w.j})
	w.must(err)
	c := w.c
	c.Hub, c.Index = n.hub, n.index
	n.Binding, err = New(c)
	w.must(err)
	w.must(n.hub.Bind(n.Binding))
	w.must(n.hub.Bind(n.far))
	w.must(n.Start(context.Background()))
	for name, h := range handlers {
		w.handleAt(n, name, h)
	}
	n.hub.Start()
	return n
}

func (w *world) stop(n *testNode) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.must(errors.Join(n.hub.Close(ctx), n.Close(), n.index.Close()))
}

func (w *world) handleAt(n *testNode, name string, h parley.Handler, options ...parley.SkillOption) {
	w.t.Helper()
	w.must(n.hub.Handle(parley.Agent{Name: name, Exposed: parley.Everywhere,
		Skills: []parley.SkillSpec{parley.RawSkill("do", h, options...)}}))
}

func (w *world) handle(name string, h parley.Handler) { w.t.Helper(); w.handleAt(w.node, name, h) }

// as is the context of a call of an agent by a caller, in 1.0.
func (w *world) as(caller, agent string) context.Context {
	return withCall(context.Background(), &call{agent: agent, version: V1, header: http.Header{"A2a-Version": {"1.0"}},
		remote: "192.0.2.1:99", caller: bridge.Caller{Name: caller, Peer: "token " + caller,
			Verdict: parley.Verdict{Assurance: parley.Session, Checks: []parley.Check{{Name: "token", OK: true}}}}})
}

// sending is as for a call with these parameters in JSON.
func (w *world) sending(caller, agent, params string) (context.Context, *protocol.SendMessageRequest) {
	w.t.Helper()
	ctx := w.as(caller, agent)
	c := callOf(ctx)
	c.params = json.RawMessage(params)
	c.body = []byte(`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":` + params + `}`)
	r := &protocol.SendMessageRequest{}
	w.must(json.Unmarshal(c.params, r))
	return ctx, r
}

func say(id, text, more string) string {
	return fmt.Sprintf(`{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":%q}]%s}}`, id, text, more)
}

func immediately(params string) string {
	return configured(params, `"returnImmediately":true`)
}

// configured adds members of the configuration.
func configured(params, members string) string {
	return strings.TrimSuffix(params, "}") + `,"configuration":{` + members + `}}`
}

func (w *world) send(caller, agent, params string) (protocol.SendMessageResult, error) {
	w.t.Helper()
	ctx, r := w.sending(caller, agent, params)
	return checked{service{w.node.Binding}}.SendMessage(ctx, r)
}

func (w *world) task(caller, agent, params string) *protocol.Task {
	w.t.Helper()
	result, err := w.send(caller, agent, params)
	w.must(err)
	t, ok := result.(*protocol.Task)
	if !ok {
		w.t.Fatalf("the answer is %T", result)
	}
	return t
}

func (w *world) get(caller, agent string, id protocol.TaskID) (*protocol.Task, error) {
	return checked{service{w.node.Binding}}.GetTask(w.as(caller, agent), &protocol.GetTaskRequest{ID: id})
}

// eventually asks again until f holds.
func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatal(what)
		}
	}
}

// reader collects the events of a stream in the background.
type reader struct {
	mu     sync.Mutex
	events []string
	err    error
	done   chan struct{}
	stop   context.CancelFunc
}

func (w *world) subscribe(n *testNode, caller, agent string, id protocol.TaskID) *reader {
	ctx, cancel := context.WithCancel(w.as(caller, agent))
	return read(cancel, func(yield func(protocol.Event, error) bool) {
		service{n.Binding}.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: id})(yield)
	})
}

func (w *world) stream(caller, agent, params string) *reader {
	w.t.Helper()
	ctx, r := w.sending(caller, agent, params)
	ctx, cancel := context.WithCancel(ctx)
	return read(cancel, func(yield func(protocol.Event, error) bool) {
		checked{service{w.node.Binding}}.SendStreamingMessage(ctx, r)(yield)
	})
}

func read(stop context.CancelFunc, events func(yield func(protocol.Event, error) bool)) *reader {
	r := &reader{done: make(chan struct{}), stop: stop}
	go func() {
		defer close(r.done)
		events(func(e protocol.Event, err error) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err != nil {
				r.err = err
				return true
			}
			r.events = append(r.events, shortly(e))
			return true
		})
	}()
	return r
}

func (r *reader) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.events...)
}

// shortly writes an event in a few words.
func shortly(e protocol.Event) string {
	text := func(parts protocol.ContentParts) string {
		var out []string
		for _, p := range parts {
			out = append(out, p.Text())
		}
		return strings.Join(out, "+")
	}
	state := func(s protocol.TaskStatus) string {
		out := strings.TrimPrefix(string(s.State), "TASK_STATE_")
		if s.Message != nil {
			out += " " + text(s.Message.Parts)
		}
		return out
	}
	switch e := e.(type) {
	case *protocol.Task:
		out := "task " + state(e.Status)
		for _, a := range e.Artifacts {
			out += " [" + text(a.Parts) + "]"
		}
		return out
	case *protocol.TaskStatusUpdateEvent:
		return state(e.Status)
	case *protocol.TaskArtifactUpdateEvent:
		return fmt.Sprintf("%s append=%v last=%v %s", e.Artifact.ID, e.Append, e.LastChunk, text(e.Artifact.Parts))
	}
	return fmt.Sprintf("%T", e)
}

// wantError checks an error's sentinel, and the field that it names.
func wantError(t testing.TB, err, sentinel error, field string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("error %v, want %v", err, sentinel)
		return
	}
	if field == "" {
		return
	}
	var e *protocol.Error
	if !errors.As(err, &e) || len(e.TypedDetails) == 0 ||
		!strings.Contains(fmt.Sprint(e.TypedDetails[0].Value), "field:"+field) {
		t.Errorf("error %v does not name the field %s", err, field)
	}
}

// echo answers with what it got.
func echo(_ context.Context, m *parley.Message, r parley.Replier) error { return r.Reply(m.Parts...) }

// gate is a handler that does one step for each token, and ends with "done".
type gate chan string

func (g gate) handler(ctx context.Context, _ *parley.Message, r parley.Replier) error {
	for {
		select {
		case step := <-g:
			kind, text, _ := strings.Cut(step, " ")
			var err error
			switch kind {
			case "piece":
				err = r.Chunk(parley.Text(text))
			case "progress":
				err = r.Progress(text)
			case "ask":
				p, _ := r.(parley.Prompter)
				_, err = p.NeedInput(parley.Text(text))
			case "fail":
				return parley.Refuse(parley.Rejected, "%s", text)
			default:
				return r.Reply(parley.Text(text))
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

func encoded(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
