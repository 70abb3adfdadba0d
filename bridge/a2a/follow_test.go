package a2a

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
)

// The answer to an input may have an older state of the task than the stream: pieces that the
// stream gave already are not recorded twice.
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

// An agent asks twice in one stream, without message and time: both questions are recorded.
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

// An answer that arrives while the row of its task is written removes that row too.
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

// An agent is restarted at another endpoint while it works on a task: the hub reads its card
// again, and polls there.
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

// An agent that refuses the hub's credentials for a while still works on the task, in whichever form
// it refuses.
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
