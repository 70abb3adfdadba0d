// Package delivery sends recorded messages to their recipients, in order, with
// retries, and records the outcome of each in the journal.
//
// # Lanes
//
// A lane holds the deliveries of one (recipient, conversation), in the order of their
// records. One of them is tried at a time; a failing one blocks its lane and nothing
// else. For a recipient with [parley.Retries.Unordered] it gets a lane of its own. A
// recipient has a bounded number of lanes active ([Config.PerRecipient]), so that a
// slow or dead recipient does not delay others. What handlers of this process ask each
// other never waits in a circle: see [Dispatcher.Claim].
//
// # Attempts
//
// Every attempt is recorded before it is made: with the message itself where
// [Dispatcher.Claim] found its lane idle, or in a turn for a recipient that
// deduplicates; else by a step of its own. Its outcome is recorded together with
// the reply, if there is one, in one record: a request never has a reply without
// being settled, nor the reverse.
//
//   - A refusal by the recipient, or a failure of its own, is its answer.
//   - A failure that a retry may mend leads to another attempt after a pause that
//     grows from [Retry.First] to [Retry.Longest].
//   - "Come back later" (a 429, a Retry-After, a paused agent) postpones, and does
//     not count as a try.
//   - After [Retry.Tries] tries, or [Retry.For], the message becomes a dead letter.
//     That is recorded together with the failure that the sender of a request gets.
//     A recipient may have numbers of its own ([parley.Retries]).
//   - A message that expires, or a request whose deadline passes, before its turn
//     is settled as such, also while the recipient is paused or left alone after a
//     failure.
//
// # Health
//
// Attempts also show whether the recipient itself can be reached; [Dispatcher.Health]
// tells it. A recipient is failing from the first attempt that did not reach it to the
// next that did. An error of this hub, or the refusal of one message, says nothing
// against it. A recipient that failed often is tried through one lane at a time.
//
// # After a crash
//
// [Dispatcher.Resume] queues the journal's unsettled deliveries. An attempt without a
// recorded outcome, even one that succeeded the moment before, is repeated where the
// recipient deduplicates. Elsewhere the message becomes the dead letter
// "outcome_unknown", unless [Config.AtLeastOnce] says otherwise. A request whose
// caller waited on the lost connection is never sent again.
package delivery
