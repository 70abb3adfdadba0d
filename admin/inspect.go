package admin

import (
	"time"
)

// An Inspection is a message to explain: pasted, or recorded. Nothing of it is sent or kept.
type Inspection struct {
	// Input is the pasted text: an envelope, an HTTP request, a curl command, an entry of a HAR file; or the id of a
	// message or the reference of a refusal, as ID is. At most MaxInspection bytes.
	Input []byte `json:"input,omitzero"`
	ID    string `json:"id,omitzero"` // of a recorded message, or its beginning; or the reference of a refusal

	At       time.Time `json:"at,omitzero"`       // judges freshness; zero: now, or the time of arrival of what is recorded
	Protocol string    `json:"protocol,omitzero"` // insists on one; "": as recognised
	Self     string    `json:"self,omitzero"`     // identity to which the message should be addressed
	Keys     []string  `json:"keys,omitzero"`     // public keys of the sender, base64, besides those that the hub knows
	Card     []byte    `json:"card,omitzero"`     // the sender's card
}

// MaxInspection bounds [Inspection.Input] in bytes.
const MaxInspection = 1 << 20

// Inspected explains a message. Secrets in it are masked.
type Inspected struct {
	Protocol string           `json:"protocol"`
	Version  string           `json:"version,omitzero"` // of the protocol, as the message tells it
	Form     string           `json:"form"`             // of the input: "HTTP request", "curl command"
	Fields   []InspectedField `json:"fields"`
	Signed   []InspectedStep  `json:"signed"` // how the signed bytes come about
	Differs  []Difference     `json:"differs,omitzero"`
	Checks   []InspectedCheck `json:"checks"`        // in order
	Verified bool             `json:"verified"`      // every check was made, and none failed
	Sentence string           `json:"sentence"`      // why it fails, or what it proves
	Fix      string           `json:"fix,omitempty"` // what helps

	At      time.Time `json:"at,omitzero"`      // for which freshness was judged
	Message *Recorded `json:"message,omitzero"` // the recorded message that the id names
	Refusal *Refusal  `json:"refusal,omitzero"` // the refusal that the reference names
}

// An InspectedField is a field of a message, and its meaning.
type InspectedField struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Meaning string `json:"meaning"`
}

// An InspectedStep is one step on the way to the signed bytes.
type InspectedStep struct {
	Step string `json:"step"`
	Text string `json:"text"`
}

// A Difference is a part of the signed bytes that is not what was sent: Part "@path", Signed "/agents/weather/…", Sent
// "/x/agents/weather/…".
type Difference struct {
	Part   string `json:"part"`
	Signed string `json:"signed"`
	Sent   string `json:"sent"`
}

// An InspectedCheck is one check of a message.
type InspectedCheck struct {
	Name   string     `json:"name"`
	State  CheckState `json:"state"`
	Detail string     `json:"detail,omitempty"`
}

// CheckState is the outcome of an [InspectedCheck].
type CheckState string

// The outcomes of a check.
const (
	CheckOK      CheckState = "ok"
	CheckFailed  CheckState = "failed"
	CheckSkipped CheckState = "not made" // an input for the check is missing
)
