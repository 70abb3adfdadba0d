package a2a

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// outState is the state for calls of agents elsewhere.
type outState struct {
	sent     *journal.Table[sentRequest]  // by message
	contexts *journal.Table[agentContext] // by contextKey
}

func newOutState(j *journal.Journal) outState {
	return outState{
		sent:     journal.NewTable[sentRequest](j, "a2a-outgoing", 0),
		contexts: journal.NewTable[agentContext](j, "a2a-contexts", 4096),
	}
}

// A sentRequest is a message that an agent elsewhere has, or may have.
type sentRequest struct {
	To      string    // directory name of the agent
	Peer    string    // its identity
	URL     string    // that the operator enrolled
	Hop     string    `json:",omitempty"` // W3C trace context of the request
	Until   time.Time // end of the row
	Task    string    `json:",omitempty"` // "": the agent may not have the request, or answers with a message
	Context string    `json:",omitempty"` // contextId
	Streams bool      `json:",omitempty"` // the requester reads events
	State   string    `json:",omitempty"` // the last one that was seen
	Inputs  int       `json:",omitempty"` // sent about it

	// What the requester was told already. A row may be behind: each event has a replay
	// key besides.
	Told      []string             `json:",omitempty"` // statuses, the last ones
	Artifacts map[string]toldParts `json:",omitempty"` // by artifactId
	Events    int                  `json:",omitempty"` // all of them
}

// toldParts counts the parts of an artifact that were told. An artifact that the agent
// replaces begins anew, in another round.
type toldParts struct {
	Parts int
	Round int `json:",omitempty"`
}

const (
	// rowRetention is how long a row outlives its request: to cancel the task of one whose
	// deadline passed, also if no hub was there then.
	rowRetention = 24 * time.Hour
	// contextRetention is how long an unused context is remembered.
	contextRetention = 30 * 24 * time.Hour
	// maxTold bounds the statuses that a row remembers, and the artifacts.
	maxTold = 64
	// maxEvents bounds the events about one request. The answer is told all the same.
	maxEvents = 8192
)

// An agentContext is the context that an agent gave to a conversation of the hub.
type agentContext struct {
	Agent        string
	Conversation parley.ID
	Context      string
}

type contextRow = journal.Row[agentContext]

func contextKey(agent string, conversation parley.ID) string {
	sum := sha256.Sum256(append([]byte(agent+"\n"), conversation[:]...))
	return hex.EncodeToString(sum[:16])
}

// forgetCalls removes what is remembered about an agent elsewhere or a conversation. Open
// tasks stay, unless their request is forgotten.
func (b *Binding) forgetCalls(ctx context.Context, f hub.Forgetting) (int, error) {
	n, err := b.sent.Sweep(ctx, "", func(r *journal.Row[sentRequest]) journal.Fate {
		if id, err := parley.ParseID(r.Key); err == nil && f.Message != nil && f.Message(id) {
			return journal.Remove
		}
		return journal.Keep
	})
	if err != nil {
		return n, err
	}
	k, err := b.contexts.Sweep(ctx, "", func(r *contextRow) journal.Fate {
		if f.Agent != "" && r.Value.Agent == f.Agent ||
			!f.Conversation.IsZero() && r.Value.Conversation == f.Conversation {
			return journal.Remove
		}
		return journal.Keep
	})
	return n + k, err
}
