package journal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// A Position identifies a record: its partition, and its sequence there. The zero
// Position is none; sequences begin at 1 and have gaps.
type Position struct {
	Partition int
	Sequence  uint64
}

// IsZero reports whether p is none.
func (p Position) IsZero() bool { return p == Position{} }

// String is "partition-sequence", "" for none.
func (p Position) String() string {
	if p.IsZero() {
		return ""
	}
	return strconv.Itoa(p.Partition) + "-" + strconv.FormatUint(p.Sequence, 10)
}

// MarshalText writes the form of String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *Position) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*p = Position{}
		return nil
	}
	v, err := ParsePosition(string(b))
	if err == nil {
		*p = v
	}
	return err
}

var errPosition = errors.New("not a position: want partition-sequence in decimal")

// ParsePosition reads the form that [Position.String] writes, and no other.
func ParsePosition(s string) (Position, error) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		return Position{}, errPosition
	}
	n, err1 := strconv.ParseUint(a, 10, 16)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	p := Position{Partition: int(n), Sequence: seq}
	if err1 != nil || err2 != nil || seq == 0 || p.String() != s {
		return Position{}, errPosition
	}
	return p, nil
}

// An Entry is recorded as a whole: a message with the deliveries it opens, steps of
// deliveries, or both, for example a reply together with the step that settles its
// request.
type Entry struct {
	// Scope selects the partition. It may be empty if Steps is not: the entry then
	// goes to the partition of their deliveries. Steps of deliveries in another
	// partition than Scope's are refused with ErrScope.
	Scope string

	Message *parley.Message // nil: only steps. Not changed after the call
	Open    []Opening       // deliveries of Message; at most one for each recipient
	Steps   []Step          // at most one for each delivery

	// Losses are the losses in the translation of Message for the requester, if
	// Message is an event without a delivery of its own. They are added to the open
	// delivery of the request to Message.From.
	Losses []parley.Loss

	// Refused is the reason why Message, though proved, was not admitted. Such an
	// entry uses up Key and opens no delivery.
	Refused *parley.Error

	Key   Key        // for Accept
	Chain *ChainLink // compare-and-set
	Fence *Lease     // if this lease was lost, the entry is refused with ErrFenced

	// Late: no caller waits for the entry. It may be held back for some
	// milliseconds to share a sync with others.
	Late bool
}

// An Opening opens the delivery of a message to one recipient.
type Opening struct {
	To        string
	Attempt   int       // 0: Waiting; 1: Delivering, the first attempt is recorded with the message
	Sync      bool      // a caller waits for the outcome: after a crash it is Abandoned, not resumed
	NotBefore time.Time // Waiting: no attempt before this
}

// A Step changes the state of one delivery; the package documentation has the table
// of transitions.
type Step struct {
	Message   parley.ID
	To        string
	State     parley.DeliveryState
	Attempt   int       // Delivering: the last attempt plus one. Else the attempt with this outcome; 0: any
	Next      time.Time // Waiting: no attempt before this
	Postponed bool      // Waiting: the attempt does not count (429, Retry-After)
	Reply     parley.ID // Answered: the terminal reply; the entry's own message where zero
	Error     *parley.Error
	Losses    []parley.Loss    // added to the delivery's earlier losses
	Exchange  *parley.Exchange // of the attempt that this step ends, if one was made
}

// A Key makes a replay detectable.
type Key struct {
	ID     string    // unique within the scope, e.g. "samvad nonce " + nonce; only a hash is kept. Empty: no key
	Sender string    // a key that outlives Config.Window counts against its allowance
	Until  time.Time // the key expires and is forgotten; zero: Config.Window from now
}

// A ChainLink makes an append conditional: After must still be the chain's last
// record.
type ChainLink struct {
	Name  string // of the chain, unique within the scope's partition
	After uint64 // sequence of the chain's last record; 0: this is the first
}

// A Prior describes the record that used a replay key first.
type Prior struct {
	Position Position
	Message  parley.ID // zero: the entry had none
	Recorded time.Time
	Refused  bool     // the message was verified but not admitted
	Reply    Position // the terminal reply to Message; zero while there is none
}

// A Record is one record of the log. It is shared: do not change it.
type Record struct {
	Position Position
	Time     time.Time // of the hub that recorded it
	Node     string    // the hub that recorded it

	Scope   string
	Message *parley.Message
	Open    []Opening
	Steps   []Step
	Losses  []parley.Loss // see Entry
	Refused *parley.Error
	Chain   *ChainLink
	Keyed   bool      // recorded with a replay key
	Until   time.Time // expiry of the key; zero: Config.Window after Time
	Erased  *Erased   // not nil: the message's content was erased since
}

// A Delivery is unsettled, or a dead letter.
type Delivery struct {
	parley.Delivery

	Position     Position // of the message
	Kind         parley.Kind
	From         string
	Conversation parley.ID
	Expires      time.Time
	Deadline     time.Time
	Postponed    int    // attempts that do not count
	Sync         bool   // a caller waits for the outcome, at the hub Node
	Retried      bool   // it was a dead letter, and an operator retried it
	Node         string // the hub that recorded the last attempt, or the message
}

// Tries is the number of attempts that count: those that were not postponed.
func (d *Delivery) Tries() int { return d.Attempt - d.Postponed }

// A Filter selects deliveries; zero fields select all.
type Filter struct {
	States       []parley.DeliveryState
	To           string
	Conversation parley.ID
	Partition    func(int) bool
	Limit        int // largest number of deliveries, the oldest first
}

// From says where [Journal.Records] begins, and whether it waits for more.
type From struct {
	Sequence uint64    // of the first record; 0 and 1: the oldest
	Time     time.Time // if Sequence is 0: the first record of this time or later
	Follow   bool      // wait for more records at the end
}

func (s Step) String() string {
	return fmt.Sprintf("%s to %s: %s (attempt %d)", s.Message, s.To, s.State, s.Attempt)
}
