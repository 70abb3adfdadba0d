// Package mcp joins MCP (Model Context Protocol) to the hub, in both directions. For example, an editor that knows the
// URL http://hub.example/mcp and a token lists the tool weather__forecast there, and calls it; the agent weather may
// speak any protocol. And a SAMVAD agent that asks the agent files calls a tool of an MCP server that is attached to
// the hub under that name.
//
// The package stands on the official SDK (github.com/modelcontextprotocol/go-sdk): its sessions, streams, types and
// clients.
// It serves the revisions from 2024-11-05 to 2026-07-28. What the SDK leaves open is done here: the door of the HTTP
// endpoints, and the bounds of attached servers.
//
// # What is what, for clients
//
//	/mcp                   all agents that the caller may use; tools are named agent__skill
//	/mcp/agents/NAME       one agent; tools are named as its skills
//	tools/call             a Request; the id of the recorded message is the handle for parley_result
//	progress               Events
//	elicitation            a needs-input Event; its answer is an Input
//	cancelled              a Cancel
//	resources              cards of agents, and the caller's conversations
//
// A call has no replay key but the one that the client gives: the member hub.parley/idempotencyKey of _meta.
//
// # What is what, for attached servers
//
//	tool                   a skill of the agent
//	Request, Notice        tools/call
//	result                 a Response; with isError a Failure
//	progress               working Events
//	elicitation            a needs-input Event, if the operator allows it
//
// # Callers
//
// [bridge.Callers] knows callers by token, OIDC or TLS certificate: assurance session. A caller without credentials is
// a guest, refused unless an agent is open to guests.
package mcp
