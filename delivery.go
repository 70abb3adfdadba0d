package parley

import (
	"fmt"
	"time"
)

// DeliveryState is the state of one message for one recipient.
type DeliveryState uint8

const (
	Waiting    DeliveryState = iota + 1 // recorded; not tried yet, or to be tried again
	Delivering                          // an attempt is in flight
	Delivered                           // the recipient has it; a request still waits for its terminal reply
	Answered                            // the recipient has it and the terminal reply is recorded
	Dead                                // given up: a dead letter
	Dropped                             // a dead letter that an operator dropped
	Expired                             // its time ran out before it could be delivered
	Abandoned                           // a synchronous request whose caller is gone; never sent again
)

var deliveryNames = [...]string{Waiting: "waiting", Delivering: "delivering", Delivered: "delivered",
	Answered: "answered",
	Dead:     "dead", Dropped: "dropped", Expired: "expired", Abandoned: "abandoned"}

func (s DeliveryState) String() string { return name(deliveryNames[:], int(s)) }

// Settled reports whether the delivery of a message of kind k has ended. A delivered
// request still waits for its terminal reply or its deadline; other kinds end with
// Delivered. A dead letter is settled, although an operator may retry it.
func (s DeliveryState) Settled(k Kind) bool {
	return s > Delivered || s == Delivered && k != Request
}

func (s DeliveryState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *DeliveryState) UnmarshalText(b []byte) error {
	return parse(deliveryNames[:], "delivery state", b, s)
}

// A Delivery is one message to one recipient, with its attempts and their outcome. A
// message to many has one for each.
type Delivery struct {
	Message ID
	To      string // directory name of the recipient
	State   DeliveryState
	Attempt int       // how many attempts were recorded; each is recorded before it is sent
	Next    time.Time // Waiting: not before this
	Reply   ID        // Answered: the terminal reply
	Error   *Error    // why the last attempt failed, or why it was given up
	Losses  []Loss    // parts that the translation to the recipient's protocol could not carry
	Changed time.Time
}

// A Loss is a part of a message that the recipient's protocol cannot carry.
type Loss struct {
	Field  string // of Message, e.g. "Deadline", "Extensions.asp"
	Reason string // for the user
}

func (l Loss) String() string { return fmt.Sprintf("%s: %s", l.Field, l.Reason) }

// An Exchange is what one attempt sent, and what came back at once: for operators, who see why
// a delivery failed. A member that the protocol or the transport does not tell is zero.
type Exchange struct {
	Protocol string        // that carried the message: "asp"; "go" for a handler, "api" for an inbox
	Address  string        // network address that was dialled, or of the peer's own connection
	Status   string        // as the protocol writes it: "503 Service Unavailable", "no responders"
	Started  time.Time     // of the attempt
	Routed   time.Duration // until the hub knew the recipient's binding and identity
	Written  time.Duration // until the message was translated, signed, and about to leave
	Took     time.Duration // of the whole attempt
	Size     int           // bytes that left: the body or the frame, without headers of the transport
	Digest   []byte        // SHA-256 of them
	Sent     []byte        // head and body as they left, secrets masked; only where the hub is told to keep them
	Answer   []byte        // the first bytes of what came back, at most MaxAnswer
}

// MaxAnswer bounds [Exchange.Answer].
const MaxAnswer = 1024
