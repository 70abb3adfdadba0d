package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/internal/sleep"
)

// A call often outlives the attempt that began it. Deliver then leaves it, and what comes of it is recorded as messages
// of the server's agent. No other process can take it over: see [outgoing.adopt].

// An outCall is the call of a tool for one message, until the server answers or nobody needs the answer.
type outCall struct {
	o          *outgoing
	m          *parley.Message // a request or a notice
	agent      string          // directory name
	identity   parley.Identity
	params     *mcp.CallToolParams
	repeatable bool // the tool may be called again when it is not known whether a call arrived
	streams    bool // the requester reads events as they come

	ctx   context.Context // ends with one of the causes below
	stop  context.CancelCauseFunc
	hand  *handover     // nil: no attempt waits
	begun chan struct{} // closed when the call leaves the hub
	once  sync.Once     // closes begun
	kept  bool          // the row is written; of the attempt, until it leaves

	mu       sync.Mutex
	asking   bool                 // the server asks
	question chan *parley.Message // takes the answer, once; nil: none is awaited
	asked    int                  // questions
}

// The causes for which a call ends without an answer.
var (
	errGivenUp  = errors.New("the requester cancelled")
	errSettled  = errors.New("the request has its answer")
	errLeft     = errors.New("the attempt was ended")
	errDeadline = errors.New("the request's deadline passed")
	errCeiling  = errors.New("the call took longer than a call may")
)

// limit sets the context of the call.
func (c *outCall) limit() {
	ceiling, cause := c.o.b.c.Ceiling, errCeiling
	until := c.m.Deadline
	if c.m.Kind == parley.Notice {
		until = c.m.Expires
	}
	if left := until.Sub(c.o.b.c.Now()); !until.IsZero() && left < ceiling {
		ceiling = left
		if c.m.Kind == parley.Request {
			cause = errDeadline
		}
	}
	ctx, stop := context.WithCancelCause(c.o.b.ctx)
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithTimeoutCause(ctx, ceiling, cause)
	c.stop = func(cause error) { stop(cause); cancel() }
}

// keep writes the row.
func (c *outCall) keep(ctx context.Context) error {
	now := c.o.b.c.Now()
	until := now.Add(c.o.b.c.Ceiling)
	if d := c.m.Deadline; d.After(until) {
		until = d
	}
	c.o.expectEnd(c.m.ID)
	_, err := c.o.sent.Put(ctx, c.m.ID.String(), sentCall{To: c.agent, Peer: c.identity.ID, Tool: c.params.Name,
		Node: c.o.b.c.Journal.Node(), Begun: now}, until.Add(rowRetention))
	if err == nil {
		c.kept = true
	}
	return err
}

// A handover joins a call to the attempt that waits for it.
type handover struct {
	pauses chan struct{} // closed when the server asks for input
	once   sync.Once     // closes pauses
	done   chan struct{} // closed when there is an outcome

	mu   sync.Mutex
	left bool
	out  *hub.Outcome
}

func newHandover() *handover {
	return &handover{pauses: make(chan struct{}), done: make(chan struct{})}
}

// pause tells the attempt not to wait for the answer.
func (h *handover) pause() {
	if h != nil {
		h.once.Do(func() { close(h.pauses) })
	}
}

// give hands an outcome to the attempt; false: it does not wait any more.
func (h *handover) give(out hub.Outcome) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left || h.out != nil {
		return false
	}
	h.out = &out
	close(h.done)
	return true
}

func (h *handover) outcome() *hub.Outcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.out
}

// stopTime bounds the wait for the end of a call that was stopped.
const stopTime = 10 * time.Second

// await is the attempt's side of a call.
func (c *outCall) await(ctx context.Context, waits bool) hub.Outcome {
	begun := c.begun
	var timer <-chan time.Time
	for {
		select {
		case <-c.hand.done:
			return c.leave(ctx)
		case <-c.hand.pauses:
			return c.leave(ctx)
		case <-begun:
			begun = nil
			t := time.NewTimer(c.o.patience)
			defer t.Stop()
			timer = t.C
		case <-timer:
			return c.leave(ctx)
		case <-ctx.Done():
			if waits || begun != nil { // its caller is gone, or the call did not leave the hub yet
				c.stop(errLeft)
				t := time.NewTimer(stopTime)
				defer t.Stop()
				select {
				case <-c.hand.done:
				case <-t.C:
				}
			}
			out := c.leave(context.WithoutCancel(ctx))
			if out.Answered {
				return out
			}
			unknown := out.Err == nil || out.Unknown
			return hub.Outcome{Err: parley.AsError(ctx.Err()), Unknown: unknown}
		}
	}
}

