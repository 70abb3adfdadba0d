package a2a

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley"
)

// A2A-071: the operator gave an agent another URL while it worked on a request. The hub
// tells the former address that the task is not needed, without the agent's credentials.
func TestCredentialsStayAwayFromAFormerAddress(t *testing.T) {
	told := make(chan struct{})
	former := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, func(a *agentElsewhere) {
		a.wrap = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(told)
				h.ServeHTTP(w, r)
			})
		}
	})
	present := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", present.URL)
	c.SetAgent("elsewhere", AgentSettings{Credentials: Credentials{Token: "secret"}})
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour)
	if _, err := c.sent.Put(t.Context(), id.String(), sentRequest{To: "elsewhere", URL: former.URL, Task: "T",
		Until: until}, until); err != nil {
		t.Fatal(err)
	}
	c.giveUp(id)
	<-told
	if got := former.seen("Authorization"); !slices.Equal(got, []string{""}) {
		t.Errorf("the former address got %q", got)
	}
	c.ask("elsewhere", parley.Text("hi"))
	if got := present.seen("Authorization"); !slices.Equal(got, []string{"Bearer secret"}) {
		t.Errorf("the present address got %q", got)
	}
}

// The answer to an input shows the task as it was then: what a stream told since is not told
// again.
func TestAnswerToAnInputIsOlderThanTheStream(t *testing.T) {
	const working = `{"id":"T","contextId":"C","status":{"state":"TASK_STATE_%s"},"artifacts":[{"artifactId":"A",` +
		`"parts":[%s]}]}`
	const piece = `data: {"artifactUpdate":{"taskId":"T","contextId":"C","append":true,"artifact":{"artifactId":"A",` +
		`"parts":[{"text":%q}]}}}` + "\n\n"
	var polls atomic.Int64
	settled := make(chan struct{})
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, false, func(w http.ResponseWriter, r *http.Request) {
		both := `{"text":"x"},{"text":"y"}`
		switch {
		case strings.HasSuffix(r.URL.Path, ":stream"):
			respond(200, "text/event-stream", `data: {"task":{"id":"T","contextId":"C","status":{"state":`+
				`"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"where?"}]}}}}`+
				"\n\n")(w, r)
			_ = http.NewResponseController(w).Flush()
			<-settled
			fmt.Fprintf(w, piece+piece, "x", "y")
		case strings.HasSuffix(r.URL.Path, ":send"):
			respond(200, "application/json", `{"task":`+fmt.Sprintf(working, "WORKING", `{"text":"x"}`)+"}")(w, r)
		case strings.HasSuffix(r.URL.Path, ":subscribe"):
			http.NotFound(w, r)
		case polls.Add(1) < 4:
			respond(200, "application/json", fmt.Sprintf(working, "WORKING", both))(w, r)
		default:
			respond(200, "application/json", fmt.Sprintf(working, "COMPLETED", both))(w, r)
		}
	}))
	m := c.send("reader", "elsewhere", parley.Text("hi"))
	c.until(m.ID, "the agent does not ask", func(m []*parley.Message) bool { return len(m) == 1 })
	eventually(t, c.j, "the request is not delivered", func() bool {
		d, ok := c.j.Delivery(m.ID, "elsewhere")
		return ok && d.State == parley.Delivered
	})
	input := c.about(parley.Input, m, parley.Text("Bern"))
	eventually(t, c.j, "the input is not delivered", func() bool {
		_, open := c.j.Delivery(input.ID, "elsewhere")
		return !open
	})
	close(settled)
	if got := said(c.answered(m.ID)); got != "needs-input where? | none x | none y | working | response x y" {
		t.Error(got)
	}
}

