package asp

import (
	"context"

	protocol "github.com/parley-hub/parley/asp"
)

// CloseIdle does now what the hub does every minute.
func (b *Binding) CloseIdle(ctx context.Context) error { return b.tender.closeIdle(ctx) }

// StandIn has an agent speak as it would now.
func (b *Binding) StandIn(ctx context.Context, name string) (*protocol.Identity, error) {
	return b.standIns.ensure(ctx, name)
}
