package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal/index"
)

// A2A-030: a stream begins with the task; every stream of it gets the same updates in the same order,
// each once, and the sending one ends when the task waits for its client.
func TestStreamsOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := make(gate)
		w.handle("slow", g.handler)
		sending := w.stream("alice", "slow", say("m1", "go", ""))
		synctest.Wait()
		id := w.onlyTask("alice", "slow")
		first := w.subscribe(w.node, "alice", "slow", id)
		synctest.Wait()
		for _, step := range []string{"progress half", "piece a", "piece b"} {
			g <- step
			synctest.Wait()
		}
		second := w.subscribe(w.node, "alice", "slow", id)
		leaver := w.subscribe(w.node, "alice", "slow", id)
		synctest.Wait()
		leaver.stop()
		<-leaver.done
		g <- "ask where?"
		synctest.Wait()
		<-sending.done
		updates := []string{"WORKING half", "result append=false last=false a", "result append=true last=false b",
			"INPUT_REQUIRED where?"}
		if got, want := sending.seen(), append([]string{"task SUBMITTED"}, updates...); !slices.Equal(got, want) {
			t.Errorf("the sending stream got %q, want %q", got, want)
		}
		more := w.stream("alice", "slow", say("m2", "Bern", `,"taskId":"`+string(id)+`"`))
		synctest.Wait()
		g <- "reply done"
		for _, r := range []*reader{first, second, more} {
			<-r.done
		}
		end := []string{"WORKING", "result append=false last=true done", "COMPLETED"}
		for name, c := range map[string]struct {
			r    *reader
			want []string
		}{
			"the first subscription":   {first, slices.Concat([]string{"task SUBMITTED"}, updates, end)},
			"the second subscription":  {second, slices.Concat([]string{"task WORKING half [a+b]"}, updates[3:], end)},
			"the stream of the answer": {more, append([]string{"task WORKING [a+b]"}, end[1:]...)},
			"the one that left":        {leaver, []string{"task WORKING half [a+b]"}},
		} {
			if got := c.r.seen(); c.r.err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s got %q, want %q: %v", name, got, c.want, c.r.err)
			}
		}
		ended := w.subscribe(w.node, "alice", "slow", id) // A2A-031
		<-ended.done
		wantError(t, ended.err, protocol.ErrUnsupportedOperation, "")
		if got, err := w.get("alice", "slow", id); err != nil || shortly(got) != "task COMPLETED [done]" {
			t.Errorf("in the end %v, %v", got, err)
		}
		if request, err := parley.ParseID(string(id)); err != nil || w.node.requests.Streaming(request) {
			t.Errorf("a subscription is left of streams that ended: %v", err)
		}
	})
}

func (w *world) onlyTask(caller, agent string) protocol.TaskID {
	w.t.Helper()
	page, err := checked{service{w.node.Binding}}.ListTasks(w.as(caller, agent), &protocol.ListTasksRequest{})
	w.must(err)
	if len(page.Tasks) != 1 {
		w.t.Fatalf("%d tasks", len(page.Tasks))
	}
	return page.Tasks[0].ID
}

// A2A-031: a client subscribes again after the hub was stopped in the middle of a streamed task, and
// gets the rest once.
func TestSubscribeAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.agent(parley.Agent{Name: "remote", Exposed: parley.Everywhere,
		Identities: []parley.Identity{{Protocol: "far", ID: "remote"}}})
	attempts := make(chan hub.Outbound, 9)
	shown := make(chan struct{}) // the stream has the task before anything is said about it
	show := sync.OnceFunc(func() { close(shown) })
	t.Cleanup(show)
	w.node.far.deliver = func(_ context.Context, o hub.Outbound) hub.Outcome {
		<-shown
		if err := o.Event(parley.Working, parley.Text("half")); err != nil {
			t.Error(err)
		}
		if err := o.Event(parley.NoState, parley.Text("a")); err != nil {
			t.Error(err)
		}
		attempts <- o
		return hub.Outcome{}
	}
	before := w.stream("alice", "remote", say("m1", "go", ""))
	w.eventually("the task is not shown", func() bool { return len(before.seen()) == 1 })
	show()
	o := <-attempts
	w.eventually("the first part", func() bool { return len(before.seen()) == 3 })
	w.eventually("the delivery is recorded", func() bool {
		v, ok := w.j.Delivery(o.Message.ID, "remote")
		return ok && v.State == parley.Delivered
	})
	w.stop(w.node)
	<-before.done
	want := []string{"task SUBMITTED", "WORKING half", "result append=false last=false a"}
	if got := before.seen(); before.err != nil || !slices.Equal(got, want) {
		t.Errorf("before: %q, %v", got, before.err)
	}
	w.node = w.start(nil)
	id := protocol.TaskID(o.Message.ID.String())
	after := w.subscribe(w.node, "alice", "remote", id)
	w.eventually("the task", func() bool { return len(after.seen()) == 1 })
	for _, m := range []parley.Message{
		{Kind: parley.Event, Parts: []parley.Part{parley.Text("b")}},
		{Kind: parley.Response, Parts: []parley.Part{parley.Text("ab")}},
	} {
		m.From, m.InReplyTo = "remote", o.Message.ID
		if _, err := w.node.hub.Accept(t.Context(), hub.Submission{Message: &m}); err != nil {
			t.Fatal(err)
		}
	}
	<-after.done
	want = []string{"task WORKING half [a]", "result append=true last=false b", "result append=false last=true ab",
		"COMPLETED"}
	if got := after.seen(); after.err != nil || !slices.Equal(got, want) {
		t.Errorf("after: %q, %v", got, after.err)
	}
	again := w.task("alice", "remote", say("m1", "go", "")) // A2A-021, over the restart
	if again.ID != id || shortly(again) != "task COMPLETED [ab]" {
		t.Errorf("the repeat: %s", shortly(again))
	}
}

// A2A-040: all that is about a task of another caller, or of another agent, is unknown.
func TestTasksOfOthers(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	w.handle("other", echo)
	task := w.task("alice", "echo", say("m1", "hi", `,"contextId":"c"`))
	for _, who := range [][2]string{{"bob", "echo"}, {"alice", "other"}} {
		s, ctx := checked{service{w.node.Binding}}, w.as(who[0], who[1])
		calls := map[string]func() error{
			"GetTask": func() error { _, err := s.GetTask(ctx, &protocol.GetTaskRequest{ID: task.ID}); return err },
			"CancelTask": func() error {
				_, err := s.CancelTask(ctx, &protocol.CancelTaskRequest{ID: task.ID})
				return err
			},
			"SubscribeToTask": func() (err error) {
				for _, err = range s.SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: task.ID}) {
					break
				}
				return err
			},
			"CreateTaskPushConfig": func() error {
				_, err := s.CreateTaskPushConfig(ctx, &protocol.PushConfig{TaskID: task.ID, URL: "https://192.0.2.1/"})
				return err
			},
			"GetTaskPushConfig": func() error {
				_, err := s.GetTaskPushConfig(ctx, &protocol.GetTaskPushConfigRequest{TaskID: task.ID, ID: "x"})
				return err
			},
			"ListTaskPushConfigs": func() error {
				_, err := s.ListTaskPushConfigs(ctx, &protocol.ListTaskPushConfigRequest{TaskID: task.ID})
				return err
			},
			"DeleteTaskPushConfig": func() error {
				return s.DeleteTaskPushConfig(ctx, &protocol.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"})
			},
			"SendMessage": func() error {
				_, err := w.send(who[0], who[1], say("m9", "x", `,"taskId":"`+string(task.ID)+`"`))
				return err
			},
		}
		for name, call := range calls {
			if err := call(); !errors.Is(err, protocol.ErrTaskNotFound) {
				t.Errorf("%s of %v: %v", name, who, err)
			}
		}
		page, err := s.ListTasks(ctx, &protocol.ListTasksRequest{ContextID: "c"})
		w.must(err)
		if page.Tasks == nil || len(page.Tasks) > 0 || page.TotalSize > 0 {
			t.Errorf("ListTasks of %v: %+v", who, page)
		}
	}
}