// An agent asks twice in one stream, without a message and a time: both questions are told.
func TestSecondQuestionInOneStream(t *testing.T) {
	const state = `data: {"statusUpdate":{"taskId":"T","contextId":"C","status":{"state":"TASK_STATE_%s"}}}` + "\n\n"
	answers := make(chan struct{}, 2)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", rough(t, protocol.TransportProtocolHTTPJSON, false, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":stream"):
			respond(200, "text/event-stream", fmt.Sprintf(state, "INPUT_REQUIRED"))(w, r)
			_ = http.NewResponseController(w).Flush()
			<-answers
			fmt.Fprintf(w, state+state, "WORKING", "INPUT_REQUIRED")
			_ = http.NewResponseController(w).Flush()
			<-answers
			fmt.Fprintf(w, state, "COMPLETED")
		case strings.HasSuffix(r.URL.Path, ":send"):
			answers <- struct{}{}
			respond(200, "application/json", `{"task":{"id":"T","contextId":"C","status":{"state":"TASK_STATE_WORKING"}}}`)(w, r)
		default:
			http.Error(w, "", http.StatusServiceUnavailable)
		}
	}))
	m := c.send("reader", "elsewhere", parley.Text("hi"))
	c.until(m.ID, "the agent does not ask", func(m []*parley.Message) bool { return len(m) == 1 })
	c.about(parley.Input, m, parley.Text("one"))
	c.until(m.ID, "the agent does not ask again", func(m []*parley.Message) bool {
		return said(m) == "needs-input | working | needs-input"
	})
	c.about(parley.Input, m, parley.Text("two"))
	if got := said(c.answered(m.ID)); got != "needs-input | working | needs-input | response" {
		t.Error(got)
	}
}

// A caller that leaves leaves nothing behind: its task is cancelled, and the row goes.
func TestCallerLeavesNoRow(t *testing.T) {
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
	<-cancelled // after the row was written
	eventuallyRow(t, c, call.Message().ID, false)
}

// The answer of an agent may come while the row of its task is written: then the row goes
// with the answer too.
func TestRowGoesWithTheAnswer(t *testing.T) {
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
		f := c.newFollower(p, &parley.Message{ID: id}, &sentRequest{To: "elsewhere", Task: "task",
			Until: time.Now().Add(rowRetention + time.Hour)})
		f.attend()
		var wait sync.WaitGroup
		wait.Go(func() { f.end(f.ctx, &parley.Message{Kind: parley.Response}) })
		wait.Go(func() { f.leave(t.Context()) })
		wait.Wait()
		f.stop()
		row, err := c.sent.Get(t.Context(), id.String())
		if err != nil {
			t.Fatal(err)
		}
		c.outMu.Lock()
		_, goes := c.ending[id]
		c.outMu.Unlock()
		if row.Revision != 0 && !goes {
			t.Fatal("the row stays until it expires")
		}
	}
}

// An agent that speaks otherwise since it was restarted still works on its task: the hub reads
// its card, and asks as that says.
func TestAgentChangesWhileItWorks(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	var restarted atomic.Bool
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	const task = `{"id":"T","contextId":"C","status":{"state":"TASK_STATE_%s"}}`
	mux.HandleFunc(CardPath, func(w http.ResponseWriter, _ *http.Request) {
		at := iface(s.URL+"/one", "JSONRPC", "1.0")
		if restarted.Load() {
			at = iface(s.URL+"/two", "JSONRPC", "1.0")
		}
		fmt.Fprintf(w, card1, at)
	})
	result := func(w http.ResponseWriter, r *http.Request, member string) {
		var q struct{ ID json.RawMessage }
		if err := json.Unmarshal(readAll(t, r), &q); err != nil {
			t.Error(err)
		}
		respond(200, "application/json", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, q.ID, member))(w, r)
	}
	mux.HandleFunc("/one", func(w http.ResponseWriter, r *http.Request) {
		if !restarted.Swap(true) {
			now.Add(int64(time.Minute))
			result(w, r, `"result":{"task":`+fmt.Sprintf(task, "WORKING")+"}")
			return
		}
		result(w, r, `"error":{"code":-32601,"message":"no such method"}`)
	})
	mux.HandleFunc("/two", func(w http.ResponseWriter, r *http.Request) {
		result(w, r, `"result":`+fmt.Sprintf(task, "COMPLETED"))
	})
	c := newCaller(t, callerConfig{edit: func(b *Binding) {
		b.c.Now = func() time.Time { return time.Unix(0, now.Load()) }
	}})
	c.add("elsewhere", s.URL)
	if got := said(c.answered(c.send("quiet", "elsewhere", parley.Text("hi")).ID)); got != "working | response" {
		t.Error(got)
	}
}

