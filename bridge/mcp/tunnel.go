package mcp

import "net/http"

// serveConnect is the tunnel of a client: a session over WebSocket, with one JSON-RPC message in each text frame. The door
// has checked Host, Origin and the caller.
func (b *Binding) serveConnect(w http.ResponseWriter, r *http.Request, c *caller) {}

// serveAttach is the tunnel of an attached server: the hub is the client on it. The door has checked Host, Origin and the
// caller, and that it is the agent whose server it brings.
func (b *Binding) serveAttach(w http.ResponseWriter, r *http.Request, agent string) {}