// A2A-041, A2A-042: pages, filters, order and what a listed task has.
func TestListTasks(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	g := make(gate, 9)
	w.handle("slow", g.handler)
	var tasks []protocol.TaskID
	for i := range 5 {
		tasks = append(tasks, w.task("alice", "echo", say(fmt.Sprint(i), "hi", fmt.Sprintf(`,"contextId":"c%d"`, i%2))).ID)
	}
	slices.Reverse(tasks)
	list := func(agent string, r protocol.ListTasksRequest) (*protocol.ListTasksResponse, []protocol.TaskID) {
		t.Helper()
		page, err := checked{service{w.node.Binding}}.ListTasks(w.as("alice", agent), &r)
		w.must(err)
		var ids []protocol.TaskID
		for _, task := range page.Tasks {
			ids = append(ids, task.ID)
		}
		return page, ids
	}
	page, ids := list("echo", protocol.ListTasksRequest{})
	if !slices.Equal(ids, tasks) || page.TotalSize != 5 || page.PageSize != 50 || page.NextPageToken != "" ||
		page.Tasks[0].Artifacts != nil || len(page.Tasks[0].History) != 1 {
		t.Errorf("all: %s", encoded(t, page))
	}
	zero := 0
	page, _ = list("echo", protocol.ListTasksRequest{IncludeArtifacts: true, HistoryLength: &zero, PageSize: 3})
	if len(page.Tasks) != 3 || page.TotalSize != 5 || page.Tasks[0].Artifacts == nil || len(page.Tasks[0].History) != 0 ||
		strings.Contains(encoded(t, page.Tasks[0]), "history") {
		t.Errorf("the first page: %s", encoded(t, page))
	}
	page, ids = list("echo", protocol.ListTasksRequest{PageSize: 3, PageToken: page.NextPageToken})
	if !slices.Equal(ids, tasks[3:]) || page.NextPageToken != "" || page.TotalSize != 5 {
		t.Errorf("the second page: %s", encoded(t, page))
	}
	if _, ids = list("echo", protocol.ListTasksRequest{ContextID: "c1"}); !slices.Equal(ids, []protocol.TaskID{tasks[1],
		tasks[3]}) {
		t.Errorf("of a context: %v of %v", ids, tasks)
	}
	third, err := w.get("alice", "echo", tasks[2])
	w.must(err)
	if _, ids = list("echo", protocol.ListTasksRequest{StatusTimestampAfter: third.Status.Timestamp}); !slices.Equal(ids,
		tasks[:2]) {
		t.Errorf("after a time: %v of %v", ids, tasks)
	}
	for i, want := range []protocol.TaskState{protocol.TaskStateSubmitted, protocol.TaskStateWorking,
		protocol.TaskStateInputRequired, protocol.TaskStateRejected} {
		if i == 0 {
			w.task("alice", "slow", immediately(say("m", "x", "")))
		} else {
			g <- []string{"", "progress half", "ask where?", "fail no"}[i]
		}
		if i == 3 {
			_, err := w.send("alice", "slow", say("m2", "x", `,"taskId":"`+string(w.onlyTask("alice", "slow"))+`"`))
			w.must(err)
		}
		w.eventually(string(want), func() bool {
			_, ids := list("slow", protocol.ListTasksRequest{Status: want})
			return len(ids) == 1
		})
		if _, ids := list("slow", protocol.ListTasksRequest{Status: protocol.TaskStateCompleted}); len(ids) > 0 {
			t.Errorf("completed: %v", ids)
		}
	}
	minus := -1
	for field, r := range map[string]protocol.ListTasksRequest{
		"pageSize":      {PageSize: 101},
		"pageToken":     {PageToken: "nonsense!"},
		"historyLength": {HistoryLength: &minus},
		"status":        {Status: "TASK_STATE_GONE"},
		"contextId":     {ContextID: "\x00"},
	} {
		_, err := checked{service{w.node.Binding}}.ListTasks(w.as("alice", "echo"), &r)
		wantError(t, err, protocol.ErrInvalidParams, field)
	}
	_, err = checked{service{w.node.Binding}}.GetTask(w.as("alice", "echo"), &protocol.GetTaskRequest{ID: tasks[0],
		HistoryLength: &minus})
	wantError(t, err, protocol.ErrInvalidParams, "historyLength")
}

