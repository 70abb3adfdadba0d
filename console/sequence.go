package console

import (
	"time"

	"github.com/parley-hub/parley"
)

// This file is the model of the sequence diagram, in plain values. The pure function sequenceOf makes it from the data
// of admin; the pure function draw makes SVG of it.

// A Sequence is a diagram: lanes beside the hub, and rows in the order of recording.
type Sequence struct {
	Hub   string
	Lanes []Lane // from left to right
	Left  int    // how many of them are left of the hub
	Rows  []SequenceRow
	Work  []Work
	Label string // what it shows, for readers that do not see it
}

// A Lane is an agent beside the hub, or all those that have no lane of their own.
type Lane struct {
	Name, Group string   // the end of the name, and what is before it
	Protocol    string   // as people write it
	Agents      []string // that it stands for
	Title       string
}

// RowKind says what a row is.
type RowKind string

// The kinds of rows.
const (
	MessageRow RowKind = "message"
	EventsRow  RowKind = "events"  // folded events of one request
	RefusalRow RowKind = "refusal" // refused before it was recorded
	SilenceRow RowKind = "silence"
	GapRow     RowKind = "gap" // messages that the hub had, or has, and the diagram does not show
)

// bead is a step of the pipeline, in the order of docs/design.md.
type bead int

const (
	beadReceived bead = iota
	beadVerified
	beadAdmitted
	beadRecorded
	beadRouted
	beadTranslated
	beadDelivered
	beadSettled
	beads // their number
)

var beadNames = [beads]string{"received", "verified", "admitted", "recorded", "routed", "translated",
	"delivered", "settled"}

// A SequenceRow is one thing that happened. Those without a time have only Text.
type SequenceRow struct {
	Kind   RowKind
	ID     string // of the message, or the reference of the refusal
	Href   string
	Desc   string // all of it in one sentence
	Chosen bool
	At     time.Time
	Since  string // distance from the start

	What, Name, Say string // "request", "quote", and the beginning of the content
	Bad             bool   // it is a failure, or failed
	Took            string // in the hub
	Text            string // of a silence or a gap; else a line below the wire
	Lossy           bool   // Text is about a loss, not about a failure

	From    int    // lane; -1: not known
	Address string // of a sender that is not known
	Proof   Proof
	Names   [2]string // sender, recipients: for the list
	Ways    [2]string // protocols in and out: for the list
	State   string    // of the row in data-state
	Folded  int       // how many events it stands for

	Passed  bead // how many steps before delivery are known to be done: 1 to 6
	Refused bead // the step that refused, if Kind or State says so; else -1
	Wires   []Wire
}

// A Wire is the way from the hub to one recipient.
type Wire struct {
	To       int
	State    parley.DeliveryState // 0: there is no delivery
	Passed   bead                 // steps before delivery that are done for this recipient
	Attempts []Try                // those that are drawn
	Tried    int                  // all attempts
	Failed   int                  // those that failed
	Next     string               // when the next attempt is
	Lost     int
	Untold   string // why no recipient gets it, in the words of the loss table
	Own      bool   // the recipient takes it by itself: a handler, an inbox, the answer to a call
	Settled  bool
}

// A Try is one attempt.
type Try struct {
	Number int
	At     time.Time
	Result string // "503 after 212 ms"
	Failed bool
	Open   bool   // its outcome is not recorded
	Pause  string // before it

	Omitted int // attempts before it that are not drawn
}

// A Work is the time in which an agent had a request and had not answered it.
type Work struct {
	Lane     int
	From, To int // rows; To is -1 while there is no answer
	Wire     int // of the row From
	Label    string
}
