package a2e

import (
	"context"
	"errors"
	"time"
)

// Store keeps what a session owes its agent, so that the agent may resume the
// session at another process (A2E §14). Without one, sessions live in memory.
// A Store that knows that the session has moved on returns an error from any
// method, and this host drops the session: the fence is the embedder's.
// Calls for one session come one at a time and in order.
type Store interface {
	// Open records a session after its handshake, and again when a later
	// handshake changed it.
	Open(ctx context.Context, s SessionRecord) error

	// Append records a frame before it is offered to a transport. seq counts
	// from 1 without gaps.
	Append(ctx context.Context, sessionID string, seq uint64, frame []byte) error

	// Delivered records that frames up to seq were written to a transport. What
	// came before may be forgotten.
	Delivered(ctx context.Context, sessionID string, seq uint64) error

	// Load gives a session that this process does not hold, with its undelivered
	// frames in order; found is false when there is none. The caller owns the
	// session from then on.
	Load(ctx context.Context, sessionID string) (s SessionRecord, found bool, err error)

	// Close forgets a session that has ended.
	Close(ctx context.Context, sessionID string) error
}

// ErrMoved is the error of a Store for a session that another host owns now. Of a
// [Relay], the host then passes on what it still has for the agent; of other
// stores, it drops the session.
var ErrMoved = errors.New("a2e: another host has the session now")

// A Relay is a Store that several hosts share. The session is where its stream
// is. Lines that the agent sends to another host are passed to that one, and what
// a host has for an agent whose session moved on is passed after it: answers of
// requests that are still executed there.
type Relay interface {
	Store

	// Elsewhere reports whether a session that this host does not have is at
	// another one, and whose it is.
	Elsewhere(ctx context.Context, sessionID string) (who Identity, elsewhere bool, err error)

	// Send passes on lines of the agent. With [ErrTooLarge], the session is to be
	// taken over instead.
	Send(ctx context.Context, sessionID string, lines []byte) error

	// Forward passes on a frame for the agent; seq is 0 for one that was not
	// appended. Those that the session's next host has loaded are passed over.
	Forward(ctx context.Context, sessionID string, seq uint64, frame []byte) error

	// Held says that this host has a session that it loaded. What others pass on
	// is given to it with [Session.Take] and [Session.Pass].
	Held(sessionID string)
}

// SessionRecord is the durable part of a session.
type SessionRecord struct {
	ID       string // a bearer secret in HTTP mode: never log it
	Identity Identity
	AgentID  string
	Accepted []string // capabilities as negotiated
	Opened   time.Time

	LastSeq     uint64        // of the last frame appended
	Undelivered []StoredFrame // filled by Load
}

// StoredFrame is one frame that waits for its agent.
type StoredFrame struct {
	Seq  uint64
	Line []byte // without its end
}
