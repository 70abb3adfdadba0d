package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley/node"
)

// TestA2AGoClient has the client of the official Go SDK, unmodified, call an agent of the
// hub over each transport (A2A-110).
func TestA2AGoClient(t *testing.T) {
	n := a2aHub(t, node.Config{})
	token, url := a2aCaller(t, n, "visitor"), n.A2A().AgentURL("teller")
	for _, binding := range []protocol.TransportProtocol{protocol.TransportProtocolJSONRPC,
		protocol.TransportProtocolHTTPJSON} {
		t.Run(string(binding), func(t *testing.T) {
			line, err := json.Marshal(goClient(t, url, token, binding))
			if err != nil {
				t.Fatal(err)
			}
			checkSeen(t, line, false)
		})
	}
}

// TestA2AGoServer has the hub call a server of the official Go SDK, unmodified (A2A-110).
func TestA2AGoServer(t *testing.T) { callTeller(t, goServer(t)) }

// TestA2AGo shows that client and server of the Go SDK do alone what the others do through
// the hub, apart from what that server lacks.
func TestA2AGo(t *testing.T) {
	url := goServer(t)
	card, err := (&agentcard.Resolver{Client: http.DefaultClient, CardParser: a2av0.NewAgentCardParser()}).Resolve(
		t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a2aclient.NewFromCard(t.Context(), card)
	if err != nil {
		t.Fatal(err)
	}
	x := goCaller{t, c, t.Context()}
	asked := x.send(protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("ask where to?")), nil)
	answer := protocol.NewMessageForTask(protocol.MessageRoleUser, asked, protocol.NewTextPart("Bern"))
	if got := x.send(answer, nil); goText(got) != "got Bern" || got.ID != asked.ID {
		t.Errorf("%+v", got)
	}
}

// goCaller is a client of the Go SDK.
type goCaller struct {
	t   *testing.T
	c   *a2aclient.Client
	ctx context.Context
}

func (x goCaller) send(m *protocol.Message, c *protocol.SendMessageConfig) *protocol.Task {
	x.t.Helper()
	r, err := x.c.SendMessage(x.ctx, &protocol.SendMessageRequest{Message: m, Config: c})
	task, ok := r.(*protocol.Task)
	if err != nil || !ok {
		x.t.Fatalf("%+v, %v", r, err)
	}
	return task
}

func (x goCaller) say(text string, c *protocol.SendMessageConfig) *protocol.Task {
	x.t.Helper()
	return x.send(protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(text)), c)
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func goState(s protocol.TaskState) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(string(s), "TASK_STATE_")), "_", "-")
}

func goWords(parts protocol.ContentParts) string {
	var texts []string
	for _, p := range parts {
		if text := p.Text(); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n")
}

func goText(t *protocol.Task) string {
	if len(t.Artifacts) == 0 {
		if t.Status.Message == nil {
			return ""
		}
		return goWords(t.Status.Message.Parts)
	}
	var texts []string
	for _, a := range t.Artifacts {
		texts = append(texts, goWords(a.Parts))
	}
	return strings.Join(texts, "\n")
}

// goErrors names errors as the other SDKs do.
var goErrors = map[string]error{"TaskNotFoundError": protocol.ErrTaskNotFound,
	"TaskNotCancelableError": protocol.ErrTaskNotCancelable, "UnsupportedOperationError": protocol.ErrUnsupportedOperation}

func goError(err error) any {
	for name, sentinel := range goErrors {
		if errors.Is(err, sentinel) {
			return name
		}
	}
	if err == nil {
		return nil
	}
	return err.Error()
}

// goHook is a webhook that collects the tokens which it gets, until a task is completed.
func goHook(t *testing.T) (url string, tokens chan string, done chan struct{}) {
	tokens, done = make(chan string, 64), make(chan struct{}, 64)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			t.Error(err)
		}
		token := r.Header.Get("A2A-Notification-Token")
		if token == "" {
			token = r.Header.Get("X-A2A-Notification-Token")
		}
		tokens <- token
		w.WriteHeader(http.StatusNoContent)
		if strings.Contains(string(b), "COMPLETED") {
			done <- struct{}{}
		}
	}))
	t.Cleanup(hook.Close)
	return hook.URL, tokens, done
}

