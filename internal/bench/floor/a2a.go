package floor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parley-hub/parley/internal/bench/load"
)

// A2APath is the path of the floor's JSON-RPC endpoint.
const A2APath = "/a2a/echo"

// A2ARequest renders SendMessage number i with a body of size bytes over JSON-RPC: clients of the hub and of the floor
// send the same.
func A2ARequest(host, path, token string, i, size int) []byte {
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"SendMessage","params":{"message":{"messageId":"m-%d",`+
		`"role":"ROLE_USER","parts":[{"text":"`, i, i)
	const end = `"}]}}}`
	for len(body)+len(end) < size {
		body = append(body, 'x')
	}
	body = append(body, end...)
	return load.NewRequest(http.MethodPost, host, path, http.Header{
		"Content-Type": {"application/json"}, "A2a-Version": {string(protocol.Version)},
		"Authorization": {"Bearer " + token},
	}, body)
}

// A2A is the floor of a blocking SendMessage: the handler of the official SDK, as it comes, with an executor that
// answers with a finished task, and appends the request and the answer.
func A2A(ctx context.Context, c Config) (load.Result, error) {
	return c.withAppender(func(a *Appender) (load.Result, error) {
		rpc := a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(a2aExecutor{a}))
		return c.post(ctx, forCallers(A2APath, rpc), func(host string, i int) []byte {
			return A2ARequest(host, A2APath, token, i, c.Payload)
		}, A2AAnswered)
	})
}

// A2AAnswered refuses an answer that is not a completed task.
func A2AAnswered(status int, body []byte) error {
	var answer struct {
		Result struct {
			Task struct {
				Status struct {
					State protocol.TaskState `json:"state"`
				} `json:"status"`
			} `json:"task"`
		} `json:"result"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || status != http.StatusOK ||
		answer.Result.Task.Status.State != protocol.TaskStateCompleted {
		return fmt.Errorf("HTTP %d: %.300q", status, body)
	}
	return nil
}

// a2aExecutor is an executor that answers with one small part.
type a2aExecutor struct{ a *Appender }

// Execute implements a2asrv.AgentExecutor.
func (e a2aExecutor) Execute(ctx context.Context, c *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		request, err := json.Marshal(c.Message)
		if err == nil {
			err = e.a.Append(ctx, request)
		}
		if err != nil {
			yield(nil, err)
			return
		}
		t := protocol.NewSubmittedTask(c, c.Message)
		t.Status.State = protocol.TaskStateCompleted
		t.Artifacts = []*protocol.Artifact{{ID: "result",
			Parts: protocol.ContentParts{protocol.NewDataPart(map[string]any{"ok": true})}}}
		reply, err := json.Marshal(t.Artifacts)
		if err == nil {
			err = e.a.Append(ctx, reply)
		}
		if err != nil {
			yield(nil, err)
			return
		}
		yield(t, nil)
	}
}

// Cancel implements a2asrv.AgentExecutor: its tasks are finished at once.
func (a2aExecutor) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) { yield(nil, errors.New("floor: the task is finished")) }
}
