package a2a

import (
	"context"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// GetExtendedAgentCard implements a2asrv.RequestHandler: the card with what policy lets the
// caller use.
func (s service) GetExtendedAgentCard(ctx context.Context, r *protocol.GetExtendedAgentCardRequest) (
	*protocol.AgentCard, error) {
	return nil, protocol.ErrUnsupportedOperation
}