// goClient does what the clients of the other SDKs do.
func goClient(t *testing.T, url, token string, binding protocol.TransportProtocol) map[string]any {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	web := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(web.CloseIdleConnections)
	card, err := agentcard.NewResolver(web).Resolve(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	credentials := a2aclient.NewInMemoryCredentialsStore()
	credentials.Set("s", "parley", a2aclient.AuthCredential(token))
	ctx = a2aclient.AttachSessionID(ctx, "s")
	options := []a2aclient.FactoryOption{a2aclient.WithDefaultsDisabled(),
		a2aclient.WithCallInterceptors(&a2aclient.AuthInterceptor{Service: credentials})}
	if binding == protocol.TransportProtocolJSONRPC {
		options = append(options, a2aclient.WithJSONRPCTransport(web))
	} else {
		options = append(options, a2aclient.WithRESTTransport(web))
	}
	c, err := a2aclient.NewFromCard(ctx, card, options...)
	if err != nil {
		t.Fatal(err)
	}
	x, seen := goCaller{t, c, ctx}, map[string]any{}
	get := func(id protocol.TaskID, history *int) *protocol.Task {
		t.Helper()
		return must[*protocol.Task](t)(c.GetTask(ctx, &protocol.GetTaskRequest{ID: id, HistoryLength: history}))
	}
	cancel := func(id protocol.TaskID) (*protocol.Task, error) {
		return c.CancelTask(ctx, &protocol.CancelTaskRequest{ID: id})
	}

	said := x.say("say Grüezi", nil)
	seen["send"] = []any{goState(said.Status.State), goText(said)}

	var stream []any
	var counted protocol.TaskID
	for e, err := range c.SendStreamingMessage(ctx, &protocol.SendMessageRequest{
		Message: protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("count 3"))}) {
		switch e := e.(type) {
		case *protocol.Task:
			counted = e.ID
			stream = append(stream, []any{"task", goState(e.Status.State)})
		case *protocol.TaskStatusUpdateEvent:
			stream = append(stream, []any{"status_update", goState(e.Status.State)})
		case *protocol.TaskArtifactUpdateEvent:
			stream = append(stream, []any{"artifact_update", goWords(e.Artifact.Parts), e.Append})
		default:
			t.Fatalf("%+v, %v", e, err)
		}
	}
	seen["stream"] = stream
	got := get(counted, nil)
	lines := strings.Split(goText(got), "\n")
	seen["get"] = []any{goState(got.Status.State), lines[len(lines)-1]}
	none, one := 0, 1
	seen["history"] = []any{len(get(counted, &none).History), len(get(counted, &one).History)}

	listed := must[*protocol.ListTasksResponse](t)(c.ListTasks(ctx, &protocol.ListTasksRequest{ContextID: said.ContextID}))
	var same []any
	for _, x := range listed.Tasks {
		same = append(same, x.ID == said.ID)
	}
	seen["list"] = []any{same, listed.TotalSize, listed.NextPageToken}

	asked := x.say("ask where to?", nil)
	answered := x.send(protocol.NewMessageForTask(protocol.MessageRoleUser, asked, protocol.NewTextPart("Bern")), nil)
	seen["input"] = []any{goState(asked.Status.State), goWords(asked.Status.Message.Parts),
		goState(answered.Status.State), goText(answered), answered.ID == asked.ID}

	at := &protocol.SendMessageConfig{ReturnImmediately: true}
	held := x.say("hold", at)
	var cancelled *protocol.Task
	for e, err := range c.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: held.ID}) {
		if err != nil {
			t.Fatal(err)
		}
		if cancelled == nil {
			if _, ok := e.(*protocol.Task); ok {
				seen["subscribe"] = "task"
			}
			cancelled = must[*protocol.Task](t)(cancel(held.ID))
		}
		if e, ok := e.(*protocol.TaskStatusUpdateEvent); ok {
			seen["subscribed"] = goState(e.Status.State)
		}
	}
	seen["cancel"] = []any{"", goState(get(held.ID, nil).Status.State)}

	raw := protocol.NewRawPart([]byte("\x89PNG"))
	link := protocol.NewFileURLPart("https://example.com/b.pdf", "application/pdf")
	raw.MediaType, raw.Filename, link.Filename = "image/png", "a.png", "b.pdf"
	echoed := x.send(protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("parts"),
		protocol.NewDataPart(map[string]any{"n": 1.5, "list": []any{"é"}}), raw, link), nil)
	var parts []any
	for _, a := range echoed.Artifacts {
		for _, p := range a.Parts {
			var v map[string]any
			b := must[[]byte](t)(json.Marshal(p))
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatal(err)
			}
			delete(v, "metadata")
			if v["filename"] == nil {
				delete(v, "mediaType")
			}
			parts = append(parts, v)
		}
	}
	seen["parts"] = parts

	for _, verb := range []string{"fail", "reject"} {
		ended := x.say(verb+" because", nil)
		seen[verb] = []any{goState(ended.Status.State), goWords(ended.Status.Message.Parts)}
	}

	const missing = "00000000-0000-7000-8000-000000000000"
	failed := func(m *protocol.Message) any {
		_, err := c.SendMessage(ctx, &protocol.SendMessageRequest{Message: m})
		return goError(err)
	}
	more := func(task protocol.TaskID, context string) *protocol.Message {
		m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart("say more"))
		m.TaskID, m.ContextID = task, context
		return m
	}
	_, noTask := c.GetTask(ctx, &protocol.GetTaskRequest{ID: missing})
	_, over := cancel(said.ID)
	seen["errors"] = map[string]any{"get": goError(noTask), "cancel": goError(over), "send": failed(more(missing, "")),
		"over": failed(more(said.ID, said.ContextID))}

	hook, tokens, done := goHook(t)
	x.say("say pushed", &protocol.SendMessageConfig{ReturnImmediately: true,
		PushConfig: &protocol.PushConfig{ID: "one", URL: hook, Token: "tok"}})
	select {
	case <-done:
		seen["push"] = true
	case <-ctx.Done():
		seen["push"] = false
	}
	var all []string
	for len(tokens) > 0 {
		all = append(all, <-tokens)
	}
	slices.Sort(all)
	seen["tokens"] = slices.Compact(all)

	open := x.say("hold", at)
	two := must[*protocol.PushConfig](t)(c.CreateTaskPushConfig(ctx, &protocol.PushConfig{TaskID: open.ID, ID: "two",
		URL: hook, Token: "tok"}))
	first := must[*protocol.PushConfig](t)(c.GetTaskPushConfig(ctx, &protocol.GetTaskPushConfigRequest{TaskID: open.ID,
		ID: two.ID}))
	count := func() int {
		t.Helper()
		return len(must[[]*protocol.PushConfig](t)(c.ListTaskPushConfigs(ctx,
			&protocol.ListTaskPushConfigRequest{TaskID: open.ID})))
	}
	before := count()
	if err := c.DeleteTaskPushConfig(ctx, &protocol.DeleteTaskPushConfigRequest{TaskID: open.ID, ID: two.ID}); err != nil {
		t.Fatal(err)
	}
	seen["configs"] = []any{two.ID, first.URL == hook, before, count()}
	must[*protocol.Task](t)(cancel(open.ID))
	return seen
}

