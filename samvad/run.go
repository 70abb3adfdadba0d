package samvad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// Running a request, in all modes; sse.go writes the streams.

// handle records a request and answers it, unless it is refused.
func (s *Server) handle(ctx context.Context, req *Request, refusal *Error) (Response, error) {
	if s.Handle != nil {
		s.running.Add(1)
		defer s.leave()
		return s.run(req, func() (Response, error) { return s.Handle(ctx, req, refusal) })
	}
	if err := s.verifier.reserve(ctx, req.Envelope); err != nil || refusal != nil {
		return Response{}, err
	}
	if req.Endpoint == ModeAsync {
		return Response{}, s.startTask(ctx, req, nil)
	}
	if !s.enter() {
		return Response{}, ErrBusy
	}
	if req.Endpoint == ModeSync {
		return s.runSync(ctx, req)
	}
	defer s.leave()
	req.Accept("")
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.TaskTimeout, DefaultTaskTimeout))
	defer cancel()
	return s.runHandler(ctx, req)
}

// run calls f for a request. A panic of f becomes an error.
func (s *Server) run(req *Request, f func() (Response, error)) (resp Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = Response{}, because(ErrUnavailable, fmt.Errorf("skill panicked: %v", p))
		}
	}()
	resp, err = f()
	s.limiter.Record(req.Agent.id(), req.From, resp.Tokens, s.now())
	switch {
	case err != nil:
		return Response{}, err
	case isNull(resp.Result):
		resp.Result = json.RawMessage("{}")
	case kindOf(resp.Result) != '{':
		return Response{}, because(ErrUnavailable, errors.New("skill answered with something else than an object"))
	}
	resp.SpanID = cmp.Or(resp.SpanID, newID())
	return resp, nil
}

func (s *Server) runHandler(ctx context.Context, req *Request) (Response, error) {
	return s.run(req, func() (Response, error) {
		if req.Agent.Handler == nil {
			return Response{}, because(ErrUnavailable, errors.New("agent without a handler"))
		}
		return req.Agent.Handler(ctx, req)
	})
}

func failure(err error) *Error {
	e := *AsError(err)
	e.Step = cmp.Or(e.Step, StepHandler)
	return &e
}

// enter takes one of the places for handlers at work.
func (s *Server) enter() bool {
	if s.running.Add(1) > int64(cmp.Or(s.MaxRunning, DefaultMaxRunning)) {
		s.running.Add(-1)
		return false
	}
	return true
}

func (s *Server) leave() { s.running.Add(-1) }

// runSync waits for a Handler no longer than its client does.
func (s *Server) runSync(ctx context.Context, req *Request) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.SyncTimeout, DefaultSyncTimeout))
	defer cancel()
	req.Accept("")
	var resp Response
	var err error
	done := make(chan struct{})
	go func() {
		defer s.leave()
		defer close(done)
		resp, err = s.runHandler(ctx, req)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		// The skill's time is up, or the client is gone. A skill that ends together
		// with its context may still have the better answer.
		select {
		case <-done:
		default:
			return Response{}, because(ErrTimeout, context.Cause(ctx))
		}
	}
	return resp, err
}

// answer writes the outcome of an accepted request. The outcome of a task goes to its
// status.
func (r *Request) answer(resp Response, err error) {
	switch {
	case r.Endpoint == ModeStream:
		r.endStream(resp, err)
	case r.Endpoint == ModeAsync:
	case err != nil:
		e := failure(err)
		e.TraceID = r.TraceID
		WriteError(r.w, e)
	default:
		writeReply(r.w, http.StatusOK, &Reply{TraceID: r.TraceID, SpanID: resp.SpanID, Result: resp.Result})
	}
}

// startTask accepts an async request, and runs it in the background. A refused
// request becomes a task that failed.
func (s *Server) startTask(ctx context.Context, req *Request, refusal *Error) error {
	t := Task{ID: newID(), Agent: req.Agent.id(), Status: TaskPending, TraceID: req.TraceID}
	s.mu.Lock()
	if s.closed || !s.enter() {
		s.mu.Unlock()
		return ErrBusy
	}
	s.wg.Add(1)
	s.mu.Unlock()
	if err := s.tasks.Put(ctx, t); err != nil {
		s.leave()
		s.wg.Done()
		return err
	}
	req.Accept(t.ID)
	go s.work(context.WithoutCancel(ctx), req, t, refusal)
	return nil
}

// work runs a task to its end and calls the sender back.
func (s *Server) work(ctx context.Context, req *Request, t Task, refusal *Error) {
	defer s.wg.Done()
	defer s.leave()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.TaskTimeout, DefaultTaskTimeout))
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()

	// The state of the task is written even when its time is over.
	store := context.WithoutCancel(ctx)
	var mu sync.Mutex
	put := func(change func()) error {
		mu.Lock()
		defer mu.Unlock()
		if t.Status.Finished() {
			return nil
		}
		change()
		return s.tasks.Put(store, t)
	}
	req.progress = func(p float64) error {
		if !(p >= 0 && p <= 1) {
			return fmt.Errorf("samvad: progress %v is not between 0 and 1", p)
		}
		return put(func() { t.Progress = &p })
	}
	reply := &Reply{TraceID: req.TraceID, SpanID: newID(), Err: refusal}
	if refusal == nil {
		if err := put(func() { t.Status, t.Progress = TaskRunning, new(0.0) }); err != nil {
			reply.Err = failure(because(ErrUnavailable, err))
		} else if resp, err := s.runHandler(ctx, req); err != nil {
			reply.Err = failure(err)
		} else {
			reply.Result, reply.SpanID = resp.Result, resp.SpanID
		}
	}
	err := put(func() {
		t.Status, t.Err = TaskFailed, reply.Err
		if reply.Err == nil {
			t.Status, t.Result, t.Progress = TaskDone, reply.Result, new(1.0)
		}
	})
	if err != nil {
		// The store refused the result: try to store that failure.
		reply.Err = failure(because(ErrUnavailable, err))
		mu.Lock()
		t.Status, t.Result, t.Err = TaskFailed, nil, reply.Err
		_ = s.tasks.Put(store, t)
		mu.Unlock()
	}
	if req.CallbackURL == "" {
		return
	}
	// The receiver can poll: a webhook that cannot be delivered is lost.
	_ = s.webhook.Send(ctx, req.Agent.Identity, req.CallbackURL, reply)
}
