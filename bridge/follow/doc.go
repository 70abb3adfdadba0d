// Package follow reads what is recorded about a request, and follows it live. For example, a
// client calls an agent through a binding: the binding subscribes to the id of the request, lets
// the hub accept it, and takes the agent's progress and its answer as they are recorded. The
// client hangs up, and asks for the result an hour later by the id: the binding finds the request
// of this client, and loads what was recorded about it, also after a restart or at another hub.
//
// # Without gaps
//
// Nothing is stored for a request but its records, and everything about it is in its partition, in
// order. [Requests.Subscribe] before the hub accepts the request: then [Subscription.Take] begins
// with the request itself. For a request that was accepted before: Subscribe, then [Requests.Find]
// and [Requests.Load], then Take. So no record is missing, but one may come twice: count each once,
// by the sequence of its position. Take also gives cancels, which Load leaves out.
//
// # Callers
//
// Find gives a request only to its sender. A request of another sender is not found, like one that
// does not exist. Load and [Requests.Request] check no caller: give them what Find gave, or what
// the index lists for the caller.
//
// # Bounds
//
// A subscription never holds the journal up: it queues 1,024 records and 4 MiB of content. If more
// wait, Take fails with [ErrSlow]: end the subscription, and begin again as for a request that was
// accepted before. A load ends after 10,000 records or [MaxBytes]. A call waits at most 5 s for the
// index. The number of subscriptions is for the binding to bound.
package follow
