package mcp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/follow"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// The hub's own tools.
const (
	toolFind   = "parley_find"
	toolAsk    = "parley_ask"
	toolSend   = "parley_send"
	toolInbox  = "parley_inbox"
	toolReply  = "parley_reply"
	toolResult = "parley_result"
)

var hubTools = []string{toolFind, toolAsk, toolSend, toolInbox, toolReply, toolResult}

// calls answers the calls of tools by clients. A call is a request of the hub; what becomes of the request is in
// the journal alone, so a call that ended is continued by parley_result, after a restart too.
type calls struct {
	b *Binding

	mu    sync.Mutex
	open  map[callKey]*context.CancelCauseFunc
	early []callKey      // cancelled before their calls began, the oldest first
	asked []askedRequest // whose clients the SDK asks before it calls again, the oldest first
}

// A callKey identifies a call of a client for notifications/cancelled.
type callKey struct{ session, id string }

// An askedRequest can be cancelled although no call of it is open.
type askedRequest struct {
	key    callKey
	cancel *clientCall
}

// Bounds of early and asked.
const (
	maxEarly = 256
	maxAsked = 4096
)

func newCalls(b *Binding) *calls { return &calls{b: b, open: map[callKey]*context.CancelCauseFunc{}} }

// errCancelled ends the context of a call that its client cancelled.
var errCancelled = errors.New("mcp: the client cancelled the call")

