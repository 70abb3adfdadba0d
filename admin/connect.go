package admin

import (
	"time"

	"github.com/parley-hub/parley/hub"
)

// A DoctorStep is one check of the way to an agent, and the microseconds since the one before.
type DoctorStep struct {
	hub.Finding
	Micros int64 `json:"micros,omitzero"`
}

// A Checklist says how far an agent is connected. The hub works on it by itself; readers only look. Details are
// texts of the hub and of findings, without content of messages.
type Checklist struct {
	Agent    string        `json:"agent"`
	Protocol string        `json:"protocol"`
	State    StepState     `json:"state"` // done, waiting, failed, or gave up
	Begun    time.Time     `json:"begun"`
	Ends     time.Time     `json:"ends"`  // when the hub gives up waiting, or did, or when all was done
	Steps    []ConnectStep `json:"steps"` // the seven, in order

	Paste   []Paste `json:"paste,omitzero"` // the lines to enter at the agent's side
	Version string  `json:"version"`        // of the steps: for [Admin.NextChecklist]
}

// A ConnectStep is one step of a [Checklist].
type ConnectStep struct {
	Step   ConnectStepName `json:"step"`
	State  StepState       `json:"state"`
	Time   time.Time       `json:"time,omitzero"`   // when it turned to this state
	Micros int64           `json:"micros,omitzero"` // microseconds of the work for it
	Detail string          `json:"detail,omitzero"`
	Fix    string          `json:"fix,omitzero"` // the setting or command that mends a failed step
	Ref    string          `json:"ref,omitzero"` // of the refusal that is the reason
}

// ConnectStepName names a step of a [Checklist].
type ConnectStepName string

// The steps, in order.
const (
	StepProtocol     ConnectStepName = "protocol"      // what the agent speaks
	StepAddress      ConnectStepName = "address"       // where it is, and its name
	StepReached      ConnectStepName = "reached"       // address, connection, TLS, clock
	StepCard         ConnectStepName = "card"          // card and key
	StepHubKey       ConnectStepName = "hub key"       // the agent accepts the hub's key
	StepFirstMessage ConnectStepName = "first message" // proved, from the agent
	StepAnswered     ConnectStepName = "answered"      // by the agent
)

// StepState is the state of a step, or of a whole [Checklist].
type StepState string

// The states of a step.
const (
	StepWaiting   StepState = "waiting"
	StepDone      StepState = "done"
	StepFailed    StepState = "failed"
	StepNotNeeded StepState = "not needed"
	StepGaveUp    StepState = "gave up" // the hub no longer waits
)
