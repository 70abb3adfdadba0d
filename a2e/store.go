package a2e

import (
	"context"
	"errors"
	"time"
)

// Store keeps the undelivered frames of sessions, so that an agent may resume its
// session at another process (A2E §14). Without one, sessions live in memory. If a
// session has moved on, a Store returns an error from any method, and this host drops
// the session: the embedder provides the fence. Calls for one session come one at a
// time and in order.
type Store interface {
	// Open records a session after its handshake, and again after each later handshake
	// that changed it.
	Open(ctx context.Context, s SessionRecord) error

	// Append records a frame before it is offered to a transport. seq counts
	// from 1 without gaps.
	Append(ctx context.Context, sessionID string, seq uint64, frame []byte) error

	// Delivered records that frames up to seq were written to a transport. The Store
	// may forget them.
	Delivered(ctx context.Context, sessionID string, seq uint64) error

	// Load gives a session that this process does not hold, with its undelivered
	// frames in order; found is false when there is none. The caller owns the
	// session from then on.
	Load(ctx context.Context, sessionID string) (s SessionRecord, found bool, err error)

	// Close forgets a session that has ended.
	Close(ctx context.Context, sessionID string) error
}

// ErrMoved is the error of a Store for a session that another host owns now. With a
// [Relay], the host then passes on its remaining frames for the agent; with other
// stores, it drops the session.
var ErrMoved = errors.New("a2e: another host has the session now")

// A Relay is a Store that several hosts share. The session belongs to the host of its
// stream. That host gets the lines that the agent sends to other hosts, and the frames
// that other hosts still have for the agent: answers of requests that they still
// execute.
type Relay interface {
	Store

	// Elsewhere reports whether another host has a session that this host does not
	// have, and the session's identity.
	Elsewhere(ctx context.Context, sessionID string) (who Identity, elsewhere bool, err error)

	// Send passes on lines of the agent. [ErrTooLarge] tells the host to take the
	// session over instead.
	Send(ctx context.Context, sessionID string, lines []byte) error

	// Forward passes on a frame for the agent; seq is 0 for a frame that was not
	// appended. Frames that the session's next host has loaded are skipped.
	Forward(ctx context.Context, sessionID string, seq uint64, frame []byte) error

	// Held reports that this host has loaded a session. The Relay gives it lines and
	// frames from other hosts with [Session.Take] and [Session.Pass].
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
