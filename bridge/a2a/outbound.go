package a2a

import (
	"context"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// Deliver implements hub.Binding.
func (b *Binding) Deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	if o.Callback != "" {
		return b.notify(ctx, o)
	}
	return hub.Outcome{Err: parley.Refuse(parley.Unsupported, "A2A agents elsewhere are not called yet")}
}
