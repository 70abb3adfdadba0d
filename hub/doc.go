// Package hub is the one way through Parley: a [Submission], made by a
// protocol's binding out of a verified envelope, is admitted by policy,
// recorded in the journal, routed to its recipients and delivered, and its
// reply travels back the same way.
//
// # For bindings
//
// A [Binding] joins a protocol to the hub. Inbound it calls
//
//   - [Hub.Accept] for what needs no answer on the same connection: it returns
//     as soon as the message is as durable as the journal promises;
//   - [Hub.Ask] where a caller waits for the terminal reply;
//   - [Hub.Begin] where recording and waiting are two steps, or where the
//     caller sees events as they come ([Call.Stream]);
//   - [Hub.Refuse] for what it turned away before it was proved.
//
// Outbound the hub calls [Binding.Deliver]. Whoever reaches a recipient only
// later than Deliver returns (by a session, a mailbox) hands the reply in by
// Accept, with InReplyTo set.
//
// # Requests
//
// A request has one recipient (To) and exactly one terminal reply is
// recorded for it: the recipient's, or a Failure that the hub composes when it
// is given up, expires, or its deadline passes. That record also settles the
// request's delivery, so that the second of two replies is refused.
//
// # Go handlers
//
// [Hub.Handle] registers an agent in this process. Each call of a handler has
// a goroutine of its own; a panic, or a handler that outlives its deadline,
// fails its own message only. A handler that does not return keeps its place
// among [Config.HandlerCalls].
package hub
