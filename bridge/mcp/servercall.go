package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/sleep"
)

// A serverCall is one call of a tool of an attached server.
type serverCall struct {
	agent    string // directory name
	identity parley.Identity
	params   *mcp.CallToolParams
	sent     func() // is called when the call is about to leave the hub
	progress func(*mcp.ProgressNotificationParams)
	// elicit asks the requester; nil: the server may not ask.
	elicit func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error)
}

// A serverAnswer is what a server answered to a call.
type serverAnswer struct {
	*mcp.CallToolResult
	structured json.RawMessage // structuredContent as the server wrote it; nil: none
}

// A callError is a call without an answer that can be used. Its cause is a *parley.Error if the hub refused the call or
// the answer, and a *serverStatus if the server answered with an HTTP status.
type callError struct {
	sent bool // the server may have done it
	err  error
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// ongoing is an exchange with a server while it goes on.
type ongoing struct {
	sent atomic.Bool            // the server may have it
	id   atomic.Pointer[string] // JSON-RPC id of its last request

	// Of a call of a tool.
	token    string
	events   atomic.Int64
	progress chan *mcp.ProgressNotificationParams
	asking   chan struct{} // held by the open question
	elicit   func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error)
	ctx      context.Context
	cancel   context.CancelCauseFunc

	mu  sync.Mutex
	err error
}

type ongoingKey struct{}

func withOngoing(ctx context.Context, o *ongoing) context.Context {
	return context.WithValue(ctx, ongoingKey{}, o)
}

// ongoingOf is the exchange to which a request of the SDK belongs; nil: none.
func ongoingOf(ctx context.Context) *ongoing {
	o, _ := ctx.Value(ongoingKey{}).(*ongoing)
	return o
}

// fail ends the exchange with an error.
func (o *ongoing) fail(err error) {
	o.mu.Lock()
	o.err = cmp.Or(o.err, err)
	o.mu.Unlock()
	if o.cancel != nil {
		o.cancel(err)
	}
}

func (o *ongoing) fault() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// errNotAsked is the cause of errors about a question of a server that nobody is asked.
var errNotAsked = errors.New("nobody can be asked for this call")

// ask asks the requester what the server asks. The error says why not.
func (o *ongoing) ask(ctx context.Context, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	switch {
	case o == nil || o.elicit == nil:
		return nil, errNotAsked
	case p.Mode != "" && p.Mode != "form" || p.URL != "":
		return nil, errors.New("only questions by form are passed on")
	}
	select {
	case o.asking <- struct{}{}:
		defer func() { <-o.asking }()
	default:
		return nil, errors.New("another question of this call is open")
	}
	both, cancel := context.WithCancel(o.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	res, err := o.elicit(both, p)
	if err != nil || res == nil {
		return nil, errors.New("the question was not answered")
	}
	return res, nil
}

// call calls a tool. The error is a *callError, or a *jsonrpc.Error that the server answered with.
func (s *servers) call(ctx context.Context, c serverCall) (*serverAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.b.c.Ceiling)
	defer cancel()
	if c.sent != nil {
		c.sent = sync.OnceFunc(c.sent)
	}
	v := s.server(c.agent)
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-ctx.Done():
		return nil, &callError{err: context.Cause(ctx)}
	}
	answer, err := s.try(ctx, v, c)
	for range 2 { // the session ended, or the connection before the call left
		if e, ok := errors.AsType[*callError](err); !ok || e.sent || !stale(err) {
			break
		}
		answer, err = s.try(ctx, v, c)
	}
	v.mu.Lock()
	if _, rpc := errors.AsType[*jsonrpc.Error](err); err == nil || rpc {
		v.called, v.failed = time.Now(), nil
	} else {
		v.failed = err
	}
	v.mu.Unlock()
	return answer, err
}

// stale reports that a call failed because of its connection: a new one may do.
func stale(err error) bool {
	status, ok := errors.AsType[*serverStatus](err)
	return ok && status.gone || errors.Is(err, errEnded) || errors.Is(err, mcp.ErrConnectionClosed)
}

// try makes a call on the present connection.
func (s *servers) try(ctx context.Context, v *server, c serverCall) (*serverAnswer, error) {
	l, err := s.linked(ctx, v, c.identity)
	if err != nil {
		return nil, &callError{err: err}
	}
	l.mu.Lock()
	offered := l.offered[c.params.Name]
	l.mu.Unlock()
	if !offered || !s.isApproved(c.agent, c.identity, c.params.Name) {
		return nil, &callError{err: parley.Refuse(parley.UnknownSkill, "the MCP server of %q has no tool %q any more, "+
			"or it waits for an approval", c.agent, c.params.Name)}
	}
	answer, err := l.call(ctx, c)
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok && e.Code == mcp.CodeHeaderMismatch && l.readTools(ctx) == nil {
		answer, err = l.call(ctx, c) // the SDK forgets which arguments are headers when the list of tools changes
	}
	if err != nil && stale(err) {
		v.drop(l)
		s.b.spawn(l.retire)
	}
	return answer, err
}

