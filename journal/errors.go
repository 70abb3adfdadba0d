package journal

import (
	"errors"
	"fmt"

	"github.com/parley-hub/parley"
)

// What may go wrong. Match with errors.Is; the text of the error that wraps
// one of these tells the operator what to do.
var (
	ErrClosed   = errors.New("the journal is closed")
	ErrNoSpace  = errors.New("no space left for the journal")                       // retryable
	ErrBusy     = errors.New("the journal is at a limit")                           // retryable
	ErrUnknown  = errors.New("the journal cannot say whether it was recorded")      // Accept again, or look
	ErrTooLarge = errors.New("too large for the journal")                           // says size and limit
	ErrConflict = errors.New("the recorded state is another")                       // see ConflictError
	ErrFenced   = errors.New("the lease was lost")                                  // another took it over
	ErrScope    = errors.New("the entry's parts lie in different partitions")       // scope, fence, steps
	ErrInvalid  = errors.New("not an entry that can be recorded")                   // a fault of the caller
	ErrNotFound = errors.New("not in the journal")                                  //
	ErrExists   = errors.New("exists already")                                      //
	ErrForeign  = errors.New("the directory belongs to something else")             // nothing was touched
	ErrCorrupt  = errors.New("the journal is damaged")                              // nothing was touched
	ErrKey      = errors.New("wrong encryption key")                                // wrong, missing or unexpected; nothing was touched
	ErrLocked   = errors.New("the journal is in use")                               // says by which process
	ErrFormat   = errors.New("the journal has a format this program does not know") // newer or older
	ErrPayload  = errors.New("the server's max_payload is too small")               // says both numbers
	ErrServer   = errors.New("the NATS server cannot hold a journal")               // says which feature it lacks
)

// A ConflictError matches [ErrConflict] and tells the head of the chain that
// the entry did not follow.
type ConflictError struct {
	Chain string
	After uint64 // what the entry wanted to follow
	Head  uint64 // the chain's last record; 0: it is empty
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: chain %q ends at %d, not at %d", ErrConflict, e.Chain, e.Head, e.After)
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() []error {
	return []error{ErrConflict, parley.Refuse(parley.Conflict, "the chain has moved on")}
}

// failure joins a sentinel, a text for the operator, what strangers may see,
// and a cause.
type failure struct {
	kind   error
	text   string
	public *parley.Error
	cause  error
}

func (f *failure) Error() string {
	s := f.kind.Error()
	if f.text != "" {
		s += ": " + f.text
	}
	if f.cause != nil {
		s += ": " + f.cause.Error()
	}
	return s
}

func (f *failure) Unwrap() []error {
	out := []error{f.kind, f.public}
	if f.cause != nil {
		out = append(out, f.cause)
	}
	return out
}

// publicOf is what strangers see of each kind of failure.
func publicOf(kind error) *parley.Error {
	switch kind {
	case ErrNoSpace:
		return parley.Fail(parley.NoSpace, nil, "the hub has no space left; nothing was recorded")
	case ErrBusy:
		return parley.Fail(parley.Unavailable, nil, "the hub is busy; nothing was recorded")
	case ErrUnknown:
		return parley.Fail(parley.Unavailable, nil, "the hub cannot say whether it recorded this")
	case ErrClosed:
		return parley.Fail(parley.Unavailable, nil, "the hub is shutting down")
	case ErrTooLarge:
		return parley.Refuse(parley.TooLarge, "the message is larger than this hub can record")
	case ErrConflict, ErrFenced, ErrExists:
		return parley.Refuse(parley.Conflict, "against the recorded state")
	}
	return parley.Refuse(parley.Internal, "internal error")
}

func fail(kind error, format string, args ...any) error {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...), public: publicOf(kind)}
}

func failBy(kind, cause error, format string, args ...any) error {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...), public: publicOf(kind), cause: cause}
}
