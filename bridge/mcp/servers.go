package mcp

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
)

// servers has the connections to attached servers, and the tools that are pinned for them.
type servers struct{ b *Binding }

func newServers(b *Binding) *servers { return &servers{b: b} }

func (s *servers) start(context.Context) error { return nil }

func (s *servers) close() error { return nil }

// changed ends the connection of an agent whose settings or credentials changed; the next call makes a new one.
func (s *servers) changed(agent string) {}

// holds reports whether an agent's server can take nothing now: it is joined by a tunnel, and there is none.
func (s *servers) holds(e *directory.Entry, id parley.Identity) bool { return false }

// join serves a server that a tunnel brings, until the tunnel ends. A newer tunnel of the same agent takes its place.
func (s *servers) join(ctx context.Context, agent string, t mcp.Transport) error { return nil }

// A serverCall is one call of a tool of an attached server.
type serverCall struct {
	agent    string // directory name
	identity parley.Identity
	params   *mcp.CallToolParams
	sent     func() // is called when the call is about to leave the hub
	progress func(*mcp.ProgressNotificationParams)
	// elicit asks the requester; nil: the server may not ask.
	elicit func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error)
}

// A serverAnswer is what a server answered to a call.
type serverAnswer struct {
	*mcp.CallToolResult
	structured json.RawMessage // structuredContent as the server wrote it; nil: none
}

// A callError is a call without an answer.
type callError struct {
	sent bool // the server may have it
	err  error
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// call calls a tool. The error is a *callError, or a *jsonrpc.Error that the server answered with.
func (s *servers) call(context.Context, serverCall) (*serverAnswer, error) { return nil, nil }

// forget removes what is kept about the server of a forgotten agent; see [hub.Forgetter].
func (s *servers) forget(context.Context, hub.Forgetting) (int, error) { return 0, nil }

// ToolList is what is known of the tools of an attached server.
type ToolList struct {
	Approved []ToolText // what agents call
	Offered  []ToolText // what the server lists now, if that differs; nil: it does not
	Digest   string     // of Offered, hex: what an approval names
}

// A ToolText is a tool as its server describes it: untrusted text, clipped.
type ToolText struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitzero"`
	Input       json.RawMessage `json:"input,omitzero"`  // JSON Schema
	Output      json.RawMessage `json:"output,omitzero"` // JSON Schema
}

// Tools gives the tools of an attached server.
func (b *Binding) Tools(ctx context.Context, agent string) (ToolList, error) { return ToolList{}, nil }

// ApproveTools takes the tools that a server offers, if their digest is this one.
func (b *Binding) ApproveTools(ctx context.Context, agent, digest string) error { return nil }
