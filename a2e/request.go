package a2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// Request is one request of an agent at a handler.
type Request struct {
	*Envelope
	Session  *Session
	Identity Identity
	Received time.Time
	Deadline time.Time // limit for the answer

	h        *Host
	provider Provider
	ctx      context.Context // ends at the deadline, with the final frame, and with the session
	end      context.CancelFunc

	mu       sync.Mutex
	done     bool // the final frame was sent
	seq      int64
	returned func(bool)
}

// OnReturned registers f, which is called once, when the host knows whether the agent
// has the answer: true when the agent continues on the transport of the answer, or ends
// that transport in order; false when the transport or the session ends first, or when
// the agent gets an error instead. A handler calls OnReturned once, before it returns.
// f must not wait for the session.
func (r *Request) OnReturned(f func(returned bool)) {
	r.mu.Lock()
	done := r.done
	r.returned = f
	r.mu.Unlock()
	if done { // too late: the agent got an error
		f(false)
	}
}

// Response is the answer of a handler.
type Response struct {
	Type string // empty: the response type of the request
	Body any    // encodes as a JSON object: the members besides the base members and req_id
}

// Handler serves requests. An [*Error] goes to the agent unchanged; any other error
// becomes runtime_error without its text. The context ends at the deadline, after which
// an answer is too late, and when the session is closed.
type Handler func(ctx context.Context, r *Request) (Response, error)

// Serve makes a Handler a [Provider].
func (f Handler) Serve(ctx context.Context, r *Request) (Response, error) { return f(ctx, r) }

// Provider serves one capability: all requests of its types, after authorisation and
// schema check. For types that it does not serve it returns [ErrUnknownType].
type Provider interface {
	Serve(ctx context.Context, r *Request) (Response, error)
}

// Describer is a [Provider] that adds members to the metadata of its
// capability in the handshake.
type Describer interface {
	Provider
	Describe() any // encodes as a JSON object
}

// EventKind is the kind of an event (A2E §6.15); peers may send others.
type EventKind string

const (
	KindProgress EventKind = "progress"
	KindArtifact EventKind = "artifact"
	KindLog      EventKind = "log"
	KindStatus   EventKind = "status"
)

// admit is steps 9 to 12 of A2E §5.2.
func (s *Session) admit(m *Envelope, now time.Time) (*Request, *Error) {
	h := s.h
	s.mu.Lock()
	s.last = now
	state, who, accepted := s.state, s.identity, s.accepted
	s.mu.Unlock()
	switch state {
	case StateConnected:
		return nil, ErrNoHandshake.about(m.ID)
	case StateDraining, StateClosed:
		return nil, ErrShuttingDown.about(m.ID)
	}
	capability := m.Capability()
	if !m.Known() {
		capability = h.own(m.Type)
	}
	p := h.Capabilities[capability]
	if p == nil || capability == "" {
		if h.Handler == nil {
			return nil, unknownType(m)
		}
		p = h.Handler
	}
	if !who.may(capability) {
		e := ErrUnauthorized.about(m.ID)
		e.Capability = capability
		return nil, e
	}
	if h.Strict && slices.Contains(capabilityNames, capability) && !slices.Contains(accepted, capability) {
		return nil, &Error{Code: CapabilityMissing, Text: "not negotiated", Step: "policy", Capability: capability,
			ReqID: m.ID}
	}
	if e := m.check(); e != nil {
		e.Capability = capability
		return nil, e
	}
	r := &Request{Envelope: m, Session: s, Identity: who, Received: now, h: h, provider: p}
	r.Deadline = now.Add(h.deadline(m))
	return r, nil
}

// own gives the embedder's own capability that serves a type unknown to the registry:
// the namespace of the type, if that is offered.
func (h *Host) own(typ string) string {
	namespace, _, ok := strings.Cut(typ, "/")
	if !ok || h.Capabilities[namespace] == nil || slices.Contains(capabilityNames, namespace) {
		return ""
	}
	return namespace
}

