package a2a

import (
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// state is the binding's part of the journal's state. Tasks are not in it: they are records.
type state struct {
	hooks *journal.Table[hookRow] // by hookKey
	outState
}

func newState(j *journal.Journal) state {
	return state{hooks: journal.NewTable[hookRow](j, "a2a-push", 0), outState: newOutState(j)}
}

// hookRow is a push notification configuration: a webhook of a task. The row of a task that has
// ended expires after hookRest.
type hookRow struct {
	Caller  string    `json:"caller"` // directory name
	Agent   string    `json:"agent"`
	URL     string    `json:"url"`
	Scheme  string    `json:"scheme,omitzero"` // of Authorization: "Bearer" or "Basic"
	Sealed  []byte    `json:"sealed,omitzero"` // [hookSecrets], with the key of the row
	Version string    `json:"version"`         // V1 or V03: what the client speaks
	Made    time.Time `json:"made"`
}

// hookSecrets are what a webhook must prove the hub by.
type hookSecrets struct {
	Token       string `json:"token,omitzero"`
	Credentials string `json:"credentials,omitzero"`
}

func hookKey(task parley.ID, id string) string { return task.String() + "/" + id }

func parseHookKey(key string) (task parley.ID, id string, ok bool) {
	text, id, _ := strings.Cut(key, "/")
	task, err := parley.ParseID(text)
	return task, id, err == nil && id != ""
}
