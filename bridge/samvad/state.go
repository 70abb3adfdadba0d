package samvad

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley/journal"
	protocol "github.com/parley-hub/parley/samvad"
)

// state is the binding's part of the journal's state.
type state struct {
	tasks       *journal.Table[task]       // by message; below refusedTask those that the server refused
	remoteTasks *journal.Table[remoteTask] // by message
	spending    *journal.Table[spending]   // by day, process and a hash of agent and sender
}

func newState(j *journal.Journal) state {
	return state{
		tasks:       journal.NewTable[task](j, "samvad-tasks", 0),
		remoteTasks: journal.NewTable[remoteTask](j, "samvad-outgoing", 0),
		spending:    journal.NewTable[spending](j, "samvad-tokens", 0),
	}
}

// task is the record of an asynchronous request, by which the hub answers polls, over
// restarts. Its key is the id of the message. A callback is a delivery of the reply.
type task struct {
	Agent    string // identity that was addressed
	From     string // identity of the sender
	To       string // its directory name
	Trace    string
	Callback string `json:",omitempty"`
	Status   protocol.TaskStatus
	Result   json.RawMessage `json:",omitempty"`
	Code     protocol.Code   `json:",omitempty"`
	Text     string          `json:",omitempty"`
}

// retention is how long senders can read the result of a task (SAM-122 wants an
// hour).
const retention = 2 * time.Hour

// refusedTask begins the keys of tasks that the server itself made, for requests
// with a payload that does not fit the schema (SAM-090). Their ids are 122 random
// bits.
const refusedTask = "refused/"

// A remoteTask is a request that an agent elsewhere works on as a task.
type remoteTask struct {
	To    string    // directory name of the agent
	Peer  string    // its identity
	Base  string    // its base URL
	Trace string    // of the request
	Hop   string    `json:",omitempty"` // W3C trace context of the request
	Nonce string    // of the envelope
	Made  time.Time // the envelope's timestamp
	Until time.Time // end of the row
	Task  string    `json:",omitempty"` // "": the agent may not have it

	misses int // polls in a row that found no such task
}

// spending is how many tokens of a sender one process counted on one day.
type spending struct {
	Agent  string `json:"agent"`
	Sender string `json:"sender"`
	Tokens int64  `json:"tokens"`
}

// memory finds replays in the journal before the signature is verified. The record
// itself reserves a nonce, so that the verifier never calls Seen.
type memory struct{ j *journal.Journal }

func (m memory) Known(_ context.Context, key string) (bool, error) {
	to, rest, ok := strings.Cut(key, "\n")
	if !ok {
		return false, fmt.Errorf("replay key %q has no addressed agent", key)
	}
	_, seen := m.j.Seen(scope(to), rest)
	return seen, nil
}

func (m memory) Seen(context.Context, string, time.Time) (bool, error) {
	return false, fmt.Errorf("a nonce is reserved by its record")
}

// scope of a message: the addressed agent.
func scope(to string) string { return Protocol + " " + to }

// key of a message within its scope: its sender and nonce.
func key(e *protocol.Envelope) string { return e.From + "\n" + e.Nonce }
