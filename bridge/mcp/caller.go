package mcp

import (
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/bridge"
)

// A caller makes a request of MCP at an endpoint. The door and the tunnels make one for each request; handlers
// of the SDK find it with callerOf.
type caller struct {
	bridge.Caller
	endpoint string // path of the endpoint
	agent    string // whose endpoint it is; "": all agents
	modern   bool   // over HTTP in revision 2026-07-28 or later: the end of the context is a cancel
	remote   string // network address
	session  string // id of the session or tunnel; "": none
	id       string // the request's JSON-RPC id, as it was written
}

// user is the identity that a session is bound to: this caller at this endpoint, and no other.
func (c *caller) user() string { return c.endpoint + "\n" + c.Name + "\n" + c.Peer }

const extraCaller = "caller"

// tokenInfo is the form in which the SDK carries the caller to its handlers.
func (c *caller) tokenInfo() *auth.TokenInfo {
	return &auth.TokenInfo{UserID: c.user(), Extra: map[string]any{extraCaller: c}}
}

// callerOf gives the caller of a request; nil if neither the door nor a tunnel let it in.
func callerOf(r mcp.Request) *caller {
	if x := r.GetExtra(); x != nil && x.TokenInfo != nil {
		c, _ := x.TokenInfo.Extra[extraCaller].(*caller)
		return c
	}
	return nil
}