// leave ends the attempt: with the outcome if there is one, else the call goes on without it, and its row is written.
func (c *outCall) leave(ctx context.Context) hub.Outcome {
	request := c.m.Kind == parley.Request
	if c.hand.outcome() == nil && !c.kept && request {
		if err := c.keep(ctx); err != nil {
			// The server has the call. Its answer is lost only if the hub ends before it.
			c.o.b.c.Logger.Error("cannot record the call of an attached server", "message", c.m.ID, "agent", c.agent, "error",
				err)
		}
	}
	c.hand.mu.Lock()
	c.hand.left = true
	out := c.hand.out
	c.hand.mu.Unlock()
	switch {
	case out == nil:
		return hub.Outcome{}
	case c.kept && !out.Answered && !(out.Unknown && c.repeatable): // else it is removed with the record of the answer
		c.o.dropRow(context.WithoutCancel(ctx), c.m.ID)
	}
	return *out
}

// run makes the call, and sees that its outcome reaches the attempt or the requester.
func (c *outCall) run() {
	defer c.o.release(c)
	for try := 1; ; try++ {
		reply, err := c.try()
		if err == nil {
			c.end(outcomeOf(reply))
			return
		}
		out, ended := c.failed(err)
		if c.give(out) || ended { // the hub decides
			return
		}
		schedule := c.schedule()
		if out.Err != nil && out.Err.Retryable && (!out.Unknown || c.repeatable) && try < schedule.Tries {
			_ = sleep.For(c.ctx, max(out.Wait, out.Err.After, pauseOf(schedule, try))) // the next try finds out why it ended
			continue
		}
		if out.Unknown && !c.repeatable {
			out.Err = parley.Refuse(parley.OutcomeUnknown, "%q may have run the tool %q: there was no answer", c.agent,
				c.params.Name).Because(out.Err).Stated()
		}
		c.end(out)
		return
	}
}

func outcomeOf(reply *parley.Message) hub.Outcome {
	return hub.Outcome{Answered: true, Parts: reply.Parts, Failure: reply.Error, Reply: reply}
}

// schedule is how calls are repeated.
func (c *outCall) schedule() (s delivery.Retry) {
	var own parley.Retries
	if e, ok := c.o.b.c.Hub.Directory().Agent(c.agent); ok {
		own = e.Retries
	}
	return c.o.b.c.Hub.Schedule(own)
}

// pauseOf is the pause before a further call.
func pauseOf(s delivery.Retry, tries int) time.Duration {
	p := s.First << min(tries-1, 20)
	if p <= 0 || p > s.Longest {
		return s.Longest
	}
	return p
}

// try makes one call.
func (c *outCall) try() (*parley.Message, error) {
	call := serverCall{agent: c.agent, identity: c.identity, params: c.params,
		sent: func() { c.once.Do(func() { close(c.begun) }) }}
	if c.m.Kind == parley.Request {
		t := c.newTeller()
		defer t.end()
		call.progress = t.progress
		if c.o.b.settingsOf(c.agent).Elicitation {
			call.elicit = c.elicit
		}
	}
	a, err := c.o.call(c.ctx, call)
	if refusal, ok := errors.AsType[*jsonrpc.Error](err); ok {
		recorder.Got(c.ctx, fmt.Sprintf("error %d", refusal.Code), []byte(refusal.Message))
	}
	if err != nil {
		return nil, err
	}
	return c.compose(fromAnswer(c.agent, a)), nil
}

// failed gives the outcome of a call without an answer. ended: nobody needs it but an attempt.
func (c *outCall) failed(err error) (out hub.Outcome, ended bool) {
	out = failedCall(c.agent, err)
	cause := context.Cause(c.ctx)
	switch {
	case c.ctx.Err() == nil:
		return out, false
	case errors.Is(cause, errGivenUp):
		return outcomeOf(c.compose(&parley.Message{Kind: parley.Failure,
			Error: parley.Refuse(parley.Cancelled, "cancelled")})), false
	case errors.Is(cause, errCeiling):
		return outcomeOf(c.compose(&parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.TimedOut,
			"%q did not answer within %s, the longest that a call may take", c.agent, c.o.b.c.Ceiling).
			With(parley.ByPeer, parley.PeerSilent, "")})), false
	}
	// The hub stops, and the row stays for its next process; or the hub ends the request, or has ended it.
	if out.Err == nil {
		out = hub.Outcome{Err: parley.AsError(err), Unknown: true}
	}
	return out, true
}

// end hands the outcome to the attempt, or records it.
func (c *outCall) end(out hub.Outcome) {
	failure := cmp.Or(out.Failure, out.Err)
	switch {
	case c.give(out): // see leave
	case c.m.Kind == parley.Notice:
		if failure != nil {
			c.o.b.c.Logger.Info("a tool that was called for a notice failed", "agent", c.agent, "message", c.m.ID,
				"error", failure)
		}
		c.o.dropRow(c.o.b.ctx, c.m.ID)
	case out.Reply != nil:
		c.answer(out.Reply)
	default:
		c.answer(&parley.Message{Kind: parley.Failure, Error: failure.Stated()})
	}
}

// give hands an outcome to the attempt; false: it does not wait any more.
func (c *outCall) give(out hub.Outcome) bool {
	if c.m.Kind == parley.Notice { // it has no answer
		out = hub.Outcome{Err: cmp.Or(out.Err, out.Failure), Wait: out.Wait, Unknown: out.Unknown}
	}
	return c.hand.give(out)
}