// A2A-043: a task is cancelled when its agent confirms or never had it; an ended one is not.
func TestCancelTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := make(gate)
		w.handle("slow", g.handler)
		w.handle("echo", echo)
		w.agent(parley.Agent{Name: "remote", Exposed: parley.Everywhere,
			Identities: []parley.Identity{{Protocol: "far", ID: "remote"}}})
		cancel := func(agent string, id protocol.TaskID) (*protocol.Task, error) {
			return checked{service{w.node.Binding}}.CancelTask(w.as("alice", agent), &protocol.CancelTaskRequest{ID: id})
		}
		began := time.Now()
		here := w.task("alice", "slow", immediately(say("m1", "x", "")))
		synctest.Wait()
		got, err := cancel("slow", here.ID)
		if err != nil || got.Status.State != protocol.TaskStateCanceled || time.Since(began) > 0 {
			t.Errorf("a handler's task: %+v, %v after %s", got, err, time.Since(began))
		}
		if again, err := cancel("slow", here.ID); err != nil || again.Status.State != protocol.TaskStateCanceled {
			t.Errorf("again: %+v, %v", again, err)
		}
		w.node.far.holds = true
		held := w.task("alice", "remote", immediately(say("m1", "x", "")))
		if got, err := cancel("remote", held.ID); err != nil || got.Status.State != protocol.TaskStateCanceled {
			t.Errorf("a task that was not delivered: %+v, %v", got, err)
		}
		w.node.far.holds = false
		w.node.hub.Kick("remote")
		got, err = cancel("remote", w.task("alice", "remote", immediately(say("m2", "x", ""))).ID)
		if err != nil || got.Status.State != protocol.TaskStateSubmitted || time.Since(began) != cancelWait {
			t.Errorf("a task whose agent does not confirm: %+v, %v after %s", got, err, time.Since(began))
		}
		w.node.far.deliver = func(_ context.Context, o hub.Outbound) hub.Outcome {
			if o.Message.Kind == parley.Cancel {
				go func() {
					_, err := w.node.hub.Accept(context.Background(), hub.Submission{Message: &parley.Message{
						Kind: parley.Failure, From: "remote", InReplyTo: o.Message.InReplyTo,
						Error: parley.Refuse(parley.Cancelled, "given up")}})
					if err != nil {
						t.Error(err)
					}
				}()
			}
			return hub.Outcome{}
		}
		sent := w.task("alice", "remote", immediately(say("m3", "x", "")))
		synctest.Wait()
		if got, err := cancel("remote", sent.ID); err != nil || shortly(got) != "task CANCELED given up" {
			t.Errorf("a task whose agent confirms: %+v, %v", got, err)
		}
		_, err = cancel("echo", w.task("alice", "echo", say("m1", "x", "")).ID)
		wantError(t, err, protocol.ErrTaskNotCancelable, "")
		synctest.Wait()
	})
}

// 1,000 open subscriptions take little memory beside their goroutines.
func TestSubscriptionsAreCheap(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Streams = 2000 })
	g := make(gate)
	w.handle("slow", g.handler)
	id := w.task("alice", "slow", immediately(say("m1", strings.Repeat("x", 10_000), ""))).ID
	const streams = 1000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ready := make(chan struct{}, streams)
	ctx, cancel := context.WithCancel(w.as("alice", "slow"))
	done := make(chan struct{}, streams)
	for range streams {
		go func() {
			defer func() { done <- struct{}{} }()
			for range (checked{service{w.node.Binding}}).SubscribeToTask(ctx, &protocol.SubscribeToTaskRequest{ID: id}) {
				ready <- struct{}{}
			}
		}()
	}
	for range streams {
		<-ready
	}
	w.eventually("all streams wait", func() bool {
		runtime.GC()
		runtime.ReadMemStats(&after)
		return int64(after.HeapAlloc)-int64(before.HeapAlloc) < streams*4<<10
	})
	t.Logf("%d bytes of heap and %d of stack for each", (int64(after.HeapAlloc)-int64(before.HeapAlloc))/streams,
		(int64(after.StackInuse)-int64(before.StackInuse))/streams)
	if stack := int64(after.StackInuse) - int64(before.StackInuse); stack > streams*32<<10 {
		t.Errorf("%d bytes of stack", stack)
	}
	cancel()
	for range streams {
		<-done
	}
	close(g)
}

