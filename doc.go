// Package parley is the vocabulary of Parley, a hub through which software
// agents of different protocols talk to each other.
//
// A [Message] goes from one agent to others, in no protocol's form. It enters the
// hub as an envelope of some protocol (SAMVAD, uAgents, A2E, AGH Network, ASP) or from
// a Go handler, and leaves it as an envelope of the recipient's protocol. On the way
// the hub verifies it (the [Verdict] has the proofs), admits it, records it in the
// journal, and delivers it to each recipient (a [Delivery] has the state).
//
// # Kinds
//
// A [Request] expects exactly one terminal reply, a [Response] or a [Failure]; before
// that any number of [Event] messages may report on it, numbered from 1. A [Notice]
// expects no reply. A [Cancel] gives up a request.
//
// # Names and identities
//
// From, To and Audience are names of the hub's directory ("weather",
// "crew/scout"), never wire identities: an agent may have identities in several
// protocols, and two guests that claim the same wire identity with different keys are
// two agents. [Origin] keeps the wire identity.
//
// # Content
//
// A message carries [Part] values in order, each with its media type and its
// bytes as they came; JSON is never re-serialised on the way in, so numbers
// keep their literals. [Message.Bind] reads a JSON part into a Go value,
// [Message.Text] gives the plain text.
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
// Inside a handler, [Ask], [Tell] and [Stream] call other agents in the name of the
// handler's agent. They use the context of the handler's call:
//
//	a, err := parley.Ask[Answer](ctx, "weather", "forecast", Query{City: "Bern"})
//
// # Errors
//
// Every failure that may reach an agent is an [*Error]: a [Code], a text that is safe
// to send to guests, whether a retry may help, and a private cause for the log and the
// operator. [Refuse] and [Fail] make one.
//
// This package imports the standard library alone. Package hub moves messages; package
// node makes a whole hub from a configuration.
package parley
