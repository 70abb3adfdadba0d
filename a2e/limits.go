package a2e

import "time"

// Limits bound the memory and the waits that guests and agents can cause at a host.
// Zero means the default that is named with each field.
type Limits struct {
	Frame          int // bytes of one message: 4 MiB, at most 16 MiB
	HandshakeFrame int // the same before the handshake: 64 KiB
	HandshakeBytes int // of such messages that sessions without a handshake are sending, in all: 4 MiB
	Depth          int // levels of nesting: 128
	FrameFaults    int // over-long lines until a connection is closed: 8

	Sessions          int           // sessions at once: 10,000
	Pending           int           // of them without a handshake: 1,000; the oldest gives way to a new one
	PendingPerRemote  int           // and from one address: 32
	SessionsPerMinute int           // new HTTP sessions and connections from one address: 240
	Handshake         time.Duration // until the handshake must have succeeded: 30 s
	HandshakeTries    int           // failed handshakes until the session is closed: 3
	Idle              time.Duration // a session without a transport is kept: 5 min

	Parallel int           // requests of a session at work at once, announced as max_parallel: 16
	Queued   int           // more of them that wait: 256
	Request  time.Duration // deadline of requests that name none: 25 s
	Longest  time.Duration // of those that do: 1 h
	Drain    time.Duration // longest wait after shutdown: 30 s
	Hangup   time.Duration // wait for requests at work after the end of input: 2 s

	Seen    int           // ids remembered per session: 16,384
	SeenFor time.Duration // for how long: 5 min

	Answers    int // bytes of the answers to them that a session keeps, for requests that are sent again: 256 KiB
	AllAnswers int // and all sessions: 64 MiB

	OutFrames int           // frames that wait for one agent: 1,024
	OutBytes  int           // and their bytes: 16 MiB
	Replay    int           // bytes of delivered frames kept for a stream that breaks: 64 KiB
	ReplayFor time.Duration // for how long: 1 min
	Write     time.Duration // until a reader that takes nothing is cut off: 30 s
	KeepAlive time.Duration // between comments on an idle SSE stream: 15 s
}

func orInt(p *int, d int) {
	if *p <= 0 {
		*p = d
	}
}

func orTime(p *time.Duration, d time.Duration) {
	if *p <= 0 {
		*p = d
	}
}

// filled gives l with its defaults.
func (l Limits) filled() Limits {
	orInt(&l.Frame, DefaultMaxFrame)
	l.Frame = min(l.Frame, HardMaxFrame)
	orInt(&l.HandshakeFrame, 64<<10)
	l.HandshakeFrame = min(l.HandshakeFrame, l.Frame)
	orInt(&l.HandshakeBytes, 4<<20)
	l.HandshakeBytes = max(l.HandshakeBytes, 2*l.HandshakeFrame)
	orInt(&l.Depth, DefaultMaxDepth)
	l.Depth = min(l.Depth, 1000)
	orInt(&l.FrameFaults, 8)
	orInt(&l.Sessions, 10_000)
	orInt(&l.Pending, 1_000)
	orInt(&l.PendingPerRemote, 32)
	orInt(&l.SessionsPerMinute, 240)
	orTime(&l.Handshake, 30*time.Second)
	orInt(&l.HandshakeTries, 3)
	orTime(&l.Idle, 5*time.Minute)
	orInt(&l.Parallel, 16)
	orInt(&l.Queued, 256)
	orTime(&l.Request, 25*time.Second)
	orTime(&l.Longest, time.Hour)
	orTime(&l.Drain, 30*time.Second)
	orTime(&l.Hangup, 2*time.Second)
	orInt(&l.Seen, 16_384)
	orTime(&l.SeenFor, 5*time.Minute)
	orInt(&l.Answers, 256<<10)
	orInt(&l.AllAnswers, 64<<20)
	orInt(&l.OutFrames, 1024)
	orInt(&l.OutBytes, 16<<20)
	orInt(&l.Replay, 64<<10)
	orTime(&l.ReplayFor, time.Minute)
	orTime(&l.Write, 30*time.Second)
	orTime(&l.KeepAlive, 15*time.Second)
	return l
}

// ClientLimits bound a client. Zero means the default that is named with each
// field.
type ClientLimits struct {
	Frame     int           // bytes of one message: 4 MiB
	Handshake time.Duration // wait for its answer: 30 s
	Request   time.Duration // deadline of requests whose context has none: 300 s
	Requests  int           // in flight at once: 4,096
	Events    int           // of one request that wait for its reader: 1,024
	Pushes    int           // that wait for OnPush: 1,024; more are dropped
	BackoffLo time.Duration // before the first attempt to come back: 1 s, doubling
	BackoffHi time.Duration // up to: 30 s
	Tries     int           // of one POST: 3
	Exit      time.Duration // a child process may take to end by itself: 3 s
	Term      time.Duration // and after SIGTERM: 2 s
}

func (l ClientLimits) filled() ClientLimits {
	orInt(&l.Frame, DefaultMaxFrame)
	l.Frame = min(l.Frame, HardMaxFrame)
	orTime(&l.Handshake, 30*time.Second)
	orTime(&l.Request, 300*time.Second)
	orInt(&l.Requests, 4096)
	orInt(&l.Events, 1024)
	orInt(&l.Pushes, 1024)
	orTime(&l.BackoffLo, time.Second)
	orTime(&l.BackoffHi, 30*time.Second)
	orInt(&l.Tries, 3)
	orTime(&l.Exit, 3*time.Second)
	orTime(&l.Term, 2*time.Second)
	return l
}