// A call that cannot be answered from the index says so, and that a retry helps.
func TestIndexThatDoesNotFollow(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	id := w.task("alice", "echo", say("m1", "hi", "")).ID
	w.must(w.node.index.Close())
	var err error
	w.node.index, err = index.Open(context.Background(), index.Config{Journal: w.j}) // to be closed
	w.must(err)
	_, err = w.get("alice", "echo", id)
	if e := parley.AsError(err); e == nil || e.Code != parley.Unavailable || !e.Retryable || e.After == 0 {
		t.Errorf("GetTask: %v", err)
	}
	_, err = checked{service{w.node.Binding}}.ListTasks(w.as("alice", "echo"), &protocol.ListTasksRequest{})
	if parley.CodeOf(err) != parley.Unavailable {
		t.Errorf("ListTasks: %v", err)
	}
	// A message needs no index.
	if got := w.task("alice", "echo", say("m2", "hi", "")); got.Status.State != protocol.TaskStateCompleted {
		t.Errorf("%+v", got)
	}
}

// The recipient's binding learns whether the client reads updates as they come.
func TestRecipientKnowsOfTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, receiving(&receiver{}))
		w.remote()
		var streams []bool
		w.node.far.deliver = func(_ context.Context, o hub.Outbound) hub.Outcome {
			streams = append(streams, o.Streams)
			return hub.Outcome{Answered: true, Parts: []parley.Part{parley.Text("x")}}
		}
		w.task("alice", "remote", say("m1", "x", ""))
		<-w.stream("alice", "remote", say("m2", "x", "")).done
		w.task("alice", "remote", hooked(say("m3", "x", ""), hook("one", "/1")))
		synctest.Wait()
		if !slices.Equal(streams, []bool{false, true, true}) {
			t.Errorf("streams %v", streams)
		}
	})
}

// The history has the client's message unchanged: numbers keep their digits, and members in either spelling
// are read (rule A2A-010).
func TestHistoryHasWhatWasSent(t *testing.T) {
	w := newWorld(t)
	w.handle("echo", echo)
	part := func(media string) string {
		return `{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"data":{"n":12345678901234567890}},
			{"raw":"aGk","` + media + `":"image/png","filename":"a.png"},{"text":"x","filename":"b"}]}}`
	}
	ctx := w.as("alice", "echo")
	c := callOf(ctx)
	c.params = json.RawMessage(part("mediaType"))
	c.body = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":%s}`, part("media_type"))
	result, err := methods[V1]["SendMessage"].call(ctx, w.node.methods, c.params, false)
	w.must(err)
	sent := result.(event1).Task.History[0].Parts
	if text := encoded(t, sent[0]); !strings.Contains(text, "12345678901234567890") {
		t.Errorf("the data is %s", text)
	}
	if p := sent[1]; p.MediaType != "image/png" || p.Raw == nil || *p.Raw != "aGk=" || p.Filename != "a.png" {
		t.Errorf("the file is %s", encoded(t, p))
	}
	if p := sent[2]; p.Text == nil || p.Filename != "b" {
		t.Errorf("the text is %s", encoded(t, p))
	}
}

// The artifacts of an answer do not replace each other, whatever ids the agent gave them, with pieces before
// them or not.
func TestArtifactsOfOneName(t *testing.T) {
	artifacts := func(ids ...protocol.ArtifactID) *parley.Message {
		m := &parley.Message{Kind: parley.Response}
		var k kept
		for _, id := range ids {
			m.Parts = append(m.Parts, parley.Text("of "+string(id)+fmt.Sprint(len(m.Parts))))
			k.Artifacts = append(k.Artifacts, keptArtifact{ID: id, Parts: 1})
		}
		m.Extensions = k.extensions()
		return m
	}
	for _, c := range []struct {
		ids  []protocol.ArtifactID
		want string // the pieces are replaced
	}{
		{[]protocol.ArtifactID{"log", resultID}, "task COMPLETED [of result1] [of log0]"},
		{[]protocol.ArtifactID{"log", "log"}, "task COMPLETED [of log0+of log1]"},
		{[]protocol.ArtifactID{"log", "other"}, "task COMPLETED [of log0] [of other1]"},
	} {
		p, task := begin(&parley.Message{Kind: parley.Request}, time.Time{})
		piece := piece("piece")
		p.add(task, &piece, time.Time{})
		p.add(task, artifacts(c.ids...), time.Time{})
		if got := shortly(task); got != c.want {
			t.Errorf("%v: %s, want %s", c.ids, got, c.want)
		}
	}
}
