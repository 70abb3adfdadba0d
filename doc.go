// Package parley is the vocabulary of Parley, a hub through which software
// agents of different protocols talk to each other.
//
// A [Message] is what one agent says to others, free of any protocol. It
// enters the hub as an envelope of some protocol (SAMVAD, uAgents, A2E, AGH
// Network, ASP) or from a Go handler, and leaves it as an envelope of the
// recipient's protocol. On the way it is verified (a [Verdict] says what was
// proved and how), admitted, recorded in the journal, and handed to each
// recipient, of which a [Delivery] keeps account.
//
// # Kinds
//
// A [Request] expects exactly one terminal reply, a [Response] or an [Error]
// of kind [Failure]; before that any number of [Event] messages may speak
// about it, numbered from 1. A [Notice] expects no reply. A [Cancel] asks
// that a request be given up.
//
// # Names and identities
//
// From, To and Audience are names of the hub's directory ("weather",
// "crew/scout"), never wire identities: an agent may own identities in
// several protocols, and two strangers who claim the same wire identity with
// different keys are two agents. What the wire said is kept in [Origin].
//
// # Content
//
// A message carries [Part] values in order, each with its media type and its
// bytes as they came; JSON is never re-serialised on the way in, so numbers
// keep their literals. [Message.Bind] reads a JSON part into a Go value,
// [Message.Text] gives what there is of plain text.
//
// # Handlers
//
// An agent in the same process is an [Agent] with skills. [Skill] makes one
// from a typed function, whose types become the schemas that cards, manifests
// and tools show; [RawSkill] takes the message as it is:
//
//	parley.Skill("forecast", func(ctx context.Context, m *parley.Message, q Query) (Answer, error) {
//		if m.Origin.Verdict.Assurance < parley.Signed {
//			return Answer{}, parley.Refuse(parley.Unauthenticated, "signed requests only")
//		}
//		parley.Progress(ctx, "asking the station")
//		return Answer{Celsius: 21}, nil
//	})
//
// # Errors
//
// Every failure that may reach an agent is an [*Error]: a [Code], a text that
// is safe to send to strangers, whether a repeat may help, and a private
// cause that only the log and the operator see. [Refuse] and [Fail] make one.
//
// This package imports the standard library alone. What carries messages is
// in package hub; what assembles a whole hub from a configuration is in
// package node.
package parley