// call calls a tool, with as many rounds of input as the server asks for.
func (l *link) call(ctx context.Context, c serverCall) (*serverAnswer, error) {
	o := &ongoing{progress: make(chan *mcp.ProgressNotificationParams, 1), asking: make(chan struct{}, 1)}
	if l.elicits {
		o.elicit = c.elicit
	}
	o.ctx, o.cancel = context.WithCancelCause(ctx)
	defer o.cancel(nil)
	if !l.begin(o) {
		return nil, &callError{err: errEnded}
	}
	defer l.done(o)
	params := *c.params
	params.Meta = maps.Clone(params.Meta)
	if c.progress != nil {
		params.SetProgressToken(o.token)
		var passing sync.WaitGroup
		passed := make(chan struct{})
		passing.Go(func() { o.pass(passed, c.progress) })
		defer passing.Wait()
		defer close(passed)
	}
	if c.sent != nil {
		c.sent()
	}
	busy := 0
	for range maxRounds {
		r, err := safely(func() (*mcp.CallToolResult, error) {
			again := params // the SDK writes to them
			again.Meta = maps.Clone(params.Meta)
			return l.session.CallTool(withOngoing(o.ctx, o), &again)
		})
		if err != nil {
			return nil, o.judge(err)
		}
		answer, err := o.result(r)
		if err != nil || r.InputRequests == nil {
			return answer, err
		}
		if len(r.InputRequests) == 0 {
			if busy++; busy > maxBusy {
				break
			}
			if sleep.For(o.ctx, time.Duration(busy)*time.Second) != nil {
				return nil, o.judge(context.Cause(o.ctx))
			}
		}
		if params.InputResponses, err = o.fulfil(r.InputRequests); err != nil {
			return nil, &callError{o.ctx.Err() != nil, err}
		}
		params.RequestState = r.RequestState
	}
	return nil, &callError{err: parley.Fail(parley.Unavailable, nil, "the MCP server asks for input again and again")}
}

// begin registers a call; false: the link has ended.
func (l *link) begin(o *ongoing) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil || l.retired {
		return false
	}
	l.last++
	o.token = "parley-" + strconv.FormatUint(l.last, 10)
	l.calls[o.token] = o
	return true
}

// done forgets a call. The last one ends a retired link.
func (l *link) done(o *ongoing) {
	l.mu.Lock()
	delete(l.calls, o.token)
	ends := l.retired && len(l.calls) == 0
	l.mu.Unlock()
	if ends {
		l.s.b.spawn(l.end)
	}
}

// pass passes progress on, at a bounded rate, until the call is over.
func (o *ongoing) pass(over <-chan struct{}, to func(*mcp.ProgressNotificationParams)) {
	for {
		select {
		case p := <-o.progress:
			to(p)
		case <-over:
			return
		}
		select {
		case <-time.After(passProgress):
		case <-over:
			return
		}
	}
}

// judge says what became of a call for which the SDK gave an error.
func (o *ongoing) judge(err error) error {
	sent := o.sent.Load()
	if fault := o.fault(); fault != nil {
		return &callError{sent, fault}
	}
	if o.ctx.Err() != nil {
		return &callError{sent, context.Cause(o.ctx)}
	}
	if e, ok := errors.AsType[*serverStatus](err); ok {
		return &callError{!e.refused(), e}
	}
	if e, ok := errors.AsType[*lostError](err); ok {
		return &callError{e.sent, e.err}
	}
	if errors.Is(err, mcp.ErrConnectionClosed) {
		return &callError{sent, err}
	}
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return e
	}
	if !sent {
		return &callError{err: fmt.Errorf("%w: %w", errEnded, err)}
	}
	return &callError{sent, fmt.Errorf("%w: %w", errMalformed, err)}
}

// result checks a result, whose kind the SDK does not look at.
func (o *ongoing) result(r *mcp.CallToolResult) (*serverAnswer, error) {
	if r == nil {
		return nil, &callError{true, errMalformed}
	}
	kind, _ := r.Meta[kindMeta].(string)
	raw, _ := r.Meta[rawMeta].(string)
	delete(r.Meta, kindMeta)
	delete(r.Meta, rawMeta)
	switch {
	case kind == "task":
		return nil, &callError{true, parley.Refuse(parley.Unsupported, "the MCP server answered with a task, which "+
			"the hub does not follow")}
	case kind != "" && kind != "input_required":
		return nil, &callError{true, fmt.Errorf("%w: a result of type %q", errMalformed, bridge.Shorten(kind, 60))}
	case (kind == "input_required") != (r.InputRequests != nil):
		return nil, &callError{true, fmt.Errorf("%w: input requests and the result's type differ", errMalformed)}
	}
	a := &serverAnswer{CallToolResult: r}
	if raw != "" {
		a.structured = json.RawMessage(raw)
	}
	return a, nil
}

// fulfil asks what a server of the modern revision asks, one question after another.
func (o *ongoing) fulfil(asked mcp.InputRequestMap) (mcp.InputResponseMap, error) {
	out := mcp.InputResponseMap{}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		p, ok := asked[name].(*mcp.ElicitParams)
		if !ok || p == nil {
			return nil, parley.Refuse(parley.Unsupported, "the MCP server asks for sampling or roots, which the hub "+
				"does not offer")
		}
		res, err := o.ask(o.ctx, p)
		if o.ctx.Err() != nil {
			return nil, cmp.Or(o.fault(), context.Cause(o.ctx))
		}
		if errors.Is(err, errNotAsked) {
			return nil, parley.Refuse(parley.Unsupported, "the MCP server asks for input, which this call cannot give")
		}
		if err != nil {
			return nil, parley.Refuse(parley.Rejected, "the MCP server asked for input: %v", err)
		}
		out[name] = res
	}
	return out, nil
}

// transportFault is the cause of an error that the SDK made an error of JSON-RPC, as if the server had answered; nil:
// the transport is not at fault.
func transportFault(err error) error {
	if e, ok := errors.AsType[*serverStatus](err); ok {
		return e
	}
	if e, ok := errors.AsType[*lostError](err); ok {
		return e.err
	}
	return nil
}
