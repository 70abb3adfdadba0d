package a2a

import (
	"context"
	"iter"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// GetTask implements a2asrv.RequestHandler.
func (s service) GetTask(ctx context.Context, r *protocol.GetTaskRequest) (*protocol.Task, error) {
	return nil, protocol.ErrUnsupportedOperation
}

// ListTasks implements a2asrv.RequestHandler.
func (s service) ListTasks(ctx context.Context, r *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	return nil, protocol.ErrUnsupportedOperation
}

// CancelTask implements a2asrv.RequestHandler.
func (s service) CancelTask(ctx context.Context, r *protocol.CancelTaskRequest) (*protocol.Task, error) {
	return nil, protocol.ErrUnsupportedOperation
}

// SubscribeToTask implements a2asrv.RequestHandler. An error comes first or not at all.
func (s service) SubscribeToTask(ctx context.Context, r *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) { yield(nil, protocol.ErrUnsupportedOperation) }
}
