package a2a

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpc1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
)

// TestSDKClients: the clients of the Go SDK, unmodified, over each transport and real
// sockets (rule A2A-110, for Go).
func TestSDKClients(t *testing.T) {
	t.Parallel()
	w := newServing(t, func(c *Config) { c.Root = "alice" })
	web := httptest.NewServer(w)
	t.Cleanup(web.Close)
	agent, err := url.Parse(web.URL + "/a2a/alice")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	conn := w.dial(t)
	one := a2aclient.ServiceParams{protocol.SvcParamVersion: {V1}}
	task := taskIn(protocol.TaskStateWorking)
	task.History = []*protocol.Message{{ID: "m0", Role: protocol.MessageRoleUser, Parts: protocol.ContentParts{
		protocol.NewTextPart("a"), protocol.NewRawPart([]byte("\x00")), protocol.NewFileURLPart("https://x.example/", ""),
		protocol.NewDataPart(map[string]any{"a": "b"})}}}
	w.fake.task, w.fake.result = task, task
	w.fake.list.Tasks = []*protocol.Task{task}
	for name, c := range map[string]struct {
		transport a2aclient.Transport
		params    a2aclient.ServiceParams
		lists     bool
	}{
		"JSON-RPC 1.0": {a2aclient.NewJSONRPCTransport(agent.String(), client), one, true},
		"REST 1.0":     {a2aclient.NewRESTTransport(agent, client), one, true},
		"gRPC 1.0":     {grpc1.NewGRPCTransport(conn), one, true},
		"JSON-RPC 0.3": {a2av0.NewJSONRPCTransport(a2av0.JSONRPCTransportConfig{URL: agent.String(),
			Client: client}), nil, false},
		"gRPC 0.3": {grpc03.NewGRPCTransport(conn), nil, false},
	} {
		w.fake.err = nil
		ctx := t.Context()
		send := &protocol.SendMessageRequest{Message: protocol.NewMessage(protocol.MessageRoleUser,
			protocol.NewTextPart("hi"), protocol.NewDataPart(map[string]any{"n": 1}), protocol.NewRawPart([]byte{1}))}
		r, err := c.transport.SendMessage(ctx, c.params, send)
		if got, ok := r.(*protocol.Task); err != nil || !ok || got.ID != "T" || len(got.History) != 1 ||
			len(got.History[0].Parts) != 4 {
			t.Errorf("%s: send: %+v, %v", name, r, err)
		}
		if m, ok := w.fake.request.(*protocol.SendMessageRequest); !ok || len(m.Message.Parts) != 3 {
			t.Errorf("%s: got %+v", name, w.fake.request)
		}
		w.fake.events = yields(nil, task, update(protocol.TaskStateWorking), wirePiece(true),
			update(protocol.TaskStateCompleted))
		n := 0
		for _, err := range c.transport.SendStreamingMessage(ctx, c.params, send) {
			if n++; err != nil {
				t.Errorf("%s: event %d: %v", name, n, err)
			}
		}
		if n != 4 {
			t.Errorf("%s: %d events", name, n)
		}
		got, err := c.transport.GetTask(ctx, c.params, &protocol.GetTaskRequest{ID: "T"})
		if err != nil || got.Status.State != protocol.TaskStateWorking {
			t.Errorf("%s: get: %+v, %v", name, got, err)
		}
		if _, err := c.transport.CancelTask(ctx, c.params, &protocol.CancelTaskRequest{ID: "T"}); err != nil {
			t.Errorf("%s: cancel: %v", name, err)
		}
		if err := c.transport.DeleteTaskPushConfig(ctx, c.params, &protocol.DeleteTaskPushConfigRequest{TaskID: "T",
			ID: "P"}); err != nil {
			t.Errorf("%s: delete: %v", name, err)
		}
		if _, err := c.transport.GetTaskPushConfig(ctx, c.params, &protocol.GetTaskPushConfigRequest{TaskID: "T",
			ID: "P"}); err != nil {
			t.Errorf("%s: push configuration: %v", name, err)
		}
		if c.lists {
			if l, err := c.transport.ListTasks(ctx, c.params, &protocol.ListTasksRequest{PageSize: 3}); err != nil ||
				len(l.Tasks) != 1 {
				t.Errorf("%s: list: %+v, %v", name, l, err)
			}
		}
		w.fake.err = protocol.ErrTaskNotFound
		if _, err := c.transport.GetTask(ctx, c.params, &protocol.GetTaskRequest{ID: "U"}); !errors.Is(err, w.fake.err) {
			t.Errorf("%s: an unknown task: %v", name, err)
		}
		for _, err := range c.transport.SubscribeToTask(ctx, c.params, &protocol.SubscribeToTaskRequest{ID: "U"}) {
			if !errors.Is(err, w.fake.err) {
				t.Errorf("%s: subscribe: %v", name, err)
			}
		}
	}
}
