// Package delivery hands recorded messages to their recipients, in order, as
// often as it takes, and keeps account of it in the journal.
//
// # Lanes
//
// A lane holds the deliveries of one (recipient, conversation), in the order
// of their records. One of them is tried at a time; a failing one blocks its
// lane and nothing else. A recipient has a bounded number of lanes at work
// ([Config.PerRecipient]), so that a slow or dead one delays nobody else.
//
// # Attempts
//
// Every attempt is recorded before it is made: with the message itself where
// [Dispatcher.Claim] found its lane idle, or under way to a recipient that
// recognises repeats, else by a step of its own. What came of it is
// recorded together with the reply, if there is one, in one record: so a
// request never has a reply without being settled, nor the reverse.
//
//   - A refusal by the recipient, or a failure of its own, is its answer.
//   - A failure that a repeat may mend leads to another attempt after a pause
//     that grows from [Retry.First] to [Retry.Longest].
//   - "Come back later" (a 429, a Retry-After, a paused agent) postpones and
//     does not count as a try.
//   - After [Retry.Tries] tries, or [Retry.For], it becomes a dead letter; that is
//     recorded, and the sender of a request is told, before it is given up.
//   - A message that expires, or a request whose deadline passes, before its turn
//     comes is settled as such, and the sender of a request told, also while the
//     recipient is paused or left alone after a failure.
//
// # After a crash
//
// [Dispatcher.Resume] takes up what the journal holds. An attempt of which no
// outcome was recorded, be it one that succeeded the moment before, is repeated
// where the carrier says that the recipient recognises repeats; elsewhere it
// becomes the dead letter "outcome_unknown", unless [Config.AtLeastOnce] says
// otherwise. A request whose caller waited on the lost connection is never
// started anew.
package delivery
