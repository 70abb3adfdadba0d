package samvad

import (
	"context"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
	protocol "github.com/parley-hub/parley/samvad"
)

// callsBack names the one callback of a request that asks for its outcome at a URL.
func callsBack(request, reply *parley.Message) []string {
	if !reply.Kind.Terminal() {
		return nil
	}
	if e, err := protocol.Decode(request.Origin.Raw); err != nil || e.CallbackURL == "" {
		return nil
	}
	return []string{""}
}

// Pauses between two attempts of a webhook. They double, and half of each depends
// on the message, so that a receiver that is up again does not get all at once.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Minute
)

func webhookPause(id parley.ID, attempt int) time.Duration {
	p := min(firstPause<<min(max(attempt-1, 0), 20), longestPause)
	return p/2 + p/2*time.Duration(id[len(id)-1])/255
}

// callBack makes one attempt of a webhook; delivery retries.
func (b *Binding) callBack(ctx context.Context, o hub.Outbound) hub.Outcome {
	e, err := protocol.Decode(o.Request.Origin.Raw)
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.Internal, "the request's envelope cannot be read").Because(err)}
	}
	// The receiver may poll the task at once.
	if err := b.finish(ctx, o.Request.ID, o.Message); err != nil {
		return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the outcome of the task cannot be recorded").
			With(parley.ByHub, parley.HubStorage, ""), Wait: pause}
	}
	recorder.HideURL(ctx, e.CallbackURL)
	again, after, err := b.server.Webhook.Once(ctx, b.client.Identity, e.CallbackURL, toReply(e.TraceID, o.Message))
	switch {
	case err == nil:
		return hub.Outcome{Losses: bridge.Losses(bridge.SAMVAD, o.Message, o.Recipient.Name)}
	case !again:
		return hub.Outcome{Err: webhookError(parley.Refuse(parley.Rejected,
			"the webhook %.200s is not called again: %v", e.CallbackURL, err), err)}
	}
	return hub.Outcome{Err: webhookError(parley.Fail(parley.Unavailable, nil,
		"the webhook %.200s did not take the result: %v", e.CallbackURL, err), err),
		Wait: max(after, webhookPause(o.Message.ID, o.Attempt))}
}

// webhookError is e for a webhook that cannot be reached, or refused with a status.
func webhookError(e *parley.Error, err error) *parley.Error {
	e = bridge.Unreachable(e.Because(err), err)
	if e.Source == parley.NotStated {
		e = bridge.Answered(e, Protocol, err.Error())
	}
	return e
}
