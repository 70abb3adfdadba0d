package a2a

import (
	"context"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// CreateTaskPushConfig implements a2asrv.RequestHandler.
func (s service) CreateTaskPushConfig(ctx context.Context, r *protocol.PushConfig) (*protocol.PushConfig, error) {
	return nil, protocol.ErrPushNotificationNotSupported
}

// GetTaskPushConfig implements a2asrv.RequestHandler.
func (s service) GetTaskPushConfig(ctx context.Context, r *protocol.GetTaskPushConfigRequest) (*protocol.PushConfig, error) {
	return nil, protocol.ErrPushNotificationNotSupported
}

// ListTaskPushConfigs implements a2asrv.RequestHandler.
func (s service) ListTaskPushConfigs(ctx context.Context, r *protocol.ListTaskPushConfigRequest) (
	*protocol.ListTaskPushConfigResponse, error) {
	return nil, protocol.ErrPushNotificationNotSupported
}

// DeleteTaskPushConfig implements a2asrv.RequestHandler.
func (s service) DeleteTaskPushConfig(ctx context.Context, r *protocol.DeleteTaskPushConfigRequest) error {
	return protocol.ErrPushNotificationNotSupported
}
