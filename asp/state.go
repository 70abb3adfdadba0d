package asp

import "strings"

// A State is one of the nine of the session state machine
// (specification/state-machine).
type State string

// The states. Closed and Failed are terminal.
const (
	Idle       State = "IDLE"
	Invited    State = "INVITED"
	Introduced State = "INTRODUCED"
	Conversing State = "CONVERSING"
	Agreeing   State = "AGREEING"
	Executing  State = "EXECUTING"
	Escalated  State = "ESCALATED"
	Closed     State = "CLOSED"
	Failed     State = "FAILED"
)

// Terminal reports whether nothing can follow s.
func (s State) Terminal() bool { return s == Closed || s == Failed }

// Events are performatives, some with the type of their body.
const (
	eventInvitation   = "PROPOSE:session-invitation"
	eventIntroduction = "INFORM:introduction"
	eventResolved     = "INFORM:escalation-resolved"
	eventTimeout      = "@timeout"
)

// resume stands for the state before ESCALATED.
const resume State = "@resume"

// transitions is the table of the digest, row by row. A pair that is absent
// is an invalid transition. PROPOSE never stands for an invitation.
var transitions = map[State]map[string]State{
	Idle: {
		eventInvitation: Invited,
	},
	Invited: {
		"ACCEPT": Introduced, "REJECT": Failed, "COUNTER": Invited,
		"WITHDRAW": Closed, "CLOSE": Closed, eventTimeout: Failed,
	},
	Introduced: {
		"PROPOSE": Conversing, "QUERY": Conversing, "INFORM": Conversing, "OBSERVE": Conversing,
		eventIntroduction: Introduced, "CLOSE": Closed, eventTimeout: Failed,
	},
	Conversing: {
		"PROPOSE": Conversing, "COUNTER": Conversing, "INFORM": Conversing, "QUERY": Conversing,
		"CLARIFY": Conversing, "OBSERVE": Conversing, "DELEGATE": Conversing, "WITHDRAW": Conversing,
		"ACCEPT": Conversing, "REJECT": Conversing, "COMMIT": Agreeing, "ESCALATE": Escalated,
		"CLOSE": Closed, eventTimeout: Failed,
	},
	Agreeing: {
		"ACCEPT": Executing, "REJECT": Conversing, "COUNTER": Conversing, "WITHDRAW": Conversing,
		"INFORM": Agreeing, "QUERY": Agreeing, "CLARIFY": Agreeing, "OBSERVE": Agreeing,
		"ESCALATE": Escalated, "CLOSE": Closed, eventTimeout: Conversing,
	},
	Executing: {
		"INFORM": Executing, "QUERY": Executing, "CLARIFY": Executing, "OBSERVE": Executing,
		"DELEGATE": Executing, "ESCALATE": Escalated, "CLOSE": Closed, eventTimeout: Failed,
	},
	Escalated: {
		"INFORM": Escalated, "QUERY": Escalated, "CLARIFY": Escalated, "OBSERVE": Escalated,
		eventResolved: resume, "CLOSE": Closed, eventTimeout: Failed,
	},
}

// Next gives the state after event in state from. An event is a performative
// ("ACCEPT"), a performative with the type of its body ("PROPOSE:session-invitation",
// "INFORM:introduction"), or "@timeout". before is the state before an escalation.
// Next fails with session_closed or invalid_transition.
func Next(from State, event string, before State) (State, error) {
	if from.Terminal() {
		return from, refuse("session_closed", "")
	}
	row := transitions[from]
	to, ok := row[event]
	if !ok && event != eventInvitation {
		performative, _, _ := strings.Cut(event, ":")
		to, ok = row[performative]
	}
	if !ok {
		return from, refuse("invalid_transition", "performative")
	}
	if to == resume {
		to = before
	}
	return to, nil
}

// event gives the event of e for the state machine.
func (e *Envelope) event() string {
	if sub := e.subtype(); sub != "" {
		return string(e.Performative) + ":" + sub
	}
	return string(e.Performative)
}
