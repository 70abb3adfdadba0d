package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Calls of one server do not disturb each other, and are bounded.
func TestCallsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := &hostMap{}
		release := make(chan struct{})
		var mu sync.Mutex
		open := 0
		hosts.set("server.test", scriptedServer{act: func(w http.ResponseWriter, r *http.Request, id string) {
			mu.Lock()
			open++
			first := open == 1
			mu.Unlock()
			if first {
				serverEvents(w, "<html>")
				return
			}
			<-release
			answerResult(w, id, doneResult)
		}})
		w := newAttachedWorld(t, hosts)
		w.enrolAt("http://server.test/mcp")
		synctest.Wait()
		var calls sync.WaitGroup
		var failed []error
		for range callsAtOnce + 6 {
			calls.Go(func() {
				if _, err := w.call(context.Background(), "act", `{}`); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		mu.Lock()
		if open != callsAtOnce+1 { // the malformed answer made room for one
			t.Errorf("%d calls at the server", open)
		}
		mu.Unlock()
		close(release)
		calls.Wait()
		if len(failed) != 1 || !errors.Is(failed[0], errMalformed) {
			t.Errorf("failed: %v", failed)
		}
	})
}

// A server gets nothing that it asks for, but answers to the questions that the operator allows.
func TestServerAsks(t *testing.T) {
	t.Parallel()
	ask := func(form *mcp.ElicitParams) mcp.ToolHandler {
		return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if a, ok := r.Params.InputResponses["q"].(*mcp.ElicitResult); ok {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{
					Text: fmt.Sprint(a.Action, a.Content["city"], r.Params.RequestState)}}}, nil
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": form}, RequestState: "state"}, nil
		}
	}
	form := &mcp.ElicitParams{Mode: "form", Message: "where to?", RequestedSchema: json.RawMessage(
		`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)}
	eachEra(t, func(t *testing.T, w *attachedWorld, s *mcp.Server, attach func()) {
		addServerTool(s, "ask", "", ask(form))
		addServerTool(s, "url", "", ask(&mcp.ElicitParams{Mode: "url", URL: "http://evil.test/", Message: "pay",
			ElicitationID: "1"}))
		var refused []error
		addServerTool(s, "take", "", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			//lint:ignore SA1019 servers of the handshake revisions still ask for it
			_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1})
			refused = append(refused, err)
			//lint:ignore SA1019 likewise
			_, err = r.Session.ListRoots(ctx, nil)
			refused = append(refused, err)
			return &mcp.CallToolResult{}, nil
		})
		attach()
		var asked []string
		answers := func(c *serverCall) {
			c.elicit = func(_ context.Context, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
				asked = append(asked, p.Message)
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"city": "Pune"}}, nil
			}
		}
		fails := func(what, tool string, edit ...func(*serverCall)) {
			t.Helper()
			if got, err := w.call(t.Context(), tool, `{}`, edit...); err == nil && !got.IsError {
				t.Errorf("%s: %+v", what, got.CallToolResult)
			}
		}
		fails("MCP-071 a question that the operator does not allow", "ask", answers)
		_, err := w.call(t.Context(), "take", `{}`)
		if err != nil || len(refused) != 2 || slices.Contains(refused, nil) {
			t.Errorf("MCP-071 sampling and roots: %v, %v", refused, err)
		}

		w.b.SetAgent("tools", AgentSettings{Elicitation: true})
		synctest.Wait()
		if e, _ := w.dir.Agent("tools"); IsTunnel(e.Identities[0].ID) { // the connector comes again
			_, stop := w.tunnel(s)
			t.Cleanup(stop)
			synctest.Wait()
		}
		fails("a call that offers no answers", "ask")
		fails("a question by URL", "url", answers)
		if len(asked) != 0 {
			t.Errorf("asked %q", asked)
		}
		got, err := w.call(t.Context(), "ask", `{}`, answers)
		if err != nil || len(asked) != 1 || asked[0] != "where to?" ||
			got.Content[0].(*mcp.TextContent).Text != "acceptPunestate" {
			t.Errorf("asked %q: %v", asked, err)
		}
	})
}

// Arguments that a tool's schema marks are in headers too, also while a changed list of tools waits to be read.
func TestArgumentsInHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := &hostMap{}
		s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
		s.AddTool(&mcp.Tool{Name: "act", InputSchema: json.RawMessage(
			`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`)}, echoTool)
		hosts.set("server.test", serveTools(s, true)) // it refuses calls without the header
		w := newAttachedWorld(t, hosts)
		w.enrolAt("http://server.test/mcp")
		synctest.Wait()
		call := func(when string) {
			t.Helper()
			if got, err := w.call(t.Context(), "act", `{"region":"eu"}`); err != nil || got.IsError {
				t.Errorf("%s: %v", when, err)
			}
		}
		call("at first")
		addServerTool(s, "more", "", echoTool)
		time.Sleep(rereadEvery / 2)
		synctest.Wait()
		call("after a change")
		time.Sleep(2 * rereadEvery)
		call("later")
	})
}

func TestProgress(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, w *attachedWorld, s *mcp.Server, attach func()) {
		send := func(n int, every time.Duration) mcp.ToolHandler {
			return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				for i := range n {
					err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
						ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)})
					if err != nil {
						return nil, err
					}
					time.Sleep(every)
				}
				return &mcp.CallToolResult{}, nil
			}
		}
		addServerTool(s, "steps", "", send(40, 25*time.Millisecond))
		attach()
		var got []float64
		taken := func(c *serverCall) {
			c.progress = func(p *mcp.ProgressNotificationParams) { got = append(got, p.Progress) }
		}
		if _, err := w.call(t.Context(), "steps", `{}`, taken); err != nil {
			t.Fatal(err)
		}
		if len(got) < 9 || len(got) > 11 || !slices.IsSorted(got) {
			t.Errorf("progress is passed on ten times a second: %v", got)
		}
	})
	t.Run("MCP-072 a flood of progress ends its call", func(t *testing.T) {
		t.Parallel()
		o := &ongoing{progress: make(chan *mcp.ProgressNotificationParams, 1)}
		var ctx context.Context
		ctx, o.cancel = context.WithCancelCause(t.Context())
		l := &link{calls: map[string]*ongoing{"flood": o}}
		for range maxEvents {
			l.progressed(json.RawMessage(`{"progressToken":"flood","progress":1}`))
		}
		l.progressed(json.RawMessage(`{"progressToken":"other","progress":1}`))
		if ctx.Err() != nil {
			t.Error("too early")
		}
		l.progressed(json.RawMessage(`{"progressToken":"flood","progress":1}`))
		if context.Cause(ctx) != errFlood || o.fault() != errFlood {
			t.Errorf("%v", context.Cause(ctx))
		}
	})
}

func TestCancelledCall(t *testing.T) {
	t.Parallel()
	eachEra(t, func(t *testing.T, w *attachedWorld, s *mcp.Server, attach func()) {
		began, ended := make(chan struct{}), make(chan struct{})
		addServerTool(s, "wait", "", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			close(began)
			<-ctx.Done()
			close(ended)
			return &mcp.CallToolResult{}, nil
		})
		addServerTool(s, "echo", "", echoTool)
		attach()
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-began
			cancel(errors.New("enough"))
		}()
		_, err := w.call(ctx, "wait", `{}`)
		if e, ok := err.(*callError); !ok || !e.sent || err.Error() != "enough" {
			t.Errorf("%v", err)
		}
		<-ended
		if _, err := w.call(t.Context(), "echo", `{}`); err != nil {
			t.Error(err)
		}
	})
}

// A question of a server is never put to the requester of another call.
func TestQuestionsFindTheirCall(t *testing.T) {
	t.Parallel()
	elicit := func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) { return &mcp.ElicitResult{}, nil }
	l := &link{calls: map[string]*ongoing{"silent": {token: "silent"}}}
	if l.callFor("") != nil {
		t.Error("a call that may not be asked")
	}
	one, two := &ongoing{token: "one", elicit: elicit}, &ongoing{token: "two", elicit: elicit}
	l.calls["one"] = one
	if l.callFor("") != one {
		t.Error("the only call that may be asked")
	}
	l.calls["two"] = two
	if l.callFor("") != nil || l.callFor("nope") != nil || l.callFor("two") != two {
		t.Error("with two calls only a token tells which one is meant")
	}
	for _, c := range []struct{ params, token, want string }{
		{`{"message":"x"}`, "one", `{"_meta":{"hub.parley/call":"one"},"message":"x"}`},
		{`{"_meta":{"hub.parley/call":"two","a":1.0},"message":"x"}`, "one",
			`{"_meta":{"a":1.0,"hub.parley/call":"one"},"message":"x"}`},
		{`{"_meta":{"hub.parley/call":"two"}}`, "", `{"_meta":{}}`},
		{`{"_meta":{},"_meta":{}}`, "one", ""},
		{`{"_meta":1}`, "one", ""},
		{`[]`, "one", ""},
	} {
		if got := markCall(json.RawMessage(c.params), c.token); string(got) != c.want {
			t.Errorf("%s: %s", c.params, got)
		}
	}
}
