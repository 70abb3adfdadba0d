package faults

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// a2aHub is a hub in a process of its own, which clients of the official A2A SDK call.
type a2aHub struct {
	*process
	args  []string
	data  string
	place pairs.Place
}

// newA2AHub starts a hub with agents, and with callers of A2A that have the names.
func newA2AHub(t *testing.T, callers []string, agents map[string]node.Agent) *a2aHub {
	t.Helper()
	dir := t.TempDir()
	c := node.Config{Data: filepath.Join(dir, "data"), Agents: agents,
		Listen: node.Listen{HTTP: fmt.Sprintf("127.0.0.1:%d", fixedPort(t)), AGH: fmt.Sprintf("127.0.0.1:%d", fixedPort(t))}}
	for _, name := range callers {
		c.Agents[name] = node.Agent{A2A: &node.A2AAgent{Calls: true}}
	}
	if err := pairs.Configure(&c, dir); err != nil {
		t.Fatal(err)
	}
	h := &a2aHub{data: c.Data, place: pairs.Place{HTTP: "http://" + c.Listen.HTTP, AGH: "nats://" + c.Listen.AGH,
		Token: pairs.Announced(c.Data)},
		args: []string{program(t, "cmd/parley"), "serve", "--json", "--log", "error", "--config", writeConfig(t, dir, c)}}
	h.process = launch(t, h.args...)
	return h
}

// client makes a client of the SDK for an agent of the hub, and the context that has the
// caller's token.
func (h *a2aHub) client(t *testing.T, caller, agent string, web *http.Client) (*a2aclient.Client, context.Context) {
	t.Helper()
	token, err := h.place.Token(t.Context(), caller)
	if err != nil {
		t.Fatal(err)
	}
	card, err := agentcard.NewResolver(web).Resolve(t.Context(), h.place.HTTP+"/a2a/"+agent)
	if err != nil {
		t.Fatal(err)
	}
	credentials := a2aclient.NewInMemoryCredentialsStore()
	credentials.Set("s", "parley", a2aclient.AuthCredential(token))
	c, err := a2aclient.NewFromCard(t.Context(), card, a2aclient.WithJSONRPCTransport(web),
		a2aclient.WithCallInterceptors(&a2aclient.AuthInterceptor{Service: credentials}))
	if err != nil {
		t.Fatal(err)
	}
	return c, a2aclient.AttachSessionID(t.Context(), "s")
}

// a2aWorker is an agent of the official SDK that begins, and counts to three when it is
// released.
type a2aWorker struct{ release chan struct{} }

// serve gives the agent's URL, until the test ends.
func (w *a2aWorker) serve(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	text := []string{"text/plain"}
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(&protocol.AgentCard{Name: "worker",
		Description: "Counts.", Version: "1.0.0", Capabilities: protocol.AgentCapabilities{Streaming: true},
		DefaultInputModes: text, DefaultOutputModes: text,
		SupportedInterfaces: []*protocol.AgentInterface{
			protocol.NewAgentInterface(s.URL+"/rpc", protocol.TransportProtocolJSONRPC)},
		Skills: []protocol.AgentSkill{{ID: "count", Name: "Count", Description: "Counts.", Tags: []string{"test"}}}}))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(w)))
	return s.URL
}

// Execute implements a2asrv.AgentExecutor.
func (w *a2aWorker) Execute(ctx context.Context, e *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		begun := protocol.NewMessageForTask(protocol.MessageRoleAgent, e, protocol.NewTextPart("begun"))
		if !yield(protocol.NewSubmittedTask(e, e.Message), nil) ||
			!yield(protocol.NewStatusUpdateEvent(e, protocol.TaskStateWorking, begun), nil) {
			return
		}
		select {
		case <-w.release:
		case <-ctx.Done():
			return
		}
		for i, text := range []string{"piece 1", "piece 2", "piece 3", "counted 3"} {
			a := protocol.NewArtifactUpdateEvent(e, "count", protocol.NewTextPart(text))
			a.Append, a.LastChunk = i == 1 || i == 2, i == 3
			if !yield(a, nil) {
				return
			}
		}
		yield(protocol.NewStatusUpdateEvent(e, protocol.TaskStateCompleted, nil), nil)
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (*a2aWorker) Cancel(_ context.Context, e *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewStatusUpdateEvent(e, protocol.TaskStateCanceled, nil), nil)
	}
}

func a2aRequest(text string) *protocol.SendMessageRequest {
	return &protocol.SendMessageRequest{Message: protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(text))}
}

// a2aSeen is what a client saw of a task.
type a2aSeen struct {
	task   protocol.TaskID
	said   []string // texts of the states ahead of the end
	works  map[protocol.ArtifactID][]string
	states []protocol.TaskState
}