// deadline gives the time for a request: its own timeout, or the default.
func (h *Host) deadline(m *Envelope) time.Duration {
	if m.typ == nil || !m.typ.Timed {
		return h.limits.Request
	}
	n := m.Int("timeout")
	if n <= 0 {
		return h.limits.Request
	}
	if n > int64(h.limits.Longest/time.Second) {
		return h.limits.Longest
	}
	return time.Duration(n) * time.Second
}

// start runs an admitted request or queues it.
func (s *Session) start(r *Request) {
	h := s.h
	if h.Memory != nil {
		s.mu.Lock()
		busy := len(s.waiting) >= h.limits.Queued
		s.mu.Unlock()
		if busy { // before the id is recorded: a retry may succeed
			s.refuse(r.Envelope, len(r.raw), ErrBusy.about(r.ID))
			return
		}
		fresh, err := h.Memory.Seen(s.ctx, s.identityScope()+r.ID, time.Now().Add(h.limits.SeenFor))
		if err != nil {
			h.Log.Warn("a2e: memory of ids", "err", err)
			s.refuse(r.Envelope, len(r.raw), &Error{Code: RuntimeError, Text: "try again", Step: "dispatch",
				Retryable: true, ReqID: r.ID})
			return
		}
		if !fresh {
			s.again(r)
			return
		}
	}
	s.mu.Lock()
	fault := s.enqueueLocked(r)
	s.mu.Unlock()
	switch {
	case fault == nil:
	case errors.Is(fault, ErrReplay):
		s.again(r)
	default:
		s.refuse(r.Envelope, len(r.raw), fault.about(r.ID))
	}
}

// crossing is how long after an answer a duplicate of its request may still have been
// in transit. A later duplicate gets the answer again; an agent that sent twice before
// it read has one answer, and continues.
const crossing = 250 * time.Millisecond

// again answers a duplicate request with the recorded answer, unchanged (A2E-055). A
// pending answer serves both.
func (s *Session) again(r *Request) {
	s.mu.Lock()
	_, running := s.inflight[r.ID]
	a := s.seen.answers[seenKeyOf(r.ID)]
	// The attached transport may be writing the answer now.
	comes := running || a != nil && (a.repeated || s.out.stream == nil && s.out.waits(a.line))
	var wait time.Duration
	if a != nil && !comes {
		a.repeated = true
		wait = max(crossing-time.Since(a.at), 0)
	}
	s.mu.Unlock()
	switch {
	case comes:
		s.h.refused(s, r.Envelope, len(r.raw), ErrReplay, true)
	case a == nil:
		s.refuse(r.Envelope, len(r.raw), ErrReplay.about(r.ID))
	case wait > 0:
		time.AfterFunc(wait, func() { s.repeat(a) })
	default:
		s.repeat(a)
	}
}

// repeat sends an answer once more.
func (s *Session) repeat(a *recordedAnswer) {
	s.mu.Lock()
	a.repeated, a.at = false, time.Now()
	s.mu.Unlock()
	if full, _ := s.full(); !full {
		_ = s.send(a.line) // a session that ended needs no answer
	}
}

// identityScope separates the ids of sessions, which survive in the memory.
func (s *Session) identityScope() string { return fmt.Sprintf("a2e:%x:", seenKeyOf(s.id)) }

func (s *Session) enqueueLocked(r *Request) *Error {
	l := &s.h.limits
	if s.state != StateActive {
		return ErrShuttingDown
	}
	if _, dup := s.inflight[r.ID]; dup {
		return ErrReplay
	}
	if s.h.Memory == nil && len(s.waiting) >= l.Queued {
		return ErrBusy
	}
	if !s.seen.add(r.ID, r.Received, r.Received.Add(l.SeenFor), l.Seen, &s.h.answers) {
		return ErrReplay
	}
	if s.inflight == nil {
		s.inflight = make(map[string]*Request)
	}
	s.inflight[r.ID] = r
	r.ctx, r.end = context.WithDeadline(s.ctx, r.Deadline)
	s.tickByLocked(r.Deadline)
	if s.running < l.Parallel {
		s.running++
		go s.work(r)
	} else {
		s.waiting = append(s.waiting, r)
	}
	return nil
}

