package a2a

import (
	"context"
	"net/http"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// GetExtendedAgentCard implements a2asrv.RequestHandler: the card with what policy lets the
// caller use.
func (s service) GetExtendedAgentCard(ctx context.Context, r *protocol.GetExtendedAgentCardRequest) (
	*protocol.AgentCard, error) {
	return nil, protocol.ErrUnsupportedOperation
}

// serveCard answers a GET or HEAD request for the card of an agent, which is exposed.
func (b *Binding) serveCard(w http.ResponseWriter, r *http.Request, agent string) {
	http.NotFound(w, r)
}
