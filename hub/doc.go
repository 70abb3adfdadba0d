// Package hub takes a message from its sender's protocol to its recipient's: a
// [Submission], made by a protocol's binding from a verified envelope, is admitted by
// policy, recorded in the journal, routed to its recipients and delivered. Its reply
// takes the same way back.
//
// The files follow the life of a message: submit.go (admit, record), call.go (a caller
// waits), attempt.go (route, deliver), reply.go, cancel.go, deadline.go.
//
// # For bindings
//
// A [Binding] connects a protocol to the hub. Inbound it calls
//
//   - [Hub.Accept] for a message that needs no answer on the same connection: it returns
//     as soon as the message is as durable as the journal promises;
//   - [Hub.Ask] where a caller waits for the terminal reply;
//   - [Hub.Begin] where recording and waiting are two steps, or where the caller reads
//     events as they come ([Call.Stream]);
//   - [Hub.Refuse] for a request that it refused before the sender was verified.
//
// Outbound the hub calls [Binding.Deliver]. A binding that has the reply only later than
// Deliver returns (from a session, from a mailbox) passes it to Accept, with InReplyTo
// set.
//
// # Requests
//
// A request has one recipient (To) and exactly one recorded terminal reply: the
// recipient's, or a Failure that the hub composes when the request is given up, expires,
// or its deadline passes. That record also settles the request's delivery, so the second
// of two replies is refused.
//
// # Go handlers
//
// [Hub.Handle] registers an agent in this process. Each call of a handler has a
// goroutine of its own; a panic, or a handler that outlives its deadline, fails its own
// message only. A handler that does not return counts among [Config.HandlerCalls] until
// it does.
//
// In a handler's context its agent calls others: [parley.Ask]. [Hub.As] gives such a
// context to a program.
package hub
