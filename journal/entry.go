package journal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
)

// A Position is where a record stands: the sequence within its partition. The
// zero Position is none; sequences begin at 1 and have gaps.
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

// An Entry is what is recorded at once: a message with the deliveries it
// opens, steps of deliveries, or both, e.g. a reply together with the step
// that settles its request.
type Entry struct {
	// Scope decides the partition. It may be empty when Steps is not: the
	// entry then goes where their deliveries are. Steps about deliveries of
	// another partition than Scope's are refused with ErrScope.
	Scope string

	Message *parley.Message // nil: only steps. Not changed after the call
	Open    []Opening       // of Message; at most one for each recipient
	Steps   []Step          // at most one for each delivery

	// Losses are what Message, an event, loses on its way to who made the
	// request that it is about, where it has no delivery of its own: they are
	// noted in the open delivery of the request to Message.From, with those of
	// its steps.
	Losses []parley.Loss

	// Refused records that Message was proved but not admitted, and why. It
	// uses up Key and opens no delivery.
	Refused *parley.Error

	Key   Key        // for Accept
	Chain *ChainLink // compare-and-set
	Fence *Lease     // refuse with ErrFenced if the lease was lost

	// Late says that nobody waits for it: it may be held back for some
	// milliseconds to be recorded with what comes meanwhile.
	Late bool
}

// An Opening is a delivery to be made.
type Opening struct {
	To        string
	Attempt   int       // 0: it waits; 1: its first attempt is recorded herewith, the state is Delivering
	Sync      bool      // a caller waits for the outcome: never started anew after a crash, then it is Abandoned
	NotBefore time.Time // of a waiting one
}

// A Step moves one delivery on; see the package documentation for what may
// follow what.
type Step struct {
	Message   parley.ID
	To        string
	State     parley.DeliveryState
	Attempt   int       // Delivering: the last attempt plus one. Else the attempt this is the outcome of, 0: whichever
	Next      time.Time // Waiting: not before this
	Postponed bool      // Waiting: the attempt does not count as a try (429, Retry-After)
	Reply     parley.ID // Answered: the terminal reply; the entry's own message where zero
	Error     *parley.Error
	Losses    []parley.Loss // besides those that were noted before
}

// A Key makes a replay recognisable.
type Key struct {
	ID     string    // anything unique within the scope, e.g. "samvad nonce " + nonce; only a hash is kept. Empty: no key
	Sender string    // whose allowance of long-lived keys is used
	Until  time.Time // when it cannot be used again, and is forgotten; zero: Config.Window from now
}

// A ChainLink appends to a chain only if nobody else did since.
type ChainLink struct {
	Name  string // of the chain, unique within the scope's partition
	After uint64 // sequence of the chain's last record; 0: this is the first
}

// Prior tells what a replay key was recorded with.
type Prior struct {
	Position Position
	Message  parley.ID // zero when the entry had none
	Recorded time.Time
	Refused  bool     // it was proved but refused
	Reply    Position // the terminal reply to Message; zero while there is none
}

// A Record is an entry of the log as it was recorded. It is shared: nothing of
// it may be changed.
type Record struct {
	Position Position
	Time     time.Time // when the engine stored it
	Node     string    // which hub recorded it

	Scope   string
	Message *parley.Message
	Open    []Opening
	Steps   []Step
	Losses  []parley.Loss // see Entry
	Refused *parley.Error
	Chain   *ChainLink
	Keyed   bool      // it was recorded with a replay key
	Until   time.Time // when its key ends; zero: Config.Window after Time
	Erased  *Erased   // the message's content was erased since; nil: it was not
}

// A Delivery is one that is not settled, or a dead letter.
type Delivery struct {
	parley.Delivery

	Position     Position // of the message
	Kind         parley.Kind
	From         string
	Conversation parley.ID
	Expires      time.Time
	Deadline     time.Time
	Postponed    int    // attempts that do not count as tries
	Sync         bool   // a caller waits for the outcome
	Node         string // which hub recorded the last attempt, or the message; where Sync, the hub that may have its caller
}

// Tries is how many attempts count: those that were not postponed.
func (d *Delivery) Tries() int { return d.Attempt - d.Postponed }

// A Filter chooses deliveries; what is zero is not asked for.
type Filter struct {
	States       []parley.DeliveryState
	To           string
	Conversation parley.ID
	Partition    func(int) bool
	Limit        int // at most so many, the oldest first
}

// From says where [Journal.Records] begins, and whether it ends.
type From struct {
	Sequence uint64    // the first record to be read; 0 and 1 are the oldest
	Time     time.Time // or the first one stored at or after this, when Sequence is 0
	Follow   bool      // wait for more at the end instead of returning
}

func (s Step) String() string {
	return fmt.Sprintf("%s to %s: %s (attempt %d)", s.Message, s.To, s.State, s.Attempt)
}