// begin gives a context that ends with errCancelled when the client cancels the call.
func (s *calls) begin(ctx context.Context, c *caller) (_ context.Context, end func()) {
	key := callKey{c.session, c.id}
	if c.session == "" || c.id == "" {
		return context.WithCancel(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = slices.DeleteFunc(s.asked, func(a askedRequest) bool { return a.key == key })
	early := slices.Index(s.early, key)
	if early >= 0 {
		s.early = slices.Delete(s.early, early, early+1)
		ctx = context.WithoutCancel(ctx) // the SDK may have ended it for the same notice, with another cause
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if early >= 0 {
		cancel(errCancelled)
	}
	s.open[key] = &cancel
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[key] == &cancel { // else the client used the id twice
			delete(s.open, key)
		}
		cancel(nil)
	}
}

// cancelled cancels the call that a client of a session or tunnel made with this JSON-RPC id. Its handler may not
// run yet, although it came first.
func (s *calls) cancelled(session, id string) {
	if session == "" || id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := callKey{session, id}
	if cancel := s.open[key]; cancel != nil {
		(*cancel)(errCancelled)
		return
	}
	if i := slices.IndexFunc(s.asked, func(a askedRequest) bool { return a.key == key }); i >= 0 {
		e := s.asked[i].cancel
		s.asked = slices.Delete(s.asked, i, i+1)
		s.b.spawn(func() { e.giveUp(context.Background()) })
		return
	}
	if s.early = append(s.early, key); len(s.early) > maxEarly {
		s.early = slices.Delete(s.early, 0, 1)
	}
}

// asks notes that the SDK asks the client of a call, and calls again.
func (s *calls) asks(e *clientCall) {
	key := callKey{e.t.caller.session, e.t.caller.id}
	if key.session == "" || key.id == "" {
		return
	}
	// Without what the call holds in memory.
	small := &clientCall{b: e.b, id: e.id, to: e.to, output: e.output, t: &toolCall{caller: e.t.caller, name: e.t.name,
		params: &mcp.CallToolParamsRaw{Name: e.t.name}}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked = append(s.asked, askedRequest{key, small}); len(s.asked) > maxAsked {
		s.asked = slices.Delete(s.asked, 0, 1)
	}
}

// unanswered is the result of a call whose client could not be asked by the SDK: the question as text, or what came
// meanwhile. nil: no such call is known.
func (s *calls) unanswered(ctx context.Context, who *caller) *mcp.CallToolResult {
	key := callKey{who.session, who.id}
	s.mu.Lock()
	i := slices.IndexFunc(s.asked, func(a askedRequest) bool { return a.key == key })
	if i < 0 {
		s.mu.Unlock()
		return nil
	}
	e := s.asked[i].cancel
	s.asked = slices.Delete(s.asked, i, i+1)
	s.mu.Unlock()
	defer e.end()
	err := e.open(ctx, e.id)
	switch {
	case err != nil:
	case e.reply != nil:
		return e.answer()
	case e.asked != nil:
		if r, err := e.question(); err == nil { // as text: e.can says that it cannot be asked
			return r
		}
	}
	return e.handle()
}

// call answers a call of an agent's skill, or of one of the tools parley_ask and parley_result. Its error is nil or a
// *jsonrpc.Error.
func (s *calls) call(ctx context.Context, t *toolCall) (*mcp.CallToolResult, error) {
	ctx, end := s.begin(ctx, t.caller)
	defer end()
	e := &clientCall{b: s.b, t: t, can: abilitiesOf(t), limit: s.b.c.Wait}
	if e.token = t.params.GetProgressToken(); e.token != nil {
		e.limit = s.b.c.LongWait
	}
	defer e.end()
	result, err := e.begin(ctx)
	if err == nil && result == nil {
		result, err = e.wait(ctx)
	}
	if err == nil {
		return result, nil
	}
	return e.refused(err)
}

// A clientCall is a call, and what became of its request so far. Each record counts once, by its position.
type clientCall struct {
	b      *Binding
	t      *toolCall
	can    abilities
	token  any           // of the client, for progress; nil: none
	limit  time.Duration // how long the call waits
	output []byte        // the schema that the answer must fit; nil: none was shown

	id      parley.ID // of the request
	to      string    // its recipient
	sub     *follow.Subscription
	request *parley.Message // nil while its record is in the queue
	last    uint64          // sequence of the last record that counted
	asked   *journal.Record // the event whose question is open
	reply   *parley.Message // the terminal one
	pieces  []parley.Part   // of the result, sent ahead of it
	size    int             // bytes of pieces

	progress callProgress
}

func (e *clientCall) end() {
	if e.sub != nil {
		e.sub.End()
	}
}

// begin records the request of the call, or finds it. A result needs no wait.
func (e *clientCall) begin(ctx context.Context) (*mcp.CallToolResult, error) {
	if t := e.t.tool; t != nil && e.b.clients.schemas.of(t).outputFor(e.can.modern) != nil {
		e.output = t.Skill.Output // what is shown may allow more
	}
	switch {
	case e.t.params.RequestState != "":
		return e.resume(ctx)
	case len(e.t.params.InputResponses) > 0:
		return nil, badParams("inputResponses: the hub asked for nothing; give the requestState that came with the question")
	case e.t.name == toolResult:
		return e.find(ctx)
	}
	m, err := e.message(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	if e.withdrawn(ctx) {
		// A repeat withdraws the request that it stands for, as the first call does: a client that gives a key may have
		// lost the first one, and has no other way. A call that repeats none is not recorded.
		if repeats, err := e.repeats(context.WithoutCancel(ctx), m); err != nil {
			return nil, err
		} else if !repeats {
			return e.cancelledResult(), nil
		}
	}
	return nil, e.submit(ctx, m)
}

// withdrawn reports whether the client has ended the call, and its request with it (rule MCP-032). Only a client does:
// not a lost connection of a session, nor a hub that stops.
func (e *clientCall) withdrawn(ctx context.Context) bool {
	return context.Cause(ctx) == errCancelled ||
		ctx.Err() != nil && e.t.caller.modern && e.b.streaming.Err() == nil
}

// open follows a request of this caller that was recorded before. Its error may be follow.ErrNotFound.
func (e *clientCall) open(ctx context.Context, id parley.ID) error {
	ctx = context.WithoutCancel(ctx) // a call that is withdrawn meanwhile withdraws this request
	e.end()
	e.id, e.sub = id, e.b.requests.Subscribe(id, e.token != nil)
	m, err := e.b.requests.Find(ctx, id, follow.By{From: e.t.caller.Name, To: e.t.caller.agent, Protocol: Protocol})
	if err != nil {
		return err
	}
	first := e.last == 0
	e.to = m.To
	for r, err := range e.b.requests.Load(ctx, m, true, nil) {
		if err != nil {
			return err
		}
		e.apply(r)
	}
	if first {
		e.progress.pending = "" // what happened before the call is no news
	}
	return nil
}

// find follows the request that parley_result names.
func (e *clientCall) find(ctx context.Context) (*mcp.CallToolResult, error) {
	var q struct {
		ID   string   `json:"id"`
		Wait *float64 `json:"wait"` // seconds
	}
	if err := decodeArguments(e.t.params.Arguments, &q); err != nil {
		return nil, err
	}
	id, err := parley.ParseID(q.ID)
	if err != nil {
		return nil, invalidArgument("id", "want the id of a request, as a call returned it")
	}
	if q.Wait != nil {
		if *q.Wait < 0 {
			return nil, invalidArgument("wait", "want seconds, 0 or more")
		}
		e.limit = time.Duration(min(*q.Wait, e.limit.Seconds()) * float64(time.Second))
	}
	if err := e.open(ctx, id); errors.Is(err, follow.ErrNotFound) {
		return nil, invalidArgument("id", "you made no request with this id here, or its content was erased")
	} else if err != nil {
		return nil, err
	}
	return nil, nil
}

// apply counts a record.
func (e *clientCall) apply(r *journal.Record) {
	if r.Position.Sequence <= e.last {
		return
	}
	e.last = r.Position.Sequence
	m := r.Message
	switch {
	case m.Kind == parley.Request:
		e.request = m
	case m.Kind == parley.Input:
		e.asked = nil
	case m.Kind.Terminal():
		e.reply = m
	case m.Kind != parley.Event:
	case m.State == parley.NeedsInput:
		e.asked = r
	default:
		if m.State == parley.NoState {
			e.add(m.Parts)
		}
		if e.token != nil {
			e.progress.add(m)
		}
	}
}

// add keeps pieces of the result, as many as an answer may have, and one more: an answer that has them is refused.
func (e *clientCall) add(parts []parley.Part) {
	for _, p := range parts {
		if int64(e.size) <= e.b.c.MaxAnswer {
			e.pieces, e.size = append(e.pieces, p), e.size+len(p.Data)
		}
	}
}

// wait waits for the answer of the request, or a question, and tells of progress meanwhile.
func (e *clientCall) wait(ctx context.Context) (*mcp.CallToolResult, error) {
	waiting, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	defer context.AfterFunc(e.b.streaming, cancel)()
	for {
		switch {
		case e.reply != nil:
			e.tell(ctx, true)
			return e.answer(), nil
		case e.withdrawn(ctx):
			return e.ended(ctx), nil
		case e.asked != nil:
			e.tell(ctx, true)
			return e.question()
		}
		e.tell(ctx, false)
		turn, stop := waiting, context.CancelFunc(func() {})
		if e.progress.pending != "" {
			turn, stop = context.WithTimeout(waiting, time.Until(e.progress.next))
		}
		list, err := e.sub.Take(turn)
		stop()
		switch {
		case err == nil:
			for _, r := range list {
				e.apply(r)
			}
		case errors.Is(err, follow.ErrSlow):
			if err := e.open(ctx, e.id); err != nil { // what it has already counts once
				return nil, err
			}
		case waiting.Err() != nil:
			return e.ended(ctx), nil
		}
	}
}

// ended gives the result of a call that ends before its request: the time is up, the hub stops, the client has gone, or
// it cancelled.
func (e *clientCall) ended(ctx context.Context) *mcp.CallToolResult {
	if !e.withdrawn(ctx) {
		e.tell(ctx, true)
		return e.handle()
	}
	e.giveUp(context.WithoutCancel(ctx))
	return e.cancelledResult()
}

// giveUp cancels the request, unless it has ended.
func (e *clientCall) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := e.cancel(ctx, journal.Key{}); err != nil && parley.CodeOf(err) != parley.Conflict {
		e.b.c.Logger.Warn("a call that its client cancelled goes on", "request", e.id, "error", err)
	}
}

// cancel records that the caller does not want the answer any more.
func (e *clientCall) cancel(ctx context.Context, key journal.Key) error {
	m := e.from(parley.Cancel)
	m.To, m.InReplyTo = e.to, e.id
	_, err := e.b.c.Hub.Accept(ctx, hub.Submission{Message: m, Scope: callScope(m.To, m.From), Key: key})
	return err
}

// cancelledResult is the result of a cancelled call, which no client gets (rule MCP-033).
func (e *clientCall) cancelledResult() *mcp.CallToolResult {
	return failedResult(parley.Refuse(parley.Cancelled, "the call was cancelled"))
}

// callProgress is what a client is to be told of a request.
type callProgress struct {
	pending string // the message to be sent; "": none
	piece   bool   // it has pieces of the result
	number  int    // of the event that it comes from
	last    float64
	next    time.Time // not before this
}

const (
	progressPause = 100 * time.Millisecond // between two notifications
	maxProgress   = 4000                   // characters of a message
)

// add notes an event. Of several that wait the last one counts; pieces of the result are joined.
func (p *callProgress) add(m *parley.Message) {
	text, piece := eventText(m), m.State == parley.NoState
	if piece && p.piece && p.pending != "" {
		text = p.pending + text
	}
	if text != "" {
		p.pending, p.piece, p.number = bridge.Shorten(text, maxProgress), piece, m.Number
	}
}

// tell sends the progress that waits, if it may: now says that nothing comes after it (rule MCP-030).
func (e *clientCall) tell(ctx context.Context, now bool) {
	p := &e.progress
	if p.pending == "" || !now && time.Now().Before(p.next) {
		return
	}
	p.last = max(p.last+1, float64(p.number)) // numbers begin again after a restart of the hub
	params := &mcp.ProgressNotificationParams{ProgressToken: e.token, Message: p.pending, Progress: p.last}
	p.pending, p.next = "", time.Now().Add(progressPause)
	if err := e.t.session.NotifyProgress(ctx, params); err != nil {
		e.b.c.Logger.Debug("a client was not told of progress", "request", e.id, "error", err)
	}
}

// handle is the result of a call whose request is still open. A tool that showed a schema of its answers must give
// nothing else as a success: clients raise otherwise (rule MCP-026).
func (e *clientCall) handle() *mcp.CallToolResult {
	r := &mcp.CallToolResult{Content: oneText("Still working: agent %q has not answered yet. Do not call the tool again; "+
		"call %s with {\"id\": %q} to wait for the answer.", e.to, toolResult, e.id)}
	if r.IsError = e.output != nil; !r.IsError {
		r.StructuredContent = map[string]any{"status": "working", "id": e.id, "tool": toolResult}
	}
	e.name(r)
	return r
}