// work runs requests until none waits. A handler that ignores its deadline keeps its
// slot until it returns: at most Parallel of them run.
func (s *Session) work(r *Request) {
	for r != nil {
		r.run()
		s.mu.Lock()
		r = nil
		if len(s.waiting) > 0 && s.state != StateClosed {
			r = s.waiting[0]
			s.waiting[0] = nil
			s.waiting = s.waiting[1:]
			if len(s.waiting) == 0 {
				s.waiting = nil
			}
		} else {
			s.running--
		}
		s.mu.Unlock()
	}
}

func (r *Request) run() {
	if r.isDone() || r.ctx.Err() != nil {
		return
	}
	resp, err := r.serve()
	if err == nil && errors.Is(r.ctx.Err(), context.DeadlineExceeded) {
		err = ErrTimeout // too late
	}
	var line []byte
	if err == nil {
		line, err = r.answer(resp)
	}
	var code Code
	if err != nil {
		line, code = r.failure(err)
	}
	r.finish(line, code, true)
}

// serve calls the provider; a panic fails the request, not the session (A2E-074).
func (r *Request) serve() (resp Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.h.Log.Error("a2e: handler panic", "type", r.Type, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = &Error{Code: RuntimeError, Text: "the request failed", Step: "handler", Capability: r.Capability()}
		}
	}()
	return r.provider.Serve(r.ctx, r)
}

func (r *Request) isDone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// expire answers the request at its deadline, even if its handler is still running
// (A2E-075).
func (r *Request) expire() {
	<-r.ctx.Done() // the context has its own timer
	if errors.Is(r.ctx.Err(), context.DeadlineExceeded) {
		r.fail(ErrTimeout)
	}
}

// fail answers the request with an error on behalf of its handler.
func (r *Request) fail(err error) {
	line, code := r.failure(err)
	r.finish(line, code, false)
}

// failure encodes an error as a frame.
func (r *Request) failure(err error) ([]byte, Code) {
	if errors.Is(err, context.DeadlineExceeded) && r.ctx.Err() != nil {
		err = ErrTimeout
	}
	e := asError(err, r.Capability()).about(r.ID)
	if errors.Is(e, ErrUnknownType) && e.Detail == nil {
		e = unknownType(r.Envelope)
	}
	if e.cause != nil {
		r.h.Log.Info("a2e: request failed", "type", r.Type, "identity", r.Identity.Name, "err", e)
	}
	return errorFrame(e, r.h.Now()), e.Code
}

// head begins an answer: the base members and req_id, with room for further bytes.
func (r *Request) head(typ string, room int) encoder {
	return appendHead(make([]byte, 0, headSize+len(r.ID)+room), typ, NewID(), r.h.Now()).text("req_id", r.ID)
}

// answer encodes the answer of a handler as a frame.
func (r *Request) answer(resp Response) ([]byte, error) {
	line, whole := resp.Body.(wholeFrame)
	if !whole {
		typ := resp.Type
		if typ == "" && r.typ != nil {
			typ = r.typ.Answer
		}
		if typ == "" {
			typ = answerOf(r.Type)
		}
		body, err := bodyOf(resp.Body)
		if err != nil {
			return nil, &Error{Code: RuntimeError, Text: "the answer could not be written", Step: "handler", cause: err}
		}
		f := appendMembers(r.head(typ, len(body)), body,
			func(name string) bool { return bodyMember(name) && name != "req_id" })
		line = append(wholeFrame(f), '}')
		// The answer must fit the agent's schema: agents drop frames that do not fit,
		// and wait for ever (A2E §5.3, A2E-126).
		m, e := r.h.types.decode(line, r.h.limits.Depth)
		if e == nil {
			e = m.check()
		}
		if e != nil {
			return nil, &Error{Code: RuntimeError, Text: "the answer does not fit its type", Step: "handler", cause: e}
		}
	}
	if len(line) > r.h.limits.Frame {
		e := *ErrAnswerTooLarge
		e.Capability = r.Capability()
		return nil, &e
	}
	return line, nil
}