// take notes an event. A task at the beginning of a stream repeats what was told before it.
func (s *a2aSeen) take(e protocol.Event) {
	words := func(list []string, parts protocol.ContentParts) []string {
		for _, p := range parts {
			list = append(list, p.Text())
		}
		return list
	}
	artifact := func(a *protocol.Artifact, appended bool) {
		if s.works == nil {
			s.works = map[protocol.ArtifactID][]string{}
		}
		if !appended { // what came before of it is replaced
			delete(s.works, a.ID)
		}
		s.works[a.ID] = words(s.works[a.ID], a.Parts)
	}
	switch e := e.(type) {
	case *protocol.Task:
		s.task = e.ID
		if e.Status.State.Terminal() {
			s.states = append(s.states, e.Status.State)
			for _, a := range e.Artifacts {
				artifact(a, false)
			}
		}
	case *protocol.TaskStatusUpdateEvent:
		s.states = append(s.states, e.Status.State)
		if e.Status.Message != nil {
			s.said = words(s.said, e.Status.Message.Parts)
		}
	case *protocol.TaskArtifactUpdateEvent:
		artifact(e.Artifact, e.Append)
	}
}

// TestCrashA2AStream kills the hub in the middle of a streamed task. The client of the
// official SDK subscribes again at the next hub, and gets the rest once (A2A-031).
func TestCrashA2AStream(t *testing.T) {
	t.Parallel()
	worker := &a2aWorker{release: make(chan struct{})}
	h := newA2AHub(t, []string{"asker"}, map[string]node.Agent{"worker": {A2A: &node.A2AAgent{URL: worker.serve(t)},
		Expose: []string{"a2a"}}})
	web := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(web.CloseIdleConnections)
	c, ctx := h.client(t, "asker", "worker", web)
	ctx, stop := context.WithTimeout(ctx, 2*readyWithin)
	defer stop()

	var seen a2aSeen
	killed := false
	for e, err := range c.SendStreamingMessage(ctx, a2aRequest("count to three")) {
		if err != nil && killed {
			break // the stream broke with the hub
		}
		if err != nil {
			t.Fatal(err)
		}
		if seen.take(e); slices.Contains(seen.said, "begun") && !killed {
			h.kill()
			killed = true
		}
	}
	if !killed || seen.task == "" {
		t.Fatalf("the stream ended before the hub was killed: %+v", seen)
	}
	h.process = launch(t, h.args...)
	released := false
	for !ended(seen.states) {
		for e, err := range c.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: seen.task}) {
			if errors.Is(err, protocol.ErrUnsupportedOperation) { // it has ended meanwhile
				var last *protocol.Task
				if last, err = c.GetTask(ctx, &protocol.GetTaskRequest{ID: seen.task}); err == nil {
					e = last
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			seen.take(e)
			if !released { // the client reads: now the worker goes on
				released = true
				close(worker.release)
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("the task did not end: %+v", seen)
		}
	}
	// States are told while a hub listens; the result is in the task.
	said := seen.said
	for _, work := range seen.works {
		said = append(said, work...)
	}
	for _, text := range []string{"begun", "piece 1", "piece 2", "piece 3", "counted 3"} {
		n := 0
		for _, s := range said {
			if s == text {
				n++
			}
		}
		if n > 1 || n == 0 && (text == "begun" || text == "counted 3") {
			t.Errorf("%q was told %d times: %q", text, n, said)
		}
	}
	if last := seen.states[len(seen.states)-1]; last != protocol.TaskStateCompleted {
		t.Errorf("it ended as %s", last)
	}
}

func ended(states []protocol.TaskState) bool {
	return slices.ContainsFunc(states, protocol.TaskState.Terminal)
}

// A hub that holds this many streams of A2A open has less memory than that.
const (
	a2aStreams = 1000
	a2aMemory  = 128 << 20
)

// TestA2AStreamsInLittleMemory opens streams of tasks that do not end, and measures the
// memory of the hub's process.
func TestA2AStreamsInLittleMemory(t *testing.T) {
	callers := []string{"asker-1", "asker-2", "asker-3", "asker-4", "asker-5"}
	h := newA2AHub(t, callers, map[string]node.Agent{"box": {Expose: []string{"a2a"}}})
	idle := h.status(t, "VmRSS:")
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: a2aStreams}}
	t.Cleanup(web.CloseIdleConnections)
	within, stop := context.WithTimeout(t.Context(), 2*readyWithin)
	defer stop()
	var reading sync.WaitGroup
	defer reading.Wait()
	life, end := context.WithCancel(within)
	defer end()
	began := make(chan error, a2aStreams)
	for _, caller := range callers {
		c, ctx := h.client(t, caller, "box", web)
		ctx, leave := context.WithCancel(ctx)
		t.Cleanup(leave)
		context.AfterFunc(life, leave)
		for i := range a2aStreams / len(callers) {
			reading.Go(func() {
				first := true
				for _, err := range c.SendStreamingMessage(ctx, a2aRequest(fmt.Sprintf("%s waits, %d", caller, i))) {
					if first {
						began <- err
						first = false
					}
				}
				if first {
					began <- errors.New("the stream ended without an event")
				}
			})
		}
	}
	for range a2aStreams {
		select {
		case err := <-began:
			if err != nil {
				t.Fatal(err)
			}
		case <-within.Done():
			t.Fatal("not all streams began")
		}
	}
	full := h.status(t, "VmRSS:")
	t.Logf("%d streams: %d MiB, %d MiB before", a2aStreams, full>>20, idle>>20)
	if full >= a2aMemory {
		t.Errorf("%d streams are open, and the hub has %d MiB, want less than %d", a2aStreams, full>>20, a2aMemory>>20)
	}
}