// goServer is an agent of the Go SDK that does what python/a2a_server.py does, and gives its
// URL.
func goServer(t *testing.T) string {
	t.Helper()
	life, end := context.WithCancel(context.Background())
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		end()
		s.Close()
	})
	h := a2asrv.NewHandler(goTeller{life, new(atomic.Int64)})
	text := []string{"text/plain"}
	card := &protocol.AgentCard{Name: "teller", Description: "Does what it is told.", Version: "1.0.0",
		Capabilities:      protocol.AgentCapabilities{Streaming: true},
		DefaultInputModes: text, DefaultOutputModes: text,
		SupportedInterfaces: []*protocol.AgentInterface{
			protocol.NewAgentInterface(s.URL+"/rpc", protocol.TransportProtocolJSONRPC),
			protocol.NewAgentInterface(s.URL+"/rest", protocol.TransportProtocolHTTPJSON)},
		Skills: []protocol.AgentSkill{{ID: "tell", Name: "Tell", Description: "Does what the text says.",
			Tags: []string{"test"}}}}
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(h))
	mux.Handle("/rest/", http.StripPrefix("/rest", a2asrv.NewRESTHandler(h)))
	return s.URL
}

type goTeller struct {
	life    context.Context
	stopped *atomic.Int64 // tasks that it was told to cancel
}

