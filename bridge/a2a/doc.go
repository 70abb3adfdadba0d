// Package a2a joins A2A to the hub: each agent that is exposed in A2A is an A2A agent at
// /a2a/NAME below the public URL, in wire versions 1.0 and 0.3, and agents elsewhere are
// called through their card. For example, a client that knows http://hub.example/a2a/weather
// reads the card at …/a2a/weather/.well-known/agent-card.json and sends a message there; the
// agent weather may speak any protocol.
//
// The package stands on the official SDK (github.com/a2aproject/a2a-go/v2): its types and
// codecs, its conversions to 0.3, its gRPC handlers, and its clients. The HTTP side is
// written here, because it must refuse what the SDK's transports accept.
//
// # What is what
//
//	message without taskId   a Request; the id of the recorded message is the id of the task
//	message with taskId      an Input about that request
//	task                     a request with what was recorded about it; nothing else is stored
//	context                  a conversation
//	status update            an Event with a state
//	artifact update          an Event without a state, and the Response
//	webhook                  a delivery to "NAME (callback ID)", with attempts and dead letters
//
// So tasks are in the journal: they outlive restarts, every hub of a cluster finds them, and
// they end with the retention of their messages. A task is found through the index of the
// journal, and shown only to the caller that made it.
//
// # Scope and replay
//
// The scope of a message is the addressed agent and the caller; the replay key is messageId
// within it. The same id with the same content gives the task of the first; with other
// content it is an invalid-params error.
//
// # Callers
//
// [bridge.Callers] knows callers by token, OIDC or TLS certificate: assurance session. A
// caller without credentials is a guest, refused unless the agent is open to guests.
// Signatures are on cards alone.
package a2a
