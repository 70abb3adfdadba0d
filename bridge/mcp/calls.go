package mcp

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The hub's own tools.
const (
	toolFind   = "parley_find"
	toolAsk    = "parley_ask"
	toolSend   = "parley_send"
	toolInbox  = "parley_inbox"
	toolReply  = "parley_reply"
	toolResult = "parley_result"
)

var hubTools = []string{toolFind, toolAsk, toolSend, toolInbox, toolReply, toolResult}

// calls answers the calls of tools by clients.
type calls struct{ b *Binding }

func newCalls(b *Binding) *calls { return &calls{b: b} }

// call answers a call of an agent's skill, or of one of the tools parley_ask and parley_result.
func (s *calls) call(context.Context, *toolCall) *mcp.CallToolResult { return nil }

// cancelled cancels the call that a client of a session or tunnel made with this JSON-RPC id, if it is open.
func (s *calls) cancelled(session, id string) {}