// finish sends the one final frame and drops later ones (A2E-050). In its own
// goroutine, which may wait for the agent, a request writes the frame itself if the
// transport allows.
func (r *Request) finish(line []byte, code Code, own bool) {
	s := r.Session
	r.mu.Lock()
	if r.done {
		r.mu.Unlock()
		return
	}
	r.done = true
	s.mu.Lock()
	if s.out.bytes > 2*r.h.limits.OutBytes { // the agent does not read
		line, code = errorFrame(ErrFull.about(r.ID), r.h.Now()), OutOfMemory
	}
	f, returned := outFrame{line: line}, r.returned
	if code == "" {
		f.returned = returned
	}
	var unqueued error
	if r.h.Store == nil {
		unqueued = s.queueLocked(f)
	} else {
		s.mu.Unlock()
		unqueued = s.queue(f)
		s.mu.Lock()
	}
	s.seen.keep(r.ID, line, time.Now(), &s.h.answers)
	delete(s.inflight, r.ID)
	if len(s.inflight) == 0 {
		s.inflight = nil
	}
	if i := slices.Index(s.waiting, r); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	drained := s.drainedLocked()
	st := s.out.stream
	s.mu.Unlock()
	r.mu.Unlock()
	if returned != nil && (code != "" || unqueued != nil) {
		returned(false)
	}
	r.end()
	switch {
	case st == nil:
	case own && st.write != nil:
		st.write()
	default:
		poke(st.wake)
	}
	if drained {
		s.close()
	}
}

// eventType is the event type of a request (A2E §6).
func (r *Request) eventType() string {
	switch r.Type {
	case "tool/call/req":
		return "tool/event"
	case "skill/call/req":
		return "skill/event"
	case "chain/req":
		return "chain/event"
	case "proc/spawn/req":
		return "proc/read/event"
	}
	return "invoke/event"
}

// Event sends an event about the request: before its final frame, numbered from 0 (A2E
// §6.17). data encodes as a JSON object, or is nil. While the agent does not read,
// Event waits, until ctx ends or the request is over.
func (r *Request) Event(ctx context.Context, kind EventKind, data any) error {
	return r.event(ctx, kind, data, func(f encoder) encoder { return f })
}

// event sends an event with further members (of chain/event and proc/read/event).
func (r *Request) event(ctx context.Context, kind EventKind, data any, more func(encoder) encoder) error {
	body, err := bodyOf(data)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	if err := r.Session.waitRoom(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return ErrClosed
	}
	line := append(more(appendHead(nil, r.eventType(), NewID(), r.h.Now()).text("kind", string(kind)).
		text("req_id", r.ID).json("data", body).number("seq", r.seq)), '}')
	if len(line) > r.h.limits.Frame {
		return ErrTooLarge
	}
	if err := r.Session.send(line); err != nil {
		return err
	}
	r.seq++
	return nil
}

// Progress sends a progress event: percent from 0 to 100.
func (r *Request) Progress(ctx context.Context, percent int, message string) error {
	return r.Event(ctx, KindProgress, map[string]any{"pct": min(max(percent, 0), 100), "message": message})
}

// Status sends a one-line status event.
func (r *Request) Status(ctx context.Context, message string) error {
	return r.Event(ctx, KindStatus, map[string]any{"message": message})
}

// Artifact sends a chunk of a file; final marks the last one.
func (r *Request) Artifact(ctx context.Context, name, mime string, chunk []byte, final bool) error {
	return r.Event(ctx, KindArtifact, map[string]any{"name": name, "mime": mime,
		"chunk": base64.StdEncoding.EncodeToString(chunk), "final": final})
}
