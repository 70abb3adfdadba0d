package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/hub"
)

// inbox keeps messages for agents that call the hub over MCP, until they have read them by parley_inbox.
type inbox struct{ b *Binding }

func newInbox(b *Binding) *inbox { return &inbox{b: b} }

func (i *inbox) start(context.Context) error { return nil }

// deliver records a message for its recipient.
func (i *inbox) deliver(context.Context, hub.Outbound) hub.Outcome { return hub.Outcome{} }

// call answers a call of one of the tools parley_inbox, parley_reply and parley_send.
func (i *inbox) call(context.Context, *toolCall) *mcp.CallToolResult { return nil }

// forget removes messages; see [hub.Forgetter].
func (i *inbox) forget(context.Context, hub.Forgetting) (int, error) { return 0, nil }