// failing is a network that fails as the net package does not.
type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("server gave HTTP response to HTTPS client")
}

// The URL of a webhook may be its secret: an error names the host alone.
func TestErrorsOfWebhooksKeepTheURL(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Transport = func(http.RoundTripper) http.RoundTripper { return failing{} } })
	u, err := url.Parse(hookBase + "/path?key=s3cr3t")
	w.must(err)
	_, _, err = w.node.post(t.Context(), u, &hookRow{}, hookSecrets{}, "application/json", nil)
	if err == nil {
		t.Fatal("no error")
	}
	e := hookError(parley.Fail(parley.Unavailable, nil, "not taken"), err)
	if text := e.Error() + e.Detail; strings.Contains(text, "s3cr3t") || !strings.Contains(text, "HTTP response") {
		t.Error(text)
	}
}

// Credentials that change are changed for calls at the present address too, after a task was
// looked up at a former one.
func TestCredentialsChangeAtEachAddress(t *testing.T) {
	a := serveAgent(t, V1, protocol.TransportProtocolJSONRPC, echoWork, nil)
	c := newCaller(t, callerConfig{})
	c.add("elsewhere", a.URL)
	c.SetAgent("elsewhere", AgentSettings{Credentials: Credentials{Token: "first"}})
	p, err := c.peerOf("elsewhere", a.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.connectionOf(p).c.Token; got != "first" { // a task is followed with it
		t.Fatal(got)
	}
	if _, err := c.peerOf("elsewhere", "http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	c.SetAgent("elsewhere", AgentSettings{Credentials: Credentials{Token: "second"}})
	if got := c.connectionOf(p).c.Token; got != "second" {
		t.Errorf("the follower of the task shows %q", got)
	}
}

// An agent that does not let the hub see a task now, because a token was changed, still works on
// it: so for each form in which agents say that.
func TestTaskIsNotSeenForAWhile(t *testing.T) {
	const js = "application/json"
	for name, refused := range map[string]http.HandlerFunc{
		"status": respond(401, "text/plain", "who?"),
		"code":   respond(200, js, `{"jsonrpc":"2.0","id":null,"error":{"code":-31401,"message":"who?"}}`),
		"both":   respond(403, js, `{"jsonrpc":"2.0","id":null,"error":{"code":-31403,"message":"not you"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			var polls atomic.Int64
			c := newCaller(t, callerConfig{})
			c.add("elsewhere", rough(t, protocol.TransportProtocolJSONRPC, false, func(w http.ResponseWriter, r *http.Request) {
				var q struct {
					ID     json.RawMessage
					Method string
				}
				if err := json.Unmarshal(readAll(t, r), &q); err != nil {
					t.Error(err)
				}
				result := func(format, state string) {
					respond(200, js, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":`+format+`}`, q.ID,
						`{"id":"T","contextId":"C","status":{"state":"TASK_STATE_`+state+`"}}`))(w, r)
				}
				switch {
				case q.Method == "SendMessage":
					result(`{"task":%s}`, "WORKING")
				case q.Method == "GetTask" && polls.Add(1) > 4:
					result("%s", "COMPLETED")
				default:
					refused(w, r)
				}
			}))
			got := said(c.answered(c.send("quiet", "elsewhere", parley.Text("hi")).ID))
			if got != "working | response" {
				t.Error(got)
			}
		})
	}
}