// Execute implements a2asrv.AgentExecutor.
func (x goTeller) Execute(ctx context.Context, e *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		message := func(text string) *protocol.Message {
			return protocol.NewMessageForTask(protocol.MessageRoleAgent, e, protocol.NewTextPart(text))
		}
		status := func(s protocol.TaskState, m *protocol.Message) protocol.Event {
			return protocol.NewStatusUpdateEvent(e, s, m)
		}
		piece := func(text string, more, last bool) protocol.Event {
			a := protocol.NewArtifactUpdateEvent(e, "pieces", protocol.NewTextPart(text))
			a.Append, a.LastChunk = more, last
			return a
		}
		var events []protocol.Event
		if e.StoredTask == nil {
			events = append(events, protocol.NewSubmittedTask(e, e.Message))
		}
		text := goWords(e.Message.Parts)
		verb, rest, _ := strings.Cut(text, " ")
		switch {
		case e.StoredTask != nil:
			events = append(events, protocol.NewArtifactEvent(e, protocol.NewTextPart("got "+text)))
		case verb == "say":
			events = append(events, protocol.NewArtifactEvent(e, protocol.NewTextPart(rest)))
		case verb == "count":
			events = append(events, status(protocol.TaskStateWorking, message("begun")))
			var n int
			if _, err := fmt.Sscan(rest, &n); err != nil {
				yield(nil, err)
				return
			}
			for i := range n {
				events = append(events, piece(fmt.Sprintf("piece %d", i+1), i > 0, false))
			}
			events = append(events, piece("counted "+rest, false, true))
		case verb == "fail":
			events = append(events, status(protocol.TaskStateFailed, message(rest)))
		case verb == "reject":
			events = append(events, status(protocol.TaskStateRejected, message(rest)))
		case verb == "ask":
			events = append(events, status(protocol.TaskStateInputRequired, message(rest)))
		case verb == "hold":
			events = append(events, status(protocol.TaskStateWorking, nil))
		case verb == "stopped":
			events = append(events, protocol.NewArtifactEvent(e, protocol.NewTextPart(fmt.Sprint(x.stopped.Load()))))
		case verb == "parts":
			events = append(events, protocol.NewArtifactEvent(e, e.Message.Parts...))
		}
		for _, v := range events {
			if !yield(v, nil) {
				return
			}
		}
		switch verb {
		case "fail", "reject", "ask":
			if e.StoredTask == nil {
				return
			}
		case "hold":
			select {
			case <-ctx.Done():
				return
			case <-x.life.Done():
				yield(nil, x.life.Err())
				return
			}
		}
		yield(status(protocol.TaskStateCompleted, nil), nil)
	}
}

// Cancel implements a2asrv.AgentExecutor.
func (x goTeller) Cancel(_ context.Context, e *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	x.stopped.Add(1)
	return func(yield func(protocol.Event, error) bool) {
		yield(protocol.NewStatusUpdateEvent(e, protocol.TaskStateCanceled, nil), nil)
	}
}
