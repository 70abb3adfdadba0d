package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

// Match these with errors.Is. The text of the error that wraps one of them tells
// the operator what to do.
var (
	ErrClosed   = store.ErrClosed
	ErrNoSpace  = store.ErrNoSpace  // retryable
	ErrBusy     = store.ErrBusy     // retryable: a limit was reached, or the store does not answer
	ErrUnknown  = store.ErrUnknown  // call Accept again, or look the entry up
	ErrTooLarge = store.ErrTooLarge // says size and limit
	ErrConflict = store.ErrConflict // see ConflictError
	ErrNotFound = store.ErrNotFound
	ErrExists   = store.ErrExists
	ErrForeign  = store.ErrForeign                                            // nothing was touched
	ErrCorrupt  = store.ErrCorrupt                                            // the text names the commands that help
	ErrLocked   = store.ErrLocked                                             // says by which process
	ErrFormat   = store.ErrFormat                                             // newer or older
	ErrFenced   = errors.New("the lease was lost")                            // another hub has it
	ErrScope    = errors.New("the entry's parts lie in different partitions") // scope, fence, steps
	ErrInvalid  = errors.New("not an entry that can be recorded")             // a fault of the caller
	ErrKey      = errors.New("wrong encryption key")                          // or missing, or not expected
)

// A ConflictError matches [ErrConflict] and has the position of the chain's last
// record.
type ConflictError struct {
	Chain string
	After uint64 // the record that the entry was to follow
	Head  uint64 // the chain's last record; 0: it is empty
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: chain %q ends at %d, not at %d", ErrConflict, e.Chain, e.Head, e.After)
}

// Unwrap makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Unwrap() []error {
	return []error{ErrConflict, parley.Refuse(parley.Conflict, "the chain has moved on")}
}

// failure combines a sentinel, a cause and a text for the operator.
type failure struct {
	kind, cause error
	text        string
}

func (f *failure) Error() string {
	s := f.kind.Error()
	if f.cause != nil && errors.Is(f.cause, f.kind) {
		s = f.cause.Error() // has the sentinel's text already
	} else if f.cause != nil {
		s += ": " + f.cause.Error()
	}
	if f.text != "" {
		s += ": " + f.text
	}
	return s
}

func (f *failure) Unwrap() []error {
	out := []error{f.kind, publicOf(f.kind)}
	if f.cause != nil {
		out = append(out, f.cause)
	}
	return out
}

// publicOf gives the error that guests may see for each kind of failure.
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

func fail(kind error, format string, args ...any) error { return failBy(kind, nil, format, args...) }

func failBy(kind, cause error, format string, args ...any) error {
	return &failure{kind: kind, cause: cause, text: fmt.Sprintf(format, args...)}
}

// storeError turns a failure of the store into the error for the caller.
func storeError(ctx context.Context, err error) error {
	var f *failure
	switch {
	case err == nil || errors.As(err, &f):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	for _, kind := range []error{
		ErrClosed, ErrNoSpace, ErrUnknown, ErrTooLarge, ErrConflict, ErrNotFound, ErrExists, ErrForeign, ErrCorrupt,
		ErrLocked, ErrFormat,
	} {
		if errors.Is(err, kind) {
			return failBy(kind, err, "")
		}
	}
	return failBy(ErrBusy, err, "")
}