// compose makes a message one of the server's agent about the request.
func (c *outCall) compose(m *parley.Message) *parley.Message {
	m.From, m.InReplyTo = c.agent, c.m.ID
	m.Origin = parley.Origin{Protocol: Protocol, Peer: c.identity.ID, Verdict: parley.Verdict{Assurance: parley.Session,
		Checks: []parley.Check{{Name: "transport", OK: true,
			Detail: "answers of MCP servers are not signed; the connection answers for them"}}}}
	if !sameTrace(m.Trace.Parent, c.m.Trace.Parent) {
		m.Trace = parley.Trace{Parent: c.m.Trace.Parent, State: c.m.Trace.State}
	}
	return m
}

// answer records the answer of the request.
func (c *outCall) answer(reply *parley.Message) {
	c.submit(c.o.b.ctx, c.o.b.ctx, reply) // until the hub takes it, also after the deadline
}

// submit records a message of the agent about the request. It tries again until the hub takes it. The error says that
// the request is over, or the hub stops. A record that has begun is waited for until writing ends, though ctx ends: an
// answer beside it would be without its losses.
func (c *outCall) submit(ctx, writing context.Context, m *parley.Message) error {
	c.compose(m)
	for {
		try := *m
		_, err := c.o.b.c.Hub.Accept(writing, hub.Submission{Message: &try})
		e := parley.AsError(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case e.Code == parley.Conflict: // it ended otherwise
			return e
		case e.Retryable:
			if err := sleep.For(ctx, max(e.After, retryPause)); err != nil {
				return err
			}
			continue
		case m.Kind == parley.Response:
			m = c.compose(&parley.Message{Kind: parley.Failure, Error: parley.Refuse(e.Code,
				"the answer is not one that the hub can record").Because(err).Stated()})
			continue
		}
		c.o.b.c.Logger.Error("what an attached server says about a request cannot be recorded", "message", c.m.ID, "agent",
			c.agent, "kind", m.Kind, "error", err)
		return e
	}
}

const (
	// tellPause is the pause between two events of progress, streamPause that for a requester that reads them as they
	// come.
	tellPause, streamPause = time.Second, 200 * time.Millisecond
	maxTold                = 1024 // events about one call; its answer is told all the same
)

// A teller records progress, the latest where there is more than the pauses allow.
type teller struct {
	latest chan string
	over   context.CancelFunc
	work   sync.WaitGroup
}

func (c *outCall) newTeller() *teller {
	ctx, over := context.WithCancel(c.ctx)
	t := &teller{latest: make(chan string, 1), over: over}
	pause := tellPause
	if c.streams {
		pause = streamPause
	}
	t.work.Go(func() {
		told := ""
		for n := 0; n < maxTold; {
			var text string
			select {
			case text = <-t.latest:
			case <-ctx.Done():
				return
			}
			if text == told {
				continue
			}
			told, n = text, n+1
			if c.submit(ctx, c.ctx, &parley.Message{Kind: parley.Event, State: parley.Working,
				Parts: []parley.Part{parley.Text(text)}}) != nil || sleep.For(ctx, pause) != nil {
				return
			}
		}
	})
	return t
}

// progress takes a notification of the server.
func (t *teller) progress(p *mcp.ProgressNotificationParams) {
	text := progressText(p)
	if text == "" {
		return
	}
	select { // an older one that nobody took is of no use any more
	case <-t.latest:
	default:
	}
	select {
	case t.latest <- text:
	default:
	}
}

func (t *teller) end() {
	t.over()
	t.work.Wait()
}

// Bounds of questions.
const (
	maxQuestions = 16 // of one call
	maxMisfits   = 3  // answers to one question that do not fit it
)

// elicit asks the requester what the server asks, and waits for an input that fits.
func (c *outCall) elicit(ctx context.Context, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	if p.Mode == "url" || p.URL != "" {
		return &mcp.ElicitResult{Action: "decline"}, nil // the hub offers forms alone
	}
	schema, err := json.Marshal(p.RequestedSchema)
	if err != nil {
		return nil, fmt.Errorf("the requested schema: %w", err)
	}
	answers := make(chan *parley.Message, 1)
	c.mu.Lock()
	if c.asking || c.asked >= maxQuestions {
		c.mu.Unlock()
		return nil, errors.New("the server asks too much")
	}
	c.asked++
	c.asking = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asking, c.question = false, nil
	}()
	c.hand.pause()
	why := ""
	for range maxMisfits {
		c.mu.Lock()
		c.question = answers
		c.mu.Unlock()
		if err := c.submit(ctx, ctx, questionEvent(p.Message, why, schema)); err != nil {
			return nil, err
		}
		select {
		case in := <-answers:
			var answer *mcp.ElicitResult
			if answer, why = toElicitResult(in, schema, c.o.b.c.Hub.ID()); why == "" {
				return answer, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return &mcp.ElicitResult{Action: "cancel"}, nil
}

// take takes an input; false: no question is open.
func (c *outCall) take(in *parley.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.question == nil {
		return false
	}
	c.question <- in // there is room for one
	c.question = nil
	return true
}
