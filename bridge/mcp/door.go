package mcp

import "net/http"

// door has the HTTP endpoints of clients: what comes in is checked here, before the SDK sees it.
type door struct{ b *Binding }

func newDoor(b *Binding) *door { return &door{b: b} }

func (d *door) close() error { return nil }

// ServeHTTP serves the endpoints of clients and of tunnels:
//
//	     /mcp, /mcp/agents/NAME                              Streamable HTTP
//	GET  /mcp/connect, /mcp/connect/agents/NAME              tunnel of a client (WebSocket, "parley mcp stdio")
//	GET  /mcp/attach/NAME                                    tunnel of an attached server (WebSocket, "parley mcp attach")
//	GET  /.well-known/oauth-protected-resource/mcp[/…]       protected resource metadata (RFC 9728)
//
// The path is below the public URL.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }
