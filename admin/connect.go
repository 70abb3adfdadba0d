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

// A ConnectRequest asks the hub to connect an agent. The hub reads the rest of what it needs from the agent's card. For
// example Protocol "samvad", Address "https://museum.corp", Name "museum".
type ConnectRequest struct {
	Protocol string `json:"protocol"`
	Name     string `json:"name"` // in the directory
	// Address says where the agent is, as the flag of `parley agents add` does: of SAMVAD, A2A and MCP the URL (or
	// "new": it only calls), of MCP also "attached"; of A2E "new" or the host's URL; of uAgents agent1q…; of AGH
	// WORKSPACE/PEER; of ASP nothing: Card says it.
	Address  string `json:"address,omitzero"`
	ID       string `json:"id,omitzero"`       // SAMVAD: its identity, if not that of its card
	Endpoint string `json:"endpoint,omitzero"` // uAgents: where it takes envelopes
	Key      string `json:"key,omitzero"`      // SAMVAD: its public key, base64
	KeyID    string `json:"keyId,omitzero"`
	Card     []byte `json:"card,omitzero"` // ASP: its card

	Title       string   `json:"title,omitzero"`
	Expose      []string `json:"expose,omitzero"`
	Credentials Secret   `json:"credentials,omitzero"` // A2A and MCP: what the hub shows to it
}

// A Checklist says how far an agent is connected. The hub works on it by itself; readers only look.
type Checklist struct {
	Agent    string        `json:"agent"`
	Protocol string        `json:"protocol"`
	State    StepState     `json:"state"` // done, waiting, failed, or gave up
	Begun    time.Time     `json:"begun"`
	Ends     time.Time     `json:"ends"`  // when the hub gives up waiting, or did, or when all was done
	Steps    []ConnectStep `json:"steps"` // the seven, in order

	Command string    `json:"command,omitzero"` // of a terminal that does the same
	Paste   []Snippet `json:"paste,omitzero"`   // lines for the agent's side
	Notes   []string  `json:"notes,omitzero"`   // what the operator should know
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

// A Snippet is a text to enter at an agent's side.
type Snippet struct {
	Title    string `json:"title"`    // why: "so that the agent accepts what the hub sends"
	Language string `json:"language"` // "Python", "shell"
	Text     string `json:"text"`
}
