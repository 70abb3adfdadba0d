package a2a

import (
	"context"
	"iter"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// service is the protocol's methods, for all transports: of the agent and for the caller
// that the context's call names. Errors are a2a.Error with a sentinel of the SDK, or
// parley.Error; toError of errors.go makes the wire's form of both.
type service struct{ b *Binding }

var _ a2asrv.RequestHandler = service{}

// SendMessage implements a2asrv.RequestHandler.
func (s service) SendMessage(ctx context.Context, r *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	return nil, protocol.ErrUnsupportedOperation
}

// SendStreamingMessage implements a2asrv.RequestHandler. An error comes first or not at all.
func (s service) SendStreamingMessage(ctx context.Context, r *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) { yield(nil, protocol.ErrUnsupportedOperation) }
}
