package a2a

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// checked checks the parameters of all methods, whichever transport they come by. What
// needs a task or the directory is checked by [service].
type checked struct{ next a2asrv.RequestHandler }

var _ a2asrv.RequestHandler = checked{}

// requireID refuses an id that is empty or too long.
func requireID(field, id string) error {
	if id == "" {
		return invalidParams(field, "missing")
	}
	return checkID(field, id)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkConfig(path string, c *protocol.PushConfig) error {
	if c.URL == "" {
		return invalidParams(path+"url", "missing")
	}
	return checkID(path+"id", c.ID)
}

func checkList(r *protocol.ListTasksRequest) error {
	switch r.Status {
	case protocol.TaskStateUnspecified, protocol.TaskStateSubmitted, protocol.TaskStateWorking,
		protocol.TaskStateInputRequired, protocol.TaskStateAuthRequired, protocol.TaskStateCompleted,
		protocol.TaskStateFailed, protocol.TaskStateCanceled, protocol.TaskStateRejected:
	default:
		return invalidParams("status", "no state of a task")
	}
	if r.PageSize < 0 || r.PageSize > maxPage {
		return invalidParams("pageSize", "want 1 to %d", maxPage)
	}
	return firstError(checkHistory("historyLength", r.HistoryLength), checkID("contextId", r.ContextID))
}

// maxID bounds ids that clients choose, in bytes.
const maxID = 256

// checkID checks an id that a client chose.
func checkID(field, id string) error {
	switch {
	case len(id) > maxID:
		return invalidParams(field, "it is longer than %d bytes", maxID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return invalidParams(field, "it has control characters")
	}
	return nil
}

// maxListed bounds the lists of a message that name extensions, tasks and media types.
const maxListed = 64

// checkSend checks the parameters of SendMessage and SendStreamingMessage.
func checkSend(r *protocol.SendMessageRequest) error {
	m := r.Message
	switch {
	case m == nil:
		return invalidParams("message", "it is required")
	case m.ID == "":
		return invalidParams("message.messageId", "it is required")
	case m.Role != protocol.MessageRoleUser:
		return invalidParams("message.role", "a client's message has the role %s", protocol.MessageRoleUser)
	case len(m.Parts) == 0:
		return invalidParams("message.parts", "a message has at least one part")
	case len(m.Extensions) > maxListed:
		return invalidParams("message.extensions", "there are more than %d", maxListed)
	case len(m.ReferenceTasks) > maxListed:
		return invalidParams("message.referenceTaskIds", "there are more than %d", maxListed)
	}
	for _, id := range []struct{ field, id string }{{"message.messageId", m.ID}, {"message.contextId", m.ContextID},
		{"message.taskId", string(m.TaskID)}} {
		if err := checkID(id.field, id.id); err != nil {
			return err
		}
	}
	for i, id := range m.ReferenceTasks {
		field := fmt.Sprintf("message.referenceTaskIds[%d]", i)
		if id == "" {
			return invalidParams(field, "it is empty")
		}
		if err := checkID(field, string(id)); err != nil {
			return err
		}
	}
	if c := r.Config; c != nil {
		if len(c.AcceptedOutputModes) > maxListed {
			return invalidParams("configuration.acceptedOutputModes", "there are more than %d", maxListed)
		}
		return checkHistory("configuration.historyLength", c.HistoryLength)
	}
	return nil
}

func checkHistory(field string, n *int) error {
	if n != nil && *n < 0 {
		return invalidParams(field, "it is negative")
	}
	return nil
}

// SendMessage implements a2asrv.RequestHandler.
func (h checked) SendMessage(ctx context.Context, r *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	if err := checkSend(r); err != nil {
		return nil, err
	}
	return h.next.SendMessage(ctx, r)
}

// SendStreamingMessage implements a2asrv.RequestHandler.
func (h checked) SendStreamingMessage(ctx context.Context, r *protocol.SendMessageRequest) eventSeq {
	if err := checkSend(r); err != nil {
		return failedStream(err)
	}
	return h.next.SendStreamingMessage(ctx, r)
}

// failedStream is a stream that has an error alone.
func failedStream(err error) eventSeq {
	return func(yield func(protocol.Event, error) bool) { yield(nil, err) }
}

// GetTask implements a2asrv.RequestHandler.
func (h checked) GetTask(ctx context.Context, r *protocol.GetTaskRequest) (*protocol.Task, error) {
	if err := firstError(requireID("id", string(r.ID)), checkHistory("historyLength", r.HistoryLength)); err != nil {
		return nil, err
	}
	return h.next.GetTask(ctx, r)
}

// ListTasks implements a2asrv.RequestHandler.
func (h checked) ListTasks(ctx context.Context, r *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	if err := checkList(r); err != nil {
		return nil, err
	}
	return h.next.ListTasks(ctx, r)
}

// CancelTask implements a2asrv.RequestHandler.
func (h checked) CancelTask(ctx context.Context, r *protocol.CancelTaskRequest) (*protocol.Task, error) {
	if err := requireID("id", string(r.ID)); err != nil {
		return nil, err
	}
	return h.next.CancelTask(ctx, r)
}

// SubscribeToTask implements a2asrv.RequestHandler.
func (h checked) SubscribeToTask(ctx context.Context, r *protocol.SubscribeToTaskRequest) eventSeq {
	if err := requireID("id", string(r.ID)); err != nil {
		return failedStream(err)
	}
	return h.next.SubscribeToTask(ctx, r)
}

// CreateTaskPushConfig implements a2asrv.RequestHandler.
func (h checked) CreateTaskPushConfig(ctx context.Context, r *protocol.PushConfig) (*protocol.PushConfig, error) {
	if err := firstError(requireID("taskId", string(r.TaskID)), checkConfig("", r)); err != nil {
		return nil, err
	}
	return h.next.CreateTaskPushConfig(ctx, r)
}

// GetTaskPushConfig implements a2asrv.RequestHandler. 0.3 may leave the configuration out:
// then [service] chooses.
func (h checked) GetTaskPushConfig(ctx context.Context, r *protocol.GetTaskPushConfigRequest) (
	*protocol.PushConfig, error) {
	err := firstError(requireID("taskId", string(r.TaskID)), checkID("id", r.ID))
	if err == nil && r.ID == "" && !speaks03(ctx) {
		err = invalidParams("id", "missing")
	}
	if err != nil {
		return nil, err
	}
	return h.next.GetTaskPushConfig(ctx, r)
}

func speaks03(ctx context.Context) bool {
	c := callOf(ctx)
	return c != nil && c.version == V03
}

// ListTaskPushConfigs implements a2asrv.RequestHandler.
func (h checked) ListTaskPushConfigs(ctx context.Context, r *protocol.ListTaskPushConfigRequest) (
	*protocol.ListTaskPushConfigResponse, error) {
	if err := requireID("taskId", string(r.TaskID)); err != nil {
		return nil, err
	}
	if r.PageSize < 0 || r.PageSize > maxPage {
		return nil, invalidParams("pageSize", "want 1 to %d", maxPage)
	}
	return h.next.ListTaskPushConfigs(ctx, r)
}

// DeleteTaskPushConfig implements a2asrv.RequestHandler.
func (h checked) DeleteTaskPushConfig(ctx context.Context, r *protocol.DeleteTaskPushConfigRequest) error {
	if err := firstError(requireID("taskId", string(r.TaskID)), requireID("id", r.ID)); err != nil {
		return err
	}
	return h.next.DeleteTaskPushConfig(ctx, r)
}

// GetExtendedAgentCard implements a2asrv.RequestHandler.
func (h checked) GetExtendedAgentCard(ctx context.Context, r *protocol.GetExtendedAgentCardRequest) (
	*protocol.AgentCard, error) {
	return h.next.GetExtendedAgentCard(ctx, r)
}
