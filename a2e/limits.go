package a2e

import "time"

// Limits bound the memory and the waits that guests and agents can cause at a host.
// Zero means the default that is named with each field.
type Limits struct {
	Frame          int // bytes of one message: 4 MiB, at most 16 MiB
	HandshakeFrame int // the same before the handshake: 64 KiB
	HandshakeBytes int // bytes of messages being sent by all sessions without a handshake: 4 MiB
	Depth          int // levels of nesting: 128
	FrameFaults    int // over-long lines until a connection is closed: 8

	Sessions          int           // sessions at once: 10,000
	Pending           int           // sessions without a handshake: 1,000; the oldest gives way to a new one
	PendingPerRemote  int           // the same from one address: 32
	SessionsPerMinute int           // new HTTP sessions and connections from one address: 240
	Handshake         time.Duration // until the handshake must have succeeded: 30 s
	HandshakeTries    int           // failed handshakes until the session is closed: 3
	Idle              time.Duration // a session without a transport is kept: 5 min

	Parallel int           // running requests of a session, announced as max_parallel: 16
	Queued   int           // waiting requests of a session: 256
	Request  time.Duration // deadline of requests without a timeout: 25 s
	Longest  time.Duration // upper limit of a request's own timeout: 1 h
	Drain    time.Duration // longest wait after shutdown: 30 s
	Hangup   time.Duration // wait for running requests after the end of input: 2 s

	Seen    int           // ids remembered per session: 16,384
	SeenFor time.Duration // for how long: 5 min

	Answers    int // bytes of answers that a session keeps for requests that are sent again: 256 KiB
	AllAnswers int // bytes of answers that all sessions keep: 64 MiB

	OutFrames int           // frames that wait for one agent: 1,024
	OutBytes  int           // and their bytes: 16 MiB
	Replay    int           // bytes of delivered frames kept for a broken stream: 64 KiB
	ReplayFor time.Duration // for how long: 1 min
	Write     time.Duration // until a peer that reads nothing is cut off: 30 s
	KeepAlive time.Duration // between comments on an idle SSE stream: 15 s
}

func or[T int | time.Duration](p *T, d T) {
	if *p <= 0 {
		*p = d
	}
}

// filled gives l with its defaults.
func (l Limits) filled() Limits {
	or(&l.Frame, DefaultMaxFrame)
	l.Frame = min(l.Frame, HardMaxFrame)
	or(&l.HandshakeFrame, 64<<10)
	l.HandshakeFrame = min(l.HandshakeFrame, l.Frame)
	or(&l.HandshakeBytes, 4<<20)
	l.HandshakeBytes = max(l.HandshakeBytes, 2*l.HandshakeFrame)
	or(&l.Depth, DefaultMaxDepth)
	l.Depth = min(l.Depth, 1000)
	or(&l.FrameFaults, 8)
	or(&l.Sessions, 10_000)
	or(&l.Pending, 1_000)
	or(&l.PendingPerRemote, 32)
	or(&l.SessionsPerMinute, 240)
	or(&l.Handshake, 30*time.Second)
	or(&l.HandshakeTries, 3)
	or(&l.Idle, 5*time.Minute)
	or(&l.Parallel, 16)
	or(&l.Queued, 256)
	or(&l.Request, 25*time.Second)
	or(&l.Longest, time.Hour)
	or(&l.Drain, 30*time.Second)
	or(&l.Hangup, 2*time.Second)
	or(&l.Seen, 16_384)
	or(&l.SeenFor, 5*time.Minute)
	or(&l.Answers, 256<<10)
	or(&l.AllAnswers, 64<<20)
	or(&l.OutFrames, 1024)
	or(&l.OutBytes, 16<<20)
	or(&l.Replay, 64<<10)
	or(&l.ReplayFor, time.Minute)
	or(&l.Write, 30*time.Second)
	or(&l.KeepAlive, 15*time.Second)
	return l
}

// ClientLimits bound a client. Zero means the default that is named with each
// field.
type ClientLimits struct {
	Frame     int           // bytes of one message: 4 MiB
	Handshake time.Duration // wait for the answer to the handshake: 30 s
	Request   time.Duration // deadline of requests whose context has none: 300 s
	Requests  int           // in flight at once: 4,096
	Events    int           // of one request, waiting for its reader: 1,024
	Pushes    int           // waiting for OnPush: 1,024; more are dropped
	BackoffLo time.Duration // before the first attempt to reconnect: 1 s, doubling
	BackoffHi time.Duration // longest back-off: 30 s
	Tries     int           // of one POST: 3
	Exit      time.Duration // for a child process to end by itself: 3 s
	Term      time.Duration // the same after SIGTERM: 2 s
}

func (l ClientLimits) filled() ClientLimits {
	or(&l.Frame, DefaultMaxFrame)
	l.Frame = min(l.Frame, HardMaxFrame)
	or(&l.Handshake, 30*time.Second)
	or(&l.Request, 300*time.Second)
	or(&l.Requests, 4096)
	or(&l.Events, 1024)
	or(&l.Pushes, 1024)
	or(&l.BackoffLo, time.Second)
	or(&l.BackoffHi, 30*time.Second)
	or(&l.Tries, 3)
	or(&l.Exit, 3*time.Second)
	or(&l.Term, 2*time.Second)
	return l
}
