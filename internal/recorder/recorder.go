// Package recorder observes what one attempt to deliver a message sends, and what comes back
// at once (docs/architecture/0029).
//
// Whoever makes the attempt puts a [Recorder] into its context. Requests by HTTP pass
// [RoundTrip], which the clients of package netguard call. A binding over another transport
// says what it sent with [Sent].
//
// An attempt may make several requests. The recorded one is the last that carried the message:
// it has a body, and its context is not [Aside]. As long as there is none, the last other
// request that failed is recorded: it says why the message did not leave.
package recorder

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/url"
	"sync"
	"time"
)

const (
	maxAnswer = 1024     // as parley.MaxAnswer: the protocol packages do not know the hub's
	maxSent   = 64 << 10 // of the head and body as they left
	maxStatus = 64
	masked    = "[masked]"
)

// Seen is what a [Recorder] saw. Its members are those of parley.Exchange.
type Seen struct {
	Protocol string
	Address  string
	Status   string
	Started  time.Time
	Routed   time.Duration
	Written  time.Duration
	Took     time.Duration
	Size     int
	Digest   []byte
	Sent     []byte
	Answer   []byte
}

// A Loss is a member that the translation of the message could not carry. Its members are those of parley.Loss.
type Loss struct{ Field, Reason string }

// Content says which content a recorder keeps.
type Content int

// The zero Content keeps none.
const (
	None    Content = iota
	Answers         // the first bytes of the answer
	All             // those, and the bytes that left
)

// A Recorder observes one attempt. A nil Recorder observes nothing. It is safe for concurrent
// use. Work that outlives the attempt may go on to use it, without effect.
type Recorder struct {
	now     func() time.Time
	started time.Time

	mu       sync.Mutex
	protocol string
	content  Content
	routed   time.Duration
	secrets  [][]byte
	address  string   // if no request tells it
	last     *request // the recorded one; nil: none yet
	losses   []Loss
	ended    bool
}

// A request is one of an attempt; the recorder's mutex guards it.
type request struct {
	r               *Recorder
	carries         bool // the message
	connected       bool
	address, status string
	url             *url.URL  // nil: not by HTTP
	written         time.Time // zero: nothing left
	size            int
	digest          []byte
	sent, answer    []byte
}

// New makes the recorder of an attempt that begins now.
func New(now func() time.Time) *Recorder { return &Recorder{now: now, started: now()} }

type (
	key      struct{}
	asideKey struct{}
)

// With gives a context whose requests r observes.
func With(ctx context.Context, r *Recorder) context.Context { return context.WithValue(ctx, key{}, r) }

// From gives the recorder of a context; nil: it has none.
func From(ctx context.Context) *Recorder {
	r, _ := ctx.Value(key{}).(*Recorder)
	return r
}

// Join gives ctx the recorder of another context: for a message that leaves in the background.
func Join(ctx, of context.Context) context.Context {
	if r := From(of); r != nil {
		return With(ctx, r)
	}
	return ctx
}

// Aside gives a context whose requests do not carry the message: for tokens, handshakes, questions
// about its state.
func Aside(ctx context.Context) context.Context {
	if From(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, asideKey{}, true)
}

// Routed says that the protocol is known by which the message goes out, and what may be kept.
func (r *Recorder) Routed(protocol string, c Content) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.protocol, r.content, r.routed = protocol, c, r.now().Sub(r.started)
}

// Hide names secrets of an attempt, which are masked in the bytes that are kept.
func Hide(ctx context.Context, secrets ...string) {
	r := From(ctx)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range secrets {
		if s == "" {
			continue
		}
		r.secrets = append(r.secrets, []byte(s))
		if quoted, err := json.Marshal(s); err == nil && string(quoted[1:len(quoted)-1]) != s {
			r.secrets = append(r.secrets, quoted[1:len(quoted)-1])
		}
	}
}

// To names the address to which the message is going, as it is configured: for a transport that
// connects in the background.
func To(ctx context.Context, address string) {
	if r := From(ctx); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.address = address
	}
}

// Sent says that the message leaves as a frame, over another transport than HTTP. address is that
// of the peer; "": the transport does not tell it.
func Sent(ctx context.Context, address string, frame []byte) {
	r := From(ctx)
	if r == nil || ctx.Value(asideKey{}) != nil {
		return
	}
	sum := sha256.Sum256(frame)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.last = &request{r: r, carries: true, address: address, written: r.now(), size: len(frame), digest: sum[:]}
	if r.content == All {
		r.last.sent = bytes.Clone(frame[:min(len(frame), maxSent)])
	}
}

// Lost says what the translation of the message loses, before the message leaves: its answer may be recorded before the
// outcome of the attempt.
func Lost(ctx context.Context, losses ...Loss) {
	if r := From(ctx); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.losses = losses
	}
}

// Losses gives what [Lost] said last.
func (r *Recorder) Losses() []Loss {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.losses
}

// Got says what came back by another way than as the answer by HTTP: the protocol's word for it, and
// the answer. Those that are known already stay.
func Got(ctx context.Context, status string, answer []byte) {
	r := From(ctx)
	if r == nil || ctx.Value(asideKey{}) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.last == nil {
		return
	}
	if r.last.status == "" {
		r.last.status = status[:min(len(status), maxStatus)]
	}
	if len(r.last.answer) == 0 {
		r.last.keep(answer)
	}
}

// keep adds to the kept answer; r.mu is held. It reports whether more may be added.
func (q *request) keep(answer []byte) bool {
	if q.r.ended || q.r.content == None {
		return false
	}
	q.answer = append(q.answer, answer[:min(len(answer), maxAnswer-len(q.answer))]...)
	return len(q.answer) < maxAnswer
}

// Seen gives what was seen so far; false: the message was not routed.
func (r *Recorder) Seen() (s Seen, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen()
}

// End is [Recorder.Seen] at the end of the attempt. Nothing is seen after it.
func (r *Recorder) End() (s Seen, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.seen()
}

func (r *Recorder) seen() (s Seen, ok bool) {
	s = Seen{Protocol: r.protocol, Address: r.address, Started: r.started, Routed: r.routed,
		Took: r.now().Sub(r.started)}
	if q := r.last; q != nil {
		s.Address, s.Status, s.Answer = cmp.Or(q.at(), s.Address), q.status, r.mask(q.answer)
		if q.carries && !q.written.IsZero() {
			s.Written, s.Size, s.Digest, s.Sent = q.written.Sub(r.started), q.size, q.digest, r.mask(q.sent)
		}
	}
	return s, r.protocol != ""
}

// mask gives bytes without secrets. Its result is not changed by later additions to b.
func (r *Recorder) mask(b []byte) []byte {
	b = b[:len(b):len(b)]
	for _, s := range r.secrets {
		if bytes.Contains(b, s) {
			b = bytes.ReplaceAll(b, s, []byte(masked))
		}
	}
	return b[:min(len(b), maxSent)]
}

// HideURL hides what follows the host in a URL that a peer gave: it may be a secret of that peer.
func HideURL(ctx context.Context, at string) {
	if From(ctx) == nil {
		return
	}
	if u, err := url.Parse(at); err == nil && u.RequestURI() != "/" {
		Hide(ctx, u.RequestURI())
	}
}
